use super::*;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_socket_is_for_owner_and_group_and_goes_with_its_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.sock");
    let socket = ControlSocket::bind(&path).unwrap();
    assert_eq!(mode(&path), 0o660);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_second_gateway_is_refused_and_the_first_keeps_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.sock");
    let first = ControlSocket::bind(&path).unwrap();
    assert!(matches!(ControlSocket::bind(&path), Err(BindError::InUse { .. })));
    assert!(UnixStream::connect(first.path()).is_ok());
}

#[test]
fn the_socket_of_a_dead_process_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dropped listener leaves its file behind");
    let socket = ControlSocket::bind(&path).unwrap();
    assert!(UnixStream::connect(socket.path()).is_ok());
}

#[test]
fn foreign_listeners_and_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.sock");
    let _other = UnixListener::bind(&path).unwrap();
    assert!(matches!(ControlSocket::bind(&path), Err(BindError::InUse { .. })));

    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(ControlSocket::bind(&file), Err(BindError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(!directory.path().join("notes.txt.lock").exists(), "nothing is left behind");

    let nowhere = directory.path().join("missing/gateway.sock");
    assert!(matches!(ControlSocket::bind(&nowhere), Err(BindError::System { .. })));
}

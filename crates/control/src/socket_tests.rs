use super::*;

use std::os::unix::fs::{chown, symlink};

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
fn files_that_others_put_in_place_of_the_socket_stay() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file) = (directory.path().join("gateway.sock"), directory.path().join("notes"));
    std::fs::write(&file, "precious").unwrap();
    let socket = ControlSocket::bind(&path).unwrap();
    remove_file(&path).unwrap();
    symlink(&file, &path).unwrap();
    drop(socket);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    remove_file(&path).unwrap();
    let socket = ControlSocket::bind(&path).unwrap();
    remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(socket);
    assert!(UnixStream::connect(&path).is_ok());
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

/// A user other than the one that runs the tests.
const NOBODY: u32 = 65534;

/// The lock of a socket.
fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("sock.lock")
}

#[test]
fn the_lock_is_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.sock");
    let first = ControlSocket::bind(&path).unwrap();
    assert_eq!(mode(&lock_of(&path)), 0o600);
    drop(first);
    // A lock that other users can open may be held by one of them.
    std::fs::set_permissions(lock_of(&path), Permissions::from_mode(0o644)).unwrap();
    let held = File::open(lock_of(&path)).unwrap();
    held.lock_shared().unwrap();
    let again = ControlSocket::bind(&path).unwrap();
    assert_eq!(mode(&lock_of(&path)), 0o600);
    assert!(matches!(ControlSocket::bind(&path), Err(BindError::InUse { .. })));
    drop(again);
    let again = ControlSocket::bind(&path).unwrap();
    assert!(UnixStream::connect(again.path()).is_ok());
}

#[test]
fn a_lock_that_is_a_link_or_a_directory_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, precious) = (directory.path().join("gateway.sock"), directory.path().join("it"));
    std::fs::write(&precious, "precious").unwrap();
    std::fs::set_permissions(&precious, Permissions::from_mode(0o640)).unwrap();
    symlink(&precious, lock_of(&path)).unwrap();
    let refused = ControlSocket::bind(&path).unwrap_err();
    assert!(matches!(refused, BindError::NotALock { .. }), "{refused}");
    assert_eq!((mode(&precious), precious.metadata().unwrap().len()), (0o640, 8));
    remove_file(lock_of(&path)).unwrap();
    std::fs::create_dir(lock_of(&path)).unwrap();
    assert!(matches!(ControlSocket::bind(&path), Err(BindError::NotALock { .. })));
}

#[test]
fn files_of_another_user_in_the_way_are_set_aside_and_not_lost() {
    if netio::user_id() != ROOT {
        println!("SKIPPED: only root can act for another user");
        return;
    }
    for is_everybodys in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sock");
        let mode = if is_everybodys { 0o1777 } else { 0o755 };
        std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        std::fs::write(lock_of(&path), "not lost").unwrap();
        let held = File::open(lock_of(&path)).unwrap();
        held.lock().unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        for name in [&path, &lock_of(&path)] {
            chown(name, Some(NOBODY), None).unwrap();
        }
        let bound = ControlSocket::bind(&path);
        let names = || std::fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path());
        let asides: Vec<_> =
            names().filter(|it| it.to_string_lossy().contains(".aside-")).collect();
        if !is_everybodys {
            // The gateway has to trust users who may make files there.
            assert!(matches!(bound, Err(BindError::InUse { .. })));
            assert_eq!(asides.len(), 0);
            continue;
        }
        let bound = bound.unwrap();
        assert_eq!(asides.len(), 2);
        let lock = asides.iter().find(|it| it.to_string_lossy().contains(".lock.")).unwrap();
        assert_eq!(std::fs::read_to_string(lock).unwrap(), "not lost");
        drop(theirs);
        assert!(UnixStream::connect(bound.path()).is_ok());
        assert!(matches!(ControlSocket::bind(&path), Err(BindError::InUse { .. })));
        // A file that only its owner can remove is in the way, whatever it is.
        drop(bound);
        symlink("/etc/passwd", &path).unwrap();
        std::os::unix::fs::lchown(&path, Some(NOBODY), None).unwrap();
        drop(ControlSocket::bind(&path).unwrap());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("it"), "").unwrap();
        chown(&path, Some(NOBODY), None).unwrap();
        drop(ControlSocket::bind(&path).unwrap());
    }
}

//! The table `[sync]`.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use engine::Role;

use super::testing::{parse, problems};
use super::*;

const WHOLE: &str = "
[sync]
node = 2
name = \"right\"
peer = \"2001:db8::1\"
interface = \"sync0\"
port = 4781
key_file = \"/etc/stateway/sync.key\"
protocol = \"native\"
role = \"active\"
defer_ms = 20
";

#[test]
fn every_key_is_read_and_most_may_be_left_out() {
    let sync = parse(WHOLE).unwrap().sync.unwrap();
    assert_eq!((sync.node.0.get(), sync.name.as_str()), (2, "right"));
    assert_eq!((sync.peer, sync.port), ("2001:db8::1".parse().unwrap(), 4781));
    assert_eq!((sync.interface.as_str(), sync.role), ("sync0", Role::Active));
    assert_eq!(sync.defer, Some(Duration::from_millis(20)));
    let short = "[sync]\nnode = 7\npeer = \"192.0.2.2\"\ninterface = \"s\"\nkey_file = \"key\"";
    let file = Path::new("/etc/stateway/gateway.toml");
    let config = Configuration::parse(file, short, &CpuSet::first(1)).unwrap();
    let sync = config.sync.unwrap();
    assert_eq!((sync.name.as_str(), sync.port, sync.role), ("node7", 4780, Role::Standby));
    assert_eq!(sync.defer, None);
    assert_eq!((sync.key_file, sync.key_line), ("/etc/stateway/key".into(), 5));
    assert!(parse("").unwrap().sync.is_none());
}

#[test]
fn all_problems_of_sync_are_told_at_once() {
    insta::assert_snapshot!(problems(
        "
[[interface]]
name = \"lan0\"

[sync]
node = 0
name = \"two words\"
peer = \"224.0.0.240\"
interface = \"a name that is too long\"
port = 65536
protocol = \"pfsync-1400\"
role = \"both\"
defer_ms = 0
multicast = true
"
    ));
    insta::assert_snapshot!(problems(
        "
[[interface]]
name = \"lan0\"

[sync]
node = 1
peer = \"192.0.2.2\"
interface = \"lan0\"
key_file = \"key\"
"
    ));
}

#[test]
fn a_key_that_others_may_read_or_guess_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut sync = parse(WHOLE).unwrap().sync.unwrap();
    sync.key_file = directory.path().join("key");
    let refused = |sync: &SyncConfig| sync.key().err().unwrap_or_default();
    assert!(refused(&sync).contains("can not be read"), "{}", refused(&sync));
    std::fs::write(&sync.key_file, "sixteen bytes ok\n").unwrap();
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&sync.key_file, permissions).unwrap();
    };
    mode(0o640);
    assert!(refused(&sync).contains("chmod 600"), "{}", refused(&sync));
    mode(0o600);
    let key = sync.key().unwrap();
    // The end of a line is no part of the key.
    std::fs::write(&sync.key_file, "sixteen bytes ok").unwrap();
    assert_eq!(sync.key().unwrap().name_secret(), key.name_secret());
    assert_ne!(*key.hash_secret().bytes(), key.name_secret());
    std::fs::write(&sync.key_file, "too short\n").unwrap();
    assert!(refused(&sync).contains("16"), "{}", refused(&sync));
    std::fs::write(&sync.key_file, vec![b'x'; 5000]).unwrap();
    assert!(refused(&sync).contains("no key"), "{}", refused(&sync));
}

//! The table `[sync]`.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use ::sync::pfsync::{CreatorId, Dialect, MULTICAST_V4, MULTICAST_V6};
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

/// The native protocol of a configuration.
fn native(text: &str) -> NativeConfig {
    let file = Path::new("/etc/stateway/gateway.toml");
    match Configuration::parse(file, text, &CpuSet::first(1)).unwrap().sync {
        Some(SyncConfig::Native(sync)) => sync,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_key_is_read_and_most_may_be_left_out() {
    let sync = native(WHOLE);
    assert_eq!((sync.node.0.get(), sync.name.as_str()), (2, "right"));
    assert_eq!((sync.peer, sync.port), ("2001:db8::1".parse().unwrap(), 4781));
    assert_eq!((sync.interface.as_str(), sync.role), ("sync0", Role::Active));
    assert_eq!(sync.defer, Some(Duration::from_millis(20)));
    let short = "[sync]\nnode = 7\npeer = \"192.0.2.2\"\ninterface = \"s\"\nkey_file = \"key\"";
    let sync = native(short);
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
protocol = \"conntrackd\"
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
    let mut sync = native(WHOLE);
    sync.key_file = directory.path().join("key");
    let refused = |sync: &NativeConfig| sync.key().err().unwrap_or_default();
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

fn pfsync(text: &str) -> PfsyncConfig {
    let text = format!("[sync]\nprotocol = \"pfsync\"\ninterface = \"sync0\"\n{text}");
    match parse(&text).unwrap().sync {
        Some(SyncConfig::Pfsync(sync)) => sync,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pfsync_has_its_own_keys() {
    let short = pfsync("");
    assert_eq!(short.version, Dialect::Version1400);
    assert_eq!((short.peer, short.interface.as_str()), (MULTICAST_V4.into(), "sync0"));
    assert_eq!((short.maxupd, short.defer, short.hostid), (128, false, None));
    assert_eq!(short.role, Role::Standby);
    let whole = pfsync(
        "version = 6\npeer = \"192.0.2.2\"\nmaxupd = 255\ndefer = true\nhostid = 0xffffffff\n\
         role = \"active\"",
    );
    assert_eq!(whole.version, Dialect::Version6);
    assert_eq!(whole.peer, IpAddr::from([192, 0, 2, 2]));
    assert_eq!((whole.maxupd, whole.defer, whole.role), (255, true, Role::Active));
    assert_eq!(whole.hostid.map(CreatorId::get), Some(u32::MAX));
    assert_eq!(pfsync("peer = \"ff12::f0\"").peer, IpAddr::V6(MULTICAST_V6));
    for dialect in Dialect::ALL {
        assert_eq!(pfsync(&format!("version = {}", dialect.number())).version, dialect);
    }
}

#[test]
fn all_problems_of_pfsync_are_told_at_once() {
    insta::assert_snapshot!(problems(
        "
[[interface]]
name = \"lan0\"

[sync]
protocol = \"pfsync\"
version = 5
peer = \"224.0.0.1\"
maxupd = 256
defer = 20
hostid = 0
key_file = \"key\"
"
    ));
    insta::assert_snapshot!(problems(
        "
[[interface]]
name = \"lan0\"

[sync]
protocol = \"pfsync\"
version = 6
peer = \"ff12::f0\"
interface = \"lan0\"
"
    ));
}

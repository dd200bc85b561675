use super::*;

#[test]
fn defaults_are_the_kernels() {
    let settings = TcpSettings::default();
    let seconds = TcpState::ALL.map(|state| settings.timeouts.of(state));
    assert_eq!(seconds, [120, 60, 432_000, 120, 60, 30, 120, 10, 120]);
    assert_eq!(settings.timeouts.retransmitted, 300);
    assert_eq!(settings.timeouts.unacknowledged, 300);
    assert_eq!(settings.max_retransmissions, 3);
    assert!(settings.loose && !settings.be_liberal && !settings.ignore_invalid_rst);
}

#[test]
fn each_tunable_reaches_a_field_of_its_own() {
    for tunable in TUNABLES {
        let mut settings = TcpSettings::default();
        let value = if tunable.default == 0 { 1 } else { 0 };
        settings.set(tunable.name, value).unwrap();
        for other in TUNABLES {
            let expected = if other.name == tunable.name { value } else { other.default };
            assert_eq!(settings.get(other.name), Some(expected), "{}", other.name);
        }
    }
}

#[test]
fn the_largest_value_survives() {
    let mut settings = TcpSettings::default();
    for tunable in TUNABLES {
        settings.set(tunable.name, tunable.max).unwrap();
        assert_eq!(settings.get(tunable.name), Some(tunable.max));
    }
}

#[test]
fn a_refused_value_changes_nothing() {
    let mut settings = TcpSettings::default();
    let error = settings.set("nf_conntrack_tcp_max_retrans", 256).unwrap_err();
    assert_eq!(error.to_string(), "nf_conntrack_tcp_max_retrans = 256 is out of range: 0 to 255");
    assert!(matches!(
        settings.set("nf_conntrack_tcp_lose", 0),
        Err(SetTunableError::Unknown { .. })
    ));
    assert_eq!(settings, TcpSettings::default());
}

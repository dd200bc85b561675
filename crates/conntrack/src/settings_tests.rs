use super::*;

#[test]
fn every_tunable_can_be_read_and_set() {
    for tunable in Settings::tunables() {
        let mut settings = Settings::default();
        assert_eq!(settings.get(tunable.name), Some(tunable.default), "{}", tunable.name);
        for value in [tunable.min, tunable.max] {
            settings.set(tunable.name, value).unwrap();
            assert_eq!(settings.get(tunable.name), Some(value), "{}", tunable.name);
        }
        let too_much = settings.set(tunable.name, tunable.max + 1);
        assert!(matches!(too_much, Err(SetTunableError::OutOfRange { .. })), "{too_much:?}");
        assert_eq!(settings.get(tunable.name), Some(tunable.max), "nothing changed");
        // No two names reach the same field.
        let mut others = Settings::tunables().filter(|other| other.name != tunable.name);
        assert!(others.all(|other| settings.get(other.name) == Some(other.default)));
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let mut settings = Settings::default();
    let refused = settings.set("nf_conntrack_nonsense", 1);
    assert!(matches!(refused, Err(SetTunableError::Unknown { .. })), "{refused:?}");
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.get("nf_conntrack_nonsense"), None);
}

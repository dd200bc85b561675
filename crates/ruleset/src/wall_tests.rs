use super::*;
use crate::kind::Kind;
use crate::problem::Path;

fn parsed(kind: Kind, text: &str) -> Option<u128> {
    kind.constant(&text.into(), &Path::root("right")).ok()
}

/// 2024-02-29 22:30:07.5 UTC, a Thursday.
const NOW: i64 = 1_709_245_807_500_000_000;

#[test]
fn dates_and_hours_are_those_of_the_clock() {
    let (clock, now) = (WallClock::default(), Timestamp::from_nanos(7 * NANOS as u64));
    let all = [ClockField::Date, ClockField::Hour, ClockField::Day];
    assert_eq!(all.map(|field| clock.value(field, now)), [None; 3], "nobody has set it");
    clock.set(NOW - 7 * NANOS, 0);
    let second = parsed(Kind::Date, "2024-02-29 22:30:07");
    assert_eq!(clock.value(ClockField::Date, now), second.map(|second| second + 500_000_000));
    assert_eq!(clock.value(ClockField::Hour, now), parsed(Kind::Hour, "22:30:07"));
    assert_eq!(clock.value(ClockField::Day, now), parsed(Kind::Day, "Thursday"));
    // Two hours to the east it is the next day, but the day of the week is that of UTC.
    clock.set(NOW - 7 * NANOS, 7200);
    let second = parsed(Kind::Date, "2024-03-01 00:30:07");
    assert_eq!(clock.value(ClockField::Date, now), second.map(|second| second + 500_000_000));
    assert_eq!(clock.value(ClockField::Hour, now), parsed(Kind::Hour, "00:30:07"));
    assert_eq!(clock.value(ClockField::Day, now), parsed(Kind::Day, "Thursday"));
}

#[test]
fn times_are_read_as_nft_writes_them() {
    assert_eq!(parsed(Kind::Date, "1970-01-01 00:00:00"), Some(0));
    assert_eq!(parsed(Kind::Date, "2000-03-01 00:00:01"), Some(951_868_801_000_000_000));
    assert_eq!(parsed(Kind::Date, "2024-01-01"), Some(1_704_067_200_000_000_000));
    assert_eq!(parsed(Kind::Hour, "08:00"), Some(28_800));
    assert_eq!(parsed(Kind::Hour, "23:59:59"), Some(86_399));
    assert_eq!(parsed(Kind::Day, "Sunday"), Some(0));
    for wrong in ["2024-13-01", "2024-00-01", "2024-02-32 00:00:00", "x", "", "1969-01-01", "2024"]
    {
        assert_eq!(parsed(Kind::Date, wrong), None, "{wrong}");
    }
    for wrong in ["24:00", "8", "08:60", "08:00:60", "08:00:00:00", "-1:00", ":"] {
        assert_eq!(parsed(Kind::Hour, wrong), None, "{wrong}");
    }
    assert_eq!(parsed(Kind::Day, "7"), None);
}

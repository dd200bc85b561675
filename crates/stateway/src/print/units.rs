//! Numbers for people. JSON always has the exact ones.

use std::time::Duration;

/// Numbers below this are printed exactly.
const EXACT_BELOW: u64 = 1_000_000;

/// A number of things: exact below a million, then four digits.
pub fn count(number: u64) -> String {
    scaled(number, "")
}

/// A number and a noun whose plural ends in s.
pub fn things(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// A number of bytes, in decimal units.
pub fn bytes(number: u64) -> String {
    if number < 10_000 { format!("{number} B") } else { scaled_from(number, 1000, "B") }
}

/// A share as percent with one decimal; a dash if the whole is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// A time in its two largest units.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    if days > 0 {
        format!("{days} d {hours} h")
    } else if hours > 0 {
        format!("{hours} h {minutes} min")
    } else if minutes > 0 {
        format!("{minutes} min {rest} s")
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

fn scaled(number: u64, unit: &str) -> String {
    if number < EXACT_BELOW { number.to_string() } else { scaled_from(number, EXACT_BELOW, unit) }
}

/// Four digits with the prefix of the largest power of 1000 from `least` on.
fn scaled_from(number: u64, least: u64, unit: &str) -> String {
    const PREFIXES: [(u64, &str); 5] = [
        (1_000_000_000_000_000, "P"),
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1000, "k"),
    ];
    let fits = |&&(power, _): &&(u64, &str)| number >= power && power >= least;
    let Some((power, prefix)) = PREFIXES.iter().find(fits) else { return number.to_string() };
    let value = number as f64 / *power as f64;
    let decimals = if value < 10.0 {
        3
    } else if value < 100.0 {
        2
    } else {
        1
    };
    format!("{value:.decimals$} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_small_ones_exact() {
        let counts = [0, 999_999, 1_000_000, 12_345_678, 999_900_000, u64::MAX].map(count);
        assert_eq!(counts, ["0", "999999", "1.000 M", "12.35 M", "999.9 M", "18446.7 P"]);
        assert_eq!(
            [0, 9999, 10_000, 1_500_000].map(bytes),
            ["0 B", "9999 B", "10.00 kB", "1.500 MB"]
        );
        let events = [0, 1, 2].map(|number| things(number, "event"));
        assert_eq!(events, ["0 events", "1 event", "2 events"]);
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(0, 0), "-");
    }

    #[test]
    fn times_have_two_units() {
        let times = [0.25, 75.0, 3720.0, 90_000.0].map(Duration::from_secs_f64).map(duration);
        assert_eq!(times, ["0.2 s", "1 min 15 s", "1 h 2 min", "1 d 1 h"]);
    }
}

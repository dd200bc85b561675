use flow::{Endpoint, FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, protocol};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn opener(zone: u16, client: u8, ports: (u16, u16)) -> KeyedPacket {
    let end = |last, port| {
        let mut address = [0; 16];
        (address[10], address[11], address[15]) = (0xff, 0xff, last);
        Endpoint { address, port }
    };
    let (client, server) = (end(client, ports.0), end(7, ports.1));
    FlowKey::of_ports(Family::V4, protocol::TCP, Zone(zone), client, server)
}

fn later(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(NOW.as_nanos() + seconds * 1_000_000_000)
}

proptest! {
    #[test]
    fn a_cookie_comes_back_with_what_it_was_given(
        secret: (u64, u64), client: u8, ports: (u16, u16), initial: u32, size: u16, age in 0u64..64,
    ) {
        let cookies = Cookies::new(HashKey(secret.0, secret.1));
        let opener = opener(1, client, ports);
        let cookie = cookies.make(&opener, initial, size, 0, NOW);
        let rounded = cookies.check(cookie, &opener, initial, 0, later(age)).unwrap();
        prop_assert!(rounded <= size || rounded == SEGMENT_SIZES[0]);
        let next = SEGMENT_SIZES.iter().find(|&&known| known > rounded);
        prop_assert!(next.is_none_or(|&next| next > size), "no larger one would have fitted");
    }

    #[test]
    fn a_cookie_is_good_for_nothing_else(
        client: u8, ports: (u16, u16), initial: u32, size: u16, bit in 0u32..32, other: u8,
    ) {
        let cookies = Cookies::new(HashKey(1, 2));
        let mine = opener(1, client, ports);
        let cookie = cookies.make(&mine, initial, size, 0, NOW);
        let is_good = |cookies: &Cookies, cookie, opener: &KeyedPacket, initial, now| {
            cookies.check(cookie, opener, initial, 0, now).is_some()
        };
        prop_assert!(is_good(&cookies, cookie, &mine, initial, NOW));
        prop_assert!(!is_good(&cookies, cookie ^ 1 << bit, &mine, initial, NOW), "forged");
        prop_assert!(!is_good(&cookies, cookie, &mine, initial ^ 1 << bit, NOW));
        prop_assert!(!is_good(&cookies, cookie, &opener(2, client, ports), initial, NOW), "zone");
        let far = opener(1, client, (ports.0, ports.1 ^ 1));
        prop_assert!(!is_good(&cookies, cookie, &far, initial, NOW), "port");
        if other != client {
            prop_assert!(!is_good(&cookies, cookie, &opener(1, other, ports), initial, NOW));
        }
        let backwards = KeyedPacket { sender: mine.sender.opposite(), ..mine };
        if client != 7 || ports.0 != ports.1 {
            prop_assert!(!is_good(&cookies, cookie, &backwards, initial, NOW), "the server's");
        }
        prop_assert!(!is_good(&Cookies::new(HashKey(1, 3)), cookie, &mine, initial, NOW), "secret");
    }

    #[test]
    fn an_old_cookie_is_worth_nothing(start in 0u64..1000, age in 0u64..1000) {
        let cookies = Cookies::new(HashKey(1, 2));
        let opener = opener(0, 1, (2, 3));
        let (made, now) = (Timestamp::from_secs(start), Timestamp::from_secs(start + age));
        let cookie = cookies.make(&opener, 5, 1460, 0, made);
        let is_good = cookies.check(cookie, &opener, 5, 0, now).is_some();
        prop_assert_eq!(is_good, (start + age) / 64 - start / 64 <= 1);
    }
}

#[test]
fn guessing_is_as_hard_as_promised() {
    let cookies = Cookies::new(HashKey(1, 2));
    let opener = opener(0, 1, (2, 3));
    // One in 2^28 of all numbers fits for each size and each of the two steps: 16 in all. So
    // one in 256 runs of this test finds one among the first 2^20 numbers.
    let good = (0..1 << 20).filter(|&guess| cookies.check(guess, &opener, 5, 0, NOW).is_some());
    assert!(good.count() <= 1);
}

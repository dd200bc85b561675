use std::num::NonZeroU16;

use super::*;
use crate::fault::Faults;

fn greeter_with(node: u16, seed: u8, secret: &[u8]) -> Greeter {
    let id = NodeId(NonZeroU16::new(node).unwrap());
    let name = NodeName::new(&format!("node{node}")).unwrap();
    let secret = PreSharedKey::new(secret).unwrap();
    Greeter::new((id, name), None, secret, Seed::new([seed; 32]))
}

fn greeter(node: u16) -> Greeter {
    greeter_with(node, node as u8, b"the same secret!")
}

/// All three greetings between two nodes, and the keys of both.
fn greet(one: &mut Greeter, other: &mut Greeter) -> ([Vec<u8>; 3], Agreed, Agreed) {
    let (hello, first) = one.hello();
    let (read, _) = other.read(Kind::Hello, &first).unwrap();
    let second = other.answer(&read);
    let (answer, code) = one.read(Kind::Answer, &second).unwrap();
    let (third, at_one) = one.confirm(&hello, &answer, &code).unwrap();
    let (confirm, code) = other.read(Kind::Confirm, &third).unwrap();
    let at_other = other.accept(&confirm, &code).unwrap();
    one.renew(at_one.bond);
    other.renew(at_other.bond);
    ([first, second, third], at_one, at_other)
}

fn seal(agreed: &mut Agreed, content: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    agreed.epoch.begin(&mut datagram);
    datagram.extend_from_slice(content);
    agreed.epoch.seal(&mut datagram);
    datagram
}

fn open(agreed: &mut Agreed, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
    let header = crate::packet::SealedHeader::decode(datagram).ok_or(Refusal::Malformed)?;
    let mut content = Vec::new();
    agreed.epoch.open(header.number, datagram, &mut content, Faults::default())?;
    agreed.epoch.accept(header.number);
    Ok(content)
}

#[test]
fn two_nodes_agree_about_keys_for_each_direction() {
    let (mut one, mut other) = (greeter(1), greeter(2));
    let (greetings, mut at_one, mut at_other) = greet(&mut one, &mut other);
    assert_eq!(greetings.map(|it| it.len()), [GREETING_BYTES; 3]);
    assert_eq!((&at_one.peer, &at_other.peer), (&other.host, &one.host));
    for content in [&b""[..], b"record", &[9; 1300]] {
        let datagram = seal(&mut at_one, content);
        assert_eq!(datagram.len(), content.len() + crate::epoch::SEALED_OVERHEAD_BYTES);
        assert_eq!(open(&mut at_other, &datagram).as_deref(), Ok(content));
        assert_eq!(open(&mut at_other, &datagram), Err(Refusal::Replayed));
        assert_eq!(open(&mut at_one, &datagram), Err(Refusal::Forged), "the other direction");
        let back = seal(&mut at_other, content);
        assert_eq!(open(&mut at_one, &back).as_deref(), Ok(content));
    }
}

#[test]
fn a_sealed_datagram_is_taken_whole_or_not_at_all() {
    let (mut one, mut other) = (greeter(1), greeter(2));
    let (_, mut at_one, mut at_other) = greet(&mut one, &mut other);
    let datagram = seal(&mut at_one, b"what it carries");
    for length in 0..datagram.len() {
        let cut = open(&mut at_other, &datagram[..length]);
        assert!(matches!(cut, Err(Refusal::Malformed | Refusal::Forged)), "{length}: {cut:?}");
    }
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // The index is checked by the session, which finds the keys by it, and is authenticated.
        let is_first_bytes = bit < 16;
        let kind = Kind::of(&changed);
        assert!(is_first_bytes || kind == Ok(Kind::Sealed));
        assert!(matches!(open(&mut at_other, &changed), Err(Refusal::Forged)), "bit {bit}");
    }
    assert!(open(&mut at_other, &datagram).is_ok());
}

#[test]
fn greetings_that_were_cut_or_changed_are_refused() {
    let (mut one, other) = (greeter(1), greeter(2));
    let (hello, first) = one.hello();
    let second = other.answer(&other.read(Kind::Hello, &first).unwrap().0);
    let (answer, code) = one.read(Kind::Answer, &second).unwrap();
    let (third, _) = one.confirm(&hello, &answer, &code).unwrap();
    for length in 0..GREETING_BYTES {
        for (kind, datagram) in [(Kind::Hello, &first), (Kind::Answer, &second)] {
            let cut = other.read(kind, &datagram[..length]);
            assert_eq!(cut, Err(Refusal::Malformed), "{kind:?}, {length} bytes");
        }
    }
    for bit in 16..GREETING_BYTES * 8 {
        let changed = |datagram: &[u8]| {
            let mut changed = datagram.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            changed
        };
        assert!(other.read(Kind::Hello, &changed(&first)).is_err(), "hello, bit {bit}");
        let answer = one.read(Kind::Answer, &changed(&second));
        let answer = answer.and_then(|(it, code)| one.confirm(&hello, &it, &code).map(drop));
        assert!(answer.is_err(), "answer, bit {bit}");
        let confirm = other.read(Kind::Confirm, &changed(&third));
        let confirm = confirm.and_then(|(it, code)| other.accept(&it, &code).map(drop));
        assert!(confirm.is_err(), "confirm, bit {bit}");
    }
    let (confirm, code) = other.read(Kind::Confirm, &third).unwrap();
    assert!(other.accept(&confirm, &code).is_ok(), "nothing of that changed anything");
}

#[test]
fn a_confirm_works_once() {
    let (mut one, mut other) = (greeter(1), greeter(2));
    let ([first, _, third], ..) = greet(&mut one, &mut other);
    let (confirm, code) = other.read(Kind::Confirm, &third).unwrap();
    assert_eq!(other.accept(&confirm, &code).unwrap_err(), Refusal::StaleGreeting);
    // The same hello again gets another answer, so no keys come twice.
    let (hello, _) = other.read(Kind::Hello, &first).unwrap();
    let again = other.answer(&hello);
    let (answer, _) = one.read(Kind::Answer, &again).unwrap();
    assert_ne!(answer.index, confirm.echo);
}

#[test]
fn an_answer_is_void_when_keys_have_come_into_force_in_another_way() {
    let (mut one, mut other) = (greeter(1), greeter(2));
    let (hello, first) = other.hello();
    let second = one.answer(&one.read(Kind::Hello, &first).unwrap().0);
    let (answer, code) = other.read(Kind::Answer, &second).unwrap();
    let (late, _) = other.confirm(&hello, &answer, &code).unwrap();
    // Meanwhile the other node has answered.
    greet(&mut one, &mut other);
    let (confirm, code) = one.read(Kind::Confirm, &late).unwrap();
    assert_eq!(one.accept(&confirm, &code).unwrap_err(), Refusal::StaleGreeting);
}

#[test]
fn both_nodes_keep_a_bond_or_neither_does() {
    let (mut one, mut other, mut twin) = (greeter(1), greeter(2), greeter(2));
    let mut greet = |other: &mut Greeter| {
        let (_, at_one, at_other) = greet(&mut one, other);
        assert_eq!((at_one.bond, at_one.is_kept), (at_other.bond, at_other.is_kept));
        at_one
    };
    let first = greet(&mut other);
    assert!(!first.is_kept);
    let second = greet(&mut other);
    assert!(second.is_kept && second.bond == first.bond);
    // Another process of the same node, after which the first one comes back.
    assert!(!greet(&mut twin).is_kept);
    let third = greet(&mut other);
    assert!(!third.is_kept && third.bond != first.bond);
    // One that has not heard that a bond began keeps none.
    let (before, _) = (other.bond, greet(&mut twin));
    other.bond = before;
    assert!(!greet(&mut other).is_kept);
}

#[test]
fn restarts_make_other_keys_also_with_the_same_seed_at_one_end() {
    let mut one = greeter(1);
    let mut datagrams = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (_, mut at_one, _) = greet(&mut one, &mut greeter_with(2, 5, b"the same secret!"));
        assert!(datagrams.insert(seal(&mut at_one, b"same").split_off(14)));
        let mut restarted = greeter(1);
        let other = &mut greeter_with(2, seed + 50, b"the same secret!");
        let (_, mut at_one, _) = greet(&mut restarted, other);
        assert!(datagrams.insert(seal(&mut at_one, b"same").split_off(14)));
    }
}

#[test]
fn greetings_of_strangers_are_refused_by_name() {
    let (mut one, other) = (greeter(1), greeter(2));
    let (hello, datagram) = one.hello();
    assert_eq!(one.read(Kind::Hello, &datagram).unwrap_err(), Refusal::OwnNode);
    let stranger = greeter_with(3, 3, b"another secret!!");
    assert_eq!(stranger.read(Kind::Hello, &datagram).unwrap_err(), Refusal::Forged);
    let third = Greeter { expected: Some(other.host.node), ..greeter(3) };
    assert_eq!(third.read(Kind::Hello, &datagram).unwrap_err(), Refusal::OtherNode);
    let (answer, code) = one.read(Kind::Answer, &stranger.answer(&hello)).unwrap();
    assert_eq!(one.confirm(&hello, &answer, &code).unwrap_err(), Refusal::Forged);
    let (later, _) = one.hello();
    assert_eq!(one.confirm(&later, &answer, &code).unwrap_err(), Refusal::StaleGreeting);
}

use proptest::prelude::*;

use super::*;

/// One message of each kind.
pub fn all() -> Vec<Message> {
    let interface = |name: &str, index| Interface { name: name.into(), index, queues: 2 };
    let offer = Offer {
        release: "1.0".into(),
        mode: "routed".into(),
        network: Some(1 << 33),
        interfaces: vec![interface("lan0", 3), interface("wan0", 4)],
        secret: [7; 16],
        rules: Some(1 << 100),
        role: Some(OfferedRole { is_active: true, term: 9 }),
    };
    vec![
        Message::Hello(1, 2, "1.1".into()),
        Message::Offer(Box::new(offer)),
        Message::Claim(1),
        Message::Control,
        Message::Begin,
        Message::Records(vec![1, 2, 3]),
        Message::Mark(5),
        Message::Reached(5),
        Message::Frozen(1 << 40, 2),
        Message::Queue(
            1,
            Position {
                sequence: 1 << 50,
                offload: true,
                ring: Some((8192, 17)),
                is_latency: false,
            },
        ),
        Message::Ready(100_000),
        Message::Go,
        Message::Running,
        Message::Stop("no".into()),
        Message::Changed(Some(1 << 90)),
        Message::NotCarried("zones".into()),
    ]
}

fn decode(bytes: &[u8]) -> Result<Message, DecodeMessageError> {
    let (head, body) = bytes.split_first_chunk().expect("a head");
    let head = Head::decode(*head)?;
    Message::decode(head, &body[..body.len().min(head.body_bytes)])
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for (kind, message) in all().into_iter().enumerate() {
        assert_eq!(usize::from(message.kind()), kind);
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(decode(&bytes), Ok(message.clone()));
        for end in HEAD_BYTES..bytes.len() {
            // Records may have any length, and a damaged one shows when it is applied.
            let is_whole = matches!(message, Message::Records(_));
            assert_eq!(decode(&bytes[..end]).is_ok(), is_whole, "{message:?} up to {end}");
        }
        let mut head: [u8; HEAD_BYTES] = *bytes.first_chunk().unwrap();
        head[4] += 1;
        let error = DecodeMessageError::Descriptors(kind as u8, head[4]);
        assert_eq!(Head::decode(head), Err(error));
    }
}

#[test]
fn frames_that_nobody_sends_are_refused() {
    let head = |length: u32, kind| {
        let [a, b, c, d] = length.to_be_bytes();
        Head::decode([a, b, c, d, 0, kind])
    };
    assert_eq!(head(1, 4), Err(DecodeMessageError::TooLong(1)), "shorter than its head");
    let longest = FRAME_BYTES_MAX as u32;
    assert!(head(longest, 5).is_ok());
    assert_eq!(head(longest + 1, 5), Err(DecodeMessageError::TooLong(longest + 1)));
    assert_eq!(head(u32::MAX, 5), Err(DecodeMessageError::TooLong(u32::MAX)));
    assert_eq!(head(2, 16), Err(DecodeMessageError::Kind(16)));
}

#[test]
fn a_queue_of_latency_says_so_and_one_of_a_release_without_lanes_does_not() {
    let position = Position { sequence: 3, offload: false, ring: None, is_latency: true };
    let mut bytes = Vec::new();
    Message::Queue(0, position).encode(&mut bytes);
    assert_eq!(decode(&bytes), Ok(Message::Queue(0, position)));
    let bulk = Position { is_latency: false, ..position };
    assert_eq!(decode(&bytes[..bytes.len() - 1]), Ok(Message::Queue(0, bulk)));
}

#[test]
fn a_text_is_cut_between_two_characters() {
    let mut bytes = Vec::new();
    Message::Stop("ä".repeat(TEXT_BYTES_MAX)).encode(&mut bytes);
    assert_eq!(decode(&bytes), Ok(Message::Stop("ä".repeat(TEXT_BYTES_MAX / 2))));
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_refused(kind in 0_u8..16, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let head = Head { body_bytes: body.len(), descriptors: 0, kind };
        if let Ok(message) = Message::decode(head, &body) {
            let mut again = Vec::new();
            message.encode(&mut again);
            prop_assert_eq!(decode(&again), Ok(message));
        }
    }
}

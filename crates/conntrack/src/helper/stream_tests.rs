use flow::{FlowKey, KeyedPacket, Side, Zone};
use proptest::prelude::*;

use super::*;
use crate::Direction;
use crate::helper::Earlier;
use crate::helper::HelperSettings;
use crate::testing::conversation::{no_expectations, some_connection};

/// Messages whose first two bytes are the number of the following bytes; no message begins with
/// 255.
fn framing(bytes: &[u8]) -> Framing {
    match *bytes {
        [255, ..] => Framing::Garbage,
        [high, low, ..] => Framing::Length(2 + usize::from(u16::from_be_bytes([high, low]))),
        _ => Framing::Unknown,
    }
}

/// A source with this number.
fn source(number: u8) -> Holder {
    let key = KeyedPacket { key: some_connection(), sender: Side::Low };
    Holder::of(KeyedPacket { key: FlowKey { zone: Zone(number.into()), ..key.key }, ..key })
}

struct Reader {
    stream: Stream,
    memory: Memory,
    opener: Holder,
    messages: Vec<(Vec<u8>, Option<usize>)>,
    /// Sequence number of the first byte; by default that of the first segment.
    start: Option<u32>,
    picked_up: bool,
    left: bool,
    /// The framing, if it is not that of most tests.
    framing: Option<fn(&[u8]) -> Framing>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            stream: Stream::default(),
            memory: Memory::default(),
            opener: source(1),
            messages: Vec::new(),
            start: None,
            picked_up: false,
            left: false,
            framing: None,
        }
    }
}

impl Reader {
    fn segment(&mut self, sequence: u32, payload: &[u8]) {
        if self.left {
            return;
        }
        if !payload.is_empty() {
            self.start.get_or_insert(sequence);
        }
        let address = "192.0.2.1".parse().unwrap();
        let packet = HelperPacket {
            direction: Direction::Original,
            source: address,
            destination: address,
            seen_as: address,
            receiver: address,
            source_port: 1,
            destination_port: 2,
            payload,
            sequence: Some(sequence),
            start: self.start.filter(|_| !self.picked_up),
            group: false,
            is_expected: false,
            settings: &HelperSettings::default(),
            memory: &self.memory,
            opener: self.opener,
            is_translated: false,
            earlier: Earlier { announcements: &no_expectations(), master: &some_connection() },
        };
        let messages = &mut self.messages;
        let framing = self.framing.unwrap_or(framing);
        let inspected = self.stream.feed(&packet, framing, |message, at| {
            if let Some(at) = at {
                assert_eq!(message, &payload[at..at + message.len()]);
            }
            messages.push((message.to_vec(), at));
        });
        self.left = inspected == Inspected::Left;
    }

    fn said(&mut self) -> Vec<Vec<u8>> {
        self.messages.drain(..).map(|(message, _)| message).collect()
    }

    fn in_use(&self) -> usize {
        self.memory.room().used
    }
}

fn message(length: u16, fill: u8) -> Vec<u8> {
    [&length.to_be_bytes()[..], &vec![fill; length.into()]].concat()
}

/// If a repeated segment has other bytes, those that came first count, because they have
/// passed.
#[test]
fn a_message_that_began_before_does_not_begin_in_what_comes_again_with_other_bytes() {
    let mut reader = Reader::default();
    reader.segment(100, &[0]);
    reader.segment(100, &[9, 2, 7, 7, 0, 1, 5]);
    let began = |at| (vec![0, 2, 7, 7], at);
    assert_eq!(reader.messages, [began(None), (vec![0, 1, 5], Some(4))]);
}

#[test]
fn repeated_and_late_segments_are_read_by_themselves() {
    let mut reader = Reader::default();
    let (one, two, three) = (message(4, 1), message(6, 2), message(3, 3));
    reader.segment(100, &one);
    reader.segment(100, &one);
    assert_eq!(reader.said(), [one.clone(), one.clone()]);
    reader.segment(114, &three);
    assert_eq!(reader.said(), [three], "behind a gap");
    reader.segment(106, &two);
    assert_eq!(reader.said().concat(), two, "into the gap");
    reader.segment(119, &two[..3]);
    reader.segment(119, &two);
    assert_eq!(reader.messages, [(two, Some(0))], "the rest, with what came before it");
}

#[test]
fn a_segment_without_payload_says_nothing() {
    let mut reader = Reader::default();
    for sequence in [0, 7, 0, u32::MAX] {
        reader.segment(sequence, b"");
    }
    let whole = message(9, 1);
    reader.segment(100, &whole[..4]);
    reader.segment(104, b"");
    reader.segment(104, &whole[4..]);
    assert_eq!(reader.said(), [whole]);
}

#[test]
fn long_messages_are_passed_over() {
    let mut reader = Reader::default();
    let long = message(LONGEST as u16, 0);
    let bytes = [&long[..], &message(1, 1)].concat();
    for (index, piece) in bytes.chunks(1000).enumerate() {
        reader.segment(1000 * index as u32, piece);
        assert_eq!(reader.in_use(), 0);
    }
    assert_eq!(reader.said(), [message(1, 1)]);
    reader.segment(bytes.len() as u32, &long);
    assert_eq!(reader.said(), [long], "in one segment it costs nothing");
}

#[test]
fn another_protocol_is_not_read() {
    let real = message(1, 1);
    for (first, is_read) in [(&[255, 0][..], false), (&message(1, 7)[..], true)] {
        let mut reader = Reader::default();
        reader.segment(0, first);
        reader.said();
        let mut next = first.len() as u32;
        reader.segment(next, &[255; 10]);
        next += 10;
        for gap in [0, 1000] {
            reader.segment(next + gap, &real);
            assert_eq!(reader.said().len(), usize::from(is_read));
            next += gap + real.len() as u32;
        }
    }
}

/// The connections of one source, each with the beginning of a message, until one of them has given
/// way.
fn fill(memory: &Memory, opener: Holder, half: &[u8]) -> Vec<Reader> {
    let mut readers = Vec::new();
    while memory.forgotten() == 0 {
        let mut reader = Reader { memory: memory.clone(), opener, ..Reader::default() };
        reader.segment(0, half);
        assert!(reader.in_use() <= Memory::MOST && !reader.left);
        readers.push(reader);
    }
    readers
}

#[test]
fn when_the_memory_is_full_the_source_with_most_forgets_its_oldest_beginning() {
    let (memory, whole) = (Memory::default(), message(8000, 1));
    let (half, rest) = whole.split_at(8000);
    let fits = Memory::MOST / (half.len() + Memory::EACH);
    let mut greedy = fill(&memory, source(1), half);
    assert_eq!(greedy.len(), fits + 1, "its own gave way when nobody had more");
    for number in 2..5 {
        let mut honest =
            Reader { memory: memory.clone(), opener: source(number), ..Reader::default() };
        honest.segment(0, half);
        assert_eq!(memory.forgotten(), u64::from(number == 2), "the first gives its place back");
        honest.segment(8000, rest);
        assert_eq!(honest.said(), std::slice::from_ref(&whole), "{number}");
    }
    for (number, reader) in greedy.iter_mut().enumerate() {
        let next = message(4, 2);
        reader.segment(8000, &[rest, &next].concat());
        let read = if number < 2 { vec![next] } else { vec![whole.clone(), next] };
        assert_eq!(reader.said(), read, "{number}: the message that gave way is skipped");
    }
    assert_eq!((greedy[0].in_use(), memory.room().shares.is_empty()), (0, true));
}

/// Otherwise a peer could choose the bytes that look like the beginning of a conversation.
#[test]
fn a_helper_leaves_a_conversation_whose_very_beginning_gave_way() {
    let memory = Memory::default();
    let heard = |number| {
        let mut reader = Reader { memory: memory.clone(), opener: source(1), ..Reader::default() };
        (0..number).for_each(|at| reader.segment(6 * at, &message(4, 1)));
        reader.segment(6 * number, &[0]);
        reader
    };
    let mut readers = [heard(0), heard(1)];
    let half = &message(8000, 1)[..8000];
    drop(fill(&memory, source(1), half));
    assert_eq!(readers[0].in_use(), 0, "these were the oldest");
    readers[0].segment(1, &message(2, 3));
    assert!(readers[0].left && readers[0].said().is_empty());
    readers[1].segment(7, &message(2, 3));
    assert_eq!((readers[1].left, readers[1].said().len()), (false, 2), "as behind a gap");
}

#[test]
fn a_repeated_segment_begins_with_a_message_only_where_one_began() {
    let mut reader = Reader::default();
    let inner = message(3, 9);
    // A message inside another: the receiver has acknowledged what is in front of it.
    let outer = [&[0, 7, 1, 1][..], &inner].concat();
    reader.segment(100, &outer);
    reader.segment(104, &inner);
    assert_eq!(reader.said(), std::slice::from_ref(&outer));
    for number in 0..5 {
        reader.segment(109 + 9 * number, &outer);
    }
    reader.said();
    reader.segment(109, &outer);
    assert!(reader.said().is_empty(), "it is forgotten");
    reader.segment(118, &outer);
    assert_eq!(reader.said(), [outer]);
}

#[test]
fn nothing_is_read_before_the_beginning() {
    let (first, second) = (message(4, 1), message(3, 2));
    let mut reader = Reader { start: Some(100), ..Reader::default() };
    reader.segment(106, &second);
    assert!(reader.said().is_empty());
    reader.segment(100, &first);
    reader.segment(106, &second);
    assert_eq!(reader.said(), [first, second.clone()]);
    let mut reader = Reader { start: Some(100), ..Reader::default() };
    reader.segment(103, &second);
    reader.segment(100, &[255, 255, 255]);
    reader.segment(103, &second);
    assert!(reader.left && reader.said().is_empty());
    let mut reader = Reader { picked_up: true, ..Reader::default() };
    reader.segment(100, &second);
    assert!(reader.left && reader.said().is_empty());
}

#[test]
fn a_beginning_without_an_end_is_no_message() {
    let endless = |bytes: &[u8]| match bytes.last() {
        Some(b'.') => Framing::Length(bytes.len()),
        Some(b' ') => Framing::Filler(1),
        _ => Framing::Unknown,
    };
    for (length, is_left) in [(LONGEST - 1, false), (LONGEST + 100, true)] {
        let bytes = [b" ", &vec![b'x'; length][..], b"."].concat();
        let mut reader = Reader { framing: Some(endless), ..Reader::default() };
        for (number, piece) in bytes.chunks(100).enumerate() {
            reader.segment(100 * number as u32, piece);
        }
        assert_eq!(
            (reader.left, reader.said().len()),
            (is_left, usize::from(!is_left)),
            "{length}"
        );
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_where_segments_end(
        lengths in prop::collection::vec(0_u16..40, 1..20),
        cuts in prop::collection::vec((1_usize..60, any::<bool>()), 800),
        start in any::<u32>(),
    ) {
        let messages: Vec<_> = lengths.iter().map(|&length| message(length, 1)).collect();
        let bytes = messages.concat();
        let mut reader = Reader::default();
        let mut at = 0;
        for (length, overlaps) in cuts {
            let end = bytes.len().min(at + length);
            let from = if overlaps && at > 0 && end > at { at - 1 } else { at };
            reader.segment(start.wrapping_add(from as u32), &bytes[from..end]);
            at = end;
            if at == bytes.len() {
                break;
            }
        }
        prop_assert_eq!(reader.said(), messages);
        prop_assert_eq!(reader.in_use(), 0);
    }

    #[test]
    fn no_bytes_are_too_strange(
        segments in prop::collection::vec((0_u32..100, prop::collection::vec(any::<u8>(), 1..90)), 30),
    ) {
        let mut reader = Reader::default();
        for (sequence, payload) in segments {
            reader.segment(sequence, &payload);
        }
        drop(std::mem::take(&mut reader.stream));
        prop_assert_eq!(reader.in_use(), 0);
    }
}

//! A conversation that a helper reads, for tests.

use std::net::IpAddr;

use flow::{Endpoint, FlowKey, HashKey, KeyedPacket, Side, Zone};
use wire::{Family, protocol};

use crate::helper::{
    Announced, Earlier, HelperPacket, HelperSettings, Holder, Inspect, Inspected, Kind, Memory,
    RecordedHelper, Request,
};
use crate::{Direction, Expectations};

pub const CLIENT: &str = "192.0.2.1";
pub const SERVER: &str = "198.51.100.2";
pub const CLIENT_PORT: u16 = 40000;

/// An empty table.
pub fn no_expectations() -> Expectations {
    Expectations::new(HashKey(1, 2))
}

/// A key for helpers that do not ask for it.
pub fn some_connection() -> FlowKey {
    let nobody = Endpoint { address: [0; 16], port: 0 };
    FlowKey::of_call(Family::V4, Zone(0), nobody, nobody)
}

/// Its opener.
pub fn some_opener() -> Holder {
    Holder::of(KeyedPacket { key: some_connection(), sender: Side::Low })
}

/// The two ends of a connection with a helper between them.
pub struct Talk {
    state: Box<dyn Inspect>,
    /// Sequence numbers of the next byte of each end; `None` over UDP.
    pub numbers: Option<[u32; 2]>,
    pub ends: [(IpAddr, u16); 2],
    pub settings: HelperSettings,
    pub memory: Memory,
    expectations: Expectations,
    master: FlowKey,
    /// The datagrams are broadcast or multicast.
    pub group: bool,
    /// Another connection has announced this one.
    pub is_expected: bool,
    kind: Kind,
    /// Sequence numbers of the first byte of each end.
    starts: [Option<u32>; 2],
    /// The helper has left.
    pub left: bool,
    /// Number of announcements that were refused.
    pub refused: usize,
}

impl Talk {
    pub fn new(kind: Kind, protocol: u8) -> Self {
        // The numbers wrap round soon.
        let numbers = (protocol == protocol::TCP).then_some([u32::MAX - 20; 2]);
        Self {
            state: kind.start().state.unwrap(),
            numbers,
            starts: numbers.map_or([None; 2], |numbers| numbers.map(Some)),
            kind,
            left: false,
            refused: 0,
            ends: [
                (CLIENT.parse().unwrap(), CLIENT_PORT),
                (SERVER.parse().unwrap(), kind.default_port()),
            ],
            settings: HelperSettings::default(),
            memory: Memory::default(),
            expectations: no_expectations(),
            master: some_connection(),
            group: false,
            is_expected: false,
        }
    }

    /// A connection whose opening was not seen.
    pub fn picked_up(self) -> Self {
        Self { starts: [None; 2], ..self }
    }

    /// Sends more bytes of an end. Returns the requests of the helper, without refused
    /// announcements.
    pub fn say(&mut self, direction: Direction, payload: &[u8]) -> Vec<Request> {
        self.take_over();
        let (from, to) = (direction.index(), direction.reversed().index());
        let ((source, source_port), (destination, destination_port)) =
            (self.ends[from], self.ends[to]);
        let packet = HelperPacket {
            direction,
            source,
            destination,
            seen_as: source,
            receiver: destination,
            is_translated: false,
            source_port,
            destination_port,
            payload,
            sequence: self.numbers.map(|numbers| numbers[from]),
            start: self.starts[from],
            group: self.group,
            is_expected: self.is_expected,
            settings: &self.settings,
            memory: &self.memory,
            opener: some_opener(),
            earlier: Earlier { announcements: &self.expectations, master: &self.master },
        };
        let mut asked = Vec::new();
        if !self.left {
            let inspected = self.state.inspect(&packet, &mut |request| asked.push(request));
            assert_ne!(inspected, Inspected::Incomplete);
            self.left = inspected == Inspected::Left;
        }
        let all = asked.len();
        asked.retain(|request| match request {
            Request::Expect(announced) => !packet.refuses(self.kind, announced),
            _ => true,
        });
        self.refused += all - asked.len();
        if let Some(numbers) = &mut self.numbers {
            numbers[from] = numbers[from].wrapping_add(payload.len() as u32);
        }
        asked
    }

    /// Lets another gateway go on with the state of the helper.
    fn take_over(&mut self) {
        let mut helper = self.kind.start();
        std::mem::swap(&mut self.state, helper.state.as_mut().unwrap());
        let recorded = RecordedHelper::of(&helper);
        drop(helper);
        let helper = recorded.restore(&self.memory, some_opener());
        assert_eq!(RecordedHelper::of(&helper), recorded);
        self.state = helper.state.unwrap();
    }

    /// Sends some pieces. Returns the announcements, without their place in the payload.
    pub fn announced<'a>(
        &mut self,
        direction: Direction,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Vec<Announced> {
        let asked = pieces.into_iter().flat_map(|piece| self.say(direction, piece));
        let announced = asked.filter_map(|request| match request {
            Request::Expect(announced) => Some(Announced { place: 0..0, ..announced }),
            _ => None,
        });
        announced.collect()
    }
}

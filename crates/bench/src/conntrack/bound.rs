//! The bound that the memory system sets: the least work that any tracker with windows has to do
//! for a packet.

use engine::Hardware;
use flow::{FlowKey, Prefetch, SlotIndex, Timestamp};
use steer::SteeringHasher;
use wire::{Network, Transport};

use super::designs::{Flow, Lane, Packet, steering};
use crate::traffic::Pen;

/// Two cache lines: the key on one, the window on the other.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    key: FlowKey,
    window: Window,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Window {
    end: [u32; 2],
    deadline: Timestamp,
}

const _: () = assert!(size_of::<Entry>() == 128);

/// Hash, index, entry and one comparison with a window, in one table that never loses an entry. It
/// has no state machine, options, timers, limits or events.
pub struct Bound {
    steering: SteeringHasher,
    index: SlotIndex,
    entries: Vec<Entry>,
    hashes: Vec<u32>,
    flows: Vec<Flow>,
    wrong: u64,
}

impl Bound {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            steering: steering(),
            index: SlotIndex::new(),
            entries: Vec::new(),
            hashes: Vec::new(),
            flows: Vec::new(),
            wrong: 0,
        }
    }

    fn one(&mut self, network: &Network, flow: &Flow, now: Timestamp) -> Option<()> {
        let Transport::Tcp(tcp) = &network.transport else { return None };
        let (key, hash) = (flow.keyed.key, flow.hash as u32);
        let entries = &self.entries;
        let found = self.index.find(hash, |slot| entries[slot as usize].key == key);
        let slot = match found {
            Some(slot) => slot as usize,
            None => {
                let slot = self.entries.len();
                self.entries.push(Entry { key, window: Window::default() });
                self.hashes.push(hash);
                let hashes = &self.hashes;
                self.index.insert(hash, slot as u32, |slot| hashes[slot as usize]).ok()?;
                slot
            }
        };
        let Window { end, deadline } = &mut self.entries[slot].window;
        let side = flow.keyed.sender.index();
        // Everything after the first packet is within 2^30 of the sequence numbers that this end
        // has sent.
        let distance = tcp.sequence.wrapping_sub(end[side]);
        let fits = end[side] == 0 || distance < 1 << 30;
        end[side] = tcp.sequence;
        *deadline = now;
        fits.then_some(())
    }
}

impl Lane for Bound {
    fn track(&mut self, batch: &[Packet], _pen: &Pen, now: Timestamp, _prefetch: bool) {
        self.flows.clear();
        self.flows.extend(batch.iter().map(|packet| Flow::of(&self.steering, &packet.network)));
        for flow in &self.flows {
            self.index.prefetch(flow.hash as u32, Hardware);
        }
        for flow in &self.flows {
            if let Some(slot) = self.index.guess(flow.hash as u32) {
                let entry = &self.entries[slot as usize];
                Hardware.prefetch(&entry.key);
                Hardware.prefetch(&entry.window);
            }
        }
        let flows = std::mem::take(&mut self.flows);
        for (packet, flow) in batch.iter().zip(&flows) {
            self.wrong += u64::from(self.one(&packet.network, flow, now).is_none());
        }
        self.flows = flows;
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

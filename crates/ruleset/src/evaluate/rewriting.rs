//! Fields of headers that rules set: the packet as the next rules see it, and the list for the
//! gateway, which writes them into the packet.

use wire::{ChecksumCovers, FieldWrite, Network};

use super::load::begin;
use super::run::Run;
use super::trace::Trace;
use super::view::PacketView;
use crate::field::{Field, HeaderBits, Layer};

/// Bytes behind the beginning of the transport header that rules may read.
const READ: usize = 1 << 11;

/// The fields that the rules of one hook have written into a packet. Its memory is kept for the next packet.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// The headers, with what was written.
    frame: Vec<u8>,
    network: Option<Network>,
    writes: Vec<FieldWrite>,
}

impl Rewriting {
    /// Begins with the packet as it came to the hook.
    fn begin(&mut self, view: &PacketView<'_>) {
        let end = usize::from(view.network.transport_offset) + READ;
        self.writes.clear();
        self.frame.clear();
        self.frame.extend_from_slice(view.frame.get(..end).unwrap_or(view.frame));
        self.network = Some(*view.network);
    }

    /// The packet with what was written.
    fn seen<'a>(&'a self, view: &PacketView<'a>) -> PacketView<'a> {
        let network = self.network.as_ref().unwrap_or(view.network);
        PacketView { frame: &self.frame, network, ..*view }
    }

    /// False if the packet is cut off before the field.
    fn write(&mut self, write: FieldWrite) -> bool {
        let Some(network) = &mut self.network else { return false };
        let length = network.transport_len() as usize;
        if !write.apply(&mut self.frame, network, length, ChecksumCovers::All) {
            return false;
        }
        // Fields do not overlap, so that the last value of each is all that counts, and the list
        // does not grow longer than that of fields.
        match self.writes.iter_mut().find(|before| before.is_same_field(&write)) {
            Some(before) => *before = write,
            None => self.writes.push(write),
        }
        true
    }

    /// The fields to write.
    pub fn writes(&self) -> &[FieldWrite] {
        &self.writes
    }
}

impl<T: Trace> Run<'_, '_, T> {
    /// Sets a field of a header; false if the packet does not have it.
    #[cold]
    pub(super) fn write(&mut self, field: HeaderBits, value: u128) -> bool {
        let HeaderBits { layer, offset, bits } = field;
        if begin(layer, self.view).is_none() {
            return false;
        }
        if !self.outcome.is_rewritten {
            self.state.rewriting.begin(self.view);
        }
        let of_transport = matches!(layer, Layer::Transport(_));
        let is_written =
            self.state.rewriting.write(FieldWrite { of_transport, offset, bits, value });
        self.outcome.is_rewritten |= is_written;
        is_written
    }

    /// The headers of the packet, with what rules have written.
    pub(super) fn network(&self) -> &Network {
        let written = self.state.rewriting.network.as_ref().filter(|_| self.outcome.is_rewritten);
        written.unwrap_or(self.view.network)
    }

    /// The value of a field behind a rule that has written some.
    #[cold]
    pub(super) fn value_after_writes(&self, field: Field) -> Option<u128> {
        self.value_in(field, &self.state.rewriting.seen(self.view))
    }
}

#[cfg(test)]
#[path = "../rewriting_tests.rs"]
mod tests;

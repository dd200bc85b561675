//! From verdict to wire: which port a frame leaves by, and one queue of frames
//! for each port and worker.

use flow::{Counters, DropReason};
use netio::{Frame, FramePool, PortError, PortId, TxQueue};

use crate::bridge::{Bridge, Egress};
use crate::path_mtu::{self, PathMtu, Refused};

/// Frames that are gathered before they are sent on their own accord; a turn
/// sends what is left in any case.
const FLUSH_AT: usize = 64;

/// The output side of one worker.
#[derive(Default)]
pub struct Outputs {
    ports: Vec<Output>,
    bridge: Bridge,
    path_mtu: PathMtu,
    /// What a frame is sent as that was too long; empty in between.
    pieces: Vec<Frame>,
    /// What no port takes, until it is dropped.
    refused: Vec<(Frame, DropReason)>,
}

#[derive(Default)]
struct Output {
    queue: Option<Box<dyn TxQueue>>,
    pending: Vec<Frame>,
    /// Longest packet that the port takes behind the link header, bytes.
    mtu: Option<u32>,
    sent: Sent,
}

/// What a port has sent through one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Bytes, link header included.
    pub bytes: u64,
}

impl Sent {
    /// Adds what else went out.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

impl Outputs {
    /// Outputs for `ports` ports, none of them open.
    pub fn new(ports: usize) -> Self {
        let open = |_| Output { pending: Vec::with_capacity(FLUSH_AT), ..Output::default() };
        Self {
            ports: (0..ports).map(open).collect(),
            bridge: Bridge::new(ports),
            ..Self::default()
        }
    }

    /// Opens or closes this worker's queue of a port.
    pub fn set(&mut self, port: PortId, queue: Option<Box<dyn TxQueue>>) {
        if let Some(output) = self.ports.get_mut(usize::from(port.0)) {
            output.queue = queue;
        }
    }

    /// Sets what each port takes, bytes behind the link header, where that is known.
    pub fn set_mtus(&mut self, mtus: &[Option<u32>]) {
        for (output, mtu) in self.ports.iter_mut().zip(mtus) {
            output.mtu = *mtu;
        }
    }

    /// What a port takes, bytes behind the link header, if that is known.
    pub fn mtu(&self, port: PortId) -> Option<u32> {
        self.ports.get(usize::from(port.0))?.mtu
    }

    /// What was sent by each port.
    pub fn sent(&self) -> Vec<Sent> {
        self.ports.iter().map(|port| port.sent).collect()
    }

    /// A frame that no port takes, and why; it is to be dropped.
    pub fn take_refused(&mut self) -> Option<(Frame, DropReason)> {
        self.refused.pop()
    }

    /// Queues a frame for the port or ports that the bridge chooses.
    pub fn forward(
        &mut self,
        frame: Frame,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        match self.bridge.egress(&frame, now_ns) {
            Egress::Port(port) => self.queue(port, frame, Some(now_ns), pool, counters),
            Egress::Flood => self.flood(frame, pool, counters),
            Egress::Drop(reason) => self.refused.push((frame, reason)),
        }
    }

    /// Queues a frame for a port, whatever stations the bridge knows.
    pub fn send_by(
        &mut self,
        port: PortId,
        frame: Frame,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        self.queue(port, frame, None, pool, counters);
    }

    fn flood(&mut self, frame: Frame, pool: &mut FramePool, counters: &mut Counters) {
        let mut copies: u64 = 0;
        for index in 0..self.ports.len() {
            let port = PortId(index as u16);
            if port == frame.port || self.ports[index].queue.is_none() {
                continue;
            }
            copies += 1;
            match pool.duplicate(&frame) {
                // Nobody knows that the station is behind this port: no error is due.
                Some(copy) => self.queue(port, copy, None, pool, counters),
                None => counters.drop_packet(DropReason::NoBuffer),
            }
        }
        match copies.checked_sub(1) {
            Some(more) => {
                counters.output.flood_copies += more;
                pool.give_back(frame);
            }
            None => self.refused.push((frame, DropReason::NoOutputPort)),
        }
    }

    /// Queues a frame for a port. `answer_ns` is the time, if its sender may be told
    /// that it is too long.
    fn queue(
        &mut self,
        port: PortId,
        mut frame: Frame,
        answer_ns: Option<u64>,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Some(output) = self.ports.get_mut(usize::from(port.0)).filter(|o| o.queue.is_some())
        else {
            return self.refused.push((frame, DropReason::NoOutputPort));
        };
        let Some(mtu) = output.mtu.filter(|mtu| path_mtu::is_exceeded(*mtu, &frame)) else {
            return output.push(frame, pool, counters);
        };
        let came_from = usize::from(frame.port.0);
        match self.path_mtu.shorten(&mut frame, mtu, answer_ns, pool, &mut self.pieces) {
            Ok(()) => {
                // A super-packet with shorter segments is still one.
                if self.pieces.len() > 1 {
                    counters.output.frag_oks += 1;
                    counters.output.frag_creates += self.pieces.len() as u64;
                }
                for piece in self.pieces.drain(..) {
                    output.push(piece, pool, counters);
                }
            }
            Err(Refused { reason, answer }) => {
                self.refused.push((frame, reason));
                counters.output.frag_fails += u64::from(reason == DropReason::FragNeeded);
                if let (Some(answer), Some(back)) = (answer, self.ports.get_mut(came_from)) {
                    counters.output.icmp_out_msgs += 1;
                    back.push(answer, pool, counters);
                }
            }
        }
    }

    /// Sends everything that is queued.
    pub fn flush(&mut self, pool: &mut FramePool, counters: &mut Counters) {
        for output in &mut self.ports {
            if !output.pending.is_empty() {
                output.flush(pool, counters);
            }
        }
    }
}

impl Output {
    fn push(&mut self, frame: Frame, pool: &mut FramePool, counters: &mut Counters) {
        self.pending.push(frame);
        if self.pending.len() >= FLUSH_AT {
            self.flush(pool, counters);
        }
    }

    fn flush(&mut self, pool: &mut FramePool, counters: &mut Counters) {
        let queued = self.pending.len() as u64;
        let result = match &mut self.queue {
            Some(queue) => queue.transmit(&mut self.pending, pool),
            None => Err(PortError::Finished),
        };
        match result {
            Ok(report) => {
                self.sent.add(&Sent { frames: report.sent, bytes: report.sent_bytes });
                counters.transmitted += report.sent;
                counters.transmitted_bytes += report.sent_bytes;
                counters.drop_packets(DropReason::OutputFull, report.refused_full);
                counters.drop_packets(DropReason::OutputTooLong, report.refused_long);
                counters.drop_packets(DropReason::OutputInvalid, report.refused_invalid);
                counters.drop_packets(DropReason::NoOutputPort, report.refused_gone);
            }
            Err(_) => {
                // The receive side of the port notices the same and has it opened
                // again; until then its output is closed.
                self.queue = None;
                counters.drop_packets(DropReason::NoOutputPort, queued);
                for frame in self.pending.drain(..) {
                    pool.give_back(frame);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;

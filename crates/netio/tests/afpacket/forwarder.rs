//! The smallest gateway: frames that come in on one side go out on the other.

use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::{Checksum, Frame, FramePool, PortId, RxQueue, TxQueue, TxReport, Waiter, Waker};

pub struct Forwarder {
    stop: Waker,
    thread: JoinHandle<Seen>,
}

/// Statistics of the frames that went through.
#[derive(Debug, Default)]
pub struct Seen {
    pub frames: u64,
    pub tagged: u64,
    pub partial: u64,
    pub super_packets: u64,
    pub tagged_super_packets: u64,
    pub longest: usize,
    pub unsent: u64,
}

impl Forwarder {
    pub fn start(interfaces: [&str; 2], options: &AfPacketOptions) -> Self {
        let [left, right] = interfaces.map(|name| {
            let mut port = AfPacketPort::open(name, PortId(0), options).unwrap();
            assert!(port.granted.offload && port.granted.ignore_outgoing);
            (port.receive.remove(0), port.transmit.remove(0))
        });
        let stop = Waker::new().unwrap();
        let bell = stop.clone();
        let thread = thread::spawn(move || {
            let (mut left, mut right) = (left, right);
            let mut pool = FramePool::new(256, 256);
            let (mut frames, mut waiter) = (Vec::new(), Waiter::new());
            let mut seen = Seen::default();
            loop {
                let handles = [left.0.wait_handle().unwrap(), right.0.wait_handle().unwrap()];
                let ready = waiter.wait([handles[0], handles[1], bell.as_fd()], None).unwrap();
                if ready.contains(2) {
                    return seen;
                }
                for (from, to) in [(&mut left.0, &mut right.1), (&mut right.0, &mut left.1)] {
                    from.receive(&mut frames, 64, &mut pool).unwrap();
                    frames.iter().for_each(|frame| seen.look_at(frame));
                    let count = frames.len() as u64;
                    let TxReport { sent, .. } = to.transmit(&mut frames, &mut pool).unwrap();
                    seen.unsent += count - sent;
                }
            }
        });
        Self { stop, thread }
    }

    pub fn stop(self) -> Seen {
        self.stop.wake();
        self.thread.join().unwrap()
    }
}

impl Seen {
    fn look_at(&mut self, frame: &Frame) {
        let bytes = frame.bytes();
        let is_tagged = bytes[12..14] == [0x81, 0x00];
        self.frames += 1;
        self.tagged += u64::from(is_tagged);
        self.longest = self.longest.max(bytes.len());
        let network = if is_tagged { 18 } else { 14 };
        // The peers send IPv4 without options.
        let is_tcp = bytes[network - 2..network] == [8, 0] && bytes[network + 9] == 6;
        if !is_tcp {
            return;
        }
        let transport = network + 20;
        if let Checksum::Partial { start, offset } = frame.offload.checksum {
            assert_eq!((usize::from(start), offset), (transport, 16));
            self.partial += 1;
        }
        if let Some(segmentation) = frame.offload.segmentation {
            let headers = transport + usize::from(bytes[transport + 12] >> 4) * 4;
            assert_eq!(usize::from(segmentation.header_length), headers);
            assert_eq!(segmentation.kind & 0x7f, 1);
            let payload = bytes.len() - headers;
            let segments = payload.div_ceil(usize::from(segmentation.segment_size));
            assert_eq!(frame.segments() as usize, segments);
            self.super_packets += 1;
            self.tagged_super_packets += u64::from(is_tagged);
        } else {
            assert!(bytes.len() <= 1518);
        }
    }
}

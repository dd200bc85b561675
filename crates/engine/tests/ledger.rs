//! The books of the gateway: each packet that came in or was made went out or was dropped for a
//! reason, with any traffic and while buckets move.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::{Config, Gateway, PortSetup, Status, WorkerCount};
use flow::{DropReason, HashKey};
use netio::{
    Checksum, Frame, FramePool, Offload, PortError, RxQueue, Segmentation, TxQueue, TxReport,
};
use steer::{BucketId, WorkerId};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use queues::Queues;

/// Frames that each port receives.
const FRAMES: u64 = 20_000;

/// A protocol number for experiments (RFC 3692), so there is no transport header to look at.
const EXPERIMENT: u8 = 253;

/// A port with its own counts of received and sent frames.
#[derive(Clone)]
struct Port {
    number: u8,
    mtu: u32,
    received: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
}

impl Port {
    /// A frame of any kind, chosen by its number. Some stations are never heard, so that frames to
    /// them are flooded.
    fn frame(&self, n: u64, pool: &mut FramePool) -> Frame {
        // Kinds change after three frames, because a fragment needs others.
        let (group, place) = (n / 3, n % 3);
        let [.., high, low] = group.to_be_bytes();
        let peer = (self.number + 1 + low % 2) % 3;
        let station = |port: u8| [2, 0, 0, 0, 0, port];
        let to = if group.is_multiple_of(11) { [2, 0, 0, 0, 9, low] } else { station(peer) };
        let v4 = PacketBuilder::v4([192, 0, 2, self.number], [198, 51, 100, low])
            .macs(station(self.number), to)
            .id(group as u32);
        let v6 = PacketBuilder::v6([0x20; 16], [low; 16]).macs(station(self.number), to);
        let tcp =
            Tcp { source_port: 80, destination_port: 4000, flags: TcpFlags::ACK, ..Tcp::default() };
        let (mut bytes, body) = (Vec::new(), [low; 5000]);
        let mut segmentation = None;
        let mut is_super_packet = |kind| {
            segmentation = Some(Segmentation { kind, segment_size: 2000, header_length: 0 });
        };
        match group % 16 {
            0 => v4.udp(1000, 53, &body[..20], &mut bytes),
            1 => v6.udp(1000, 53, &body[..1000], &mut bytes),
            2 => v4.udp(1000, 53, &body, &mut bytes),
            3 => v4.dont_fragment().udp(1000, 53, &body, &mut bytes),
            4 => v6.udp(1000, 53, &body, &mut bytes),
            // One datagram is in order, one lacks its end, and one overlaps itself.
            5..=8 => {
                let (part, lacks_end, overlaps) = (place * 800, high % 3 == 0, low % 5 == 0);
                let at = if overlaps && part > 0 { part - 8 } else { part } as u16;
                let more = part < 1600 || lacks_end;
                v4.fragment(EXPERIMENT, at, more, &[low; 800], &mut bytes);
            }
            9 => {
                v4.udp(1000, 53, &body[..100], &mut bytes);
                bytes.truncate(30);
            }
            10 => {
                let protocol = if place == 0 { [0x88, 0xb5] } else { [0x08, 0x06] };
                bytes.extend([&station(peer)[..], &[2; 6], &protocol, &body[..50]].concat());
            }
            11 => bytes
                .extend([&[1, 0x80, 0xc2, 0, 0, 2][..], &[2; 6], &[0x88, 0xcc], &[0; 50]].concat()),
            12 => {
                v4.udp(1000, 53, &body[..200], &mut bytes);
                *bytes.last_mut().unwrap() ^= 1;
            }
            13 => {
                v4.tcp(&tcp, &body, &mut bytes);
                is_super_packet(1);
            }
            14 => {
                v4.udp(1000, 53, &body, &mut bytes);
                is_super_packet(5);
            }
            _ => v4.tcp(&tcp, &[], &mut bytes),
        }
        let mut frame = pool.copy_of(&bytes).unwrap();
        let header_length = (bytes.len() - body.len().min(bytes.len())) as u16;
        let segmentation = segmentation.map(|it| Segmentation { header_length, ..it });
        if segmentation.is_some() {
            frame.offload = Offload { checksum: Checksum::Verified, segmentation };
        }
        frame
    }
}

impl RxQueue for Port {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        for count in 0..max {
            let n = self.received.load(Ordering::Relaxed);
            if n == FRAMES {
                return Ok(count);
            }
            frames.push(self.frame(n, pool));
            self.received.store(n + 1, Ordering::Relaxed);
        }
        Ok(max)
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Port {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut report = TxReport::default();
        for frame in frames.drain(..) {
            let longest = match frame.offload.segmentation {
                None => frame.len(),
                Some(segments) => {
                    usize::from(segments.header_length) + usize::from(segments.segment_size)
                }
            };
            assert!(longest <= self.mtu as usize + 14, "{longest}");
            if self.sent.fetch_add(1, Ordering::Relaxed) % 100 == 99 {
                report.refused_full += 1;
            } else {
                report.sent += 1;
            }
            pool.give_back(frame);
        }
        Ok(report)
    }
}

/// The last status of a gateway with ports of these MTUs, after all their frames have come while
/// its buckets moved.
fn played(mtus: &[u32]) -> (Status, Vec<Port>) {
    let port = |(number, &mtu): (u8, &u32)| Port {
        number,
        mtu,
        received: Arc::default(),
        sent: Arc::default(),
    };
    let ports: Vec<Port> = (0..).zip(mtus).map(port).collect();
    let mut config = Config::new(HashKey(1, 2));
    config.workers = WorkerCount::fixed(3).unwrap();
    config.settings.set("netdev_max_backlog", 64).unwrap();
    let setups = ports.iter().map(|port| {
        let (receive, transmit) = (port.clone(), port.clone());
        let queues = Queues {
            receive: move |_: usize| vec![receive.clone()],
            transmit: move || transmit.clone(),
            mtu: Some(port.mtu),
        };
        PortSetup::new(port.mtu.to_string(), queues)
    });
    let gateway = Gateway::start(config, setups.collect()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_over = || ports.iter().all(|port| port.received.load(Ordering::Relaxed) == FRAMES);
    let mut step = 0u16;
    while !is_over() {
        assert!(Instant::now() < deadline, "{:?}", gateway.status());
        step = step.wrapping_add(1);
        gateway.move_bucket(BucketId(step % 256), WorkerId(step % 3)).unwrap();
    }
    (gateway.stop().unwrap(), ports)
}

#[test]
fn every_packet_received_or_made_is_sent_or_dropped() {
    for mtus in [&[9000, 1500][..], &[9000, 1500, 600]] {
        let (status, ports) = played(mtus);
        let totals = status.totals();
        let received: u64 = status.ports.iter().map(|port| port.received.frames).sum();
        assert_eq!(received, FRAMES * mtus.len() as u64);
        let sent: u64 = status.ports.iter().map(|port| port.sent.frames).sum();
        let refused = totals.dropped(DropReason::OutputFull);
        let by_ports: u64 = ports.iter().map(|port| port.sent.load(Ordering::Relaxed)).sum();
        assert_eq!((sent, sent + refused), (totals.transmitted, by_ports));

        let made = totals.output;
        assert_eq!(
            received + made.frag_creates + made.icmp_out_msgs + made.flood_copies,
            made.frag_oks + totals.transmitted + totals.dropped_total(),
            "{totals:?}"
        );
        // Every kind of outcome has happened.
        assert!(made.frag_oks > 500 && made.frag_creates > 3 * made.frag_oks, "{made:?}");
        assert_eq!(made.frag_fails, totals.dropped(DropReason::FragNeeded));
        assert!(made.frag_fails > 1000 && made.icmp_out_msgs > 0, "{made:?}");
        assert_eq!(made.flood_copies > 0, mtus.len() > 2, "{made:?}");
        use DropReason::{
            BadChecksum, EthertypeRefused, FragIncomplete, FragOverlap, LinkLocal, MalformedIpv4,
        };
        for reason in
            [BadChecksum, EthertypeRefused, FragIncomplete, FragOverlap, LinkLocal, MalformedIpv4]
        {
            assert!(totals.dropped(reason) > 0, "{reason}: {totals:?}");
        }
        assert!(totals.defrag.reasm_oks > 100, "{totals:?}");
    }
}

//! The demo without a lab: the production pipeline on generated traffic.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::schema::Status;
use engine::{Config, Gateway, OpenPort, PortOpener, PortSetup, WorkerCount};
use flow::HashKey;
use netio::{Checksum, Frame, FramePool, PortError, RxQueue, TxQueue, TxReport, clock};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::progress::Recorder;
use super::{Run, WORKERS};

/// TCP connections of the generated traffic.
const FLOWS: u16 = 1000;
/// Frames of a queue that may be on their way at the same time.
const WINDOW: u64 = 512;
/// Payload of a data segment, in bytes.
const PAYLOAD: usize = 1000;

/// Runs the pipeline for `phase` with each number of workers.
pub fn run(phase: Duration) -> anyhow::Result<Run> {
    let mut recorder = Recorder::new(phase * WORKERS.len() as u32);
    recorder.say("generating traffic in memory");
    let [high, low] = [0, 1].map(|at| {
        let seed = clock::random_seed::<16>().unwrap_or_default();
        u64::from_ne_bytes(std::array::from_fn(|index| seed[at * 8 + index]))
    });
    let mut config = Config::new(HashKey(high, low));
    config.workers = WorkerCount::fixed(WORKERS[0])?;
    let arrived = Arc::<Arrived>::default();
    let opener = |sends| Opener { arrived: arrived.clone(), sends };
    let mut ports =
        vec![PortSetup::new("generator", opener(true)), PortSetup::new("sink", opener(false))];
    // One queue for each worker, as on an interface with several queues.
    ports[0].rx_queues = WORKERS[WORKERS.len() - 1];
    let gateway = Gateway::start(config, ports)?;
    for workers in WORKERS {
        gateway.set_workers(workers)?;
        recorder.record(phase, || status(&gateway))?;
    }
    let last = status(&gateway)?;
    gateway.stop()?;
    let notes = vec![
        format!(
            "{FLOWS} TCP connections, segments of {PAYLOAD} bytes, generated and tracked in memory"
        ),
        "one worker takes all packets from its own queues; of two, each gets half of its packets \
         from the other through a ring, as on a card that does not know the buckets, so two \
         carry less than twice as much"
            .to_owned(),
    ];
    let title = "the production pipeline on generated traffic in memory".to_owned();
    Ok(Run { title, samples: recorder.finish(), notes, last })
}

fn status(gateway: &Gateway) -> anyhow::Result<Status> {
    let limit = gateway
        .tunables()
        .iter()
        .find(|(tunable, _)| tunable.name == "nf_conntrack_max")
        .map_or(0, |(_, value)| *value);
    Ok(Status::new(&gateway.status()?, limit))
}

/// Frames of each receive queue that have come through the gateway. A generator waits while too
/// many are on their way, as the senders of real connections do.
type Arrived = [Count; WORKERS.len()];

/// A count with cache lines of its own: workers that count side by side must not share one.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// Opens both ports: the one that sends, and the one where frames arrive.
struct Opener {
    arrived: Arc<Arrived>,
    sends: bool,
}

impl PortOpener for Opener {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let queues = if self.sends { rx_queues } else { 0 };
        let generator = |queue| Generator::new(queue, rx_queues, self.arrived.clone());
        Ok(OpenPort {
            rx: (0..queues).map(|queue| Box::new(generator(queue)) as Box<dyn RxQueue>).collect(),
            tx: (0..tx_queues).map(|_| self.sink()).collect(),
        })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(self.sink())
    }
}

impl Opener {
    fn sink(&self) -> Box<dyn TxQueue> {
        Box::new(Sink { arrived: self.arrived.clone() })
    }
}

struct Sink {
    arrived: Arc<Arrived>,
}

impl TxQueue for Sink {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut report = TxReport { sent: frames.len() as u64, ..TxReport::default() };
        let mut of_queue = [0; WORKERS.len()];
        for frame in frames.drain(..) {
            report.sent_bytes += frame.len() as u64;
            of_queue[frame.sequence as usize % WORKERS.len()] += 1;
            pool.give_back(frame);
        }
        for (arrived, count) in self.arrived.iter().zip(of_queue) {
            if count > 0 {
                arrived.0.fetch_add(count, Ordering::Relaxed);
            }
        }
        Ok(report)
    }
}

/// The connections of one queue in turn: each opens, then sends segments.
struct Generator {
    queue: usize,
    templates: Vec<Template>,
    /// Frames sent.
    next: usize,
    arrived: Arc<Arrived>,
}

impl Generator {
    fn new(queue: usize, queues: usize, arrived: Arc<Arrived>) -> Self {
        let own = (0..FLOWS).filter(|flow| usize::from(*flow) % queues == queue);
        Self { templates: own.map(Template::new).collect(), next: 0, queue, arrived }
    }
}

impl RxQueue for Generator {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let arrived = self.arrived[self.queue].0.load(Ordering::Relaxed);
        let room = WINDOW.saturating_sub(self.next as u64 - arrived).min(max as u64) as usize;
        for _ in 0..room {
            let (round, at) = (self.next / self.templates.len(), self.next % self.templates.len());
            self.next += 1;
            let template = &self.templates[at];
            let bytes = template.handshake.get(round).unwrap_or(&template.segment);
            if let Some(mut frame) = pool.copy_of(bytes) {
                // Checksums over the payload would be the generator's cost, not the gateway's.
                frame.offload.checksum = Checksum::Verified;
                frame.sequence = self.queue as u64;
                frames.push(frame);
            }
        }
        Ok(room)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The frames of one connection.
struct Template {
    handshake: [Vec<u8>; 3],
    segment: Vec<u8>,
}

impl Template {
    fn new(flow: u16) -> Self {
        let [high, low] = flow.to_be_bytes();
        let (client, server) = ([192, 0, 2, 1 + high], [198, 51, 100, low]);
        let frame =
            |from_client: bool, flags: TcpFlags, sequence, acknowledgment, payload: &[u8]| {
                let (source, destination) =
                    if from_client { (client, server) } else { (server, client) };
                let (source_port, destination_port) =
                    if from_client { (40_000 + flow, 80) } else { (80, 40_000 + flow) };
                let header = Tcp {
                    source_port,
                    destination_port,
                    sequence,
                    acknowledgment,
                    flags,
                    window: u16::MAX,
                    ..Tcp::default()
                };
                let mut frame = Vec::new();
                PacketBuilder::v4(source, destination).tcp(&header, payload, &mut frame);
                frame
            };
        let handshake = [
            frame(true, TcpFlags::SYN, 0, 0, &[]),
            frame(false, TcpFlags::SYN.with(TcpFlags::ACK), 0, 1, &[]),
            frame(true, TcpFlags::ACK, 1, 1, &[]),
        ];
        let segment = frame(true, TcpFlags::ACK.with(TcpFlags::PSH), 1, 1, &[0; PAYLOAD]);
        Self { handshake, segment }
    }
}

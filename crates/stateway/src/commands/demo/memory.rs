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
/// Frames that may be on their way at the same time.
const WINDOW: u64 = 512;
/// Payload of a data segment, bytes.
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
    let traffic = Arc::new(Traffic::default());
    let opener = |sends| Opener { traffic: traffic.clone(), sends };
    let mut ports =
        vec![PortSetup::new("generator", opener(true)), PortSetup::new("sink", opener(false))];
    // A queue for each worker, as an interface with several queues has.
    ports[0].rx_queues = WORKERS[WORKERS.len() - 1];
    let gateway = Gateway::start(config, ports)?;
    for workers in WORKERS {
        gateway.set_workers(workers)?;
        recorder.record(phase, || status(&gateway))?;
    }
    let last = status(&gateway)?;
    gateway.stop()?;
    let notes = vec![format!(
        "{FLOWS} TCP connections, segments of {PAYLOAD} bytes, generated and tracked in memory"
    )];
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

/// Frames on their way through the gateway. The generator waits while there are
/// too many, as the senders of real connections do.
#[derive(Debug, Default)]
struct Traffic {
    sent: AtomicU64,
    arrived: AtomicU64,
}

/// Opens both ports: the one that sends, and the one where frames arrive.
struct Opener {
    traffic: Arc<Traffic>,
    sends: bool,
}

impl PortOpener for Opener {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let queues = if self.sends { rx_queues } else { 0 };
        let generator = |queue| Generator::new(queue, rx_queues, self.traffic.clone());
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
        Box::new(Sink { traffic: self.traffic.clone() })
    }
}

struct Sink {
    traffic: Arc<Traffic>,
}

impl TxQueue for Sink {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let sent = frames.len() as u64;
        let sent_bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        frames.drain(..).for_each(|frame| pool.give_back(frame));
        self.traffic.arrived.fetch_add(sent, Ordering::Relaxed);
        Ok(TxReport { sent, sent_bytes, ..TxReport::default() })
    }
}

/// The connections of one queue, turn by turn: each opens, then sends segments.
struct Generator {
    templates: Vec<Template>,
    next: usize,
    traffic: Arc<Traffic>,
}

impl Generator {
    fn new(queue: usize, queues: usize, traffic: Arc<Traffic>) -> Self {
        let own = (0..FLOWS).filter(|flow| usize::from(*flow) % queues == queue);
        Self { templates: own.map(Template::new).collect(), next: 0, traffic }
    }
}

impl RxQueue for Generator {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let Traffic { sent, arrived } = &*self.traffic;
        let under_way =
            sent.load(Ordering::Relaxed).saturating_sub(arrived.load(Ordering::Relaxed));
        let room = WINDOW.saturating_sub(under_way).min(max as u64) as usize;
        for _ in 0..room {
            let (round, at) = (self.next / self.templates.len(), self.next % self.templates.len());
            self.next += 1;
            let template = &self.templates[at];
            let bytes = template.handshake.get(round).unwrap_or(&template.segment);
            if let Some(mut frame) = pool.copy_of(bytes) {
                // Summing up payloads would be the generator's cost, not the gateway's.
                frame.offload.checksum = Checksum::Verified;
                frames.push(frame);
            }
        }
        sent.fetch_add(room as u64, Ordering::Relaxed);
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

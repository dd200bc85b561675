//! The values that a policy asks for.

use std::collections::BTreeMap;

use steer::CpuSet;

use crate::plan::PlanError;
use crate::policy::{Policy, Request};
use crate::setting::{Coalescing, Deferral, NapiSetting, Setting, Value};
use crate::snapshot::{LeftAlone, Napi, Snapshot};

/// Flows that a policy lets the kernel steer to the CPUs of their sockets, for each device.
const STEERED_FLOWS: u64 = 4096;
/// Of so many queues, one serves short delays in a mix.
const MIX_SHARE: usize = 3;

/// The service of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Bulk,
    Cpu,
    Latency,
}

/// The figures of a service.
struct Figures {
    /// Longest delay of an interrupt for a received packet, us.
    rx_usecs: u64,
    /// Received packets that cause an interrupt sooner.
    rx_frames: u64,
    /// Longest delay of an interrupt for a sent packet, us. `None`: as found.
    tx_usecs: Option<u64>,
    /// Empty polls for which interrupts stay off.
    empty_polls: u64,
    /// Time until the next poll while interrupts are off, ns.
    next_poll: u64,
    /// The purpose, for reasons.
    purpose: &'static str,
}

impl Service {
    const fn figures(self) -> Figures {
        match self {
            Self::Bulk => Figures {
                rx_usecs: 64,
                rx_frames: 64,
                tx_usecs: Some(64),
                empty_polls: 2,
                next_poll: 64_000,
                purpose: "packets gather for up to 64 us, so that GRO joins more of them",
            },
            Self::Cpu => Figures {
                rx_usecs: 256,
                rx_frames: 256,
                tx_usecs: Some(256),
                empty_polls: 8,
                next_poll: 256_000,
                purpose: "packets gather for up to 256 us, so that fewer interrupts wake a CPU",
            },
            Self::Latency => Figures {
                rx_usecs: 0,
                rx_frames: 1,
                tx_usecs: None,
                empty_polls: 0,
                next_poll: 0,
                purpose: "each packet is served at once",
            },
        }
    }
}

/// A value that a policy asks for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub value: Value,
    pub reason: String,
}

/// The values that are wanted, and what is left alone.
#[derive(Default)]
pub(crate) struct Targets {
    pub wanted: BTreeMap<Setting, Target>,
    pub left: Vec<LeftAlone>,
}

/// The queues with their CPUs and services.
struct Lanes {
    /// CPU and service of each receive queue that has a CPU of its own; not empty.
    lanes: Vec<(usize, Service)>,
    /// All CPUs that were asked for, in their order.
    cpus: Vec<usize>,
    /// True if the request names fewer CPUs than are online.
    is_confined: bool,
}

impl Lanes {
    fn new(snapshot: &Snapshot, request: &Request) -> Result<Self, PlanError> {
        let online = snapshot.online();
        let set = request.cpus.unwrap_or(online);
        if let Some(cpu) = set.iter().find(|cpu| !online.contains(*cpu)) {
            return Err(PlanError::NoSuchCpu { cpu, online: online.list().to_string() });
        }
        let cpus = snapshot.nearest_first(&set);
        if cpus.is_empty() {
            return Err(PlanError::NoCpu { online: online.list().to_string() });
        }
        let queues = usize::from(snapshot.rx_queues.max(1));
        // A mix needs two queues also where there is one CPU for both.
        let count = queues.min(match request.policy {
            Policy::Mix => cpus.len().max(2),
            _ => cpus.len(),
        });
        if request.policy == Policy::Mix && count < 2 {
            return Err(PlanError::MixNeedsQueues { device: snapshot.device.clone() });
        }
        let service = |lane| match request.policy {
            Policy::Cpu => Service::Cpu,
            Policy::Latency => Service::Latency,
            Policy::Mix if lane < (count / MIX_SHARE).max(1) => Service::Latency,
            Policy::None | Policy::Bulk | Policy::Mix => Service::Bulk,
        };
        let lanes = (0..count).map(|lane| (cpus[lane % cpus.len()], service(lane))).collect();
        Ok(Self { lanes, is_confined: set != online, cpus })
    }

    /// CPU and service of a queue. Queues without a CPU of their own share one, in a mix of those
    /// for throughput.
    fn of(&self, queue: usize) -> (usize, Service) {
        if let Some(lane) = self.lanes.get(queue) {
            return *lane;
        }
        let shared = match self.lanes.iter().position(|(_, service)| *service == Service::Bulk) {
            Some(first) => &self.lanes[first..],
            None => &self.lanes[..],
        };
        shared[(queue - self.lanes.len()) % shared.len()]
    }

    /// The CPUs that serve bulk: all but those of other services, unless none is left.
    fn bulk_cpus(&self) -> CpuSet {
        let others = |cpu: &usize| {
            !self.lanes.iter().any(|&(of, service)| of == *cpu && service != Service::Bulk)
        };
        let set: CpuSet = self.cpus.iter().copied().filter(others).collect();
        if set.is_empty() { self.cpus.iter().copied().collect() } else { set }
    }
}

impl Targets {
    /// The values that a request asks for on this device.
    pub fn new(snapshot: &Snapshot, request: &Request) -> Result<Self, PlanError> {
        let mut targets = Self::default();
        if request.policy == Policy::None {
            return Ok(targets);
        }
        let lanes = Lanes::new(snapshot, request)?;
        targets.left.extend(snapshot.unavailable.iter().cloned());
        targets.deferrals(snapshot, &lanes, request.policy);
        targets.threads(snapshot, &lanes);
        targets.coalescing(snapshot, &lanes, request.policy);
        targets.interrupts(snapshot, &lanes);
        targets.receive_steering(snapshot, &lanes);
        targets.transmit_steering(snapshot, &lanes);
        Ok(targets)
    }

    /// Asks for a value, if the device has the setting.
    fn want(&mut self, at: &Snapshot, setting: Setting, value: Value, reason: String) {
        if at.values.contains_key(&setting) {
            self.wanted.insert(setting, Target { value, reason });
        }
    }

    fn deferrals(&mut self, snapshot: &Snapshot, lanes: &Lanes, policy: Policy) {
        let number = |service: Service, deferral| {
            let figures = service.figures();
            Value::Number(match deferral {
                Deferral::DeferHardIrqs => figures.empty_polls,
                Deferral::GroFlushTimeout => figures.next_poll,
            })
        };
        // NAPIs that come with the next link get the device's values.
        let (_, last) = lanes.of(lanes.lanes.len() - 1);
        let purpose = |service: Service| service.figures().purpose.to_owned();
        for deferral in Deferral::ALL {
            let setting = Setting::Device(deferral);
            self.want(snapshot, setting, number(last, deferral), purpose(last));
            for (place, napi) in places(snapshot) {
                let (_, service) = lanes.of(queue_of(napi, place));
                let setting = Setting::Napi { place, kind: NapiSetting::Deferral(deferral) };
                let value = number(service, deferral);
                self.want(snapshot, setting, value, purpose(service));
            }
        }
        if snapshot.napis.is_empty() {
            let reason = "the device has no NAPI now; those that come get the device's values";
            self.left.push(LeftAlone::new("napi", reason));
        } else if policy == Policy::Mix && snapshot.napis.iter().all(|it| it.rx_queue.is_none()) {
            let reason =
                "no NAPI names its queue: the one with the lowest id counts as that of rx-0";
            self.left.push(LeftAlone::new("napi", reason));
        }
    }

    /// Where no interrupt can be placed, a thread keeps the work on the CPUs that were asked for.
    fn threads(&mut self, snapshot: &Snapshot, lanes: &Lanes) {
        let has_interrupt = |napi: &Napi| napi.interrupt.is_some();
        if !lanes.is_confined || snapshot.napis.iter().all(has_interrupt) {
            return;
        }
        if !snapshot.can_place_threads {
            let reason = "without interrupts only threads keep the work on the CPUs asked for, and \
                          the kernel's threads can not be seen from this PID namespace";
            self.left.push(LeftAlone::new("threaded", reason));
            return;
        }
        for (place, napi) in places(snapshot) {
            let threaded = Setting::Napi { place, kind: NapiSetting::Threaded };
            if has_interrupt(napi) || !snapshot.values.contains_key(&threaded) {
                continue;
            }
            let (cpu, _) = lanes.of(queue_of(napi, place));
            let reason = "the NAPI has no interrupt: a thread keeps its work on the CPUs asked for";
            self.want(snapshot, threaded, Value::Number(1), reason.into());
            let setting = Setting::Napi { place, kind: NapiSetting::ThreadCpus };
            let value = Value::Cpus(CpuSet::from_iter([cpu]));
            let reason = format!("CPU {cpu} serves this NAPI");
            // The thread, and with it the setting, may come with the value before.
            self.wanted.insert(setting, Target { value, reason });
        }
    }

    fn coalescing(&mut self, snapshot: &Snapshot, lanes: &Lanes, policy: Policy) {
        if policy == Policy::Mix {
            let reason = "it is one for all queues, and a mix has queues of two services";
            self.left.push(LeftAlone::new("coalesce", reason));
            return;
        }
        let figures = lanes.of(0).1.figures();
        for kind in Coalescing::ALL {
            let (value, reason) = match kind {
                Coalescing::AdaptiveRx | Coalescing::AdaptiveTx => {
                    (Some(0), "the driver would change the values of the policy")
                }
                Coalescing::RxUsecs => (Some(figures.rx_usecs), figures.purpose),
                Coalescing::RxFrames => (Some(figures.rx_frames), figures.purpose),
                Coalescing::TxUsecs => (figures.tx_usecs, "fewer interrupts for sent packets"),
            };
            if let Some(value) = value {
                let setting = Setting::Coalescing(kind);
                self.want(snapshot, setting, Value::Number(value), reason.into());
            }
        }
    }

    fn interrupts(&mut self, snapshot: &Snapshot, lanes: &Lanes) {
        let mut is_any = false;
        for (place, napi) in places(snapshot) {
            let Some(number) = napi.interrupt else { continue };
            let setting = Setting::Interrupt(number);
            if snapshot.napis.iter().filter(|it| it.interrupt == Some(number)).count() > 1 {
                let reason = format!("it serves more than one NAPI of {}", snapshot.device);
                self.left.push(LeftAlone::new(setting, reason));
                continue;
            }
            is_any = true;
            let (cpu, _) = lanes.of(queue_of(napi, place));
            let reason = format!("one CPU serves each queue; CPU {cpu} serves this one");
            let value = Value::Cpus(CpuSet::from_iter([cpu]));
            self.want(snapshot, setting, value, reason);
        }
        if !is_any {
            let reason = "no NAPI of the device names an interrupt that is certainly its own";
            self.left.push(LeftAlone::new("interrupts", reason));
        }
        for placer in snapshot.placers.iter().filter(|_| is_any) {
            let reason = format!("{placer} runs, and may move interrupts that were placed here");
            self.left.push(LeftAlone::new("interrupts", reason));
        }
    }

    fn receive_steering(&mut self, snapshot: &Snapshot, lanes: &Lanes) {
        let queues = usize::from(snapshot.rx_queues);
        let mut is_off = false;
        for queue in 0..snapshot.rx_queues {
            let (_, service) = lanes.of(usize::from(queue));
            let bulk = lanes.bulk_cpus();
            let (cpus, reason) = match service {
                Service::Bulk if queues < lanes.cpus.len() => {
                    (bulk, "there are fewer queues than CPUs: flows spread over all of them")
                }
                Service::Bulk => (CpuSet::EMPTY, "each queue has a CPU: packets stay there"),
                Service::Cpu => (CpuSet::EMPTY, "packets stay on their CPU: none wakes another"),
                Service::Latency => {
                    (CpuSet::EMPTY, "packets stay on their CPU: none waits for another to wake")
                }
            };
            let value = Value::Cpus(cpus);
            self.want(snapshot, Setting::Rps(queue), value, reason.into());
            let setting = Setting::Rfs(queue);
            if service == Service::Latency && snapshot.values.contains_key(&setting) {
                if snapshot.socket_flows == 0 {
                    is_off = true;
                    continue;
                }
                let each = STEERED_FLOWS / u64::from(snapshot.rx_queues).next_power_of_two();
                let reason = "packets go to the CPU on which their program reads".to_owned();
                self.want(snapshot, setting, Value::Number(each.max(1)), reason);
            }
        }
        if is_off {
            let reason = "net.core.rps_sock_flow_entries is 0, a setting of the whole host, so no \
                          flow is steered to its program's CPU";
            self.left.push(LeftAlone::new("rps_flow_cnt", reason));
        }
    }

    fn transmit_steering(&mut self, snapshot: &Snapshot, lanes: &Lanes) {
        let queues = usize::from(snapshot.tx_queues);
        for queue in 0..snapshot.tx_queues {
            let cpus = lanes.cpus.iter().skip(usize::from(queue)).step_by(queues).copied();
            let reason = "each CPU sends by one queue, so that few meet at its lock".to_owned();
            let value = Value::Cpus(cpus.collect());
            self.want(snapshot, Setting::Xps(queue), value, reason);
        }
    }
}

/// The NAPIs with their places.
fn places(snapshot: &Snapshot) -> impl Iterator<Item = (u16, &Napi)> {
    (0..=u16::MAX).zip(&snapshot.napis)
}

/// The receive queue of a NAPI: as the driver says, else its place.
fn queue_of(napi: &Napi, place: u16) -> usize {
    napi.rx_queue.unwrap_or(place).into()
}

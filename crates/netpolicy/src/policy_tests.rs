use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use steer::CpuSet;

use super::*;

/// The answer of a host.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The process has died.
    Dead,
    /// The kernel refuses a setting, or there is no space for the journal.
    Refused,
}

/// A device in memory that behaves as the kernel's do.
#[derive(Clone, Debug)]
struct Device {
    values: BTreeMap<Setting, Value>,
    /// The journal's file.
    kept: Option<String>,
    /// Number of saves and writes after which the process dies, and whether the last one happens.
    dies: Option<(usize, bool)>,
    /// Settings whose writes the kernel refuses.
    refuses: BTreeSet<Setting>,
    /// True if no journal can be kept.
    is_full: bool,
}

impl Device {
    fn steps(&mut self, effect: impl FnOnce(&mut Self)) -> Result<(), Answer> {
        match &mut self.dies {
            Some((0, happens)) => {
                // After that it does nothing any more.
                if std::mem::take(happens) {
                    effect(self);
                }
                return Err(Answer::Dead);
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        effect(self);
        Ok(())
    }

    fn set(&mut self, setting: Setting, value: Value) {
        let value = match (setting, value) {
            // As a TAP device does.
            (Setting::Coalescing(Coalescing::RxFrames), Value::Number(it)) => {
                Value::Number(it.min(40))
            }
            _ => value,
        };
        self.values.insert(setting, value);
        for (napi, it) in &mut self.values {
            if napi.overwritten_by() == Some(setting) {
                *it = value;
            }
        }
        if let Setting::Napi { place, kind: NapiSetting::Threaded } = setting {
            let cpus = Setting::Napi { place, kind: NapiSetting::ThreadCpus };
            if value == Value::Number(1) {
                self.values.entry(cpus).or_insert(Value::Cpus(CpuSet::first(4)));
            } else {
                self.values.remove(&cpus);
            }
        }
    }

    /// The link goes down and up: new NAPIs have the device's values and no threads.
    fn renew_link(&mut self) {
        for setting in settings() {
            if let Some(device) = setting.overwritten_by() {
                self.values.insert(setting, self.values[&device]);
            } else if let Setting::Napi { .. } = setting {
                self.set(setting, Value::Number(0));
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let napi = |id| Napi { id, interrupt: None, rx_queue: None, thread: None };
        let cpu = |number| Cpu { number, distance: 10, is_sibling: false };
        Snapshot {
            device: "lan0".into(),
            rx_queues: 3,
            tx_queues: 3,
            napis: [8193, 8194, 8195].map(napi).to_vec(),
            cpus: (0..4).map(cpu).collect(),
            values: self.values.clone(),
            socket_flows: 32768,
            can_place_threads: true,
            ..Snapshot::default()
        }
    }

    fn journal(&self) -> Journal {
        let device =
            Identity { boot: "b".into(), network: 1, index: 7, node: 99, name: "lan0".into() };
        match &self.kept {
            Some(text) => Journal::parse(text).unwrap(),
            None => Journal::new(device, Request::new(Policy::None)),
        }
    }

    /// Brings the device to a policy, or takes all policies back. The process may die, and the
    /// kernel may refuse.
    fn apply(&mut self, request: &Request) -> Result<(), Answer> {
        let mut journal = self.journal();
        let plan = Plan::new(&self.snapshot(), request, &journal).unwrap();
        journal.request = request.clone();
        let mut failures = Vec::new();
        if request.policy == Policy::None {
            failures = put_back(&plan, &mut journal, self).1;
        } else {
            failures.extend(carry_out(&plan, &mut journal, self).err());
        }
        let answers = failures.into_iter().map(|failure| match failure {
            Failure::Refused { refusal: answer, .. } | Failure::NotKept(answer) => answer,
            // Its last write has reached the NAPIs, too.
            Failure::Changed(_) if self.dies.is_some() => Answer::Dead,
            Failure::Changed(setting) => panic!("nobody has changed {setting}"),
        });
        let answers: Vec<Answer> = answers.collect();
        if !answers.contains(&Answer::Dead) && !self.is_full {
            journal.tidy(&self.snapshot(), &plan);
            self.kept = (!journal.is_empty()).then(|| journal.to_text());
        }
        answers.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Host for Device {
    type Refusal = Answer;
    type NotKept = Answer;

    fn read(&mut self, setting: Setting) -> Result<Option<Value>, Answer> {
        Ok(self.values.get(&setting).copied())
    }

    fn write(&mut self, setting: Setting, value: Value) -> Result<(), Answer> {
        let adapts = |kind| self.values.get(&Setting::Coalescing(kind)) == Some(&Value::Number(1));
        let is_adapted = match setting {
            Setting::Coalescing(Coalescing::RxUsecs) => adapts(Coalescing::AdaptiveRx),
            Setting::Coalescing(Coalescing::TxUsecs) => adapts(Coalescing::AdaptiveTx),
            _ => false,
        };
        if self.refuses.contains(&setting) || is_adapted {
            return Err(Answer::Refused);
        }
        self.steps(|it| it.set(setting, value))
    }

    fn save(&mut self, journal: &Journal) -> Result<(), Answer> {
        if self.is_full {
            return Err(Answer::Refused);
        }
        let text = journal.to_text();
        self.steps(|it| it.kept = Some(text))
    }
}

fn napi(place: u16, kind: NapiSetting) -> Setting {
    Setting::Napi { place, kind }
}

/// The settings of a device with three queues that are no threads' CPUs.
fn settings() -> Vec<Setting> {
    let mut settings: Vec<Setting> = Deferral::ALL.map(Setting::Device).to_vec();
    settings.extend(Coalescing::ALL.map(Setting::Coalescing));
    for queue in 0..3 {
        settings.extend([Setting::Rps(queue), Setting::Rfs(queue), Setting::Xps(queue)]);
        settings.extend(NapiSetting::ALL[..3].iter().map(|kind| napi(queue, *kind)));
    }
    settings
}

/// A device whose settings have values from small numbers.
fn device(seed: &[u64]) -> Device {
    let mut device = Device {
        values: BTreeMap::new(),
        kept: None,
        dies: None,
        refuses: BTreeSet::new(),
        is_full: false,
    };
    for (setting, number) in settings().into_iter().zip(seed.iter().cycle()) {
        let number = match setting {
            Setting::Napi { kind: NapiSetting::Threaded, .. }
            | Setting::Coalescing(Coalescing::AdaptiveRx | Coalescing::AdaptiveTx) => number % 2,
            _ => *number,
        };
        let cpus = Value::Cpus((0..4).filter(|cpu| number >> cpu & 1 == 1).collect());
        let number = Value::Number(number);
        device.set(setting, if setting.takes(&cpus) { cpus } else { number });
    }
    device
}

fn request() -> impl Strategy<Value = Request> {
    (0..5_usize, prop::option::of(1..16_u64)).prop_map(|(policy, cpus)| Request {
        cpus: cpus.map(|mask| (0..4).filter(|cpu| mask >> cpu & 1 == 1).collect()),
        ..Request::new(Policy::ALL[policy])
    })
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// A request; the process may die.
    Apply(Request, Option<(usize, bool)>),
    /// Another program writes a setting.
    Other(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let dies = || prop::option::of((0..60_usize, any::<bool>()));
    prop_oneof![
        3 => (request(), dies()).prop_map(|(request, dies)| Step::Apply(request, dies)),
        1 => (0..100_usize).prop_map(Step::Other),
    ]
}

proptest! {
    /// Policies follow each other, other programs write, the process dies at any point, also while
    /// it puts values back. In the end each setting is as it was, or as another program has set it.
    #[test]
    fn whatever_happens_each_setting_returns_or_is_anothers(
        seed in prop::collection::vec(0..40_u64, 7..30),
        history in prop::collection::vec(step(), 1..8),
        deaths in prop::collection::vec((0..20_usize, any::<bool>()), 0..4),
    ) {
        let mut device = device(&seed);
        let mut first = device.clone();
        for (at, step) in history.iter().enumerate() {
            match step {
                Step::Apply(request, dies) => {
                    device.dies = *dies;
                    let _ = device.apply(request);
                    device.dies = None;
                }
                Step::Other(which) => {
                    // A value that is nobody else's.
                    let number = 1000 + at as u64;
                    let of_others: Vec<Setting> = settings().into_iter().filter(|it| {
                        let is_thread = matches!(it, Setting::Napi { kind: NapiSetting::Threaded, .. });
                        !it.may_round() && !is_thread
                    }).collect();
                    let setting = of_others[which % of_others.len()];
                    let cpus = Value::Cpus([64 + at].into_iter().collect());
                    let value = if setting.takes(&cpus) { cpus } else { Value::Number(number) };
                    device.set(setting, value);
                    first.set(setting, value);
                }
            }
        }
        for dies in deaths {
            device.dies = Some(dies);
            let _ = device.apply(&Request::new(Policy::None));
        }
        device.dies = None;
        device.apply(&Request::new(Policy::None)).unwrap();
        prop_assert_eq!(&device.kept, &None);
        prop_assert_eq!(device.values, first.values);
    }

    /// The link goes down and up between policies, and a process dies. In the end the device's
    /// values are those that were there, and each NAPI has its first value or the device's.
    #[test]
    fn new_napis_are_put_back_too(
        seed in prop::collection::vec(0..40_u64, 7..30),
        history in prop::collection::vec((request(), any::<bool>(), step()), 1..6),
    ) {
        let mut device = device(&seed);
        let first = device.clone();
        for (request, renews, step) in history {
            if let Step::Apply(_, dies) = step {
                device.dies = dies;
            }
            let _ = device.apply(&request);
            device.dies = None;
            if renews {
                device.renew_link();
            }
        }
        device.apply(&Request::new(Policy::None)).unwrap();
        prop_assert_eq!(&device.kept, &None);
        for (setting, value) in &device.values {
            let of_device = setting.overwritten_by().map(|device| first.values[&device]);
            let is_thread = matches!(
                setting,
                Setting::Napi { kind: NapiSetting::Threaded | NapiSetting::ThreadCpus, .. }
            );
            prop_assert!(
                is_thread || first.values.get(setting) == Some(value) || of_device == Some(*value),
                "{setting} = {value}"
            );
        }
    }

    /// A second plan for the same request has nothing to do, also where the driver rounds.
    #[test]
    fn a_policy_that_is_in_force_needs_no_write(
        seed in prop::collection::vec(0..40_u64, 7..30),
        request in request(),
    ) {
        let mut device = device(&seed);
        device.apply(&request).unwrap();
        let plan = Plan::new(&device.snapshot(), &request, &device.journal()).unwrap();
        prop_assert!(plan.is_in_force(), "{plan:?}");
    }

    #[test]
    fn a_damaged_journal_is_never_read_as_another(
        seed in prop::collection::vec(0..40_u64, 7..30),
        request in request(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut device = device(&seed);
        device.apply(&request).unwrap();
        let Some(text) = device.kept else { return Ok(()) };
        let cut = at.index(text.len());
        prop_assert!(Journal::parse(&text[..cut]).is_err());
        let mut bytes = text.clone().into_bytes();
        bytes[cut] = byte;
        if let Ok(changed) = String::from_utf8(bytes) && changed != text {
            let read = Journal::parse(&changed);
            prop_assert!(read.is_err() || read.unwrap().to_text() == text, "{changed}");
        }
    }
}

fn planned(plan: &Plan) -> Vec<String> {
    plan.actions.iter().map(|it| format!("{} = {}", it.setting, it.new)).collect()
}

#[test]
fn the_device_comes_before_its_napis_and_each_napi_keeps_its_own_value() {
    let mut device = device(&[1]);
    let flush = Setting::Device(Deferral::GroFlushTimeout);
    let own = |place| napi(place, NapiSetting::Deferral(Deferral::GroFlushTimeout));
    device.set(own(1), Value::Number(7));
    let before = device.values.clone();
    device.apply(&Request::new(Policy::Bulk)).unwrap();
    assert_eq!(device.values[&own(1)], Value::Number(64_000));
    device.set(own(2), Value::Number(5));
    let journal = device.journal();
    let plan = Plan::new(&device.snapshot(), &Request::new(Policy::None), &journal).unwrap();
    let lines: Vec<String> = planned(&plan).into_iter().filter(|it| it.contains("flush")).collect();
    // The third is another's: it stays, although the device's value overwrites it for a moment.
    assert_eq!(
        lines,
        [
            "gro_flush_timeout = 1",
            "napi-0/gro-flush-timeout = 1",
            "napi-1/gro-flush-timeout = 7",
            "napi-2/gro-flush-timeout = 5",
        ]
    );
    assert!(plan.by_others.contains(&own(2)) && !plan.by_others.contains(&flush));
    let left = plan.left.iter().find(|it| it.id == own(2).to_string()).unwrap();
    assert_eq!(
        left.reason,
        "another program has set it to 5; Stateway had set it to 64000, and before it was 1"
    );
    device.apply(&Request::new(Policy::None)).unwrap();
    let mut expected = before;
    expected.insert(own(2), Value::Number(5));
    assert_eq!(device.values, expected);
}

#[test]
fn a_write_between_plan_and_apply_stops_it_before_it_overwrites() {
    let mut device = device(&[1]);
    let own = napi(1, NapiSetting::Deferral(Deferral::DeferHardIrqs));
    let mut journal = device.journal();
    let plan = Plan::new(&device.snapshot(), &Request::new(Policy::Cpu), &journal).unwrap();
    device.set(own, Value::Number(99));
    let before = device.values.clone();
    let failure = carry_out(&plan, &mut journal, &mut device).unwrap_err();
    assert_eq!(failure, Failure::Changed(own));
    assert_eq!(device.values, before);
    // Nothing was written, so the value of the other program is the first one now.
    let plan = Plan::new(&device.snapshot(), &Request::new(Policy::Cpu), &journal).unwrap();
    assert_eq!(plan.by_others, [].into());
    carry_out(&plan, &mut journal, &mut device).unwrap();
    assert_eq!(device.values[&own], Value::Number(8));
    assert_eq!(journal.original(own, None), Some(Value::Number(99)));
}

#[test]
fn a_rollback_puts_back_all_that_the_kernel_takes_and_keeps_the_rest() {
    let mut device = device(&[1]);
    let first = device.values.clone();
    device.apply(&Request::new(Policy::Bulk)).unwrap();
    let applied = device.values.clone();
    // The device's value, one of a NAPI, and one that stands alone.
    let flush = Setting::Device(Deferral::GroFlushTimeout);
    let polls = napi(2, NapiSetting::Deferral(Deferral::DeferHardIrqs));
    let refused = [flush, polls, Setting::Xps(0)];
    device.refuses = refused.into();
    for _ in 0..2 {
        assert_eq!(device.apply(&Request::new(Policy::None)), Err(Answer::Refused));
        for (setting, value) in &device.values {
            let expected = match setting {
                _ if *setting == polls => device.values[&Setting::Device(Deferral::DeferHardIrqs)],
                _ if refused.contains(setting) => applied[setting],
                _ => first[setting],
            };
            assert_eq!(*value, expected, "{setting}");
        }
    }
    device.refuses.clear();
    device.apply(&Request::new(Policy::None)).unwrap();
    assert_eq!((device.values, device.kept), (first, None));
}

#[test]
fn a_full_directory_blocks_a_policy_before_its_first_write_and_no_rollback() {
    let mut device = device(&[1]);
    let first = device.values.clone();
    device.is_full = true;
    assert_eq!(device.apply(&Request::new(Policy::Bulk)), Err(Answer::Refused));
    assert_eq!(device.values, first);
    device.is_full = false;
    device.apply(&Request::new(Policy::Bulk)).unwrap();
    device.is_full = true;
    device.apply(&Request::new(Policy::None)).unwrap();
    assert_eq!(device.values, first);
    // The journal that could not be removed does no harm.
    device.is_full = false;
    device.apply(&Request::new(Policy::None)).unwrap();
    assert_eq!((device.values, device.kept), (first, None));
}

#[test]
fn a_driver_adapts_coalescing_only_before_and_after_a_policy() {
    let mut device = device(&[1]);
    let first = device.values.clone();
    let adaptation = Setting::Coalescing(Coalescing::AdaptiveRx);
    assert_eq!(first[&adaptation], Value::Number(1));
    device.apply(&Request::new(Policy::Bulk)).unwrap();
    assert_eq!(device.values[&adaptation], Value::Number(0));
    device.apply(&Request::new(Policy::None)).unwrap();
    assert_eq!((device.values, device.kept), (first, None));
}

#[test]
fn a_mix_gives_a_third_of_the_queues_to_short_delays() {
    let device = device(&[1]);
    let plan =
        Plan::new(&device.snapshot(), &Request::new(Policy::Mix), &device.journal()).unwrap();
    let lines = planned(&plan);
    let has = |line: &str| assert!(lines.iter().any(|it| it == line), "no {line} in {lines:#?}");
    has("napi-0/gro-flush-timeout = 0");
    has("napi-1/gro-flush-timeout = 64000");
    has("napi-2/gro-flush-timeout = 64000");
    has("rx-0/rps_cpus = none");
    has("rx-1/rps_cpus = CPUs 1-3");
    has("tx-0/xps_cpus = CPUs 0,3");
    assert!(!lines.iter().any(|it| it.starts_with("coalesce")), "{lines:#?}");
    // Two CPUs serve three queues: the third is no second one for short delays.
    let request = Request { cpus: Some(CpuSet::first(2)), ..Request::new(Policy::Mix) };
    let plan = Plan::new(&device.snapshot(), &request, &device.journal()).unwrap();
    let lines = planned(&plan);
    assert!(lines.iter().any(|it| it == "napi-2/gro-flush-timeout = 64000"), "{lines:#?}");
    assert!(lines.iter().any(|it| it == "napi-2/thread-cpus = CPUs 1"), "{lines:#?}");
    let one = Snapshot { rx_queues: 1, ..device.snapshot() };
    let error = Plan::new(&one, &Request::new(Policy::Mix), &device.journal()).unwrap_err();
    assert_eq!(error, PlanError::MixNeedsQueues { device: "lan0".into() });
}

#[test]
fn an_interrupt_is_placed_only_if_it_is_certainly_the_queues() {
    let mut device = device(&[1]);
    for number in [30, 31] {
        device.values.insert(Setting::Interrupt(number), Value::Cpus(CpuSet::first(4)));
    }
    let mut snapshot = device.snapshot();
    snapshot.placers = vec!["irqbalance (process 7)".into()];
    for (napi, interrupt) in snapshot.napis.iter_mut().zip([30, 31, 31]) {
        napi.interrupt = Some(interrupt);
    }
    // The CPU of another node comes last, and the second thread of a core before it.
    snapshot.cpus[0].distance = 20;
    snapshot.cpus[1].is_sibling = true;
    let request = Request::new(Policy::Latency);
    let plan = Plan::new(&snapshot, &request, &device.journal()).unwrap();
    let lines: Vec<String> =
        planned(&plan).into_iter().filter(|it| it.starts_with("irq")).collect();
    assert_eq!(lines, ["irq-30/smp_affinity_list = CPUs 2"]);
    let left = |id: &str| plan.left.iter().find(|it| it.id == id).unwrap().reason.as_str();
    assert_eq!(left("irq-31/smp_affinity_list"), "it serves more than one NAPI of lan0");
    assert!(left("interrupts").starts_with("irqbalance (process 7) runs"));
}

#[test]
fn a_value_that_needed_no_write_is_another_programs_once_it_changes() {
    let mut device = device(&[1]);
    let (request, setting) = (Request::new(Policy::Latency), Setting::Rps(1));
    device.set(setting, Value::Cpus(CpuSet::EMPTY));
    device.apply(&request).unwrap();
    device.set(setting, Value::Cpus(CpuSet::first(2)));
    let plan = Plan::new(&device.snapshot(), &request, &device.journal()).unwrap();
    assert_eq!(planned(&plan), [""; 0]);
    assert_eq!(plan.by_others, BTreeSet::from([setting]));
    // A policy that asks for nothing there does not claim it.
    device.set(setting, Value::Cpus(CpuSet::EMPTY));
    device.apply(&Request { without: [setting].into(), ..request }).unwrap();
    device.set(setting, Value::Cpus(CpuSet::first(2)));
    let plan = Plan::new(&device.snapshot(), &device.journal().request, &device.journal()).unwrap();
    assert!(plan.is_in_force(), "{plan:?}");
}

#[test]
fn the_kernels_choice_for_a_cpu_that_has_gone_is_no_other_programs() {
    let mut device = device(&[1]);
    let setting = Setting::Interrupt(30);
    device.values.insert(setting, Value::Cpus(CpuSet::first(4)));
    let snapshot = |device: &Device, cpus: usize| {
        let mut snapshot = device.snapshot();
        snapshot.napis[0].interrupt = Some(30);
        snapshot.cpus.drain(..4 - cpus);
        snapshot
    };
    let request = Request::new(Policy::Latency);
    let mut journal = device.journal();
    let plan = Plan::new(&snapshot(&device, 4), &request, &journal).unwrap();
    carry_out(&plan, &mut journal, &mut device).unwrap();
    assert_eq!(device.values[&setting], Value::Cpus(CpuSet::first(1)));
    // CPU 0 goes, and the kernel moves the interrupt.
    device.values.insert(setting, Value::Cpus([1, 2, 3].into_iter().collect()));
    let plan = Plan::new(&snapshot(&device, 3), &request, &journal).unwrap();
    assert!(planned(&plan).contains(&"irq-30/smp_affinity_list = CPUs 1".to_owned()), "{plan:?}");
    assert_eq!(plan.by_others, BTreeSet::new());
}

#[test]
fn requests_that_can_not_be_met_change_nothing() {
    let device = device(&[1]);
    let plan = |cpus| {
        let request = Request { cpus: Some(cpus), ..Request::new(Policy::Bulk) };
        Plan::new(&device.snapshot(), &request, &device.journal()).unwrap_err().to_string()
    };
    assert_eq!(plan(CpuSet::first(5)), "CPU 4 is not online; the CPUs that are: 0-3");
    assert_eq!(plan(CpuSet::EMPTY), "the request names no CPU; name some of 0-3");
}

#[test]
fn a_device_is_known_by_more_than_its_name() {
    let then = device(&[1]).journal().device;
    let renamed = Identity { name: "wan0".into(), ..then.clone() };
    assert_eq!(then.difference(&renamed), None);
    let other = Identity { node: 100, ..then.clone() };
    assert_eq!(then.difference(&other), Some(Difference::Device));
    let elsewhere = Identity { network: 2, index: 3, ..then.clone() };
    assert_eq!(then.difference(&elsewhere), None);
    let later = Identity { boot: "c".into(), ..then.clone() };
    assert_eq!(then.difference(&later), Some(Difference::Boot));
}

#[test]
fn journals_of_others_are_refused_by_name() {
    let text = device(&[1]).journal().to_text();
    let error = |text: &str| Journal::parse(text).unwrap_err().to_string();
    assert_eq!(error("[Unit]\n"), "this is no journal of Stateway");
    assert_eq!(error(&text[..text.len() - 2]), "it is cut or damaged");
    let newer = text.replacen(" 1 ", " 2 ", 1);
    assert_eq!(error(&newer), "its format is version 2; this program reads version 1");
}

//! A table beside one that has taken over all of its connections, at another time: whatever comes
//! later, their results must be equal.

use flow::{FlowKey, Zone};

use super::*;
use crate::{
    Changes, ConnectionRecord, EventKind, Importing, LimitPools, NoInterfaces, Reserve,
    TimeoutPolicy,
};

/// The clocks of the two gateways differ by so much.
const YEARS: Duration = Duration::from_secs(5 * 365 * 86_400);

/// A gateway that takes over all connections, and gets them as bytes.
fn taken_over(ours: &Twin) -> Twin {
    let mut theirs = Twin::new(1 << 10, ours.track);
    let lab = &mut theirs.lab;
    lab.settings = ours.lab.settings.clone();
    lab.map_epoch = ours.lab.map_epoch;
    lab.now = ours.lab.now.after(YEARS);
    lab.table = Table::new(lab.now);
    // Settings may have changed since a packet came, and what is left is at most what a packet gives.
    let most = u32::MAX;
    let timeouts = &mut lab.settings.timeouts;
    (timeouts.udp, timeouts.generic, timeouts.gre, timeouts.call) = (most, most, most, most);
    (timeouts.icmp, timeouts.icmpv6) = (most, most);
    timeouts.sctp.fill(most);
    timeouts.dccp.fill(most);
    TcpState::ALL.iter().for_each(|state| lab.settings.tcp.timeouts.set(*state, most));
    let mut pools = LimitPools::new(&lab.settings, &Reserve::default());
    pools.set_zones(&[(Zone(5), Some(1000))]).unwrap();
    lab.limits = pools.limits(SECRET);
    let importing = Importing {
        hash: &hash,
        interfaces: &NoInterfaces,
        map_epoch: lab.map_epoch,
        needs_addresses: true,
    };
    for record in ours.lab.records() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let read = ConnectionRecord::decode(&bytes).unwrap();
        assert_eq!(read, record);
        lab.run(|table, context| table.import(&read, importing, context)).unwrap();
    }
    lab.settings = ours.lab.settings.clone();
    theirs
}

/// True if the result depends on the places of connections in memory, or on whether that of an
/// expired one was returned: two connections may have one key, each for its own direction.
fn depends_on_memory(twin: &Twin, action: &Action) -> bool {
    match *action {
        Action::FlushMarked(_) => true,
        Action::Delete(which) | Action::Update(which, _) => {
            let key = |slot| twin.lab.table.original(slot).key;
            let own = twin.slot(which).map(key);
            twin.slots().filter(|&slot| Some(key(slot)) == own).count() > 1
        }
        _ => false,
    }
}

/// Connections that are over and still there, as they are at one gateway only, have a say in the choice
/// of a port: by the ports that they have got, and by those that they have announced.
fn silence_what_is_over(twins: &mut [&mut Twin]) {
    let is_over = |lab: &Lab, slot: u32| lab.table.slab[slot].is_over(lab.now);
    let over = twins.iter().flat_map(|twin| {
        let slots = twin.slots().filter(|&slot| is_over(&twin.lab, slot));
        slots.map(|slot| twin.lab.table.original(slot).key)
    });
    let over: Vec<FlowKey> = over.collect();
    for Twin { lab, .. } in twins.iter_mut() {
        lab.limits.changed_ports.clear();
        over.iter().for_each(|master| lab.expectations.forget(master, lab.now, &mut None));
    }
}

/// The results for a packet, without the place of its connection in memory.
fn without_place(said: Option<(Tracked, Vec<Edit>)>) -> Option<(Tracked, Vec<Edit>)> {
    said.map(|(tracked, edits)| (Tracked { connection: None, ..tracked }, edits))
}

/// How many connections were taken over, and of which kinds.
#[derive(Debug, Default)]
struct Tally {
    all: u64,
    kinds: [u64; 8],
    later: u64,
}

impl Tally {
    fn count(&mut self, record: &ConnectionRecord) {
        self.all += 1;
        let kinds = [
            record.translation.is_some(),
            !record.zones().is_one(),
            matches!(record.policy, Some(TimeoutPolicy::Tcp(_))),
            matches!(record.policy, Some(TimeoutPolicy::Udp { .. })),
            record.helper.is_some(),
            record.shifts.is_some(),
            record.counts.is_some(),
            record.age.is_some(),
        ];
        for (count, is_so) in self.kinds.iter_mut().zip(kinds) {
            *count += u64::from(is_so);
        }
    }

    fn has_all_kinds(&self) -> bool {
        self.kinds.iter().all(|&count| count > 0)
    }
}

/// Rounds of 300 cases until connections of each kind have been taken over.
const ROUNDS_MAX: usize = 10;

#[test]
fn whoever_takes_connections_over_goes_on_as_before() {
    let actions = || prop::collection::vec(any_action(), 1..150);
    let tally = RefCell::new(Tally::default());
    // Some kinds are rare, so one round may be without them.
    for _ in 0..ROUNDS_MAX {
        proptest!(ProptestConfig::with_cases(300), |(before in actions(), after in actions())| {
            let mut ours = Twin::new(1 << 20, Table::track);
            for action in &before {
                match action {
                    // The importer says whether a connection may have continued elsewhere.
                    Action::NextMap => None,
                    // A lifetime that an operator has given is not carried beyond the timeouts.
                    Action::Update(which, changes) => {
                        ours.act(&Action::Update(*which, Changes { timeout_s: None, ..*changes }))
                    }
                    action => ours.act(action),
                };
            }
            // Expectations are not part of these records.
            ours.lab.expectations.flush(usize::MAX, ours.lab.now, &mut None);
            // Nor whether a connection may have continued elsewhere, and numbers that it has heard since.
            for slot in 0..ours.lab.table.slab.slots() {
                ours.lab.table.slab[slot].body.map_epoch = ours.lab.map_epoch;
                ours.lab.table.slab.forget_relearning(slot);
            }
            let mut theirs = taken_over(&ours);
            ours.lab.records().iter().for_each(|record| tally.borrow_mut().count(record));
            prop_assert_eq!(ours.lab.listed().len(), theirs.lab.listed().len());
            prop_assert_eq!(theirs.lab.counters.insert, 0);
            prop_assert!(theirs.lab.events.is_empty());
            prop_assert_eq!(ours.lab.records(), theirs.lab.records());
            for action in &after {
                if [&ours, &theirs].into_iter().any(|twin| depends_on_memory(twin, action)) {
                    continue;
                }
                silence_what_is_over(&mut [&mut ours, &mut theirs]);
                prop_assert_eq!(without_place(ours.act(action)), without_place(theirs.act(action)), "{:?}", action);
                prop_assert_eq!(ours.lab.records(), theirs.lab.records(), "{:?}", action);
            }
            tally.borrow_mut().later += after.len() as u64;
            let news = |twin: &Twin| {
                twin.lab.kinds().iter().filter(|kind| **kind == EventKind::New).count()
            };
            prop_assert!(news(&theirs) <= news(&ours));
            // All units of all limits come back.
            let lab = &mut theirs.lab;
            lab.run(|table, context| table.flush(Cursor::default(), u32::MAX, |_| true, context));
            prop_assert_eq!(lab.limits.used(), 0);
            prop_assert_eq!(lab.limits.zones().map(|(_, used)| used).sum::<u64>(), 0);
            lab.expectations.flush(usize::MAX, lab.now, &mut None);
        });
        if tally.borrow().has_all_kinds() {
            break;
        }
    }
    let tally = tally.into_inner();
    assert!(tally.has_all_kinds(), "none of a kind was taken over: {tally:?}");
}

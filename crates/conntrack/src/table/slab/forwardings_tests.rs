use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn forwarding(output: u16) -> Forwarding {
    Forwarding { input: 1, output, station: [2; 6], mtu: 1500 }
}

#[derive(Clone, Debug)]
enum Step {
    Set(u32, bool, u16),
    Remove(u32),
    Begin(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..400, any::<bool>(), any::<u16>()).prop_map(|(at, reply, to)| Step::Set(at, reply, to)),
        4 => (0u32..400).prop_map(Step::Remove),
        1 => (0u64..4).prop_map(Step::Begin),
    ]
}

proptest! {
    #[test]
    fn is_a_map_that_a_new_generation_empties(steps in prop::collection::vec(step(), 0..200)) {
        let (mut recorded, mut model, mut current) = (Forwardings::new(), BTreeMap::new(), 0);
        let way = |reply| if reply { Direction::Reply } else { Direction::Original };
        for step in steps {
            match step {
                Step::Set(slot, reply, to) => {
                    recorded.set(slot, way(reply), forwarding(to));
                    model.insert((slot, reply), forwarding(to));
                }
                Step::Remove(slot) => {
                    recorded.remove(slot);
                    model.remove(&(slot, false));
                    model.remove(&(slot, true));
                }
                Step::Begin(worker_generation) => {
                    recorded.begin(worker_generation);
                    if worker_generation != current {
                        current = worker_generation;
                        model.clear();
                    }
                }
            }
            for slot in 0..400 {
                for reply in [false, true] {
                    prop_assert_eq!(recorded.get(slot, way(reply)), model.get(&(slot, reply)).copied());
                }
            }
        }
    }
}

#[test]
fn nothing_of_an_old_generation_holds_again_when_the_numbers_come_round() {
    let mut recorded = Forwardings::new();
    recorded.set(7, Direction::Reply, forwarding(3));
    for worker_generation in 1..=u64::from(u16::MAX) {
        recorded.begin(worker_generation);
        assert_eq!(recorded.get(7, Direction::Reply), None, "{worker_generation}");
    }
    assert_eq!(recorded.memory_bytes(), 0);
}

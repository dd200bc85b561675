use std::cell::{Cell, RefCell};

use ruleset::Options;

use super::*;

/// Remembers the number of rules of each ruleset that was applied, in order.
#[derive(Default)]
struct Witness {
    seen: RefCell<Vec<Option<usize>>>,
    refuses: Cell<bool>,
}

impl RuleTarget for Witness {
    fn apply(&self, ruleset: Option<&ValidRuleset>) -> Result<(), LoadRulesError> {
        if self.refuses.get() {
            return Err(LoadRulesError::HostGuard("it is deaf".to_owned()));
        }
        self.seen.borrow_mut().push(ruleset.map(|ruleset| ruleset.rules().len()));
        Ok(())
    }

    fn with_current_elements(&self, _: &RuleBook) -> Result<Option<RuleBook>, String> {
        Ok(None)
    }
}

/// A ruleset of `rules` rules.
fn book(rules: u64) -> RuleBook {
    let mut objects = vec![
        serde_json::json!({"table": {"family": "ip", "name": "t", "handle": 1}}),
        serde_json::json!({"chain": {"family": "ip", "table": "t", "name": "f", "handle": 2,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}),
    ];
    objects.extend((0..rules).map(|number| {
        serde_json::json!({"rule": {"family": "ip", "table": "t", "chain": "f",
            "handle": 3 + number, "expr": [{"accept": null}]}})
    }));
    let document = serde_json::to_vec(&serde_json::json!({ "nftables": objects })).unwrap();
    RuleBook::read(document, Options::default(), 1).unwrap()
}

fn keeper(active: Option<RuleBook>) -> Keeper {
    Keeper::new(active, Box::new(|_| {}))
}

const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

fn active(keeper: &Keeper) -> Option<usize> {
    let (active, _) = keeper.active(Instant::now());
    active.map(|book| book.ruleset().rules().len())
}

#[test]
fn a_ruleset_on_trial_is_rolled_back_unless_it_is_confirmed() {
    let (keeper, target, now) = (keeper(None), Witness::default(), Instant::now());
    let number = keeper.load(&target, book(1), MINUTE, now).unwrap().unwrap();
    assert_eq!(keeper.active(now).1, MINUTE);
    assert!(matches!(keeper.load(&target, book(2), None, now), Err(TryError::Waits(_))));
    assert_eq!(active(&keeper), Some(1));
    assert!(keeper.roll_back(&target, Some(number)).unwrap());
    assert_eq!(active(&keeper), None);
    assert!(!keeper.confirm(), "it is too late");
    assert!(!keeper.roll_back(&target, None).unwrap());

    keeper.load(&target, book(3), None, now).unwrap();
    let number = keeper.load(&target, book(4), MINUTE, now).unwrap();
    assert!(keeper.confirm());
    assert!(!keeper.roll_back(&target, number).unwrap(), "it was confirmed");
    assert_eq!(active(&keeper), Some(4));
    assert_eq!(*target.seen.borrow(), [Some(1), None, Some(3), Some(4)]);
}

#[test]
fn the_end_of_one_trial_does_not_end_the_next() {
    let (keeper, target, now) = (keeper(Some(book(9))), Witness::default(), Instant::now());
    let first = keeper.load(&target, book(1), MINUTE, now).unwrap();
    keeper.confirm();
    let second = keeper.load(&target, book(2), MINUTE, now).unwrap();
    assert_ne!(first, second);
    assert!(!keeper.roll_back(&target, first).unwrap());
    assert_eq!(active(&keeper), Some(2));
    assert!(keeper.roll_back(&target, second).unwrap());
    assert_eq!(active(&keeper), Some(1));
}

#[test]
fn a_ruleset_that_the_gateway_refuses_changes_nothing() {
    let (keeper, target, now) = (keeper(Some(book(5))), Witness::default(), Instant::now());
    target.refuses.set(true);
    assert!(matches!(keeper.load(&target, book(1), MINUTE, now), Err(TryError::Load(_))));
    assert_eq!((active(&keeper), keeper.active(now).1), (Some(5), None));
    target.refuses.set(false);
    let number = keeper.load(&target, book(1), MINUTE, now).unwrap();
    target.refuses.set(true);
    assert!(keeper.roll_back(&target, number).is_err());
    assert_eq!(active(&keeper), Some(1));
    target.refuses.set(false);
    assert!(keeper.roll_back(&target, None).unwrap(), "it can be tried again");
    assert_eq!(active(&keeper), Some(5));
}

#[test]
fn the_gateway_is_asked_again_if_another_was_loaded_meanwhile() {
    let (keeper, target, now) = (keeper(Some(book(1))), Witness::default(), Instant::now());
    let mut answers = 0;
    let asked = keeper.active_and(|| {
        answers += 1;
        // A load does not wait for the answer.
        let is_first = answers == 1;
        if is_first {
            keeper.load(&target, book(2), MINUTE, now).map(|_| answers)
        } else {
            Ok(answers)
        }
    });
    let (answer, (book, left)) = asked.unwrap();
    assert_eq!((answer, book.unwrap().ruleset().rules().len()), (2, 2));
    assert!(left.is_some());
}

#[test]
fn a_listener_hears_of_each_ruleset_that_is_in_force() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    let listener = move |book: Option<&RuleBook>| {
        heard.lock().unwrap().push(book.map(|book| book.ruleset().rules().len()));
    };
    let keeper = Keeper::new(None, Box::new(listener));
    let (target, now) = (Witness::default(), Instant::now());
    keeper.load(&target, book(1), MINUTE, now).unwrap();
    assert!(keeper.roll_back(&target, None).unwrap());
    keeper.load(&target, book(2), None, now).unwrap();
    let change = |_: &RuleBook| Ok::<_, ()>(((), Some(book(3))));
    keeper.change(change).unwrap().unwrap();
    target.refuses.set(true);
    keeper.load(&target, book(4), None, now).unwrap_err();
    assert_eq!(*seen.lock().unwrap(), [Some(1), None, Some(2), Some(3)]);
}

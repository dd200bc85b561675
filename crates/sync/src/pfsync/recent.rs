//! Names of states that were met a short time ago.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use flow::Timestamp;

use super::identity::StateId;

/// Names that are remembered for a span, up to a number of them.
#[derive(Debug)]
pub(super) struct RecentIds {
    span: Duration,
    limit: usize,
    ids: BTreeSet<StateId>,
    /// The names in the order in which they were met, each with the time at which it is forgotten.
    order: VecDeque<(Timestamp, StateId)>,
}

impl RecentIds {
    pub fn new(limit: usize, span: Duration) -> Self {
        Self { span, limit, ids: BTreeSet::new(), order: VecDeque::new() }
    }

    /// Remembers a name. `false` if it is remembered already, or there is no room.
    pub fn meet(&mut self, now: Timestamp, id: StateId) -> bool {
        self.forget(now);
        if self.ids.len() >= self.limit || !self.ids.insert(id) {
            return false;
        }
        self.order.push_back((now.after(self.span), id));
        true
    }

    /// True if a name is remembered.
    pub fn knows(&mut self, now: Timestamp, id: StateId) -> bool {
        self.forget(now);
        self.ids.contains(&id)
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.order.front()
            && *until <= now
        {
            self.ids.remove(id);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pfsync::CreatorId;

    #[test]
    fn names_are_remembered_for_a_span_up_to_a_number() {
        let id = |id| StateId { id, creator: CreatorId::new(1).unwrap() };
        let at = Timestamp::from_secs;
        let mut recent = RecentIds::new(2, Duration::from_secs(2));
        assert!(recent.meet(at(1), id(1)));
        assert!(!recent.meet(at(2), id(1)), "it is known, and its span stays");
        assert!(recent.meet(at(2), id(2)));
        assert!(!recent.meet(at(2), id(3)), "there is no room");
        assert!(!recent.knows(at(3), id(1)) && recent.knows(at(3), id(2)));
        assert!(recent.meet(at(3), id(3)));
    }
}

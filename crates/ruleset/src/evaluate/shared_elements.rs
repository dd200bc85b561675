//! The elements of all sets that rules fill, as another gateway takes them over and as a peer hears
//! of them.

use flow::Timestamp;
use flow::replica::{Origin, Taken, Told};

use super::element_record::{ElementCursor, ElementRecord, ElementRefusal};
use super::shared_set::SharedSet;
use super::state::SharedState;
use crate::compile::Program;
use crate::model::Set;

impl SharedState {
    /// The sets that rules fill, each with what it was made of.
    fn with_sets<'s>(
        &'s self,
        program: &'s Program,
    ) -> impl Iterator<Item = (&'s Set, &'s SharedSet)> {
        let sets = &program.ruleset().sets;
        program.dynamic.iter().zip(&self.sets).map(|(id, shared)| (&sets[id.index()], &**shared))
    }

    /// The set of an element.
    fn set_of<'s>(
        &'s self,
        program: &'s Program,
        record: &ElementRecord,
    ) -> Option<(&'s Set, &'s SharedSet)> {
        self.with_sets(program).find(|(set, _)| record.is_of(set))
    }

    /// Gives the element of a record its state in the set of its name, or adds it there.
    ///
    /// # Errors
    /// [`ElementRefusal`]; nothing has changed.
    pub fn import_element(
        &self,
        program: &Program,
        record: &ElementRecord,
        origin: Origin,
        now: Timestamp,
    ) -> Result<Taken, ElementRefusal> {
        let (set, shared) = self.set_of(program, record).ok_or(ElementRefusal::NoSet)?;
        shared.import(set, record, origin, now)
    }

    /// Ends the element that a record names. `is_copy`: only if the peer owns it, as the peer has
    /// done; otherwise whoever owns it, and the peer hears of it. False if there is no such element.
    pub fn end_element(&self, program: &Program, name: &ElementRecord, is_copy: bool) -> bool {
        let set = self.set_of(program, name);
        set.is_some_and(|(set, shared)| shared.end_named(set, name, is_copy))
    }

    /// Collects changes of elements for a peer from now on, or none.
    pub fn follow_elements(&self, follows: bool) {
        self.sets.iter().for_each(|set| set.follow(follows, false));
    }

    /// Collects all changes of elements from now on, also those of statements that count: when all were
    /// taken, nothing differs at the reader.
    pub fn follow_elements_exactly(&self) {
        self.sets.iter().for_each(|set| set.follow(true, true));
    }

    /// True if a peer may have to hear of changes of elements. Takes no lock.
    pub fn has_element_changes(&self) -> bool {
        self.sets.iter().any(|set| set.has_news())
    }

    /// Shows changes of elements that a peer has to hear of to `each`, `budget` at most. Returns
    /// true if ends were lost, so that the peer needs all elements once more.
    pub fn take_element_changes(
        &self,
        program: &Program,
        mut budget: usize,
        now: Timestamp,
        each: &mut dyn FnMut(Told<ElementRecord>),
    ) -> bool {
        let mut has_lost = false;
        for (set, shared) in self.with_sets(program).filter(|(_, shared)| shared.has_news()) {
            has_lost |= shared.take_changes(set, &mut budget, now, each);
        }
        has_lost
    }

    /// Shows elements that this node owns, and news of others, to `each`; looks at `budget` places
    /// of a set at most. Returns the position to continue from, `None` at the end.
    pub fn tell_elements(
        &self,
        program: &Program,
        from: ElementCursor,
        budget: usize,
        now: Timestamp,
        each: &mut dyn FnMut(Told<ElementRecord>),
    ) -> Option<ElementCursor> {
        self.visit(program, from, |set, shared, place| {
            shared.tell_places(set, place, budget, now, each)
        })
    }

    /// This node owns all elements from now on.
    pub fn adopt_elements(&self) {
        self.sets.iter().for_each(|set| set.adopt());
    }

    /// The peer owns elements from now on. Shows the names of those that this node owned to `each`;
    /// looks at `budget` places of a set at most. Returns the position to continue from, `None` at
    /// the end.
    pub fn give_elements_away(
        &self,
        program: &Program,
        from: ElementCursor,
        budget: usize,
        now: Timestamp,
        each: &mut dyn FnMut(ElementRecord),
    ) -> Option<ElementCursor> {
        self.visit(program, from, |set, shared, place| {
            shared.give_places(set, place, budget, now, each)
        })
    }

    /// Visits some places of a shard. Returns the position to continue from.
    fn visit(
        &self,
        program: &Program,
        ElementCursor { set: at, shard, place }: ElementCursor,
        visit: impl FnOnce(&Set, &SharedSet, (usize, usize)) -> Option<usize>,
    ) -> Option<ElementCursor> {
        let (set, shared) = self.with_sets(program).nth(at)?;
        let next = match visit(set, shared, (shard, place)) {
            Some(place) => ElementCursor { set: at, shard, place },
            None if shard + 1 < shared.shards() => {
                ElementCursor { set: at, shard: shard + 1, place: 0 }
            }
            None => ElementCursor { set: at + 1, shard: 0, place: 0 },
        };
        (next.set < self.sets.len()).then_some(next)
    }
}

//! Things that all workers share and a peer has copies of: announcements of connections, and elements
//! of sets that rules fill. [`crate::path::announcement_copies`] says what a worker does.

use conntrack::{AnnouncementCursor, AnnouncementRecord, ImportRefusal};
use flow::replica::{Origin, Told};
use ruleset::{ElementCursor, ElementRecord};
use steer::{BucketId, WorkerId};

use crate::Gateway;
use crate::control::offers::{LOT, PAUSE, TRIES};
use crate::control::record::{RecordRefusal, SharedRecord};
use crate::control::worker_handle::Unresponsive;
use crate::path::announcement_copies::{AnnouncementChange, Outcome};
use crate::worker::command::Question;

/// Changes of elements, or places for elements, that one look covers: packets of rules that change
/// the set wait meanwhile.
const ELEMENTS: usize = 1024;

/// A change of something shared that comes from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedChange {
    /// It has this state.
    State(SharedRecord, Origin),
    /// The thing that the record names has ended. If it is true, only a copy ends.
    End(SharedRecord, bool),
}

/// The result of a change, with its record.
pub type SharedOutcome = (SharedRecord, Outcome<RecordRefusal>);

/// A position in all that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedCursor {
    /// Among announcements.
    Announcements(AnnouncementCursor),
    /// Among elements.
    Elements(ElementCursor),
}

impl Default for SharedCursor {
    fn default() -> Self {
        Self::Announcements(AnnouncementCursor::default())
    }
}

/// A piece of all that is shared.
#[derive(Debug)]
pub struct SharedPiece<T> {
    /// The things in it.
    pub things: Vec<T>,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<SharedCursor>,
}

/// The things that workers share and a peer has copies of.
pub trait SharedThings {
    /// Collects changes from now on, or none.
    fn follow_shared(&self, follows: bool);

    /// Shows changes that a peer has to hear of to `each`, some at a time. True if ends were lost,
    /// so that the peer needs all things once more.
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn take_shared(&self, each: &mut dyn FnMut(Told<SharedRecord>)) -> Result<bool, Unresponsive>;

    /// True if [`SharedThings::take_shared`] may have something to show.
    fn has_shared_changes(&self) -> bool;

    /// A piece of the things that this node owns.
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn tell_shared(
        &self,
        from: SharedCursor,
    ) -> Result<SharedPiece<Told<SharedRecord>>, Unresponsive>;

    /// This node owns the things of the peer from now on.
    fn adopt_shared(&self);

    /// The peer owns a piece of the things of this node from now on.
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn give_shared_away(
        &self,
        from: SharedCursor,
    ) -> Result<SharedPiece<SharedRecord>, Unresponsive>;

    /// Makes changes of a peer, in their order. A change that is refused changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`]; changes that were made before stay.
    fn change_shared(&self, changes: Vec<SharedChange>)
    -> Result<Vec<SharedOutcome>, Unresponsive>;

    /// A number that changes when all sets begin anew, because rules were loaded; `None` if it can
    /// not be told at once.
    fn rules_revision(&self) -> Option<u32>;
}

impl SharedThings for Gateway {
    fn follow_shared(&self, follows: bool) {
        let mut coordinator = self.shared.lock();
        coordinator.replication.follows_shared = follows;
        coordinator.blueprint.expectations.follow_changes(follows);
        if let Some(rules) = &coordinator.rules {
            rules.shared().follow_elements(follows);
        }
    }

    fn has_shared_changes(&self) -> bool {
        // This is asked often, so it does not wait for the lock.
        let Some(coordinator) = self.shared.try_lock() else { return false };
        let rules = coordinator.rules.as_ref();
        coordinator.blueprint.expectations.has_changes()
            || rules.is_some_and(|rules| rules.shared().has_element_changes())
    }

    fn take_shared(&self, each: &mut dyn FnMut(Told<SharedRecord>)) -> Result<bool, Unresponsive> {
        let mut has_lost = false;
        let has_announcements = self.shared.lock().blueprint.expectations.has_changes();
        if has_announcements
            && let Some(answer) =
                self.shared.lock().ask_worker(WorkerId(0), Question::TakeAnnouncements)
        {
            let taken = answer?;
            has_lost |= taken.has_lost;
            taken.changes.into_iter().for_each(|told| each(announced(told)));
        }
        let (rules, now) = self.rules_now();
        if let Some(rules) = rules {
            let each = &mut |told| each(element(told));
            let shared = rules.shared();
            has_lost |= shared.take_element_changes(&rules.program, ELEMENTS, now, each);
        }
        Ok(has_lost)
    }

    fn tell_shared(
        &self,
        from: SharedCursor,
    ) -> Result<SharedPiece<Told<SharedRecord>>, Unresponsive> {
        let mut things = Vec::new();
        let rest = match from {
            SharedCursor::Announcements(from) => {
                let question = |reply| Question::TellAnnouncements(from, reply);
                let answer = self.shared.lock().ask_worker(WorkerId(0), question).transpose()?;
                let (told, rest) = answer.unwrap_or_default();
                things.extend(told.into_iter().map(announced));
                behind_announcements(rest)
            }
            SharedCursor::Elements(from) => {
                let (rules, now) = self.rules_now();
                let each = &mut |told| things.push(element(told));
                rules
                    .and_then(|rules| {
                        rules.shared().tell_elements(&rules.program, from, ELEMENTS, now, each)
                    })
                    .map(SharedCursor::Elements)
            }
        };
        Ok(SharedPiece { things, rest })
    }

    fn adopt_shared(&self) {
        let coordinator = self.shared.lock();
        coordinator.blueprint.expectations.adopt(coordinator.execution.now());
        if let Some(rules) = &coordinator.rules {
            rules.shared().adopt_elements();
        }
    }

    fn give_shared_away(
        &self,
        from: SharedCursor,
    ) -> Result<SharedPiece<SharedRecord>, Unresponsive> {
        let mut things = Vec::new();
        let rest = match from {
            SharedCursor::Announcements(from) => {
                let question = |reply| Question::GiveAnnouncementsAway(from, reply);
                let answer = self.shared.lock().ask_worker(WorkerId(0), question).transpose()?;
                let (given, rest) = answer.unwrap_or_default();
                things.extend(given.into_iter().map(SharedRecord::Announcement));
                behind_announcements(rest)
            }
            SharedCursor::Elements(from) => {
                let (rules, now) = self.rules_now();
                let each = &mut |record| things.push(SharedRecord::Element(record));
                rules
                    .and_then(|rules| {
                        rules.shared().give_elements_away(&rules.program, from, ELEMENTS, now, each)
                    })
                    .map(SharedCursor::Elements)
            }
        };
        Ok(SharedPiece { things, rest })
    }

    fn change_shared(
        &self,
        changes: Vec<SharedChange>,
    ) -> Result<Vec<SharedOutcome>, Unresponsive> {
        let mut outcomes = Vec::new();
        let mut announcements = Vec::new();
        for change in changes {
            match change {
                SharedChange::State(SharedRecord::Announcement(record), origin) => {
                    announcements.push(AnnouncementChange::State(record, origin));
                }
                SharedChange::End(SharedRecord::Announcement(name), is_copy) => {
                    announcements.push(AnnouncementChange::End(name, is_copy));
                }
                SharedChange::State(SharedRecord::Element(record), origin) => {
                    let outcome = self.change_element(&record, origin);
                    outcomes.push((SharedRecord::Element(record), outcome));
                }
                SharedChange::End(SharedRecord::Element(name), is_copy) => {
                    let (rules, _) = self.rules_now();
                    let has_ended = rules.is_some_and(|rules| {
                        rules.shared().end_element(&rules.program, &name, is_copy)
                    });
                    outcomes.push((SharedRecord::Element(name), Outcome::Ended(has_ended)));
                }
            }
        }
        self.change_announcements(announcements, &mut outcomes)?;
        Ok(outcomes)
    }

    fn rules_revision(&self) -> Option<u32> {
        let coordinator = self.shared.try_lock()?;
        Some(coordinator.rules.as_ref().map_or(0, |rules| rules.revision))
    }
}

impl Gateway {
    fn change_element(&self, record: &ElementRecord, origin: Origin) -> Outcome<RecordRefusal> {
        let (rules, now) = self.rules_now();
        let taken = match rules {
            Some(rules) => rules.shared().import_element(&rules.program, record, origin, now),
            None => Err(ruleset::ElementRefusal::NoSet),
        };
        taken.map_or_else(|it| Outcome::Refused(RecordRefusal::Element(it)), Outcome::Taken)
    }

    /// Gives changes of announcements to the workers that have the announcing connections.
    fn change_announcements(
        &self,
        changes: Vec<AnnouncementChange>,
        outcomes: &mut Vec<SharedOutcome>,
    ) -> Result<(), Unresponsive> {
        let execution = self.shared.lock().execution.clone();
        let mut rest = changes;
        for _ in 0..TRIES {
            let mut again = Vec::new();
            let mut lots = rest.into_iter();
            loop {
                // Buckets stay where they are while the lock is held.
                let mut coordinator = self.shared.lock();
                let filed: Vec<_> = lots
                    .by_ref()
                    .take(LOT)
                    .map(|change| {
                        let key = change.record().key();
                        (key.map_or(BucketId(0), |key| coordinator.bucket_of(key)), change)
                    })
                    .collect();
                if filed.is_empty() {
                    break;
                }
                for applied in coordinator.offer(filed, Question::ApplyAnnouncements)? {
                    outcomes.extend(applied.outcomes.into_iter().map(of_announcement));
                    again.extend(applied.back.into_iter().map(|(_, change)| change));
                }
            }
            if again.is_empty() {
                return Ok(());
            }
            rest = again;
            execution.pause(PAUSE);
        }
        Err(Unresponsive(WorkerId(0)))
    }
}

fn of_announcement(
    (record, outcome): (AnnouncementRecord, Outcome<ImportRefusal>),
) -> SharedOutcome {
    let outcome = match outcome {
        Outcome::Taken(taken) => Outcome::Taken(taken),
        Outcome::Ended(has_ended) => Outcome::Ended(has_ended),
        Outcome::Refused(refusal) => Outcome::Refused(RecordRefusal::Tracking(refusal)),
    };
    (SharedRecord::Announcement(record), outcome)
}

/// Elements come behind all announcements.
fn behind_announcements(rest: Option<AnnouncementCursor>) -> Option<SharedCursor> {
    let elements = SharedCursor::Elements(ElementCursor::default());
    Some(rest.map_or(elements, SharedCursor::Announcements))
}

fn announced(told: Told<AnnouncementRecord>) -> Told<SharedRecord> {
    told.map(SharedRecord::Announcement)
}

fn element(told: Told<ElementRecord>) -> Told<SharedRecord> {
    told.map(SharedRecord::Element)
}

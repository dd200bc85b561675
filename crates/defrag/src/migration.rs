//! Datagrams on their way to another worker.

use crate::Memory;
use crate::eviction::Entered;
use crate::memory::family_index;
use crate::nursery::SEATS;
use crate::queue::Queue;
use crate::reassembler::{Buffer, Context, Held, Reassembler, append};
use crate::slab::NONE;
use crate::sources::Sources;

/// The incomplete datagrams of a bucket between two workers, by age.
///
/// Their memory stays counted inside the limits, so some reassembler has to adopt the parcel:
/// if it is dropped, that memory is lost to the gateway.
#[derive(Debug)]
#[must_use = "the frames and the memory in it belong to somebody"]
pub struct Parcel<F> {
    migrants: Vec<Migrant<F>>,
}

#[derive(Debug)]
struct Migrant<F> {
    queue: Queue,
    /// Fragments that the source has sent since the latest one of this datagram.
    distance: u32,
    pieces: Vec<Held<F>>,
}

impl<F> Parcel<F> {
    /// Datagrams in the parcel.
    pub fn len(&self) -> usize {
        self.migrants.len()
    }

    /// True when nothing travels.
    pub fn is_empty(&self) -> bool {
        self.migrants.is_empty()
    }

    /// The frames in the parcel.
    pub fn frames(&self) -> impl Iterator<Item = &F> {
        self.migrants.iter().flat_map(|migrant| &migrant.pieces).map(|held| &held.frame)
    }
}

impl<F: Buffer> Reassembler<F> {
    /// Takes out all datagrams of a bucket for its next owner. Visits every datagram that is
    /// held.
    pub fn extract(&mut self, bucket: u16, memory: &mut Memory) -> Parcel<F> {
        let mut migrants = Vec::new();
        for family in 0..self.shelves.len() {
            let mut slot = self.shelves[family].ages.first();
            while slot != NONE {
                let next = self.queues[slot].identity.age.next;
                if self.queues[slot].identity.bucket == bucket {
                    migrants.extend(self.take_out(slot, memory));
                }
                slot = next;
            }
        }
        let mut seats = [0; SEATS];
        for &seat in self.nursery.by_age(&mut seats) {
            if self.nursery[seat].bucket == bucket {
                let (queue, pieces) = self.nursery.leave(seat, self.secret);
                migrants.push(packed(queue, pieces.collect(), &self.sources, memory));
            }
        }
        migrants.sort_by_key(|migrant| migrant.queue.identity.created);
        Parcel { migrants }
    }

    fn take_out(&mut self, slot: u32, memory: &mut Memory) -> Option<Migrant<F>> {
        self.unlink(slot);
        let mut queue = self.queues.remove(slot)?;
        let mut pieces = Vec::with_capacity(queue.state.tally.pieces.into());
        let mut at = std::mem::replace(&mut queue.state.first, NONE);
        queue.state.last = NONE;
        while let Some(held) = self.pieces.remove(at) {
            at = held.next;
            pieces.push(held);
        }
        Some(packed(queue, pieces, &self.sources, memory))
    }

    /// Takes in the datagrams that another worker extracted. Every datagram keeps its age, and
    /// so its place in the order in which datagrams end.
    ///
    /// The bucket's fragments must not have reached this worker before: it must hold no
    /// datagram of the parcel.
    pub fn adopt(&mut self, parcel: Parcel<F>, context: &mut Context<'_, F>) {
        // The table may hold at most [`crate::promotion::MOST_AHEAD`] younger datagrams than the
        // nursery, and the parcel may bring any number.
        self.promote_all(context);
        let mut entered = [Entered::NOTHING; 2];
        for migrant in parcel.migrants.into_iter().rev() {
            self.promote_in(migrant, context, &mut entered);
        }
    }

    fn promote_in(
        &mut self,
        migrant: Migrant<F>,
        context: &mut Context<'_, F>,
        entered: &mut [Entered; 2],
    ) {
        let Migrant { mut queue, distance, pieces } = migrant;
        let key = queue.identity.key;
        let family = family_index(key.family());
        let (phase, bytes) = (queue.identity.phase, u64::from(queue.state.tally.charged));
        queue.state.tally.source_count =
            self.sources.get(key.source, key.realm()).wrapping_sub(distance);
        for held in pieces {
            append(&mut self.pieces, &mut queue.state, Held { next: NONE, ..held });
        }
        context.memory.lease(key.family()).adopt(bytes);
        let slot = self.queues.insert(queue);
        self.shelves[family].enter_by_age(&mut self.queues, slot, &mut entered[family]);
        self.shelves[family].charge(phase, bytes);
        self.file(slot, self.quick_hash.of(&key), context);
    }
}

/// Packs a datagram, whose fragments are no longer linked to it, with these.
fn packed<F>(
    queue: Queue,
    pieces: Vec<Held<F>>,
    sources: &Sources,
    memory: &mut Memory,
) -> Migrant<F> {
    let key = &queue.identity.key;
    memory.lease(key.family()).surrender(queue.state.tally.charged.into());
    let distance =
        sources.get(key.source, key.realm()).wrapping_sub(queue.state.tally.source_count);
    Migrant { queue, distance, pieces }
}

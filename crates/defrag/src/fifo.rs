//! Lists of queues in the order of their arrival, linked through the queues themselves.

use std::marker::PhantomData;

use crate::queue::Queue;
use crate::slab::{NONE, Slab};

/// The neighbours of a queue in one order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub previous: u32,
    pub next: u32,
}

impl Link {
    pub const ALONE: Self = Self { previous: NONE, next: NONE };
}

/// An order in which queues are linked.
pub(crate) trait Order {
    fn link(queue: &mut Queue) -> &mut Link;
}

/// By the arrival of the first fragment, within a family.
#[derive(Debug)]
pub(crate) struct ByAge;

/// By the time when the queue reached its phase.
#[derive(Debug)]
pub(crate) struct ByClass;

impl Order for ByAge {
    fn link(queue: &mut Queue) -> &mut Link {
        &mut queue.identity.age
    }
}

impl Order for ByClass {
    fn link(queue: &mut Queue) -> &mut Link {
        &mut queue.state.peers
    }
}

/// A list of queues, oldest first.
#[derive(Debug)]
pub(crate) struct Fifo<O> {
    first: u32,
    last: u32,
    order: PhantomData<O>,
}

impl<O: Order> Fifo<O> {
    pub const fn new() -> Self {
        Self { first: NONE, last: NONE, order: PhantomData }
    }

    /// The oldest, `NONE` if there is none.
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// The oldest that is not `spared`.
    pub fn first_but(&self, queues: &mut Slab<Queue>, spared: u32) -> u32 {
        match self.first {
            first if first == spared && first != NONE => O::link(&mut queues[first]).next,
            first => first,
        }
    }

    /// The youngest that is not `spared`.
    pub fn last_but(&self, queues: &mut Slab<Queue>, spared: u32) -> u32 {
        match self.last {
            last if last == spared && last != NONE => O::link(&mut queues[last]).previous,
            last => last,
        }
    }

    #[inline]
    pub fn push(&mut self, queues: &mut Slab<Queue>, slot: u32) {
        let previous = std::mem::replace(&mut self.last, slot);
        *O::link(&mut queues[slot]) = Link { previous, next: NONE };
        match previous {
            NONE => self.first = slot,
            previous => O::link(&mut queues[previous]).next = slot,
        }
    }

    /// Inserts a queue at its place by age. Searches downwards from `younger`, a queue that is
    /// younger; from the youngest of all if that is `NONE`.
    pub fn insert_by_age(&mut self, queues: &mut Slab<Queue>, slot: u32, younger: u32) {
        let created = queues[slot].identity.created;
        let mut before = match younger {
            NONE => self.last,
            younger => O::link(&mut queues[younger]).previous,
        };
        while before != NONE && queues[before].identity.created > created {
            before = O::link(&mut queues[before]).previous;
        }
        self.insert_after(queues, before, slot);
    }

    /// Inserts a queue behind `before`; as the oldest if that is `NONE`.
    fn insert_after(&mut self, queues: &mut Slab<Queue>, before: u32, slot: u32) {
        let next = match before {
            NONE => std::mem::replace(&mut self.first, slot),
            before => std::mem::replace(&mut O::link(&mut queues[before]).next, slot),
        };
        *O::link(&mut queues[slot]) = Link { previous: before, next };
        match next {
            NONE => self.last = slot,
            next => O::link(&mut queues[next]).previous = slot,
        }
    }

    #[inline]
    pub fn remove(&mut self, queues: &mut Slab<Queue>, slot: u32) {
        let Link { previous, next } = std::mem::replace(O::link(&mut queues[slot]), Link::ALONE);
        match previous {
            NONE => self.first = next,
            previous => O::link(&mut queues[previous]).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => O::link(&mut queues[next]).previous = previous,
        }
    }
}

//! Values that only some connections have, by slot.

use super::CHUNK;

/// Values of some slots. Memory is allocated in chunks like those of the entries, and freed
/// with the last value. A value for one connection costs an empty place for each neighbour, so
/// large values are boxed.
#[derive(Debug)]
pub(super) struct SideArray<T> {
    chunks: Vec<Option<Box<[Option<T>; CHUNK]>>>,
    len: usize,
}

impl<T> SideArray<T> {
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// How many slots have a value.
    pub const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?.as_ref()?;
        chunk[slot as usize % CHUNK].as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?.as_mut()?;
        chunk[slot as usize % CHUNK].as_mut()
    }

    /// The slots that have a value, with it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.filter_map(|(at, chunk)| Some((at, chunk.as_ref()?))).flat_map(|(at, chunk)| {
            let first = at * CHUNK;
            let values = chunk.iter().enumerate();
            values.filter_map(move |(place, value)| Some(((first + place) as u32, value.as_ref()?)))
        })
    }

    pub fn insert(&mut self, slot: u32, value: T) {
        let at = slot as usize / CHUNK;
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk = self.chunks[at].get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        let before = chunk[slot as usize % CHUNK].replace(value);
        self.len += usize::from(before.is_none());
    }

    pub fn remove(&mut self, slot: u32) {
        let Some(Some(chunk)) = self.chunks.get_mut(slot as usize / CHUNK) else { return };
        let before = chunk[slot as usize % CHUNK].take();
        self.len -= usize::from(before.is_some());
        if self.len == 0 {
            self.chunks = Vec::new();
        }
    }

    /// The memory without that which values own themselves.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<usize>()
            + self.chunks.iter().flatten().count() * size_of::<[Option<T>; CHUNK]>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map_whose_memory_goes_with_its_last_value(
            steps in prop::collection::vec((0u32..400, prop::option::of(any::<u8>())), 0..200),
        ) {
            let (mut values, mut model) = (SideArray::new(), BTreeMap::new());
            for (slot, value) in steps {
                match value {
                    Some(value) => {
                        values.insert(slot, value);
                        model.insert(slot, value);
                    }
                    None => {
                        values.remove(slot);
                        model.remove(&slot);
                    }
                }
                prop_assert_eq!(values.len(), model.len());
                prop_assert_eq!(values.get(slot), model.get(&slot));
                prop_assert_eq!(values.memory_bytes() == 0, model.is_empty());
            }
            for slot in 0..400 {
                prop_assert_eq!(values.get_mut(slot).copied(), model.get(&slot).copied());
            }
        }
    }
}

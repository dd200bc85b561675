//! Interfaces, as the guard tells their packets from others'.
//!
//! The guard knows an interface by its number, so that no packet gets past it when the interface is
//! renamed. An interface that goes and comes back has another number, and its packets may come
//! before the guard has seen it. So the guard also knows it by its name, present or past.

use engine::PortLink;
use ruleset::{Interval, name_bits};

/// The largest number of former names that are remembered of an interface.
const MAX_FORMER: usize = 16;

/// An interface of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number; `None` while it has gone.
    index: Option<u32>,
    /// Its name, or its last name before it went.
    name: String,
    /// The name of the interface that takes its place when it has gone.
    awaited: String,
    /// Its former names, the latest last: connections that were opened then may live.
    former: Vec<String>,
}

impl Interface {
    /// The interface with this number, `None` if it has gone, and this name. If it goes, an
    /// interface with the name `awaited` takes its place, which may be an alternative name.
    pub fn new(index: Option<u32>, name: String, awaited: String) -> Self {
        Self { index, name, awaited, former: Vec::new() }
    }

    /// Its number; `None` while it has gone.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    /// Updates the interface to its present state.
    pub(crate) fn follow(&mut self, port: &PortLink) {
        self.index = port.link.map(|link| link.0);
        if self.name != port.name {
            self.former.retain(|name| *name != port.name);
            self.former.push(std::mem::replace(&mut self.name, port.name.clone()));
            let too_many = self.former.len().saturating_sub(MAX_FORMER);
            self.former.drain(..too_many);
        }
    }

    /// The names by which its packets come in, or will when it is back.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let awaited = self.index.is_none() && self.awaited != self.name;
        [Some(self.name.as_str()), awaited.then_some(self.awaited.as_str())].into_iter().flatten()
    }

    /// True if it has, or had, one of the names that a rule asks for.
    pub(crate) fn is_named(&self, names: Interval, when: NameTime) -> bool {
        let holds = |name: &String| name_bits(name).is_some_and(|bits| names.holds(bits));
        let (is, was) = (holds(&self.name), self.former.iter().any(holds));
        match when {
            NameTime::Now => is,
            NameTime::Before => was && !is,
            NameTime::Ever => is || was,
        }
    }
}

/// The time at which an interface has a name that a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameTime {
    /// It has the name now.
    Now,
    /// It had the name before, and has it no more.
    Before,
    /// It has or had the name.
    Ever,
}

#[cfg(test)]
impl Interface {
    /// An interface that always had this name.
    pub fn test(index: Option<u32>, name: &str) -> Self {
        let name = name.to_owned();
        Self { index, awaited: name.clone(), name, former: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use engine::LinkId;

    use super::*;

    fn names(it: &Interface) -> Vec<&str> {
        it.names().collect()
    }

    #[test]
    fn an_interface_is_known_by_its_number_and_by_the_name_that_it_will_have() {
        let mut it = Interface { awaited: "port1".to_owned(), ..Interface::test(Some(3), "lan0") };
        let is =
            |link: Option<u32>, name: &str| PortLink { link: link.map(LinkId), name: name.into() };
        assert_eq!((it.index, names(&it)), (Some(3), vec!["lan0"]));
        it.follow(&is(Some(3), "lan9"));
        assert_eq!((it.index, names(&it)), (Some(3), vec!["lan9"]));
        it.follow(&is(None, "lan9"));
        assert_eq!((it.index, names(&it)), (None, vec!["lan9", "port1"]));
        it.follow(&is(Some(7), "port1"));
        assert_eq!((it.index, names(&it)), (Some(7), vec!["port1"]));
    }

    #[test]
    fn former_names_are_remembered_once_each_and_not_for_ever() {
        let mut it = Interface::test(Some(3), "lan0");
        let called = |name: &str| Interval::one(name_bits(name).unwrap());
        let when = |it: &Interface, name: &str| {
            [NameTime::Now, NameTime::Before, NameTime::Ever]
                .map(|when| it.is_named(called(name), when))
        };
        assert_eq!(when(&it, "lan0"), [true, false, true]);
        for name in ["lan1", "lan0", "lan1"] {
            it.follow(&PortLink { link: Some(LinkId(3)), name: name.into() });
        }
        assert_eq!(it.former, ["lan0"]);
        assert_eq!(when(&it, "lan0"), [false, true, true]);
        assert_eq!(when(&it, "lan1"), [true, false, true]);
        assert_eq!(when(&it, "wan0"), [false; 3]);
        for number in 2..100 {
            it.follow(&PortLink { link: Some(LinkId(3)), name: format!("lan{number}") });
        }
        assert_eq!(it.former.len(), MAX_FORMER);
        assert_eq!(when(&it, "lan0"), [false; 3]);
        assert_eq!(when(&it, "lan98"), [false, true, true]);
    }
}

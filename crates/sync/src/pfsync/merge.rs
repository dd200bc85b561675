//! Finds the newer of two accounts of a connection's ends.

use std::cmp::Ordering;

use super::progress::FlowState;
use super::state::{Peers, SctpPeer, TcpPeer};

/// An account that is compared with ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Older,
    Same,
    Newer,
}

impl Age {
    fn of(theirs_to_ours: Ordering) -> Self {
        match theirs_to_ours {
            Ordering::Less => Self::Older,
            Ordering::Equal => Self::Same,
            Ordering::Greater => Self::Newer,
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    /// For each end the newer account.
    pub peers: Peers,
    /// An end of theirs is older than ours, so they should get ours.
    pub is_stale: bool,
    /// An end of theirs is newer than ours.
    pub is_news: bool,
}

/// An end that can be compared.
trait Compared: Copy {
    /// The age of `theirs`, compared with this one.
    fn age_of(self, theirs: Self) -> Age;
}

impl Compared for TcpPeer {
    fn age_of(self, theirs: Self) -> Age {
        // Sequence numbers are on a ring: half of it lies ahead (RFC 9293 section 3.4).
        let (theirs_at, ours_at) = (theirs.numbers.sequence, self.numbers.sequence);
        let ahead = match theirs_at.wrapping_sub(ours_at) as i32 {
            // Half the ring away, each is ahead of the other, and both would tell theirs forever.
            i32::MIN => theirs_at.cmp(&ours_at),
            ahead => ahead.cmp(&0),
        };
        let further = theirs.state.rank().cmp(&self.state.rank());
        // Limits and windows grow, too.
        let numbers = theirs.numbers.cmp(&self.numbers);
        Age::of(further.then(ahead).then(numbers))
    }
}

impl Compared for SctpPeer {
    fn age_of(self, theirs: Self) -> Age {
        Age::of((theirs.state, theirs.numbers).cmp(&(self.state, self.numbers)))
    }
}

impl Compared for FlowState {
    fn age_of(self, theirs: Self) -> Age {
        Age::of(theirs.cmp(&self))
    }
}

fn merge_pair<P: Compared>(ours: [P; 2], theirs: [P; 2]) -> ([P; 2], bool, bool) {
    let ages = [ours[0].age_of(theirs[0]), ours[1].age_of(theirs[1])];
    let newer = [0, 1].map(|at: usize| match ages[at] {
        Age::Older => ours[at],
        Age::Same | Age::Newer => theirs[at],
    });
    (newer, ages.contains(&Age::Older), ages.contains(&Age::Newer))
}

/// Compares both ends by themselves, as pf does; `None` if they are of different protocols.
pub(super) fn merge(ours: &Peers, theirs: &Peers) -> Option<Merged> {
    let (peers, is_stale, is_news) = match (ours, theirs) {
        (Peers::Tcp(ours), Peers::Tcp(theirs)) => {
            let (peers, is_stale, is_news) = merge_pair(*ours, *theirs);
            (Peers::Tcp(peers), is_stale, is_news)
        }
        (Peers::Sctp(ours), Peers::Sctp(theirs)) => {
            let (peers, is_stale, is_news) = merge_pair(*ours, *theirs);
            (Peers::Sctp(peers), is_stale, is_news)
        }
        (Peers::Flow(ours), Peers::Flow(theirs)) => {
            let (peers, is_stale, is_news) = merge_pair(*ours, *theirs);
            (Peers::Flow(peers), is_stale, is_news)
        }
        _ => return None,
    };
    Some(Merged { peers, is_stale, is_news })
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;

//! Finds another source for a new connection whose replies would belong to another connection.
//!
//! A bucket first gives away the ports whose replies come to it. For any other port, only the
//! bucket that its replies are steered to knows whether it is free. So that bucket is asked to file
//! an alias, for one port after the other, until one is filed or enough were tried. This takes a
//! while. So a worker that has found all ports towards a destination used does not try them again
//! for a moment.

use std::time::Duration;

use conntrack::nat::{BucketPorts, Request, Supply, TranslatedEnd};
use conntrack::{Again, NextSource, Reached};
use flow::{DropReason, FlowKey, KeyedPacket, Timestamp};
use wire::{Readdress, TransportAddress};

use crate::path::PacketPath;
use crate::path::alias_table::Filing;
use crate::path::nat::translation::bucket_ports;
use crate::path::packet::Packet;
use crate::path::scratch::Scratch;

/// Most ports of a rule that are tried for a connection; the kernel tries half as many. If one
/// worker owns all buckets it tries them in one go while other packets wait. Each try takes one
/// look-up here and one in the other bucket, so all tries take no more look-ups than the choice
/// within a bucket may.
const TRIES: usize = 512;
/// Most sources that are tried if no rule asks for one, because a rule has changed the
/// destination.
const TRIES_WITHOUT_RULE: usize = 16;
/// The time for which used-up ports are not tried again.
const USED_UP_FOR: Duration = Duration::from_millis(100);
/// Most ranges of ports towards destinations that are remembered as used up.
const REMEMBERED: usize = 16;

/// The state of the search for the source of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The request of a rule, if there is one.
    request: Option<Request>,
    seed: u64,
    /// How far the choice of sources has come, and how many of them were tried.
    reached: Reached,
    asked: usize,
    /// The last source that was tried.
    source: Option<TransportAddress>,
    /// The subscribers were told that the connection has ended, because it was translated anew.
    is_end_reported: bool,
}

impl Search {
    /// Begins a search.
    pub const fn new(request: Option<Request>, seed: u64) -> Self {
        let reached = Reached { tried: 0, may_evict: false };
        Self { request, seed, reached, asked: 0, source: None, is_end_reported: false }
    }

    /// A search that has ended.
    #[cfg(test)]
    pub const OVER: Self = Self { asked: TRIES, ..Self::new(None, 0) };

    /// The reason to refuse a connection for which no source was found.
    pub fn refusal(&self) -> DropReason {
        if self.request.is_some() { DropReason::PortPoolFull } else { DropReason::AliasTaken }
    }

    /// True if the search is over. If a rule leaves many ports and none is free, the search begins
    /// again, and other connections have to give way.
    fn ends_or_evicts(&mut self) -> bool {
        let most = if self.request.is_some() { TRIES } else { TRIES_WITHOUT_RULE };
        if self.asked >= most && self.request.is_some() && !self.reached.may_evict {
            (self.asked, self.reached) = (0, Reached { tried: 0, may_evict: true });
        }
        self.asked >= most
    }
}

/// Ranges of ports that were found used up, by hash, with the time until which they are not tried.
#[derive(Debug)]
pub struct UsedUp([(u64, Timestamp); REMEMBERED]);

impl UsedUp {
    /// Remembers no range.
    pub const fn new() -> Self {
        Self([(0, Timestamp::ZERO); REMEMBERED])
    }

    fn note(&mut self, pool: u64, now: Timestamp) {
        self.0[pool as usize % REMEMBERED] = (pool, now.after(USED_UP_FOR));
    }

    fn has(&self, pool: u64, now: Timestamp) -> bool {
        let (noted, until) = self.0[pool as usize % REMEMBERED];
        noted == pool && now < until
    }
}

impl PacketPath {
    /// Remembers the request of a rule, in case another bucket has the chosen source in use.
    ///
    /// # Errors
    /// The reason to drop the packet: all ports are known to be used.
    pub(in crate::path) fn note_request(
        &mut self,
        request: &Request,
        own: BucketPorts,
        packet: &Packet,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let (Some((name, _)), Some(id)) = (packet.looked_up(), scratch.tracked.connection) else {
            return Ok(());
        };
        let Some(bucket) = self.buckets.get(packet.bucket) else { return Ok(()) };
        if request.end != TranslatedEnd::Source || !name.key.is_identified() {
            return Ok(());
        }
        let reply = bucket.connections.reply(id);
        let source = reply.key.end(reply.sender.opposite());
        let is_own = own.contains(source.port);
        scratch.replies_come_here =
            is_own && self.hasher.inside().contains(&source.address, reply.key.family);
        if !is_own && self.translator.used_up().has(self.pool_of(request, &reply), scratch.now) {
            return Err(DropReason::PortPoolFull);
        }
        scratch.request = Some(*request);
        Ok(())
    }

    /// Begins the search for another source of a connection, which a rule has requested or not.
    pub(in crate::path) fn search(&mut self, request: Option<Request>) -> Search {
        Search::new(request, self.translator.seed())
    }

    /// Gives the connection that a packet opens another source, until replies find it. `None` if
    /// the answer comes later. The caller has to call [`Self::end_search`] with the answer.
    #[cold]
    pub(in crate::path) fn search_port(
        &mut self,
        packet: &Packet,
        search: &mut Search,
        now: Timestamp,
    ) -> Option<Filing> {
        let Some((name, hash)) = packet.looked_up() else { return Some(Filing::Taken) };
        if !name.key.is_identified() {
            return Some(Filing::Taken);
        }
        let request = search.request.unwrap_or(Request::of(TranslatedEnd::Source));
        let mut last = None;
        while !search.ends_or_evicts() {
            let Self { buckets, hasher, tracking, translator, counters, .. } = self;
            let Some(bucket) = buckets.get_mut(packet.bucket) else { break };
            let hash_of = |key: &FlowKey| hasher.table_hash(key);
            let Some(leaves) = bucket.connections.reply_of(&name, hash) else { break };
            let own = bucket_ports(hasher, packet.bucket, &leaves).in_part(translator.part);
            let supply = Supply { own, seed: search.seed, hash: &hash_of };
            let mut context = tracking.context_of(Some(packet.origin.zone), now, counters);
            search.is_end_reported = true;
            let again = bucket.connections.translate_again(
                (&name, hash),
                &request,
                search.reached,
                supply,
                &mut context,
            );
            let again = match again {
                NextSource::Found(again) => again,
                NextSource::UsedUp => break,
                NextSource::Refused => return Some(Filing::Taken),
            };
            if again.reached.may_evict && !search.reached.may_evict {
                search.asked = 0;
            }
            (search.reached, search.asked) = (again.reached, search.asked + 1);
            (search.source, last) = (Some(again.source), Some(again.reply));
            // A connection that has given way may have an alias.
            self.remove_aliases();
            let Again { reply, claimant, .. } = again;
            match self.direct(packet.bucket, (name, hash), reply, claimant, now) {
                Some(Filing::Taken) => {}
                other => return other,
            }
        }
        if let Some(reply) = last.filter(|_| search.request.is_some()) {
            let pool = self.pool_of(&request, &reply);
            self.translator.used_up_mut().note(pool, now);
        }
        Some(Filing::Taken)
    }

    /// Gives the packet the source that was found, and tells the subscribers about the outcome.
    pub(in crate::path) fn end_search(
        &mut self,
        packet: &mut Packet,
        search: &Search,
        filing: Filing,
        now: Timestamp,
    ) {
        let Some((name, hash)) = packet.looked_up().filter(|_| search.is_end_reported) else {
            return;
        };
        if filing == Filing::Filed && search.source.is_some() {
            self.readdress_by(packet, &Readdress { source: search.source, destination: None });
        }
        let Self { buckets, tracking, counters, .. } = self;
        if let Some(bucket) = buckets.get_mut(packet.bucket) {
            let mut context = tracking.context_of(Some(packet.origin.zone), now, counters);
            bucket.connections.tell_again(&name, hash, &mut context);
        }
    }

    /// A hash of the ports of a rule and one destination.
    fn pool_of(&self, request: &Request, reply: &KeyedPacket) -> u64 {
        let leaves_as = KeyedPacket { sender: reply.sender.opposite(), ..*reply };
        request.pool_hash(&leaves_as, &|key: &FlowKey| self.hasher.table_hash(key))
    }
}

#[cfg(test)]
#[path = "port_search_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "port_share_tests.rs"]
mod share_tests;

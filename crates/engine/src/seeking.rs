//! Other sources for new connections whose replies would be those of others.
//!
//! A rule may name a range of ports. A bucket gives away those of its own block first. Whether one
//! of the others is free only the bucket knows that replies to it are steered to, so that is asked
//! to file an alias, for one port after the other, until it has done so or each port was tried.
//! That takes a while, so nobody asks for a moment once all ports towards a destination are found
//! to be used.

use std::time::Duration;

use conntrack::nat::{Block, End, Request, Supply};
use conntrack::{Again, Reached};
use flow::{DropReason, FlowKey, KeyedPacket, Timestamp};
use wire::{Place, Readdress};

use crate::aliases::Filing;
use crate::packet::Packet;
use crate::worker::Worker;

/// Ports of a rule that are tried for a connection; the kernel tries half as many. Where all
/// buckets are those of one worker, that is done in one go while other packets wait: a try takes a
/// look-up here and one there, so all of them take no more of it than the choice in a block may.
const TRIES: usize = 512;
/// Where no rule asks for a source, because one has changed the destination.
const TRIES_WITHOUT_RULE: usize = 16;
/// How long ports that are used up are taken to be so.
const USED_UP_FOR: Duration = Duration::from_millis(100);
/// Ranges of ports towards destinations that are known to be used up.
const REMEMBERED: usize = 16;

/// Where the search for the source of a connection goes on.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// What a rule asks for, if one does.
    request: Option<Request>,
    seed: u64,
    /// Sources that were tried, and those that were asked for elsewhere.
    reached: Reached,
    asked: usize,
    /// The last of them.
    source: Option<Place>,
    /// Who listens was told that the connection has ended.
    is_told: bool,
}

impl Search {
    /// Begins one.
    pub const fn new(request: Option<Request>, seed: u64) -> Self {
        let reached = Reached { tried: 0, insists: false };
        Self { request, seed, reached, asked: 0, source: None, is_told: false }
    }

    /// One that has come to its end.
    #[cfg(test)]
    pub const OVER: Self = Self { asked: TRIES, ..Self::new(None, 0) };

    /// Why a connection is refused that has found no source.
    pub fn refusal(&self) -> DropReason {
        let has_range = self.request.is_some_and(|request| request.ports.is_some());
        if has_range { DropReason::PortPoolFull } else { DropReason::AliasTaken }
    }

    /// True if it is over. Where a rule leaves many ports and none is free, it begins again, so
    /// that others give way.
    fn is_over(&mut self) -> bool {
        let most = if self.request.is_some() { TRIES } else { TRIES_WITHOUT_RULE };
        if self.asked >= most && self.request.is_some() && !self.reached.insists {
            (self.asked, self.reached) = (0, Reached { tried: 0, insists: true });
        }
        self.asked >= most
    }
}

/// Ranges of ports that were found used up, and until when that is believed.
#[derive(Debug)]
pub struct UsedUp([(u64, Timestamp); REMEMBERED]);

impl UsedUp {
    /// None is.
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

impl Worker {
    /// Remembers what a rule asks for, in case that its choice is taken elsewhere.
    ///
    /// # Errors
    /// Why the packet is to be dropped: all ports are known to be used.
    pub(crate) fn note_request(
        &mut self,
        request: &Request,
        packet: &Packet,
        id: Option<conntrack::ConnectionId>,
        now: Timestamp,
    ) -> Result<(), DropReason> {
        let (Some((name, _)), Some(id)) = (packet.looked_up(), id) else { return Ok(()) };
        let Some(bucket) = self.ownership.get(packet.bucket) else { return Ok(()) };
        if request.end != End::Source || !name.key.is_identified() {
            return Ok(());
        }
        let reply = bucket.connections.reply(id);
        let is_own =
            self.block(packet.bucket).contains(reply.key.end(reply.sender.opposite()).port);
        match self.pool_of(request, &reply) {
            Some(pool) if !is_own && self.translator.used_up.has(pool, now) => {
                Err(DropReason::PortPoolFull)
            }
            _ => {
                self.translator.wanted = Some((name, *request));
                Ok(())
            }
        }
    }

    /// The search for another source of the connection that a packet opens, with what a rule has
    /// asked for and of which connection.
    pub(crate) fn search(
        &mut self,
        name: &KeyedPacket,
        wanted: Option<(KeyedPacket, Request)>,
    ) -> Search {
        let wanted = wanted.filter(|(of, _)| of == name);
        Search::new(wanted.map(|(_, request)| request), self.translator.seed())
    }

    /// Gives the connection that a packet opens another source, until replies to it can be told
    /// their way. `None` if the answer will come later. Once it is there, [`Self::end_search`]
    /// has to follow.
    #[cold]
    pub(crate) fn seek(
        &mut self,
        packet: &Packet,
        search: &mut Search,
        now: Timestamp,
    ) -> Option<Filing> {
        let Some((name, hash)) = packet.looked_up() else { return Some(Filing::Taken) };
        if !name.key.is_identified() {
            return Some(Filing::Taken);
        }
        let request = search.request.unwrap_or(Request::of(End::Source));
        let block = self.block(packet.bucket);
        let mut last = None;
        while !search.is_over() {
            let Self { ownership, hasher, tracking, counters, .. } = self;
            let Some(bucket) = ownership.get_mut(packet.bucket) else { break };
            let hash_of = |key: &FlowKey| hasher.table_hash(key);
            let supply = Supply { block, seed: search.seed, hash: &hash_of };
            let mut context = tracking.context_of(Some(packet.origin.zone), now, counters);
            search.is_told = true;
            let again = bucket.connections.translate_again(
                (&name, hash),
                &request,
                search.reached,
                supply,
                &mut context,
            );
            let Ok(again) = again else { break };
            if again.reached.insists && !search.reached.insists {
                search.asked = 0;
            }
            (search.reached, search.asked) = (again.reached, search.asked + 1);
            (search.source, last) = (Some(again.source), Some(again.reply));
            // Of who has given way.
            self.remove_aliases(now);
            let Again { reply, claimant, .. } = again;
            match self.direct(packet.bucket, (name, hash), reply, claimant, now) {
                Some(Filing::Taken) => {}
                other => return other,
            }
        }
        if let Some(pool) = last.and_then(|reply| self.pool_of(&request, &reply)) {
            self.translator.used_up.note(pool, now);
        }
        Some(Filing::Taken)
    }

    /// Gives the packet the source that was found, and tells who listens what has become of its
    /// connection.
    pub(crate) fn end_search(
        &mut self,
        packet: &mut Packet,
        search: &Search,
        filing: Filing,
        now: Timestamp,
    ) {
        let Some((name, hash)) = packet.looked_up().filter(|_| search.is_told) else { return };
        if filing == Filing::Filed && search.source.is_some() {
            self.readdress_by(packet, &Readdress { source: search.source, destination: None });
        }
        let Self { ownership, tracking, counters, .. } = self;
        if let Some(bucket) = ownership.get(packet.bucket) {
            let mut context = tracking.context_of(Some(packet.origin.zone), now, counters);
            bucket.connections.tell_again(&name, hash, &mut context);
        }
    }

    /// A number for the ports of a rule towards one destination.
    fn pool_of(&self, request: &Request, reply: &KeyedPacket) -> Option<u64> {
        request.ports?;
        let leaves_as = KeyedPacket { sender: reply.sender.opposite(), ..*reply };
        let hash = |key: &FlowKey| self.hasher.table_hash(key);
        Some(request.pool_hash(&leaves_as, Supply { block: Block::ALL, seed: 0, hash: &hash }))
    }
}

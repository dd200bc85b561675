//! Translation: the rules ask for it, the connection gets it, and it changes the packets.
//!
//! The destination of a packet changes before the packet is routed, and its source changes
//! afterwards. So routes and rules see the true ends of the packet. The ends that it came with
//! stay beside the frame, because an ICMP error has to quote the packet as its sender knows it.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

use conntrack::nat::{
    AddressChanges, Addresses, BucketPorts, Ports, Request, Supply, TranslatedEnd,
};
use conntrack::{Claimant, Context, Table, Tracked};
use fib::LinkId;
use flow::{Counters, DropReason, HashKey, KeyedPacket, PortPart, Timestamp};
use netio::Frame;
use ruleset::{NatKind, NatRequest};
use siphasher::sip::SipHasher13;
use steer::{BucketId, SteeringHasher};
use wire::Transport;
use wire::{Dissected, Family, Network, Readdress, TransportAddress};

use crate::egress::original_ends::{keep_original_ends, original_ends};
use crate::egress::route_decision::RouteDecision;
use crate::egress::routing::Routing;
use crate::path::PacketPath;
use crate::path::alias_table::Filing;
use crate::path::bucket::Bucket;
use crate::path::nat::identifications::Identifications;
use crate::path::nat::port_search::UsedUp;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::{Progress, Scratch};
use crate::path::step::{End, OrDrop, Step, Wait, dropped};
use crate::path::tracking::Tracking;

/// The state that a worker needs to translate.
#[derive(Debug)]
pub struct Translator {
    /// Identifications for translated IPv4 packets.
    identifications: Identifications,
    /// The worker's number and the secret of all workers, for seeds.
    hasher: SipHasher13,
    /// The number of seeds so far.
    seeds: u64,
    /// Ranges of ports that need not be tried for a moment.
    used_up: UsedUp,
    /// The part of all ports that this gateway gives away.
    pub(super) part: PortPart,
}

impl Translator {
    /// Creates the state of a worker. All workers have the same secret.
    pub fn new(worker: u16, secret: HashKey) -> Self {
        let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
        hasher.write_u16(worker);
        Self {
            identifications: Identifications::new(worker, secret),
            hasher,
            seeds: 0,
            used_up: UsedUp::new(),
            part: PortPart::All,
        }
    }

    /// Sets the part of all ports and identifications that this gateway gives away.
    pub fn set_part(&mut self, part: PortPart) {
        if self.part == part {
            return;
        }
        self.part = part;
        self.identifications.set_part(part);
        // Another gateway with the same secret draws other numbers.
        self.hasher.write_u8(part as u8);
    }

    /// Sets the number of workers that share identifications.
    pub fn set_workers(&mut self, workers: u32) {
        self.identifications.set_workers(workers);
    }

    /// The identification of a packet that is translated, if it needs another one, see
    /// [`Identifications::of_translated`].
    #[inline]
    fn identify(
        &mut self,
        network: &Network,
        is_in_pieces: bool,
        change: &Readdress,
    ) -> Option<u32> {
        self.identifications.of_translated(network, is_in_pieces, change)
    }

    /// Ranges of ports that need not be tried for a moment.
    pub const fn used_up(&self) -> &UsedUp {
        &self.used_up
    }

    /// The same, to be changed.
    pub const fn used_up_mut(&mut self) -> &mut UsedUp {
        &mut self.used_up
    }

    /// Identifications that were given to packets, for tests.
    #[cfg(test)]
    pub fn identified(&self) -> u32 {
        self.identifications.total()
    }

    /// A seed for a random choice: a keyed hash of a count. Ports that were chosen with earlier
    /// seeds tell nothing of the next one (RFC 6056 section 3.3).
    pub fn seed(&mut self) -> u64 {
        self.seeds = self.seeds.wrapping_add(1);
        let mut hasher = self.hasher;
        hasher.write_u64(self.seeds);
        hasher.finish()
    }
}

/// Maps each number to another one, so that the results of numbers in a row look random
/// (SplitMix64, Steele, Lea and Flood, 2014). It has no key: a whole result gives its number away.
pub(crate) const fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl PacketPath {
    /// Chooses a translation for a connection whose first packet is being judged.
    #[cold]
    pub(in crate::path) fn translate(
        &mut self,
        wanted: &NatRequest,
        packet: &Packet,
        scratch: &mut Scratch,
    ) -> Step {
        let request = self.request(wanted, packet, scratch.exit.route).or_drop()?;
        let ((), own) = self.choose(packet, scratch, |table, id, supply, context| {
            table.translate(id, &request, supply, context)
        })?;
        self.note_request(&request, own, packet, scratch).or_drop()
    }

    /// Translates a new connection that a translated one has announced. True if it is such a
    /// connection; no rule is asked for its translation then.
    #[inline]
    pub(in crate::path) fn translate_announced(
        &mut self,
        packet: &Packet,
        scratch: &Scratch,
    ) -> Step<bool> {
        if !scratch.tracked.is_expected() {
            return ControlFlow::Continue(false);
        }
        let (is_announced, _) = self.choose(packet, scratch, |table, id, supply, context| {
            table.translate_announced(id, supply, context)
        })?;
        ControlFlow::Continue(is_announced)
    }

    /// Lets the rules after a redirect see a packet as the kernel leads it to the host. If the
    /// redirect has several ports, they see the first.
    #[cold]
    pub(in crate::path) fn redirect_to_host(&mut self, wanted: &NatRequest, packet: &mut Packet) {
        let own = self
            .forwarder
            .router()
            .and_then(|router| router.redirect_address(packet.frame.port, packet.network.family));
        let Some(place) = place(&packet.network, false) else { return };
        let address = own.map_or(place.address, wire::mapped);
        let port = wanted.ports.map_or(place.port, |(first, _)| first);
        let destination = Some(TransportAddress { address, port });
        self.readdress_by(packet, &Readdress { source: None, destination });
    }

    /// Makes sure that the replies of a new connection belong to no other one. It is for
    /// connections for which no rule has asked for a source. True if it may have translated the
    /// connection.
    #[inline]
    pub(in crate::path) fn finish_translation(
        &mut self,
        packet: &Packet,
        scratch: &Scratch,
    ) -> Step<bool> {
        let bucket = self.buckets.get(packet.bucket);
        if !bucket.is_some_and(|bucket| bucket.connections.has_translated()) {
            return ControlFlow::Continue(false);
        }
        self.choose(packet, scratch, |table, id, supply, context| {
            table.make_reply_unique(id, supply, context)
        })?;
        ControlFlow::Continue(true)
    }

    /// Lets `choose` find a translation in the table of a packet's bucket. Returns its result, and
    /// the ports whose replies come to the bucket.
    pub(in crate::path) fn choose<T: Default>(
        &mut self,
        packet: &Packet,
        scratch: &Scratch,
        choose: impl FnOnce(
            &mut conntrack::Table,
            conntrack::ConnectionId,
            Supply<'_>,
            &mut conntrack::Context<'_>,
        ) -> Result<T, DropReason>,
    ) -> Step<(T, BucketPorts)> {
        let seed = self.translator.seed();
        let Self { buckets, hasher, tracking, translator, counters, .. } = self;
        let (Some(bucket), Some(id)) = (buckets.get_mut(packet.bucket), scratch.tracked.connection)
        else {
            return ControlFlow::Continue((T::default(), BucketPorts::NONE));
        };
        let own = bucket_ports(hasher, packet.bucket, &bucket.connections.reply(id));
        let own = own.in_part(translator.part);
        let hash = |key: &flow::FlowKey| hasher.table_hash(key);
        let mut context = tracking.context_of(Some(packet.origin.zone), scratch.now, counters);
        let supply = Supply { own, seed, hash: &hash };
        let chosen = choose(&mut bucket.connections, id, supply, &mut context).or_drop()?;
        ControlFlow::Continue((chosen, own))
    }

    /// The request of a rule, in the form that the table takes.
    fn request(
        &self,
        wanted: &NatRequest,
        packet: &Packet,
        route: Option<RouteDecision>,
    ) -> Result<Request, DropReason> {
        let end = match wanted.kind {
            NatKind::Source | NatKind::Masquerade => TranslatedEnd::Source,
            NatKind::Destination | NatKind::Redirect => TranslatedEnd::Destination,
        };
        let mut request = Request {
            addresses: addresses(wanted, packet.network.family),
            ports: wanted.ports.and_then(|(first, last)| Ports::new(first, last)),
            random: wanted.flags.random || wanted.flags.fully_random,
            persistent: wanted.flags.persistent,
            netmap: wanted.netmap,
            ..Request::of(end)
        };
        if wanted.kind == NatKind::Masquerade {
            let router = self.forwarder.router().zip(route);
            let (link, address) = router
                .and_then(|(router, route)| router.masquerade(&route, &packet.network))
                .ok_or(DropReason::NatNoAddress)?;
            request.addresses = Some(Addresses::one(address));
            request.interface = Some(link.0);
        }
        Ok(request)
    }

    /// The changes that the translation of a packet's connection makes to it.
    #[inline]
    pub(in crate::path) fn address_changes(
        &self,
        packet: &Packet,
        tracked: &Tracked,
    ) -> AddressChanges {
        let bucket = self.buckets.get(packet.bucket);
        bucket
            .map_or_else(AddressChanges::default, |bucket| bucket.connections.translation(tracked))
    }

    /// Changes one or both ends of a packet, and the packet that an ICMP error quotes.
    #[inline]
    pub(in crate::path) fn readdress(
        &mut self,
        packet: &mut Packet,
        address_changes: &AddressChanges,
        end: TranslatedEnd,
    ) {
        let change = match end {
            TranslatedEnd::Destination => address_changes.before_routing(),
            TranslatedEnd::Source => address_changes.after_routing(),
        };
        if change != Readdress::default() {
            self.readdress_by(packet, &change);
        }
    }

    #[inline(never)]
    pub(in crate::path) fn readdress_by(&mut self, packet: &mut Packet, change: &Readdress) {
        let Packet { frame, network, pieces, .. } = packet;
        let before = Readdress {
            source: change.source.and_then(|_| place(network, true)),
            destination: change.destination.and_then(|_| place(network, false)),
        };
        // The quoted packet goes the other way, so its ends are swapped.
        let quoted = Readdress { source: change.destination, destination: change.source };
        let is_error = matches!(network.transport, Transport::IcmpError(_));
        let id = self.translator.identify(network, pieces.is_some(), change);
        let transport_len = usize_of(network.end).saturating_sub(network.transport_offset.into());
        let pool = &mut self.pool;
        let mut apply = |frame: &mut Frame, network: &mut Network| {
            let covers = frame.offload.checksum.covers();
            change.apply(frame.bytes_mut(), network, transport_len, covers);
            if is_error {
                quoted.apply_to_quoted(frame.bytes_mut(), network);
            }
            if let (Some(id), Some(packet)) =
                (id, frame.bytes_mut().get_mut(usize::from(network.offset)..))
            {
                wire::set_identification(packet, id);
            }
            let Readdress { source, destination } = original_ends(frame);
            let (source, destination) =
                (source.or(before.source), destination.or(before.destination));
            keep_original_ends(pool, frame, &Readdress { source, destination });
        };
        if let Some(pieces) = pieces {
            for piece in pieces.frames_mut() {
                if let Ok(Dissected { network: Some(mut network), .. }) =
                    wire::dissect(piece.bytes())
                {
                    apply(piece, &mut network);
                }
            }
        }
        apply(frame, network);
    }

    /// Gives a packet the addresses back that it came with.
    #[cold]
    pub(in crate::path) fn restore_addresses(&mut self, packet: &mut Packet) {
        let before = original_ends(&packet.frame);
        if before != Readdress::default() {
            self.readdress_by(packet, &before);
            packet.frame.forget_note();
        }
    }

    /// Makes sure that replies to a new connection find it. If another bucket has to answer first,
    /// the packet waits.
    #[inline]
    pub(in crate::path) fn direct_replies(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        if !scratch.tracked.fresh {
            return ControlFlow::Continue(());
        }
        self.file_replies(packet, scratch)?;
        self.resteer_opening(packet, scratch.now);
        ControlFlow::Continue(())
    }

    /// Ends the connection that a packet belongs to.
    #[cold]
    pub(in crate::path) fn end_connection(&mut self, packet: &Packet, now: Timestamp) {
        let Self { buckets, tracking, counters, .. } = self;
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = buckets.get_mut(packet.bucket)
        {
            let mut context = tracking.context(now, counters);
            bucket.connections.end(&keyed.named(&packet.network), hash, &mut context);
        }
    }

    fn file_replies(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        const FOUND: Step = ControlFlow::Continue(());
        let (Some(id), now) = (scratch.tracked.connection, scratch.now) else { return FOUND };
        // This connection may have taken the place of others that have aliases.
        self.remove_aliases();
        self.keep_way_of_opener(packet, now);
        let Some(bucket) = self.buckets.get(packet.bucket) else { return FOUND };
        if !bucket.connections.has_translated() && bucket.aliases.is_empty() {
            return FOUND;
        }
        let reply = bucket.connections.reply(id);
        // Each direction of a call that nobody has announced is a connection of its own. Replies
        // of a tunnel find it in any bucket.
        if reply.key.is_call() && !scratch.tracked.is_expected() || reply.key.is_tunnel() {
            return FOUND;
        }
        let Some((name, hash)) = packet.looked_up() else { return FOUND };
        let mut filing = match scratch.replies_come_here {
            true => self.file_here_by_key(packet.bucket, reply),
            false => self.direct(packet.bucket, (name, hash), reply, None, now),
        };
        if filing == Some(Filing::Filed) {
            return FOUND;
        }
        let mut search = self.search(scratch.request.take());
        if filing == Some(Filing::Taken) {
            filing = self.search_port(packet, &mut search, now);
        }
        if let Some(filing) = filing {
            self.end_search(packet, &search, filing, now);
        }
        let Some(filing) = filing else {
            scratch.search = Some(search);
            return ControlFlow::Break(End::Wait(Wait::Alias));
        };
        match filing.refusal(search.refusal()) {
            Some(why) => {
                scratch.tracking = Progress::Unreachable;
                dropped(why)
            }
            None => ControlFlow::Continue(()),
        }
    }

    /// Ends the connection that a packet has opened, because replies would not find it.
    #[cold]
    pub(in crate::path) fn end_opened(&mut self, packet: &Packet, now: Timestamp) {
        let Self { buckets, tracking, counters, .. } = self;
        if let (Some((name, hash)), Some(bucket)) =
            (packet.looked_up(), buckets.get_mut(packet.bucket))
        {
            // The connection has no alias yet, so none has to be removed.
            let mut context = Context { ended: None, ..tracking.context(now, counters) };
            bucket.connections.end(&name, hash, &mut context);
        }
    }

    /// Makes packets like `reply` find a connection in `bucket`, which this worker owns. Packets
    /// of the originator are like `connection`. If there is a claimant, another connection with
    /// these replies may have to give way to it. `None` if the answer comes later.
    pub(in crate::path) fn direct(
        &mut self,
        bucket: BucketId,
        connection: (flow::KeyedPacket, u64),
        reply: flow::KeyedPacket,
        claimant: Option<Claimant>,
        now: Timestamp,
    ) -> Option<Filing> {
        let home = self.hasher.bucket_of_key(&reply.key);
        if home != bucket {
            let alias = (reply, self.hasher.table_hash(&reply.key));
            return self.file_alias(bucket, connection, (alias, claimant), home, now);
        }
        self.file_here_by_key(bucket, reply)
    }

    /// Packets like `reply` come to a bucket of this worker by their key. With an alias here, they
    /// would follow it to another connection.
    fn file_here_by_key(&self, bucket: BucketId, reply: KeyedPacket) -> Option<Filing> {
        let aliases = &self.buckets.get(bucket)?.aliases;
        let hash = || self.hasher.table_hash(&reply.key);
        let is_taken = !aliases.is_empty() && aliases.owner(&reply, hash()).is_some();
        Some(if is_taken { Filing::Taken } else { Filing::Filed })
    }

    /// Ends the masqueraded connections whose address is gone. This is rare, so it is done in one
    /// go.
    pub(in crate::path) fn end_masquerades(&mut self, routing: &Routing, now: Timestamp) {
        let Some(router) = self.forwarder.router() else { return };
        for lost in router.lost_addresses(routing) {
            let Self { buckets, tracking, counters, .. } = self;
            for bucket in buckets.owned_mut() {
                end_masquerades_from(&mut bucket.connections, lost, tracking, now, counters);
            }
        }
    }

    /// Ends the masqueraded connections of a bucket that comes from another worker, if their address
    /// has gone since that worker had the routes `before`.
    pub(in crate::path) fn end_masquerades_of(
        &mut self,
        bucket: &mut Bucket,
        before: &Routing,
        now: Timestamp,
    ) {
        let Some(router) = self.forwarder.router() else { return };
        for lost in before.lost_addresses(router.routing()) {
            let Self { tracking, counters, .. } = self;
            end_masquerades_from(&mut bucket.connections, lost, tracking, now, counters);
        }
    }

    /// Removes the aliases of connections that have ended.
    #[inline]
    pub(in crate::path) fn remove_aliases(&mut self) {
        if self.tracking.has_ended() {
            self.remove_aliases_slowly();
        }
    }

    #[cold]
    fn remove_aliases_slowly(&mut self) {
        let mut ended = self.tracking.take_ended();
        for conntrack::Ended { flows: [original, reply], resteered_in } in ended.drain(..) {
            let owner = match resteered_in {
                Some(owner) => BucketId(owner),
                None => self.hasher.bucket_of_key(&original.0.key),
            };
            for alias in [original, reply] {
                let home = |hasher: &SteeringHasher| hasher.bucket_of_key(&alias.0.key);
                let (now, later) = (home(&self.hasher), self.hasher_to_come.as_deref().map(home));
                for home in later.into_iter().chain([now]).filter(|home| *home != owner) {
                    self.remove_alias(owner, alias, home);
                }
            }
        }
        self.tracking.reuse(ended);
    }
}

/// The source ports by which the replies of a connection come to `bucket`. `reply` is one of them
/// as they are now: its sender is the remote end.
pub(in crate::path) fn bucket_ports(
    hasher: &SteeringHasher,
    bucket: BucketId,
    reply: &KeyedPacket,
) -> BucketPorts {
    let ports = hasher.local_ports(bucket, &reply.key, reply.key.end(reply.sender));
    ports.unwrap_or(BucketPorts::NONE)
}

/// Ends the masqueraded connections from an address of a link.
fn end_masquerades_from(
    connections: &mut Table,
    (link, address): (LinkId, IpAddr),
    tracking: &mut Tracking,
    now: Timestamp,
    counters: &mut Counters,
) {
    let mut context = tracking.context(now, counters);
    let from = conntrack::Cursor::default();
    connections.end_masqueraded((link.0, Some(address)), from, u32::MAX, &mut context);
}

/// The address and port of one end of a packet, in the form that [`Readdress`] writes.
fn place(network: &Network, source: bool) -> Option<TransportAddress> {
    let address = if source { network.source } else { network.destination };
    let port = match network.transport {
        Transport::IcmpQuery(query) => (query.id, query.id),
        Transport::Gre { version: 1, key } => (0, key as u16),
        transport => transport.ports().unwrap_or_default(),
    };
    Some(TransportAddress { address, port: if source { port.0 } else { port.1 } })
}

/// The addresses that a rule names.
fn addresses(wanted: &NatRequest, family: Family) -> Option<Addresses> {
    let interval = wanted.address?;
    let address = |number: u128| match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    Addresses::new(address(interval.low), address(interval.high))
}

const fn usize_of(length: u32) -> usize {
    length as usize
}

#[cfg(test)]
#[path = "translation_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod redirect_tests;

#[cfg(test)]
#[path = "withdrawal_tests.rs"]
mod withdrawal_tests;

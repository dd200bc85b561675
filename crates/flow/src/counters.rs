//! The counters of a worker. Each worker owns one [`Counters`] and alone writes it; readers get
//! a copy.

use crate::{Class, DropReason};

/// All counters of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Steering, under the names of `/proc/net/softnet_stat`.
    pub softnet: SoftnetCounters,
    /// Tracking, under the names of `conntrack -S`.
    pub conntrack: ConntrackCounters,
    /// Reassembly, under the names of `/proc/net/snmp`.
    pub defrag: DefragCounters,
    /// The SYN proxy, under the names of `/proc/net/stat/synproxy`.
    pub syn_proxy: SynProxyCounters,
    /// Counters of the output besides packets and bytes sent.
    pub output: OutputCounters,
    /// Packets that wait for a peer.
    pub deferral: DeferralCounters,
    /// Packets sent.
    pub transmitted: u64,
    /// Bytes sent, link header included.
    pub transmitted_bytes: u64,
    /// Packets by class: new, established, related, invalid, untracked.
    pub classes: [u64; 5],
    drops: [u64; DropReason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            softnet: SoftnetCounters::default(),
            conntrack: ConntrackCounters::default(),
            defrag: DefragCounters::default(),
            syn_proxy: SynProxyCounters::default(),
            output: OutputCounters::default(),
            deferral: DeferralCounters::default(),
            transmitted: 0,
            transmitted_bytes: 0,
            classes: [0; 5],
            drops: [0; DropReason::COUNT],
        }
    }
}

impl Counters {
    /// Names of the classes, in the order of [`Counters::classes`].
    pub const CLASS_NAMES: [&'static str; 5] =
        ["new", "established", "related", "invalid", "untracked"];

    /// Counts a dropped packet.
    pub fn drop_packet(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Counts several packets dropped for the same reason.
    pub fn drop_packets(&mut self, reason: DropReason, packets: u64) {
        self.drops[reason as usize] += packets;
    }

    /// Counts the class of a packet.
    pub fn classify(&mut self, class: Class) {
        let index = match class {
            Class::New => 0,
            Class::Established => 1,
            Class::Related => 2,
            Class::Invalid(_) => 3,
            Class::Untracked => 4,
        };
        self.classes[index] += 1;
    }

    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Adds another worker's counters, for a total.
    pub fn add(&mut self, other: &Self) {
        self.softnet.add(&other.softnet);
        self.conntrack.add(&other.conntrack);
        self.defrag.add(&other.defrag);
        self.syn_proxy.add(&other.syn_proxy);
        self.output.add(&other.output);
        self.deferral.add(&other.deferral);
        self.transmitted += other.transmitted;
        self.transmitted_bytes += other.transmitted_bytes;
        for (sum, value) in self.classes.iter_mut().zip(other.classes) {
            *sum += value;
        }
        for (sum, value) in self.drops.iter_mut().zip(other.drops) {
            *sum += value;
        }
    }
}

/// Declares a group of counters with their names as operators know them.
macro_rules! counter_group {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: u64,)* }

        impl $name {
            /// Adds another worker's counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// Names and values, in the order of the fields.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counter_group! {
    /// Steering counters, named after the columns of `/proc/net/softnet_stat`.
    SoftnetCounters {
        /// Packets processed by this worker, its own and handed over.
        processed,
        /// Packets that this worker was to hand over and another worker's full backlog refused.
        dropped,
        /// Turns that ended with work left because the budget was spent.
        time_squeeze,
        /// Times that this worker was woken because its backlog became non-empty.
        received_rps,
        /// Packets that it was to hand over and the flow limit refused.
        flow_limit_count,
    }
}

counter_group! {
    /// Tracking counters, named after the columns of `conntrack -S`.
    ConntrackCounters {
        /// Look-ups that found an entry.
        found,
        /// Packets that belong to no flow and can not open one.
        invalid,
        /// Entries inserted.
        insert,
        /// Insertions refused.
        insert_failed,
        /// Packets dropped because no entry could be made.
        drop,
        /// Entries evicted to make room.
        early_drop,
        /// Packets with a wrong header or checksum, and ICMP errors that fit no flow.
        error,
        /// Look-ups begun anew; always 0, because a bucket has one owner.
        search_restart,
        /// Insertions that lost a race; always 0, because a bucket has one owner.
        clash_resolve,
        /// Insertions that found the place in the index crowded.
        chaintoolong,
        /// Entries deleted, by timeout or by their protocol.
        delete,
        /// Connections that were taken over from a record, not from a packet.
        imported,
        /// Records of connections, and of what they have announced, that were refused.
        import_refused,
        /// Connections opened that a helper had announced.
        expect_new,
        /// Connections that helpers have announced.
        expect_create,
        /// Announcements that a helper refused, because they named a privileged port or a third
        /// party.
        expect_refused,
        /// Announced connections that gave way to one of another source, because
        /// `nf_conntrack_expect_max` were expected and their source had most of them.
        expect_gave_way,
        /// Connections that their helper has left, because they speak another protocol or
        /// because it had not seen how they began.
        helper_left,
        /// Beginnings of messages that gave way, because the memory for incomplete messages was
        /// full and their source had most of it.
        helper_forgot,
    }
}

counter_group! {
    /// Reassembly counters, named after the columns of `Ip` in `/proc/net/snmp`,
    /// both families together; evictions have no column there.
    DefragCounters {
        /// Fragments received for reassembly.
        reasm_reqds,
        /// Datagrams completed.
        reasm_oks,
        /// Datagrams given up, for any reason, and fragments refused that no datagram in
        /// progress could take.
        reasm_fails,
        /// Datagrams whose timeout passed before they were complete.
        reasm_timeout,
        /// Datagrams with one fragment, evicted to make room.
        evicted_newcomer,
        /// Datagrams with several fragments, evicted to make room.
        evicted_progress,
        /// Datagrams given up and remembered until their timeout, but forgotten earlier to make
        /// room.
        evicted_dead,
    }
}

counter_group! {
    /// SYN proxy counters, named after the columns of `/proc/net/stat/synproxy`.
    SynProxyCounters {
        /// SYNs that the proxy answered in the name of a server.
        syn_received,
        /// ACKs without a valid cookie where one was due.
        cookie_invalid,
        /// ACKs with a valid cookie; each opened a connection.
        cookie_valid,
        /// Segments of a client after which the proxy repeated its SYN to a server that had not
        /// answered.
        cookie_retrans,
        /// Connections whose client opened them anew after they had closed.
        conn_reopened,
    }
}

counter_group! {
    /// Packets that wait until a peer has their connections.
    DeferralCounters {
        /// Packets that waited.
        deferred,
        /// Those of which the peer had the connection in time.
        acknowledged,
        /// Those that left because their time was over.
        timed_out,
        /// Packets that did not wait, because as many waited as may.
        not_deferred,
    }
}

counter_group! {
    /// The work of the output besides sending, named after the columns of `Ip` and `Icmp` in
    /// `/proc/net/snmp`, both families together. The counters from `tcp_resets` on have no
    /// column there.
    ///
    /// The counters balance: frames received + `frag_creates` - `frag_oks` + `icmp_out_msgs` +
    /// `tcp_resets` + `window_updates` + `flood_copies` is the number of frames that were sent,
    /// were dropped, were left to the host or still wait.
    OutputCounters {
        /// Packets cut because they were longer than the MTU of the output interface; a
        /// super-packet counts once.
        frag_oks,
        /// Packets dropped because they were longer than the MTU and must not be cut.
        frag_fails,
        /// Frames made by cutting.
        frag_creates,
        /// ICMP errors made for the senders of dropped packets.
        icmp_out_msgs,
        /// TCP resets made for the senders of packets that a rule rejects with a reset.
        tcp_resets,
        /// Segments that open the window of a client when the server of a proxied connection
        /// has answered. Every other segment of the SYN proxy takes the place of a received
        /// frame.
        window_updates,
        /// Copies of flooded frames beyond the first.
        flood_copies,
        /// Frames that a router leaves to the host, which has a copy of its own.
        to_host,
    }
}

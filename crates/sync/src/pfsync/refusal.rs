//! Why a packet was refused.

refusals! {
    WrongInterface = "wrong_interface", "Packet that did not arrive by the sync interface.";
    WrongSource = "wrong_source", "Packet of another sender than the configured peer.";
    LowTtl = "low_ttl", "Packet whose TTL or hop limit is not 255: a router has forwarded it.";
    NotPfsync = "not_pfsync", "IP packet with another protocol, a fragment, or one whose header is not right.";
    Busy = "busy", "Packet that came before the owner had taken the events of earlier ones.";
    Truncated = "truncated", "Packet that is shorter than its header, or than the length in its header.";
    WrongVersion = "wrong_version", "Packet of another version of the protocol.";
    CountBeyondLength = "count_beyond_length", "Group of messages that would reach beyond the end of the packet.";
    WrongLength = "wrong_length", "Group of messages that tells a shorter length than they have.";
    BehindEnd = "behind_end", "Bytes behind the message that ends a packet.";
    CreatorZero = "creator_zero", "Message whose creator id is zero.";
    UnknownFamily = "unknown_family", "State of an address family that is neither IPv4 nor IPv6.";
    UnknownState = "unknown_state", "State of a connection that its protocol does not have.";
    UnknownTimeout = "unknown_timeout", "State whose timeout is none that a state can have.";
    UnknownDirection = "unknown_direction", "State that goes neither in nor out.";
    UnknownStatus = "unknown_status", "Message about a bulk update that is neither its start nor its end.";
    BadName = "bad_name", "Name of an interface or tag that has no end, or bytes that it must not have.";
    ProtocolsDiffer = "protocols_differ", "State whose keys have different protocols.";
    FullDelete = "full_delete", "Deletion that carries the whole state, which this version does not have.";
}

/// Counts of refused packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    pub(super) fn count(&mut self, refusal: Refusal) {
        self.0[refusal as usize] += 1;
    }

    /// Packets that were refused for a reason.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize]
    }

    /// Packets that were refused.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

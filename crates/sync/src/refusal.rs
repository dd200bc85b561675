//! Why a datagram was refused.

/// Declares the reasons: one list feeds the counters and the names.
macro_rules! refusals {
    ($($variant:ident = $name:literal, $meaning:literal;)*) => {
        /// Why a datagram of a peer was refused. It changed nothing then.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Refusal {
            $(#[doc = $meaning] $variant,)*
        }

        impl Refusal {
            /// All reasons, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in counters and JSON: lower case with underscores.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

refusals! {
    WrongVersion = "wrong_version", "Datagram of another version of the protocol.";
    Malformed = "malformed", "Datagram or message that is cut short, too long, or has a field that can not be.";
    OwnNode = "own_node", "Datagram of this node itself, or of another one that was given its number.";
    OtherNode = "other_node", "Greeting of a node that is not the peer of this session.";
    UnknownKey = "unknown_key", "Datagram for keys that this node does not have, or no longer.";
    Forged = "forged", "Datagram that the sender's key does not vouch for: another pre-shared key, or changed on its way.";
    Replayed = "replayed", "Datagram that has been accepted before, or is too old to tell.";
    StaleGreeting = "stale_greeting", "Answer or confirmation that nobody waits for.";
    Crossed = "crossed", "Confirmation that crossed one of this node, which goes first by its lower number.";
    PastStream = "past_stream", "Frame of a stream that its sender has given up.";
    BeyondWindow = "beyond_window", "Frame that lies further ahead than a sender may go.";
    ImpossibleAck = "impossible_ack", "Acknowledgment of a frame that was never sent.";
}

/// Counts of refused datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    pub(crate) fn count(&mut self, refusal: Refusal) {
        self.0[refusal as usize] += 1;
    }

    /// Datagrams refused for a reason.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize]
    }

    /// Datagrams refused for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Refusal, u64)> + '_ {
        Refusal::ALL.iter().map(|refusal| (*refusal, self.of(*refusal)))
    }
}

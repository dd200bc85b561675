//! The results of stages.

use std::ops::ControlFlow;

use steer::BucketId;
use wire::icmp_error::Message;

use crate::path::drop_cause::DropCause;

/// The result of a stage: the packet continues with a value for the next stage, or its way through
/// the stages ends here.
pub type Step<T = ()> = ControlFlow<End, T>;

/// The end of a packet's way through the stages. A stage only says which one it is. The driver
/// carries it out ([`PacketPath::dispose`](crate::path::PacketPath::dispose)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It leaves by the route or ports in its scratch area.
    Forward,
    /// It is for the host, which has its own copy. Nothing that it has opened stays.
    Host,
    /// It is dropped, and its sender may be told.
    Drop(DropCause, Option<Reply>),
    /// It waits. The part that it waits for has it, or gets it from the driver.
    Wait(Wait),
    /// It belongs to another bucket than it was steered to, and begins again there. This is the
    /// bucket in whose name it is sent there, if one led it.
    Steer(Option<BucketId>),
    /// It is tracked anew. If a segment of the SYN proxy is in its scratch area, the driver makes that
    /// from it and puts it in its place.
    Retrack,
    /// Rules give it to the SYN proxy of this number.
    SynProxy(u32),
    /// The SYN proxy answers it with the segments in its scratch area.
    Answer(Answer),
}

/// The reply to the sender of a packet that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An ICMP error.
    Icmp(Message),
    /// A TCP reset in the name of the receiver. It ends the connection.
    Reset,
}

/// The thing that a packet waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its bucket, which is on its way here.
    Bucket,
    /// The other fragments of its datagram. Reassembly has it.
    Datagram,
    /// The alias of the connection that it has opened.
    Alias,
    /// The alias of the connection that a packet before it has opened.
    Opener,
}

/// The answer of the SYN proxy to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A SYN+ACK in the name of the server. It belongs to no connection.
    Promise,
    /// A segment of its connection towards its sender.
    Back,
    /// The same, and a segment towards its receiver.
    BothWays,
}

/// The end of a frame's way in front of the stages that take packets. The driver carries it out too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEnd {
    /// It is not IP, and leaves as it came.
    Forward,
    /// It is for the host, which has its own copy.
    Host,
    /// It is dropped.
    Drop(DropCause),
}

impl From<FrameEnd> for End {
    fn from(end: FrameEnd) -> Self {
        match end {
            FrameEnd::Forward => Self::Forward,
            FrameEnd::Host => Self::Host,
            FrameEnd::Drop(why) => Self::Drop(why, None),
        }
    }
}

/// Ends the way of a packet that is dropped for this reason, without a reply.
pub fn dropped<T>(why: impl Into<DropCause>) -> Step<T> {
    ControlFlow::Break(End::Drop(why.into(), None))
}

/// Lets a stage drop its packet where something has failed.
pub trait OrDrop<T> {
    /// The value, or the end of the packet.
    fn or_drop(self) -> Step<T>;
}

impl<T, E: Into<DropCause>> OrDrop<T> for Result<T, E> {
    #[inline]
    fn or_drop(self) -> Step<T> {
        match self {
            Ok(value) => ControlFlow::Continue(value),
            Err(why) => dropped(why),
        }
    }
}

/// The stages, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A router takes frames for its own station.
    Arrive,
    /// The headers are read, and what is not IP ends.
    Dissect,
    /// The flow and the bucket are found.
    Steer,
    /// The fast path: a recorded decision.
    FastPath,
    /// The bucket is here.
    Bucket,
    /// A router looks at addresses and options.
    Sender,
    /// An alias leads to the bucket of the connection.
    Alias,
    /// A fragment waits for its datagram.
    Reassembly,
    /// The packet is the host's, whatever rules say.
    Host,
    /// Rules in front of tracking.
    RawRules,
    /// The SYN proxy: connections that it has opened.
    Proxied,
    /// Sequence numbers of edited connections, as their sender means them.
    NumbersIn,
    /// Tracking, and the cookies of the SYN proxy.
    Track,
    /// Rules before routing, and the new destination.
    Destination,
    /// Routes; a bridge: the ports.
    Route,
    /// Forward rules, for a packet that leaves by one port.
    ForwardRules,
    /// Postrouting rules, and the new source. A packet that leaves by several ports meets the
    /// forward rules here, for each port.
    Source,
    /// The SYN proxy answers a SYN that the rules have accepted.
    Promise,
    /// Rules judge the packet that a tunnel carries.
    Inner,
    /// The fragments of a datagram fit the link ahead.
    Fit,
    /// The connection is there for all to see, and helpers read the packet.
    Confirm,
    /// A segment that the gateway has made gets the ends that its connection leaves with.
    Translate,
    /// The decision is recorded.
    Record,
    /// Sequence numbers of edited connections, as their receiver expects them.
    NumbersOut,
    /// The SYN proxy: numbers and segments of connections that it has opened.
    ProxiedOut,
    /// Replies to a new connection find it, or the packet waits until they do.
    Replies,
    /// The SYN proxy of a rule decides, whichever stage has asked that rule.
    RuleProxy,
}

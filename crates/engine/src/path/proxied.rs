//! The stages for connections that the SYN proxy has opened. The client has the proxy's sequence
//! numbers and the server its own, so the numbers of each packet shift.

use std::ops::ControlFlow;

use conntrack::Direction;
use conntrack::seqadj::Adjustment;
use conntrack::syn_proxy::{Proxied, Screening};
use flow::Timestamp;
use wire::{TcpFlags, TcpInfo, Transport};

use crate::path::PacketPath;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::{Finish, Scratch};
use crate::path::step::{Answer, End, Step};
use crate::path::syn_proxy::{REFUSED, received, refused, retrack_as};

impl PacketPath {
    /// Looks whether the proxy has opened the connection of a packet.
    #[inline(always)]
    pub(super) fn take_proxied(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if !packet.untracked
            && let Some(TrackedFlow { keyed, hash: Some(hash) }) = &packet.flow
            && let Some(bucket) = self.buckets.get(packet.bucket)
            && let Some((direction, proxied)) =
                bucket.connections.proxied(keyed, *hash, scratch.now)
        {
            let (adjustment, proxied) = (proxied.adjustment().copied(), *proxied);
            scratch.screening = Screening::Off;
            return match adjustment {
                Some(adjustment) => {
                    self.handle_joined(packet, scratch, direction, proxied, &adjustment)
                }
                None => self.handle_half_open(packet, scratch, direction, proxied),
            };
        }
        ControlFlow::Continue(())
    }

    /// Decides about a packet of a connection whose server has not answered yet.
    fn handle_half_open(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        direction: Direction,
        proxied: Proxied,
    ) -> Step {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            // It is an ICMP error about the SYN.
            return ControlFlow::Continue(());
        };
        let has = |flags| tcp.flags.contains(flags);
        ControlFlow::Break(match direction {
            _ if packet.pieces.is_some() => REFUSED,
            // The server does not know the number that this packet acknowledges.
            Direction::Original if has(TcpFlags::RST) => retrack_as(scratch, proxied.abort(&tcp)),
            Direction::Original if !has(TcpFlags::ACK) => match has(TcpFlags::SYN) {
                true => self.promise(packet, scratch, proxied.promise()).unwrap_or(REFUSED),
                false => REFUSED,
            },
            Direction::Original if proxied.is_from_opening(&tcp) => {
                self.counters.syn_proxy.cookie_retrans += 1;
                self.open_at_server(packet, scratch, proxied)
            }
            Direction::Original => {
                self.redeem_or_refuse(packet, scratch, (&keyed, &tcp), proxied.promise())
            }
            Direction::Reply => return self.handle_server_reply(packet, scratch, proxied, &tcp),
        })
    }

    /// Decides about the server's answer to the SYN.
    fn handle_server_reply(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        proxied: Proxied,
        tcp: &TcpInfo,
    ) -> Step {
        scratch.proxy.finish = Some(if tcp.flags.contains(TcpFlags::RST) {
            Finish::Refusal(proxied.refusal_sequence())
        } else if !tcp.flags.contains(TcpFlags::ACK) {
            return refused();
        } else {
            match self.join(packet, proxied) {
                Some(_) if packet.pieces.is_some() => return refused(),
                Some(finish) => finish,
                None => Finish::Reset(proxied.reset(tcp)),
            }
        });
        ControlFlow::Continue(())
    }

    /// Decides about a packet of a connection whose two ends use different sequence numbers.
    fn handle_joined(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        direction: Direction,
        proxied: Proxied,
        adjustment: &Adjustment,
    ) -> Step {
        let Transport::Tcp(tcp) = packet.network.transport else {
            adjustment.quoted(direction, packet.frame.bytes_mut(), &packet.network);
            return ControlFlow::Continue(());
        };
        let is_syn_ack = tcp.flags.contains(TcpFlags::SYN.with(TcpFlags::ACK));
        if direction == Direction::Reply
            && is_syn_ack
            && let Some(finish) = self.join(packet, proxied)
        {
            if packet.pieces.is_some() {
                return refused();
            }
            scratch.proxy.finish = Some(finish);
            return ControlFlow::Continue(());
        }
        self.edit(packet, |segment| adjustment.before_tracking(direction, segment));
        scratch.proxy.finish = Some(Finish::Shift(direction, *adjustment));
        ControlFlow::Continue(())
    }

    /// The answer to the SYN+ACK of a server, which completes the server's handshake and opens the
    /// client's window. `None` if the packet does not fit.
    fn join(&self, packet: &Packet, mut proxied: Proxied) -> Option<Finish> {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return None;
        };
        let joined = proxied.join(&received(packet, &keyed, &tcp))?;
        Some(Finish::Join(proxied, joined))
    }

    /// Does the last of the proxy's work on a packet that goes on.
    #[inline(always)]
    pub(super) fn finish_proxied(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        let is_proxied = scratch.proxy.to_server.is_some() || scratch.proxy.finish.is_some();
        if is_proxied { self.finish(packet, scratch) } else { ControlFlow::Continue(()) }
    }

    #[cold]
    fn finish(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if let Some(proxied) = scratch.proxy.to_server {
            self.keep_proxied(packet, proxied, scratch.now);
        }
        let Some(finish) = scratch.proxy.finish else { return ControlFlow::Continue(()) };
        match finish {
            Finish::Shift(direction, adjustment) => {
                self.edit(packet, |segment| adjustment.after_tracking(direction, segment));
                let reopens = |tcp: TcpInfo| {
                    let has = |flags| tcp.flags.contains(flags);
                    has(TcpFlags::SYN) && !has(TcpFlags::ACK)
                };
                if matches!(packet.network.transport, Transport::Tcp(tcp) if reopens(tcp))
                    && !self.is_proxied(packet, scratch.now)
                {
                    self.counters.syn_proxy.conn_reopened += 1;
                }
                ControlFlow::Continue(())
            }
            Finish::Refusal(sequence) => {
                self.edit(packet, |segment| segment.set_sequence(sequence));
                ControlFlow::Continue(())
            }
            Finish::Reset(segment) => {
                scratch.proxy.back = Some(segment);
                ControlFlow::Break(End::Answer(Answer::Back))
            }
            Finish::Join(proxied, joined) => {
                self.keep_proxied(packet, proxied, scratch.now);
                // The packet has the addresses that the client sees by now. Both segments are made
                // from it.
                scratch.proxy.back = Some(joined.to_server);
                scratch.proxy.along = Some(joined.to_client);
                ControlFlow::Break(End::Answer(Answer::BothWays))
            }
        }
    }

    fn keep_proxied(&mut self, packet: &Packet, proxied: Proxied, now: Timestamp) {
        let Self { buckets, tracking, counters, .. } = self;
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = buckets.get_mut(packet.bucket)
        {
            let mut context = tracking.context(now, counters);
            bucket.connections.set_proxied(&keyed, hash, proxied, &mut context);
        }
    }

    fn is_proxied(&self, packet: &Packet, now: Timestamp) -> bool {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow else { return false };
        let bucket = self.buckets.get(packet.bucket);
        bucket.is_some_and(|bucket| bucket.connections.proxied(&keyed, hash, now).is_some())
    }
}

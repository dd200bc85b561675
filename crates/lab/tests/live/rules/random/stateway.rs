//! Our side: the ruleset as `nft` prints it, compiled, and the gateway's work between the hooks of
//! its rules.

use flow::Timestamp;
use lab::Side;
use ruleset::listing::{Live, with_live};
use ruleset::{
    CompileOptions, Connection, CtState, Decision, Hook, Interface, NatRequest, Options,
    PacketView, Program, Reject, RuleState, SegmentSize, SharedState, Step, ValidRuleset, explain,
    import, name_bits,
};
use serde_json::Value;
use wire::{ChecksumCovers, Family, Network, TcpFlags, Transport, dissect};

use super::connections::{Connections, Said};
use super::generate::{NUMBERLESS, Packet, Traffic, other};
use super::kernel::Answer;
use super::translation;

pub struct Ours {
    program: Program,
    shared: SharedState,
    state: RuleState,
    connections: Connections,
}

/// The decision of the rules about a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketOutcome {
    pub passes: bool,
    /// The answer to the sender of a refused packet.
    pub refused: Option<String>,
    /// The maximum segment size that the packet announces after the rules.
    pub segment_size: Option<u16>,
    /// A translation by the kernel that our rules do not allow.
    pub mistranslated: Option<String>,
    pub steps: Vec<(Hook, Step)>,
}

/// A packet between two hooks.
struct Passing {
    frame: Vec<u8>,
    mark: u32,
    said: Option<Said>,
    notrack: bool,
    outcome: PacketOutcome,
}

/// A ruleset from nft's listing, or the reason for a refusal.
pub fn imported(listed: &str) -> Result<ValidRuleset, String> {
    match import(listed.as_bytes(), Options::default()) {
        Ok(imported) => Ok(imported.ruleset),
        Err(refused) => Err(refused.to_string()),
    }
}

pub fn read(frame: &[u8]) -> Network {
    let dissected = dissect(frame).unwrap_or_else(|error| panic!("{error:?}: {frame:x?}"));
    dissected.network.expect("packets are IP")
}

pub fn segment_size(frame: &[u8]) -> Option<u16> {
    match read(frame).transport {
        // The generator puts this option first.
        Transport::Tcp(_) => {
            let at = usize::from(read(frame).transport_offset) + 20;
            let option = frame.get(at..at + 4)?;
            (option[..2] == [2, 4]).then(|| u16::from_be_bytes([option[2], option[3]]))
        }
        _ => None,
    }
}

impl Ours {
    pub fn new(
        ruleset: ValidRuleset,
        traffic: Traffic,
        index: bool,
        ((ahead, zone), cpu): ((i64, i32), u32),
        now: Timestamp,
    ) -> Self {
        let program = Program::compile(ruleset, CompileOptions { index, seed: 5 }).unwrap();
        let shared = SharedState::new(&program, now);
        shared.set_wall_clock(ahead, zone);
        let mut state = RuleState::new(&program, &shared, now);
        let interface = |(name, group)| {
            let name = name_bits(name).unwrap();
            Interface { group, ..Interface::ethernet(name) }
        };
        state.set_cpu(cpu);
        state.set_interfaces([("client0", 5), ("server0", 7)].map(interface).into());
        Self { program, shared, state, connections: Connections::new(traffic) }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The listing as nft would print it now.
    pub fn listed(&self, before: &str, now: Timestamp) -> Value {
        let live = Live {
            counters: self.state.all_counted().to_vec(),
            quotas_used: self.state.quotas_used(),
            elements: self.shared.elements(&self.program, now),
            is_reset: false,
            age: std::time::Duration::ZERO,
        };
        let document = serde_json::from_str(before).expect("nft prints JSON");
        with_live(document, &self.program, &live)
    }

    /// The decision of the rules about a packet. If they leave a choice, this takes the kernel's
    /// choice after a check that they allow it.
    pub fn evaluate(&mut self, packet: &Packet, answer: &Answer, now: Timestamp) -> PacketOutcome {
        let mut passing = Passing {
            frame: packet.frame.clone(),
            mark: 0,
            said: None,
            notrack: false,
            outcome: PacketOutcome {
                passes: true,
                refused: None,
                segment_size: segment_size(&packet.frame),
                mistranslated: None,
                steps: Vec::new(),
            },
        };
        let mut output = other(packet.side);
        for hook in Hook::ALL {
            if hook == Hook::Prerouting && !passing.notrack {
                let network = read(&passing.frame);
                passing.said = Some(self.connections.track(&passing.frame, &network, now));
            }
            if hook == Hook::Forward {
                // The kernel decrements the time to live before its forward chains.
                let network = read(&passing.frame);
                count_hop(&mut passing.frame, &network);
                output = translation::side(network.destination_ip()).unwrap_or(output);
            }
            let is_new = passing.said.as_ref().is_some_and(|said| said.state == CtState::New);
            if hook.is_nat() && !is_new {
                continue;
            }
            let asked = self.hook(hook, packet, output, &mut passing, now);
            if let Some(nat) = asked {
                let said = passing.said.as_mut().expect("it is new");
                match translation::follow(&nat, &mut passing.frame, answer, output) {
                    Ok(()) => said.translated(nat.kind, &read(&passing.frame)),
                    Err(why) => passing.outcome.mistranslated = Some(why),
                }
            }
            if !passing.outcome.passes {
                break;
            }
        }
        if let Some((side, out)) = &answer.out
            && passing.outcome.passes
        {
            let changed = translation::difference(&passing.frame, out);
            let changed = changed.or_else(|| (*side != output).then(|| format!("to {side:?}")));
            passing.outcome.mistranslated = passing.outcome.mistranslated.or(changed);
        }
        if let Some(said) = &passing.said {
            self.connections.conclude(said, passing.outcome.passes, now);
        }
        passing.outcome
    }

    fn hook(
        &mut self,
        hook: Hook,
        packet: &Packet,
        output: Side,
        passing: &mut Passing,
        now: Timestamp,
    ) -> Option<NatRequest> {
        let network = read(&passing.frame);
        let connection = match (&passing.said, hook) {
            (_, Hook::Untracked) => Connection { state: CtState::Invalid, known: None },
            (None, _) => Connection::UNTRACKED,
            (Some(said), _) => said.connection(),
        };
        let name = |side| match side {
            Side::Client => name_bits("client0").unwrap(),
            Side::Server => name_bits("server0").unwrap(),
        };
        let view = PacketView {
            frame: &passing.frame,
            network: &network,
            vlan: 0,
            packet_type: 0,
            input: name(packet.side),
            output: if hook < Hook::Forward { 0 } else { name(output) },
            mark: passing.mark,
            priority: 0,
            routes: None,
            connection,
        };
        let Self { program, state, .. } = &mut *self;
        let steps = &mut passing.outcome.steps;
        let outcome =
            explain(program, hook, &view, state, now, &mut |step| steps.push((hook, step)));
        passing.mark = outcome.mark.unwrap_or(passing.mark);
        passing.notrack |= outcome.notrack;
        if outcome.is_rewritten {
            let (mut network, length) = (network, network.transport_len() as usize);
            for write in self.state.writes() {
                write.apply(&mut passing.frame, &mut network, length, ChecksumCovers::All);
            }
        }
        if let (Some(said), Some(mark)) = (&mut passing.said, outcome.ct_mark) {
            said.mark(mark);
        }
        if let (Some(announced), Some(SegmentSize::AtMost(most))) =
            (segment_size(&passing.frame), outcome.segment_size)
        {
            let at = usize::from(network.transport_offset) + 22;
            passing.frame[at..at + 2].copy_from_slice(&most.min(announced).to_be_bytes());
            let network = read(&passing.frame);
            wire::checksum::fill_transport(&mut passing.frame, &network);
        }
        passing.outcome.segment_size = segment_size(&passing.frame);
        passing.outcome.passes = outcome.decision == Decision::Accept;
        if let Decision::Reject(reject) = outcome.decision {
            passing.outcome.refused = answer_to_sender(reject, &network);
        }
        outcome.nat
    }
}

/// The answer to the sender of a refused packet.
fn answer_to_sender(reject: Reject, network: &Network) -> Option<String> {
    // The kernel expects a checksum in such a packet, which has none, and sends no answer.
    if network.protocol == NUMBERLESS {
        return None;
    }
    let icmp = |code| match network.family {
        Family::V4 => format!("icmp 3 {code}"),
        Family::V6 => format!("icmpv6 1 {code}"),
    };
    match reject {
        Reject::TcpReset => {
            let Transport::Tcp(tcp) = network.transport else { return None };
            (!tcp.flags.contains(TcpFlags::RST)).then(|| "reset".to_owned())
        }
        Reject::Icmp(code) | Reject::Icmpv6(code) => Some(icmp(code)),
        Reject::Icmpx(unreachable) => Some(icmp(unreachable.code(network.family))),
    }
}

fn count_hop(frame: &mut [u8], network: &Network) {
    let at = usize::from(network.offset);
    match network.family {
        Family::V6 => frame[at + 7] -= 1,
        Family::V4 => {
            frame[at + 8] -= 1;
            // RFC 1624: the upper byte of a word is one less, so that of the checksum is one more.
            let sum = u32::from(u16::from_be_bytes([frame[at + 10], frame[at + 11]])) + 0x100;
            let sum = (sum & 0xffff) + (sum >> 16);
            frame[at + 10..at + 12].copy_from_slice(&(sum as u16).to_be_bytes());
        }
    }
}

//! The way of a packet through all hooks, step by step.

use flow::{Timestamp, Zone, ZonePair};
use wire::{ChecksumCovers, Family, Place, Readdress};

use crate::compile::Program;
use crate::evaluate::{
    Connection, CtState, Decision, Details, Known, NatRequest, Outcome, PacketView, RuleState,
    Step, explain,
};
use crate::hook::Hook;
use crate::kind::name_bits;
use crate::model::NatKind;
use crate::needs::Need;
use crate::probe::Probe;

/// Status bits of the kernel's interface (`enum ip_conntrack_status`).
const SOURCE_TRANSLATED: u32 = 1 << 4;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// The steps of a packet through the rules.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The hooks that asked base chains, in order.
    pub hooks: Vec<HookWalk>,
    /// The end of its way.
    pub fate: Fate,
    /// Assumptions, as remarks for the operator.
    pub remarks: Vec<&'static str>,
}

/// One hook.
#[derive(Clone, Debug)]
pub struct HookWalk {
    /// The hook.
    pub hook: Hook,
    /// Rules that matched, and policies that decided, in order.
    pub steps: Vec<Step>,
    /// The result.
    pub outcome: Outcome,
}

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on its way.
    Passes,
    /// The packet is for the host itself, where the kernel's rules hold.
    ToHost,
    /// A hook drops or refuses the packet.
    Ends(Hook, Decision),
}

/// The source of facts about the packet's connection.
pub trait Tracked: Details {
    /// The state that tracking gives the packet.
    fn state(&self) -> CtState;
    /// Other properties of the packet's connection.
    fn known(&self) -> Known<'_>;
    /// The readdressing of this packet by its connection's translation; `None` if the packet opens
    /// a connection, whose translation the rules choose.
    fn translation(&self) -> Option<Readdress>;
}

impl Tracked for Probe {
    fn state(&self) -> CtState {
        self.supposed_state()
    }

    fn known(&self) -> Known<'_> {
        let Self { reply, status, ct_mark: mark, zone, .. } = *self;
        let zones = ZonePair::both(Zone(zone));
        Known { reply, status, mark, zones, details: Some(self) }
    }

    fn translation(&self) -> Option<Readdress> {
        None
    }
}

/// Sends a packet through the rules. It changes the state as a real packet does.
pub fn walk(
    program: &Program,
    state: &mut RuleState,
    probe: &Probe,
    tracked: &dyn Tracked,
    now: Timestamp,
) -> Walk {
    let mut walker = Walker {
        program,
        state,
        now,
        frame: probe.frame.clone(),
        network: probe.network,
        ct_state: tracked.state(),
        known: tracked.known(),
        mark: probe.mark,
        priority: 0,
        walk: Walk { hooks: Vec::new(), fate: Fate::Passes, remarks: Vec::new() },
    };
    if probe.state.is_none() && !probe.reply {
        walker.walk.remarks.push("no `state` was given: the one shown is assumed");
    }
    for (told, remark) in [
        (&probe.input, "without `in`, rules that ask for the input interface do not match"),
        (&probe.output, "without `out`, rules that ask for the output interface do not match"),
    ] {
        if told.is_none() {
            walker.walk.remarks.push(remark);
        }
    }
    if program.ruleset().needs().any(|(_, need)| need == Need::Routes) {
        let unknown = "a question knows no routes: rules that look addresses up in them (`fib`) do \
                       not match";
        walker.walk.remarks.push(unknown);
    }
    let is_hosts = probe.host_addresses.contains(&probe.network.destination_ip());
    if is_hosts && program.ruleset().translations().is_empty() {
        walker.walk.fate = Fate::ToHost;
        return walker.walk;
    }
    for hook in Hook::ALL {
        let is_translated = walker.network.destination != probe.network.destination
            || walker.known.status & DESTINATION_TRANSLATED != 0;
        if hook == Hook::PreroutingTranslated && is_hosts && !is_translated {
            walker.walk.fate = Fate::ToHost;
            break;
        }
        if walker.walk.fate == Fate::ToHost && hook >= Hook::Forward {
            break;
        }
        let translation = tracked.translation();
        if hook.is_nat() && (translation.is_some() || walker.ct_state != CtState::New) {
            let Readdress { source, destination } = translation.unwrap_or_default();
            walker.readdress(match hook {
                Hook::DestinationNat => Readdress { source: None, destination },
                _ => Readdress { source, destination: None },
            });
            continue;
        }
        if walker.hook(hook, probe) {
            break;
        }
        // A packet that a rule has led to the host ends there. A packet that was for the host from
        // the start did not come this far.
        let destination = walker.network.destination;
        if destination != probe.network.destination
            && probe.host_addresses.contains(&walker.network.destination_ip())
        {
            walker.walk.fate = Fate::ToHost;
        }
    }
    walker.walk
}

struct Walker<'a> {
    program: &'a Program,
    state: &'a mut RuleState,
    now: Timestamp,
    frame: Vec<u8>,
    network: wire::Network,
    ct_state: CtState,
    known: Known<'a>,
    mark: u32,
    priority: u32,
    walk: Walk,
}

impl Walker<'_> {
    /// One hook; true if the packet ends in it.
    fn hook(&mut self, hook: Hook, probe: &Probe) -> bool {
        if self.program.is_empty(hook) {
            return false;
        }
        let name = |name: &Option<String>| name.as_deref().and_then(name_bits).unwrap_or(0);
        let is_tracked = hook > Hook::Untracked
            && !matches!(self.ct_state, CtState::Invalid | CtState::Untracked);
        let view = PacketView {
            frame: &self.frame,
            network: &self.network,
            vlan: probe.vlan,
            packet_type: 0,
            input: name(&probe.input),
            // The output is not known before the route is.
            output: if hook < Hook::Forward { 0 } else { name(&probe.output) },
            mark: self.mark,
            priority: self.priority,
            routes: None,
            connection: match hook {
                // To the kernel's rules, a packet before tracking is invalid.
                Hook::Untracked => Connection { state: CtState::Invalid, known: None },
                _ => Connection { state: self.ct_state, known: is_tracked.then_some(self.known) },
            },
        };
        let mut steps = Vec::new();
        let tell = &mut |step| steps.push(step);
        let outcome = explain(self.program, hook, &view, self.state, self.now, tell);
        self.take(&outcome);
        if outcome.decided_by.is_some() {
            self.walk.hooks.push(HookWalk { hook, steps, outcome });
        }
        if outcome.decision != Decision::Accept {
            self.walk.fate = Fate::Ends(hook, outcome.decision);
            return true;
        }
        false
    }

    /// Applies the changes of a hook for the following ones.
    fn take(&mut self, outcome: &Outcome) {
        self.mark = outcome.mark.unwrap_or(self.mark);
        self.priority = outcome.priority.unwrap_or(self.priority);
        self.known.mark = outcome.ct_mark.unwrap_or(self.known.mark);
        self.known.zones = outcome.zone.unwrap_or(self.known.zones);
        if outcome.notrack {
            self.ct_state = CtState::Untracked;
        }
        if let Some(request) = &outcome.nat {
            self.translate(request);
        }
    }

    fn translate(&mut self, request: &NatRequest) {
        match request.kind {
            NatKind::Source | NatKind::Masquerade => {
                self.known.status |= SOURCE_TRANSLATED;
            }
            NatKind::Redirect => {
                self.known.status |= DESTINATION_TRANSLATED;
                self.walk.fate = Fate::ToHost;
            }
            NatKind::Destination => {
                self.known.status |= DESTINATION_TRANSLATED;
                self.redirect(request);
            }
        }
    }

    /// Gives the packet its new destination for the following rules: the first of several.
    fn redirect(&mut self, request: &NatRequest) {
        let several = "of several possible destinations, the rules behind see the first";
        let is_one = request.address.is_none_or(|address| address.is_one() || request.netmap)
            && request.ports.is_none_or(|(low, high)| low == high);
        if !is_one {
            self.walk.remarks.push(several);
        }
        let (_, own_port) = self.network.transport.ports().unwrap_or_default();
        let address = match request.address {
            None => self.network.destination,
            Some(interval) => {
                let host = match request.netmap {
                    true => {
                        u128::from_be_bytes(self.network.destination)
                            & (interval.low ^ interval.high)
                    }
                    false => 0,
                };
                let bits = interval.low | host;
                match self.network.family {
                    Family::V4 => (bits & 0xffff_ffff | 0xffff_0000_0000).to_be_bytes(),
                    Family::V6 => bits.to_be_bytes(),
                }
            }
        };
        let port = request.ports.map_or(own_port, |(low, _)| low);
        self.readdress(Readdress { source: None, destination: Some(Place { address, port }) });
    }

    fn readdress(&mut self, change: Readdress) {
        let length = self.network.transport_len() as usize;
        change.apply(&mut self.frame, &mut self.network, length, ChecksumCovers::All);
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;

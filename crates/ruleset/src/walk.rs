//! The way of a packet through all hooks, step by step.

use std::cell::Cell;
use std::net::IpAddr;

use flow::{DropReason, Timestamp, Zone, ZonePair};
use wire::{ChecksumCovers, Family, Network, Readdress, TransportAddress};

use crate::compile::Program;
use crate::evaluate::{
    Connection, CtState, Decision, Details, Known, NatRequest, Outcome, PacketView, RouteQuestion,
    Routes, RuleState, Step, explain,
};
use crate::hook::Hook;
use crate::host_copies::HostCopies;
use crate::kind::{Interval, name_bits};
use crate::model::NatKind;
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
    /// The output interface, if it is known.
    pub output: Option<String>,
    /// Assumptions, as remarks for the operator.
    pub remarks: Vec<&'static str>,
    /// True if a rule that the packet has met asks for routes, and nobody knows them.
    pub lacks_routes: bool,
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
    /// A hook drops or refuses the packet, which is for the host. The kernel has a copy of its own,
    /// so only the kernel can keep it from the host.
    RefusedToHost(Hook),
    /// A hook drops or refuses the packet.
    Ends(Hook, Decision),
    /// No way leads on, so the packet is dropped.
    NoWay(DropReason),
}

/// The way out of the gateway for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputInterface {
    /// Nobody knows it here.
    Unknown,
    /// By this interface.
    By(String),
    /// By an interface that the gateway does not have. The rules judge the packet nevertheless.
    Elsewhere,
    /// To the host itself.
    Host,
    /// There is none.
    Refused(DropReason),
}

/// A packet, and the facts about it.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The packet with its surroundings.
    pub probe: &'a Probe,
    /// Its connection.
    pub tracked: &'a dyn Tracked,
    /// The ways out of the gateway.
    pub ways: &'a dyn Ways,
}

/// The ways out of a gateway.
pub trait Ways {
    /// The way of a packet with this mark, if the probe names no output interface.
    fn output(&self, network: &Network, mark: u32) -> OutputInterface;
    /// The routes for rules about a packet with this mark, which leaves by `output` once that is
    /// known. `None` where nobody knows routes.
    fn routes<'r>(
        &'r self,
        network: &Network,
        mark: u32,
        output: Option<&str>,
    ) -> Option<Box<dyn Routes + 'r>>;
}

/// Nobody knows the ways.
struct Unknown;

impl Ways for Unknown {
    fn output(&self, _: &Network, _: u32) -> OutputInterface {
        OutputInterface::Unknown
    }

    fn routes<'r>(&'r self, _: &Network, _: u32, _: Option<&str>) -> Option<Box<dyn Routes + 'r>> {
        None
    }
}

/// Routes that nobody knows, and whether a rule has asked for them.
#[derive(Default)]
struct NoRoutes {
    asked: Cell<bool>,
}

impl Routes for NoRoutes {
    fn are_known(&self) -> bool {
        self.asked.set(true);
        false
    }

    fn address_type(&self, _: &RouteQuestion) -> u8 {
        0
    }

    fn way_out(&self, _: &RouteQuestion) -> u128 {
        0
    }

    fn next_hop(&self) -> Option<IpAddr> {
        None
    }

    fn path_mtu(&self, _: &Network) -> Option<u32> {
        None
    }
}

impl<'a> Question<'a> {
    /// A packet of which no more is known than the probe says.
    pub fn alone(probe: &'a Probe) -> Self {
        Self { probe, tracked: probe, ways: &Unknown }
    }
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
    question: Question<'_>,
    now: Timestamp,
) -> Walk {
    let Question { probe, tracked, ways } = question;
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
        ways,
        leads_elsewhere: false,
        walk: Walk {
            hooks: Vec::new(),
            fate: Fate::Passes,
            output: probe.output.clone(),
            remarks: assumptions(program, &question),
            lacks_routes: false,
        },
    };
    let is_local = probe.host_addresses.contains(&probe.network.destination_ip());
    if is_local && program.ruleset().translations().is_empty() {
        walker.walk.fate = Fate::ToHost;
        return walker.walk;
    }
    for hook in Hook::ALL {
        let is_translated = walker.network.destination != probe.network.destination
            || walker.known.status & DESTINATION_TRANSLATED != 0;
        if hook == Hook::PreroutingTranslated && is_local && !is_translated {
            walker.walk.fate = Fate::ToHost;
            break;
        }
        if hook == Hook::Forward && walker.walk.fate == Fate::Passes {
            walker.find_output();
        }
        if walker.walk.fate != Fate::Passes && hook >= Hook::Forward {
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
        let is_led_to_host = walker.walk.fate == Fate::ToHost;
        if walker.hook(hook, probe) {
            // The kernel is kept from packets of a connection that is translated.
            let is_translated = translation.is_some_and(|it| it.destination.is_some());
            let has_copy = hook < Hook::Forward && !is_translated;
            if is_led_to_host || (has_copy && host_has_copy(program, probe)) {
                walker.walk.fate = Fate::RefusedToHost(hook);
            }
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
    if walker.leads_elsewhere && walker.walk.fate == Fate::Passes {
        walker.walk.fate = Fate::NoWay(DropReason::NoOutputPort);
    }
    walker.walk
}

/// True if the kernel takes its own copy of a packet for the host, whatever the rules of prerouting do
/// with it here.
fn host_has_copy(program: &Program, probe: &Probe) -> bool {
    let input = probe.input.as_deref().and_then(name_bits).unwrap_or(0);
    let copies = HostCopies::new(&program.ruleset().translations());
    let is_host = |family: Family, addresses: Interval| {
        probe.host_addresses.iter().any(|own| addresses.holds_address(family, *own))
    };
    copies.has(&probe.network, input, is_host)
}

/// Remarks on what a question leaves open.
fn assumptions(program: &Program, question: &Question<'_>) -> Vec<&'static str> {
    let probe = question.probe;
    let mut remarks = Vec::new();
    if probe.state.is_none() && !probe.reply {
        remarks.push("no `state` was given: the one shown is assumed");
    }
    if probe.input.is_none() {
        remarks.push("without `in`, rules that ask for the input interface do not match");
    }
    if program.ruleset().asks_for_cpu() {
        remarks.push("no worker judges a question: rules that ask for its CPU do not match");
    }
    remarks
}

struct Walker<'a> {
    program: &'a Program,
    state: &'a mut RuleState,
    now: Timestamp,
    frame: Vec<u8>,
    network: Network,
    ct_state: CtState,
    known: Known<'a>,
    mark: u32,
    priority: u32,
    ways: &'a dyn Ways,
    /// True if the way leads to an interface that the gateway does not have.
    leads_elsewhere: bool,
    walk: Walk,
}

impl Walker<'_> {
    /// Finds the output interface, if the question does not name one.
    fn find_output(&mut self) {
        if self.walk.output.is_some() {
            return;
        }
        match self.ways.output(&self.network, self.mark) {
            OutputInterface::Unknown => {
                let remark = "without `out`, rules that ask for the output interface do not match";
                self.walk.remarks.push(remark);
            }
            OutputInterface::By(name) => {
                self.walk.output = Some(name);
                self.walk
                    .remarks
                    .push("without `out`, the packet leaves as the gateway sends it now");
            }
            OutputInterface::Elsewhere => self.leads_elsewhere = true,
            OutputInterface::Host => self.walk.fate = Fate::ToHost,
            OutputInterface::Refused(reason) => self.walk.fate = Fate::NoWay(reason),
        }
    }

    /// One hook; true if the packet ends in it.
    fn hook(&mut self, hook: Hook, probe: &Probe) -> bool {
        if self.program.is_empty(hook) {
            return false;
        }
        let name = |name: Option<&str>| name.and_then(name_bits).unwrap_or(0);
        let is_tracked = hook > Hook::Untracked
            && !matches!(self.ct_state, CtState::Invalid | CtState::Untracked);
        // The output is not known before the route is.
        let output = self.walk.output.as_deref().filter(|_| hook >= Hook::Forward);
        let routes = self.ways.routes(&self.network, self.mark, output);
        let no_routes = NoRoutes::default();
        let view = PacketView {
            frame: &self.frame,
            network: &self.network,
            vlan: probe.vlan,
            packet_type: 0,
            input: name(probe.input.as_deref()),
            output: name(output),
            mark: self.mark,
            priority: self.priority,
            routes: Some(routes.as_deref().unwrap_or(&no_routes)),
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
        if no_routes.asked.get() && !std::mem::replace(&mut self.walk.lacks_routes, true) {
            self.walk.remarks.push(
                "without a running router nobody knows routes: rules that ask for them (`fib`, `rt`) \
                 do not match",
            );
        }
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
        if outcome.is_rewritten {
            let length = self.network.transport_len() as usize;
            for write in self.state.writes() {
                write.apply(&mut self.frame, &mut self.network, length, ChecksumCovers::All);
            }
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
        self.readdress(Readdress {
            source: None,
            destination: Some(TransportAddress { address, port }),
        });
    }

    fn readdress(&mut self, change: Readdress) {
        let length = self.network.transport_len() as usize;
        change.apply(&mut self.frame, &mut self.network, length, ChecksumCovers::All);
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;

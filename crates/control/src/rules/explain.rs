//! Explains the steps of a packet in words.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use engine::flow_inside;
use flow::{FlowKey, Timestamp, Zone, ZonePair};
use ruleset::listing::{Live, rule_with_live};
use ruleset::probe::Probe;
use ruleset::{
    ChainId, Connection, CtState, Decision, Fate, Hook, HookWalk, Known, NatKind, NatRequest,
    Outcome, PacketView, Problem, Program, Question, RuleId, RuleState, Severity, Step, Walk,
    consult, listing, name_bits, walk,
};
use serde_json::Value;
use wire::{Carried, Family, Summary, carried};

use super::RuleBook;
use super::now::shared_state;
use crate::SCHEMA;
use crate::schema::{ExplainedStage, ExplainedStep, Explanation, RuleObject};

/// Remark on a tunnel's packet whose inner packet is missing or can not be read.
const INSIDE_UNREAD: &str = "with tunnels = \"judged\" the forward chains judge the inner packet too, \
     which can not be read here";

/// Remark on a tunnel's packet whose inside [`flow_inside`] refuses.
const INSIDE_REFUSED: &str = "with tunnels = \"judged\" it is dropped (inside_unreadable) for what \
     it carries: a fragment, or a tunnel again";

/// The program and its live state, if it has counted packets since it was loaded.
type Counted<'p> = Option<(&'p Program, &'p Live)>;

impl RuleBook {
    /// Explains what the rules do with a packet. Nothing has been counted, and sets hold the
    /// elements that they are loaded with.
    pub fn explain(&self, probe: &Probe) -> Explanation {
        let program = &self.program();
        let shared = shared_state(program, Timestamp::ZERO);
        let mut state = RuleState::new(program, &shared, Timestamp::ZERO);
        self.explain_with(program, None, Question::alone(probe), &mut state, Timestamp::ZERO)
    }

    /// As [`explain`](Self::explain), with what a gateway knows and the current elements of sets.
    /// With `live`, rules show their current counters. Changes the state as a real packet does.
    pub fn explain_with(
        &self,
        program: &Program,
        live: Option<&Live>,
        question: Question<'_>,
        state: &mut RuleState,
        now: Timestamp,
    ) -> Explanation {
        let walk = walk(program, state, question, now);
        let Question { probe, tracked, .. } = question;
        let inside = Self::inside(program, probe, walk.output.as_ref(), state, now);
        let live = live.map(|live| (program, live));
        let family = probe.network.family;
        let remarks = walk.remarks.iter().copied();
        Explanation {
            schema: SCHEMA,
            packet: Summary { frame: &probe.frame }.to_string(),
            input: probe.input.clone(),
            output: walk.output.clone(),
            state: CtState::name(tracked.state()).to_owned(),
            stages: walk.hooks.iter().map(|it| self.hook(live, it, family)).collect(),
            verdict: verdict(walk.fate).to_owned(),
            outcome: match walk.lacks_routes {
                true => format!("{}; A GUESS, since a rule asks for routes", self.outcome(&walk)),
                false => self.outcome(&walk),
            },
            is_guess: walk.lacks_routes,
            remarks: remarks
                .map(str::to_owned)
                .chain(inside)
                .chain(self.left_out_remark(family))
                .collect(),
        }
    }

    /// A remark about the objects that are left out as not supported, of tables for packets of this
    /// family.
    fn left_out_remark(&self, family: Family) -> Option<String> {
        let families = match family {
            Family::V4 => ["", "inet", "ip"],
            Family::V6 => ["", "inet", "ip6"],
        };
        let left_out = self.problems.listed().iter();
        let (concerned, others): (Vec<&Problem>, Vec<&Problem>) = left_out
            .filter(|it| it.severity == Severity::Unsupported)
            .partition(|it| families.contains(&it.place.family.as_str()));
        let others: BTreeSet<_> = others.iter().filter_map(|it| it.position).collect();
        let place = &concerned.first()?.place;
        let all = match self.left_out().len() - others.len() {
            1 => format!("without {place}, which is"),
            many => {
                format!("without {many} objects of the ruleset, of which {place} is one; they are")
            }
        };
        Some(format!("the verdict is {all} not supported and left out"))
    }

    /// The verdict of a gateway that judges the inside of tunnels about the inner packet.
    fn inside(
        program: &Program,
        probe: &Probe,
        output: Option<&String>,
        state: &mut RuleState,
        now: Timestamp,
    ) -> Option<String> {
        let flow = FlowKey::of_packet(&probe.network, Zone(0))?;
        let network = match carried(&probe.frame, &probe.network) {
            _ if !flow.key.is_tunnel() => return None,
            Some(Carried::Packet { network, .. }) if flow_inside(&network).is_some() => network,
            Some(Carried::Packet { .. }) => return Some(INSIDE_REFUSED.to_owned()),
            _ => return Some(INSIDE_UNREAD.to_owned()),
        };
        let name = |name: Option<&String>| name.and_then(|it| name_bits(it)).unwrap_or(0);
        let known =
            Known { reply: false, status: 0, mark: 0, zones: ZonePair::default(), details: None };
        let view = PacketView {
            frame: &probe.frame,
            network: &network,
            vlan: probe.vlan,
            packet_type: 0,
            input: name(probe.input.as_ref()),
            output: name(output),
            mark: probe.mark,
            priority: 0,
            routes: None,
            connection: Connection { state: CtState::New, known: Some(known) },
        };
        let verdict = match consult(program, Hook::Forward, &view, state, now).decision {
            Decision::Accept | Decision::SynProxy(_) => "accept",
            Decision::Drop | Decision::Reject(_) => "drop",
        };
        Some(format!(
            "with tunnels = \"judged\" the forward chains judge the inner packet too; if that opens \
             a connection inside, they {verdict} it"
        ))
    }

    fn hook(&self, live: Counted<'_>, walked: &HookWalk, family: Family) -> ExplainedStage {
        let HookWalk { hook, steps, outcome } = walked;
        ExplainedStage {
            stage: hook.name().to_owned(),
            steps: steps.iter().map(|step| self.step(live, *step)).collect(),
            changes: changes(outcome, family),
        }
    }

    fn step(&self, live: Counted<'_>, step: Step) -> ExplainedStep {
        match step {
            Step::Policy(chain) => {
                let place = self.place(chain);
                let accepts =
                    self.ruleset.chains()[chain.index()].base.is_none_or(|base| base.accepts);
                let text = if accepts { "policy accept" } else { "policy drop" };
                ExplainedStep { place, text: text.to_owned(), comment: None }
            }
            Step::Rule(rule) => {
                let comment = self.ruleset.rules()[rule.index()].comment.clone();
                let text = self.rule_text(live, rule);
                ExplainedStep { place: self.rule_place(rule), text, comment }
            }
        }
    }

    fn place(&self, chain: ChainId) -> RuleObject {
        let chain = &self.ruleset.chains()[chain.index()];
        RuleObject {
            family: chain.family.name().to_owned(),
            table: chain.table.clone(),
            object: "chain".to_owned(),
            name: chain.name.clone(),
            handle: chain.handle,
        }
    }

    fn rule_place(&self, rule: RuleId) -> RuleObject {
        let rule = &self.ruleset.rules()[rule.index()];
        let chain = self.place(rule.chain);
        RuleObject { object: "rule".to_owned(), handle: rule.handle, ..chain }
    }

    fn rule_text(&self, live: Counted<'_>, rule: RuleId) -> String {
        let object = match live {
            Some((program, live)) => rule_with_live(&self.document, program, live, rule),
            None => self.object(self.ruleset.rules()[rule.index()].position),
        };
        let Some(mut rule) = object else { return String::new() };
        // A field of its own shows the comment.
        let statements = rule.get_mut("expr").map(Value::take);
        listing::rule_text(&serde_json::json!({ "expr": statements }))
    }

    /// The verdict, with the rule or policy that decided.
    fn outcome(&self, walk: &Walk) -> String {
        let what = match walk.fate {
            Fate::Passes => return "accepted: it goes on its way".to_owned(),
            Fate::ToHost => {
                let host = "accepted: it goes to this host, where the kernel's chains of prerouting \
                            and input judge";
                return host.to_owned();
            }
            Fate::RefusedToHost(_) => {
                return format!(
                    "not kept from this host, whose kernel has a copy of its own: it goes there unless \
                     the kernel refuses it too; refused here{}",
                    self.decided(walk)
                );
            }
            Fate::Ends(_, Decision::Accept) => return "accepted".to_owned(),
            Fate::NoWay(reason) => {
                let why = reason.name();
                return format!("dropped: no way leads on ({why})");
            }
            Fate::Ends(_, Decision::Drop) => "dropped",
            Fate::Ends(_, Decision::Reject(_)) => "refused with an answer to its sender",
            Fate::Ends(_, Decision::SynProxy(_)) => "answered by the SYN proxy",
        };
        format!("{what}{}", self.decided(walk))
    }

    /// The hook in which a packet ends, and the rule or policy that decided.
    fn decided(&self, walk: &Walk) -> String {
        let Some(last) = walk.hooks.last() else { return String::new() };
        let by = match last.steps.last() {
            Some(Step::Rule(rule)) => {
                let place = self.rule_place(*rule);
                let handle = place.handle.map(|handle| format!(" handle {handle}"));
                let RuleObject { family, table, name, .. } = place;
                format!(" by {family} {table} chain {name} rule{}", handle.unwrap_or_default())
            }
            Some(Step::Policy(chain)) => {
                let RuleObject { family, table, name, .. } = self.place(*chain);
                format!(" by the policy of {family} {table} chain {name}")
            }
            None => String::new(),
        };
        format!(" in {}{by}", last.hook.name())
    }
}

fn verdict(fate: Fate) -> &'static str {
    match fate {
        Fate::Passes | Fate::Ends(_, Decision::Accept) => "accept",
        Fate::ToHost | Fate::RefusedToHost(_) => "host",
        Fate::Ends(_, Decision::Drop) | Fate::NoWay(_) => "drop",
        Fate::Ends(_, Decision::Reject(_)) => "reject",
        Fate::Ends(_, Decision::SynProxy(_)) => "synproxy",
    }
}

/// The effects of a hook beside its verdict.
fn changes(outcome: &Outcome, family: Family) -> Vec<String> {
    let mut changes = Vec::new();
    changes.extend(outcome.mark.map(|mark| format!("mark {mark:#x}")));
    changes.extend(outcome.priority.map(|it| format!("priority {:x}:{:x}", it >> 16, it & 0xffff)));
    changes.extend(outcome.ct_mark.map(|mark| format!("connection mark {mark:#x}")));
    changes.extend(outcome.zone.map(|zones| match zones {
        _ if zones.is_one() => format!("zone {}", zones.original.0),
        ZonePair { reply: Zone(0), original } => format!("original zone {}", original.0),
        ZonePair { reply, .. } => format!("reply zone {}", reply.0),
    }));
    if outcome.label != 0 {
        let labels =
            (0..128).filter(|bit| outcome.label >> bit & 1 == 1).map(|bit| bit.to_string());
        changes.push(format!("labels {}", labels.collect::<Vec<_>>().join(",")));
    }
    if outcome.notrack {
        changes.push("not tracked".to_owned());
    }
    changes.extend(outcome.nat.as_ref().map(|request| translation(request, family)));
    changes.extend(outcome.segment_size.map(|size| match size {
        ruleset::SegmentSize::AtMost(most) => format!("maximum segment size at most {most}"),
        ruleset::SegmentSize::PathMtu => "maximum segment size as the path takes".to_owned(),
    }));
    if outcome.is_rewritten {
        changes.push("fields of its headers set".to_owned());
    }
    if outcome.helper.is_some() {
        changes.push("the connection gets a helper".to_owned());
    }
    if outcome.timeout.is_some() {
        changes.push("the connection gets timeouts".to_owned());
    }
    if outcome.logs.asked() > 0 {
        changes.push("logged".to_owned());
    }
    changes
}

fn translation(request: &NatRequest, family: Family) -> String {
    let NatRequest { kind, address, ports, netmap, .. } = request;
    let what = match kind {
        NatKind::Source => "source translated",
        NatKind::Destination => "destination translated",
        NatKind::Masquerade => "source translated to the address of the output interface",
        NatKind::Redirect => "destination translated to the address of the input interface",
    };
    let ip = |bits: u128| -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from(bits as u32).into(),
            Family::V6 => Ipv6Addr::from(bits).into(),
        }
    };
    let mut text = what.to_owned();
    match address {
        Some(all) if all.is_one() => text += &format!(" to {}", ip(all.low)),
        Some(all) if *netmap => {
            text += &format!(" to the same host of {}-{}", ip(all.low), ip(all.high));
        }
        Some(all) => text += &format!(" to one of {}-{}", ip(all.low), ip(all.high)),
        None => {}
    }
    match ports {
        Some((low, high)) if low == high => text + &format!(" port {low}"),
        Some((low, high)) => text + &format!(" port {low}-{high}"),
        None => text,
    }
}

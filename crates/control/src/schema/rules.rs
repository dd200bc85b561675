//! Rules: problems and contents of a ruleset, and explanations of packets.

use ruleset::{Effect, Location, Problem, Severity};
use serde::{Deserialize, Serialize};

use crate::rules::HostRule;

/// An object of a ruleset, named as nftables names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleObject {
    /// Address family; empty for the document as a whole.
    pub family: String,
    /// Table.
    pub table: String,
    /// Kind of the object: `table`, `chain`, `rule`, `set`, `map` and so on.
    pub object: String,
    /// Name of the set or object, or of the chain; for a rule, of its chain.
    pub name: String,
    /// The kernel's handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
}

impl From<&Location> for RuleObject {
    fn from(place: &Location) -> Self {
        let Location { family, table, object, name, handle } = place.clone();
        Self { family, table, object: object.to_owned(), name, handle }
    }
}

/// A problem of a ruleset, or a note about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleProblem {
    /// `invalid`, `unsupported`, `left_to_kernel` or `note`. Problems that are `invalid` keep a
    /// ruleset from loading; `unsupported` ones do unless they are allowed.
    pub severity: String,
    /// The object.
    #[serde(flatten)]
    pub place: RuleObject,
    /// Path inside the object: `expr[2].match.left`. Empty for the whole object.
    pub path: String,
    /// Description.
    pub what: String,
    /// The effect of leaving it out: `stricter`, `open` (packets that it drops go on),
    /// `untranslated`, `unclear` or `side_effect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The rule as nftables prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The whole problem in one line for people.
    pub message: String,
}

impl RuleProblem {
    /// A problem; `rule` is the text of its rule, if it has one.
    pub fn new(problem: &Problem, rule: Option<String>) -> Self {
        let severity = match problem.severity {
            Severity::Invalid => "invalid",
            Severity::Unsupported => "unsupported",
            Severity::LeftToKernel => "left_to_kernel",
            Severity::Note => "note",
        };
        let effect = problem.effect.map(|effect| match effect {
            Effect::Stricter => "stricter",
            Effect::Open => "open",
            Effect::Untranslated => "untranslated",
            Effect::Unclear => "unclear",
            Effect::SideEffect => "side_effect",
        });
        Self {
            severity: severity.to_owned(),
            place: RuleObject::from(&problem.place),
            path: problem.path.clone(),
            what: problem.what.clone(),
            effect: effect.map(str::to_owned),
            rule,
            message: problem.to_string(),
        }
    }
}

/// The result of checking a ruleset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RulesReport {
    /// Schema version.
    pub schema: u32,
    /// True if it may be loaded.
    pub loadable: bool,
    /// Number of errors in the document, including unlisted ones.
    pub invalid: usize,
    /// Number of unsupported parts, including unlisted ones.
    pub unsupported: usize,
    /// Problems in the order in which they were found.
    pub problems: Vec<RuleProblem>,
    /// Its contents, if it may be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<RulesSummary>,
    /// Rules that the kernel of this host has to apply, if the check looked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels_rules: Vec<HostRule>,
    /// Warnings about what the kernel of this host does beside the rules, if the check looked for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Rules that have to see every packet of the flows that meet them, so that these flows are
    /// decided about packet by packet; each as a note, the first 1000 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_packet_rules: Vec<RuleProblem>,
}

/// The contents of a ruleset, as far as Stateway evaluates them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesSummary {
    /// Family and name of each table that has chains.
    pub tables: Vec<String>,
    /// Chains.
    pub chains: usize,
    /// Base chains, in the order in which packets pass them.
    pub base_chains: Vec<String>,
    /// Rules.
    pub rules: usize,
    /// Named sets and maps.
    pub sets: usize,
    /// Elements of all sets, including anonymous ones.
    pub elements: usize,
    /// Interfaces that rules name.
    pub interfaces: Vec<String>,
}

/// The steps of a packet through the rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Schema version.
    pub schema: u32,
    /// The packet in one line.
    pub packet: String,
    /// The input interface.
    pub input: Option<String>,
    /// The output interface.
    pub output: Option<String>,
    /// The packet's tracking state.
    pub state: String,
    /// The stages that have base chains, in order.
    pub stages: Vec<ExplainedStage>,
    /// `accept`, `drop`, `reject`, `synproxy` or `host`.
    pub verdict: String,
    /// The verdict in a sentence.
    pub outcome: String,
    /// True if another verdict is possible, because a rule asks for routes and nobody here knows them.
    #[serde(default)]
    pub is_guess: bool,
    /// Assumptions and notes.
    pub remarks: Vec<String>,
}

impl Explanation {
    /// Changes the explanation for a packet of a flow that rules have led to the host. No rules
    /// judge it but those that choose its zone.
    pub(crate) fn leave_to_host(&mut self) {
        self.stages.retain(|stage| stage.changes.iter().any(|change| change.contains("zone ")));
        self.verdict = "host".to_owned();
        self.outcome = "accepted: rules have led its flow to this host, where it stays until it \
                        ends, whatever they say now"
            .to_owned();
    }
}

/// One stage of an explanation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedStage {
    /// Its name.
    pub stage: String,
    /// Rules that matched and policies that decided, in order.
    pub steps: Vec<ExplainedStep>,
    /// Changes of the packet or its connection: marks, translation and so on.
    pub changes: Vec<String>,
}

/// A rule that matched, or a policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedStep {
    /// The rule, or the chain whose policy decided.
    #[serde(flatten)]
    pub place: RuleObject,
    /// The rule as nftables prints it, without its comment, or the policy.
    pub text: String,
    /// The operator's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// The result of loading a ruleset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadedRules {
    /// Schema version.
    pub schema: u32,
    /// Rules that were left out or are left to the kernel, and notes.
    pub problems: Vec<RuleProblem>,
    /// The contents of the ruleset.
    pub summary: Option<RulesSummary>,
    /// Interfaces that rules name and the gateway does not have.
    pub missing_interfaces: Vec<String>,
    /// Warnings for people, although the rules are in force.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Chains about the host's own traffic, which only its kernel can run.
    #[serde(default)]
    pub kernels_chains: Vec<HostRule>,
    /// Sets whose elements should have been kept and were not.
    #[serde(default)]
    pub not_kept: Vec<NotKept>,
    /// Length of the trial, in seconds; `null` if the ruleset stays.
    pub confirm_s: Option<u64>,
}

/// A set of the ruleset before whose elements the new one does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotKept {
    /// Family of its table, as nftables writes it.
    pub family: String,
    /// Table.
    pub table: String,
    /// Name.
    pub set: String,
    /// The number of elements that it had got since it was loaded.
    pub elements: usize,
    /// The reason.
    pub why: String,
}

/// A ruleset with the elements that the sets of the gateway's have got since they were loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptElements {
    /// [`SCHEMA`](crate::SCHEMA).
    pub schema: u32,
    /// The ruleset, as `nft -j list ruleset` prints it.
    pub ruleset: serde_json::Value,
    /// Sets of which some elements are not in it.
    pub not_kept: Vec<NotKept>,
}

/// The ruleset that the gateway runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ActiveRules {
    /// Schema version.
    pub schema: u32,
    /// How many times rules were loaded or removed since the start.
    pub revision: Option<u32>,
    /// Seconds since the rules were loaded.
    pub age_s: Option<u64>,
    /// Seconds that the trial still lasts; `null` if the ruleset stays.
    pub confirm_s: Option<u64>,
    /// The contents of the ruleset.
    pub summary: Option<RulesSummary>,
    /// Chains about the host's own traffic, which only its kernel can run.
    #[serde(default)]
    pub kernels_chains: Vec<HostRule>,
    /// The ruleset as `nft -j list ruleset` would print it, with the current counters and elements
    /// of sets; `null` if there is none.
    pub ruleset: Option<serde_json::Value>,
}

/// A request to change elements of a set.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeElements {
    /// Address family of the set's table.
    pub family: String,
    /// Table.
    pub table: String,
    /// Name of the set or map.
    pub set: String,
    /// `add`, `delete` or `flush`.
    pub change: String,
    /// The elements, as `nft -j` prints them; none for `flush`.
    #[serde(default)]
    pub elements: Vec<serde_json::Value>,
}

/// A request to explain a packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskRules {
    /// The packet in words, in the notation of `stateway rules explain`.
    pub packet: String,
}

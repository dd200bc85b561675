//! Rules: what is wrong with a ruleset, what it holds, and what it says of a packet.

use ruleset::{Effect, Place, Problem, Severity};
use serde::{Deserialize, Serialize};

use crate::rules::KernelsRule;

/// An object of a ruleset, named as nftables names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleObject {
    /// Address family; empty for the document as a whole.
    pub family: String,
    /// Table.
    pub table: String,
    /// What it is: `table`, `chain`, `rule`, `set`, `map` and so on.
    pub object: String,
    /// Name of the chain, also of a rule, or of the set or object.
    pub name: String,
    /// The kernel's handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
}

impl From<&Place> for RuleObject {
    fn from(place: &Place) -> Self {
        let Place { family, table, object, name, handle } = place.clone();
        Self { family, table, object: object.to_owned(), name, handle }
    }
}

/// Something that is wrong with a ruleset, not done by it, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleProblem {
    /// `invalid`, `unsupported`, `left_to_kernel` or `note`. The first two keep a ruleset
    /// from loading, `unsupported` only unless it is allowed.
    pub severity: String,
    /// Where.
    #[serde(flatten)]
    pub place: RuleObject,
    /// Where inside the object: `expr[2].match.left`. Empty for all of it.
    pub path: String,
    /// What.
    pub what: String,
    /// What leaving it out does: `stricter`, `open` (what it drops goes on), `untranslated`,
    /// `unclear` or `side_effect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The rule as nftables prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// All of it in one line for people.
    pub message: String,
}

impl RuleProblem {
    /// A problem, with the text of its rule if it is one.
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

/// What a check of a ruleset has found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RulesReport {
    /// Schema version.
    pub schema: u32,
    /// It may be loaded.
    pub loadable: bool,
    /// How many problems are errors in the document, those that are not listed included.
    pub invalid: usize,
    /// How many are about what Stateway does not do.
    pub unsupported: usize,
    /// Problems in the order in which they were found.
    pub problems: Vec<RuleProblem>,
    /// What it holds, if it may be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<RulesSummary>,
    /// Rules and chains that the kernel of this host has to carry out, where that was looked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels_rules: Vec<KernelsRule>,
}

/// What a ruleset holds of what Stateway runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesSummary {
    /// Family and name of each table that has chains.
    pub tables: Vec<String>,
    /// Chains.
    pub chains: usize,
    /// Base chains, in the order in which packets meet them.
    pub base_chains: Vec<String>,
    /// Rules.
    pub rules: usize,
    /// Named sets and maps.
    pub sets: usize,
    /// Elements of all sets, those that rules hold themselves included.
    pub elements: usize,
    /// Interfaces that rules name.
    pub interfaces: Vec<String>,
}

/// What the rules say of a packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Schema version.
    pub schema: u32,
    /// The packet in one line.
    pub packet: String,
    /// The interface that it comes in by.
    pub input: Option<String>,
    /// The interface that it goes out by.
    pub output: Option<String>,
    /// What tracking says of it.
    pub state: String,
    /// The stages that asked chains, in order.
    pub stages: Vec<ExplainedStage>,
    /// `accept`, `drop`, `reject`, `synproxy` or `host`.
    pub verdict: String,
    /// The verdict in a sentence.
    pub outcome: String,
    /// What was taken for granted.
    pub remarks: Vec<String>,
}

impl Explanation {
    /// The packet belongs to a flow that rules have led to the host, so none of them is asked but
    /// those that choose its zone.
    pub(crate) fn leave_to_host(&mut self) {
        self.stages.retain(|stage| stage.changes.iter().any(|change| change.contains("zone ")));
        self.verdict = "host".to_owned();
        self.outcome =
            "accepted: rules have led its flow to this host, and there it goes until it \
                        ends, whatever they say now"
                .to_owned();
    }
}

/// What one stage says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedStage {
    /// Its name.
    pub stage: String,
    /// Rules that matched and policies that decided, in order.
    pub steps: Vec<ExplainedStep>,
    /// What the packet or its connection gets: marks, translation and the like.
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

/// A ruleset was loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadedRules {
    /// Schema version.
    pub schema: u32,
    /// What was left out, is left to the kernel, or is worth knowing.
    pub problems: Vec<RuleProblem>,
    /// What it holds.
    pub summary: Option<RulesSummary>,
    /// Interfaces that rules name and that the gateway does not have.
    pub missing_interfaces: Vec<String>,
    /// What is not as it should be though they hold, in words for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// For how long it is tried, seconds; `null`: it stays.
    pub confirm_s: Option<u64>,
}

/// The ruleset that the gateway runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ActiveRules {
    /// Schema version.
    pub schema: u32,
    /// How often rules were loaded or taken away since the start.
    pub revision: Option<u32>,
    /// How long ago they were loaded, seconds.
    pub age_s: Option<u64>,
    /// For how much longer they are tried, seconds; `null`: they stay.
    pub confirm_s: Option<u64>,
    /// What they hold.
    pub summary: Option<RulesSummary>,
    /// As `nft -j list ruleset` would print it, with what was counted and what is in sets
    /// now; `null` if there is none.
    pub ruleset: Option<serde_json::Value>,
}

/// Asks what the rules say of a packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskRules {
    /// The packet in words, as `stateway rules explain` takes it.
    pub packet: String,
}

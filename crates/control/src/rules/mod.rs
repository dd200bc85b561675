//! A ruleset with its document, for the reports of the command line and the API.

mod elements;
mod explain;
mod host_rules;
mod iptables_tables;
mod keeper;
mod memory;
mod now;
mod repeated_element;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use axum::body::Bytes;
use engine::{Mode, check_rules};
use ruleset::{
    CompileError, CompileOptions, Document, DocumentError, Imported, Location, Options, PerPacket,
    Problem, Problems, Program, RuleId, Severity, ValidRuleset, import_document, listing,
};
use serde_json::Value;

use crate::SCHEMA;
use crate::schema::{RuleProblem, RulesReport, RulesSummary};

pub use self::host_rules::{HostRule, KernelLook};
pub use self::iptables_tables::iptables_warning;
pub use self::memory::check_memory;
pub use self::repeated_element::repeated_element;

pub(crate) use self::elements::{KeptSets, change_elements, with_kept};
pub(crate) use self::keeper::{Keeper, TryError};
pub(crate) use self::now::{explain_now, live};

/// Rules that have to see every packet of a flow which a report lists at most.
const MOST_PER_PACKET: usize = 1000;

/// The warning about a ruleset whose chains see no forwarded packets, such as that of a host that
/// forwards nothing: it opens a gateway wide.
pub const EVERYTHING_PASSES: &str = "none of its chains judges packets that are forwarded: ALL OF THEM \
                                     PASS, also those that are invalid to tracking";

/// The way to turn text in nft's own syntax into JSON.
const FROM_TEXT: &str = "this is a ruleset in nft's own syntax, where JSON is needed: `stateway rules \
     load RULES.nft` has nft read it, and `nft -j list ruleset` prints the one of a host";

/// The reason why bytes are no ruleset in any form, as words behind the name of their file; `None`
/// if they may be one with a mistake in it.
pub fn no_ruleset(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xef, 0xbb, 0xbf, ..] => Some(
            "begins with a byte order mark, which is no part of a ruleset: save it as UTF-8 \
             without one",
        ),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("is UTF-16 or no text: save it as UTF-8"),
        _ if text.iter().all(u8::is_ascii_whitespace) => Some(
            "is empty: write a ruleset as nft(8) describes it, or print the one of a host with \
             `nft list ruleset`",
        ),
        _ if text.contains(&0) || std::str::from_utf8(text).is_err() => {
            Some("is no text: a ruleset is text in nft's syntax or JSON, as UTF-8")
        }
        _ => None,
    }
}

/// A ruleset that may be loaded.
#[derive(Clone, Debug)]
pub struct RuleBook {
    file: Option<PathBuf>,
    document: Document<Bytes>,
    ruleset: ValidRuleset,
    options: CompileOptions,
    import: Options,
    problems: Problems,
    /// The document as it was loaded, if elements have changed or were kept since.
    origin: Option<Document<Bytes>>,
    /// The warning about tables of iptables, once somebody has asked for it.
    of_iptables: OnceLock<Option<String>>,
}

/// The reason why a ruleset may not be loaded, in one line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", line(&self.report))]
pub struct RulesRefused {
    /// The whole report.
    pub report: Box<RulesReport>,
}

fn line(report: &RulesReport) -> String {
    let RulesReport { invalid, unsupported, problems, .. } = report;
    let problems = problems.iter().map(|problem| match &problem.rule {
        Some(rule) => format!("{}: {rule}; ", problem.message),
        None => format!("{}; ", problem.message),
    });
    let problems: String = problems.collect();
    format!("{problems}the ruleset is refused: {invalid} invalid and {unsupported} unsupported")
}

impl RuleBook {
    /// Reads a ruleset as `nft -j list ruleset` prints it. `seed` is a secret for hash
    /// tables.
    ///
    /// # Errors
    /// [`RulesRefused`] with all problems.
    pub fn read(
        document: impl Into<Bytes>,
        options: Options,
        seed: u64,
    ) -> Result<Self, RulesRefused> {
        let refused = |what: String| {
            let place = Location::default();
            let (severity, path) = (Severity::Invalid, String::new());
            let problem = Problem { severity, place, path, what, effect: None, position: None };
            let problems = vec![RuleProblem::new(&problem, None)];
            RulesRefused { report: RulesReport::refusing(problems, 1, 0).into() }
        };
        let text: Bytes = document.into();
        let length = text.len() as u64;
        check_memory(length, length).map_err(refused)?;
        let document = Document::read(text.clone()).map_err(|error| {
            let error = match error {
                DocumentError::Json(error) => error,
                error @ DocumentError::TooLong => return refused(error.to_string()),
            };
            if let Some(what) = no_ruleset(&text) {
                return refused(format!("it {what}"));
            }
            refused(if is_text(&text) {
                FROM_TEXT.to_owned()
            } else if error.is_eof() {
                format!("it ends in the middle, so a part is missing; print it again: {error}")
            } else {
                error.to_string()
            })
        })?;
        let Imported { ruleset, problems } =
            import_document(&document, options).map_err(|error| {
                let (invalid, unsupported) = counts(&error.problems);
                let listed = problems_of(&document, error.problems.listed());
                RulesRefused { report: RulesReport::refusing(listed, invalid, unsupported).into() }
            })?;
        // A program without an index judges alike, in less memory. It judges no traffic here.
        let import = options;
        let options = CompileOptions { index: false, seed };
        Program::compile(ruleset.clone(), options)
            .map_err(|error: CompileError| refused(error.to_string()))?;
        let (file, origin, of_iptables) = (None, None, OnceLock::new());
        Ok(Self { file, document, ruleset, options, import, problems, origin, of_iptables })
    }

    /// The same ruleset, as the one of a file that a configuration names.
    #[must_use]
    pub fn of_configuration(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }

    /// The file that a configuration names for it; `None` if it came by the API.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The document of the ruleset.
    pub const fn document(&self) -> &Document<Bytes> {
        &self.document
    }

    /// Its text, as `nft -j list ruleset` prints a ruleset.
    pub fn text(&self) -> Bytes {
        self.document.text().clone()
    }

    /// The same as a value.
    pub(crate) fn value(&self) -> serde_json::Value {
        self.document.value()
    }

    /// The ruleset.
    pub const fn ruleset(&self) -> &ValidRuleset {
        &self.ruleset
    }

    /// A program that judges packets by the ruleset. It is compiled anew: a gateway has its own,
    /// and others are needed rarely.
    #[expect(clippy::expect_used, reason = "it was compiled when it was read")]
    pub fn program(&self) -> Program {
        Program::compile(self.ruleset.clone(), self.options).expect("it can be compiled")
    }

    /// The report of the import: left-out rules and notes.
    pub fn report(&self) -> RulesReport {
        let (invalid, unsupported) = counts(&self.problems);
        RulesReport {
            schema: SCHEMA,
            loadable: true,
            invalid,
            unsupported,
            problems: problems_of(&self.document, self.problems.listed()),
            summary: Some(summary(&self.ruleset)),
            kernels_rules: Vec::new(),
            warnings: Vec::new(),
            per_packet_rules: self.per_packet_rules(),
        }
    }

    /// The rules that keep flows from the fast path, and why.
    fn per_packet_rules(&self) -> Vec<RuleProblem> {
        let rules = self.ruleset.per_packet_rules();
        let note = |(rule, why): (RuleId, PerPacket)| {
            Some(Problem {
                severity: Severity::Note,
                place: self.ruleset.place_of_rule(rule.index())?,
                path: String::new(),
                what: why.to_string(),
                effect: None,
                position: None,
            })
        };
        let notes: Vec<_> = rules.into_iter().take(MOST_PER_PACKET).filter_map(note).collect();
        problems_of(&self.document, &notes)
    }

    /// Its parts that are left out as not supported, by the position of its object in the document.
    pub fn left_out(&self) -> BTreeMap<usize, String> {
        self.problems.left_out()
    }

    /// The parts of it that a gateway in this mode does not support; empty if it can load the
    /// ruleset.
    pub fn obstacles(&self, mode: Mode) -> Vec<RuleProblem> {
        problems_of(&self.document, &check_rules(&self.ruleset, mode))
    }

    /// True if no packet on its way through a gateway meets a chain of it.
    pub fn passes_everything(&self) -> bool {
        self.ruleset.chains().iter().all(|chain| chain.base.is_none())
    }

    /// Warnings about what it says, in words for people.
    pub fn warnings(&self) -> Vec<String> {
        let passes =
            self.passes_everything().then(|| format!("of the ruleset {EVERYTHING_PASSES}"));
        let of_iptables = self.of_iptables.get_or_init(|| iptables_warning(self.document.text()));
        passes.into_iter().chain(of_iptables.clone()).collect()
    }

    /// Interfaces that rules name and that are not `present`. Such rules match nothing.
    pub fn missing_interfaces(&self, present: &[String]) -> Vec<String> {
        let named = self.ruleset.interfaces().into_keys();
        named.filter(|name| !present.contains(name)).collect()
    }

    /// The object of the document at a position of its list.
    fn object(&self, position: usize) -> Option<Value> {
        let object = self.document.object(position)?;
        object.as_object()?.values().next().cloned()
    }
}

impl RulesReport {
    fn refusing(problems: Vec<RuleProblem>, invalid: usize, unsupported: usize) -> Self {
        let (summary, kernels_rules, per_packet_rules) = (None, Vec::new(), Vec::new());
        let (schema, loadable) = (SCHEMA, false);
        Self {
            schema,
            loadable,
            invalid,
            unsupported,
            problems,
            summary,
            kernels_rules,
            warnings: Vec::new(),
            per_packet_rules,
        }
    }
}

fn counts(problems: &Problems) -> (usize, usize) {
    (problems.count(Severity::Invalid), problems.count(Severity::Unsupported))
}

/// True for a document that begins like a ruleset in nft's own syntax.
fn is_text(document: &[u8]) -> bool {
    const BEGINNINGS: [&str; 8] =
        ["#", "table ", "add ", "flush ", "define ", "include ", "create ", "delete "];
    let begin = &document[..document.len().min(4096)];
    let text = String::from_utf8_lossy(begin);
    BEGINNINGS.iter().any(|word| text.trim_start().starts_with(word))
}

/// Problems with the texts of their rules.
fn problems_of(document: &Document<Bytes>, problems: &[Problem]) -> Vec<RuleProblem> {
    type Key = ([String; 3], u64);
    let key = |problem: &Problem| -> Option<Key> {
        let Location { family, table, object, name, handle } = problem.place.clone();
        handle.filter(|_| object == "rule").map(|handle| ([family, table, name], handle))
    };
    let mut texts: HashMap<Key, String> =
        problems.iter().filter_map(key).map(|key| (key, String::new())).collect();
    // Only a problem of a rule makes a search for rules worthwhile.
    let is_empty = texts.is_empty();
    for object in document.values().take_while(|_| !is_empty) {
        let Some(rule) = object.get("rule") else { continue };
        let part = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(handle) = rule.get("handle").and_then(Value::as_u64) else { continue };
        if let Some(text) = texts.get_mut(&(["family", "table", "chain"].map(part), handle)) {
            *text = listing::rule_text(rule);
        }
    }
    let tell = |problem: &Problem| {
        let text = key(problem).and_then(|key| texts.get(&key).cloned());
        RuleProblem::new(problem, text)
    };
    problems.iter().map(tell).collect()
}

fn summary(ruleset: &ValidRuleset) -> RulesSummary {
    let mut tables: Vec<String> = Vec::new();
    for chain in ruleset.chains() {
        let table = format!("{} {}", chain.family.name(), chain.table);
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    let mut bases: Vec<_> = ruleset.chains().iter().filter(|chain| chain.base.is_some()).collect();
    let order = |chain: &&ruleset::Chain| chain.base.map(|base| (base.hook, base.priority));
    bases.sort_by_key(order);
    let hook = |chain: &ruleset::Chain| chain.base.map_or("", |base| base.hook.name());
    let base_chains = bases.iter().map(|chain| {
        format!("{} {} {}: {}", chain.family.name(), chain.table, chain.name, hook(chain))
    });
    RulesSummary {
        tables,
        chains: ruleset.chains().len(),
        base_chains: base_chains.collect(),
        rules: ruleset.rules().len(),
        sets: ruleset.sets().iter().filter(|set| set.name.is_some()).count(),
        elements: ruleset.sets().iter().map(ruleset::Set::element_count).sum(),
        interfaces: ruleset.interfaces().into_keys().collect(),
    }
}

#[cfg(test)]
#[path = "../rules_tests.rs"]
mod tests;

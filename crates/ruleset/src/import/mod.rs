//! Imports `nft -j list ruleset` as a [`ValidRuleset`].
//!
//! The import walks the document value by value. Everything that it does not understand becomes a
//! [`Problem`] with its place. It collects all problems, so that one run shows everything that
//! keeps a ruleset from loading.

mod document;
mod expression;
mod graph;
mod keys;
mod nat;
mod objects;
mod reach;
mod refusals;
mod rule;
mod scope;
pub(crate) mod sets;
mod statement;
mod worst_case;

use std::collections::{HashMap, HashSet};

use serde_json::Value;

pub(crate) use self::expression::kind_of;
pub use self::refusals::reason_for_refusal;

use self::document::{Object, Opened, Sorted};
use self::reach::{Reached, Without};
use self::rule::Reader;
use self::scope::{Names, Scope};
use crate::compile::is_dynamic;
use crate::document::{Document, DocumentError};
use crate::elements::Elements;
use crate::hook::{Hook, TableFamily};
use crate::kind::{Kind, outline};
use crate::limits::{MAX_CHAINS, MAX_DOCUMENT_BYTES, MAX_ELEMENTS, MAX_RULES, MAX_SETS};
use crate::model::{Base, Chain, ChainId, HostChain, Parts, Rule, SetId, ValidRuleset};
use crate::problem::{Effect, Fault, Location, Path, Problem, Problems, Severity};

/// Prefix of the tables that a running gateway makes in the kernel; its process number and the
/// table's number follow. Such tables are no part of the operator's rules.
pub const OWN_TABLE_PREFIX: &str = "stateway_";

/// How a ruleset is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Leave out rules that are not supported, instead of refusing the ruleset. Their problems say
    /// what that does: packets pass that a left-out rule would drop.
    pub allow_unsupported: bool,
}

/// A ruleset that may be used, with its problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The ruleset.
    pub ruleset: ValidRuleset,
    /// Rules that were left out or are left to the kernel, and notes.
    pub problems: Problems,
}

/// The error for a ruleset that may not be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{problems}the ruleset is refused: {}", reasons(problems))]
pub struct Refused {
    /// Everything that is wrong with the ruleset.
    pub problems: Problems,
}

fn reasons(problems: &Problems) -> String {
    let [invalid, unsupported] =
        [Severity::Invalid, Severity::Unsupported].map(|severity| problems.count(severity));
    format!("{invalid} invalid and {unsupported} unsupported")
}

/// The key of a table: its family as written, and its name.
type TableKey = (String, String);

/// Flags of tables that nft knows.
const TABLE_FLAGS: [&str; 3] = ["dormant", "owner", "persist"];

/// True for a table that a running gateway has made.
fn is_own(table: &str) -> bool {
    let numbers = table.strip_prefix(OWN_TABLE_PREFIX).map(|numbers| numbers.split('_'));
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    numbers.is_some_and(|mut numbers| numbers.all(is_number))
}

fn table_key(place: &Location) -> TableKey {
    (place.family.clone(), place.table.clone())
}

/// Reads and validates a ruleset as `nft -j list ruleset` prints it.
///
/// # Errors
/// [`Refused`] with all problems, unless the options allow those that there are.
pub fn import(document: &[u8], options: Options) -> Result<Imported, Refused> {
    let refused = |what: String| {
        let mut problems = Problems::default();
        let (severity, place) = (Severity::Invalid, Location::default());
        let (path, effect, position) = (String::new(), None, None);
        problems.push(Problem { severity, place, path, what, effect, position });
        Refused { problems }
    };
    match Document::read(document) {
        Ok(document) => import_document(&document, options),
        Err(DocumentError::TooLong) => {
            Err(refused(format!("more than {MAX_DOCUMENT_BYTES} bytes")))
        }
        Err(DocumentError::Json(error)) => Err(refused(format!("no JSON: {error}"))),
    }
}

/// As [`import`], for a parsed value.
///
/// # Errors
/// Those of [`import`].
pub fn import_value(document: &Value, options: Options) -> Result<Imported, Refused> {
    import(document.to_string().as_bytes(), options)
}

/// As [`import`], for a document that was read.
///
/// # Errors
/// Those of [`import`].
pub fn import_document(
    document: &Document<impl AsRef<[u8]>>,
    options: Options,
) -> Result<Imported, Refused> {
    let mut problems = Problems::default();
    let document = document::read(document, &mut problems);
    let Import { problems, parts, .. } = read(&document, &problems);
    let refused = problems.count(Severity::Invalid) > 0
        || (problems.count(Severity::Unsupported) > 0 && !options.allow_unsupported);
    if refused {
        return Err(Refused { problems });
    }
    Ok(Imported { ruleset: ValidRuleset::new(parts), problems })
}

/// Reads the objects of a document, which has these problems already.
///
/// Chains that only elements to come can lead to are read if they are understood. Those that are
/// not must not refuse a ruleset that does not need them.
fn read(document: &Sorted<'_>, before: &Problems) -> Import {
    let mut without = Without::default();
    loop {
        let (import, reached) = Import::of(document, before.clone(), &without);
        let (chains, others) = reached.faults_of_waiting(&import.problems);
        without = match without {
            _ if chains.is_empty() && !others => return import,
            Without::Chains(known) if known.is_empty() && !others => Without::Chains(chains),
            Without::Chains(_) => Without::All,
            // Without them there is nothing of theirs that could be wrong.
            Without::All => return import,
        };
    }
}

/// A table whose chains the gateway evaluates.
struct Table {
    family: TableFamily,
    names: Names,
}

struct Import {
    problems: Problems,
    tables: HashMap<TableKey, Table>,
    parts: Parts,
    /// Chains that the gateway does not evaluate, so that their rules are not read.
    left_out: HashSet<(TableKey, String)>,
}

impl Import {
    fn of(document: &Sorted<'_>, problems: Problems, without: &Without) -> (Self, Reached) {
        let (tables, parts, left_out) = (HashMap::new(), Parts::default(), HashSet::new());
        let mut import = Self { problems, tables, parts, left_out };
        import.declare_tables(document);
        let reached = import.declare_chains(document, without);
        import.declare_objects(document, &reached);
        import.fill_sets(document, &reached);
        import.read_rules(document);
        import.check_graph();
        import.order_bases();
        import.note_guards_of_host();
        (import, reached)
    }

    fn fault(&mut self, object: &Object<'_>, fault: Fault) {
        let Fault { severity, path, what } = fault;
        self.problems.push(object.problem(severity, &path, what));
    }

    fn declare_tables(&mut self, document: &Sorted<'_>) {
        for object in &document.tables {
            let name = &object.place.family;
            let problem = match TableFamily::named(name) {
                Some(TableFamily::Inet) if is_own(&object.place.table) => {
                    (Severity::Note, "a running gateway made this table for itself: left out")
                }
                Some(_) if object.open().has_flag("dormant") => {
                    (Severity::Note, "the table is dormant and not used")
                }
                Some(_) if !object.open().has_no_flag_but(&TABLE_FLAGS) => {
                    let what = "the table has a flag that no nft knows; nft 1.0.6 prints `dormant` so \
                                in JSON: load the file in nft's own syntax, or correct the flag";
                    (Severity::Invalid, what)
                }
                Some(family) => {
                    let table = Table { family, names: Names::default() };
                    if self.tables.insert(table_key(&object.place), table).is_none() {
                        continue;
                    }
                    (Severity::Invalid, "there are two tables of this name")
                }
                None => match name.as_str() {
                    "arp" => (Severity::LeftToKernel, "ARP is answered by the kernel"),
                    "bridge" | "netdev" => {
                        (Severity::Unsupported, "tables of this family; their rules are not run")
                    }
                    _ => (Severity::Invalid, "no address family"),
                },
            };
            self.problems.push(object.problem(problem.0, "", problem.1));
        }
    }

    /// Declares the chains that forwarded packets can reach, now or when elements lead there, and
    /// leaves out the others.
    fn declare_chains(&mut self, document: &Sorted<'_>, without: &Without) -> Reached {
        let mut bases = HashMap::new();
        for object in &document.chains {
            let key = table_key(&object.place);
            if !self.tables.contains_key(&key) {
                self.check_table(document, object);
                continue;
            }
            let opened = object.open();
            if opened.fields.get("hook").is_none() {
                continue;
            }
            let name = object.place.name.clone();
            match base(&opened) {
                Ok(base) => drop(bases.insert((key, name), base)),
                Err(problem) => {
                    let is_kernels = problem.severity == Severity::LeftToKernel;
                    let chain = is_kernels.then(|| host_chain(&opened));
                    self.parts.host_chains.extend(chain.filter(|chain| {
                        let is_its = |rule: &Object<'_>| {
                            table_key(&rule.place) == key && rule.place.name == name
                        };
                        chain.policy != "accept" || document.rules.iter().any(is_its)
                    }));
                    self.problems.push(*problem);
                    self.left_out.insert((key, name));
                }
            }
        }
        let reached = reach::find(document, bases.keys(), without);
        for object in &document.chains {
            let key = table_key(&object.place);
            let Some(table) = self.tables.get_mut(&key) else { continue };
            let full = (key, object.place.name.clone());
            if !reached.chains.contains(&full) {
                self.left_out.insert(full);
                continue;
            }
            let base = bases.get(&full).copied();
            let name = full.1;
            let problem = if self.parts.chains.len() >= MAX_CHAINS {
                "too many chains"
            } else {
                let id = ChainId(self.parts.chains.len() as u32);
                if base.is_some() {
                    table.names.bases.insert(name.clone(), ());
                }
                match table.names.chains.insert(name.clone(), id) {
                    Some(_) => "there are two chains of this name",
                    None => {
                        let (family, table) = (table.family, object.place.table.clone());
                        let handle = object.handle;
                        let rules = 0..0;
                        self.parts.chains.push(Chain { family, table, name, handle, base, rules });
                        continue;
                    }
                }
            };
            self.problems.push(object.problem(Severity::Invalid, "", problem));
        }
        reached
    }

    /// Reports an object of an unused table if there is no such table.
    fn check_table(&mut self, document: &Sorted<'_>, object: &Object<'_>) {
        let key = table_key(&object.place);
        if !document.tables.iter().any(|table| table_key(&table.place) == key) {
            self.problems.push(object.problem(Severity::Invalid, "", "there is no such table"));
        }
    }

    fn declare_objects(&mut self, document: &Sorted<'_>, reached: &Reached) {
        for object in &document.named {
            let key = table_key(&object.place);
            match self.tables.get_mut(&key) {
                Some(table) => {
                    let declared =
                        objects::declare(&object.open(), &mut table.names, &mut self.parts);
                    if let Err(fault) = declared {
                        self.fault(object, fault);
                    }
                }
                None => self.check_table(document, object),
            }
        }
        for object in &document.sets {
            let key = table_key(&object.place);
            let Some(table) = self.tables.get_mut(&key) else {
                self.check_table(document, object);
                continue;
            };
            let name = object.place.name.clone();
            let needed = reached.sets.contains(&(key, name.clone()));
            let fault = match sets::declaration(&object.open(), table.family) {
                Ok(_) if self.parts.sets.len() >= MAX_SETS => {
                    Path::root("set").invalid("too many sets")
                }
                Ok(set) => {
                    self.parts.sets.push(set);
                    let id = SetId(self.parts.sets.len() as u32 - 1);
                    match table.names.sets.insert(name, Some(id)) {
                        None => continue,
                        Some(_) => Path::root("name").invalid("there are two sets of this name"),
                    }
                }
                Err(fault) => {
                    table.names.sets.insert(name, None);
                    // A rule that needs the set reports this itself.
                    if !needed && fault.severity == Severity::Unsupported {
                        continue;
                    }
                    fault
                }
            };
            self.fault(object, fault);
        }
    }

    fn fill_sets(&mut self, document: &Sorted<'_>, reached: &Reached) {
        let mut total = 0;
        for object in &document.sets {
            let key = table_key(&object.place);
            let Some(table) = self.tables.get(&key) else { continue };
            let Some(Some(id)) = table.names.sets.get(&object.place.name).copied() else {
                continue;
            };
            // A set whose elements have a state is listed from that, also if no rule asks it.
            let is_asked = reached.sets.contains(&(key.clone(), object.place.name.clone()));
            if !is_asked && !is_dynamic(&self.parts.sets[id.index()]) {
                continue;
            }
            let count = object.element_count();
            let root = Path::root("elem");
            total += count;
            if total > MAX_ELEMENTS {
                self.fault(
                    object,
                    root.invalid(format!("more than {MAX_ELEMENTS} elements in all")),
                );
                return;
            }
            let (family, name) = (table.family, object.place.table.as_str());
            let scope = Scope { family, table: name, names: &table.names };
            let set = &self.parts.sets[id.index()];
            let (mut elements, mut faults) = (Elements::new(&set.key, &set.data), Vec::new());
            elements.reserve(count);
            let problems = &mut self.problems;
            object.each_element(|at, value| {
                let path = root.index(at.unwrap_or(0));
                faults.extend(sets::push(&mut elements, &value, set, &scope, &path).err());
                if set.key == [Kind::Interface] && value.is_number() {
                    let what = format!("the interface {} does not exist", outline(&value));
                    problems.push(object.problem(Severity::Note, &path.to_string(), what));
                }
            });
            let set = &mut self.parts.sets[id.index()];
            set.elements = elements;
            faults.extend(sets::check_disjoint(set, &root).err());
            let matters = |fault: &Fault| is_asked || fault.severity == Severity::Invalid;
            for Fault { severity, path, what } in faults.into_iter().filter(matters) {
                let mut problem = object.problem(severity, &path, what);
                // Packets that meet the element meet no other one, or `*`.
                problem.effect = (severity == Severity::Unsupported).then_some(Effect::Unclear);
                self.problems.push(problem);
            }
        }
    }

    fn read_rules(&mut self, document: &Sorted<'_>) {
        // The kernel lists the rules of a chain together, but other documents need not.
        let mut of_chain: HashMap<(TableKey, &str), Vec<&Object<'_>>> = HashMap::new();
        for object in &document.rules {
            let key = (table_key(&object.place), object.place.name.as_str());
            of_chain.entry(key).or_default().push(object);
        }
        if document.rules.len() > MAX_RULES {
            let what = format!("more than {MAX_RULES} rules");
            let fault = Path::root("rules").invalid(what);
            self.fault(&document.rules[MAX_RULES], fault);
            return;
        }
        self.parts.rules.reserve_exact(document.rules.len());
        for object in &document.chains {
            let key = (table_key(&object.place), object.place.name.as_str());
            let Some(rules) = of_chain.remove(&key) else { continue };
            let Some(table) = self.tables.get(&key.0) else { continue };
            if self.left_out.contains(&(key.0.clone(), key.1.to_owned())) {
                continue;
            }
            let Some(&chain) = table.names.chains.get(key.1) else { continue };
            let begin = self.parts.rules.len() as u32;
            for object in rules {
                self.read_rule(object, chain);
            }
            self.parts.chains[chain.index()].rules = begin..self.parts.rules.len() as u32;
        }
        let mut lost: Vec<&Object<'_>> = of_chain.into_values().flatten().collect();
        lost.sort_by_key(|object| object.handle);
        for object in lost {
            let key = table_key(&object.place);
            if self.tables.contains_key(&key)
                && !self.left_out.contains(&(key, object.place.name.clone()))
            {
                let what = "there is no such chain";
                self.problems.push(object.problem(Severity::Invalid, "", what));
            }
        }
    }

    fn read_rule(&mut self, object: &Object<'_>, chain: ChainId) {
        let object = &object.open();
        let Some(Value::Array(statements)) = object.fields.get("expr") else {
            let what = "a rule without the list `expr`";
            self.problems.push(object.problem(Severity::Invalid, "expr", what));
            return;
        };
        let Self { problems, tables, parts, .. } = self;
        let Some(table) = tables.get(&table_key(&object.place)) else { return };
        let (family, name) = (table.family, object.place.table.as_str());
        let scope = Scope { family, table: name, names: &table.names };
        let mut reader = Reader { scope, parts, notes: Vec::new() };
        let read = reader.rule(statements);
        for (path, what) in std::mem::take(&mut reader.notes) {
            problems.push(object.problem(Severity::Note, &path, what));
        }
        match read {
            Ok(items) => {
                let comment = object.text("comment").map(str::to_owned);
                let handle = object.handle;
                let position = object.position;
                parts.rules.push(Rule { chain, handle, comment, position, items });
            }
            Err(faults) => {
                let effect = statement::effect(statements);
                for Fault { severity, path, what } in faults {
                    let mut problem = object.problem(severity, &path, what);
                    problem.effect = (severity == Severity::Unsupported).then_some(effect);
                    problems.push(problem);
                }
            }
        }
    }

    fn check_graph(&mut self) {
        for graph::Flaw { severity, chain, rule, what } in graph::check(&self.parts) {
            let chain = &self.parts.chains[chain.index()];
            let rule = rule.map(|rule| &self.parts.rules[rule.index()]);
            let place = Location {
                family: chain.family.name().to_owned(),
                table: chain.table.clone(),
                object: if rule.is_some() { "rule" } else { "chain" },
                name: chain.name.clone(),
                handle: rule.map_or(chain.handle, |rule| rule.handle),
            };
            let path = String::new();
            let (effect, position) = (None, rule.map(|rule| rule.position));
            self.problems.push(Problem { severity, place, path, what, effect, position });
        }
    }

    /// Notes the chains of prerouting that may drop packets. They judge what is for the host, too, and
    /// the gateway can not keep that from the kernel, which has a copy of its own.
    fn note_guards_of_host(&mut self) {
        let guards = (0..).map(ChainId).zip(&self.parts.chains).filter(|(id, chain)| {
            chain.base.is_some_and(|base| base.hook < Hook::Forward) && self.parts.may_drop(*id)
        });
        let guards: Vec<_> = guards
            .map(|(_, chain)| HostChain {
                family: chain.family.name().to_owned(),
                table: chain.table.clone(),
                name: chain.name.clone(),
                hook: "prerouting".to_owned(),
                policy: match chain.base {
                    Some(Base { accepts: false, .. }) => "drop",
                    _ => "accept",
                }
                .to_owned(),
            })
            .collect();
        self.parts.host_chains.extend(guards);
    }

    /// Orders base chains by priority. Of equal ones the kernel asks the chain that came last
    /// first.
    fn order_bases(&mut self) {
        let Parts { chains, bases, .. } = &mut self.parts;
        for (id, chain) in chains.iter().enumerate().rev() {
            if let Some(base) = chain.base {
                bases[base.hook as usize].push(ChainId(id as u32));
            }
        }
        for hook in bases {
            hook.sort_by_key(|id| chains[id.index()].base.map(|base| base.priority));
        }
    }
}

/// A base chain that we leave to the kernel.
fn host_chain(object: &Opened<'_, '_>) -> HostChain {
    let Location { family, table, name, .. } = Location::clone(&object.place);
    let text = |key: &str| object.text(key).map(str::to_owned);
    let policy = text("policy").unwrap_or_else(|| "accept".to_owned());
    HostChain { family, table, name, hook: text("hook").unwrap_or_default(), policy }
}

/// A base chain that the gateway evaluates; the problem says why it does not.
fn base(object: &Opened<'_, '_>) -> Result<Base, Box<Problem>> {
    let hook = object.text("hook").unwrap_or_default();
    let kind = object.text("type").unwrap_or_default();
    let problem = |severity, what: &str| Box::new(object.problem(severity, "", what));
    let priority = object.fields.get("prio").and_then(Value::as_i64);
    let priority = priority.and_then(|priority| i32::try_from(priority).ok());
    let priority =
        priority.ok_or_else(|| problem(Severity::Invalid, "`prio` is not a number of 32 bits"))?;
    let accepts = match object.text("policy") {
        Some("accept") | None => true,
        Some("drop") => false,
        Some(_) => return Err(problem(Severity::Invalid, "the policy is neither accept nor drop")),
    };
    let found = match (kind, hook) {
        ("filter" | "nat", "input") | ("filter" | "nat" | "route", "output") => {
            let what = "the host's own traffic; Stateway does not read its rules";
            return Err(problem(Severity::LeftToKernel, what));
        }
        ("filter", hook) => Hook::of_filter(hook, priority),
        ("nat", hook) => Hook::of_nat(hook),
        _ => None,
    };
    let hook = found.ok_or_else(|| match (kind, hook) {
        ("filter", "ingress" | "egress") => {
            problem(Severity::Unsupported, "chains of ingress and egress")
        }
        _ => problem(Severity::Invalid, "there is no such type of chain at that hook"),
    })?;
    Ok(Base { hook, priority, accepts })
}

#[cfg(test)]
#[path = "../import_tests.rs"]
mod tests;

//! The operator's ruleset, as the kernel's nftables prints it in JSON.
//!
//! [`import()`] turns `nft -j list ruleset` into a [`ValidRuleset`], or lists everything that is
//! wrong with it. [`Program::compile`] compiles it to instructions, with an index over long chains.
//! [`evaluate()`] judges a packet by them:
//!
//! ```
//! use flow::Timestamp;
//! use ruleset::{CompileOptions, Options, Program, RuleState, SharedState, Hook, import};
//!
//! let document = br#"{"nftables": []}"#;
//! let imported = import(document, Options::default()).expect("it is right");
//! let options = CompileOptions { index: true, seed: 7 };
//! let program = Program::compile(imported.ruleset, options).expect("it is small");
//! let shared = SharedState::new(&program, Timestamp::ZERO);
//! let state = RuleState::new(&program, &shared, Timestamp::ZERO);
//! assert!(program.is_empty(Hook::Forward));
//! # drop(state);
//! ```
//!
//! A gateway evaluates the [`Hook`]s of a packet in their order and leaves out those that [are
//! empty](Program::is_empty). It puts the changes of a hook ([`Outcome`]) into the [`PacketView`]
//! of the next.
//!
//! # State that changes
//!
//! A [`Program`] does not change: a reload makes a new one beside it. The [`RuleState`] of each
//! worker holds everything that changes. Workers share nothing that they would write for every
//! packet:
//!
//! - *Counters* belong to a worker; readers add them up.
//! - *Rates* are one shared number each, the time up to which the rate is used up. Packets over
//!   the limit only read the number. Packets within it write it, so writes are at most as frequent
//!   as the rate allows.
//! - *Quotas*: workers take pieces of the quota, and take back pieces of others at its end.
//! - *Sets that rules fill* are shared, in shards behind locks. Only packets of rules that ask for
//!   them take a lock.

mod arrivals;
mod attached;
mod compile;
mod contents;
mod document;
mod elements;
mod evaluate;
mod field;
mod fingerprint;
mod generator;
mod hook;
mod host_copies;
mod import;
mod interfaces;
mod kind;
mod leaving;
pub mod limits;
pub mod listing;
mod model;
mod names;
mod needs;
pub mod probe;
mod problem;
mod reachable;
#[cfg(test)]
mod testing;
mod translations;
mod walk;

pub use attached::{Helper, SynProxy, TimeoutObject, TimeoutState};
pub use compile::{CompileError, CompileOptions, PerPacket, Program};
pub use contents::{Contents, ElementChange, ElementProblem, Kept};
pub use document::{Document, DocumentError, each_object};
pub use evaluate::{
    Connection, Counted, CounterMoves, CtState, Decider, Decision, Details, ElementCursor,
    ElementRecord, ElementRefusal, Interface, Known, Logs, NamedElements, NatRequest, Outcome,
    PacketView, Place, Progress, QuotaProgress, RouteQuestion, Routes, RuleState, SegmentSize,
    SharedState, Side, Step, Tuple, consult, evaluate, evaluate_into, explain,
};
pub use field::{ClockField, CtField, Field, Guard, HeaderBits, Layer, Looked, RouteLookup};
pub use hook::{Hook, TableFamily};
pub use host_copies::HostCopies;
pub use import::{
    Imported, OWN_TABLE_PREFIX, Options, Refused, import, import_document, import_value,
    reason_for_refusal,
};
pub use kind::{Interval, Kind, address_bits, name_bits};
pub use leaving::{Leaving, NameConditions};
pub use model::{
    Base, Chain, ChainId, Counter, CounterId, HelperId, HostChain, Limit, LimitId, Log, LogId,
    NatFlags, NatId, NatKind, Quota, QuotaId, Rate, Reject, Rule, RuleId, Set, SetId, SynProxyId,
    TimeoutId, Unreachable, ValidRuleset, Verdict,
};
pub use needs::Need;
pub use problem::{Effect, Location, Problem, Problems, Severity};
pub use translations::{Ending, EndsAt, Forwarded, Translations};
pub use walk::{Fate, HookWalk, OutputInterface, Question, Tracked, Walk, Ways, walk};

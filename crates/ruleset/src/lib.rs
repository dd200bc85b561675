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
//! let shared = SharedState::new(&program, 2);
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
//! - *Rates* are exact over all workers. A rate is one shared number, the time up to which it is
//!   used up. Packets over the limit only read the number. Packets within it write it, so writes
//!   are at most as frequent as the rate allows.
//! - *Quotas*: workers lease pieces of the quota, never more than the whole.
//! - *Sets that rules fill* are a copy for each worker. A worker tells the others what it has
//!   changed ([`RuleState::take_updates`], [`RuleState::apply`]).
//! - *Rates in elements* of such sets are divided: each worker allows its share, as with the limit
//!   of half-open connections of a source. A hash spreads the flows of one source.

mod attached;
mod compile;
mod document;
mod elements;
mod evaluate;
mod field;
mod generator;
mod hook;
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
mod translations;
mod walk;

pub use attached::{Helper, SynProxy, TimeoutPolicy, TimeoutState};
pub use compile::{CompileError, CompileOptions, PerPacket, Program};
pub use document::{Document, DocumentError};
pub use evaluate::{
    Connection, Counted, CtState, Decider, Decision, Details, ElementUpdate, Known, Logs,
    NatRequest, Outcome, PacketView, RouteQuestion, Routes, RuleState, SegmentSize, SharedState,
    Side, Step, Tuple, consult, evaluate, explain,
};
pub use field::{ClockField, CtField, Field, Guard, HeaderBits, Layer, Looked, RouteLookup};
pub use hook::{Hook, TableFamily};
pub use import::{
    Imported, OWN_TABLE_PREFIX, Options, Refused, import, import_document, import_value,
};
pub use kind::{Interval, Kind, name_bits};
pub use leaving::{Leaving, NameConditions};
pub use model::{
    Base, Chain, ChainId, Counter, CounterId, HelperId, HostChain, Limit, LimitId, Log, LogId,
    NatFlags, NatId, NatKind, Quota, QuotaId, Rate, Reject, Rule, RuleId, Set, SetId, SynProxyId,
    TimeoutId, Unreachable, ValidRuleset, Verdict,
};
pub use needs::Need;
pub use problem::{Effect, Place, Problem, Problems, Severity};
pub use translations::{Ending, EndsAt, Forwarded, Translations};
pub use walk::{Exit, Fate, HookWalk, Question, Tracked, Walk, walk};

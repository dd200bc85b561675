//! The operator's ruleset, as the kernel's nftables prints it in JSON.
//!
//! [`import()`] turns `nft -j list ruleset` into a [`ValidRuleset`], or says everything that
//! keeps it from that. [`Program::compile`] makes instructions of it, with an index over long
//! chains. [`evaluate()`] judges a packet by them:
//!
//! ```
//! use flow::Timestamp;
//! use ruleset::{CompileOptions, Options, Program, RuleState, SharedState, Stage, import};
//!
//! let document = br#"{"nftables": []}"#;
//! let imported = import(document, Options::default()).expect("it is right");
//! let options = CompileOptions { index: true, seed: 7 };
//! let program = Program::compile(imported.ruleset, options).expect("it is small");
//! let shared = SharedState::new(&program, 2);
//! let state = RuleState::new(&program, &shared, Timestamp::ZERO);
//! assert!(program.is_empty(Stage::Forward));
//! # drop(state);
//! ```
//!
//! A gateway asks the [`Stage`]s of a packet in their order and leaves out those that
//! [are empty](Program::is_empty). What a stage changes ([`Outcome`]) is in the
//! [`PacketView`] of the next.
//!
//! # What changes while packets are judged
//!
//! A [`Program`] does not change, so a reload is a new one beside it. What changes is in the
//! [`RuleState`] of each worker, which shares nothing that it writes for every packet:
//!
//! - *Counters* are added up by who reads them.
//! - *Rates* are exact over all workers: a rate is one number, the time up to which it is
//!   used up. Packets over it only read the number; what passes writes it, at most as often
//!   as the rate allows.
//! - *Quotas* are leased in pieces, inside the quota.
//! - *Sets that rules fill* are a copy for each worker. A worker tells the others what it has
//!   changed ([`RuleState::take_updates`], [`RuleState::apply`]).
//! - *Rates in elements* of such sets are divided: each worker allows its share, as the limit
//!   of half-open connections of a source is. Flows of one source are spread by a hash.

mod attached;
mod compile;
mod document;
mod elements;
mod evaluate;
mod field;
mod import;
mod interfaces;
mod kind;
pub mod limits;
pub mod listing;
mod model;
mod names;
mod needs;
pub mod probe;
mod problem;
mod stage;
mod translations;
mod walk;

pub use attached::{Helper, SynProxy, TimeoutPolicy, TimeoutState};
pub use compile::{CompileError, CompileOptions, PerPacket, Program};
pub use document::{Document, DocumentError};
pub use evaluate::{
    Connection, Counted, CtState, Decider, Decision, Details, ElementUpdate, Known, Logs,
    NatRequest, Outcome, PacketView, RuleState, SegmentSize, SharedState, Step, Tuple, consult,
    evaluate, explain,
};
pub use field::{CtField, Field, Guard, HeaderBits, Layer};
pub use import::{
    Imported, OWN_TABLE_PREFIX, Options, Refused, import, import_document, import_value,
};
pub use kind::{Interval, Kind, name_bits};
pub use model::{
    Base, Chain, ChainId, Counter, CounterId, HelperId, HostChain, Limit, LimitId, Log, LogId,
    NatFlags, NatId, NatKind, Quota, QuotaId, Rate, Reject, Rule, RuleId, Set, SetId, SynProxyId,
    TimeoutId, Unreachable, ValidRuleset, Verdict,
};
pub use needs::Need;
pub use problem::{Effect, Place, Problem, Problems, Severity};
pub use stage::{Stage, TableFamily};
pub use translations::{Ending, EndsAt, Forwarded, Translations};
pub use walk::{Fate, StageWalk, Tracked, Walk, walk};

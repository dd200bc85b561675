//! The operator's ruleset, as the kernel's nftables prints it in JSON.
//!
//! [`import()`] turns `nft -j list ruleset` into a [`ValidRuleset`], or says everything that
//! keeps it from that.

mod field;
mod import;
mod kind;
pub mod limits;
mod model;
mod names;
mod problem;
mod stage;

pub use field::{CtField, Field, Guard, HeaderBits, Layer};
pub use import::{Imported, Options, Refused, import, import_value};
pub use kind::{Interval, Kind, name_bits};
pub use model::{
    Base, Chain, ChainId, Counter, CounterId, Helper, HelperId, Limit, LimitId, Log, LogId,
    NatFlags, NatId, NatKind, Quota, QuotaId, Rate, Reject, Rule, RuleId, Set, SetId, SynProxy,
    SynProxyId, TimeoutId, TimeoutPolicy, Unreachable, ValidRuleset, Verdict,
};
pub use problem::{Effect, Place, Problem, Problems, Severity};
pub use stage::{Stage, TableFamily};

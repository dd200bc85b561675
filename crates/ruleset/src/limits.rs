//! Bounds for rulesets. They bound the time and memory of loading, and the work for each packet.

/// The longest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;
/// The largest number of chains.
pub const MAX_CHAINS: usize = 1 << 16;
/// The largest number of rules of all chains.
pub const MAX_RULES: usize = 1 << 20;
/// The largest number of sets and maps, anonymous ones included.
pub const MAX_SETS: usize = 1 << 18;
/// The largest number of elements of all sets.
pub const MAX_ELEMENTS: usize = 1 << 22;
/// The largest number of expressions of a rule. The kernel's own bound is also 128.
pub const MAX_RULE_ITEMS: usize = 128;
/// The largest number of fields of a concatenation: the kernel's registers have 64 bytes, 4 for
/// each field.
pub const MAX_KEY_FIELDS: usize = 16;
/// The largest number of bytes of a key, each field rounded up to 4.
pub const MAX_KEY_BYTES: usize = 64;
/// The largest number of chains inside one another by jumps, as in the kernel.
pub const MAX_JUMP_DEPTH: usize = 16;
/// Rules that one packet may meet in a hook at worst, a rule as often as the packet comes to it.
/// The largest chain without jumps has as many. The kernel bounds the jumps of all tables
/// (`nf_tables_jumps_max_netns`, 256,000), which leaves out how long the chains are.
pub const MAX_RULES_MET: u64 = MAX_RULES as u64;
/// The largest number of expressions inside one another.
pub const MAX_EXPRESSION_DEPTH: usize = 16;
/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// The largest number of problems that are listed one by one; more are only counted.
pub const MAX_PROBLEMS: usize = 10_000;
/// Elements that a set of no declared size may take from packets.
pub const DEFAULT_DYNAMIC_SIZE: u32 = 65_535;
/// The largest number of elements that one set may take from packets.
pub const MAX_DYNAMIC_SIZE: u32 = 1 << 20;
/// The largest number of prefixes into which the ranges of one set of concatenations are cut.
pub const MAX_TUPLES: usize = 1 << 22;

//! Bounds of what is loaded. Whatever a ruleset holds, loading it ends and takes bounded
//! memory, and evaluating it is bounded per packet.

/// Longest document, bytes.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;
/// Most chains.
pub const MAX_CHAINS: usize = 1 << 16;
/// Most rules of all chains.
pub const MAX_RULES: usize = 1 << 20;
/// Most sets and maps, anonymous ones included.
pub const MAX_SETS: usize = 1 << 18;
/// Most elements of all sets.
pub const MAX_ELEMENTS: usize = 1 << 22;
/// Most expressions of a rule; the kernel's bound for one is 128 of its own.
pub const MAX_RULE_ITEMS: usize = 128;
/// Most fields of a concatenation: 64 bytes of 4 (the kernel's registers).
pub const MAX_KEY_FIELDS: usize = 16;
/// Most bytes of a key, each field rounded up to 4.
pub const MAX_KEY_BYTES: usize = 64;
/// Chains inside one another by jumps, as in the kernel.
pub const MAX_JUMP_DEPTH: usize = 16;
/// Rules that one packet may meet in a stage at worst, a rule as often as the packet comes to it.
/// The largest chain without jumps has as many. The kernel bounds the jumps of all tables
/// (`nf_tables_jumps_max_netns`, 256,000), which leaves out how long the chains are.
pub const MAX_RULES_MET: u64 = MAX_RULES as u64;
/// Expressions inside one another.
pub const MAX_EXPRESSION_DEPTH: usize = 16;
/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Problems that are told one by one; beyond, they are counted.
pub const MAX_PROBLEMS: usize = 10_000;
/// Elements that a set may take from packets, unless it says how many.
pub const DEFAULT_DYNAMIC_SIZE: u32 = 65_535;
/// Most elements that one set may take from packets.
pub const MAX_DYNAMIC_SIZE: u32 = 1 << 20;
/// Most prefixes into which the ranges of one set of concatenations are cut.
pub const MAX_TUPLES: usize = 1 << 22;

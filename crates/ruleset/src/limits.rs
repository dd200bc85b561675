//! Bounds for rulesets. They bound the time and memory of loading, and the work for each packet.

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
/// Most expressions of a rule. The kernel's own bound is also 128.
pub const MAX_RULE_ITEMS: usize = 128;
/// Most fields of a concatenation: the kernel's registers have 64 bytes, 4 for each field.
pub const MAX_KEY_FIELDS: usize = 16;
/// Most bytes of a key, each field rounded up to 4.
pub const MAX_KEY_BYTES: usize = 64;
/// Most chains inside one another by jumps, as in the kernel.
pub const MAX_JUMP_DEPTH: usize = 16;
/// Most expressions inside one another.
pub const MAX_EXPRESSION_DEPTH: usize = 16;
/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Most problems that are listed one by one; more are only counted.
pub const MAX_PROBLEMS: usize = 10_000;
/// Elements that a set of no declared size may take from packets.
pub const DEFAULT_DYNAMIC_SIZE: u32 = 65_535;
/// Most elements that one set may take from packets.
pub const MAX_DYNAMIC_SIZE: u32 = 1 << 20;
/// Most prefixes into which the ranges of one set of concatenations are cut.
pub const MAX_TUPLES: usize = 1 << 22;

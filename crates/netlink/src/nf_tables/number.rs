//! Numbers of nf_tables (linux/netfilter/nf_tables.h), in the groups of that file.

/// Messages.
pub mod message {
    pub const NEW_TABLE: u16 = 0;
    pub const DELETE_TABLE: u16 = 2;
    pub const NEW_CHAIN: u16 = 3;
    pub const GET_CHAIN: u16 = 4;
    pub const NEW_RULE: u16 = 6;
    pub const NEW_SET: u16 = 9;
    pub const NEW_ELEMENTS: u16 = 12;
    pub const NEW_GENERATION: u16 = 15;
    pub const GET_GENERATION: u16 = 16;
}

/// Attribute of a generation.
pub const GENERATION: u16 = 1;

/// Attributes of a table.
pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    /// Flag: the table has an owner.
    pub const OWNER: u32 = 2;
}

/// Attributes of a chain.
pub mod chain {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const USE: u16 = 6;
    pub const TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
}

/// Attributes of a rule.
pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const EXPRESSIONS: u16 = 4;
}

/// Attributes of an expression.
pub mod expression {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;
}

/// An element of any list.
pub const LIST_ELEMENT: u16 = 1;

/// Attributes of data.
pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
}

/// Verdicts.
pub mod verdict {
    pub const DROP: u32 = 0;
    pub const ACCEPT: u32 = 1;
    pub const JUMP: u32 = -3_i32 as u32;
    pub const GOTO: u32 = -4_i32 as u32;
}

/// Attributes of a set.
pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LENGTH: u16 = 5;
    pub const DESCRIPTION: u16 = 9;
    pub const ID: u16 = 10;
    pub const USER_DATA: u16 = 13;
    pub const DESCRIPTION_SIZE: u16 = 1;
    /// Flag: the kernel names the set and deletes it with its rule.
    pub const ANONYMOUS: u32 = 1;
    /// Flag: the set does not change.
    pub const CONSTANT: u32 = 2;
    pub const EXPIRES: u16 = 11;
    /// Flag: the set holds ranges.
    pub const INTERVAL: u32 = 4;
    /// Flag: elements are forgotten after a time.
    pub const TIMEOUT: u32 = 0x10;
    /// Flag: rules add elements.
    pub const EVALUATED: u32 = 0x20;
}

/// Attributes of elements of a set.
pub mod element {
    pub const TABLE: u16 = 1;
    pub const SET: u16 = 2;
    pub const LIST: u16 = 3;
    pub const SET_ID: u16 = 4;
    pub const KEY: u16 = 1;
    pub const FLAGS: u16 = 3;
    /// Flag: the first value behind a range.
    pub const INTERVAL_END: u32 = 1;
}

/// Registers, which pass values between expressions.
pub mod register {
    pub const VERDICT: u32 = 0;
    pub const FIRST: u32 = 1;
    /// The first four bytes of [`FIRST`]; the next numbers are those of the bytes behind them.
    pub const FIRST_WORD: u32 = 8;
}

/// Attributes of the expression `immediate`.
pub mod immediate {
    pub const REGISTER: u16 = 1;
    pub const DATA: u16 = 2;
}

/// Attributes of the expression `cmp`, and its operations.
pub mod cmp {
    pub const REGISTER: u16 = 1;
    pub const OPERATION: u16 = 2;
    pub const DATA: u16 = 3;
    pub const EQUAL: u32 = 0;
    pub const NOT_EQUAL: u32 = 1;
}

/// Attributes of the expression `range`. Its operations are those of `cmp`.
pub mod range {
    pub const REGISTER: u16 = 1;
    pub const OPERATION: u16 = 2;
    pub const FROM: u16 = 3;
    pub const TO: u16 = 4;
}

/// Attributes of the expression `lookup`.
pub mod lookup {
    pub const SET: u16 = 1;
    pub const REGISTER: u16 = 2;
    pub const SET_ID: u16 = 4;
}

/// Attributes of the expression `dynset`, and its operation.
pub mod dynset {
    pub const SET: u16 = 1;
    pub const OPERATION: u16 = 3;
    pub const KEY: u16 = 4;
    /// Operation: add the element, or begin its time anew.
    pub const UPDATE: u32 = 1;
}

/// Attributes of the expression `bitwise`.
pub mod bitwise {
    pub const REGISTER: u16 = 1;
    pub const INTO: u16 = 2;
    pub const LENGTH: u16 = 3;
    pub const MASK: u16 = 4;
    pub const XOR: u16 = 5;
}

/// Attributes of the expression `meta`, and its keys.
pub mod meta {
    pub const INTO: u16 = 1;
    pub const KEY: u16 = 2;
    pub const FROM: u16 = 3;
    pub const INPUT_INDEX: u32 = 4;
    pub const OUTPUT_INDEX: u32 = 5;
    pub const INPUT_NAME: u32 = 6;
    pub const FAMILY: u32 = 15;
    pub const PROTOCOL: u32 = 16;
    pub const PACKET_TYPE: u32 = 19;
    pub const INPUT_KIND: u32 = 26;
}

/// Attributes of the expression `payload`, and the headers that it reads.
pub mod payload {
    pub const INTO: u16 = 1;
    pub const BASE: u16 = 2;
    pub const OFFSET: u16 = 3;
    pub const LENGTH: u16 = 4;
    pub const LINK: u32 = 0;
    pub const NETWORK: u32 = 1;
    pub const TRANSPORT: u32 = 2;
}

/// Attributes of the expression `fib`, and its result.
pub mod fib {
    pub const INTO: u16 = 1;
    pub const RESULT: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const ADDRESS_TYPE: u32 = 3;
    /// Flag: look up the destination.
    pub const DESTINATION: u32 = 2;
}

/// Attributes of the expression `socket`, and its keys.
pub mod socket {
    pub const KEY: u16 = 1;
    pub const INTO: u16 = 2;
    pub const TRANSPARENT: u32 = 0;
    pub const WILDCARD: u32 = 2;
}

/// Attributes of the expression `ct`, and its keys.
pub mod ct {
    pub const INTO: u16 = 1;
    pub const KEY: u16 = 2;
    pub const DIRECTION: u16 = 3;
    pub const ORIGINAL: u8 = 0;
    pub const WAY: u32 = 1;
    pub const STATUS: u32 = 2;
    pub const DESTINATION_PORT: u32 = 12;
    pub const SOURCE_V4: u32 = 19;
    pub const DESTINATION_V4: u32 = 20;
    pub const SOURCE_V6: u32 = 21;
    pub const DESTINATION_V6: u32 = 22;
}

/// Types of set elements for nft(8), and the data that it attaches to a set.
pub mod shown {
    pub const INTEGER: u32 = 4;
    pub const ADDRESS_V4: u32 = 7;
    pub const ADDRESS_V6: u32 = 8;
    pub const STATION: u32 = 9;
    pub const PROTOCOL: u32 = 12;
    pub const PORT: u32 = 13;
    pub const INTERFACE_INDEX: u32 = 20;
    pub const INTERFACE: u32 = 41;
    /// Item: the order of bytes.
    pub const ORDER: u8 = 0;
    pub const NATIVE: u32 = 1;
    pub const MOST_SIGNIFICANT_FIRST: u32 = 2;
}

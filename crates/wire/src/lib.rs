//! Reading and writing packet headers, without state.
//!
//! [`dissect`] makes one pass over a frame and returns a [`Dissected`]: the place of each
//! header, the addresses and ports, and the other fields by which the stages above decide. It
//! never panics, whatever the bytes are; a frame that it can not read gives a [`Malformed`]
//! that names the header.

pub mod build;
mod came_in;
pub mod checksum;
mod claimed;
pub mod control_segment;
mod crc32c;
pub mod dccp;
mod dissect;
mod dissected;
mod extension;
mod fault;
mod field_write;
pub mod fragment;
mod headers;
mod hop;
mod icmp;
pub mod icmp_error;
mod ip;
mod ip_option;
mod ip_writer;
mod link;
mod mend;
mod payload;
mod readdress;
mod rewrite;
pub mod sctp;
pub mod segment;
mod summary;
mod tcp_editor;
pub mod tcp_option;
mod transport;
mod whole;

pub use came_in::CameIn;
pub use claimed::ClaimedFragment;
pub use dissect::{Carried, carried, dissect, inside};
pub use dissected::{
    Dissected, Family, FragmentInfo, IcmpError, IcmpQuery, Malformed, Network, QueryKind, Quoted,
    QuotedTransport, TcpFlags, TcpInfo, Transport, mapped, protocol,
};
pub use fault::fault;
pub use field_write::FieldWrite;
pub use headers::{cover_missing, headers_end};
pub use hop::{give_hop, hops_left, set_identification, set_stations, take_hop};
pub use icmp_error::is_single_host;
pub use ip_option::{RefusedOption, Waypoint, check_options, has_ipv4_options, record_waypoint};
pub use link::{
    ETHERNET_LEN, FIRST_ETHERTYPE, LinkProtocol, is_read_behind, priority_tags, vlan_of,
};
pub use mend::{mend_headers, needs_mending};
pub use payload::edit_payload;
pub use readdress::{ChecksumCovers, Readdress, TransportAddress};
pub use rewrite::rewrite_ends;
pub use summary::Summary;
pub use tcp_editor::{TcpEditor, map_quoted};
pub use whole::{whole_header, whole_header_len};

/// The bytes from `offset` on; empty if there are none.
#[inline]
fn tail(bytes: &[u8], offset: u16) -> &[u8] {
    bytes.get(usize::from(offset)..).unwrap_or_default()
}

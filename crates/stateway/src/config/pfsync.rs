//! The table `[sync]` with `protocol = "pfsync"`: peers that run pf, or speak as pf does.

use std::net::IpAddr;

use engine::Role;
use sync::pfsync::{CreatorId, Dialect, MULTICAST_V4, MULTICAST_V6};

use super::document::{Reader, Section, flag, number, show, text};
use super::sync::{interface, role};

/// `maxupd` of pfsync.
const DEFAULT_MAXUPD: u8 = 128;
/// The version that is spoken if the configuration names no other: that of FreeBSD 14.
const DEFAULT_VERSION: Dialect = Dialect::Version1400;

/// State sync with gateways that speak pfsync.
#[derive(Clone, Debug)]
pub struct PfsyncConfig {
    /// The dialect.
    pub version: Dialect,
    /// The receiver of packets: the multicast group, or one host, which is then the only sender.
    pub peer: IpAddr,
    /// The interface to the peers.
    pub interface: String,
    /// Updates of a TCP state that one message tells of.
    pub maxupd: u8,
    /// The first packet of a connection waits until a peer has the connection.
    pub defer: bool,
    /// Number of this gateway; `None`: a random one.
    pub hostid: Option<CreatorId>,
    /// The part that this gateway has at the start.
    pub role: Role,
}

/// Reads the table. `None` if a key is missing or wrong; then a problem is noted.
pub(super) fn read(reader: &mut Reader<'_>, mut section: Section<'_>) -> Option<PfsyncConfig> {
    let version = section.read(reader, "version", |value| {
        let found = number(value, 0, u16::MAX.into()).ok().and_then(Dialect::of_number);
        found.ok_or_else(|| format!("{} is not allowed; allowed: 1301, 1400, 1500, 6", show(value)))
    });
    let version = version.unwrap_or(DEFAULT_VERSION);
    let peer_at = section.place_of("peer");
    let peer = section.read(reader, "peer", |value| peer(text(value, "an address")?));
    let peer = peer.unwrap_or(IpAddr::V4(MULTICAST_V4));
    if peer.is_ipv6() && matches!(version, Dialect::Version1301 | Dialect::Version6) {
        let what = "pf speaks pfsync over IPv6 in the versions 1400 and 1500 only; give an IPv4 \
                    address, or version = 1400";
        reader.note(peer_at, "sync.peer", what);
    }
    if !section.has("interface") {
        let what = "is missing; for example interface = \"sync0\"";
        reader.note(section.offset, "sync.interface", what);
    }
    let interface = interface(reader, &mut section);
    let maxupd = section.read(reader, "maxupd", |value| number(value, 1, u8::MAX.into()));
    let defer = section.read(reader, "defer", flag);
    let hostid = section.read(reader, "hostid", |value| {
        let hostid = number(value, 1, u32::MAX as usize as u64)?;
        CreatorId::new(hostid as u32).ok_or_else(|| "0 names no gateway".to_owned())
    });
    let role = role(reader, &mut section);
    section.finish(reader);
    Some(PfsyncConfig {
        version,
        peer,
        interface: interface?,
        maxupd: maxupd.map_or(DEFAULT_MAXUPD, |it| it as u8),
        defer: defer.unwrap_or(false),
        hostid,
        role,
    })
}

/// A multicast group of pfsync, or one host.
fn peer(address: &str) -> Result<IpAddr, String> {
    let peer: IpAddr = address.parse().map_err(|_| format!("{address:?} is not an address"))?;
    let is_group = peer == IpAddr::V4(MULTICAST_V4) || peer == IpAddr::V6(MULTICAST_V6);
    match is_group || super::sync::is_one_host(peer) {
        true => Ok(peer),
        false => Err(format!(
            "{peer} is neither the address of one host nor a group of pfsync: {MULTICAST_V4}, \
             {MULTICAST_V6}"
        )),
    }
}

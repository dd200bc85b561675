//! The table `[sync]`: the peer to which connections are copied.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::Role;
use sync::{NodeId, NodeName, PreSharedKey};

use super::MAX_INTERFACE_NAME;
use super::document::{Reader, Section, choice, number, show, text};
use super::pfsync::{self, PfsyncConfig};

/// The UDP port that peers use if the configuration names no other.
const DEFAULT_PORT: u16 = 4780;
/// The longest time that a packet may wait for the peer, in milliseconds: a client sends its SYN
/// again after that (RFC 6298 section 2.1).
const MAX_DEFER_MS: u64 = 1000;
/// The longest file with a key, in bytes.
const MAX_KEY_BYTES: u64 = 4096;
/// Permissions that nobody but the owner of a key may have.
const OTHERS: u32 = 0o077;

/// State sync.
#[derive(Clone, Debug)]
pub enum SyncConfig {
    /// With a gateway of this kind.
    Native(NativeConfig),
    /// With gateways that speak pfsync.
    Pfsync(PfsyncConfig),
}

impl SyncConfig {
    /// The interface to the peers.
    pub fn interface(&self) -> &str {
        match self {
            Self::Native(it) => &it.interface,
            Self::Pfsync(it) => &it.interface,
        }
    }
}

/// State sync with a peer.
#[derive(Clone, Debug)]
pub struct NativeConfig {
    /// Number of this node.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// The peer's address.
    pub peer: IpAddr,
    /// The interface to the peer.
    pub interface: String,
    /// The UDP port of both.
    pub port: u16,
    /// The file with the key that both have.
    pub key_file: PathBuf,
    /// Line of that key, for messages.
    pub key_line: usize,
    /// The part that this node has at the start.
    pub role: Role,
    /// The first packet of a connection waits until the peer has the connection, or for so long;
    /// `None`: it does not wait.
    pub defer: Option<Duration>,
}

impl NativeConfig {
    /// Reads the key that both peers have.
    ///
    /// # Errors
    /// The problem, for a message that names the line of the configuration.
    pub fn key(&self) -> Result<PreSharedKey, String> {
        let path = self.key_file.display();
        let read = || {
            let file = File::open(&self.key_file)?;
            let metadata = file.metadata()?;
            let mut bytes = Vec::new();
            file.take(MAX_KEY_BYTES + 1).read_to_end(&mut bytes)?;
            Ok((metadata, bytes))
        };
        let (metadata, mut bytes) =
            read().map_err(|error: std::io::Error| format!("{path} can not be read: {error}"))?;
        if metadata.mode() & OTHERS != 0 {
            return Err(format!("others may read {path}; run: chmod 600 {path}"));
        }
        if bytes.len() as u64 > MAX_KEY_BYTES {
            return Err(format!("{path} has more than {MAX_KEY_BYTES} bytes, so it is no key"));
        }
        // An editor may have added the end of a line.
        let end = bytes.iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(0, |at| at + 1);
        bytes.truncate(end);
        PreSharedKey::new(&bytes).map_err(|error| format!("{path}: {error}"))
    }
}

/// The protocol of state sync.
#[derive(Clone, Copy)]
enum Protocol {
    Native,
    Pfsync,
}

/// Reads the table. `None` if a key is missing or wrong; then a problem is noted.
pub(super) fn read(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    file: &Path,
) -> Option<SyncConfig> {
    let protocols = [("native", Some(Protocol::Native)), ("pfsync", Some(Protocol::Pfsync))];
    let protocol = section.read(reader, "protocol", |value| choice(value, &protocols));
    match protocol.unwrap_or(Protocol::Native) {
        Protocol::Native => read_native(reader, section, file).map(SyncConfig::Native),
        Protocol::Pfsync => pfsync::read(reader, section).map(SyncConfig::Pfsync),
    }
}

fn read_native(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    file: &Path,
) -> Option<NativeConfig> {
    let offset = section.offset;
    for (key, example) in [
        ("node", "node = 1; peers have different numbers"),
        ("peer", "peer = \"192.0.2.2\""),
        ("interface", "interface = \"sync0\""),
        ("key_file", "key_file = \"sync.key\""),
    ] {
        if !section.has(key) {
            reader.note(
                offset,
                &format!("sync.{key}"),
                format!("is missing; for example {example}"),
            );
        }
    }
    let node = section.read(reader, "node", |value| {
        let node = number(value, 1, u16::MAX.into())? as u16;
        NonZeroU16::new(node).map(NodeId).ok_or_else(|| "0 names no node".to_owned())
    });
    let name = section.read(reader, "name", |value| {
        NodeName::new(text(value, "the name of this node")?).map_err(|error| error.to_string())
    });
    let peer = section.read(reader, "peer", |value| {
        let peer: IpAddr = text(value, "an IPv4 or IPv6 address")?
            .parse()
            .map_err(|_| format!("{} is not an address", show(value)))?;
        match is_one_host(peer) {
            true => Ok(peer),
            false => Err(format!("{peer} is not the address of one host")),
        }
    });
    let interface = interface(reader, &mut section);
    let port = section.read(reader, "port", |value| number(value, 1, u16::MAX.into()));
    let key_line = reader.line(section.place_of("key_file"));
    let key_file = section.read(reader, "key_file", |value| {
        let path = Path::new(text(value, "the path of a file")?);
        Ok(file.parent().unwrap_or(Path::new("")).join(path))
    });
    let role = role(reader, &mut section);
    let defer_ms = section.read(reader, "defer_ms", |value| number(value, 1, MAX_DEFER_MS));
    section.finish(reader);
    let node = node?;
    // A name of this form can name a node.
    let name = name.or_else(|| NodeName::new(&format!("node{node}")).ok())?;
    Some(NativeConfig {
        node,
        name,
        peer: peer?,
        interface: interface?,
        port: port.map_or(DEFAULT_PORT, |port| port as u16),
        key_file: key_file?,
        key_line,
        role,
        defer: defer_ms.map(Duration::from_millis),
    })
}

/// The interface to the peers.
pub(super) fn interface(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<String> {
    section.read(reader, "interface", |value| {
        let name = text(value, "the name of an interface")?;
        match (1..=MAX_INTERFACE_NAME).contains(&name.len()) {
            true => Ok(name.to_owned()),
            false => Err(format!("{name:?} is not the name of an interface")),
        }
    })
}

/// The part of this gateway at the start.
pub(super) fn role(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Role {
    let roles = [("active", Some(Role::Active)), ("standby", Some(Role::Standby))];
    section.read(reader, "role", |value| choice(value, &roles)).unwrap_or(Role::Standby)
}

/// True for the address of a single host.
pub(super) fn is_one_host(address: IpAddr) -> bool {
    !(address.is_multicast() || address.is_unspecified() || is_broadcast(address))
}

fn is_broadcast(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_broadcast())
}

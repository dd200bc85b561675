//! Lines of connection tables, as `conntrack -L` prints them.

use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::topology::Lab;

/// One line, without the parts that change between two looks (time left, use count and mark).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackLine {
    /// Name of the protocol, such as `tcp`.
    pub protocol: String,
    /// Number of the protocol.
    pub number: u8,
    /// State, such as `ESTABLISHED`; `None` for protocols without states.
    pub state: Option<String>,
    /// The direction of the first packet.
    pub original: Tuple,
    /// The other direction.
    pub reply: Tuple,
    /// The words in brackets, such as `ASSURED`, in order.
    pub flags: Vec<String>,
}

/// Addresses and ports of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source and destination port, for protocols with ports.
    pub ports: Option<(u16, u16)>,
}

impl ConntrackLine {
    /// Reads a line; `None` if the text is not such a line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (protocol, number) = (*words.first()?, words.get(1)?.parse().ok()?);
        let is_state = |word: &&&str| word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        let (first, second) = {
            let mut starts = (0..words.len()).filter(|at| words[*at].starts_with("src="));
            (starts.next()?, starts.next()?)
        };
        let bracketed = |word: &&str| {
            word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).map(str::to_owned)
        };
        Some(Self {
            protocol: protocol.to_owned(),
            number,
            state: words[2..first].iter().find(is_state).map(|word| (*word).to_owned()),
            original: Tuple::parse(&words[first..second])?,
            reply: Tuple::parse(&words[second..])?,
            flags: words.iter().filter_map(bracketed).collect(),
        })
    }

    /// All connection lines of a listing.
    #[must_use]
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }
}

impl Tuple {
    fn parse(words: &[&str]) -> Option<Self> {
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        let port = |name: &str| value(name)?.parse().ok();
        Some(Self {
            source: value("src=")?.parse().ok()?,
            destination: value("dst=")?.parse().ok()?,
            ports: port("sport=").zip(port("dport=")),
        })
    }
}

/// The connection table of the kernel as gateway.
///
/// # Errors
/// [`crate::Error::Unavailable`] if `conntrack` is not installed, [`crate::Error::Failed`] if
/// it may not read the table.
pub fn kernel_conntrack(lab: &Lab) -> Result<Vec<ConntrackLine>> {
    let mut lines = Vec::new();
    for family in ["ipv4", "ipv6"] {
        let program = lab.gateway().program("conntrack").args(["-L", "-f", family]);
        lines.extend(ConntrackLine::parse_all(&program.check()?));
    }
    Ok(lines)
}

/// A helper of the kernel: its name, and the protocol and destination port of the connections
/// that it reads.
pub type KernelHelper<'a> = (&'a str, &'a str, u16);

/// Attaches helpers of the kernel to the connections that a namespace forwards.
///
/// # Errors
/// [`Error::Unavailable`] if the kernel does not have them, or `nft` is not installed.
pub fn attach_kernel_helpers(namespace: &Namespace, helpers: &[KernelHelper<'_>]) -> Result<()> {
    let (mut objects, mut rules) = (String::new(), String::new());
    for (name, protocol, port) in helpers {
        objects += &format!("ct helper {name} {{ type \"{name}\" protocol {protocol}; }}\n");
        rules += &format!("{protocol} dport {port} ct helper set \"{name}\"\n");
    }
    let chain = "type filter hook forward priority filter - 1; policy accept;";
    let table =
        format!("table inet helpers {{\n{objects}chain forward {{\n{chain}\n{rules}}}\n}}\n");
    let output = namespace.program("nft").args(["-f", "-"]).input(table).run()?;
    if output.code == Some(0) {
        return Ok(());
    }
    let names: Vec<&str> = helpers.iter().map(|(name, ..)| *name).collect();
    let why =
        format!("this kernel has no helper for {}: {}", names.join(" or "), output.stderr.trim());
    Err(Error::Unavailable { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_tool_is_read() {
        let line = "tcp      6 431999 ESTABLISHED src=192.0.2.1 dst=198.51.100.2 sport=50000 \
            dport=80 src=198.51.100.2 dst=198.51.100.254 sport=80 dport=1024 [ASSURED] mark=0 use=1";
        let read = ConntrackLine::parse(line).unwrap();
        assert_eq!((read.protocol.as_str(), read.number), ("tcp", 6));
        assert_eq!(read.state.as_deref(), Some("ESTABLISHED"));
        assert_eq!(read.original.ports, Some((50000, 80)));
        assert_eq!(read.reply.destination.to_string(), "198.51.100.254");
        assert_eq!(read.flags, ["ASSURED"]);
    }

    #[test]
    fn lines_without_a_state_or_a_reply_are_read() {
        let line = "udp      17 29 src=2001:db8::1 dst=2001:db8::2 sport=1 dport=2 [UNREPLIED] \
            src=2001:db8::2 dst=2001:db8::1 sport=2 dport=1 mark=0 use=1";
        let read = ConntrackLine::parse(line).unwrap();
        assert_eq!((read.state, read.flags), (None, vec!["UNREPLIED".to_owned()]));
        let line = "icmp     1 29 src=192.0.2.1 dst=192.0.2.2 type=8 code=0 id=7 \
            src=192.0.2.2 dst=192.0.2.1 type=0 code=0 id=7 mark=0 use=1";
        assert_eq!(ConntrackLine::parse(line).unwrap().original.ports, None);
        assert_eq!(ConntrackLine::parse("conntrack v1.4.7: 2 flow entries have been shown."), None);
    }
}

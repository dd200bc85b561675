//! The chains that the kernel has.

use std::io;

use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlaBuffer, NlasIterator};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::message::{Message, NF_TABLES};
use super::number;

/// Header of netfilter in front of the attributes, bytes.
const HEADER: usize = 4;

/// A chain of the kernel that packets meet by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// Address family of its table, as nft(8) writes it.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where packets meet it, as nft(8) writes it.
    pub hook: &'static str,
    /// The chain accepts packets that no rule decides; otherwise it drops them.
    pub accepts: bool,
}

/// The chains of the families `ip`, `ip6` and `inet` that packets meet by themselves, in the
/// network namespace of this process.
///
/// # Errors
/// Where the kernel has no nf_tables, or this process lacks CAP_NET_ADMIN.
pub fn base_chains() -> io::Result<Vec<BaseChain>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    let mut bytes = Vec::new();
    Message::asking_for_all(number::message::GET_CHAIN).write(1, &mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    let mut chains = Vec::new();
    loop {
        let (bytes, from) = match socket.recv_from_full() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        // Anybody may send to the socket; only the kernel has port 0.
        if from.port_number() != 0 {
            continue;
        }
        let mut rest = bytes.as_slice();
        while let Ok(message) = NetlinkBuffer::new_checked(rest) {
            match message.message_type() {
                NLMSG_DONE => return Ok(chains),
                NLMSG_ERROR => {
                    let code =
                        message.payload().first_chunk().map_or(0, |it| i32::from_ne_bytes(*it));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                kind if kind == NF_TABLES << 8 | number::message::NEW_CHAIN => {
                    chains.extend(base_chain(message.payload()));
                }
                _ => {}
            }
            let length = (message.length() as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn base_chain(message: &[u8]) -> Option<BaseChain> {
    let (header, attributes) = message.split_at_checked(HEADER)?;
    let family = match header[0] {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        _ => return None,
    };
    let text = |kind| {
        let value = attribute(attributes, kind)?;
        let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    };
    let hook = attribute(attributes, number::chain::HOOK)?;
    let hook = match number_of(&hook, number::chain::HOOK_NUMBER)? {
        0 => "prerouting",
        1 => "input",
        2 => "forward",
        3 => "output",
        4 => "postrouting",
        _ => return None,
    };
    let accepts = number_of(attributes, number::chain::POLICY)? == number::verdict::ACCEPT;
    let (table, name) = (text(number::chain::TABLE)?, text(number::chain::NAME)?);
    Some(BaseChain { family, table, name, hook, accepts })
}

fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = all.find(|attribute: &NlaBuffer<&[u8]>| attribute.kind() == kind)?;
    Some(found.value().to_vec())
}

fn number_of(attributes: &[u8], kind: u16) -> Option<u32> {
    attribute(attributes, kind)?.first_chunk().map(|it| u32::from_be_bytes(*it))
}

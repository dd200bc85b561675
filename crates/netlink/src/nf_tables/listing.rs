//! The chains that the kernel has.

use std::io;
use std::ops::ControlFlow;

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
    /// It has no rules.
    pub is_empty: bool,
    /// It is of the type `nat`: its rules translate the first packets of connections.
    pub is_nat: bool,
}

impl BaseChain {
    /// True if the chain may translate the sources of packets that the host sends or forwards.
    pub fn translates_sources(&self) -> bool {
        self.is_nat && !self.is_empty && self.hook == "postrouting"
    }

    /// True if the chain may translate the destinations of packets that come in.
    pub fn translates_destinations(&self) -> bool {
        self.is_nat && !self.is_empty && self.hook == "prerouting"
    }
}

/// The chains of the families `ip`, `ip6` and `inet` that packets meet by themselves, in the
/// network namespace of this process.
///
/// # Errors
/// Where the kernel has no nf_tables, or this process lacks CAP_NET_ADMIN.
pub fn base_chains() -> io::Result<Vec<BaseChain>> {
    Asker::new()?.chains()
}

/// The same chains, listed anew only after a change.
#[derive(Debug)]
pub struct BaseChains {
    asker: Asker,
    /// The generation of the kernel's rules that was listed last.
    generation: Option<u32>,
    chains: Vec<BaseChain>,
}

impl BaseChains {
    /// Lists nothing yet.
    ///
    /// # Errors
    /// The system's error, if it has no nf_tables or no socket left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { asker: Asker::new()?, generation: None, chains: Vec::new() })
    }

    /// The chains as they are now.
    ///
    /// # Errors
    /// As for [`base_chains`], and if the chains change while they are listed.
    pub fn now(&mut self) -> io::Result<&[BaseChain]> {
        let generation = self.asker.generation()?;
        if self.generation != Some(generation) {
            self.generation = None;
            self.chains = self.asker.chains()?;
            if self.asker.generation()? != generation {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.generation = Some(generation);
        }
        Ok(&self.chains)
    }
}

/// Asks nf_tables.
#[derive(Debug)]
struct Asker {
    socket: Socket,
    /// The number of the last question.
    sequence: u32,
}

impl Asker {
    fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0 })
    }

    fn chains(&mut self) -> io::Result<Vec<BaseChain>> {
        let mut chains = Vec::new();
        let question = Message::asking_for_all(number::message::GET_CHAIN);
        self.ask(&question, |kind, payload| {
            if kind == number::message::NEW_CHAIN {
                chains.extend(base_chain(payload));
            }
            ControlFlow::Continue(())
        })?;
        Ok(chains)
    }

    /// The number of the state of all rules. It changes with every change of them.
    fn generation(&mut self) -> io::Result<u32> {
        let mut generation = None;
        self.ask(&Message::asking_for(number::message::GET_GENERATION), |kind, payload| {
            if kind == number::message::NEW_GENERATION {
                let attributes = payload.get(HEADER..).unwrap_or_default();
                generation = number_of(attributes, number::GENERATION);
            }
            ControlFlow::Break(())
        })?;
        generation.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Asks, and hands each answer to `take`: its kind and its content. The last one is the one at
    /// which `take` says so, or that of the kernel.
    fn ask(
        &mut self,
        question: &Message,
        mut take: impl FnMut(u16, &[u8]) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        question.write(self.sequence, &mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        loop {
            let (bytes, from) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            // Anybody may send to the socket; only the kernel has port 0.
            if from.port_number() != 0 {
                continue;
            }
            let mut rest = bytes.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                let length = (message.length() as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                // An answer to an earlier question is of no interest.
                if message.sequence_number() != self.sequence {
                    continue;
                }
                match message.message_type() {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code =
                            message.payload().first_chunk().map_or(0, |it| i32::from_ne_bytes(*it));
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    kind => {
                        let is_of_tables = kind >> 8 == NF_TABLES;
                        if is_of_tables && take(kind & 0xff, message.payload()).is_break() {
                            return Ok(());
                        }
                    }
                }
            }
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
    let is_empty = number_of(attributes, number::chain::USE) == Some(0);
    let is_nat = text(number::chain::TYPE).is_some_and(|kind| kind == "nat");
    Some(BaseChain { family, table, name, hook, accepts, is_empty, is_nat })
}

fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = all.find(|attribute: &NlaBuffer<&[u8]>| attribute.kind() == kind)?;
    Some(found.value().to_vec())
}

fn number_of(attributes: &[u8], kind: u16) -> Option<u32> {
    attribute(attributes, kind)?.first_chunk().map(|it| u32::from_be_bytes(*it))
}

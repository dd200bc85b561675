//! Tables of nf_tables that this process owns.
//!
//! A table with an owner belongs to a netlink socket (flag `owner` of nft(8), Linux 5.12). No other
//! process can change or delete it. The kernel deletes it when the socket closes, however the
//! process ends. So the table depends on no other process, and leaves nothing behind.
//!
//! A [`Table`] describes a table; [`Owner`] makes it in the kernel. This module has only the parts
//! of nf_tables that the gateway needs.

mod listing;
mod message;
mod number;
mod recent;
mod rule;

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

pub use listing::{BaseChain, BaseChains, base_chains};
pub(crate) use message::Message;
pub use recent::{KeyFields, RecentKeys};
pub use rule::{Field, MAX_RANGES, Match, PACKET_OTHERHOST, Rule, Verdict};

/// The largest number of bytes of messages in one transaction, beside its last rule. By default,
/// the kernel takes twice as much from a socket (`net.core.wmem_default`).
const TRANSACTION: usize = 96 << 10;

/// A table of family `inet`: for packets of IPv4 and IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, which no other table of the family has.
    pub name: String,
    /// The keys that it remembers.
    pub recent: Vec<RecentKeys>,
    /// Its chains. Each has a name of its own.
    pub chains: Vec<Chain>,
}

/// A chain of rules, which the kernel evaluates in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// The hook of a base chain, which every packet there passes. A base chain accepts a packet
    /// that no rule decides. `None`: a chain for packets that a rule sends here, which returns a
    /// packet that no rule decides.
    pub hook: Option<Hook>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// The place of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The hook in the kernel.
    pub point: HookPoint,
    /// Chains with lower numbers come first.
    pub priority: i32,
}

/// A hook in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// Packets that come in, before routing.
    Prerouting,
    /// Packets for the host itself, after routing.
    Input,
    /// Packets that the host is to forward, after it has routed them.
    Forward,
    /// Packets that the host sends.
    Output,
}

/// The reasons why a table was not made or deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket does not work.
    #[error("nf_tables: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refuses a part of the table.
    #[error("nf_tables: {part}: {error}")]
    Refused {
        /// The part.
        part: String,
        /// The kernel's reason.
        error: io::Error,
    },
    /// The kernel has not answered.
    #[error("nf_tables: the kernel did not answer about {0}")]
    Silent(String),
}

impl Error {
    /// True if the process lacks the right to change tables: CAP_NET_ADMIN.
    pub fn is_permission(&self) -> bool {
        let (Self::Socket(error) | Self::Refused { error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }
}

/// A message, with a description of its part for errors.
struct Step {
    message: Message,
    part: String,
}

/// The owner of tables, which exist as long as this value.
#[derive(Debug)]
pub struct Owner {
    socket: Socket,
    /// Number of the last message.
    sequence: u32,
}

impl Owner {
    /// An owner without tables.
    ///
    /// # Errors
    /// The system's error, if it has no nf_tables or no socket left.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        // All answers to a message are there once it was sent.
        socket.set_non_blocking(true)?;
        // Answers need not repeat the message.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes a table. Packets meet it only once it is complete.
    ///
    /// # Errors
    /// [`Error`]. Then there is no such table, or one that no packet meets.
    pub fn make(&mut self, table: &Table) -> Result<(), Error> {
        for (number, transaction) in transactions(table).into_iter().enumerate() {
            if let Err(error) = self.commit(transaction) {
                if number > 0 {
                    // The unfinished table has no hooks, so it does no harm if this fails.
                    let _ = self.delete(&table.name);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes a table.
    ///
    /// # Errors
    /// [`Error`]. Then the table is still there, or never was.
    pub fn delete(&mut self, name: &str) -> Result<(), Error> {
        let mut message = Message::new(number::message::DELETE_TABLE, 0);
        message.text(number::table::NAME, name);
        self.commit(vec![Step { message, part: format!("the end of table {name}") }])
    }

    /// Lets the kernel carry out all of these messages, or none.
    fn commit(&mut self, mut steps: Vec<Step>) -> Result<(), Error> {
        let Some(last) = steps.last_mut() else { return Ok(()) };
        last.message.ask_for_answer();
        let mut bytes = Vec::new();
        let first = self.sequence.wrapping_add(1);
        let messages = steps.iter().map(|step| &step.message);
        let (begin, end) = (Message::begin(), Message::end());
        for message in std::iter::once(&begin).chain(messages).chain([&end]) {
            self.sequence = self.sequence.wrapping_add(1);
            message.write(self.sequence, &mut bytes);
        }
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let mut is_answered = false;
        let mut refused = Ok(());
        for (number, code) in self.answers()? {
            let at = number.wrapping_sub(first) as usize;
            // An answer to an earlier transaction is of no interest.
            if at > steps.len() {
                continue;
            }
            is_answered |= code == 0;
            if code != 0 && refused.is_ok() {
                let step = at.checked_sub(1).and_then(|at| steps.get(at));
                let part = step.map_or("the transaction".to_owned(), |step| step.part.clone());
                let error = io::Error::from_raw_os_error(-code);
                refused = Err(Error::Refused { part, error });
            }
        }
        refused?;
        if is_answered { Ok(()) } else { Err(Error::Silent(steps.swap_remove(0).part)) }
    }

    /// The kernel's answers: the number of a message with 0 or with an error.
    fn answers(&self) -> io::Result<Vec<(u32, i32)>> {
        let mut answers = Vec::new();
        loop {
            let (bytes, from) = match self.socket.recv_from_full() {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answers),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let Ok(answer) = NetlinkBuffer::new_checked(&bytes) else { continue };
            // Any process may send to the socket; only the kernel has port 0.
            let is_answer = from.port_number() == 0 && answer.message_type() == NLMSG_ERROR;
            if let Some(code) = answer.payload().first_chunk().filter(|_| is_answer) {
                answers.push((answer.sequence_number(), i32::from_ne_bytes(*code)));
            }
        }
    }
}

/// The messages that make a table, in the order that the kernel needs. The last transaction brings
/// all base chains.
fn transactions(table: &Table) -> Vec<Vec<Step>> {
    let mut message = Message::new(number::message::NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL);
    message.text(number::table::NAME, &table.name);
    message.number(number::table::FLAGS, number::table::OWNER);
    let mut steps = vec![Step { message, part: format!("table {}", table.name) }];
    let (bases, others): (Vec<_>, Vec<_>) =
        table.chains.iter().partition(|chain| chain.hook.is_some());
    // These chains come first, because any rule may send packets to them.
    steps.extend(others.iter().map(|chain| chain_step(table, chain)));
    let mut transactions = Vec::new();
    let mut sets = 0;
    for recent in &table.recent {
        sets += 1;
        let message = recent.message(&table.name, sets);
        steps.push(Step { message, part: format!("set {}", recent.name) });
    }
    for chain in others.into_iter().chain(bases) {
        if chain.hook.is_some() {
            steps.push(chain_step(table, chain));
        }
        for (place, rule) in chain.rules.iter().enumerate() {
            let part = format!("rule {} of chain {}", place + 1, chain.name);
            let messages = rule.messages(&table.name, chain.name, &mut sets);
            steps.extend(messages.into_iter().map(|message| Step { message, part: part.clone() }));
            let length: usize = steps.iter().map(|step| step.message.len()).sum();
            if chain.hook.is_none() && length > TRANSACTION {
                transactions.push(std::mem::take(&mut steps));
            }
        }
    }
    transactions.push(steps);
    transactions
}

fn chain_step(table: &Table, chain: &Chain) -> Step {
    let mut message = Message::new(number::message::NEW_CHAIN, NLM_F_CREATE | NLM_F_EXCL);
    message.text(number::chain::TABLE, &table.name);
    message.text(number::chain::NAME, chain.name);
    if let Some(hook) = chain.hook {
        message.nest(number::chain::HOOK, |message| {
            message.number(
                number::chain::HOOK_NUMBER,
                match hook.point {
                    HookPoint::Prerouting => 0,
                    HookPoint::Input => 1,
                    HookPoint::Forward => 2,
                    HookPoint::Output => 3,
                },
            );
            message.number(number::chain::HOOK_PRIORITY, hook.priority.cast_unsigned());
        });
        message.number(number::chain::POLICY, number::verdict::ACCEPT);
        message.text(number::chain::TYPE, "filter");
    }
    Step { message, part: format!("chain {}", chain.name) }
}

//! Tables of nf_tables that this process owns.
//!
//! A table with an owner belongs to a netlink socket (flag `owner` of nft(8), Linux 5.12). Nobody
//! else can change or delete it, and the kernel deletes it when the socket closes, however its
//! process ends. So the table depends on no other process, and leaves nothing behind.
//!
//! What a table is made of is a value ([`Table`]); [`Owner`] makes it in the kernel. Only what the
//! gateway needs of nf_tables is here.

mod message;
mod number;
mod rule;

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use message::Message;
pub use rule::{Field, MAX_RANGES, Match, Rule, Verdict};

/// Messages of one transaction, bytes, beside its last rule. The kernel takes twice as much from
/// a socket by default (`net.core.wmem_default`).
const TRANSACTION: usize = 96 << 10;

/// A table of family `inet`: for packets of IPv4 and IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, which no other table of the family has.
    pub name: String,
    /// Its chains. Each has a name of its own.
    pub chains: Vec<Chain>,
}

/// A chain of rules, which are asked in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Which packets are asked about by themselves: all that pass here. `None`: those that a rule
    /// sends here. What no rule decides of the former is accepted, and of the latter goes back.
    pub hook: Option<Hook>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// Where packets meet a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Where on the way through the kernel.
    pub stage: Stage,
    /// Who comes first there: chains with lower numbers.
    pub priority: i32,
}

/// A place on the way through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What comes in, before it is routed.
    Prerouting,
    /// What the host is to forward, after it is routed.
    Forward,
    /// What the host sends.
    Output,
}

/// Why a table was not made or deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket does not work.
    #[error("nf_tables: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refuses a part of it.
    #[error("nf_tables: {part}: {error}")]
    Refused {
        /// Which part.
        part: String,
        /// Why.
        error: io::Error,
    },
    /// The kernel has not said whether it has done it.
    #[error("nf_tables: the kernel has said nothing of {0}")]
    Silent(String),
}

impl Error {
    /// True if the process lacks the right to change tables: CAP_NET_ADMIN.
    pub fn is_permission(&self) -> bool {
        let (Self::Socket(error) | Self::Refused { error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }
}

/// A message, and what it is about.
struct Step {
    message: Message,
    part: String,
}

/// Owns tables, which are there as long as this.
#[derive(Debug)]
pub struct Owner {
    socket: Socket,
    /// Number of the last message.
    sequence: u32,
}

impl Owner {
    /// Owns nothing yet.
    ///
    /// # Errors
    /// That of the system where it has no nf_tables, or no socket left.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        // All answers to a message are there when it has been sent.
        socket.set_non_blocking(true)?;
        // They need not repeat it.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes a table. Until all of it is there, no packet meets any of it.
    ///
    /// # Errors
    /// What [`Error`] says; then there is no such table, or one that no packet meets.
    pub fn make(&mut self, table: &Table) -> Result<(), Error> {
        for (number, transaction) in transactions(table).into_iter().enumerate() {
            if let Err(error) = self.commit(transaction) {
                if number > 0 {
                    // It has no hooks yet, so it does no harm where this fails.
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
    /// What [`Error`] says; then it is still there, or was not.
    pub fn delete(&mut self, name: &str) -> Result<(), Error> {
        let mut message = Message::new(number::message::DELETE_TABLE, 0);
        message.text(number::table::NAME, name);
        self.commit(vec![Step { message, part: format!("the end of table {name}") }])
    }

    /// Has the kernel carry out all of these messages, or none.
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
            // What is about an earlier transaction is of no interest.
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

    /// What the kernel has said: for the number of a message 0 or an error as it is returned.
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
            // Anybody may send to the socket; only the kernel has port 0.
            let is_answer = from.port_number() == 0 && answer.message_type() == NLMSG_ERROR;
            if let Some(code) = answer.payload().first_chunk().filter(|_| is_answer) {
                answers.push((answer.sequence_number(), i32::from_ne_bytes(*code)));
            }
        }
    }
}

/// What makes a table, in the order in which the kernel has to hear of it. All chains that
/// packets meet by themselves come with the last transaction.
fn transactions(table: &Table) -> Vec<Vec<Step>> {
    let mut message = Message::new(number::message::NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL);
    message.text(number::table::NAME, &table.name);
    message.number(number::table::FLAGS, number::table::OWNER);
    let mut steps = vec![Step { message, part: format!("table {}", table.name) }];
    let (bases, others): (Vec<_>, Vec<_>) =
        table.chains.iter().partition(|chain| chain.hook.is_some());
    // Any rule may send packets to any of these.
    steps.extend(others.iter().map(|chain| chain_step(table, chain)));
    let mut transactions = Vec::new();
    let mut sets = 0;
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
                match hook.stage {
                    Stage::Prerouting => 0,
                    Stage::Forward => 2,
                    Stage::Output => 3,
                },
            );
            message.number(number::chain::HOOK_PRIORITY, hook.priority.cast_unsigned());
        });
        message.number(number::chain::POLICY, number::verdict::ACCEPT);
        message.text(number::chain::TYPE, "filter");
    }
    Step { message, part: format!("chain {}", chain.name) }
}

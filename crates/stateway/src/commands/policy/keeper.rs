//! The keeper: a process that brings a device to a policy, does so again after news of the kernel,
//! and puts everything back when its holder ends, however that happens.
//!
//! The holder is the parent. It has the other ends of standard input and output: the end of input tells
//! that the holder has stopped or died, and each line of output is a [`Word`].

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use host_settings::{
    Device, DeviceError, Done, Error, Lease, News, Session, Store, Subject, Whereabouts, name_of,
};
use netpolicy::{Identity, LeftAlone, Policy, Request, Setting};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, sleep, sleep_until};

/// Time from the first news to a look at the device, so that news that belong together lead to one.
const SETTLE: Duration = Duration::from_millis(50);
/// Longest time between two looks. No news tell of a write to a file.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Pause before another attempt to get the right to keep the device.
const LEASE_PAUSE: Duration = Duration::from_millis(20);
/// News that wait for a look. More wait in the kernel, which tells if it has lost some.
const MOST_NEWS: usize = 16;
/// The largest number of settings in a line.
const MOST_NAMED: usize = 4;
/// The word of a holder that wants the settings to stay.
pub const KEEP: &[u8] = b"keep\n";

/// A message of a keeper to its holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// It keeps the device with this number in sysfs.
    Keeps(u64),
    /// A change, as a line for people.
    Says(String),
    /// The state from now on, as a line for people.
    State(String),
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The device.
    device: String,
    /// The request, as JSON.
    #[arg(value_parser = request)]
    request: Request,
    /// The request that applies at the end, as JSON. Default: none, so that everything goes back.
    #[arg(long, value_parser = request)]
    then: Option<Request>,
    /// Directory of the journals.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Leave out settings that the kernel refuses.
    #[arg(long)]
    skip_refused: bool,
    /// Process id of the holder.
    #[arg(long)]
    holder: u32,
    /// Wait for the end of another holder.
    #[arg(long)]
    wait: bool,
    /// Numbers in sysfs of devices that a keeper before has kept.
    #[arg(long)]
    former: Vec<u64>,
}

fn request(text: &str) -> Result<Request, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        // Only the holder decides about the end. From here on none of these ends the process.
        let _ignored = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
            .map(signal)
            .into_iter()
            .collect::<io::Result<Vec<_>>>()?;
        let orders = pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
        let mut keeper = Keeper::new(args);
        let end = keeper.keep(&orders).await;
        if matches!(end, Ok(Order::Keep)) {
            return Ok(());
        }
        let restored = keeper.put_back();
        end.map(drop).and(restored)
    })
}

/// The last order of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    PutBack,
    Keep,
}

/// Waits for the order to end. A holder that dies gives the order to put everything back.
async fn ordered(orders: &pipe::Receiver) -> Order {
    let mut word = [0; KEEP.len()];
    loop {
        if orders.readable().await.is_err() {
            return Order::PutBack;
        }
        match orders.try_read(&mut word) {
            Ok(length) if word[..length] == *KEEP => return Order::Keep,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return Order::PutBack,
        }
    }
}

/// A device that has got the policy.
struct Kept {
    device: Device,
    lease: Lease,
    /// The request without the settings that the kernel has refused, once it applies.
    request: Option<Request>,
    /// Settings of other programs that were named.
    by_others: BTreeSet<Setting>,
}

/// The result of a search for the device.
enum Found {
    /// The place of the device among those that were kept, and a session with it.
    Device(usize, Box<Session>),
    /// Another keeper still has it.
    OfAnother,
    /// It is not here.
    Nothing,
}

struct Keeper<'a> {
    args: &'a Args,
    store: Store,
    /// The device, and others that had its name before and are in other network namespaces.
    kept: Vec<Kept>,
    /// The number of the device, if it is here.
    interface: Option<u32>,
    /// The state that was told last.
    state: String,
}

impl<'a> Keeper<'a> {
    fn new(args: &'a Args) -> Self {
        let store = Store::new(&args.state);
        Self { args, store, kept: Vec::new(), interface: None, state: String::new() }
    }

    /// Keeps the device until the holder gives an order.
    ///
    /// # Errors
    /// The first attempt has failed.
    async fn keep(&mut self, orders: &pipe::Receiver) -> anyhow::Result<Order> {
        // News that come during the first look lead to a second one.
        let mut news = listen()?;
        while !self.look(&BTreeSet::new())? {
            tokio::select! {
                order = ordered(orders) => return Ok(order),
                () = sleep(LEASE_PAUSE) => {}
            }
        }
        let mut due = Instant::now() + LOOK_AGAIN;
        let mut subjects = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                order = ordered(orders) => return Ok(order),
                () = sleep_until(due) => {
                    if let Err(error) = self.look(&subjects) {
                        self.state(format!("{}: {error:#}", self.args.device));
                    }
                    subjects.clear();
                    due = Instant::now() + LOOK_AGAIN;
                }
                Some((subject, of)) = news.recv() => {
                    if of.is_none() || self.interface.is_none() || of == self.interface {
                        subjects.insert(subject);
                        due = due.min(Instant::now() + SETTLE);
                    }
                }
            }
        }
    }

    /// Looks at the device and brings it to the policy. False if another keeper still has it.
    fn look(&mut self, news: &BTreeSet<Subject>) -> anyhow::Result<bool> {
        self.interface = None;
        let (at, mut session) = match self.find()? {
            Found::Device(at, session) => (at, session),
            Found::OfAnother => return Ok(false),
            Found::Nothing => {
                let wait = "is not here; the policy waits until it comes";
                self.state(format!("{} {wait}", self.args.device));
                return Ok(true);
            }
        };
        self.interface = Some(session.device().identity().index);
        let (name, kept) = (session.device().identity().name.clone(), &mut self.kept[at]);
        let request = kept.request.as_ref().unwrap_or(&self.args.request);
        let plan = match session.plan(request) {
            Err(Error::Plan(error)) if kept.request.is_some() => {
                let done = session.apply(&Request::new(Policy::None), false)?;
                return self.has_no_policy(&name, &error.to_string(), &done).map(|()| true);
            }
            plan => plan?,
        };
        let mut lines = Vec::new();
        let mut by_others = plan.by_others.clone();
        let mut left = plan.left.clone();
        if kept.request.is_none() || !plan.actions.is_empty() {
            let done = session.apply(request, self.args.skip_refused)?;
            let applied = session.request().clone();
            if kept.request.is_none() {
                let refused = applied.without.difference(&self.args.request.without);
                let refused: BTreeSet<String> = refused.map(ToString::to_string).collect();
                let refused = done.plan.left.iter().filter(|left| refused.contains(&left.id));
                lines.extend(
                    refused.map(|it| format!("{name}: {} is left out: {}", it.id, it.reason)),
                );
            } else if !done.plan.actions.is_empty() {
                lines.push(format!("{name}: {}", changes(&applied, news, &done)));
            }
            kept.request = Some(applied);
            (by_others, left) = (done.plan.by_others, done.plan.left);
        }
        let fresh = by_others.difference(&kept.by_others).map(ToString::to_string);
        let fresh: BTreeSet<String> = fresh.collect();
        let fresh = left.iter().filter(|left| fresh.contains(&left.id));
        lines.extend(
            fresh.map(|LeftAlone { id, reason }| format!("{name}: {id} is left alone: {reason}")),
        );
        kept.by_others = by_others;
        lines.into_iter().for_each(say);
        self.state(match self.args.request.policy {
            Policy::None => format!("{name}: no policy"),
            policy => format!("{name}: {policy} is kept"),
        });
        Ok(true)
    }

    /// The request can not be met any more, so nothing of it may stay.
    fn has_no_policy(&mut self, name: &str, reason: &str, done: &Done) -> anyhow::Result<()> {
        anyhow::ensure!(done.failures.is_empty(), "{}", Error::list(&done.failures));
        self.state(format!("{name}: no policy until that changes: {reason}"));
        Ok(())
    }

    /// The device that is to have the policy, if it is here: the one that had it before under
    /// whatever name, or else the one that has the name now.
    fn find(&mut self) -> anyhow::Result<Found> {
        self.forget_gone()?;
        let known = self.kept.iter().map(|kept| kept.device.identity().node);
        let former = if self.kept.is_empty() { &self.args.former[..] } else { &[] };
        for node in known.chain(former.iter().copied()).collect::<Vec<u64>>() {
            if let Some(session) = self.open(node)? {
                return self.lease(session);
            }
        }
        // The other holder may have waited for the device, too.
        let is_first = self.state.is_empty() && self.args.former.is_empty() && !self.args.wait;
        match open_session(&self.args.device, &self.store) {
            Err(Error::Device(DeviceError::Missing { .. })) if !is_first => Ok(Found::Nothing),
            session => self.lease(session?),
        }
    }

    /// Opens a device by its number in sysfs, if it is here.
    fn open(&self, node: u64) -> anyhow::Result<Option<Session>> {
        let Some(name) = name_of(node)? else { return Ok(None) };
        let session = open_session(&name, &self.store)?;
        // The name may be that of another one by now.
        Ok((session.device().identity().node == node).then_some(session))
    }

    /// Gets the right to keep a device.
    fn lease(&mut self, session: Session) -> anyhow::Result<Found> {
        let device = session.device().identity();
        if let Some(at) = self.kept.iter().position(|it| it.device.identity().node == device.node) {
            return Ok(Found::Device(at, Box::new(session)));
        }
        let Some(lease) = self.store.lease(device, self.args.holder)? else {
            if !self.args.wait {
                self.store.wait_for_keeper(device)?;
            }
            return Ok(Found::OfAnother);
        };
        let node = device.node;
        let device = Device::open(&device.name)?;
        anyhow::ensure!(device.identity().node == node, "its name is that of another device now");
        tell_holder(&Word::Keeps(node));
        let kept = Kept { device, lease, request: None, by_others: BTreeSet::new() };
        self.kept.push(kept);
        Ok(Found::Device(self.kept.len() - 1, Box::new(session)))
    }

    /// Forgets devices that were deleted. Their settings have gone with them.
    fn forget_gone(&mut self) -> anyhow::Result<()> {
        let mut at = 0;
        while let Some(kept) = self.kept.get(at) {
            if kept.device.whereabouts()? == Whereabouts::Gone {
                let _lock = self.store.lock()?;
                self.store.remove(kept.device.identity())?;
                self.kept.remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Puts back what was there first, on all devices that were kept.
    fn put_back(&mut self) -> anyhow::Result<()> {
        self.kept.iter().for_each(|kept| kept.lease.has_no_holder());
        self.forget_gone()?;
        let mut failures = Vec::new();
        let mut all = std::mem::take(&mut self.kept);
        for kept in &mut all {
            if let Err(error) = self.put_back_one(kept.device.identity()) {
                failures.push(format!("{}: {error:#}", kept.device.identity().name));
                kept.lease.leave();
            }
        }
        anyhow::ensure!(
            failures.is_empty(),
            "not everything could be put back: {}; the journal keeps the values that were there \
             first, and `stateway policy rollback` tries again",
            failures.join("; ")
        );
        Ok(())
    }

    fn put_back_one(&self, device: &Identity) -> anyhow::Result<()> {
        let Some(mut session) = self.open(device.node)? else {
            anyhow::bail!(
                "it is in another network namespace; `stateway policy rollback` there puts back the \
                 values of {}",
                self.store.path(device).display()
            );
        };
        let none = Request::new(Policy::None);
        let then = self.args.then.as_ref().unwrap_or(&none);
        let done = session.apply(then, false)?;
        anyhow::ensure!(done.failures.is_empty(), "{}", Error::list(&done.failures));
        let name = &session.device().identity().name;
        if then.policy != Policy::None {
            say(format!("{name}: {} again", then.policy));
            return Ok(());
        }
        for LeftAlone { id, reason } in &done.plan.left {
            say(format!("{name}: {id} is left alone: {reason}"));
        }
        say(super::no_policy(name, &done.plan));
        Ok(())
    }

    /// Tells a state, unless it was told last.
    fn state(&mut self, state: String) {
        if self.state != state {
            tell_or(Word::State(state.clone()), &state);
            self.state = state;
        }
    }
}

/// The changes that a plan has made, in one line.
fn changes(request: &Request, news: &BTreeSet<Subject>, done: &Done) -> String {
    let mut line = format!("{} again", request.policy);
    if !news.is_empty() {
        let subjects: Vec<&str> = news.iter().map(|it| it.name()).collect();
        line += &format!(" after news of the {}", subjects.join(" and the "));
    }
    let actions = &done.plan.actions;
    let mut writes: Vec<String> = actions
        .iter()
        .take(MOST_NAMED)
        .zip(&done.values)
        .map(|(action, value)| format!("{} = {}", action.setting, value.unwrap_or(action.new)))
        .collect();
    if let Some(more) = actions.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        writes.push(format!("and {more} more"));
    }
    format!("{line}: {}", writes.join(", "))
}

/// Follows the news of all subjects.
fn listen() -> io::Result<Receiver<(Subject, Option<u32>)>> {
    let (sender, coming) = channel(MOST_NEWS);
    for subject in Subject::ALL {
        let mut news = match News::listen(subject) {
            Ok(news) => news,
            // The device is looked at from time to time all the same.
            Err(refusal) => {
                say(format!("no news of the {}: {refusal}", subject.name()));
                continue;
            }
        };
        let sender = sender.clone();
        thread::Builder::new().name("news".into()).spawn(move || {
            while let Ok(of) = news.wait()
                && sender.blocking_send((subject, of)).is_ok()
            {}
        })?;
    }
    Ok(coming)
}

fn open_session(name: &str, store: &Store) -> Result<Session, Error> {
    #[allow(unused_mut, reason = "not every build has the lab")]
    let mut session = Session::open(name, store.clone())?;
    #[cfg(feature = "lab")]
    session.at_each_step(super::fail_as_planned);
    Ok(session)
}

fn say(line: String) {
    tell_or(Word::Says(line.clone()), &line);
}

/// Tells the holder, or anybody if it has died.
fn tell_or(word: Word, line: &str) {
    if !tell_holder(&word) {
        tell!("{line}");
    }
}

/// True if the holder can hear it.
fn tell_holder(word: &Word) -> bool {
    let text = serde_json::to_string(word).unwrap_or_default();
    writeln!(io::stdout(), "{text}").is_ok()
}

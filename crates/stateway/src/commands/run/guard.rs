//! Keeps the kernel from forwarding what this gateway forwards.
//!
//! The kernel sees every packet too, and a host that forwards would send each a second time,
//! or answer it. That holds of a bridge as well: frames to the station of its interface would get
//! past the rules. So a table of nf_tables drops what comes in by the gateway's interfaces and is
//! not for the host, and what the kernel would forward of the rest: a packet with source routing
//! is for the host until the host has taken the next address out of it. This process owns the
//! table by a socket of its own ([`netlink::nf_tables`]): nobody else can change it, it depends on
//! no other process, and the kernel deletes it when this process ends, however it ends. To change
//! anything a new table is made, and the one before goes when the new one is there: meanwhile both
//! drop. If the new one can not be made, nothing changes. A change takes no descriptor and no
//! process.
//!
//! What is translated is for the host as far as the kernel knows: a reply to a masqueraded
//! connection, or what is to go on to a server behind the gateway. It would answer that it has
//! no such connection. So the table also drops what comes in by the gateway's interfaces for
//!
//! - a translation address and a port of the range that sources are translated to, or one that
//!   a rule names for them, unless the host has a socket for it. A socket that waits for anybody gets what opens a connection and
//!   no answers, because these may be for somebody behind the gateway.
//! - addresses and ports whose destination a rule translates. Where a rule names no port, what
//!   belongs to a connection of the host's own gets through.
//! - addresses and ports whose destination a rule translated that is gone, if it neither opens
//!   a connection nor belongs to a socket of the host: the gateway may still translate it,
//!   because connections stay when rules change.
//!
//! What rules redirect to the host, or translate to an address of it, the kernel carries out
//! itself. So the table lets through what may be among it, told apart by interface, addresses,
//! protocol and port, and drops behind the kernel's destination translation what is not for the
//! host then: the kernel neither forwards nor answers what the gateway forwards. Nothing that
//! goes on opens a connection there, and for rules that are gone nothing does, because the
//! gateway may have one.
//!
//! ICMP is left alone: the kernel answers no replies and no errors.
//!
//! Rules that the kernel can not be told are refused as long as the gateway may stay as it was. A
//! thread that nobody waits for tells the kernel what holds already. If the kernel refuses that, the
//! table stays as it was, people are told that they differ, and it is tried again.

mod table;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{FromHost, HostGuard, PortLink};

use super::guarded::Guarded;
use super::kept_out::KeptOut;
use table::{Barrier, HostTable};

/// How long whoever has loaded rules waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before it is tried again what has failed. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The kernel leaves the packets of the interfaces alone as long as this exists.
#[derive(Debug)]
pub struct Guard {
    watch: Option<JoinHandle<()>>,
    watched: Arc<Watched>,
}

/// Who has both locks took that of the state first.
#[derive(Debug)]
struct Watched {
    /// Held while the kernel is told.
    state: Mutex<State>,
    /// Held for a moment.
    wish: Mutex<Wish>,
    /// The wish has changed.
    news: Condvar,
}

/// What is to be.
#[derive(Debug, Default)]
struct Wish {
    /// What was said last.
    said: KeptOut,
    /// The same behind what was said before.
    kept_out: Arc<KeptOut>,
    /// What was tried last.
    tried: Arc<KeptOut>,
    /// Why the host gets something else.
    trouble: Option<String>,
    /// Nothing any more.
    is_over: bool,
}

/// What is.
#[derive(Debug)]
struct State {
    barrier: Box<dyn Barrier>,
    /// What it keeps from the host beside what is not its own.
    told: Arc<KeptOut>,
    failed: Option<Failed>,
}

/// What could not be done.
#[derive(Debug)]
struct Failed {
    /// What was to be kept out.
    kept_out: Arc<KeptOut>,
    pause: Duration,
    /// When it is tried again.
    next: Instant,
    why: String,
}

impl Failed {
    /// Behind what has failed `before`.
    fn new(kept_out: &Arc<KeptOut>, error: &anyhow::Error, before: Option<&Self>) -> Self {
        let same = before.filter(|before| before.kept_out == *kept_out);
        let pause = same.map_or(FIRST_PAUSE, |before| (2 * before.pause).min(LONGEST_PAUSE));
        let (kept_out, why) = (kept_out.clone(), format!("{error:#}"));
        Self { kept_out, pause, next: Instant::now() + pause, why }
    }

    fn trouble(&self) -> String {
        format!("the kernel does not do yet what the rules say: {}; it is tried again", self.why)
    }
}

impl State {
    /// Keeps what is not the host's from it, and this.
    fn new(mut barrier: Box<dyn Barrier>, told: Arc<KeptOut>) -> anyhow::Result<Self> {
        barrier.change(&told)?;
        Ok(Self { barrier, told, failed: None })
    }

    /// Has the kernel keep that from the host. If it fails all is as it was.
    fn change(&mut self, kept_out: &Arc<KeptOut>) -> anyhow::Result<()> {
        if self.told != *kept_out {
            self.barrier.change(kept_out)?;
            self.told = kept_out.clone();
        }
        Ok(())
    }

    /// Has the kernel do what is to be, unless it is too early to try that again.
    fn tend(&mut self, wanted: &Arc<KeptOut>, now: Instant) {
        let is_early = |failed: &Failed| failed.kept_out == *wanted && now < failed.next;
        if self.failed.as_ref().is_some_and(is_early) {
            return;
        }
        let failed = self.change(wanted).err();
        let failed = failed.map(|error| Failed::new(wanted, &error, self.failed.as_ref()));
        self.note(failed);
    }

    /// Says so if something else fails than before, or nothing any more.
    fn note(&mut self, failed: Option<Failed>) {
        let before = self.trouble();
        self.failed = failed;
        match self.trouble() {
            now if now == before => {}
            Some(now) => tracing::error!("{now}"),
            None => tracing::info!("the kernel does what the rules say"),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.failed.as_ref().map(Failed::trouble)
    }
}

impl Watched {
    /// Does what is to be, until nothing is any more.
    fn watch(&self) {
        loop {
            let mut state = lock(&self.state);
            let wanted = lock(&self.wish).kept_out.clone();
            state.tend(&wanted, Instant::now());
            let mut wish = lock(&self.wish);
            wish.trouble = state.trouble();
            wish.tried = wanted;
            let failed = state.failed.as_ref().map(|failed| failed.next);
            drop(state);
            self.news.notify_all();
            let is_idle = |wish: &mut Wish| !wish.is_over && wish.tried == wish.kept_out;
            let pause =
                failed.map_or(LONGEST_PAUSE, |next| next.saturating_duration_since(Instant::now()));
            let waited = self.news.wait_timeout_while(wish, pause, is_idle);
            if waited.unwrap_or_else(PoisonError::into_inner).0.is_over {
                return;
            }
        }
    }
}

impl Guard {
    /// Makes the table.
    ///
    /// # Errors
    /// Where the kernel has no such tables, or this process may not make them.
    pub fn new(interfaces: Vec<Guarded>) -> anyhow::Result<Self> {
        Self::with(HostTable::new()?, interfaces)
    }

    fn with(barrier: impl Barrier + 'static, interfaces: Vec<Guarded>) -> anyhow::Result<Self> {
        let kept_out = Arc::new(KeptOut { interfaces, ..KeptOut::default() });
        let state = Mutex::new(State::new(Box::new(barrier), kept_out.clone())?);
        let wish = Wish { tried: kept_out.clone(), kept_out, ..Wish::default() };
        let watched = Watched { state, wish: Mutex::new(wish), news: Condvar::new() };
        let watched = Arc::new(watched);
        let watching = watched.clone();
        let watch = std::thread::Builder::new().name("guard".into());
        Ok(Self { watch: Some(watch.spawn(move || watching.watch())?), watched })
    }

    /// Who tells the table what is translated.
    pub fn keeper(&self) -> Keeper {
        Keeper(self.watched.clone())
    }
}

/// Has the kernel keep what is translated from the host.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Watched>);

impl HostGuard for Keeper {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        let mut state = lock(&self.0.state);
        let said = KeptOut::new(from_host);
        let kept_out = Arc::new(said.clone().after(&lock(&self.0.wish).kept_out));
        state.change(&kept_out).map_err(|error| format!("{error:#}"))?;
        state.note(None);
        let mut wish = lock(&self.0.wish);
        wish.trouble = None;
        (wish.said, wish.tried, wish.kept_out) = (said, kept_out.clone(), kept_out);
        Ok(())
    }

    fn follow(&self, from_host: &FromHost<'_>) {
        let said = KeptOut::new(from_host);
        let mut wish = lock(&self.0.wish);
        // Routes and neighbours change often, and mostly nothing else.
        if wish.said != said {
            wish.kept_out = Arc::new(said.clone().after(&wish.kept_out));
            wish.said = said;
            self.0.news.notify_all();
        }
    }

    fn follow_ports(&self, ports: &[PortLink]) {
        let mut wish = lock(&self.0.wish);
        let mut kept_out = KeptOut::clone(&wish.kept_out);
        kept_out.interfaces.iter_mut().zip(ports).for_each(|(it, port)| it.follow(port));
        if kept_out != *wish.kept_out {
            wish.kept_out = Arc::new(kept_out);
            self.0.news.notify_all();
        }
    }

    fn settle(&self) {
        // What was begun before has its time too.
        let wish = lock(&self.0.wish);
        let is_open = |wish: &mut Wish| !wish.is_over && wish.tried != wish.kept_out;
        let _ = self.0.news.wait_timeout_while(wish, PATIENCE, is_open);
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.0.wish).trouble.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held has ended the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.watched.wish).is_over = true;
        self.watched.news.notify_all();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;

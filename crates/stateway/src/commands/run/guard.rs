//! Keeps the kernel from forwarding what this gateway forwards.
//!
//! The kernel sees every packet too. A host that forwards would send each packet a second time, or
//! answer it. So a table of nf_tables drops packets that come in by the gateway's interfaces and
//! are not for the host.
//!
//! This process owns the table by a socket of its own ([`netlink::nf_tables`]). No other process can
//! change it, it depends on no other process, and the kernel deletes it when this process ends,
//! however it ends. For a change, a new table is made beside the old one, which is then deleted:
//! meanwhile both drop. If the new table can not be made, nothing changes. A change takes no
//! descriptor and no process.
//!
//! To the kernel, a translated packet is for the host: a reply to a masqueraded connection, or a
//! packet for a server behind the gateway. The kernel would answer that it has no such connection.
//! So the table also drops packets from the gateway's interfaces to
//!
//! - a translation address with a port of the translation range, or with a port that a rule names,
//!   unless the host has a socket for the packet. A listening socket gets packets that open a
//!   connection, but no answers, because these may be for a host behind the gateway.
//! - addresses and ports whose destination a rule translates. If the rule names no port, packets of
//!   the host's own connections pass.
//! - addresses and ports whose destination a former rule translated, unless the packet opens a
//!   connection or belongs to a socket of the host. The gateway may still translate it, because
//!   connections stay when rules change.
//!
//! The kernel itself applies rules that redirect packets to the host or translate to one of its
//! addresses. So the table lets through all packets that such a rule may match, by interface,
//! addresses, protocol and port. Behind the kernel's destination translation it drops those that
//! are not for the host then: the kernel neither forwards nor answers packets that the gateway
//! forwards. A packet in the middle of a connection opens none there. For former rules no packet
//! does, because the gateway may have the connection.
//!
//! ICMP is left alone: the kernel answers no replies and no errors.
//!
//! While the gateway can still keep its former state, it refuses rules that the kernel does not
//! accept. A thread of its own tells the kernel about changes that are already in force. If the
//! kernel refuses one, the table stays as it was, the gateway warns of the difference, and the
//! thread tries again.

mod table;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{FromHost, HostGuard, PortLink};

use super::guarded::Guarded;
use super::kept_out::KeptOut;
use table::{Barrier, HostTable};

/// The longest time that the loader of rules waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the next attempt after a failure. Each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Keeps the kernel away from the packets of the interfaces as long as it exists.
#[derive(Debug)]
pub struct Guard {
    watch: Option<JoinHandle<()>>,
    watched: Arc<Watched>,
}

/// A thread that takes both locks takes `state` first.
#[derive(Debug)]
struct Watched {
    /// Held while the table in the kernel changes.
    state: Mutex<State>,
    /// Held for a moment only.
    wish: Mutex<Wish>,
    /// Signals a change of `wish`.
    news: Condvar,
}

/// The wanted state.
#[derive(Debug, Default)]
struct Wish {
    /// The last request, as it was made.
    said: KeptOut,
    /// The last request, joined with the remembered former ones.
    kept_out: Arc<KeptOut>,
    /// The last state that was tried.
    tried: Arc<KeptOut>,
    /// The reason why the kernel's state differs from the wanted one.
    trouble: Option<String>,
    /// True once the guard ends.
    is_over: bool,
}

/// The actual state.
#[derive(Debug)]
struct State {
    barrier: Box<dyn Barrier>,
    /// The packets that the kernel was told to keep from the host, beside those that are not for
    /// it.
    told: Arc<KeptOut>,
    failed: Option<Failed>,
}

/// A failed change.
#[derive(Debug)]
struct Failed {
    /// The state that was to be set.
    kept_out: Arc<KeptOut>,
    pause: Duration,
    /// The time of the next attempt.
    next: Instant,
    why: String,
}

impl Failed {
    /// A failure that follows the failure `before`.
    fn new(kept_out: &Arc<KeptOut>, error: &anyhow::Error, before: Option<&Self>) -> Self {
        let same = before.filter(|before| before.kept_out == *kept_out);
        let pause = same.map_or(FIRST_PAUSE, |before| (2 * before.pause).min(LONGEST_PAUSE));
        let (kept_out, why) = (kept_out.clone(), format!("{error:#}"));
        Self { kept_out, pause, next: Instant::now() + pause, why }
    }

    fn trouble(&self) -> String {
        format!("the kernel does not follow the rules yet: {}; the gateway tries again", self.why)
    }
}

impl State {
    /// Makes a barrier for `told` and for all packets that are not for the host.
    fn new(mut barrier: Box<dyn Barrier>, told: Arc<KeptOut>) -> anyhow::Result<Self> {
        barrier.change(&told)?;
        Ok(Self { barrier, told, failed: None })
    }

    /// Makes the kernel keep these packets from the host. Nothing changes on an error.
    fn change(&mut self, kept_out: &Arc<KeptOut>) -> anyhow::Result<()> {
        if self.told != *kept_out {
            self.barrier.change(kept_out)?;
            self.told = kept_out.clone();
        }
        Ok(())
    }

    /// Brings the kernel to the wanted state, unless it is too early for another attempt.
    fn tend(&mut self, wanted: &Arc<KeptOut>, now: Instant) {
        let is_early = |failed: &Failed| failed.kept_out == *wanted && now < failed.next;
        if self.failed.as_ref().is_some_and(is_early) {
            return;
        }
        let failed = self.change(wanted).err();
        let failed = failed.map(|error| Failed::new(wanted, &error, self.failed.as_ref()));
        self.note(failed);
    }

    /// Logs a failure that is new, or the end of failures.
    fn note(&mut self, failed: Option<Failed>) {
        let before = self.trouble();
        self.failed = failed;
        match self.trouble() {
            now if now == before => {}
            Some(now) => tracing::error!("{now}"),
            None => tracing::info!("the kernel follows the rules"),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.failed.as_ref().map(Failed::trouble)
    }
}

impl Watched {
    /// Brings the kernel to each wanted state until the guard ends.
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
    /// An error if the kernel has no such tables, or this process may not make them.
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

    /// The handle through which the engine reports translations to the table.
    pub fn keeper(&self) -> Keeper {
        Keeper(self.watched.clone())
    }
}

/// Makes the kernel keep translated packets from the host.
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
        // Routes and neighbours change often, and mostly without a change here.
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
        // Earlier requests have to be carried out in this time too.
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

//! Keeps the kernel from routing what this gateway routes.
//!
//! The kernel sees every packet too, and a host that forwards would send each a second time,
//! or answer it. So a table of nftables drops what comes in by the gateway's interfaces and is
//! not for the host. The table has an owner (nft(8), flag `owner`): an nft that waits for
//! orders on a pipe. It goes with the pipe, however this process ends, and the kernel takes
//! the table with it. To change anything a new table is made, and the one before goes when the
//! new one is there: meanwhile both drop, and one that can not be made changes nothing.
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
//! What the kernel can not be told is refused as long as the gateway may stay as it was. What holds
//! already it is told a moment later, by a thread that nobody waits for. Where it can not be, the
//! table stays as it was, whoever asks is told that they differ, and it is tried again.

mod table;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{FromHost, HostGuard};

use super::kept_out::KeptOut;
use table::{Nft, PATIENCE, Table};

/// How often it is looked whether the table is still there.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Pause before it is tried again what has failed. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest while there is no table.
const LONGEST_PAUSE_WITHOUT: Duration = Duration::from_secs(5);

/// The kernel leaves the packets of the interfaces alone as long as this exists: a table that
/// is lost is made again.
#[derive(Debug)]
pub struct Guard {
    watch: Option<JoinHandle<()>>,
    watched: Arc<Watched>,
}

/// Who has both locks took that of the state first.
#[derive(Debug)]
struct Watched {
    /// Held while nft is waited for.
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
    nft: Nft,
    table: Table,
    /// What the table keeps from the host beside what is not its own.
    told: Arc<KeptOut>,
    failed: Option<Failed>,
}

/// What could not be done.
#[derive(Debug)]
struct Failed {
    /// What was to be kept out.
    kept_out: Arc<KeptOut>,
    /// There is no table at all.
    is_lost: bool,
    pause: Duration,
    /// When it is tried again.
    next: Instant,
    why: String,
}

impl Failed {
    /// Behind what has failed `before`.
    fn new(
        kept_out: &Arc<KeptOut>,
        is_lost: bool,
        error: &anyhow::Error,
        before: Option<&Self>,
    ) -> Self {
        let longest = if is_lost { LONGEST_PAUSE_WITHOUT } else { LONGEST_PAUSE };
        let same = before.filter(|before| before.is_of(kept_out, is_lost));
        let pause = same.map_or(FIRST_PAUSE, |before| (2 * before.pause).min(longest));
        let (kept_out, why) = (kept_out.clone(), format!("{error:#}"));
        Self { kept_out, is_lost, pause, next: Instant::now() + pause, why }
    }

    fn is_of(&self, kept_out: &Arc<KeptOut>, is_lost: bool) -> bool {
        self.is_lost == is_lost && self.kept_out == *kept_out
    }

    fn trouble(&self) -> String {
        match self.is_lost {
            true => {
                format!("the kernel routes as well: {}; making the table is tried again", self.why)
            }
            false => format!(
                "the kernel does not do yet what the rules say: {}; it is tried again",
                self.why
            ),
        }
    }
}

impl State {
    /// Makes the first table.
    fn new(mut nft: Nft) -> anyhow::Result<Self> {
        let told = Arc::<KeptOut>::default();
        Ok(Self { table: nft.make(&told)?, nft, told, failed: None })
    }

    /// Has the kernel keep that from the host. If it fails all is as it was.
    fn change(&mut self, kept_out: &Arc<KeptOut>) -> anyhow::Result<()> {
        if self.told != *kept_out || !self.table.is_there() {
            // The one before goes when this one is there.
            self.table = self.nft.make(kept_out)?;
            self.told = kept_out.clone();
        }
        Ok(())
    }

    /// Has the kernel do what is to be, and has a table there, unless it is too early to try that
    /// again.
    fn tend(&mut self, wanted: &Arc<KeptOut>, now: Instant) {
        let was_lost = !self.table.is_there();
        if let Some(failed) = &self.failed
            && failed.is_of(wanted, was_lost)
            && now < failed.next
        {
            return;
        }
        if was_lost && !self.is_lost() {
            tracing::error!("nft has ended, and its table: the kernel has routed as well");
        }
        let failed = self.change(wanted).err().map(|error| {
            // What it did before is better than none.
            let told = self.told.clone();
            let is_lost = was_lost && (told == *wanted || self.change(&told).is_err());
            Failed::new(wanted, is_lost, &error, self.failed.as_ref())
        });
        let is_lost = failed.as_ref().is_some_and(|failed| failed.is_lost);
        if was_lost && !is_lost {
            tracing::info!("the table is there again");
        }
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

    /// True while it is known that there is no table.
    fn is_lost(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.is_lost)
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
            drop(state);
            self.news.notify_all();
            let is_idle = |wish: &mut Wish| !wish.is_over && wish.tried == wish.kept_out;
            let waited = self.news.wait_timeout_while(wish, WATCH_EVERY, is_idle);
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
    /// Where there is no nft, or it may not make tables.
    pub fn new<'a>(interfaces: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        Self::with(Nft::new("nft".into(), interfaces.map(str::to_owned).collect()))
    }

    fn with(nft: Nft) -> anyhow::Result<Self> {
        let state = Mutex::new(State::new(nft)?);
        let watched = Watched { state, wish: Mutex::default(), news: Condvar::new() };
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

    fn settle(&self) {
        // What was begun before has its time too.
        let wish = lock(&self.0.wish);
        let is_open = |wish: &mut Wish| !wish.is_over && wish.tried != wish.kept_out;
        let _ = self.0.news.wait_timeout_while(wish, 2 * PATIENCE, is_open);
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
mod tests {
    use std::fs::{remove_file, write};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    use steer::Translated;

    use super::table::tests::{drops, nft, port, tables};
    use super::*;

    fn kept_out(number: u16) -> Arc<KeptOut> {
        Arc::new(KeptOut { forwarded: vec![port(number)], ..KeptOut::default() })
    }

    /// Says of a port that what is for it is translated.
    fn from_host<T>(number: u16, say: impl FnOnce(&FromHost<'_>) -> T) -> T {
        let range = steer::PortRange { min: 1024, max: 2047 };
        let (translated, forwarded) = (Translated::new([], range), [port(number)]);
        say(&FromHost {
            translated: &translated,
            named_ports: &[],
            forwarded: &forwarded,
            left: &[],
        })
    }

    #[test]
    fn the_table_before_stays_until_there_is_another_and_what_has_failed_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let mut state = State::new(nft(here)).unwrap();
        state.tend(&kept_out(80), Instant::now());
        assert!(drops(here, 80) && state.trouble().is_none());
        write(here.join("refuses"), "443-443").unwrap();
        assert!(state.change(&kept_out(443)).is_err() && state.table.is_there());
        state.tend(&kept_out(443), Instant::now());
        assert!(drops(here, 80) && state.table.is_there());
        assert!(state.trouble().is_some_and(|told| told.ends_with("refused; it is tried again")));
        remove_file(here.join("refuses")).unwrap();
        state.tend(&kept_out(443), Instant::now());
        assert!(drops(here, 80), "it is not time yet");
        let (is_over, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // A new one may come while the others are looked at.
                    assert!((0..2).any(|_| !tables(here).is_empty()));
                    looks.fetch_add(1, Relaxed);
                }
            });
            state.tend(&kept_out(443), Instant::now() + FIRST_PAUSE);
            is_over.store(true, Relaxed);
        });
        assert!(drops(here, 443) && state.trouble().is_none() && looks.into_inner() > 0);
    }

    #[test]
    fn a_table_that_is_lost_is_made_again_as_it_is_to_be_or_at_least_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let mut state = State::new(nft(here)).unwrap();
        state.tend(&kept_out(80), Instant::now());
        write(here.join("refuses"), "443-443").unwrap();
        state.tend(&kept_out(443), Instant::now());
        state.table.end();
        state.tend(&kept_out(443), Instant::now());
        assert!(drops(here, 80), "{:?}", tables(here));
        assert!(state.trouble().is_some_and(|told| told.contains("not do yet")));
        // For a while it can not be made, and what is to be does not get lost over that.
        state.table.end();
        write(here.join("complains"), "busy").unwrap();
        let log = std::fs::File::create(here.join("said.log")).unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(log)).finish();
        let mut now = Instant::now();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..12 {
                state.tend(&kept_out(443), now);
                assert!(state.trouble().is_some_and(|told| told.contains("routes as well")));
                now += LONGEST_PAUSE;
            }
        });
        let said = std::fs::read_to_string(here.join("said.log")).unwrap();
        assert_eq!(said.lines().count(), 2, "that the table is lost, and why, and once: {said}");
        remove_file(here.join("complains")).unwrap();
        remove_file(here.join("refuses")).unwrap();
        state.tend(&kept_out(443), now);
        assert!(drops(here, 443) && state.trouble().is_none());
    }

    #[test]
    fn pauses_double_and_have_an_end() {
        let busy = anyhow::anyhow!("busy");
        let pauses = |is_lost: bool| {
            let mut failed: Option<Failed> = None;
            [(); 8].map(|()| {
                let next = Failed::new(&kept_out(80), is_lost, &busy, failed.as_ref());
                failed.insert(next).pause.as_secs()
            })
        };
        assert_eq!(pauses(false), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses(true), [1, 2, 4, 5, 5, 5, 5, 5]);
        let before = Failed::new(&kept_out(80), true, &busy, None);
        for (port, is_lost) in [(443, true), (80, false)] {
            let other = Failed::new(&kept_out(port), is_lost, &busy, Some(&before));
            assert_eq!(other.pause, FIRST_PAUSE);
        }
    }

    #[test]
    fn nobody_waits_for_what_holds_already() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let guard = Guard::with(nft(here)).unwrap();
        let keeper = guard.keeper();
        from_host(80, |it| keeper.keep_out(it)).unwrap();
        assert!(drops(here, 80));
        write(here.join("--check"), "").unwrap();
        let begin = Instant::now();
        for _ in 0..3 {
            from_host(443, |it| keeper.follow(it));
        }
        assert!(keeper.trouble().is_none() && drops(here, 80));
        assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
        remove_file(here.join("--check")).unwrap();
        keeper.settle();
        assert!(drops(here, 443) && keeper.trouble().is_none());
        // What is said again changes nothing.
        let before = tables(here);
        from_host(443, |it| keeper.follow(it));
        keeper.settle();
        assert_eq!(tables(here), before);
        drop(guard);
        drop(keeper);
        assert!(tables(here).is_empty());
    }

    #[test]
    fn what_is_refused_changes_nothing_and_what_holds_and_fails_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let guard = Guard::with(nft(here)).unwrap();
        let keeper = guard.keeper();
        from_host(80, |it| keeper.keep_out(it)).unwrap();
        write(here.join("refuses"), "443-443").unwrap();
        from_host(443, |it| keeper.keep_out(it)).unwrap_err();
        assert!(drops(here, 80) && keeper.trouble().is_none());
        from_host(443, |it| keeper.follow(it));
        keeper.settle();
        assert!(drops(here, 80));
        assert!(keeper.trouble().is_some_and(|told| told.contains("refused; it is tried again")));
        // Rules that can hold are told what was to be before them.
        remove_file(here.join("refuses")).unwrap();
        from_host(22, |it| keeper.keep_out(it)).unwrap();
        assert!(drops(here, 22) && keeper.trouble().is_none());
        assert!(tables(here)[0].contains("dport 443-443 jump former"));
    }
}

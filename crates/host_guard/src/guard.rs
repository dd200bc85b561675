//! Keeps the table in the kernel at the state that the gateway wants.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{FromHost, HostGuard, HostPart, LinkId, PortLink, ToHost};
use netlink::Stacked;
use netlink::nf_tables::BaseChains;

use crate::filter::HostFilter;
use crate::interface::Interface;
use crate::refusals::{Refusals, kernel_translates};
use crate::table::{Error, FilterTable, KernelTable};

/// The longest time that the loader of rules waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the next attempt after a failure. Each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Pause between looks for news of interfaces that stand on those of the gateway, and of the kernel's
/// chains.
const LOOKS: Duration = Duration::from_millis(200);

/// Keeps the kernel away from the packets of the interfaces as long as it exists.
#[derive(Debug)]
pub struct Guard {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// The state that the guard, its thread and its handles share. A thread that takes both locks takes
/// `actual` first.
#[derive(Debug)]
struct Shared {
    /// Held while the table in the kernel changes.
    actual: Mutex<Actual>,
    /// Held for a moment only.
    desired: Mutex<DesiredState>,
    /// Signals a change of `desired`.
    news: Condvar,
    /// Asks the kernel which packets it would refuse; `None` where it can not be asked.
    refusals: Mutex<Option<Refusals>>,
}

/// The desired state.
#[derive(Debug, Default)]
struct DesiredState {
    /// The last request, as it was made.
    request: HostFilter,
    /// The last request, joined with the remembered former ones.
    filter: Arc<HostFilter>,
    /// The last filter that was tried.
    tried: Arc<HostFilter>,
    /// The reason why the kernel's state differs from the desired one.
    trouble: Option<String>,
    /// True once the guard ends.
    is_over: bool,
}

/// The actual state.
#[derive(Debug)]
struct Actual {
    table: Box<dyn FilterTable>,
    /// The filter that the table applies.
    filter: Arc<HostFilter>,
    failure: Option<Failure>,
}

/// A failed change.
#[derive(Debug)]
struct Failure {
    /// The filter that was to be applied.
    filter: Arc<HostFilter>,
    pause: Duration,
    /// The time of the next attempt.
    next: Instant,
    reason: String,
}

impl Failure {
    /// A failure that follows the failure `before`.
    fn new(filter: &Arc<HostFilter>, error: &Error, before: Option<&Self>) -> Self {
        let same = before.filter(|before| before.filter == *filter);
        let pause = same.map_or(FIRST_PAUSE, |before| (2 * before.pause).min(LONGEST_PAUSE));
        let (filter, reason) = (filter.clone(), error.to_string());
        Self { filter, pause, next: Instant::now() + pause, reason }
    }

    fn trouble(&self) -> String {
        format!(
            "the kernel does not follow the rules yet: {}; the gateway tries again",
            self.reason
        )
    }
}

impl Actual {
    /// Makes the table apply `filter`.
    fn new(mut table: Box<dyn FilterTable>, filter: Arc<HostFilter>) -> Result<Self, Error> {
        table.replace(&filter)?;
        Ok(Self { table, filter, failure: None })
    }

    /// Makes the kernel apply this filter. Nothing changes on an error.
    fn change(&mut self, filter: &Arc<HostFilter>) -> Result<(), Error> {
        if self.filter != *filter {
            self.table.replace(filter)?;
            self.filter = filter.clone();
        }
        Ok(())
    }

    /// Brings the kernel to the desired state, unless it is too early for another attempt.
    fn reconcile(&mut self, desired: &Arc<HostFilter>, now: Instant) {
        let is_early = |failure: &Failure| failure.filter == *desired && now < failure.next;
        if self.failure.as_ref().is_some_and(is_early) {
            return;
        }
        let error = self.change(desired).err();
        let failure = error.map(|error| Failure::new(desired, &error, self.failure.as_ref()));
        self.note(failure);
    }

    /// Logs a failure that is new, or the end of failures.
    fn note(&mut self, failure: Option<Failure>) {
        let before = self.trouble();
        self.failure = failure;
        match self.trouble() {
            now if now == before => {}
            Some(now) => tracing::error!("{now}"),
            None => tracing::info!("the kernel follows the rules"),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.failure.as_ref().map(Failure::trouble)
    }
}

impl Shared {
    /// Learns which interfaces stand on those of the gateway, and the stations of its bridges.
    fn look_for_stacked(&self, stacked: &mut Stacked) -> Result<(), netlink::Error> {
        stacked.refresh()?;
        let mut desired = lock(&self.desired);
        let (on, bridges) = around(&desired.filter.interfaces, stacked);
        if on != desired.filter.stacked || bridges != desired.filter.bridges {
            let filter = HostFilter::clone(&desired.filter);
            desired.filter = Arc::new(HostFilter { stacked: on, bridges, ..filter });
        }
        Ok(())
    }

    /// Learns whether the kernel translates sources. If it does not tell, nothing changes.
    fn look_at_chains(&self, chains: &mut BaseChains) {
        let Ok(kernel_translates) = kernel_translates(chains) else { return };
        let mut desired = lock(&self.desired);
        if kernel_translates != desired.filter.kernel_translates {
            let filter = HostFilter::clone(&desired.filter);
            desired.filter = Arc::new(HostFilter { kernel_translates, ..filter });
        }
    }

    /// Brings the kernel to each desired state until the guard ends.
    fn follow_requests(&self, mut stacked: Stacked, mut chains: Option<BaseChains>) {
        let mut complained = false;
        loop {
            if let Some(chains) = &mut chains {
                self.look_at_chains(chains);
            }
            if let Err(error) = self.look_for_stacked(&mut stacked)
                && !std::mem::replace(&mut complained, true)
            {
                tracing::error!(
                    "the kernel may forward what comes in by a VLAN or macvlan device on an \
                     interface of the gateway, because such devices can not be listed: {error}"
                );
            }
            let mut actual = lock(&self.actual);
            let filter = lock(&self.desired).filter.clone();
            actual.reconcile(&filter, Instant::now());
            let mut desired = lock(&self.desired);
            desired.trouble = actual.trouble();
            desired.tried = filter;
            let next = actual.failure.as_ref().map(|failure| failure.next);
            drop(actual);
            self.news.notify_all();
            let is_idle =
                |desired: &mut DesiredState| !desired.is_over && desired.tried == desired.filter;
            let pause = next
                .map_or(LOOKS, |next| next.saturating_duration_since(Instant::now()).min(LOOKS));
            let waited = self.news.wait_timeout_while(desired, pause, is_idle);
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
    pub fn new(interfaces: Vec<Interface>) -> Result<Self, Error> {
        Self::with(KernelTable::new()?, interfaces)
    }

    fn with(table: impl FilterTable + 'static, interfaces: Vec<Interface>) -> Result<Self, Error> {
        let mut stacked = Stacked::new().map_err(netlink::Error::from)?;
        stacked.refresh()?;
        let (on, bridges) = around(&interfaces, &stacked);
        let mut chains = BaseChains::new().ok();
        let kernel_translates =
            chains.as_mut().is_some_and(|chains| kernel_translates(chains).unwrap_or(false));
        let filter = HostFilter {
            interfaces,
            stacked: on,
            bridges,
            kernel_translates,
            ..HostFilter::default()
        };
        let filter = Arc::new(filter);
        let actual = Mutex::new(Actual::new(Box::new(table), filter.clone())?);
        let desired = DesiredState { tried: filter.clone(), filter, ..DesiredState::default() };
        let refusals = Refusals::new().inspect_err(|error| {
            tracing::warn!(
                "closed ports of translation addresses do not answer, because the kernel can not \
                 be asked for sockets of the host: {error}"
            );
        });
        let refusals = Mutex::new(refusals.ok());
        let shared =
            Shared { actual, desired: Mutex::new(desired), news: Condvar::new(), refusals };
        let shared = Arc::new(shared);
        let thread = std::thread::Builder::new().name("guard".into());
        let of_thread = shared.clone();
        let thread = thread
            .spawn(move || of_thread.follow_requests(stacked, chains))
            .map_err(Error::NoThread)?;
        Ok(Self { thread: Some(thread), shared })
    }

    /// The handle through which the engine reports translations to the table.
    pub fn handle(&self) -> GuardHandle {
        GuardHandle(self.shared.clone())
    }
}

/// Makes the kernel keep translated packets from the host. Once the [`Guard`] has ended, nobody
/// tells the kernel about later changes any more.
#[derive(Clone, Debug)]
pub struct GuardHandle(Arc<Shared>);

impl HostGuard for GuardHandle {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        let mut actual = lock(&self.0.actual);
        let request = HostFilter::new(from_host);
        let filter = Arc::new(request.clone().after(&lock(&self.0.desired).filter));
        actual.change(&filter).map_err(|error| error.to_string())?;
        actual.note(None);
        let mut desired = lock(&self.0.desired);
        desired.trouble = None;
        (desired.request, desired.tried, desired.filter) = (request, filter.clone(), filter);
        Ok(())
    }

    fn follow(&self, from_host: &FromHost<'_>) {
        let request = HostFilter::new(from_host);
        let mut desired = lock(&self.0.desired);
        // Routes and neighbours change often, and mostly without a change here.
        if desired.request != request {
            desired.filter = Arc::new(request.clone().after(&desired.filter));
            desired.request = request;
            self.0.news.notify_all();
        }
    }

    fn follow_ports(&self, ports: &[PortLink]) {
        let mut desired = lock(&self.0.desired);
        let mut filter = HostFilter::clone(&desired.filter);
        filter.interfaces.iter_mut().zip(ports).for_each(|(it, port)| it.follow(port));
        if filter != *desired.filter {
            desired.filter = Arc::new(filter);
            self.0.news.notify_all();
        }
    }

    fn wait_until_applied(&self) {
        // Earlier requests have to be carried out in this time too.
        let desired = lock(&self.0.desired);
        let is_open =
            |desired: &mut DesiredState| !desired.is_over && desired.tried != desired.filter;
        let _ = self.0.news.wait_timeout_while(desired, PATIENCE, is_open);
    }

    fn part_of_host(&self, packet: &ToHost) -> HostPart {
        let filter = lock(&self.0.actual).filter.clone();
        let mut refusals = lock(&self.0.refusals);
        let part = refusals.as_mut().map(|it| it.part_of_host(packet, &filter));
        // Where the kernel does not answer, nobody knows what it would do.
        part.and_then(Result::ok).unwrap_or(HostPart::Destination)
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.0.desired).trouble.clone()
    }
}

/// The numbers of the interfaces that stand on one of these, and those of these that are bridges,
/// with their stations.
fn around(interfaces: &[Interface], stacked: &Stacked) -> (Vec<u32>, Vec<(u32, [u8; 6])>) {
    let links: Vec<_> = interfaces.iter().filter_map(Interface::index).map(LinkId).collect();
    let on = stacked.on(&links).into_iter().map(|link| link.0);
    let bridges = stacked.bridges(&links).into_iter().map(|(link, station)| (link.0, station));
    (on.collect(), bridges.collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held has ended the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.shared.desired).is_over = true;
        self.shared.news.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;

//! Policies of the host for devices of the gateway, which hold while it runs. Each device has a keeper
//! of its own ([`hold`]), which goes on when the gateway dies.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use control::schema::HostPolicy;
use host_settings::{Device, Keeper, Store};
use netio::afpacket::Claim;
use netpolicy::{Policy, Request};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::commands::policy::hold::{Asked, Heard, Leave, hold};
use crate::config::{Interface, OnStop};

/// The last state of each device, in words.
type States = Arc<Mutex<BTreeMap<String, String>>>;

/// The devices with policies of the host.
pub struct HostPolicies {
    states: States,
    /// The end of the gateway, once it has come.
    end: watch::Sender<Option<End>>,
    /// The thread that has the keepers, if there are any.
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// How a gateway ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It stops.
    Stopped,
    /// Another process goes on, and has keepers of its own.
    HandedOver,
}

/// A device before this gateway has keepers.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Its number in sysfs, if it is here.
    node: Option<u64>,
    /// It has a policy of the process that hands over, or of a keeper that died together with its
    /// gateway.
    is_kept: bool,
}

/// Looks at the devices. A process that takes over has to do so while the other one has its keepers.
pub fn look(claims: &[Claim], state: &Path, takes_over: bool) -> Vec<Before> {
    let store = Store::new(state);
    let look = |claim: &Claim| {
        // The gateway itself says what is wrong with a device that is not here.
        let device = claim.link().ok().flatten().and_then(|link| Device::open(&link.name).ok());
        let keeper = device.as_ref().map(|device| store.keeper(device.identity()));
        let is_kept = match keeper {
            Some(Ok(Keeper::Works)) => takes_over,
            Some(Ok(Keeper::Died)) => true,
            _ => false,
        };
        Before { node: device.map(|device| device.identity().node), is_kept }
    };
    claims.iter().map(look).collect()
}

impl HostPolicies {
    /// Starts the keepers of interfaces that were [looked at](look) in this order. Those of a process
    /// that takes over wait for the end of the others. A device that has no policy any more has a
    /// keeper, too, which puts back what was there first.
    ///
    /// # Errors
    /// There is no thread for them.
    pub fn start(
        interfaces: &[Interface],
        before: &[Before],
        state: &Path,
        takes_over: bool,
    ) -> io::Result<Self> {
        let (end, ended) = watch::channel(None);
        let (states, mut asked) = (States::default(), Vec::new());
        for (interface, Before { node, is_kept }) in interfaces.iter().zip(before) {
            let device = interface.own_name().to_owned();
            if interface.host_policy == Policy::None && !is_kept {
                continue;
            }
            let (request, state) = (Request::new(interface.host_policy), state.to_owned());
            let (skips_refused, waits, then) = (true, takes_over, None);
            let node = node.filter(|_| takes_over);
            let one = Asked { device, state, request, skips_refused, waits, then, node };
            asked.push((one, interface.host_policy_on_stop));
        }
        let thread = (!asked.is_empty()).then(|| {
            let states = states.clone();
            let thread = std::thread::Builder::new().name("host-policies".into());
            thread.spawn(move || keep(asked, &states, &ended))
        });
        Ok(Self { states, end, thread: thread.transpose()? })
    }

    /// Tells the state of each device.
    pub fn teller(&self) -> control::HostPolicies {
        let states = self.states.clone();
        Arc::new(move || {
            let states = states.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let policy = |(device, state)| HostPolicy { device, state };
            states.into_iter().map(policy).collect()
        })
    }

    /// Ends the keepers, which put back what was there first unless the configuration or the next
    /// process wants the settings to stay.
    ///
    /// # Errors
    /// Something could not be put back.
    pub fn end(self, end: End) -> anyhow::Result<()> {
        self.end.send_replace(Some(end));
        let Some(thread) = self.thread else { return Ok(()) };
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread of the keepers has failed")))
    }
}

/// Has a keeper for each device until the end of the gateway. The first failure is the result.
fn keep(
    asked: Vec<(Asked, OnStop)>,
    states: &States,
    ended: &watch::Receiver<Option<End>>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut all = JoinSet::new();
        for (asked, on_stop) in asked {
            all.spawn(keep_one(asked, on_stop, states.clone(), ended.clone()));
        }
        let mut result = Ok(());
        while let Some(one) = all.join_next().await {
            result = result.and(one.unwrap_or_else(|error| Err(error.into())));
        }
        result
    })
}

async fn keep_one(
    asked: Asked,
    on_stop: OnStop,
    states: States,
    mut ended: watch::Receiver<Option<End>>,
) -> anyhow::Result<()> {
    let set = |state: &str| {
        let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = state.strip_prefix(&format!("{}: ", asked.device)).unwrap_or(state);
        states.insert(asked.device.clone(), state.to_owned());
    };
    set("its policy of the host is not in force yet");
    let hear = |heard: Heard<'_>| {
        tracing::info!("{}", heard.line());
        if let Heard::State(state) = heard {
            set(state);
        }
    };
    let has_ended = ended.clone();
    let stop = async {
        let end = ended.wait_for(Option::is_some).await.map_or(None, |end| *end);
        match (end, on_stop) {
            (Some(End::HandedOver), _) | (Some(End::Stopped), OnStop::Keep) => Leave::Keep,
            _ => Leave::PutBack,
        }
    };
    let held = hold(&asked, hear, stop).await;
    if let Err(error) = &held
        && has_ended.borrow().is_none()
    {
        tracing::error!("{}: no policy of the host: {error:#}", asked.device);
        set(&format!("no policy of the host: {error:#}"));
        // The gateway goes on without it.
        return Ok(());
    }
    held
}

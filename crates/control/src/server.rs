//! The thread that serves the control socket.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use engine::{Gateway, StateSync};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use crate::connections::{Admitted, Arriving, ClientStream, Connections};
use crate::gate::Gate;
use crate::routes;
use crate::rule_body::Turns;
use crate::rules::{Keeper, RuleBook};
use crate::schema::{HandedOver, HostPolicy, Upgrade};
use crate::socket::ControlSocket;

/// The largest number of lists and event streams at the same time; each has a thread.
pub(crate) const MAX_STREAMS: usize = 16;

/// Threads for calls into the gateway beside those of the streams.
const CALL_THREADS: usize = 4;

/// The longest time until the header of a request is complete, from the beginning of its
/// connection.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before the next attempt to accept a connection, after the system refused one.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Pause before it is told again that the system refuses connections.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Time for answers to end when the gateway stops. Slower readers are cut off.
const GRACE: Duration = Duration::from_secs(1);

/// A request that the gateway hand over, of its own user or root.
#[derive(Debug)]
pub enum HandOverRequest {
    /// To the process behind this socket, which speaks [`sync::hand_over`]; its number, if the kernel
    /// tells.
    To(std::os::unix::net::UnixStream, Option<u32>),
    /// To a process that is to be started. The answer is for the client.
    Start(Upgrade, oneshot::Sender<Result<HandedOver, String>>),
}

/// Takes requests that the gateway hand over. It returns at once.
pub type Successors = Arc<dyn Fn(HandOverRequest) + Send + Sync>;

/// Tells the policies of the host that hold while the gateway runs.
pub type HostPolicies = Arc<dyn Fn() -> Vec<HostPolicy> + Send + Sync>;

/// The reason why the control socket can not be served.
#[derive(Debug, thiserror::Error)]
#[error("can not serve the control socket: {0}")]
pub struct ServerError(#[from] io::Error);

/// Serves the control socket until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    gate: Gate,
    thread: Option<JoinHandle<()>>,
    // Removed from the file system after the thread has ended.
    socket: Option<ControlSocket>,
}

/// Tells the thread and the streams that the gateway stops.
#[derive(Debug, Default)]
pub(crate) struct Stop(watch::Sender<bool>);

impl Stop {
    /// True once the gateway stops.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    fn begin(&self) {
        self.0.send_replace(true);
    }

    async fn begun(self: Arc<Self>) {
        // An error would mean that the sender is gone, but this value holds it.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// The state that all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub gateway: Arc<Gateway>,
    /// Closed while the gateway hands over.
    pub gate: Gate,
    /// Takes requests that the gateway hand over.
    pub successors: Successors,
    /// The peer, if there is one.
    pub peer: Option<Arc<Mutex<StateSync>>>,
    pub rules: Arc<Keeper>,
    pub turns: Turns,
    pub streams: Arc<Semaphore>,
    pub connections: Connections,
    pub stop: Arc<Stop>,
    /// The number of lost lines of the log.
    pub log_lines_lost: fn() -> u64,
    /// Policies of the host for devices.
    pub host_policies: HostPolicies,
}

impl Server {
    /// Starts to serve. `peer` is that of state sync. `rules` is the ruleset that the gateway was
    /// started with. `successors` gets requests that the gateway hand over. `log_lines_lost` returns the number of lost lines of its log.
    /// `host_policies` returns the policies of the host that hold while it runs.
    ///
    /// # Errors
    /// [`ServerError`] when the system has no thread or descriptor left. Then the socket is
    /// removed.
    pub fn start(
        socket: ControlSocket,
        gateway: Arc<Gateway>,
        peer: Option<Arc<Mutex<StateSync>>>,
        rules: Option<RuleBook>,
        successors: Successors,
        log_lines_lost: fn() -> u64,
        host_policies: HostPolicies,
    ) -> Result<Self, ServerError> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(MAX_STREAMS + CALL_THREADS)
            .thread_name("control-call")
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::from_std(socket.listener()?)?
        };
        let stop = Arc::new(Stop::default());
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        let followed = peer.clone();
        let tell_peer = move |book: Option<&RuleBook>| {
            if let Some(peer) = &followed {
                // The peer's owner does not wait for that: it takes a while for large sets.
                let fingerprint = book.map(|book| book.ruleset().fingerprint());
                let mut peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
                peer.set_rules(fingerprint);
            }
        };
        let rules = Arc::new(Keeper::new(rules, Box::new(tell_peer)));
        let connections = Connections::new(netio::descriptor_limit()?);
        let (stopping, gate) = (stop.clone(), Gate::default());
        let of_server = gate.clone();
        let turns = Turns::new();
        let shared = Shared {
            gateway,
            gate,
            successors,
            peer,
            rules,
            turns,
            streams,
            connections,
            stop,
            log_lines_lost,
            host_policies,
        };
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || serve(runtime, listener, shared))?;
        Ok(Self { stop: stopping, gate: of_server, thread: Some(thread), socket: Some(socket) })
    }

    /// The gate of the requests.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Ends, and leaves the socket to another process.
    pub fn leave(mut self) {
        if let Some(socket) = self.socket.take() {
            socket.leave();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.begin();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread has panicked");
        }
    }
}

fn serve(runtime: Runtime, listener: UnixListener, shared: Shared) {
    let stop = shared.stop.clone();
    let patience = async {
        stop.clone().begun().await;
        tokio::time::sleep(GRACE).await;
    };
    runtime.block_on(async {
        tokio::select! {
            () = answer_all(listener, shared) => {}
            () = patience => {}
        }
    });
    // This closes the connections that are left, and waits for the calls in progress. Afterwards no
    // task holds the gateway any more.
    drop(runtime);
}

/// Serves all connections until the gateway stops, then those that have sent a request.
async fn answer_all(listener: UnixListener, shared: Shared) {
    let (stop, connections) = (shared.stop.clone(), shared.connections.clone());
    let router = routes::router(shared);
    let mut tasks = JoinSet::new();
    let accept_all = async {
        let mut last_report: Option<Instant> = None;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let admitted = connections.admit().await;
                    tasks.spawn(answer(stream, admitted, router.clone(), stop.clone()));
                }
                Err(error) => {
                    // Not as often as it is tried, or as somebody gets through in between.
                    if last_report.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
                        tracing::error!(
                            "the control socket accepts no connection: {error}; the gateway \
                             tries again"
                        );
                        last_report = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
            while tasks.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = accept_all => {}
        () = stop.clone().begun() => {}
    }
    while tasks.join_next().await.is_some() {}
}

/// The process that asks, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// Its user.
    pub user: Option<u32>,
    /// Its number.
    pub process: Option<u32>,
}

impl Asker {
    fn of(stream: &UnixStream) -> Self {
        let credentials = stream.peer_cred().ok();
        let process = credentials.and_then(|it| it.pid()).and_then(|it| u32::try_from(it).ok());
        // A process of another PID namespace has no number here.
        Self { user: credentials.map(|it| it.uid()), process: process.filter(|it| *it != 0) }
    }
}

/// Serves the request of a connection.
async fn answer(stream: UnixStream, admitted: Admitted, router: Router, stop: Arc<Stop>) {
    let connection = &admitted.connection;
    let asker = Asker::of(&stream);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        connection.has_asked();
        let connection = connection.clone();
        let mut request = request.map(|body| Body::new(Arriving { body, connection }));
        request.extensions_mut().insert(asker);
        router.call(request)
    });
    let io = TokioIo::new(ClientStream { stream, connection: connection.clone() });
    let answered = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .keep_alive(false)
        .serve_connection(io, service)
        .with_upgrades();
    let nobody_asks = async {
        stop.begun().await;
        if !connection.is_asking() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // Only the client, which has caused it, is interested in an error.
        _ = answered => {}
        () = connection.gives_way() => {}
        () = nobody_asks => {}
    }
}

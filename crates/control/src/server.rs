//! The thread that answers on the control socket.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Gateway;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use crate::routes;
use crate::rules::{Keeper, RuleBook};
use crate::socket::ControlSocket;

/// Most lists and event streams at the same time; each has a thread.
pub(crate) const MAX_STREAMS: usize = 16;

/// Threads for calls into the gateway beside those of the streams.
const CALL_THREADS: usize = 4;

/// How long answers may take to come to their end when the gateway stops. A reader
/// that is slower is cut off.
const GRACE: Duration = Duration::from_secs(1);

/// Why nobody answers on the control socket.
#[derive(Debug, thiserror::Error)]
#[error("can not serve the control socket: {0}")]
pub struct ServerError(#[from] io::Error);

/// Answers on the control socket until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    // Removed from the file system after the thread has ended.
    _socket: ControlSocket,
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
        // An error says that the sender is gone, which is here.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// What every request needs.
#[derive(Clone)]
pub(crate) struct Shared {
    pub gateway: Arc<Gateway>,
    pub rules: Arc<Keeper>,
    pub streams: Arc<Semaphore>,
    pub stop: Arc<Stop>,
}

impl Server {
    /// Starts to answer. `rules` is the ruleset that the gateway was started with.
    ///
    /// # Errors
    /// [`ServerError`] when the system gives no thread or descriptor; the socket
    /// has been removed then.
    pub fn start(
        socket: ControlSocket,
        gateway: Arc<Gateway>,
        rules: Option<RuleBook>,
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
        let rules = Arc::new(Keeper::new(rules));
        let shared = Shared { gateway, rules, streams, stop: stop.clone() };
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || serve(runtime, listener, shared))?;
        Ok(Self { stop, thread: Some(thread), _socket: socket })
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
    let service =
        axum::serve(listener, routes::router(shared)).with_graceful_shutdown(stop.clone().begun());
    let patience = async {
        stop.begun().await;
        tokio::time::sleep(GRACE).await;
    };
    runtime.block_on(async {
        tokio::select! {
            result = service.into_future() => {
                if let Err(error) = result {
                    tracing::error!("the control socket fails: {error}");
                }
            }
            () = patience => {}
        }
    });
    // Closes what connections are left, and waits for the calls in progress:
    // afterwards nobody holds the gateway any more.
    drop(runtime);
}

//! Tells systemd the state of the gateway (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The longest wait for the supervisor to make room for a message.
const PATIENCE: Duration = Duration::from_secs(1);

/// The program that started the gateway, if it wants to be told.
#[derive(Debug)]
pub struct Supervisor {
    address: Option<SocketAddr>,
}

impl Supervisor {
    /// The supervisor that `NOTIFY_SOCKET` names.
    pub fn from_environment() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            match path.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name).ok(),
                None => SocketAddr::from_pathname(path).ok(),
            }
        });
        Self { address }
    }

    /// Says that the gateway runs.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Says that another process is the gateway from now on. Only the process that has been the gateway
    /// may say so.
    pub fn left_to(&self, process: u32) {
        self.tell(&format!("MAINPID={process}"));
    }

    /// Says that the gateway is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        let Some(address) = &self.address else { return };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_write_timeout(Some(PATIENCE))?;
            socket.send_to_addr(state.as_bytes(), address)
        });
        if let Err(error) = sent {
            tracing::warn!("the supervisor does not get {state}: {error}");
        }
    }
}

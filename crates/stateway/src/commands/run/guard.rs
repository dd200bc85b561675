//! Keeps the kernel from routing what this gateway routes.
//!
//! The kernel sees every packet too, and a host that forwards would send each a second time,
//! or answer it. So a table of nftables drops what comes in by the gateway's interfaces and is
//! not for the host. The table has an owner (nft(8), flag `owner`): an nft that waits for
//! orders on a pipe. It goes with the pipe, however this process ends, and the kernel takes
//! the table with it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long nft may take to make the table.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is looked whether it is still there.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// The kernel leaves the packets of the interfaces alone as long as this exists: a table that
/// is lost is made again.
#[derive(Debug)]
pub struct Guard {
    /// Closed first, so that the watch ends.
    stop: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Guard {
    /// Makes the table.
    ///
    /// # Errors
    /// Where there is no nft, or it may not make tables.
    pub fn new<'a>(interfaces: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        let names: Vec<String> = interfaces.map(|name| format!("\"{name}\"")).collect();
        let names = names.join(", ");
        let mut table = Table::new(&names)?;
        let (stop, stopped) = channel();
        let watch = move || {
            while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                if table.is_there() {
                    continue;
                }
                tracing::error!("nft has ended, and its table: the kernel has routed as well");
                match Table::new(&names) {
                    Ok(made) => {
                        table = made;
                        tracing::info!("the table is there again");
                    }
                    Err(error) => tracing::error!("{error:#}"),
                }
            }
        };
        let watch = std::thread::Builder::new().name("guard".into()).spawn(watch)?;
        Ok(Self { stop: Some(stop), watch: Some(watch) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// The table, and the process that owns it.
#[derive(Debug)]
struct Table {
    nft: Child,
    /// Closed first, so that nft ends.
    orders: Option<ChildStdin>,
}

impl Table {
    fn new(names: &str) -> anyhow::Result<Self> {
        let table = format!("stateway_{}", std::process::id());
        let mut nft = Command::new("nft")
            .arg("-i")
            // What a terminal sends to the gateway is not for it: the gateway is to end first.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context(
                "routed mode keeps the kernel from routing as well, and needs nft(8) for it",
            )?;
        let orders = nft.stdin.take();
        let mut guard = Self { nft, orders };
        let order = format!(
            "add table inet {table} {{ flags owner; }}; \
             add chain inet {table} prerouting \
             {{ type filter hook prerouting priority raw; policy accept; }}; \
             add rule inet {table} prerouting iifname {{ {names} }} fib daddr type \
             != {{ local, broadcast, anycast, multicast }} drop\n"
        );
        if let Some(orders) = &mut guard.orders {
            orders.write_all(order.as_bytes()).context("nft takes no orders")?;
        }
        let patience = Instant::now() + PATIENCE;
        while !is_there(&table)? {
            if Instant::now() >= patience || guard.nft.try_wait()?.is_some() {
                bail!(
                    "nft could not make the table inet {table} that keeps the kernel from routing \
                     as well; it needs CAP_NET_ADMIN, and a kernel with nf_tables and its \
                     expression fib"
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(guard)
    }

    fn is_there(&mut self) -> bool {
        matches!(self.nft.try_wait(), Ok(None))
    }
}

fn is_there(table: &str) -> anyhow::Result<bool> {
    let listed = Command::new("nft").args(["list", "table", "inet", table]).output();
    Ok(String::from_utf8_lossy(&listed.context("nft does not run")?.stdout).contains("drop"))
}

impl Drop for Table {
    fn drop(&mut self) {
        self.orders = None;
        // It ends with its input.
        let _ = self.nft.wait();
    }
}

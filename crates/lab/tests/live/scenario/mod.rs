//! The words in which all live tests speak: networks, gateways, traffic and what can be read of
//! them afterwards. A test file has fixtures of its own only for what it alone shows.
//!
//! A test runs [`beside_others`], or [`alone`] if it floods or measures. It begins with a network,
//! sends traffic, reads counters or listings, and ends with [`stop_cleanly`].
//!
//! **Networks.** Most tests take a *lab*, a client and a server with a gateway between them. Real
//! programs and the kernel are the hosts.
//!
//! | network | gateway | the server |
//! | --- | --- | --- |
//! | [`bridge`] | Stateway as a bridge | in the client's subnet |
//! | [`guarded_bridge`] | the same, which lets only expected connections in from the server | the same |
//! | [`router`] | Stateway as a router, whose kernel would forward too | in another subnet |
//! | [`closed_router`] | the same, with rules that forward nothing | the same |
//! | [`edge_router`], [`masquerading_router`] | a router that translates | has no route to the client |
//! | [`start`] of a [`bridge_spec`] or [`router_spec`] | as the test configures it | either |
//! | [`kernel_bridge`], [`kernel_router`] | the kernel alone, as the model | either |
//!
//! [`inside`] and [`outside`] are a router's addresses. [`with_config`] is for a configuration that
//! the program may refuse. [`Segment`] has three hosts in one subnet, for a bridge with three ports.
//! Where single frames count, `cables` has a gateway between two cables, and a program that plays
//! the hosts. `trackers` sends the same packets through the kernel's tracker and ours. `own_table` is
//! our table alone.
//!
//! **Rules.** Tests write rules in nft's syntax: [`load`] exchanges those of a gateway that runs,
//! [`ruleset_file`] writes a file for the command or the configuration.
//!
//! **Exchanges.** `traffic` has what every gateway must carry, such as [`every_client`]. `frames`
//! sends raw frames and lists those that arrive. [`echo`] and [`source_echo`] are servers for the
//! clients of a test, and [`ready`] waits for any program that says when it begins.
//!
//! **Readings.** [`stateway`] is the gateway to ask. [`drops`], [`conntrack_counter`] and [`table`]
//! are its answers; [`echos_at_server`] and [`answers_of_host`] are those of the kernels around it.
//! [`soon`] waits for a reading.

use std::io::{Write, stderr};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use lab::{Error, Family, Result};

pub mod cables;
pub mod cluster;
mod frames;
mod gateways;
pub mod h323;
mod links;
pub mod own_table;
pub mod pptp;
mod processes;
mod readings;
mod rules;
mod segment;
mod services;
pub mod trackers;
mod traffic;

pub use self::frames::*;
pub use self::gateways::*;
pub use self::links::*;
pub use self::processes::*;
pub use self::readings::*;
pub use self::rules::*;
pub use self::segment::*;
pub use self::services::*;
pub use self::traffic::*;

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Tests beside others hold it together, one that is alone holds it by itself.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs a test while others may run in labs of their own. If this machine lacks a feature, it
/// prints that the test is skipped.
pub fn beside_others(test: impl FnOnce() -> Result<()>) {
    let _share = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

/// As [`beside_others`], for a test that floods or measures: no other runs meanwhile.
pub fn alone(test: impl FnOnce() -> Result<()>) {
    let _all = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

fn run(test: impl FnOnce() -> Result<()>) {
    match test() {
        Ok(()) => {}
        // `println!` shows nothing for a test that passes.
        Err(Error::Unavailable { why }) => {
            stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}

/// The binary: `STATEWAY_BIN`, or the one beside this test's directory.
pub fn stateway_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STATEWAY_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().expect("a running program has a path");
    let beside = own.ancestors().nth(2).map(|profile| profile.join("stateway"));
    beside.filter(|path| path.exists()).ok_or_else(|| Error::Unavailable {
        why: "no stateway binary: run `cargo build -p stateway` or set STATEWAY_BIN".into(),
    })
}

/// The seeds: `STATEWAY_SEEDS=N` is 0 to N - 1, `STATEWAY_SEEDS=A-B` is A to B.
pub fn seeds(default: u64) -> Range<u64> {
    let Ok(wanted) = std::env::var("STATEWAY_SEEDS") else { return 0..default };
    let number = |text: &str| text.parse::<u64>().expect("STATEWAY_SEEDS is N or A-B");
    match wanted.split_once('-') {
        Some((first, last)) => number(first)..number(last) + 1,
        None => 0..number(&wanted),
    }
}

/// Waits until the condition holds. The gateway checks its interfaces from time to time.
pub fn soon(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..300 {
        if is_so()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("not so: {what}");
}

//! Measures how fast frames of 60 bytes go in and out of packet sockets, with nothing done in
//! between: `unshare -n forward [seconds]`. The generator runs on the last CPU, the forwarder on
//! the first.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]

#[path = "../tests/afpacket/machine.rs"]
mod machine;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use machine::{Machine, ip};
use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::{FramePool, PortId, RxQueue, TxQueue, Waiter, cpu};

const BATCH: usize = 64;

fn main() {
    let seconds = std::env::args().nth(1).map_or(2, |seconds| seconds.parse().unwrap());
    let cpus = cpu::allowed_cpus().unwrap();
    let (first, last) = (cpus[0], *cpus.last().unwrap());
    let machines = [0, 1].map(|number| {
        let machine = Machine::new();
        machine.connect(&format!("g{number}"), &format!("p{number}"));
        machine
    });
    ip("link set lo up");
    for round in 0..3 {
        for qdisc_bypass in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let bell = stop.clone();
            let generated = machines[0].start(move || generate(last, &bell));
            let options = AfPacketOptions { qdisc_bypass, ..AfPacketOptions::default() };
            let limit = Duration::from_secs(seconds);
            let figures = thread::spawn(move || forward(first, &options, limit)).join().unwrap();
            stop.store(true, Relaxed);
            let generated = generated.recv().unwrap();
            println!("round {round} bypass {qdisc_bypass}: generated {generated:.3} {figures}");
        }
    }
}

/// Sends until told to stop; returns million frames per second.
fn generate(cpu: usize, stop: &AtomicBool) -> f64 {
    cpu::pin_current_thread(cpu).unwrap();
    let options = AfPacketOptions { qdisc_bypass: true, ..AfPacketOptions::default() };
    let mut port = AfPacketPort::open("p0", PortId(0), &options).unwrap();
    port.receive.clear();
    let (mut pool, mut frames) = (FramePool::new(BATCH, 0), Vec::new());
    let mut packet = [0; 60];
    packet[..6].fill(2);
    packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    packet[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    let start = Instant::now();
    let mut sent = 0;
    while !stop.load(Relaxed) {
        frames.extend((0..BATCH).filter_map(|_| pool.copy_of(&packet)));
        sent += port.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent;
    }
    sent as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn forward(cpu: usize, options: &AfPacketOptions, limit: Duration) -> String {
    cpu::pin_current_thread(cpu).unwrap();
    let mut input = AfPacketPort::open("g0", PortId(0), options).unwrap();
    let mut output = AfPacketPort::open("g1", PortId(1), options).unwrap();
    let (receive, transmit) = (&mut input.receive[0], &mut output.transmit[0]);
    let (mut pool, mut frames) = (FramePool::new(2 * BATCH, 8), Vec::new());
    let mut waiter = Waiter::new();
    let (mut sent, mut refused, mut batches) = (0, 0, 0_u64);
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    while start.elapsed() < limit {
        if receive.receive(&mut frames, BATCH, &mut pool).unwrap() == 0 {
            let handle = receive.wait_handle().unwrap();
            waiter.wait([handle], Some(Duration::from_millis(100))).unwrap();
            continue;
        }
        batches += 1;
        let report = transmit.transmit(&mut frames, &mut pool).unwrap();
        sent += report.sent;
        refused += report.refused_full;
    }
    let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e6;
    let cpu_rate = sent as f64 / (cpu_seconds() - cpu_start) / 1e6;
    let size = sent as f64 / batches as f64;
    format!(
        "forwarded {rate:.3} Mpps, {cpu_rate:.3} per CPU second, batch {size:.1}, refused {refused}, lost {}",
        receive.take_lost()
    )
}

/// CPU time of this thread, in seconds. On a busy machine it tells more than the clock.
fn cpu_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    statistics.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

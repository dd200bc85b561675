//! Idle connections, and readers that do not read, do not keep other clients out.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use control::schema::Status;

use crate::{PATIENCE, Running, begun_request};

/// Many more than are allowed at the same time.
const MANY: usize = 300;

fn half_open(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The gateway may have closed the connection already.
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: ");
    stream
}

/// True if the gateway has closed the connection, possibly after an answer.
fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 512]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Connections that `socket` has accepted.
fn accepted(socket: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let connected = |line: &&str| {
        let mut fields = line.split_whitespace().skip(5);
        // State 3: connected. Connections that wait to be accepted have no inode yet.
        fields.next() == Some("03") && fields.next() != Some("0")
    };
    let path = socket.to_str().unwrap();
    table.lines().filter(|line| line.ends_with(path)).filter(connected).count()
}

#[test]
fn half_open_connections_give_way_to_others() {
    let running = Running::start();
    let open: Vec<UnixStream> = (0..MANY).map(|_| half_open(&running.socket)).collect();
    for _ in 0..10 {
        running.client.get::<Status>("/v1/status").unwrap();
    }
    assert!(accepted(&running.socket) <= 64, "{}", accepted(&running.socket));
    assert!(is_closed(&open[0]), "the oldest goes first");
    running.stop();
}

#[test]
fn a_request_that_is_not_finished_ends() {
    let running = Running::start();
    let mut stream = half_open(&running.socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    running.stop();
}

#[test]
fn one_connection_carries_one_request() {
    let running = Running::start();
    let mut stream = UnixStream::connect(&running.socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/connections/count HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    // The answer ends when the gateway closes the connection, without a time-out.
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    running.stop();
}

#[test]
fn readers_that_do_not_read_give_way_to_others() {
    let mut running = Running::start();
    // The list of these flows has some megabytes.
    const FLOWS: u64 = 20_000;
    running.open_flows(FLOWS);
    let stalled: Vec<UnixStream> =
        (0..16).map(|_| begun_request(&running.socket, "/v1/connections")).collect();
    let begin = Instant::now();
    let listed = loop {
        match running.lines("/v1/connections") {
            Ok(lines) => break lines.len() as u64,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(listed, FLOWS);
    running.stop();
    drop(stalled);
}

#[test]
fn readers_that_wait_for_events_do_not_give_way() {
    let running = Running::start();
    let waiting: Vec<UnixStream> =
        (0..16).map(|_| begun_request(&running.socket, "/v1/events")).collect();
    let open: Vec<UnixStream> = (0..MANY).map(|_| half_open(&running.socket)).collect();
    running.client.get::<Status>("/v1/status").unwrap();
    assert!(waiting.iter().all(|stream| !is_closed(stream)));
    drop(open);
    running.stop();
}

//! Raw frames at the `eth0` of a host.

use crate::scenario::ready;
use lab::{Background, Namespace, Program, Result};
use wire::{Transport, dissect};

/// The program that sends and listens at a host.
fn raw_frames(host: &Namespace, what: &str) -> Result<Program> {
    let script = host.write_file("raw_frames.py", include_bytes!("raw_frames.py"))?;
    Ok(host.program("python3").args([&script, what]))
}

/// Sends frames in this order.
pub fn send_frames(host: &Namespace, frames: &[Vec<u8>]) -> Result<()> {
    raw_frames(host, "send")?.input(lines(frames)).check().map(drop)
}

/// Sends frames that begin with a virtio header, which says what the sender leaves to others. It
/// leaves out the frames that the kernel refuses.
pub fn send_offloads(host: &Namespace, frames: &[Vec<u8>]) -> Result<()> {
    raw_frames(host, "offload")?.input(lines(frames)).check().map(drop)
}

fn lines(frames: &[Vec<u8>]) -> String {
    frames.iter().map(|frame| hex(frame) + "\n").collect()
}

/// Starts a program that prints the frames that arrive.
pub fn listen(host: &Namespace) -> Result<Background> {
    ready(raw_frames(host, "listen")?)
}

/// The frames that the program printed.
pub fn frames(listening: Background) -> Result<Vec<Vec<u8>>> {
    let printed = listening.terminate()?.stdout;
    Ok(printed.lines().filter(|line| *line != "ready").map(bytes).collect())
}

/// A frame in the digits in which programs read and print it.
pub fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The frame with these digits.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// The payload of a segment, or of another packet with a transport header of 8 bytes.
pub fn payload(frame: &[u8]) -> Vec<u8> {
    let network = dissect(frame).unwrap().network.unwrap();
    let header = match network.transport {
        Transport::Tcp(tcp) => usize::from(tcp.header_len),
        _ => 8,
    };
    frame[usize::from(network.transport_offset) + header..].to_vec()
}

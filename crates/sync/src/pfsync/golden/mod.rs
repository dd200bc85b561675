//! Golden bytes: our codec beside an encoder in Python and a decoder in C. Both are written from the
//! layout tables of docs/internals/pfsync.md alone. All three show the fields of a packet as the same
//! text, with the names and raw values that the tables have.

mod text;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::sample::{self, Random};
use super::{Dialect, Packet};

const DECODER: &str = include_str!("decode.c");
const ENCODER: &str = include_str!("encode.py");
/// Packets of each dialect.
const PACKETS: u32 = 500;
const SEED: u64 = 20_261;

/// Packets with their texts.
type Shown = Vec<(Dialect, Vec<u8>, String)>;

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// The output of a program, or `None` if the machine does not have it.
fn output_of(command: &mut Command, input: &str) -> Option<String> {
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("SKIPPED: {:?}: {error}", command.get_program());
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    assert!(output.status.success(), "{:?} failed", command.get_program());
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The texts of packets as the decoder in C shows them; `None` if there is no compiler.
fn decoded_in_c(packets: &Shown) -> Option<Vec<String>> {
    let folder = folder_of_its_own();
    let (source, program) = (folder.0.join("decode.c"), folder.0.join("decode"));
    std::fs::write(&source, DECODER).unwrap();
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"];
    output_of(Command::new("cc").args(flags).arg(&program).arg(&source), "")?;
    let line = |(dialect, bytes, _): &(Dialect, Vec<u8>, String)| {
        format!("{} {}\n", dialect.number(), to_hex(bytes))
    };
    let shown =
        output_of(&mut Command::new(&program), &packets.iter().map(line).collect::<String>())?;
    Some(shown.split_terminator("end\n").map(str::to_owned).collect())
}

/// Packets of the encoder in Python; `None` if there is no Python.
fn encoded_in_python() -> Option<Shown> {
    let arguments = ["-c", ENCODER, &SEED.to_string(), &PACKETS.to_string()];
    let shown = output_of(Command::new("python3").args(arguments), "")?;
    let packet = |text: &str| {
        let (head, fields) = text.split_once('\n').unwrap();
        let (dialect, digits) = head.split_once(' ').unwrap();
        let dialect = Dialect::of_number(dialect.parse().unwrap()).unwrap();
        (dialect, from_hex(digits), fields.to_owned())
    };
    Some(shown.split_terminator("end\n").map(packet).collect())
}

/// A folder that goes with its value.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder_of_its_own() -> Folder {
    let name = format!("pfsync-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = Path::new(&std::env::temp_dir()).join(name);
    std::fs::create_dir_all(&path).unwrap();
    Folder(path)
}

#[test]
fn a_decoder_in_c_reads_our_packets() {
    let mut random = Random(SEED);
    let mut ours = Vec::new();
    for at in 0..PACKETS * Dialect::ALL.len() as u32 {
        let dialect = Dialect::ALL[at as usize % Dialect::ALL.len()];
        let (messages, bytes) = sample::packet(&mut random, dialect, 60_000);
        ours.push((dialect, bytes, text::of(dialect, &messages)));
    }
    let Some(theirs) = decoded_in_c(&ours) else { return };
    assert_eq!(theirs.len(), ours.len());
    for ((dialect, _, ours), theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{dialect:?}");
    }
}

#[test]
fn we_and_a_decoder_in_c_read_the_packets_of_an_encoder_in_python() {
    let Some(theirs) = encoded_in_python() else { return };
    assert_eq!(theirs.len(), PACKETS as usize * Dialect::ALL.len());
    for (dialect, bytes, shown) in &theirs {
        let packet = Packet::decode(*dialect, bytes).unwrap();
        // Replay counters of IPsec (message 11) are left out here.
        let is_read = |line: &&str| !line.starts_with("11 ");
        let left_out = shown.lines().filter(|line| !is_read(line)).count();
        assert_eq!((packet.skipped as usize, packet.is_abandoned), (left_out, false));
        let shown: String = shown.lines().filter(is_read).map(|line| format!("{line}\n")).collect();
        assert_eq!(text::of(*dialect, &packet.messages), shown, "{dialect:?}");
    }
    let Some(in_c) = decoded_in_c(&theirs) else { return };
    assert!(theirs.iter().map(|(_, _, shown)| shown).eq(&in_c));
}

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::*;

/// The longest time for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn queue_to(output: impl Write + Send + 'static) -> Arc<Queue> {
    let queue = Arc::new(Queue::new());
    let writer = queue.clone();
    // The thread waits for more lines when the test has ended.
    std::thread::spawn(move || writer.write_to(output));
    queue
}

fn lost(queue: &Queue) -> u64 {
    queue.lost.load(Ordering::Relaxed)
}

/// A line by its number.
fn line(number: usize) -> String {
    format!("line {number} of many\n")
}

/// The number of lost lines in a remark.
fn lost_in_remark(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("stateway: ")?;
    rest.split_once(" of the log lost here")?.0.split(' ').next()?.parse().ok()
}

#[test]
fn lines_that_a_stalled_reader_misses_are_counted_where_they_are_missing() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let queue = queue_to(writer);
    // No reader takes anything, and yet this ends.
    let count = 2 * QUEUE_BYTES / line(0).len();
    (0..count).for_each(|number| queue.put(line(number).as_bytes()));
    let missing = lost(&queue);
    assert!(missing > 1000, "{missing}");
    queue.wait_until_written(Duration::from_millis(10));

    let mut text = Vec::new();
    let last = line(count);
    while !text.ends_with(last.as_bytes()) {
        let mut piece = [0; 4096];
        let read = reader.read(&mut piece).unwrap();
        text.extend(&piece[..read]);
        if text.ends_with(b"in time\n") {
            queue.put(last.as_bytes());
        }
    }
    let (mut number, mut total) = (0, 0);
    for found in String::from_utf8(text).unwrap().lines() {
        match lost_in_remark(found) {
            Some(lost) => {
                total += lost;
                number += lost as usize;
            }
            None => {
                assert_eq!(format!("{found}\n"), line(number));
                number += 1;
            }
        }
    }
    assert_eq!((number, total), (count + 1, missing));
    assert_eq!(lost(&queue), missing);
}

#[test]
fn everything_is_written_when_somebody_reads() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let queue = queue_to(writer);
    queue.put(b"one\n");
    queue.put(b"two\n");
    queue.wait_until_written(PATIENCE);
    let mut text = [0; 8];
    reader.read_exact(&mut text).unwrap();
    assert_eq!((&text, lost(&queue)), (b"one\ntwo\n", 0));
}

#[test]
fn a_full_disk_costs_lines_and_waits_for_nothing() {
    let queue = queue_to(File::options().write(true).open("/dev/full").unwrap());
    for number in 0..10 {
        queue.put(line(number).as_bytes());
        queue.wait_until_written(PATIENCE);
    }
    assert_eq!(lost(&queue), 10);
}

#[test]
fn lines_are_whole_behind_one_that_broke_off() {
    // Takes this many bytes, then none, as a full disk does until there is room again.
    struct Disk {
        room: usize,
        kept: Vec<u8>,
    }
    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            self.kept.extend(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut disk = Disk { room: 6, kept: Vec::new() };
    let mut writer = Writer { output: &mut disk, owed: 0, breaks_off: false };
    assert_eq!(writer.write(b"one\ntwo\nthree\n", 4), 2);
    assert_eq!(writer.write(b"four\n", 0), 1);
    writer.output.room = 1000;
    assert_eq!(writer.write(b"five\n", 1), 0);
    assert_eq!(writer.write(b"six\n", 0), 0);
    let text = String::from_utf8(disk.kept).unwrap();
    assert_eq!(
        text,
        "one\ntw\n\
         stateway: 7 lines of the log lost here: standard error could not be written\n\
         five\n\
         stateway: 1 line of the log lost here: standard error was not read in time\n\
         six\n"
    );
}

const CHILD: &str = "STATEWAY_LOG_CHILD";

/// The child of the test below; does nothing by itself.
#[test]
fn child_that_panics() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    start().unwrap();
    std::panic::set_hook(Box::new(|panic| abort(panic)));
    panic!("a worker\nFORGED \u{1b}[2J");
}

/// Runs the child with this standard error; returns the signal that ended it.
fn panics_with(output: Stdio) -> Option<i32> {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "log::tests::child_that_panics", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(output)
        .status();
    status.unwrap().signal()
}

#[test]
fn a_panic_ends_the_process_though_nobody_reads_why() {
    const SIGABRT: i32 = 6;
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    assert_eq!(panics_with(writer.try_clone().unwrap().into()), Some(SIGABRT));
    // The marker fits into the pipe.
    writer.write_all(b"END").unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"END") {
        let mut piece = [0; 4096];
        let read = reader.read(&mut piece).unwrap();
        said.extend(&piece[..read]);
    }
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("a worker\\nFORGED \\u001b[2J\n"), "{said:?}");
    assert!(said.contains("\nstateway: internal error; the gateway ends"), "{said:?}");

    // A full pipe: a second process fills it, and is ended once it has.
    let (_reader, writer) = std::io::pipe().unwrap();
    let filled = Command::new("timeout")
        .args(["1", "cat", "/dev/zero"])
        .stdout(writer.try_clone().unwrap())
        .status()
        .unwrap();
    assert!(!filled.success());
    assert_eq!(panics_with(writer.into()), Some(SIGABRT));
}

//! The files of a replay: its input and output, which may be streams.

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use netio::PortId;
use netio::capture::{CaptureReader, CaptureWriter};

use crate::errors::UsageError;

/// The name of standard input and standard output.
const STREAM: &str = "-";

/// True if a name stands for standard input or standard output.
pub fn is_stream(path: &Path) -> bool {
    path.as_os_str() == STREAM
}

/// Opens the capture that is played.
pub fn input(path: &Path, port: PortId) -> anyhow::Result<CaptureReader> {
    if !is_stream(path) {
        return Ok(CaptureReader::open(path, port)?);
    }
    // Unlike the handle of the library, the file has no buffer of its own.
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(CaptureReader::new("standard input".to_owned(), stdin, port)?)
}

/// Creates the capture that is written. It must be none of the files that are read.
pub fn output(path: &Path, read: &[&Path]) -> anyhow::Result<CaptureWriter> {
    for read in read {
        refuse_same_file(read, path)?;
    }
    if path.extension().is_some_and(|it| it == "gz") {
        let what = format!(
            "-w {}: captures are written as they are; write to `-` and send it to gzip",
            path.display()
        );
        return Err(UsageError(what).into());
    }
    if !is_stream(path) {
        return Ok(CaptureWriter::create_for_captured(path)?);
    }
    if io::stdout().is_terminal() {
        let what = "-w -: standard output is a terminal; send it to a file or a program";
        return Err(UsageError(what.to_owned()).into());
    }
    // Unlike the handle of the library, the file is not flushed at each end of a line.
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(CaptureWriter::new("standard output".to_owned(), stdout, true)?)
}

/// Refuses to write to a file that is read, by whatever name: that would destroy it.
fn refuse_same_file(read: &Path, output: &Path) -> anyhow::Result<()> {
    let read_file = metadata(read, io::stdin().as_fd());
    // A file that does not exist yet is not the input.
    let (Ok(read_file), Ok(output_file)) = (read_file, metadata(output, io::stdout().as_fd()))
    else {
        return Ok(());
    };
    let is_same = (read_file.dev(), read_file.ino()) == (output_file.dev(), output_file.ino());
    if is_same && output_file.is_file() {
        let name = |path: &Path, stream: &str| {
            if is_stream(path) { stream.to_owned() } else { path.display().to_string() }
        };
        let what = format!(
            "{} is {}, which this replay reads; write to another file",
            name(output, "standard output"),
            name(read, "standard input")
        );
        return Err(UsageError(what).into());
    }
    Ok(())
}

/// The metadata of a file or of a stream.
fn metadata(path: &Path, stream: BorrowedFd<'_>) -> io::Result<Metadata> {
    if is_stream(path) {
        File::from(stream.try_clone_to_owned()?).metadata()
    } else {
        path.metadata()
    }
}

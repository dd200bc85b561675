//! `stateway conntrack save` and `load`

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conntrack::{
    RecordFileError, RecordFileReader, RecordFileWriter, end_of_export, push_to_batch,
    whole_records,
};
use control::ClientError;
use control::schema::{Count, ImportedRecords};
use engine::RecordRefusal;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::super::remote::{Json, Remote};
use crate::errors::{OutputError, UsageError};
use crate::print::{Output, things};

const PATH: &str = "/v1/connections/records";
/// Bytes of records above which a request brings them to the gateway.
const BATCH: usize = 256 * 1024;
/// Bytes of a file that are read at once.
const PIECE: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub struct SaveArgs {
    /// The file to write; `-`: standard output.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// The file to read; `-`: standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    remote: Remote,
}

/// The result of a save.
#[derive(Serialize)]
struct Saved {
    schema: u32,
    saved: u64,
    bytes: u64,
}

/// A file that takes its name only when it is whole, and is removed otherwise. Only its owner may
/// read it, because it tells who has talked to whom.
struct NewFile {
    file: File,
    temporary: PathBuf,
    name: PathBuf,
    is_kept: bool,
}

impl NewFile {
    fn create(name: &Path) -> anyhow::Result<Self> {
        let mut temporary = name.as_os_str().to_owned();
        temporary.push(format!(".{}.new", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // A link of this name that somebody else has made is not followed.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.with_context(|| format!("can not write {}", temporary.display()))?;
        Ok(Self { file, temporary, name: name.to_owned(), is_kept: false })
    }

    fn keep(mut self) -> anyhow::Result<()> {
        let kept = self.file.sync_all().and_then(|()| std::fs::rename(&self.temporary, &self.name));
        self.is_kept = kept.is_ok();
        kept.with_context(|| format!("can not write {}", self.name.display()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // There is nothing to be done about a file that can not be removed.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Where the records go.
enum Target<'a> {
    File(NewFile),
    Output(&'a mut Output),
}

impl Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::File(file) => {
                let written = file.file.write_all(bytes);
                written.with_context(|| format!("can not write {}", file.temporary.display()))
            }
            Self::Output(out) => Ok(out.writer().write_all(bytes).map_err(OutputError)?),
        }
    }
}

pub fn save(args: SaveArgs, out: &mut Output) -> anyhow::Result<()> {
    let SaveArgs { file, json, remote } = args;
    let to_output = file == Path::new("-");
    if to_output && out.is_terminal() {
        let what = "connections are saved as bytes, which no terminal can show: name a file";
        return Err(UsageError(what.to_owned()).into());
    }
    let client = remote.client()?;
    let expected: Count = client.get("/v1/connections/count")?;
    let bar = bar(expected.connections);
    let mut target = match to_output {
        true => Target::Output(&mut *out),
        false => Target::File(NewFile::create(&file)?),
    };
    let (mut writer, head) = RecordFileWriter::begin();
    target.write(&head)?;
    let mut written = head.len();
    let mut pending = Vec::new();
    let read = client.chunks(PATH, &mut |chunk| {
        pending.extend_from_slice(chunk);
        let (length, records) = whole_records(&pending);
        writer.add(&pending[..length], records);
        bar.set_position(writer.count());
        target.write(&pending[..length])?;
        written += length;
        pending.drain(..length);
        anyhow::Ok(())
    });
    bar.finish_and_clear();
    let is_whole = pending.starts_with(&end_of_export(writer.count()));
    let ended = read.and_then(|()| {
        anyhow::ensure!(is_whole, "the gateway has ended the list early; its log says why");
        Ok(())
    });
    let saved = writer.count();
    let trailer = writer.end();
    ended.and_then(|()| target.write(&trailer))?;
    written += trailer.len();
    if let Target::File(file) = target {
        file.keep()?;
    }
    if to_output {
        out.flush()?;
    }
    match json.json {
        true if !to_output => {
            out.json(&Saved { schema: control::SCHEMA, saved, bytes: written as u64 })
        }
        _ => {
            tell!("{} saved", things(saved, "record"));
            Ok(())
        }
    }
}

pub fn load(args: &LoadArgs, out: &mut Output) -> anyhow::Result<()> {
    let mut file = open(&args.file)?;
    let is_wrong = |error: ReadError| match error {
        ReadError::Content(error) => UsageError(format!("{}: {error}", name_of(&args.file))),
        ReadError::Read(error) => unreadable(&args.file, &error),
    };
    // All of it is checked before anything of it is loaded.
    let count = read(&mut file, &mut |_| Ok(()))?.map_err(is_wrong)?;
    let client = args.remote.client()?;
    let bar = bar(count);
    let mut total = ImportedRecords { schema: control::SCHEMA, ..ImportedRecords::default() };
    let mut batch = Vec::new();
    let mut send = |batch: &mut Vec<u8>, most: usize| {
        if batch.len() <= most {
            return anyhow::Ok(());
        }
        let records = whole_records(batch).1;
        let sent: Result<ImportedRecords, ClientError> =
            client.post_bytes(PATH, std::mem::take(batch));
        add(&mut total, sent?);
        bar.inc(records);
        Ok(())
    };
    let read = read(&mut file, &mut |records| {
        batch.extend_from_slice(records);
        send(&mut batch, BATCH)
    });
    let sent = match read {
        Ok(read) => read.map_err(|error| is_wrong(error).into()).and_then(|_| send(&mut batch, 0)),
        Err(error) => Err(error),
    };
    bar.finish_and_clear();
    // A failure leaves the records that were taken over before it, so they are told of.
    let complete = report(&total, &args.json, out)?;
    sent?;
    complete
}

/// Why a file could not be read.
enum ReadError {
    Content(RecordFileError),
    Read(io::Error),
}

/// Reads a file from its beginning, and shows its records to `each`, some at a time, in the form of a
/// batch. The outer error is that of `each`.
fn read(
    file: &mut File,
    each: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<Result<u64, ReadError>> {
    let mut reader = RecordFileReader::default();
    let mut bytes = vec![0; PIECE];
    let mut records = Vec::new();
    if let Err(error) = file.rewind() {
        return Ok(Err(ReadError::Read(error)));
    }
    loop {
        let piece = match file.read(&mut bytes) {
            Ok(0) => return Ok(reader.end().map_err(ReadError::Content)),
            Ok(length) => &bytes[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Err(ReadError::Read(error))),
        };
        if let Err(error) = reader.push(piece, &mut |record| push_to_batch(record, &mut records)) {
            return Ok(Err(ReadError::Content(error)));
        }
        each(&records)?;
        records.clear();
    }
}

/// Opens a file that can be read twice. Bytes from a pipe go to one without a name first.
fn open(name: &Path) -> anyhow::Result<File> {
    let from_input = name == Path::new("-");
    let opened = match from_input {
        true => spooled(&mut io::stdin().lock()),
        false => File::open(name).and_then(|mut file| {
            let is_file = file.metadata()?.is_file();
            if is_file { Ok(file) } else { spooled(&mut file) }
        }),
    };
    opened.map_err(|error| unreadable(name, &error).into())
}

fn spooled(from: &mut dyn Read) -> io::Result<File> {
    let name = std::env::temp_dir().join(format!("stateway-load.{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&name)?;
    std::fs::remove_file(&name)?;
    io::copy(from, &mut file)?;
    Ok(file)
}

fn unreadable(name: &Path, error: &io::Error) -> UsageError {
    UsageError(format!("can not read {}: {error}", name_of(name)))
}

fn name_of(file: &Path) -> String {
    match file == Path::new("-") {
        true => "standard input".to_owned(),
        false => file.display().to_string(),
    }
}

fn add(total: &mut ImportedRecords, one: ImportedRecords) {
    total.imported += one.imported;
    total.announced += one.announced;
    total.elements += one.elements;
    for (sum, counts) in
        [(&mut total.refused, one.refused), (&mut total.unreadable, one.unreadable)]
    {
        for (reason, count) in counts {
            *sum.entry(reason).or_default() += count;
        }
    }
}

/// Tells what was taken over. The inner error says that something was not.
fn report(
    total: &ImportedRecords,
    json: &Json,
    out: &mut Output,
) -> anyhow::Result<anyhow::Result<()>> {
    if json.json {
        out.json(total)?;
        out.flush()?;
    } else {
        tell!(
            "{}, {} and {} taken over",
            things(total.imported, "connection"),
            things(total.announced, "announcement"),
            things(total.elements, "element"),
        );
        tell_counts(&total.refused, |name| RecordRefusal::text_of(name).unwrap_or(name).to_owned());
        tell_counts(&total.unreadable, str::to_owned);
    }
    let known = total.refused.get(RecordRefusal::KNOWN).copied().unwrap_or_default();
    let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
    let missing = sum(&total.refused) + sum(&total.unreadable) - known;
    Ok(match missing {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!("{} not taken over", things(missing, "record"))),
    })
}

fn tell_counts(counts: &BTreeMap<String, u64>, text: impl Fn(&str) -> String) {
    for (reason, count) in counts {
        tell!("  {count} not: {}", text(reason));
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("  {bar:32} {pos} of {len} records") {
        bar.set_style(style);
    }
    bar
}

//! `stateway conntrack save` and `load`

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conntrack::{
    ImportRefusal, RecordFileWriter, end_of_export, push_to_batch, records_in_file, whole_records,
};
use control::ClientError;
use control::schema::{Count, ImportedRecords};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::super::remote::{Json, Remote};
use crate::errors::{OutputError, UsageError};
use crate::print::{Output, things};

const PATH: &str = "/v1/connections/records";
/// Bytes of records that one request brings to the gateway.
const BATCH: usize = 256 * 1024;

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
            tell!("{} saved", things(saved, "connection"));
            Ok(())
        }
    }
}

pub fn load(args: &LoadArgs, out: &mut Output) -> anyhow::Result<()> {
    let file = read(&args.file)?;
    let name = || match args.file.as_os_str() {
        name if name == "-" => "standard input".to_owned(),
        _ => args.file.display().to_string(),
    };
    // All of it is checked before anything of it is loaded.
    let records =
        records_in_file(&file).map_err(|error| UsageError(format!("{}: {error}", name())))?;
    let client = args.remote.client()?;
    let bar = bar(records.len() as u64);
    let mut total = ImportedRecords { schema: control::SCHEMA, ..ImportedRecords::default() };
    let mut rest = &records[..];
    while !rest.is_empty() {
        let mut batch = Vec::new();
        let mut count = 0;
        for record in rest.iter().take_while(|record| record.len() < BATCH) {
            if batch.len() + record.len() > BATCH {
                break;
            }
            push_to_batch(record, &mut batch);
            count += 1;
        }
        if count == 0 {
            // No connection is so large.
            *total.unreadable.entry("the record is too long".to_owned()).or_default() += 1;
            count = 1;
        } else {
            let answer: Result<ImportedRecords, ClientError> = client.post_bytes(PATH, batch);
            add(&mut total, answer?);
        }
        rest = &rest[count..];
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    report(&total, &args.json, out)
}

fn add(total: &mut ImportedRecords, one: ImportedRecords) {
    total.imported += one.imported;
    for (sum, counts) in
        [(&mut total.refused, one.refused), (&mut total.unreadable, one.unreadable)]
    {
        for (reason, count) in counts {
            *sum.entry(reason).or_default() += count;
        }
    }
}

fn report(total: &ImportedRecords, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    if json.json {
        out.json(total)?;
        out.flush()?;
    } else {
        tell!("{} taken over", things(total.imported, "connection"));
        told(&total.refused, |name| {
            let known = ImportRefusal::ALL.into_iter().find(|refusal| refusal.name() == name);
            known.map_or_else(|| name.to_owned(), |refusal| refusal.text().to_owned())
        });
        told(&total.unreadable, str::to_owned);
    }
    let known = total.refused.get(ImportRefusal::Known.name()).copied().unwrap_or_default();
    let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
    let missing = sum(&total.refused) + sum(&total.unreadable) - known;
    anyhow::ensure!(missing == 0, "{} not taken over", things(missing, "connection"));
    Ok(())
}

fn told(counts: &BTreeMap<String, u64>, text: impl Fn(&str) -> String) {
    for (reason, count) in counts {
        tell!("  {count} not: {}", text(reason));
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_end(&mut bytes),
        false => File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(UsageError(format!("can not read {}: {error}", file.display())).into()),
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("  {bar:32} {pos} of {len} connections") {
        bar.set_style(style);
    }
    bar
}

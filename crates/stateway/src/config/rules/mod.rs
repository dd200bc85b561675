//! `[rules]`: the ruleset that the gateway runs.

mod declared;
mod iptables;
mod nft;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use control::schema::RuleProblem;
use control::{
    RuleBook, RulesRefused, check_memory, iptables_warning, no_ruleset, repeated_element,
};
use engine::Mode;
use ruleset::Options;
use ruleset::limits::MAX_DOCUMENT_BYTES;

use self::nft::NftText;
use super::document::{Reader, Section, flag, text};
use super::{Problem, Problems};

/// A ruleset's file, and the way to load it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesFile {
    /// Path of the ruleset.
    pub path: PathBuf,
    /// Line of `file`, for messages.
    pub line: usize,
    /// True to leave out unsupported rules instead of refusing the ruleset.
    pub allow_unsupported: bool,
}

pub(super) fn read(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    config: &Path,
) -> Option<RulesFile> {
    let line = reader.line(section.place_of("file"));
    if !section.has("file") {
        reader.note(section.offset, "rules.file", "is missing; for example file = \"rules.nft\"");
    }
    let path = section.read(reader, "file", |value| {
        let path = text(value, "the path of a ruleset")?;
        if path.is_empty() { Err("is empty".to_owned()) } else { Ok(PathBuf::from(path)) }
    });
    let allow_unsupported = section.read(reader, "allow_unsupported", flag);
    section.finish(reader);
    // A relative path counts from the configuration.
    let path = config.parent().unwrap_or(Path::new("")).join(path?);
    Some(RulesFile { path, line, allow_unsupported: allow_unsupported.unwrap_or(false) })
}

impl RulesFile {
    /// Reads it for a gateway in this mode, if the mode is known. `config` is the configuration
    /// that names it, `seed` a secret for hash tables.
    ///
    /// # Errors
    /// All problems of the ruleset.
    pub fn load(&self, config: &Path, mode: Option<Mode>, seed: u64) -> Result<RuleBook, Problems> {
        let document = read_regular(&self.path).map_err(|what| {
            let what = format!("{}: {what}", self.path.display());
            let (file, key) = (config.to_owned(), "rules.file".to_owned());
            Problems(vec![Problem { file, line: self.line, key, what, rule: None }])
        })?;
        // As the name of the file, names in it count from the configuration.
        let directory = config.parent().filter(|parent| !parent.as_os_str().is_empty());
        let document = in_json(document, &self.path, directory)?;
        let options = Options { allow_unsupported: self.allow_unsupported };
        let problem = |what: String, rule: Option<String>| {
            let (file, line, key) = (self.path.clone(), 0, String::new());
            Problem { file, line, key, what, rule }
        };
        let with_rule = |reason: RuleProblem| problem(reason.message, reason.rule);
        let read = RuleBook::read(document, options, seed);
        let book = read.map_err(|RulesRefused { report }| {
            let severities = ["invalid", "unsupported"];
            let is_reason = |severity: &String| severities.contains(&severity.as_str());
            let reasons = report.problems.into_iter().filter(|it| is_reason(&it.severity));
            let mut problems: Vec<Problem> = reasons.map(with_rule).collect();
            if report.invalid == 0 {
                problems.push(problem(
                    "it is refused; `allow_unsupported = true` in [rules] leaves these out"
                        .to_owned(),
                    None,
                ));
            }
            Problems(problems)
        })?;
        let obstacles = mode.map(|mode| book.obstacles(mode)).unwrap_or_default();
        let obstacles = obstacles.into_iter().map(with_rule).collect();
        Problems::or_value(obstacles, book.of_configuration(&self.path))
    }
}

/// A ruleset in nft's JSON, from any form that one is kept in: that JSON, nft's own syntax, and the
/// output of iptables-save. It warns of rules of iptables in nft's words. `file` is its name for
/// messages, `-` for standard input; nft finds included files from `directory`, or from that of this
/// process.
///
/// # Errors
/// The messages of the program that reads it, with their lines.
pub fn in_json(
    document: Vec<u8>,
    file: &Path,
    directory: Option<&Path>,
) -> Result<Vec<u8>, Problems> {
    // No JSON begins like a statement or a comment of nft.
    let first = document.trim_ascii_start().first();
    let is_nft = matches!(first, Some(b'#' | b'a'..=b'z' | b'A'..=b'Z' | b'$'));
    let is_save = iptables::is_save(&document);
    // Comments may have any encoding, but nft leaves out what follows a zero.
    let is_text = (is_nft || is_save) && !document.contains(&0);
    if let Some(what) = no_ruleset(&document).filter(|_| !is_text) {
        return Err(Problems(vec![nft::problem(file, 0, what.to_owned(), None)]));
    }
    if is_save {
        return iptables::to_json(&document, file, directory);
    }
    if iptables::printed::is_of_iptables_nft(&document) {
        let what = "has tables of iptables-nft, of which nft prints some rules with another \
                    meaning; load the output of iptables-save and ip6tables-save instead";
        return Err(Problems(vec![nft::problem(file, 0, what.to_owned(), None)]));
    }
    let (json, repeated) = match is_nft {
        // A listing of a text is taken again until nothing is repeated.
        true => (NftText { text: &document, file, directory }.to_json()?, None),
        false => {
            let repeated = repeated_element(&document);
            (document, repeated)
        }
    };
    let incomplete = repeated.map(|twice| {
        format!(
            "{twice}, SO OTHER ELEMENTS ARE PROBABLY MISSING: nft lists a set so while the kernel \
             makes room for many new elements; print the ruleset again, and load that"
        )
    });
    let name = if file == Path::new("-") { Path::new("standard input") } else { file };
    for warning in iptables_warning(&json).into_iter().chain(incomplete) {
        tell!("warning: {}: {warning}", name.display());
    }
    Ok(json)
}

/// The bytes of a ruleset, `-` for standard input, or the reason why they can not be read.
pub fn read_ruleset(file: &Path) -> Result<Vec<u8>, String> {
    match file == Path::new("-") {
        true => read_all(std::io::stdin().lock(), 0),
        false => read_file(file),
    }
}

/// The same, of a file that a configuration names. A gateway would wait for ever for the end of a
/// pipe or of a device.
fn read_regular(file: &Path) -> Result<Vec<u8>, String> {
    let kind = std::fs::metadata(file).map_err(unreadable)?.file_type();
    if kind.is_file() {
        return read_file(file);
    }
    let kind = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(format!("is {kind}, and the rules come from a regular file; name one"))
}

fn read_file(file: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(file).map_err(unreadable)?;
    // A file without a known length has 0 here.
    let length = file.metadata().map_or(0, |file| file.len());
    read_all(file, length)
}

/// All bytes up to the limit; `length` of them are expected.
fn read_all(source: impl Read, length: u64) -> Result<Vec<u8>, String> {
    let mut document = Vec::new();
    let most = MAX_DOCUMENT_BYTES as u64 + 1;
    if length < most {
        check_memory(length, 0)?;
        document.reserve_exact(length as usize + 1);
    }
    match source.take(most).read_to_end(&mut document) {
        Ok(read) if read > MAX_DOCUMENT_BYTES => {
            Err(format!("longer than {} MiB, the limit for a ruleset", MAX_DOCUMENT_BYTES >> 20))
        }
        Ok(_) => Ok(document),
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(error: std::io::Error) -> String {
    format!("can not be read: {error}")
}

//! Rulesets in nft's own syntax: the real nft reads them, in a network namespace of its own.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use control::repeated_element;
use netio::isolate_network;
use ruleset::limits::MAX_DOCUMENT_BYTES;
use ruleset::reason_for_refusal;

use super::super::{Problem, Problems};
use super::declared::with_declared;

/// Loads the ruleset from standard input, then prints it as JSON, and behind a new line the
/// declarations of its sets and maps. `$1` is the directory of the ruleset. nft looks there, too, for
/// included files whose names begin with neither `/` nor `.`. `$2` are orders for ip(8), or empty. If
/// `$3` is not empty, the first lines of tables and other objects follow, with flags and comments. `$4` is
/// the time in seconds that the kernel has before it lists anything.
const SCRIPT: &str = "[ -z \"$2\" ] || printf %s \"$2\" | { ip -force -batch -; } 2>/dev/null
nft -I \"$1\" -f /dev/stdin && sleep \"$4\" && nft -j list ruleset && echo && nft -t list sets &&
nft -t list maps && { [ -z \"$3\" ] || nft -t list ruleset | sed -nE '/^(.?[a-z]|..comment )/p'; }";
/// The times that the kernel gets to make room for all elements, one after the other, in seconds.
const PAUSES: [&str; 3] = ["0", "1", "5"];
/// Interfaces that are made for nft at most.
const MOST_INTERFACES: usize = 1000;
/// The beginning of nft's message about `iif` or `oif` of an interface that is not there.
const NO_INTERFACE: &str = "Interface does not exist";
/// Bytes of messages that are kept of a program.
const MOST_MESSAGES: u64 = 64 << 10;
/// Exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;
/// Exit code of a shell whose program has met the signal 11, SIGSEGV.
const CRASHED: i32 = 128 + 11;
/// Name of the ruleset in the messages of nft.
const INPUT: &str = "/dev/stdin";
/// Directories of system programs, which not every user looks into.
const SYSTEM_PROGRAMS: &str = "/usr/sbin:/sbin";

/// A text in nft's syntax, and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct NftText<'a> {
    /// The text.
    pub text: &'a [u8],
    /// The file, for messages; `-` for standard input.
    pub file: &'a Path,
    /// The directory that nft is to run in; `None` for that of this process.
    pub directory: Option<&'a Path>,
}

impl NftText<'_> {
    /// The same ruleset in nft's JSON.
    ///
    /// # Errors
    /// Everything that nft says about it, or the reason why nft can not be asked.
    pub fn to_json(self) -> Result<Vec<u8>, Problems> {
        if let Some(line) = monitor_line(self.text) {
            let what = "is an order to watch the kernel, which never ends: take it out".to_owned();
            let rule = Some("monitor".to_owned());
            return Err(Problems(vec![problem(self.file, line, what, rule)]));
        }
        let names_interface = |problem: &Problem| {
            let is_flowtable = problem.rule.as_ref().is_some_and(|it| it.contains("flowtable"));
            problem.what.starts_with(NO_INTERFACE) || is_flowtable
        };
        match self.read("") {
            // Most rulesets name interfaces by text alone, and making them takes time.
            Err(Problems(problems)) if problems.iter().any(names_interface) => {
                let names = netio::link_names().unwrap_or_default();
                match orders(&names) {
                    orders if orders.is_empty() => Err(Problems(problems)),
                    orders => self.read(&orders),
                }
            }
            read => read,
        }
    }

    /// Has nft read it where interfaces are that `orders` make, and list all elements.
    fn read(self, orders: &str) -> Result<Vec<u8>, Problems> {
        let mut incomplete = String::new();
        for pause in PAUSES {
            let json = self.read_after(orders, pause)?;
            match repeated_element(&json) {
                None => return Ok(json),
                Some(twice) => incomplete = twice,
            }
        }
        let what = format!(
            "is listed by the kernel without some of its elements, because it still makes room for \
             them ({incomplete}): try again when this machine has less to do"
        );
        Err(Problems(vec![problem(self.file, 0, what, None)]))
    }

    fn read_after(self, orders: &str, pause: &str) -> Result<Vec<u8>, Problems> {
        let Self { text, file, directory } = self;
        let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        let beside = beside.unwrap_or(Path::new("."));
        let beside = std::path::absolute(beside).unwrap_or_else(|_| beside.to_owned());
        let mut shell = Command::new("sh");
        let has = |word: &[u8]| text.windows(word.len()).any(|it| it == word);
        let words: [&[u8]; 3] = [b"comment", b"dormant", b"include"];
        let begins = if words.into_iter().any(has) { "begins" } else { "" };
        shell.args(["-c", SCRIPT, "sh"]).arg(beside).args([orders, begins, pause]);
        if let Some(directory) = directory {
            shell.current_dir(directory);
        }
        let whole = |what| Problems(vec![problem(file, 0, what, None)]);
        let Ran { status, mut output, messages } = run(shell, text).map_err(whole)?;
        match status.code() {
            _ if output.len() > MAX_DOCUMENT_BYTES => Err(whole(format!(
                "is longer than {} MiB as JSON, the limit for a ruleset",
                MAX_DOCUMENT_BYTES >> 20
            ))),
            Some(0) if let Some(what) = listing_error(&messages) => Err(whole(format!(
                "has {} that this nft can not list ({what}), so rules would be missing: write it in \
                 another way",
                if what.ends_with(KEYS_OF_LABELS) {
                    "a set or map of `ct label`, such as `ct label { 1, 2 }` or `ct label vmap`,"
                } else {
                    "something"
                },
            ))),
            Some(0) if !output.starts_with(b"{") => Err(whole(
                "has nft print something, as `list ruleset` does: take such orders out".to_owned(),
            )),
            // The JSON is one line.
            Some(0) => {
                let end = output.iter().position(|byte| *byte == b'\n').unwrap_or(output.len());
                let declared = output.split_off(end);
                Ok(with_declared(output, &String::from_utf8_lossy(&declared)))
            }
            Some(NOT_FOUND) => Err(whole(
                "is in nft's own syntax, and nft is not there to read it: install nftables, or name \
                 a ruleset in JSON (nft -j list ruleset > ruleset.json)"
                    .to_owned(),
            )),
            _ if has_returns(text) => Err(whole(
                "has lines that end in CR LF, as on Windows, and nft reads only those that end in \
                 LF: convert it, for example with sed -i 's/\\r$//' FILE"
                    .to_owned(),
            )),
            Some(CRASHED) => Err(whole(
                "makes nft crash. Version 1.0.6 does for the length of a TCP option, for a range among \
                 flags, as in `tcp flags { syn, 1-3 }`, and where the element `*` of a set or map of \
                 intervals comes or goes at run time; nft -c -f finds the place if you take lines out"
                    .to_owned(),
            )),
            _ => Err(Problems(problems_in(&messages, file))),
        }
    }
}

/// The end of nft's message about keys that are labels: it has no name for their type.
const KEYS_OF_LABELS: &str = "data type in set key 30";

/// The message of nft about something that it does not list, although it ends well.
fn listing_error(messages: &str) -> Option<&str> {
    let mut lines = messages.lines().map(|line| line.trim_start_matches("netlink: "));
    lines.find_map(|line| {
        let error = line.strip_prefix("Error: ");
        error.or_else(|| line.starts_with("Unknown set ").then_some(line))
    })
}

/// The line of the first order to watch the kernel, from 1.
fn monitor_line(text: &[u8]) -> Option<usize> {
    let is_monitor = |line: &[u8]| {
        let mut orders = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        orders.any(|order| order.split(u8::is_ascii_whitespace).next() == Some(b"monitor"))
    };
    text.split(|byte| *byte == b'\n').position(is_monitor).map(|before| before + 1)
}

/// True if a line ends with a carriage return.
fn has_returns(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair == b"\r\n")
}

/// Orders for ip(8) that make interfaces of these names. All of them are ends of cables, because
/// the kernel has a first interface of its own appear on the host when it learns some other types.
fn orders(names: &[String]) -> String {
    // ip(8) reads quotation marks and the like in another way.
    let is_plain = |name: &&String| {
        *name != "lo" && name.chars().all(|it| it.is_ascii_alphanumeric() || "._-".contains(it))
    };
    let names: Vec<&String> = names.iter().filter(is_plain).take(MOST_INTERFACES).collect();
    let pairs = names.chunks(2).map(|pair| match pair {
        [one, other] => format!("link add name {one} type veth peer name {other}\n"),
        _ => format!("link add name {} type veth\n", pair[0]),
    });
    pairs.collect()
}

/// The end of a program, and its output.
pub(super) struct Ran {
    /// Its end.
    pub status: ExitStatus,
    /// Its standard output, one byte more than a ruleset may have at most.
    pub output: Vec<u8>,
    /// The beginning of its standard error.
    pub messages: String,
}

/// Runs a program in a network namespace of its own, with this input.
///
/// # Errors
/// The reason why it can not be started.
pub(super) fn run(mut program: Command, input: &[u8]) -> Result<Ran, String> {
    isolate_network(&mut program);
    // An empty path would be a search in the working directory.
    let path = std::env::var("PATH").ok().filter(|path| !path.is_empty());
    let path = path.map_or(SYSTEM_PROGRAMS.to_owned(), |path| format!("{path}:{SYSTEM_PROGRAMS}"));
    program.env("PATH", path).env("LC_ALL", "C");
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().map_err(|error| {
        format!(
            "is read by nft in a network namespace of its own, which can not be made: {error}; run \
             the command as root, or let this user make user namespaces (sysctl \
             user.max_user_namespaces), or name a ruleset in JSON, made elsewhere (nft -j list \
             ruleset > ruleset.json)"
        )
    })?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut output, mut messages) = (Vec::new(), Vec::new());
    let read: io::Result<()> = thread::scope(|scope| {
        scope.spawn(|| {
            // A program that ends before it has read everything says why.
            stdin.map(|mut stdin| stdin.write_all(input))
        });
        scope.spawn(|| {
            let all = stderr.map(|stderr| stderr.take(MOST_MESSAGES).read_to_end(&mut messages));
            all.transpose()
        });
        let most = MAX_DOCUMENT_BYTES as u64 + 1;
        stdout.map(|stdout| stdout.take(most).read_to_end(&mut output)).transpose()?;
        Ok(())
    });
    let status = child.wait().and_then(|status| read.map(|()| status));
    let status = status.map_err(|error| format!("can not be read: {error}"))?;
    Ok(Ran { status, output, messages: String::from_utf8_lossy(&messages).into_owned() })
}

/// A problem of a ruleset's file; `line` 0 is the whole file.
pub(super) fn problem(file: &Path, line: usize, what: String, rule: Option<String>) -> Problem {
    let file = if file == Path::new("-") { Path::new("standard input") } else { file };
    Problem { file: file.to_owned(), line, key: String::new(), what, rule }
}

/// The messages of nft, each with the file and line that it names. nft writes the line of the file
/// below its message, and marks under it.
fn problems_in(messages: &str, file: &Path) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    // The columns that the last message names.
    let mut marked = None;
    for line in messages.lines() {
        let is_marks = line.chars().all(|mark| " \t^~".contains(mark));
        if is_marks || line.starts_with("In file included from") {
            continue;
        }
        if let Some((place, what)) = line.split_once(": Error: ") {
            let mut parts = place.rsplitn(3, ':');
            let (columns, number) = (parts.next(), parts.next().and_then(|it| it.parse().ok()));
            let (of, number) = parts.next().zip(number).unwrap_or((INPUT, 0));
            let of = if of == INPUT { file } else { Path::new(of) };
            let columns = columns.filter(|_| number > 0).unwrap_or_default();
            marked = columns
                .split_once('-')
                .and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            let columns =
                if columns.is_empty() { String::new() } else { format!(" (columns {columns})") };
            problems.push(problem(of, number, format!("{what}{columns}{}", advice(what)), None));
            continue;
        }
        match problems.last_mut() {
            Some(last) if last.rule.is_none() => {
                if let Some(refusal) = last.what.strip_prefix(OF_KERNEL) {
                    let advice = kernel_advice(refusal, line, marked.take());
                    last.what = format!("the kernel refuses it: {refusal}; {advice}");
                }
                last.rule = Some(line.to_owned());
            }
            Some(_) => {}
            None => problems.push(problem(file, 0, line.to_owned(), None)),
        }
    }
    if problems.is_empty() {
        let what = "nft can not read it, and does not say why: try nft -c -f with it";
        problems.push(problem(file, 0, what.to_owned(), None));
    }
    problems
}

/// The beginning of nft's message about what the kernel refuses.
const OF_KERNEL: &str = "Could not process rule: ";

/// Advice on a refusal of the kernel. `marked` are the columns of the refused part of a line, from 1.
fn kernel_advice(refusal: &str, line: &str, marked: Option<(usize, usize)>) -> String {
    if ["flowtable", "flow add"].iter().any(|it| line.contains(it)) {
        return FLOWTABLE_ADVICE.to_owned();
    }
    let part = |from: usize, to: usize| line.get(from..to.min(line.len())).unwrap_or_default();
    let (from, to) = marked.unwrap_or((1, 0));
    let (before, part) = (part(0, from.saturating_sub(1)), part(from.saturating_sub(1), to));
    let mut words = before.split_whitespace().rev();
    let (last, one_before) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let statement = part.split_whitespace().next().unwrap_or_default();
    let is_missing = refusal.starts_with("No such file or directory");
    let is_unable = refusal.starts_with("Operation not supported");
    match last {
        "jump" | "goto" if is_missing => {
            format!("its table has no chain {part}: declare that, or correct the name")
        }
        "jump" | "goto" if is_unable => format!(
            "the jumps of chain {part} lead back to it, or it has a statement for another type of \
             chain or another hook: correct that"
        ),
        "name" | "set" if is_missing => {
            format!("its table has no {one_before} {part}: declare that in front, or correct the name")
        }
        _ if is_missing && let Some(reason) = reason_for_refusal(statement) => format!(
            "it lacks the module for `{statement}`, and the gateway refuses that as well ({reason}): \
             take the rule out"
        ),
        _ if is_missing => "a table, chain, set or object that the line names is not there, or this \
                            host's kernel lacks a module for it: declare it in front, or correct its \
                            name"
            .to_owned(),
        _ if is_unable => "the type of chain, the hook or the family does not allow it, or this \
                           host's kernel lacks a module for it: see nft(8) for where it may stand"
            .to_owned(),
        _ if refusal.starts_with("File exists") => {
            "there is one already that is not the same: take one of them out".to_owned()
        }
        _ if refusal.starts_with("Device or resource busy") => {
            "something else still uses it: take that out first".to_owned()
        }
        _ if refusal.starts_with("Too many links") => {
            "jumps of its chain lead back to it, or are nested too deep: correct that".to_owned()
        }
        _ if refusal.starts_with("Too many open files in system") => {
            "a set has more elements than its size: raise the size, or leave it out".to_owned()
        }
        _ if refusal.starts_with("Numerical result out of range") => {
            "a number or a time is larger than the kernel allows".to_owned()
        }
        _ => "see nft(8)".to_owned(),
    }
}

/// Advice on a refusal of a flowtable.
const FLOWTABLE_ADVICE: &str = "this host lacks an interface of the flowtable, or its kernel has \
                                no flowtables; the gateway needs none, so leave it and its rules \
                                out, or load their module (modprobe nf_flow_table)";

/// Advice on a message that has another reason here than elsewhere.
fn advice(what: &str) -> &'static str {
    if what.contains(NO_INTERFACE) {
        "; iif and oif name interfaces that this host has: write iifname and oifname in their place \
         for one that comes later, or is elsewhere"
    } else {
        ""
    }
}

#[cfg(test)]
#[path = "nft_tests.rs"]
mod tests;

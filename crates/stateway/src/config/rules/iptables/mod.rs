//! Rulesets as iptables-save prints them: the real iptables-restore-translate says them in nft's
//! syntax.
//!
//! It says some rules wrongly, and does not tell which. So each rule is read here first. A rule
//! with anything that is not known to be translated rightly is refused. Some rules are written in
//! another way that means the same, and some parts of rules are written in nft's syntax at once
//! (`direct.rs`), in front of the translation of the rest. Comments and prefixes of log lines pass it by: words with the
//! number of the line stand for them, and give the line in messages as well.

mod allowed;
mod direct;
mod rule;
mod save;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use self::direct::Words;
use self::rule::{Ready, comment_of, prefix_of};
use self::save::Save;
use super::super::{Problem, Problems};
use super::nft::{NftText, Ran, problem, run};

/// Rules that stop the translation which are listed at most. Each of them takes a run of its own.
const MOST_STOPS: usize = 64;

/// True for the output of iptables-save: its first line that is no comment names a table.
pub(super) fn is_save(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.find(|line| !line.is_empty() && line[0] != b'#').is_some_and(|line| line[0] == b'*')
}

/// True for what nft prints of the rules of iptables-nft. Some of its text has no meaning for nft,
/// and some has another.
pub(super) fn is_of_iptables_nft(text: &[u8]) -> bool {
    let (begin, end) = (&b"# Warning: table "[..], &b"managed by iptables-nft"[..]);
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| line.starts_with(begin) && line.windows(end.len()).any(|it| it == end))
}

/// The same ruleset in nft's JSON.
///
/// # Errors
/// All rules that can not be said in it, with their lines.
pub(super) fn to_json(
    save: &[u8],
    file: &Path,
    directory: Option<&Path>,
) -> Result<Vec<u8>, Problems> {
    let save = String::from_utf8_lossy(save);
    let all: Vec<&str> = save.lines().collect();
    let mut known = Known { file, all, texts: HashMap::new(), problems: Vec::new() };
    let mut text = Text::default();
    for (is_v6, lines) in by_program(&save) {
        let Save { text: input, rules, refused } = save::read(&lines, is_v6);
        for (line, why) in refused {
            known.refuse(line, why);
        }
        let rules: HashMap<usize, Ready> = rules.into_iter().collect();
        let programs = ["iptables-restore-translate", "ip6tables-restore-translate"];
        let output = translate(programs[usize::from(is_v6)], &input, &mut known);
        if known.problems.is_empty() {
            text.add(&output, &rules, &mut known);
        } else {
            text.add(&output, &HashMap::new(), &mut known);
        }
        for (line, ready) in rules {
            known.texts.extend(ready.comment.map(|comment| (comment_of(line), comment)));
            known.texts.extend(ready.prefix.map(|prefix| (prefix_of(line), prefix)));
        }
    }
    let Known { mut problems, texts, .. } = known;
    problems.sort_by_key(|problem| problem.line);
    if !problems.is_empty() {
        let what =
            "nothing of it is applied: write the rules above in nft's syntax, or take them out";
        problems.push(problem(file, 0, what.to_owned(), None));
        return Err(Problems(problems));
    }
    let json = NftText { text: text.text.as_bytes(), file, directory }.to_json();
    let json = json.map_err(|Problems(problems)| {
        // Its lines are those of the translation, which are shown.
        let of = |it: Problem| {
            let line = it.line.checked_sub(1).and_then(|at| text.lines.get(at)).copied();
            let advice = if line.is_some_and(|line| line > 0) {
                "; write the rule of this line in nft's syntax"
            } else {
                ""
            };
            let what = format!("as nft: {}{advice}", it.what);
            Problem { line: line.unwrap_or(0), what, ..it }
        };
        Problems(problems.into_iter().map(of).collect())
    })?;
    Ok(with_texts(&json, &texts))
}

/// The file with its problems and free texts so far.
struct Known<'a> {
    file: &'a Path,
    all: Vec<&'a str>,
    texts: HashMap<String, String>,
    problems: Vec<Problem>,
}

impl Known<'_> {
    fn refuse(&mut self, line: usize, what: String) {
        let shown = line.checked_sub(1).and_then(|at| self.all.get(at));
        let shown = shown.map(|shown| shown.trim_end().to_owned());
        self.problems.push(problem(self.file, line, what, shown));
    }
}

/// The lines for each program, where those of the other are empty, so that lines keep their
/// numbers. Each table has the name of the program that printed it in the line above.
fn by_program(save: &str) -> Vec<(bool, Vec<&str>)> {
    let header = |line: &str| {
        let by = line.strip_prefix("# Generated by ")?;
        Some(by.starts_with("ip6tables")).filter(|v6| *v6 || by.starts_with("iptables"))
    };
    let has_header = save.lines().any(|line| header(line).is_some());
    let mut is_v6 = !has_header && save::has_v6_words(save);
    let mut lines: [Vec<&str>; 2] = [Vec::new(), Vec::new()];
    for line in save.lines() {
        is_v6 = header(line).unwrap_or(is_v6);
        for (v6, lines) in [false, true].into_iter().zip(&mut lines) {
            lines.push(if v6 == is_v6 { line } else { "" });
        }
    }
    let has_lines =
        |lines: &Vec<&str>| lines.iter().any(|line| !line.is_empty() && !line.starts_with('#'));
    [false, true].into_iter().zip(lines).filter(|(_, lines)| has_lines(lines)).collect()
}

/// The translation of the lines, as far as there is one.
fn translate(program: &str, input: &str, known: &mut Known<'_>) -> String {
    let mut lines: Vec<&str> = input.lines().collect();
    for _ in 0..MOST_STOPS {
        let mut command = Command::new(program);
        command.args(["-f", "/dev/stdin"]);
        let input = lines.join("\n") + "\n";
        let Ran { status, output, messages } = match run(command, input.as_bytes()) {
            Ok(ran) => ran,
            Err(what) => {
                known.refuse(0, format!("is of iptables-save: {program}: {what}"));
                return String::new();
            }
        };
        if status.success() {
            return String::from_utf8_lossy(&output).into_owned();
        }
        let stop = messages.lines().find_map(|line| line.strip_prefix("Error occurred at line: "));
        let stop = stop.and_then(|number| number.trim().parse::<usize>().ok());
        let what = messages.lines().next().unwrap_or("it does not say why");
        let what =
            format!("{program} does not take it: {}", what.rsplit("): ").next().unwrap_or(what));
        let line = stop.and_then(|stop| lines.get_mut(stop.wrapping_sub(1)));
        // A line that was left out before can not be the reason.
        let Some(line) = line.filter(|line| !line.is_empty()) else {
            known.refuse(0, what);
            return String::new();
        };
        known.refuse(stop.unwrap_or(0), what);
        *line = "";
    }
    let what = format!("may have more such lines: {program} was asked {MOST_STOPS} times");
    known.refuse(0, what);
    String::new()
}

/// The translation of all tables.
#[derive(Default)]
struct Text {
    text: String,
    /// For each of its lines the line of the file, or 0.
    lines: Vec<usize>,
}

impl Text {
    fn add_line(&mut self, printed: &str, line: usize) {
        self.text += printed;
        self.text.push('\n');
        self.lines.push(line);
    }

    /// Adds a rule once with each of its words.
    fn add_rule(&mut self, printed: &str, line: usize, ready: &Ready) {
        let comment = format!(" comment \"{}\"", comment_of(line));
        let bare = printed.strip_suffix(comment.as_str()).unwrap_or(printed);
        let comment = if ready.comment.is_some() { comment.as_str() } else { "" };
        // `add rule`, the family, the table and the chain.
        let place = bare.match_indices(' ').nth(4).map_or(bare.len(), |(at, _)| at);
        let (place, rest) = bare.split_at(place);
        for Words { before, after } in &ready.words {
            let before = if before.is_empty() { String::new() } else { format!(" {before}") };
            let after = if after.is_empty() { String::new() } else { format!(" {after}") };
            self.add_line(&format!("{place}{before}{rest}{after}{comment}"), line);
        }
    }

    /// Adds what a program has printed for these rules.
    fn add(&mut self, output: &str, rules: &HashMap<usize, Ready>, known: &mut Known<'_>) {
        let mut seen: HashMap<usize, usize> = HashMap::new();
        let marker = "stateway comment ";
        for printed in output.lines() {
            let digits = printed.rsplit_once(marker).map(|(_, rest)| rest);
            let digits = digits.and_then(|rest| rest.split(|it: char| !it.is_ascii_digit()).next());
            let line = digits.and_then(|digits| digits.parse().ok()).unwrap_or(0);
            if printed.starts_with("# -t ") {
                let what = "iptables-restore-translate can not say this rule in nft's syntax";
                known.refuse(line, what.to_owned());
            }
            let is_rule = printed.starts_with("add rule ");
            // One that it can not say is told of above.
            if is_rule || printed.starts_with("# -t ") {
                *seen.entry(line).or_default() += 1;
            }
            match rules.get(&line).filter(|_| is_rule) {
                Some(ready) => self.add_rule(printed, line, ready),
                None => self.add_line(printed, line),
            }
        }
        for line in rules.keys().filter(|line| seen.get(line) != Some(&1)) {
            known
                .refuse(*line, "iptables-restore-translate does not say this rule once".to_owned());
        }
        if !rules.is_empty() && seen.contains_key(&0) {
            known.refuse(0, "iptables-restore-translate says a rule that it has not".to_owned());
        }
    }
}

/// The JSON with the free texts in the place of the words that stand for them.
fn with_texts(json: &[u8], texts: &HashMap<String, String>) -> Vec<u8> {
    let begin = b"\"stateway ";
    let mut with = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.windows(begin.len()).position(|it| it == begin) {
        let (before, from) = rest.split_at(at);
        with.extend_from_slice(before);
        let length =
            from[1..].iter().position(|&byte| byte == b'"').map_or(from.len(), |it| it + 2);
        let (word, after) = from.split_at(length);
        let name = std::str::from_utf8(word).unwrap_or_default().trim_matches('"');
        match texts.get(name).map(|text| serde_json::Value::from(text.as_str()).to_string()) {
            Some(text) => with.extend_from_slice(text.as_bytes()),
            None => with.extend_from_slice(word),
        }
        rest = after;
    }
    with.extend_from_slice(rest);
    with
}

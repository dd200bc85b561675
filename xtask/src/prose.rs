//! The rules for sentences in comments, help texts and Markdown.
//!
//! None begins with a clause that is its subject (`What waits is told ...`, `Whether it waits is
//! open.`), or with such a clause and nothing else (`What was said last.`, `Whether it waits.`). A
//! reader has to solve the clause before the sentence makes sense, so the one who acts goes first,
//! and a thing is called by its name. The same holds behind a semicolon or a colon, and in the cell
//! of a table.
//!
//! Each item of a list begins a line. An item that a program has joined to the one before it, with
//! its dash in the middle of a line, is no item any more.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use crate::problem::Problem;
use crate::source;

/// Words that join a clause to a noun, and words that begin another noun.
const RELATIVES: [&str; 4] = ["that", "which", "who", "whose"];
const ARTICLES: [&str; 3] = ["a", "an", "the"];
/// Words that link a sentence to the one before it.
const LINKS: [&str; 4] = ["and", "but", "so", "or"];
/// Words that begin a clause behind `that`, or behind `which` and its noun.
const CLAUSE_SUBJECTS: [&str; 13] = [
    "it", "they", "he", "a", "an", "the", "no", "nobody", "nothing", "there", "these", "each",
    "another",
];
/// Words that ask for one of several things, whose noun may follow them.
const NOUN_QUESTIONS: [&str; 3] = ["which", "whichever", "whatever"];
/// Most words of the noun in `Of the packets that wait, ...`.
const NOUN_WORDS: usize = 5;
/// Verbs that stand for themselves or in front of another one.
const VERBS: [&str; 16] = [
    "is", "are", "was", "were", "has", "have", "had", "does", "do", "did", "may", "must", "can",
    "will", "would", "should",
];
/// Words that end like a verb and are none.
const NO_VERBS: [&str; 6] = ["this", "its", "always", "as", "towards", "others"];
/// Words that begin a clause within a clause, whose verb is its own.
const CONJUNCTIONS: [&str; 9] =
    ["that", "which", "who", "whose", "when", "while", "where", "if", "because"];
/// Words in front of a noun: the next word is no verb, although it may end like one.
const BEFORE_NOUNS: [&str; 23] = [
    "a", "an", "the", "of", "in", "to", "from", "by", "with", "for", "on", "at", "between", "all",
    "no", "its", "their", "other", "and", "or", "these", "those", "each",
];

/// Attributes of the command line whose value is a help text.
const HELP: [&str; 6] =
    ["about", "long_about", "help", "long_help", "after_help", "after_long_help"];
/// An item of a list that stands in the middle of a line, behind the end of the one before it.
const JOINED_ITEMS: [&str; 2] = [". - ", "; - "];

/// Checks the comments and help texts of every Rust file and the text of every Markdown file.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let mut found = Vec::new();
    for file in source::files(root, &["crates", "xtask"], "rs")? {
        let text = crate::read(root, &file)?;
        found.extend(check_text(&file, text.lines().map(comment)));
        found.extend(check_text(&file, help_texts(&text).iter().map(String::as_str)));
    }
    for file in source::markdown(root)? {
        let text = crate::read(root, &file)?;
        found.extend(merge_marks(&file, &text));
        found.extend(check_text(&file, text.lines()));
    }
    Ok(found)
}

/// The marks that a merge has left in a text, which no compiler reads.
fn merge_marks(file: &str, text: &str) -> Vec<Problem> {
    let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    let marks = (1..).zip(text.lines()).filter(|(_, line)| is_mark(line));
    let problem = |(line, mark)| {
        let what = format!("a merge has left its mark: {mark}");
        Problem::new(file, line, what, "keep one of the two texts, and take the marks out")
    };
    marks.map(problem).collect()
}

/// The text of a line with nothing but a comment; any other line is blank.
fn comment(line: &str) -> &str {
    let Some(text) = line.trim_start().strip_prefix("//") else { return "" };
    text.strip_prefix(['/', '!']).unwrap_or(text)
}

/// The lines of a Rust file that belong to help texts of the command line; all others are blank.
/// Indented lines are examples and tables, and blank too.
fn help_texts(file: &str) -> Vec<String> {
    // A file that is not Rust is reported by the check of the sources.
    let tokens = file.parse().unwrap_or_default();
    let mut lines = vec![String::new(); file.lines().count()];
    add_help_texts(tokens, &mut lines);
    lines
}

/// Writes the strings behind `after_long_help =` and the like to the lines that they are in.
fn add_help_texts(tokens: TokenStream, lines: &mut [String]) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match (token, tokens.get(at + 1), tokens.get(at + 2)) {
            (TokenTree::Group(group), ..) => add_help_texts(group.stream(), lines),
            (
                TokenTree::Ident(word),
                Some(TokenTree::Punct(equals)),
                Some(TokenTree::Literal(text)),
            ) if HELP.contains(&&*word.to_string()) && equals.as_char() == '=' => {
                let first = text.span().start().line.saturating_sub(1);
                let text = text.to_string().replace("\\\"", "'");
                for (line, shown) in lines.iter_mut().skip(first).zip(text.lines()) {
                    if !shown.starts_with(' ') {
                        *line = shown.trim_matches('"').trim_end_matches('\\').to_owned();
                    }
                }
            }
            _ => {}
        }
    }
}

fn check_text<'a>(file: &str, lines: impl Iterator<Item = &'a str>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for paragraph in paragraphs(lines) {
        problems.extend(paragraph.joined_items().into_iter().map(|line| {
            let how = "begin a line with it; see that no program wraps lists as if they were text";
            Problem::new(file, line, "an item of a list in the middle of a line", how)
        }));
        for Part { line, text: sentence, behind } in paragraph.parts() {
            if !is_found(&without_code(sentence), behind, paragraph.is_cell) {
                continue;
            }
            let opening: Vec<&str> = sentence.split_whitespace().take(6).collect();
            problems.push(Problem::new(
                file,
                line,
                format!("a sentence that opens with a clause: {} ...", opening.join(" ")),
                "begin with the one who acts, or name the thing: \"A packet that waits is told ...\"",
            ));
        }
    }
    problems
}

/// Text without a break: of a paragraph, of an item of a list, or of a cell of a table.
#[derive(Default)]
struct Paragraph {
    text: String,
    is_cell: bool,
    /// The offset at which each line begins, with its number.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, line: usize, text: &str) {
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
        self.text.push(' ');
    }

    /// The line that has a place of the text.
    fn line_at(&self, place: usize) -> Option<usize> {
        let (_, line) = self.lines.iter().rev().find(|(offset, _)| *offset <= place)?;
        Some(*line)
    }

    /// The lines in whose middle items of a list begin. A cell of a table has none.
    fn joined_items(&self) -> Vec<usize> {
        let text = if self.is_cell { String::new() } else { without_code(&self.text) };
        let marks = JOINED_ITEMS.iter().flat_map(|mark| text.match_indices(mark));
        marks.filter_map(|(at, _)| self.line_at(at)).collect()
    }

    /// The sentences, divided at semicolons and colons.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let text = without_code(&self.text);
        let mut ends: Vec<usize> = text.match_indices(". ").map(|(at, _)| at + 1).collect();
        for end in ["? ", "! ", "; ", ": ", ".) ", ".\" ", "?\" "] {
            ends.extend(text.match_indices(end).map(|(at, _)| at + end.len() - 1));
        }
        ends.push(self.text.len());
        ends.sort_unstable();
        let (mut start, mut behind) = (0, None);
        let parts = ends.into_iter().map(move |end| {
            let part = (start..end, behind);
            (start, behind) = (end, text[..end].chars().next_back());
            part
        });
        parts.filter_map(|(part, behind)| {
            let text = self.text.get(part.clone())?;
            let at = part.start + text.len() - text.trim_start().len();
            Some(Part { line: self.line_at(at)?, text: text.trim(), behind })
        })
    }
}

/// A sentence, or a part of one.
struct Part<'a> {
    /// The line at which it begins.
    line: usize,
    text: &'a str,
    /// The mark that it stands behind; `None` for the first part of a paragraph.
    behind: Option<char>,
}

/// The text with an `x` for each byte between backticks.
fn without_code(text: &str) -> String {
    let mut blanked = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => blanked.push_str(part),
            _ => blanked.extend(std::iter::repeat_n('x', part.len() + 2)),
        }
    }
    blanked
}

/// Divides lines of Markdown. Headings, code and the heads of tables are left out.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::default()];
    let mut is_code = false;
    let mut lines = (1..).zip(lines.map(str::trim)).peekable();
    while let Some((number, line)) = lines.next() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_apart = is_code || is_fence || line.is_empty() || line.starts_with('#');
        let is_head = lines.peek().is_some_and(|(_, next)| next.starts_with("| ---"));
        match line.strip_prefix('|') {
            _ if is_apart => paragraphs.push(Paragraph::default()),
            Some(_) if is_head => {}
            Some(row) => {
                for cell in row.split('|') {
                    paragraphs.push(Paragraph { is_cell: true, ..Paragraph::default() });
                    extend(&mut paragraphs, number, cell.trim());
                }
            }
            None => {
                let item = item(line);
                if item.is_some() {
                    paragraphs.push(Paragraph::default());
                }
                extend(&mut paragraphs, number, item.unwrap_or(line));
            }
        }
    }
    paragraphs
}

fn extend(paragraphs: &mut [Paragraph], number: usize, text: &str) {
    if let Some(last) = paragraphs.last_mut() {
        last.push(number, text);
    }
}

/// The text of an item of a list; `None` for another line.
fn item(line: &str) -> Option<&str> {
    let number = line.trim_start_matches(|it: char| it.is_ascii_digit());
    let marked = if number.len() < line.len() { number.strip_prefix(". ") } else { None };
    marked.or_else(|| line.strip_prefix("- ")).or_else(|| line.strip_prefix("* "))
}

/// True for a part of a sentence that opens with a clause as its subject. Questions, labels (`Who
/// it is for: ...`, `Fragments: what becomes of them.`) and texts without a full stop are no such
/// sentences. The last sentence of a cell needs no full stop.
fn is_found(part: &str, behind: Option<char>, is_cell: bool) -> bool {
    let ends_with = |mark| part.trim_end_matches([')', '"']).ends_with(mark);
    if ends_with('?') || !opens_with_clause(part, is_cell || matches!(behind, Some(';' | ':'))) {
        return false;
    }
    let may_be_label = behind == Some(':') || ends_with(':') || is_cell && behind.is_none();
    match may_be_label {
        true => has_main_verb(part),
        false => is_cell || ends_with('.') || ends_with(';'),
    }
}

/// True for a text that opens with a clause, as its subject or alone. In the middle of a sentence
/// and in a cell it may be in lower case.
fn opens_with_clause(text: &str, any_case: bool) -> bool {
    let head = &text[..text.find([',', ';', ':', '.']).unwrap_or(text.len())];
    let is_in_front = text[head.len()..].starts_with(',');
    let mut words = head.split_whitespace().peekable();
    let is_lower = head.starts_with(|it: char| it.is_lowercase());
    if is_lower && !any_case {
        return false;
    }
    words.next_if(|word| LINKS.contains(&word.to_lowercase().as_str()));
    let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    match first.to_lowercase().as_str() {
        "what" | "who" | "whose" | "whom" | "which" => second != "to",
        // In front of a comma they mean "no matter what", which is no subject.
        "whatever" | "whoever" | "whichever" => !is_in_front || has_main_verb(head),
        "whether" => !is_in_front || !words.any(|word| word == "or"),
        "of" if second == "course" => false,
        "of" if matches!(second, "what" | "whom" | "which" | "whose") => true,
        "of" if is_in_front && !is_lower => {
            let mut noun = words.take(NOUN_WORDS).take_while(|word| !ARTICLES.contains(word));
            noun.any(|word| RELATIVES.contains(&word))
        }
        // The other meaning, as in `That packet waits.`, has a noun behind it.
        "that" => !is_lower && CLAUSE_SUBJECTS.contains(&second),
        _ => false,
    }
}

/// True if a clause that begins with its own verb (`what waits`) has another one behind it, which
/// makes it the subject of that.
fn has_main_verb(text: &str) -> bool {
    let head = text.split([',', ';', ':', '.']).next().unwrap_or(text);
    let mut words = head.split_whitespace().collect::<Vec<_>>();
    let inner = words.iter().skip(1).position(|word| CONJUNCTIONS.contains(word));
    words.truncate(inner.map_or(words.len(), |at| at + 1));
    let is_verb = |at: usize| {
        let (before, word) = (words[at - 1], words[at]);
        let ends_so = word.len() > 3 && word.ends_with('s') && !word.ends_with("ss");
        VERBS.contains(&word)
            || ends_so && !NO_VERBS.contains(&word) && !BEFORE_NOUNS.contains(&before)
    };
    // In `which packets it takes` the second word is a noun.
    let has_noun = words.first().is_some_and(|it| NOUN_QUESTIONS.contains(&&*it.to_lowercase()))
        && words.get(2).is_some_and(|word| CLAUSE_SUBJECTS.contains(word));
    words.len() > 3 && !has_noun && is_verb(1) && (3..words.len()).any(is_verb)
}

#[cfg(test)]
#[path = "prose_tests.rs"]
mod tests;

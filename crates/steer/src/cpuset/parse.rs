//! Reading a set of CPUs.

use std::fmt;
use std::str::FromStr;

use super::{CpuSet, MAX_CPUS};

/// The format in which a text was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuSetForm {
    /// A hexadecimal mask.
    Mask,
    /// A list of CPU numbers.
    List,
}

impl fmt::Display for CpuSetForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mask => "hexadecimal mask",
            Self::List => "CPU list",
        })
    }
}

/// Why a text is no set of CPUs. Columns count characters from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A character that does not belong there, or a missing one.
    #[error("column {column}: {found} in a {form}; expected {expected}")]
    Unexpected {
        /// The column of the character.
        column: usize,
        /// The character, or "nothing" at the end.
        found: String,
        /// The format in which the text was read.
        form: CpuSetForm,
        /// The characters that are allowed there.
        expected: &'static str,
    },
    /// A range that ends before it begins.
    #[error("column {column}: the range {first}-{last} runs backwards; write {last}-{first}")]
    Backwards {
        /// The column at which the range begins.
        column: usize,
        /// Its first CPU.
        first: usize,
        /// Its last CPU.
        last: usize,
    },
    /// A CPU number that no set can hold.
    #[error("column {column}: CPU {cpu} is beyond the limit, {limit}", limit = MAX_CPUS - 1)]
    BeyondLimit {
        /// The column of the number, or of the digit of the mask, that names the CPU.
        column: usize,
        /// The number.
        cpu: usize,
    },
    /// A CPU that the machine does not have.
    #[error(
        "column {column}: read as a {form} this means CPUs {understood}, but there is no CPU \
         {cpu}: the CPUs are {existing}. {advice}"
    )]
    NoSuchCpu {
        /// The column of the number, or of the digit of the mask, that names the CPU.
        column: usize,
        /// The format in which the text was read.
        form: CpuSetForm,
        /// The set that was understood, as a list.
        understood: String,
        /// The highest CPU that does not exist.
        cpu: usize,
        /// The CPUs that exist, as a list.
        existing: String,
        /// The text to write instead.
        advice: String,
    },
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads a mask or a list; see the description of the module.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        Ok(Reading::of(text)?.set)
    }
}

impl CpuSet {
    /// Reads a list, as [`CpuSet::list`] and the kernel write it. A number alone is a CPU here.
    ///
    /// # Errors
    /// [`CpuSetError`]
    pub fn of_list(text: &str) -> Result<Self, CpuSetError> {
        match text.is_empty() {
            true => Ok(Self::EMPTY),
            false => Ok(Reading::in_form(text, (CpuSetForm::List, 0))?.set),
        }
    }

    /// Reads a mask or a list of CPUs that must be among `existing`.
    ///
    /// # Errors
    /// [`CpuSetError`], with the column, what was understood and what to write.
    pub fn parse(text: &str, existing: &Self) -> Result<Self, CpuSetError> {
        let reading = Reading::of(text)?;
        let missing = reading.named.iter().filter(|named| !existing.contains(named.cpu));
        match missing.max_by_key(|named| named.cpu) {
            None => Ok(reading.set),
            Some(named) => Err(CpuSetError::NoSuchCpu {
                column: named.column,
                form: reading.form,
                understood: reading.set.list().to_string(),
                cpu: named.cpu,
                existing: existing.list().to_string(),
                advice: advice(text.trim(), reading.form, existing),
            }),
        }
    }
}

/// Suggests texts for the sets that a user may have meant who named CPUs that do not exist.
fn advice(text: &str, form: CpuSetForm, existing: &CpuSet) -> String {
    let mut advice = format!("For all of them write \"{}\"", existing.mask());
    if form == CpuSetForm::Mask
        && let Ok(number) = text.parse::<usize>()
    {
        if (1..existing.len()).contains(&number) {
            let some: CpuSet = existing.iter().take(number).collect();
            advice += &format!("; for {number} CPUs write \"{}\"", some.mask());
        }
        if existing.contains(number) {
            advice += &format!("; for CPU {number} alone write \"cpus:{number}\"");
        }
    }
    advice
}

/// A CPU and the column at which the text names it.
struct Named {
    cpu: usize,
    column: usize,
}

struct Reading {
    form: CpuSetForm,
    set: CpuSet,
    /// Each CPU of the set with the column at which it is named first.
    named: Vec<Named>,
}

impl Reading {
    fn of(text: &str) -> Result<Self, CpuSetError> {
        Self::in_form(text, form_of(text.trim()))
    }

    /// Reads a text in a form, behind a prefix of so many bytes that names it.
    fn in_form(text: &str, (form, prefix): (CpuSetForm, usize)) -> Result<Self, CpuSetError> {
        let body = text.trim();
        let start = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
        let mut reading = Self { form, set: CpuSet::EMPTY, named: Vec::new() };
        let (body, start) = (&body[prefix..], start + prefix);
        match form {
            CpuSetForm::Mask => reading.mask(body, start)?,
            CpuSetForm::List => reading.list(body, start)?,
        }
        Ok(reading)
    }

    fn mask(&mut self, body: &str, start: usize) -> Result<(), CpuSetError> {
        let digits = body.chars().enumerate().filter(|&(_, c)| c != ',').collect::<Vec<_>>();
        for (place, &(at, c)) in digits.iter().rev().enumerate() {
            let column = start + at;
            let Some(digit) = c.to_digit(16) else {
                return Err(self.unexpected(column, Some(c), "digits 0-9 and a-f"));
            };
            for bit in (0..4).filter(|bit| digit >> bit & 1 == 1) {
                self.name(4 * place + bit, column)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, body: &str, start: usize) -> Result<(), CpuSetError> {
        let mut column = start;
        for item in body.split(',') {
            self.item(item, column)?;
            column += item.chars().count() + 1;
        }
        Ok(())
    }

    /// One CPU, or a range with or without a step.
    fn item(&mut self, item: &str, start: usize) -> Result<(), CpuSetError> {
        let mut cursor = Cursor { rest: item, column: start };
        let first = self.number(&mut cursor, "a CPU number")?;
        if !cursor.take('-') {
            return self.end(&cursor, "',' or '-'").and_then(|()| self.name(first, start));
        }
        let last = self.number(&mut cursor, "the last CPU of the range")?;
        if last < first {
            return Err(CpuSetError::Backwards { column: start, first, last });
        }
        let (mut used, mut group) = (1, 1);
        if cursor.take(':') {
            group = self.step(&mut cursor)?;
            if cursor.take('/') {
                used = group;
                group = self.step(&mut cursor)?;
            }
        }
        self.end(&cursor, "',' or ':'")?;
        (first..=last)
            .filter(|cpu| (cpu - first) % group < used)
            .try_for_each(|cpu| self.name(cpu, start))
    }

    fn number(&self, cursor: &mut Cursor, expected: &'static str) -> Result<usize, CpuSetError> {
        let column = cursor.column;
        let Some(number) = cursor.number() else {
            return Err(self.unexpected(column, cursor.rest.chars().next(), expected));
        };
        if number < MAX_CPUS {
            Ok(number)
        } else {
            Err(CpuSetError::BeyondLimit { column, cpu: number })
        }
    }

    /// A number of CPUs, at least 1.
    fn step(&self, cursor: &mut Cursor) -> Result<usize, CpuSetError> {
        let column = cursor.column;
        match self.number(cursor, "a number of CPUs")? {
            0 => Err(self.unexpected(column, Some('0'), "a number from 1")),
            step => Ok(step),
        }
    }

    fn end(&self, cursor: &Cursor, expected: &'static str) -> Result<(), CpuSetError> {
        match cursor.rest.chars().next() {
            None => Ok(()),
            found => Err(self.unexpected(cursor.column, found, expected)),
        }
    }

    fn name(&mut self, cpu: usize, column: usize) -> Result<(), CpuSetError> {
        if cpu >= MAX_CPUS {
            return Err(CpuSetError::BeyondLimit { column, cpu });
        }
        if !self.set.contains(cpu) {
            self.set.insert(cpu);
            self.named.push(Named { cpu, column });
        }
        Ok(())
    }

    fn unexpected(
        &self,
        column: usize,
        found: Option<char>,
        expected: &'static str,
    ) -> CpuSetError {
        let found = found.map_or("nothing".to_owned(), |c| format!("{c:?}"));
        CpuSetError::Unexpected { column, found, form: self.form, expected }
    }
}

/// The form of a text and the length of the prefix that says so.
fn form_of(body: &str) -> (CpuSetForm, usize) {
    const PREFIXES: [(&str, CpuSetForm); 5] = [
        ("cpus:", CpuSetForm::List),
        ("list:", CpuSetForm::List),
        ("mask:", CpuSetForm::Mask),
        ("0x", CpuSetForm::Mask),
        ("0X", CpuSetForm::Mask),
    ];
    if let Some((prefix, form)) = PREFIXES.iter().find(|(prefix, _)| body.starts_with(prefix)) {
        return (*form, prefix.len());
    }
    let words = body.split(',').skip(1).all(|group| group.len() == 8);
    if body.contains(['-', ':']) || !words { (CpuSetForm::List, 0) } else { (CpuSetForm::Mask, 0) }
}

/// The rest of a text and the column at which it begins.
struct Cursor<'a> {
    rest: &'a str,
    column: usize,
}

impl Cursor<'_> {
    fn take(&mut self, c: char) -> bool {
        let Some(rest) = self.rest.strip_prefix(c) else { return false };
        (self.rest, self.column) = (rest, self.column + 1);
        true
    }

    /// A decimal number. One that does not fit becomes `usize::MAX`, which is too large for any
    /// set.
    fn number(&mut self) -> Option<usize> {
        let rest = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let length = self.rest.len() - rest.len();
        let digits = &self.rest[..length];
        (self.rest, self.column) = (rest, self.column + length);
        (length > 0).then(|| digits.parse().unwrap_or(usize::MAX))
    }
}

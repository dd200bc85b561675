//! Instructions for each packet and each connection, counted under valgrind while the example
//! `instructions` of the crate `bench` works, and compared with their budgets.

mod budget;
mod callgrind;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use cargo_metadata::Metadata;

use self::budget::{BUDGETS, FUNCTIONS, Figure, Figures, Recorded, Verdict};
use self::callgrind::Profile;
use crate::problem::Problem;

/// The function of `bench` below which instructions count.
const COUNTED: &str = "bench::instructions::counted*";

/// Arguments of the task.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Measure only these variants, such as `masquerade`; all without
    variants: Vec<String>,
    /// Record the figures as the new budgets
    #[arg(long)]
    write: bool,
    /// Print one JSON object with the keys `packet`, `connection` and `making`
    #[arg(long, short)]
    json: bool,
}

/// Something that the example can do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    kind: String,
    name: String,
    /// The name of making its frames; none for making itself.
    making: Option<String>,
}

/// A run of the example under valgrind.
struct Run {
    subject: Subject,
    /// Packets or connections.
    units: u64,
    profile: Profile,
}

/// Measures, and compares with the budgets. `None` where valgrind is missing.
pub fn run(
    root: &Path,
    metadata: &Metadata,
    options: &Options,
) -> anyhow::Result<Option<Vec<Problem>>> {
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        if error.kind() == ErrorKind::NotFound {
            eprintln!("SKIPPED: valgrind is not installed; `scripts/setup` installs it");
            return Ok(None);
        }
        return Err(error).context("can not start valgrind");
    }
    build(root)?;
    let target = metadata.target_directory.as_std_path();
    let example = target.join("release/examples/instructions");
    let profiles = target.join("instructions");
    std::fs::create_dir_all(&profiles)
        .with_context(|| format!("can not make {}", profiles.display()))?;
    let all = subjects(&output(&mut Command::new(&example))?)?;
    let wanted = selected(&all, &options.variants)?;
    let runs = count_all(&example, &profiles, wanted)?;
    let found = less_making(&runs);
    if options.write {
        record(root, &found, !options.variants.is_empty())?;
    }
    let text = crate::read(root, BUDGETS)?;
    let recorded: Recorded = toml::from_str(&crate::read(root, FUNCTIONS)?)
        .with_context(|| format!("{FUNCTIONS} is of another form"))?;
    let known = all.iter().map(|it| (it.kind.as_str(), it.name.as_str())).collect();
    let Verdict { problems, improvements } = budget::compare(&text, &recorded, &found, &known)
        .with_context(|| format!("{BUDGETS} is of another form"))?;
    print(&found, options.json)?;
    for improvement in improvements {
        eprintln!("{improvement}");
    }
    let compiler = compiler()?;
    if !problems.is_empty() && compiler != recorded.compiler {
        let before = recorded.compiler;
        eprintln!("the budgets are of {before}, this is {compiler}: that may be the reason");
    }
    Ok(Some(problems))
}

/// Builds the example as the program is built that is released.
fn build(root: &Path) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments =
        ["build", "--locked", "--release", "--package", "bench", "--example", "instructions"];
    let status = Command::new(cargo).args(arguments).current_dir(root).status();
    let status = status.context("can not start cargo")?;
    if status.success() { Ok(()) } else { bail!("the example `instructions` can not be built") }
}

fn compiler() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(output(Command::new(rustc).arg("--version"))?.trim().to_owned())
}

/// Runs a program, which has to succeed, and returns its output.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("can not start {program}"))?;
    if !status.success() {
        bail!("{program} failed, {status}: {}", String::from_utf8_lossy(&stderr).trim());
    }
    String::from_utf8(stdout).with_context(|| format!("{program} does not print text"))
}

/// Reads the example's list, one subject a line: kind, name, and the name of making its frames.
fn subjects(list: &str) -> anyhow::Result<Vec<Subject>> {
    let subject = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (Some(kind), Some(name)) = (words.next(), words.next()) else {
            bail!("the example `instructions` lists a line without a name: {line}");
        };
        Ok(Subject { kind, name, making: words.next() })
    };
    list.lines().map(subject).collect()
}

/// The subjects of these variants, with making their frames; all if none is named.
fn selected(all: &[Subject], variants: &[String]) -> anyhow::Result<Vec<Subject>> {
    let names: BTreeSet<&str> = all.iter().map(|subject| subject.name.as_str()).collect();
    if let Some(unknown) = variants.iter().find(|variant| !names.contains(variant.as_str())) {
        let names = Vec::from_iter(names).join(", ");
        bail!("there is no variant {unknown}; there are: {names}");
    }
    if variants.is_empty() {
        return Ok(all.to_vec());
    }
    let is_named = |subject: &&Subject| variants.contains(&subject.name);
    let makings: BTreeSet<&str> =
        all.iter().filter(is_named).filter_map(|subject| subject.making.as_deref()).collect();
    let is_wanted = |subject: &&Subject| {
        is_named(subject) || (subject.making.is_none() && makings.contains(subject.name.as_str()))
    };
    Ok(all.iter().filter(is_wanted).cloned().collect())
}

/// Counts on as many threads as there are CPUs: none of them slows another's count down.
fn count_all(example: &Path, profiles: &Path, wanted: Vec<Subject>) -> anyhow::Result<Vec<Run>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let left = Mutex::new(wanted.into_iter().enumerate());
    let next = || left.lock().ok()?.next();
    let worker = || {
        let mut runs = Vec::new();
        while let Some((at, subject)) = next() {
            runs.push((at, count(example, profiles, subject)?));
        }
        Ok::<_, anyhow::Error>(runs)
    };
    let mut runs = BTreeMap::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            let done = worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            runs.extend(done);
        }
        anyhow::Ok(())
    })?;
    Ok(runs.into_values().collect())
}

/// Counts one. The profile stays, for `callgrind_annotate`.
fn count(example: &Path, profiles: &Path, subject: Subject) -> anyhow::Result<Run> {
    let Subject { kind, name, .. } = &subject;
    let file: PathBuf = profiles.join(format!("{kind}-{name}.out"));
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(example)
        .args([kind, name]);
    let units = output(&mut valgrind)?.trim().parse().context("the example prints no number")?;
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("can not read {}", file.display()))?;
    let profile = callgrind::parse(&text).with_context(|| format!("{}", file.display()))?;
    if profile.total == 0 || units == 0 {
        bail!("{kind} {name}: nothing was counted: is there no function {COUNTED}?");
    }
    Ok(Run { subject, units, profile })
}

/// The instructions of each for one packet or connection, less making its frames.
fn less_making(runs: &[Run]) -> Vec<Figure> {
    let each = |cost: u64, run: &Run| (cost + run.units / 2) / run.units;
    let making = |name: &str| {
        let run = runs.iter().find(|run| run.subject.making.is_none() && run.subject.name == name);
        run.map_or(0, |run| each(run.profile.total, run))
    };
    let figure = |run: &Run| {
        let Subject { kind, name, making: makes } = run.subject.clone();
        let making = makes.map(|name| (making(&name), name)).map(|(cost, name)| (name, cost));
        let taken_off = making.as_ref().map_or(0, |(_, cost)| *cost);
        let functions = run.profile.functions.iter();
        let functions = functions.map(|(name, cost)| (name.clone(), each(*cost, run)));
        Figure {
            kind,
            name,
            cost: each(run.profile.total, run).saturating_sub(taken_off),
            functions: functions.filter(|(_, cost)| *cost > 0).collect(),
            making,
        }
    };
    runs.iter().map(figure).collect()
}

/// Writes new budgets. Those of figures that were not measured stay only if `some` were
/// selected.
fn record(root: &Path, found: &[Figure], some: bool) -> anyhow::Result<()> {
    let (mut budgets, mut recorded) = (Figures::new(), Recorded::default());
    if some {
        budgets = toml::from_str(&crate::read(root, BUDGETS)?)?;
        recorded = toml::from_str(&crate::read(root, FUNCTIONS)?)?;
    }
    for (kind, names) in budget::figures(found) {
        budgets.entry(kind).or_default().extend(names);
    }
    recorded.update(&compiler()?, found);
    std::fs::write(root.join(BUDGETS), budget::write(&budgets)?)?;
    Ok(std::fs::write(root.join(FUNCTIONS), recorded.write()?)?)
}

fn print(found: &[Figure], as_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string(&budget::figures(found))?)?;
        return Ok(());
    }
    for Figure { kind, name, cost, .. } in found {
        writeln!(out, "{:32}{cost:>8}", format!("{kind}.{name}"))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

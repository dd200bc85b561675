//! The workspace's own tasks, started as `cargo xtask TASK`.

mod arrows;
mod drops;
mod file_names;
mod instructions;
mod layers;
mod licences;
mod nft_words;
mod problem;
mod prose;
mod rooms;
mod source;
mod tunables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use cargo_metadata::{Metadata, MetadataCommand};
use clap::Parser;

use problem::Problem;

/// Tasks of the Stateway workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Check the house rules and list every place that breaks one
    Tidy,
    /// Check that every dependency has a licence that the project accepts
    Licences,
    /// Compare docs/drops.md with the drop reasons in the code
    Drops {
        /// Bring the names and meanings up to date; advice is kept
        #[arg(long)]
        write: bool,
    },
    /// Compare docs/tunables.md with the tunables in the code
    Tunables {
        /// Write the document anew
        #[arg(long)]
        write: bool,
    },
    /// Compare docs/nft.md with what the import of rulesets supports
    Nft {
        /// Write the document anew
        #[arg(long)]
        write: bool,
    },
    /// Count instructions under valgrind and compare them with xtask/instructions.toml; the exit
    /// code is 77 if valgrind is missing
    Instructions(instructions::Options),
}

/// The exit code of a task that can not run here, as `scripts/test` knows it.
const SKIPPED: u8 = 77;

fn main() -> anyhow::Result<ExitCode> {
    let root = workspace_root()?;
    let (task, problems) = match Task::parse() {
        Task::Tidy => ("tidy", tidy(&root)?),
        Task::Licences => ("licences", licences::check(&metadata(&root, Graph::Full)?)?),
        Task::Drops { write } => {
            if write {
                drops::update(&root)?;
            }
            ("drops", drops::check(&root)?)
        }
        Task::Tunables { write } => {
            if write {
                tunables::update(&root)?;
            }
            ("tunables", tunables::check(&root)?)
        }
        Task::Nft { write } => {
            if write {
                nft_words::update(&root)?;
            }
            ("nft", nft_words::check(&root)?)
        }
        Task::Instructions(options) => {
            let metadata = metadata(&root, Graph::Workspace)?;
            let Some(problems) = instructions::run(&root, &metadata, &options)? else {
                return Ok(ExitCode::from(SKIPPED));
            };
            ("instructions", problems)
        }
    };
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        eprintln!("{task}: no problems");
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("{task}: {} to mend", problems.len());
        Ok(ExitCode::FAILURE)
    }
}

/// All house rules that a program can check.
fn tidy(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let mut problems = arrows::check(root, &metadata(root, Graph::Workspace)?)?;
    problems.extend(rooms::check(root)?);
    problems.extend(source::check(root)?);
    problems.extend(prose::check(root)?);
    problems.extend(file_names::check(root)?);
    problems.extend(drops::check(root)?);
    problems.extend(tunables::check(root)?);
    problems.extend(nft_words::check(root)?);
    Ok(problems)
}

/// How much of the dependency graph to ask Cargo for.
enum Graph {
    Workspace,
    Full,
}

fn metadata(root: &Path, graph: Graph) -> anyhow::Result<Metadata> {
    let mut command = MetadataCommand::new();
    command.current_dir(root).other_options(["--locked".to_owned()]);
    if matches!(graph, Graph::Workspace) {
        command.no_deps();
    }
    command.exec().context("cargo metadata failed; run it by hand to see why")
}

fn workspace_root() -> anyhow::Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .context("CARGO_MANIFEST_DIR is not set; start this program as `cargo xtask`")?;
    let root = Path::new(&manifest).parent().context("xtask lies in no workspace")?;
    Ok(root.to_owned())
}

/// Reads a file of the workspace, given relative to its root.
fn read(root: &Path, file: &str) -> anyhow::Result<String> {
    let path = root.join(file);
    std::fs::read_to_string(&path).with_context(|| format!("can not read {}", path.display()))
}

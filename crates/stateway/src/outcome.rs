//! From results to exit codes.

use std::io;
use std::process::ExitCode;

use crate::config::Problems;

/// It was asked for something that can not be; exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Data could not be written to standard output.
#[derive(Debug, thiserror::Error)]
#[error("can not write to standard output: {0}")]
pub struct OutputError(#[from] pub io::Error);

/// Says what went wrong on standard error and chooses the exit code: 0 done,
/// 1 failed, 2 wrong usage or configuration.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_closed_pipe(&error) {
        // Whoever read our output has seen enough, as `head` does.
        return ExitCode::SUCCESS;
    }
    if let Some(problems) = error.downcast_ref::<Problems>() {
        // One per line, each beginning with file and line, as editors like it.
        eprintln!("{problems}");
        return ExitCode::from(2);
    }
    eprintln!("stateway: {error:#}");
    if is_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>()
        || matches!(error.downcast_ref(), Some(control::BindError::InUse { .. }))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<OutputError>()
        .is_some_and(|OutputError(error)| error.kind() == io::ErrorKind::BrokenPipe)
}

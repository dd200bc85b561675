//! The errors of the commands themselves, and the exit codes of all errors.

use std::io;
use std::process::ExitCode;

use control::{BindError, ClientError};

use crate::config::Problems;

/// A request that can not be carried out as it is; exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Data could not be written to standard output.
#[derive(Debug, thiserror::Error)]
#[error("can not write to standard output: {0}")]
pub struct OutputError(#[from] pub io::Error);

/// Prints the error on standard error and chooses the exit code: 0 done, 1 failed, 2 wrong usage or
/// configuration.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_closed_pipe(&error) {
        // The reader of the output has seen enough, as `head` does.
        return ExitCode::SUCCESS;
    }
    if let Some(problems) = error.downcast_ref::<Problems>() {
        // Editors like one problem on a line that begins with file and line. The rule that a
        // problem is about follows below.
        problems.to_string().lines().for_each(|line| tell!("{line}"));
        return ExitCode::from(2);
    }
    tell!("stateway: {}", one_line(&error));
    if is_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>()
        || matches!(
            error.downcast_ref(),
            Some(
                BindError::InUse { .. } | BindError::NotASocket { .. } | BindError::TooLong { .. }
            )
        )
        || matches!(
            error.downcast_ref(),
            Some(ClientError::NotASocket { .. } | ClientError::BadRequest(_))
        )
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<OutputError>()
        .is_some_and(|OutputError(error)| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error with its causes in one line. Many errors include their cause, which is not repeated.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let line = one_line(&OutputError(full()).into());
        assert_eq!(line, "can not write to standard output: no storage space");
        let line = one_line(&anyhow::Error::from(full()).context("gateway.toml:3"));
        assert_eq!(line, "gateway.toml:3: no storage space");
    }
}

use std::time::Duration;

/// Why a lab could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine can not run the lab: no permission, or a program is missing.
    /// A test prints it as `SKIPPED: why` and passes.
    #[error("not available on this machine: {why}")]
    Unavailable {
        /// What is missing, and what to do about it.
        why: String,
    },
    /// A program ended with another exit code than 0.
    #[error("`{command}` failed with {status}:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Exit code or signal.
        status: String,
        /// What it wrote to both outputs.
        output: String,
    },
    /// A program ran longer than its limit and was killed.
    #[error("`{command}` was killed after {} s", after.as_secs_f64())]
    TimedOut {
        /// The command line.
        command: String,
        /// The limit.
        after: Duration,
    },
    /// A program started in the background did not become ready.
    #[error("waited {} s for {what}; its output:\n{log}", after.as_secs_f64())]
    NotReady {
        /// What was waited for.
        what: String,
        /// For how long.
        after: Duration,
        /// The program's output so far.
        log: String,
    },
    /// A program's output was not of the expected form.
    #[error("{program} printed no {what}:\n{output}")]
    Unexpected {
        /// The program.
        program: String,
        /// What was looked for.
        what: String,
        /// What it printed.
        output: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The result of everything that a lab does.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// What the kernel was built without is not available, rather than failed.
    pub(crate) fn or_unavailable(self) -> Self {
        match self {
            Self::Failed { command, output, .. }
                if ["not supported", "Unknown device type"].iter().any(|w| output.contains(w)) =>
            {
                Self::Unavailable { why: format!("`{command}`: {}", output.trim()) }
            }
            other => other,
        }
    }

    pub(crate) fn unexpected(program: &str, what: &str, output: &str) -> Self {
        Self::Unexpected { program: program.into(), what: what.into(), output: output.into() }
    }
}

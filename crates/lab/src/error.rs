use std::time::Duration;

/// The reasons why a lab could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine can not run the lab: no permission, or a program is missing.
    /// A test prints it as `SKIPPED: why` and passes.
    #[error("not available on this machine: {why}")]
    Unavailable {
        /// The missing part, and advice.
        why: String,
    },
    /// A program ended with another exit code than 0.
    #[error("`{command}` failed with {status}:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Exit code or signal.
        status: String,
        /// Both of its outputs.
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
        /// The awaited event.
        what: String,
        /// The time of waiting.
        after: Duration,
        /// The program's output so far.
        log: String,
    },
    /// A program's output did not have the expected form.
    #[error("{program} printed no {what}:\n{output}")]
    Unexpected {
        /// The program.
        program: String,
        /// The expected text.
        what: String,
        /// The program's output.
        output: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The result of all functions of a lab.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// A feature that the kernel was built without is unavailable; this is not a failure.
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

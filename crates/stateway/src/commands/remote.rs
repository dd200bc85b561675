//! Options of all commands that ask a running gateway.

use std::path::PathBuf;
use std::time::Duration;

use control::{Client, ClientError};

use crate::print::Output;

/// The gateway to ask.
#[derive(Debug, clap::Args)]
pub struct Remote {
    /// Control socket of the gateway.
    #[arg(
        long,
        env = "STATEWAY_SOCKET",
        value_name = "PATH",
        default_value = control::DEFAULT_SOCKET,
        hide_env_values = true
    )]
    socket: PathBuf,
}

impl Remote {
    /// A client for the gateway.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.socket)?)
    }
}

/// The form of an answer.
#[derive(Debug, clap::Args)]
pub struct Json {
    /// Print JSON: one object with exact numbers.
    #[arg(short, long)]
    pub json: bool,
}

/// The interval of repeated answers.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// Repeat the answer at this interval in seconds until interrupted [default: 1].
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = interval)]
    watch: Option<Duration>,
}

impl Watch {
    /// Shows an answer once, or again and again. With JSON each answer is one line.
    pub fn repeat(
        &self,
        out: &mut Output,
        json: bool,
        mut show: impl FnMut(&mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(interval) = self.watch else { return show(out) };
        if !json {
            out.next_page()?;
        }
        show(out)?;
        loop {
            out.flush()?;
            std::thread::sleep(interval);
            if !json {
                out.next_page()?;
            }
            show(out).map_err(not_any_more)?;
        }
    }
}

/// A gateway that answered before and is gone now has stopped.
fn not_any_more(error: anyhow::Error) -> anyhow::Error {
    match error.downcast() {
        Ok(ClientError::NotRunning { socket }) => ClientError::Stopped { socket }.into(),
        Ok(other) => other.into(),
        Err(other) => other,
    }
}

/// Seconds, from a tenth to a day.
fn interval(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a number of seconds from 0.1 to 86400".to_owned())
}

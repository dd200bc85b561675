//! Samples the gateway while traffic runs, with a progress bar.

use std::time::{Duration, Instant};

use control::schema::Status;
use indicatif::{ProgressBar, ProgressStyle};

use super::{SAMPLE_EVERY, Sample, between};

/// Collects samples.
pub struct Recorder {
    bar: ProgressBar,
    first: Option<Status>,
    last: Option<Status>,
    samples: Vec<Sample>,
}

impl Recorder {
    /// A recorder of a run that takes about `length`.
    pub fn new(length: Duration) -> Self {
        let bar = ProgressBar::new(length.as_millis() as u64);
        if let Ok(style) = ProgressStyle::with_template("  {bar:32} {elapsed:>3}  {msg}") {
            bar.set_style(style);
        }
        Self { bar, first: None, last: None, samples: Vec::new() }
    }

    /// Shows a message beside the bar.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Samples the gateway again and again for `length`.
    ///
    /// # Errors
    /// The error of `status`.
    pub fn record(
        &mut self,
        length: Duration,
        mut status: impl FnMut() -> anyhow::Result<Status>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        // The first look only begins an interval.
        self.last = Some(status()?);
        while Instant::now() < end {
            std::thread::sleep(SAMPLE_EVERY);
            self.take(status()?);
        }
        Ok(())
    }

    fn take(&mut self, now: Status) {
        self.bar.inc(SAMPLE_EVERY.as_millis() as u64);
        let first = self.first.get_or_insert_with(|| now.clone());
        if let Some(before) = self.last.replace(now.clone()) {
            let sample = between(first, &before, &now);
            self.bar.set_message(format!(
                "{} workers  {:.2} Gbit/s  {:.0} k frames/s",
                now.workers.len(),
                sample.bits_per_second / 1e9,
                sample.frames_per_second / 1e3
            ));
            self.samples.push(sample);
        }
    }

    /// Ends the bar and returns the samples.
    pub fn finish(self) -> Vec<Sample> {
        self.bar.finish_and_clear();
        self.samples
    }
}

//! Looking at the gateway while traffic runs, with a bar that says how far it is.

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

    /// Says what is going on.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Looks at the gateway again and again for `length`.
    ///
    /// # Errors
    /// That of `status`.
    pub fn record(
        &mut self,
        length: Duration,
        mut status: impl FnMut() -> anyhow::Result<Status>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        // The first look begins an interval; what was before is another story.
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

    /// Ends the bar and returns what was seen.
    pub fn finish(self) -> Vec<Sample> {
        self.bar.finish_and_clear();
        self.samples
    }
}

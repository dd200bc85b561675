//! Decides when the proxy answers.

use std::time::Duration;

use flow::Timestamp;

/// The time after a promise at which it counts as not taken up: as long as a cookie is valid,
/// and about as long as a table keeps a half-open connection.
const STEP_NS: u64 = 64_000_000_000;

/// Decides whether the proxy answers the SYNs of a zone.
///
/// SYNs that it answers are not in the table. So with half-open connections alone the flood
/// would seem to be over as soon as the proxy begins. For that reason promises that no client
/// has taken up count like half-open connections. The proxy stops when a whole step had so few
/// of both that the threshold would not be reached without it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    /// The current step, and the first step in which it answered.
    step: u64,
    since: u64,
    answering: bool,
    /// Promises of this step that no client has taken up.
    open: u64,
    /// The same number for the step before.
    before: u64,
    /// Time of the last promise of this worker, or of one whose flows it took over.
    promised: Option<Timestamp>,
}

impl Pressure {
    /// Time for which a client may take up a promise.
    pub const PROMISED: Duration = Duration::from_nanos(STEP_NS);

    /// True if the proxy answers a SYN while there are `half_open` connections. The proxy starts when
    /// these and the new one reach `threshold`.
    pub fn answers(&mut self, half_open: u64, threshold: u64, now: Timestamp) -> bool {
        let step = now.as_nanos() / STEP_NS;
        let is_new = step > self.step;
        if is_new {
            self.before = if step == self.step + 1 { self.open } else { 0 };
            (self.step, self.open) = (step, 0);
        }
        let load = half_open + self.before;
        if !self.answering {
            if half_open + 1 >= threshold {
                (self.answering, self.since) = (true, step);
            }
        } else if is_new && step > self.since + 1 && load < threshold / 2 {
            self.answering = false;
        }
        self.answering
    }

    /// Stops answering at once, because the proxy was switched off. Earlier promises stay
    /// valid.
    pub fn end(&mut self) {
        self.answering = false;
    }

    /// Counts a SYN that was answered.
    pub fn promised(&mut self, now: Timestamp) {
        self.open += 1;
        self.promised = Some(now);
    }

    /// True if a cookie can be one that was given to a client. Otherwise no guess can open a
    /// connection.
    pub fn redeems(&self, now: Timestamp) -> bool {
        self.answering || self.last_promise(now).is_some()
    }

    /// The time of the last promise, if it can still be taken up.
    pub fn last_promise(&self, now: Timestamp) -> Option<Timestamp> {
        self.promised.filter(|at| now.since(*at) < Self::PROMISED)
    }

    /// Learns of a promise of another worker.
    pub fn learn(&mut self, promised: Timestamp) {
        self.promised = self.promised.max(Some(promised));
    }

    /// Counts a client that took up its promise.
    pub fn taken_up(&mut self) {
        self.open = self.open.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn one_is_always() {
        let mut pressure = Pressure::default();
        for second in [0, 1, 64, 1000, 1_000_000] {
            assert!(pressure.answers(0, 1, at(second)));
        }
    }

    #[test]
    fn it_begins_with_the_connection_that_reaches_the_threshold() {
        let mut pressure = Pressure::default();
        assert!(!pressure.answers(98, 100, at(1)));
        assert!(pressure.answers(99, 100, at(1)));
        assert!(pressure.answers(0, 100, at(2)), "and does not end at once");
    }

    #[test]
    fn it_ends_when_the_flood_would_fit() {
        let mut pressure = Pressure::default();
        pressure.answers(1000, 1000, at(640));
        let mut answered_until = 0;
        for second in 640..1280 {
            // Ten a second are 640 in the lifetime of a half-open connection, one is 64.
            let rate = if second < 960 { 10 } else { 1 };
            for _ in 0..rate {
                if pressure.answers(0, 1000, at(second)) {
                    pressure.promised(at(second));
                    answered_until = second;
                }
            }
        }
        assert_eq!(answered_until, 1023, "the first whole step of little is over");
    }

    #[test]
    fn clients_that_return_their_cookies_are_no_flood() {
        let mut pressure = Pressure::default();
        pressure.answers(1000, 1000, at(640));
        for second in 640..768 {
            for _ in 0..100 {
                assert!(pressure.answers(0, 1000, at(second)));
                pressure.promised(at(second));
                pressure.taken_up();
            }
        }
        assert!(!pressure.answers(0, 1000, at(768)));
    }

    #[test]
    fn a_pause_ends_it() {
        let mut pressure = Pressure::default();
        pressure.answers(1000, 1000, at(640));
        pressure.promised(at(640));
        assert!(!pressure.answers(0, 1000, at(2000)));
    }

    #[test]
    fn a_promise_is_kept_while_the_proxy_answers_and_a_minute_after_the_last() {
        let mut pressure = Pressure::default();
        assert!(!pressure.redeems(at(700)), "nothing was promised");
        pressure.answers(1000, 1000, at(640));
        assert!(pressure.redeems(at(640)));
        pressure.promised(at(767));
        assert!(!pressure.answers(0, 1000, at(768)), "it has ended");
        assert!(pressure.redeems(at(830)));
        assert!(!pressure.redeems(at(831)));
        let mut other = Pressure::default();
        other.learn(pressure.last_promise(at(800)).unwrap());
        assert!(other.redeems(at(830)));
        assert_eq!(other.last_promise(at(831)), None);
    }
}

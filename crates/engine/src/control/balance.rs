//! Feeds the balancer and carries out its plans.

use flow::Timestamp;
use steer::{BalanceSettings, Balancer, BucketMove, Plan, Sample};

use crate::control::config::SteerError;
use crate::control::coordinator::Coordinator;

/// The balancer, and the counters at its last round.
#[derive(Debug)]
pub struct BalanceState {
    balancer: Balancer,
    at_ns: u64,
    /// The last time that the interval of the configuration was over.
    looked_at: Timestamp,
    packets: Vec<u64>,
    busy_ns: Vec<u64>,
}

impl BalanceState {
    /// No round was played yet, and the load counts from `now` on.
    pub fn new(now: Timestamp) -> Self {
        Self {
            balancer: Balancer::new(BalanceSettings::default()),
            at_ns: now.as_nanos(),
            looked_at: now,
            packets: Vec::new(),
            busy_ns: Vec::new(),
        }
    }
}

impl Coordinator {
    /// Balances if the configured interval is over.
    pub fn balance_if_due(&mut self) -> Result<(), SteerError> {
        let now = self.execution.now();
        let passed = now.since(self.balance.looked_at);
        if self.config.balance.is_some_and(|every| passed >= every) {
            self.balance.looked_at = now;
            self.balance(false)?;
        }
        Ok(())
    }

    /// Plans bucket moves by the load since the last plan that was carried out. Unless it is a dry
    /// run, carries the plan out.
    pub fn balance(&mut self, dry_run: bool) -> Result<Plan, SteerError> {
        let reports = self.reports()?;
        let now_ns = self.execution.now().as_nanos();
        let mut packets = vec![0; self.table.len()];
        for bucket in reports.iter().flat_map(|report| &report.buckets) {
            packets[bucket.id.index()] = bucket.packets;
        }
        let busy_ns: Vec<u64> = reports.iter().map(|report| report.busy_ns).collect();
        let state = &self.balance;
        let bucket_work = differences(&packets, &state.packets);
        let interval = (now_ns - state.at_ns).max(1) as f64;
        let worker_load: Vec<f64> = differences(&busy_ns, &state.busy_ns)
            .into_iter()
            .map(|busy| (busy as f64 / interval).min(1.0))
            .collect();
        let plan = state.balancer.plan(&Sample {
            table: &self.table,
            bucket_work: &bucket_work,
            worker_load: &worker_load,
            allowed: self.allowed,
        });
        if !dry_run {
            let moves: Vec<BucketMove> = plan.moves.iter().map(|step| step.change).collect();
            self.order_moves(&moves)?;
            self.balance.balancer.finish_round(&plan.moves);
            self.balance.at_ns = now_ns;
            self.balance.packets = packets;
            self.balance.busy_ns = busy_ns;
        }
        Ok(plan)
    }
}

/// The differences since `before`. A new worker or bucket counts from zero.
fn differences(now: &[u64], before: &[u64]) -> Vec<u64> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect()
}

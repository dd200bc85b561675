//! The places in a table where planted faults show that take more than a condition.

use std::time::Duration;

use flow::Timestamp;
use flow::codec::Millis;

use super::Table;
use crate::{ConnectionRecord, Context, InterfaceName};

impl Table {
    /// Brings planted faults into a record.
    pub(super) fn mar(&self, record: &mut ConnectionRecord, slot: u32, context: &Context<'_>) {
        let faults = context.settings.faults;
        if faults.records_deadlines() {
            record.left = Millis::until(self.slab[slot].head.deadline, Timestamp::ZERO);
        }
        if faults.records_interface_numbers()
            && let Some(translation) = &mut record.translation
        {
            let number = self.slab.translation(slot).and_then(|it| it.interface);
            translation.interface = number.and_then(|it| InterfaceName::new(&it.to_string()));
        }
    }

    /// Ends any connection, so that an import has room. False if that fault is not planted.
    pub(super) fn evicts_for_import(&mut self, context: &mut Context<'_>) -> bool {
        if !context.settings.faults.evicts_assured() {
            return false;
        }
        let other = (0..self.slab.slots()).find(|it| self.slab.live(*it).is_some());
        other.map(|other| self.end_whole(other, context)).is_some()
    }
}

/// The time that a connection has left by its record.
pub(super) fn time_left(record: &ConnectionRecord, context: &Context<'_>) -> Duration {
    match context.settings.faults.records_deadlines() {
        true => record.left.duration().saturating_sub(context.now.since(Timestamp::ZERO)),
        false => record.left.duration(),
    }
}

//! The connections that state sync reads and changes.

use conntrack::Cursor;
use flow::PortPart;
use steer::BucketId;

use crate::Gateway;
use crate::control::shared_copies::SharedThings;
use crate::control::worker_handle::Unresponsive;
use crate::path::change_ring::ChangeStream;
use crate::path::replication::{CopyChange, CopyReport, Passed, ReplicationPiece};

/// The connections of a gateway. [`Gateway`] has those of its workers; a benchmark has tables of its
/// own.
pub trait Connections {
    /// As [`Gateway::follow_changes`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn follow_changes(&self) -> Result<ChangeStream, Unresponsive>;

    /// As [`Gateway::unfollow_changes`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn unfollow_changes(&self) -> Result<(), Unresponsive>;

    /// As [`Gateway::set_stands_by`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn set_stands_by(&self, stands_by: bool) -> Result<(), Unresponsive>;

    /// As [`Gateway::connection_count`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn connection_count(&self) -> Result<u64, Unresponsive>;

    /// As [`Gateway::tell_connections`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive>;

    /// As [`Gateway::change_copies`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn change_copies(&self, changes: Vec<CopyChange>) -> Result<CopyReport, Unresponsive>;

    /// As [`Gateway::adopt_connections`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn adopt_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive>;

    /// As [`Gateway::give_connections_away`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn give_connections_away(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive>;

    /// The number of changes that the zones have had. Tables that have none keep it at 0.
    fn zones_revision(&self) -> u64 {
        0
    }

    /// The things that workers share beside their tables. Tables of others have none.
    fn shared_things(&self) -> Option<&dyn SharedThings> {
        None
    }

    /// As [`Gateway::divide_ports`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    fn divide_ports(&self, part: PortPart) -> Result<(), Unresponsive>;
}

impl Connections for Gateway {
    fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        Gateway::follow_changes(self)
    }

    fn unfollow_changes(&self) -> Result<(), Unresponsive> {
        Gateway::unfollow_changes(self)
    }

    fn set_stands_by(&self, stands_by: bool) -> Result<(), Unresponsive> {
        Gateway::set_stands_by(self, stands_by)
    }

    fn connection_count(&self) -> Result<u64, Unresponsive> {
        Gateway::connection_count(self)
    }

    fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive> {
        Gateway::tell_connections(self, bucket, from)
    }

    fn change_copies(&self, changes: Vec<CopyChange>) -> Result<CopyReport, Unresponsive> {
        Gateway::change_copies(self, changes)
    }

    fn adopt_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        Gateway::adopt_connections(self, bucket, from)
    }

    fn give_connections_away(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        Gateway::give_connections_away(self, bucket, from)
    }

    fn divide_ports(&self, part: PortPart) -> Result<(), Unresponsive> {
        Gateway::divide_ports(self, part)
    }

    fn zones_revision(&self) -> u64 {
        self.zones().revision
    }

    fn shared_things(&self) -> Option<&dyn SharedThings> {
        Some(self)
    }
}

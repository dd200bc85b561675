//! Faults that tests plant, to see that the simulation catches them. A build without tests and
//! without the feature `faults` has none of them.

flow::declare_faults! {
    /// The message that ends a bulk transfer is lost for good.
    LostBulkEnd: loses_bulk_end,
    /// Datagrams and frames that have been accepted before are accepted again.
    ReplayedFrame: takes_replays,
    /// The end of a connection ends a newer connection of the same key.
    OldEnd: takes_old_ends,
    /// A change is applied although a later one has been.
    StaleUpdate: takes_stale_updates,
    /// Each end decides alone whether the other one is another process, and begins anew alone.
    LonelyRestart: restarts_alone,
    /// Answers to greetings stay valid when keys come into force.
    OldConfirm: keeps_answers,
    /// A change that the owner could not keep leads to no other bulk transfer.
    KeptHole: keeps_holes,
    /// A node that asks for a bulk transfer drops the changes that arrive meanwhile.
    DroppedChanges: drops_while_asking,
    /// Records are acknowledged when they are taken, though the owner has still to apply them.
    EarlyAck: takes_taken_for_applied,
    /// Peers exchange connections although they steer packets to different buckets.
    OtherBuckets: ignores_differences,
    /// A standby expires a connection that its owner keeps. The test's own gateways plant it.
    EarlyExpiry,
}

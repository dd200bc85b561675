//! Faults that tests of state sync plant, to see that a simulation catches them. A build without tests
//! and without the feature `faults` has none of them.

flow::declare_faults! {
    /// A new connection gets a port that an imported one has.
    PortOfImported: ignores_ports_of_copies,
    /// A gateway ends all that is translated to an address that it loses, also if a rule names it.
    LostAddress: ends_what_names_lost_addresses,
    /// A record has the number of an interface in the place of its name.
    InterfaceNumber: records_interface_numbers,
    /// A record has points in time, and not spans.
    AbsoluteDeadline: records_deadlines,
    /// A standby expires what its owner keeps.
    EarlyExpiry: expires_copies,
    /// An imported connection has to go on exactly where its record was made.
    NoRelearning: never_relearns,
    /// A connection is imported without the shifts of its sequence numbers.
    NoShifts: imports_no_shifts,
    /// A connection of a zone that is not configured is imported, and not counted.
    UnknownZone: imports_unknown_zones,
    /// An import takes the place of an assured connection.
    EvictsAssured: evicts_assured,
    /// The connections of an address that comes later stay where they were imported, though their
    /// packets are steered elsewhere when the address is there.
    LateAddress: forgets_late_addresses,
    /// A connection whose replies come to another bucket gets no alias there when it is imported.
    NoAlias: imports_no_aliases,
    /// A record goes to the worker that had its bucket at the start, and is lost there.
    MovedBucket: loses_records_of_moved_buckets,
}

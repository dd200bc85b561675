//! The zone of a packet whose connection may have a zone for each direction.

use flow::{Zone, ZonePair};

use super::Direction;

/// [`Table::zone_of`](crate::Table::zone_of) for any look-up: `direction_in` returns the direction of the packet in a
/// zone, if it belongs to a connection there.
pub(crate) fn zone_of(
    zones: ZonePair,
    direction_in: impl Fn(Zone) -> Option<Direction>,
) -> Option<Zone> {
    let in_first = direction_in(zones.original);
    if in_first != Some(Direction::Original) && direction_in(zones.reply) == Some(Direction::Reply)
    {
        return Some(zones.reply);
    }
    in_first.map(|_| zones.original)
}

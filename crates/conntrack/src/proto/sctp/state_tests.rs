use super::*;

/// The kernel's table as it is usually written down, one row for each chunk and
/// direction: the states NO CL CW CE ES SS SR SA HS, `IV` for invalid.
const KERNEL: [(ChunkClass, [&str; 2]); 11] = {
    use ChunkClass::{
        Abort, CookieAck, CookieEcho, Error, Heartbeat, HeartbeatAck, Init, InitAck, Shutdown,
        ShutdownAck, ShutdownComplete,
    };
    [
        (Init, ["CL CL CW CE ES CL CL SA CW", "IV CL CW CE ES SS SR SA IV"]),
        (InitAck, ["CL CL CW CE ES SS SR SA CL", "IV CW CW CE ES SS SR SA IV"]),
        (Abort, ["CL CL CL CL CL CL CL CL CL", "IV CL CL CL CL CL CL CL IV"]),
        (Shutdown, ["CL CL CW CE SS SS SR SA CL", "IV CL CW CE SR SS SR SA IV"]),
        (ShutdownAck, ["SA CL CW CE ES SA SA SA SA", "IV CL CW CE ES SA SA SA IV"]),
        (Error, ["CL CL CW CE ES SS SR SA CL", "IV CL CW CL ES SS SR SA IV"]),
        (CookieEcho, ["CL CL CE CE ES SS SR SA CL", "IV CL CE CE ES SS SR SA IV"]),
        (CookieAck, ["CL CL CW ES ES SS SR SA CL", "IV CL CW ES ES SS SR SA IV"]),
        (ShutdownComplete, ["CL CL CW CE ES SS SR CL CL", "IV CL CW CE ES SS SR CL IV"]),
        (Heartbeat, ["HS CL CW CE ES SS SR SA HS", "IV CL CW CE ES SS SR SA HS"]),
        (HeartbeatAck, ["CL CL CW CE ES SS SR SA HS", "IV CL CW CE ES SS SR SA ES"]),
    ]
};

/// Chunks that the kernel refuses as the first of a flow by rules outside of its table: by
/// their kind, or because their tag can not be known and must not be zero.
const NEVER_FIRST: [ChunkClass; 7] = [
    ChunkClass::Abort,
    ChunkClass::ShutdownComplete,
    ChunkClass::CookieAck,
    ChunkClass::InitAck,
    ChunkClass::Shutdown,
    ChunkClass::Error,
    ChunkClass::CookieEcho,
];

const DIRECTIONS: [Direction; 2] = [Direction::Original, Direction::Reply];

fn short(state: Option<SctpState>) -> &'static str {
    match state {
        None => "IV",
        Some(SctpState::Closed) => "CL",
        Some(SctpState::CookieWait) => "CW",
        Some(SctpState::CookieEchoed) => "CE",
        Some(SctpState::Established) => "ES",
        Some(SctpState::ShutdownSent) => "SS",
        Some(SctpState::ShutdownRecd) => "SR",
        Some(SctpState::ShutdownAckSent) => "SA",
        Some(SctpState::HeartbeatSent) => "HS",
    }
}

/// The first packet of a flow gives it its original direction.
fn row(direction: Direction, chunk: ChunkClass) -> String {
    let first = match direction {
        Direction::Original => opening(chunk),
        Direction::Reply => None,
    };
    let later = SctpState::ALL.map(|state| transition(state, direction, chunk));
    std::iter::once(first).chain(later).map(short).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_matrix_is_the_kernels() {
    for (chunk, rows) in KERNEL {
        for (direction, expected) in DIRECTIONS.into_iter().zip(rows) {
            let row = row(direction, chunk);
            if NEVER_FIRST.contains(&chunk) && direction == Direction::Original {
                assert_eq!(row[2..], expected[2..], "{chunk:?}");
                assert!(row.starts_with("IV"));
            } else {
                assert_eq!(row, expected, "{direction:?} {chunk:?}");
            }
        }
    }
}

#[test]
fn the_whole_matrix() {
    let mut matrix = String::from("                          NO CL CW CE ES SS SR SA HS\n");
    for direction in DIRECTIONS {
        for chunk in ChunkClass::ALL {
            let name = format!("{direction:?} {chunk:?}");
            matrix += &format!("{name:<25} {}\n", row(direction, chunk));
        }
    }
    insta::assert_snapshot!(matrix);
}

#[test]
fn every_state_is_reached_and_left() {
    let mut reached: Vec<SctpState> = ChunkClass::ALL.into_iter().filter_map(opening).collect();
    for _ in SctpState::ALL {
        let next: Vec<_> = reached
            .iter()
            .flat_map(|state| {
                DIRECTIONS.into_iter().flat_map(move |direction| {
                    ChunkClass::ALL.map(|chunk| transition(*state, direction, chunk))
                })
            })
            .flatten()
            .collect();
        reached.extend(next);
        reached.sort_by_key(|state| *state as u8);
        reached.dedup();
    }
    assert_eq!(reached, SctpState::ALL);
    for state in SctpState::ALL {
        let to_closed = transition(state, Direction::Original, ChunkClass::Abort);
        assert_eq!(to_closed, Some(SctpState::Closed));
    }
}

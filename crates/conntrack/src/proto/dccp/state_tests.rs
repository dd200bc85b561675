use super::*;

/// The kernel's table (before Linux 6.16, which has none) as it is usually written down,
/// one row for each type, of client and server: the states NO RQ RS PO OP CR CG TW, `IG`
/// for ignored, `IV` for invalid.
const KERNEL: [[&str; 2]; 10] = [
    ["RQ RQ RS IG IG IG IG RQ", "IV IG IG IG IG IG IG RQ"],
    ["IV IG IG IG IG IG IG IV", "IV RS RS IG IG IG IG IV"],
    ["IV IV IV IV OP CR CG IV", "IV IV IV OP OP IV CG IV"],
    ["IV IV PO PO OP CR CG IV", "IV IV IV OP OP IV CG IV"],
    ["IV IV PO PO OP CR CG IV", "IV IV IV OP OP IV CG IV"],
    ["IV IV IV IV IV IV IV IV", "IV IV IV CR CR CR CR IV"],
    ["IV IV IV CG CG CG IV IV", "IV IV IV CG CG IV CG IV"],
    ["IV TW TW TW TW TW TW IG", "IV TW TW TW TW TW TW TW"],
    ["IV IG IG IG IG IG IG IG", "IV IG IG IG IG IG IG IG"],
    ["IV IG IG IG IG IG IG IG", "IV IG IG IG IG IG IG IG"],
];

const ROLES: [Role; 2] = [Role::Client, Role::Server];

fn short(transition: Transition) -> &'static str {
    match transition {
        Transition::Ignore => "IG",
        Transition::Invalid => "IV",
        Transition::To(state) => match state {
            DccpState::Request => "RQ",
            DccpState::Respond => "RS",
            DccpState::PartOpen => "PO",
            DccpState::Open => "OP",
            DccpState::CloseReq => "CR",
            DccpState::Closing => "CG",
            DccpState::TimeWait => "TW",
        },
    }
}

/// The first packet of a flow makes its sender the client.
fn row(role: Role, kind: PacketType) -> String {
    let first = match role {
        Role::Client => opening(kind),
        Role::Server => Transition::Invalid,
    };
    let later = DccpState::ALL.map(|state| transition(state, role, kind));
    std::iter::once(first).chain(later).map(short).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_matrix_is_the_kernels_but_for_what_is_said() {
    let mut differences = Vec::new();
    for (kind, rows) in PacketType::ALL.into_iter().zip(KERNEL) {
        for (role, expected) in ROLES.into_iter().zip(rows) {
            let row = row(role, kind);
            for (at, (ours, theirs)) in row.split(' ').zip(expected.split(' ')).enumerate() {
                if ours != theirs {
                    differences.push(format!("{role:?} {kind:?} {at}: {ours}, not {theirs}"));
                }
            }
        }
    }
    assert_eq!(
        differences,
        [
            // The kernel's switch for picking up has no effect on these.
            "Client Data 0: OP, not IV",
            "Client Ack 0: OP, not IV",
            "Client DataAck 0: OP, not IV",
            "Client Close 6: CG, not IV",
            "Server Reset 7: IG, not TW",
        ]
    );
}

#[test]
fn the_whole_matrix() {
    let mut matrix = String::from("                 NO RQ RS PO OP CR CG TW\n");
    for role in ROLES {
        for kind in PacketType::ALL {
            let name = format!("{role:?} {kind:?}");
            matrix += &format!("{name:<16} {}\n", row(role, kind));
        }
    }
    insta::assert_snapshot!(matrix);
}

#[test]
fn every_state_is_reached_and_left() {
    let mut reached = vec![DccpState::Request];
    for _ in DccpState::ALL {
        for state in reached.clone() {
            for (role, kind) in ROLES.into_iter().flat_map(|r| PacketType::ALL.map(|k| (r, k))) {
                if let Transition::To(next) = transition(state, role, kind) {
                    reached.push(next);
                }
            }
        }
        reached.sort_by_key(|state| *state as u8);
        reached.dedup();
    }
    assert_eq!(reached, DccpState::ALL);
    for state in DccpState::ALL {
        let next = transition(state, Role::Client, PacketType::Reset);
        assert!(next == Transition::To(DccpState::TimeWait) || state == DccpState::TimeWait);
    }
}

use super::*;

/// The kernel's table as it is usually written down, one row for each class and
/// direction: the states NO SS SR ES FW CW LA TW CL S2, `IG` for ignored, `IV`
/// for invalid.
const KERNEL: [(FlagClass, [&str; 2]); 5] = [
    (FlagClass::Syn, ["SS SS IG IG IG IG IG SS SS S2", "IV S2 IV IV IV IV IV SS IV S2"]),
    (FlagClass::SynAck, ["IV IV SR IV IV IV IV IV IV SR", "IV SR IG IG IG IG IG IG IG SR"]),
    (FlagClass::Fin, ["IV IV FW FW LA LA LA TW CL IV", "IV IV FW FW LA LA LA TW CL IV"]),
    (FlagClass::Ack, ["ES IV ES ES CW CW TW TW CL IV", "IV IG SR ES CW CW TW TW CL IG"]),
    (FlagClass::Rst, ["IV CL CL CL CL CL CL CL CL CL", "IV CL CL CL CL CL CL CL CL CL"]),
];

const DIRECTIONS: [Direction; 2] = [Direction::Original, Direction::Reply];

fn short(transition: Transition) -> &'static str {
    match transition {
        Transition::Ignore => "IG",
        Transition::Invalid => "IV",
        Transition::To(state) => match state {
            TcpState::SynSent => "SS",
            TcpState::SynRecv => "SR",
            TcpState::Established => "ES",
            TcpState::FinWait => "FW",
            TcpState::CloseWait => "CW",
            TcpState::LastAck => "LA",
            TcpState::TimeWait => "TW",
            TcpState::Close => "CL",
            TcpState::SynSent2 => "S2",
        },
    }
}

/// The first segment of a flow gives it its original direction.
fn row(direction: Direction, class: FlagClass) -> String {
    let first = match direction {
        Direction::Original => opening(class),
        Direction::Reply => Transition::Invalid,
    };
    let later = TcpState::ALL.map(|state| transition(state, direction, class));
    std::iter::once(first).chain(later).map(short).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_matrix_is_the_kernels() {
    for (class, rows) in KERNEL {
        for (direction, expected) in DIRECTIONS.into_iter().zip(rows) {
            assert_eq!(row(direction, class), expected, "{direction:?} {class:?}");
        }
    }
}

#[test]
fn the_whole_matrix() {
    let mut matrix = String::from("                 NO SS SR ES FW CW LA TW CL S2\n");
    for direction in DIRECTIONS {
        for class in FlagClass::ALL {
            let name = format!("{direction:?} {class:?}");
            matrix += &format!("{name:<16} {}\n", row(direction, class));
        }
    }
    insta::assert_snapshot!(matrix, @r"
                     NO SS SR ES FW CW LA TW CL S2
    Original Syn     SS SS IG IG IG IG IG SS SS S2
    Original SynAck  IV IV SR IV IV IV IV IV IV SR
    Original Fin     IV IV FW FW LA LA LA TW CL IV
    Original Ack     ES IV ES ES CW CW TW TW CL IV
    Original Rst     IV CL CL CL CL CL CL CL CL CL
    Reply Syn        IV S2 IV IV IV IV IV SS IV S2
    Reply SynAck     IV SR IG IG IG IG IG IG IG SR
    Reply Fin        IV IV FW FW LA LA LA TW CL IV
    Reply Ack        IV IG SR ES CW CW TW TW CL IG
    Reply Rst        IV CL CL CL CL CL CL CL CL CL
    ");
}

#[test]
fn nine_sets_of_control_bits_are_legal() {
    let free = TcpFlags::PSH.with(TcpFlags::ECE).with(TcpFlags::CWR);
    let legal: Vec<_> = (0..=u8::MAX)
        .map(TcpFlags)
        .filter(|flags| flags.without(free) == *flags)
        .filter_map(|flags| FlagClass::of(flags).map(|class| format!("{flags:?} {class:?}")))
        .collect();
    assert_eq!(
        legal,
        [
            "SYN Syn",
            "RST Rst",
            "ACK Ack",
            "FIN|ACK Fin",
            "SYN|ACK SynAck",
            "RST|ACK Rst",
            "SYN|URG Syn",
            "ACK|URG Ack",
            "FIN|ACK|URG Fin",
        ]
    );
}

#[test]
fn push_and_congestion_bits_change_no_class() {
    for flags in (0..=u8::MAX).map(TcpFlags) {
        for free in [TcpFlags::PSH, TcpFlags::ECE, TcpFlags::CWR] {
            assert_eq!(FlagClass::of(flags), FlagClass::of(flags.with(free)));
        }
    }
}

#[test]
fn a_connection_on_its_way_out_can_not_come_back_without_a_syn() {
    for state in TcpState::ALL.into_iter().filter(|state| state.is_closing()) {
        for direction in DIRECTIONS {
            for class in [FlagClass::Fin, FlagClass::Ack, FlagClass::Rst, FlagClass::SynAck] {
                if let Transition::To(next) = transition(state, direction, class) {
                    assert!(next.is_closing(), "{state:?} {direction:?} {class:?}");
                }
            }
        }
    }
}

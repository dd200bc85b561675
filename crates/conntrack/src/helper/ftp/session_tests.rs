use super::*;

const EVENTS: [Event; 7] = [
    Event::Ready,
    Event::Secured,
    Event::Refused,
    Event::Reply,
    Event::First,
    Event::Secure,
    Event::Line,
];

fn name(state: impl std::fmt::Debug) -> String {
    format!("{state:?}")
}

#[test]
fn the_whole_matrix() {
    let columns = EVENTS.map(|event| format!("{:<9}", name(event))).concat();
    let mut matrix = format!("{:<9}{}believes\n", "", columns);
    for state in Session::ALL {
        let cell = |event| state.after(event).map_or("leaves".to_owned(), name);
        let row = EVENTS.map(|event| format!("{:<9}", cell(event))).concat();
        let believed = [(Direction::Original, "client "), (Direction::Reply, "server")];
        let believed = believed.map(|(end, name)| if state.believes(end) { name } else { "" });
        matrix += &format!("{:<9}{row}{}\n", name(state), believed.concat());
    }
    insta::assert_snapshot!(matrix);
}

#[test]
fn commands_and_codes_are_told_apart() {
    for (word, event) in [
        (&b"USER"[..], Event::First),
        (b"feat", Event::First),
        (b"AUTH", Event::Secure),
        (b"POST", Event::Line),
        (b"GET", Event::Line),
        (b"PORT", Event::Line),
        (b"OPTI", Event::Line),
        (b"", Event::Line),
    ] {
        assert_eq!(Event::of_command(word), event, "{word:?}");
    }
    let of = |code: &[u8; 3]| Event::of_reply(*code);
    assert_eq!([of(b"220"), of(b"234"), of(b"120")], [Event::Ready, Event::Secured, Event::Reply]);
    assert_eq!(
        [of(b"421"), of(b"530"), of(b"331")],
        [Event::Refused, Event::Refused, Event::Reply]
    );
}

use std::fmt::Write;

use proptest::prelude::*;

use super::*;

fn shown(text: &str) -> String {
    Shown(text).to_string()
}

#[test]
fn characters_that_a_terminal_obeys_are_escaped() {
    for (text, expected) in [
        ("plain\ttext \\ 100 %", "plain\ttext \\ 100 %"),
        ("Zürich 東京 🙂", "Zürich 東京 🙂"),
        ("one\ntwo\r\n", "one\\ntwo\\r\\n"),
        ("\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"),
        ("\0\x08\x7f", "\\u0000\\u0008\\u007f"),
        ("\u{9b}31m\u{80}\u{9f}\u{85}", "\\u009b31m\\u0080\\u009f\\u0085"),
        ("\u{a0}", "\u{a0}"),
        ("\u{202a}\u{202e}\u{2066}\u{2069}", "\\u202a\\u202e\\u2066\\u2069"),
        ("\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}", "\\u061c\\u200e\\u200f\\u2028\\u2029"),
    ] {
        assert_eq!(shown(text), expected);
        assert_eq!(is_harmless(text), text == expected, "{text:?}");
    }
}

/// Text with many of the escaped characters.
fn hostile() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        any::<char>(),
        (0_u32..0xa0).prop_filter_map("no character", char::from_u32),
        (0x2000_u32..0x2070).prop_filter_map("no character", char::from_u32),
        Just('\u{61c}'),
        Just('\\'),
    ];
    proptest::collection::vec(character, 0..40).prop_map(String::from_iter)
}

/// Reads text back that `escape` has written.
fn read_again(text: &str) -> String {
    let mut read = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        read += &rest[..at];
        rest = &rest[at + 1..];
        let (character, length) = match rest.as_bytes().first() {
            Some(b'n') => ('\n', 1),
            Some(b'r') => ('\r', 1),
            Some(b'u') => {
                let code = u32::from_str_radix(&rest[1..5], 16).unwrap();
                (char::from_u32(code).unwrap(), 5)
            }
            other => panic!("{other:?} behind a backslash in {text:?}"),
        };
        read.push(character);
        rest = &rest[length..];
    }
    read + rest
}

proptest! {
    #[test]
    fn no_text_gets_past_the_escapes(text in hostile()) {
        let shown = shown(&text);
        // A second implementation, from the standards.
        let obeyed = |c: char| {
            let code = u32::from(c);
            (c.is_control() && c != '\t')
                || [0x061c, 0x200e, 0x200f, 0x2028, 0x2029].contains(&code)
                || (0x202a..=0x202e).contains(&code)
                || (0x2066..=0x2069).contains(&code)
        };
        prop_assert!(!shown.contains(obeyed), "{shown:?}");
        prop_assert_eq!(shown.lines().count(), usize::from(!shown.is_empty()));
        prop_assert_eq!(is_harmless(&text), shown == text);
    }

    #[test]
    fn to_escape_twice_is_to_escape_once(text in hostile()) {
        let once = shown(&text);
        prop_assert_eq!(shown(&once), once);
    }

    #[test]
    fn nothing_is_lost(text in hostile()) {
        let text = text.replace('\\', "/");
        prop_assert_eq!(read_again(&shown(&text)), text);
    }

    #[test]
    fn pieces_make_no_difference(pieces in proptest::collection::vec(hostile(), 0..4)) {
        struct Pieces(Vec<String>);
        impl std::fmt::Display for Pieces {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|piece| f.write_str(piece))
            }
        }
        let whole = pieces.concat();
        let mut once = String::new();
        write!(once, "{}", Shown(Pieces(pieces))).unwrap();
        prop_assert_eq!(once, shown(&whole));
    }
}

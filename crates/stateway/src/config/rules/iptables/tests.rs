use proptest::prelude::*;

use super::rule::{Place, ready, words};
use super::save::read;
use super::{is_of_iptables_nft, with_texts};

fn one(rule: &str, is_v6: bool) -> Result<String, String> {
    let words = words(rule).ok_or("a quotation without its end")?;
    let place = Place { is_v6, chains: &["X".to_owned()].into(), line: 5 };
    let text = ready("X", &words, place)?.text;
    Ok(text.replace(" -m comment --comment \"stateway comment 5\"", ""))
}

#[test]
fn forms_with_a_wrong_translation_are_written_in_another_way() {
    for (rule, written) in [
        ("-p tcp -m tcp -j ACCEPT", "-A X -p tcp -j ACCEPT"),
        ("-p esp -m esp -j ACCEPT", "-A X -p esp -j ACCEPT"),
        ("-p tcp -m tcp --dport 0:65535 -j ACCEPT", "-A X -p tcp -j ACCEPT"),
        ("-i + -j ACCEPT", "-A X -j ACCEPT"),
        ("-p tcp --dport 22 -j X", "-A X -p tcp -m tcp --dport 22 -j X"),
        (
            "-m addrtype ! --dst-type LOCAL --src-type UNICAST -j DROP",
            "-A X -m addrtype --src-type UNICAST -m addrtype ! --dst-type LOCAL -j DROP",
        ),
    ] {
        assert_eq!(one(rule, false).as_deref(), Ok(written), "{rule}");
    }
}

#[test]
fn forms_without_a_right_translation_are_refused() {
    for rule in [
        "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        "-m conntrack --ctstate NEW,DNAT -j ACCEPT",
        "-m conntrack ! --ctstate DNAT -j ACCEPT",
        "-m conntrack --ctorigsrc 192.0.2.0/24 -j ACCEPT",
        "-m conntrack --ctorigdstport 8080 -j ACCEPT",
        "-p tcp -m multiport ! --ports 22,80 -j ACCEPT",
        "-j CONNMARK --restore-mark --nfmask 0x3f00 --ctmask 0x3f00",
        "-j CONNMARK --set-xmark 0x5/0xff",
        "! -i + -j ACCEPT",
        "-p tcp -m tcp ! --dport 0:65535 -j ACCEPT",
        "-m time --timestart 10:00 -j ACCEPT",
        "-j TOS --set-tos 0x10/0xff",
        "-j NOCHAIN",
        "-p tcp -m tcp --dport",
        "-p tcp -m",
        "-j",
        "-m comment --comment \"cut",
        "-s 192.0.2.1;drop -j ACCEPT",
        "-m mark --mark 0xff5/0xf -j ACCEPT",
    ] {
        assert!(one(rule, false).is_err(), "{rule}");
    }
    assert!(one("-m addrtype --dst-type UNICAST -j ACCEPT", true).is_err());
}

#[test]
fn a_file_that_is_cut_off_is_refused_with_its_line() {
    let begin = ["*filter", ":FORWARD DROP [0:0]", "-A FORWARD -j ACCEPT"];
    let of = |more: &[&str]| read(&[&begin[..], more].concat(), false).refused;
    assert_eq!(of(&["COMMIT"]), []);
    assert_eq!(of(&[])[0].0, 1);
    assert_eq!(of(&["*nat", "COMMIT"])[0].0, 4);
    assert_eq!(of(&["-A FORWARD -p tcp -m tcp --dport ", "COMMIT"])[0].0, 4);
    assert_eq!(of(&["COMMIT", "-A FORWARD -j DROP"])[0].0, 5);
    assert_eq!(of(&["-I FORWARD -j DROP", "COMMIT"])[0].0, 4);
}

#[test]
fn what_nft_prints_of_iptables_nft_is_recognized() {
    let warning = b"# Warning: table ip filter is managed by iptables-nft, do not touch!\ntable ip";
    assert!(is_of_iptables_nft(warning));
    assert!(!is_of_iptables_nft(b"# a table\ntable ip filter {}"));
}

#[test]
fn free_texts_come_back_as_they_were() {
    let texts = [("stateway comment 5".to_owned(), "a \"b\" $5".to_owned())].into();
    let json = br#"{"comment": "stateway comment 5", "prefix": "stateway prefix 6"}"#;
    let wanted = r#"{"comment": "a \"b\" $5", "prefix": "stateway prefix 6"}"#;
    assert_eq!(String::from_utf8(with_texts(json, &texts)).as_deref(), Ok(wanted));
}

/// Lines that are nearly those of iptables-save.
const LINE: &str = "(\\*filter|:X - |-A X )?[-!a-z0-9\"\\\\/:, ]{0,40}|COMMIT|\
                    -A X ((-[pmsdj]|!|--dport|--ctstate|tcp|conntrack|[0-9:,]{1,5}) ){0,9}";

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(lines in prop::collection::vec(LINE, 0..9)) {
        let lines: Vec<&str> = [":X - [0:0]", "*filter", ":X - [0:0]"]
            .into_iter()
            .chain(lines.iter().map(String::as_str))
            .collect();
        read(&lines, false);
    }
}

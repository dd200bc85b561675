use std::path::Path;

use proptest::prelude::*;

use super::direct::Words;
use super::rule::{Place, Ready, ready, words};
use super::save::read;
use super::{by_program, with_texts};

fn read_rule(rule: &str, is_v6: bool) -> Result<Ready, String> {
    let words = words(rule).ok_or("a quotation without its end")?;
    let chains = [("X".to_owned(), "X".to_owned())].into();
    let place = Place { is_v6, chains: &chains, line: 5 };
    ready("X", &words, place)
}

fn one(rule: &str, is_v6: bool) -> Result<String, String> {
    let text = read_rule(rule, is_v6)?.text;
    Ok(text.replace(" -m comment --comment \"stateway comment 5\"", ""))
}

/// The words in nft's syntax in front of and behind the rest of the rule, one pair a line.
fn words_of(rule: &str, is_v6: bool) -> String {
    let ready = read_rule(rule, is_v6).unwrap();
    let line = |Words { before, after }: &Words| match after.as_str() {
        "" => before.clone(),
        after => format!("{before} => {after}"),
    };
    ready.words.iter().map(line).collect::<Vec<_>>().join("\n")
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
fn packets_of_other_protocols_are_not_counted_before_the_rule_asks_for_its_own() {
    for (rule, words) in [
        ("-p tcp -m limit --limit 1/min -m tcp --dport 80 -j ACCEPT", "meta l4proto tcp"),
        ("-p 17 -m statistic --mode nth --every 2 -m udp --dport 53 -j DROP", "meta l4proto udp"),
        ("-p icmp -m limit --limit 1/min -m icmp --icmp-type 8 -j ACCEPT", "meta l4proto icmp"),
        ("-p tcp -m tcp --dport 80 -m limit --limit 1/min -j ACCEPT", ""),
        ("-p tcp -m limit --limit 1/min -m tcp -j ACCEPT", ""),
        ("-m limit --limit 1/min -j ACCEPT", ""),
    ] {
        assert_eq!(words_of(rule, false), words, "{rule}");
    }
    let v6 = "-p ipv6-icmp -m limit --limit 1/min -m icmp6 --icmpv6-type 128 -j ACCEPT";
    assert_eq!(words_of(v6, true), "meta l4proto ipv6-icmp");
}

#[test]
fn words_or_the_name_tell_rules_of_ip6tables() {
    let rules = |rule: &str| format!("*filter\n:FORWARD DROP [0:0]\n-A FORWARD {rule}\nCOMMIT\n");
    for (rule, name, is_v6) in [
        ("-i lan0 -j ACCEPT", "rules", None),
        ("-i lan0 -j ACCEPT", "rules.v6", Some(true)),
        ("-i lan0 -j ACCEPT", "rules.v4", Some(false)),
        ("-s 2001:db8::/32 -j ACCEPT", "rules", Some(true)),
        ("-s 192.0.2.0/24 -j ACCEPT", "rules", Some(false)),
        ("-p icmp -j ACCEPT", "rules", Some(false)),
        ("-p ipv6-icmp -j ACCEPT", "rules", Some(true)),
        ("-m hl --hl-eq 1 -j DROP", "rules", Some(true)),
        ("-m comment --comment 2001:db8::1 -j DROP", "rules", None),
    ] {
        let text = rules(rule);
        let parts = by_program(&text, Path::new(name));
        let found = parts.map(|parts| parts.iter().map(|(v6, _)| *v6).collect::<Vec<_>>());
        assert_eq!(found, is_v6.map(|v6| vec![v6]), "{rule} in {name}");
    }
}

#[test]
fn forms_that_only_nft_can_say_are_said_in_its_words() {
    for (rule, words) in [
        (
            "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            "ct state invalid,untracked\nct state ! related,established ct status ! dnat",
        ),
        ("-m conntrack --ctstate NEW,DNAT -j DROP", "ct state new\nct state ! new ct status dnat"),
        ("-m conntrack --ctstate DNAT -j DROP", "ct status dnat"),
        ("-m conntrack ! --ctstate SNAT -j DROP", "ct state invalid,untracked\nct status ! snat"),
        (
            "-m conntrack --ctstate SNAT,DNAT,INVALID -j DROP",
            "ct state invalid\nct status snat,dnat",
        ),
        (
            "-m conntrack ! --ctstate INVALID,UNTRACKED,NEW,DNAT -j DROP",
            "ct state ! new ct status ! dnat",
        ),
        (
            "-m conntrack ! --ctstate NEW --ctstatus SEEN_REPLY --ctdir REPLY -j DROP",
            "ct state invalid,untracked\nct state ! new ct status seen-reply ct direction reply",
        ),
        (
            "-p tcp -m conntrack --ctorigdst 192.0.2.0/24 ! --ctorigdstport 80:90 -j DROP",
            "ct original ip daddr 192.0.2.0/24 meta l4proto tcp ct original proto-dst != 80-90",
        ),
        ("-p tcp -m tcp ! --tcp-flags ACK ACK -j DROP", "tcp flags & ack != ack"),
        ("-p tcp -m tcp --tcp-flags RST NONE -j DROP", "tcp flags & rst == 0"),
        ("-p tcp -m tcp --tcp-flags SYN,ACK SYN -j DROP", ""),
        (
            "-p tcp -m tcp ! --tcp-option 8 --tcp-flags SYN SYN -j DROP",
            "meta l4proto tcp tcp option 8 missing tcp flags & syn == syn",
        ),
        ("-p udp -m udp ! --dport 53 -j DROP", "udp dport != 53"),
        ("-p udp -m udp --sport 53 ! --dport 1024:65535 -j DROP", "udp dport != 1024-65535"),
        ("-p udp -m udp ! --sport 53 --dport 53 -j DROP", ""),
        (
            "-p tcp -m multiport ! --ports 22,80:90 -j DROP",
            "tcp sport != { 22, 80-90 } tcp dport != { 22, 80-90 }",
        ),
        ("-p icmp -m icmp --icmp-type 3/4 -j DROP", "icmp type 3 icmp code 4"),
        ("-p icmp -m icmp ! --icmp-type 3/4 -j DROP", "icmp type != 3\nicmp type 3 icmp code != 4"),
        ("-j CONNMARK --set-xmark 0x5/0xff", " => ct mark set ct mark and 0xffffff00 xor 0x5"),
        (
            "-j CONNMARK --save-mark --nfmask 0x80 --ctmask 0x80",
            "meta mark and 0x80 == 0x80 => ct mark set ct mark or 0x80\n\
             meta mark and 0x80 == 0 => ct mark set ct mark and 0xffffff7f",
        ),
        ("-j TTL --ttl-set 65", " => ip ttl set 65"),
        ("-j HL --hl-set 65", " => ip6 hoplimit set 65"),
        ("-j CT --zone 5", " => ct zone set 5"),
        ("-j CT --notrack", ""),
        ("-m nfacct --nfacct-name dropped -m conntrack --ctstate INVALID -j DROP", ""),
        (
            "-p tcp -m tcp --tcp-flags ACK ACK -m conntrack --ctstate NEW,DNAT -j DROP",
            "tcp flags & ack == ack ct state new\ntcp flags & ack == ack ct state ! new ct status dnat",
        ),
    ] {
        assert_eq!(words_of(rule, false), words, "{rule}");
    }
    let rule = "-p ipv6-icmp -m icmp6 --icmpv6-type 1/4 -j DROP";
    assert_eq!(words_of(rule, true), "icmpv6 type 1 icmpv6 code 4");
    let rule = "-m conntrack --ctreplsrc 2001:db8::/32 -j DROP";
    assert_eq!(words_of(rule, true), "ct reply ip6 saddr 2001:db8::/32");
    // Nothing is left of these matches for the translation.
    let rule = "-p tcp -m tcp --tcp-flags ACK ACK -m nfacct --nfacct-name a -j DROP";
    assert_eq!(one(rule, false).as_deref(), Ok("-A X -p tcp -j DROP"));
}

/// The state of a packet and its connection's translations; nothing without a connection.
type Tracked<'a> = Option<(&'a str, &'a [&'a str])>;

/// xt_conntrack.c, in the words of its source: whether a packet meets the option.
fn kernel_has(list: &[&str], negated: bool, packet: &Tracked<'_>, none: &str) -> bool {
    let bits: Vec<&str> = match packet {
        Some((state, status)) => [&[*state], *status].concat(),
        None => vec![none],
    };
    bits.iter().any(|bit| list.contains(bit)) != negated
}

/// True if a packet meets such conditions as `ct state ! new ct status dnat`.
fn nft_has(conditions: &str, packet: &Tracked<'_>, none: &str) -> bool {
    let mut words = conditions.split(' ').peekable();
    while let Some(word) = words.next() {
        assert_eq!(word, "ct", "{conditions}");
        let key = words.next().unwrap();
        let negated = words.next_if_eq(&"!").is_some();
        let list: Vec<String> = words.next().unwrap().split(',').map(str::to_uppercase).collect();
        let of = |bit: &str| list.iter().any(|it| it == bit);
        let has = match (key, packet) {
            ("state", Some((state, _))) => of(state) != negated,
            ("state", None) => of(none) != negated,
            // A packet without a connection has no status, so the rule ends.
            ("status", None) => false,
            ("status", Some((_, status))) => status.iter().any(|bit| of(bit)) != negated,
            _ => panic!("{conditions}"),
        };
        if !has {
            return false;
        }
    }
    true
}

#[test]
fn each_list_of_states_matches_what_the_kernels_match_does_and_once() {
    let all = ["INVALID", "UNTRACKED", "NEW", "ESTABLISHED", "RELATED", "SNAT", "DNAT"];
    let mut packets: Vec<(Tracked<'_>, &str)> = vec![(None, "INVALID"), (None, "UNTRACKED")];
    for state in &all[2..5] {
        for status in [&[][..], &["SNAT"], &["DNAT"], &["SNAT", "DNAT"]] {
            packets.push((Some((*state, status)), ""));
        }
    }
    let mut seen = 0;
    for bits in 1..1_u32 << all.len() {
        let list: Vec<&str> =
            (0..all.len()).filter(|bit| bits >> bit & 1 == 1).map(|bit| all[bit]).collect();
        for sign in ["", "! "] {
            let rule = format!("-m conntrack {sign}--ctstate {} -j DROP", list.join(","));
            let words = words_of(&rule, false);
            // The translation says lists without SNAT and DNAT.
            if words.is_empty() {
                continue;
            }
            for (packet, none) in &packets {
                let wanted = kernel_has(&list, !sign.is_empty(), packet, none);
                let met = words.lines().filter(|line| nft_has(line, packet, none)).count();
                assert_eq!(met, usize::from(wanted), "{rule}: {packet:?} {none}");
                seen += 1;
            }
        }
    }
    // 96 lists with SNAT or DNAT, two signs, 14 kinds of packets.
    assert_eq!(seen, 96 * 2 * 14);
}

#[test]
fn rules_with_sets_of_the_kernel_are_refused_with_the_words_for_nft() {
    let told = |rule: &str, is_v6| one(rule, is_v6).unwrap_err();
    let one = told("-m set ! --match-set banned src -j ACCEPT", false);
    assert!(one.contains("ipset banned"), "{one}");
    assert!(one.contains("`set banned { type ipv4_addr;"), "{one}");
    assert!(one.contains("`ip saddr @banned`"), "{one}");
    let pair = told("-p tcp -m set --match-set services dst,dst -j ACCEPT", true);
    assert!(pair.contains("`ip6 daddr . meta l4proto . th dport @services`"), "{pair}");
    let added = told("-j SET --add-set seen src --exist", false);
    assert!(added.contains("`add @seen { ip saddr timeout 1h }`"), "{added}");
    assert!(told("-m recent --set --name x --rsource -j ACCEPT", false).contains("update @NAME"));
    let often = "-m recent --update --seconds 30 --hitcount 4 --name x --rsource -j DROP";
    assert!(told(often, false).contains("timeout 30s limit rate over 480/hour burst 4 packets"));
    // A rule that is cut off has no name.
    assert!(told("-m set", false).contains("`ip saddr @NAME`"));
}

#[test]
fn forms_without_a_right_translation_are_refused() {
    for rule in [
        "-m conntrack --ctorigdstport 8080 -j ACCEPT",
        "-m conntrack --ctorigdst 192.0.2.0/255.0.255.0 -j ACCEPT",
        "-m conntrack --ctexpire 5:10 -j ACCEPT",
        "-m multiport ! --ports 22,80 -j ACCEPT",
        "-m limit --limit 1/sec -m conntrack --ctstate DNAT -j ACCEPT",
        "-m conntrack --ctstate NEW,DNAT -m limit --limit 1/sec -j ACCEPT",
        "-p tcp -m tcp --tcp-flags ACK SYN -j ACCEPT",
        "-m mark --mark 0x1 -j CONNMARK --restore-mark --nfmask 0x3 --ctmask 0x3",
        "-j CONNMARK --restore-mark --nfmask 0x0 --ctmask 0x0",
        "-j CONNMARK --restore-mark --nfmask 0xf --ctmask 0xf0",
        "-j CONNMARK --restore-mark --nfmask 0xffff --ctmask 0xffff",
        "! -i + -j ACCEPT",
        "-p udp -m udp ! --dport 0:65535 -j ACCEPT",
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

use std::time::Duration;

use conntrack::helper::Kind;

use super::testing::{parse, problems};
use super::*;

#[test]
fn every_key_of_the_configuration_is_understood() {
    let config = parse(
        r#"
        [gateway]
        mode = "bridge"
        workers = 3
        buckets = 1024
        pass = ["arp", "0x88cc", 0x8899, "pppoe"]
        stations = 5000
        port_stations = 100
        balance = "500ms"
        tunnels = "outer"
        hash = "toeplitz"
        fragments = "ordered"
        secret = "000102030405060708090a0b0c0d0e0f"

        [[interface]]
        name = "lan0"
        io = "afpacket"
        rx_queues = 2
        rps_cpus = "3"
        policy = "none"
        supplied_hash = "symmetric"

        [[interface]]
        name = "wan0"
        new_connections = "drop"

        [[helper]]
        name = "ftp"
        port = 2121

        [[helper]]
        name = "tftp"

        [tunables]
        nf_conntrack_max = 1000
        netdev_max_backlog = 0x100

        [control]
        socket = "/tmp/gateway.sock"
        "#,
    )
    .unwrap();
    assert_eq!(config.workers, Some(3));
    assert_eq!(config.buckets.get(), 1024);
    let mut pass = PassList::empty();
    for word in ["arp", "lldp", "0x8899", "pppoe"] {
        pass.add(word).unwrap();
    }
    assert_eq!((&config.pass, &config.engine(None).unwrap().pass), (&pass, &pass));
    assert_eq!(config.engine(None).unwrap().stations, StationLimits { all: 5000, of_port: 100 });
    assert_eq!((config.tunnels, config.hash), (TunnelSteering::Outer, HashKind::ToeplitzSymmetric));
    assert_eq!(config.fragments, FragmentSteering::Ordered);
    assert_eq!(config.engine(None).unwrap().balance, Some(Duration::from_millis(500)));
    assert_eq!(config.secret, Some(HashKey(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f)));
    let [lan, wan] = &config.interfaces[..] else { panic!("two interfaces") };
    assert_eq!((lan.name.as_str(), lan.name_line, lan.rx_queues), ("lan0", 16, 2));
    assert_eq!(lan.rps_cpus, Some(CpuSet::first(2)));
    assert!(lan.supplied_hash_symmetric && !wan.supplied_hash_symmetric);
    assert_eq!((wan.name.as_str(), wan.name_line, wan.rx_queues), ("wan0", 24, 1));
    assert_eq!(wan.rps_cpus, None);
    assert!(wan.refuses_new && !lan.refuses_new);
    let helpers: Vec<_> = config.settings.conntrack.helpers.iter().collect();
    assert_eq!(helpers, [(6, 2121, Kind::Ftp), (17, 69, Kind::Tftp)]);
    assert_eq!(config.settings.get("nf_conntrack_max"), Some(1000));
    assert_eq!(config.settings.get("netdev_max_backlog"), Some(256));
    assert_eq!(config.socket(), Path::new("/tmp/gateway.sock"));
}

#[test]
fn the_check_of_sources_is_understood() {
    let routed = |gateway: &str, lan: &str| {
        let text = format!(
            "[gateway]\nmode = \"routed\"\n{gateway}\n[[interface]]\nname = \"lan0\"\n{lan}\n\
             [[interface]]\nname = \"wan0\""
        );
        let config = parse(&text).unwrap();
        [config.interfaces[0].rp_filter, config.interfaces[1].rp_filter]
    };
    use ReversePath::{Auto, Loose, Off, Strict};
    assert_eq!(routed("", ""), [Auto, Auto]);
    assert_eq!(routed("", "rp_filter = 0"), [Off, Auto]);
    assert_eq!(routed("rp_filter = 1", "rp_filter = \"loose\""), [Loose, Strict]);
    assert_eq!(routed("rp_filter = \"off\"", "rp_filter = \"auto\""), [Auto, Off]);
    assert_eq!(routed("rp_filter = 2", ""), [Loose, Loose]);
    for (mode, value, says) in [
        ("routed", "3", "3 is not allowed; allowed: 0 or \"off\""),
        ("routed", "\"on\"", "\"on\" is not allowed"),
        ("bridge", "1", "is for routers"),
    ] {
        let text = format!("[gateway]\nmode = \"{mode}\"\nrp_filter = {value}");
        let problems = parse(&text).unwrap_err().to_string();
        assert!(problems.contains("gateway.rp_filter: ") && problems.contains(says), "{problems}");
    }
}

#[test]
fn labels_have_names() {
    let config = parse("[labels]\nbulk = 40\n\"to-be-mirrored\" = 0x7f\n").unwrap();
    let labels: Vec<_> = config.labels.iter().map(|(l, name)| (l.number(), name)).collect();
    assert_eq!(labels, [(40, "bulk"), (127, "to-be-mirrored")]);
    assert_eq!(config.engine(None).unwrap().labels, config.labels);
    insta::assert_snapshot!(problems(
        r#"[labels]
bulk = 128
"a,b" = 1
7 = 2
voice = 3
phone = 3
late = "4"
"#
    ), @r#"
    gateway.toml:2: labels.bulk: 128 is not allowed; allowed: a whole number from 0 to 127
    gateway.toml:3: labels.a,b: "a,b" can not name a label; allowed: 1 to 63 characters without blank and comma, and no number
    gateway.toml:4: labels.7: "7" can not name a label; allowed: 1 to 63 characters without blank and comma, and no number
    gateway.toml:6: labels.phone: label 3 is already "voice"
    gateway.toml:7: labels.late: "4" is not allowed; allowed: a whole number from 0 to 127
    "#);
}

#[test]
fn an_empty_file_has_the_defaults() {
    let config = parse("").unwrap();
    assert_eq!((config.workers, config.buckets.get()), (None, 256));
    assert_eq!((config.tunnels, config.hash), (TunnelSteering::Inner, HashKind::Sip));
    assert_eq!(config.fragments, FragmentSteering::Spread);
    assert_eq!(config.pass, PassList::default());
    assert_eq!(config.stations, StationLimits { all: 16_384, of_port: 8192 });
    assert_eq!(config.balance, BalanceInterval::Off);
    assert!(config.interfaces.is_empty());
    assert_eq!(config.socket(), Path::new("/run/stateway.sock"));
    assert_ne!(config.engine(None).unwrap().secret, config.engine(None).unwrap().secret);
}

#[test]
fn inner_packets_are_judged_only_if_one_worker_sees_both_directions() {
    let config = parse("[gateway]\ntunnels = \"judged\"").unwrap();
    assert_eq!(config.engine(None).unwrap().tunnels, TunnelSteering::Judged);
    assert_eq!(
        problems("[gateway]\nfragments = \"ordered\"\ntunnels = \"judged\""),
        "gateway.toml:3: gateway.tunnels: needs fragments = \"spread\": with \"ordered\" the \
         packets of one flow inside may come to two workers"
    );
    assert_eq!(
        problems("[gateway]\ntunnels = \"inside\""),
        "gateway.toml:2: gateway.tunnels: \"inside\" is not allowed; allowed: \"inner\", \
         \"outer\", \"judged\""
    );
}

#[test]
fn protocols_that_can_not_pass_are_explained() {
    let texts = [
        "pass = \"arp\"",
        "pass = [\"arpp\"]",
        "pass = [7.5]",
        "\npass = [\"arp\", 0x0800]",
        "pass = [\"0x05dc\"]",
        "pass = [65536]",
        "mode = \"routed\"\npass = [\"arp\"]",
    ];
    let problems = texts.map(|text| problems(&format!("[gateway]\n{text}\n")));
    insta::assert_snapshot!(problems.join("\n"), @r#"
    gateway.toml:2: gateway.pass: "arp" is not a list; write pass = ["arp", "stp"]
    gateway.toml:2: gateway.pass: "arpp" is no protocol with a name here; allowed: "arp", "cfm", "cisco", "eapol", "isis", "lldp", "macsec", "mpls", "pppoe", "ptp", "rarp", "stp", "wol", and EtherTypes such as 0x88cc
    gateway.toml:2: gateway.pass: 7.5 is not allowed; allowed: a whole number from 0 to 65535
    gateway.toml:3: gateway.pass: 0x0800 can not be on the list: the rules judge IP, and what follows a tag counts; take it out
    gateway.toml:2: gateway.pass: 0x5dc is no EtherType; allowed: from 0x0600 to 0xffff
    gateway.toml:2: gateway.pass: 65536 is not allowed; allowed: a whole number from 0 to 65535
    gateway.toml:3: gateway.pass: a router passes nothing but IP; take this key out
    "#);
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_their_lines() {
    insta::assert_snapshot!(problems(
        r#"[gateway]
mode = "switch"
workers = "two"
buckets = 300
tunnel = "inner"
secret = "0123"

[[interface]]
nmae = "lan0"
io = "dpdk"
rx_queues = 0
rps_cpus = 3

[[interface]]
name = "a/b"
policy = "fast"

[tunables]
nf_conntrack_maximum = 10
nf_conntrack_max = 0
nf_conntrack_tcp_loose = true

[control]
socket = "gateway.sock"
port = 9630

[gatway]
"#
    ));
}

#[test]
fn settings_that_are_not_built_yet_are_refused_and_not_ignored() {
    insta::assert_snapshot!(problems(
        r#"
[[interface]]
name = "lan0"
io = "afxdp"

[[interface]]
name = "wan0"
io = "tap"

[control]
http = "127.0.0.1:9630"
"#
    ));
}

#[test]
fn each_interface_has_the_policy_of_its_word() {
    let words = ["none", "bulk", "cpu", "latency", "mix"];
    let tables =
        words.map(|word| format!("[[interface]]\nname = \"{word}\"\npolicy = \"{word}\"\n"));
    let config = parse(&(tables.concat() + "[[interface]]\nname = \"lan0\"\n")).unwrap();
    let policies: Vec<_> = config.interfaces.iter().map(|it| it.policy.name()).collect();
    assert_eq!(policies, [&words[..], &["none"]].concat());
    let hosts = "[[interface]]\nname = \"lan0\"\nhost_policy = \"bulk\"\n\
                 [[interface]]\nname = \"lan1\"\nhost_policy_on_stop = \"keep\"\n";
    let config = parse(hosts).unwrap();
    let hosts = config.interfaces.iter().map(|it| (it.host_policy, it.host_policy_on_stop));
    let expected = [(Policy::Bulk, OnStop::Restore), (Policy::None, OnStop::Keep)];
    assert_eq!(hosts.collect::<Vec<_>>(), expected);
}

#[test]
fn rules_are_found_from_the_configuration() {
    let text = "[rules]\nfile = \"ruleset.json\"\nallow_unsupported = true";
    let file = Path::new("/etc/stateway/gateway.toml");
    let config = Configuration::parse(file, text, &CpuSet::first(1)).unwrap();
    let rules =
        RulesFile { path: "/etc/stateway/ruleset.json".into(), line: 2, allow_unsupported: true };
    assert_eq!(config.rules, Some(rules));
    let config = parse("[rules]\nfile = \"/run/ruleset.json\"").unwrap();
    let rules = RulesFile { path: "/run/ruleset.json".into(), line: 2, allow_unsupported: false };
    assert_eq!(config.rules, Some(rules));
    assert_eq!(
        problems("[rules]\nallow_unsupported = 1\nname = 5"),
        "gateway.toml:1: rules.file: is missing; for example file = \"rules.nft\"\n\
         gateway.toml:2: rules.allow_unsupported: 1 is not allowed; allowed: true, false\n\
         gateway.toml:3: rules.name: unknown key; known here: file, allow_unsupported"
    );
    assert!(problems("[rules]\nfile = \"\"").contains("rules.file: is empty"));
}

#[test]
fn a_ruleset_that_can_not_be_loaded_is_told_with_its_place() {
    let directory = tempfile::TempDir::new().unwrap();
    let config = directory.path().join("gw.toml");
    let load = |document: Option<&str>| {
        let path = directory.path().join("rules.json");
        match document {
            Some(document) => std::fs::write(&path, document).unwrap(),
            None => drop(std::fs::remove_file(&path)),
        }
        let rules = RulesFile { path, line: 7, allow_unsupported: false };
        rules
            .load(&config, Some(Mode::Bridge), 0)
            .map(|_| ())
            .map_err(|problems| problems.to_string())
    };
    assert_eq!(load(Some("{\"nftables\": []}")), Ok(()));
    let gone = load(None).unwrap_err();
    assert!(gone.contains("gw.toml:7: rules.file: ") && gone.contains("can not be read"));
    let cut = load(Some("{\"nftables\": [")).unwrap_err();
    assert!(cut.contains("rules.json: document: invalid: ") && cut.contains("EOF"), "{cut}");
}

#[test]
fn helpers_that_can_not_be_attached_are_explained() {
    insta::assert_snapshot!(problems(
        r#"[[helper]]
port = 21

[[helper]]
name = "ftpd"

[[helper]]
name = "ftp"
port = 0

[[helper]]
name = "ftp"
ports = 21

[[helper]]
name = "ftp"

[[interface]]
name = "lan0"
new_connections = "reject"
"#
    ));
}

#[test]
fn masks_and_lists_of_cpus_are_explained() {
    let texts = ["10", "0xg", "0-", "3-1", "cpus:4", "2000", "0", "00000000,00000000"];
    let problems: Vec<String> = texts
        .iter()
        .map(|text| problems(&format!("[[interface]]\nname = \"lan0\"\nrps_cpus = \"{text}\"\n")))
        .collect();
    insta::assert_snapshot!(problems.join("\n"));
}

#[test]
fn shapes_and_syntax_are_explained() {
    let texts = [
        "gateway = 7",
        "interface = \"lan0\"",
        "interface = [1]",
        "[interface]\nname = \"lan0\"",
        "[[interface]]\nname = \"lan0\"\n\n[[interface]]\nname = \"lan0\"",
        "[gateway\nworkers = 2\nbuckets = 3",
        "[gateway]\nworkers = 2\nworkers = 3",
        "\n\n[gateway]\nworkers = ",
    ];
    let problems: Vec<String> = texts.iter().map(|text| problems(text)).collect();
    insta::assert_snapshot!(problems.join("\n--\n"));
}

#[test]
fn times_of_the_balancer_are_texts_or_seconds() {
    let read = |value: &str| parse(&format!("[gateway]\nbalance = {value}"));
    for (value, millis) in
        [("\"1s\"", 1000), ("\"10ms\"", 10), ("\"2.5\"", 2500), ("3", 3000), ("0.25", 250)]
    {
        assert_eq!(
            read(value).unwrap().balance,
            BalanceInterval::from_millis(Some(millis)),
            "{value}"
        );
    }
    assert_eq!(read("\"off\"").unwrap().balance, BalanceInterval::Off);
    let wrong = ["\"often\"", "\"1ms\"", "0", "-1", "3601", "nan", "true", "\"\""];
    let problems = wrong.map(|value| read(value).unwrap_err().to_string());
    insta::assert_snapshot!(problems.join("\n"));
}

#[test]
fn the_secret_is_never_shown() {
    let text = "[gateway]\nsecret = \"0123456789abcdef0123456789abcdeX\"";
    assert!(!problems(text).contains("0123"));
    let config = parse("[gateway]\nsecret = \"0123456789abcdef0123456789abcdef\"").unwrap();
    assert!(!format!("{config:?}").contains("0123"));
}

#[test]
fn a_file_that_is_not_there() {
    let error = Configuration::load(Path::new("/nonexistent/gateway.toml")).unwrap_err();
    insta::assert_snapshot!(error, @"/nonexistent/gateway.toml: can not be read: No such file or directory (os error 2)");
}

#[test]
fn files_that_are_no_text_are_refused_before_they_fill_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let problem = |file: &Path| Configuration::load(file).unwrap_err().0.remove(0);
    std::fs::write(&file, b"[gateway]\n# caf\xe9\n").unwrap();
    assert_eq!(problem(&file).line, 2);
    assert_eq!(problem(&file).what, "is not UTF-8; save the file in that encoding");
    let endless = problem(Path::new("/dev/zero"));
    insta::assert_snapshot!(endless, @"/dev/zero: is longer than 16 MiB, so it is not a configuration; name the right file");
}

#[test]
fn the_machine_is_asked_for_interfaces() {
    let config =
        parse("[[interface]]\nname = \"no-such-if0\"\n[[interface]]\nname = \"no-such-if1\"\n");
    let problems = host::problems(&mut config.unwrap(), &[0, 1], true, false);
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 4]);
    assert!(problems[0].what.starts_with("there is no interface \"no-such-if0\""));
    // One that takes over waits for them as the gateway before does.
    let mut later = parse("[[interface]]\nname = \"no-such-if0\"\n[[interface]]\nname = \"lo\"\n");
    let problems = host::problems(later.as_mut().unwrap(), &[0, 1], true, true);
    assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [4]);

    let mut one = parse("[[interface]]\nname = \"no-such-if0\"\n").unwrap();
    insta::assert_snapshot!(host::problems(&mut one, &[0, 1], true, false)[0], @"gateway.toml: interface: a bridge needs two [[interface]] tables or more, each with a name");
}

/// The problems of `rps_cpus` and of the control socket, on a machine where the process may use
/// CPUs 0 and 1.
fn host_problems(text: &str) -> String {
    let problems = host::problems(&mut parse(text).unwrap(), &[0, 1], true, false);
    let wanted = problems.iter().filter(|problem| problem.key != "interface.name");
    wanted.map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn sets_of_cpus_that_can_not_be_satisfied_are_found_with_their_key() {
    let apart = "[[interface]]\nname = \"lan0\"\nrps_cpus = \"1\"\n\
                 [[interface]]\nname = \"wan0\"\nio = \"afpacket\"\nrps_cpus = \"2\"\n";
    let elsewhere = "[[interface]]\nname = \"lan0\"\nrps_cpus = \"cpus:3\"\n\
                     [[interface]]\nname = \"wan0\"\n";
    let one_worker = format!("[gateway]\nworkers = 1\n{}", elsewhere.replace("cpus:3", "2"));
    let all = [apart, elsewhere, &one_worker].map(host_problems);
    insta::assert_snapshot!(all.join("\n"));
    assert_eq!(host_problems(&one_worker.replace("workers = 1", "workers = 2")), "");
}

#[test]
fn a_directory_that_is_not_there_is_found_with_its_key() {
    let text = "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n\
                [control]\nsocket = \"/nonexistent/gateway.sock\"\n";
    insta::assert_snapshot!(host_problems(text), @"gateway.toml:6: control.socket: there is no directory /nonexistent");
}

/// A bridge with one more key in `[control]` or `[rules]`, at line 6.
fn with_line_6(section: &str, key: &str, path: &Path) -> String {
    format!(
        "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n[{section}]\n{key} = {path:?}\n"
    )
}

#[test]
fn a_control_socket_that_can_not_be_made_is_found_with_its_key() {
    let directory = tempfile::TempDir::new().unwrap();
    let found = |path: &Path| host_problems(&with_line_6("control", "socket", path));
    let file = directory.path().join("notes");
    std::fs::write(&file, "precious").unwrap();
    for path in [directory.path(), &file, Path::new("/dev/null")] {
        let what = format!("{} exists and is not a socket; choose another path", path.display());
        assert_eq!(found(path), format!("gateway.toml:6: control.socket: {what}"));
    }
    assert_eq!(
        found(Path::new("/proc/gateway.sock")),
        "gateway.toml:6: control.socket: /proc is a file system of the kernel's, in which nobody \
         can make a socket; choose another directory"
    );
    let lock = directory.path().join("a.sock.lock");
    std::fs::create_dir(lock).unwrap();
    assert!(found(&directory.path().join("a.sock")).contains("a.sock.lock exists and is not a"));
    let free = directory.path().join("free.sock");
    assert_eq!(found(&free), "");
    let _running = control::ControlSocket::bind(&free).unwrap();
    assert_eq!(found(&free), "", "the gateway that runs may be the one that is to be restarted");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_found_on_every_machine() {
    let path = |length: usize| PathBuf::from(format!("/{}", "s".repeat(length - 1)));
    assert!(parse(&with_line_6("control", "socket", &path(107))).is_ok());
    let found = problems(&with_line_6("control", "socket", &path(108)));
    assert!(found.starts_with("gateway.toml:6: control.socket: /sss"), "{found}");
    assert!(found.ends_with(
        "s has 108 bytes, and the path of a socket has 107 at most; choose a shorter one"
    ));
}

#[test]
fn rules_come_from_a_regular_file() {
    let directory = tempfile::TempDir::new().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, what) in [
        (&*pipe, "is a pipe"),
        (Path::new("/dev/zero"), "is a device"),
        (directory.path(), "is a directory"),
        (Path::new("-"), "can not be read: No such file or directory (os error 2)"),
    ] {
        let config = parse(&with_line_6("rules", "file", path)).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(config.load_rules(None, 0).map(|_| ())));
        let found = receiver.recv_timeout(Duration::from_secs(60)).expect("no answer");
        let wants = if path == Path::new("-") {
            ""
        } else {
            ", and the rules come from a regular file; name one"
        };
        assert_eq!(
            found.unwrap_err().to_string(),
            format!("gateway.toml:6: rules.file: {}: {what}{wants}", path.display())
        );
    }
}

#[test]
fn every_wrong_word_of_a_list_is_told() {
    let found = problems("[gateway]\npass = [\"arpp\", \"stp\", 5, 7.5]\n");
    let first_words: Vec<_> = found.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(first_words, ["\"arpp\"", "0x5", "7.5"], "{found}");
}

#[test]
fn two_names_of_one_setting_must_agree() {
    let file = |one, other| {
        format!(
            "[[interface]]\nname = \"lan0\"\nio = \"afpacket\"\n\n[tunables]\n\
             ip6frag_time = {one}\nipfrag_time = 7\nnf_conntrack_frag6_timeout = {other}\n"
        )
    };
    let contradicts = problems(&file(60, 5));
    assert!(
        contradicts.contains(
            ":8: tunables.nf_conntrack_frag6_timeout: 5 contradicts line 6, where the same \
             setting is 60 under the name ip6frag_time; keep one of them"
        ),
        "{contradicts}"
    );
    assert_eq!(contradicts.lines().count(), 1);
    assert_eq!(parse(&file(5, 5)).unwrap().settings.get("ip6frag_time"), Some(5));
}

#[test]
fn a_file_may_name_every_tunable() {
    let lines: Vec<String> = engine::Settings::tunables()
        .map(|tunable| format!("{} = {}\n", tunable.name, tunable.default))
        .collect();
    let lines = lines.concat();
    parse(&format!("[[interface]]\nname = \"lan0\"\nio = \"afpacket\"\n[tunables]\n{lines}"))
        .unwrap();
}

//! The syntax of nft.

use std::fs;
use std::io::{Write, stderr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::{BINARY, Files, has, has_nft, text};

#[test]
fn a_ruleset_in_nfts_own_syntax_is_what_nft_makes_of_it_for_every_user() {
    if !has_nft() {
        return;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rulesets");
    let files = Files::new(&[]);
    // A program in the directory of the build may be closed to others.
    let program = files.path("stateway");
    fs::copy(BINARY, &program).unwrap();
    let program = program.to_str().unwrap().to_owned();
    // The sandbox of a service, and a user with no right at all.
    let service = ["setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs"];
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let users: Vec<&[&str]> = [&[][..], &service, &nobody]
        .into_iter()
        .filter(|user| {
            let nested = ["unshare", "--user", "--net", "--keep-caps", "nft", "list", "ruleset"];
            user.is_empty() || has(&[user, &nested[..]].concat())
        })
        .collect();
    let mut seen = 0;
    for example in fs::read_dir(examples).unwrap() {
        let rules = fs::read_to_string(example.unwrap().path()).unwrap();
        fs::write(files.path("rules.nft"), rules).unwrap();
        let print = "nft -f rules.nft && nft -j list ruleset";
        let json = files.run(&["unshare", "--net", "sh", "-c", print]);
        assert!(json.status.success(), "{}", text(&json.stderr));
        fs::write(files.path("rules.json"), json.stdout).unwrap();
        for user in &users {
            let check = |file| {
                let checked =
                    files.run(&[*user, &[&program, "rules", "check", "--json", file]].concat());
                assert!(checked.status.success(), "{user:?}: {}", text(&checked.stderr));
                text(&checked.stdout)
            };
            assert_eq!(check("rules.nft"), check("rules.json"), "{user:?}");
            seen += 1;
        }
    }
    assert!(seen >= 4 * users.len(), "{seen}");
}

/// A program in the place of nft. Its listings of the ruleset have one element twice and lack another
/// one, the first `times` of them.
fn forgetful_nft(times: usize) -> String {
    let listing = |elements: &str| {
        format!(
            r#"{{"nftables": [{{"table": {{"family": "ip", "name": "t", "handle": 1}}}},
            {{"set": {{"family": "ip", "table": "t", "name": "s", "type": "ipv4_addr", "handle": 1,
                "elem": [{elements}]}}}},
            {{"chain": {{"family": "ip", "table": "t", "name": "c", "handle": 2, "type": "filter",
                "hook": "forward", "prio": 0, "policy": "accept"}}}},
            {{"rule": {{"family": "ip", "table": "t", "chain": "c", "handle": 3, "expr": [
                {{"match": {{"op": "==", "left": {{"payload": {{"protocol": "ip", "field": "saddr"}}}},
                    "right": "@s"}}}}, {{"drop": null}}]}}}}]}}"#
        )
        .replace('\n', " ")
    };
    format!(
        "#!/bin/sh\n[ \"$1 $2\" = '-j list' ] || exit 0\necho >>listings\n\
         if [ $(wc -l <listings) -gt {times} ]; then echo '{}'; else echo '{}'; fi\n",
        listing(r#""192.0.2.1", "192.0.2.2", "192.0.2.3""#),
        listing(r#""192.0.2.1", "192.0.2.2", "192.0.2.1""#)
    )
}

#[test]
fn a_set_is_listed_again_if_the_kernel_still_makes_room_for_its_elements() {
    for (times, is_whole) in [(1, true), (99, false)] {
        let files = Files::new(&[("rules.nft", "table ip t\n"), ("nft", &forgetful_nft(times))]);
        fs::set_permissions(files.path("nft"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("PATH={}:/usr/bin:/bin", files.0.path().display());
        let checked = files.run(&["env", &path, BINARY, "rules", "check", "rules.nft"]);
        let (shown, problem) = (text(&checked.stdout), text(&checked.stderr));
        if !checked.status.success() && problem.contains("can not be made") {
            return stderr().write_all(format!("SKIPPED: {problem}").as_bytes()).unwrap();
        }
        assert_eq!(checked.status.success(), is_whole, "{problem}");
        let told = "rules.nft: is listed by the kernel without some of its elements";
        let told = if is_whole { shown.contains("1, 3 elements") } else { problem.contains(told) };
        assert!(told, "{shown}{problem}");
    }
    let files = Files::new(&[("rules.nft", "table ip t\n"), ("nft", &forgetful_nft(99))]);
    let listing = files.run(&["sh", "./nft", "-j", "list"]);
    fs::write(files.path("rules.json"), listing.stdout).unwrap();
    let checked = files.stateway(&["rules", "check", "rules.json"]);
    assert!(text(&checked.stderr).contains("SO OTHER ELEMENTS ARE PROBABLY MISSING"));
}

#[test]
fn nothing_of_this_host_changes_when_nft_reads_a_ruleset() {
    if !has_nft() {
        return;
    }
    let files = Files::new(&[("rules.nft", "flush ruleset\ntable ip made { }\n")]);
    let inside =
        format!("nft add table ip kept && {BINARY} rules check rules.nft && nft list tables");
    let output = files.run(&["unshare", "--net", "sh", "-c", &inside]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with("\ntable ip kept\n"), "{}", text(&output.stdout));
}

#[test]
fn the_messages_of_nft_are_told_with_file_and_line() {
    if !has_nft() {
        return;
    }
    let rules =
        "include \"./part.nft\"\ntable inet t {\n  chain c {\n    tcp dprt 5 accept\n  }\n}\n";
    let files = Files::new(&[
        ("rules.nft", rules),
        (
            "part.nft",
            "define a = 1\n\n\n\ntable inet t { chain c { ip saddr 192.0.2.300 drop; }; }\n",
        ),
        ("links.nft", "table inet t {\n  chain c {\n    iif \"lan0\" accept\n  }\n}\n"),
        (
            "gw.toml",
            "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n[rules]\nfile = \"rules.nft\"\n",
        ),
    ]);
    let absolute = format!("{}", files.path("rules.nft").display());
    for (words, file) in [
        (&["rules", "check", "rules.nft"][..], "rules.nft"),
        // No gateway is asked: there is no such socket.
        (&["rules", "load", "rules.nft", "--socket", "/nonexistent/stateway.sock"], "rules.nft"),
        (&["rules", "explain", "--file", "rules.nft", "udp 192.0.2.1:1 192.0.2.2:53"], "rules.nft"),
        (&["check", "--elsewhere", "-c", "gw.toml"], "rules.nft"),
        (&["rules", "check", &absolute], &absolute),
    ] {
        let output = files.stateway(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(text(&output.stdout), "", "{words:?}");
        assert_eq!(
            text(&output.stderr),
            format!(
                "{file}:4: syntax error, unexpected string (columns 9-12)\n        \
                 tcp dprt 5 accept\n\
                 ./part.nft:5: Could not resolve hostname: Name or service not known (columns 35-45)\n    \
                 table inet t {{ chain c {{ ip saddr 192.0.2.300 drop; }}; }}\n"
            ),
            "{words:?}"
        );
    }
    let links = files.stateway(&["rules", "check", "links.nft"]);
    let message = text(&links.stderr);
    assert!(message.starts_with("links.nft:3: Interface does not exist"), "{message}");
    assert!(message.contains("write iifname and oifname in their place"), "{message}");
}

/// Rules that name interfaces by their number, in all places where nft takes one.
const BY_NUMBER: &str = "table inet t {
    set inner {
        type iface_index
        elements = { \"lan0\", \"lan1\" }
    }
    chain c {
        type filter hook forward priority 0
        iif \"lan0\" oif \"wan0\" accept
        iif @inner accept
        iif . oif { \"lan1\" . \"wan0\", \"lo\" . \"lan0\" } accept
        meta mark set iif map { \"lan0\" : 5 }
        fib daddr oif \"wan0\" accept
    }
}
";

#[test]
fn rules_may_name_the_interfaces_of_this_host_by_number() {
    if !has_nft() {
        return;
    }
    let elsewhere = BY_NUMBER.replace("\"lan1\"", "\"lan7\"");
    let flowtable = "table inet t {
    flowtable fast {
        hook ingress priority 0
        devices = { lan0, wan0 }
    }
    chain c {
        type filter hook forward priority 0
        flow add @fast
    }
}
";
    let files = Files::new(&[
        ("rules.nft", "include \"./part.nft\"\n"),
        ("part.nft", BY_NUMBER),
        ("elsewhere.nft", &elsewhere),
        ("flowtable.nft", flowtable),
    ]);
    let program = files.path("stateway");
    fs::copy(BINARY, &program).unwrap();
    // An odd number of them, where the kernel has bridges, and one with a name that the kernel
    // gives as well.
    let host = "ip link add lan0 type veth peer name wan0 && \
                ip link add veth0 type veth peer name lan1; ip link add br-a.7 type bridge";
    let within = |what: &str| {
        let all = format!("{host} && ip -o link > before; {what}");
        let output = files.run(&["unshare", "--net", "sh", "-c", &all]);
        assert!(output.status.success(), "{what}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let json = within("nft -f rules.nft && nft -j list ruleset");
    fs::write(files.path("rules.json"), json).unwrap();
    let wanted = text(&files.stateway(&["rules", "check", "--json", "rules.json"]).stdout);
    let check = "./stateway rules check --json rules.nft && ip -o link | diff before - >&2";
    assert_eq!(within(check), wanted);
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    if has(&[&nobody.split(' ').collect::<Vec<_>>()[..], &["unshare", "--user", "--net", "true"]]
        .concat())
    {
        assert_eq!(within(&format!("{nobody} {check}")), wanted);
    }
    let message = within("./stateway rules check elsewhere.nft 2>&1; [ $? = 2 ]");
    assert!(message.starts_with("elsewhere.nft:4: Interface does not exist"), "{message}");
    assert!(message.contains("\nelsewhere.nft:10: Interface does not exist"), "{message}");
    // The kernel may have no flowtables.
    let message = within(
        "if nft -f flowtable.nft 2>&1; then ./stateway rules check flowtable.nft; else \
         ./stateway rules check flowtable.nft 2>&1 | grep 'its kernel has no flowtables'; fi",
    );
    println!("{message}");
}

#[test]
fn included_files_are_found_from_the_directory_of_the_caller_and_beside_the_ruleset() {
    if !has_nft() {
        return;
    }
    let part = "table ip part { chain f { type filter hook forward priority 0; policy drop; }; }\n";
    let files = Files::new(&[
        ("from-here.nft", "include \"./sub/part.nft\"\n"),
        ("sub/part.nft", part),
        ("sub/beside.nft", "include \"part.nft\"\n"),
        ("sub/from-there.nft", "include \"./part.nft\"\n"),
        (
            "gw.toml",
            "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n[rules]\nfile = \"sub/beside.nft\"\n",
        ),
        (
            "here.toml",
            "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n[rules]\nfile = \"from-here.nft\"\n",
        ),
    ]);
    for (file, finds) in
        [("from-here.nft", true), ("sub/beside.nft", true), ("sub/from-there.nft", false)]
    {
        let output = files.stateway(&["rules", "check", file]);
        assert_eq!(output.status.success(), finds, "{file}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout).contains("ip part f: forward"), finds);
    }
    // A service starts in another directory than that of its configuration.
    for config in ["gw.toml", "here.toml"] {
        let config = files.path(config);
        let mut command = Command::new(BINARY);
        command.args(["check", "--elsewhere", "-c"]).arg(&config).current_dir("/");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}: {}", config.display(), text(&output.stderr));
    }
}

#[test]
fn texts_that_nft_takes_in_another_way_are_told_by_name() {
    if !has_nft() {
        return;
    }
    let files = Files::new(&[
        ("returns.nft", "table ip t {\r\n  chain c {\r\n  }\r\n}\r\n"),
        ("printing.nft", "table ip t {\n  chain c {\n  }\n}\nlist ruleset\n"),
    ]);
    for (file, said) in [
        ("returns.nft", "returns.nft: has lines that end in CR LF, as on Windows"),
        ("printing.nft", "printing.nft: has nft print something, as `list ruleset` does"),
    ] {
        let output = files.stateway(&["rules", "check", file]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with(said), "{told}");
    }
}

#[test]
fn a_host_without_nft_is_told_what_to_do() {
    let files = Files::new(&[("rules.nft", "table ip t { }\n")]);
    fs::create_dir(files.path("bin")).unwrap();
    let shell = fs::canonicalize("/bin/sh").unwrap();
    std::os::unix::fs::symlink(shell, files.path("bin/sh")).unwrap();
    let hidden = "mount -t tmpfs none /usr/sbin && exec \"$@\"";
    let within = ["unshare", "--mount", "sh", "-c", hidden, "sh"];
    if !has(&[&within[..], &["true"]].concat()) {
        return;
    }
    let output = files
        .run(&[&within[..], &["env", "PATH=bin", BINARY, "rules", "check", "rules.nft"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("nft is not there to read it: install nftables"), "{message}");
    // As on a host that lets nobody make namespaces.
    let closed = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let within = ["unshare", "--user", "--map-root-user", "sh", "-c", closed, "sh"];
    if !has(&[&within[..], &["true"]].concat()) {
        return;
    }
    let output = files.run(&[&within[..], &[BINARY, "rules", "check", "rules.nft"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(
        message.contains("network namespace") && message.contains("run the command as root"),
        "{message}"
    );
}

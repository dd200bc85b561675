//! PPTP calls through translation: several hosts behind one address call one server with the same
//! ids, and a server is reached through a port of the router.

use std::collections::BTreeSet;

use lab::{Family, Lab, Namespace, Program, Result, Tracking, attach_kernel_helpers};

use crate::scenario::{
    StatewayLab, beside_others, conntrack_counter, edge_router, kernel_router, nat_rules, outside,
    pptp, stateway_binary, stop_cleanly,
};

const HELPER: &str = "[[helper]]\nname = \"pptp\"\n";
/// The addresses of the calling hosts.
const HOSTS: [&str; 3] = ["192.0.2.1", "192.0.2.21", "192.0.2.22"];

/// Calls to the router's outside address lead to the first host.
fn rules() -> String {
    nat_rules(&[("tcp dport 1723", "")], "masquerade")
}

fn translating_lab(workers: u32, helpers: &str) -> Result<StatewayLab> {
    let lab = edge_router(workers, &rules(), helpers)?;
    add_hosts(&lab)?;
    Ok(lab)
}

fn add_hosts(lab: &Lab) -> Result<()> {
    let add: Vec<_> = HOSTS[1..].iter().map(|it| format!("addr add {it}/24 dev eth0")).collect();
    lab.client().ip(&add.iter().map(String::as_str).collect::<Vec<_>>())
}

fn calling(host: &Namespace, ends: [&str; 2], ids: &str, cut: &str) -> Result<Program> {
    pptp::client(host, ends, ids, "3", cut)
}

/// True if each of these calls heard the server and its own echo.
fn has_heard(said: &str, ids: &[u16]) -> bool {
    let calls: Vec<&str> = said.trim().split("; ").collect();
    calls.len() == ids.len()
        && calls.iter().zip(ids).all(|(call, id)| {
            call.starts_with(&format!("{id}: hello ")) && call.ends_with(&format!("from {id}"))
        })
}

/// Counts the "destination unreachable" errors that a host receives.
const COUNTS_ERRORS: &str = "
table inet heard {
    chain in { type filter hook input priority filter; policy accept;
        icmp type destination-unreachable counter
    }
}
";

fn hosts_behind_one_address_call(workers: u32) {
    beside_others(|| {
        let mut lab = translating_lab(workers, HELPER)?;
        lab.server().load_rules(COUNTS_ERRORS)?;
        let server = lab.server_address(Family::V4).to_string();
        let _server = pptp::server(lab.server(), &server)?;
        // The requests of the first host are cut: it keeps its ids, so the gateway has nothing to
        // edit in them.
        for (host, cut) in HOSTS.into_iter().zip([pptp::CUT, pptp::WHOLE, pptp::WHOLE]) {
            let calls = calling(lab.client(), [host, &server], "6+7,20", cut)?;
            let said = calls.input(String::new()).check()?;
            assert!(has_heard(&said, &[6, 7, 20]), "{host}: {said}");
        }
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 9);
        // A host behind the router accepts calls as well.
        let _inside = pptp::server(lab.client(), HOSTS[0])?;
        let ends = [server.as_str(), outside(Family::V4)];
        let said =
            calling(lab.server(), ends, "6+7,20", pptp::WHOLE)?.input(String::new()).check()?;
        assert!(has_heard(&said, &[6, 7, 20]), "{said}");
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 12);
        let heard = lab.server().program("nft").args(["list", "table", "inet", "heard"]).check()?;
        assert!(heard.contains("counter packets 0 "), "the gateway's host has answered: {heard}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn hosts_behind_one_address_call_one_server_through_one_worker() {
    hosts_behind_one_address_call(1);
}

#[test]
fn hosts_behind_one_address_call_one_server_through_two_workers() {
    hosts_behind_one_address_call(2);
}

#[test]
fn calls_do_not_get_through_translation_without_helper() {
    beside_others(|| {
        let mut lab = translating_lab(2, "")?;
        let server = lab.server_address(Family::V4).to_string();
        let _server = pptp::server(lab.server(), &server)?;
        let said = calling(lab.client(), [HOSTS[0], &server], "6", pptp::WHOLE)?;
        assert_eq!(said.input(String::new()).check()?.trim(), "6: nothing");
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 0);
        stop_cleanly(&mut lab)
    });
}

/// Calls as a program lists them. Each direction has its own line. The remaining time is left out,
/// and so are the translated ids, which each gateway chooses.
fn listed(program: Program) -> Result<BTreeSet<String>> {
    let line = |line: &str| {
        // The call's own id, as the host behind the router sends it.
        let own = line.rsplit("srckey=").next().and_then(|rest| rest.split(' ').next());
        let words = line.split_whitespace().filter(|word| word.contains('=') || word.contains('['));
        let words = words.filter(|word| !word.contains("key=") && !word.contains("timeout="));
        format!("{} own id: {own:?}", words.collect::<Vec<_>>().join(" "))
    };
    let text = program.check()?;
    Ok(text.lines().filter(|text| text.contains("key=")).map(line).collect())
}

#[test]
fn hosts_behind_one_address_call_one_server_as_through_the_kernel() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        attach_kernel_helpers(kernel.gateway(), &[("pptp", "tcp", 1723)])?;
        kernel.gateway().load_rules(&rules())?;
        add_hosts(&kernel)?;
        let mut ours = translating_lab(2, HELPER)?;
        let mut both = Vec::new();
        for lab in [&kernel, &*ours] {
            let server = lab.server_address(Family::V4).to_string();
            let _server = pptp::server(lab.server(), &server)?;
            for host in HOSTS {
                let calls = calling(lab.client(), [host, &server], "6", pptp::WHOLE)?;
                let said = calls.input(String::new()).check()?;
                assert!(has_heard(&said, &[6]), "{host}: {said}");
            }
            both.push(match lab.stateway() {
                Some(it) => listed(it.command(&["conntrack", "-L", "-o", "conntrack"]))?,
                None => listed(lab.gateway().program("conntrack").args(["-L"]))?,
            });
        }
        assert_eq!(both[1], both[0]);
        assert_eq!(both[0].len(), 3, "{both:?}");
        stop_cleanly(&mut ours)
    });
}

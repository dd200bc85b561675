//! One ruleset in the forwarding kernel, in a bridge and in a router of ours. Hosts on both sides
//! get the same answers, including the flags of a reset and the code of an error.

use lab::{Family, Lab, Result, Side, StatewaySpec, Tracking};

use crate::scenario::{
    FAMILIES, beside_others, bridge_spec, kernel_router, ready, start, stop_cleanly,
};

/// Every kind of refusal, tracking, marks passed between chains, and untracked packets.
const RULES: &str = "
table inet gateway {
    set open {
        type inet_service
        elements = { 80, 443 }
    }
    chain raw {
        type filter hook prerouting priority raw; policy accept;
        udp dport 5000 notrack
        udp sport 5000 notrack
    }
    chain early {
        type filter hook prerouting priority mangle; policy accept;
        tcp dport 81 meta mark set 0x51
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        ct state invalid drop
        ct state established,related counter accept
        udp dport 5000 ct state untracked counter accept
        udp sport 5000 ct state untracked counter accept
        meta mark 0x51 counter reject with tcp reset
        tcp dport 22 counter reject with tcp reset
        tcp dport 23 counter reject
        tcp dport 24 counter reject with icmpx type admin-prohibited
        udp dport 54 counter reject with icmpx type no-route
        iifname lan0 tcp dport @open ct state new counter accept
        iifname lan0 udp dport 53 counter accept
        iifname wan0 oifname lan0 tcp dport 8080 counter accept
        icmp type echo-request accept
        icmpv6 type echo-request accept
    }
}
";

/// The answers that hosts on either side get from the ports on the other side.
fn answers(lab: &Lab) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (side, other) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
        let (asker, server) = match side {
            Side::Client => (lab.client(), lab.server()),
            Side::Server => (lab.server(), lab.client()),
        };
        let probe = asker.write_file("answers.py", include_bytes!("answers.py"))?;
        server.write_file("answers.py", include_bytes!("answers.py"))?;
        let _serving = ready(server.program("python3").args([&probe, "serve"]))?;
        let ask = |family| {
            let address = address(lab, other, family).to_string();
            asker.program("python3").args([&probe, "ask", &address]).spawn()
        };
        for (family, asking) in FAMILIES.map(|family| (family, ask(family))) {
            let said = asking?.finish()?;
            assert_eq!(said.code, Some(0), "{}", said.stdout);
            lines.extend(said.stdout.lines().map(|line| format!("{side:?} {family:?} {line}")));
        }
    }
    Ok(lines)
}

fn address(lab: &Lab, side: Side, family: Family) -> std::net::IpAddr {
    match side {
        Side::Client => lab.client_address(family),
        Side::Server => lab.server_address(family),
    }
}

/// The answers behind the kernel.
fn kernel() -> Result<Vec<String>> {
    let lab = kernel_router(Tracking::Conntrack)?;
    let limits = ["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"];
    lab.gateway().sysctl(limits)?;
    lab.gateway().load_rules(&format!("flush ruleset\n{RULES}"))?;
    answers(&lab)
}

#[test]
fn hosts_get_the_same_answers_from_the_kernel_a_bridge_and_a_router() {
    beside_others(|| {
        let theirs = kernel()?;
        let words = ["hello", "nothing", "reset flags 0x14", "error 3 13", "error 1 4"];
        for word in words {
            assert!(theirs.iter().any(|line| line.contains(word)), "{word} in {theirs:#?}");
        }
        for (routed, workers) in [(false, 1), (true, 2)] {
            let ruleset = Some(RULES.to_owned());
            let spec = StatewaySpec { routed, ruleset, ..bridge_spec(workers)? };
            let mut lab = start(spec)?;
            let ours = answers(&lab)?;
            let different: Vec<_> = theirs.iter().zip(&ours).filter(|(a, b)| a != b).collect();
            assert!(different.is_empty(), "routed: {routed}; kernel, ours: {different:#?}");
            assert_eq!(theirs.len(), ours.len());
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

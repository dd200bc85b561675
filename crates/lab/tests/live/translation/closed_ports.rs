//! Closed ports of a translation address, beside the kernel with the same rules: the sender hears
//! what the host itself would say, and connections of clients and of the host go on.

use lab::{Background, Family, Lab, Result, Tracking};

use crate::scenario::{
    FAMILIES, alone, edge_router, kernel_router, masquerading_router, nat_rules, outside, ready,
    soon, stateway, stop_cleanly,
};

/// Sends packets, and prints the answer to each.
const PROBE: &str = include_str!("closed_ports.py");
/// The time to wait for all answers, and the time after which there is none.
const ANSWERS: &str = "20";
const SILENCE: &str = "1";

/// Ports below 1024, those that no kernel takes for itself, and those that clients have.
const PORTS: &str = "1,79,1023,1024,8090,32767,40000,65535";
/// Segments of TCP by their control bits, and a datagram.
const KINDS: &str = "S,S+,SA,A,A+,FA,F,FPU,-,P+,SF,udp";

/// The kernel as gateway with these rules. It tells of as many closed ports as senders ask for.
fn kernel_with(rules: &str) -> Result<Lab> {
    let lab = kernel_router(Tracking::Off)?;
    lab.gateway().load_rules(rules)?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    unlimited(&lab)?;
    Ok(lab)
}

/// Lets the host's kernel send as many ICMP errors as it wants, also to the prober alone.
fn unlimited(lab: &Lab) -> Result<()> {
    lab.gateway().sysctl(["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"])
}

/// The answers to packets of these kinds, sent to each of these ports of the outside address.
fn answers(lab: &Lab, family: Family, wait: &str, ports: &str, kinds: &str) -> Result<Vec<String>> {
    let own = lab.server_address(family).to_string();
    let arguments = ["-c", PROBE, wait, &own, outside(family), ports, kinds];
    let said = lab.on_server("python3").args(arguments).check()?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Panics unless every probe was met by silence.
fn assert_silent(answers: &[String]) {
    assert!(
        !answers.is_empty() && answers.iter().all(|it| it.ends_with(" silence")),
        "{answers:?}"
    );
}

#[test]
fn closed_ports_answer_as_those_of_the_kernel() {
    alone(|| {
        let rules = nat_rules(&[("tcp dport 8080", ":8000")], "masquerade");
        let kernel = kernel_with(&rules)?;
        let mut of_kernel = Vec::new();
        for family in FAMILIES {
            let said = answers(&kernel, family, ANSWERS, PORTS, KINDS)?;
            assert_eq!(said.len(), 8 * 12);
            assert!(
                !said.iter().any(|it| it.ends_with(" silence") || it.contains(" and ")),
                "{said:?}"
            );
            of_kernel.push(said);
        }
        drop(kernel);
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &rules, "")?;
            unlimited(&lab)?;
            for (family, of_kernel) in FAMILIES.into_iter().zip(&of_kernel) {
                // No more in one go than may wait.
                let mut said = Vec::new();
                for port in PORTS.split(',') {
                    said.extend(answers(&lab, family, ANSWERS, port, KINDS)?);
                }
                assert_eq!(&said, of_kernel, "{family:?} {workers} workers");
            }
            // Nobody answers a reset, whoever listens.
            assert_silent(&answers(&lab, Family::V4, SILENCE, PORTS, "R,RA")?);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

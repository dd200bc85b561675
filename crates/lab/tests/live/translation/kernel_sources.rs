//! Connections of the host itself whose sources its kernel translates, while the gateway masquerades
//! to the same address.

use lab::{Family, Lab, Result};

use crate::scenario::{
    FAMILIES, beside_others, echo, inside, masquerading_router, soon, stop_cleanly,
};

/// Rules of the host's kernel.
const MASQUERADE: &str = "
table inet of_host {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"wan0\" masquerade
    }
}
";

/// Exchanges some lines over TCP and UDP. It runs with: own address, address and port of the other
/// end.
const TALK: &str = "
import socket, sys
own, other, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ':' in other else socket.AF_INET
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    with socket.socket(family, kind) as s:
        s.settimeout(3)
        s.bind((own, 0))
        s.connect((other, port))
        for number in range(3):
            s.sendall(b'line')
            assert s.recv(4) == b'line'
";

/// True if the host's connections work from its inside address, to which the server has no route.
fn host_talks(lab: &Lab, family: Family) -> Result<bool> {
    let (own, server) = (inside(family), lab.server_address(family).to_string());
    let talked = lab.gateway().program("python3").args(["-c", TALK, own, &server, "7001"]).run()?;
    let asked = lab.gateway().program("ping").args(["-c", "1", "-W", "2", "-I", own, &server]);
    Ok(talked.code == Some(0) && asked.run()?.code == Some(0))
}

fn client_talks(lab: &Lab, family: Family) -> Result<()> {
    let (own, server) = (lab.client_address(family), lab.server_address(family));
    let (own, server) = (own.to_string(), server.to_string());
    lab.on_client("python3").args(["-c", TALK, &own, &server, "7001"]).check().map(drop)
}

#[test]
fn connections_of_the_host_work_while_its_kernel_translates_their_sources() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        let _server = echo(lab.server(), 7001)?;
        lab.gateway().load_rules(MASQUERADE)?;
        for family in FAMILIES {
            soon("the host talks", || host_talks(&lab, family))?;
            client_talks(&lab, family)?;
        }
        // Without the translation nothing leads the replies back.
        lab.gateway().program("nft").args(["delete", "table", "inet", "of_host"]).check()?;
        assert!(!host_talks(&lab, Family::V4)?, "the server has no route to the inside");
        client_talks(&lab, Family::V4)?;
        // The former iptables.
        let legacy = ["-t", "nat", "-A", "POSTROUTING", "-o", "wan0", "-j", "MASQUERADE"];
        if lab.gateway().program("iptables-legacy").args(legacy).run()?.code == Some(0) {
            soon("the host talks by the former iptables", || host_talks(&lab, Family::V4))?;
            client_talks(&lab, Family::V4)?;
        }
        stop_cleanly(&mut lab)
    });
}

//! Rules that ask for the groups of interfaces, in a gateway that runs.

use crate::scenario::{
    alone, bridge, counted, echo, kernel_router, load, router_spec, soon, start, stateway,
    stateway_binary, stop_cleanly,
};
use lab::{Family, Lab, Namespace, Result, Tracking, ping};

/// Counts echo requests by the groups of interfaces, in all forms that nft has for it.
const BY_GROUP: &str = "
table inet t {
    set inside {
        type devgroup
        elements = { 5, 9 }
    }
    chain early {
        type filter hook prerouting priority filter; policy accept;
        icmp type echo-request iifgroup 5 counter
        icmp type echo-request iifgroup default counter
        icmp type echo-request oifgroup default counter
        icmp type echo-request oifgroup != 7 counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        icmp type != echo-request return
        iifgroup @inside counter
        iifgroup != 5 counter
        oifgroup { default, 7-8 } counter
        iifgroup . oifgroup { 5 . default, default . 5 } counter
        iifgroup . oifgroup { 5 . 7 } counter
        iifgroup > 4 counter
        jhash iifgroup . oifgroup mod 1000 seed 0x5 < 500 counter
        oifgroup vmap { 6 : drop, 7 : accept }
        counter
    }
}
";

/// Accepts datagrams that come from one group of interfaces, and what answers them.
const FROM_GROUP: &str = "
table inet t {
    chain f {
        type filter hook forward priority filter; policy drop;
        iifgroup 5 accept
        oifgroup 5 accept
    }
}
";

/// Sends datagrams of one flow, each when the one before has been answered or 0.3 s later. Prints
/// how many were answered.
const ASK: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5555))
s.connect((sys.argv[1], 7000))
s.settimeout(0.3)
answered = 0
for number in range(int(sys.argv[2])):
    try:
        s.send(b'%d' % number)
        s.recv(100)
        answered += 1
    except OSError:
        pass
print(answered)
";

fn groups(gateway: &Namespace, lan: u32, wan: u32) -> Result<()> {
    gateway.ip(&[&format!("link set lan0 group {lan}"), &format!("link set wan0 group {wan}")])
}

fn ping_once(lab: &Lab) -> Result<()> {
    let server = lab.server_address(Family::V4);
    assert_eq!(ping(lab.on_client("ping"), server, 1)?.received, 1);
    Ok(())
}

#[test]
fn interfaces_have_the_groups_that_the_kernel_says() {
    alone(|| {
        stateway_binary()?;
        for (lan, wan) in [(0, 0), (5, 7), (9, 0), (0, 5)] {
            let kernel = kernel_router(Tracking::Conntrack)?;
            groups(kernel.gateway(), lan, wan)?;
            kernel.gateway().load_rules(BY_GROUP)?;
            ping_once(&kernel)?;
            let theirs = kernel.gateway().listed_rules()?;
            let theirs = counted(&serde_json::from_str(&theirs).expect("JSON"));
            drop(kernel);

            let mut lab = start(router_spec(2)?)?;
            load(&lab, BY_GROUP)?;
            // The gateway has seen other groups before.
            groups(lab.gateway(), lan, wan)?;
            soon("the groups are known", || {
                load(&lab, BY_GROUP)?;
                ping_once(&lab)?;
                Ok(counted(&stateway(&lab).query(&["rules", "list"])?) == theirs)
            })?;
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

#[test]
fn an_interface_that_changes_its_group_is_known_to_flows_that_were_decided_about() {
    alone(|| {
        // A router learns of the change from its routes as well.
        let mut lab = bridge(2)?;
        groups(lab.gateway(), 5, 0)?;
        load(&lab, FROM_GROUP)?;
        let _server = echo(lab.server(), 7000)?;
        let answered = |count: &str| -> Result<u32> {
            let server = lab.server_address(Family::V4).to_string();
            let client = lab.on_client("python3").args(["-c", ASK, &server, count]).check()?;
            Ok(client.trim().parse().expect("a number"))
        };
        soon("the group lets it pass", || Ok(answered("1")? == 1))?;
        assert_eq!(answered("50")?, 50);
        groups(lab.gateway(), 0, 0)?;
        soon("the group is another one", || Ok(answered("1")? == 0))?;
        assert_eq!(answered("5")?, 0);
        groups(lab.gateway(), 5, 0)?;
        soon("the group is back", || Ok(answered("1")? == 1))?;
        assert_eq!(answered("50")?, 50);
        stop_cleanly(&mut lab)
    });
}

//! An operator has a gateway start the process that takes its place.

use lab::{Lab, Result, Stateway, StatewaySpec};

use super::{END, Traffic, flows, strict_router};
use crate::scenario::{
    beside_others, bridge_spec, gateway_and_children, kill, own_tables, ready, soon, start,
    stateway, stateway_binary,
};

/// Asks the gateway again and again, until the file exists, and prints how often there was no answer.
const ASKING: &str = "
asked=0 failed=0
echo ready
while [ ! -e \"$1\" ]; do
    asked=$((asked + 1))
    \"$STATEWAY\" conntrack -C || failed=$((failed + 1))
done >/dev/null
echo asked: $asked failed: $failed
";

/// Waits until only the last of the processes is there that have handed over.
fn old_ones_have_ended(lab: &Lab) -> Result<()> {
    soon("the old processes have ended", || {
        let tables = lab.gateway().program("nft").args(["list", "tables"]).check()?;
        Ok(own_tables(&tables).len() == 1)
    })
}

/// The bug of a tunable that an operator had set and that an upgrade took back without a word.
#[test]
fn what_an_operator_has_set_goes_on_unless_the_file_has_changed() {
    beside_others(|| {
        let more = "[tunables]\nnf_conntrack_max = 5000\nnf_conntrack_udp_timeout = 100\n";
        let spec = StatewaySpec { more: more.to_owned(), ..bridge_spec(2)? };
        let lab = start(spec.clone())?;
        let command = |args: &[&str]| stateway(&lab).command(args).check();
        let value = |name: &str| Ok(command(&["tunable", "get", name])?.trim_end().to_owned());
        let values = || -> Result<[String; 2]> {
            Ok([value("nf_conntrack_max")?, value("nf_conntrack_udp_timeout")?])
        };
        command(&["tunable", "set", "nf_conntrack_max", "6000"])?;
        command(&["tunable", "set", "nf_conntrack_udp_timeout", "200"])?;
        command(&["steer", "set", "--workers", "3"])?;
        // The second new process gets them from the first one.
        for _ in 0..2 {
            let said = stateway(&lab).query(&["upgrade"])?;
            assert_eq!(said["not_carried"].as_array().map(Vec::len), Some(0), "{said}");
            assert_eq!(values()?, ["6000", "200"]);
            let status = stateway(&lab).query(&["status"])?;
            assert_eq!(status["workers"].as_array().map(Vec::len), Some(3), "{status}");
        }
        let more = more.replace("5000", "7000");
        let config = StatewaySpec { more, ..spec }.config(&["lan0", "wan0"]);
        lab.gateway().write_file("stateway.toml", config.as_bytes())?;
        let said = stateway(&lab).command(&["upgrade"]).run()?;
        let lost = "tunables.nf_conntrack_max: 6000, set while the gateway ran, does not go on: the \
                    file has changed from 5000 to 7000, which counts";
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stderr.contains(&format!("warning: {lost}")), "{said:?}");
        assert!(stateway(&lab).log().contains(lost), "{}", stateway(&lab).log());
        assert_eq!(values()?, ["7000", "200"]);
        old_ones_have_ended(&lab)?;
        kill(gateway_and_children(&lab)?.0);
        Ok(())
    });
}

#[test]
fn a_gateway_starts_its_successor_when_an_operator_upgrades_it() {
    beside_others(|| {
        let (lab, _) = strict_router(2, "")?;
        let traffic = Traffic::start(&lab)?;
        let before = flows(stateway(&lab))?;
        let (first, _) = gateway_and_children(&lab)?;
        // A program that is none, and one that does not take over.
        for (program, why) in [("/nowhere/stateway", "can not start"), ("/bin/false", "has ended")]
        {
            let refused = stateway(&lab).command(&["upgrade", "--program", program]).run()?;
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.stderr.contains(why), "{refused:?}");
        }
        // A process that is not the one that was started: the shell does not make way for it.
        let binary = stateway_binary()?;
        let script = format!("#!/bin/sh\n{} \"$@\"\nexit 1\n", binary.display());
        let wrapper = lab.gateway().write_file("wrapper.sh", script.as_bytes())?;
        lab.gateway().program("chmod").args(["755", &wrapper]).check()?;
        let refused = stateway(&lab).command(&["upgrade", "--program", &wrapper]).run()?;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(stateway(&lab).log().contains("only that one may take over"));
        for elements in [&["203.0.113.8"][..], &["203.0.113.9", "timeout", "1h"]] {
            let add = [&["rules", "element", "add", "inet", "strict", "banned"], elements].concat();
            stateway(&lab).command(&add).check()?;
        }
        // A client that asks meanwhile gets an answer.
        let asking = lab.gateway().program("sh").args(["-c", ASKING, "sh", END]);
        let asking = asking
            .env("STATEWAY", &binary.to_string_lossy())
            .env("STATEWAY_SOCKET", Stateway::SOCKET);
        let asking = ready(asking)?;
        for _ in 0..2 {
            let said = stateway(&lab).query(&["upgrade"])?;
            println!("{said}");
            let rules = stateway(&lab).command(&["rules", "list"]).check()?;
            for banned in ["203.0.113.8", "203.0.113.9 timeout 1h"] {
                assert!(rules.contains(banned), "{banned}: {rules}");
            }
            assert!(said["connections"].as_u64() >= Some(before.len() as u64), "{said}");
            assert!(said["frozen_ms"].as_f64() > Some(0.0), "{said}");
            assert_eq!(flows(stateway(&lab))?, before);
        }
        let status = stateway(&lab).command(&["status"]).check()?;
        println!("{status}{}", stateway(&lab).log());
        old_ones_have_ended(&lab)?;
        traffic.finish(&lab)?;
        let asked = asking.finish()?.stdout;
        println!("{asked}");
        assert!(asked.trim_end().ends_with("failed: 0"), "{asked}");
        let (process, _) = gateway_and_children(&lab)?;
        assert_ne!(process, first);
        kill(process);
        Ok(())
    });
}

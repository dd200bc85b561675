//! Chains of prerouting that also keep packets from the host, which only its kernel can run for it.

use lab::{Family, Result, ping};
use serde_json::json;

use crate::scenario::{beside_others, inside, router, ruleset_file, stateway, stop_cleanly};

/// A host that nobody may speak to, by a chain that also judges what is forwarded.
const BANS: &str = r"
table inet guard {
    set banned { type ipv4_addr; elements = { 192.0.2.1 } }
    chain pre {
        type filter hook prerouting priority raw; policy accept;
        ip saddr @banned counter drop
    }
    chain translate {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 192.0.2.254 tcp dport 8080 dnat ip to 198.51.100.2:80
    }
}
";

#[test]
fn a_ban_in_prerouting_is_told_to_need_the_kernel_for_the_host() {
    beside_others(|| {
        let mut lab = router(1)?;
        let host = inside(Family::V4);
        let file = ruleset_file(&lab, "bans.json", BANS)?;
        let loaded = stateway(&lab).command(&["rules", "load", &file]).run()?;
        let warning =
            "NOBODY RUNS inet guard chain pre (hook prerouting, policy accept) FOR THIS HOST";
        assert!(loaded.code == Some(0) && loaded.stderr.contains(warning), "{loaded:?}");
        let remark = "chain pre { # NOBODY RUNS IT FOR THIS HOST: only its kernel can";
        let done = |args: &[&str]| -> Result<String> { stateway(&lab).command(args).check() };
        let list = || done(&["rules", "list"]);
        assert!(list()?.contains(remark), "{}", list()?);
        let address = host.parse().expect("an address");
        let ping = || ping(lab.on_client("ping"), address, 3);
        assert_eq!(ping()?.received, 3, "the kernel has its own copy");
        let question = format!("tcp 192.0.2.1 {host}:22 in lan0 state new");
        let explained = done(&["rules", "explain", &question])?;
        assert!(explained.contains("not kept from this host"), "{explained}");
        let question = question.replace(":22", ":8080");
        let explained = done(&["rules", "explain", &question])?;
        assert!(explained.contains("dropped in prerouting (untracked)"), "{explained}");
        lab.gateway().load_rules(BANS)?;
        assert_eq!(ping()?.received, 0);
        assert!(list()?.contains("only its kernel runs it, and has it"), "{}", list()?);
        assert_eq!(stateway(&lab).query(&["status"])?["warnings"], json!([]));
        stop_cleanly(&mut lab)
    });
}

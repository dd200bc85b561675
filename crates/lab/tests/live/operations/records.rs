//! Connections that are saved and taken over by another gateway.

use lab::{Family, FileProtocol, FileServer, Lab, Namespace, Result, StatewaySpec};

use crate::scenario::{
    FAMILIES, FTP_SESSIONS, StatewayLab, TALKS, beside_others, conntrack_counter, echo,
    gateway_and_children, kill, nat_rules, router_spec, start, start_in, stateway,
};

/// The number of connections that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 40;
/// The length of a file in bytes.
const BYTES: usize = 300_000;

/// No connection is picked up from its middle, and data connections of FTP have to be announced. A set
/// knows who has opened connections.
const STRICT: &str = "
table inet strict {
    set clients {
        typeof ip saddr
        flags dynamic,timeout
        timeout 10m
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state invalid drop
        ct state new tcp flags & (fin | syn | rst | ack) != syn drop
        ct state new tcp dport != { 21, 7000 } drop
        ct state new add @clients { ip saddr }
    }
}";

/// Keeps the kernel of the gateway's host from answering while no gateway runs.
const QUIET: &str = "
table inet quiet {
    chain in {
        type filter hook prerouting priority -350; policy drop;
        meta l4proto ipv6-icmp accept
        iifname \"lo\" accept
    }
}";

/// Logs in, gets a file with an active data connection, and does so again when the file `end` exists.
/// Two more sessions announce a data connection before that, an active and a passive one, and use it
/// afterwards.
const FTP: &str = "
ftp, active, passive = [session(False) for _ in range(3)]
def get():
    parts = []
    ftp.retrbinary('RETR payload.bin', parts.append)
    return sum(map(len, parts))
first = get()
listener = active.makeport()
place = passive.makepasv()
print('talking', flush=True)
while not os.path.exists(end): time.sleep(0.05)
active.sendcmd('RETR payload.bin')
by_server = read(active, listener.accept()[0])
connection = socket.create_connection(place, 6)
passive.sendcmd('RETR payload.bin')
by_client = read(passive, connection)
print('got:', first, by_server, by_client, get(), flush=True)
";

/// A masquerading router that picks nothing up, with its process, and the way to start another one
/// like it.
fn strict_router() -> Result<(StatewayLab, u32, StatewaySpec)> {
    let rules = nat_rules(&[], "masquerade") + STRICT;
    let more = "[[helper]]\nname = \"ftp\"\n".to_owned();
    let spec = StatewaySpec { ruleset: Some(rules), more, ..router_spec(2)? };
    let lab = start(spec.clone())?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    let (process, _) = gateway_and_children(&lab)?;
    // The other one reads the same file, because nft would now print the next table too.
    let file = format!("\n[rules]\nfile = \"{}/rules.json\"\n", Namespace::SCRATCH);
    let spec = StatewaySpec { ruleset: None, more: spec.more.clone() + &file, ..spec };
    lab.gateway().load_rules(QUIET)?;
    Ok((lab, process, spec))
}

/// Kills the gateway of the lab.
fn kill_gateway(lab: &mut Lab, process: u32) -> Result<()> {
    kill(process);
    let killed = lab.take_stateway().expect("the lab has a Stateway");
    assert_ne!(killed.stop()?.code, Some(0), "it was killed");
    Ok(())
}

/// The output of the two programs, after another gateway has taken the place of the first one. It loads
/// the connections of the first one if `loads`.
fn said_after_exchange(loads: bool) -> Result<(String, String)> {
    let (mut lab, process, spec) = strict_router()?;
    let _server = echo(lab.server(), 7000)?;
    let _files = FileServer::start(&lab, FileProtocol::Ftp, Family::V4, BYTES)?;
    let [v4, v6] = FAMILIES.map(|family| lab.server_address(family).to_string());
    let end = format!("{}/end", Namespace::SCRATCH);
    let half = (CONNECTIONS / 2).to_string();
    let mut talks = lab.on_client("python3").args(["-c", TALKS, &end, &half, &v4, &v6]).spawn()?;
    talks.wait_for_text("talking")?;
    let script = FTP_SESSIONS.to_owned() + FTP;
    let mut transfer = lab.on_client("python3").args(["-c", &script, &end, &v4]).spawn()?;
    transfer.wait_for_text("talking")?;
    let file = format!("{}/connections", Namespace::SCRATCH);
    let said = stateway(&lab).command(&["conntrack", "save", &file]).run()?;
    assert_eq!(said.code, Some(0), "{said:?}");
    kill_gateway(&mut lab, process)?;
    let new = start_in(lab.gateway(), &spec)?;
    if loads {
        let said = new.command(&["conntrack", "load", &file]).run()?;
        assert_eq!(said.code, Some(0), "{said:?}");
        // The server opens an active data connection as soon as it is announced, so only the passive
        // one is still expected. The element is the client in the set.
        let taken = said.stderr.contains("1 announcement and 1 element taken over");
        // If the gateway dies before the client's last acknowledgment, the server sends its
        // announcement again, perhaps while the other gateway loads.
        let heard_again =
            said.stderr.contains("0 announcements and 1 element taken over\n  1 not: ");
        assert!(taken || heard_again, "{said:?}");
        let counted = new.query(&["conntrack", "stats"])?;
        let imported = counted["totals"]["imported"].as_u64();
        assert!(imported >= Some(CONNECTIONS as u64 + 1), "{counted}");
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    lab.client().write_file("end", b"")?;
    let said = (talks.finish()?.stdout, transfer.finish()?.stdout);
    println!("log of the second gateway:\n{}", new.log());
    new.stop()?;
    Ok(said)
}

#[test]
fn connections_go_on_at_a_gateway_that_loads_them_after_a_crash() {
    beside_others(|| {
        let (talks, transfer) = said_after_exchange(true)?;
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        assert_eq!(
            transfer.lines().last(),
            Some(&*format!("got: {BYTES} {BYTES} {BYTES} {BYTES}")),
            "{transfer}"
        );
        Ok(())
    });
}

#[test]
fn connections_end_at_a_gateway_that_loads_none() {
    beside_others(|| {
        let (talks, transfer) = said_after_exchange(false)?;
        assert_eq!(talks.lines().last(), Some("well: 0"), "{talks}");
        assert!(!transfer.contains("got:"), "{transfer}");
        Ok(())
    });
}

#[test]
fn what_is_no_file_of_connections_changes_nothing() {
    beside_others(|| {
        let lab = start(router_spec(2)?)?;
        let gateway = stateway(&lab);
        let file = |name: &str, bytes: &[u8]| lab.gateway().write_file(name, bytes);
        let load = |file: &str| gateway.command(&["conntrack", "load", file]).run();
        let empty = file("empty", b"")?;
        let other = file("other", b"udp 17 29 src=192.0.2.1")?;
        let missing = format!("{}/missing", Namespace::SCRATCH);
        for (file, what) in [(&empty, "no file"), (&other, "no file"), (&missing, "can not read")] {
            let said = load(file)?;
            assert_eq!(said.code, Some(2), "{said:?}");
            assert!(said.stderr.contains(what), "{said:?}");
        }
        let saved = format!("{}/saved", Namespace::SCRATCH);
        gateway.command(&["conntrack", "save", &saved]).check()?;
        assert_eq!(load(&saved)?.code, Some(0));
        // It tells who has talked to whom, so nobody else may read it.
        let mode = lab.gateway().program("stat").args(["-c", "%a", &saved]).check()?;
        assert_eq!(mode.trim(), "600");
        // A file that can not be written leaves nothing behind.
        let said = gateway.command(&["conntrack", "save", "/nowhere/saved"]).run()?;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert_eq!(conntrack_counter(&lab, "import_refused")?, 0);
        Ok(())
    });
}

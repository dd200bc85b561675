//! Counters and listings of the gateway in a lab, and of the kernels around it.

use lab::{ConntrackLine, Lab, Result, Stateway};

/// The gateway that runs in a lab.
pub fn stateway(lab: &Lab) -> &Stateway {
    lab.stateway().expect("the lab has a Stateway that runs")
}

/// The number of packets that were dropped for a reason.
pub fn drops(stateway: &Stateway, reason: &str) -> Result<u64> {
    let answer = stateway.query(&["drops"])?;
    let all = answer["drops"].as_array().expect("a list of reasons");
    let found = all.iter().find(|entry| entry["name"] == reason);
    let found = found.unwrap_or_else(|| panic!("no reason {reason} in {answer}"));
    Ok(found["count"].as_u64().expect("a number"))
}

/// A counter of connection tracking, the sum of all workers.
pub fn conntrack_counter(lab: &Lab, name: &str) -> Result<u64> {
    let stats = stateway(lab).query(&["conntrack", "stats"])?;
    Ok(stats["totals"][name].as_u64().expect("a number"))
}

/// The connections, as the kernel's tool prints them.
pub fn table(lab: &Lab) -> Result<Vec<ConntrackLine>> {
    let text = stateway(lab).command(&["conntrack", "list", "-o", "conntrack"]).check()?;
    Ok(ConntrackLine::parse_all(&text))
}

/// The gateway's process number and the number of tables that it has made, read from the name of
/// the only table in its kernel.
pub fn own_table(lab: &Lab) -> Result<(u64, u64)> {
    let tables = lab.gateway().program("nft").args(["list", "tables"]).check()?;
    let numbers = own_tables(&tables);
    assert_eq!((numbers.len(), tables.lines().count()), (1, 1), "{tables}");
    Ok(numbers[0])
}

/// The same numbers for each of the gateway's tables.
pub fn own_tables(tables: &str) -> Vec<(u64, u64)> {
    let numbers = |line: &str| {
        let (process, table) = line.strip_prefix("table inet stateway_")?.split_once('_')?;
        Some((process.parse().ok()?, table.parse().ok()?))
    };
    tables.lines().filter_map(numbers).collect()
}

/// The number of answers that the gateway's host has sent to packets of other connections: resets,
/// and datagrams for closed ports.
pub fn answers_of_host(lab: &Lab) -> Result<[u64; 2]> {
    let mut sums = [0; 2];
    let text = lab.gateway().program("cat").args(["/proc/net/snmp", "/proc/net/snmp6"]).check()?;
    let lines: Vec<Vec<&str>> = text.lines().map(|it| it.split_whitespace().collect()).collect();
    for (names, values) in lines.iter().zip(lines.iter().skip(1)) {
        if names.first() != values.first() {
            continue;
        }
        for (name, value) in names.iter().zip(values) {
            match (names[0], *name) {
                ("Tcp:", "OutRsts") => sums[0] += value.parse::<u64>().expect("a number"),
                ("Udp:", "NoPorts") => sums[1] += value.parse::<u64>().expect("a number"),
                _ => {}
            }
        }
    }
    for line in &lines {
        if let ["Udp6NoPorts", value] = line[..] {
            sums[1] += value.parse::<u64>().expect("a number");
        }
    }
    Ok(sums)
}

/// The number of echo requests of IPv4 and of IPv6 that have reached the server, through the
/// gateway or the kernel.
pub fn echos_at_server(lab: &Lab) -> Result<[u64; 2]> {
    let text = lab.server().program("cat").args(["/proc/net/snmp"]).check()?;
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let v4 = both.find(|(name, _)| *name == "InEchos").unwrap().1.parse().unwrap();
    let text = lab.server().program("cat").args(["/proc/net/snmp6"]).check()?;
    let v6 = text.lines().find_map(|line| line.strip_prefix("Icmp6InEchos"));
    Ok([v4, v6.unwrap().trim().parse().unwrap()])
}

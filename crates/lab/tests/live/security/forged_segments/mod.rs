//! Segments and errors forged against TCP connections, with the kernel's tracker as the model. The
//! test compares which of them reach the host inside, and their effect on the connection.

mod flows;

use std::collections::BTreeMap;

use lab::{Random, Result, Side};
use wire::build::PacketBuilder;

use self::flows::{Crossing, FIRST_PORT, Flow, Forgery, RULES, State, port_of};
use crate::scenario::beside_others;
use crate::scenario::cables::{CLIENT, Router, SERVER, Sent};

/// The number of connections for each crossing, state and forgery, unless `STATEWAY_SEEDS` gives
/// another.
const EACH: usize = 6;
/// The upper limit of that number. Each connection needs a port that both gateways keep.
const MOST: usize = 50;
/// The largest number of frames between two marks; a receive ring holds more.
const BURST: usize = 100;
/// The tolerance in seconds: the kernel reports whole seconds, and the gateways are queried one
/// after the other.
const SLACK_S: u64 = 5;
/// A timer counts as shortened if it is shorter than before by this factor.
const SHORTENED: u64 = 2;
/// The timeout of an entry after a reset, in seconds: longer than a busy machine takes for the
/// test.
const CLOSE: &str = "nf_conntrack_tcp_timeout_close";
const CLOSE_S: u64 = 20;

fn flows() -> Vec<Flow> {
    let wanted = std::env::var("STATEWAY_SEEDS").ok().and_then(|it| it.parse().ok());
    let each = wanted.map_or(EACH, |it: usize| it.min(MOST));
    let (mut random, mut port) = (Random::new(15), FIRST_PORT);
    let mut flows = Vec::new();
    for state in State::ALL {
        for forgery in Forgery::ALL {
            for crossing in Crossing::ALL {
                for _ in 0..each {
                    flows.push(Flow::new(&mut random, crossing, state, forgery, port));
                    port += 1;
                }
            }
        }
    }
    flows
}

/// The entry of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    state: String,
    left_s: u64,
}

/// The outcome for a connection.
#[derive(Clone, Debug, Default)]
struct Fate {
    before: Option<Entry>,
    /// True if the forgery reached the host inside.
    arrives: bool,
    after: Option<Entry>,
    /// True if a segment of the ends after the forgery was lost.
    dies: bool,
}

impl Fate {
    fn state_changes(&self) -> bool {
        let state = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.state.clone());
        state(&self.before) != state(&self.after)
    }

    /// True if the forgery reset the connection or removed its entry.
    fn ends(&self) -> bool {
        let is_over = |entry: &Option<Entry>| entry.as_ref().is_none_or(|it| it.state == "CLOSE");
        is_over(&self.after) && !is_over(&self.before)
    }

    fn left_s(&self) -> u64 {
        self.after.as_ref().map_or(0, |entry| entry.left_s)
    }

    fn is_shortened(&self) -> bool {
        let before = self.before.as_ref().map_or(0, |entry| entry.left_s);
        self.left_s() * SHORTENED < before
    }
}

/// The entries of a listing by the source port of the opener.
fn entries(listed: &str) -> BTreeMap<u16, Entry> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = words.iter().find_map(|word| word.strip_prefix("sport="))?.parse().ok()?;
        let left_s = words.get(2)?.parse().ok()?;
        Some((port, Entry { state: (*words.get(3)?).to_owned(), left_s }))
    };
    listed.lines().filter(|line| line.starts_with("tcp")).filter_map(entry).collect()
}

/// A frame of a separate connection that the router forwards.
fn mark(side: Side, number: &mut u64) -> Sent {
    *number += 1;
    let (from, to, ports) = match side {
        Side::Client => (CLIENT, SERVER, (7, 9)),
        Side::Server => (SERVER, CLIENT, (9, 7)),
    };
    let payload = [&[0; 24][..], &number.to_be_bytes()].concat();
    let mut frame = Vec::new();
    PacketBuilder::v4(from, to).udp(ports.0, ports.1, &payload, &mut frame);
    Sent { side, frame }
}

/// Sends the frames of all connections. Each turn of every connection comes before the next turn of
/// any. Counts the frames that came out, by connection and side.
fn play(router: &Router, turns: &[Vec<&Sent>]) -> Result<BTreeMap<(u16, bool), usize>> {
    let mut number = 0;
    let mut orders = vec![(mark(Side::Client, &mut number), true)];
    for sent in turns {
        for side in [Side::Client, Side::Server] {
            let of_side: Vec<_> = sent.iter().filter(|sent| sent.side == side).collect();
            for burst in of_side.chunks(BURST) {
                orders.extend(burst.iter().map(|sent| ((**sent).clone(), false)));
                orders.push((mark(side, &mut number), true));
            }
        }
    }
    let mut came = BTreeMap::new();
    for Sent { side, frame } in router.burst(&orders)? {
        if let Some(port) = port_of(&frame) {
            *came.entry((port, side == Side::Client)).or_default() += 1;
        }
    }
    Ok(came)
}

/// For each n, the n-th frame of each connection.
fn turns(flows: &[Flow], said: fn(&Flow) -> &[Sent]) -> Vec<Vec<&Sent>> {
    let most = flows.iter().map(|flow| said(flow).len()).max().unwrap_or(0);
    (0..most).map(|turn| flows.iter().filter_map(|flow| said(flow).get(turn)).collect()).collect()
}

/// Opens the connections, sends the forgeries and then the rest of the traffic.
fn fates(router: &Router, flows: &[Flow], list: impl Fn() -> Result<String>) -> Result<Vec<Fate>> {
    let opened = play(router, &turns(flows, |flow| &flow.before))?;
    for flow in flows {
        let came: usize =
            [true, false].iter().filter_map(|side| opened.get(&(flow.port, *side))).sum();
        assert_eq!(came, flow.before.len(), "{:?} {:?}", flow.crossing, flow.state);
    }
    let before = entries(&list()?);
    let forged = play(router, &turns(flows, |flow| std::slice::from_ref(&flow.forged)))?;
    let after = entries(&list()?);
    let used = play(router, &turns(flows, |flow| &flow.after))?;
    Ok(flows
        .iter()
        .map(|flow| {
            // Each side is counted beside_others, because the kernel's host answers packets to its own
            // addresses.
            let dies = [Side::Client, Side::Server].iter().any(|side| {
                let sent = flow.after.iter().filter(|sent| sent.side != *side).count();
                used.get(&(flow.port, *side == Side::Client)).is_none_or(|came| *came < sent)
                    && sent > 0
            });
            Fate {
                before: before.get(&flow.port).cloned(),
                arrives: forged.contains_key(&(flow.port, true)),
                after: after.get(&flow.port).cloned(),
                dies,
            }
        })
        .collect())
}

/// The number of cases, and for both gateways how many forgeries arrived, changed the state,
/// shortened the timer and killed the connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    all: usize,
    fates: [[usize; 4]; 2],
}

fn table(flows: &[Flow], ours: &[Fate], theirs: &[Fate]) -> BTreeMap<(State, Forgery), Counts> {
    let mut table = BTreeMap::<_, Counts>::new();
    for ((flow, ours), theirs) in flows.iter().zip(ours).zip(theirs) {
        let counts = table.entry((flow.state, flow.forgery)).or_default();
        counts.all += 1;
        for (counts, fate) in counts.fates.iter_mut().zip([ours, theirs]) {
            let all = [fate.arrives, fate.state_changes(), fate.is_shortened(), fate.dies];
            counts.iter_mut().zip(all).for_each(|(count, is)| *count += usize::from(is));
        }
    }
    table
}

fn print(table: &BTreeMap<(State, Forgery), Counts>) {
    println!("ours/kernel's: arrives, state changes, timer shortened, dies");
    for ((state, forgery), Counts { all, fates: [ours, theirs] }) in table {
        let cells: Vec<_> =
            ours.iter().zip(theirs).map(|(ours, theirs)| format!("{ours}/{theirs}")).collect();
        println!("{:11} {forgery:24} of {all}: {}", state.name(), cells.join("  "));
    }
}

#[test]
fn forged_segments_harm_a_connection_no_more_than_with_the_kernel() {
    beside_others(|| {
        let flows = flows();
        let router = Router::new()?;
        router.namespace.load_rules(RULES)?;
        router.namespace.sysctl([&format!("net.netfilter.{CLOSE}={CLOSE_S}")])?;
        let listed = || router.namespace.program("conntrack").args(["-L"]).check();
        let theirs = fates(&router, &flows, listed)?;
        router.namespace.flush_rules()?;
        let stateway = router.stateway_with_rules(RULES, &format!("{CLOSE} = {CLOSE_S}"))?;
        let listed = || stateway.command(&["conntrack", "list", "-o", "conntrack"]).check();
        let ours = fates(&router, &flows, listed)?;
        let table = table(&flows, &ours, &theirs);
        print(&table);
        let mut worse = Vec::new();
        for ((flow, ours), theirs) in flows.iter().zip(&ours).zip(&theirs) {
            for fate in [ours, theirs] {
                let before = fate.before.as_ref().map(|entry| entry.state.as_str());
                assert_eq!(before, Some(flow.state.name()), "{:?}", flow.crossing);
            }
            // Nor may an attacker end a connection without knowing its numbers.
            let is_ended = flow.forgery.is_blind() && flow.state.is_used() && ours.ends();
            let is_killed = flow.forgery.is_blind() && !flow.is_opened_again() && ours.dies;
            let is_worse = is_ended
                || is_killed
                || ours.arrives && !theirs.arrives
                || ours.state_changes() && !theirs.state_changes()
                || ours.left_s() + SLACK_S < theirs.left_s()
                || ours.dies && !theirs.dies;
            if is_worse {
                let Flow { crossing, state, forgery, .. } = flow;
                worse.push(format!(
                    "{crossing:?} {} {forgery}:\n  kernel {theirs:?}\n  ours   {ours:?}",
                    state.name()
                ));
            }
        }
        assert!(
            worse.is_empty(),
            "{} of {}:\n{}",
            worse.len(),
            flows.len(),
            worse[..worse.len().min(12)].join("\n")
        );
        stateway.stop().map(drop)
    });
}

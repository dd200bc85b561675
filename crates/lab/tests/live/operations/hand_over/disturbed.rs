//! One of the two processes ends in the midst of a hand-over, or says nonsense.

use lab::{Background, Family, Lab, Namespace, Placement, Result, Stateway, StatewaySpec};

use super::{Traffic, flows, hand_over, strict_router};
use crate::scenario::{beside_others, ready, stateway, stateway_binary, stop_cleanly};

/// Stands between the two processes: listens on a socket of its own, passes all messages and
/// descriptors on, and does something when one of them sends a message of a kind for the first time,
/// before that is passed on.
const BETWEEN: &str = include_str!("between.py");

/// Kinds of messages, in their order.
const OFFER: u8 = 1;
const CONTROL: u8 = 3;
const BEGIN: u8 = 4;
const RECORDS: u8 = 5;
const MARK: u8 = 6;
const REACHED: u8 = 7;
const FROZEN: u8 = 8;
const QUEUE: u8 = 9;
const READY: u8 = 10;
const GO: u8 = 11;
const RUNNING: u8 = 12;

/// Tries to hand over, and has the process in the middle do something at a message. Returns the new
/// process and the one in the middle.
fn disturbed(
    lab: &Lab,
    spec: &StatewaySpec,
    kind: u8,
    what: &str,
) -> Result<(Stateway, Background)> {
    between(lab, spec, kind, &[what])
}

/// The same, with what the process in the middle does and a command for it to run.
fn between(
    lab: &Lab,
    spec: &StatewaySpec,
    kind: u8,
    what: &[&str],
) -> Result<(Stateway, Background)> {
    let own = format!("{}/between-{kind}-{}.sock", Namespace::SCRATCH, what[0]);
    let between = lab.gateway().program("python3");
    let kind = kind.to_string();
    let between = ready(between.args(["-c", BETWEEN, Stateway::SOCKET, &own, &kind]).args(what))?;
    let args = ["--take-over", "--socket", &own];
    Ok((Stateway::spawn(lab.gateway(), spec, &Placement::free(), &args)?, between))
}

#[test]
fn the_running_gateway_goes_on_if_the_new_one_ends_or_says_nonsense() {
    beside_others(|| {
        let (lab, spec) = strict_router(2, "")?;
        let traffic = Traffic::start(&lab)?;
        let before = flows(stateway(&lab))?;
        let mut tries =
            vec![(REACHED, "garbage"), (READY, "garbage"), (FROZEN, "garbage"), (BEGIN, "cut")];
        tries.extend(
            [OFFER, CONTROL, BEGIN, RECORDS, REACHED, FROZEN, QUEUE, READY, GO]
                .map(|kind| (kind, "new")),
        );
        for (kind, what) in tries {
            let (new, between) = disturbed(&lab, &spec, kind, what)?;
            let new = new.finish()?;
            println!("{kind} {what}: {}\n{}", new.stdout, stateway(&lab).log());
            assert_ne!(new.code, Some(0), "{kind} {what}: {}", new.stdout);
            between.finish()?;
            assert_eq!(flows(stateway(&lab))?, before, "after {kind} {what}");
            let log = stateway(&lab).log();
            assert!(
                log.lines().last().is_some_and(|it| it.contains("was not taken over")),
                "{log}"
            );
        }
        // A hand-over succeeds after all of these.
        let mut lab = {
            let lab = hand_over(lab, &spec)?;
            assert_eq!(flows(stateway(&lab))?, before);
            lab
        };
        traffic.finish(&lab)?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn the_new_process_ends_or_goes_on_alone_if_the_running_gateway_dies() {
    beside_others(|| {
        // Behind the control socket, the new process asks for settings and elements.
        for kind in [OFFER, CONTROL, RECORDS, FROZEN, READY] {
            let (mut lab, spec) = strict_router(2, "")?;
            let traffic = Traffic::start(&lab)?;
            let before = flows(stateway(&lab))?;
            let (mut new, _between) = disturbed(&lab, &spec, kind, "old")?;
            let old = lab.take_stateway().expect("it runs").finish()?;
            assert_eq!(old.code, None, "it was killed: {}", old.stdout);
            if kind == READY {
                new.wait_for_text("stateway: ready")?;
                println!("{}", new.log());
                lab.put_stateway(new);
                assert_eq!(flows(stateway(&lab))?, before);
                traffic.finish(&lab)?;
                stop_cleanly(&mut lab)?;
            } else {
                let new = new.finish()?;
                println!("{kind}: {}", new.stdout);
                assert_eq!(new.code, Some(1), "{}", new.stdout);
                assert!(new.stdout.contains("the other process has ended"), "{}", new.stdout);
            }
        }
        Ok(())
    });
}

/// The bug of elements that an operator added after the new process had asked for them, and of tunables.
#[test]
fn changes_of_an_operator_meanwhile_are_not_lost() {
    beside_others(|| {
        let binary = stateway_binary()?;
        for kind in [BEGIN, MARK] {
            let (mut lab, spec) = strict_router(2, "")?;
            let script = format!(
                "set -e; export STATEWAY_SOCKET={socket}; add='rules element add inet strict banned'
                 '{0}' $add 203.0.113.8; '{0}' $add 203.0.113.9 timeout 1h
                 '{0}' tunable set nf_conntrack_udp_timeout 77",
                binary.display(),
                socket = Stateway::SOCKET,
            );
            let asks = ["ask", "sh", "-c", &script];
            let (mut new, _between) = between(&lab, &spec, kind, &asks)?;
            let old = lab.take_stateway().expect("it runs");
            let is_ready = new.wait_for_text("stateway: ready");
            println!("old:\n{}\nnew:\n{}", old.log(), new.log());
            is_ready?;
            assert_eq!(old.finish()?.code, Some(0));
            lab.put_stateway(new);
            let rules = stateway(&lab).command(&["rules", "list"]).check()?;
            for banned in ["203.0.113.8", "203.0.113.9 timeout 1h"] {
                assert!(rules.contains(banned), "{banned}: {rules}");
            }
            let get = ["tunable", "get", "nf_conntrack_udp_timeout"];
            assert_eq!(stateway(&lab).command(&get).check()?.trim_end(), "77");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Sends a packet every 2 ms until it is stopped.
const FLOOD: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print('ready', flush=True)
while True:
    s.sendto(b'x', (sys.argv[1], 7008))
    time.sleep(0.002)
";

/// The new process has read packets, so the running one can not go on with the slot of the ring that
/// it had before.
#[test]
fn the_running_gateway_receives_again_if_the_new_one_dies_after_it_has_received() {
    beside_others(|| {
        let (lab, spec) = strict_router(2, "")?;
        let server = lab.server_address(Family::V4).to_string();
        let _flood = ready(lab.on_client("python3").args(["-c", FLOOD, &server]))?;
        let pass = || {
            let ping = ["-q", "-c", "50", "-i", "0.005", "-W", "10", &server];
            lab.on_client("ping").args(ping).check().map(drop)
        };
        pass()?;
        for _ in 0..4 {
            let (new, between) = disturbed(&lab, &spec, RUNNING, "new")?;
            assert_ne!(new.finish()?.code, Some(0));
            between.finish()?;
            let log = stateway(&lab).log();
            assert!(
                log.lines().last().is_some_and(|it| it.contains("was not taken over")),
                "{log}"
            );
            // All of them are answered, and each comes once.
            pass()?;
        }
        let mut lab = hand_over(lab, &spec)?;
        let ping = ["-q", "-c", "50", "-i", "0.005", "-W", "10", &server];
        lab.on_client("ping").args(ping).check()?;
        stop_cleanly(&mut lab)
    });
}

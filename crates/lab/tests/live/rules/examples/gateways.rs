//! A gateway and the far ends of its cables. One program plays all hosts behind them.

use std::time::Duration;

use lab::{Namespace, Result, StatewaySpec};
use serde_json::{Value, json};

use super::differences::is_left_silent;
use super::sites::Site;
use crate::scenario::cables::player;
use crate::scenario::{router_spec, start_in};

/// The frames that each step of a talk caused.
pub type Steps = Vec<Vec<Frame>>;

/// A frame that arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub at: String,
    pub what: String,
    /// The source and the destination, and those of the packet that it quotes.
    pub ends: Vec<(String, u16)>,
}

/// The outcome of all talks through a gateway.
pub struct Outcome {
    pub talks: Vec<Steps>,
    /// The listing of the ruleset before and after.
    pub before: String,
    pub after: Value,
}

/// The gateway's namespace, without rules.
fn world(site: &Site) -> Result<Namespace> {
    let namespace = Namespace::new("world")?;
    let (mut links, mut sysctls) = (Vec::new(), Vec::new());
    for (number, cable) in site.cables.iter().enumerate() {
        let name = cable.name;
        links.push(format!(
            "link add {name} address 00:00:5e:00:53:1{number} type veth peer name far-{name}"
        ));
        links.push(format!("link set far-{name} multicast off addrgenmode none up"));
        links.push(format!("link set {name} multicast off up"));
        for address in cable.addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            links.push(format!("addr add {address} dev {name}{nodad}"));
        }
        for host in cable.hosts {
            let neighbour = format!("lladdr 02:00:5e:00:53:01 dev {name} nud permanent");
            links.push(format!("neigh add {host} {neighbour}"));
        }
        sysctls.push(format!("net.ipv4.conf.{name}.rp_filter=0"));
        sysctls.push(format!("net.ipv4.conf.{name}.send_redirects=0"));
    }
    links.extend(site.routes.iter().map(|route| format!("route add {route}")));
    namespace.ip(&links.iter().map(String::as_str).collect::<Vec<_>>())?;
    sysctls.extend(
        [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.all.send_redirects=0",
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv4.icmp_msgs_per_sec=100000",
            "net.ipv4.icmp_msgs_burst=100000",
            "net.ipv6.icmp.ratelimit=0",
        ]
        .map(str::to_owned),
    );
    namespace.sysctl(sysctls)?;
    Ok(namespace)
}

fn play(
    namespace: &Namespace,
    site: &Site,
    talks: &[Value],
    elsewhere: Option<&[Steps]>,
) -> Result<Vec<Steps>> {
    let interfaces: Vec<_> = site.cables.iter().map(|cable| cable.name).collect();
    let expected = elsewhere.map(|talks| {
        let step = |frames: &Vec<Frame>| {
            let (optional, due): (Vec<_>, Vec<_>) =
                frames.iter().partition(|frame| is_left_silent(site, frame));
            let optional: Vec<_> = optional.into_iter().map(json_of).collect();
            json!({"count": due.len(), "optional": optional})
        };
        let expected = |steps: &Steps| steps.iter().map(step).collect::<Vec<_>>();
        talks.iter().map(expected).collect::<Vec<_>>()
    });
    let order = json!({"interfaces": interfaces, "talks": talks, "expected": expected});
    let order = namespace.write_file("order.json", order.to_string().as_bytes())?;
    let hosts = player(namespace, include_bytes!("hosts.py"))?.args([order]);
    let output = hosts.limit(Duration::from_secs(60)).check()?;
    let steps = |line: &str| {
        let steps: Vec<Vec<Value>> = serde_json::from_str(line).expect("a list of steps");
        steps.iter().map(|frames| frames.iter().map(frame).collect()).collect()
    };
    Ok(output.lines().map(steps).collect())
}

fn frame(entry: &Value) -> Frame {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let ends = entry["ends"].as_array().expect("a list");
    let end = |pair: &[Value]| (text(&pair[0]), pair[1].as_u64().expect("a port") as u16);
    Frame {
        at: text(&entry["at"]),
        what: text(&entry["what"]),
        ends: ends.chunks(2).map(end).collect(),
    }
}

/// A frame as the player prints it.
fn json_of(frame: &Frame) -> Value {
    let ends = frame.ends.iter().flat_map(|(address, port)| [json!(address), json!(port)]);
    json!({"at": frame.at, "what": frame.what, "ends": ends.collect::<Vec<_>>()})
}

/// Runs the talks with the kernel as the gateway.
pub fn kernel(site: &Site, rules: &str, talks: &[Value]) -> Result<Outcome> {
    kernel_with(site, |namespace| namespace.load_rules(rules), talks)
}

/// The same with rules that `load` gives the kernel.
pub fn kernel_with(
    site: &Site,
    load: impl Fn(&Namespace) -> Result<()>,
    talks: &[Value],
) -> Result<Outcome> {
    let namespace = world(site)?;
    load(&namespace)?;
    let before = namespace.listed_rules()?;
    let talks = play(&namespace, site, talks, None)?;
    let after = serde_json::from_str(&namespace.listed_rules()?).expect("nft prints JSON");
    Ok(Outcome { talks, before, after })
}

/// Runs the talks with Stateway as the gateway. It has the rules as nft prints them, and its host's
/// kernel has `rules`.
pub fn ours(
    site: &Site,
    rules: &str,
    printed: &str,
    talks: &[Value],
    elsewhere: &[Steps],
) -> Result<Outcome> {
    ours_with(site, |namespace| namespace.load_rules(rules), printed, talks, elsewhere)
}

/// The same with the text of a ruleset, and with rules that `load` gives the host's kernel.
pub fn ours_with(
    site: &Site,
    load: impl Fn(&Namespace) -> Result<()>,
    ruleset: &str,
    talks: &[Value],
    elsewhere: &[Steps],
) -> Result<Outcome> {
    let namespace = world(site)?;
    // A host that forwarded by itself before has these rules. They also judge the packets that the
    // gateway leaves to the host.
    load(&namespace)?;
    let file = namespace.write_file("ruleset", ruleset.as_bytes())?;
    let spec = StatewaySpec {
        interfaces: site.cables.iter().map(|cable| cable.name.to_owned()).collect(),
        // The same as the kernel's `rp_filter` here: some talks begin with spoofed sources.
        gateway: "rp_filter = \"off\"\n".to_owned(),
        more: format!("[rules]\nfile = \"{file}\"\n"),
        ..router_spec(2)?
    };
    let gateway = start_in(&namespace, &spec)?;
    let talks = play(&namespace, site, talks, Some(elsewhere))?;
    let after = gateway.query(&["rules", "list"])?;
    let output = gateway.stop()?;
    assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
    Ok(Outcome { talks, before: ruleset.to_owned(), after })
}

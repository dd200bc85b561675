//! The known differences between the kernel's answers and ours, with their reasons.

use serde_json::Value;

use super::gateways::Frame;
use super::sites::Site;

/// The prefix of packets that a host sends itself.
const OWN: &str = "64 hops ";

/// True for a refusal by the host that is missing behind our gateway. The gateway keeps the host
/// from answering packets that may be replies to translated sources, or that rules send elsewhere.
pub fn is_left_silent(site: &Site, frame: &Frame) -> bool {
    let Some(what) = frame.what.strip_prefix(OWN) else { return false };
    // No such port, or a refusal by its input chains.
    let refusals = ["icmp 3 3 ", "icmp 1 4 ", "icmp 3 13 ", "icmp 1 1 "];
    let asked = if refusals.iter().any(|refusal| what.starts_with(refusal)) {
        frame.ends.get(3)
    } else {
        what.starts_with("tcp").then(|| &frame.ends[0])
    };
    asked.is_some_and(|(address, port)| {
        let translated = site.choices.iter().any(|it| it.ports.is_some() && it.has(address));
        translated && *port >= 1024 || site.forwarded.contains(&address.as_str())
    })
}

/// The frame that ours sends in place of this frame of the kernel's.
pub fn as_ours(site: &Site, talk: &Value, frame: &Frame) -> Frame {
    let mut frame = frame.clone();
    let is_error = frame.what.starts_with("64 hops icmp") && frame.ends.len() == 4;
    if !is_error || Some(frame.ends[2].0.as_str()) != talk["from"].as_str() {
        return frame;
    }
    let asker = talk["at"].as_str().expect("a name");
    // Ours sends a refusal to the interface where the packet came in. The kernel follows the route
    // to the source, which is spoofed if that leads elsewhere.
    let spoofed = frame.at != asker;
    // The kernel's error comes from the destination that the packet had before translation; ours
    // comes from the gateway's address.
    let translated = frame.ends[0].0 == frame.ends[3].0;
    if spoofed || translated {
        asker.clone_into(&mut frame.at);
        let cable = site.cables.iter().find(|cable| cable.name == asker).expect("there is one");
        let is_v6 = frame.ends[1].0.contains(':');
        let own = cable.addresses.iter().find(|address| address.contains(':') == is_v6);
        let own = own.and_then(|it| it.split('/').next()).expect("an address of the family");
        frame.ends[0].0 = own.to_owned();
    }
    frame
}

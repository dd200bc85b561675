//! What of the kernel's answers ours are different from, and why.

use serde_json::Value;

use super::places::Place;
use super::world::Frame;

/// The hops that a host's own packets begin with.
const OWN: &str = "64 hops ";

/// Refusals of the host that it leaves out: where replies to translated sources could be meant, or
/// what rules lead elsewhere, the host is kept from answering what it has no part in.
pub fn is_left_silent(place: &Place, frame: &Frame) -> bool {
    let Some(what) = frame.what.strip_prefix(OWN) else { return false };
    let asked = if what.starts_with("icmp 3 3 ") || what.starts_with("icmp 1 4 ") {
        frame.ends.get(3)
    } else {
        what.starts_with("tcp").then(|| &frame.ends[0])
    };
    asked.is_some_and(|(address, port)| {
        let translated = place.choices.iter().any(|it| it.ports.is_some() && it.has(address));
        translated && *port >= 1024 || place.forwarded.contains(&address.as_str())
    })
}

/// A frame of the kernel's as it were from ours.
pub fn as_ours(place: &Place, talk: &Value, frame: &Frame) -> Frame {
    let mut frame = frame.clone();
    let is_error = frame.what.starts_with("64 hops icmp") && frame.ends.len() == 4;
    if !is_error || Some(frame.ends[2].0.as_str()) != talk["from"].as_str() {
        return frame;
    }
    let asker = talk["at"].as_str().expect("a name");
    // What refuses goes where the packet came from, whatever the route to its source, which is
    // not its real one then.
    let spoofed = frame.at != asker;
    // The kernel makes the source of an error what the packet was for before its destination was
    // translated; ours tells who sends it.
    let translated = frame.ends[0].0 == frame.ends[3].0;
    if spoofed || translated {
        asker.clone_into(&mut frame.at);
        let cable = place.cables.iter().find(|cable| cable.name == asker).expect("there is one");
        let is_v6 = frame.ends[1].0.contains(':');
        let own = cable.addresses.iter().find(|address| address.contains(':') == is_v6);
        let own = own.and_then(|it| it.split('/').next()).expect("an address of the family");
        frame.ends[0].0 = own.to_owned();
    }
    frame
}

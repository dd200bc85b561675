//! The tables `[[selector]]`: flows, and the service that they get on interfaces with the policy mix.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use engine::Policy;
use netio::{Selector, Selectors, SelectorsError, Service};
use steer::FragmentSteering;
use toml::de::DeValue;

use super::document::{Reader, Section, choice, number, show, text};
use super::zones::network;
use super::{Configuration, Interface};

/// Names of protocols, with their numbers.
const PROTOCOLS: [(&str, u8); 10] = [
    ("tcp", 6),
    ("udp", 17),
    ("udplite", 136),
    ("sctp", 132),
    ("dccp", 33),
    ("icmp", 1),
    ("icmpv6", 58),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
];
/// Numbers of IPv6 extension headers, which are no protocols of a flow.
const EXTENSION_HEADERS: [u8; 4] = [0, 43, 44, 60];

/// A selector, and where it stands.
struct Placed {
    selector: Selector,
    /// The interface that it is for; all with the policy mix if it names none.
    interface: Option<String>,
    line: usize,
}

/// Reads the tables, and gives the interfaces their selectors.
pub(super) fn read(
    reader: &mut Reader<'_>,
    sections: Vec<Section<'_>>,
    config: &mut Configuration,
) {
    let mut all = Vec::new();
    for section in sections {
        all.extend(one(reader, section, config));
    }
    for interface in &mut config.interfaces {
        interface.lanes = of_interface(reader, &all, interface);
    }
}

fn one(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    config: &Configuration,
) -> Option<Placed> {
    let offset = section.offset;
    let services = [("latency", Some(Service::Latency)), ("bulk", Some(Service::Bulk))];
    if !section.has("service") {
        let what = "is missing; write service = \"latency\" or \"bulk\"";
        reader.note(offset, "selector.service", what);
    }
    let conditions = ["protocol", "prefix", "port"].map(|key| section.has(key));
    let service = section.read(reader, "service", |value| choice(value, &services));
    let interfaces = &config.interfaces;
    let named = section.has("interface");
    let interface = section.read(reader, "interface", |value| interface(value, interfaces));
    let protocol = section.read(reader, "protocol", protocol);
    let prefix = section.read(reader, "prefix", prefix);
    let ports = section.read(reader, "port", ports);
    section.finish(reader);
    if !interfaces.iter().any(|it| it.policy == Policy::Mix) {
        let what =
            "has no effect: selectors hold on interfaces with policy = \"mix\", and there is none";
        reader.note(offset, "selector", what);
    }
    let read = [protocol.is_some(), prefix.is_some(), ports.is_some()];
    if read != conditions || (named && interface.is_none()) {
        // A selector without one of its conditions would name other flows.
        return None;
    }
    if config.fragments == FragmentSteering::Ordered && (ports.is_some() || protocol.is_some()) {
        let what = "can only have a prefix with fragments = \"ordered\", which keeps everything between \
                    two addresses in order";
        reader.note(offset, "selector", what);
        return None;
    }
    match Selector::new(service?, protocol, prefix, ports) {
        Ok(selector) => Some(Placed { selector, interface, line: reader.line(offset) }),
        Err(error) => {
            reader.note(offset, "selector", error);
            None
        }
    }
}

/// The selectors of an interface. `None` for one without lanes.
fn of_interface(
    reader: &mut Reader<'_>,
    all: &[Placed],
    interface: &Interface,
) -> Option<Selectors> {
    let is_for = |it: &&Placed| it.interface.as_ref().is_none_or(|name| *name == interface.name);
    let own: Vec<&Placed> = all.iter().filter(is_for).collect();
    if interface.policy != Policy::Mix || own.is_empty() {
        return None;
    }
    match Selectors::new(own.iter().map(|it| it.selector.clone()).collect()) {
        Ok(selectors) => Some(selectors),
        Err(SelectorsError::Covered { earlier, later }) => {
            let what = format!(
                "never decides on {}: the selector of line {} comes first and names all of its flows; \
                 take one of them out, or put this one first",
                interface.name, own[earlier].line
            );
            reader.note_line(own[later].line, "selector", what);
            None
        }
        Err(error @ SelectorsError::TooMany(_)) => {
            reader.note_line(own[Selectors::MAX].line, "selector", error);
            None
        }
    }
}

fn interface(value: &DeValue<'_>, interfaces: &[Interface]) -> Result<String, String> {
    let name = text(value, "the name of an interface")?;
    match interfaces.iter().find(|it| it.name == name) {
        None => Err(format!("{name:?} is not the name of an [[interface]]")),
        Some(it) if it.policy != Policy::Mix => {
            Err(format!("{name:?} has policy = \"{}\"; selectors hold with \"mix\"", it.policy))
        }
        Some(_) => Ok(name.to_owned()),
    }
}

fn protocol(value: &DeValue<'_>) -> Result<u8, String> {
    let found = match value {
        DeValue::String(word) => PROTOCOLS.iter().find(|(name, _)| name == word).map(|it| it.1),
        other => number(other, 0, u8::MAX.into()).ok().map(|number| number as u8),
    };
    match found {
        Some(number) if EXTENSION_HEADERS.contains(&number) => Err(format!(
            "{number} is an extension header of IPv6 and no protocol; name the protocol behind it"
        )),
        Some(number) => Ok(number),
        None => {
            let words = PROTOCOLS.map(|(name, _)| format!("{name:?}")).join(", ");
            Err(format!("{} is not allowed; allowed: {words}, or a number to 255", show(value)))
        }
    }
}

fn prefix(value: &DeValue<'_>) -> Result<(IpAddr, u8), String> {
    let prefix = network(text(value, "a prefix such as \"192.0.2.0/24\"")?)?;
    Ok((prefix.address(), prefix.length()))
}

/// A port, or the first and the last of several.
fn ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    let range = match value {
        DeValue::String(range) => range.split_once('-').and_then(|(first, last)| {
            let [first, last] = [first, last].map(|it| it.trim().parse::<u16>().ok());
            Some(first?..=last?)
        }),
        one => number(one, 0, u16::MAX.into()).ok().map(|port| port as u16..=port as u16),
    };
    let allowed = "allowed: a port such as 53, or a range such as \"5000-5010\"";
    range.ok_or_else(|| format!("{} is not allowed; {allowed}", show(value)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, problems};
    use super::*;

    const MIX: &str = "[[interface]]\nname = \"lan0\"\npolicy = \"mix\"\n\
                       [[interface]]\nname = \"wan0\"\npolicy = \"mix\"\n\
                       [[interface]]\nname = \"dmz0\"\n";

    #[test]
    fn selectors_hold_on_the_interfaces_with_mix_that_they_name() {
        let config = parse(&format!(
            "{MIX}\
             [[selector]]\nservice = \"latency\"\nprotocol = \"udp\"\nport = \"5000-5010\"\n\
             [[selector]]\nservice = \"bulk\"\ninterface = \"wan0\"\nprefix = \"2001:db8::/32\"\n\
             [[selector]]\nservice = \"latency\"\nprotocol = 58\n"
        ))
        .unwrap();
        let lanes = |at: usize| config.interfaces[at].lanes.as_ref();
        let made = |service, protocol, prefix, ports| {
            Selector::new(service, protocol, prefix, ports).unwrap()
        };
        let udp = made(Service::Latency, Some(17), None, Some(5000..=5010));
        let prefix = Some(("2001:db8::".parse().unwrap(), 32));
        let bulk = made(Service::Bulk, None, prefix, None);
        let icmp = made(Service::Latency, Some(58), None, None);
        let list = |at| lanes(at).unwrap().iter().cloned().collect::<Vec<_>>();
        assert_eq!(list(0), [udp.clone(), icmp.clone()]);
        assert_eq!(list(1), [udp, bulk, icmp]);
        assert_eq!(lanes(2), None);
        assert_eq!(parse(MIX).unwrap().interfaces[0].lanes, None);
    }

    #[test]
    fn selectors_that_can_not_hold_are_explained() {
        let with = |selectors: &str| problems(&format!("{MIX}{selectors}"));
        insta::assert_snapshot!(with(
            "[[selector]]\nservice = \"fast\"\nprotocol = \"quic\"\nport = \"10-x\"\n\
             prefix = \"192.0.2.1/24\"\ninterface = \"dmz0\"\ndscp = 46\n\
             [[selector]]\nservice = \"latency\"\n\
             [[selector]]\nprotocol = 44\n\
             [[selector]]\nservice = \"latency\"\nprotocol = \"icmp\"\nport = 1\n\
             [[selector]]\nservice = \"latency\"\nport = \"9-1\"\n\
             [[selector]]\nservice = \"latency\"\ninterface = \"lan7\"\nport = 1\n"
        ));
        insta::assert_snapshot!(with(
            "[[selector]]\nservice = \"latency\"\nprotocol = \"udp\"\n\
             [[selector]]\nservice = \"bulk\"\nprotocol = \"udp\"\nport = 53\n"
        ));
        insta::assert_snapshot!(problems(
            "[gateway]\nfragments = \"ordered\"\n\
             [[interface]]\nname = \"lan0\"\npolicy = \"mix\"\n\
             [[selector]]\nservice = \"latency\"\nport = 53\n"
        ));
        insta::assert_snapshot!(problems(
            "[[interface]]\nname = \"lan0\"\n[[selector]]\nservice = \"latency\"\nport = 53\n"
        ));
    }
}

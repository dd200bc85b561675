//! A gateway between two cables. A program plays the hosts at the far ends, frame by frame.

use lab::{Namespace, Program, Result};

mod router;

pub use self::router::*;

/// A program in Python that plays the hosts. It may import `cables`.
pub fn player(namespace: &Namespace, script: &[u8]) -> Result<Program> {
    namespace.write_file("cables.py", include_bytes!("cables.py"))?;
    let script = namespace.write_file("player.py", script)?;
    Ok(namespace.program("/usr/bin/python3").args([script]))
}

/// Settings with which the kernel answers every packet that it refuses, and sends no redirects.
pub const ANSWER_ALL: [&str; 7] = [
    "net.ipv4.icmp_ratelimit=0",
    "net.ipv4.icmp_msgs_per_sec=100000",
    "net.ipv4.icmp_msgs_burst=100000",
    "net.ipv6.icmp.ratelimit=0",
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.client0.send_redirects=0",
    "net.ipv4.conf.server0.send_redirects=0",
];

/// A namespace that forwards between "client0" and "server0". The other ends of these cables are
/// "client1" and "server1", for the program that plays the hosts.
pub fn forwarding_namespace(name: &'static str) -> Result<Namespace> {
    let namespace = Namespace::new(name)?;
    let mut links = Vec::new();
    for (side, v4, v6) in [
        ("client", "192.0.2.0/24", "2001:db8:1::/64"),
        ("server", "198.51.100.0/24", "2001:db8:2::/64"),
    ] {
        let (near, far) = (format!("{side}0"), format!("{side}1"));
        links.push(format!("link add {near} arp off type veth peer name {far}"));
        for end in [&near, &far] {
            // Only the player of the hosts sends anything.
            links.push(format!("link set {end} multicast off addrgenmode none up"));
        }
        links.push(format!("route add {v4} dev {near}"));
        links.push(format!("route add {v6} dev {near}"));
    }
    namespace.ip(&links.iter().map(String::as_str).collect::<Vec<_>>())?;
    let sysctls = [
        "net.ipv4.ip_forward=1",
        "net.ipv6.conf.all.forwarding=1",
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.client0.rp_filter=0",
        "net.ipv4.conf.server0.rp_filter=0",
    ];
    namespace.sysctl(sysctls)?;
    Ok(namespace)
}

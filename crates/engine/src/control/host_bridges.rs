//! The bridges of this host's kernel, which carry packets past the gateway.

use std::io;

use netlink::{LinkId, Masters};

/// Those of this host's interfaces that are bridges of the kernel and have its netfilter see the frames
/// that they carry from port to port (br_netfilter, see the kernel's `ip-sysctl`), if `is_meant` is true
/// for their names.
///
/// # Errors
/// Where the kernel can not be asked.
pub fn filtered_bridges(is_meant: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    const CALLS: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
    let calls = |setting: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/bridge/{setting}"))
            .is_ok_and(|value| value.trim() != "0")
    };
    let all_filter = CALLS.into_iter().any(calls);
    let mut masters = Masters::new()?;
    let mut bridges = Vec::new();
    for name in netio::link_names()?.into_iter().filter(|name| is_meant(name)) {
        let Some(link) = netio::link_named(&name)? else { continue };
        let own = masters.bridge_filters(LinkId(link.index)).map_err(io::Error::other)?;
        if own.is_some_and(|filters| filters || all_filter) {
            bridges.push(name);
        }
    }
    Ok(bridges)
}

//! The chains by which this host's kernel judges its own traffic.

use std::io;

use netlink::nf_tables::{BaseChain, base_chains};
use netlink::{LinkId, Masters};
use ruleset::{HostChain, OWN_TABLE_PREFIX};

/// The base chains that the kernel has.
#[derive(Clone, Debug, Default)]
pub struct KernelChains {
    /// All of them, those of other hooks too.
    pub all: Vec<HostChain>,
    /// Those in which the kernel translates the sources of what it sends and forwards: family, table
    /// and name of each, as nft(8) writes them. A chain without rules is none of them.
    pub source_translations: Vec<String>,
}

/// The base chains as the kernel tells them now.
///
/// # Errors
/// Where the kernel can not be asked: it has no nf_tables, or this process lacks CAP_NET_ADMIN.
pub fn kernel_chains() -> io::Result<KernelChains> {
    let chains = base_chains()?;
    let source_translations = chains.iter().filter(|chain| translates_sources(chain));
    let source_translations = source_translations
        .map(|chain| format!("{} {} chain {}", chain.family, chain.table, chain.name))
        .collect();
    let all = chains.into_iter().map(|chain| HostChain {
        family: chain.family.to_owned(),
        table: chain.table,
        name: chain.name,
        hook: chain.hook.to_owned(),
        policy: if chain.accepts { "accept" } else { "drop" }.to_owned(),
    });
    Ok(KernelChains { all: all.collect(), source_translations })
}

/// The kind of a bridge of the kernel, as ip-link(8) calls it.
pub const BRIDGE: &str = "bridge";

/// Those of some interfaces that are bridges of the kernel, if its netfilter sees the frames that a
/// bridge carries from port to port (br_netfilter, see the kernel's `ip-sysctl`).
///
/// # Errors
/// Where the kernel can not be asked.
pub fn filtered_bridges<'n>(names: impl IntoIterator<Item = &'n str>) -> io::Result<Vec<String>> {
    const CALLS: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
    let calls = |setting: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/bridge/{setting}"))
            .is_ok_and(|value| value.trim() != "0")
    };
    if !CALLS.into_iter().any(calls) {
        return Ok(Vec::new());
    }
    let mut masters = Masters::new()?;
    let mut bridges = Vec::new();
    for name in names {
        let Some(link) = netio::link_named(name)? else { continue };
        if masters.kind(LinkId(link.index)).map_err(io::Error::other)? == BRIDGE {
            bridges.push(name.to_owned());
        }
    }
    Ok(bridges)
}

fn translates_sources(chain: &BaseChain) -> bool {
    chain.translates_sources() && !chain.table.starts_with(OWN_TABLE_PREFIX)
}

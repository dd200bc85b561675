//! The chains by which this host's kernel judges its own traffic.

use std::io;

use netlink::nf_tables::base_chains;
use ruleset::{HostChain, OWN_TABLE_PREFIX};

/// The base chains that the kernel has, as it tells them now, those of other hooks too.
///
/// # Errors
/// Where the kernel can not be asked: it has no nf_tables, or this process lacks CAP_NET_ADMIN.
pub fn host_chains() -> io::Result<Vec<HostChain>> {
    let chains = base_chains()?.into_iter().map(|chain| HostChain {
        family: chain.family.to_owned(),
        table: chain.table,
        name: chain.name,
        hook: chain.hook.to_owned(),
        policy: if chain.accepts { "accept" } else { "drop" }.to_owned(),
    });
    Ok(chains.collect())
}

/// The chains in which the kernel translates the sources of what it sends and forwards: family,
/// table and name of each, as nft(8) writes them. A chain without rules is none of them.
///
/// # Errors
/// As [`host_chains`].
pub fn host_source_translations() -> io::Result<Vec<String>> {
    let chains = base_chains()?.into_iter().filter(|chain| {
        let translates = chain.is_nat && !chain.is_empty && chain.hook == "postrouting";
        translates && !chain.table.starts_with(OWN_TABLE_PREFIX)
    });
    Ok(chains.map(|it| format!("{} {} chain {}", it.family, it.table, it.name)).collect())
}

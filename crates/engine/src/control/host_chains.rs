//! The chains by which this host's kernel judges its own traffic.

use std::io;

use netlink::nf_tables::base_chains;
use ruleset::HostChain;

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

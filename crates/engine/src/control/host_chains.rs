//! The chains by which this host's kernel judges its own traffic.

use std::io;

use netlink::nf_tables::{BaseChain, base_chains};
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

fn translates_sources(chain: &BaseChain) -> bool {
    chain.translates_sources() && !chain.table.starts_with(OWN_TABLE_PREFIX)
}

//! The names of a table.

use std::collections::HashMap;

use crate::hook::TableFamily;
use crate::model::{ChainId, CounterId, HelperId, LimitId, QuotaId, SetId, SynProxyId, TimeoutId};
use crate::problem::{Parsed, Path};

/// The objects of a kind by name; `None` for an object that is not supported.
pub(crate) type Known<Id> = HashMap<String, Option<Id>>;

/// The names of one table.
#[derive(Default)]
pub(crate) struct Names {
    pub chains: HashMap<String, ChainId>,
    /// Base chains, which no rule may jump to.
    pub bases: HashMap<String, ()>,
    pub sets: Known<SetId>,
    pub counters: Known<CounterId>,
    pub limits: Known<LimitId>,
    pub quotas: Known<QuotaId>,
    pub helpers: Known<HelperId>,
    pub timeouts: Known<TimeoutId>,
    pub syn_proxies: Known<SynProxyId>,
}

/// A table while its rules are read.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub family: TableFamily,
    pub table: &'a str,
    pub names: &'a Names,
}

impl Scope<'_> {
    pub fn chain(&self, name: &str, path: &Path<'_>) -> Parsed<ChainId> {
        if self.names.bases.contains_key(name) {
            return Err(path.invalid(format!("`{}` is a base chain", shown(name))));
        }
        let chain = self.names.chains.get(name).copied();
        chain.ok_or_else(|| path.invalid(format!("there is no chain `{}`", shown(name))))
    }
}

/// The object that a name stands for.
pub(crate) fn resolve<Id: Copy>(
    known: &Known<Id>,
    what: &str,
    name: &str,
    path: &Path<'_>,
) -> Parsed<Id> {
    match known.get(name) {
        Some(Some(id)) => Ok(*id),
        Some(None) => {
            Err(path.unsupported(format!("the {what} `{}` is not supported", shown(name))))
        }
        None => Err(path.invalid(format!("there is no {what} `{}`", shown(name)))),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

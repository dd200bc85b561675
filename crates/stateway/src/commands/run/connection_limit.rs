//! Fits the number of connections to the memory.

use engine::Settings;

/// The limit of connections, by its name as a tunable.
const LIMIT: &str = "nf_conntrack_max";
/// The largest memory of a connection, in bytes: translated, and with everything that is counted
/// for it.
const CONNECTION: u64 = 512;
/// Memory of the gateway beside connections and fragments, in bytes.
const OTHERS: u64 = 16 << 20;
/// The number of connections that is always allowed.
const FEWEST: u64 = 1024;

/// Keeps floods from using more memory than the process may, for which the kernel would end it. If
/// the configuration gives no limit of connections (`is_given`), lowers the default to what fits
/// into `memory` bytes. Returns a message for people.
pub fn fit(settings: &mut Settings, is_given: bool, memory: u64) -> Option<String> {
    let fragments = settings.defrag.v4.high_thresh.saturating_add(settings.defrag.v6.high_thresh);
    let rest = memory.saturating_sub(OTHERS).saturating_sub(fragments);
    let fits = (rest / CONNECTION).max(FEWEST);
    let limit = settings.conntrack.max_entries;
    if limit <= fits {
        return None;
    }
    let memory = memory >> 20;
    if is_given {
        return Some(format!(
            "{LIMIT} is {limit}, but the {memory} MiB of memory that this process may use suffice \
             for {fits} connections, and the kernel would end it in a flood: lower {LIMIT}, or \
             allow the process more memory"
        ));
    }
    settings.conntrack.max_entries = fits;
    Some(format!("{LIMIT} is {fits} and not {limit}: this process may use {memory} MiB of memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_memory_unless_somebody_has_said_how_many_there_may_be() {
        let fitted = |given: Option<u64>, memory: u64| {
            let mut settings = Settings::default();
            settings.conntrack.max_entries = given.unwrap_or(settings.conntrack.max_entries);
            let said = fit(&mut settings, given.is_some(), memory);
            (settings.conntrack.max_entries, said)
        };
        assert_eq!(fitted(None, 1 << 30), (1 << 20, None));
        let (limit, said) = fitted(None, 32 << 20);
        // 8 MiB are left for them.
        assert_eq!(limit, (8 << 20) / CONNECTION);
        let expected = "nf_conntrack_max is 16384 and not 1048576: this process may use 32 MiB of \
                        memory";
        assert_eq!(said.as_deref(), Some(expected));
        assert_eq!(fitted(None, 0).0, FEWEST);
        assert_eq!(fitted(Some(16_384), 32 << 20), (16_384, None));
        let (limit, said) = fitted(Some(16_385), 32 << 20);
        assert_eq!(limit, 16_385, "the configuration gives it");
        assert!(said.is_some_and(|said| said.contains("suffice for 16384 connections")));
    }
}

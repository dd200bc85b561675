//! For tests: texts of the configuration, and what is wrong with them.

use super::*;

/// Reads a text on a machine with CPUs 0 to 3.
pub(super) fn parse(text: &str) -> Result<Configuration, Problems> {
    Configuration::parse(Path::new("gateway.toml"), text, &CpuSet::first(4))
}

pub(super) fn problems(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

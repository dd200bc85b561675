//! The machine of a benchmark.

use std::fs;

use serde::Serialize;

/// The machine, as far as it explains a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// CPUs that the benchmark may use.
    pub cpus: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Mode of transparent huge pages.
    pub huge_pages: String,
    /// Runnable processes when the benchmark began, mean of the last minute.
    pub load_average: f64,
}

impl Machine {
    /// This machine, now. Unknown properties are "unknown".
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let known = |text: Option<&str>| text.map_or("unknown", str::trim).to_owned();
        let processors = read("/proc/cpuinfo");
        let model = processors.lines().find(|line| line.starts_with("model name"));
        let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = pages.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self {
            processor: known(model.and_then(|line| line.split_once(':')).map(|(_, name)| name)),
            cpus: engine::system_cpus().len(),
            kernel: known(read("/proc/sys/kernel/osrelease").lines().next()),
            huge_pages: known(chosen.map(|(mode, _)| mode)),
            load_average: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cpus, kernel, huge_pages, load_average } = self;
        write!(
            f,
            "{processor}, {cpus} CPUs, Linux {kernel}, huge pages: {huge_pages}, \
             load before the start: {load_average}"
        )
    }
}

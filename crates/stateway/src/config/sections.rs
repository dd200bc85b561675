//! The tables of the configuration file and the values of their keys.

use std::path::{Path, PathBuf};

use conntrack::helper::{Helpers, Kind};
use conntrack::{Label, LabelNames};
use control::ControlSocket;
use engine::{Mode, PassList, Policy, ReversePath, Settings, StationLimits};
use flow::HashKey;
use steer::{BucketCount, CpuSet, FragmentSteering, HashKind, MAX_WORKERS, TunnelSteering};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Reader, Section, choice, number, show, text};
use super::{
    Configuration, Interface, MAX_INTERFACE_NAME, OnStop, Problem, Problems, rules, selectors,
    sync, zones,
};
use crate::balance_interval::{ALLOWED, BalanceInterval};

/// The largest number of receive queues of one interface.
const MAX_RX_QUEUES: u64 = 64;

/// Reads the text, and notes its problems beside those of syntax. A wrong key counts as absent.
pub(super) fn read(
    file: &Path,
    text: &str,
    cpus: &CpuSet,
) -> Result<(Configuration, Vec<Problem>), Problems> {
    let (mut reader, document) = Reader::open(file, text)?;
    let mut config = Configuration { file: file.to_owned(), ..Configuration::default() };
    let mut document = Section::new("", document);

    if let Some(section) = table(&mut reader, &mut document, "gateway") {
        gateway(&mut reader, section, &mut config);
    }
    config.interfaces = tables(&mut reader, &mut document, "interface", MOST_TABLES)
        .into_iter()
        .filter_map(|section| interface(&mut reader, section, cpus, &config))
        .collect();
    refuse_repeated_names(&mut reader, &config.interfaces);
    let tables_of_selectors = tables(&mut reader, &mut document, "selector", MOST_TABLES);
    selectors::read(&mut reader, tables_of_selectors, &mut config);
    config.timeout_policies = zones::policies(&mut reader, &mut document);
    config.zones =
        zones::read(&mut reader, &mut document, &config.interfaces, &config.timeout_policies);
    if let Some(section) = table(&mut reader, &mut document, "tunables") {
        config.is_limit_given = tunables(&mut reader, section, &mut config.settings);
    }
    if let Some(section) = table(&mut reader, &mut document, "conntrack") {
        let max_entries = config.settings.conntrack.max_entries;
        config.reserve = zones::conntrack(&mut reader, section, max_entries);
    }
    if let Some(section) = table(&mut reader, &mut document, "control") {
        control(&mut reader, section, &mut config);
    }
    if let Some(section) = table(&mut reader, &mut document, "labels") {
        config.labels = labels(&mut reader, section).into();
    }
    for section in tables(&mut reader, &mut document, "helper", MOST_TABLES) {
        helper(&mut reader, section, &mut config.settings.conntrack.helpers);
    }
    if let Some(section) = table(&mut reader, &mut document, "rules") {
        config.rules = rules::read(&mut reader, section, file);
    }
    if let Some(section) = table(&mut reader, &mut document, "sync") {
        let interface_at = section.place_of("interface");
        config.sync = sync::read(&mut reader, section, file);
        if let Some(sync) = &config.sync
            && config.interfaces.iter().any(|it| it.name == sync.interface())
        {
            let what = "is an interface that the gateway carries; peers need one of their own";
            reader.note(interface_at, "sync.interface", what);
        }
    }
    document.finish(&mut reader);
    Ok((config, reader.finish()))
}

fn gateway(reader: &mut Reader<'_>, mut section: Section<'_>, config: &mut Configuration) {
    let modes = [("bridge", Some(Mode::Bridge)), ("routed", Some(Mode::Routed))];
    if let Some(mode) = section.read(reader, "mode", |value| choice(value, &modes)) {
        config.mode = mode;
    }
    let pass_at = section.place_of("pass");
    if let Some(list) = pass_list(reader, &mut section) {
        if config.mode == Mode::Routed {
            let what = "a router passes nothing but IP; take this key out";
            reader.note(pass_at, "gateway.pass", what);
        }
        config.pass = list;
    }
    let stations = |value: &_| number(value, StationLimits::MIN.into(), StationLimits::MAX.into());
    if let Some(all) = section.read(reader, "stations", stations) {
        config.stations = StationLimits::of(all as u32);
    }
    if let Some(of_port) = section.read(reader, "port_stations", stations) {
        config.stations.of_port = of_port as u32;
    }
    config.workers = section
        .read(reader, "workers", |value| number(value, 1, MAX_WORKERS as u64))
        .map(|workers| workers as u16);
    if let Some(buckets) = section.read(reader, "buckets", |value| {
        let count = number(value, 1, BucketCount::MAX.into())?;
        BucketCount::new(count).map_err(|error| error.to_string())
    }) {
        config.buckets = buckets;
    }
    let tunnels = [
        ("inner", Some(TunnelSteering::Inner)),
        ("outer", Some(TunnelSteering::Outer)),
        ("judged", Some(TunnelSteering::Judged)),
    ];
    let tunnels_at = section.place_of("tunnels");
    if let Some(tunnels) = section.read(reader, "tunnels", |value| choice(value, &tunnels)) {
        config.tunnels = tunnels;
    }
    let hashes =
        [("siphash", Some(HashKind::Sip)), ("toeplitz", Some(HashKind::ToeplitzSymmetric))];
    if let Some(hash) = section.read(reader, "hash", |value| choice(value, &hashes)) {
        config.hash = hash;
    }
    let orders =
        [("spread", Some(FragmentSteering::Spread)), ("ordered", Some(FragmentSteering::Ordered))];
    if let Some(fragments) = section.read(reader, "fragments", |value| choice(value, &orders)) {
        config.fragments = fragments;
    }
    if (config.tunnels, config.fragments) == (TunnelSteering::Judged, FragmentSteering::Ordered) {
        let what = "needs fragments = \"spread\": with \"ordered\" the packets of one flow inside \
                    may come to two workers";
        reader.note(tunnels_at, "gateway.tunnels", what);
    }
    config.rp_filter = rp_filter(reader, &mut section, config.mode).unwrap_or_default();
    config.balance = section.read(reader, "balance", balance).unwrap_or_default();
    config.secret = section.read(reader, "secret", secret);
    section.finish(reader);
}

/// Words and EtherTypes. Each that is wrong is a problem of its own.
fn pass_list(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<PassList> {
    let entry = section.take("pass")?;
    let DeValue::Array(given) = &entry.value else {
        let what = "is not a list; write pass = [\"arp\", \"stp\"]";
        reader.note(entry.offset, &entry.key, format!("{} {what}", show(&entry.value)));
        return None;
    };
    let mut list = PassList::empty();
    for given in given {
        let added = match given.get_ref() {
            DeValue::String(word) => list.add(word).map_err(|error| error.to_string()),
            other => number(other, 0, u16::MAX.into())
                .and_then(|number| list.add_ethertype(number).map_err(|error| error.to_string())),
        };
        if let Err(what) = added {
            reader.note(entry.offset, &entry.key, what);
        }
    }
    Some(list)
}

/// A time with its unit, or a number of seconds.
fn balance(value: &DeValue<'_>) -> Result<BalanceInterval, String> {
    let every = match value {
        DeValue::String(text) => text.parse().ok(),
        DeValue::Integer(number) => {
            number.as_str().parse().ok().and_then(BalanceInterval::from_secs)
        }
        DeValue::Float(number) => number.as_str().parse().ok().and_then(BalanceInterval::from_secs),
        _ => None,
    };
    every.ok_or_else(|| format!("{} is not allowed; allowed: {ALLOWED}", show(value)))
}

fn secret(value: &DeValue<'_>) -> Result<HashKey, String> {
    // The value never gets into a message, because it is a secret.
    let refused = || "is not allowed; allowed: 32 hexadecimal digits in quotes".to_owned();
    let digits = value.as_str().filter(|digits| {
        digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    let number = u128::from_str_radix(digits.ok_or_else(refused)?, 16).map_err(|_| refused())?;
    Ok(HashKey((number >> 64) as u64, number as u64))
}

/// The source check: a value of the kernel's, or a word for it.
fn rp_filter(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    mode: Mode,
) -> Option<ReversePath> {
    const VALUES: [ReversePath; 3] = [ReversePath::Off, ReversePath::Strict, ReversePath::Loose];
    section.read(reader, "rp_filter", |value| {
        let [off, strict, loose] = VALUES.map(Some);
        let auto = Some(ReversePath::Auto);
        let words = [("auto", auto), ("off", off), ("strict", strict), ("loose", loose)];
        let found = match value {
            DeValue::Integer(_) => {
                number(value, 0, 2).map(|number| VALUES[number as usize]).ok()
            }
            _ => choice(value, &words).ok(),
        };
        let refused = || format!("{} is not allowed; allowed: 0 or \"off\", 1 or \"strict\", 2 or \"loose\", \"auto\"", show(value));
        let found = found.ok_or_else(refused)?;
        if mode == Mode::Bridge {
            return Err("is for routers; take it out, or set gateway.mode = \"routed\"".to_owned());
        }
        Ok(found)
    })
}

fn interface(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    cpus: &CpuSet,
    gateway: &Configuration,
) -> Option<Interface> {
    let name_line = reader.line(section.place_of("name"));
    let rps_cpus_line = reader.line(section.place_of("rps_cpus"));
    if !section.has("name") {
        reader.note(section.offset, "interface.name", "is missing; for example name = \"lan0\"");
    }
    let name = section.read(reader, "name", interface_name);
    section.read(reader, "io", |value| {
        choice(value, &[("afpacket", Some(())), ("afxdp", None), ("tap", None)])
    });
    let rx_queues = section.read(reader, "rx_queues", |value| number(value, 1, MAX_RX_QUEUES));
    let rps_cpus = section.read(reader, "rps_cpus", |value| read_cpus(value, cpus));
    let policies = Policy::ALL.map(|policy| (policy.name(), Some(policy)));
    let policy = section.read(reader, "policy", |value| choice(value, &policies));
    let host_policy = section.read(reader, "host_policy", |value| choice(value, &policies));
    let words = [("restore", Some(OnStop::Restore)), ("keep", Some(OnStop::Keep))];
    let on_stop = section.read(reader, "host_policy_on_stop", |value| choice(value, &words));
    let hashes = [("none", Some(false)), ("symmetric", Some(true))];
    let supplied_hash = section.read(reader, "supplied_hash", |value| choice(value, &hashes));
    let words = [("accept", Some(false)), ("drop", Some(true))];
    let refuses_new = section.read(reader, "new_connections", |value| choice(value, &words));
    let rp_filter = rp_filter(reader, &mut section, gateway.mode);
    section.finish(reader);
    Some(Interface {
        name_line,
        name: name?,
        link: None,
        rx_queues: rx_queues.unwrap_or(1) as usize,
        rps_cpus_line,
        rps_cpus: rps_cpus.flatten(),
        supplied_hash_symmetric: supplied_hash.unwrap_or(false),
        refuses_new: refuses_new.unwrap_or(false),
        rp_filter: rp_filter.unwrap_or(gateway.rp_filter),
        policy: policy.unwrap_or(Policy::None),
        host_policy: host_policy.unwrap_or(Policy::None),
        host_policy_on_stop: on_stop.unwrap_or(OnStop::Restore),
        lanes: None,
    })
}

fn interface_name(value: &DeValue<'_>) -> Result<String, String> {
    const ALLOWED: &str = "1 to 15 characters without blank, slash and colon";
    let name = text(value, ALLOWED)?;
    let wrong = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b':' | 0);
    if name.is_empty() || name.len() > MAX_INTERFACE_NAME || name.bytes().any(wrong) {
        return Err(format!("{name:?} can not name an interface; allowed: {ALLOWED}"));
    }
    Ok(name.to_owned())
}

/// An empty text stands for every worker. A mask without a bit, which switches steering off in the
/// kernel, has no meaning here.
fn read_cpus(value: &DeValue<'_>, existing: &CpuSet) -> Result<Option<CpuSet>, String> {
    let mask = text(value, "a hexadecimal mask such as \"3\" or a CPU list such as \"0-1\"")?;
    if mask.trim().is_empty() {
        return Ok(None);
    }
    let set = CpuSet::parse(mask, existing).map_err(|error| error.to_string())?;
    if set.is_empty() {
        return Err(format!(
            "{mask:?} names no CPU. To the kernel that means no steering, which does not exist \
             here: every bucket has an owner. For every worker write \"\" or leave the key out; \
             for all CPUs write \"{}\"",
            existing.mask()
        ));
    }
    Ok(Some(set))
}

fn refuse_repeated_names(reader: &mut Reader<'_>, interfaces: &[Interface]) {
    for (index, interface) in interfaces.iter().enumerate() {
        let first = interfaces[..index].iter().find(|other| other.name == interface.name);
        if let Some(first) = first {
            let Interface { name, name_line, .. } = first;
            let what = format!("{name:?} is already the interface of line {name_line}");
            reader.note_line(interface.name_line, "interface.name", what);
        }
    }
}

/// Attaches a helper to its assigned port, unless another is given.
fn helper(reader: &mut Reader<'_>, mut section: Section<'_>, helpers: &mut Helpers) {
    let offset = section.offset;
    if !section.has("name") {
        reader.note(offset, "helper.name", "is missing; for example name = \"ftp\"");
    }
    let kinds: Vec<_> = Kind::ALL.iter().map(|&kind| (kind.name(), Some(kind))).collect();
    let kind = section.read(reader, "name", |value| choice(value, &kinds));
    let given = section.has("port");
    let port = section.read(reader, "port", |value| number(value, 1, u16::MAX.into()));
    section.finish(reader);
    let Some(kind) = kind.filter(|_| port.is_some() || !given) else { return };
    let port = port.map_or(kind.default_port(), |port| port as u16);
    if let Err(error) = helpers.attach(kind, port) {
        reader.note(offset, "helper", error);
    }
}

/// Each key is a name, and its value the number of a label.
fn labels(reader: &mut Reader<'_>, mut section: Section<'_>) -> LabelNames {
    let mut names = LabelNames::default();
    for entry in section.rest() {
        let name = entry.key.trim_start_matches("labels.");
        let named = number(&entry.value, 0, Label::LAST.into()).and_then(|number| {
            // The range was just checked.
            let label = u8::try_from(number).ok().and_then(Label::new);
            label.map_or(Ok(()), |label| names.name(label, name)).map_err(|e| e.to_string())
        });
        if let Err(what) = named {
            reader.note(entry.offset, &entry.key, what);
        }
    }
    names
}

/// Reads the tunables. Returns true if the limit of connections is among them.
fn tunables(reader: &mut Reader<'_>, mut section: Section<'_>, settings: &mut Settings) -> bool {
    let entries = section.rest();
    let mut given: Vec<(&str, usize, u64)> = Vec::new();
    for entry in &entries {
        let name = entry.key.trim_start_matches("tunables.");
        let set = number(&entry.value, 0, u64::MAX)
            .map_err(|_| format!("{} is not allowed; allowed: a whole number", show(&entry.value)))
            .and_then(|value| {
                settings.set(name, value).map_err(|error| error.to_string())?;
                Ok((name, reader.line(entry.offset), value))
            });
        match set {
            Ok(this) => {
                refuse_other_name(reader, settings, &mut given, this);
                given.push(this);
            }
            Err(what) => reader.note(entry.offset, &entry.key, what),
        }
    }
    given.iter().any(|(name, ..)| *name == "nf_conntrack_max")
}

/// Some settings have two names. Two lines about one setting contradict each other if the second
/// has changed the value of the first.
fn refuse_other_name(
    reader: &mut Reader<'_>,
    settings: &Settings,
    given: &mut Vec<(&str, usize, u64)>,
    (name, line, value): (&str, usize, u64),
) {
    given.retain(|&(other, other_line, other_value)| {
        let holds = settings.get(other) == Some(other_value);
        if !holds {
            let what = format!(
                "{value} contradicts line {other_line}, where the same setting is {other_value} \
                 under the name {other}; keep one of them"
            );
            reader.note_line(line, &format!("tunables.{name}"), what);
        }
        holds
    });
}

fn control(reader: &mut Reader<'_>, mut section: Section<'_>, config: &mut Configuration) {
    config.socket_line = reader.line(section.place_of("socket"));
    config.socket = section.read(reader, "socket", |value| {
        let path = PathBuf::from(text(value, "the path of the control socket")?);
        if !path.is_absolute() {
            return Err(format!("{} is not an absolute path", path.display()));
        }
        ControlSocket::check_length(&path).map_err(|error| error.to_string())?;
        Ok(path)
    });
    if let Some(entry) = section.take("http") {
        reader.note(entry.offset, &entry.key, "not supported yet; take this key out");
    }
    section.finish(reader);
}

/// A table of the document; a problem if the key holds something else.
pub(super) fn table<'t>(
    reader: &mut Reader<'_>,
    document: &mut Section<'t>,
    name: &'static str,
) -> Option<Section<'t>> {
    let entry = document.take(name)?;
    match entry.value {
        DeValue::Table(table) => Some(section(&entry.key, entry.offset, table)),
        other => {
            let what = format!("{} is not a table; write [{}]", show(&other), entry.key);
            reader.note(entry.offset, &entry.key, what);
            None
        }
    }
}

/// The largest number of tables of one name that are read; there are fewer port numbers.
const MOST_TABLES: usize = u16::MAX as usize;

/// An array of tables of the document. Tables beyond `most` are not read.
pub(super) fn tables<'t>(
    reader: &mut Reader<'_>,
    document: &mut Section<'t>,
    name: &'static str,
    most: usize,
) -> Vec<Section<'t>> {
    let Some(entry) = document.take(name) else { return Vec::new() };
    let DeValue::Array(array) = entry.value else {
        reader.note(entry.offset, name, format!("is not a list of tables; write [[{name}]]"));
        return Vec::new();
    };
    let mut sections = Vec::new();
    let count = array.len();
    for (index, element) in array.into_iter().enumerate() {
        let offset = element.span().start;
        if index == most {
            let what = format!("there may be {most} of them at most, and the file has {count}");
            reader.note(offset, name, what);
            break;
        }
        match element.into_inner() {
            DeValue::Table(table) => sections.push(section(name, offset, table)),
            other => {
                let what = format!("{} is not a table; write [[{name}]]", show(&other));
                reader.note(offset, name, what);
            }
        }
    }
    sections
}

fn section<'t>(name: &str, offset: usize, table: DeTable<'t>) -> Section<'t> {
    Section::new(name, Spanned::new(offset..offset, table))
}

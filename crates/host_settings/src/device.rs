//! A device of this network namespace: its identity, and its settings read and written.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netpolicy::{
    Coalescing, Deferral, Identity, LeftAlone, Napi, NapiSetting, Setting, Snapshot, Value,
};
use steer::CpuSet;

use crate::coalescing::Coalescer;
use crate::generic_netlink::Refusal;
use crate::machine::{self, text};
use crate::napis::{NapiState, Napis};

/// The kernel's error for a file of a device that is gone: ENODEV.
const NO_DEVICE: i32 = 19;
/// Counters of lost packets.
const LOSSES: [&str; 4] = ["rx_dropped", "rx_missed_errors", "rx_fifo_errors", "tx_dropped"];
/// Looks for a device that another program renames all the time.
const MAX_RENAMES: usize = 5;

/// A device that can not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is none of this name.
    #[error("there is no interface {name:?}; the interfaces here are {present}")]
    Missing {
        /// The name.
        name: String,
        /// The names of those that are there.
        present: String,
    },
    /// The files of the device are not those of this network namespace.
    #[error(
        "{0} shows the interfaces of another network namespace; run this command where it shows \
         those of this one, as `ip netns exec` does"
    )]
    OtherSysfs(String),
    /// Something that is needed can not be read.
    #[error("{what}: {error}")]
    Unreadable {
        /// The thing.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

/// A device. It stays the same one when it is renamed, or when another one gets its name.
#[derive(Debug)]
pub struct Device {
    /// The sysfs of this network namespace.
    classes: Classes,
    /// The device's directory there, which follows the device also to another network namespace.
    directory: File,
    identity: Identity,
    napis: Result<Napis, Refusal>,
    coalescer: Result<Coalescer, Refusal>,
    /// The NAPIs when the last snapshot was taken.
    places: Vec<Napi>,
}

/// The place of a device that was found before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// In this network namespace, by the number that it had.
    Here,
    /// In another network namespace, or back from one by another number.
    Elsewhere,
    /// It was deleted, and its settings with it.
    Gone,
}

/// The directory of the network devices, in a sysfs of our own or in `/sys`.
#[derive(Debug)]
struct Classes(Option<OwnedFd>);

impl Classes {
    fn new() -> Self {
        // A sysfs of our own is certainly that of this network namespace.
        Self(netio::own_sysfs().ok())
    }

    fn path(&self) -> PathBuf {
        let root = self.0.as_ref().map_or("/sys".into(), |it| path_of(it.as_raw_fd()));
        root.join("class/net")
    }
}

/// The name of the device in this network namespace whose directory in sysfs has this number. The
/// number stays when a device gets another name, another number or another network namespace.
///
/// # Errors
/// The system's error. Then it is not known whether the device is here.
pub fn name_of(node: u64) -> io::Result<Option<String>> {
    let classes = Classes::new();
    for entry in fs::read_dir(classes.path())? {
        let entry = entry?;
        match fs::metadata(entry.path()) {
            Ok(directory) if directory.ino() == node => {
                return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
            }
            // A device may vanish meanwhile.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}

fn unreadable(what: impl fmt::Display) -> impl FnOnce(io::Error) -> DeviceError {
    move |error| DeviceError::Unreadable { what: what.to_string(), error }
}

impl Device {
    /// Finds a device by its name or an alternative one.
    ///
    /// # Errors
    /// [`DeviceError`]
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let mount = Classes::new();
        let classes = mount.path();
        let link = netio::link_named(name).map_err(unreadable(name))?;
        let Some(link) = link else {
            return Err(DeviceError::Missing { name: name.to_owned(), present: present(&classes) });
        };
        let directory =
            File::open(classes.join(&link.name)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => DeviceError::OtherSysfs("/sys".into()),
                _ => unreadable(&link.name)(error),
            })?;
        let path = path_of(directory.as_raw_fd());
        let read = |file| text(path.join(file)).map_err(unreadable(&link.name));
        let station = link.mac.map(|byte| format!("{byte:02x}")).join(":");
        let is_ethernet = link.mac != [0; 6];
        if read("ifindex")? != link.index.to_string()
            || (is_ethernet && read("address")? != station)
        {
            return Err(DeviceError::OtherSysfs("/sys".into()));
        }
        let identity = Identity {
            boot: machine::boot_id().map_err(unreadable("the id of this run of the machine"))?,
            network: netio::network_cookie().map_err(unreadable("the network namespace"))?,
            index: link.index,
            node: directory.metadata().map_err(unreadable(&link.name))?.ino(),
            name: link.name,
        };
        let (napis, coalescer) = (Napis::new(), Coalescer::new());
        Ok(Self { classes: mount, directory, identity, napis, coalescer, places: Vec::new() })
    }

    /// The device, as a journal notes it.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        path_of(self.directory.as_raw_fd()).join(name)
    }

    /// Finds out where the device is now.
    ///
    /// # Errors
    /// The system's error.
    pub fn whereabouts(&self) -> io::Result<Whereabouts> {
        let is_gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
        };
        // The device may be renamed between the question for its name and the look there.
        for _ in 0..MAX_RENAMES {
            let index = match text(self.file("ifindex")) {
                Err(error) if is_gone(&error) => return Ok(Whereabouts::Gone),
                index => index?,
            };
            if index != self.identity.index.to_string() {
                break;
            }
            let Some(link) = netio::link_state(self.identity.index)? else { break };
            let here = fs::metadata(self.classes.path().join(&link.name));
            if here.is_ok_and(|directory| directory.ino() == self.identity.node) {
                return Ok(Whereabouts::Here);
            }
        }
        Ok(Whereabouts::Elsewhere)
    }

    /// Fails unless number, name and directory still belong together in this network namespace. Files
    /// are reached by the directory, and netlink goes by the number, which may be another device's.
    fn check_presence(&self) -> io::Result<()> {
        let absent = match self.whereabouts()? {
            Whereabouts::Here => return Ok(()),
            Whereabouts::Elsewhere => "the device is in another network namespace",
            Whereabouts::Gone => "the device is gone",
        };
        Err(io::Error::new(io::ErrorKind::NotFound, absent))
    }

    /// Reads everything that policies look at.
    ///
    /// # Errors
    /// [`DeviceError`], if the device is gone or the machine's CPUs can not be read.
    pub fn snapshot(&mut self) -> Result<Snapshot, DeviceError> {
        let gone = unreadable(&self.identity.name);
        self.check_presence().map_err(gone)?;
        let node = text(self.file("device/numa_node")).ok().and_then(|it| it.parse().ok());
        let socket_flows = text("/proc/sys/net/core/rps_sock_flow_entries").ok();
        let mut snapshot = Snapshot {
            device: self.identity.name.clone(),
            rx_queues: self.queues("rx-"),
            tx_queues: self.queues("tx-"),
            cpus: machine::cpus(node).map_err(unreadable("the CPUs"))?,
            socket_flows: socket_flows.and_then(|it| it.parse().ok()).unwrap_or(0),
            can_place_threads: machine::shows_kernel_threads(),
            placers: machine::placers(),
            ..Snapshot::default()
        };
        self.read_files(&mut snapshot);
        self.read_napis(&mut snapshot);
        self.read_coalescing(&mut snapshot);
        Ok(snapshot)
    }

    /// Packets that the device has received and sent, and those that it has lost.
    ///
    /// # Errors
    /// The system's error, also if the device is gone.
    pub fn packets(&self) -> io::Result<[u64; 2]> {
        let sum = |names: &[&str]| {
            let count = |name: &&str| {
                let text = text(self.file("statistics").join(name))?;
                text.parse::<u64>()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            };
            names.iter().map(count).sum::<io::Result<u64>>()
        };
        Ok([sum(&["rx_packets", "tx_packets"])?, sum(&LOSSES)?])
    }

    /// Number of queues whose names begin so.
    fn queues(&self, kind: &str) -> u16 {
        let entries = fs::read_dir(self.file("queues")).into_iter().flatten().flatten();
        let of_kind = |entry: &fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(kind))
        };
        u16::try_from(entries.filter(of_kind).count()).unwrap_or(u16::MAX)
    }

    fn read_files(&self, snapshot: &mut Snapshot) {
        let mut settings: Vec<Setting> = Deferral::ALL.map(Setting::Device).to_vec();
        settings
            .extend((0..snapshot.rx_queues).flat_map(|it| [Setting::Rps(it), Setting::Rfs(it)]));
        settings.extend((0..snapshot.tx_queues).map(Setting::Xps));
        for setting in settings {
            match self.read_file(setting) {
                Ok(value) => {
                    snapshot.values.insert(setting, value);
                }
                Err(_) if matches!(setting, Setting::Xps(_)) && snapshot.tx_queues == 1 => {
                    let reason = "the device has one transmit queue, by which all CPUs send";
                    snapshot.unavailable.push(LeftAlone::new(setting, reason));
                }
                Err(error) => {
                    if error.kind() != io::ErrorKind::NotFound {
                        snapshot.unreadable.insert(setting);
                    }
                    snapshot.unavailable.push(LeftAlone::new(setting, error.to_string()));
                }
            }
        }
    }

    fn read_napis(&mut self, snapshot: &mut Snapshot) {
        let list = match &mut self.napis {
            Ok(napis) => napis.list(self.identity.index).map_err(|it| it.to_string()),
            Err(refusal) => Err(format!("this kernel does not list NAPIs: {refusal}")),
        };
        // Drivers have no NAPIs while the device is down. The kernel keeps the values of some.
        let link = netio::link_state(self.identity.index);
        snapshot.hides_napis =
            list.is_err() || !link.is_ok_and(|link| link.is_some_and(|it| it.up));
        let list = list.unwrap_or_else(|reason| {
            snapshot.unavailable.push(LeftAlone::new("napi", reason));
            Vec::new()
        });
        let mut lacks_settings = false;
        for (place, state) in (0..=u16::MAX).zip(&list) {
            for kind in NapiSetting::ALL {
                match napi_value(state, kind) {
                    Some(value) => {
                        snapshot.values.insert(Setting::Napi { place, kind }, value);
                    }
                    None => lacks_settings |= matches!(kind, NapiSetting::Deferral(_)),
                }
            }
            if let Some(number) = state.napi.interrupt
                && let Ok(value) = self.read_file(Setting::Interrupt(number))
            {
                snapshot.values.insert(Setting::Interrupt(number), value);
            }
        }
        if lacks_settings {
            let reason = "this kernel has no settings for each NAPI (Linux 6.13 brought them)";
            snapshot.unavailable.push(LeftAlone::new("napi", reason));
        }
        snapshot.napis = list.into_iter().map(|it| it.napi).collect();
        self.places.clone_from(&snapshot.napis);
    }

    fn read_coalescing(&mut self, snapshot: &mut Snapshot) {
        let coalescer = netlink(&mut self.coalescer);
        match coalescer.and_then(|coalescer| coalescer.get(self.identity.index)) {
            Ok(coalesced) => {
                for kind in Coalescing::ALL {
                    if let Some(value) = coalesced.value(kind) {
                        snapshot.values.insert(Setting::Coalescing(kind), Value::Number(value));
                    }
                }
            }
            Err(answer) => {
                if answer.error.kind() != io::ErrorKind::Unsupported {
                    snapshot.unreadable.extend(Coalescing::ALL.map(Setting::Coalescing));
                }
                let reason = format!("the device has none: the kernel answers: {answer}");
                snapshot.unavailable.push(LeftAlone::new("coalesce", reason));
            }
        }
    }

    /// The file of a setting that has one.
    fn path(&self, setting: Setting) -> Option<PathBuf> {
        match setting {
            Setting::Device(deferral) => Some(self.file(deferral.file())),
            Setting::Interrupt(number) => {
                Some(format!("/proc/irq/{number}/smp_affinity_list").into())
            }
            Setting::Rps(_) | Setting::Rfs(_) | Setting::Xps(_) => {
                Some(self.file("queues").join(setting.to_string()))
            }
            Setting::Napi { .. } | Setting::Coalescing(_) => None,
        }
    }

    fn read_file(&self, setting: Setting) -> io::Result<Value> {
        let path = self.path(setting).ok_or(io::ErrorKind::Unsupported)?;
        let text = text(path)?;
        let value = match setting {
            Setting::Interrupt(_) => CpuSet::of_list(&text).ok().map(Value::Cpus),
            Setting::Rps(_) | Setting::Xps(_) => {
                format!("mask:{text}").parse::<CpuSet>().ok().map(Value::Cpus)
            }
            _ => text.parse().ok().map(Value::Number),
        };
        let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("it reads {text:?}"));
        value.ok_or_else(strange)
    }

    /// Reads a setting; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's answer, also if the device is gone.
    pub fn read(&mut self, setting: Setting) -> Result<Option<Value>, Refusal> {
        self.check_presence()?;
        match setting {
            Setting::Napi { place, kind } => {
                let Some(napi) = self.places.get(usize::from(place)) else { return Ok(None) };
                let state = netlink(&mut self.napis)?.get(napi.id)?;
                Ok(state.and_then(|state| napi_value(&state, kind)))
            }
            Setting::Coalescing(kind) => {
                let coalesced = netlink(&mut self.coalescer)?.get(self.identity.index)?;
                Ok(coalesced.value(kind).map(Value::Number))
            }
            _ => match self.read_file(setting) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                read => Ok(read.map(Some)?),
            },
        }
    }

    /// Writes a setting.
    ///
    /// # Errors
    /// The kernel's answer, also if the device is gone.
    pub fn write(&mut self, setting: Setting, value: Value) -> Result<(), Refusal> {
        self.check_presence()?;
        match (setting, value) {
            (Setting::Napi { place, kind }, value) => {
                let missing = || io::Error::from(io::ErrorKind::NotFound);
                let id = self.places.get(usize::from(place)).ok_or_else(missing)?.id;
                let napis = netlink(&mut self.napis)?;
                match value {
                    Value::Number(number) => napis.set(id, kind, number),
                    Value::Cpus(cpus) => {
                        let napi = napis.get(id)?.ok_or_else(missing)?.napi;
                        let thread = thread_of(&napi).ok_or_else(missing)?;
                        Ok(netio::cpu::set_thread_cpus(thread, cpus.iter())?)
                    }
                }
            }
            (Setting::Coalescing(kind), Value::Number(number)) => {
                netlink(&mut self.coalescer)?.set(self.identity.index, kind, number)
            }
            (setting, value) => {
                let text = match (setting, value) {
                    (_, Value::Number(number)) => number.to_string(),
                    (Setting::Interrupt(_), Value::Cpus(cpus)) => cpus.list().to_string(),
                    (_, Value::Cpus(cpus)) => cpus.mask().to_string(),
                };
                let path = self.path(setting).ok_or(io::Error::from(io::ErrorKind::Unsupported))?;
                Ok(OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())?)
            }
        }
    }
}

/// The directory or file of a descriptor of this process.
fn path_of(descriptor: i32) -> PathBuf {
    format!("/proc/self/fd/{descriptor}").into()
}

fn present(classes: &Path) -> String {
    let entries = fs::read_dir(classes).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.join(", ")
}

/// A socket of netlink, or the kernel's answer when it was opened.
fn netlink<T>(socket: &mut Result<T, Refusal>) -> Result<&mut T, Refusal> {
    socket.as_mut().map_err(|refusal| Refusal {
        error: io::Error::new(refusal.error.kind(), refusal.error.to_string()),
        text: refusal.text.clone(),
    })
}

/// The thread of a NAPI, if it is certainly that.
fn thread_of(napi: &Napi) -> Option<u32> {
    napi.thread.filter(|thread| machine::is_thread_of(*thread, napi.id))
}

fn napi_value(state: &NapiState, kind: NapiSetting) -> Option<Value> {
    if kind != NapiSetting::ThreadCpus {
        return state.value(kind).map(Value::Number);
    }
    let cpus = netio::cpu::thread_cpus(thread_of(&state.napi)?).ok()?;
    Some(Value::Cpus(cpus.into_iter().collect()))
}

//! The directory with the journals of devices.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netpolicy::{Difference, Identity, Journal, JournalError};

/// Its default. Journals and settings end alike with the run of the machine.
pub const DEFAULT_DIRECTORY: &str = "/run/stateway";

/// Longest wait for another process that changes settings. A policy takes some milliseconds for each
/// queue, so units that start together all get their turn.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// The wait between two looks for the lock.
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Only the owner may open the file of the lock.
const LOCK_MODE: u32 = 0o600;

/// A journal that can not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process changes settings.
    #[error("another process changes settings by the journals in {0}; try again when it has ended")]
    InUse(String),
    /// A process keeps the device at a policy.
    #[error(
        "process {holder} keeps {device} at its policy, and puts everything back when it stops; stop \
         it first"
    )]
    Held {
        /// The device.
        device: String,
        /// The process.
        holder: u32,
    },
    /// A journal that makes no sense.
    #[error(
        "{path}: {error}; nothing was changed. Look what it says, put the values back by hand, and \
         delete it"
    )]
    Journal {
        /// Its file.
        path: String,
        /// The reason.
        error: JournalError,
    },
    /// The system's error.
    #[error("{path}: {error}")]
    File {
        /// The file or directory.
        path: String,
        /// The error.
        error: io::Error,
    },
}

pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |error| StoreError::File { path, error }
}

/// A journal that was found.
#[derive(Debug)]
pub enum Found {
    /// None.
    Nothing,
    /// That of the device.
    Journal(Box<Journal>),
    /// One in its place that is of something else, so that nothing of it may be written.
    Stale(Difference),
}

/// The journals.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    /// Longest wait for another process.
    lock_wait: Duration,
}

/// The right to change settings, which one process has at a time.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "closing it gives the lock back")] File);

impl Store {
    /// The journals in a directory, which need not exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), lock_wait: LOCK_WAIT }
    }

    /// Takes the right to change settings.
    ///
    /// # Errors
    /// [`StoreError`], also if another process has it and keeps it for 10 s.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        self.make_directory()?;
        let path = self.directory.join("policy.lock");
        let file = lock_file(&path).map_err(file_error(&path))?;
        let end = Instant::now() + self.lock_wait;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => return Err(self.in_use()),
                Err(TryLockError::Error(error)) => return Err(file_error(&path)(error)),
            }
        }
    }

    pub(crate) fn make_directory(&self) -> Result<(), StoreError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.directory);
        made.map_err(file_error(&self.directory))
    }

    pub(crate) fn in_use(&self) -> StoreError {
        StoreError::InUse(self.directory.display().to_string())
    }

    pub(crate) const fn lock_wait(&self) -> Duration {
        self.lock_wait
    }

    /// The file of the journal of a device. Its number in sysfs is that of no other device, and stays
    /// when the device moves to another network namespace.
    pub fn path(&self, device: &Identity) -> PathBuf {
        self.directory.join(format!("policy-{}.journal", device.node))
    }

    /// Looks for the journal of a device.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn find(&self, device: &Identity) -> Result<Found, StoreError> {
        let Some(journal) = read(&self.path(device))? else { return Ok(Found::Nothing) };
        Ok(match journal.device.difference(device) {
            None => Found::Journal(Box::new(journal)),
            Some(difference) => Found::Stale(difference),
        })
    }

    /// The devices of this network namespace that have a journal and had this name when it was
    /// written. Files that can not be read are left out.
    pub fn named(&self, network: u64, name: &str) -> Vec<Identity> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|it| it == "journal");
        let journals = entries.map(|entry| entry.path()).filter(is_journal);
        let devices = journals.filter_map(|path| Some(read(&path).ok()??.device));
        devices.filter(|device| device.network == network && device.name == name).collect()
    }

    /// Keeps a journal in place of the former one, unless it is the same.
    ///
    /// # Errors
    /// [`StoreError`]. Then the former one is still there.
    pub fn save(&self, journal: &Journal) -> Result<(), StoreError> {
        let (path, text) = (self.path(&journal.device), journal.to_text());
        if fs::read(&path).is_ok_and(|former| former == text.as_bytes()) {
            return Ok(());
        }
        let new = path.with_extension("new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|error| {
            // A part of a text would take the space that is missing.
            let _ = fs::remove_file(&new);
            file_error(&path)(error)
        })
    }

    /// Removes the journal of a device, if there is one.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn remove(&self, device: &Identity) -> Result<(), StoreError> {
        let path = self.path(device);
        match fs::remove_file(&path) {
            // A file system that can not be written says so also of a file that is not there.
            Err(error) if path.exists() => Err(file_error(&path)(error)),
            _ => Ok(()),
        }
    }
}

/// The file of a lock. A user who may open it could hold the lock for ever, so only root may. It is
/// opened for reading, because a rollback also works where nothing can be written.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(LOCK_MODE).open(path)?
        }
        opened => opened?,
    };
    if file.metadata()?.permissions().mode() & 0o777 != LOCK_MODE {
        // On a file system that can not be written it stays as it is.
        let _ = file.set_permissions(Permissions::from_mode(LOCK_MODE));
    }
    Ok(file)
}

/// Reads a journal; `None` if there is none.
fn read(path: &Path) -> Result<Option<Journal>, StoreError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(file_error(path))?,
    };
    let text = String::from_utf8_lossy(&bytes);
    let in_file = |error| StoreError::Journal { path: path.display().to_string(), error };
    Journal::parse(&text).map(Some).map_err(in_file)
}

#[cfg(test)]
mod tests {
    use netpolicy::{Policy, Request};

    use super::*;

    fn device(node: u64) -> Identity {
        Identity { boot: "b".into(), network: 1, index: 5, node, name: "lan0".into() }
    }

    #[test]
    fn a_journal_is_found_only_for_its_device() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("state"));
        let lock = store.lock().unwrap();
        store.save(&Journal::new(device(7), Request::new(Policy::Bulk))).unwrap();
        assert!(matches!(store.find(&device(7)), Ok(Found::Journal(_))));
        assert!(matches!(store.find(&device(8)), Ok(Found::Nothing)));
        let later = Identity { boot: "c".into(), ..device(7) };
        assert!(matches!(store.find(&later), Ok(Found::Stale(Difference::Boot))));
        let moved = Identity { network: 2, index: 3, ..device(7) };
        assert!(matches!(store.find(&moved), Ok(Found::Journal(_))));
        assert_eq!(store.named(1, "lan0"), [device(7)]);
        assert_eq!(store.named(2, "lan0"), []);
        std::fs::write(store.path(&device(7)), "x").unwrap();
        assert!(matches!(store.find(&device(7)), Err(StoreError::Journal { .. })));
        store.remove(&device(7)).unwrap();
        store.remove(&device(7)).unwrap();
        drop(lock);
    }

    #[test]
    fn only_root_may_open_the_lock_and_a_second_process_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let store = Store::new(directory.path());
        let lock = store.lock().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let hasty = Store { lock_wait: Duration::ZERO, ..store.clone() };
        assert!(matches!(hasty.lock(), Err(StoreError::InUse(_))));
        let second = std::thread::spawn(move || store.lock().map(drop));
        sleep(LOCK_PAUSE);
        drop(lock);
        second.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(hasty.lock().unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

//! The directory with the journals of devices.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use netpolicy::{Difference, Identity, Journal, JournalError};

/// Its default. Journals and settings end alike with the run of the machine.
pub const DEFAULT_DIRECTORY: &str = "/run/stateway";

/// A journal that can not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process changes settings.
    #[error("another process changes settings by the journals in {0}; try again when it has ended")]
    InUse(String),
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

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
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
}

/// The right to change settings, which one process has at a time.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "closing it gives the lock back")] File);

impl Store {
    /// The journals in a directory, which need not exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Takes the right to change settings.
    ///
    /// # Errors
    /// [`StoreError`], also if another process has it.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.directory);
        made.map_err(file_error(&self.directory))?;
        let path = self.directory.join("policy.lock");
        let file = File::create(&path).map_err(file_error(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => {
                Err(StoreError::InUse(self.directory.display().to_string()))
            }
            Err(TryLockError::Error(error)) => Err(file_error(&path)(error)),
        }
    }

    fn path(&self, device: &Identity) -> PathBuf {
        self.directory.join(format!("policy-{}-{}.journal", device.network, device.index))
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

    /// Keeps a journal in place of the former one.
    ///
    /// # Errors
    /// [`StoreError`]. Then the former one is still there.
    pub fn save(&self, journal: &Journal) -> Result<(), StoreError> {
        let path = self.path(&journal.device);
        let new = path.with_extension("new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(journal.to_text().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(file_error(&path))
    }

    /// Removes the journal of a device, if there is one.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn remove(&self, device: &Identity) -> Result<(), StoreError> {
        let path = self.path(device);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(&path)(error)),
            _ => Ok(()),
        }
    }
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

    fn device(index: u32) -> Identity {
        Identity { boot: "b".into(), network: 1, index, node: 9, name: "lan0".into() }
    }

    #[test]
    fn a_journal_is_found_only_for_its_device() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("state"));
        let lock = store.lock().unwrap();
        assert!(matches!(store.lock(), Err(StoreError::InUse(_))));
        store.save(&Journal::new(device(7), Request::new(Policy::Bulk))).unwrap();
        assert!(matches!(store.find(&device(7)), Ok(Found::Journal(_))));
        assert!(matches!(store.find(&device(8)), Ok(Found::Nothing)));
        let later = Identity { boot: "c".into(), ..device(7) };
        assert!(matches!(store.find(&later), Ok(Found::Stale(Difference::Boot))));
        assert_eq!(store.named(1, "lan0"), [device(7)]);
        assert_eq!(store.named(2, "lan0"), []);
        std::fs::write(store.path(&device(7)), "x").unwrap();
        assert!(matches!(store.find(&device(7)), Err(StoreError::Journal { .. })));
        store.remove(&device(7)).unwrap();
        store.remove(&device(7)).unwrap();
        drop(lock);
        store.lock().unwrap();
    }
}

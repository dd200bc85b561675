//! The right to keep a device at its policy. One process has it at a time: the *keeper*, which works
//! for a *holder*.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netpolicy::Identity;

use crate::store::{LOCK_PAUSE, Store, StoreError, file_error, lock_file};

/// Time in which a keeper notices that its holder has ended.
const TO_NOTICE: Duration = Duration::from_millis(200);

/// The keeper of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// There is none.
    None,
    /// It is at work.
    Works,
    /// It has died, and put nothing back.
    Died,
}

/// The right to keep a device at its policy. It ends with this value, or with the process.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    _file: File,
    /// True if the file is to look as if the keeper had died.
    is_left: bool,
}

impl Lease {
    /// Says that the holder has ended, so that others wait for the keeper.
    pub fn has_no_holder(&self) {
        // Others get an error then, and try again.
        let _ = fs::write(&self.path, "");
    }

    /// Leaves word that not everything could be put back, so that a later process tries again.
    pub fn leave(&mut self) {
        self.is_left = true;
    }
}

impl Drop for Lease {
    /// Removes the file while nobody else can have the lock.
    fn drop(&mut self) {
        if !self.is_left {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Store {
    /// The file of the lease of a device.
    fn lease_path(&self, device: &Identity) -> PathBuf {
        self.path(device).with_extension("keeper")
    }

    /// Takes the right to keep a device, for a holder with this process id. `None` if a keeper has it.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn lease(&self, device: &Identity, holder: u32) -> Result<Option<Lease>, StoreError> {
        self.make_directory()?;
        let path = self.lease_path(device);
        loop {
            let taken = lock_file(&path).and_then(|file| Ok((try_lock(&file)?, file)));
            let (is_mine, file) = taken.map_err(file_error(&path))?;
            if !is_mine {
                return Ok(None);
            }
            // The keeper before may have removed this file when it was open here already.
            if is_at(&file, &path) {
                let processes = format!("{holder} {}", std::process::id());
                fs::write(&path, processes).map_err(file_error(&path))?;
                return Ok(Some(Lease { path, _file: file, is_left: false }));
            }
        }
    }

    /// Waits until no keeper works on a device whose holder has ended. Then the caller goes on also for
    /// one that has died.
    ///
    /// # Errors
    /// [`StoreError::Held`] if the holder goes on; [`StoreError::InUse`] after 10 s.
    pub fn wait_for_keeper(&self, device: &Identity) -> Result<(), StoreError> {
        let path = self.lease_path(device);
        let begin = Instant::now();
        loop {
            let taken = File::open(&path).and_then(|file| Ok((try_lock(&file)?, file)));
            match taken {
                Ok((true, file)) => {
                    // A dead one has left it. Nobody may be able to write here.
                    let _ = is_at(&file, &path).then(|| fs::remove_file(&path));
                    return Ok(());
                }
                Ok((false, _)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(file_error(&path)(error)),
            }
            if begin.elapsed() > TO_NOTICE {
                self.ensure_no_holder(device)?;
            }
            if begin.elapsed() > self.lock_wait() {
                return Err(self.in_use());
            }
            sleep(LOCK_PAUSE);
        }
    }

    /// The file of a trial of a device.
    fn trial_path(&self, device: &Identity) -> PathBuf {
        self.path(device).with_extension("trial")
    }

    /// Begins a trial, which others can confirm.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn begin_trial(&self, device: &Identity) -> Result<(), StoreError> {
        self.make_directory()?;
        let path = self.trial_path(device);
        fs::write(&path, "").map_err(file_error(&path))
    }

    /// True if a trial goes on that nobody has confirmed.
    pub fn is_tried(&self, device: &Identity) -> bool {
        self.trial_path(device).exists()
    }

    /// Confirms or ends a trial. False if there is none.
    pub fn confirm_trial(&self, device: &Identity) -> bool {
        fs::remove_file(self.trial_path(device)).is_ok()
    }

    /// Looks for the keeper of a device.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn keeper(&self, device: &Identity) -> Result<Keeper, StoreError> {
        let path = self.lease_path(device);
        Ok(match is_locked(&path).map_err(file_error(&path))? {
            true => Keeper::Works,
            // One that ends removes its file.
            false if path.exists() => Keeper::Died,
            false => Keeper::None,
        })
    }

    /// Fails if a keeper works on a device for a holder that goes on.
    ///
    /// # Errors
    /// [`StoreError::Held`]
    pub fn ensure_no_holder(&self, device: &Identity) -> Result<(), StoreError> {
        let text = fs::read_to_string(self.lease_path(device)).unwrap_or_default();
        let holder = text.split(' ').next().and_then(|word| word.parse().ok());
        holder
            .map_or(Ok(()), |holder| Err(StoreError::Held { device: device.name.clone(), holder }))
    }
}

fn is_locked(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => Ok(!try_lock(&file)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// True if this open file is the one that has the path.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |it: fs::Metadata| (it.dev(), it.ino());
    let (open, there) = (file.metadata().map(place), fs::metadata(path).map(place));
    open.is_ok_and(|open| there.is_ok_and(|there| open == there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeper_has_a_device_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("state"));
        let device =
            |node| Identity { boot: "b".into(), network: 1, index: 5, node, name: "lan0".into() };
        store.wait_for_keeper(&device(7)).unwrap();
        let own = std::process::id();
        assert_eq!(store.keeper(&device(7)).unwrap(), Keeper::None);
        let lease = store.lease(&device(7), own).unwrap();
        assert_eq!(store.keeper(&device(7)).unwrap(), Keeper::Works);
        assert!(lease.is_some());
        assert!(store.lease(&device(7), own).unwrap().is_none());
        assert!(store.lease(&device(8), own).unwrap().is_some());
        let held = store.wait_for_keeper(&device(7)).unwrap_err();
        assert!(matches!(held, StoreError::Held { holder, .. } if holder == own), "{held}");
        lease.as_ref().unwrap().has_no_holder();
        let (waiting, again) = (store.clone(), device(7));
        let waiting = std::thread::spawn(move || waiting.wait_for_keeper(&again));
        sleep(LOCK_PAUSE);
        drop(lease);
        waiting.join().unwrap().unwrap();
        assert_eq!(store.keeper(&device(7)).unwrap(), Keeper::None);
        std::fs::write(store.lease_path(&device(7)), "").unwrap();
        assert_eq!(store.keeper(&device(7)).unwrap(), Keeper::Died);
    }
}

//! The control socket as a file: one gateway for one path.

use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Owner and group may talk to the gateway.
const SOCKET_MODE: u32 = 0o660;

/// A bound control socket. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Held as long as the gateway lives. The file stays behind: to remove it
    /// would let two gateways lock two files of one name.
    _lock: File,
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another gateway listens there.
    #[error(
        "another gateway is running on {path}; stop it, or give this one another socket \
         ([control] socket = ... or --socket)"
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{path} exists and is not a socket; choose another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("can not make the control socket {path}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ControlSocket {
    /// Binds `path`. The socket of a process that is dead is replaced.
    ///
    /// # Errors
    /// [`BindError`]; nothing has been changed then.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let system = |source| BindError::System { path: path.into(), source };
        let foreign = |found: Metadata| !found.file_type().is_socket();
        // Looked at first, so that nothing is left beside what is not ours.
        if std::fs::symlink_metadata(path).is_ok_and(foreign) {
            return Err(BindError::NotASocket { path: path.into() });
        }
        let lock = lock(path)?;
        match std::fs::symlink_metadata(path) {
            // A listener without our lock is no gateway, but it is not ours to replace.
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(BindError::InUse { path: path.into() });
            }
            Ok(_) => std::fs::remove_file(path).map_err(system)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system(error)),
        }
        let listener = UnixListener::bind(path).map_err(system)?;
        let socket = Self { path: path.into(), listener, _lock: lock };
        // Up to here the umask decides, which by default lets in nobody but the owner.
        std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(system)?;
        socket.listener.set_nonblocking(true).map_err(system)?;
        Ok(socket)
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Nothing is left to do about it if the file has gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(path: &Path) -> Result<File, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let system = |source| BindError::System { path: path.into(), source };
    let file =
        File::options().write(true).create(true).truncate(false).open(name).map_err(system)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BindError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => Err(system(error)),
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;

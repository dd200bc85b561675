//! The control socket as a file. One path belongs to one gateway.

use std::collections::hash_map::RandomState;
use std::fs::{File, Metadata, Permissions, TryLockError, remove_file, rename, symlink_metadata};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Mode of the socket: owner and group may talk to the gateway.
const SOCKET_MODE: u32 = 0o660;

/// Mode of the lock: only the owner may open it, because a process that can open it can hold it.
const LOCK_MODE: u32 = 0o600;

/// The largest number of attempts to take a name in a directory in which another process puts files
/// with that name again and again.
const MAX_ATTEMPTS: usize = 64;

/// The longest path of a socket, bytes: `sun_path` has room for one more, a zero (unix(7)).
const MAX_PATH: usize = 107;

/// Clients that wait to be accepted, at most; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// File systems of the kernel's own, in which nobody can make a socket.
const OF_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// The user with all rights.
const ROOT: u32 = 0;

/// A bound control socket. Dropping it removes the file, unless somebody has put another in its
/// place, or another process goes on with it.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Another process has it.
    is_anothers: bool,
    /// Device and number of the file, which nobody else has as long as the listener is there.
    file: (u64, u64),
    /// Held as long as the gateway lives. The file stays behind: if it were removed, two gateways
    /// could lock two files of one name.
    lock: File,
}

/// The reasons why there is no control socket.
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
    /// A file that is not a socket has the name.
    #[error("{path} exists and is not a socket; choose another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// No socket can have a path of this length.
    #[error(
        "{path} has {} bytes, and the path of a socket has {MAX_PATH} at most; choose a shorter one",
        path.as_os_str().len()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory of the socket is not there.
    #[error("there is no directory {directory}")]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory of the socket belongs to the kernel.
    #[error(
        "{directory} is a file system of the kernel's, in which nobody can make a socket; choose \
         another directory"
    )]
    OfKernel {
        /// The directory.
        directory: PathBuf,
    },
    /// Something other than a file has the name of the lock.
    #[error(
        "{path} exists and is not a file; the lock of the control socket needs that name: \
         choose another path"
    )]
    NotALock {
        /// The path of the lock.
        path: PathBuf,
    },
    /// Another user's file has the name of the socket or of the lock.
    #[error(
        "{path} belongs to user {user} and keeps the gateway from using that name ({source}); \
         remove it, and choose a directory in which nobody else may make files ([control] \
         socket = ... or --socket)"
    )]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// Number of the user.
        user: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused an operation.
    #[error("can not make the control socket {path}: {source}")]
    System {
        /// The path of the socket, or of its lock.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The file with a name that a gateway wants.
#[derive(Debug)]
enum Found {
    Nothing,
    /// A file that the gateway may remove.
    Ours(Metadata),
    /// A file of this user, in a directory in which every user may make files.
    InTheWay(u32),
}

impl ControlSocket {
    /// Binds `path`. Replaces the socket of a dead process. In a directory in which every user may
    /// make files, renames a file that another user has put there.
    ///
    /// # Errors
    /// [`BindError`]. No file that belongs to the gateway has changed then.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let system = |source| BindError::System { path: path.into(), source };
        // These checks come first, so that a refusal leaves no lock beside a foreign file.
        Self::check_length(path)?;
        dead_socket(path)?;
        let lock = lock(path)?;
        for _ in 0..MAX_ATTEMPTS {
            match dead_socket(path)? {
                Found::Nothing => {}
                Found::Ours(_) => remove_file(path).map_err(system)?,
                Found::InTheWay(user) => set_aside(path, user)?,
            }
            match UnixListener::bind(path) {
                // Another process was faster.
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                listener => return Self::new(path, listener.map_err(system)?, lock),
            }
        }
        Err(system(ErrorKind::AddrInUse.into()))
    }

    /// Checks whether a path is short enough for a socket.
    ///
    /// # Errors
    /// [`BindError::TooLong`].
    pub fn check_length(path: &Path) -> Result<(), BindError> {
        match path.as_os_str().len() > MAX_PATH {
            true => Err(BindError::TooLong { path: path.into() }),
            false => Ok(()),
        }
    }

    /// Finds out whether a gateway could bind `path`, as far as the files show it, and changes
    /// nothing. A gateway that runs there is no obstacle: it may end before.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn check(path: &Path) -> Result<(), BindError> {
        Self::check_length(path)?;
        if let Some(directory) = path.parent() {
            let found = std::fs::metadata(directory).ok().filter(Metadata::is_dir);
            let directory = directory.to_owned();
            let Some(found) = found else { return Err(BindError::NoDirectory { directory }) };
            let device = |path: &str| std::fs::metadata(path).map(|it| it.dev()).ok();
            // Where none is mounted there, it is a directory as any other.
            let is_of_kernel =
                |root| device(root) == Some(found.dev()) && device(root) != device("/");
            if OF_KERNEL.into_iter().any(is_of_kernel) {
                return Err(BindError::OfKernel { directory });
            }
        }
        let lock = lock_of(path);
        // Names that this user may not look at may be in order for the user of the gateway.
        let seen = |path| find(path).unwrap_or(Found::Nothing);
        match (seen(path), seen(&lock)) {
            (Found::Ours(found), _) if !found.file_type().is_socket() => {
                Err(BindError::NotASocket { path: path.into() })
            }
            (_, Found::Ours(found)) if !found.is_file() => Err(BindError::NotALock { path: lock }),
            _ => Ok(()),
        }
    }

    fn new(path: &Path, listener: UnixListener, lock: File) -> Result<Self, BindError> {
        let system = |source| BindError::System { path: path.into(), source };
        let file = identity(&symlink_metadata(path).map_err(system)?);
        let socket = Self { path: path.into(), listener, is_anothers: false, file, lock };
        // Up to here the umask decides, which by default lets in nobody but the owner.
        std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(system)?;
        socket.listener.set_nonblocking(true).map_err(system)?;
        Ok(socket)
    }

    /// Copies of the listening socket and of the lock, for a process that goes on with them.
    ///
    /// # Errors
    /// The system's error: there are too many descriptors.
    pub fn to_hand_over(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.listener.try_clone()?.into(), self.lock.try_clone()?.into()])
    }

    /// Goes on with the socket of another process, which still has it until [`ControlSocket::own`].
    ///
    /// # Errors
    /// [`BindError::System`] if the file has gone.
    pub fn take_over(path: &Path, [listener, lock]: [OwnedFd; 2]) -> Result<Self, BindError> {
        let found = symlink_metadata(path);
        let file =
            identity(&found.map_err(|source| BindError::System { path: path.into(), source })?);
        let (listener, lock) = (listener.into(), lock.into());
        Ok(Self { path: path.into(), listener, is_anothers: true, file, lock })
    }

    /// No other process has the socket any more.
    pub fn own(&mut self) {
        if std::mem::take(&mut self.is_anothers)
            && let Err(error) = netio::listen_again(&self.listener, BACKLOG)
        {
            tracing::warn!("clients take the former process for the gateway: {error}");
        }
    }

    /// Lets go of the socket, with which another process goes on.
    pub fn leave(mut self) {
        self.is_anothers = true;
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.is_anothers {
            return;
        }
        if symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.file) {
            // Nothing is left to do about it if it has gone in between.
            let _ = remove_file(&self.path);
        }
    }
}

/// Device and inode, which no other file of the host has.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The file with a name. Does not follow links.
fn find(path: &Path) -> Result<Found, BindError> {
    match symlink_metadata(path) {
        Ok(found) if is_in_the_way(path, &found) => Ok(Found::InTheWay(found.uid())),
        Ok(found) => Ok(Found::Ours(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Err(source) => Err(BindError::System { path: path.into(), source }),
    }
}

/// True for a file of another user in a directory in which every user may make files, such as
/// `/tmp`. A file with several names counts too, because another user may have made a link to one
/// of ours.
fn is_in_the_way(path: &Path, found: &Metadata) -> bool {
    let is_everybodys = || {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let found = std::fs::metadata(directory.unwrap_or(Path::new(".")));
        found.is_ok_and(|directory| directory.mode() & 0o002 != 0)
    };
    let is_ours = [ROOT, netio::user_id()].contains(&found.uid());
    (!is_ours || found.is_file() && found.nlink() > 1) && is_everybodys()
}

/// Renames a file of another user, so that it is not lost.
fn set_aside(path: &Path, user: u32) -> Result<(), BindError> {
    let mut name = path.as_os_str().to_owned();
    // No other process can have guessed this name.
    name.push(format!(".aside-{:016x}", RandomState::new().build_hasher().finish()));
    let aside = PathBuf::from(name);
    match rename(path, &aside) {
        Ok(()) => tracing::warn!(
            "{} was made by user {user} and is {} now: the control socket is in a directory in \
             which everybody may make files; choose another",
            path.display(),
            aside.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(BindError::InTheWay { path: path.into(), user, source }),
    }
    Ok(())
}

/// The file with the name of the socket. Refuses a running gateway and a file that is no socket.
fn dead_socket(path: &Path) -> Result<Found, BindError> {
    match find(path)? {
        Found::Ours(found) if !found.file_type().is_socket() => {
            Err(BindError::NotASocket { path: path.into() })
        }
        // A listener without our lock is not a gateway, but it is not ours to replace.
        Found::Ours(_) if UnixStream::connect(path).is_ok() => {
            Err(BindError::InUse { path: path.into() })
        }
        found => Ok(found),
    }
}

/// The path of the lock of a control socket.
fn lock_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock of a control socket.
fn lock(socket: &Path) -> Result<File, BindError> {
    let path = lock_of(socket);
    let system = |source| BindError::System { path: path.clone(), source };
    for _ in 0..MAX_ATTEMPTS {
        let opened = match find(&path)? {
            Found::Nothing => open(&path, true),
            Found::Ours(found) if !found.is_file() => return Err(BindError::NotALock { path }),
            // Other users may have opened this lock, and may hold it for ever.
            Found::Ours(found) if found.mode() & 0o077 != 0 => {
                remove_file(&path).map_err(system)?;
                open(&path, true)
            }
            Found::Ours(_) => open(&path, false),
            Found::InTheWay(user) => {
                set_aside(&path, user)?;
                open(&path, true)
            }
        };
        let file = match opened {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            opened => opened.map_err(system)?,
        };
        match file.try_lock() {
            Ok(()) if is_named(&file, &path) => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(BindError::InUse { path: socket.into() }),
            Err(TryLockError::Error(error)) => return Err(system(error)),
        }
    }
    Err(system(ErrorKind::AlreadyExists.into()))
}

/// True if a file still has this name.
fn is_named(file: &File, path: &Path) -> bool {
    let same = |(file, found): (Metadata, Metadata)| identity(&file) == identity(&found);
    file.metadata().and_then(|it| Ok((it, symlink_metadata(path)?))).is_ok_and(same)
}

/// Opens the lock, which has to be new (`is_new`) or to exist. Follows no link and does not block.
fn open(path: &Path, is_new: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().write(true).create_new(is_new).mode(LOCK_MODE).custom_flags(flags).open(path)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;

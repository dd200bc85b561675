//! The network namespace of this process: its number, and its view of sysfs.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

/// Commands and flags of the system calls that mount (linux/mount.h).
const CREATE: libc::c_uint = 6;
const CLOSE_ON_EXEC: libc::c_uint = 1;

/// The number of the network namespace of this process. No other namespace gets it while the
/// machine runs.
///
/// # Errors
/// The system's error; kernels before 5.14 have no such number.
pub fn network_cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Takes the calling thread into another network namespace, such as the file `/proc/PID/ns/net`.
/// Sockets stay in the namespace in which they were opened.
///
/// # Errors
/// The system's error: the file is no network namespace, or this process may not enter it.
pub fn enter_network(network: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A directory that shows the sysfs of the network namespace of this process. `/sys` may be that of
/// another one. It is mounted nowhere, and ends with the descriptor.
///
/// # Errors
/// The system's error, mostly because this process may not mount.
pub fn own_sysfs() -> io::Result<OwnedFd> {
    // SAFETY: the name is a terminated string, which the kernel only reads.
    let context =
        descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), CLOSE_ON_EXEC) })?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no memory.
    let created =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is passed.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOSE_ON_EXEC, 0) })
}

/// The descriptor that a system call has returned.
fn descriptor(returned: libc::c_long) -> io::Result<OwnedFd> {
    let number = i32::try_from(returned).ok().filter(|number| *number >= 0);
    let number = number.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the system call has just opened it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_one_number() {
        assert_eq!(network_cookie().unwrap(), network_cookie().unwrap());
    }

    #[test]
    fn the_own_sysfs_shows_the_loopback_interface() {
        let sysfs = match own_sysfs() {
            Ok(sysfs) => sysfs,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let path = format!("/proc/self/fd/{}/class/net/lo/ifindex", sysfs.as_raw_fd());
        assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "1");
    }
}

//! What the system knows about a network interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// State of an interface that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Number of the interface; another one after it was deleted and made anew.
    pub index: u32,
    /// Switched on by the administrator.
    pub up: bool,
    /// Up, and its peer or cable is too.
    pub running: bool,
    /// Longest packet behind the link header, bytes.
    pub mtu: u32,
    /// Link address; zero where it has none of 6 bytes.
    pub mac: [u8; 6],
}

/// The state of `interface`, or `None` when there is none of that name. Needs no
/// privilege and leaves nothing open.
///
/// # Errors
/// The system's error when the process is out of file descriptors.
pub fn link_state(interface: &str) -> io::Result<Option<LinkState>> {
    let Some(mut request) = Request::new(interface)? else { return Ok(None) };
    match request.state() {
        Ok(state) => Ok(Some(state)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The questions about one interface.
struct Request {
    socket: OwnedFd,
    fields: libc::ifreq,
}

impl Request {
    /// `None` for a name that no interface can have.
    fn new(interface: &str) -> io::Result<Option<Self>> {
        // SAFETY: zero is a valid value of every field.
        let mut fields: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = interface.as_bytes();
        // The name ends with a zero byte.
        if name.is_empty() || name.len() >= fields.ifr_name.len() || name.contains(&0) {
            return Ok(None);
        }
        for (to, &from) in fields.ifr_name.iter_mut().zip(name) {
            *to = from.cast_signed() as libc::c_char;
        }
        // Any family answers these questions; this one is never missing.
        // SAFETY: no memory is passed.
        let socket =
            unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Ok(Some(Self { socket, fields }))
    }

    fn state(&mut self) -> io::Result<LinkState> {
        self.ask(libc::SIOCGIFINDEX)?;
        // SAFETY: every byte of the union is initialised (zeroed, then written by
        // the kernel), and all its members read below are plain integers.
        let index = unsafe { self.fields.ifr_ifru.ifru_ifindex };
        self.ask(libc::SIOCGIFFLAGS)?;
        // SAFETY: as above.
        let flags = libc::c_int::from(unsafe { self.fields.ifr_ifru.ifru_flags });
        self.ask(libc::SIOCGIFMTU)?;
        // SAFETY: as above.
        let mtu = unsafe { self.fields.ifr_ifru.ifru_mtu };
        self.ask(libc::SIOCGIFHWADDR)?;
        // SAFETY: as above.
        let address = unsafe { self.fields.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        if address.sa_family == libc::ARPHRD_ETHER {
            for (to, from) in mac.iter_mut().zip(address.sa_data) {
                *to = from as u8;
            }
        }
        Ok(LinkState {
            index: index.cast_unsigned(),
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
            mtu: mtu.cast_unsigned(),
            mac,
        })
    }

    fn ask(&mut self, question: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the kernel reads and writes one `ifreq`, which is borrowed
        // mutably for the duration of the call.
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                question as _,
                std::ptr::from_mut(&mut self.fields),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_has() {
        for name in ["", "no-such-if0", "a-name-of-sixteen", "l\0o"] {
            assert_eq!(link_state(name).unwrap(), None, "{name:?}");
        }
    }

    #[test]
    fn the_loopback_interface() {
        let Some(state) = link_state("lo").unwrap() else {
            println!("SKIPPED: there is no interface lo");
            return;
        };
        assert_eq!((state.index, state.mac), (1, [0; 6]));
        assert!(state.mtu >= 1280);
    }
}

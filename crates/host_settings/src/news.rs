//! News of the kernel after which a device may have other settings, or other values of them.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

use crate::generic_netlink::{Family, Refusal};

/// Multicast groups of links (linux/rtnetlink.h) and of the kernel's objects.
const LINKS: u32 = 1;
const OBJECTS: u32 = 1;
/// The place of the interface's number in news of a link, bytes: behind the header of netlink and the
/// first field of `ifinfomsg` (linux/rtnetlink.h).
const INTERFACE: std::ops::Range<usize> = 20..24;
/// The first words of news of a CPU.
const CPU_NEWS: [&[u8]; 2] = [b"online@/devices/system/cpu/", b"offline@/devices/system/cpu/"];
/// The kernel's error for news that are lost: ENOBUFS.
const LOST: i32 = 105;

/// A subject of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A link went up or down, came, went or got another name.
    Link,
    /// Queues, features or coalescing of a device, changed by ethtool(8) or the like.
    Device,
    /// A CPU came or went.
    Cpus,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Link, Self::Device, Self::Cpus];

    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Device => "device",
            Self::Cpus => "CPUs",
        }
    }
}

/// The news about one subject, of this network namespace. The socket is readable when some wait.
#[derive(Debug)]
pub struct News {
    subject: Subject,
    socket: Socket,
}

impl News {
    /// Begins to listen.
    ///
    /// # Errors
    /// The kernel's answer: those before 5.6 have no news of devices.
    pub fn listen(subject: Subject) -> Result<Self, Refusal> {
        let (protocol, groups) = match subject {
            Subject::Link => (NETLINK_ROUTE, LINKS),
            Subject::Device => (NETLINK_GENERIC, 0),
            Subject::Cpus => (NETLINK_KOBJECT_UEVENT, OBJECTS),
        };
        let mut socket = Socket::new(protocol)?;
        socket.set_non_blocking(true)?;
        socket.bind(&SocketAddr::new(0, groups))?;
        if subject == Subject::Device {
            socket.add_membership(Family::group("ethtool", "monitor")?)?;
        }
        Ok(Self { subject, socket })
    }

    /// The subject.
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// Takes all news that wait. True if some of them may be about this interface, or if it is `None`.
    /// Other processes may send news, too: they lead to a look at the device and to nothing else.
    ///
    /// # Errors
    /// The system's error.
    pub fn take(&mut self, interface: Option<u32>) -> io::Result<bool> {
        let mut matters = false;
        loop {
            match self.socket.recv_from_full() {
                Ok((message, _)) => matters |= self.concerns(&message, interface),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(matters),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(LOST) => matters = true,
                Err(error) => return Err(error),
            }
        }
    }

    fn concerns(&self, message: &[u8], interface: Option<u32>) -> bool {
        match self.subject {
            Subject::Link => {
                let of = message.get(INTERFACE).and_then(|it| it.try_into().ok());
                interface.is_none() || of.map(u32::from_ne_bytes) == interface
            }
            Subject::Device => true,
            Subject::Cpus => CPU_NEWS.iter().any(|it| message.starts_with(it)),
        }
    }
}

impl AsRawFd for News {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_news_of_an_interface_that_is_not_there() {
        for subject in Subject::ALL {
            let mut news = News::listen(subject).unwrap();
            assert!(subject != Subject::Link || !news.take(Some(u32::MAX)).unwrap());
        }
    }

    #[test]
    fn only_news_of_the_interface_or_of_cpus_matter() {
        let link = News::listen(Subject::Link).unwrap();
        let mut message = [0; 32];
        message[INTERFACE].copy_from_slice(&7_u32.to_ne_bytes());
        assert!(link.concerns(&message, Some(7)) && link.concerns(&message, None));
        assert!(!link.concerns(&message, Some(8)) && !link.concerns(&message[..22], Some(7)));
        let cpus = News::listen(Subject::Cpus).unwrap();
        assert!(cpus.concerns(b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0", Some(7)));
        assert!(!cpus.concerns(b"add@/devices/virtual/net/lan0\0ACTION=add\0", Some(7)));
    }
}

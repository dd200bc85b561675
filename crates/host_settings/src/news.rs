//! News of the kernel after which a device may have other settings, or other values of them.

use std::io;

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

/// The news about one subject, of this network namespace.
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
        socket.bind(&SocketAddr::new(0, groups))?;
        if subject == Subject::Device {
            socket.add_membership(Family::group("ethtool", "monitor")?)?;
        }
        Ok(Self { subject, socket })
    }

    /// Waits for the next news, and returns the number of the interface that they are about. `None` if
    /// they may be about any. Other processes may send news, too: they lead to a look at the device and
    /// to nothing else.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&mut self) -> io::Result<Option<u32>> {
        loop {
            match self.socket.recv_from_full() {
                Ok((message, _)) => {
                    if let Some(subject) = self.of(&message) {
                        return Ok(subject);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(LOST) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The interface that a message is about, or may be about; `None` for a message about other things.
    fn of(&self, message: &[u8]) -> Option<Option<u32>> {
        match self.subject {
            Subject::Link => {
                let number = message.get(INTERFACE).and_then(|it| it.try_into().ok());
                number.map(|number| Some(u32::from_ne_bytes(number)))
            }
            Subject::Device => Some(None),
            Subject::Cpus => CPU_NEWS.iter().any(|it| message.starts_with(it)).then_some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_name_their_interface_and_others_are_passed_over() {
        let link = News::listen(Subject::Link).unwrap();
        let mut message = [0; 32];
        message[INTERFACE].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(link.of(&message), Some(Some(7)));
        assert_eq!(link.of(&message[..22]), None);
        let cpus = News::listen(Subject::Cpus).unwrap();
        let offline = b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0";
        assert_eq!(cpus.of(offline), Some(None));
        assert_eq!(cpus.of(b"add@/devices/virtual/net/lan0\0ACTION=add\0"), None);
        assert_eq!(News::listen(Subject::Device).unwrap().of(b""), Some(None));
    }
}

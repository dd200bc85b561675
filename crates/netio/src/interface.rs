//! The state of network interfaces.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The largest number of attempts to read the state of a link that is being renamed.
const MAX_ATTEMPTS: usize = 16;

/// Hardware types of if_arp.h that libc does not have.
const RAW_IP: u16 = 519;
const IP6GRE: u16 = 823;

/// State of an interface that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Number of the interface. An interface that was deleted and made anew has another one.
    pub index: u32,
    /// Its own name, not one of its alternative names (ip-link(8), `altname`).
    pub name: String,
    /// The administrator has switched it on.
    pub up: bool,
    /// It is up, and so is its peer or cable.
    pub running: bool,
    /// The longest packet behind the link header, in bytes.
    pub mtu: u32,
    /// Link address; zero if the interface has none of 6 bytes.
    pub mac: [u8; 6],
    /// It has one other end, which gets every packet (IFF_POINTOPOINT).
    pub point_to_point: bool,
    /// What kind of link it is: ARPHRD_ETHER or another of if_arp.h.
    pub hardware: u16,
}

impl LinkState {
    /// True for a *bare* link, whose packets begin with their IP header: tun, WireGuard, PPP and
    /// tunnels of IP packets.
    pub fn is_bare(&self) -> bool {
        self.is_tunnel() || matches!(self.hardware, libc::ARPHRD_PPP | libc::ARPHRD_NONE | RAW_IP)
    }

    /// True for a tunnel of IP packets that the kernel makes.
    fn is_tunnel(&self) -> bool {
        matches!(
            self.hardware,
            libc::ARPHRD_TUNNEL
                | libc::ARPHRD_TUNNEL6
                | libc::ARPHRD_SIT
                | libc::ARPHRD_IPGRE
                | IP6GRE
        )
    }

    /// Says in a few words what kind of interface it is, if its packets can not be forwarded. Those
    /// of a bare link can if the caller `takes_bare` ones. But a tunnel needs a fixed remote end:
    /// otherwise the kernel takes that from a route, which packets from packet sockets do not have.
    pub fn unfit(&self, takes_bare: bool) -> Option<&'static str> {
        let has_end = self.point_to_point || !self.is_tunnel();
        if takes_bare && self.is_bare() && has_end {
            return None;
        }
        Some(match self.hardware {
            _ if takes_bare && !has_end => "a tunnel without a fixed remote end",
            libc::ARPHRD_ETHER => return None,
            libc::ARPHRD_LOOPBACK => "the loopback interface",
            libc::ARPHRD_PPP => "a PPP link, whose packets have no Ethernet header",
            libc::ARPHRD_NONE | RAW_IP => {
                "a device for IP packets without an Ethernet header, such as tun or WireGuard"
            }
            libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT
            | libc::ARPHRD_IPGRE
            | IP6GRE => "a tunnel of IP packets without an Ethernet header",
            _ => "a link of another kind than Ethernet",
        })
    }
}

/// The names of the interfaces of this network namespace.
///
/// # Errors
/// The system's error if they can not be read.
pub fn link_names() -> io::Result<Vec<String>> {
    // This file belongs to the process, unlike `/sys/class/net`, which shows the namespace of the process
    // that mounted it.
    let table = std::fs::read_to_string("/proc/self/net/dev")?;
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
    // The first two lines are headings without a colon.
    Ok(table.lines().filter_map(name).collect())
}

/// The state of the interface that has this name, its own or an alternative one of up to 15
/// bytes, or `None` when there is none. Needs no privilege and leaves nothing open.
///
/// # Errors
/// As [`link_state`].
pub fn link_named(name: &str) -> io::Result<Option<LinkState>> {
    let socket = socket()?;
    let Some(mut request) = Request::about(name, socket.as_fd()) else { return Ok(None) };
    let index = if_exists(request.index())?;
    index.map_or(Ok(None), |index| link_state_by(socket.as_fd(), index))
}

/// The state of the interface of this number, or `None` when there is none. Needs no privilege
/// and leaves nothing open.
///
/// # Errors
/// The system's error when the process is out of file descriptors; [`io::ErrorKind::Interrupted`]
/// if the interface was renamed during each attempt.
pub fn link_state(index: u32) -> io::Result<Option<LinkState>> {
    link_state_by(socket()?.as_fd(), index)
}

/// As [`link_state`], in the network namespace of a socket of any family, without opening another.
pub(crate) fn link_state_by(socket: BorrowedFd<'_>, index: u32) -> io::Result<Option<LinkState>> {
    let mut request = Request::new(socket);
    for _ in 0..MAX_ATTEMPTS {
        let Some(name) = if_exists(request.name(index))? else { return Ok(None) };
        // The kernel answers for the interface that has the name at that moment. So the last
        // question checks that the name still belongs to the same interface.
        let state = if_exists(request.state(index, name))?;
        if state.is_some() && if_exists(request.index())? == Some(index) {
            return Ok(state);
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// The answer of an interface; `None` if there is no such interface.
fn if_exists<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A socket for questions about interfaces. Any family will do; every system has this one.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// A question about an interface, and its answer.
struct Request<'s> {
    socket: BorrowedFd<'s>,
    fields: libc::ifreq,
}

impl<'s> Request<'s> {
    /// A request without an interface.
    fn new(socket: BorrowedFd<'s>) -> Self {
        // SAFETY: zero is a valid value of every field.
        Self { socket, fields: unsafe { std::mem::zeroed() } }
    }

    /// `None` for a name that no interface can have.
    fn about(interface: &str, socket: BorrowedFd<'s>) -> Option<Self> {
        let mut request = Self::new(socket);
        let (to, name) = (&mut request.fields.ifr_name, interface.as_bytes());
        // The name ends with a zero byte.
        if name.is_empty() || name.len() >= to.len() || name.contains(&0) {
            return None;
        }
        for (to, &from) in to.iter_mut().zip(name) {
            *to = from.cast_signed() as libc::c_char;
        }
        Some(request)
    }

    /// Asks for the name of an interface; the next questions are about that interface.
    fn name(&mut self, index: u32) -> io::Result<String> {
        self.fields.ifr_ifru.ifru_ifindex = index.cast_signed();
        self.ask(libc::SIOCGIFNAME)?;
        let bytes = self.fields.ifr_name.iter().map(|&byte| byte as u8);
        let name: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    fn index(&mut self) -> io::Result<u32> {
        self.ask(libc::SIOCGIFINDEX)?;
        // SAFETY: every byte of the union is initialised (zeroed, then written by the kernel),
        // and all its members that are read here and below are plain integers.
        Ok(unsafe { self.fields.ifr_ifru.ifru_ifindex }.cast_unsigned())
    }

    fn state(&mut self, index: u32, name: String) -> io::Result<LinkState> {
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
            index,
            name,
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
            point_to_point: flags & libc::IFF_POINTOPOINT != 0,
            mtu: mtu.cast_unsigned(),
            mac,
            hardware: address.sa_family,
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
            assert_eq!(link_named(name).unwrap(), None, "{name:?}");
        }
    }

    #[test]
    fn tunnels_have_a_fixed_remote_end() {
        let link = |hardware, point_to_point| LinkState {
            index: 7,
            name: "t0".to_owned(),
            up: true,
            running: true,
            mtu: 1480,
            mac: [0; 6],
            point_to_point,
            hardware,
        };
        let tunnels = [libc::ARPHRD_TUNNEL, libc::ARPHRD_TUNNEL6, libc::ARPHRD_SIT];
        for hardware in tunnels.into_iter().chain([libc::ARPHRD_IPGRE, IP6GRE]) {
            let unfit = |point_to_point| link(hardware, point_to_point).unfit(true);
            assert_eq!(unfit(true), None);
            assert_eq!(unfit(false), Some("a tunnel without a fixed remote end"));
            assert!(link(hardware, true).unfit(false).is_some(), "a bridge needs stations");
        }
        assert_eq!(link(RAW_IP, false).unfit(true), None, "its other end is the modem");
        assert_eq!(link(libc::ARPHRD_ETHER, false).unfit(false), None);
    }

    #[test]
    fn the_loopback_interface() {
        let Some(state) = link_named("lo").unwrap() else {
            println!("SKIPPED: there is no interface lo");
            return;
        };
        assert_eq!((state.index, state.name.as_str(), state.mac), (1, "lo", [0; 6]));
        assert_eq!(state.unfit(true), Some("the loopback interface"));
        assert!(state.mtu >= 1280);
        assert_eq!(link_state(1).unwrap(), Some(state));
        assert_eq!(link_state(i32::MAX.cast_unsigned()).unwrap(), None);
    }
}

//! Packet sockets: the system calls that set them up.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

#[derive(Debug)]
pub(super) struct PacketSocket(OwnedFd);

/// How the sockets of a fan-out group divide packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Division {
    /// By flow hash.
    Hash,
    /// By [`PacketSocket::set_fanout_program`]; all go to the first socket until then.
    Program,
}

impl PacketSocket {
    /// A socket that receives nothing until it is bound.
    pub(super) fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(socket) }))
    }

    /// A socket of another process, which is bound to this interface.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is anything else.
    pub(super) fn take_over(descriptor: OwnedFd, index: u32) -> io::Result<Self> {
        let socket = Self(descriptor);
        let mut domain: libc::c_int = 0;
        socket.get_option(libc::SOL_SOCKET, libc::SO_DOMAIN, &mut domain)?;
        // Another kind of socket has another form of address.
        match domain == libc::AF_PACKET && socket.bound_to()? == Some(index) {
            true => Ok(socket),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Binds to an interface, to receive all protocols or, to send only, none.
    pub(super) fn bind(&self, index: u32, receive: bool) -> io::Result<()> {
        self.bind_for(index, if receive { libc::ETH_P_ALL as u16 } else { 0 })
    }

    /// Binds to an interface for frames of one protocol.
    pub(super) fn bind_for(&self, index: u32, protocol: u16) -> io::Result<()> {
        // SAFETY: zero is a valid value of every field.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // In network byte order, as the kernel wants it.
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index.cast_signed();
        // SAFETY: the kernel reads `size_of_val(&address)` bytes of `address`.
        done(unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        })
    }

    /// The interface that it is bound to; `None` when that has gone.
    pub(super) fn bound_to(&self) -> io::Result<Option<u32>> {
        // SAFETY: zero is a valid value of every field.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `address`, any of which are a
        // valid value.
        done(unsafe {
            libc::getsockname(
                self.0.as_raw_fd(),
                std::ptr::from_mut(&mut address).cast(),
                &raw mut length,
            )
        })?;
        // 0 is none, and the kernel puts -1 for one that has gone.
        Ok(u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0))
    }

    /// Its inode number, as in the kernel's list.
    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(File::from(self.0.try_clone()?).metadata()?.ino())
    }

    /// Sets an option of packet sockets.
    pub(super) fn set(&self, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, option, &value)
    }

    /// Receives frames for other machines too, as a bridge must.
    pub(super) fn be_promiscuous(&self, index: u32) -> io::Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: index.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set_option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    /// Enlarges a buffer, beyond the system's limit if that is permitted. `force` and `option` are
    /// SO_RCVBUFFORCE and SO_RCVBUF, or those for sending.
    pub(super) fn enlarge(
        &self,
        force: libc::c_int,
        option: libc::c_int,
        bytes: u32,
    ) -> io::Result<()> {
        // The kernel doubles the figure and must not overflow.
        let bytes = bytes.min(1 << 30).cast_signed();
        self.set_option(libc::SOL_SOCKET, force, &bytes)
            .or_else(|_| self.set_option(libc::SOL_SOCKET, option, &bytes))
    }

    /// Receives nothing until [`PacketSocket::admit_all`].
    pub(super) fn admit_nothing(&self) -> io::Result<()> {
        // One instruction: return 0 bytes of the packet.
        let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
        let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    pub(super) fn admit_all(&self) -> io::Result<()> {
        self.set_option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
    }

    /// Joins a fan-out group, which divides the interface's packets by flow hash or by a program:
    /// `group`, or a new one. Returns the group. A group takes no notice of PACKET_IGNORE_OUTGOING of
    /// its sockets, so it has a flag of its own, which a kernel that is too old for it ignores.
    pub(super) fn join_fanout(&self, by: Division, group: Option<u16>) -> io::Result<u16> {
        let ignoring = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING as libc::c_int;
        let kind = match by {
            Division::Hash => libc::PACKET_FANOUT_HASH,
            Division::Program => libc::PACKET_FANOUT_CBPF,
        };
        let kind = kind as libc::c_int | ignoring;
        let unique = libc::PACKET_FANOUT_FLAG_UNIQUEID as libc::c_int;
        let argument = match group {
            Some(group) => libc::c_int::from(group) | kind << 16,
            None => (kind | unique) << 16,
        };
        self.set(libc::PACKET_FANOUT, argument)?;
        let mut joined: libc::c_int = 0;
        self.get_option(libc::SOL_PACKET, libc::PACKET_FANOUT, &mut joined)?;
        Ok((joined & 0xffff) as u16)
    }

    /// Has the group of this socket divide packets by a program.
    pub(super) fn set_fanout_program(&self, code: &mut [libc::sock_filter]) -> io::Result<()> {
        let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
        self.set_option(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
    }

    /// Makes the ring of `option`.
    pub(super) fn set_ring(&self, option: libc::c_int, ring: &libc::tpacket_req) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, option, ring)
    }

    /// Removes the ring, which must not be mapped any more. From then on all frames come through
    /// the queue.
    pub(super) fn remove_receive_ring(&self) -> io::Result<()> {
        let none = libc::tpacket_req {
            tp_block_size: 0,
            tp_block_nr: 0,
            tp_frame_size: 0,
            tp_frame_nr: 0,
        };
        self.set_ring(libc::PACKET_RX_RING, &none)
    }

    /// Makes the kernel send the frames in the transmit ring. The ring shows which it has sent.
    pub(super) fn send_ring(&self) {
        // SAFETY: no memory is passed.
        unsafe { libc::send(self.0.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
    }

    /// The error that waits on the socket, such as that the interface has gone.
    pub(super) fn take_error(&self) -> io::Result<()> {
        let mut error: libc::c_int = 0;
        self.get_option(libc::SOL_SOCKET, libc::SO_ERROR, &mut error)?;
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Reads one message of the queue into `parts`, one after the other. Returns its length, or
    /// that of the parts if they are shorter.
    pub(super) fn read<const N: usize>(&self, mut parts: [IoSliceMut<'_>; N]) -> io::Result<usize> {
        // SAFETY: an `IoSliceMut` is laid out as an iovec; each is borrowed mutably
        // through the call, and its length is that of what it points to.
        let count =
            unsafe { libc::readv(self.0.as_raw_fd(), parts.as_mut_ptr().cast(), N as libc::c_int) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Packets lost since the last call because the receive buffer was full.
    pub(super) fn take_lost(&self) -> io::Result<u32> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        self.get_option(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics)?;
        Ok(statistics.tp_drops)
    }

    fn set_option<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads at most `size_of::<T>()` bytes of `value`.
        done(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        })
    }

    fn get_option<T: Integers>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &mut T,
    ) -> io::Result<()> {
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `value`, and any
        // bytes are a valid `T`.
        done(unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(value).cast(),
                &raw mut length,
            )
        })
    }
}

/// Types of which any bytes are a valid value.
trait Integers {}
impl Integers for libc::c_int {}
impl Integers for libc::tpacket_stats {}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

//! A bare link: a tun device whose other end is the test.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use netio::afpacket::{AfPacketOptions, AfPacketPort, BARE_STATION};
use netio::{Checksum, Frame, FramePool, PortError, PortId, RxQueue, Segmentation, TxQueue};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::PATIENCE;
use super::isolated;
use super::machine::ip;

/// Length of the virtio header in front of each packet of the device.
const VNET: usize = 10;
/// Sets the hardware type of a tun device (if_tun.h).
const TUNSETLINK: libc::c_ulong = 0x4004_54cd;
/// The hardware types of bare links: those of tun and WireGuard, PPP, IPIP, SIT and GRE.
const KINDS: [u16; 5] = [
    libc::ARPHRD_NONE,
    libc::ARPHRD_PPP,
    libc::ARPHRD_TUNNEL,
    libc::ARPHRD_SIT,
    libc::ARPHRD_IPGRE,
];
/// Length of the Ethernet header that the other end does not see.
const ETHERNET: usize = 14;
const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];

/// The other end of a tun device.
struct OtherEnd(File);

impl OtherEnd {
    /// Makes the device, with virtio headers and without a header of its own, and gives it this
    /// hardware type. The kernel sends no packets of its own by it.
    fn new(name: &str, hardware: u16) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .unwrap();
        // SAFETY: zero is a valid value of every field.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the kernel reads and writes one `ifreq`.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let hardware = libc::c_ulong::from(hardware);
        // SAFETY: no memory is passed.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETLINK, hardware) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").ok();
        ip(&format!("link set {name} mtu 9000 up"));
        Self(file)
    }

    fn send(&mut self, header: [u8; VNET], packet: &[u8]) {
        let length = self.0.write(&[&header, packet].concat()).unwrap();
        assert_eq!(length, VNET + packet.len());
    }

    /// The next packet that has come.
    fn packet(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 70_000];
        let begin = Instant::now();
        loop {
            match self.0.read(&mut bytes) {
                Ok(length) => break bytes[VNET..length].to_vec(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(begin.elapsed() < PATIENCE, "no packet has come");
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn open(name: &str, takes_bare: bool) -> Result<AfPacketPort, PortError> {
    let options = AfPacketOptions { takes_bare, promiscuous: false, ..AfPacketOptions::default() };
    AfPacketPort::open(name, PortId(5), &options)
}

/// The one frame that has come.
fn received(queue: &mut dyn RxQueue, pool: &mut FramePool) -> Frame {
    let mut frames = Vec::new();
    let begin = Instant::now();
    while queue.receive(&mut frames, 64, pool).unwrap() == 0 {
        assert!(begin.elapsed() < PATIENCE, "no frame has come");
    }
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

/// The sum of RFC 1071 over a packet's TCP and its pseudo header.
fn sum(packet: &[u8]) -> u16 {
    let tcp = &packet[20..];
    let length = (tcp.len() as u32).to_be_bytes();
    let covered = [&packet[12..20], &[0, packet[9]], &length[2..], tcp].concat();
    let mut pairs: Vec<u8> = covered;
    pairs.resize(pairs.len().next_multiple_of(2), 0);
    let pairs = pairs.as_chunks::<2>().0.iter();
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[test]
fn packets_of_a_bare_link_get_an_ethernet_header_and_lose_it() {
    isolated("bare::packets_of_a_bare_link_get_an_ethernet_header_and_lose_it", || {
        KINDS.into_iter().for_each(every_packet_passes);
    });
}

/// Checks packets of several lengths in both directions, by a link of this hardware type.
fn every_packet_passes(hardware: u16) {
    let mut end = OtherEnd::new("tun0", hardware);
    assert!(matches!(open("tun0", false), Err(PortError::NotEthernet { .. })));
    let (mut port, mut pool) = (open("tun0", true).unwrap(), FramePool::new(64, 8));
    // A frame of 2 KiB or more does not fit the ring.
    for length in [0, 1, 1400, 1990, 2010, 5000] {
        let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let ends = (BARE_STATION, BARE_STATION);
        PacketBuilder::v4(CLIENT, SERVER).macs(ends.0, ends.1).udp(1, 2, &payload, &mut v4);
        PacketBuilder::v6([1; 16], [2; 16]).macs(ends.0, ends.1).udp(1, 2, &payload, &mut v6);
        for expected in [v4, v6] {
            end.send([0; VNET], &expected[ETHERNET..]);
            let frame = received(&mut port.receive[0], &mut pool);
            assert_eq!(frame.bytes(), expected);
            assert_eq!((frame.port, frame.offload.is_done()), (PortId(5), true));
            let report = port.transmit[0].transmit(&mut vec![frame], &mut pool).unwrap();
            assert_eq!((report.sent, report.frames()), (1, 1), "{length}");
            assert_eq!(end.packet(), expected[ETHERNET..]);
        }
    }
    // A frame without a packet is none.
    let mut frames = vec![pool.copy_of(&[2; ETHERNET]).unwrap()];
    let report = port.transmit[0].transmit(&mut frames, &mut pool).unwrap();
    assert_eq!((report.sent, report.refused_invalid), (0, 1));
}

#[test]
fn a_super_packet_is_cut_for_a_bare_link() {
    isolated("bare::a_super_packet_is_cut_for_a_bare_link", || {
        KINDS.into_iter().for_each(a_super_packet_is_cut);
    });
}

/// Checks what arrives of a super-packet by a link of this hardware type. The kernel cuts it, but
/// this program does for PPP.
fn a_super_packet_is_cut(hardware: u16) {
    let mut end = OtherEnd::new("tun0", hardware);
    let (mut port, mut pool) = (open("tun0", true).unwrap(), FramePool::new(64, 8));
    let payload: Vec<u8> = (0..3500).map(|n| (n % 251) as u8).collect();
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4(CLIENT, SERVER).macs(BARE_STATION, BARE_STATION);
    builder.tcp(&Tcp { flags: TcpFlags::ACK, ..Tcp::default() }, &payload, &mut frame);
    let mut packet = frame.split_off(ETHERNET);
    // The checksum is that of the pseudo header here. The one who forwards the frame completes it.
    let without_tcp = [&packet[..20], &vec![0; packet.len() - 20]].concat();
    let pseudo = sum(&without_tcp);
    packet[36..38].copy_from_slice(&pseudo.to_be_bytes());
    // Needs a checksum, TCP over IPv4, headers of 40 bytes, segments of 1000.
    let numbers = [40, 1000, 20, 16].map(u16::to_ne_bytes).concat();
    let header = [&[1, 1], &numbers[..]].concat();
    end.send(header.try_into().unwrap(), &packet);
    let frame = received(&mut port.receive[0], &mut pool);
    let segmentation = Segmentation { kind: 1, segment_size: 1000, header_length: 54 };
    assert_eq!(frame.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
    assert_eq!(frame.offload.segmentation, Some(segmentation));
    let report = port.transmit[0].transmit(&mut vec![frame], &mut pool).unwrap();
    assert_eq!((report.sent, report.frames()), (1, 1));
    let mut arrived = Vec::new();
    for _ in 0..4 {
        let segment = end.packet();
        assert_eq!(sum(&segment), 0xffff, "the checksum is right");
        arrived.extend_from_slice(&segment[40..]);
    }
    assert_eq!(arrived, payload);
}

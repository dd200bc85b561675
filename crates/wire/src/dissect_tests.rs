use super::*;
use crate::{Malformed, Transport};

#[test]
fn reads_a_udp_packet() {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([192, 0, 2, 1, 198, 51, 100, 2, 0x30, 0x39, 0, 53, 0, 8, 0, 0]);
    let sum = crate::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.resize(60, 0);
    let dissected = dissect(&frame, Tunnels::Inner).unwrap();
    let network = dissected.network.unwrap();
    assert_eq!(
        network.transport,
        Transport::Udp { source_port: 12345, destination_port: 53, length: 8 }
    );
    assert_eq!(network.source_ip().to_string(), "192.0.2.1");
    assert_eq!((network.offset, network.transport_offset, network.end), (14, 34, 42));
    frame[24] ^= 1;
    assert_eq!(dissect(&frame, Tunnels::Inner), Err(Malformed::Ipv4Header));
}

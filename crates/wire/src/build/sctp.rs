//! SCTP packets for tests (RFC 9260 section 3).
//! [`PacketBuilder::transport`](super::PacketBuilder::transport) completes their checksum.

/// A chunk with its padding.
pub fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let [l0, l1] = (4 + value.len() as u16).to_be_bytes();
    let mut bytes = vec![kind, flags, l0, l1];
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A packet with this verification tag and these chunks, as [`chunk`] makes them. Its ports are
/// 0.
pub fn packet(tag: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(chunks.concat());
    bytes
}

/// An INIT or INIT ACK with this initiate tag, a window of 64 KiB and ten streams each way.
pub fn init(tag: u32, kind: u8, initiate_tag: u32) -> Vec<u8> {
    let mut value = initiate_tag.to_be_bytes().to_vec();
    value.extend([0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1]);
    packet(tag, &[chunk(kind, 0, &value)])
}

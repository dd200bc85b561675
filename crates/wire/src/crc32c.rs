//! CRC32c, the checksum of SCTP (RFC 9260 appendix A).

/// The polynomial 0x1EDC6F41 with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// The CRC32c of `parts` in sequence.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(!0, |crc, byte| step(crc, *byte))
}

/// The exclusive or of the CRC32c before and after a change of four bytes. `changed` is the
/// exclusive or of these bytes, read in little-endian order; `following` unchanged bytes come
/// behind them.
pub(crate) fn crc32c_of_change(changed: u32, following: usize) -> u32 {
    // The CRC is linear except for its initial and final values, which cancel out.
    let changed = changed.to_le_bytes().into_iter();
    changed.chain(std::iter::repeat_n(0, following)).fold(0, step)
}

#[inline]
fn step(crc: u32, byte: u8) -> u32 {
    TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_check_value_of_the_catalogue() {
        assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
    }
}

//! Recognizes what nft prints of the tables of iptables-nft by a comment of nft, which is a certain
//! sign. nft 1.0.6 writes it to its standard error, so it is in few files.

/// True for a text with nft's comment about tables of iptables-nft.
pub(in super::super) fn is_of_iptables_nft(text: &[u8]) -> bool {
    let (begin, end) = (&b"# Warning: table "[..], &b"managed by iptables-nft"[..]);
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| line.starts_with(begin) && line.windows(end.len()).any(|it| it == end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nft_prints_of_iptables_nft_is_recognized() {
        let warning =
            b"# Warning: table ip filter is managed by iptables-nft, do not touch!\ntable ip";
        assert!(is_of_iptables_nft(warning));
        assert!(!is_of_iptables_nft(b"# a table\ntable ip filter {}"));
    }
}

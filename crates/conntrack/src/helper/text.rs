//! Reading text protocols byte by byte.

/// The decimal number at the beginning, after blanks, and what follows it. `None` without a
/// digit and above 32 bits.
pub(crate) fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((number, &text[digits..]))
}

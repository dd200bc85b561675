//! The real `nft`, in a network namespace of its own.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// The output of a command in a namespace with a ruleset.
pub fn output_of(rules: &str, command: &str) -> Result<Vec<u8>, String> {
    let script = &format!("ip link set lo up && nft -f - && {command}");
    let mut child = Command::new("unshare")
        .args(if is_root() { &["--net"][..] } else { &["--user", "--map-root-user", "--net"] })
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("unshare: {error}"))?;
    let mut input = child.stdin.take().expect("it is piped");
    // A child that ends at once reports the reason itself.
    let _ = input.write_all(rules.as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    // Root has all that the tests need, so an error is one of theirs.
    let lacks: &[&str] = match is_root() {
        true => &["unshare failed", "not found"],
        false => &[
            "unshare failed",
            "not found",
            "Operation not permitted",
            "not supported",
            "Message too long",
        ],
    };
    match output.status.success() {
        true => Ok(output.stdout),
        false if lacks.iter().any(|lack| message.contains(lack)) => Err(message),
        false => panic!("nft refuses the test's own ruleset: {message}"),
    }
}

/// True for root. The kernel takes larger messages outside a user namespace.
fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

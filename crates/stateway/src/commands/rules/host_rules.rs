//! The rules that the kernel has to apply, and whether it has them.

use std::process::{Command, Stdio};

use control::{Client, ClientError, HostRule, RuleBook};
use serde_json::Value;

/// Lines about the chains of a ruleset that are about this host's own traffic, which its kernel has
/// to run; none if there are no such chains.
pub fn lines_of_chains(chains: &[HostRule]) -> Vec<String> {
    let first = "only the kernel runs these chains for this host's own traffic:";
    if chains.is_empty() { Vec::new() } else { lines_about(first, chains) }
}

/// A remark about a chain of `input`, `output` or `prerouting`, to stand beside it.
pub fn remark(chain: &HostRule) -> &'static str {
    match (chain.runs_here, chain.is_there) {
        (false, Some(true)) => "only this host's kernel runs it, and has it",
        (false, Some(false)) => "NOBODY RUNS IT: only this host's kernel can, and does not have it",
        (false, None) => "only this host's kernel runs it; can not tell whether it has it",
        (true, Some(true)) => "for this host, only its kernel runs it, and has it",
        (true, Some(false)) => {
            "NOBODY RUNS IT FOR THIS HOST: only its kernel can, and does not have it"
        }
        (true, None) => "for this host, only its kernel runs it; can not tell whether it has it",
    }
}

/// Lines about the rules that lead packets to this host, which its kernel has to apply; none if
/// there are no such rules.
pub fn lines(book: &RuleBook) -> Vec<String> {
    let rules = rules(book);
    let first = "the kernel carries these rules out, since they lead packets to this host; the \
                 gateway leaves it what they match:";
    if rules.is_empty() { Vec::new() } else { lines_about(first, &rules) }
}

/// The rules that lead packets to this host.
pub fn rules(book: &RuleBook) -> Vec<HostRule> {
    // Without such rules there is nothing to ask the kernel.
    if book.ruleset().translations().ends.is_empty() {
        return Vec::new();
    }
    // Redirects are known even if the kernel does not tell its addresses.
    let own = engine::host_addresses().unwrap_or_default();
    if book.host_rules(&own, None).is_empty() {
        return Vec::new();
    }
    book.host_rules(&own, kernels_rules(book).as_ref())
}

/// As [`lines`], for a running gateway. If the gateway is in another network namespace than this
/// command, its kernel can not be asked.
pub fn lines_of(gateway: &Client, book: &RuleBook) -> Result<Vec<String>, ClientError> {
    if !gateway.process()?.is_some_and(is_elsewhere) {
        return Ok(lines(book));
    }
    let may_be_some = !book.ruleset().translations().ends.is_empty();
    Ok(may_be_some.then(|| ELSEWHERE.to_owned()).into_iter().collect())
}

const ELSEWHERE: &str = "this command runs in another network namespace than the gateway: run \
                         `stateway rules check` there to see which rules the kernel has to apply, \
                         and whether it has them";

/// True for a process that is known to be in another network namespace.
fn is_elsewhere(process: i32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    namespace(&process.to_string()).zip(namespace("self")).is_some_and(|(its, own)| its != own)
}

fn lines_about(first: &str, rules: &[HostRule]) -> Vec<String> {
    let mut lines = vec![first.to_owned()];
    for HostRule { place, text, is_there, .. } in rules {
        let has = match is_there {
            Some(true) => "the kernel has it",
            Some(false) => "THE KERNEL DOES NOT HAVE IT",
            None => "can not tell whether the kernel has it",
        };
        lines.push(format!("{place}: {has}"));
        lines.push(format!("    {text}"));
    }
    let lacks = |wanted| rules.iter().any(|rule| rule.is_there == wanted);
    if lacks(Some(false)) {
        lines.push(
            "load the ruleset into the kernel too (nft -f; iptables-restore for rules of \
             iptables-save): until then nobody does what they say"
                .to_owned(),
        );
    } else if lacks(None) {
        lines.push(
            "see that `nft list ruleset`, as root, shows them: else nobody does what they say"
                .to_owned(),
        );
    }
    lines
}

/// The kernel's rules in the tables of the ruleset that lead packets to the host; `None` if they can
/// not be read. It is asked for these tables alone: some versions of nft print damaged JSON of tables
/// that belong to a process, as the gateway's own does.
fn kernels_rules(book: &RuleBook) -> Option<Value> {
    let mut all = Vec::new();
    for (family, table) in book.host_tables() {
        let listed = Command::new("nft")
            .args(["-j", "list", "table", family, table])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        if listed.status.success() {
            let mut document: Value = serde_json::from_slice(&listed.stdout).ok()?;
            all.append(document.get_mut("nftables")?.as_array_mut()?);
        } else if !String::from_utf8_lossy(&listed.stderr).contains("No such file or directory") {
            return None;
        }
    }
    Some(serde_json::json!({ "nftables": all }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_what_to_do_about_rules_that_the_kernel_lacks() {
        let rule = |is_there| HostRule {
            place: "ip t chain c rule handle 4".to_owned(),
            text: "tcp dport 80 redirect to :3128".to_owned(),
            is_there,
            runs_here: false,
        };
        let say = |rules: &[HostRule]| lines_about("first", rules)[1..].join("\n");
        let text = "\n    tcp dport 80 redirect to :3128";
        let place = "ip t chain c rule handle 4: ";
        assert_eq!(say(&[rule(Some(true))]), format!("{place}the kernel has it{text}"));
        let both = say(&[rule(Some(true)), rule(Some(false))]);
        assert!(both.contains("THE KERNEL DOES NOT HAVE IT") && both.contains("nft -f"), "{both}");
        let unknown = say(&[rule(None)]);
        assert!(unknown.contains("can not tell") && unknown.contains("as root"), "{unknown}");
    }
}

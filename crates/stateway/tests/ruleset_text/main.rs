//! Rulesets in nft's own syntax and from iptables-save, read by the real programs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

mod iptables;
mod nft;

use std::ffi::OsStr;
use std::fs;
use std::io::{Write, stderr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_stateway");

/// A directory with files, which all users may read.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(directory)
    }

    /// Runs a program in the directory.
    fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> Output {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.0.path()).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn stateway(&self, words: &[&str]) -> Output {
        self.run(&[&[BINARY], words].concat())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// True if a program can be started here. Otherwise it prints that the test is skipped.
fn has(words: &[&str]) -> bool {
    let tried = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let works = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !works {
        stderr()
            .write_all(format!("SKIPPED: {words:?} does not work: {tried:?}\n").as_bytes())
            .unwrap();
    }
    works
}

fn has_nft() -> bool {
    has(&["unshare", "--net", "nft", "list", "ruleset"])
}

fn has_iptables() -> bool {
    has(&["iptables-restore-translate", "--version"])
        && has(&["ip6tables-restore-translate", "--version"])
}

//! Nothing of a lab remains, however its creator ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::{Namespace, Tracking};

use crate::scenario::{alone, kernel_router};

const CHILD: &str = "LAB_LIFETIME_CHILD";

/// The child of the test below; alone this test does nothing.
#[test]
fn child_that_is_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let lab = kernel_router(Tracking::Off).unwrap();
    let _sleeper = lab.client().program("sleep").args(["300"]).spawn().unwrap();
    println!("\nlab of {}", namespaces_of(&[lab.client(), lab.gateway(), lab.server()]).join(" "));
    std::thread::sleep(Duration::from_secs(60));
}

fn namespaces_of(namespaces: &[&Namespace]) -> Vec<String> {
    let link = |namespace: &&Namespace| {
        let text = namespace.program("readlink").args(["/proc/self/ns/net"]).check().unwrap();
        text.trim().to_owned()
    };
    namespaces.iter().map(link).collect()
}

/// The namespaces among these that some process of this machine is in.
fn in_use(namespaces: &[String]) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let nets = processes.filter_map(|process| {
        let link = std::fs::read_link(process.path().join("ns/net")).ok()?;
        Some(link.to_string_lossy().into_owned())
    });
    nets.filter(|net| namespaces.contains(net)).collect()
}

#[test]
fn a_killed_test_leaves_nothing() {
    alone(|| {
        drop(Namespace::new("probe")?);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "harness::lifetime::child_that_is_killed", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("lab of ").map(str::to_owned));
        let nets: Vec<String> = line.unwrap().split(' ').map(str::to_owned).collect();
        assert_eq!(nets.len(), 3);
        assert!(!in_use(&nets).is_empty(), "the lab is there while its maker lives");
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        while !in_use(&nets).is_empty() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(in_use(&nets), Vec::<String>::new());
        Ok(())
    });
}

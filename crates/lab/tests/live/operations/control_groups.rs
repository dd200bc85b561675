//! A gateway in a control group with tight limits: cgroups(7), of either version.

use std::fs::{create_dir, read_to_string, remove_dir, remove_file, write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use lab::{Datagrams, Error, Family, Lab, Result, StatewaySpec, at_pace, iperf_udp, ping};
use wire::build::PacketBuilder;

use crate::scenario::{
    StatewayLab, beside_others, soon, start, stateway, stateway_binary, stop_cleanly,
};

/// A new control group, and a program that runs the gateway in it.
struct Group {
    directory: PathBuf,
    is_first_version: bool,
    program: PathBuf,
}

impl Group {
    /// Creates a control group with this controller.
    fn new(controller: &str) -> Result<Self> {
        let unavailable = |why: String| Error::Unavailable { why };
        let name = format!("stateway-{controller}-{}", std::process::id());
        let all = PathBuf::from("/sys/fs/cgroup");
        let is_first_version = all.join(controller).is_dir();
        let (hierarchy, mount) = match is_first_version {
            true => (all.join(controller), format!("cgroup -o {controller}")),
            false => (all, "cgroup2".to_owned()),
        };
        let directory = hierarchy.join(&name);
        create_dir(&directory)
            .map_err(|error| unavailable(format!("no control group {directory:?}: {error}")))?;
        // The lab mounts its own /sys.
        let here = lab::Namespace::SCRATCH;
        let script = format!(
            "#!/bin/sh\nif [ \"$1 $2\" = 'run -c' ]; then\nmkdir {here}/groups && mount -t {mount} \
             none {here}/groups && echo 0 >{here}/groups/{name}/cgroup.procs || exit 1\nfi\nexec \
             {:?} \"$@\"\n",
            stateway_binary()?
        );
        let program = std::env::temp_dir().join(name);
        write(&program, script).expect("there is such a directory");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("it is our own");
        Ok(Self { directory, is_first_version, program })
    }

    /// Sets a limit. Its file has another name in each version.
    fn set(&self, [first, second]: [&str; 2], value: &str) -> Result<()> {
        let file = self.directory.join(if self.is_first_version { first } else { second });
        let why = |error| format!("{file:?} can not be set to {value}: {error}");
        write(&file, value).map_err(|error| Error::Unavailable { why: why(error) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = remove_file(&self.program);
        // Its processes may still be exiting.
        for _ in 0..100 {
            if remove_dir(&self.directory).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A lab whose gateway runs in a group. The group has to outlive the lab.
fn lab_in(group: &Group, workers: u32) -> Result<StatewayLab> {
    let spec = StatewaySpec::new(group.program.clone(), workers);
    start(spec)
}

/// One datagram for each of these numbers, each of another flow.
fn flows(lab: &Lab, numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    let IpAddr::V4(server) = lab.server_address(Family::V4) else { return Vec::new() };
    let one = |number: u32| {
        let [_, high, middle, low] = number.to_be_bytes();
        let source_port = 1024 + u16::from_be_bytes([high, middle]);
        let packet = PacketBuilder::v4([203, 0, 113, low], server.octets())
            .macs([0, 0, 0x5e, 0, 0x53, 0x02], lab.next_hop_mac());
        let mut frame = Vec::new();
        packet.udp(source_port, 9, b"spoofed", &mut frame);
        frame
    };
    numbers.map(one).collect()
}

#[test]
fn a_flood_does_not_have_the_kernel_end_a_gateway_with_little_memory() {
    const LIMIT: u64 = 32 << 20;
    beside_others(|| {
        let group = Group::new("memory")?;
        group.set(["memory.limit_in_bytes", "memory.max"], &LIMIT.to_string())?;
        let mut lab = lab_in(&group, 2)?;
        let datagrams = Datagrams::new(&lab, &stateway_binary()?)?;
        // These are many more connections than fit. Each part takes a second.
        for part in 0..6 {
            let flows = flows(&lab, 50_000 * part..50_000 * (part + 1));
            datagrams.start_sending(&lab, &at_pace(&flows, 50_000))?.finish()?;
        }
        let answer = stateway(&lab).query(&["conntrack", "count"])?;
        assert_eq!(answer["connections"], 16_384, "as many as fit: {answer}");
        let report = ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?;
        assert_eq!(report.received, 3);
        let log = stateway(&lab).log();
        assert!(log.contains("this process may use 32 MiB of memory"), "{log}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn datagrams_stay_in_order_while_a_cpu_set_shrinks_to_one() {
    beside_others(|| {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 {
            return Err(Error::Unavailable { why: "this machine has one CPU".to_owned() });
        }
        let group = Group::new("cpuset")?;
        let all = read_to_string(group.directory.join("../cpuset.cpus.effective"))
            .or_else(|_| read_to_string(group.directory.join("../cpuset.cpus")))
            .map_err(|error| Error::Unavailable { why: format!("no CPU set: {error}") })?;
        let set = |cpus: &str| group.set(["cpuset.cpus"; 2], cpus);
        set(&all)?;
        if group.is_first_version {
            group.set(["cpuset.mems"; 2], "0")?;
        }
        let mut lab = lab_in(&group, 0)?;
        let report = thread::scope(|scope| {
            let lab = &*lab;
            let stream = scope
                .spawn(|| iperf_udp(lab, Family::V4, Duration::from_secs(6), 50_000_000, 1200));
            for (cpus, workers) in [("0", 1), (&*all, cpus), ("0", 1)] {
                thread::sleep(Duration::from_millis(700));
                set(cpus)?;
                let stateway = stateway(lab);
                soon("as many workers", || {
                    let status = stateway.query(&["status"])?;
                    Ok(status["workers"].as_array().map(Vec::len) == Some(workers))
                })?;
            }
            stream.join().expect("a client does not panic")
        })?;
        assert_eq!(report.out_of_order, 0, "{report:?}");
        // A busy machine may lose some datagrams; a gateway that stalls loses more.
        assert!(report.lost * 4 < report.packets, "{report:?}");
        stop_cleanly(&mut lab)
    });
}

//! Peers that stall: a reader of standard error that stops, a full disk behind it, and connections
//! to the control socket that never send a whole request. Packets still flow, commands are
//! answered, routes are followed, and SIGTERM ends the gateway.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Family, Lab, Result, Stateway, StatewaySpec, ping};
use tempfile::TempDir;

use crate::scenario::{
    FAMILIES, StatewayLab, beside_others, load, soon, start, stateway, stateway_binary,
    stop_cleanly,
};

/// Logs every packet.
const LOGGING: &str = r#"
table inet watch {
    chain forward {
        type filter hook forward priority filter; policy accept;
        log prefix "every packet: "
    }
}
"#;

/// A program that runs Stateway with its standard error redirected by the shell words in
/// `redirect`. Commands that query the gateway keep their own standard error.
fn redirected(directory: &Path, redirect: &str) -> Result<PathBuf> {
    let (program, stateway) = (directory.join("stateway"), stateway_binary()?);
    let stateway = stateway.display();
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'run -c' ] || exec {stateway} \"$@\"\n\
         {redirect}\nexec {stateway} \"$@\"\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    Ok(program)
}

/// A router that logs every packet.
fn logging_lab(binary: PathBuf) -> Result<StatewayLab> {
    let spec = StatewaySpec { routed: true, ..StatewaySpec::new(binary, 2) };
    let lab = start(spec)?;
    load(&lab, LOGGING)?;
    Ok(lab)
}

fn lines_lost(lab: &Lab) -> Result<u64> {
    let status = stateway(lab).query(&["status"])?;
    Ok(status["log_lines_lost"].as_u64().expect("a number"))
}

/// Checks that the gateway follows its routes: with a blackhole route no ping gets through.
fn routes_are_followed(lab: &Lab) -> Result<()> {
    let server = lab.server_address(Family::V4);
    let passes = || Ok(ping(lab.on_client("ping"), server, 1)?.received == 1);
    lab.gateway().ip(&[&format!("route add blackhole {server}")])?;
    soon("the route is followed", || Ok(!passes()?))?;
    lab.gateway().ip(&[&format!("route del blackhole {server}")])?;
    soon("the one before too", passes)
}

/// A full pipe that has no reader.
struct StalledPipe {
    path: PathBuf,
    reader: File,
}

impl StalledPipe {
    fn new(directory: &Path) -> Self {
        const O_NONBLOCK: i32 = 0o4000;
        let path = directory.join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut options = OpenOptions::new();
        // Also open for reading, so that writers neither fail nor wait for a reader.
        let reader = options.read(true).write(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
        Self { path, reader }
    }

    fn fill(&mut self) {
        // Single bytes leave no room.
        let error = (0..).find_map(|_| self.reader.write(b"\n").err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    /// The content of the pipe.
    fn read(&mut self) -> String {
        let mut text = Vec::new();
        let error = self.reader.read_to_end(&mut text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[test]
fn a_reader_of_the_log_that_stalls_stops_nothing() {
    beside_others(|| {
        let directory = TempDir::new().unwrap();
        let mut pipe = StalledPipe::new(directory.path());
        let binary = redirected(directory.path(), &format!("exec 2>{}", pipe.path.display()))?;
        let mut lab = logging_lab(binary)?;
        pipe.fill();
        for family in FAMILIES {
            let report = ping(lab.on_client("ping"), lab.server_address(family), 100)?;
            assert_eq!((report.sent, report.received), (100, 100), "{family:?}");
        }
        // The gateway answers commands,
        assert_eq!(lines_lost(&lab)?, 0, "the queue has room");
        // follows routes,
        routes_are_followed(&lab)?;
        // and delivers the waiting lines when the reader returns.
        let mut log = String::new();
        soon("the log goes on", || {
            log += &pipe.read();
            Ok(log.matches("every packet: in=lan0").count() >= 100)
        })?;
        pipe.fill();
        ping(lab.on_client("ping"), lab.server_address(Family::V4), 100)?;
        stop_cleanly(&mut lab)
    });
}

/// The CPU time in ticks of the thread that writes the log.
fn ticks_of_writer(lab: &Lab) -> u64 {
    let here = format!("--ns {} --nslist net", lab.gateway().resident());
    let find = format!("grep -lx log /proc/$(pgrep -xn {here} stateway)/task/*/comm");
    let found = Command::new("sh").args(["-c", &find]).output().unwrap();
    let comm = String::from_utf8(found.stdout).unwrap();
    let stat = std::fs::read_to_string(comm.trim().replace("comm", "stat")).unwrap();
    // Fields 14 and 15 of proc(5); field 2 is the name in parentheses.
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ').collect::<Vec<_>>();
    [fields[11], fields[12]].map(|ticks| ticks.parse::<u64>().unwrap()).iter().sum()
}

#[test]
fn a_full_disk_behind_the_log_stops_nothing_and_is_told_when_it_has_room() {
    beside_others(|| {
        let directory = TempDir::new().unwrap();
        let disk = "mkdir /dev/shm/disk && mount -t tmpfs -o size=128k disk /dev/shm/disk || exit 1
            exec 2>>/dev/shm/disk/log
            cat /dev/zero >/dev/shm/disk/filler 2>/dev/null";
        let mut lab = logging_lab(redirected(directory.path(), disk)?)?;
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 100)?.received, 100);
        soon("lines are lost", || Ok(lines_lost(&lab)? >= 50))?;
        let status = stateway(&lab).command(&["status"]).check()?;
        assert!(status.contains("warning     ") && status.contains("of the log"), "{status}");
        // The writer does not retry all the time.
        let before = ticks_of_writer(&lab);
        std::thread::sleep(std::time::Duration::from_secs(1));
        let ticks = ticks_of_writer(&lab) - before;
        assert!(ticks < 20, "{ticks} of 100");
        // Room becomes free.
        let disk = lab.gateway().scratch().join("disk");
        std::fs::remove_file(disk.join("filler")).unwrap();
        assert_eq!(ping(lab.on_client("ping"), server, 10)?.received, 10);
        let has_remark =
            |log: &str| log.contains(" of the log lost here: ") && log.contains("in=lan0");
        soon("the log goes on", || {
            Ok(has_remark(&std::fs::read_to_string(disk.join("log")).unwrap()))
        })?;
        stop_cleanly(&mut lab)
    });
}

/// Connections to the control socket, each with an incomplete request. The gateway accepts as many
/// as it wants.
fn half_open(lab: &Lab, count: usize) -> Vec<UnixStream> {
    let socket = Path::new(Stateway::SOCKET).file_name().unwrap();
    let socket = lab.gateway().scratch().join(socket);
    let connect = |_| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The gateway may have closed it already.
        let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\n");
        stream
    };
    (0..count).map(connect).collect()
}

#[test]
fn connections_that_never_ask_leave_descriptors_for_everything_else() {
    beside_others(|| {
        let directory = TempDir::new().unwrap();
        let mut lab = logging_lab(redirected(directory.path(), "ulimit -n 128")?)?;
        let open = half_open(&lab, 400);
        let stateway = stateway(&lab);
        stateway.command(&["status"]).check()?;
        // Commands start programs, which needs pipes, and the gateway opens interfaces again.
        load(&lab, LOGGING)?;
        routes_are_followed(&lab)?;
        let report = ping(lab.on_client("ping"), lab.server_address(Family::V6), 10)?;
        assert_eq!(report.received, 10);
        drop(open);
        stop_cleanly(&mut lab)
    });
}

//! Two routers with state sync, of which the other one takes over because the first one has died.

use lab::{PYTHON, ftp_server};

use crate::scenario::cluster::{Cluster, STRICT_NAT, connections, refused, wait_for};
use crate::scenario::{FTP_SESSIONS, TALKS, beside_others, echo};

/// Connections of TCP that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 40;
/// Length of a file in bytes: more than buffers hold.
const BYTES: usize = 8_000_000;

/// Begins to get a file with an active and with a passive data connection. When the file `end` exists,
/// it gets the rest, and the file once more in both ways.
const FTP: &str = "
sessions = [session(passive) for passive in (False, True)]
open_now = [ftp.transfercmd('RETR payload.bin') for ftp in sessions]
begun = [len(connection.recv(1000)) for connection in open_now]
print('talking', flush=True)
while not os.path.exists(end): time.sleep(0.05)
got = [a + read(ftp, it) for a, ftp, it in zip(begun, sessions, open_now)]
got += [read(ftp, ftp.transfercmd('RETR payload.bin')) for ftp in sessions]
print('got:', *got, flush=True)
";

#[test]
fn connections_go_on_at_the_standby_when_the_active_router_dies() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let ([one, two], _keepalived) = cluster.with_keepalived(STRICT_NAT)?;
        let _echo = echo(&cluster.server, 7000)?;
        cluster.server.write_file("payload.bin", &vec![7; BYTES])?;
        let _files = ftp_server(cluster.server.program(PYTHON), Cluster::SERVERS[0])?;
        let half = (CONNECTIONS / 2).to_string();
        let [v4, v6] = Cluster::SERVERS;
        let talks = cluster.python(TALKS, &[&half, v4, v6], "talking")?;
        let stream = cluster.stream()?;
        let transfer = cluster.python(&(FTP_SESSIONS.to_owned() + FTP), &[v4], "talking")?;
        let before = connections(&one)?;
        cluster.crash(0)?;
        wait_for(&two, "/role", "active")?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        let after = connections(&two)?;
        cluster.end_scripts()?;
        let (talks, transfer) = (talks.finish()?.stdout, transfer.finish()?.stdout);
        let losses = stream.finish(&cluster)?;
        println!("connections: {before} before, {after} after; {losses}");
        println!("refused by the second gateway: {:?}", refused(&two)?);
        println!("log of the second gateway:\n{}", two.log());
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        let got = [BYTES; 4].map(|it| it.to_string()).join(" ");
        assert_eq!(transfer.lines().last(), Some(&*format!("got: {got}")), "{transfer}");
        assert_eq!((losses.ports, losses.lost_at_the_end, losses.resets), (1, 0, 0), "{losses:?}");
        two.stop()?;
        let killed = one.stop()?;
        assert_ne!(killed.code, Some(0), "it was killed");
        Ok(())
    });
}

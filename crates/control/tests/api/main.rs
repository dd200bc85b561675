//! The API of a gateway whose interfaces are channels in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

mod carried_settings;
mod connections;
mod records;
mod rules;
mod zones;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conntrack::format::Extras;
use conntrack::helper::Kind;
use conntrack::{Filter, Label, LabelNames};
use control::schema::{
    Balance, Buckets, Connection, Count, Done, Event, Moves, RecentDrops, SetBalancer, SetTunable,
    SetWorkers, Status, Tunables, UpdateConnections,
};
use control::{Client, ClientError, ConnectionQuery, ControlSocket, LineFormat, Server};
use engine::{Config, Gateway, OpenPort, PortOpener, PortSetup, WorkerCount};
use flow::HashKey;
use netio::memory::{ChannelRx, ChannelTx, Discard, channel};
use netio::{FramePool, PortError, PortId, RxQueue, TxQueue};
use tempfile::TempDir;
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

/// The longest time for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens a channel as an interface, once.
struct Once(Option<ChannelRx>);

impl PortOpener for Once {
    fn open(&mut self, _rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let gone = || PortError::Gone { interface: "memory".into() };
        let rx = self.0.take().ok_or_else(gone)?;
        let tx = (0..tx_queues).map(|_| Box::new(Discard) as Box<dyn TxQueue>).collect();
        Ok(OpenPort { rx: vec![Box::new(rx) as Box<dyn RxQueue>], tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(Discard))
    }
}

/// A gateway with its API, and the other end of its first interface.
struct Running {
    client: Client,
    socket: PathBuf,
    lan: ChannelTx,
    pool: FramePool,
    sent: u64,
    /// Keeps the second interface up; nothing is sent there.
    _wan: ChannelTx,
    server: Server,
    gateway: Arc<Gateway>,
    _directory: TempDir,
}

impl Running {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("gateway.sock");
        let (lan, lan_rx) = channel(PortId(0), 1 << 17).unwrap();
        let (wan, wan_rx) = channel(PortId(1), 64).unwrap();
        let ports = vec![
            PortSetup::new("lan0", Once(Some(lan_rx))),
            PortSetup::new("wan0", Once(Some(wan_rx))),
        ];
        let mut config =
            Config { workers: WorkerCount::Fixed(2), pin: false, ..Config::new(HashKey(7, 11)) };
        // No packet may be lost, however slow the machine is.
        config.settings.set("netdev_max_backlog", 1 << 16).unwrap();
        config.settings.conntrack.helpers.attach(Kind::Tftp, 69).unwrap();
        let mut labels = LabelNames::default();
        labels.name(Label::new(40).unwrap(), "bulk").unwrap();
        config.labels = labels.into();
        let bound = ControlSocket::bind(&socket).unwrap();
        let gateway = Arc::new(Gateway::start(config, ports).unwrap());
        let none = Arc::new(Vec::new);
        let server =
            Server::start(bound, gateway.clone(), None, None, Arc::new(drop), || 0, none).unwrap();
        Self {
            client: Client::new(&socket).unwrap(),
            socket,
            lan,
            pool: FramePool::new(64, 1),
            sent: 0,
            _wan: wan,
            server,
            gateway,
            _directory: directory,
        }
    }

    /// Sends the first packets of `count` more UDP flows.
    fn send_flows(&mut self, count: u64) {
        let (mut frames, mut bytes) = (Vec::new(), Vec::new());
        for flow in self.sent..self.sent + count {
            let [.., a, b, high, low] = flow.to_be_bytes();
            bytes.clear();
            let port = u16::from_be_bytes([high, low]);
            PacketBuilder::v4([198, 18, a, b], [192, 0, 2, 1]).udp(port, 53, b"?", &mut bytes);
            frames.push(self.pool.copy_of(&bytes).unwrap());
        }
        self.sent += count;
        self.lan.transmit(&mut frames, &mut self.pool).unwrap();
    }

    /// Opens `count` more UDP flows and waits until they are tracked.
    fn open_flows(&mut self, count: u64) {
        self.send_flows(count);
        let begin = Instant::now();
        while self.connections() != self.sent {
            assert!(begin.elapsed() < PATIENCE, "{} of {}", self.connections(), self.sent);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connections(&self) -> u64 {
        self.client.get::<Count>("/v1/connections/count").unwrap().connections
    }

    fn lines(&self, request: &str) -> Result<Vec<String>, ClientError> {
        let mut lines = Vec::new();
        self.client.lines::<ClientError>(request, &mut |line| {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        })?;
        Ok(lines)
    }

    /// Stops the API and then the gateway, which no other thread may hold by then.
    fn stop(self) {
        drop(self.server);
        assert!(!self.socket.exists());
        Arc::into_inner(self.gateway).unwrap().stop().unwrap();
    }
}

/// Sends a request, reads the status of its answer, and no more.
fn begun_request(socket: &Path, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: stateway\r\n\r\n").unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert!(status.starts_with(b"HTTP/1.1 "));
    stream
}

#[test]
fn a_list_ends_where_its_reader_breaks_off() {
    let mut running = Running::start();
    running.open_flows(20);
    let mut seen = 0;
    let mut three = |_| {
        seen += 1;
        if seen < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    running.gateway.connections(&Filter::default(), &mut three).unwrap();
    assert_eq!(seen, 3);
    running.stop();
}

#[test]
fn questions_are_answered() {
    let mut running = Running::start();
    running.open_flows(100);
    let status: Status = running.client.get("/v1/status").unwrap();
    assert_eq!((status.schema, status.connections, status.workers.len()), (1, 100, 2));
    assert_eq!(status.totals.classes.get("new"), 100);
    assert_eq!(status.ports[0].received, 100);
    assert_eq!(status.connections_limit, 1 << 20);
    let names: Vec<&str> = status.totals.softnet.iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["processed", "dropped"], "in the order of the kernel's columns");

    let buckets: Buckets = running.client.get("/v1/buckets").unwrap();
    assert_eq!(buckets.buckets.len(), 256);
    assert_eq!(buckets.buckets.iter().map(|bucket| bucket.connections).sum::<u64>(), 100);

    let tunables: Tunables = running.client.get("/v1/tunables").unwrap();
    let mut names = tunables.tunables.iter().map(|tunable| tunable.name.as_str());
    assert!(names.any(|name| name == "nf_conntrack_tcp_timeout_established"));
    running.stop();
}

#[test]
fn a_dropped_packet_is_shown_with_the_check_that_decided() {
    let mut running = Running::start();
    let recent =
        |running: &Running| -> RecentDrops { running.client.get("/v1/drops/recent").unwrap() };
    assert!(recent(&running).packets.is_empty());
    let tcp = Tcp {
        source_port: 80,
        destination_port: 4711,
        sequence: 5,
        flags: TcpFlags::SYN.with(TcpFlags::ACK),
        ..Tcp::default()
    };
    let mut bytes = Vec::new();
    PacketBuilder::v4([198, 18, 0, 1], [192, 0, 2, 1]).tcp(&tcp, b"", &mut bytes);
    let frame = running.pool.copy_of(&bytes).unwrap();
    running.lan.transmit(&mut vec![frame], &mut running.pool).unwrap();
    let begin = Instant::now();
    while recent(&running).packets.is_empty() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let dropped = recent(&running).packets.remove(0);
    assert_eq!(
        (dropped.reason.as_str(), dropped.why.as_str(), dropped.packet.as_str()),
        (
            "tcp_not_syn",
            "SYN+ACK does not open a connection",
            "198.18.0.1:80 > 192.0.2.1:4711 TCP SYN|ACK seq 5 ack 0 window 0 length 0"
        )
    );
    assert_eq!((dropped.interface.as_str(), dropped.length), ("lan0", bytes.len() as u32));
    running.stop();
}

#[test]
fn drops_of_a_worker_are_shown_after_it_has_left() {
    let mut running = Running::start();
    let syn_ack = TcpFlags::SYN.with(TcpFlags::ACK);
    let frames = (0..40).map(|port| {
        let mut bytes = Vec::new();
        let tcp = Tcp { source_port: 80, destination_port: port, flags: syn_ack, ..Tcp::default() };
        PacketBuilder::v4([198, 18, 0, 1], [192, 0, 2, 1]).tcp(&tcp, b"", &mut bytes);
        running.pool.copy_of(&bytes).unwrap()
    });
    let mut frames: Vec<_> = frames.collect();
    running.lan.transmit(&mut frames, &mut running.pool).unwrap();
    let recent = || running.client.get::<RecentDrops>("/v1/drops/recent").unwrap().packets;
    let begin = Instant::now();
    while recent().len() < 8 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let drops = || {
        let mut all: Vec<_> = recent().into_iter().map(|it| (it.worker, it.packet)).collect();
        all.sort();
        all
    };
    let set = |workers| {
        let _: Moves = running.client.put("/v1/workers", &SetWorkers { workers }).unwrap();
    };
    let before = drops();
    set(1);
    assert_eq!(drops(), before);
    // A new worker with the same number has dropped nothing.
    set(2);
    assert_eq!(drops(), before);
    set(1);
    assert_eq!(drops(), before);
    assert!(recent().is_sorted_by_key(|dropped| dropped.age_ms));
    running.stop();
}

#[test]
fn lists_are_filtered_and_come_in_both_forms() {
    let mut running = Running::start();
    running.open_flows(20);
    let one = ConnectionQuery { sport: Some(7), ..ConnectionQuery::default() };
    let lines = running.lines(&one.request("/v1/connections")).unwrap();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let connection: Connection = serde_json::from_str(line).unwrap();
    assert_eq!(connection.original.source_port, Some(7));
    assert_eq!(connection.reply.destination_port, Some(7));

    let text = ConnectionQuery { format: LineFormat::Conntrack(Extras::default()), ..one.clone() };
    let lines = running.lines(&text.request("/v1/connections")).unwrap();
    assert!(lines[0].contains("src=198.18.0.0 dst=192.0.2.1 sport=7 dport=53 [UNREPLIED]"));

    let changes = |mark| UpdateConnections { mark: Some(mark), ..UpdateConnections::default() };
    let done: Done = running.client.patch(&one.request("/v1/connections"), &changes(7)).unwrap();
    let mut marked = ConnectionQuery { mark: Some("7".to_owned()), ..ConnectionQuery::default() };
    let lines = running.lines(&marked.request("/v1/connections")).unwrap();
    assert_eq!((done.affected, lines.len()), (1, 1));
    let changes = UpdateConnections { mark_mask: Some(3), ..changes(0x15) };
    let _: Done = running.client.patch(&one.request("/v1/connections"), &changes).unwrap();
    marked.mark = Some("0x11".to_owned());
    assert_eq!(running.lines(&marked.request("/v1/connections")).unwrap().len(), 1);
    let changes = UpdateConnections { mark: None, ..changes };
    let refused = running.client.patch::<Done>(&one.request("/v1/connections"), &changes);
    assert!(matches!(refused, Err(ClientError::BadRequest(_))), "a mask alone");
    // All fields of a flow: the index finds it, and only from the side that opened it.
    let mut flow = ConnectionQuery {
        proto: Some("udp".to_owned()),
        src: Some("198.18.0.0".to_owned()),
        dst: Some("192.0.2.1".to_owned()),
        dport: Some(53),
        ..one
    };
    assert_eq!(running.lines(&flow.request("/v1/connections")).unwrap().len(), 1);
    (flow.src, flow.dst) = (flow.dst, flow.src);
    (flow.sport, flow.dport) = (flow.dport, flow.sport);
    assert_eq!(running.lines(&flow.request("/v1/connections")).unwrap().len(), 0);
    (flow.src, flow.dst) = (flow.dst, flow.src);
    (flow.sport, flow.dport) = (flow.dport, flow.sport);
    let done: Done = running.client.delete(&flow.request("/v1/connections")).unwrap();
    assert_eq!((done.affected, running.connections()), (1, 19));
    let done: Done = running.client.delete("/v1/connections").unwrap();
    assert_eq!((done.affected, running.connections()), (19, 0));
    running.stop();
}

#[test]
fn connections_are_labelled_and_chosen_by_their_labels() {
    let mut running = Running::start();
    running.open_flows(20);
    let (tell, events) = std::sync::mpsc::channel::<Event>();
    let socket = running.socket.clone();
    let updates = ConnectionQuery { events: Some("UPDATES".into()), ..Default::default() };
    std::thread::spawn(move || {
        let _ = Client::new(&socket).unwrap().lines::<ClientError>(
            &updates.request("/v1/events"),
            &mut |line| {
                let _ = tell.send(serde_json::from_slice(line).unwrap());
                Ok(())
            },
        );
    });
    let of_port = |sport| ConnectionQuery { sport: Some(sport), ..ConnectionQuery::default() };
    let add = |labels: &[&str]| UpdateConnections {
        add_labels: labels.iter().map(|&label| label.to_owned()).collect(),
        ..UpdateConnections::default()
    };
    let patch = |query: &ConnectionQuery, changes: &UpdateConnections| {
        running.client.patch::<Done>(&query.request("/v1/connections"), changes)
    };
    // This loop ends once the subscription has taken effect.
    let event: Event = loop {
        // A timeout changes each time; labels that exist already cause no event.
        let changes = UpdateConnections { timeout_s: Some(100), ..add(&["bulk", "100"]) };
        assert_eq!(patch(&of_port(7), &changes).unwrap().affected, 1);
        if let Ok(event) = events.recv_timeout(Duration::from_millis(100)) {
            break event;
        }
    };
    assert_eq!(
        (event.event.as_str(), event.connection.labels.join(" ")),
        ("update", "bulk 100".into())
    );
    patch(&of_port(8), &add(&["40"])).unwrap();

    let with = |label: &str, format| {
        let label = Some(label.to_owned());
        let query = ConnectionQuery { label, format, ..ConnectionQuery::default() };
        running.lines(&query.request("/v1/connections"))
    };
    assert_eq!(with("bulk", LineFormat::Json).unwrap().len(), 2);
    let lines =
        with("bulk,100", LineFormat::Conntrack(Extras { labels: true, extended: false })).unwrap();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("sport=7 ") && line.ends_with("use=1 labels=bulk"), "{line}");
    let Err(ClientError::BadRequest(refused)) = with("voice", LineFormat::Json) else { panic!() };
    assert!(refused.what.ends_with("known are the numbers 0 to 127, bulk"), "{}", refused.what);

    let changes = UpdateConnections { drop_labels: vec!["bulk".into()], ..add(&["1"]) };
    assert_eq!(patch(&of_port(7), &changes).unwrap().affected, 1);
    assert_eq!(with("1,100", LineFormat::Json).unwrap().len(), 1);
    let none = UpdateConnections { drop_all_labels: true, ..add(&[]) };
    assert_eq!(patch(&ConnectionQuery::default(), &none).unwrap().affected, 2, "others had none");
    assert_eq!(with("1", LineFormat::Json).unwrap().len(), 0);
    assert!(patch(&of_port(7), &add(&["voice"])).is_err());
    running.stop();
}

#[test]
fn long_lists_are_complete_and_readers_that_leave_take_nothing_with_them() {
    let mut running = Running::start();
    running.open_flows(50_000);
    // These are more than are allowed at once. Some may be refused while the threads of earlier
    // ones notice that their reader has gone.
    for _ in 0..40 {
        drop(begun_request(&running.socket, "/v1/connections"));
    }
    let begin = Instant::now();
    let lines = loop {
        match running.lines("/v1/connections") {
            Ok(lines) => break lines,
            Err(ClientError::Refused(_)) if begin.elapsed() < PATIENCE => {}
            Err(error) => panic!("{error}"),
        }
    };
    let ports: BTreeSet<Option<u16>> = lines
        .iter()
        .map(|line| serde_json::from_str::<Connection>(line).unwrap().original.source_port)
        .collect();
    assert_eq!((lines.len(), ports.len()), (50_000, 50_000), "each once");
    running.stop();
}

#[test]
fn too_many_streams_are_refused_and_the_others_go_on() {
    let running = Running::start();
    let streams: Vec<UnixStream> =
        (0..16).map(|_| begun_request(&running.socket, "/v1/events")).collect();
    let refused = running.lines("/v1/events");
    let Err(ClientError::Refused(refused)) = refused else { panic!("{refused:?}") };
    assert!(refused.what.contains("16 lists and event streams"), "{refused:?}");
    assert_eq!(running.connections(), 0, "short requests are still answered");
    // The gateway stops although the streams are being read.
    running.stop();
    drop(streams);
}

#[test]
fn events_are_told_as_they_happen() {
    let mut running = Running::start();
    let socket = running.socket.clone();
    let (sender, events) = std::sync::mpsc::channel();
    let query = ConnectionQuery { events: Some("NEW,DESTROY".into()), ..Default::default() };
    let reader = std::thread::spawn(move || {
        Client::new(&socket).unwrap().lines::<ClientError>(
            &query.request("/v1/events"),
            &mut |line| {
                sender.send(serde_json::from_slice::<Event>(line).unwrap()).unwrap();
                Ok(())
            },
        )
    });
    // The test opens flows until the subscription has taken effect.
    let first = loop {
        running.open_flows(1);
        if let Ok(event) = events.recv_timeout(Duration::from_millis(200)) {
            break event;
        }
    };
    assert_eq!((first.event.as_str(), first.sequence, first.lost), ("new", 0, 0));
    running.client.delete::<Done>("/v1/connections").unwrap();
    assert_eq!(events.recv_timeout(PATIENCE).unwrap().event, "destroy");
    running.stop();
    reader.join().unwrap().expect("the stream ends in order when the gateway stops");
}

#[test]
fn subscribers_hear_of_new_and_ended_expectations() {
    let mut running = Running::start();
    let socket = running.socket.clone();
    let (sender, events) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let request = "/v1/expectations/events?events=NEW,DESTROY&format=conntrack";
        Client::new(&socket).unwrap().lines::<ClientError>(request, &mut |line| {
            sender.send(String::from_utf8(line.to_vec()).unwrap()).unwrap();
            Ok(())
        })
    });
    // The test asks for files until the subscription has taken effect.
    let first = (1024..).find_map(|port| {
        let (mut frame, request) = (Vec::new(), b"\0\x01file\0octet\0");
        PacketBuilder::v4([198, 18, 0, 1], [192, 0, 2, 1]).udp(port, 69, request, &mut frame);
        let mut frames = vec![running.pool.copy_of(&frame).unwrap()];
        running.lan.transmit(&mut frames, &mut running.pool).unwrap();
        events.recv_timeout(Duration::from_millis(200)).ok()
    });
    let first = first.unwrap();
    let expected = "    [NEW] 300 proto=17 src=192.0.2.1 dst=198.18.0.1 sport=0 dport=";
    assert!(first.starts_with(expected), "{first}");
    running.client.delete::<Done>("/v1/connections").unwrap();
    // Some were announced before the subscription, and end now too.
    let about = |line: &str| line[line.find("proto").unwrap()..].to_owned();
    let last = loop {
        let line = events.recv_timeout(PATIENCE).unwrap();
        if about(&line) == about(&first) {
            break line;
        }
    };
    assert!(last.starts_with("[DESTROY] "), "{last}");
    running.stop();
    reader.join().unwrap().expect("the stream ends in order when the gateway stops");
}

#[test]
fn an_answer_that_is_cut_off_says_that_the_gateway_has_stopped() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("gateway.sock");
    const BEGUN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nfirst\n\r\n";
    for answer in ["", "HTTP/1.1 200", BEGUN] {
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket).unwrap();
        let reader =
            std::thread::spawn(move || client.lines::<ClientError>("/v1/events", &mut |_| Ok(())));
        let (mut stream, _) = listener.accept().unwrap();
        // Nobody is there to be asked again.
        drop(listener);
        std::fs::remove_file(&socket).unwrap();
        // The server has to read the request, or closing would be a reset instead of an end.
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(answer.as_bytes()).unwrap();
        drop(stream);
        let error = reader.join().unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Stopped { .. }), "{answer:?}: {error}");
    }
}

#[test]
fn changes_are_made_and_mistakes_are_refused() {
    let running = Running::start();
    let client = &running.client;
    let put = |name: &str, value| -> Result<Done, ClientError> {
        client.put(&format!("/v1/tunables/{name}"), &SetTunable { value })
    };
    put("nf_conntrack_max", 5).unwrap();
    assert_eq!(client.get::<Status>("/v1/status").unwrap().connections_limit, 5);
    let moves: Moves = client.put("/v1/workers", &SetWorkers { workers: 3 }).unwrap();
    assert!(!moves.moves.is_empty());
    assert_eq!(client.get::<Status>("/v1/status").unwrap().workers.len(), 3);
    let plan: Moves = client.post("/v1/balance", &Balance { dry_run: true }).unwrap();
    assert!(plan.dry_run && plan.report.contains("workers wanted"), "{plan:?}");
    for interval_ms in [Some(10), None] {
        client.put::<Done>("/v1/balancer", &SetBalancer { interval_ms }).unwrap();
        let status = client.get::<Status>("/v1/status").unwrap();
        assert_eq!(status.balance_interval_ms, interval_ms);
    }

    let mistakes = [
        put("nf_conntrack_max", 0).unwrap_err(),
        put("no_such_tunable", 1).unwrap_err(),
        client.put::<Moves>("/v1/workers", &SetWorkers { workers: 65 }).unwrap_err(),
        client.put::<Done>("/v1/balancer", &SetBalancer { interval_ms: Some(1) }).unwrap_err(),
        client.put::<Done>("/v1/balancer", &"often").unwrap_err(),
        client.get::<Status>("/v1/connections?sport=a").unwrap_err(),
        client.get::<Status>("/v2/status").unwrap_err(),
        client.put::<Done>("/v1/status", &0).unwrap_err(),
    ];
    insta::assert_snapshot!(mistakes.map(|mistake| mistake.to_string()).join("\n"));
    running.stop();
}

#[test]
fn bytes_that_are_no_request_do_no_harm() {
    let running = Running::start();
    let garbage: [&[u8]; 4] =
        [&[0; 4], b"GET / HTTP/9.9\r\n\r\n", b"GET /v1/status", &[0xff; 9000]];
    for bytes in garbage {
        let mut stream = UnixStream::connect(&running.socket).unwrap();
        // The gateway may close the connection before everything was sent.
        let _ = stream.write_all(bytes);
    }
    assert_eq!(running.connections(), 0);
    running.stop();
}

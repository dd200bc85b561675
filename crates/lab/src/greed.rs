//! Honest clients beside one that wants all ports towards their server.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::placement::Placement;
use crate::program::Transport;
use crate::stateway::StatewaySpec;
use crate::topology::{Family, Gateway, Lab, Tracking};

/// Ports that clients are masqueraded to.
const PORTS: (u16, u16) = (20_000, 22_999);
/// The server's port, of UDP and TCP.
const PORT: u16 = 7000;
/// The greedy client has the first address behind this, the honest ones have the next.
const BEFORE_CLIENTS: u8 = 9;
/// Honest clients.
const HONEST: u8 = 100;

/// What the greedy client does, twice as often as there are ports, and goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greed {
    /// It sends datagrams that the server does not answer.
    Unanswered,
    /// It asks once by UDP, from one port after the other.
    Answered,
    /// It opens connections of TCP and keeps them.
    Open,
}

/// Who masquerades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerader {
    /// `stateway run` as a router.
    Stateway,
    /// The kernel.
    Kernel,
}

/// What became of the honest clients' requests: three of each client, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct GreedReport {
    /// Who was in between.
    pub masquerader: Masquerader,
    /// What the greedy client did.
    pub greed: Greed,
    /// Requests.
    pub asked: u64,
    /// Those that were answered within three seconds, of TCP also with a second SYN.
    pub served: u64,
    /// Half of them took no longer, milliseconds; none if there is none.
    pub p50_ms: Option<f64>,
    /// 99 of 100 took no longer, milliseconds.
    pub p99_ms: Option<f64>,
}

impl Greed {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Unanswered, Self::Answered, Self::Open];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
            Self::Open => "open",
        }
    }
}

impl Masquerader {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Stateway, Self::Kernel];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stateway => "stateway",
            Self::Kernel => "kernel",
        }
    }
}

/// Measures in a lab of its own, with two workers. `program` is `stateway`.
///
/// # Errors
/// Those of [`Lab::new`]; [`Error::Unexpected`] if a client prints no report.
pub fn greed(program: &Path, masquerader: Masquerader, greed: Greed) -> Result<GreedReport> {
    let rules = Tracking::MasqueradeTo { first: PORTS.0, last: PORTS.1 };
    let gateway = match masquerader {
        Masquerader::Kernel => Gateway::KernelForwarding(rules),
        Masquerader::Stateway => Gateway::Stateway(StatewaySpec {
            routed: true,
            rules,
            ..StatewaySpec::new(program.to_path_buf(), 2)
        }),
    };
    let lab = Lab::new(gateway, Placement::free())?;
    let addresses: Vec<_> = (1..=HONEST + 1)
        .map(|client| format!("addr add 192.0.2.{}/24 dev eth0", BEFORE_CLIENTS + client))
        .collect();
    lab.client().ip(&addresses.iter().map(String::as_str).collect::<Vec<_>>())?;
    let server = lab.server_address(Family::V4).to_string();
    let mut answering = lab.on_server("python3").args(["-c", SERVER, &PORT.to_string()]).spawn()?;
    answering.wait_for_port(Transport::Tcp, PORT)?;
    let flows = 2 * (PORTS.1 - PORTS.0 + 1);
    let mut greedy = lab
        .on_client("python3")
        .args(["-c", GREEDY, greed.name(), &flows.to_string(), &server, &PORT.to_string()])
        .spawn()?;
    greedy.wait_for_text("full")?;
    let transport = if greed == Greed::Open { "tcp" } else { "udp" };
    let text = lab
        .on_client("python3")
        .args(["-c", HONEST_CLIENTS, transport, &HONEST.to_string(), &server, &PORT.to_string()])
        .limit(std::time::Duration::from_secs(60))
        .check()?;
    let report: Value = serde_json::from_str(text.trim())
        .map_err(|_| Error::unexpected("python3", "a report", &text))?;
    let count = |key: &str| {
        let count = report.get(key).and_then(Value::as_u64);
        count.ok_or_else(|| Error::unexpected("python3", key, &text))
    };
    let time = |key: &str| report.get(key).and_then(Value::as_f64);
    Ok(GreedReport {
        masquerader,
        greed,
        asked: count("asked")?,
        served: count("served")?,
        p50_ms: time("p50_ms"),
        p99_ms: time("p99_ms"),
    })
}

impl GreedReport {
    /// The report as an object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { masquerader, greed, asked, served, p50_ms, p99_ms } = self;
        json!({
            "masquerader": masquerader.name(),
            "greed": greed.name(),
            "asked": asked,
            "served": served,
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
        })
    }
}

/// Answers what it gets, but not what begins with an x.
const SERVER: &str = "
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
port = int(sys.argv[1])
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, source):
        if data[:1] != b'x':
            self.transport.sendto(data, source)
async def talk(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(line)
        writer.close()
    except OSError:
        pass
async def main():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=('0.0.0.0', port))
    server = await asyncio.start_server(talk, '0.0.0.0', port, backlog=4096)
    await server.serve_forever()
asyncio.run(main())
";

/// Takes all that it can get, says so, and goes on.
const GREEDY: &str = "
import resource, socket, sys, time
greed, flows, server = sys.argv[1], int(sys.argv[2]), (sys.argv[3], int(sys.argv[4]))
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
held = []
def take(number):
    kind = socket.SOCK_STREAM if greed == 'open' else socket.SOCK_DGRAM
    s = socket.socket(socket.AF_INET, kind)
    s.setblocking(False)
    s.bind(('192.0.2.10', 10000 + number))
    s.connect_ex(server)
    if greed != 'open':
        s.send(b'x' if greed == 'unanswered' else b'a')
    held.append(s)
for number in range(flows):
    take(number)
    if number % 20 == 0:
        time.sleep(0.01)
time.sleep(1)
print('full', flush=True)
for number in range(flows, flows + 10000):
    take(number)
    time.sleep(0.005)
time.sleep(60)
";

/// Each asks three times, all of them at once.
const HONEST_CLIENTS: &str = "
import asyncio, json, sys, time
transport, clients, server = sys.argv[1], int(sys.argv[2]), (sys.argv[3], int(sys.argv[4]))
times, asked = [], 0
class Ask(asyncio.DatagramProtocol):
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()
    def datagram_received(self, data, source):
        if not self.answer.done():
            self.answer.set_result(data)
    def error_received(self, error):
        pass
async def by_udp(own):
    loop = asyncio.get_running_loop()
    channel, ask = await loop.create_datagram_endpoint(Ask, local_addr=own, remote_addr=server)
    try:
        channel.sendto(b'ask')
        await ask.answer
    finally:
        channel.close()
async def by_tcp(own):
    reader, writer = await asyncio.open_connection(*server, local_addr=own)
    try:
        writer.write(b'ask\\n')
        await reader.readline()
    finally:
        writer.close()
async def client(number):
    global asked
    await asyncio.sleep(number * 0.02)
    for _ in range(3):
        asked += 1
        begin = time.monotonic()
        ask = by_tcp if transport == 'tcp' else by_udp
        try:
            await asyncio.wait_for(ask((f'192.0.2.{11 + number}', 0)), 3)
            times.append(1000 * (time.monotonic() - begin))
        except (OSError, asyncio.TimeoutError):
            pass
        await asyncio.sleep(1)
async def main():
    await asyncio.gather(*(client(number) for number in range(clients)))
asyncio.run(main())
times.sort()
at = lambda part: times[min(len(times) - 1, int(part * len(times)))] if times else None
print(json.dumps({'asked': asked, 'served': len(times), 'p50_ms': at(0.5), 'p99_ms': at(0.99)}))
";

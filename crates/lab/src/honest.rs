//! A hundred honest clients that ask a server, whatever else its gateway has to do.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::program::{Background, Transport};

/// The server's port for UDP and TCP.
pub(crate) const SERVICE: u16 = 7000;
/// Host number of the first client in 192.0.2.0/24; the others follow.
const FIRST: u8 = 11;
/// Number of clients.
const CLIENTS: u8 = 100;
/// Time limit for all clients together.
const LONGEST: Duration = Duration::from_secs(60);

/// The result of the requests: three of each client, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Requests.
    pub asked: u64,
    /// Requests that were answered within three seconds; with TCP this includes a second SYN.
    pub served: u64,
    /// Half of these took no longer, in milliseconds; `None` if there are none.
    pub p50_ms: Option<f64>,
    /// 99 of 100 of these took no longer, in milliseconds.
    pub p99_ms: Option<f64>,
}

/// Starts the server of the requests, which runs until the result is dropped.
///
/// # Errors
/// Those of [`Background::wait_for`].
pub(crate) fn serve(server: &Namespace) -> Result<Background> {
    let mut answering =
        server.program("python3").args(["-c", SERVER, &SERVICE.to_string()]).spawn()?;
    answering.wait_for_port(Transport::Tcp, SERVICE)?;
    Ok(answering)
}

/// Gives the clients their addresses.
///
/// # Errors
/// [`Error::Failed`] if they have them already.
pub(crate) fn settle(client: &Namespace) -> Result<()> {
    let addresses: Vec<_> = (FIRST..FIRST + CLIENTS)
        .map(|host| format!("addr add 192.0.2.{host}/24 dev eth0"))
        .collect();
    client.ip(&addresses.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Lets all clients ask.
///
/// # Errors
/// [`Error::Unexpected`] if they print no report.
pub(crate) fn ask(client: &Namespace, transport: Transport, server: IpAddr) -> Result<Requests> {
    let transport = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let [clients, first] = [CLIENTS, FIRST].map(|it| it.to_string());
    let text = client
        .program("python3")
        .args(["-c", HONEST, transport, &clients, &first, &server.to_string()])
        .args([SERVICE.to_string()])
        .limit(LONGEST)
        .check()?;
    Requests::parse(text.trim())
        .ok_or_else(|| Error::unexpected("python3", "a report of requests", &text))
}

impl Requests {
    fn parse(text: &str) -> Option<Self> {
        let report: Value = serde_json::from_str(text).ok()?;
        let time = |key: &str| report.get(key).and_then(Value::as_f64);
        Some(Self {
            asked: report.get("asked")?.as_u64()?,
            served: report.get("served")?.as_u64()?,
            p50_ms: time("p50_ms"),
            p99_ms: time("p99_ms"),
        })
    }

    /// The result as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { asked, served, p50_ms, p99_ms } = self;
        json!({ "asked": asked, "served": served, "p50_ms": p50_ms, "p99_ms": p99_ms })
    }
}

/// A server that answers everything that does not begin with an x.
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

/// All clients ask at once, each three times.
const HONEST: &str = "
import asyncio, json, sys, time
transport, clients, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
server = (sys.argv[4], int(sys.argv[5]))
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
            await asyncio.wait_for(ask((f'192.0.2.{first + number}', 0)), 3)
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

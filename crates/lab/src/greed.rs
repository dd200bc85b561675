//! Honest clients beside one client that wants all ports towards their server.

use std::path::Path;

use serde_json::{Value, json};

use crate::contender::Contender;
use crate::error::Result;
use crate::honest::{self, Requests};
use crate::placement::Placement;
use crate::program::Transport;
use crate::stateway::StatewaySpec;
use crate::topology::{Family, Gateway, Lab, Tracking};

/// Range of the ports of masqueraded connections.
const PORTS: (u16, u16) = (20_000, 22_999);
/// Address of the client that wants all of them.
const GREEDY_ADDRESS: &str = "192.0.2.10";

/// The action of the greedy client. It takes it twice for each port, and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greed {
    /// It sends datagrams that the server does not answer.
    Unanswered,
    /// It asks once by UDP from each of many ports.
    Answered,
    /// It opens connections of TCP and keeps them.
    Open,
}

/// The result for the honest clients' requests.
#[derive(Clone, Copy, Debug)]
pub struct GreedReport {
    /// The masquerading gateway.
    pub contender: Contender,
    /// The action of the greedy client.
    pub greed: Greed,
    /// The honest requests: by TCP if the greedy client takes connections of TCP, else by UDP.
    pub requests: Requests,
}

impl Greed {
    /// All actions.
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

/// Measures in a lab of its own, with two workers. `program` is `stateway`.
///
/// # Errors
/// Those of [`Lab::new`]; [`Error::Unexpected`](crate::Error::Unexpected) if a client prints no
/// report.
pub fn greed(program: &Path, contender: Contender, greed: Greed) -> Result<GreedReport> {
    let rules = Tracking::MasqueradeTo { first: PORTS.0, last: PORTS.1 };
    let gateway = match contender {
        Contender::Kernel => Gateway::KernelForwarding(rules),
        Contender::Stateway => Gateway::Stateway(StatewaySpec {
            routed: true,
            rules,
            ..StatewaySpec::new(program.to_path_buf(), 2)
        }),
    };
    let lab = Lab::new(gateway, Placement::free())?;
    lab.client().ip(&[&format!("addr add {GREEDY_ADDRESS}/24 dev eth0")])?;
    honest::settle(lab.client())?;
    let server = lab.server_address(Family::V4);
    let _answering = honest::serve(lab.server())?;
    let flows = (2 * (PORTS.1 - PORTS.0 + 1)).to_string();
    let (to, port) = (server.to_string(), honest::SERVICE.to_string());
    let mut greedy = lab
        .on_client("python3")
        .args(["-c", GREEDY, greed.name(), GREEDY_ADDRESS, &flows, &to, &port])
        .spawn()?;
    greedy.wait_for_text("full")?;
    let transport = if greed == Greed::Open { Transport::Tcp } else { Transport::Udp };
    let requests = honest::ask(lab.client(), transport, server)?;
    Ok(GreedReport { contender, greed, requests })
}

impl GreedReport {
    /// The report as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { contender, greed, requests } = self;
        json!({
            "gateway": contender.name(),
            "greed": greed.name(),
            "requests": requests.to_json(),
        })
    }
}

/// The greedy client: takes twice as many ports as there are, prints `full`, and goes on.
const GREEDY: &str = "
import resource, socket, sys, time
greed, own, flows = sys.argv[1], sys.argv[2], int(sys.argv[3])
server = (sys.argv[4], int(sys.argv[5]))
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
held = []
def take(number):
    kind = socket.SOCK_STREAM if greed == 'open' else socket.SOCK_DGRAM
    s = socket.socket(socket.AF_INET, kind)
    s.setblocking(False)
    s.bind((own, 10000 + number))
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

//! The SIP messages that the ends receive through a masquerade must be the same as behind the
//! kernel's translation, byte by byte.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use conntrack::Settings;
use conntrack::Verdict;
use conntrack::helper::Kind;
use conntrack::nat::{Addresses, BucketPorts, Request, Supply, TranslatedEnd};
use lab::{Error, Random, Result};

use crate::scenario::cables::{forwarding_namespace, player};
use crate::scenario::own_table::{OwnTable, hash};
use crate::scenario::trackers::dialogue::packet;
use crate::scenario::{bytes, hex, payload, seeds};

const CALLS: u64 = 150;
/// The number of calls that are played together. Each has its own ports.
const AT_ONCE: usize = 500;
const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.1";
const OUTSIDE: &str = "203.0.113.9";
const SIP: u16 = 5060;

const RULES: &str = "table ip t {\n\
    ct helper sip { type \"sip\" protocol udp; }\n\
    chain pre { type filter hook prerouting priority filter; policy accept;\n\
    udp dport 5060 ct helper set \"sip\"\n}\n\
    chain post { type nat hook postrouting priority srcnat; policy accept;\n\
    oifname \"server0\" snat to 203.0.113.9\n}\n}\n";

/// Sends each frame on its side, and prints the frame that comes out on the other.
const PLAYER: &str = "
import select, sys
from cables import far_ends, received, stations
cables, macs = far_ends(), stations()
for line in sys.stdin.readlines():
    side, text = line.split()
    other = cables['server' if side == 'client' else 'client']
    cables[side].send(macs[side] + bytes.fromhex(text)[6:])
    said = 'lost'
    while said == 'lost' and select.select([other], [], [], 0.5)[0]:
        for frame in received(other):
            if frame[12:14] == b'\\x08\\0' and frame[23] == 17:
                said = frame.hex()
    print(said)
";

/// A message of one end.
struct Message {
    from_client: bool,
    frame: Vec<u8>,
}

/// A call or registration of a client with its own ports.
struct Call {
    random: Random,
    /// The client's source port, which translation keeps.
    port: u16,
    /// The first port where the client accepts sound, and which it may give as its contact.
    sound: u16,
    messages: Vec<Message>,
}

impl Call {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Each call has its own ports, so that calls do not disturb each other.
        let base = 2000 + (seed % 1000) as u16 * 20;
        let port = if random.once_in(8) { base } else { base + 2 };
        let mut call = Self { random, port, sound: base + 4, messages: Vec::new() };
        if call.random.once_in(4) {
            call.registration();
        } else {
            call.dialogue();
        }
        call
    }

    fn send(&mut self, from_client: bool, text: &str) {
        let [client, server, outside] =
            [CLIENT, SERVER, OUTSIDE].map(|text| text.parse::<IpAddr>().unwrap());
        let mut frame = Vec::new();
        if from_client {
            packet(client, server).udp(self.port, SIP, text.as_bytes(), &mut frame);
        } else {
            packet(server, outside).udp(SIP, self.port, text.as_bytes(), &mut frame);
        }
        self.messages.push(Message { from_client, frame });
    }

    fn dialogue(&mut self) {
        let mut sequence = 7;
        self.request(true, "INVITE", sequence, true);
        for _ in 0..self.random.between(2, 6) {
            let from_client = self.random.once_in(2);
            match self.random.between(0, 5) {
                0 | 1 => {
                    let code = self.random.one_of(&["100 Trying", "180 Ringing", "183 Go on"]);
                    let with_body = code.starts_with("183");
                    self.response(from_client, code, "INVITE", sequence, with_body);
                }
                2 => self.response(from_client, "200 OK", "INVITE", sequence, true),
                3 => {
                    sequence += 1;
                    self.request(from_client, "INVITE", sequence, true);
                }
                4 => self.request(from_client, "ACK", sequence, false),
                _ => self.request(from_client, "OPTIONS", sequence + 50, false),
            }
        }
        self.request(true, "BYE", sequence + 1, false);
        self.response(false, "200 OK", "BYE", sequence + 1, false);
    }

    fn registration(&mut self) {
        // The contact of the phone is its source port or another port.
        let contact = if self.random.once_in(2) { self.port } else { self.sound };
        let via = self.via(true, true);
        let text = |first: &str, via: &str, host: &str| {
            format!(
                "{first}\r\nVia: SIP/2.0/UDP {via}\r\nFrom: <sip:a@example.com>;tag=1\r\n\
                 To: <sip:a@example.com>\r\nCall-ID: 2@example.com\r\nCSeq: 3 REGISTER\r\n\
                 Contact: <sip:a@{host}:{contact}>;expires=60\r\nContent-Length: 0\r\n\r\n"
            )
        };
        self.send(true, &text("REGISTER sip:example.com SIP/2.0", &via, CLIENT));
        let via = self.via(false, false);
        self.send(false, &text("SIP/2.0 200 OK", &via, OUTSIDE));
    }

    fn host(&self, is_client: bool, as_client_sees: bool) -> String {
        match (is_client, as_client_sees) {
            (true, true) => format!("{CLIENT}:{}", self.port),
            (true, false) => format!("{OUTSIDE}:{}", self.port),
            (false, _) => format!("{SERVER}:{SIP}"),
        }
    }

    /// A host, sometimes named otherwise, as the side of `by_client` sees it.
    fn named(&mut self, is_client: bool, by_client: bool) -> String {
        let host = self.host(is_client, by_client);
        match self.random.between(0, 12) {
            0 => "phone.example.com".to_owned(),
            1 => "192.0.2.77:5060".to_owned(),
            2 => host.split(':').next().unwrap().to_owned(),
            3 => format!("{}:5099", host.split(':').next().unwrap()),
            _ => host,
        }
    }

    /// The Via header with the last hop of the sender's request, or of the request that it answers.
    fn via(&mut self, from_client: bool, is_request: bool) -> String {
        let asked_by_client = from_client == is_request;
        let host = match self.random.between(0, 8) {
            0 => "phone.example.com".to_owned(),
            1 => "192.0.2.77:5060".to_owned(),
            // The port stays, because the kernel would send answers to another one.
            _ => self.host(asked_by_client, from_client),
        };
        let seen = self.host(asked_by_client, from_client);
        let (address, port) = seen.split_once(':').unwrap();
        let more = match (is_request, self.random.between(0, 4)) {
            (true, 0) => ";rport".to_owned(),
            (true, 1) => format!(";maddr={address}"),
            (false, 0) => format!(";received={address}"),
            (false, 1) => format!(";received={address};rport={port}"),
            _ => String::new(),
        };
        format!("{host}{more};branch=z9hG4bK77")
    }

    fn request(&mut self, from_client: bool, method: &str, sequence: u32, with_body: bool) {
        let to = self.named(!from_client, from_client);
        let first = format!("{method} sip:bob@{to} SIP/2.0");
        self.message(from_client, true, &first, method, sequence, with_body);
    }

    fn response(
        &mut self,
        from_client: bool,
        code: &str,
        method: &str,
        sequence: u32,
        with_body: bool,
    ) {
        let first = format!("SIP/2.0 {code}");
        self.message(from_client, false, &first, method, sequence, with_body);
    }

    fn message(
        &mut self,
        from_client: bool,
        is_request: bool,
        first: &str,
        method: &str,
        sequence: u32,
        with_body: bool,
    ) {
        let via = self.via(from_client, is_request);
        let asker = if is_request { from_client } else { !from_client };
        let from = self.named(asker, from_client);
        let to = self.named(!asker, from_client);
        let contact = self.named(from_client, from_client);
        let contact = match self.random.between(0, 4) {
            0 => format!("sip:carol@{contact}"),
            1 => {
                let other = self.named(from_client, from_client);
                format!("\"A, B\" <sip:a@{contact}>;q=1, <sip:b@{other};transport=udp>")
            }
            _ => format!("<sip:carol@{contact};ob>"),
        };
        let body = if with_body { self.description(from_client) } else { String::new() };
        let name = self.random.one_of(&["Content-Length", "l", "content-length"]);
        let length = format!("{name}: {}", body.len());
        let text = format!(
            "{first}\r\nVia: SIP/2.0/UDP {via}\r\nVia: SIP/2.0/UDP {CLIENT}:{}\r\n\
             From: \"A\" <sip:a@{from}>;tag=1\r\nTo: <sip:b@{to}>\r\nCall-ID: 1@{CLIENT}\r\n\
             CSeq: {sequence} {method}\r\nContact: {contact}\r\n{length}\r\n\r\n{body}",
            self.port
        );
        self.send(from_client, &text);
    }

    fn description(&mut self, from_client: bool) -> String {
        let own = if from_client { CLIENT } else { SERVER };
        let address = if self.random.once_in(12) { "192.0.2.77" } else { own };
        let line = format!("c=IN IP4 {address}\r\n");
        let of_media = self.random.once_in(3);
        let mut text = format!("v=0\r\no=a 1 1 IN IP4 {address}\r\ns=-\r\n");
        if !of_media || self.random.once_in(3) {
            text += &line;
        }
        text += "t=0 0\r\n";
        for number in 0..self.random.between(1, 2) as u16 {
            // The kernel drops a message that announces one port for two kinds.
            let what = ["audio", "video"][usize::from(number)];
            let port = self.sound + 2 * number + u16::from(!from_client) * 8;
            write!(text, "m={what} {port} RTP/AVP 0\r\n").unwrap();
            if of_media {
                text += &line;
            }
            text += "a=sendrecv\r\n";
        }
        text
    }
}

/// The messages that come out of the kernel's gateway; `None` for one that does not come out.
fn kernels(calls: &[Call]) -> Result<Vec<Option<String>>> {
    let namespace = forwarding_namespace("kernel")?;
    namespace.ip(&["addr add 203.0.113.9/32 dev server0", "link set lo up"])?;
    namespace.load_rules(RULES).map_err(|error| Error::Unavailable {
        why: format!("this kernel lacks a helper for SIP: {error}"),
    })?;
    let mut orders = String::new();
    for message in calls.iter().flat_map(|call| &call.messages) {
        orders += if message.from_client { "client " } else { "server " };
        orders += &(hex(&message.frame) + "\n");
    }
    let player = player(&namespace, PLAYER.as_bytes())?.input(orders);
    let output = player.limit(std::time::Duration::from_secs(120)).check()?;
    let read = |line: &str| String::from_utf8(payload(&bytes(line))).unwrap();
    Ok(output.lines().map(|line| (line != "lost").then(|| read(line))).collect())
}

/// The messages that come out of our table.
fn ours(call: &Call) -> Vec<Option<String>> {
    let mut settings = Settings::default();
    settings.helpers.attach(Kind::Sip, SIP).unwrap();
    let mut own = OwnTable::new(settings);
    let outside = Addresses::one(OUTSIDE.parse().unwrap());
    let masquerade = Request { addresses: Some(outside), ..Request::of(TranslatedEnd::Source) };
    let each = call.messages.iter().map(|Message { frame, .. }| {
        let mut edits = Vec::new();
        let passed = own.offer(frame, |table, tracked, packet, context| {
            if let Some(id) = tracked.connection.filter(|_| tracked.fresh) {
                let supply = Supply { own: BucketPorts::ALL, seed: 1, hash: &hash };
                table.translate(id, &masquerade, supply, context).unwrap();
                table.make_reply_unique(id, supply, context).unwrap();
            }
            table.accept_with_edits(tracked, packet, &mut edits, context)
        });
        let mut text = payload(frame);
        for edit in edits.into_iter().rev() {
            text.splice(edit.place, edit.text);
        }
        let is_lost = matches!(passed.verdict, Verdict::Drop(_));
        (!is_lost).then(|| String::from_utf8(text).unwrap())
    });
    each.collect()
}

/// The kernel leaves the contact that the registrar received.
const CONTACT: &str = "a confirmation names the contact by which the phone knows itself";

/// The kernel looks for a Via with a numerical address.
const VIA: &str = "the first Via is that of the last hop, whatever its address";

/// The kernel stops at the first contact with a host name.
const NAME: &str = "every contact of a message is read";

/// The rule for a line that differs from the kernel's.
fn rule(kernel: &str, ours: &str, said: &str) -> Option<&'static str> {
    let is_left = kernel == said && said.contains(OUTSIDE);
    if is_left && ours.starts_with("Contact: <sip:a@192") {
        Some(CONTACT)
    } else if ours == said && said.starts_with("Via: ") {
        Some(VIA)
    } else if said.starts_with("Contact: ") && said.contains("phone.example.com") {
        Some(NAME)
    } else {
        None
    }
}

/// Compares the kernel's messages with ours.
pub fn compare() -> Result<()> {
    let calls: Vec<Call> = seeds(CALLS).map(Call::of).collect();
    let mut totals = Totals::default();
    for calls in calls.chunks(AT_ONCE) {
        totals.add(calls, kernels(calls)?);
    }
    let Totals { messages, edited, reasons } = totals;
    println!("{messages} messages, {edited} changed, {reasons:?}");
    assert!(edited * 2 > messages, "{edited} of {messages}");
    Ok(())
}

#[derive(Default)]
struct Totals {
    messages: usize,
    edited: usize,
    reasons: BTreeMap<&'static str, usize>,
}

impl Totals {
    fn add(&mut self, calls: &[Call], kernels: Vec<Option<String>>) {
        let mut kernels = kernels.into_iter();
        for call in calls {
            for (message, ours) in call.messages.iter().zip(ours(call)) {
                let kernel = kernels.next().expect("an answer to each order");
                self.compare(message, kernel, ours);
            }
        }
    }

    fn compare(&mut self, message: &Message, kernel: Option<String>, ours: Option<String>) {
        let said = String::from_utf8(payload(&message.frame)).unwrap();
        self.messages += 1;
        self.edited += usize::from(ours.as_ref().is_some_and(|ours| *ours != said));
        let [kernel, ours] = [kernel, ours].map(|text| text.unwrap_or_else(|| "lost".to_owned()));
        let mut lines = kernel.lines().zip(ours.lines()).zip(said.lines());
        match lines.find(|((kernel, ours), _)| kernel != ours) {
            None => assert_eq!(kernel, ours),
            Some(((theirs, own), line)) => match rule(theirs, own, line) {
                Some(why) => *self.reasons.entry(why).or_default() += 1,
                None => panic!("kernel:\n{kernel}\nours:\n{ours}\nsaid:\n{said}"),
            },
        }
    }
}

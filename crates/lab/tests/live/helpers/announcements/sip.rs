//! SIP calls and registrations: the messages of the ends, and the packets that follow.

use std::time::Duration;

use lab::Family;

use super::conversation::{CONTROL, Talk};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation};

pub const SIP: Comparison = Comparison {
    name: "calls",
    seeds: 400,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[FORM, PRIVILEGED],
    lists_alike: |_| true,
    expected: None,
};

const PORT: u16 = 5060;
/// The port where the ends say that they accept calls.
const CONTACT: u16 = 30000;
/// A payload too short for a message.
const SOUND: &[u8] = b"\x80\0sound";
/// One dialogue of this many has a packet that the kernel drops. The player needs a timeout to
/// notice that.
const DROPPED_IN: u64 = 200;

fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::new(seed);
    let mut call = Call { talk: &mut talk, sequence: 7 };
    call.message(Client);
    for _ in 0..call.talk.random.between(2, 7) {
        let from = call.talk.random.one_of(&[Client, Server]);
        call.message(from);
        for _ in 0..call.talk.random.between(0, 2) {
            call.somebody();
        }
    }
    if seed.is_multiple_of(DROPPED_IN) {
        let body = call.description(Client).replace("m=audio 200", "m=audio 2");
        let invite = call.text(Client, "INVITE", None, "INVITE", &body);
        call.send(Client, &invite);
        call.somebody();
    }
    talk.end()
}

struct Call<'a> {
    talk: &'a mut Talk,
    /// The CSeq number of the last request.
    sequence: u32,
}

impl Call<'_> {
    fn once_in(&mut self, n: usize) -> bool {
        self.talk.random.once_in(n)
    }

    fn send(&mut self, from: Side, text: &str) {
        let ports = [CONTROL, PORT];
        let ports = (ports[from as usize], ports[from.other() as usize]);
        self.talk.datagram(from, ports, text.as_bytes());
    }

    /// Sends a packet to a port that may have been announced.
    fn somebody(&mut self) {
        let from = self.talk.random.one_of(&Side::BOTH);
        let port = if self.once_in(4) { CONTACT } else { self.talk.any_port() };
        self.talk.somebody_sends(from, port, SOUND);
    }

    /// A message that is correct or nearly correct for a call.
    fn message(&mut self, from: Side) {
        const REQUESTS: [&str; 9] =
            ["INVITE", "INVITE", "INVITE", "ACK", "UPDATE", "PRACK", "BYE", "CANCEL", "REGISTER"];
        const CODES: [u32; 10] = [100, 180, 183, 183, 200, 200, 200, 401, 486, 603];
        const ANSWERED: [&str; 6] = ["INVITE", "INVITE", "UPDATE", "PRACK", "BYE", "REGISTER"];
        let random = &mut self.talk.random;
        let is_request = random.once_in(2);
        let method = random.one_of(if is_request { &REQUESTS[..] } else { &ANSWERED });
        let code = (!is_request).then(|| random.one_of(&CODES));
        if is_request && random.once_in(2) {
            self.sequence += 1;
        }
        let with_body = method != "REGISTER" && !self.once_in(4);
        let body = if with_body { self.description(from) } else { String::new() };
        let mut first = method.to_owned();
        if is_request && self.once_in(20) {
            first.make_ascii_lowercase();
        }
        let mut text = self.text(from, &first, code, method, &body);
        match self.talk.random.between(0, 40) {
            0 => text = text.replace("CSeq:", "cseq:"),
            1 => text = text.replace("\r\n", "\n"),
            2 => text = text.replace("Content-Length", "l"),
            3 => text = text.replace("RTP/AVP", "RTP/SAVP"),
            4 => text = text.replace("Contact:", "m:"),
            5 => text = text.replace("SIP/2.0", "SIP/3.0"),
            _ => {}
        }
        self.send(from, &text);
    }

    fn text(
        &mut self,
        from: Side,
        method: &str,
        code: Option<u32>,
        of: &str,
        body: &str,
    ) -> String {
        let address = self.named(from);
        let sequence = self.sequence - u32::from(self.once_in(12));
        let first = match code {
            None => format!("{method} sip:bob@example.com SIP/2.0"),
            Some(code) => format!("SIP/2.0 {code} Text"),
        };
        let contact = if of == "REGISTER" {
            // A confirmation repeats the contact of the request.
            let whose = if code.is_some() { from.other() } else { from };
            let host = self.named(whose);
            let expires = self.talk.random.one_of(&[";expires=60", "", ";expires=0"]);
            let general = self.talk.random.one_of(&["Expires: 90\r\n", ""]);
            format!("Contact: <sip:alice@{host}:{CONTACT}>{expires}\r\n{general}")
        } else {
            format!("Contact: <sip:alice@{address}:{CONTROL}>\r\n")
        };
        format!(
            "{first}\r\nVia: SIP/2.0/UDP {address};branch=z9hG4bK1\r\n\
             From: <sip:alice@example.com>;tag=1\r\nTo: <sip:bob@example.com>\r\n\
             Call-ID: 1@example.com\r\nCSeq: {sequence} {of}\r\n{contact}\
             Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    /// The address of a side in SIP's notation, rarely that of the other side.
    fn named(&mut self, side: Side) -> String {
        let side = if self.once_in(12) { side.other() } else { side };
        let address = self.talk.ends.address(side);
        if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
    }

    fn description(&mut self, from: Side) -> String {
        let side = if self.once_in(12) { from.other() } else { from };
        let address = self.talk.ends.address(side);
        let kind = if self.talk.ends.family == Family::V4 { "IP4" } else { "IP6" };
        let connection = format!("c=IN {kind} {address}\r\n");
        let of_media = self.once_in(4);
        let mut text = format!("v=0\r\no=alice 1 1 IN {kind} {address}\r\ns=-\r\n");
        if !of_media {
            text += &connection;
        }
        text += "t=0 0\r\n";
        for _ in 0..self.talk.random.between(1, 2) {
            let what = self.talk.random.one_of(&["audio", "audio", "audio", "video", "text"]);
            let port = if self.once_in(12) { 0 } else { self.talk.any_port() };
            text += &format!("m={what} {port} RTP/AVP 0\r\n");
            if of_media {
                text += &connection;
            }
        }
        text
    }
}

/// The kernel also reads texts that are nearly messages.
const FORM: &str = "a message is of version 2.0, and its lines end with CR and LF";
/// The kernel drops the packet.
const PRIVILEGED: &str = "a port below 1024 announces nothing, and the receiver refuses it";

/// The kernel ends the registration at the request, or takes a request without a time for its end.
/// This is so rare that no seed of the usual run shows it.
const STANDS: &str = "the confirmation sets the duration of a registration";
/// The kernel withdraws the announcements since then at once. This is as rare.
const ENDED: &str = "a refusal after a BYE belongs to no INVITE";
/// The kernel accepts an answer from any sender that repeats the number. This is as rare.
const REGISTRAR: &str = "only the host that was asked answers a registration";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let Observation { kernel, ours, log, .. } = observations.last()?;
    let any = |is: &dyn Fn(&str) -> bool| {
        observations.iter().any(|it| is(&String::from_utf8_lossy(&payload(it.frame))))
    };
    let is_ended = |text: &str| {
        text.starts_with("REGISTER")
            && (text.contains(";expires=0") || !text.to_lowercase().contains("expires"))
    };
    let mut registers = None;
    let answers_itself = observations.iter().any(|it| {
        let text = String::from_utf8_lossy(&payload(it.frame)).to_lowercase();
        if text.starts_with("register") {
            registers = Some(it.from);
        }
        registers == Some(it.from) && text.starts_with("sip/2.0") && text.contains(" register\r")
    });
    let mut said_bye = false;
    let refused_after_bye = observations.iter().any(|it| {
        let text = String::from_utf8_lossy(&payload(it.frame)).to_lowercase();
        said_bye |= text.starts_with("bye");
        let code = text.strip_prefix("sip/2.0 ");
        said_bye && code.is_some_and(|code| code.starts_with(['4', '5', '6']))
    });
    let odd = |text: &str| text.contains("SIP/3.0") || text.contains('\n') && !text.contains('\r');
    match (kernel.class, ours.class) {
        (Class::Lost, Class::New | Class::Established) if log.contains("wrong port") => {
            Some(PRIVILEGED)
        }
        (Class::New, Class::Related) | (Class::Related, Class::New) if any(&odd) => Some(FORM),
        (Class::New, Class::Related) if any(&is_ended) => Some(STANDS),
        (Class::New, Class::Related) if refused_after_bye => Some(ENDED),
        (Class::New, Class::Related) if answers_itself => Some(REGISTRAR),
        _ => None,
    }
}

use std::time::Duration;

use flow::{Class, Zone};
use wire::dissect;

use super::*;
use crate::testing::translated::frame4;
use crate::testing::{Lab, NumberedInterfaces, SECRET, usual_packet};
use crate::{AnnouncementRecord, TrackedPacket};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const SYN: u8 = 2;
const ACK: u8 = 16;

fn lab() -> Lab {
    let mut lab = Lab::with_room_for(100);
    lab.settings.helpers.attach(Kind::Ftp, 21).unwrap();
    lab
}

/// A segment of the client or the server; returns the class of its packet.
fn send(
    lab: &mut Lab,
    from_client: bool,
    ports: (u16, u16),
    flags: u8,
    numbers: (u32, u32),
    text: &str,
) -> Class {
    let (from, to) = if from_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let ends = ((from, ports.0), (to, ports.1));
    let frame = frame4(ends, Some(flags), numbers, text.as_bytes());
    let network = dissect(&frame).unwrap().network.unwrap();
    let keyed = FlowKey::of_packet(&network, Zone(0)).unwrap();
    // Nobody outside may open what is not announced.
    let packet = TrackedPacket { may_open: from_client, ..usual_packet(&network, &frame, &keyed) };
    lab.run(|table, context| {
        let tracked = table.track(&packet, context);
        table.accept(tracked, &packet, context)
    })
    .class
}

/// A control connection on which the client has announced a port.
fn announced() -> Lab {
    let mut lab = lab();
    let (up, down) = ((40_000, 21), (21, 40_000));
    send(&mut lab, true, up, SYN, (0, 0), "");
    send(&mut lab, false, down, SYN | ACK, (0, 1), "");
    send(&mut lab, true, up, ACK, (1, 1), "");
    send(&mut lab, false, down, ACK, (1, 1), "220 hello\r\n");
    send(&mut lab, true, up, ACK, (1, 12), "USER a\r\n");
    send(&mut lab, true, up, ACK, (9, 12), "PORT 192,0,2,1,19,136\r\n");
    assert_eq!(lab.expectations.len(), 1);
    lab
}

#[test]
fn a_peer_hears_at_once_what_a_helper_has_read() {
    let mut lab = lab();
    lab.replication.begin_turn(Some(Duration::ZERO));
    let told = |lab: &mut Lab| {
        let mut told = 0;
        lab.run(|table, context| {
            table.take_changes(100, &NumberedInterfaces, flow::NoPrefetch, context, |_| told += 1)
        });
        told
    };
    let (up, down) = ((40_000, 21), (21, 40_000));
    send(&mut lab, true, up, SYN, (0, 0), "");
    send(&mut lab, false, down, SYN | ACK, (0, 1), "");
    send(&mut lab, true, up, ACK, (1, 1), "");
    assert_eq!((told(&mut lab), told(&mut lab)), (1, 0));
    // The greeting decides whether a command counts.
    send(&mut lab, false, down, ACK, (1, 1), "220 hello\r\n");
    assert_eq!(told(&mut lab), 1);
    send(&mut lab, true, up, ACK, (1, 12), "");
    assert_eq!(told(&mut lab), 0);
    send(&mut lab, true, up, ACK, (1, 12), "USER a\r\n");
    assert_eq!(told(&mut lab), 1);
}

fn import(lab: &mut Lab, record: &AnnouncementRecord) -> Result<Taken, ImportRefusal> {
    let importing = Importing {
        hash: &|key| key.hash(SECRET),
        interfaces: &NumberedInterfaces,
        map_epoch: 0,
        needs_addresses: true,
    };
    lab.run(|table, context| table.import_announcement(record, Origin::File, importing, context))
}

#[test]
fn an_announced_connection_opens_at_the_gateway_that_has_taken_over() {
    let mut lab = announced();
    lab.take_over();
    assert_eq!(send(&mut lab, false, (20, 5000), SYN, (0, 0), ""), Class::Related);
    // It was announced for one connection.
    lab.take_over();
    assert_eq!(lab.expectations.len(), 0);
    // The announcements of a connection end with it there too.
    let mut lab = announced();
    lab.take_over();
    let record = lab.records().remove(0);
    let (flow, hash) = (record.original(), record.original().key.hash(SECRET));
    lab.run(|table, context| table.end(&flow, hash, context));
    assert_eq!(lab.expectations.len(), 0);
}

#[test]
fn an_announcement_ends_when_it_would_have_ended() {
    let mut lab = announced();
    lab.wait(Duration::from_secs(200));
    lab.take_over();
    lab.wait(Duration::from_secs(99));
    lab.take_over();
    assert_eq!(lab.announcements().len(), 1);
    lab.wait(Duration::from_secs(2));
    assert_eq!(lab.announcements(), vec![]);
    send(&mut lab, false, (20, 5000), SYN, (0, 0), "");
    assert_eq!((lab.table.len(), lab.expectations.len()), (1, 0));
}

#[test]
fn what_belongs_to_no_connection_here_is_refused() {
    let mut lab = announced();
    let record = lab.announcements().remove(0);
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Known));
    // No such connection; one without the helper; one of the other end.
    let mut none = self::lab();
    assert_eq!(import(&mut none, &record), Err(ImportRefusal::Master));
    let mut other = Lab::with_room_for(100);
    send(&mut other, true, (40_000, 21), SYN, (0, 0), "");
    assert_eq!(import(&mut other, &record), Err(ImportRefusal::Master));
    let mut reversed = announced();
    reversed.expectations = crate::Expectations::new(SECRET);
    let mut record_of_other = record.clone();
    let Announcement::Expectation(it) = &mut record_of_other.0 else { panic!("{record:?}") };
    it.master.flow.sender = it.master.flow.sender.opposite();
    assert_eq!(import(&mut reversed, &record_of_other), Err(ImportRefusal::Master));
    // A zone and an interface that are not there.
    let mut record_of_zone = record.clone();
    let Announcement::Expectation(it) = &mut record_of_zone.0 else { panic!("{record:?}") };
    it.master.zone = Zone(9);
    assert_eq!(import(&mut reversed, &record_of_zone), Err(ImportRefusal::Zone));
    let mut record_of_interface = record.clone();
    let Announcement::Expectation(it) = &mut record_of_interface.0 else { panic!("{record:?}") };
    it.interface = crate::InterfaceName::new("wan0");
    assert_eq!(import(&mut reversed, &record_of_interface), Err(ImportRefusal::Interface));
    assert_eq!(import(&mut reversed, &record), Ok(Taken::Made));
    assert_eq!(reversed.counters.import_refused, 3);
}

#[test]
fn nothing_gives_way_to_an_announcement() {
    let mut old = announced();
    let record = old.announcements().remove(0);
    let mut lab = announced();
    lab.expectations = crate::Expectations::new(SECRET);
    lab.settings.expect_max = 0;
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::AnnouncementsFull));
    lab.settings.expect_max = 10;
    // FTP has one at a time, and that stays.
    send(&mut old, true, (40_000, 21), ACK, (32, 12), "PORT 192,0,2,1,19,137\r\n");
    let newer = old.announcements().remove(0);
    assert_eq!(import(&mut lab, &newer), Ok(Taken::Made));
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::AnnouncementsFull));
    assert_eq!(lab.announcements(), [newer]);
}

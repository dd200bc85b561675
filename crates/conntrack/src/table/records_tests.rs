//! Imports beside their limits. `records_model_tests` compares what comes after an import.

use std::time::Duration;

use wire::{Family, TcpFlags};

use super::*;
use crate::nat::Addresses;
use crate::testing::{Lab, NumberedInterfaces, SECRET, tcp, udp};
use crate::{EventKind, InterfaceName, LimitPools, Reserve};

const SYN: u8 = TcpFlags::SYN.0;
const ACK: u8 = TcpFlags::ACK.0;

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

const IMPORTING: Importing<'_> =
    Importing { hash: &hash, interfaces: &NumberedInterfaces, map_epoch: 0, needs_addresses: true };

fn import(lab: &mut Lab, record: &ConnectionRecord) -> Result<Imported, ImportRefusal> {
    lab.run(|table, context| table.import(record, IMPORTING, context))
}

fn amend(lab: &mut Lab, record: &ConnectionRecord) -> Option<ImportRefusal> {
    lab.run(|table, context| table.amend(record, IMPORTING, context)).err()
}

/// Opens a connection from a port, and completes its handshake if it is to be assured.
fn connect(lab: &mut Lab, port: u16, is_assured: bool) {
    let (client, server) = ((1, port), (9, 443));
    lab.track(&tcp(Family::V4, client, server, SYN, (1, 0)));
    if is_assured {
        lab.track(&tcp(Family::V4, server, client, SYN | ACK, (7, 10)));
        lab.track(&tcp(Family::V4, client, server, ACK, (10, 16)));
        lab.track(&tcp(Family::V4, server, client, ACK, (16, 18)));
    }
}

fn some(assured: impl IntoIterator<Item = bool>) -> Vec<ConnectionRecord> {
    let mut lab = Lab::new();
    (1..).zip(assured).for_each(|(port, is_assured)| connect(&mut lab, port, is_assured));
    lab.records()
}

/// A record of a connection that is translated to host 200.
fn translated(interface: Option<u32>) -> ConnectionRecord {
    let mut lab = Lab::new();
    translate(&mut lab, (1, 5), interface).unwrap();
    lab.records().remove(0)
}

fn translate(
    lab: &mut Lab,
    from: (u8, u16),
    interface: Option<u32>,
) -> Result<(), flow::DropReason> {
    let addresses = Addresses::one([192, 0, 2, 200].into());
    let request =
        Request { addresses: Some(addresses), interface, ..Request::of(TranslatedEnd::Source) };
    let mut got = Ok(());
    lab.offer(&udp(Family::V4, from, (9, 53)), |table, packet, context| {
        let tracked = table.track(packet, context);
        let supply = Supply { own: BucketPorts::ALL, seed: 1, hash: &hash };
        got = table.translate(tracked.connection.unwrap(), &request, supply, context);
        table.accept(tracked, packet, context)
    });
    got
}

#[test]
fn what_is_there_already_is_refused_and_nothing_changes() {
    let record = translated(Some(3));
    let mut lab = Lab::new();
    assert!(import(&mut lab, &record).is_ok());
    let before = lab.records();
    assert_eq!(before, std::slice::from_ref(&record));
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Known));
    // Another client with the same port behind the translation.
    let mut clash = record.clone();
    let KeyedPacket { key, sender } = clash.original;
    let other = flow::Endpoint { address: crate::testing::address(Family::V4, 2), port: 5 };
    clash.original = key.between(sender, other, key.endpoint(sender.opposite()));
    assert_eq!(import(&mut lab, &clash), Err(ImportRefusal::Clash));
    assert_eq!(lab.records(), before);
    assert_eq!((lab.counters.imported, lab.counters.import_refused), (1, 2));
    assert_eq!((lab.counters.insert, lab.counters.insert_failed), (0, 0));
    assert!(lab.events.is_empty());
    assert_eq!(lab.limits.used(), 1);
}

#[test]
fn nobody_else_gets_the_port_of_an_imported_connection() {
    let record = translated(None);
    let mut lab = Lab::new();
    import(&mut lab, &record).unwrap();
    translate(&mut lab, (2, 5), None).unwrap();
    let ports: Vec<u16> = lab.records().iter().map(|it| it.reply().key.low.port).collect();
    let replies: Vec<_> = lab.records().iter().map(ConnectionRecord::reply).collect();
    assert_ne!(replies[0], replies[1], "{ports:?}");
    // When it ends, its port is free.
    let (original, hash) = (record.original(), hash(record.key()));
    lab.run(|table, context| table.end(&original, hash, context));
    assert_eq!(lab.kinds(), [EventKind::New, EventKind::Destroy]);
    translate(&mut lab, (3, 5), None).unwrap();
    assert!(lab.records().iter().any(|it| it.reply() == record.reply()));
}

#[test]
fn a_full_table_refuses_and_evicts_nobody_who_is_assured() {
    let records = some([true, true, false, true, false]);
    let mut lab = Lab::with_room_for(2);
    let said: Vec<_> = records.iter().map(|record| import(&mut lab, record).err()).collect();
    let full = Some(ImportRefusal::TableFull);
    assert_eq!(said, [None, None, full, full, full]);
    assert_eq!(lab.records(), records[..2]);
    // One that is not assured gives way to one that is, and to nobody else.
    let mut lab = Lab::with_room_for(2);
    for (record, refused) in [(2, None), (0, None), (4, full), (1, None), (3, full)] {
        assert_eq!(import(&mut lab, &records[record]).err(), refused, "{record}");
    }
    assert_eq!(lab.records(), records[..2]);
    assert_eq!(lab.counters.early_drop, 1);
}

#[test]
fn zones_sources_and_interfaces_must_be_there() {
    let mut record = some([true]).remove(0);
    record.original.key.zone = flow::Zone(7);
    let mut lab = Lab::new();
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Zone));
    let mut pools = LimitPools::new(&lab.settings, &Reserve::default());
    pools.set_zones(&[(flow::Zone(7), Some(1))]).unwrap();
    lab.limits = pools.limits(SECRET);
    assert!(import(&mut lab, &record).is_ok());
    let mut another = some([true, true]).remove(1);
    another.original.key.zone = flow::Zone(7);
    assert_eq!(import(&mut lab, &another), Err(ImportRefusal::ZoneFull));
    assert_eq!(lab.limits.zones().map(|(_, used)| used).collect::<Vec<_>>(), [1]);

    let mut lab = Lab::new();
    lab.settings.half_open_per_source = 1;
    let said: Vec<_> =
        some([false, true, false]).iter().map(|record| import(&mut lab, record).err()).collect();
    assert_eq!(said, [None, None, Some(ImportRefusal::SourceFull)]);
    assert_eq!(lab.limits.half_open.get(flow::Zone(0)), 1);

    let mut record = translated(Some(3));
    let translation = record.translation.as_mut().unwrap();
    translation.interface = InterfaceName::new("gone");
    assert_eq!(import(&mut Lab::new(), &record), Err(ImportRefusal::Interface));
}

#[test]
fn a_masquerade_ends_with_the_address_of_the_interface_that_has_its_name_here() {
    let mut lab = Lab::new();
    import(&mut lab, &translated(Some(3))).unwrap();
    let mut end = |number| {
        lab.run(|table, context| {
            table.end_masqueraded((number, None), Cursor::default(), u32::MAX, context).0
        })
    };
    assert_eq!(end(2), 0);
    assert_eq!(end(3), 1);
}

#[test]
fn an_imported_connection_expires_in_its_time() {
    let record = some([true]).remove(0);
    let mut lab = Lab::new();
    import(&mut lab, &record).unwrap();
    let left = record.left.duration();
    // Its last packet is not acknowledged.
    assert_eq!(left, Duration::from_secs(300));
    lab.wait(left - Duration::from_millis(1));
    assert_eq!(lab.records().len(), 1);
    lab.wait(Duration::from_millis(1));
    assert_eq!(lab.records().len(), 0);
    lab.wait(Duration::from_secs(3));
    lab.run(|table, context| table.expire(usize::MAX, context));
    assert!(lab.table.is_empty());
    assert_eq!(lab.kinds(), [EventKind::Destroy]);
}

#[test]
fn a_newer_record_changes_a_connection_and_an_older_one_of_other_keys_does_not() {
    let mut there = Lab::new();
    connect(&mut there, 5, false);
    let before = there.records().remove(0);
    let mut here = Lab::new();
    import(&mut here, &before).unwrap();
    assert_eq!(here.limits.half_open.get(flow::Zone(0)), 1);
    connect(&mut there, 5, true);
    let mut after = there.records().remove(0);
    after.mark = 9;
    assert_eq!(amend(&mut here, &after), None);
    assert_eq!(here.records(), std::slice::from_ref(&after));
    assert_eq!(here.limits.half_open.get(flow::Zone(0)), 0);
    assert_eq!(amend(&mut Lab::new(), &after), Some(ImportRefusal::Clash));
    let mut other = after.clone();
    other.translation = translated(None).translation;
    assert_eq!(amend(&mut here, &other), Some(ImportRefusal::Clash));
    assert_eq!(here.records(), [after]);
}

/// A gateway of another make knows nothing of these.
#[test]
fn an_outline_leaves_mark_labels_helper_timeouts_and_counts_as_they_are() {
    let mut there = Lab::new();
    connect(&mut there, 5, false);
    let mut record = there.records().remove(0);
    record.mark = 9;
    record.labels = crate::Labels::of_bits(8);
    record.policy = Some(crate::TimeoutPolicy::Tcp(crate::proto::tcp::TcpTimeouts::default()));
    record.helper = Some(RecordedHelper::of(&crate::helper::Kind::Ftp.start()));
    record.counts = Some([Counts { packets: 7, bytes: 700 }, Counts { packets: 1, bytes: 40 }]);
    let mut here = Lab::new();
    import(&mut here, &record).unwrap();

    connect(&mut there, 5, true);
    let mut outline = there.records().remove(0).outline().unwrap();
    outline.counts = [Counts { packets: 3, bytes: 300 }, Counts { packets: 2, bytes: 80 }];
    let told = ConnectionRecord::of_outline(&outline).unwrap();
    assert_eq!(amend(&mut here, &told), None);

    let after = here.records().remove(0);
    assert_eq!((&after.state, after.facts, after.left), (&told.state, told.facts, told.left));
    let higher = [Counts { packets: 7, bytes: 700 }, Counts { packets: 2, bytes: 80 }];
    record.counts = Some(higher);
    let (state, facts, left) = (after.state, after.facts, after.left);
    assert_eq!(here.records(), [ConnectionRecord { state, facts, left, ..record }]);
}

#[test]
fn no_connection_is_left_longer_than_a_packet_would_keep_it() {
    let mut record = some([true]).remove(0);
    let mut import_with = |left_s: u64, change: &dyn Fn(&mut ConnectionRecord)| {
        record.left = Millis::new(1000 * left_s);
        change(&mut record);
        let mut lab = Lab::new();
        import(&mut lab, &record).unwrap();
        lab.records().remove(0).left.get() / 1000
    };
    let nothing = |_: &mut ConnectionRecord| {};
    assert_eq!(import_with(100, &nothing), 100);
    let established = Settings::default().tcp.timeouts.of(crate::proto::tcp::TcpState::Established);
    assert_eq!(import_with(100 * 365 * 86_400, &nothing), established.into());
    // It has timeouts of its own.
    let own = |record: &mut ConnectionRecord| {
        let mut timeouts = crate::proto::tcp::TcpTimeouts::default();
        timeouts.set(crate::proto::tcp::TcpState::Established, 77);
        record.policy = Some(crate::TimeoutPolicy::Tcp(timeouts));
    };
    // A connection that was picked up has the timer of a SYN at first.
    assert_eq!(import_with(86_400, &own), 120);
    // A helper may keep it longer, for a day.
    let helped = |record: &mut ConnectionRecord| {
        record.helper = Some(RecordedHelper::of(&crate::helper::Kind::Sip.start()));
    };
    assert_eq!(import_with(3600, &helped), 3600);
    assert_eq!(import_with(u64::MAX / 1000, &helped), LONGEST_KEPT_S.into());
}

#[test]
fn a_masquerade_needs_its_address_unless_the_address_comes_later() {
    let record = translated(Some(crate::testing::WITHOUT_ADDRESS));
    let mut lab = Lab::new();
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Address));
    assert_eq!((lab.table.len(), lab.counters.import_refused), (0, 1));
    let importing = Importing {
        hash: &hash,
        interfaces: &NumberedInterfaces,
        map_epoch: 0,
        needs_addresses: false,
    };
    assert!(lab.run(|table, context| table.import(&record, importing, context)).is_ok());
}

/// A packet of a tunnel between two hosts.
fn tunnelled(from: u8, to: u8) -> wire::Network {
    crate::testing::network(Family::V4, from, to, wire::protocol::IPIP, wire::Transport::Other)
}

#[test]
fn nobody_gives_way_to_a_record_that_is_refused() {
    // Another table has the tunnel, opened by the other end.
    let mut other = Lab::new();
    other.track(&tunnelled(1, 2));
    let mut reversed = Lab::new();
    reversed.track(&tunnelled(2, 1));
    let mut record = reversed.records().remove(0);
    record.facts.assured = true;
    // A full table, of connections that would give way to an assured one.
    let mut lab = Lab::with_room_for(2);
    lab.tunnels = other.tunnels.clone();
    connect(&mut lab, 5, false);
    connect(&mut lab, 6, false);
    let before = lab.records();
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Clash));
    assert_eq!(lab.records(), before);
    assert_eq!((lab.counters.early_drop, lab.counters.import_refused), (0, 1));
    lab.tunnels = crate::KnownTunnels::new(SECRET);
    assert!(import(&mut lab, &record).is_ok());
    assert_eq!(lab.counters.early_drop, 1);
}

#[test]
fn a_record_waits_for_the_packet_that_opens_its_connection() {
    let mut there = Lab::new();
    connect(&mut there, 1, false);
    let record = there.records().remove(0);
    let mut lab = Lab::new();
    let syn = tcp(Family::V4, (1, 1), (9, 443), SYN, (1, 0));
    let mut opened = None;
    lab.offer(&syn, |table, packet, context| {
        let tracked = table.track(packet, context);
        opened = tracked.connection;
        tracked
    });
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Opening));
    assert_eq!(lab.counters.import_refused, 0);
    // The packet is refused, and the record is not.
    lab.run(|table, context| table.withdraw(opened.unwrap(), context));
    assert!(import(&mut lab, &record).is_ok());
    assert_eq!(lab.records(), [record]);
}

#[test]
fn a_tunnel_that_is_imported_twice_is_counted_once() {
    let mut there = Lab::new();
    there.settings.accounting = true;
    there.track(&tunnelled(1, 2));
    let record = there.records().remove(0);
    let counted = record.counts.unwrap()[0].packets;
    let mut whole = record.clone();
    whole.join(&record);
    assert_eq!(whole.counts.unwrap()[0].packets, 2 * counted);
    let mut lab = Lab::new();
    assert!(matches!(import(&mut lab, &whole), Ok(Imported::New(_))));
    assert_eq!(import(&mut lab, &whole), Err(ImportRefusal::Known));
    assert_eq!(import(&mut lab, &record), Err(ImportRefusal::Known));
    assert_eq!(lab.records(), std::slice::from_ref(&whole));
    // Newer counts replace the old ones.
    let mut newer = whole.clone();
    newer.counts.as_mut().unwrap()[1].packets = 7;
    assert!(matches!(import(&mut lab, &newer), Ok(Imported::Joined(_))));
    assert_eq!(lab.records(), [newer]);
}

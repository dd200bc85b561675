use serde_json::Value;

use super::attack::{Attack, Flood};
use super::overload::Arrivals;
use super::shape::{PIECE, Shape, read};
use super::*;

#[test]
fn a_quick_run_fills_the_contract_and_nothing_comes_out_damaged() {
    let report = run(Options { quick: true, json: true }).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64).unwrap_or_default();
    assert_eq!((json["schema"].clone(), json["corrupt"].clone()), (1.into(), 0.into()));
    for path in [
        "/datagrams_4416_per_s",
        "/datagrams_4416_shuffled_within_per_s",
        "/datagrams_4416_shuffled32_per_s",
        "/gbit_s_65507",
        "/nanoseconds_per_piece/8189/median",
        "/peak_bytes",
    ] {
        assert!(number(path) > 0.0, "{path}: {json}");
    }
    let rows = json["seed_table"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 2 * report.machine.cpus.min(2));
    for row in rows {
        let figure = |key: &str| row[key].as_f64().unwrap();
        assert!(figure("offered_mbit_s") >= 0.0 && figure("goodput_mbit_s") >= 0.0, "{row}");
        assert!(figure("size") > 0.0 && figure("workers") > 0.0 && row["design"].is_string());
    }
    let floods = json["flood"].as_array().unwrap();
    assert_eq!(floods.len(), Attack::ALL.len() * 3);
    for flood in floods {
        assert!(flood["attack"].is_string() && flood["share"].is_u64(), "{flood}");
        let ratio = flood["goodput_ratio"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&ratio), "{flood}");
    }
    assert!(json.get("scaling_2_workers").is_some());
    let text = report.to_string();
    assert!(text.contains("bucket locks") && text.contains("slow drip"), "{text}");
}

#[test]
fn a_fragment_is_read_as_it_is_dissected() {
    let shape = Shape::new(65_507, PIECE);
    assert_eq!(shape.pieces(), 45);
    for index in 0..shape.pieces() {
        let (source, id) = (0xc612_0102, 0x0304);
        let mut frame = vec![0; shape.frame_length(index)];
        shape.write(index, source, id, &mut frame);
        // The dissector reads a first piece only as far as the length in its UDP header.
        frame[38..40].copy_from_slice(&65_515_u16.to_be_bytes());
        wire::checksum::fill_ipv4_header(&mut frame[14..]);
        let network = wire::dissect(&frame).unwrap().network.unwrap();
        let piece = ::defrag::Piece::of(&network, ::defrag::Realm::default()).unwrap();
        assert_eq!(read(&frame), piece);
        assert_eq!(shape.piece(index, source, id), piece);
    }
}

#[test]
fn arrivals_repeat_and_lose_a_few_in_a_row() {
    let arrivals = || Arrivals::new(&Shape::new(4416, PIECE), 0..64);
    let (mut one, mut other) = (arrivals(), arrivals());
    let taken = 100_000;
    for _ in 0..taken {
        assert_eq!(one.next(), other.next());
    }
    let lost = one.sent() - taken;
    assert!((400..=600).contains(&lost), "{lost}");
}

#[test]
fn attacks_are_packets_that_a_dissector_reads_or_refuses() {
    let mut refused = Vec::new();
    for attack in Attack::ALL {
        let mut flood = Flood::new(attack);
        let packet = |_| {
            let mut frame = Vec::new();
            flood.write(&mut frame);
            let network = wire::dissect(&frame).ok()?.network?;
            network.fragment.map(|_| ())
        };
        let fragments = (0..3000).filter_map(packet).count();
        if fragments < 3000 {
            refused.push((attack, fragments));
        }
    }
    // One of three packets ends beyond 65535 bytes; one of two has half a header chain.
    assert_eq!(refused, [(Attack::PastTheEnd, 2000), (Attack::Ipv6Chains, 1500)]);
}

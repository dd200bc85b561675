use super::*;

fn query(text: &str) -> Result<ConnectionQuery, String> {
    let uri = format!("http://stateway/v1/connections?{text}").parse().unwrap();
    axum::extract::Query::try_from_uri(&uri)
        .map(|axum::extract::Query(query)| query)
        .map_err(|error| error.body_text())
}

#[test]
fn a_request_says_what_was_asked() {
    let asked = ConnectionQuery {
        proto: Some("tcp".into()),
        src: Some("2001:db8::/32".into()),
        dst: Some("192.0.2.7".into()),
        sport: Some(1024),
        dport: Some(443),
        srckey: Some("0x10".into()),
        dstkey: Some("7".into()),
        reply_src: Some("2001:db8::1".into()),
        reply_dst: Some("2001:db8::/64".into()),
        reply_sport: Some(80),
        reply_dport: Some(1025),
        src_nat: Some("any".into()),
        dst_nat: Some("2001:db8::2".into()),
        any_nat: Some("any".into()),
        state: Some("a&b=c d%".into()),
        family: Some("ipv6".into()),
        zone: Some(7),
        orig_zone: Some(8),
        reply_zone: Some(9),
        mark: Some("0x10/0xff".into()),
        label: Some("bulk,7".into()),
        events: Some("NEW,DESTROY".into()),
        icmp_type: Some(8),
        icmp_code: Some(0),
        icmp_id: Some(77),
        status: Some("ASSURED,SEEN_REPLY".into()),
        format: LineFormat::Conntrack(format::Extras { labels: true, extended: true }),
    };
    let request = asked.request("/v1/connections");
    assert_eq!(query(request.split_once('?').unwrap().1), Ok(asked));
    assert_eq!(ConnectionQuery::default().request("/v1/events"), "/v1/events");
    let labels = LineFormat::Conntrack(format::Extras { labels: true, extended: false });
    assert_eq!(query("format=conntrack,labels").unwrap().format, labels);
    for wrong in ["text", "json,labels", "conntrack,id", ""] {
        assert!(query(&format!("format={wrong}")).is_err(), "{wrong:?}");
    }
}

#[test]
fn values_become_a_filter() {
    let filter = query("proto=UDP&mark=0x10/0xff&family=ipv4&dport=53")
        .unwrap()
        .filter(&LabelNames::default())
        .unwrap();
    assert_eq!(filter.protocol, Some(17));
    assert_eq!(filter.mark, Some((0x10, 0xff)));
    assert_eq!(filter.family, Some(Family::V4));
    assert_eq!(filter.destination_port, Some(53));
    let names = LabelNames::default();
    let filter = query("proto=gre&srckey=0x10&dstkey=65536").unwrap().filter(&names).unwrap();
    assert_eq!((filter.source_key, filter.destination_key), (Some(16), Some(65536)));
    let filter = query("src_nat=any&dst_nat=192.0.2.0/24&reply_dport=7").unwrap();
    let filter = filter.filter(&names).unwrap();
    let prefix = "192.0.2.0/24".parse().unwrap();
    assert_eq!(filter.new_source, Some(New::Any));
    assert_eq!(filter.new_destination, Some(New::Address(prefix)));
    assert_eq!((filter.new_end, filter.reply_destination_port), (None, Some(7)));
    assert!(query("any_nat=yes").unwrap().filter(&names).is_err());
    let filter = query("status=assured,EXPECTED&icmp_type=8").unwrap().filter(&names).unwrap();
    let status = [filter.assured, filter.seen_reply, filter.expected];
    assert_eq!((status, filter.icmp_type), ([Some(true), None, Some(true)], Some(8)));
    assert!(query("srckey=ten").unwrap().filter(&names).is_err());
    assert_eq!(
        query("proto=132").unwrap().filter(&LabelNames::default()).unwrap().protocol,
        Some(132)
    );
    let mark = |text: &str| query(text).unwrap().filter(&LabelNames::default()).unwrap().mark;
    assert_eq!(mark("mark=7"), Some((7, u32::MAX)));
    assert_eq!(mark("mark=020/0X1f"), Some((16, 31)));
    assert_eq!(mark("mark=0/00"), Some((0, 0)));
    let state =
        query("state=time_wait&proto=6").unwrap().filter(&LabelNames::default()).unwrap().state;
    assert_eq!(state.as_deref(), Some("time_wait"), "in any case");
    assert_eq!(query("").unwrap().filter(&LabelNames::default()), Ok(Filter::default()));
    assert_eq!(
        query("events=new,DESTROY").unwrap().event_kinds(),
        Ok(vec![EventKind::New, EventKind::Destroy])
    );
    assert_eq!(query("").unwrap().event_kinds().unwrap().len(), 3);
}

#[test]
fn values_that_mean_nothing_are_named() {
    let refused = [
        "proto=unknown",
        "proto=300",
        "src=192.0.2.0/33",
        "dst=example.com",
        "family=ipx",
        "mark=0x",
        "mark=1/",
        "mark=08",
        "mark=%2B1",
        "mark=0%2B1",
        "reply_dst=x",
        "status=OFFLOAD",
        "state=NOPE",
        "state=NOPE&proto=tcp",
        "state=ESTABLISHED&proto=udp",
    ];
    let errors: Vec<String> = refused
        .iter()
        .map(|text| query(text).unwrap().filter(&LabelNames::default()).unwrap_err().to_string())
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
    insta::assert_snapshot!(query("events=BORN").unwrap().event_kinds().unwrap_err());
    assert!(query("sport=70000").unwrap_err().contains("sport"));
    assert!(query("port=7").is_err(), "unknown keys are refused");
}

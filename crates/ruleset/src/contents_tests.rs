use super::*;

const DOCUMENT: &str = r#"{"nftables": [
    {"table": {"family": "inet", "name": "t", "handle": 1}},
    {"set": {"family": "inet", "table": "t", "name": "s", "handle": 2, "type": "ipv4_addr",
        "flags": ["interval", "timeout"], "elem": [
            "192.0.2.1",
            {"prefix": {"addr": "198.51.100.0", "len": 24}},
            {"elem": {"val": "203.0.113.5", "timeout": 100, "expires": 100}}]}},
    {"map": {"family": "inet", "table": "t", "name": "m", "handle": 3, "type": "inet_service",
        "map": "mark", "elem": [[80, 1], [443, 2]]}}
]}"#;

fn contents(name: &str) -> (Document<Vec<u8>>, Contents) {
    let document = Document::read(DOCUMENT.as_bytes().to_vec()).unwrap();
    let contents = Contents::find(&document, ["inet", "t", name]).unwrap().unwrap();
    (document, contents)
}

fn texts(contents: &Contents) -> Vec<String> {
    contents.elements().map(element_text).collect()
}

fn wrong(problems: Vec<ElementProblem>) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn elements_are_added_and_deleted_all_or_none() {
    let (document, mut set) = contents("s");
    let age = Duration::from_secs(50);
    let new = [
        json!("192.0.2.1"),
        json!({"elem": {"val": "192.0.2.9", "timeout": 60, "comment": "seen"}}),
        json!({"range": ["192.0.2.20", "192.0.2.30"]}),
    ];
    assert_eq!(set.change(ElementChange::Add, &new, age), Ok(2));
    let expected = [
        "192.0.2.1",
        "198.51.100.0/24",
        "203.0.113.5 timeout 1m40s expires 1m40s",
        "192.0.2.9 timeout 1m expires 1m50s comment \"seen\"",
        "192.0.2.20-192.0.2.30",
    ];
    assert_eq!(texts(&set), expected);
    let bad = [json!("192.0.2.25"), json!("192.0.2.40"), json!("198.51.100.7")];
    let problems = set.change(ElementChange::Add, &bad, age).unwrap_err();
    assert_eq!(
        wrong(problems),
        [
            "192.0.2.25: overlaps with 192.0.2.20-192.0.2.30, which the set holds",
            "198.51.100.7: overlaps with 198.51.100.0/24, which the set holds"
        ]
    );
    let bad = [json!("192.0.2.1"), json!("192.0.2.2"), json!("nobody")];
    let problems = set.change(ElementChange::Delete, &bad, age).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(texts(&set), expected, "nothing has changed");
    // One that has ended is gone, and may come again.
    let late = Duration::from_secs(100);
    let deleted = [json!("192.0.2.1"), json!({"range": ["192.0.2.20", "192.0.2.30"]})];
    assert_eq!(set.change(ElementChange::Delete, &deleted, late), Ok(2));
    assert_eq!(texts(&set).len(), 2);
    assert_eq!(set.change(ElementChange::Add, &[json!("203.0.113.5")], late), Ok(1));

    let changed = set.put_into(&document).unwrap();
    let again = Contents::find(&changed, ["inet", "t", "s"]).unwrap().unwrap();
    assert_eq!(texts(&again), texts(&set));
    let map = Contents::find(&changed, ["inet", "t", "m"]).unwrap().unwrap();
    assert_eq!(map.elements().len(), 2);
    assert_eq!(set.change(ElementChange::Flush, &[], late), Ok(3));
    let empty = set.put_into(&changed).unwrap();
    assert!(!String::from_utf8(empty.text().clone()).unwrap().contains("198.51"));
}

#[test]
fn a_map_keeps_the_value_of_a_key() {
    let (_, mut map) = contents("m");
    let new = [json!([80, 1]), json!([8080, 1])];
    assert_eq!(map.change(ElementChange::Add, &new, Duration::ZERO), Ok(1));
    let other = map.change(ElementChange::Add, &[json!([443, 9])], Duration::ZERO).unwrap_err();
    assert_eq!(wrong(other), ["443 : 9: is in the map with another value: delete it first"]);
    assert_eq!(map.change(ElementChange::Delete, &[json!(443)], Duration::ZERO), Ok(1));
    assert_eq!(texts(&map), ["80 : 1", "8080 : 1"]);
}

#[test]
fn elements_are_kept_that_came_later_and_still_fit() {
    let (document, mut running) = contents("s");
    let (_, loaded) = contents("s");
    let across = json!({"range": ["203.0.113.60", "203.0.113.70"]});
    let added = [json!("192.0.2.50"), json!("203.0.113.77"), across];
    running.change(ElementChange::Add, &added, Duration::ZERO).unwrap();
    let new = DOCUMENT.replace("192.0.2.1\"", "203.0.113.64/26\"");
    let new = new.replace("\"203.0.113.64/26\"", r#"{"prefix":{"addr":"203.0.113.64","len":26}}"#);
    let new = Document::read(new.into_bytes()).unwrap();
    let mut next = Contents::find(&new, ["inet", "t", "s"]).unwrap().unwrap();
    let more = running.since(&loaded);
    let before = texts(&next);
    next.fields.insert("size".to_owned(), json!(3));
    let why = next.keep(&more).unwrap_err();
    assert_eq!(why, "its size is 3 now, and it would have 4 elements");
    next.fields.remove("size");
    let flags = next.fields.insert("flags".to_owned(), json!("interval")).unwrap();
    let why = next.keep(&more).unwrap_err();
    assert_eq!(why, "it had the flag `timeout`, and has it no more");
    assert_eq!(texts(&next), before);
    next.fields.insert("flags".to_owned(), flags);
    assert_eq!(next.keep(&more), Ok(Kept { added: 1, overlapping: 1 }));
    let last = texts(&next).pop();
    assert_eq!(last.as_deref(), Some("192.0.2.50"), "another is in a range of the new set");
    let map = Contents::find(&document, ["inet", "t", "m"]).unwrap().unwrap();
    let why = next.keep(&map).unwrap_err();
    assert_eq!(why, "its type is `ipv4_addr` now and was `inet_service : mark`");
}

/// A set of ports that joins its ranges.
fn merging(elements: &Value) -> Contents {
    let document = json!({"nftables": [{"set": {"family": "inet", "table": "t", "name": "p",
        "type": "inet_service", "flags": ["interval"], "auto-merge": true, "elem": elements}}]});
    let document = Document::read(document.to_string().into_bytes()).unwrap();
    Contents::find(&document, ["inet", "t", "p"]).unwrap().unwrap()
}

#[test]
fn ranges_that_touch_become_one_where_the_set_wants_it() {
    let mut set = merging(&json!([{"range": [10, 20]}, 30, 40]));
    let add =
        |set: &mut Contents, new: Value| set.change(ElementChange::Add, &[new], Duration::ZERO);
    assert_eq!(add(&mut set, json!(15)), Ok(0), "it is there");
    assert_eq!(add(&mut set, json!({"range": [18, 22]})), Ok(1));
    assert_eq!(add(&mut set, json!(31)), Ok(1));
    assert_eq!(add(&mut set, json!({"elem": {"val": 9, "comment": "x"}})), Ok(1));
    assert_eq!(texts(&set), ["9-22 comment \"x\"", "30-31", "40"]);
    assert_eq!(add(&mut set, json!({"range": [23, 39]})), Ok(1));
    assert_eq!(texts(&set), ["9-40"], "the properties are those of the new one");
    let cut = [json!({"range": [12, 13]}), json!(9), json!(40)];
    assert_eq!(set.change(ElementChange::Delete, &cut, Duration::ZERO), Ok(3));
    assert_eq!(texts(&set), ["10-11", "14-39"]);
    let bad = [json!(11), json!({"range": [11, 14]}), json!(50)];
    let problems = set.change(ElementChange::Delete, &bad, Duration::ZERO).unwrap_err();
    assert_eq!(
        wrong(problems),
        ["11-14: is not in the set, or not all of it", "50: is not in the set, or not all of it"]
    );
    assert_eq!(texts(&set), ["10-11", "14-39"], "nothing has changed");
}

#[test]
fn kept_elements_become_one_with_ranges_that_they_touch() {
    let timed = |val: Value| json!({"elem": {"val": val, "timeout": 60, "expires": 50}});
    let keep = |file: Value, loaded: Value, running: Value| {
        let mut set = merging(&file);
        let more = merging(&running).since(&merging(&loaded));
        let kept = set.keep(&more);
        (kept.map(|it| (it.added, it.overlapping)), texts(&set))
    };
    let range = |low: u16, high: u16| json!({"range": [low, high]});
    // 21 was added to 10-20 and made 10-21.
    let (kept, set) = keep(json!([range(10, 20)]), json!([range(10, 20)]), json!([range(10, 21)]));
    assert_eq!((kept, set), (Ok((1, 0)), vec!["10-21".to_owned()]));
    let (kept, set) =
        keep(json!([range(10, 20), 30]), json!([]), json!([range(15, 29), range(40, 41)]));
    assert_eq!((kept, set), (Ok((2, 0)), vec!["10-30".to_owned(), "40-41".to_owned()]));
    let (kept, set) = keep(json!([range(10, 20)]), json!([]), json!([range(12, 13)]));
    assert_eq!((kept, set), (Ok((0, 0)), vec!["10-20".to_owned()]), "it is there");
    // A range of the file does not end because a part of it was banned for some time.
    let file = json!([range(10, 20), 25]);
    let (kept, set) = keep(file, json!([]), json!([timed(range(5, 30)), timed(json!(40))]));
    let ends = |text: &str| format!("{text} timeout 1m expires 50s");
    let expected = [
        ends("5-9"),
        "10-20".to_owned(),
        ends("21-24"),
        "25".to_owned(),
        ends("26-30"),
        ends("40"),
    ];
    assert_eq!((kept, set), (Ok((2, 0)), expected.to_vec()));
    let (kept, set) = keep(json!([timed(json!(7))]), json!([]), json!([8, 6]));
    assert_eq!((kept, set), (Ok((2, 0)), vec!["6".to_owned(), ends("7"), "8".to_owned()]));
}

#[test]
fn joined_addresses_are_written_as_prefixes_where_they_are_one() {
    let document = json!({"nftables": [{"set": {"family": "ip6", "table": "t", "name": "n",
        "type": "ipv6_addr", "flags": ["interval"], "auto-merge": true,
        "elem": [{"prefix": {"addr": "2001:db8::", "len": 33}}]}}]});
    let document = Document::read(document.to_string().into_bytes()).unwrap();
    let mut set = Contents::find(&document, ["ip6", "t", "n"]).unwrap().unwrap();
    let other = json!({"prefix": {"addr": "2001:db8:8000::", "len": 33}});
    assert_eq!(set.change(ElementChange::Add, &[other], Duration::ZERO), Ok(1));
    assert_eq!(texts(&set), ["2001:db8::/32"]);
    let all = json!({"range": ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]});
    assert_eq!(set.change(ElementChange::Add, std::slice::from_ref(&all), Duration::ZERO), Ok(1));
    assert_eq!(set.change(ElementChange::Add, &[json!("::7")], Duration::ZERO), Ok(0));
    let last = json!("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    assert_eq!(
        set.change(ElementChange::Delete, std::slice::from_ref(&last), Duration::ZERO),
        Ok(1)
    );
    assert_eq!(set.change(ElementChange::Add, &[last], Duration::ZERO), Ok(1));
    assert_eq!(texts(&set), ["::/0"]);
    assert_eq!(set.change(ElementChange::Delete, &[all], Duration::ZERO), Ok(1));
    assert!(texts(&set).is_empty());
}

proptest::proptest! {
    /// The set holds what a list of all its values would hold, and its ranges are apart.
    #[test]
    fn a_set_that_joins_ranges_holds_what_was_added_and_not_deleted(
        changes in proptest::collection::vec((proptest::bool::ANY, 0..40_u16, 0..9_u16), 1..40)
    ) {
        let mut set = merging(&json!([]));
        let mut model = std::collections::BTreeSet::new();
        for (is_added, low, more) in changes {
            let (high, whole) = (low + more, low..=low + more);
            let value = if more == 0 { json!(low) } else { json!({"range": [low, high]}) };
            if is_added {
                set.change(ElementChange::Add, &[value], Duration::ZERO).unwrap();
                model.extend(whole);
            } else {
                let done = set.change(ElementChange::Delete, &[value], Duration::ZERO);
                let is_there = whole.clone().all(|value| model.contains(&value));
                proptest::prop_assert_eq!(done.is_ok(), is_there);
                if is_there {
                    model.retain(|value| !whole.contains(value));
                }
            }
            let keys: Vec<Interval> = set.elements.iter().map(|element| element.key[0]).collect();
            proptest::prop_assert!(keys.windows(2).all(|two| two[0].high + 1 < two[1].low));
            let held: Vec<u16> =
                keys.iter().flat_map(|key| key.low as u16..=key.high as u16).collect();
            proptest::prop_assert!(held.iter().eq(&model));
            // The document says the same.
            for element in &set.elements {
                let read = key_of(&element.value, false, &[Kind::Port]).unwrap();
                proptest::prop_assert_eq!(&read, &element.key);
            }
        }
    }
}

#[test]
fn the_element_for_all_others_overlaps_with_none() {
    for fields in
        [json!({"flags": ["interval"]}), json!({"flags": ["interval"], "auto-merge": true})]
    {
        let mut object = json!({"type": "ipv4_addr", "elem": ["192.0.2.1", "*"]});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut set = Contents::of(0, "set".to_owned(), object).unwrap();
        let [all, none] = [json!("*"), json!("198.51.100.1")];
        assert_eq!(
            set.change(ElementChange::Add, std::slice::from_ref(&all), Duration::ZERO),
            Ok(0)
        );
        assert_eq!(
            set.change(ElementChange::Add, std::slice::from_ref(&none), Duration::ZERO),
            Ok(1)
        );
        assert_eq!(
            set.change(ElementChange::Delete, std::slice::from_ref(&all), Duration::ZERO),
            Ok(1)
        );
        assert_eq!(texts(&set), ["192.0.2.1", "198.51.100.1"]);
        set.change(ElementChange::Delete, std::slice::from_ref(&all), Duration::ZERO).unwrap_err();
        assert_eq!(set.change(ElementChange::Add, &[all], Duration::ZERO), Ok(1));
        assert_eq!(texts(&set), ["192.0.2.1", "198.51.100.1", "*"]);
    }
}

#[test]
fn a_set_takes_no_more_elements_than_its_size() {
    let set = json!({ "family": "ip", "table": "t", "name": "few", "type": "ipv4_addr", "size": 2,
                      "elem": ["192.0.2.1"] });
    let mut few = Contents::of(0, "set".to_owned(), set).unwrap();
    let add = |few: &mut Contents, elements: &[&str]| {
        let elements: Vec<Value> = elements.iter().map(|it| json!(it)).collect();
        few.change(ElementChange::Add, &elements, Duration::ZERO)
    };
    assert_eq!(
        wrong(add(&mut few, &["192.0.2.2", "192.0.2.3"]).unwrap_err()),
        [
            "192.0.2.3: does not fit: the set's size is 2, and it would have 3 elements; delete some, or \
          load the set with a larger size"
        ]
    );
    assert_eq!(texts(&few), ["192.0.2.1"]);
    assert_eq!(add(&mut few, &["192.0.2.2", "192.0.2.1"]), Ok(1));
}

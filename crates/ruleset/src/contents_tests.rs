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
    let added = [json!("192.0.2.50"), json!("203.0.113.77")];
    running.change(ElementChange::Add, &added, Duration::ZERO).unwrap();
    let new = DOCUMENT.replace("192.0.2.1\"", "203.0.113.64/26\"");
    let new = new.replace("\"203.0.113.64/26\"", r#"{"prefix":{"addr":"203.0.113.64","len":26}}"#);
    let new = Document::read(new.into_bytes()).unwrap();
    let mut next = Contents::find(&new, ["inet", "t", "s"]).unwrap().unwrap();
    assert_eq!(next.keep(&running, Some(&loaded)), 1);
    let last = texts(&next).pop();
    assert_eq!(last.as_deref(), Some("192.0.2.50"), "the other is in a range of the new set");
    let map = Contents::find(&document, ["inet", "t", "m"]).unwrap().unwrap();
    assert_eq!(next.keep(&map, None), 0, "it is of another type");
}

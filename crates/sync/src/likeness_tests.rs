use super::*;
use crate::keys::PreSharedKey;

fn likeness() -> Likeness {
    Likeness {
        hash_kind: "sip".into(),
        hash_secret: HashSecret::new([7; 16]),
        buckets: 256,
        translating_links: ["wan0".to_owned()].into(),
        fragment_mode: "reassemble".into(),
        tunnel_mode: "inside".into(),
        zones: b"lan0 1".to_vec(),
        rules: b"accept".to_vec(),
    }
}

fn key(salt: &[u8]) -> Key {
    PreSharedKey::new(b"sixteen bytes ..").unwrap().derive(salt, "likeness")
}

/// Each aspect with a likeness that differs in it alone.
fn differing() -> Vec<(Aspect, Likeness)> {
    let changed = |aspect| {
        let mut it = likeness();
        match aspect {
            Aspect::HashKind => it.hash_kind = "toeplitz".into(),
            Aspect::HashSecret => it.hash_secret = HashSecret::new([8; 16]),
            Aspect::Buckets => it.buckets = 512,
            Aspect::TranslatingLinks => _ = it.translating_links.insert("wan1".into()),
            Aspect::FragmentMode => it.fragment_mode = "pass".into(),
            Aspect::TunnelMode => it.tunnel_mode = "outside".into(),
            Aspect::Zones => it.zones.clear(),
            Aspect::Rules => it.rules.push(b'!'),
        }
        (aspect, it)
    };
    Aspect::ALL.map(changed).to_vec()
}

#[test]
fn each_aspect_is_compared_by_name() {
    let here = likeness().prove(&key(b""));
    assert_eq!(here.compare(&here), []);
    for (aspect, other) in differing() {
        let found = here.compare(&other.prove(&key(b"")));
        let [Mismatch { aspect: named, .. }] = found[..] else { panic!("{found:?}") };
        assert_eq!(named, aspect);
    }
}

#[test]
fn differences_are_shown_as_text_where_they_are_no_secret() {
    let here = likeness().prove(&key(b""));
    let shown = differing().into_iter().flat_map(|(_, it)| here.compare(&it.prove(&key(b""))));
    let shown = shown.map(|Mismatch { aspect, here, there }| {
        let what = aspect.consequence();
        format!("{}: {here:?} here, {there:?} there: {what:?}\n", aspect.name())
    });
    insta::assert_snapshot!(shown.collect::<String>(), @r#"
    hash kind: "sip" here, "toeplitz" there: KeepsApart
    hash secret: "" here, "" there: KeepsApart
    buckets: "256" here, "512" there: KeepsApart
    links that translate: "wan0" here, "wan0, wan1" there: KeepsApart
    fragment mode: "reassemble" here, "pass" there: KeepsApart
    tunnel mode: "inside" here, "outside" there: KeepsApart
    zones: "" here, "" there: Warns
    rules: "" here, "" there: Warns
    "#);
}

#[test]
fn long_texts_that_differ_at_their_end_are_compared_whole() {
    let with = |last: &str| {
        let links = (0..20).map(|at| format!("interface{at:03}"));
        Likeness { translating_links: links.chain([last.to_owned()]).collect(), ..likeness() }
    };
    let (one, other) = (with("zz0").prove(&key(b"")), with("zz1").prove(&key(b"")));
    assert_eq!(one.compare(&other).len(), 1);
}

#[test]
fn a_proof_shows_no_secret_and_depends_on_the_key() {
    let mut bytes = Vec::new();
    likeness().prove(&key(b"")).encode(&mut bytes);
    assert!(!bytes.windows(16).any(|window| window == [7; 16]));
    assert_eq!(likeness().prove(&key(b"")).compare(&likeness().prove(&key(b"x"))).len(), 8);
}

#[test]
fn text_of_a_peer_is_printable() {
    let mut bytes = Vec::new();
    likeness().prove(&key(b"")).encode(&mut bytes);
    assert_eq!(&bytes[17..20], b"sip");
    assert!(Proof::decode(&mut Reader(&bytes)).is_some());
    bytes[17] = 0x1b;
    assert!(Proof::decode(&mut Reader(&bytes)).is_none());
}

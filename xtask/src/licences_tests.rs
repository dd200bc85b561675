use super::*;

#[test]
fn permissive_licences_are_accepted() {
    for license in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-3-Clause AND ISC",
        "GPL-3.0-only OR Zlib",
    ] {
        assert_eq!(check_expression(Some(license)), Ok(()), "{license}");
    }
}

#[test]
fn other_licences_are_not() {
    for license in [
        "GPL-2.0-or-later",
        "MIT AND LGPL-2.1-only",
        "MPL-2.0",
        "EUPL-1.2",
        "CC0-1.0",
        "Apache-2.0 WITH Classpath-exception-2.0",
        "LicenseRef-ours",
        "free for all",
        "",
    ] {
        assert!(check_expression(Some(license)).is_err(), "{license}");
    }
    assert_eq!(check_expression(None), Err("names no licence".to_owned()));
}

/// The workspace `ours` uses `middle`, which uses `bad`.
fn metadata(license: &str) -> Metadata {
    let package = |name: &str, license: &str| {
        format!(
            r#"{{"name":"{name}","version":"1.0.0","id":"{name}","license":{license},
                 "manifest_path":"/w/{name}/Cargo.toml","dependencies":[],"targets":[],
                 "features":{{}}}}"#
        )
    };
    let node = |name: &str, uses: &str| {
        format!(r#"{{"id":"{name}","dependencies":[{uses}],"deps":[],"features":[]}}"#)
    };
    let json = format!(
        r#"{{"packages":[{},{},{}],"workspace_members":["ours"],"version":1,
             "resolve":{{"nodes":[{},{},{}],"root":null}},
             "target_directory":"/w/target","workspace_root":"/w"}}"#,
        package("ours", "\"MIT\""),
        package("middle", "\"MIT\""),
        package("bad", license),
        node("ours", "\"middle\""),
        node("middle", "\"bad\""),
        node("bad", ""),
    );
    cargo_metadata::MetadataCommand::parse(json).unwrap()
}

#[test]
fn the_way_in_is_named() {
    assert_eq!(check(&metadata("\"MIT\"")).unwrap(), []);
    let [problem] = &check(&metadata("\"GPL-3.0-only\"")).unwrap()[..] else { panic!() };
    assert_eq!(problem.file, "ours/Cargo.toml");
    assert_eq!(problem.what, "bad 1.0.0 has a licence that is not accepted: GPL-3.0-only");
    assert!(problem.remedy.starts_with("pulled in by ours -> middle -> bad;"), "{problem}");
    let [problem] = &check(&metadata("null")).unwrap()[..] else { panic!() };
    assert_eq!(problem.what, "bad 1.0.0 names no licence");
}

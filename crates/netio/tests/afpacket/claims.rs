//! Interfaces that a gateway has claimed, under all their names.

use netio::afpacket::Claim;
use netio::{PortError, link_named, link_state};

use crate::machine::{Machine, ip};
use crate::namespace::isolated;
use crate::{cable, drop_capabilities};

fn claim(name: &str) -> Result<Claim, PortError> {
    Claim::take(&link_named(name).unwrap().unwrap())
}

/// The name by which a refusal calls the interface.
fn refused(name: &str) -> String {
    match claim(name) {
        Err(PortError::Claimed { interface }) => interface,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_link_is_one_by_any_name_and_stays_it() {
    isolated("claims::a_link_is_one_by_any_name_and_stays_it", || {
        cable();
        ip("link property add dev here altname also-here");
        let here = link_named("here").unwrap().unwrap();
        assert_eq!(link_named("also-here").unwrap(), Some(here.clone()));
        let first = claim("also-here").unwrap();
        assert_eq!((refused("here"), refused("also-here")), ("here".into(), "here".into()));
        ip("link set here name moved");
        assert_eq!((refused("moved"), refused("also-here")), ("moved".into(), "moved".into()));
        assert_eq!(first.link().unwrap().unwrap().name, "moved");
        assert_eq!(link_state(here.index).unwrap().unwrap().name, "moved");
        // The name is free, and the link is not.
        ip("link set there name here");
        let second = claim("here").unwrap();
        drop(first);
        let first = claim("moved").unwrap();
        ip("link set moved down");
        assert_eq!(refused("moved"), "moved");
        assert!(first.link().unwrap().is_some_and(|link| !link.up));
        drop(second);
        drop(claim("here").unwrap());
        assert_eq!(link_named("there").unwrap(), None);
    });
}

#[test]
fn a_claim_ends_with_its_link() {
    isolated("claims::a_claim_ends_with_its_link", || {
        for index in [70, 71] {
            ip(&format!("link add here index {index} type veth peer name there"));
            let claimed = claim("here").unwrap();
            ip("link delete here");
            assert_eq!(claimed.link().unwrap(), None);
            ip(&format!("link add here index {index} type veth peer name there"));
            assert_eq!(claimed.link().unwrap(), None, "it has the number of another");
            let other = claim("here").unwrap();
            // An interface that moves to another machine is gone from here.
            let machine = Machine::new();
            ip(&format!("link set here netns {}", machine.id));
            assert_eq!(other.link().unwrap(), None);
            machine.run(|| drop(claim("here").unwrap()));
            machine.run(|| ip("link delete here"));
        }
    });
}

#[test]
fn a_link_that_is_claimed_is_looked_at_without_a_descriptor() {
    isolated("claims::a_link_that_is_claimed_is_looked_at_without_a_descriptor", || {
        let own = claim("lo").unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel reads one `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        link_named("lo").unwrap_err();
        assert_eq!(own.link().unwrap().unwrap().name, "lo");
    });
}

#[test]
fn nobody_claims_without_rights_and_each_namespace_has_its_own() {
    isolated("claims::nobody_claims_without_rights_and_each_namespace_has_its_own", || {
        let _own = claim("lo").unwrap();
        Machine::new().run(|| drop(claim("lo").unwrap()));
        drop_capabilities();
        let lo = link_named("lo").unwrap().unwrap();
        assert!(matches!(Claim::take(&lo), Err(PortError::NoPermission { .. })));
    });
}

use std::io;

use engine::LinkId;
use ruleset::Forwarded;
use steer::AddressSet;

use super::*;

/// A kernel that records its orders. It refuses those with this port.
#[derive(Clone, Debug, Default)]
struct Kernel(Arc<Mutex<(Vec<HostFilter>, Option<u16>)>>);

impl FilterTable for Kernel {
    fn replace(&mut self, filter: &HostFilter) -> Result<(), Error> {
        let (applied, refused) = &mut *lock(&self.0);
        let refuses = refused.is_some_and(|number| filter.forwarded.contains(&port(number)));
        if refuses {
            return Err(refusal());
        }
        applied.push(filter.clone());
        Ok(())
    }
}

impl Kernel {
    fn refuse(&self, port: Option<u16>) {
        lock(&self.0).1 = port;
    }

    /// True if it drops packets for this port, and no others.
    fn drops(&self, number: u16) -> bool {
        lock(&self.0).0.last().is_some_and(|filter| filter.forwarded == [port(number)])
    }

    fn changes(&self) -> usize {
        lock(&self.0).0.len()
    }
}

fn refusal() -> Error {
    Error::Refused(io::Error::other("refused").into())
}

fn port(port: u16) -> Forwarded {
    Forwarded { ports: Some((port, port)), ..Forwarded::default() }
}

fn filter(number: u16) -> Arc<HostFilter> {
    Arc::new(HostFilter {
        interfaces: lan0(),
        forwarded: vec![port(number)],
        ..HostFilter::default()
    })
}

fn lan0() -> Vec<Interface> {
    vec![Interface::test(Some(2), "lan0")]
}

/// Reports that packets for a port are translated.
fn from_host<T>(number: u16, say: impl FnOnce(&FromHost<'_>) -> T) -> T {
    let (translated, forwarded) = (AddressSet::default(), [port(number)]);
    say(&FromHost { translated: &translated, expects: false, forwarded: &forwarded, left: &[] })
}

#[test]
fn a_failed_change_leaves_the_filter_as_it_was_and_is_tried_again_later() {
    let kernel = Kernel::default();
    let mut actual = Actual::new(Box::new(kernel.clone()), filter(22)).unwrap();
    assert!(kernel.drops(22));
    actual.reconcile(&filter(80), Instant::now());
    assert!(kernel.drops(80) && actual.trouble().is_none());
    kernel.refuse(Some(443));
    assert!(actual.change(&filter(443)).is_err());
    actual.reconcile(&filter(443), Instant::now());
    assert!(kernel.drops(80));
    assert!(
        actual.trouble().is_some_and(|text| text.ends_with("refused; the gateway tries again"))
    );
    kernel.refuse(None);
    actual.reconcile(&filter(443), Instant::now());
    assert!(kernel.drops(80), "it is not time yet");
    actual.reconcile(&filter(443), Instant::now() + FIRST_PAUSE);
    assert!(kernel.drops(443) && actual.trouble().is_none());
    // A state that is in force already is not set again.
    let before = kernel.changes();
    actual.reconcile(&filter(443), Instant::now());
    assert_eq!(kernel.changes(), before);
}

#[test]
fn pauses_double_and_have_an_end() {
    let mut failure: Option<Failure> = None;
    let pauses = [(); 8].map(|()| {
        let next = Failure::new(&filter(80), &refusal(), failure.as_ref());
        failure.insert(next).pause.as_secs()
    });
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    let other = Failure::new(&filter(443), &refusal(), failure.as_ref());
    assert_eq!(other.pause, FIRST_PAUSE);
}

#[test]
fn nobody_waits_for_what_holds_already() {
    let kernel = Kernel::default();
    let guard = Guard::with(kernel.clone(), lan0()).unwrap();
    let handle = guard.handle();
    from_host(80, |it| handle.keep_out(it)).unwrap();
    assert!(kernel.drops(80));
    let hangs = lock(&kernel.0);
    for _ in 0..3 {
        from_host(443, |it| handle.follow(it));
    }
    assert!(handle.trouble().is_none());
    drop(hangs);
    handle.wait_until_applied();
    assert!(kernel.drops(443) && handle.trouble().is_none());
    // A repeated request changes nothing.
    let before = kernel.changes();
    from_host(443, |it| handle.follow(it));
    handle.wait_until_applied();
    assert_eq!(kernel.changes(), before);
    drop(guard);
}

#[test]
fn the_kernel_is_told_which_interfaces_there_are_now() {
    let kernel = Kernel::default();
    let guard = Guard::with(kernel.clone(), lan0()).unwrap();
    let handle = guard.handle();
    let interfaces = || lock(&kernel.0).0.last().map(|filter| filter.interfaces.clone()).unwrap();
    let follow = |link: Option<u32>, name: &str| {
        handle.follow_ports(&[PortLink { link: link.map(LinkId), name: name.into() }]);
        handle.wait_until_applied();
        let [it] = &interfaces()[..] else { panic!("one interface") };
        (it.index(), it.names().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(interfaces(), lan0());
    assert_eq!(follow(Some(2), "lan0"), (Some(2), "lan0".into()));
    assert_eq!(kernel.changes(), 1, "nothing has changed");
    assert_eq!(follow(Some(2), "lan9"), (Some(2), "lan9".into()));
    assert_eq!(follow(None, "lan9"), (None, "lan9 lan0".into()));
    assert_eq!(follow(Some(5), "lan0"), (Some(5), "lan0".into()));
    // Rules concern these interfaces, whichever function reports them.
    let before = interfaces();
    from_host(80, |it| handle.keep_out(it)).unwrap();
    assert!(kernel.drops(80));
    from_host(443, |it| handle.follow(it));
    handle.wait_until_applied();
    assert!(kernel.drops(443));
    assert_eq!((interfaces(), kernel.changes()), (before, 6));
    drop(guard);
}

#[test]
fn a_refused_request_changes_nothing_and_a_failed_change_is_reported() {
    let kernel = Kernel::default();
    let guard = Guard::with(kernel.clone(), lan0()).unwrap();
    let handle = guard.handle();
    from_host(80, |it| handle.keep_out(it)).unwrap();
    kernel.refuse(Some(443));
    from_host(443, |it| handle.keep_out(it)).unwrap_err();
    assert!(kernel.drops(80) && handle.trouble().is_none());
    from_host(443, |it| handle.follow(it));
    handle.wait_until_applied();
    assert!(kernel.drops(80));
    assert!(handle.trouble().is_some_and(|text| text.contains("refused; the gateway tries again")));
    // A later request that the kernel accepts includes the refused one as a former one.
    kernel.refuse(None);
    from_host(22, |it| handle.keep_out(it)).unwrap();
    assert!(kernel.drops(22) && handle.trouble().is_none());
    let former = lock(&kernel.0).0.last().map(|filter| filter.formerly_forwarded.clone());
    assert!(former.is_some_and(|former| former.contains(&port(443))));
    drop(guard);
}

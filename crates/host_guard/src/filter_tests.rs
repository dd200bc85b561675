use super::*;

fn port(port: u16) -> Forwarded {
    Forwarded { protocol: Some(6), ports: Some((port, port)), ..Forwarded::default() }
}

fn filter(ports: impl IntoIterator<Item = u16>) -> HostFilter {
    HostFilter { forwarded: ports.into_iter().map(port).collect(), ..HostFilter::default() }
}

#[test]
fn former_forwards_are_remembered_until_they_return_or_the_room_ends() {
    let first = filter([80, 443]);
    let second = filter([443]).after(&first);
    assert_eq!(
        (&second.formerly_forwarded[..], &second.forwarded[..]),
        (&[port(80)][..], &[port(443)][..])
    );
    let third = filter([]).after(&second);
    assert_eq!(third.formerly_forwarded, [port(80), port(443)]);
    let fourth = filter([80]).after(&third);
    assert_eq!(fourth.formerly_forwarded, [port(443)]);
    let many = filter([]).after(&filter(1..=1000));
    let latest: Vec<_> = (1001 - MAX_FORMER as u16..=1000).map(port).collect();
    assert_eq!(many.formerly_forwarded, latest);
    // Repeated packets change nothing, so the kernel is not asked.
    assert_eq!(filter([443]).after(&second), second);
}

use super::*;

/// Anybody may send to the socket for news, and only the kernel has port 0.
#[test]
fn news_that_are_not_the_kernels_list_nothing() {
    let mut stacked = Stacked::new().unwrap();
    // A socket in no group, so that the kernel has no news for it.
    stacked.news = Socket::new(NETLINK_ROUTE).unwrap();
    let address = stacked.news.bind_auto().unwrap();
    stacked.news.set_non_blocking(true).unwrap();
    stacked.refresh().unwrap();
    let mark = (LinkId(u32::MAX), LinkId(u32::MAX));
    stacked.below.extend([mark]);
    let mut other = Socket::new(NETLINK_ROUTE).unwrap();
    other.bind_auto().unwrap();
    other.send_to(&[0; 16], &address, 0).unwrap();
    stacked.refresh().unwrap();
    assert_eq!(stacked.below.remove(&mark.0), Some(mark.1), "the list is the same");
}

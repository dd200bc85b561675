use super::*;

#[test]
fn the_kernels_check_of_an_interface_that_is_gone_is_forgotten() {
    let mut keeper = RouteKeeper::new(vec![ReversePath::Auto]).unwrap();
    let (&loopback, _) = keeper.mirror.picture().links.first_key_value().unwrap();
    keeper.port_links.are(vec![Some(loopback)]);
    keeper.routing();
    assert_eq!(keeper.kernels.keys().copied().collect::<Vec<_>>(), [loopback]);
    keeper.port_links.are(vec![None]);
    keeper.routing();
    assert_eq!(keeper.kernels, BTreeMap::new());
}

#[test]
fn log_lines_about_routes_that_are_gone_are_forgotten_some_time() {
    let mut keeper = RouteKeeper::new(Vec::new()).unwrap();
    for number in 0..10 * MOST_SAID {
        keeper.said.insert(format!("route to 198.51.100.{number}"));
        keeper.routing();
    }
    assert!(keeper.said.len() <= MOST_SAID, "{}", keeper.said.len());
}

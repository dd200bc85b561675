//! Asks the kernel for the route of a packet, as `ip route get` does.

use std::net::IpAddr;

use fib::Query;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub struct Kernel(Socket);

impl Kernel {
    pub fn open() -> Self {
        let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
        socket.bind_auto().unwrap();
        socket.connect(&SocketAddr::new(0, 0)).unwrap();
        Self(socket)
    }

    pub fn way(&mut self, query: &Query) -> String {
        let mut request = RouteMessage::default();
        let v6 = query.destination.is_ipv6();
        request.header.address_family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let length = if v6 { 128 } else { 32 };
        request.header.destination_prefix_length = length;
        request.header.source_prefix_length = length;
        request.header.tos = query.traffic_class;
        let (source_port, destination_port) = query.ports.unwrap();
        request.attributes = vec![
            RouteAttribute::Destination(of(query.destination)),
            RouteAttribute::Source(of(query.source)),
            RouteAttribute::Iif(query.link.0),
            RouteAttribute::Mark(query.mark),
            RouteAttribute::IpProto(query.protocol),
            RouteAttribute::Sport(source_port),
            RouteAttribute::Dport(destination_port),
        ];
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let payload = NetlinkPayload::InnerMessage(RouteNetlinkMessage::GetRoute(request));
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).unwrap();
        let (bytes, _) = self.0.recv_from_full().unwrap();
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).unwrap();
        match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => said(&route),
            NetlinkPayload::Error(error) => by_errno(error.to_io().raw_os_error().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn of(address: IpAddr) -> RouteAddress {
    address.into()
}

fn said(route: &RouteMessage) -> String {
    let (mut link, mut gateway, mut mtu) = (0, None, None);
    let mut errno = 0;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => link = *index,
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => {
                gateway = Some(IpAddr::V4(*address))
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => {
                gateway = Some(IpAddr::V6(*address))
            }
            RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = Some(IpAddr::V6(*address)),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::CacheInfo(info) => errno = -(info.error as i32),
            _ => {}
        }
    }
    match route.header.kind {
        RouteType::Unicast => format!("link {link} gateway {gateway:?} mtu {mtu:?}"),
        RouteType::Local => "Local".to_owned(),
        RouteType::Broadcast => "Broadcast".to_owned(),
        RouteType::BlackHole => "Blackhole".to_owned(),
        RouteType::Prohibit => "Prohibited".to_owned(),
        RouteType::Unreachable => by_errno(errno),
        kind => format!("{kind:?}"),
    }
}

fn by_errno(errno: i32) -> String {
    const EACCES: i32 = 13;
    const EINVAL: i32 = 22;
    const ENETUNREACH: i32 = 101;
    const EHOSTUNREACH: i32 = 113;
    match errno.abs() {
        EACCES => "Prohibited".to_owned(),
        EINVAL => "Blackhole".to_owned(),
        ENETUNREACH | EHOSTUNREACH => "unreachable".to_owned(),
        other => format!("errno {other}"),
    }
}

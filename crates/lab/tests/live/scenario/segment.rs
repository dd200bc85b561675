//! One subnet of three hosts, with a bridge whose ports are the links to them.

use lab::{Namespace, Result, Stateway, StatewaySpec};

use super::start_in;

/// The subnet. Its bridge is still to be started.
pub struct Segment {
    pub gateway: Namespace,
    /// They have 192.0.2.1 to 192.0.2.3 and the link addresses 02:00:00:00:00:01 to 03.
    pub hosts: [Namespace; 3],
    ports: [&'static str; 3],
}

impl Segment {
    /// The ports of the bridge have these names, in the order of the hosts.
    pub fn new(ports: [&'static str; 3]) -> Result<Self> {
        let gateway = Namespace::new("gateway")?;
        let host = |number: usize| -> Result<Namespace> {
            let host = Namespace::new(["client", "server", "attacker"][number])?;
            gateway.join(ports[number], &host, "eth0")?;
            let last = number + 1;
            host.ip(&[
                &format!("link set eth0 address 02:00:00:00:00:0{last}"),
                &format!("addr add 192.0.2.{last}/24 dev eth0"),
            ])?;
            Ok(host)
        };
        let hosts = [host(0)?, host(1)?, host(2)?];
        Ok(Self { gateway, hosts, ports })
    }

    /// Starts Stateway as the bridge.
    pub fn stateway(&self, spec: StatewaySpec) -> Result<Stateway> {
        let interfaces = self.ports.map(str::to_owned).to_vec();
        start_in(&self.gateway, &StatewaySpec { interfaces, ..spec })
    }
}

//! One gateway for each interface.
//!
//! Two gateways on one interface would each forward every packet. So a gateway
//! claims its interfaces by names in the abstract namespace of sockets (unix(7)).
//! These belong to a network namespace, as interfaces do, need neither a file nor
//! a permission, and go with the process, however it ends.

use std::io::{Error, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::Context;

use crate::config::{Configuration, Problems};

/// The interfaces of this gateway are its own as long as this exists.
#[derive(Debug)]
pub struct Claims {
    _names: Vec<UnixDatagram>,
}

impl Claims {
    /// Claims all interfaces.
    ///
    /// # Errors
    /// [`Problems`] names those that another gateway has.
    pub fn take(config: &Configuration) -> anyhow::Result<Self> {
        let (mut names, mut problems) = (Vec::new(), Vec::new());
        for interface in &config.interfaces {
            let name = &interface.name;
            match claim(name) {
                Ok(claimed) => names.push(claimed),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    let what = format!(
                        "another gateway is running on {name}, and every packet would be \
                         forwarded twice; stop that one, or choose another interface"
                    );
                    problems.push(config.problem(interface.name_line, "interface.name", what));
                }
                Err(error) => return Err(error).context(format!("can not claim {name}")),
            }
        }
        if problems.is_empty() {
            Ok(Self { _names: names })
        } else {
            Err(Problems(problems).into())
        }
    }
}

fn claim(interface: &str) -> Result<UnixDatagram, Error> {
    let address = SocketAddr::from_abstract_name(format!("stateway/interface/{interface}"))?;
    UnixDatagram::bind_addr(&address)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use std::time::Duration;

    use steer::CpuSet;

    use super::*;

    /// Names of this process, because another may run the same test.
    fn between(ends: [&str; 2]) -> Configuration {
        let id = std::process::id();
        let text = ends.map(|end| format!("[[interface]]\nname = \"{id}-{end}\"\n")).concat();
        Configuration::parse(Path::new("gateway.toml"), &text, &CpuSet::first(1)).unwrap()
    }

    #[test]
    fn an_interface_has_one_gateway_and_is_free_when_it_ends() {
        let first = Claims::take(&between(["lan", "wan"])).unwrap();
        let refused = Claims::take(&between(["dmz", "wan"])).unwrap_err();
        let Problems(problems) = refused.downcast().unwrap();
        assert_eq!(problems.len(), 1);
        let message = problems[0].to_string();
        assert!(
            message.starts_with("gateway.toml:4: interface.name: another gateway is running on "),
            "{message}"
        );
        drop(first);
        // What the second had claimed before it was refused is free as well; programs that other
        // tests start have what is open here for a moment.
        let soon = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            Claims::take(&between(["dmz", "wan"])).ok()
        });
        assert!(soon.is_some());
    }
}

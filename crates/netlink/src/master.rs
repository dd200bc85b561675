//! The master of an interface.

use std::io;

use netlink_packet_core::NLM_F_REQUEST;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::mirror::{each_message, serialized};
use crate::{Error, LinkId};

/// The owner of an interface (ip-link(8), `master`): a bridge, a bond, a team, a VRF or a
/// switch of Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Its name.
    pub name: String,
    /// Its kind, as ip-link(8) calls it; empty where the kernel does not say.
    pub kind: String,
}

/// Asks the kernel whom interfaces belong to.
#[derive(Debug)]
pub struct Masters {
    socket: Socket,
}

impl Masters {
    /// Takes a descriptor, and asks nothing yet.
    ///
    /// # Errors
    /// That of the system if there is no socket left.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The answer is there when the question has been sent.
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// The master of an interface; `None` if it has none, or if there is no such interface. Needs
    /// no privilege, and no descriptor.
    ///
    /// # Errors
    /// [`Error`].
    pub fn of(&mut self, link: LinkId) -> Result<Option<Master>, Error> {
        let master = self.ask(link)?.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::Controller(master) if master != 0 => Some(LinkId(master)),
            _ => None,
        });
        let Some(master) = master else { return Ok(None) };
        let (mut name, mut kind) = (format!("number {}", master.0), String::new());
        for attribute in self.ask(master)? {
            match attribute {
                LinkAttribute::IfName(own) => name = own,
                LinkAttribute::LinkInfo(infos) => {
                    let own = infos.iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                    kind = own.unwrap_or_default();
                }
                _ => {}
            }
        }
        Ok(Some(Master { name, kind }))
    }

    /// The attributes of an interface; nothing if there is none.
    fn ask(&mut self, link: LinkId) -> Result<Vec<LinkAttribute>, Error> {
        let mut request = LinkMessage::default();
        request.header.index = link.0;
        self.socket.send(&serialized(RouteNetlinkMessage::GetLink(request), NLM_F_REQUEST), 0)?;
        let mut said = Vec::new();
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => each_message(&bytes, |_, message| {
                    if let RouteNetlinkMessage::NewLink(message) = message
                        && message.header.index == link.0
                    {
                        said = message.attributes;
                    }
                })?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(said),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

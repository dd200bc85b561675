//! The master of an interface, and its kind.

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

/// The master and the group of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Its master, if it has one.
    pub master: Option<Master>,
    /// Its group (ip-link(8), `group`); 0 is `default`.
    pub group: u32,
}

/// Asks the kernel what interfaces belong to.
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
        Ok(self.membership(link)?.master)
    }

    /// The master and the group of an interface. Both are the default if there is no such
    /// interface. Needs no privilege, and no descriptor.
    ///
    /// # Errors
    /// [`Error`].
    pub fn membership(&mut self, link: LinkId) -> Result<Membership, Error> {
        let (mut master, mut group) = (None, 0);
        for attribute in self.ask(link)? {
            match attribute {
                LinkAttribute::Controller(link) if link != 0 => master = Some(LinkId(link)),
                LinkAttribute::Group(number) => group = number,
                _ => {}
            }
        }
        let master = match master {
            Some(master) => Some(self.named(master)?),
            None => None,
        };
        Ok(Membership { master, group })
    }

    /// The kind of an interface, as ip-link(8) calls it; empty where the kernel does not say, and if
    /// there is no such interface.
    ///
    /// # Errors
    /// [`Error`].
    pub fn kind(&mut self, link: LinkId) -> Result<String, Error> {
        Ok(self.named(link)?.kind)
    }

    fn named(&mut self, master: LinkId) -> Result<Master, Error> {
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
        Ok(Master { name, kind })
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

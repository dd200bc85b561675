//! A helper with its state in a record.

use super::{AttachedHelper, Holder, Inspect, Kind, Memory, amanda, broadcast, ftp, h323, irc};
use super::{pptp, sane, sip, tftp};
use flow::codec::{DecodeError, Reader, Write};

/// The memory in which a helper keeps beginnings of messages.
pub(super) struct HelperStore<'a> {
    pub memory: &'a Memory,
    /// The source whose share of the memory they use.
    pub opener: Holder,
}

/// The helper of a connection, as a record has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedHelper {
    pub kind: Kind,
    starts: Option<[Option<u32>; 2]>,
    /// The state, in the form of the helper. It can be read. `None` if the helper has left.
    state: Option<Box<[u8]>>,
}

impl RecordedHelper {
    pub fn of(AttachedHelper { kind, state, starts }: &AttachedHelper) -> Self {
        let state = state.as_ref().map(|state| {
            let mut bytes = Vec::new();
            state.write(&mut bytes);
            bytes.into()
        });
        Self { kind: *kind, starts: *starts, state }
    }

    /// The helper of a connection that `opener` has opened. It keeps beginnings of messages in
    /// this memory.
    pub fn restore(&self, memory: &Memory, opener: Holder) -> AttachedHelper {
        let Self { kind, starts, ref state } = *self;
        let store = HelperStore { memory, opener };
        let state = state.as_ref().and_then(|state| {
            // It was read before.
            kind.read_state(&mut Reader::new(state), &store).ok()
        });
        AttachedHelper { kind, state, starts }
    }

    pub fn write(&self, to: &mut Vec<u8>) {
        self.kind.write_name(to);
        to.option(self.starts, |to, starts| {
            starts.into_iter().for_each(|start| to.option(start, |to, number| to.u32(number)));
        });
        to.option(self.state.as_ref(), |to, state| to.bytes(state));
    }

    /// Reads a helper up to the end of the bytes.
    pub fn read(from: &mut Reader<'_>, opener: Holder) -> Result<Self, DecodeError> {
        let kind = Kind::read_name(from)?;
        let starts =
            from.option(|from| Ok([from.option(Reader::u32)?, from.option(Reader::u32)?]))?;
        let state = from.option(|from| {
            let state = from.clone();
            kind.read_state(from, &HelperStore { memory: &Memory::default(), opener })?;
            Ok(state.before(from).into())
        })?;
        Ok(Self { kind, starts, state })
    }

    /// True if a connection of this protocol can have the helper.
    pub fn suits(&self, protocol: u8) -> bool {
        self.kind.suits(protocol)
    }
}

impl Kind {
    /// True if a connection of this protocol can have it.
    pub(crate) fn suits(self, protocol: u8) -> bool {
        self.facts().protocols.contains(&protocol)
    }

    /// Appends its name, with its length.
    pub(crate) fn write_name(self, to: &mut Vec<u8>) {
        to.short(self.name().as_bytes());
    }

    /// Reads a name.
    pub(crate) fn read_name(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = from.short()?;
        let mut all = Self::ALL.iter().chain(&[Self::H245]);
        let kind = all.find(|kind| kind.name().as_bytes() == name);
        let unknown = || DecodeError::Helper(String::from_utf8_lossy(name).into_owned());
        kind.copied().ok_or_else(unknown)
    }

    /// Reads what [`Inspect::write`] has written.
    fn read_state(
        self,
        from: &mut Reader<'_>,
        store: &HelperStore<'_>,
    ) -> Result<Box<dyn Inspect>, DecodeError> {
        Ok(match self {
            Self::Amanda => Box::new(amanda::Amanda::read(from)?),
            Self::Ftp => Box::new(ftp::Ftp::read_record(from)?),
            Self::Irc => Box::new(irc::Irc::read(from, store)?),
            Self::NetbiosNs => Box::new(broadcast::Broadcast::NETBIOS_NS),
            Self::Pptp => Box::new(pptp::Pptp::read(from, store)?),
            Self::Sane => Box::new(sane::Sane::read(from)?),
            Self::Sip => Box::new(sip::Sip::read(from, store)?),
            Self::Snmp => Box::new(broadcast::Broadcast::SNMP),
            Self::Tftp => Box::new(tftp::Tftp),
            Self::Ras => Box::new(h323::Ras::read(from)?),
            Self::Q931 => Box::new(h323::CallSignalling::read(from, store)?),
            Self::H245 => Box::new(h323::MediaControl::read(from, store)?),
        })
    }
}

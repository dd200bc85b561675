//! The keys of a session for some number of frames, one for each direction.

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{AeadInOut as _, KeyInit as _, Nonce, Tag};

use crate::fault::Faults;
use crate::keys::Key;
use crate::packet::{SEALED_HEADER_BYTES, SealedHeader};
use crate::refusal::Refusal;
use crate::replay_window::ReplayWindow;

/// Bytes of the tag of AES-256-GCM (NIST SP 800-38D).
pub const TAG_BYTES: usize = 16;
/// Bytes that a sealed datagram has besides what it carries.
pub const SEALED_OVERHEAD_BYTES: usize = SEALED_HEADER_BYTES + TAG_BYTES;
/// No key seals more frames than this, whatever becomes of the exchange of new keys. RFC 8446
/// section 5.5 allows an AES-GCM key 2^24.5 records of 16 KiB.
pub const KEY_FRAMES_MAX: u64 = 1 << 24;

/// The keys for both directions, which both ends derived from fresh values. Each datagram has its
/// own number under a key, and the number is the nonce.
pub(crate) struct Epoch {
    /// The index in the headers of the peer's datagrams.
    pub local_index: u32,
    /// The index in those of this node.
    pub peer_index: u32,
    /// Datagrams sealed.
    pub sealed: u64,
    /// Datagrams opened.
    pub opened: u64,
    seal: Aes256Gcm,
    open: Aes256Gcm,
    window: ReplayWindow,
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epoch {:x}", self.local_index)
    }
}

impl Epoch {
    /// `seal` and `open` are the keys for datagrams that leave and arrive.
    pub fn new(local_index: u32, peer_index: u32, seal: &Key, open: &Key) -> Self {
        let cipher = |key: &Key| Aes256Gcm::new((&**key).into());
        let (seal, open) = (cipher(seal), cipher(open));
        let window = ReplayWindow::default();
        Self { local_index, peer_index, sealed: 0, opened: 0, seal, open, window }
    }

    /// True while this epoch may seal.
    pub fn can_seal(&self) -> bool {
        self.sealed < KEY_FRAMES_MAX
    }

    /// Begins a datagram: its header. Its content follows, and then [`Epoch::seal`].
    pub fn begin(&self, datagram: &mut Vec<u8>) {
        datagram.clear();
        SealedHeader { index: self.peer_index, number: self.sealed }.encode(datagram);
    }

    /// Encrypts the datagram and appends its tag.
    pub fn seal(&mut self, datagram: &mut Vec<u8>) {
        debug_assert!(self.can_seal());
        let (header, content) = datagram.split_at_mut(SEALED_HEADER_BYTES);
        #[expect(clippy::expect_used, reason = "the cipher refuses only more than 64 GiB")]
        let tag = self
            .seal
            .encrypt_inout_detached(&nonce(self.sealed), header, content.into())
            .expect("a datagram");
        datagram.extend_from_slice(&tag);
        self.sealed += 1;
    }

    /// Decrypts the content of a datagram into `content`. The number counts as used only after
    /// [`Epoch::accept`].
    pub fn open(
        &self,
        number: u64,
        datagram: &[u8],
        content: &mut Vec<u8>,
        faults: Faults,
    ) -> Result<(), Refusal> {
        let is_fresh = self.window.is_fresh(number) || faults.takes_replays();
        let sealed = datagram.split_at_checked(SEALED_HEADER_BYTES).and_then(|(header, rest)| {
            let (sealed, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
            Some((header, sealed, tag))
        });
        let (header, sealed, tag) = sealed.ok_or(Refusal::Malformed)?;
        content.clear();
        content.extend_from_slice(sealed);
        let opened = self.open.decrypt_inout_detached(
            &nonce(number),
            header,
            content.as_mut_slice().into(),
            &Tag::<Aes256Gcm>::from(*tag),
        );
        match opened {
            Err(_) => Err(Refusal::Forged),
            Ok(()) if !is_fresh => Err(Refusal::Replayed),
            Ok(()) => Ok(()),
        }
    }

    /// Counts the number of a datagram as used.
    pub fn accept(&mut self, number: u64) {
        self.window.accept(number);
        self.opened += 1;
    }
}

fn nonce(number: u64) -> Nonce<Aes256Gcm> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce.into()
}

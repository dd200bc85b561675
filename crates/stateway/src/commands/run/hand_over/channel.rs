//! Messages of a hand-over over a unix socket.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netio::{receive_with_descriptors, send_with_descriptors};
use socket2::SockRef;
use sync::hand_over::{DecodeMessageError, HEAD_BYTES, Head, Message};

/// Bytes that are received in one go.
const PIECE: usize = 64 << 10;
/// Time between two looks whether the wait is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Descriptors that wait for their message, at most: no message has more than two.
const DESCRIPTORS_MAX: usize = 8;

/// Ends no wait.
pub static NEVER: AtomicBool = AtomicBool::new(false);

/// Why no message comes or goes.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process has ended.
    #[error("the other process has ended")]
    Lost,
    /// It does not answer in time.
    #[error("the other process does not answer within {:.1} s", .0.as_secs_f32())]
    Late(Duration),
    /// This process is to stop.
    #[error("this process was told to stop")]
    Stopping,
    /// It sends bytes that are no message.
    #[error("the other process sends what is no message: {0}")]
    Damaged(#[from] DecodeMessageError),
    /// Descriptors are missing, or too many.
    #[error("the other process sends descriptors that do not belong to a message")]
    Descriptors,
}

/// One end of the socket.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    /// Bytes of messages that were not read yet.
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    sending: Vec<u8>,
}

impl Channel {
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(LOOK))?;
        let (received, descriptors, sending) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { stream, received, descriptors, sending })
    }

    /// The longest time that one write waits for the other process to read.
    pub fn set_write_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(patience))
    }

    /// Sends a message with its descriptors.
    pub fn send(
        &mut self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        debug_assert_eq!(descriptors.len(), usize::from(message.descriptors()));
        self.sending.clear();
        message.encode(&mut self.sending);
        // The descriptors go with the first byte.
        let (mut rest, mut attached) = (&self.sending[..], descriptors);
        while !rest.is_empty() {
            match send_with_descriptors(&self.stream, rest, attached) {
                Ok(sent) => (rest, attached) = (&rest[sent..], &[]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let patience = self.stream.write_timeout().ok().flatten();
                    return Err(ChannelError::Late(patience.unwrap_or_default()));
                }
                Err(_) => return Err(ChannelError::Lost),
            }
        }
        Ok(())
    }

    /// True if the other process has closed its end, and has said nothing that was not received.
    pub fn is_lost(&self) -> bool {
        let look = || {
            self.stream.set_nonblocking(true)?;
            let found = SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]);
            self.stream.set_nonblocking(false)?;
            found
        };
        match look() {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Waits for the next message, and returns it with its descriptors.
    pub fn receive(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<(Message, Vec<OwnedFd>), ChannelError> {
        let begin = Instant::now();
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(ChannelError::Stopping);
            }
            if begin.elapsed() >= patience {
                return Err(ChannelError::Late(patience));
            }
            let length = self.received.len();
            self.received.resize(length + PIECE, 0);
            let place = &mut self.received[length..];
            let result = receive_with_descriptors(&self.stream, place, &mut self.descriptors);
            self.received.truncate(length + result.as_ref().copied().unwrap_or(0));
            match result {
                Ok(0) => return Err(ChannelError::Lost),
                Ok(_) if self.descriptors.len() > DESCRIPTORS_MAX => {
                    return Err(ChannelError::Descriptors);
                }
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(ChannelError::Descriptors);
                }
                Err(_) => return Err(ChannelError::Lost),
            }
        }
    }

    /// The next message that has come whole.
    fn next_message(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, ChannelError> {
        let Some((head, rest)) = self.received.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let head = Head::decode(*head)?;
        let Some(body) = rest.get(..head.body_bytes) else { return Ok(None) };
        let message = Message::decode(head, body)?;
        let count = usize::from(head.descriptors);
        if self.descriptors.len() < count {
            return Err(ChannelError::Descriptors);
        }
        self.received.drain(..HEAD_BYTES + head.body_bytes);
        Ok(Some((message, self.descriptors.drain(..count).collect())))
    }
}

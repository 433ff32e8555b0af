//! Errors of links and streams. Each message is one line: who, what, and the remedy.

use std::fmt;

use crate::core::Fault;
use crate::frame::FrameError;
use crate::seal::SealError;

/// The result of an operation on a link.
pub type Result<T> = std::result::Result<T, LinkError>;

/// Why a link, or a stream of it, ended.
#[derive(Debug, Clone)]
pub struct LinkError {
    /// The peer: its name if it is authenticated, otherwise its address.
    pub peer: String,
    /// The cause.
    pub what: What,
}

/// The cause of the end of a link or a stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum What {
    /// The peer does not answer, or not in time.
    Unreachable(String),
    /// One side rejects the other's certificate, or the bytes are not a handshake.
    Refused(String),
    /// The peer violated the protocol.
    Fault(Fault),
    /// The connection broke.
    Cut(String),
    /// The system broke the connection, because the peer acknowledged nothing for too long.
    Unacknowledged,
    /// One side said goodbye.
    Closed,
    /// The peer aborted the stream, with this reason.
    Aborted(String),
    /// This side has ended or aborted the stream.
    GivenUp,
    /// The link has the maximum of streams.
    Full,
    /// A request or a result of this many bytes is too long.
    Long(usize),
    /// A block of the first number of bytes, where the peer accepts at most the second.
    Block(usize, usize),
}

impl What {
    /// Whether the peer receives nothing after it.
    pub(crate) fn is_last(&self) -> bool {
        self.is_silence() || matches!(self, What::Cut(_) | What::Closed | What::Fault(Fault::Told(_)))
    }

    /// Whether the peer was silent for too long.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, What::Fault(Fault::Silent(_)) | What::Unacknowledged)
    }

    /// What broke a connection.
    pub(crate) fn of_socket(why: &std::io::Error) -> What {
        match why.kind() {
            std::io::ErrorKind::TimedOut => What::Unacknowledged,
            _ => What::Cut(why.to_string()),
        }
    }
}

impl LinkError {
    /// Whether the peer was silent for too long.
    pub fn is_silence(&self) -> bool {
        self.what.is_silence()
    }

    /// Whether the peer itself gave the stream up, with a reason.
    pub fn is_refusal(&self) -> bool {
        matches!(self.what, What::Aborted(_))
    }

    /// The error of a link with this peer.
    pub fn new(peer: impl Into<String>, what: What) -> LinkError {
        LinkError { peer: peer.into(), what }
    }
}

impl From<Fault> for What {
    fn from(fault: Fault) -> What {
        What::Fault(fault)
    }
}

impl From<FrameError> for What {
    fn from(why: FrameError) -> What {
        What::Fault(Fault::Frame(why))
    }
}

impl From<SealError> for What {
    fn from(why: SealError) -> What {
        match why {
            SealError::Closed => What::Cut("it ended without a goodbye".into()),
            SealError::Alert(_) => What::Refused(format!("it sent {why}")),
            SealError::UsedUp => What::Cut(why.to_string()),
            _ => What::Refused(format!("it sent {why}")),
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = &self.peer;
        match &self.what {
            What::Unreachable(why) => write!(f, "cannot reach {peer}: {why}"),
            What::Refused(why) => write!(f, "no link with {peer}: {why}"),
            What::Fault(fault) => write!(f, "link with {peer} closed: it {fault}"),
            What::Cut(why) => write!(f, "link with {peer} is cut: {why}"),
            What::Unacknowledged => {
                write!(f, "link with {peer} is cut: it acknowledged nothing for too long")
            }
            What::Closed => write!(f, "link with {peer} is closed"),
            What::Aborted(why) => write!(f, "{peer} gave up: {why}"),
            What::GivenUp => write!(f, "a stream with {peer} was given up on this side"),
            What::Long(len) => write!(
                f,
                "{len} bytes for {peer} in one request or answer, where {} is the most; ask for less at once",
                crate::frame::PAYLOAD_BYTES_MAX
            ),
            What::Block(len, most) => write!(
                f,
                "a block of {len} bytes for {peer}, which takes at most {most}; bring both sides to one version of thalweg"
            ),
            What::Full => write!(
                f,
                "link with {peer} has {} streams of ours, the maximum; wait for one to end",
                crate::core::STREAMS_MAX / 2
            ),
        }
    }
}

impl std::error::Error for LinkError {}

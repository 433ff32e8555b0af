//! Messages on a stream of a link, and the queue of messages to send.
//!
//! ```text
//! [bytes: u32][message] ...       little-endian, cut into blocks anywhere
//! ```
//!
//! Model: a thread with a message for a slow peer does not wait. It puts the message into the peer's [`Outlet`], whose
//! thread sends all queued messages together. Above the limit they are dropped, as in a network, and clients try again.
//! Invariant: a message has at most [`MESSAGE_BYTES_MAX`], and a queue has at most [`WAITING_BYTES_MAX`].

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use thalweg_base::codec::Plain;
use thalweg_block::Pool;
use thalweg_wire::{Incoming, Link, LinkError, Outgoing};

use super::message::Message;
use super::spare::{self, LONG_BYTES};

/// The most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// The most bytes that are queued for a peer.
pub(crate) const WAITING_BYTES_MAX: usize = 16 << 20;
/// The blocks that may arrive before they are read.
const WINDOW: usize = 4;
const HEAD_BYTES: usize = 4;

/// The guarded data, also after a panic of another holder.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message after its length.
pub(crate) fn framed(message: &impl Plain) -> Vec<u8> {
    framed_in(Vec::new(), message)
}

/// A message after its length, in an empty buffer.
pub(crate) fn framed_in(mut bytes: Vec<u8>, message: &impl Plain) -> Vec<u8> {
    bytes.resize(HEAD_BYTES, 0);
    message.put(&mut bytes);
    let len = (bytes.len() - HEAD_BYTES) as u32;
    bytes[..HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Reads the messages of a peer.
pub(crate) struct Reader {
    inc: Incoming,
    came: Vec<u8>,
    /// Where the next message begins.
    at: usize,
}

impl Reader {
    /// A reader for a stream of this link.
    pub(crate) fn new(link: &Link, inc: Incoming) -> Result<Reader, String> {
        let pool = Pool::new(link.block_bytes(), WINDOW + 1).map_err(|why| why.to_string())?;
        Ok(Reader { inc: inc.takes(&pool, WINDOW), came: Vec::new(), at: 0 })
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, String> {
        self.next_as(Message::decode)
    }

    /// The next message of any kind.
    pub(crate) fn next_as<T>(&mut self, decode: fn(&[u8]) -> Option<T>) -> Result<Option<T>, String> {
        loop {
            if let Some(message) = self.take(decode)? {
                return Ok(Some(message));
            }
            match self.inc.next_on().map_err(|why| why.to_string())? {
                Some((_, block)) => {
                    self.came.drain(..self.at);
                    self.at = 0;
                    self.came.extend_from_slice(&block);
                }
                None => return Ok(None),
            }
        }
    }

    fn take<T>(&mut self, decode: fn(&[u8]) -> Option<T>) -> Result<Option<T>, String> {
        let Some((head, rest)) = self.came[self.at..].split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(format!("it sent a message of {len} bytes; the most are {MESSAGE_BYTES_MAX}"));
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        let message = decode(bytes).ok_or("it sent a message that is malformed, or of another version")?;
        self.at += HEAD_BYTES + len;
        Ok(Some(message))
    }
}

/// Messages that are queued for one peer.
#[derive(Default)]
pub(crate) struct Outlet {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    messages: Vec<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

impl Outlet {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.waiting)
    }

    /// Queues a message. Returns false if the outlet is closed.
    pub(crate) fn put(&self, message: Vec<u8>) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return false;
        }
        if waiting.bytes + message.len() <= WAITING_BYTES_MAX {
            waiting.bytes += message.len();
            waiting.messages.push(message);
            self.news.notify_one();
        }
        true
    }

    /// Closes the outlet, and returns the messages that were not sent.
    pub(crate) fn close(&self) -> Vec<Vec<u8>> {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        self.news.notify_one();
        std::mem::take(&mut waiting.messages)
    }

    /// Waits for messages; none are left once the outlet is closed.
    fn take(&self) -> Vec<Vec<u8>> {
        let nothing = |waiting: &mut Waiting| waiting.messages.is_empty() && !waiting.is_closed;
        let waited = self.news.wait_while(self.waiting(), nothing);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.bytes = 0;
        std::mem::take(&mut waiting.messages)
    }

    /// Sends messages until the outlet is closed or the peer takes no more.
    pub(crate) fn run(&self, mut out: Outgoing) {
        loop {
            let messages = self.take();
            if messages.is_empty() {
                // A peer that still exists reads to the end of the stream.
                return drop(out.end(&[]));
            }
            if send(&mut out, messages).is_err() {
                return drop(self.close());
            }
        }
    }

    /// Like `run`, but returns the messages that could not be sent.
    pub(crate) fn run_or_return(&self, mut out: Outgoing) -> Vec<Vec<u8>> {
        loop {
            let messages = self.take();
            if messages.is_empty() {
                // A peer that still exists reads to the end of the stream.
                let _ = out.end(&[]);
                return messages;
            }
            if out.send(0, &mut messages.concat()).is_err() {
                let later = self.close();
                return messages.into_iter().chain(later).collect();
            }
        }
    }
}

/// Sends messages: the short ones together, the long ones without a copy.
fn send(out: &mut Outgoing, messages: Vec<Vec<u8>>) -> Result<(), LinkError> {
    let mut together = Vec::new();
    for mut message in messages {
        if message.len() < LONG_BYTES {
            together.append(&mut message);
            continue;
        }
        if !together.is_empty() {
            out.send(0, &mut std::mem::take(&mut together))?;
        }
        out.send(0, &mut message)?;
        spare::give(message);
    }
    if together.is_empty() { Ok(()) } else { out.send(0, &mut together) }
}

/// The message in a frame.
pub(crate) fn unframed(frame: &[u8]) -> Option<Message> {
    Message::decode(frame.get(HEAD_BYTES..)?)
}

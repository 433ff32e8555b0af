//! Messages on a stream: each is a JSON object followed by bytes.
//!
//! ```text
//! [bytes of the object: u32][bytes after it: u32][JSON][bytes] ...       on channel 0, cut into frames anywhere
//! ```
//!
//! Invariant: an object has at most [`OBJECT_MAX`] bytes, followed by at most [`BEHIND_MAX`]; a longer message is an
//! error.

use thalweg_block::Pool;

use crate::{Incoming, Link, LinkError, Outgoing, Result, What};

/// The most bytes of an object.
const OBJECT_MAX: usize = 4 << 20;
/// The most bytes after it.
const BEHIND_MAX: usize = 64 << 20;
/// Blocks that are reserved for incoming messages.
const WINDOW: usize = 2;
const HEAD_BYTES: usize = 8;

/// Sends a request that is answered only with the result of its stream, and waits for that.
pub fn ask(link: &Link, request: &str) -> Result<String> {
    let mut inc = link.ask(request.as_bytes(), None)?;
    while inc.next_on()?.is_some() {}
    Ok(String::from_utf8_lossy(inc.result().unwrap_or_default()).into_owned())
}

/// Sends an object, followed by bytes.
pub fn send(out: &mut Outgoing, object: &str, behind: &[u8]) -> Result<()> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + object.len() + behind.len());
    bytes.extend((object.len() as u32).to_le_bytes());
    bytes.extend((behind.len() as u32).to_le_bytes());
    bytes.extend(object.as_bytes());
    bytes.extend(behind);
    out.send(0, &mut bytes)
}

/// Removes the first message from what has arrived, if it is complete.
pub fn take(came: &mut Vec<u8>) -> std::result::Result<Option<(String, Vec<u8>)>, String> {
    let Some((&head, rest)) = came.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [object, behind] =
        [&head[..4], &head[4..]].map(|len| u32::from_le_bytes(len.try_into().expect("four bytes")) as usize);
    if object > OBJECT_MAX || behind > BEHIND_MAX {
        return Err(format!("it sent a message of {object} and {behind} bytes"));
    }
    if rest.len() < object + behind {
        return Ok(None);
    }
    let message = String::from_utf8_lossy(&rest[..object]).into_owned();
    let bytes = rest[object..object + behind].to_vec();
    came.drain(..HEAD_BYTES + object + behind);
    Ok(Some((message, bytes)))
}

/// Reads the peer's messages.
pub struct Reader {
    inc: Incoming,
    peer: String,
    rest: Vec<u8>,
}

impl Reader {
    /// A reader of a stream whose frames have at most `block_bytes`.
    pub fn new(inc: Incoming, peer: &str, block_bytes: usize) -> Result<Reader> {
        let no_room = |why: thalweg_block::PoolError| LinkError::new(peer, What::Cut(why.to_string()));
        let pool = Pool::new(block_bytes, WINDOW + 1).map_err(no_room)?;
        Ok(Reader { inc: inc.takes(&pool, WINDOW), peer: peer.to_string(), rest: Vec::new() })
    }

    /// The next message: an object and the bytes after it; `None` at the end of the stream.
    #[allow(clippy::should_implement_trait)] // An iterator cannot report errors.
    pub fn next(&mut self) -> Result<Option<(String, Vec<u8>)>> {
        loop {
            let message =
                take(&mut self.rest).map_err(|why| LinkError::new(self.peer.clone(), What::Cut(why)))?;
            if message.is_some() {
                return Ok(message);
            }
            match self.inc.next_on()? {
                Some((_, block)) => self.rest.extend_from_slice(&block),
                None => return Ok(None),
            }
        }
    }

    /// The result with which the peer ended the stream.
    pub fn result(&self) -> Option<&[u8]> {
        self.inc.result()
    }

    /// The peer.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}

//! Messages on a stream: an object, and bytes that go with it.
//!
//! ```text
//! [bytes of the object: u32][bytes behind it: u32][JSON][bytes] ...       on channel 0, cut into frames anywhere
//! ```
//!
//! Invariant: neither is longer than [`OBJECT_MAX`] and [`BEHIND_MAX`]; who says more is not heard any further.

use thalweg_api::{NodeRequest, to_json};
use thalweg_block::Pool;
use thalweg_wire::{Incoming, Link, LinkError, Outgoing, What};

/// Bytes of an object.
const OBJECT_MAX: usize = 4 << 20;
/// Bytes behind it.
const BEHIND_MAX: usize = 64 << 20;
/// Blocks that are reserved for what comes.
const WINDOW: usize = 2;
const HEAD_BYTES: usize = 8;

/// Asks for what is answered with nothing but the result that its stream ends with, and waits for that.
pub(crate) fn answer(link: &Link, request: &NodeRequest) -> Result<String, LinkError> {
    let mut inc = link.ask(to_json(request).as_bytes(), None)?;
    while inc.next_on()?.is_some() {}
    Ok(String::from_utf8_lossy(inc.result().unwrap_or_default()).into_owned())
}

/// Says something.
pub(crate) fn say(out: &mut Outgoing, object: &str, behind: &[u8]) -> Result<(), LinkError> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + object.len() + behind.len());
    bytes.extend((object.len() as u32).to_le_bytes());
    bytes.extend((behind.len() as u32).to_le_bytes());
    bytes.extend(object.as_bytes());
    bytes.extend(behind);
    out.send(0, &mut bytes)
}

/// Takes the first message off what has come, and what goes with it, if all of it has.
pub(crate) fn take(came: &mut Vec<u8>) -> Result<Option<(String, Vec<u8>)>, String> {
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

/// Hears what the other side says.
pub(crate) struct Hearing {
    inc: Incoming,
    peer: String,
    rest: Vec<u8>,
}

impl Hearing {
    /// What comes in frames of at most `block_bytes`.
    pub(crate) fn new(inc: Incoming, peer: &str, block_bytes: usize) -> Result<Hearing, LinkError> {
        let no_room = |why: thalweg_block::PoolError| LinkError::new(peer, What::Cut(why.to_string()));
        let pool = Pool::new(block_bytes, WINDOW + 1).map_err(no_room)?;
        Ok(Hearing { inc: inc.takes(&pool, WINDOW), peer: peer.to_string(), rest: Vec::new() })
    }

    /// The next message, and what goes with it; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(String, Vec<u8>)>, LinkError> {
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

    /// What the other side said at its end.
    pub(crate) fn result(&self) -> Option<&[u8]> {
        self.inc.result()
    }

    /// Whom it hears.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }
}

//! The streams between a coordinator and its participants.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use thalweg_api::{FromParticipant, from_json};
use thalweg_engine::{JobFault, Result};
use thalweg_wire::{Link, LinkError, Outgoing, What, message};

const STACK_BYTES: usize = 256 << 10;

/// How a coordinator gets links with nodes.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    /// A link with the host of this name.
    pub(crate) to: &'a (dyn Fn(&str) -> std::result::Result<Arc<Link>, LinkError> + Sync),
    /// Whether the links are for this job alone, and end with it.
    pub(crate) own: bool,
    /// All hosts of the cluster, in the order of its file.
    pub(crate) all: &'a [String],
}

/// A message of one node, or why no more will come.
pub(super) type Said = (usize, std::result::Result<(FromParticipant, Vec<u8>), LinkError>);

/// Reads what a node sends, on a thread of its own, to the end.
pub(super) fn hear(id: usize, mut hearing: message::Reader, tell: Sender<Said>) -> Result<()> {
    let hear = move || {
        loop {
            let heard = hearing.next().and_then(|heard| parsed(heard, &hearing));
            let last = heard.is_err();
            if tell.send((id, heard)).is_err() || last {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("share".into()).stack_size(STACK_BYTES);
    thread.spawn(hear).map(drop).map_err(|e| JobFault::Thread("hear a node", e).into())
}

/// A message of a node, as an object; the end of the stream is an error.
fn parsed(
    heard: Option<(String, Vec<u8>)>,
    hearing: &message::Reader,
) -> std::result::Result<(FromParticipant, Vec<u8>), LinkError> {
    let wrong = |why: String| LinkError::new(hearing.peer(), What::Cut(why));
    let (text, behind) = heard.ok_or_else(|| LinkError::new(hearing.peer(), What::Closed))?;
    Ok((from_json(&text).map_err(wrong)?, behind))
}

pub(super) type Opened = (Arc<Link>, Outgoing, message::Reader);

/// Opens a stream to a participant and asks it to take part.
pub(super) fn open(reach: Reach<'_>, host: &str, request: &str) -> std::result::Result<Opened, LinkError> {
    let link = (reach.to)(host)?;
    let (out, inc) = link.open(request.as_bytes())?;
    let block_bytes = link.block_bytes();
    Ok((link, out, message::Reader::new(inc, host, block_bytes)?))
}

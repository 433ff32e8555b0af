//! The transport over links, between processes and machines.
//!
//! Model: each pair of inlet and outlet has a stream of a link. A batch is one block, its head before its records.
//! Control messages have a channel of their own, or come with the end of the stream. The thread that reads the link
//! delivers messages to the mailbox of the right end, so some thread must read it, as a node does for its links.
//! Invariant: each stream has its own buffers besides those of the river, so a message always finds a buffer, and a
//! slow outlet does not block other streams of the link.

use std::sync::Arc;

use thalweg_block::{Block, Pool};
use thalweg_wire::{Gift, Incoming, Outgoing};

use crate::Batch;
use crate::error::{Error, Result};
use crate::head::{HEAD_BYTES, Head, Kind};
use crate::transport::{Delivery, Mailbox, Message, Transport};

/// The channels of a stream.
const BATCHES: u8 = 0;
const MARKS: u8 = 1;
/// Blocks that all streams of an end reserve together by default, and the limits for one stream. Grants of blocks
/// queue behind data of the other direction, so a few streams need many blocks to keep a link busy.
const WINDOWS: usize = 16;
const WINDOW: (usize, usize) = (2, 8);
/// The maximum bytes of control messages that are sent together: no block is smaller.
const TOGETHER_BYTES: usize = 4096 / HEAD_BYTES * HEAD_BYTES;

/// The default number of blocks that an end with `streams` streams reserves for each. Each stream uses one more.
pub fn window(streams: usize) -> usize {
    (WINDOWS / streams.max(1)).clamp(WINDOW.0, WINDOW.1)
}

/// The connection to one of the ends on the other side.
pub enum Connection {
    /// A stream of a link.
    Stream(Outgoing, Incoming),
    /// The end is in this process.
    Here,
}

/// The transports over these connections; what arrives goes to `mail`. `here` makes the transport to a local end.
/// Blocks have `block_bytes` bytes: each stream reserves `window` of them, and the reader of the mail may hold
/// `buffers`.
pub(crate) fn ends(
    connections: Vec<Connection>,
    mail: &Arc<Mailbox>,
    here: impl Fn() -> Box<dyn Transport>,
    (river, window): (u64, usize),
    (block_bytes, buffers): (usize, usize),
) -> Result<Vec<Box<dyn Transport>>> {
    let pool = Pool::new(block_bytes, connections.len() * (window + 1) + buffers)?;
    let mut transports: Vec<Box<dyn Transport>> = Vec::with_capacity(connections.len());
    for (i, connection) in connections.into_iter().enumerate() {
        let Connection::Stream(out, incoming) = connection else {
            transports.push(here());
            continue;
        };
        transports.push(Box::new(LinkTransport { to: i, out, controls: Vec::new() }));
        let mut receiver = Receiver { mail: Arc::clone(mail), from: i, river, gone: false };
        incoming.give(&pool, window, move |arrived| receiver.bring(arrived));
    }
    Ok(transports)
}

struct LinkTransport {
    /// The number of the end on the other side.
    to: usize,
    out: Outgoing,
    /// Control messages that are sent together: each alone would take a whole block, of which a link has few.
    controls: Vec<u8>,
}

impl Transport for LinkTransport {
    fn send(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Batch(Batch { head, mut block, .. }) => {
                self.flush()?;
                block[..HEAD_BYTES].copy_from_slice(&head.encode());
                block.set_offset(head.sequence);
                self.out.put_on(BATCHES, block).map_err(|why| Error::Link(self.to, why))?;
            }
            Message::Control(head) => {
                if self.controls.len() == TOGETHER_BYTES {
                    self.flush()?;
                }
                self.controls.extend_from_slice(&head.encode());
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.controls.is_empty() {
            self.out.send(MARKS, &mut self.controls).map_err(|why| Error::Link(self.to, why))?;
            self.controls.clear();
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.out.end(&std::mem::take(&mut self.controls)).map_err(|why| Error::Link(self.to, why))
    }
}

/// Delivers what arrives on a stream to a mailbox.
struct Receiver {
    mail: Arc<Mailbox>,
    from: usize,
    river: u64,
    gone: bool,
}

impl Receiver {
    /// If the stream fails, or carries an invalid message, the peer counts as disconnected.
    fn bring(&mut self, arrived: Gift) {
        match arrived {
            _ if self.gone => {}
            Gift::Block(BATCHES, block) => match batch(block) {
                Some(batch) => self.mail.put([Delivery::Arrived(self.from, Message::Batch(batch))]),
                None => self.is_gone(),
            },
            Gift::Block(MARKS, block) => self.controls(&block),
            Gift::End(controls) => self.controls(&controls),
            Gift::Block(..) | Gift::Not(_) => self.is_gone(),
        }
    }

    fn controls(&mut self, bytes: &[u8]) {
        let Some(controls) = controls(bytes) else { return self.is_gone() };
        self.mail.put(controls.into_iter().map(|head| Delivery::Arrived(self.from, Message::Control(head))));
    }

    fn is_gone(&mut self) {
        self.gone = true;
        // An inlet reacts to one of these, an outlet to the other.
        let heads = [Kind::Lost, Kind::Gone].map(|kind| Head::new(kind, self.river));
        self.mail.put(heads.map(|head| Delivery::Arrived(self.from, Message::Control(head))));
    }
}

fn batch(block: Block) -> Option<Batch> {
    let head = Head::decode(&block).filter(|head| head.kind == Kind::Batch)?;
    Some(Batch { head, block, ticket: None })
}

fn controls(bytes: &[u8]) -> Option<Vec<Head>> {
    let control = |bytes| Head::decode(bytes).filter(|head| head.kind != Kind::Batch);
    bytes.chunks(HEAD_BYTES).map(control).collect()
}

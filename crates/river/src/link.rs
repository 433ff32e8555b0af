//! Ways over links: the same messages, between processes and machines.
//!
//! Model: a stream of a link for each inlet and outlet. A batch is one block, its head before its records; marks go on
//! a channel of their own, or with the stream's end. Whoever reads the link puts what comes into the mailbox of the end that it is for, so somebody
//! has to read it, as a node reads those that it keeps.
//! Invariant: a stream's own buffers are beside the river's, so what comes always finds one, and no outlet's pace holds up a
//! link that carries other streams.

use std::sync::Arc;

use thalweg_block::{Block, Pool};
use thalweg_wire::{Gift, Incoming, Outgoing};

use crate::Batch;
use crate::error::{Error, Result};
use crate::head::{HEAD_BYTES, Head, Kind};
use crate::transport::{Delivery, Mailbox, Message, Transport};

/// Channels of a stream.
const BATCHES: u8 = 0;
const MARKS: u8 = 1;
/// Blocks that the streams of an end have reserved at once if nobody says how many, and those of one. What promises
/// blocks goes behind the data of the other direction, so few streams need many to keep a link busy.
const WINDOWS: usize = 16;
const WINDOW: (usize, usize) = (2, 8);
/// Marks that go together take so many bytes at most: no block is smaller.
const TOGETHER_BYTES: usize = 4096 / HEAD_BYTES * HEAD_BYTES;

/// Blocks that an end of a river with so many streams has reserved for each, if nobody says how many. It has one more,
/// that is changing hands.
pub fn window(streams: usize) -> usize {
    (WINDOWS / streams.max(1)).clamp(WINDOW.0, WINDOW.1)
}

/// How an end of a river reaches one of the ends on the other side.
pub enum Reach {
    /// Over this stream of a link.
    Stream(Outgoing, Incoming),
    /// It is in this process, of the same node.
    Here,
}

/// The transports out over these streams, of which what comes goes to `mail`. Who is here is reached through `here`. Blocks
/// have `block_bytes`: `window` are reserved for each stream, and `buffers` may be held by whoever reads the mail.
pub(crate) fn ends(
    reaches: Vec<Reach>,
    mail: &Arc<Mailbox>,
    here: impl Fn() -> Box<dyn Transport>,
    (river, window): (u64, usize),
    (block_bytes, buffers): (usize, usize),
) -> Result<Vec<Box<dyn Transport>>> {
    let pool = Pool::new(block_bytes, reaches.len() * (window + 1) + buffers)?;
    let mut transports: Vec<Box<dyn Transport>> = Vec::with_capacity(reaches.len());
    for (i, reach) in reaches.into_iter().enumerate() {
        let Reach::Stream(out, incoming) = reach else {
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
    /// The place of whoever is at the other end.
    to: usize,
    out: Outgoing,
    /// What goes together: what is said takes a block as a batch does, and a link has few of them.
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

/// Brings what comes of a stream to a mailbox.
struct Receiver {
    mail: Arc<Mailbox>,
    from: usize,
    river: u64,
    gone: bool,
}

impl Receiver {
    /// A stream that ends otherwise than well, or carries what is no message, is a peer that has gone.
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
        // Each end knows the one that it may hear from.
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

//! Sends a transfer on to the next host while it is received: one source, and a chain of sinks.
//!
//! ```text
//! source ==> n1 ==> n2 ==> n3          each host writes what it receives, and sends it on
//! ```
//!
//! Model: for the next host, this end is a source that reads nothing: it passes on the messages and blocks of the source
//! as they come. So every byte leaves the source once, and all hosts are done at about the same time.
//! Invariant: all hosts have the same lanes and the same names of the roots, and none has a part of the data already, so
//! the messages of the source suit all of them. What fails at one of them ends the transfer at all.
//! Non-goals: resuming, comparing, and leaving out what one destination cannot take.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_api::{PumpEnd, PumpReceipt, PumpVerdict};
use thalweg_base::unwinding::OnPanic;
use thalweg_block::{Block, Pool};
use thalweg_wire::{Incoming, Outgoing, Streams};

use crate::message::{Message, Offer};
use crate::peer::{Control, FRAME_BYTES, Peer, Transport};
use crate::receipt::merged;
use crate::shared::Shared;
use crate::{Error, Result};

/// The next host of a chain, which has been asked to be the sink of a transfer.
pub struct Onward<'t> {
    /// The way there.
    pub transport: &'t dyn Transport,
    /// The control stream.
    pub control: Streams,
}

/// The next host of a chain, during the transfer.
pub(crate) struct Relay<'t> {
    pub(crate) peer: Peer<'t>,
}

impl<'t> Relay<'t> {
    /// The relay to the next host, and what that host says.
    pub(crate) fn new(onward: Onward<'t>) -> Result<(Relay<'t>, Control)> {
        let Onward { transport, control: (out, inc) } = onward;
        let relay = Relay { peer: Peer::new(transport, out, true) };
        Ok((relay, Control::new(transport, inc)?))
    }

    /// Passes on the offer. The next host must accept it with as many lanes, and the same names.
    pub(crate) fn agree(
        &self,
        said: &mut Control,
        offer: &Offer,
        (lanes, names): (usize, &[OsString]),
    ) -> Result<()> {
        self.peer.tell(&Message::Offer(offer.clone()))?;
        self.peer.flush()?;
        match said.next()? {
            Some(Message::Accept(theirs, their_names))
                if theirs as usize == lanes && their_names == names =>
            {
                Ok(())
            }
            Some(Message::Accept(..)) => Err(Error::Differs(self.peer.name())),
            _ => Err(said.refusal()),
        }
    }

    /// Runs `take`, which receives everything and sends it on, and waits until the next host is done.
    pub(crate) fn along<T>(
        &self,
        shared: &Shared<'_>,
        said: Control,
        take: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _tells = OnPanic(|| done.store(true, Ordering::Relaxed));
            let nothing = |_| Err(Error::protocol(self.peer.name()));
            let listener = scope.spawn(move || self.peer.listen(shared, said, nothing));
            let attendant = scope.spawn(|| self.peer.attend(shared, &|| done.load(Ordering::Relaxed)));
            let taken = take().map_err(|e| {
                shared.fail(e);
                Error::Stopped
            });
            listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.store(true, Ordering::Relaxed);
            attendant.thread().unpark();
            shared.goes_on().and(taken)
        })
    }

    /// After everything was sent on: what the source said last.
    pub(crate) fn end(&self, verdict: Option<&PumpVerdict>) -> Result<()> {
        match verdict {
            Some(verdict) => self.peer.end(verdict),
            None => Err(Error::protocol("the source")),
        }
    }

    /// What the destinations of the rest of the chain did, each of which has all that the source has sent.
    pub(crate) fn receipts(&self, source: &PumpReceipt) -> Result<Vec<PumpEnd>> {
        let Some(next) = self.peer.verdict().and_then(|verdict| verdict.receipt.clone()) else {
            return Err(Error::protocol(self.peer.name()));
        };
        let all = merged(source.clone(), next, self.peer.name(), true);
        if !all.holds {
            let (read, written) = (all.checksum_in, all.checksum_out);
            return Err(Error::Mismatch { path: self.peer.name().into(), read, written, read_back: false });
        }
        Ok([all.dest].into_iter().chain(all.onward).collect())
    }
}

/// A lane to the next host.
pub(crate) struct RelayLane<'f> {
    peer: &'f Peer<'f>,
    pool: Pool,
    out: Outgoing,
    /// The unused incoming half; dropping it would end the stream.
    _inc: Incoming,
}

impl<'f> RelayLane<'f> {
    pub(crate) fn new(peer: &'f Peer<'f>, (out, inc): Streams) -> Result<RelayLane<'f>> {
        // A block that is sent is free again.
        Ok(RelayLane { peer, pool: Pool::new(FRAME_BYTES, 1)?, out: out.unchecked(), _inc: inc })
    }

    /// A copy of a block as it came.
    pub(crate) fn copy(&self, block: &Block) -> Block {
        let mut copy = self.pool.take();
        copy.set_len(block.len());
        thalweg_block::copy(&mut copy, block);
        copy
    }

    /// Sends a copy on, after the announcements that had come before it.
    pub(crate) fn send(&mut self, copy: Block) -> Result<()> {
        self.peer.flush()?;
        Ok(self.out.put_on(0, copy)?)
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        Ok(self.out.end(&[])?)
    }
}

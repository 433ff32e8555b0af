//! The source's end of a transfer between two processes.
//!
//! Model: the work queue and the source lanes of a transfer on one machine, with a [`SendLane`] instead of writes. It
//! appends a description to each block and sends it on the stream of its lane.
//! Invariant: a directory or file is announced by number on the control stream before a lane refers to it. The checksum
//! of a file is sent only when all of the file has been sent and it has not changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_api::{PumpReceipt, PumpVerdict};
use thalweg_base::clock::Stopwatch;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::{Block, Pool};
use thalweg_io::tree::Tree;
use thalweg_io::{host, process};
use thalweg_pump::{Sink, Watch};
use thalweg_wire::{Incoming, Outgoing, Streams};

use crate::blocks::{DEPTH, LANE_BLOCKS};
use crate::choice::Choice;
use crate::job::{Job, Part, first_left_out, is_in_order, move_all};
use crate::left_out::End;
use crate::message::{Message, Named, Offer, Small, Tail};
use crate::peer::{Control, FRAME_BYTES, Peer, Transport};
use crate::receipt::{Took, link, merged, receipt};
use crate::roots::{self, Root, Roots, To, Transfer};
use crate::shared::{Shared, count};
use crate::source::{Content, Of, Packed, Parcel, SourceLane};
use crate::work_queue::WorkQueue;
use crate::{Error, Result};

/// Moves all sources to the other end, which chooses the destination. The receipt is that of both ends.
pub fn send(
    transfer: &Transfer,
    transport: &dyn Transport,
    control: Streams,
    tree: &Arc<dyn Tree>,
    watch: &dyn Watch,
) -> Result<PumpReceipt> {
    let (clock, cpu_before) = (Stopwatch::start(), process::usage().cpu_seconds);
    host::allow_open_files(u64::MAX);
    let transfer = &Transfer { dest: To::Null, ..transfer.clone() };
    let (far, mut inc) =
        (Arc::new(Peer::new(transport, control.0, true)), Control::new(transport, control.1)?);
    let roots = Roots::default();
    let job =
        Job { transfer, source: tree, dest: tree, watch, roots, lanes: transfer.streams, part: Part::Source };
    let job = agreed(job, &far, &mut inc).inspect_err(|e| far.give_up(&e.verdict()))?;
    let shared = job.shared(Pool::new(FRAME_BYTES, job.lanes * LANE_BLOCKS)?, Some(Arc::clone(&far)))?;
    let told = || {
        let cpu_seconds = process::usage().cpu_seconds - cpu_before;
        let took = Took { seconds: clock.seconds(), sync_seconds: 0.0, cpu_seconds };
        PumpReceipt { link: Some(link(&far)), ..receipt(&job, &shared, &took) }
    };
    let done = perform(&job, &shared, &far, inc, &told);
    let first = shared.error.lock().expect("no lane panics").take();
    let ours = first.map_or(done, Err).inspect_err(|e| far.give_up(&e.verdict()))?;
    let Some(theirs) = far.verdict().and_then(|verdict| verdict.receipt.clone()) else {
        return Err(Error::protocol(transport.peer()));
    };
    let both = merged(ours, theirs, transport.peer(), true);
    if both.holds {
        return Ok(PumpReceipt {
            errors: shared.left_out.list.take(),
            items: shared.deleter.items.take(),
            ..both
        });
    }
    let (peer, read) = (transport.peer(), both.checksum_in);
    let written = both.checksum_out.wrapping_add(both.checksum_left_out);
    Err(match read == written {
        true => Error::Miscounted { peer, found: both.found, accounted: both.accounted() },
        false => Error::Mismatch { path: peer.into(), read, written, read_back: false },
    })
}

/// Announces the sources, and receives their names at the destination.
fn agreed<'j>(mut job: Job<'j>, far: &Peer<'_>, inc: &mut Control) -> Result<Job<'j>> {
    let transfer = job.transfer;
    let (givens, missing) = roots::givens(&**job.source, transfer)?;
    let offer = Offer {
        hashing: transfer.hashing,
        resume: transfer.resume,
        verify: transfer.verify,
        strict: transfer.strict,
        choice: Choice::told(&transfer.choice.asked),
        lanes: if is_in_order(transfer) { 1 } else { transfer.streams as u32 },
        total: job.total_bytes()?,
        roots: givens.iter().map(|given| given.offered()).collect(),
    };
    far.tell(&Message::Offer(offer))?;
    far.flush()?;
    let answer = inc.next()?;
    let Some(Message::Accept(lanes, names)) = answer else {
        return Err(inc.refusal());
    };
    // The names become parts of paths here, so they must be valid.
    let mut named = givens.iter().zip(&names);
    if names.len() != givens.len()
        || !named.all(|(given, name)| given.may_be_called(name))
        || lanes == 0
        || lanes as usize > transfer.streams
    {
        return Err(inc.protocol_error());
    }
    job.lanes = lanes as usize;
    job.roots.missing = missing.into();
    job.roots.roots =
        givens.into_iter().zip(names).map(|(given, there)| Root::of(given, there, false)).collect();
    Ok(job)
}

fn perform(
    job: &Job<'_>,
    shared: &Shared<'_>,
    far: &Peer<'_>,
    inc: Control,
    told: &dyn Fn() -> PumpReceipt,
) -> Result<PumpReceipt> {
    let lanes = job.open_lanes(shared, far)?;
    job.begin_stage(job.total_bytes()?);
    let feed = WorkQueue::new(shared);
    job.feed(shared, &feed)?;
    let done = AtomicBool::new(false);
    let ours = std::thread::scope(|scope| {
        let hears = |message| match message {
            answer @ (Message::Ranges(..) | Message::Cells(_) | Message::There(_) | Message::Sums(_)) => {
                far.answered(shared, answer)
            }
            Message::Item(item) => {
                shared.deleter.items.add_theirs(item);
                Ok(())
            }
            Message::LeftOut(entry) => {
                shared.left_out.list.add_theirs(entry);
                Ok(())
            }
            _ => Err(Error::protocol("the other end")),
        };
        let listener = scope.spawn(move || far.listen(shared, inc, hears));
        let done = &done;
        let _tells = OnPanic(|| done.store(true, Ordering::Relaxed));
        let attendant = scope.spawn(move || far.attend(shared, &|| done.load(Ordering::Relaxed)));
        let lane = |(number, streams)| {
            let feed = &feed;
            scope.spawn(move || {
                let _tells = shared.tells_of_panics();
                if let Err(e) = lane(shared, feed, number, streams) {
                    shared.fail(e);
                }
            })
        };
        let lanes: Vec<_> = lanes.into_iter().enumerate().map(lane).collect();
        for lane in lanes {
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let ours = match shared.goes_on().and_then(|()| finish(job, shared, far, told)) {
            Ok(ours) => Some(ours),
            Err(e) => {
                shared.fail(e);
                None
            }
        };
        // The sink makes everything durable and reports the result.
        listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.store(true, Ordering::Relaxed);
        attendant.thread().unpark();
        ours
    });
    shared.goes_on()?;
    ours.ok_or(Error::Stopped)
}

/// After all blocks were sent: sends hard links and the checksum of everything.
fn finish(
    job: &Job<'_>,
    shared: &Shared<'_>,
    far: &Peer<'_>,
    told: &dyn Fn() -> PumpReceipt,
) -> Result<PumpReceipt> {
    shared.list_missing()?;
    let links = std::mem::take(&mut *shared.links.lock().expect("no lane panics"));
    for more in &links.more {
        let root = &job.roots.roots[more.top as usize].there;
        if links.is_left_out(&more.first.key(root)) {
            shared.left_out.add(End::Source, first_left_out(more, root))?;
            continue;
        }
        shared.add_one_more(&links, more, root);
        count(&shared.counts.hard_links, 1);
        far.tell(&Message::Name(Box::new(Named {
            place: more.name.dir.to_path_buf(),
            facts: more.facts,
            name: more.name.own.clone(),
            first: more.first.transport(),
            top: more.top,
            key: more.name.key(root),
            first_key: more.first.key(root),
        })))?;
    }
    far.tell_lists(shared)?;
    let sum = shared.sums.lock().expect("no lane panics").0;
    far.tell(&Message::End(sum))?;
    let ours = told();
    far.end(&PumpVerdict::done(ours.clone()))?;
    Ok(ours)
}

fn lane<'a>(shared: &'a Shared<'a>, feed: &WorkQueue<'a>, number: usize, (out, inc): Streams) -> Result<()> {
    let source = SourceLane::new(shared, feed, number, shared.source.io().queue(DEPTH)?);
    let sink = SendLane { shared, out: out.unchecked(), _inc: inc };
    move_all(shared, source, sink)
}

/// The sending half of a lane; see the head of this file.
struct SendLane<'a> {
    shared: &'a Shared<'a>,
    out: Outgoing,
    /// The unused incoming half; dropping it would end the stream.
    _inc: Incoming,
}

impl<'a> SendLane<'a> {
    fn send(&mut self, mut block: Block, tail: &Tail) -> Result<()> {
        let tail = tail.encode();
        let len = block.len();
        block.set_len(len + tail.len());
        block[len..].copy_from_slice(&tail);
        if let Some(far) = &self.shared.far {
            far.flush()?;
        }
        let out = &mut self.out;
        self.shared.meters.stage.for_write(|| out.put_on(0, block))?;
        self.shared.meters.output.wrote(len as u64);
        count(&self.shared.counts.writes, 1);
        Ok(())
    }

    fn pack(&mut self, block: Block, pack: &[Packed<'a>]) -> Result<()> {
        let small = |packed: &Packed<'a>| Small {
            dir: packed.place.number(),
            name: packed.there.clone(),
            facts: packed.facts,
            extended: packed.extended.clone(),
            what: match &packed.what {
                Content::Bytes(_, sum) => Ok(*sum),
                Content::Link(to) => Err(to.clone()),
            },
        };
        self.send(block, &Tail::Pack(pack.iter().map(small).collect()))?;
        for packed in pack {
            packed.place.count_sent_name();
            match &packed.what {
                Content::Link(_) => count(&self.shared.counts.links, 1),
                Content::Bytes(_, sum) => {
                    let key = packed.place.key_of(&packed.there);
                    self.shared.whole(&key, packed.facts.len, (*sum, *sum), packed.facts.links);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Sink<Parcel<'a>> for SendLane<'a> {
    type Error = Error;

    fn put(&mut self, parcel: Parcel<'a>) -> Result<()> {
        let Parcel { block, of } = parcel;
        match of {
            Of::Piece(moving, at, _) => {
                let len = block.len() as u64;
                self.send(block, &Tail::Piece(moving.number(), at))?;
                if moving.was_sent(at, len) { moving.finish() } else { Ok(()) }
            }
            Of::Whole(moving) => {
                drop(block);
                moving.finish()
            }
            Of::Pack(pack) => self.pack(block, &pack),
        }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.out.end(&[])?)
    }
}

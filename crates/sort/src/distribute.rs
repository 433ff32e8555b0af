//! Distributing: the first pass over an input that does not fit. Records are copied into pages of
//! their range; pages go to scratch until only what fits is left.
//!
//! Model: lanes classify blocks side by side, but take their *turn* in the order of the stream. In its
//! turn a lane reserves, for each range, the bytes that its block holds for it; the copying happens
//! afterwards, again side by side. So every range is a stream in input order, whatever the lanes do,
//! and a record cut by a block bound is handed from turn to turn.
//!
//! ```text
//! block k  -> classify ->| turn: finish the cut record, reserve, keep the tail |-> copy -> pages
//! block k+1 -> classify ........ waits ->| turn ...                            |-> copy -> pages
//! ```
//!
//! What is spilled is the oldest: the first `excess` bytes go to scratch as their pages fill, the
//! rest stays. Law: a range's pages, in order, hold its records in input order.
//! Non-goals: choosing the cuts; sorting.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use thalweg_api::Proof;
use thalweg_block::{Block, Fill, Place, Pool};
use thalweg_io::{Done, Kind, Op, Queue};
use thalweg_pump::{Meters, Sink};
use thalweg_record::{Cuts, Key, Layout, add_proof, add_record};
use xxhash_rust::xxh3::xxh3_64;

use crate::scratch::{Extent, Scratch};
use crate::{Error, Result};

/// How long a lane waits before it looks at its own queue again: blocks that others need may sit there.
const POLL: Duration = Duration::from_micros(200);
/// Extents and direct writes are multiples of this.
const SECTOR: usize = 4096;

/// One page of a range.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Still being filled or written.
    Coming,
    /// In memory.
    Resident(Block),
    /// In scratch.
    Spilled(Extent),
}

/// What a range has been given.
#[derive(Debug, Default)]
pub(crate) struct RangeStore {
    pub(crate) pages: Vec<Stored>,
    /// Bytes in each page.
    pub(crate) lens: Vec<u32>,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// The shared part of a distribution.
pub(crate) struct Distribution<'a> {
    key: &'a Key,
    layout: Layout,
    cuts: &'a Cuts,
    pool: &'a Pool,
    scratch: &'a Scratch,
    meters: &'a Meters,
    stop: &'a AtomicBool,
    hashing: bool,
    /// The longest record allowed, in bytes.
    record_max: u64,
    page_bytes: usize,
    /// The first page of the file that a page belongs to.
    file_start: &'a (dyn Fn(u64) -> u64 + Sync),
    /// The page whose turn it is.
    next: Mutex<u64>,
    turned: Condvar,
    /// Locked by the lane whose turn it is, and by nobody else.
    turn: Mutex<Turn>,
    stores: Vec<Mutex<RangeStore>>,
    /// Bytes that still have to be spilled.
    excess: AtomicU64,
    proof: Mutex<Proof>,
}

/// What only the lane whose turn it is may touch.
struct Turn {
    /// The beginning of a record whose end is in the next page, and where it began.
    carry: Vec<u8>,
    carry_place: u64,
    open: Vec<Option<Fill>>,
}

/// What a distribution is made of.
pub(crate) struct Recipe<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    pub(crate) cuts: &'a Cuts,
    pub(crate) pool: &'a Pool,
    pub(crate) scratch: &'a Scratch,
    pub(crate) meters: &'a Meters,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) hashing: bool,
    pub(crate) record_max: u64,
    pub(crate) excess: u64,
    pub(crate) file_start: &'a (dyn Fn(u64) -> u64 + Sync),
}

impl<'a> Distribution<'a> {
    pub(crate) fn new(recipe: Recipe<'a>) -> Distribution<'a> {
        let ranges = recipe.cuts.ranges();
        Distribution {
            key: recipe.key,
            layout: recipe.layout,
            cuts: recipe.cuts,
            pool: recipe.pool,
            scratch: recipe.scratch,
            meters: recipe.meters,
            stop: recipe.stop,
            hashing: recipe.hashing,
            record_max: recipe.record_max,
            page_bytes: recipe.pool.block_size(),
            file_start: recipe.file_start,
            next: Mutex::new(0),
            turn: Mutex::new(Turn {
                carry: Vec::new(),
                carry_place: 0,
                open: (0..ranges).map(|_| None).collect(),
            }),
            turned: Condvar::new(),
            stores: (0..ranges).map(|_| Mutex::new(RangeStore::default())).collect(),
            excess: AtomicU64::new(recipe.excess),
            proof: Mutex::new(Proof::default()),
        }
    }

    /// A lane with a queue to scratch of its own.
    pub(crate) fn lane(&self, queue: Box<dyn Queue>) -> DistributeLane<'_, 'a> {
        DistributeLane {
            shared: self,
            queue,
            ids: Vec::new(),
            places: (0..self.cuts.ranges()).map(|_| Vec::new()).collect(),
            wanted: vec![(0, 0); self.cuts.ranges()],
            touched: Vec::new(),
            proof: Proof::default(),
        }
    }

    /// Ends the distribution when all lanes have finished. Returns the ranges and the proof of all
    /// records.
    pub(crate) fn finish(self) -> (Vec<RangeStore>, Proof) {
        let turn = self.turn.into_inner().expect("no lane panics");
        assert!(turn.carry.is_empty(), "the last record is whole");
        let mut stores: Vec<RangeStore> =
            self.stores.into_iter().map(|s| s.into_inner().expect("no lane panics")).collect();
        for (store, open) in stores.iter_mut().zip(turn.open) {
            if let Some(fill) = open {
                let block = fill.seal().expect("every lane has committed its places");
                *store.lens.last_mut().expect("an open page is listed") = block.len() as u32;
                *store.pages.last_mut().expect("an open page is listed") = Stored::Resident(block);
            }
        }
        (stores, self.proof.into_inner().expect("no lane panics"))
    }
}

/// One lane of a distribution: a sink for blocks of the input.
pub(crate) struct DistributeLane<'d, 'a> {
    shared: &'d Distribution<'a>,
    queue: Box<dyn Queue>,
    /// Range and length of each record that lies wholly in the block.
    ids: Vec<(u32, u32)>,
    places: Vec<Vec<Place>>,
    /// Bytes and records of the block for each range.
    wanted: Vec<(u64, u64)>,
    touched: Vec<u32>,
    proof: Proof,
}

impl DistributeLane<'_, '_> {
    /// Finds the records that lie wholly in the block, and their ranges. Returns where the first of
    /// them begins and where the last ends.
    fn classify(&mut self, block: &Block, fresh: bool) -> (usize, usize) {
        let shared = self.shared;
        self.ids.clear();
        let mut from;
        match shared.layout {
            Layout::Fixed(n) => {
                let n = n as usize;
                let phase = if fresh { 0 } else { self.phase(block.offset(), n) };
                let first = if phase == 0 { 0 } else { (n - phase).min(block.len()) };
                from = first;
                for record in block[first..].chunks_exact(n) {
                    self.classify_one(record, 0, block.offset() + from as u64);
                    from += n;
                }
                (first, from)
            }
            Layout::Lines => {
                let mut first = if fresh { Some(0) } else { None };
                from = 0;
                for end in memchr::memchr_iter(b'\n', block) {
                    match first {
                        Some(_) => self.classify_one(&block[from..end], 1, block.offset() + from as u64),
                        None => first = Some(end + 1),
                    }
                    from = end + 1;
                }
                (first.unwrap_or(block.len()), if first.is_some() { from } else { block.len() })
            }
        }
    }

    /// How many bytes of a record lie before the page at `offset`, in the file it belongs to.
    fn phase(&self, offset: u64, n: usize) -> usize {
        let page_bytes = self.shared.page_bytes as u64;
        let start = (self.shared.file_start)(offset / page_bytes);
        ((offset - start * page_bytes) % n as u64) as usize
    }

    #[inline(always)]
    fn classify_one(&mut self, record: &[u8], terminator: usize, place: u64) {
        let shared = self.shared;
        if shared.hashing {
            add_record(&mut self.proof, record);
        }
        let id = shared.cuts.locate(shared.key, record, place);
        let len = record.len() + terminator;
        self.ids.push((id as u32, len as u32));
        let wanted = &mut self.wanted[id];
        if wanted.1 == 0 {
            self.touched.push(id as u32);
        }
        wanted.0 += len as u64;
        wanted.1 += 1;
    }

    /// Waits for this page's turn, looking after the own queue meanwhile.
    fn wait_turn(&mut self, page: u64) -> Result<()> {
        loop {
            self.reap_ready()?;
            let shared = self.shared;
            let next = shared.next.lock().expect("no lane panics");
            if *next == page {
                return Ok(());
            }
            drop(shared.meters.stage.for_write(|| shared.turned.wait_timeout(next, POLL)));
            if shared.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }

    /// In its turn: completes the record cut by the page's start and reserves room for all others.
    fn take_turn(&mut self, block: &Block, fresh: bool, (first, last): (usize, usize)) -> Result<()> {
        let shared = self.shared;
        let page = block.offset() / shared.page_bytes as u64;
        self.wait_turn(page)?;
        let mut turn = shared.turn.lock().expect("no lane panics");
        let mut done = Vec::new();
        if !fresh && (first > 0 || !turn.carry.is_empty()) {
            if turn.carry.is_empty() {
                turn.carry_place = block.offset();
            }
            turn.carry.extend_from_slice(&block[..first]);
            if turn.carry.len() as u64 > shared.record_max {
                return Err(Error::LineTooLong { at: turn.carry_place, limit: shared.record_max });
            }
            if self.carry_is_whole(&turn.carry, block, first) {
                self.place_carry(&mut turn, &mut done)?;
            }
        }
        let touched = std::mem::take(&mut self.touched);
        for &id in &touched {
            let (bytes, records) = std::mem::take(&mut self.wanted[id as usize]);
            self.reserve(&mut turn, id as usize, bytes, records, &mut done)?;
            // Places are used up from the end.
            self.places[id as usize].reverse();
        }
        self.touched = touched;
        if last < block.len() {
            turn.carry_place = block.offset() + last as u64;
            turn.carry.extend_from_slice(&block[last..]);
        }
        drop(turn);
        *shared.next.lock().expect("no lane panics") += 1;
        shared.turned.notify_all();
        done.into_iter().try_for_each(|block| self.page_done(block))
    }

    fn carry_is_whole(&self, carry: &[u8], block: &Block, first: usize) -> bool {
        match self.shared.layout {
            Layout::Fixed(n) => carry.len() == n as usize,
            Layout::Lines => first > 0 && block[first - 1] == b'\n',
        }
    }

    /// Gives the carried record to its range.
    fn place_carry(&mut self, turn: &mut Turn, done: &mut Vec<Block>) -> Result<()> {
        let shared = self.shared;
        let carry = std::mem::take(&mut turn.carry);
        let record = match shared.layout {
            Layout::Fixed(_) => &carry[..],
            Layout::Lines => &carry[..carry.len() - 1],
        };
        if shared.hashing {
            add_record(&mut self.proof, record);
        }
        let id = shared.cuts.locate(shared.key, record, turn.carry_place);
        self.reserve(turn, id, carry.len() as u64, 1, done)?;
        let mut rest = &carry[..];
        for mut place in self.places[id].drain(..) {
            let n = place.push(rest);
            rest = &rest[n..];
            done.extend(place.commit());
        }
        assert!(rest.is_empty());
        turn.carry = carry;
        turn.carry.clear();
        Ok(())
    }

    /// Reserves the next `bytes` of range `id` in its open page and as many more as it takes.
    fn reserve(
        &mut self,
        turn: &mut Turn,
        id: usize,
        mut bytes: u64,
        records: u64,
        done: &mut Vec<Block>,
    ) -> Result<()> {
        let shared = self.shared;
        {
            let mut store = shared.stores[id].lock().expect("no lane panics");
            store.records += records;
            store.bytes += bytes;
        }
        while bytes > 0 {
            if turn.open[id].is_none() {
                let mut block = self.free_block()?;
                let mut store = shared.stores[id].lock().expect("no lane panics");
                block.set_offset((id as u64) << 32 | store.pages.len() as u64);
                store.pages.push(Stored::Coming);
                store.lens.push(shared.page_bytes as u32);
                turn.open[id] = Some(Fill::new(block));
            }
            let fill = turn.open[id].as_mut().expect("just made sure");
            let n = bytes.min(fill.room() as u64);
            self.places[id].push(fill.reserve(n as usize));
            bytes -= n;
            if fill.room() == 0 {
                done.extend(turn.open[id].take().expect("it is there").seal());
            }
        }
        Ok(())
    }

    /// A free block, waited for if need be while the own queue is looked after.
    fn free_block(&mut self) -> Result<Block> {
        loop {
            if let Some(block) = self.shared.pool.try_take() {
                return Ok(block);
            }
            if self.queue.in_flight() > 0 {
                self.reap_one(true)?;
            } else if let Some(block) = self.shared.pool.take_within(POLL) {
                return Ok(block);
            }
            if self.shared.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }

    /// Copies the block's records to their places, and looks after pages that became whole by it.
    fn copy(&mut self, block: &Block, first: usize) -> Result<()> {
        let mut rest = &block[first..];
        let mut done = Vec::new();
        for &(id, len) in &self.ids {
            let (mut record, after) = rest.split_at(len as usize);
            rest = after;
            let places = &mut self.places[id as usize];
            loop {
                let place = places.last_mut().expect("room was reserved for every record");
                record = &record[place.push(record)..];
                if place.left() == 0 {
                    done.extend(places.pop().expect("it is there").commit());
                }
                if record.is_empty() {
                    break;
                }
            }
        }
        let all_used = self.touched.iter().all(|&id| self.places[id as usize].is_empty());
        assert!(all_used, "every reserved place was filled");
        self.touched.clear();
        done.into_iter().try_for_each(|block| self.page_done(block))
    }

    /// A page is whole: it goes to scratch while there is excess, and stays otherwise.
    fn page_done(&mut self, mut block: Block) -> Result<()> {
        let shared = self.shared;
        let (id, index) = ((block.offset() >> 32) as usize, (block.offset() & 0xffff_ffff) as usize);
        let len = block.len();
        let spill = shared
            .excess
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left > 0).then(|| left.saturating_sub(len as u64))
            })
            .is_ok();
        let stored = if spill {
            let extent = shared.scratch.allocate(len, xxh3_64(&block))?;
            if self.queue.in_flight() == self.queue.depth() {
                self.reap_one(true)?;
            }
            block.set_len(len.next_multiple_of(SECTOR));
            let file = shared.scratch.file(extent.directory).clone();
            self.queue.submit(Op { kind: Kind::Write, file, at: extent.offset, block, tag: 0 });
            Stored::Spilled(extent)
        } else {
            Stored::Resident(block)
        };
        shared.stores[id].lock().expect("no lane panics").pages[index] = stored;
        Ok(())
    }

    fn reap_ready(&mut self) -> Result<()> {
        while self.reap_one(false)? {}
        Ok(())
    }

    fn reap_one(&mut self, wait: bool) -> Result<bool> {
        let queue = &mut self.queue;
        let done =
            if wait { self.shared.meters.stage.for_write(|| queue.reap(true)) } else { queue.reap(false) };
        let Some(Done { block, result, .. }) = done else { return Ok(false) };
        result?;
        self.shared.meters.scratch.wrote(block.len() as u64);
        Ok(true)
    }
}

impl Sink for DistributeLane<'_, '_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        let page = block.offset() / self.shared.page_bytes as u64;
        let fresh = (self.shared.file_start)(page) == page;
        let bounds = self.classify(&block, fresh);
        self.take_turn(&block, fresh, bounds)?;
        self.copy(&block, bounds.0)
    }

    fn finish(&mut self) -> Result<()> {
        while self.reap_one(true)? {}
        add_proof(&mut self.shared.proof.lock().expect("no lane panics"), &std::mem::take(&mut self.proof));
        Ok(())
    }
}

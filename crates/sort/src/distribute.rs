//! Distribution, the first pass over the input. It copies records into pages of their ranges and spills pages until
//! the rest fits in memory.
//!
//! Model: lanes classify blocks in parallel. Each block has a *sequence slot* in the order of the stream. In the slot
//! its lane reserves space in each range for the records of the block; then it copies them, again in parallel. So
//! every range is in input order, and a record that crosses blocks is passed from slot to slot.
//!
//! ```text
//! block k   -> classify ->| slot: complete the cut record, reserve, keep the tail |-> copy -> pages
//! block k+1 -> classify ........ waits ->| slot ...                               |-> copy -> pages
//! ```
//!
//! The first `excess` bytes are spilled as their pages become full, the rest stays in memory. The length of a stream
//! is unknown, so a stream is spilled whenever memory is full. While everything is spilled, a lane in its slot
//! regularly closes all open pages. When these pages are written, all records before them are in scratch, and the
//! manifest gets a *checkpoint*.
//! Invariant: the pages of a range, in order, hold its records in input order.
//! Non-goals: choosing the split points; sorting.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use thalweg_api::Proof;
use thalweg_base::sabotage;
use thalweg_block::{Block, Pool, Reservation, SharedBlock};
use thalweg_io::{Done, Queue};
use thalweg_pump::{Inputs, Meters, Sink};
use thalweg_record::{
    InPlace, Key, Layout, SplitPoints, TAG_BYTES, Tags, add_hash, add_proof, add_record, each_record,
    record_hash,
};

use crate::geometry::KeepFree;
use crate::in_order::{Before, InBlock, Orders, SoFar};
use crate::manifest::{Checkpoint, Manifest, RangeGain};
use crate::range::{RangeStore, Stored};
use crate::scratch::{Extent, Scratch};
use crate::stream::{Feed, KEEP_FREE_PAGES};
use crate::{Error, Result};

/// How long a lane waits before it polls its own queue, which may hold blocks that other lanes need.
const POLL: Duration = Duration::from_micros(200);
/// After this many timeouts, a page that was to stay in memory is spilled.
const POLLS_TO_MAKE_ROOM: u32 = 16;

/// The state that all lanes of a distribution share.
pub(crate) struct Distribution<'a> {
    config: Config<'a>,
    /// Bytes of a page of a range.
    page_bytes: usize,
    /// The page whose sequence slot is current.
    next: Mutex<u64>,
    slot_passed: Condvar,
    /// Locked only by the lane in its sequence slot.
    slot: Mutex<SlotState>,
    stores: Vec<Mutex<RangeStore>>,
    /// Bytes that are still to be spilled.
    excess: AtomicU64,
    /// Bytes of all full pages so far.
    whole_bytes: AtomicU64,
    /// The number of ranges, from the first one, that are already in the output. Their pages are dropped.
    done_ranges: usize,
}

/// Where and how often checkpoints are written.
pub(crate) struct Checkpoints<'a> {
    pub(crate) manifest: &'a Manifest,
    /// Pages of the input between two checkpoints.
    pub(crate) every_pages: u64,
    state: Mutex<CheckpointIntervals>,
}

/// An epoch is the time between two checkpoints. A page belongs to the epoch in which it is closed.
#[derive(Default)]
struct CheckpointIntervals {
    /// The current epoch.
    current: u64,
    /// For each epoch that is not in the manifest yet: the number of its pages that are not written yet, and its
    /// checkpoint once the epoch has ended.
    open: VecDeque<(usize, Option<Checkpoint>)>,
    /// For each range, the number of pages that are in the manifest.
    noted: Vec<usize>,
}

impl<'a> Checkpoints<'a> {
    pub(crate) fn new(manifest: &'a Manifest, every_pages: u64) -> Checkpoints<'a> {
        let state = CheckpointIntervals { current: 0, open: VecDeque::from([(0, None)]), noted: Vec::new() };
        Checkpoints { manifest, every_pages: every_pages.max(1), state: Mutex::new(state) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckpointIntervals> {
        self.state.lock().expect("no lane panics")
    }

    /// Counts a page of the current epoch that is on its way to scratch.
    fn page_closed(&self) {
        self.lock().open.back_mut().expect("there is a current epoch").0 += 1;
    }
}

/// The state of an earlier run from which this one resumes.
#[derive(Default)]
pub(crate) struct Resumed {
    pub(crate) next_page: u64,
    pub(crate) carry: Vec<u8>,
    pub(crate) carry_place: u64,
    pub(crate) proof: Proof,
    pub(crate) stores: Vec<RangeStore>,
    /// The number of ranges, from the first one, that are already in the output. Their pages are dropped.
    pub(crate) done_ranges: usize,
}

impl Resumed {
    /// Bytes that are already in scratch.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.stores.iter().map(|store| store.bytes).sum()
    }
}

/// Identifies an open page: its epoch, its range and its index in the range. All pages are closed at the end of an
/// epoch, so a page is opened and closed in the same epoch.
fn page_mark(epoch: u64, id: usize, index: usize) -> u64 {
    assert!(epoch < 1 << 16 && id < 1 << 16 && index < 1 << 32);
    epoch << 48 | (id as u64) << 32 | index as u64
}

fn read_page_mark(mark: u64) -> (u64, usize, usize) {
    (mark >> 48, (mark >> 32 & 0xffff) as usize, (mark & 0xffff_ffff) as usize)
}

/// The state that only the lane in its sequence slot may access.
struct SlotState {
    /// The start of a record that continues in the next page, and its place.
    carry: Vec<u8>,
    carry_place: u64,
    open: Vec<Option<SharedBlock>>,
    /// The proof of all records before `carry`.
    proof: Proof,
    /// For each range, the order of its records before `carry`.
    orders: Vec<SoFar>,
}

/// Puts a tag in front of every record. Records are then ordered by their tags.
pub(crate) struct Tagging<'a> {
    pub(crate) tags: Tags,
    /// The input files; none if the input is a stream.
    pub(crate) inputs: Option<&'a Inputs>,
}

impl Tagging<'_> {
    /// For records in the file of this page, the place minus the origin: in each file, places begin at a page boundary.
    fn padding(&self, page: u64) -> u64 {
        self.inputs.map_or(0, |inputs| inputs.padding_before(page))
    }
}

/// The space for long lines, which are copied when they cross pages.
pub(crate) struct RecordRoom {
    /// Bytes of the longest line for which there is memory now.
    bytes: AtomicU64,
    /// The longest line for which pages may be given up.
    max: u64,
    /// How many copies of a line exist at once.
    copies: u64,
    /// The number of pages that are still to be given up.
    pages_owed: AtomicU64,
}

impl RecordRoom {
    pub(crate) fn new(bytes: u64, max: u64, copies: u64) -> RecordRoom {
        RecordRoom { bytes: AtomicU64::new(bytes.min(max)), max, copies, pages_owed: AtomicU64::new(0) }
    }
}

/// The configuration of a distribution.
pub(crate) struct Config<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    pub(crate) split_points: &'a SplitPoints,
    pub(crate) pool: &'a Pool,
    pub(crate) scratch: &'a Scratch,
    pub(crate) meters: &'a Meters,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) hashing: bool,
    /// Whether this is the first pass.
    pub(crate) is_first: bool,
    pub(crate) record_room: &'a RecordRoom,
    /// Bytes of a full page of the input.
    pub(crate) input_page_bytes: u64,
    /// Bytes to spill first.
    pub(crate) excess: u64,
    /// The number of pages to keep free. With fewer free pages a lane spills, whatever the excess.
    pub(crate) keep_free: &'a KeepFree,
    /// The input, if it is a stream. Pages that it has read ahead are still to be distributed.
    pub(crate) ahead: Option<&'a Feed>,
    /// Returns the first page of the file that a page belongs to.
    pub(crate) file_start: &'a (dyn Fn(u64) -> u64 + Sync),
    pub(crate) tagging: Option<Tagging<'a>>,
    pub(crate) checkpoints: Option<Checkpoints<'a>>,
}

impl Config<'_> {
    /// The orders of a range that are noticed. Tagged records are ordered by their tags, which are random.
    fn orders_noticed(&self) -> Orders {
        if self.tagging.is_some() { Orders::NONE } else { Orders::of(self.layout) }
    }
}

impl<'a> Distribution<'a> {
    /// Starts at the first page, or continues from `resumed`.
    pub(crate) fn new(config: Config<'a>, mut resumed: Resumed) -> Distribution<'a> {
        let ranges = config.split_points.ranges();
        resumed.stores.resize_with(ranges, RangeStore::default);
        let noticed = config.orders_noticed();
        // What an earlier run has distributed was not compared.
        let order = |store: &RangeStore| SoFar::new(if store.records > 0 { Orders::NONE } else { noticed });
        let orders = resumed.stores.iter().map(order).collect();
        if let Some(checkpoints) = &config.checkpoints {
            checkpoints.lock().noted = resumed.stores.iter().map(|s| s.pages.len()).collect();
        }
        Distribution {
            page_bytes: config.pool.block_size(),
            next: Mutex::new(resumed.next_page),
            slot_passed: Condvar::new(),
            slot: Mutex::new(SlotState {
                carry: resumed.carry,
                carry_place: resumed.carry_place,
                open: (0..ranges).map(|_| None).collect(),
                proof: resumed.proof,
                orders,
            }),
            stores: resumed.stores.into_iter().map(Mutex::new).collect(),
            excess: AtomicU64::new(config.excess),
            whole_bytes: AtomicU64::new(0),
            done_ranges: resumed.done_ranges,
            config,
        }
    }

    /// Makes a lane. `queue` is its own queue to scratch.
    pub(crate) fn lane(&self, queue: Box<dyn Queue>) -> DistributeLane<'_, 'a> {
        let ranges = self.config.split_points.ranges();
        let wanted = Wanted { bytes: 0, records: 0, order: InBlock::new(self.config.orders_noticed()) };
        DistributeLane {
            shared: self,
            queue,
            ids: Vec::new(),
            places: (0..ranges).map(|_| Vec::new()).collect(),
            wanted: vec![wanted; ranges],
            touched: Vec::new(),
            before: None,
            proof: Proof::default(),
            padding: 0,
        }
    }

    /// The number of pages to keep free after another page of `len` bytes became full.
    fn pages_wanted(&self, len: u64) -> usize {
        let bytes = self.whole_bytes.fetch_add(len, Ordering::Relaxed) + len;
        let Some(ahead) = self.config.ahead.map(Feed::ahead) else { return self.config.keep_free.at(bytes) };
        let pages = self.config.keep_free.at(bytes + (ahead * self.page_bytes) as u64);
        pages.saturating_sub(ahead).max(KEEP_FREE_PAGES)
    }

    /// Ends the distribution after all lanes have finished. Returns the ranges and the proof of all records. If a
    /// file lost its last newline during the distribution, the last line is omitted.
    pub(crate) fn finish(self) -> Result<(Vec<RangeStore>, Proof)> {
        let cut_off = self.cut_off(&self.slot.lock().expect("no lane panics"));
        let slot = self.slot.into_inner().expect("no lane panics");
        if !slot.carry.is_empty() && !self.config.layout.is_found_anywhere() {
            return Err(cut_off);
        }
        assert!(slot.carry.is_empty() || self.config.ahead.is_none(), "the last record of a stream is whole");
        let mut stores: Vec<RangeStore> =
            self.stores.into_iter().map(|s| s.into_inner().expect("no lane panics")).collect();
        for ((store, open), order) in stores.iter_mut().zip(slot.open).zip(slot.orders) {
            store.order = order.order();
            if let Some(fill) = open {
                let block = fill.seal().expect("every lane has committed its places");
                *store.pages.last_mut().expect("an open page is listed") = Stored::Resident(Box::new(block));
            }
        }
        Ok((stores, slot.proof))
    }

    /// The error for a carried record whose file has ended.
    fn cut_off(&self, slot: &SlotState) -> Error {
        Error::CutOff { at: slot.carry_place, bytes: slot.carry.len() as u64 }
    }
}

/// The records of a block that belong to one range.
#[derive(Clone)]
struct Wanted {
    bytes: u64,
    records: u64,
    order: InBlock,
}

impl Wanted {
    #[inline(always)]
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.records += 1;
    }
}

/// One lane of a distribution: a sink for blocks of the input.
pub(crate) struct DistributeLane<'d, 'a> {
    shared: &'d Distribution<'a>,
    queue: Box<dyn Queue>,
    /// Range and length of each record that lies completely in the block.
    ids: Vec<(u32, u32)>,
    places: Vec<Vec<Reservation>>,
    /// For each range, what in the block belongs to it.
    wanted: Vec<Wanted>,
    touched: Vec<u32>,
    before: Option<Before>,
    proof: Proof,
    /// The place of a record minus its origin, in the file of the block.
    padding: u64,
}

impl DistributeLane<'_, '_> {
    /// Finds the records that lie completely in the block, starting at `first`, and their ranges. Returns the end of
    /// the last one.
    fn classify(&mut self, block: &Block, first: usize) -> usize {
        self.ids.clear();
        self.before = None;
        let offset = block.offset();
        each_record!(self.shared.config.layout, block, first, |at, record, len| {
            self.classify_one(block, at, record, len, offset + at as u64);
        })
    }

    /// The offset in the block at which the first record begins. The file has `before` bytes before the block. If the
    /// offset depends on the preceding block, this waits for the sequence slot.
    fn first_record(&mut self, block: &Block, page: u64, before: u64) -> Result<usize> {
        let layout = self.shared.config.layout;
        if layout.is_found_anywhere() {
            return Ok(layout.first_record(block, before).unwrap_or(block.len()));
        }
        self.wait_for_slot(page)?;
        let slot = self.shared.slot.lock().expect("no lane panics");
        match slot.carry.is_empty() {
            true => Ok(0),
            false if before == 0 => Err(self.shared.cut_off(&slot)),
            false => Ok(layout.completes(&slot.carry, block).unwrap_or(block.len())),
        }
    }

    #[inline(always)]
    fn classify_one(&mut self, block: &[u8], at: usize, record: InPlace<'_>, len: usize, place: u64) {
        let shared = self.shared;
        let own = at..at + record.len();
        if let Some(before) = &mut self.before
            && self.wanted[before.id].order.is_repeat(block, &own)
        {
            let limit =
                || shared.config.split_points.last_origin(shared.config.key, record.alone(), before.id);
            if place <= *before.last_place.get_or_insert_with(limit) {
                add_hash(&mut self.proof, record.len(), before.hash);
                self.ids.push((before.id as u32, len as u32));
                let wanted = &mut self.wanted[before.id];
                wanted.order.repeats(own);
                return wanted.add(len);
            }
        }
        let hash = if shared.config.hashing { record_hash(record.alone()) } else { 0 };
        add_hash(&mut self.proof, record.len(), hash);
        let (id, tag_bytes) = self.locate(record, place);
        self.ids.push((id as u32, len as u32));
        let wanted = &mut self.wanted[id];
        let is_first = wanted.records == 0;
        if is_first {
            self.touched.push(id as u32);
        }
        if wanted.order.orders.is_any() {
            wanted.order.add(shared.config.key, block, own, is_first);
            self.before = Some(Before { id, hash, last_place: None });
        }
        wanted.add(tag_bytes + len);
    }

    /// The range of the record at `place`, and the length of the tag that is put in front of it.
    #[inline(always)]
    fn locate(&self, record: InPlace<'_>, place: u64) -> (usize, usize) {
        let shared = self.shared;
        match self.tag(place) {
            None => (shared.config.split_points.locate(shared.config.key, record, place), 0),
            Some(tag) => {
                (shared.config.split_points.locate(shared.config.key, tag[..].into(), place), TAG_BYTES)
            }
        }
    }

    /// The tag of the record at `place`.
    #[inline(always)]
    fn tag(&self, place: u64) -> Option<[u8; TAG_BYTES]> {
        let padding = if sabotage::breaks("tag-of-place") { 0 } else { self.padding };
        self.shared.config.tagging.as_ref().map(|tagging| tagging.tags.of(place - padding))
    }

    /// Waits for the sequence slot of this page, and polls the lane's own queue while waiting.
    fn wait_for_slot(&mut self, page: u64) -> Result<()> {
        loop {
            self.reap_ready()?;
            let shared = self.shared;
            let next = shared.next.lock().expect("no lane panics");
            if *next == page {
                return Ok(());
            }
            drop(shared.config.meters.stage.for_write(|| shared.slot_passed.wait_timeout(next, POLL)));
            if shared.config.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }

    /// In the sequence slot: completes the record that crosses the start of the page, and reserves space for all
    /// other records.
    fn in_slot(&mut self, block: &Block, fresh: bool, (first, last): (usize, usize)) -> Result<()> {
        let shared = self.shared;
        let page = block.offset() / shared.config.input_page_bytes;
        self.wait_for_slot(page)?;
        let mut slot = shared.slot.lock().expect("no lane panics");
        let mut done = Vec::new();
        if !fresh && (first > 0 || !slot.carry.is_empty()) {
            if slot.carry.is_empty() {
                slot.carry_place = block.offset();
            }
            let layout = shared.config.layout;
            let is_whole = layout.completes(&slot.carry, &block[..first]).is_some();
            slot.carry.reserve_exact(first);
            slot.carry.extend_from_slice(&block[..first]);
            if layout.fixed_bytes().is_none() {
                let end_bytes = if is_whole { layout.end_bytes() } else { 0 };
                self.want_record_room((slot.carry.len() - end_bytes) as u64, slot.carry_place)?;
            }
            if is_whole {
                self.place_carry(&mut slot)?;
            }
        }
        let touched = std::mem::take(&mut self.touched);
        for &id in &touched {
            let wanted = &mut self.wanted[id as usize];
            slot.orders[id as usize].add_block(shared.config.key, block, &mut wanted.order);
            let (bytes, records) = (std::mem::take(&mut wanted.bytes), std::mem::take(&mut wanted.records));
            self.reserve(&mut slot, id as usize, bytes, records, &mut done)?;
            // Reservations are used from the end.
            self.places[id as usize].reverse();
        }
        self.touched = touched;
        add_proof(&mut slot.proof, &std::mem::take(&mut self.proof));
        if last < block.len() {
            slot.carry_place = block.offset() + last as u64;
            slot.carry.extend_from_slice(&block[last..]);
        }
        self.end_epoch(&mut slot, page + 1, &mut done);
        drop(slot);
        *shared.next.lock().expect("no lane panics") += 1;
        shared.slot_passed.notify_all();
        done.into_iter().try_for_each(|block| self.page_done(block))
    }

    /// Closes all open pages if a checkpoint is due before `next_page` and everything is being spilled.
    fn end_epoch(&self, slot: &mut SlotState, next_page: u64, done: &mut Vec<Block>) {
        let shared = self.shared;
        let Some(checkpoints) = &shared.config.checkpoints else { return };
        if !next_page.is_multiple_of(checkpoints.every_pages) || shared.excess.load(Ordering::Relaxed) == 0 {
            return;
        }
        for open in &mut slot.open {
            if open.as_ref().is_some_and(|fill| !fill.is_empty()) {
                let fill = open.take().expect("it was looked at just now");
                checkpoints.page_closed();
                done.extend(fill.seal());
            }
        }
        let mut epochs = checkpoints.lock();
        let CheckpointIntervals { open, noted, current } = &mut *epochs;
        let mut ranges = Vec::with_capacity(noted.len());
        for (store, noted) in shared.stores.iter().zip(noted) {
            let store = store.lock().expect("no lane panics");
            // These stand for the real extents until those are known; only their number matters now.
            let extents = vec![Extent::default(); store.pages.len() - *noted];
            *noted = store.pages.len();
            ranges.push(RangeGain { records: store.records, bytes: store.bytes, extents });
        }
        open.back_mut().expect("there is a current epoch").1 = Some(Checkpoint {
            next_page,
            carry: slot.carry.clone(),
            carry_place: slot.carry_place,
            proof: slot.proof,
            files: Vec::new(),
            ranges,
        });
        open.push_back((0, None));
        *current += 1;
    }

    /// Counts a page of `epoch` that is now in scratch. Appends the checkpoints that are now complete.
    fn page_written(&self, epoch: u64) -> Result<()> {
        let shared = self.shared;
        let Some(checkpoints) = &shared.config.checkpoints else { return Ok(()) };
        let mut epochs = checkpoints.lock();
        let first = epochs.current + 1 - epochs.open.len() as u64;
        epochs.open[(epoch - first) as usize].0 -= 1;
        while matches!(epochs.open.front(), Some((0, Some(_)))) {
            let (_, checkpoint) = epochs.open.pop_front().expect("it was looked at just now");
            let mut checkpoint = checkpoint.expect("it was looked at just now");
            checkpoint.files = shared.config.scratch.paths();
            let later = |id: usize| -> usize {
                epochs.open.iter().filter_map(|(_, c)| c.as_ref()).map(|c| c.ranges[id].extents.len()).sum()
            };
            for (id, gain) in checkpoint.ranges.iter_mut().enumerate() {
                let store = shared.stores[id].lock().expect("no lane panics");
                let end = epochs.noted[id] - later(id);
                let from = end - gain.extents.len();
                for (extent, page) in gain.extents.iter_mut().zip(&store.pages[from..end]) {
                    match page {
                        Stored::Spilled(spilled) => *extent = *spilled,
                        // The excess ended in this epoch, so some of its pages stay in memory.
                        _ => return Ok(()),
                    }
                }
            }
            checkpoints.manifest.checkpoint(&checkpoint)?;
        }
        Ok(())
    }

    /// Moves the carried record to its range, at most one page at a time: it may be larger than the free memory.
    fn place_carry(&mut self, slot: &mut SlotState) -> Result<()> {
        let shared = self.shared;
        let mut carry = std::mem::take(&mut slot.carry);
        let record = &carry[..carry.len() - shared.config.layout.end_bytes()];
        if shared.config.hashing {
            add_record(&mut self.proof, record);
        }
        let (id, _) = self.locate(record.into(), slot.carry_place);
        slot.orders[id].add(shared.config.key, record);
        if sabotage::strikes("drop-record") {
            return Ok(());
        }
        carry.splice(..0, self.tag(slot.carry_place).into_iter().flatten());
        let mut records = 1;
        for piece in carry.chunks(shared.page_bytes) {
            let mut done = Vec::new();
            self.reserve(slot, id, piece.len() as u64, records, &mut done)?;
            records = 0;
            let mut rest = piece;
            for mut place in self.places[id].drain(..) {
                let n = place.push(rest);
                rest = &rest[n..];
                done.extend(place.commit());
            }
            assert!(rest.is_empty());
            done.into_iter().try_for_each(|block| self.page_done(block))?;
        }
        slot.carry = carry;
        slot.carry.clear();
        Ok(())
    }

    /// Reserves the next `bytes` bytes of range `id`, in its open page and in as many new pages as needed.
    fn reserve(
        &mut self,
        slot: &mut SlotState,
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
            if slot.open[id].is_none() {
                let mut block = self.free_block()?;
                // This comes before the lock of the store: appending a checkpoint takes the locks in that order.
                let epoch = shared.config.checkpoints.as_ref().map_or(0, |c| c.lock().current);
                let mut store = shared.stores[id].lock().expect("no lane panics");
                block.set_offset(page_mark(epoch, id, store.pages.len()));
                store.pages.push(Stored::Coming);
                slot.open[id] = Some(SharedBlock::new(block));
            }
            let fill = slot.open[id].as_mut().expect("just made sure");
            let n = bytes.min(fill.room() as u64);
            self.places[id].push(fill.reserve(n as usize));
            bytes -= n;
            if fill.room() == 0 {
                if let Some(checkpoints) = &shared.config.checkpoints {
                    checkpoints.page_closed();
                }
                done.extend(slot.open[id].take().expect("it is there").seal());
            }
        }
        Ok(())
    }

    /// Waits for a free block, and polls the lane's own queue while waiting. If no block becomes free, because more
    /// pages are open than planned, spills a page that was to stay in memory.
    fn free_block(&mut self) -> Result<Block> {
        let mut polls = 0;
        loop {
            if let Some(block) = self.shared.config.pool.try_take() {
                return Ok(block);
            }
            if self.queue.in_flight() > 0 {
                self.reap_one(true)?;
            } else if let Some(block) = self.shared.config.pool.take_within(POLL) {
                return Ok(block);
            } else {
                polls += 1;
                if polls % POLLS_TO_MAKE_ROOM == 0 {
                    self.make_room()?;
                }
            }
            if self.shared.config.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }

    /// Reserves memory for the copies of a line of `len` bytes that begins at `at`.
    fn want_record_room(&mut self, len: u64, at: u64) -> Result<()> {
        let RecordRoom { bytes, max, copies, pages_owed } = self.shared.config.record_room;
        let room = bytes.load(Ordering::Relaxed);
        if len > *max {
            let what = self.shared.config.layout.noun();
            return Err(Error::RecordTooLong { what, path: None, at, limit: *max });
        }
        if len > room {
            let more = (2 * room).clamp(len, *max);
            bytes.store(more, Ordering::Relaxed);
            pages_owed.fetch_add((more - room) * copies / self.shared.page_bytes as u64, Ordering::Relaxed);
        }
        self.make_record_room()
    }

    /// Returns pages to the kernel to make room for copies of long lines, but no pages that ranges and queues need
    /// now.
    fn make_record_room(&mut self) -> Result<()> {
        let (pool, owed) = (&self.shared.config.pool, &self.shared.config.record_room.pages_owed);
        let needed = 2 * self.shared.config.split_points.ranges() + 4 * self.queue.depth();
        while owed.load(Ordering::Relaxed) > 0 && pool.capacity() > needed {
            if pool.free() <= needed / 2 && !self.make_room()? {
                break;
            }
            let Some(block) = pool.try_take() else { break };
            block.retire();
            owed.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Spills the last page that was to stay in memory. Returns false if there is none.
    fn make_room(&mut self) -> Result<bool> {
        for store in self.shared.stores.iter().rev() {
            let mut store = store.lock().expect("no lane panics");
            let Some(page) = store.pages.iter_mut().rfind(|p| matches!(p, Stored::Resident(_))) else {
                continue;
            };
            let Stored::Resident(block) = std::mem::replace(page, Stored::Coming) else { unreachable!() };
            drop(store);
            self.spill(*block)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Copies the records of the block into their reservations, and handles the pages that this completes.
    fn copy(&mut self, block: &Block, (first, last): (usize, usize)) -> Result<()> {
        let mut from = first;
        let mut done = Vec::new();
        if let (&[id], None) = (&self.touched[..], &self.shared.config.tagging) {
            // As most blocks of an input in order.
            push_all(&mut self.places[id as usize], &block[first..], last - first, &mut done);
            self.ids.clear();
        }
        for &(id, len) in &self.ids {
            let tag = self.tag(block.offset() + from as u64);
            let places = &mut self.places[id as usize];
            if let Some(tag) = tag {
                push_all(places, &tag, TAG_BYTES, &mut done);
            }
            push_all(places, &block[from..], len as usize, &mut done);
            from += len as usize;
        }
        let all_used = self.touched.iter().all(|&id| self.places[id as usize].is_empty());
        assert!(all_used, "every reserved place was filled");
        self.touched.clear();
        done.into_iter().try_for_each(|block| self.page_done(block))
    }

    /// Spills a full page while there is excess; otherwise the page stays in memory.
    fn page_done(&mut self, block: Block) -> Result<()> {
        let shared = self.shared;
        let (_, id, index) = read_page_mark(block.offset());
        if id < shared.done_ranges {
            return Ok(());
        }
        let len = block.len() as u64;
        let is_excess = shared
            .excess
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left > 0).then(|| left.saturating_sub(len))
            })
            .is_ok();
        let wanted = shared.pages_wanted(len);
        if is_excess || shared.config.pool.free() < wanted {
            // The longer a stream gets, the less of it may stay in memory.
            if shared.config.ahead.is_some() && shared.config.pool.free() + 2 * self.queue.depth() < wanted {
                self.make_room()?;
            }
            return self.spill(block);
        }
        shared.stores[id].lock().expect("no lane panics").pages[index] = Stored::Resident(Box::new(block));
        Ok(())
    }

    /// Spills a full page.
    fn spill(&mut self, block: Block) -> Result<()> {
        let shared = self.shared;
        let (epoch, id, index) = read_page_mark(block.offset());
        let range = shared.config.is_first.then_some(id);
        let (extent, mut write) = shared.config.scratch.write(block, range, epoch)?;
        write.block[0] ^= u8::from(sabotage::strikes("flip-page"));
        if self.queue.in_flight() == self.queue.depth() {
            self.reap_one(true)?;
        }
        self.queue.submit(write);
        shared.stores[id].lock().expect("no lane panics").pages[index] = Stored::Spilled(extent);
        Ok(())
    }

    fn reap_ready(&mut self) -> Result<()> {
        while self.reap_one(false)? {}
        Ok(())
    }

    fn reap_one(&mut self, wait: bool) -> Result<bool> {
        let queue = &mut self.queue;
        let done = if wait {
            self.shared.config.meters.stage.for_write(|| queue.reap(true))
        } else {
            queue.reap(false)
        };
        let Some(Done { block, result, tag, .. }) = done else { return Ok(false) };
        result?;
        self.shared.config.meters.scratch.wrote(block.len() as u64);
        drop(block);
        self.page_written(tag)?;
        Ok(true)
    }
}

/// Copies the first `len` bytes of `bytes` to the last reservation and, when it is full, to those before it.
#[inline(always)]
fn push_all(places: &mut Vec<Reservation>, mut bytes: &[u8], mut len: usize, done: &mut Vec<Block>) {
    loop {
        let place = places.last_mut().expect("room was reserved for every record");
        let n = place.push_start(bytes, len);
        (bytes, len) = (&bytes[n..], len - n);
        place.expect();
        if place.left() == 0 {
            done.extend(places.pop().expect("it is there").commit());
        }
        if len == 0 {
            break;
        }
    }
}

impl Sink for DistributeLane<'_, '_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        let page = block.offset() / self.shared.config.input_page_bytes;
        let before = (page - (self.shared.config.file_start)(page)) * self.shared.config.input_page_bytes;
        self.padding = self.shared.config.tagging.as_ref().map_or(0, |tagging| tagging.padding(page));
        let first = self.first_record(&block, page, before)?;
        let last = self.classify(&block, first);
        self.in_slot(&block, before == 0, (first, last))?;
        self.copy(&block, (first, last))
    }

    fn finish(&mut self) -> Result<()> {
        while self.reap_one(true)? {}
        Ok(())
    }
}

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
//! rest stays. Of a stream, whose length nobody knows, what comes when memory is full is spilled. Now and then, while everything is being spilled, the lane whose turn it is closes all open
//! pages: when those are written, everything before them is in scratch, and the manifest is told (a
//! *checkpoint*).
//! Invariant: a range's pages, in order, hold its records in input order.
//! Non-goals: choosing the cuts; sorting.

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
    InPlace, Key, Layout, SplitPoints, TAG_BYTES, Tags, add_proof, add_record, each_record,
};

use crate::geometry::KeepFree;
use crate::manifest::{Checkpoint, Manifest, RangeGain};
use crate::range::{RangeStore, Stored};
use crate::scratch::{Extent, Scratch};
use crate::stream::{Feed, KEEP_FREE_PAGES};
use crate::{Error, Result};

/// How long a lane waits before it looks at its own queue again: blocks that others need may sit there.
const POLL: Duration = Duration::from_micros(200);
/// So many such waits in vain, and a page in memory makes room.
const POLLS_TO_MAKE_ROOM: u32 = 16;

/// The shared part of a distribution.
pub(crate) struct Distribution<'a> {
    config: Config<'a>,
    /// Bytes of a page of a range.
    page_bytes: usize,
    /// The page whose turn it is.
    next: Mutex<u64>,
    slot_passed: Condvar,
    /// Locked by the lane whose turn it is, and by nobody else.
    slot: Mutex<SlotState>,
    stores: Vec<Mutex<RangeStore>>,
    /// Bytes that still have to be spilled.
    excess: AtomicU64,
    /// Bytes of all pages that became whole.
    whole_bytes: AtomicU64,
    /// Ranges whose pages nobody wants any more, from the first on.
    done_ranges: usize,
}

/// Where and how often to note what is in scratch.
pub(crate) struct Checkpoints<'a> {
    pub(crate) manifest: &'a Manifest,
    /// Pages of the input between two checkpoints.
    pub(crate) every_pages: u64,
    state: Mutex<Epochs>,
}

/// Epochs are the times between checkpoints. Pages belong to the epoch in which they were closed.
#[derive(Default)]
struct Epochs {
    /// The epoch that pages are closed in now.
    current: u64,
    /// For each epoch that is not in the manifest, the pages not written yet, and the checkpoint that
    /// ends it, once it has ended.
    open: VecDeque<(usize, Option<Checkpoint>)>,
    /// How many pages of each range are in the manifest.
    noted: Vec<usize>,
}

impl<'a> Checkpoints<'a> {
    pub(crate) fn new(manifest: &'a Manifest, every_pages: u64) -> Checkpoints<'a> {
        let state = Epochs { current: 0, open: VecDeque::from([(0, None)]), noted: Vec::new() };
        Checkpoints { manifest, every_pages: every_pages.max(1), state: Mutex::new(state) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Epochs> {
        self.state.lock().expect("no lane panics")
    }

    /// One more page of the current epoch is on its way to scratch.
    fn page_closed(&self) {
        self.lock().open.back_mut().expect("there is a current epoch").0 += 1;
    }
}

/// What an earlier run left: where to go on, and with what.
#[derive(Default)]
pub(crate) struct Resumed {
    pub(crate) next_page: u64,
    pub(crate) carry: Vec<u8>,
    pub(crate) carry_place: u64,
    pub(crate) proof: Proof,
    pub(crate) stores: Vec<RangeStore>,
    /// Ranges that are in the output already, from the first on: their pages are let go of.
    pub(crate) done_ranges: usize,
}

impl Resumed {
    /// Bytes that are in scratch already.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.stores.iter().map(|store| store.bytes).sum()
    }
}

/// What a page in the making is known by: its epoch, its range and its index there. All pages of an epoch
/// are closed when the epoch ends, so the epoch in which a page is opened is the one in which it is closed.
fn page_mark(epoch: u64, id: usize, index: usize) -> u64 {
    assert!(epoch < 1 << 16 && id < 1 << 16 && index < 1 << 32);
    epoch << 48 | (id as u64) << 32 | index as u64
}

fn read_page_mark(mark: u64) -> (u64, usize, usize) {
    (mark >> 48, (mark >> 32 & 0xffff) as usize, (mark & 0xffff_ffff) as usize)
}

/// What only the lane whose turn it is may touch.
struct SlotState {
    /// The beginning of a record whose end is in the next page, and where it began.
    carry: Vec<u8>,
    carry_place: u64,
    open: Vec<Option<SharedBlock>>,
    /// Proof of all records before the carry.
    proof: Proof,
}

/// What is put in front of every record: its tag, by which it then is ordered.
pub(crate) struct Tagging<'a> {
    pub(crate) tags: Tags,
    /// The files of the pages, if it is files and not a stream.
    pub(crate) inputs: Option<&'a Inputs>,
}

impl Tagging<'_> {
    /// By how much places are ahead of origins in the file that a page belongs to.
    fn padding(&self, page: u64) -> u64 {
        self.inputs.map_or(0, |inputs| inputs.padding_before(page))
    }
}

/// How long lines may be, which are held whole where pages cut them.
pub(crate) struct RecordRoom {
    /// The longest, in bytes, that there is memory for beside the pages.
    bytes: AtomicU64,
    /// Up to here pages make room as it is needed.
    max: u64,
    /// How many times a line is held at the same time.
    copies: u64,
    /// Pages that are to be given back for it.
    pages_owed: AtomicU64,
}

impl RecordRoom {
    pub(crate) fn new(bytes: u64, max: u64, copies: u64) -> RecordRoom {
        RecordRoom { bytes: AtomicU64::new(bytes.min(max)), max, copies, pages_owed: AtomicU64::new(0) }
    }
}

/// What a distribution is made of.
pub(crate) struct Config<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    pub(crate) split_points: &'a SplitPoints,
    pub(crate) pool: &'a Pool,
    pub(crate) scratch: &'a Scratch,
    pub(crate) meters: &'a Meters,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) hashing: bool,
    /// Whether its ranges are those of the first pass.
    pub(crate) is_first: bool,
    pub(crate) record_room: &'a RecordRoom,
    /// Bytes of a whole page of what is distributed.
    pub(crate) input_page_bytes: u64,
    /// Bytes to spill, from the first on.
    pub(crate) excess: u64,
    /// Pages that must stay free: below that pages are spilled whatever the excess.
    pub(crate) keep_free: &'a KeepFree,
    /// The stream that is read, if one is. Its pages that are in memory, and not distributed yet, will be.
    pub(crate) ahead: Option<&'a Feed>,
    /// The first page of the file that a page belongs to.
    pub(crate) file_start: &'a (dyn Fn(u64) -> u64 + Sync),
    pub(crate) tagging: Option<Tagging<'a>>,
    pub(crate) checkpoints: Option<Checkpoints<'a>>,
}

impl<'a> Distribution<'a> {
    /// A distribution that begins at the first page, or goes on from what was left.
    pub(crate) fn new(config: Config<'a>, mut resumed: Resumed) -> Distribution<'a> {
        let ranges = config.split_points.ranges();
        resumed.stores.resize_with(ranges, RangeStore::default);
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
            }),
            stores: resumed.stores.into_iter().map(Mutex::new).collect(),
            excess: AtomicU64::new(config.excess),
            whole_bytes: AtomicU64::new(0),
            done_ranges: resumed.done_ranges,
            config,
        }
    }

    /// A lane with a queue to scratch of its own.
    pub(crate) fn lane(&self, queue: Box<dyn Queue>) -> DistributeLane<'_, 'a> {
        DistributeLane {
            shared: self,
            queue,
            ids: Vec::new(),
            places: (0..self.config.split_points.ranges()).map(|_| Vec::new()).collect(),
            wanted: vec![(0, 0); self.config.split_points.ranges()],
            touched: Vec::new(),
            proof: Proof::default(),
            padding: 0,
        }
    }

    /// Pages that are to be free when another of `len` bytes is whole.
    fn pages_wanted(&self, len: u64) -> usize {
        let bytes = self.whole_bytes.fetch_add(len, Ordering::Relaxed) + len;
        let Some(ahead) = self.config.ahead.map(Feed::ahead) else { return self.config.keep_free.at(bytes) };
        let pages = self.config.keep_free.at(bytes + (ahead * self.page_bytes) as u64);
        pages.saturating_sub(ahead).max(KEEP_FREE_PAGES)
    }

    /// Ends the distribution when all lanes have finished. Returns the ranges and the proof of all
    /// records. Of a file that lost its last newline meanwhile the last line is not among them.
    pub(crate) fn finish(self) -> Result<(Vec<RangeStore>, Proof)> {
        let cut_off = self.cut_off(&self.slot.lock().expect("no lane panics"));
        let slot = self.slot.into_inner().expect("no lane panics");
        if !slot.carry.is_empty() && !self.config.layout.is_found_anywhere() {
            return Err(cut_off);
        }
        assert!(slot.carry.is_empty() || self.config.ahead.is_none(), "the last record of a stream is whole");
        let mut stores: Vec<RangeStore> =
            self.stores.into_iter().map(|s| s.into_inner().expect("no lane panics")).collect();
        for (store, open) in stores.iter_mut().zip(slot.open) {
            if let Some(fill) = open {
                let block = fill.seal().expect("every lane has committed its places");
                *store.pages.last_mut().expect("an open page is listed") = Stored::Resident(Box::new(block));
            }
        }
        Ok((stores, slot.proof))
    }

    /// The carry's record, whose file has ended.
    fn cut_off(&self, slot: &SlotState) -> Error {
        Error::CutOff { at: slot.carry_place, bytes: slot.carry.len() as u64 }
    }
}

/// One lane of a distribution: a sink for blocks of the input.
pub(crate) struct DistributeLane<'d, 'a> {
    shared: &'d Distribution<'a>,
    queue: Box<dyn Queue>,
    /// Range and length of each record that lies wholly in the block.
    ids: Vec<(u32, u32)>,
    places: Vec<Vec<Reservation>>,
    /// Bytes and records of the block for each range.
    wanted: Vec<(u64, u64)>,
    touched: Vec<u32>,
    proof: Proof,
    /// By how much places are ahead of origins in the file of the block.
    padding: u64,
}

impl DistributeLane<'_, '_> {
    /// Finds the records that lie wholly in the block, from the first on, and their ranges. Returns where the last of them
    /// ends.
    fn classify(&mut self, block: &Block, first: usize) -> usize {
        self.ids.clear();
        let offset = block.offset();
        each_record!(self.shared.config.layout, block, first, |at, record, len| {
            self.classify_one(record, len, offset + at as u64);
        })
    }

    /// Where the first record begins in a block before which lie so many bytes of its file. Where the block does not tell,
    /// that is known when the block's turn has come.
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
    fn classify_one(&mut self, record: InPlace<'_>, len: usize, place: u64) {
        let shared = self.shared;
        if shared.config.hashing {
            add_record(&mut self.proof, record.alone());
        }
        let (id, tag_bytes) = self.locate(record, place);
        self.ids.push((id as u32, len as u32));
        let wanted = &mut self.wanted[id];
        if wanted.1 == 0 {
            self.touched.push(id as u32);
        }
        wanted.0 += (tag_bytes + len) as u64;
        wanted.1 += 1;
    }

    /// The range of a record that begins at `place`, and how many bytes are put in front of it.
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

    /// What is put in front of the record that begins at `place`.
    #[inline(always)]
    fn tag(&self, place: u64) -> Option<[u8; TAG_BYTES]> {
        let padding = if sabotage::breaks("tag-of-place") { 0 } else { self.padding };
        self.shared.config.tagging.as_ref().map(|tagging| tagging.tags.of(place - padding))
    }

    /// Waits for this page's turn, looking after the own queue meanwhile.
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

    /// In its turn: completes the record cut by the page's start and reserves room for all others.
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
            let (bytes, records) = std::mem::take(&mut self.wanted[id as usize]);
            self.reserve(&mut slot, id as usize, bytes, records, &mut done)?;
            // Places are used up from the end.
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

    /// Closes all open pages if a checkpoint is due before page `next_page` and everything goes to scratch.
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
        let Epochs { open, noted, current } = &mut *epochs;
        let mut ranges = Vec::with_capacity(noted.len());
        for (store, noted) in shared.stores.iter().zip(noted) {
            let store = store.lock().expect("no lane panics");
            // The extents are filled in when they are all known; until then their number is kept.
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

    /// A page of `epoch` is in scratch. Notes the checkpoints that are complete by it.
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
                        // The excess ended inside this epoch: some of it stays in memory.
                        _ => return Ok(()),
                    }
                }
            }
            checkpoints.manifest.checkpoint(&checkpoint)?;
        }
        Ok(())
    }

    /// Gives the carried record to its range, no more at once than a page has room for: it may be longer than memory
    /// has free pages.
    fn place_carry(&mut self, slot: &mut SlotState) -> Result<()> {
        let shared = self.shared;
        let mut carry = std::mem::take(&mut slot.carry);
        let record = &carry[..carry.len() - shared.config.layout.end_bytes()];
        if shared.config.hashing {
            add_record(&mut self.proof, record);
        }
        let (id, _) = self.locate(record.into(), slot.carry_place);
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

    /// Reserves the next `bytes` of range `id` in its open page and as many more as it takes.
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
                // Asked before the store is locked: whoever notes a checkpoint locks the other way round.
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

    /// A free block, waited for if need be while the own queue is looked after. If none comes, because more
    /// pages are open than the layout thought, one that stays in memory makes room.
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

    /// Sees to it that there is room for the copies of a line of `len` bytes, which begins at `at`.
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

    /// Gives pages back to the kernel for the copies of long lines, as far as they are owed and ranges and queues can
    /// spare them now.
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

    /// Sends the last page that was to stay in memory to scratch. Returns whether there was one.
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

    /// Copies the block's records to their places, and looks after pages that became whole by it.
    fn copy(&mut self, block: &Block, first: usize) -> Result<()> {
        let mut from = first;
        let mut done = Vec::new();
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

    /// A page is whole: it goes to scratch while there is excess, and stays otherwise.
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
            // What a stream leaves in memory gets less the longer it gets.
            if shared.config.ahead.is_some() && shared.config.pool.free() + 2 * self.queue.depth() < wanted {
                self.make_room()?;
            }
            return self.spill(block);
        }
        shared.stores[id].lock().expect("no lane panics").pages[index] = Stored::Resident(Box::new(block));
        Ok(())
    }

    /// Sends a whole page to scratch.
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

/// Copies the first `len` of `bytes` to the last of the places and, when it is full, to those before it.
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
        self.copy(&block, first)
    }

    fn finish(&mut self) -> Result<()> {
        while self.reap_one(true)? {}
        Ok(())
    }
}

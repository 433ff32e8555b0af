//! A sort inside a program. The program puts blocks or bytes, and takes sorted blocks.
//!
//! ```text
//! put => [ memory fills ] -- full, or the input ends --> the sort starts on a thread of its own
//! put => [ transfer pool ] => handover => lanes           as for a stream
//! next <= handover <= lanes                               blocks of the transfer pool
//! ```
//!
//! Model: at first memory is filled. When it is full, or the input ends, the sort starts. From then on, blocks to be
//! filled come from the transfer pool, and while none is free the program waits: that is the back-pressure.
//! Invariant: the memory limit is that of the sorter alone, including the blocks that the program holds: at most
//! [`BLOCKS_HELD_MAX`] at once, input and output together. Both pools have extra blocks for them.
//! Invariant: dropping either end stops the sort and waits for it; no scratch files and no memory remain.
//! Non-goals: resuming.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_api::Receipt;
use thalweg_base::clock::Stopwatch;
use thalweg_block::{Block, Held, Pool};
use thalweg_io::process;
use thalweg_record::{Layout, Walk};

use crate::handover::Handover;
use crate::job::run_handed;
use crate::options::{BLOCKS_HELD_MAX, Sort};
use crate::stream::{Expected, Feed, Filled, Room};
use crate::{Error, Result};

/// The maximum number of blocks that the program holds, plus one that the sorter itself holds.
const OUTSIDE_PAGES: usize = BLOCKS_HELD_MAX + 1;
/// The number of output blocks for each lane that may wait to be taken: as many as two jobs fill, so that a lane need
/// not wait for the lane before it.
const WINDOW_PAGES: usize = 8;
/// The transfer pool already has four blocks for the sink of a lane; one of them is the block with which the lane
/// waits.
const WINDOW_PAGES_EXTRA: usize = WINDOW_PAGES - 3;
/// How long to wait for a free block before checking whether the sort has failed.
const PATIENCE: Duration = Duration::from_millis(20);

/// The input end of a sort.
pub struct Sorter {
    // Fixed at creation.
    layout: Layout,
    main: Pool,
    transfer: Pool,
    held: Held,

    // Growing with the input.
    phase: Phase,
    /// The page that is not full yet.
    open: Option<Block>,
    /// Bytes of the pages before `open`.
    bytes: u64,
    /// The record bounds at the end of these bytes.
    walk: Walk,
    ended: bool,

    engine: Engine,
}

enum Phase {
    Filling(Box<Filling>),
    Running,
}

/// What is needed to start the sort.
struct Filling {
    sort: Sort,
    room: Room,
    clock: Stopwatch,
    cpu_seconds: f64,
    ahead: VecDeque<Block>,
}

/// The output end of a sort.
pub struct SorterOutput {
    held: Held,
    engine: Engine,
}

/// The thread that sorts. When this is dropped, the thread is stopped and joined.
struct Engine {
    handover: Arc<Handover>,
    thread: Option<JoinHandle<()>>,
}

impl Sorter {
    /// Allocates memory. The inputs, the output and the `resume` option of `sort` are ignored.
    pub fn new(sort: Sort) -> Result<Sorter> {
        assert!(!sort.scratch.is_empty(), "somewhere to spill to, even if that is never needed");
        let sort = Sort {
            inputs: Vec::new(),
            output: sort.scratch[0].at(""),
            output_is_stream: true,
            resume: false,
            hardware: None,
            ..sort
        };
        sort.stored_key()?;
        let room = room_of(&sort)?;
        let rough = &room.rough;
        let main = Pool::new(rough.page_bytes, rough.main_pages + OUTSIDE_PAGES)?;
        let transfer = Pool::new(
            rough.page_bytes,
            rough.transfer_blocks + OUTSIDE_PAGES + rough.lanes * WINDOW_PAGES_EXTRA,
        )?;
        let window_bytes = (rough.lanes * WINDOW_PAGES * rough.page_bytes) as u64;
        Ok(Sorter {
            layout: sort.layout,
            walk: Walk::new(sort.layout),
            main,
            transfer,
            held: Held::default(),
            phase: Phase::Filling(Box::new(Filling {
                sort,
                room,
                clock: Stopwatch::start(),
                cpu_seconds: process::usage().cpu_seconds,
                ahead: VecDeque::new(),
            })),
            open: None,
            bytes: 0,

            ended: false,
            engine: Engine { handover: Arc::new(Handover::new(window_bytes)), thread: None },
        })
    }

    /// Describes the input before it arrives. Split points are chosen from this if memory cannot hold the input.
    pub fn expect(&mut self, expected: Expected) {
        match &mut self.phase {
            Phase::Filling(filling) => filling.room.expect(expected),
            Phase::Running => unreachable!("an expectation behind the input's beginning"),
        }
    }

    /// Returns an empty block to fill and put. Waits while all blocks are in use.
    pub fn block(&mut self) -> Result<Block> {
        if self.held.count() >= BLOCKS_HELD_MAX {
            return Err(Error::BlocksHeld);
        }
        Ok(self.free_block()?.held(&self.held))
    }

    fn free_block(&mut self) -> Result<Block> {
        if let Phase::Filling(_) = self.phase {
            return Ok(self.main.try_take().expect("there is room beside what memory is filled with"));
        }
        loop {
            if let Some(block) = self.transfer.take_within(PATIENCE) {
                return Ok(block);
            }
            self.engine.check()?;
        }
    }

    /// Puts a block of records. A block from [`Sorter::block`] is copied only if a page is partly filled.
    pub fn put(&mut self, block: Block) -> Result<()> {
        assert!(!self.ended, "a block after the end of the input");
        let is_ours = block.is_of(&self.main) || block.is_of(&self.transfer);
        if !is_ours || self.open.is_some() {
            return self.put_bytes(&block);
        }
        let block = block.unheld();
        if block.len() == block.capacity() {
            return self.put_page(block);
        }
        if !block.is_empty() {
            self.open = Some(block);
        }
        Ok(())
    }

    /// Puts the next bytes of the input, of any length; they may end inside a record.
    pub fn put_bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        assert!(!self.ended, "bytes after the end of the input");
        while !bytes.is_empty() {
            let mut page = match self.open.take() {
                Some(page) => page,
                None => self.free_block()?,
            };
            let at = page.len();
            let (now, later) = bytes.split_at(bytes.len().min(page.capacity() - at));
            page.set_len(at + now.len());
            page[at..].copy_from_slice(now);
            bytes = later;
            if page.len() == page.capacity() {
                self.put_page(page)?;
            } else {
                self.open = Some(page);
            }
        }
        Ok(())
    }

    /// Passes on a page that is full or the last one.
    fn put_page(&mut self, mut page: Block) -> Result<()> {
        page.set_offset(self.bytes);
        self.bytes += page.len() as u64;
        self.walk.pass(&page);
        match &mut self.phase {
            Phase::Running => self.engine.put_input(page),
            Phase::Filling(filling) => {
                filling.ahead.push_back(page);
                if filling.ahead.len() == filling.room.pages() {
                    self.start(false);
                }
                Ok(())
            }
        }
    }

    /// Ends the input. A missing last newline is added.
    pub fn finish(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        let (mut walk, mut bytes) = (self.walk.clone(), self.bytes);
        if let Some(page) = &self.open {
            walk.pass(page);
            bytes += page.len() as u64;
        }
        if walk.done() > 0 {
            match (self.layout.end(), self.layout.fixed_bytes(), walk.done() as u64) {
                (b"", Some(n), _) => return Err(Error::CutShort { bytes, record_bytes: n as u32 }),
                (b"", None, left) => return Err(Error::CutOff { at: bytes - left, bytes: left }),
                (end, ..) => self.put_bytes(end)?,
            }
        }
        if let Some(page) = self.open.take() {
            self.put_page(page)?;
        }
        self.ended = true;
        self.engine.handover.end_input();
        self.start(true);
        Ok(())
    }

    /// Ends the input and returns the sorted stream.
    pub fn sorted(mut self) -> Result<SorterOutput> {
        self.finish()?;
        Ok(SorterOutput { held: self.held, engine: self.engine })
    }

    /// Starts the sort if it is not running.
    fn start(&mut self, ended: bool) {
        let Phase::Filling(filling) = std::mem::replace(&mut self.phase, Phase::Running) else { return };
        let Filling { sort, room, clock, cpu_seconds, ahead } = *filling;
        let handover = Arc::clone(&self.engine.handover);
        let feed = Feed::handed(Arc::clone(&handover), ahead, self.layout);
        let (main, transfer) = (self.main.clone(), self.transfer.clone());
        self.engine.thread = Some(std::thread::spawn(move || {
            let ending = Ending(handover);
            // The memory is not freed before the program has the last block.
            let _kept = (main.clone(), transfer.clone());
            let filled = Filled { feed, room, main, transfer, ended };
            // Scratch files are freed after the program has received the end.
            let mut spilled = None;
            let outcome = run_handed(&sort, &*ending.0, filled, clock, &mut spilled);
            ending.0.end(outcome.map(|mut receipt| {
                receipt.cpu_seconds -= cpu_seconds;
                receipt
            }));
        }));
    }
}

impl SorterOutput {
    /// Waits for the next block of the sorted stream, at its offset. `None` at the end, when the proof holds.
    pub fn next_block(&mut self) -> Result<Option<Block>> {
        if self.held.count() >= BLOCKS_HELD_MAX {
            return Err(Error::BlocksHeld);
        }
        let next = self.engine.handover.next_output();
        Ok(self.engine.joined(next)?.map(|block| block.held(&self.held)))
    }

    /// Waits at most `patience`. Returns whether `next_block`, or `receipt` at the end, would now return at once.
    pub fn wait(&self, patience: Duration) -> bool {
        self.engine.handover.wait_output(patience)
    }

    /// The receipt. All blocks must have been taken.
    pub fn receipt(&mut self) -> Result<Receipt> {
        match self.engine.handover.receipt() {
            Err(error @ Error::NotTaken { .. }) => Err(error),
            other => self.engine.joined(other),
        }
    }
}

impl Engine {
    fn put_input(&mut self, page: Block) -> Result<()> {
        let put = self.handover.put_input(page);
        self.joined(put)
    }

    fn check(&mut self) -> Result<()> {
        let checked = self.handover.check();
        self.joined(checked)
    }

    /// After an error the thread has ended or is about to. If it panicked, the panic continues here.
    fn joined<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handover.stop();
        if let Some(thread) = self.thread.take() {
            // The panic was already printed.
            let _ = thread.join();
        }
    }
}

/// Ends the handover if a panic prevented the sort from doing so.
struct Ending(Arc<Handover>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end(Err(Error::Over));
    }
}

/// Lays out memory with space for the blocks that the program holds and for the window of the output.
fn room_of(sort: &Sort) -> Result<Room> {
    let mut beside_bytes = 0;
    loop {
        let room = Room::of(sort, beside_bytes)?;
        let pages = 2 * OUTSIDE_PAGES + room.rough.lanes * WINDOW_PAGES_EXTRA;
        let needed = (pages * room.rough.page_bytes) as u64;
        if needed <= beside_bytes {
            return Ok(room);
        }
        // Larger pages need more memory, but the page size has a maximum.
        beside_bytes = needed;
    }
}

#[cfg(test)]
mod tests {
    use thalweg_base::rng::Rng;
    use thalweg_io::threads::Threads;
    use thalweg_io::{FileSystem, Location};
    use thalweg_record::SplitPoint;

    use super::*;

    fn sorter(memory_bytes: u64) -> Sorter {
        let io: Arc<dyn FileSystem> = Arc::new(Threads::new(2));
        let scratch = vec![Location::new(&io, std::env::temp_dir())];
        let sort = Sort::new(Layout::Fixed(16), memory_bytes, scratch);
        let sort = Sort { lanes: 2, ..sort };
        Sorter::new(sort).unwrap()
    }

    fn random(bytes: usize) -> Vec<u8> {
        let mut rng = Rng::new(7);
        (0..bytes / 8).flat_map(|_| rng.next_u64().to_be_bytes()).collect()
    }

    /// Both pools of a sorter, to check them after it is dropped.
    struct Pools(Pool, Pool);

    impl Pools {
        fn of(sorter: &Sorter) -> Pools {
            Pools(sorter.main.clone(), sorter.transfer.clone())
        }

        fn are_full(&self) -> bool {
            self.0.free() == self.0.capacity() && self.1.free() == self.1.capacity()
        }
    }

    #[test]
    fn all_blocks_return_after_success_error_and_drop() {
        // In memory and spilled; dropped after this many blocks of input or output.
        for (memory, bytes) in [(48 << 20, 4 << 20), (16 << 20, 24 << 20)] {
            let data = random(bytes);
            let mut whole = 0;
            for blocks in [0, 1, 3, usize::MAX] {
                let mut sorter = sorter(memory);
                let pools = Pools::of(&sorter);
                for piece in data.chunks(100_000).take(blocks) {
                    sorter.put_bytes(piece).unwrap();
                }
                drop(sorter);
                assert!(pools.are_full());
                let mut sorter = self::sorter(memory);
                let pools = Pools::of(&sorter);
                sorter.put_bytes(&data).unwrap();
                let mut output = sorter.sorted().unwrap();
                for _ in 0..blocks {
                    match output.next_block().unwrap() {
                        Some(block) => whole += block.len(),
                        None => break,
                    }
                }
                drop(output);
                assert!(pools.are_full());
            }
            assert!(whole > bytes);
            let mut sorter = sorter(memory);
            let pools = Pools::of(&sorter);
            sorter.put_bytes(&data[..bytes - 1]).unwrap();
            assert!(matches!(sorter.sorted(), Err(Error::CutShort { record_bytes: 16, .. })));
            assert!(pools.are_full());
        }
    }

    /// The beginning of a stream is not representative, and memory holds an eighth of the stream. With a sample of the
    /// whole, in which one key represents a third, no byte is spilled twice.
    #[test]
    fn an_expectation_determines_the_split_points() {
        let count = 8u64 << 20;
        let key = |i: u64| if i % 3 == 1 { count / 2 } else { i };
        let record = |i: u64| (u128::from(key(i)) << 64 | u128::from(i)).to_be_bytes();
        let spilled = |expected: Option<Expected>| {
            let mut sorter = sorter(16 << 20);
            expected.into_iter().for_each(|expected| sorter.expect(expected));
            for i in 0..count {
                sorter.put_bytes(&record(i)).unwrap();
            }
            let mut output = sorter.sorted().unwrap();
            while output.next_block().unwrap().is_some() {}
            let receipt = output.receipt().unwrap();
            assert!(receipt.holds && receipt.output.records == count);
            receipt.io.scratch.written_bytes
        };
        let split_point = |i: u64| SplitPoint { normal: record(i).to_vec(), origin: 5 * i };
        let sample = (0..count).step_by(997).map(split_point).collect();
        let bytes = 16 * count;
        assert!(spilled(Some(Expected::new(bytes, sample))) <= bytes);
        assert!(spilled(None) > bytes + bytes / 2, "this stream needs no expectation");
    }

    #[test]
    fn blocks_of_the_sorter_are_not_copied() {
        let mut sorter = sorter(16 << 20);
        let mut addresses = Vec::new();
        let mut blocks: Vec<Block> = (0..3).map(|_| sorter.block().unwrap()).collect();
        blocks.last_mut().unwrap().set_len(160);
        for mut block in blocks {
            let len = if block.is_empty() { block.capacity() } else { block.len() };
            block.set_len(len);
            addresses.push(block.as_ptr());
            sorter.put(block).unwrap();
        }
        let Phase::Filling(filling) = &sorter.phase else { panic!("memory is full") };
        let pages = filling.ahead.iter().chain(&sorter.open).map(|page| page.as_ptr());
        assert_eq!(pages.collect::<Vec<_>>(), addresses);
        assert_eq!(sorter.held.count(), 0);
    }

    #[test]
    fn a_program_may_hold_the_maximum_number_of_blocks() {
        let data = random(24 << 20);
        let mut sorter = sorter(16 << 20);
        let held: Vec<Block> = (0..BLOCKS_HELD_MAX - 1).map(|_| sorter.block().unwrap()).collect();
        sorter.put_bytes(&data).unwrap();
        let late = sorter.block().unwrap();
        assert!(matches!(sorter.block(), Err(Error::BlocksHeld)));
        let mut output = sorter.sorted().unwrap();
        assert!(matches!(output.next_block(), Err(Error::BlocksHeld)));
        drop(late);
        let mut bytes = 0;
        while let Some(block) = output.next_block().unwrap() {
            bytes += block.len();
        }
        assert_eq!(bytes, data.len());
        drop(held);
        // The program may hold output blocks as well.
        let mut sorter = self::sorter(48 << 20);
        sorter.put_bytes(&data).unwrap();
        let mut output = sorter.sorted().unwrap();
        let held: Vec<Block> = (0..BLOCKS_HELD_MAX).map(|_| output.next_block().unwrap().unwrap()).collect();
        assert!(matches!(output.next_block(), Err(Error::BlocksHeld)));
        assert!(matches!(output.receipt(), Err(Error::NotTaken { .. })));
        let first: usize = held.iter().map(|block| block.len()).sum();
        drop(held);
        let rest = std::iter::from_fn(|| output.next_block().unwrap()).map(|block| block.len());
        assert_eq!(first + rest.sum::<usize>(), data.len());
        assert!(output.receipt().unwrap().holds);
    }
}

//! A distribution in less memory than was planned for the open pages of its ranges.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thalweg_block::Pool;
use thalweg_io::sim::Sim;
use thalweg_io::{FileSystem, Location};
use thalweg_pump::{Meters, Sink};
use thalweg_record::{Key, Layout, SplitPoint, SplitPoints};

use crate::distribute::{Config, Distribution, RecordRoom, Resumed};
use crate::geometry::KeepFree;
use crate::range::Stored;
use crate::scratch::Scratch;

const PAGE_BYTES: usize = 16 << 10;
const RANGES: usize = 8;
/// Each range may have an open page, and one that the current block fills; all others are soon full.
const PAGES: usize = 2 * RANGES + 2;
const BLOCKS: usize = 60;

/// The excess is 0 and no pages are kept free, so all full pages stay in memory until there is no room for another.
#[test]
fn resident_pages_are_spilled_instead_of_a_deadlock() {
    let io: Arc<dyn FileSystem> = Arc::new(Sim::new(7));
    let key = Key::new(Layout::Fixed(8), &[]).unwrap();
    let split_point = |i: usize| SplitPoint { normal: vec![(i * 256 / RANGES) as u8], origin: 0 };
    let split_points = SplitPoints::new(&key, (1..RANGES).map(split_point).collect());
    let (main, transfer) = (Pool::new(PAGE_BYTES, PAGES).unwrap(), Pool::new(PAGE_BYTES, 1).unwrap());
    let scratch = Scratch::new(&[Location::new(&io, "/")], "scratch", 0, u64::MAX);
    let (meters, stop) = (Meters::default(), AtomicBool::new(false));
    let (record_room, keep_free) = (RecordRoom::new(8, 8, 1), KeepFree::always(0));
    let distribution = Distribution::new(
        Config {
            is_first: true,
            key: &key,
            layout: Layout::Fixed(8),
            split_points: &split_points,
            pool: &main,
            scratch: &scratch,
            meters: &meters,
            stop: &stop,
            hashing: true,
            record_room: &record_room,
            input_page_bytes: PAGE_BYTES as u64,
            excess: 0,
            keep_free: &keep_free,
            ahead: None,
            file_start: &|_| 0,
            tagging: None,
            checkpoints: None,
        },
        Resumed::default(),
    );
    let mut lane = distribution.lane(io.queue(4).unwrap());
    let mut state = 1u64;
    for page in 0..BLOCKS {
        let mut block = transfer.take();
        block.set_len(PAGE_BYTES);
        for record in block.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *record = (state ^ state >> 33).to_be_bytes();
        }
        block.set_offset((page * PAGE_BYTES) as u64);
        lane.put(block).unwrap();
    }
    lane.finish().unwrap();
    drop(lane);
    let (stores, proof) = distribution.finish().unwrap();
    let records = (BLOCKS * PAGE_BYTES / 8) as u64;
    assert_eq!((proof.records, stores.iter().map(|s| s.records).sum()), (records, records));
    let pages = || stores.iter().flat_map(|store| &store.pages);
    assert_eq!(pages().map(Stored::len).sum::<usize>(), BLOCKS * PAGE_BYTES);
    assert!(pages().any(|page| matches!(page, Stored::Spilled(_))));
    drop(stores);
    assert_eq!((main.free(), transfer.free()), (PAGES, 1));
}

//! A distribution in less memory than was planned for the open pages of its ranges, and the orders that it notices.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thalweg_api::Proof;
use thalweg_block::Pool;
use thalweg_io::sim::Sim;
use thalweg_io::{FileSystem, Location};
use thalweg_pump::{Meters, Sink};
use thalweg_record::{Key, Layout, SplitPoint, SplitPoints};

use crate::distribute::{Config, Distribution, RecordRoom, Resumed};
use crate::geometry::KeepFree;
use crate::in_order::Order;
use crate::range::{RangeStore, Stored};
use crate::scratch::Scratch;

const PAGE_BYTES: usize = 16 << 10;
const RANGES: usize = 8;
/// Each range may have an open page, and one that the current block fills; all others are soon full.
const PAGES: usize = 2 * RANGES + 2;
const BLOCKS: usize = 60;

/// Distributes these blocks of records. The excess is 0 and no pages are kept free, so all full pages stay in memory until
/// there is no room for another. Calls `look` with the result, and checks that all pages return to their pools.
fn distributed(blocks: usize, mut record: impl FnMut() -> u64, look: impl FnOnce(&[RangeStore], Proof)) {
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
    for page in 0..blocks {
        let mut block = transfer.take();
        block.set_len(PAGE_BYTES);
        block.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| *bytes = record().to_be_bytes());
        block.set_offset((page * PAGE_BYTES) as u64);
        lane.put(block).unwrap();
    }
    lane.finish().unwrap();
    drop(lane);
    let (stores, proof) = distribution.finish().unwrap();
    look(&stores, proof);
    drop(stores);
    assert_eq!((main.free(), transfer.free()), (PAGES, 1));
}

#[test]
fn resident_pages_are_spilled_instead_of_a_deadlock() {
    let mut state = 1u64;
    let random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state ^ state >> 33
    };
    distributed(BLOCKS, random, |stores, proof| {
        let records = (BLOCKS * PAGE_BYTES / 8) as u64;
        assert_eq!((proof.records, stores.iter().map(|s| s.records).sum()), (records, records));
        let pages = || stores.iter().flat_map(|store| &store.pages);
        assert_eq!(pages().map(Stored::len).sum::<usize>(), BLOCKS * PAGE_BYTES);
        assert!(pages().any(|page| matches!(page, Stored::Spilled(_))));
        assert!(stores.iter().all(|store| store.order == Order::Mixed));
    });
}

/// Each range has an order of its own: here the fourth is mixed where one record is out of place.
#[test]
fn ranges_that_come_in_order_are_noticed() {
    const COUNT: u64 = (BLOCKS * PAGE_BYTES / 8) as u64;
    let place = |i: u64| u64::MAX / COUNT * i;
    let orders = |record: &dyn Fn(u64) -> u64| {
        let (mut next, mut all) = (0..COUNT, Vec::new());
        let look = |stores: &[RangeStore], _: Proof| all = stores.iter().map(|store| store.order).collect();
        distributed(BLOCKS, || record(next.next().expect("as many as there are")), look);
        all
    };
    assert_eq!(orders(&place), [Order::Rising; RANGES]);
    assert_eq!(orders(&|_| u64::MAX / 2), [Order::Rising; RANGES]);
    assert_eq!(orders(&|i| place(COUNT - i)), [Order::Falling; RANGES]);
    let mut expected = [Order::Rising; RANGES];
    expected[3] = Order::Mixed;
    assert_eq!(orders(&|i| if i == COUNT / 2 { place(COUNT / 2 - 5) } else { place(i) }), expected);
}

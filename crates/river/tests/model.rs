//! Compares rivers with a model, for any number of inlets and outlets, any partitioner, and any sizes of batches and
//! credits: each record comes out once, in the right lane, in the promised order.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use thalweg_pump::{Sink, Source};
use thalweg_record::{InPlace, Key, KeyPart, Layout, SplitPoint, SplitPoints};
use thalweg_river::{Inlet, Outlet, Partitioner, River};

/// Bytes of a record of each layout, with its terminator.
const RECORD: usize = 12;

/// One river.
#[derive(Debug, Clone)]
struct Case {
    layout: Layout,
    inlets: usize,
    outlets: usize,
    lanes: usize,
    partitioner: u8,
    batch: usize,
    exclusive: u64,
    float: u64,
    queued: usize,
    ordered: bool,
    checked: bool,
    piece: usize,
    /// The records of each split, as numbers.
    splits: Vec<Vec<u8>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let layouts = prop::sample::select(vec![Layout::Fixed(RECORD as u32), Layout::Lines, Layout::Prefixed]);
    let shape = (1usize..=8, 1usize..=8, 1usize..=20, 0u8..7, layouts, any::<bool>(), any::<bool>());
    let sizes = (1usize..=40, 1u64..=3, 0u64..=4, 1usize..=3, 1usize..=50);
    let splits = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..12);
    (shape, sizes, splits).prop_map(|(shape, sizes, splits)| {
        let (inlets, outlets, lanes, partitioner, layout, ordered, checked) = shape;
        let (batch, exclusive, float, queued, piece) = sizes;
        // In an unordered river a batch holds at least a record.
        let batch = if ordered { batch } else { batch + RECORD };
        Case {
            layout,
            inlets,
            outlets,
            lanes,
            partitioner,
            batch,
            exclusive,
            float,
            queued,
            ordered,
            checked,
            piece,
            splits,
        }
    })
}

impl Case {
    fn key(&self) -> Key {
        Key::new(self.layout, &[KeyPart { offset: 0, length: 3, descending: false }]).unwrap()
    }

    fn split_points(&self) -> SplitPoints {
        let lanes = self.lanes as u64;
        let split_point =
            |i: u64| SplitPoint { normal: format!("{:03}", i * 256 / lanes).into_bytes(), origin: 40 * i };
        SplitPoints::new(&self.key(), (1..lanes).map(split_point).collect())
    }

    fn partitioner(&self) -> Partitioner {
        let lanes = self.lanes;
        match self.partitioner {
            0 => Partitioner::Range(self.split_points()),
            1 => Partitioner::Hash,
            2 => Partitioner::RoundRobin,
            3 => Partitioner::Copy,
            4 => Partitioner::LeastBusy,
            6 => Partitioner::Among(self.split_points(), self.among()),
            _ => Partitioner::Own(Box::new(move |record, origin| {
                (usize::from(record[0]) + origin as usize) % lanes
            })),
        }
    }

    /// Some of the ranges.
    fn among(&self) -> Range<usize> {
        let first = self.lanes / 3;
        first..first + self.lanes.div_ceil(2)
    }

    fn range(&self, split: usize, i: usize) -> usize {
        let (record, origin) = (self.record(split, i), (split * 1000 + i * RECORD) as u64);
        self.split_points().locate(&self.key(), InPlace::from(&record[..]), origin)
    }

    /// Whether a record goes anywhere.
    fn goes(&self, split: usize, i: usize) -> bool {
        self.partitioner != 6 || self.among().contains(&self.range(split, i))
    }

    /// A record: its number, and where it came from.
    fn record(&self, split: usize, i: usize) -> Vec<u8> {
        let mut contents = format!("{:03}{:02}{:02}", self.splits[split][i], split, i).into_bytes();
        match self.layout {
            Layout::Prefixed => {
                contents.push(b'.');
                [&8u32.to_le_bytes()[..], &contents].concat()
            }
            Layout::Lines => [&contents[..], b"...."].concat(),
            _ => [&contents[..], b"....."].concat(),
        }
    }

    /// The record with its terminator.
    fn ended(&self, split: usize, i: usize) -> Vec<u8> {
        let mut record = self.record(split, i);
        record.resize(RECORD, b'\n');
        record
    }

    fn bytes(&self, split: usize) -> Vec<u8> {
        (0..self.splits[split].len()).flat_map(|i| self.ended(split, i)).collect()
    }

    /// The lane of a record, if the record determines it.
    fn lane(&self, split: usize, i: usize) -> Option<usize> {
        let (record, origin) = (self.record(split, i), (split * 1000 + i * RECORD) as u64);
        match self.partitioner {
            0 => Some(self.range(split, i)),
            6 => Some(self.range(split, i) - self.among().start),
            2 => Some((split + i) % self.lanes),
            5 => Some((usize::from(record[0]) + origin as usize) % self.lanes),
            _ => None,
        }
    }

    fn feed(&self, inlet: &mut Inlet, index: usize) {
        for split in (index..self.splits.len()).step_by(self.inlets) {
            inlet.begin(split as u64, split as u64 * 1000);
            for piece in self.bytes(split).chunks(self.piece) {
                inlet.put_bytes(piece).unwrap();
            }
            inlet.end().unwrap();
        }
        Sink::<thalweg_block::Block>::finish(inlet).unwrap();
    }

    fn drain(&self, outlet: &mut Outlet) -> BTreeMap<usize, Vec<u8>> {
        let mut lanes: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        while let Some(batch) = outlet.next().unwrap() {
            lanes.entry(batch.head.lane as usize).or_default().extend_from_slice(batch.records());
        }
        lanes
    }

    fn run(&self) -> BTreeMap<usize, Vec<u8>> {
        let builder = River::builder()
            .inlets(self.inlets)
            .outlets(self.outlets)
            .lanes(self.lanes)
            .records(self.layout, self.key())
            .partitioner(self.partitioner())
            .batch_bytes(self.batch)
            .credits(self.exclusive, self.float)
            .queued(self.queued, self.queued * 2)
            .splits(self.splits.len() as u64);
        let builder = if self.ordered { builder.ordered() } else { builder };
        let builder = if self.checked { builder.checked() } else { builder };
        let mut river = builder.build().unwrap();
        std::thread::scope(|scope| {
            let running: Vec<_> =
                river.outlets.iter_mut().map(|outlet| scope.spawn(|| self.drain(outlet))).collect();
            for (index, inlet) in river.inlets.iter_mut().enumerate() {
                scope.spawn(move || self.feed(inlet, index));
            }
            let mut all = BTreeMap::new();
            for (i, running) in running.into_iter().enumerate() {
                for (lane, bytes) in running.join().unwrap() {
                    assert_eq!(lane * self.outlets / self.lanes, i, "lane {lane}");
                    assert!(all.insert(lane, bytes).is_none());
                }
            }
            all
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_output_is_the_input_in_order(case in cases()) {
        let lanes = case.run();
        let records = |bytes: &[u8]| -> Vec<Vec<u8>> { bytes.chunks(RECORD).map(<[u8]>::to_vec).collect() };
        let of_split = |split: usize| -> Vec<Vec<u8>> {
            let all = records(&case.bytes(split));
            all.into_iter().enumerate().filter(|(i, _)| case.goes(split, *i)).map(|(_, record)| record).collect()
        };
        let mut expected: Vec<Vec<u8>> = (0..case.splits.len()).flat_map(of_split).collect();
        let in_order = expected.clone();
        expected.sort();
        if case.partitioner == 3 {
            for lane in 0..case.lanes {
                let mut got = records(lanes.get(&lane).map_or(&[], |bytes| bytes));
                if case.ordered { prop_assert_eq!(&got, &in_order); }
                got.sort();
                prop_assert_eq!(&got, &expected);
            }
            return Ok(());
        }
        let mut got: Vec<Vec<u8>> = lanes.values().flat_map(|bytes| records(bytes)).collect();
        got.sort();
        prop_assert_eq!(got, expected);
        let place = |record: &[u8]| in_order.iter().position(|one| one == record).unwrap();
        for bytes in lanes.values().filter(|_| case.ordered) {
            let places: Vec<usize> = records(bytes).iter().map(|record| place(record)).collect();
            prop_assert!(places.is_sorted(), "{:?}", places);
        }
        for split in 0..case.splits.len() {
            for i in (0..case.splits[split].len()).filter(|i| case.goes(split, *i)) {
                let Some(lane) = case.lane(split, i) else { continue };
                let record = case.ended(split, i);
                let there = lanes.get(&lane).map_or(&[][..], |bytes| bytes);
                prop_assert!(records(there).contains(&record), "split {} record {} in lane {}", split, i, lane);
            }
        }
        if case.partitioner == 1 {
            // Equal keys meet in one lane.
            let mut lane_of = BTreeMap::new();
            for (lane, bytes) in &lanes {
                for record in records(bytes) {
                    let from = if case.layout == Layout::Prefixed { 4 } else { 0 };
                    prop_assert_eq!(lane_of.entry(record[from..from + 3].to_vec()).or_insert(*lane), lane);
                }
            }
        }
    }
}

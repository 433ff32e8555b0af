//! The sorter compared with `slice::sort`: its output is the same bytes, whatever the memory, the pieces and the lanes,
//! and nothing is left behind whenever it is dropped.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_engine::{
    Error, KeyPart, Layout, Receipt, Result, Sink, Size, Sorted, Sorter, SorterOptions, Source,
};

/// More than 16 MiB can hold.
const SPILLS: usize = 24_000_000;
const RECORD: usize = 100;

fn options(place: &Place, layout: Layout, memory: u64) -> SorterOptions {
    let keys = match layout {
        Layout::Fixed(_) => vec![KeyPart { offset: 0, length: 10, descending: false }],
        _ => Vec::new(),
    };
    SorterOptions {
        layout,
        keys,
        memory: Some(Size::Bytes(memory)),
        scratch: vec![place.at("")],
        threads: Some(2),
        ..SorterOptions::default()
    }
}

/// Records with few distinct keys, so that the order of equal ones shows.
fn records(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let mut all = Vec::with_capacity(bytes);
    while all.len() + RECORD <= bytes {
        let from = all.len();
        let key = if rng.one_in(3) { rng.below(50) } else { rng.next_u64() };
        all.extend_from_slice(&key.to_be_bytes());
        all.extend_from_slice(&[0, 0]);
        all.resize(from + RECORD - 8, b'.');
        all.extend_from_slice(&(from as u64).to_be_bytes());
    }
    all
}

/// Lines of 0 to 79 letters; some are empty and many occur twice.
fn lines(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(2);
    let mut all = Vec::with_capacity(bytes + 100);
    while all.len() < bytes {
        let length = if rng.one_in(2) { rng.below(3) } else { rng.below(80) };
        all.extend((0..length).map(|_| b'a' + rng.below(26) as u8));
        all.push(b'\n');
    }
    all
}

/// The same bytes in the form of a layout.
fn data(layout: Layout, bytes: usize) -> Vec<u8> {
    match layout {
        Layout::Lines => lines(bytes),
        Layout::Prefixed => lines(bytes)
            .split_inclusive(|&b| b == b'\n')
            .flat_map(|line| [&(line.len() as u32).to_le_bytes()[..], line].concat())
            .collect(),
        _ => records(bytes),
    }
}

/// The output of `slice::sort`, which is stable.
fn expected(data: &[u8], layout: Layout, unique: bool) -> Vec<u8> {
    let mut all: Vec<&[u8]> = match layout {
        Layout::Fixed(n) => data.chunks(n as usize).collect(),
        Layout::Lines => data.split_inclusive(|&b| b == b'\n').collect(),
        _ => {
            let (mut all, mut rest) = (Vec::new(), data);
            while let Some(length) = rest.first_chunk() {
                let (record, later) = rest.split_at(4 + u32::from_le_bytes(*length) as usize);
                all.push(record);
                rest = later;
            }
            all
        }
    };
    let key = |record: &&[u8]| match layout {
        Layout::Fixed(_) => record[..10].to_vec(),
        Layout::Lines => record.strip_suffix(b"\n").unwrap_or(record).to_vec(),
        _ => record[4..].to_vec(),
    };
    all.sort_by_cached_key(key);
    if unique {
        all.dedup_by_key(|record| key(record));
    }
    let mut bytes = all.concat();
    if layout == Layout::Lines && !data.is_empty() && !data.ends_with(b"\n") {
        // The line without a newline gets one.
        bytes = expected(&[data, b"\n"].concat(), layout, unique);
    }
    bytes
}

/// Takes everything; checks that offsets rise without gaps.
fn drain(sorted: &mut Sorted) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(block) = sorted.next()? {
        assert_eq!(block.offset(), all.len() as u64);
        assert!(!block.is_empty());
        all.extend_from_slice(&block);
    }
    assert!(sorted.next()?.is_none(), "the end stays the end");
    Ok(all)
}

fn put_all(sorter: &mut Sorter, data: &[u8], piece: usize) -> Result<()> {
    data.chunks(piece).try_for_each(|piece| sorter.put_bytes(piece))
}

/// Sorts in pieces and compares.
fn sorts(options: &SorterOptions, data: &[u8], piece: usize) -> Receipt {
    let mut sorter = Sorter::new(options).unwrap();
    put_all(&mut sorter, data, piece).unwrap();
    let mut sorted = sorter.sorted().unwrap();
    let out = drain(&mut sorted).unwrap();
    assert!(out == expected(data, options.layout, options.unique), "{options:?}");
    let receipt = sorted.receipt().unwrap();
    assert!(receipt.holds && receipt.output.unordered == 0);
    // Newlines are not counted.
    let ends = if options.layout == Layout::Lines { receipt.output.records } else { 0 };
    assert_eq!(receipt.output.bytes + ends, out.len() as u64);
    receipt
}

#[test]
fn records_and_lines_that_fit_in_memory_touch_no_scratch() {
    let place = Place::new();
    for layout in [Layout::Fixed(100), Layout::Lines, Layout::Prefixed] {
        let data = data(layout, 5_000_000);
        for threads in [1, 2, 3] {
            let options = SorterOptions { threads: Some(threads), ..options(&place, layout, 96 << 20) };
            assert_eq!(sorts(&options, &data, 1 << 20).scratch_peak_bytes, 0);
        }
    }
    assert!(place.names().is_empty());
}

#[test]
fn scratch_that_is_no_directory_is_refused_before_any_record_is_put() {
    let place = Place::new();
    let missing =
        SorterOptions { scratch: vec![place.at("nowhere")], ..options(&place, Layout::Lines, 16 << 20) };
    let refused = Sorter::new(&missing).map(drop).unwrap_err();
    assert!(refused.to_string().contains("nowhere"), "{refused}");
}

#[test]
fn records_and_lines_that_do_not_fit_are_spilled_and_nothing_is_left() {
    let place = Place::new();
    for layout in [Layout::Fixed(100), Layout::Lines, Layout::Prefixed] {
        let data = data(layout, SPILLS);
        let receipt = sorts(&options(&place, layout, 16 << 20), &data, 777_777);
        assert!(receipt.scratch_peak_bytes > 0);
        assert!(place.names().is_empty());
    }
}

/// Two lanes only where there is memory for them: blocks that are finished out of order wait for each other.
#[test]
fn two_lanes_spill_and_hand_over_in_order() {
    let place = Place::new();
    let data = records(80_000_000);
    let receipt = sorts(&options(&place, Layout::Fixed(100), 48 << 20), &data, 1 << 20);
    assert!(receipt.scratch_peak_bytes > 0);
    assert!(place.names().is_empty());
}

#[test]
fn sizes_around_that_of_the_memory_are_all_sorted() {
    let place = Place::new();
    let (fixed, text) = (records(18_000_000), lines(18_000_000));
    for megabytes in 9..18 {
        let bytes = megabytes * 1_000_000;
        sorts(&options(&place, Layout::Fixed(100), 16 << 20), &fixed[..bytes], 1 << 20);
        sorts(&options(&place, Layout::Lines, 16 << 20), &text[..bytes], 1 << 20);
        assert!(place.names().is_empty());
    }
}

/// Split points from the beginning of the stream put all the rest into the last range, which is distributed again
/// through the pool that also lends blocks to the program.
#[test]
fn a_stream_that_is_sorted_already_drifts_and_is_sorted_while_blocks_are_held() {
    let place = Place::new();
    let data = expected(&records(2 * SPILLS), Layout::Fixed(100), false);
    let mut sorter = Sorter::new(&options(&place, Layout::Fixed(100), 16 << 20)).unwrap();
    put_all(&mut sorter, &data, 1 << 20).unwrap();
    let held: Vec<_> = (1..Sorter::BLOCKS_HELD_MAX).map(|_| sorter.block().unwrap()).collect();
    let mut sorted = sorter.sorted().unwrap();
    assert!(drain(&mut sorted).unwrap() == data);
    let receipt = sorted.receipt().unwrap();
    assert!(receipt.stages.iter().any(|stage| stage.name == "distribute again"), "{receipt:?}");
    drop(held);
}

#[test]
fn records_longer_than_a_page_cross_all_bounds() {
    let place = Place::new();
    let options = options(&place, Layout::Fixed(70_001), 16 << 20);
    let mut rng = Rng::new(4);
    let mut data = vec![0; 70_001 * 400];
    data.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
    sorts(&options, &data, 333_333);
}

#[test]
fn pieces_of_any_length_are_the_same_stream() {
    let place = Place::new();
    let (fixed, text) = (records(300_000), lines(300_000));
    for piece in [1, 7, 99, 100, 101, 4096, 65_537, usize::MAX] {
        sorts(&options(&place, Layout::Fixed(100), 32 << 20), &fixed, piece);
        sorts(&options(&place, Layout::Lines, 32 << 20), &text, piece);
        sorts(&options(&place, Layout::Lines, 32 << 20), &text[..text.len() - 1], piece);
    }
}

#[test]
fn blocks_of_its_own_blocks_from_elsewhere_and_bytes_may_follow_each_other() {
    let place = Place::new();
    let data = records(SPILLS);
    let elsewhere = Pool::new(12_288, 1).unwrap();
    let options = options(&place, Layout::Fixed(100), 16 << 20);
    let mut sorter = Sorter::new(&options).unwrap();
    let (mut rest, mut rng) = (&data[..], Rng::new(3));
    while !rest.is_empty() {
        let n = match rng.below(8) {
            0 => {
                let n = rest.len().min(rng.below(100_000) as usize);
                sorter.put_bytes(&rest[..n]).unwrap();
                n
            }
            how => {
                let mut block = if how == 1 { elsewhere.take() } else { sorter.block().unwrap() };
                let most = if how == 2 { rng.below(100) as usize } else { block.capacity() };
                let n = rest.len().min(most);
                block.set_len(n);
                block.copy_from_slice(&rest[..n]);
                sorter.put(block).unwrap();
                n
            }
        };
        rest = &rest[n..];
    }
    sorter.finish().unwrap();
    let out = drain(&mut sorter.sorted().unwrap()).unwrap();
    assert!(out == expected(&data, options.layout, false));
    assert_eq!(elsewhere.free(), 1);
}

#[test]
fn unique_keeps_the_first_of_equal_keys() {
    let place = Place::new();
    for (layout, data) in [(Layout::Fixed(100), records(SPILLS)), (Layout::Lines, lines(SPILLS))] {
        let options = SorterOptions { unique: true, ..options(&place, layout, 16 << 20) };
        let receipt = sorts(&options, &data, 1 << 20);
        assert!(receipt.dropped.records > 0);
        assert_eq!(receipt.output.records + receipt.dropped.records, receipt.input.records);
    }
}

#[test]
fn nothing_and_a_single_record_are_sorted_too() {
    let place = Place::new();
    for layout in [Layout::Fixed(100), Layout::Lines] {
        let receipt = sorts(&options(&place, layout, 16 << 20), b"", 1);
        assert_eq!(receipt.output.records, 0);
    }
    sorts(&options(&place, Layout::Fixed(100), 16 << 20), &records(100), 100);
    sorts(&options(&place, Layout::Lines, 16 << 20), b"pear", 4);
    sorts(&options(&place, Layout::Lines, 16 << 20), b"\n", 1);
}

fn refusal<T>(result: Result<T>) -> String {
    let Err(error) = result else { panic!("it was not refused") };
    assert!(!error.is_wrong(), "{error:?}");
    assert!(!error.to_string().contains('\n'), "{error}");
    error.to_string()
}

#[test]
fn a_record_cut_by_the_end_is_refused_with_its_numbers() {
    let place = Place::new();
    for bytes in [205, SPILLS + 5] {
        let mut sorter = Sorter::new(&options(&place, Layout::Fixed(100), 16 << 20)).unwrap();
        let data = [&records(bytes)[..], b"12345"].concat();
        put_all(&mut sorter, &data, 1 << 20).unwrap();
        refusal(sorter.finish());
        let said = refusal(sorter.sorted());
        assert!(said.contains(&format!("{} bytes", data.len())) && said.contains("5 left over"), "{said}");
        assert!(place.names().is_empty());
    }
}

#[test]
fn what_cannot_be_asked_is_refused_at_once() {
    let place = Place::new();
    let too_far = vec![KeyPart { offset: 95, length: 10, descending: false }];
    refusal(Sorter::new(&SorterOptions { keys: too_far, ..options(&place, Layout::Fixed(100), 16 << 20) }));
    let said = refusal(Sorter::new(&options(&place, Layout::Fixed(100), 15 << 20)));
    assert!(said.contains("15 MiB") && said.contains("16 MiB"), "{said}");
}

#[test]
fn a_full_scratch_is_said_once_and_leaves_nothing() {
    let place = Place::new();
    let data = records(2 * SPILLS);
    let options = SorterOptions {
        scratch_limit: Some(Size::Bytes(1 << 20)),
        ..options(&place, Layout::Fixed(100), 16 << 20)
    };
    let mut sorter = Sorter::new(&options).unwrap();
    let sort = |sorter: &mut Sorter| put_all(sorter, &data, 1 << 20);
    let said = match sort(&mut sorter) {
        Err(error) => error.to_string(),
        Ok(()) => refusal(sorter.sorted().and_then(|mut sorted| drain(&mut sorted))),
    };
    assert!(said.contains("scratch limit of 1 MiB is reached"), "{said}");
    assert!(place.names().is_empty());
}

#[test]
fn a_scratch_that_is_gone_is_named_when_it_is_needed() {
    let place = Place::new();
    let options =
        SorterOptions { scratch: vec![place.at("nowhere")], ..options(&place, Layout::Fixed(100), 16 << 20) };
    std::fs::create_dir(place.at("nowhere")).unwrap();
    let mut sorter = Sorter::new(&options).unwrap();
    std::fs::remove_dir(place.at("nowhere")).unwrap();
    let data = records(2 * SPILLS);
    let said = refusal(put_all(&mut sorter, &data, 1 << 20));
    assert!(said.contains("nowhere"), "{said}");
    // The sorter refuses everything after a failure.
    assert!(refusal(put_all(&mut sorter, &data, 1 << 20)).contains("has already failed"));
}

#[test]
fn a_line_longer_than_memory_allows_is_refused() {
    let place = Place::new();
    let mut sorter = Sorter::new(&options(&place, Layout::Lines, 16 << 20)).unwrap();
    sorter.put_bytes(&vec![b'x'; 3 << 20]).unwrap();
    let said = refusal(drain(&mut sorter.sorted().unwrap()));
    assert!(said.contains("2 MiB"), "{said}");
}

#[test]
fn dropped_at_any_moment_it_leaves_no_file() {
    let place = Place::new();
    let data = records(3 * SPILLS);
    for input_bytes in [0, 1000, 10_000_000, 20_000_000, 40_000_000, data.len()] {
        let mut sorter = Sorter::new(&options(&place, Layout::Fixed(100), 16 << 20)).unwrap();
        put_all(&mut sorter, &data[..input_bytes], 1 << 20).unwrap();
        drop(sorter);
        assert!(place.names().is_empty(), "{input_bytes} bytes were put");
    }
    for blocks in [0, 1, 2, 20, 200] {
        let mut sorter = Sorter::new(&options(&place, Layout::Fixed(100), 16 << 20)).unwrap();
        put_all(&mut sorter, &data, 1 << 20).unwrap();
        let mut sorted = sorter.sorted().unwrap();
        for _ in 0..blocks {
            assert!(sorted.next().unwrap().is_some());
        }
        assert!(place.names().is_empty(), "scratch has no name");
        drop(sorted);
        assert!(place.names().is_empty(), "{blocks} blocks were taken");
    }
}

#[test]
fn it_may_be_fed_and_drained_by_other_threads() {
    let place = Place::new();
    let data = records(SPILLS);
    let mut sorter = Sorter::new(&options(&place, Layout::Fixed(100), 16 << 20)).unwrap();
    let out = std::thread::scope(|scope| {
        let feeding = scope.spawn(|| {
            put_all(&mut sorter, &data, 333_333).unwrap();
            sorter.sorted().unwrap()
        });
        let mut sorted = feeding.join().unwrap();
        scope.spawn(move || drain(&mut sorted).unwrap()).join().unwrap()
    });
    assert!(out == expected(&data, Layout::Fixed(100), false));
}

#[test]
fn it_is_a_sink_and_a_source_of_the_pump() {
    let place = Place::new();
    let data = lines(1_000_000);
    let pool = Pool::new(65_536, 2).unwrap();
    let mut sorter = Sorter::new(&options(&place, Layout::Lines, 16 << 20)).unwrap();
    let mut source = Infallible(thalweg_pump::MemorySource::new(&data, &pool));
    thalweg_pump::pump::<_, _, _, Error>(&mut source, &mut sorter, |_| Ok(())).unwrap();
    assert!(drain(&mut sorter.sorted().unwrap()).unwrap() == expected(&data, Layout::Lines, false));
}

/// A source that cannot fail, with an error type that can be propagated.
struct Infallible<'a>(thalweg_pump::MemorySource<'a>);

impl Source for Infallible<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<thalweg_block::Block>> {
        self.0.next().map_err(|never| match never {})
    }
}

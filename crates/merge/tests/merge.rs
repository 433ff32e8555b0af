//! Compares merges of real files with a simple model, with any number of shares.
#![allow(clippy::disallowed_methods)] // A test creates files directly.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_block::{Block, Pool};
use thalweg_io::sim::Sim;
use thalweg_io::threads::Threads;
use thalweg_io::{FileSystem, InputLocation, Location};
use thalweg_merge::{AHEAD, Error, Limits, Merge, Merged, Reads, Stretch, close, merge, split};
use thalweg_pump::{Inputs, Meters, Sink};
use thalweg_record::{Key, KeyPart, Layout, Prover, add_proof, same_records};

/// Stores blocks at their offsets.
struct Kept<'a>(&'a std::cell::RefCell<Vec<u8>>);

impl Sink for Kept<'_> {
    type Error = thalweg_io::Error;

    fn put(&mut self, block: Block) -> thalweg_io::Result<()> {
        let (at, mut bytes) = (block.offset() as usize, self.0.borrow_mut());
        let len = bytes.len().max(at + block.len());
        bytes.resize(len, 0);
        bytes[at..at + block.len()].copy_from_slice(&block);
        Ok(())
    }

    fn finish(&mut self) -> thalweg_io::Result<()> {
        Ok(())
    }
}

/// A directory that is removed when the test ends.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Merges files in `shares` shares, and returns the output and the proof of what was dropped.
fn merged(
    place: &Place,
    files: &[Vec<u8>],
    layout: Layout,
    keys: &[KeyPart],
    (shares, unique): (usize, bool),
) -> Result<(Vec<u8>, u64), Error> {
    let (real, sim): (Arc<dyn FileSystem>, _) = (Arc::new(Threads::new(2)), Sim::new(1));
    let simulated = sim.io();
    // Every other input is on a simulated disk.
    let put = |(i, bytes): (usize, &Vec<u8>)| {
        let path = place.0.join(i.to_string());
        if i % 2 == 0 {
            std::fs::write(&path, bytes).unwrap();
            return Location::new(&real, path).as_input();
        }
        sim.put(&path, bytes);
        Location::new(&simulated, path).as_input()
    };
    let locations: Vec<InputLocation> = files.iter().enumerate().map(put).collect();
    let shares = if layout.is_found_anywhere() { shares } else { 1 };
    let mut inputs = Inputs::open(&locations, layout).unwrap();
    inputs.set_page_bytes(4096);
    let key = Key::new(layout, keys).unwrap();
    let how = Merge { layout, key: &key, unique, line_max: 1 << 20 };
    let (pool, meters) =
        (Pool::new(4096, shares * 2 + files.len() * (AHEAD + 1)).unwrap(), Meters::default());
    let kept = std::cell::RefCell::new(Vec::new());
    let (mut sum, mut ends) = (Merged::default(), Vec::new());
    // So few bytes that most sampled keys are truncated.
    let limits = Limits { sample_bytes: 64 * shares as u64, line_bytes: 1 << 20 };
    for (i, share) in split(&inputs, &how, shares, limits)?.into_iter().enumerate() {
        let queue = inputs.backends().queue((files.len() * AHEAD).min(3)).unwrap();
        let reads = Reads::new(share.pieces, queue, &pool, &meters, &|_| true);
        let prover = Prover::new(layout, key.clone(), true);
        let mut out = Stretch::new(Kept(&kept), &pool, prover, share.at);
        let part = merge(how, reads, &mut out)?;
        add_proof(&mut sum.input, &part.input);
        add_proof(&mut sum.dropped, &part.dropped);
        ends.push(out.finish(i + 1 == shares)?);
    }
    let (proved, bytes) = close(ends, |block| Kept(&kept).put(block))?;
    let mut out = *proved.proof();
    assert_eq!(out.unordered, 0);
    add_proof(&mut out, &sum.dropped);
    assert!(same_records(&out, &sum.input), "out + dropped = in");
    assert_eq!(pool.free(), pool.capacity(), "all blocks are home");
    let output = kept.into_inner();
    assert_eq!(output.len() as u64, bytes);
    Ok((output, sum.dropped.records))
}

fn key_of<'r>(keys: &[KeyPart], record: &'r [u8]) -> &'r [u8] {
    let Some(part) = keys.first() else { return record };
    let from = record.len().min(part.offset as usize);
    &record[from..record.len().min((part.offset + part.length) as usize)]
}

/// Sorted inputs with few or many keys, and records shorter or longer than a block.
fn inputs() -> impl Strategy<Value = (Layout, Vec<KeyPart>, Vec<Vec<Vec<u8>>>)> {
    let part = KeyPart { offset: 1, length: 2, descending: false };
    let kinds = [3, 100, 5000].map(Layout::Fixed).into_iter().chain([Layout::Lines, Layout::Prefixed]);
    let kinds = prop::sample::select(kinds.collect::<Vec<_>>());
    (kinds, any::<bool>(), 1u8..200, prop::collection::vec((0usize..120, any::<u64>()), 1..9)).prop_map(
        move |(layout, whole, alphabet, counts)| {
            let keys = if whole { Vec::new() } else { vec![part] };
            let file = |&(count, seed): &(usize, u64)| {
                let mut rng = thalweg_base::rng::Rng::new(seed);
                let mut record = || -> Vec<u8> {
                    let line = if rng.one_in(40) { 9000 } else { rng.below(30) };
                    let len = layout.fixed_bytes().map_or(line, |n| n as u64);
                    (0..len).map(|_| 32 + rng.below(u64::from(alphabet)) as u8).collect()
                };
                let mut records: Vec<Vec<u8>> = (0..count).map(|_| record()).collect();
                records.sort_by(|a, b| key_of(&keys, a).cmp(key_of(&keys, b)));
                records
            };
            (layout, keys.clone(), counts.iter().map(file).collect())
        },
    )
}

fn bytes_of(layout: Layout, records: &[Vec<u8>], ended: bool) -> Vec<u8> {
    if layout == Layout::Prefixed {
        return records.iter().flat_map(|r| [&(r.len() as u32).to_le_bytes()[..], r].concat()).collect();
    }
    if layout != Layout::Lines {
        return records.concat();
    }
    let mut bytes: Vec<u8> = records.iter().flat_map(|r| [&r[..], b"\n"].concat()).collect();
    if !ended && records.last().is_some_and(|last| !last.is_empty()) {
        bytes.pop();
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_merge_equals_a_stable_sort(
        (layout, keys, files) in inputs(), shares in 1usize..6, ended in any::<bool>(), unique in any::<bool>(),
    ) {
        let place = Place::new("model");
        let inputs: Vec<Vec<u8>> = files.iter().map(|records| bytes_of(layout, records, ended)).collect();
        let mut expected = files.concat();
        expected.sort_by(|a, b| key_of(&keys, a).cmp(key_of(&keys, b)));
        let count = expected.len();
        if unique {
            expected.dedup_by(|next, kept| key_of(&keys, kept) == key_of(&keys, next));
        }
        let shares = if unique { 1 } else { shares };
        let (output, dropped) = merged(&place, &inputs, layout, &keys, (shares, unique)).unwrap();
        prop_assert!(output == bytes_of(layout, &expected, true));
        prop_assert_eq!(dropped as usize, count - expected.len());
    }

    #[test]
    fn the_first_record_out_of_order_is_reported(
        (layout, keys, mut files) in inputs(), shares in 1usize..6, (file, at) in (0usize..9, 0usize..120),
    ) {
        let place = Place::new("order");
        let file = file % files.len();
        let records = &mut files[file];
        // A record is moved before a smaller one.
        prop_assume!(records.len() > 1);
        let at = at % (records.len() - 1);
        let key = |record: &[u8]| key_of(&keys, record).to_vec();
        prop_assume!(key(&records[at]) != key(&records[at + 1]));
        records.swap(at, at + 1);
        let inputs: Vec<Vec<u8>> = files.iter().map(|records| bytes_of(layout, records, true)).collect();
        let outcome = merged(&place, &inputs, layout, &keys, (shares, false));
        match outcome {
            Err(Error::Unordered { path, record }) => {
                prop_assert_eq!(path.file_name().unwrap().to_str().unwrap(), file.to_string());
                // Equal keys may surround the two, so that a neighbour shows it first.
                let out: Vec<u64> = (1..files[file].len())
                    .filter(|&i| key(&files[file][i - 1]) > key(&files[file][i]))
                    .map(|i| i as u64)
                    .collect();
                prop_assert!(out.contains(&record), "{} is not of {:?}", record, out);
            }
            other => prop_assert!(false, "{:?}", other.map(|(_, dropped)| dropped)),
        }
    }
}

/// With the halves of a file exchanged, its split points were in reverse order, and a part ended before it began.
#[test]
fn a_file_with_exchanged_halves_is_an_error_for_any_number_of_lanes() {
    let place = Place::new("halves");
    let numbers = |range: std::ops::Range<u32>| range.flat_map(u32::to_be_bytes);
    for shares in 1..9 {
        let files = [numbers(600..1000).chain(numbers(0..600)).collect(), numbers(0..100).collect()];
        let outcome = merged(&place, &files, Layout::Fixed(4), &[], (shares, false));
        assert!(matches!(outcome, Err(Error::Unordered { .. })), "{shares}: {:?}", outcome.err());
    }
}

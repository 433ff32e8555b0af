//! Compares sorts with a model: random layouts, keys, inputs and distributions, mostly with unusual sizes.

mod support;

use proptest::prelude::*;
use support::data::{SHAPES, Shape, as_lines, as_prefixed, records};
use support::{Case, MEMORY_MIN, Stage, down, up};
use thalweg_record::{KeyPart, Layout};

/// A case as drawn by proptest: sizes and seeds, not bytes.
#[derive(Debug, Clone)]
struct Drawn {
    /// Bytes of a record; 0 for lines or prefixed records.
    record_bytes: u32,
    prefixed: bool,
    longest_line: usize,
    keys: Vec<KeyPart>,
    shape: Shape,
    seed: u64,
    /// Records of each input.
    counts: Vec<usize>,
    ends: bool,
    lanes: usize,
    unique: bool,
    within: bool,
    extra_memory: u64,
}

impl Drawn {
    fn case(&self) -> Case {
        let line = |rng: &mut thalweg_base::rng::Rng| {
            // Short lines are more frequent than long ones; some are empty.
            let bound = rng.below(self.longest_line as u64 + 1);
            rng.below(bound + 1) as usize
        };
        let make = |(i, &count): (usize, &usize)| {
            let seed = if self.shape == Shape::AllEqual { self.seed } else { self.seed + i as u64 };
            match self.record_bytes {
                0 if self.prefixed => as_prefixed(&records(self.shape, seed, count, line)),
                0 => as_lines(&records(self.shape, seed, count, line), self.ends || i == 1),
                n => records(self.shape, seed, count, |_| n as usize).concat(),
            }
        };
        Case {
            inputs: self.counts.iter().enumerate().map(make).collect(),
            layout: match self.record_bytes {
                0 if self.prefixed => Layout::Prefixed,
                0 => Layout::Lines,
                n => Layout::Fixed(n),
            },
            keys: self.keys.clone(),
            memory_bytes: MEMORY_MIN + self.extra_memory,
            // Dropping equal keys in several lanes has tests of its own.
            lanes: self.lanes,
            shuffle: None,
            unique: self.unique,
            within: self.within,
        }
    }
}

/// Keys inside records of `n` bytes, or anywhere in variable-length ones.
fn keys(n: u32) -> impl Strategy<Value = Vec<KeyPart>> {
    let reach = if n == 0 { 60 } else { n };
    let part = (0..reach, 1..=reach, any::<bool>()).prop_map(move |(offset, length, descending)| KeyPart {
        offset,
        length: if n == 0 { length } else { length.min(n - offset) },
        descending,
    });
    prop_oneof![
        1 => Just(vec![]),
        2 => prop::collection::vec(part.clone(), 1..2),
        2 => prop::collection::vec(part, 2..5),
    ]
}

fn counts(most: usize) -> impl Strategy<Value = Vec<usize>> {
    let count = prop_oneof![1 => Just(0usize), 1 => Just(1), 1 => Just(2), 5 => 3usize..most];
    prop::collection::vec(count, 1..4)
}

fn drawn(most: usize) -> impl Strategy<Value = Drawn> {
    let record_bytes = prop_oneof![3 => 1u32..40, 1 => 40u32..=300, 6 => Just(0)];
    record_bytes.prop_flat_map(move |n| {
        let longest = prop_oneof![3 => 0usize..30, 2 => 30usize..400, 1 => Just(5000), 1 => Just(40_000)];
        let memory = prop_oneof![Just(0u64), 0..(64u64 << 20)];
        let sizes = (longest, counts(most), any::<u64>().prop_map(|s| s >> 1));
        let rest = (prop::sample::select(&SHAPES[..]), any::<bool>(), 1usize..5, any::<[bool; 3]>(), memory);
        (sizes, keys(n), rest).prop_map(move |((longest_line, counts, seed), keys, rest)| {
            let (shape, ends, lanes, [unique, within, prefixed], extra_memory) = rest;
            // Keep long lines below ten megabytes.
            let counts = if longest_line > 1000 { counts.iter().map(|c| c / 20).collect() } else { counts };
            Drawn {
                record_bytes: n,
                prefixed,
                longest_line,
                keys,
                shape,
                seed,
                counts,
                ends,
                lanes,
                unique,
                within,
                extra_memory,
            }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sorts_agree_with_the_model(drawn in drawn(3000)) {
        Stage::simulated(drawn.seed).sorts(&drawn.case());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_real_disks_as_well(drawn in drawn(20_000), threads in any::<bool>()) {
        let stage = if threads { Stage::threads() } else { Stage::real() };
        stage.sorts(&drawn.case());
    }
}

/// Inputs that end just before, at and just after page bounds, alone and in sequence.
#[test]
fn records_meet_the_bounds_of_pages() {
    let page = (MEMORY_MIN / 1024) as usize;
    for record_bytes in [1, 7, 16, 100, page - 1, page, page + 1, 3 * page + 5] {
        for pages in [1, 2, 5] {
            let least = (pages * page) / record_bytes;
            for count in [least.saturating_sub(1), least, least + 1] {
                let seed = (record_bytes * 31 + count) as u64;
                let one = |seed| records(Shape::FewDistinct, seed, count, |_| record_bytes).concat();
                let mut case = Case::fixed(record_bytes as u32, one(seed));
                case.inputs.push(one(seed + 1));
                Stage::simulated(seed).sorts(&case.by(&[up(0, 1)]));
            }
        }
    }
}

/// A last line without its newline, which needs a page of its own.
#[test]
fn lines_meet_the_bounds_of_pages() {
    let page = (MEMORY_MIN / 1024) as usize;
    for last in [page - 2, page - 1, page, page + 1, 2 * page - 1, 2 * page] {
        for ends in [false, true] {
            let lines = [vec![b'b'; last - 3], vec![b'a'; 2]];
            let input = as_lines(&lines, ends);
            for inputs in [vec![input.clone()], vec![input.clone(), b"a".to_vec(), input.clone()]] {
                let case = Case { inputs, ..Case::lines(vec![]) };
                Stage::simulated(1).sorts(&case);
                Stage::simulated(1).sorts(&case.unique());
            }
        }
    }
}

/// Prefixed records with page bounds inside prefixes and contents, and some longer than pages.
#[test]
fn prefixes_meet_the_bounds_of_pages() {
    let page = (MEMORY_MIN / 1024) as usize;
    for first in (page - 9..page + 2).chain([2 * page - 4, 2 * page, 3 * page + 1]) {
        let input = as_prefixed(&[vec![b'b'; first], vec![b'a'; 2], vec![], vec![b'c'; page], vec![b'a'; 2]]);
        for inputs in
            [vec![input.clone()], vec![input.clone(), vec![], as_prefixed(&[vec![]]), input.clone()]]
        {
            let case = Case { inputs, ..Case::prefixed(vec![]) };
            Stage::simulated(1).sorts(&case);
            Stage::simulated(1).sorts(&case.clone().by(&[down(1, 3), up(0, 1)]));
            Stage::simulated(1).sorts(&case.unique());
        }
    }
}

/// A file that ends inside a record is an error with the offset of this record, wherever the file is in the list.
#[test]
fn a_truncated_record_is_an_error_with_its_offset() {
    let whole = as_prefixed(&records(Shape::Uniform, 5, 20_000, |rng| rng.below(100) as usize));
    let page = (MEMORY_MIN / 1024) as usize;
    for (contents, bytes) in
        [(50, 53), (50, 4), (50, 3), (50, 1), (3 * page, 2 * page), (u32::MAX as usize, 7)]
    {
        let mut cut = whole.clone();
        cut.extend((contents as u32).to_le_bytes());
        cut.resize(whole.len() + bytes.max(4), 7);
        cut.truncate(whole.len() + bytes);
        for inputs in [vec![cut.clone()], vec![cut.clone(), whole.clone()], vec![whole.clone(), cut.clone()]]
        {
            let said = Stage::simulated(3)
                .refuses(&Case { inputs: inputs.clone(), ..Case::prefixed(vec![]) })
                .to_string();
            let name = inputs.iter().position(|input| *input == cut).unwrap();
            let expected = format!(
                "/stage/in/{name} ends inside the record at byte {}, after {bytes} bytes of it; it is cut off",
                whole.len(),
            );
            assert_eq!(said, expected);
        }
    }
}

#[test]
fn empty_and_tiny_inputs() {
    for records in [&[][..], &[vec![]], &[vec![], vec![0]], &[vec![1, 0, 0, 0], vec![]]] {
        Stage::real().sorts(&Case::prefixed(as_prefixed(records)));
        Stage::simulated(1).sorts(&Case::prefixed(as_prefixed(records)).unique());
    }
    for input in [&b""[..], b"\n", b"\n\n", b"a", b"a\n", b"b\na", b"\0", b"\0\n\0\0\n\n\0\n", b"\n\nb\n"] {
        Stage::real().sorts(&Case::lines(input.to_vec()));
        Stage::simulated(1).sorts(&Case::lines(input.to_vec()).unique());
        Stage::simulated(1).sorts(&Case::lines(input.to_vec()).by(&[down(1, 3), up(0, 1)]));
    }
    Stage::real().sorts(&Case::fixed(100, vec![]));
    Stage::real().sorts(&Case::fixed(3, b"abc".to_vec()));
    let empty =
        Case { inputs: vec![vec![], b"b\n".to_vec(), vec![], b"a".to_vec(), vec![]], ..Case::lines(vec![]) };
    Stage::real().sorts(&empty);
}

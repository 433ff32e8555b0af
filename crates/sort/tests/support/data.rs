//! Test data of various distributions, from seeds.

use thalweg_base::rng::Rng;
use thalweg_record::{Generator, Kind};

/// How the bytes of records are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Uniform,
    AllEqual,
    Sorted,
    Reversed,
    FewDistinct,
    LongPrefixes,
    Skewed,
    /// Mostly NUL bytes, so that padding and content look alike.
    Zeros,
}

pub(crate) const SHAPES: [Shape; 8] = [
    Shape::Uniform,
    Shape::AllEqual,
    Shape::Sorted,
    Shape::Reversed,
    Shape::FewDistinct,
    Shape::LongPrefixes,
    Shape::Skewed,
    Shape::Zeros,
];

/// `count` records with lengths from `len`, in the order of the distribution.
pub(crate) fn records(
    shape: Shape,
    seed: u64,
    count: usize,
    mut len: impl FnMut(&mut Rng) -> usize,
) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let equal = rng.next_u64();
    let mut records: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let len = len(&mut rng);
            let mut record = vec![0; len];
            fill(shape, &mut rng, equal, &mut record);
            record
        })
        .collect();
    match shape {
        Shape::Sorted => records.sort(),
        Shape::Reversed => records.sort_by(|a, b| b.cmp(a)),
        _ => {}
    }
    records
}

fn fill(shape: Shape, rng: &mut Rng, equal: u64, record: &mut [u8]) {
    match shape {
        Shape::Uniform | Shape::Sorted | Shape::Reversed => random(rng, record),
        Shape::AllEqual => random(&mut Rng::new(equal), record),
        Shape::FewDistinct => {
            let which = rng.below(5);
            random(&mut Rng::new(equal + which), record);
        }
        Shape::LongPrefixes => {
            random(&mut Rng::new(equal), record);
            let tail = record.len().saturating_sub(1 + rng.below(6) as usize);
            random(rng, &mut record[tail..]);
        }
        Shape::Skewed => {
            // Half of the records share one bit less with the largest key than a quarter does, and so on.
            random(rng, record);
            let bits = rng.next_u64().trailing_zeros() as usize;
            for bit in 0..bits.min(record.len() * 8) {
                record[bit / 8] |= 0x80 >> (bit % 8);
            }
        }
        Shape::Zeros => record.iter_mut().for_each(|b| *b = u8::from(rng.one_in(12))),
    }
}

/// Random bytes.
pub(crate) fn random(rng: &mut Rng, out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
}

/// Records as lines, with newlines in them replaced; `ends` is whether the last line has a newline.
pub(crate) fn as_lines(records: &[Vec<u8>], ends: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(records.iter().map(|r| r.len() + 1).sum());
    for record in records {
        out.extend(record.iter().map(|&b| if b == b'\n' { 0x0b } else { b }));
        out.push(b'\n');
    }
    // An empty last line without a newline would not be a line.
    if !ends && records.last().is_some_and(|r| !r.is_empty()) {
        out.pop();
    }
    out
}

/// Records with length prefixes.
pub(crate) fn as_prefixed(records: &[Vec<u8>]) -> Vec<u8> {
    records.iter().flat_map(|record| [&(record.len() as u32).to_le_bytes()[..], record].concat()).collect()
}

/// The first `count` records of the Sort Benchmark.
pub(crate) fn benchmark(kind: Kind, count: usize) -> Vec<u8> {
    let mut out = vec![0; count * 100];
    Generator::new(kind, 0).fill(&mut out);
    out
}

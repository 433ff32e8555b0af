//! Split points for parts of equal size, from a sample of whole keys.
//!
//! Model: small chunks, one from a random place in each of many equal stretches of the input, so that an input in any
//! order is seen evenly, and all records that lie in them. If keys may not be split, split points fall between
//! different keys: a part ends where its size is nearest to its share of what is left.
//! Invariant: the same inputs, memory and number of parts give the same split points.

use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_io::{ALIGN, Kind, Op};
use thalweg_pump::{Input, Inputs};
use thalweg_record::{
    Key, Layout, SPLIT_KEY_BYTES_MAX, SplitPoint, SplitPoints, choose_weighted_split_points, records_in,
};

use crate::Result;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 16 << 10;
/// A line that has at least this many bytes in a chunk, and continues after it, is sampled.
const LONG_BYTES: usize = 1 << 10;
/// Records sampled for each part: the relative deviation of a part is then 1 / the root of this number, 1 %.
const RECORDS_FOR_PART: u64 = 10_000;
/// At most 1/`SHARE` of the input is read for a sample, but at least `BYTES_MIN` bytes.
const SHARE: u64 = 12;
const BYTES_MIN: u64 = 16 << 20;
/// Chunks from which the length of lines is estimated.
const FIRST_CHUNKS: u64 = 16;
const DEPTH: usize = 16;
const SEED: u64 = 0x7061_7274;

/// The part of a sample that one node takes.
#[derive(Debug, Clone, Copy)]
pub(in crate::verbs) struct Part {
    /// Bytes of the whole input, of which the files here are a part.
    pub(in crate::verbs) all_bytes: u64,
    /// Which chunks of the files here: every n-th, from a first one on.
    pub(in crate::verbs) chunks: (u64, u64),
}

/// Returns the split points, the sorted sample that they come from, and how many bytes were read for it.
pub(in crate::verbs) fn split_points(
    inputs: &Inputs,
    (layout, key): (Layout, &Key),
    (parts, split_keys): (usize, bool),
    limits: (u64, u64),
) -> Result<(SplitPoints, Vec<SplitPoint>, u64)> {
    let all = Part { all_bytes: inputs.bytes(), chunks: (0, 1) };
    let (mut keys, read) = sample(inputs, (layout, key), (parts, all), limits)?;
    Ok((choose(key, &mut keys, &vec![1; parts], split_keys), keys, read))
}

/// Chooses split points from a sample, for parts with sizes in the ratio of `weights`. Sorts the sample.
pub(in crate::verbs) fn choose(
    key: &Key,
    keys: &mut [SplitPoint],
    weights: &[u64],
    split_keys: bool,
) -> SplitPoints {
    let chosen = match split_keys {
        true => choose_weighted_split_points(keys, weights),
        false => between_keys(keys, weights),
    };
    SplitPoints::new(key, chosen)
}

/// Takes a part of a sample for this many parts. Returns it, and how many bytes were read for it.
pub(in crate::verbs) fn sample(
    inputs: &Inputs,
    (layout, key): (Layout, &Key),
    (parts, part): (usize, Part),
    (page_bytes, sample_bytes): (u64, u64),
) -> Result<(Vec<SplitPoint>, u64)> {
    let share = inputs.bytes() as f64 / part.all_bytes.max(1) as f64;
    let mut sampler =
        Sampler { inputs, layout, key, page_bytes, left: sample_bytes, keys: Vec::new(), read: 0 };
    let chunk_records = match layout.fixed_bytes() {
        Some(n) => CHUNK_BYTES as f64 / n as f64,
        None => {
            sampler.take(FIRST_CHUNKS, (0, 1))?;
            let seen = std::mem::take(&mut sampler.keys).len() as f64 / FIRST_CHUNKS as f64;
            sampler.left = sample_bytes;
            seen
        }
    };
    sampler.take(chunks(inputs.bytes(), share, parts, chunk_records), part.chunks)?;
    Ok((sampler.keys, sampler.read))
}

/// How many chunks to sample from `bytes` bytes, which are this share of the whole input, for `parts` parts.
fn chunks(bytes: u64, share: f64, parts: usize, chunk_records: f64) -> u64 {
    let least = (BYTES_MIN as f64 * share) as u64;
    let most = (bytes / SHARE).max(least).min(bytes) / CHUNK_BYTES;
    let wanted = (parts as u64 * RECORDS_FOR_PART) as f64 * share / chunk_records.max(0.01);
    (wanted as u64).clamp(1, most.max(1))
}

/// Bytes that are read for a sample of `bytes` bytes of such records, for `parts` parts.
pub(crate) fn sampled_bytes(bytes: u64, parts: usize, record_bytes: f64) -> u64 {
    chunks(bytes, 1.0, parts, CHUNK_BYTES as f64 / record_bytes) * CHUNK_BYTES
}

/// One in this many of the sorted keys of a node's sample is enough to choose split points: it moves a split point by a
/// deviation of that many keys / the root of 12, for each node. Together that is a fifth of the sample's own deviation,
/// the root of a part's keys. All keys are needed if the sample is the whole input, or of lines, whose number is not
/// known yet.
pub(in crate::verbs) fn keys_for_one(bytes: u64, layout: Layout, parts: usize, nodes: usize) -> u64 {
    let Some(record_bytes) = layout.fixed_bytes() else { return 1 };
    let sampled = sampled_bytes(bytes, parts, record_bytes as f64);
    if sampled >= bytes {
        return 1;
    }
    let keys = sampled / record_bytes as u64;
    (keys / (2 * parts * nodes) as u64).isqrt().max(1)
}

struct Sampler<'a> {
    inputs: &'a Inputs,
    layout: Layout,
    key: &'a Key,
    page_bytes: u64,
    /// Bytes that the sample may still take.
    left: u64,
    keys: Vec<SplitPoint>,
    read: u64,
}

impl Sampler<'_> {
    /// Adds the keys of one in `of` of this many chunks, from `first` on, or of the whole input if it has no more.
    fn take(&mut self, chunks: u64, (first, of): (u64, u64)) -> Result<()> {
        let bytes = self.inputs.file_bytes();
        let all = bytes.div_ceil(CHUNK_BYTES);
        let chunks = chunks.min(all);
        let pool = Pool::new(CHUNK_BYTES as usize, DEPTH)?;
        let mut queue = self.inputs.backends().queue(DEPTH)?;
        let mut rng = Rng::new(SEED + first);
        let mut next = first;
        while next < chunks || queue.in_flight() > 0 {
            if next < chunks
                && queue.in_flight() < queue.depth()
                && let Some(mut block) = pool.try_take()
            {
                let (low, high) = (next * all / chunks, (next + 1) * all / chunks);
                let place = (low + rng.below(high - low)) * CHUNK_BYTES;
                let (file, at) = self.find(place);
                let len = (file.metadata.len - at).min(CHUNK_BYTES) as usize;
                block.set_len(len.next_multiple_of(if file.is_direct() { ALIGN } else { 1 }));
                let origin = file.first_page * self.page_bytes + at;
                block.set_offset(at);
                queue.submit(Op {
                    kind: Kind::Read,
                    file: file.file()?.handle().clone(),
                    at,
                    block,
                    tag: origin,
                });
                next += of;
                continue;
            }
            let Some(done) = queue.reap(true) else { continue };
            done.result?;
            self.read += done.block.len() as u64;
            let (all, begun) = ((chunks - first).div_ceil(of), (next - first) / of);
            let budget = self.left / (all - (begun - queue.in_flight() as u64 - 1).min(all - 1));
            self.look(&done.block, done.block.offset(), done.tag, budget);
        }
        Ok(())
    }

    /// The file that has this byte of all files together, and a sector in it.
    fn find(&self, mut place: u64) -> (&Input, u64) {
        for input in self.inputs.files() {
            if place < input.metadata.len {
                return (input, place / ALIGN as u64 * ALIGN as u64);
            }
            place -= input.metadata.len;
        }
        let last = self.inputs.files().iter().rfind(|input| input.metadata.len > 0);
        (last.expect("an input that is not empty"), 0)
    }

    /// Adds the keys of the records in a chunk, while they take no more than `budget`.
    fn look(&mut self, bytes: &[u8], at: u64, origin: u64, mut budget: u64) {
        let (mut records, open) = records_in(self.layout, bytes, at);
        // The beginning of a long line is as good as the whole; that of a short one would be a key that does not exist.
        records
            .extend(open.filter(|&from| bytes.len() - from >= LONG_BYTES).map(|from| (from, &bytes[from..])));
        for (from, record) in records {
            let normal = self.key.normal(record, SPLIT_KEY_BYTES_MAX);
            let cost = (normal.capacity() + std::mem::size_of::<SplitPoint>()) as u64;
            if cost <= budget {
                budget -= cost;
                self.left = self.left.saturating_sub(cost);
                self.keys.push(SplitPoint { normal, origin: origin + from as u64 });
            }
        }
    }
}

/// Split points between different keys. A part takes another key while that brings it nearer to its share of what is
/// left.
fn between_keys(sample: &mut [SplitPoint], weights: &[u64]) -> Vec<SplitPoint> {
    let parts = weights.len();
    let mut due: f64 = weights.iter().map(|weight| *weight as f64).sum();
    sample.sort_unstable();
    let groups: Vec<&[SplitPoint]> = sample.chunk_by(|a, b| a.normal == b.normal).collect();
    let mut split_points = Vec::with_capacity(parts - 1);
    let (mut left, mut part) = (sample.len(), 0);
    for (i, group) in groups.iter().enumerate() {
        if split_points.len() + 1 == parts {
            break;
        }
        part += group.len();
        let weight = weights[split_points.len()] as f64;
        let share = left as f64 * weight / due.max(1.0);
        let with_next = part + groups.get(i + 1).map_or(0, |next| next.len());
        let is_last = i + 1 == groups.len();
        if !is_last && (part as f64 - share).abs() <= (with_next as f64 - share).abs() {
            // All keys equal to the split point go to its left, whatever their origin.
            split_points.push(SplitPoint { normal: group[0].normal.clone(), origin: u64::MAX });
            left -= part;
            due -= weight;
            part = 0;
        }
    }
    split_points
}

#[cfg(test)]
mod tests {
    use thalweg_record::keep_every;

    use super::*;

    fn parts_of(keys: &[(&str, usize)], parts: usize) -> Vec<usize> {
        weighted(keys, &vec![1; parts])
    }

    fn weighted(keys: &[(&str, usize)], weights: &[u64]) -> Vec<usize> {
        let each = |(key, count): &(&str, usize)| {
            vec![SplitPoint { normal: key.as_bytes().to_vec(), origin: 0 }; *count]
        };
        let mut sample: Vec<SplitPoint> = keys.iter().flat_map(each).collect();
        let split_points = between_keys(&mut sample, weights);
        let mut sizes = vec![0; weights.len()];
        for split_point in &sample {
            sizes[split_points.iter().filter(|c| c.normal < split_point.normal).count()] += 1;
        }
        sizes
    }

    #[test]
    fn some_keys_of_each_node_part_all_as_evenly_as_all_do() {
        const KEYS: u64 = 5_000;
        for (nodes, alike) in [(2, false), (8, false), (32, false), (32, true)] {
            let of_node = |node: u64| {
                let mut rng = Rng::new(if alike { SEED } else { node });
                let key = |_| SplitPoint { normal: rng.next_u64().to_be_bytes().to_vec(), origin: node };
                let mut keys: Vec<SplitPoint> = (0..KEYS).map(key).collect();
                keys.sort();
                keys
            };
            let of = keys_for_one(100_000_000, Layout::Fixed(100), nodes as usize, nodes as usize);
            assert!((8..60).contains(&of), "{of} on {nodes}");
            let mut some: Vec<SplitPoint> = (0..nodes)
                .flat_map(|node| {
                    let mut keys = of_node(node);
                    keep_every(&mut keys, of, of * node / nodes);
                    keys
                })
                .collect();
            let split_points = choose_weighted_split_points(&mut some, &vec![1; nodes as usize]);
            let mut sizes = vec![0; nodes as usize];
            for key in (0..nodes).flat_map(of_node) {
                sizes[split_points.partition_point(|split_point| *split_point <= key)] += 1;
            }
            assert!(sizes.iter().all(|size| KEYS.abs_diff(*size) < KEYS / 50), "{nodes}, {alike}: {sizes:?}");
        }
        for (bytes, layout, parts) in
            [(160, Layout::Fixed(8), 10), (16 << 20, Layout::Fixed(100), 32), (1 << 30, Layout::Lines, 4)]
        {
            assert_eq!(keys_for_one(bytes, layout, parts, 2), 1, "{bytes} in {parts} parts");
        }
    }

    #[test]
    fn a_hot_key_stays_whole_and_the_rest_is_shared_evenly() {
        assert_eq!(parts_of(&[("a", 10), ("b", 10), ("c", 10), ("d", 10)], 4), [10, 10, 10, 10]);
        assert_eq!(parts_of(&[("a", 5), ("b", 5), ("c", 80), ("d", 5), ("e", 5)], 3), [10, 80, 10]);
        assert_eq!(parts_of(&[("a", 90), ("b", 5), ("c", 5)], 3), [90, 5, 5]);
        assert_eq!(parts_of(&[("a", 7)], 3), [7, 0, 0]);
        assert_eq!(parts_of(&[], 3), [0, 0, 0]);
        let four = [("a", 10), ("b", 10), ("c", 10), ("d", 10)];
        assert_eq!(weighted(&four, &[3, 1]), [30, 10]);
        assert_eq!(weighted(&four, &[1, 2, 1]), [10, 20, 10]);
    }
}

//! Entry points for fuzzers: summaries, generated records, keys, split points, samples. Each function takes any bytes
//! and panics if an invariant is broken. `fuzz/` calls them, and the tests replay its corpora.
//!
//! Invariant: nothing here is compiled into a release.

use std::cmp::Ordering;

use crate::gensort::RECORD_BYTES;
use crate::{
    Generator, Key, KeyPart, Kind, Layout, SUMMARY_BYTES, SplitPoint, SplitPoints, Summary,
    choose_split_points, pack_sample, unpack_sample,
};

/// Takes bytes off the front of the fuzzer's bytes, and zeros after their end.
struct Taker<'b>(&'b [u8]);

impl<'b> Taker<'b> {
    fn byte(&mut self) -> u8 {
        self.slice(1).first().copied().unwrap_or(0)
    }

    fn slice(&mut self, len: usize) -> &'b [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// An accepted summary is written back unchanged, merges, and can be reported. Counts do not depend on how records
/// are divided.
pub fn summary(data: &[u8]) {
    let read = |bytes: &[u8]| match Summary::from_bytes(bytes) {
        Ok(summary) => {
            assert_eq!(summary.to_bytes()[..], *bytes, "a summary is written as it was read");
            assert!(summary.report().ends_with('\n'));
            Some(summary)
        }
        Err(e) => {
            assert_eq!(e.to_string().lines().count(), 1);
            None
        }
    };
    read(data);
    let parts: Vec<Summary> = data.chunks(SUMMARY_BYTES).filter_map(read).collect();
    let merge = |parts: &[Summary]| {
        parts.iter().fold(Summary::new(), |mut whole, part| {
            whole.merge(part);
            whole
        })
    };
    let whole = merge(&parts);
    let (left, right) = parts.split_at(parts.len() / 2);
    let mut halves = merge(left);
    halves.merge(&merge(right));
    assert_eq!(halves, whole, "merging is associative");
    if whole.records < 1 << 96 {
        assert_eq!(Summary::from_bytes(&whole.to_bytes()), Ok(whole), "what was merged is a summary");
    }
    let (records, _) = data.as_chunks::<RECORD_BYTES>();
    let (mut at_once, mut in_pieces) = (Summary::new(), Summary::new());
    at_once.push_records(records.as_flattened());
    let (left, right) = records.split_at(usize::from(*data.first().unwrap_or(&0)).min(records.len()));
    for part in [left, right] {
        let mut piece = Summary::new();
        piece.push_records(part.as_flattened());
        in_pieces.merge(&piece);
    }
    assert_eq!(at_once, in_pieces);
    assert_eq!(Summary::from_bytes(&at_once.to_bytes()), Ok(at_once), "what was counted is a summary");
}

/// Records generated in one stretch equal those generated one by one, and generation continues at its end.
pub fn gensort(data: &[u8]) {
    let mut from = Taker(data);
    let bits = from.byte();
    let kind = Kind { ascii: bits & 1 == 1, skewed: bits & 2 == 2 };
    let mut number = [0; 16];
    let bytes = from.slice(16);
    number[..bytes.len()].copy_from_slice(bytes);
    // Numbers of all magnitudes, including the extremes.
    let start = u128::from_le_bytes(number) >> (from.byte() & 127);
    let start = if bits & 4 == 4 { u128::MAX - start } else { start };
    // Sometimes across the bound between two batches.
    let count = usize::from(from.byte() & 31) + if bits & 0x38 == 0x38 { 990 } else { 0 };
    let mut whole = vec![0; count * RECORD_BYTES];
    let mut generator = Generator::new(kind, start);
    generator.fill(&mut whole);
    assert_eq!(generator.next_record(), start.wrapping_add(count as u128));
    let split_point = usize::from(from.byte()).min(count) * RECORD_BYTES;
    let mut parts = vec![0; whole.len()];
    let mut generator = Generator::new(kind, start);
    let (left, right) = parts.split_at_mut(split_point);
    generator.fill(left);
    generator.fill(right);
    assert_eq!(parts, whole, "parts made apart fit together");
    let plain = Kind { skewed: false, ..kind };
    for (i, record) in whole.chunks(RECORD_BYTES).enumerate().step_by(1 + count / 24) {
        let n = start.wrapping_add(i as u128);
        assert_eq!(Generator::at(kind, n)[..], *record, "record {n}");
        assert_eq!(Generator::at(plain, n)[10..], record[10..], "skewed records differ in the key only");
        if kind.ascii {
            assert!(record.ends_with(b"\r\n") && record[..98].iter().all(|b| (b' '..=b'~').contains(b)));
        }
    }
}

/// Normal forms, windows and comparisons agree with comparing part by part. A record is located in the range that
/// counting split points gives.
pub fn keys(data: &[u8]) {
    let mut from = Taker(data);
    let bits = from.byte();
    let record_bytes = 1 + u32::from(from.byte() % 40);
    let layout = match (bits & 1 == 1, bits & 0x80 == 0x80) {
        (true, false) => Layout::Lines,
        (true, true) => Layout::Prefixed,
        (false, _) => Layout::Fixed(record_bytes),
    };
    let part = |from: &mut Taker<'_>| {
        let (offset, length) = (from.byte(), from.byte());
        // Sometimes as large as numbers can be.
        let far = |n: u8| if n > 250 { u32::MAX / 2 - u32::from(255 - n) } else { u32::from(n % 48) };
        KeyPart { offset: far(offset), length: far(length).max(1), descending: from.byte() & 1 == 1 }
    };
    let parts: Vec<KeyPart> = (0..bits >> 1 & 3).map(|_| part(&mut from)).collect();
    let Ok(key) = Key::new(layout, &parts) else { return };
    let count = usize::from(from.byte() % 12);
    let shared = usize::from(from.byte() % 24);
    let prefix = from.slice(shared);
    let mut records: Vec<(Vec<u8>, u64)> = Vec::new();
    while !from.0.is_empty() && records.len() < 64 {
        let head = from.byte();
        let rest = from.slice(usize::from(head % 32));
        let mut record = if head & 32 == 32 { prefix.to_vec() } else { Vec::new() };
        record.extend_from_slice(rest);
        match layout {
            Layout::Lines => record.retain(|b| *b != b'\n'),
            Layout::Fixed(n) => record.resize(n as usize, 0),
            _ => {
                let contents = std::mem::take(&mut record);
                layout.push(&contents, &mut record);
            }
        }
        records.push((record, u64::from(head >> 6)));
    }
    for pair in records.windows(2) {
        agree((layout, &key, &parts), &pair[0].0, &pair[1].0);
    }
    let split_point = |(record, origin): &(Vec<u8>, u64)| SplitPoint {
        normal: key.normal(record, usize::MAX),
        origin: *origin,
    };
    // The split points come from the first half; all records are located.
    let mut sample: Vec<SplitPoint> = records[..records.len().div_ceil(2)].iter().map(split_point).collect();
    let split_points = SplitPoints::new(&key, choose_split_points(&mut sample, count));
    for one in &records {
        let own = split_point(one);
        let truth = split_points.split_points().iter().filter(|c| **c < own).count();
        let at = split_points.locate(&key, one.0[..].into(), one.1);
        assert_eq!(at, truth, "of {:?}", split_points.split_points());
        let shared = split_points.shared_in(at);
        if at > 0 && shared > 0 {
            assert_eq!(
                own.normal[..shared],
                split_points.split_points()[at - 1].normal[..shared],
                "all of a range share it"
            );
        }
    }
}

/// All ways to compare two records must agree.
fn agree((layout, key, parts): (Layout, &Key, &[KeyPart]), a: &[u8], b: &[u8]) {
    let truth = plainly(parts, layout.contents(a), layout.contents(b));
    assert_eq!((key.compare(a, b), key.compare(b, a)), (truth, truth.reverse()));
    let (na, nb) = (key.normal(a, usize::MAX), key.normal(b, usize::MAX));
    assert_eq!(na.cmp(&nb), truth, "normal forms");
    assert_eq!(key.compare_with_normal(a, 0, &nb), truth);
    assert_eq!((na.len(), nb.len()), (key.normal_len(a), key.normal_len(b)));
    let shared = crate::common_prefix(&na, &nb);
    for skip in 0..=shared {
        assert_eq!(key.normal(a, skip), na[..skip]);
        assert_eq!(key.compare_with_normal(a, skip, &nb[skip..]), truth);
        assert_eq!(key.agreement(a, skip, &nb[skip..]), shared - skip);
        let (wa, wb) = (key.window(a.into(), skip), key.window(b.into(), skip));
        if wa != wb {
            assert_eq!(wa.cmp(&wb), truth, "windows from {skip}");
        } else if key.ends_within(skip) {
            assert_eq!(truth, Ordering::Equal, "equal windows from {skip}");
        }
        assert_eq!(key.compare_from(a, b, skip), truth);
    }
}

/// A reference comparison of two records.
fn plainly(parts: &[KeyPart], a: &[u8], b: &[u8]) -> Ordering {
    if parts.is_empty() {
        return a.cmp(b);
    }
    let bytes = |r: &[u8], p: &KeyPart| -> Vec<u8> {
        r.iter().copied().skip(p.offset as usize).take(p.length as usize).collect()
    };
    let by = |p: &KeyPart| {
        let order = bytes(a, p).cmp(&bytes(b, p));
        if p.descending { order.reverse() } else { order }
    };
    parts.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// An unpacked sample has no more keys than allowed, and packs to a sample of the same order.
pub fn packed(data: &[u8]) {
    let Some((&most, packed)) = data.split_first() else { return };
    let keys_bytes = usize::from(most) * 64;
    let Some(mut sample) = unpack_sample(packed, keys_bytes) else { return };
    assert!(sample.iter().map(|split_point| split_point.normal.len()).sum::<usize>() <= keys_bytes);
    let again = pack_sample(&mut sample);
    assert!(sample.is_sorted(), "packing sorts");
    let back = unpack_sample(&again, keys_bytes).expect("it was packed here");
    assert_eq!(back.len(), sample.len());
    for (back, split_point) in back.iter().zip(&sample) {
        assert!(back.origin == split_point.origin && split_point.normal.starts_with(&back.normal));
    }
    for (back, split_point) in back.windows(2).zip(sample.windows(2)) {
        assert_eq!(back[0].cmp(&back[1]), split_point[0].cmp(&split_point[1]), "neighbours keep their order");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay;

    #[test]
    fn the_corpora_keep_the_invariants() {
        replay::corpus("summary", super::summary);
        replay::corpus("gensort", super::gensort);
        replay::corpus("keys", super::keys);
        replay::corpus("packed", super::packed);
    }
}

//! Proofs: counts, checksum and order of a stream of records, computed from all of its bytes.
//!
//! Model: a [`Prover`] gets the consecutive bytes of a stream in pieces of any size, and finds the records itself: the
//! proof depends on the bytes alone, not on what the sorter knows about them. A [`Chain`] joins the proofs of pieces
//! in order, and compares the neighbours where pieces meet.
//! Invariant: the checksum is the sum mod 2^128 of the XXH3-128 of each record. It does not depend on order, and
//! proofs of parts add up. A line is hashed without its newline.
//! Source of the idea: paper 003, section 5.1.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use thalweg_api::{LongEnd, PieceEnd, Proof};
use xxhash_rust::xxh3::xxh3_128;

use crate::carry::{Carry, LongRecord};
use crate::in_place::same;
use crate::{InPlace, Key, Layout, each_record};

/// The hash of one record (a line without its newline).
#[inline]
pub fn record_hash(record: &[u8]) -> u128 {
    xxh3_128(record)
}

/// Adds `part` to `whole`. Order and duplicates where they meet are left to the caller.
pub fn add_proof(whole: &mut Proof, part: &Proof) {
    whole.records += part.records;
    whole.bytes += part.bytes;
    whole.checksum = whole.checksum.wrapping_add(part.checksum);
    whole.unordered += part.unordered;
    whole.duplicates += part.duplicates;
}

/// Adds one record to the sums of a proof, ignoring its order.
#[inline]
pub fn add_record(proof: &mut Proof, record: &[u8]) {
    add_hash(proof, record.len(), record_hash(record));
}

/// Adds a record of this length with this hash to the sums of a proof.
#[inline(always)]
pub fn add_hash(proof: &mut Proof, len: usize, hash: u128) {
    proof.records += 1;
    proof.bytes += len as u64;
    proof.checksum = proof.checksum.wrapping_add(hash);
}

/// The proof of `records` records that were only counted. They take `bytes` bytes with their terminators.
pub fn counted(layout: Layout, records: u64, bytes: u64) -> Proof {
    Proof { records, bytes: bytes - records * layout.end_bytes() as u64, ..Proof::default() }
}

/// The bytes of the proved records with their terminators.
pub fn file_bytes(layout: Layout, proof: &Proof) -> u64 {
    proof.bytes + proof.records * layout.end_bytes() as u64
}

/// Whether two proofs are of the same records, in any order.
pub fn same_records(a: &Proof, b: &Proof) -> bool {
    a.records == b.records && a.bytes == b.bytes && a.checksum == b.checksum
}

/// A record kept for a comparison with the next piece: the whole record, or the start of the key of a long one.
#[derive(Debug, Clone, Default)]
struct Kept {
    record: Vec<u8>,
    /// For a long record: the first bytes of its key's normal form, and the hash of the whole normal form.
    long: Option<(Vec<u8>, u128)>,
    /// Bytes of the record, or 0 if unknown.
    len: usize,
}

/// Two neighbours of unknown order: their keys differ, but their kept parts are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Doubt {
    /// The offset of the second one in the proved bytes.
    at: u64,
    /// The lengths of both.
    lens: [usize; 2],
}

impl From<&Kept> for PieceEnd {
    fn from(kept: &Kept) -> PieceEnd {
        let long = kept.long.clone().map(|(normal, hash)| LongEnd { normal, hash });
        PieceEnd { record: kept.record.clone(), long }
    }
}

impl From<PieceEnd> for Kept {
    fn from(end: PieceEnd) -> Kept {
        let len = end.record.len();
        Kept { record: end.record, long: end.long.map(|long| (long.normal, long.hash)), len }
    }
}

impl Kept {
    fn set(&mut self, key: &Key, record: &[u8], keep_bytes: usize) {
        self.record.clear();
        self.long = None;
        self.len = record.len();
        if record.len() <= keep_bytes {
            self.record.extend_from_slice(record);
        } else {
            self.long = Some((key.normal(record, keep_bytes), key.normal_hash(record)));
        }
    }

    /// Compares this record with `next`. If keys agree in the kept part and continue after it, they are equal if their
    /// hashes are equal; otherwise their order is unknown.
    fn compare(&self, key: &Key, next: &Kept, keep_bytes: usize) -> Option<Ordering> {
        if self.long.is_none() && next.long.is_none() {
            return Some(key.compare(&self.record, &next.record));
        }
        let normal = |kept: &Kept| match &kept.long {
            Some((normal, _)) => normal.clone(),
            None => key.normal(&kept.record, keep_bytes),
        };
        let (ours, theirs) = (normal(self), normal(next));
        let hash = |kept: &Kept| kept.long.as_ref().map(|(_, hash)| *hash);
        match ours.cmp(&theirs) {
            Ordering::Equal if ours.len() == keep_bytes && hash(self) != hash(next) => None,
            order => Some(order),
        }
    }
}

/// A counted record: the head of its key, and its hash, or 0 without hashing.
#[derive(Clone, Copy)]
struct Seen<'b> {
    record: &'b [u8],
    head: u64,
    hash: u128,
}

/// Computes the proof of a piece of a stream.
#[derive(Debug, Clone)]
pub struct Prover {
    layout: Layout,
    key: Key,
    hashing: bool,
    proof: Proof,
    /// How many bytes of the first and last records are kept.
    keep_bytes: usize,
    /// The first record, once it is complete.
    first: Kept,
    /// The last complete record, if it is not in the bytes at hand.
    last: Kept,
    /// The start of an unfinished record.
    carry: Carry,
    /// Neighbours that count as ordered until [`Prover::settle`] compares them.
    doubts: Vec<Doubt>,
}

impl Prover {
    /// An empty proof. Without `hashing` it has only counts and order.
    pub fn new(layout: Layout, key: Key, hashing: bool) -> Prover {
        Prover {
            layout,
            key,
            hashing,
            proof: Proof::default(),
            keep_bytes: usize::MAX,
            first: Kept::default(),
            last: Kept::default(),
            carry: Carry::default(),
            doubts: Vec::new(),
        }
    }

    /// Keeps at most `keep_bytes` bytes of the first and the last record. If neighbours in two pieces agree that far,
    /// only [`Prover::settle`] can compare them.
    pub fn keeping(mut self, keep_bytes: usize) -> Prover {
        self.keep_bytes = keep_bytes;
        self
    }

    /// Continues after earlier records, given their proof and the last of them. [`Prover::ends`] then does not return
    /// the first one.
    pub fn behind(mut self, proof: Proof, last: &[u8]) -> Prover {
        assert!(self.proof.records == 0 && self.carry.is_empty(), "a prover of nothing yet");
        self.proof = proof;
        self.last.set(&self.key, last, self.keep_bytes);
        self
    }

    /// A piece that was proved elsewhere with the same `keep_bytes`: its proof and [`Prover::piece_ends`].
    pub fn of_piece(mut self, proof: Proof, [first, last]: [PieceEnd; 2]) -> Prover {
        assert!(self.proof.records == 0 && self.carry.is_empty(), "a prover of nothing yet");
        (self.proof, self.first, self.last) = (proof, first.into(), last.into());
        self
    }

    /// The first and the last record, for joining this piece elsewhere.
    pub fn piece_ends(&self) -> [PieceEnd; 2] {
        [&self.first, &self.last].map(PieceEnd::from)
    }

    /// A placeholder.
    pub fn nothing() -> Prover {
        let key = Key::new(Layout::Lines, &[]).expect("whole lines are always a key");
        Prover::new(Layout::Lines, key, false)
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if !self.carry.is_empty() {
            bytes = self.finish_carry(bytes);
            if !self.carry.is_empty() {
                return;
            }
        }
        let mut previous = None;
        let end = each_record!(self.layout, bytes, 0, |_, record, _| {
            previous = Some(self.step(previous, record));
        });
        // Later bytes need the last complete record and what follows it.
        if let Some(last) = previous {
            self.keep_last(last.record);
        }
        self.carry.extend(&self.key, self.keep_bytes, &bytes[end..]);
    }

    /// Completes a record that began in earlier bytes, and returns the remaining bytes.
    fn finish_carry<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(missing) = self.carry.completes(self.layout, bytes) else {
            self.carry.extend(&self.key, self.keep_bytes, bytes);
            return &[];
        };
        let mut carry = std::mem::take(&mut self.carry);
        carry.extend(&self.key, self.keep_bytes, &bytes[..missing - self.layout.end_bytes()]);
        if let Some(record) = carry.whole() {
            self.one(record);
            self.keep_last(record);
        }
        if let Some(long) = carry.long(&self.key, self.keep_bytes) {
            self.one_long(long);
        }
        carry.clear();
        self.carry = carry;
        // An empty open line looks like no open line; both end here.
        &bytes[missing..]
    }

    /// Adds a record after `previous`. Most neighbours differ in their heads. Of the others, many are equal records, so
    /// the hash is reused.
    #[inline(always)]
    fn step<'b>(&mut self, previous: Option<Seen<'_>>, record: InPlace<'b>) -> Seen<'b> {
        let head = self.key.head(record, 0);
        let record = record.alone();
        let hash = match previous {
            Some(before) if before.head < head => self.add(record),
            Some(before) if same(before.record, record) => {
                self.proof.duplicates += 1;
                self.add_hashed(record, before.hash)
            }
            Some(before) => self.count(self.key.compare(before.record, record), record),
            None => self.one(record),
        };
        Seen { record, head, hash }
    }

    fn count(&mut self, order: Ordering, record: &[u8]) -> u128 {
        self.saw(order);
        self.add(record)
    }

    /// Counts how two neighbours compare.
    #[inline(always)]
    fn saw(&mut self, order: Ordering) {
        self.proof.unordered += u64::from(order == Ordering::Greater);
        self.proof.duplicates += u64::from(order == Ordering::Equal);
    }

    #[inline(always)]
    fn add(&mut self, record: &[u8]) -> u128 {
        self.add_hashed(record, if self.hashing { record_hash(record) } else { 0 })
    }

    #[inline(always)]
    fn add_hashed(&mut self, record: &[u8], hash: u128) -> u128 {
        add_hash(&mut self.proof, record.len(), hash);
        hash
    }

    /// Adds a record; the one before it, if any, is in `last`.
    fn one(&mut self, record: &[u8]) -> u128 {
        let order = if self.proof.records == 0 {
            self.first.set(&self.key, record, self.keep_bytes);
            Ordering::Less
        } else if self.last.long.is_none() {
            self.key.compare(&self.last.record, record)
        } else {
            let mut next = Kept::default();
            next.set(&self.key, record, self.keep_bytes);
            self.order_before(&next)
        };
        self.count(order, record)
    }

    /// Adds a record that is too long to be in memory; the one before it, if any, is in `last`.
    fn one_long(&mut self, record: LongRecord) {
        let LongRecord { len, hash, normal } = record;
        let next = Kept { record: Vec::new(), long: Some(normal), len };
        let order = match self.proof.records {
            0 => Ordering::Less,
            _ => self.order_before(&next),
        };
        if self.proof.records == 0 {
            self.first = next.clone();
        }
        self.saw(order);
        add_hash(&mut self.proof, len, if self.hashing { hash } else { 0 });
        self.last = next;
    }

    fn keep_last(&mut self, record: &[u8]) {
        self.last.set(&self.key, record, self.keep_bytes);
    }

    /// The proof so far.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// The first and the last complete record; empty if there is none, or if it is too long to be kept.
    pub fn ends(&self) -> (&[u8], &[u8]) {
        (&self.first.record, &self.last.record)
    }

    /// The last complete record, after which another prover can continue. `None` if it is too long to be kept, or if
    /// the order of earlier neighbours is unknown.
    pub fn last(&self) -> Option<&[u8]> {
        let is_known = self.proof.records > 0 && self.last.long.is_none() && self.doubts.is_empty();
        is_known.then_some(&self.last.record[..])
    }

    /// Bytes at the end that are not a complete record (for lines: without a newline).
    pub fn unfinished(&self) -> usize {
        self.carry.len()
    }

    /// Joins the piece that follows this one. Neither may have an unfinished record.
    pub fn join(&mut self, next: &Prover) {
        assert!(self.carry.is_empty() && next.carry.is_empty(), "pieces are joined at record bounds");
        if next.proof.records == 0 {
            return;
        }
        if self.proof.records == 0 {
            self.first = next.first.clone();
        } else {
            let order = self.order_before(&next.first);
            self.saw(order);
        }
        let before = file_bytes(self.layout, &self.proof);
        self.doubts.extend(next.doubts.iter().map(|doubt| Doubt { at: before + doubt.at, ..*doubt }));
        add_proof(&mut self.proof, &next.proof);
        self.last = next.last.clone();
    }

    /// The order of the last record and `next`. It is "less" for now if it is unknown.
    fn order_before(&mut self, next: &Kept) -> Ordering {
        self.last.compare(&self.key, next, self.keep_bytes).unwrap_or_else(|| {
            let (at, lens) = (file_bytes(self.layout, &self.proof), [self.last.len, next.len]);
            // Bytes that another process proved are not available here.
            self.doubts.extend((!lens.contains(&0)).then_some(Doubt { at, lens }));
            Ordering::Less
        })
    }

    /// Compares the neighbours whose order is unknown. `read` reads proved bytes at an offset. Two records are in
    /// memory at a time.
    pub fn settle<E>(&mut self, mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let end_bytes = self.layout.end_bytes() as u64;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for Doubt { at, lens: [first, second] } in std::mem::take(&mut self.doubts) {
            before.resize(first, 0);
            after.resize(second, 0);
            read(at - end_bytes - first as u64, &mut before)?;
            read(at, &mut after)?;
            self.proof.unordered += u64::from(self.key.compare(&before, &after) == Ordering::Greater);
        }
        Ok(())
    }
}

/// Joins the proofs of pieces that arrive in any order. It holds only those that cannot be joined yet.
#[derive(Debug)]
pub struct Chain {
    whole: Prover,
    next: u64,
    waiting: BTreeMap<u64, Prover>,
}

impl Chain {
    /// Starts at piece 0. `empty` is an empty proof with the right key.
    pub fn new(empty: Prover) -> Chain {
        Chain { whole: empty, next: 0, waiting: BTreeMap::new() }
    }

    /// Adds piece `index`. Each index must come once.
    pub fn add(&mut self, index: u64, piece: Prover) {
        self.add_each(index, piece, |_, _| ());
    }

    /// Adds piece `index`, and calls `joined` for each piece that can now be joined, in order, with the proof up to
    /// its end.
    pub fn add_each(&mut self, index: u64, piece: Prover, mut joined: impl FnMut(u64, &Prover)) {
        assert!(index >= self.next, "piece {index} was joined before");
        let twice = self.waiting.insert(index, piece);
        assert!(twice.is_none(), "piece {index} came twice");
        while let Some(piece) = self.waiting.remove(&self.next) {
            self.whole.join(&piece);
            joined(self.next, &self.whole);
            self.next += 1;
        }
    }

    /// The proof of all pieces; panics if one is missing.
    pub fn finish(self) -> Prover {
        assert!(self.waiting.is_empty(), "piece {} is missing", self.next);
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first and the second record agree in the kept part, and are out of order.
    #[test]
    fn neighbours_that_agree_in_the_kept_part_are_settled() {
        let text = b"zero\nlong and b\nlong and a\nlong and c\n";
        for layout in [Layout::Lines, Layout::Fixed(11)] {
            let bytes = if layout == Layout::Lines { &text[..] } else { &text[5..] };
            for cuts in [&[][..], &[16], &[16, 27], &[7, 20, 30]] {
                let mut chain = Chain::new(prove(layout, b"", &[]).keeping(4));
                let mut from = 0;
                // Pieces that end at record bounds are proved separately, others are pushed in pieces.
                let ends: Vec<usize> =
                    cuts.iter().copied().filter(|&cut| bytes[..cut].ends_with(b"\n")).collect();
                for (i, end) in ends.iter().copied().chain([bytes.len()]).enumerate() {
                    let inside: Vec<usize> =
                        cuts.iter().filter(|&&cut| from < cut && cut < end).map(|cut| cut - from).collect();
                    chain.add(i as u64, prove_keeping(layout, &bytes[from..end], &inside, 4));
                    from = end;
                }
                let mut whole = chain.finish();
                whole
                    .settle(|at, into| {
                        into.copy_from_slice(&bytes[at as usize..at as usize + into.len()]);
                        Ok::<(), ()>(())
                    })
                    .unwrap();
                assert_eq!(whole.proof(), prove(layout, bytes, &[]).proof(), "{layout:?} {cuts:?}");
                let descents = if layout == Layout::Lines { 2 } else { 1 };
                assert_eq!(whole.proof().unordered, descents, "{layout:?} {cuts:?}");
            }
        }
    }

    fn prove_keeping(layout: Layout, bytes: &[u8], cuts: &[usize], keep_bytes: usize) -> Prover {
        push(prove(layout, b"", &[]).keeping(keep_bytes), bytes, cuts)
    }

    fn push(mut prover: Prover, bytes: &[u8], cuts: &[usize]) -> Prover {
        let mut from = 0;
        for &cut in cuts {
            let cut = cut.clamp(from, bytes.len());
            prover.push(&bytes[from..cut]);
            from = cut;
        }
        prover.push(&bytes[from..]);
        prover
    }

    fn prove(layout: Layout, bytes: &[u8], cuts: &[usize]) -> Prover {
        let key = Key::new(layout, &[]).unwrap();
        push(Prover::new(layout, key, true), bytes, cuts)
    }

    /// A reference implementation.
    fn truth(records: &[&[u8]]) -> Proof {
        let mut proof = Proof::default();
        for (i, r) in records.iter().enumerate() {
            add_record(&mut proof, r);
            if i > 0 {
                proof.unordered += u64::from(records[i - 1] > *r);
                proof.duplicates += u64::from(records[i - 1] == *r);
            }
        }
        proof
    }

    proptest! {
        #[test]
        fn a_proof_does_not_depend_on_how_the_bytes_come(
            text in "[ab\n]{0,60}", mut cuts in prop::collection::vec(0usize..60, 0..8), n in 1u32..7,
        ) {
            cuts.sort_unstable();
            let mut bytes = text.into_bytes();
            bytes.push(b'\n');
            let mut lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
            lines.pop();
            let got = prove(Layout::Lines, &bytes, &cuts);
            prop_assert_eq!(got.proof(), &truth(&lines));
            prop_assert_eq!(got.unfinished(), 0);

            let whole = bytes.len() / n as usize * n as usize;
            let records: Vec<&[u8]> = bytes[..whole].chunks(n as usize).collect();
            let got = prove(Layout::Fixed(n), &bytes, &cuts);
            prop_assert_eq!(got.proof(), &truth(&records));
            prop_assert_eq!(got.unfinished(), bytes.len() - whole);

            let mut framed = Vec::new();
            let records: Vec<Vec<u8>> = lines.iter().map(|line| {
                let from = framed.len();
                Layout::Prefixed.push(line, &mut framed);
                framed[from..].to_vec()
            }).collect();
            let got = prove(Layout::Prefixed, &framed, &cuts);
            let mut expected = truth(&records.iter().map(|record| &record[..]).collect::<Vec<_>>());
            let plain = truth(&lines);
            (expected.unordered, expected.duplicates) = (plain.unordered, plain.duplicates);
            prop_assert_eq!(got.proof(), &expected);
            prop_assert_eq!(got.unfinished(), 0);
        }

        #[test]
        fn pieces_join_to_the_whole_in_whatever_order_they_come(
            records in prop::collection::vec(0u8..4, 1..40), cut in 0usize..40, swap in any::<bool>(),
        ) {
            let cut = cut.min(records.len());
            let (a, b) = records.split_at(cut);
            let whole = prove(Layout::Fixed(1), &records, &[]);
            let mut chain = Chain::new(prove(Layout::Fixed(1), &[], &[]));
            let mut pieces = vec![(0, prove(Layout::Fixed(1), a, &[])), (1, prove(Layout::Fixed(1), b, &[]))];
            if swap { pieces.reverse(); }
            for (i, p) in pieces { chain.add(i, p); }
            let joined = chain.finish();
            prop_assert_eq!(joined.proof(), whole.proof());
            prop_assert_eq!(joined.ends(), whole.ends());
        }
    }

    #[test]
    fn a_chain_continues_after_an_earlier_proof() {
        let empty = prove(Layout::Fixed(1), &[], &[]);
        let before = prove(Layout::Fixed(1), b"abb", &[]);
        let last = before.last().expect("it is short");
        let mut chain = Chain::new(empty.clone().behind(*before.proof(), last));
        let mut seen = Vec::new();
        chain.add_each(1, prove(Layout::Fixed(1), b"a", &[]), |i, whole| {
            seen.push((i, whole.proof().records))
        });
        chain.add_each(0, prove(Layout::Fixed(1), b"bc", &[]), |i, whole| {
            seen.push((i, whole.proof().records))
        });
        assert_eq!(seen, [(0, 5), (1, 6)]);
        assert_eq!(chain.finish().proof(), prove(Layout::Fixed(1), b"abbbca", &[]).proof());
        assert_eq!(
            (empty.last(), prove(Layout::Fixed(2), b"ab", &[]).keeping(1).last()),
            (None, Some(&b"ab"[..]))
        );
    }

    #[test]
    fn one_changed_bit_and_one_doubled_record_change_the_checksum() {
        let plain = prove(Layout::Fixed(2), b"aabbcc", &[]);
        assert!(!same_records(plain.proof(), prove(Layout::Fixed(2), b"aabbcb", &[]).proof()));
        assert!(!same_records(plain.proof(), prove(Layout::Fixed(2), b"aabbbb", &[]).proof()));
        assert!(same_records(plain.proof(), prove(Layout::Fixed(2), b"ccaabb", &[]).proof()));
    }

    #[test]
    #[should_panic(expected = "piece 0 is missing")]
    fn a_missing_piece_is_caught() {
        let mut chain = Chain::new(prove(Layout::Fixed(1), &[], &[]));
        chain.add(1, prove(Layout::Fixed(1), b"x", &[]));
        chain.finish();
    }
}

//! The records of the Sort Benchmark, byte for byte those of its generator (gensort 1.5).
//!
//! Model: the top ten bytes of the numbers `r(0), r(1), ..` form one stream. Binary record n is the window of 100
//! bytes at byte 10 n of it, under a fixed mask. So a record costs one step of the random number generator and one
//! masked copy:
//!
//! ```text
//! stream   r(n)      r(n+1)    r(n+2)   ...   r(n+9)    r(n+10)
//! record n [0........10........20..............90......100)
//! record n + 1       [0........10..............80........90......100)
//! ```
//!
//! ASCII records contain one number each, as text. Skewed records differ from plain ones only in the key.
//! Invariant: record n depends on n and the kind alone, so parts that are generated separately fit together.
//! Source: the formulas and test vectors in the Sort Benchmark's description of its generator.

use crate::lcg;

/// Bytes of a record of the Sort Benchmark.
pub const RECORD_BYTES: usize = 100;
/// Bytes of its key, at its start.
pub const KEY_BYTES: usize = 10;

/// Bytes of each number in the stream of binary records.
const GROUP_BYTES: usize = 10;
/// Numbers in one binary record.
const GROUPS: usize = RECORD_BYTES / GROUP_BYTES;
/// Records generated at a time. Their stream of 10 KiB fits in the L1 cache, and the nine numbers that two batches
/// both compute are 1 % of the work.
const BATCH: usize = 1000;

/// The mask that makes the ten groups of a binary record look different.
#[rustfmt::skip]
const MASK: [u8; RECORD_BYTES] = [
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf0, 0xe8, 0xe4, 0xe2, 0xe1, 0xd8, 0xd4, 0xd2, 0xd1, 0xcc,
    0xca, 0xc9, 0xc6, 0xc5, 0xc3, 0xb8, 0xb4, 0xb2, 0xb1, 0xac,
    0xaa, 0xa9, 0xa6, 0xa5, 0xa3, 0x9c, 0x9a, 0x99, 0x96, 0x95,
    0x93, 0x8e, 0x8d, 0x8b, 0x87, 0x78, 0x74, 0x72, 0x71, 0x6c,
    0x6a, 0x69, 0x66, 0x65, 0x63, 0x5c, 0x5a, 0x59, 0x56, 0x55,
    0x53, 0x4e, 0x4d, 0x4b, 0x47, 0x3c, 0x3a, 0x39, 0x36, 0x35,
    0x33, 0x2e, 0x2d, 0x2b, 0x27, 0x1e, 0x1d, 0x1b, 0x17, 0x0f,
    0xc8, 0xc4, 0xc2, 0xc1, 0x98, 0x94, 0x92, 0x91, 0x8c, 0xe0,
    0x17, 0x0f, 0x33, 0x2e, 0x2d, 0x2b, 0x27, 0x1e, 0x1d, 0x1b,
];

/// One of the four kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// Printable records that end in CR LF.
    pub ascii: bool,
    /// Many keys share their first bytes.
    pub skewed: bool,
}

/// Generates records one after the other.
#[derive(Debug, Clone)]
pub struct Generator {
    kind: Kind,
    /// The number of the next record.
    n: u128,
    /// `r(n)`.
    r: u128,
    /// The first six key bytes of the plain records 0..=128, in the top of each value. Skewed keys use them; empty
    /// for plain kinds.
    prefixes: Vec<u64>,
}

impl Generator {
    /// Starts at record `start`. Numbers wrap at 2^128.
    pub fn new(kind: Kind, start: u128) -> Generator {
        let prefixes = if kind.skewed { prefixes(kind.ascii) } else { Vec::new() };
        Generator { kind, n: start, r: lcg::at(start), prefixes }
    }

    /// Generates record `n`.
    pub fn at(kind: Kind, n: u128) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        Generator::new(kind, n).fill(&mut record);
        record
    }

    /// The number of the next record.
    pub fn next_record(&self) -> u128 {
        self.n
    }

    /// Fills `out` with records; its length must be a multiple of theirs.
    pub fn fill(&mut self, out: &mut [u8]) {
        assert!(
            out.len().is_multiple_of(RECORD_BYTES),
            "{} bytes are not whole records of {RECORD_BYTES}",
            out.len()
        );
        let mut stream = [0; STREAM_BYTES];
        for batch in out.chunks_mut(BATCH * RECORD_BYTES) {
            let after = if self.kind.ascii {
                fill_ascii(self.n, self.r, batch)
            } else {
                fill_binary(self.r, batch, &mut stream)
            };
            if self.kind.skewed {
                self.skew(batch);
            }
            self.n = self.n.wrapping_add((batch.len() / RECORD_BYTES) as u128);
            self.r = after;
        }
    }

    /// Replaces the first bits of the keys of `batch`, which starts at the next record.
    fn skew(&self, batch: &mut [u8]) {
        let (mut n, mut r) = (self.n, self.r);
        for record in batch.as_chunks_mut::<RECORD_BYTES>().0 {
            let key: &mut [u8; 8] = record.first_chunk_mut().expect("a record holds a key");
            let foreign = !(u64::MAX >> skewed_bits(r, self.kind.ascii));
            let own = u64::from_be_bytes(*key);
            *key = (own & !foreign | self.prefixes[skew_index(n)] & foreign).to_be_bytes();
            n = n.wrapping_add(1);
            r = lcg::step(r);
        }
    }
}

/// Space for the groups of a batch. Whole numbers are stored, so the last one needs six bytes more.
const STREAM_BYTES: usize = (BATCH + GROUPS - 1) * GROUP_BYTES + 6;

/// Fills `out` (at most a batch) with binary records; the first one begins with number `r`. Returns the number after
/// the last.
fn fill_binary(r: u128, out: &mut [u8], stream: &mut [u8; STREAM_BYTES]) -> u128 {
    let records = out.len() / RECORD_BYTES;
    assert!(records <= BATCH);
    let mut value = r;
    let mut after = r;
    for group in 0..records + GROUPS - 1 {
        if group == records {
            after = value;
        }
        // One store of 16 bytes is fastest; the next group overwrites the last six.
        stream[group * GROUP_BYTES..][..16].copy_from_slice(&value.to_be_bytes());
        value = lcg::step(value);
    }
    for (i, record) in out.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().enumerate() {
        let window: &[u8; RECORD_BYTES] = stream[i * GROUP_BYTES..].first_chunk().expect("room for a batch");
        *record = std::array::from_fn(|b| window[b] ^ MASK[b]);
    }
    after
}

/// Fills `out` with ASCII records from record `n`, which has number `r`. Returns the number after the last.
fn fill_ascii(n: u128, r: u128, out: &mut [u8]) -> u128 {
    let (mut n, mut r) = (n, r);
    for record in out.as_chunks_mut::<RECORD_BYTES>().0 {
        let (hi, lo) = ((r >> 64) as u64, r as u64);
        record[0..8].copy_from_slice(&printable8(hi));
        let t = (lo % (95 * 95)) as u32;
        record[8..10].copy_from_slice(&[b' ' + (t % 95) as u8, b' ' + (t / 95) as u8]);
        record[10..12].copy_from_slice(b"  ");
        record[12..28].copy_from_slice(&hex16((n >> 64) as u64));
        record[28..44].copy_from_slice(&hex16(n as u64));
        record[44..46].copy_from_slice(b"  ");
        for (i, four) in record[46..98].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *four = FOURFOLD[(lo >> (48 - 4 * i)) as usize & 15];
        }
        record[98..100].copy_from_slice(b"\r\n");
        n = n.wrapping_add(1);
        r = lcg::step(r);
    }
    r
}

/// Each upper-case hex digit four times.
const FOURFOLD: [[u8; 4]; 16] = {
    let mut table = [[0; 4]; 16];
    let mut digit = 0;
    while digit < 16 {
        table[digit] = [b"0123456789ABCDEF"[digit]; 4];
        digit += 1;
    }
    table
};

/// The eight lowest digits of `t` in base 95, lowest first, as printable characters.
fn printable8(t: u64) -> [u8; 8] {
    // Two halves of 27 bits allow short divisions that run in parallel.
    const HALF: u64 = 95 * 95 * 95 * 95;
    let mut text = [0; 8];
    for (half, four) in [t % HALF, t / HALF % HALF].into_iter().zip(text.as_chunks_mut::<4>().0) {
        let (low, high) = (half as u32 % (95 * 95), half as u32 / (95 * 95));
        *four = [low % 95, low / 95, high % 95, high / 95].map(|digit| b' ' + digit as u8);
    }
    text
}

/// `value` as sixteen upper-case hex digits.
fn hex16(value: u64) -> [u8; 16] {
    let mut text = [0; 16];
    text[..8].copy_from_slice(&hex8((value >> 32) as u32));
    text[8..].copy_from_slice(&hex8(value as u32));
    text
}

/// Eight digits at once: spreads the nibbles over eight bytes and converts them to text.
fn hex8(value: u32) -> [u8; 8] {
    let mut x = u64::from(value);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in each byte that is 10 or more: letters are 7 further in ASCII.
    let letters = ((x + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * 7).to_be_bytes()
}

/// How many bits of its key a skewed record takes from another record.
fn skewed_bits(r: u128, ascii: bool) -> u32 {
    let choice = (r as u64 >> 32) as u32;
    match ascii {
        true if choice & 7 <= 6 => 8 * (choice & 7),
        false if choice & 0x3f <= 48 => choice & 0x3f,
        _ => 0,
    }
}

/// The record from which skewed record `n` takes these bits: the bit length of `n`. Like the reference, this rounds
/// bit lengths of 61..=64 up to 64, and of 125..=128 up to 128.
fn skew_index(n: u128) -> usize {
    match u128::BITS - n.leading_zeros() {
        61..=64 => 64,
        125..=128 => 128,
        bits => bits as usize,
    }
}

/// The first six key bytes of the plain records 0..=128, in the top of each value.
fn prefixes(ascii: bool) -> Vec<u64> {
    let mut records = vec![0; 129 * RECORD_BYTES];
    Generator::new(Kind { ascii, skewed: false }, 0).fill(&mut records);
    let key =
        |record: &[u8; RECORD_BYTES]| u64::from_be_bytes(*record.first_chunk().expect("a key")) >> 16 << 16;
    records.as_chunks::<RECORD_BYTES>().0.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::Summary;

    const KINDS: [Kind; 4] = [
        Kind { ascii: false, skewed: false },
        Kind { ascii: true, skewed: false },
        Kind { ascii: false, skewed: true },
        Kind { ascii: true, skewed: true },
    ];
    const MILLION: usize = 1_000_000;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn first_records(kind: Kind, count: usize) -> Vec<u8> {
        let mut out = vec![0; count * RECORD_BYTES];
        Generator::new(kind, 0).fill(&mut out);
        out
    }

    #[test]
    fn record_0_is_the_references() {
        assert_eq!(
            hex(&Generator::at(KINDS[0], 0)),
            "4a696d4772617952495065080060836b392cd58b8f5e55961855e79b87f02283a466b6aab1f9e0ca\
             cf1e26b3292afd1064bb18b56ac07d6f656b1d2f430d57bde7e47d81f36a6dd267948bbc2397bfe2\
             8c334e4ad82b8e70166293cfaa0116bfda3bb1ab"
        );
        assert_eq!(
            std::str::from_utf8(&Generator::at(KINDS[1], 0)),
            Ok("AsfAGHM5om  00000000000000000000000000000000  \
                0000222200002222000022220000222200002222000000001111\r\n")
        );
    }

    #[test]
    fn keys_far_from_the_start_are_the_references() {
        let near = ["92b1d9c3af90ef511dfc", "`Yq(Q!7?ic", "68d0cc3c2f90ef511dfc", "}Yq(Q!7?ic"];
        let far = ["46df6d7a85582021cfd7", "p]pIu)djnb", "ff00463a85582021cfd7", "9UpIu)djnb"];
        for (n, keys) in [(999_999, near), (1_000_000_000, far)] {
            for (kind, expected) in KINDS.into_iter().zip(keys) {
                let key = &Generator::at(kind, n)[..KEY_BYTES];
                let text = if kind.ascii { String::from_utf8_lossy(key).into_owned() } else { hex(key) };
                assert_eq!(text, expected, "{kind:?} {n}");
            }
        }
    }

    #[test]
    fn checksums_order_and_duplicates_are_the_references() {
        #[rustfmt::skip]
        let expected: [(usize, [u128; 4]); 4] = [
            (1, [0x9ea5_93a0, 0x3fca_ea0a, 0x9ea5_93a0, 0x3fca_ea0a]),
            (10, [0x5_5fea_8a1a, 0x4_6930_2dca, 0x5_d955_19b3, 0x4_6073_c01c]),
            (1000, [0x1ea_6370_b955, 0x1f5_dfb3_631a, 0x1e9_6301_166b, 0x1ee_f17d_1cac]),
            (MILLION, [0x7_a0e0_d486_8cd4, 0x7_a19c_ff46_7438, 0x7_9f9a_7e6d_e673, 0x7_a135_fbce_6df2]),
        ];
        let duplicates = [0, 0, 0, 35];
        for (i, kind) in KINDS.into_iter().enumerate() {
            let all = first_records(kind, MILLION);
            for (count, sums) in expected {
                let mut summary = Summary::new();
                summary.push_records(&all[..count * RECORD_BYTES]);
                assert_eq!(summary.crc_sum, sums[i], "{kind:?} {count}");
                assert_eq!(summary.records, count as u128);
            }
            let mut records = all.as_chunks::<RECORD_BYTES>().0.to_vec();
            records.sort_by(|a, b| a[..KEY_BYTES].cmp(&b[..KEY_BYTES]));
            let mut sorted = Summary::new();
            sorted.push_records(records.as_flattened());
            assert!(sorted.is_ordered());
            assert_eq!(sorted.crc_sum, expected[3].1[i], "the same records in another order");
            assert_eq!(sorted.duplicates, duplicates[i], "{kind:?}");
        }
    }

    #[test]
    fn a_million_records_have_the_references_digests_before_and_after_a_stable_sort() {
        let all = first_records(KINDS[0], MILLION);
        assert_eq!(
            hex(&Sha256::digest(&all)),
            "515ea89a091c2a746500f46edd54dc5626878b4e9308d00ecf91656e8e3c3028"
        );
        let mut summary = Summary::new();
        summary.push_records(&all);
        assert_eq!((summary.unordered, summary.first_unordered), (499_452, Some(2)));
        let mut records = all.as_chunks::<RECORD_BYTES>().0.to_vec();
        records.sort_by(|a, b| a[..KEY_BYTES].cmp(&b[..KEY_BYTES]));
        assert_eq!(
            hex(&Sha256::digest(records.as_flattened())),
            "e3a83e3f15d2cb3fd414046d6c10d3f525921150c4f824dac25556e466b099d3"
        );
    }

    /// Takes half a minute on one core: run it by name.
    #[test]
    #[ignore = "generates 100 GB"]
    fn the_checksum_of_a_hundred_gigabytes_is_the_references() {
        let mut generator = Generator::new(KINDS[0], 0);
        let mut out = vec![0; 10_000 * RECORD_BYTES];
        let mut summary = Summary::new();
        for _ in 0..100_000 {
            generator.fill(&mut out);
            summary.push_records(&out);
        }
        assert_eq!(summary.crc_sum, 0x1dcd_7f0b_b414_2463);
    }

    #[test]
    fn separately_generated_parts_fit_together() {
        let starts = [0, 1, 990, u128::from(u64::MAX) - 1100, (1 << 60) - 5, (1 << 124) - 5, (1 << 127) - 3];
        let count = 2 * BATCH + 9;
        for kind in KINDS {
            for start in starts.into_iter().chain([u128::MAX - 7]) {
                let mut whole = vec![0; count * RECORD_BYTES];
                Generator::new(kind, start).fill(&mut whole);
                let mut pieces = vec![0xaa; count * RECORD_BYTES];
                let mut generator = Generator::new(kind, start);
                let (mut at, mut size) = (0, 0);
                while at < count {
                    let end = count.min(at + size);
                    generator.fill(&mut pieces[at * RECORD_BYTES..end * RECORD_BYTES]);
                    (at, size) = (end, size * 2 + 1);
                }
                assert!(whole == pieces, "{kind:?} from {start} in pieces");
                assert_eq!(generator.next_record(), start.wrapping_add(count as u128));
                for i in [0, 1, 7, 8, BATCH - 1, BATCH, count - 1] {
                    let alone = Generator::at(kind, start.wrapping_add(i as u128));
                    assert_eq!(whole[i * RECORD_BYTES..][..RECORD_BYTES], alone, "{kind:?} {start} + {i}");
                }
            }
        }
    }

    #[test]
    fn ascii_records_name_their_number_and_no_other_byte_is_unprintable() {
        let n = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
        let record = Generator::at(KINDS[1], n);
        assert_eq!(&record[12..44], format!("{n:032X}").as_bytes());
        assert!(record[..98].iter().all(|b| (b' '..=b'~').contains(b)));
    }

    #[test]
    fn a_skewed_record_differs_in_the_first_six_bytes_at_most() {
        for ascii in [false, true] {
            let mut touched = 0;
            for n in 0..2000 {
                let plain = Generator::at(Kind { ascii, skewed: false }, n);
                let skewed = Generator::at(Kind { ascii, skewed: true }, n);
                assert_eq!(plain[6..], skewed[6..]);
                touched += usize::from(plain != skewed);
            }
            assert!((1000..2000).contains(&touched), "{touched} of 2000 keys were skewed");
        }
    }

    #[test]
    fn the_skew_index_is_the_bit_length_but_for_its_two_quirks() {
        for (n, index) in [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 3),
            ((1 << 60) - 1, 60),
            (1 << 60, 64),
            (u128::from(u64::MAX), 64),
            (1 << 64, 65),
            ((1 << 124) - 1, 124),
            (1 << 124, 128),
            (u128::MAX, 128),
        ] {
            assert_eq!(skew_index(n), index, "{n}");
        }
    }

    #[test]
    #[should_panic(expected = "150 bytes are not whole records")]
    fn half_a_record_panics() {
        Generator::new(KINDS[0], 0).fill(&mut [0; 150]);
    }
}

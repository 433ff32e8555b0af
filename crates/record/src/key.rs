//! Keys: which bytes of a record decide its order, and fast comparison.
//!
//! Model: every key has a *normal form*: a byte string such that the lexicographic order of normal forms (a proper
//! prefix is less) is the order of the keys. A contiguous ascending key is its own normal form. A key with several
//! parts or a descending one is normalised part by part. If records may be too short for a part, each of its zero bytes
//! is followed by 255, and two zeros end the part. The bytes of a descending part are inverted.
//!
//! A *window* is 10 consecutive bytes of the normal form, as an 80-bit number padded with zeros. Invariant: if
//! two keys agree before the window and their windows differ, the windows order the keys; if the windows are equal,
//! `compare_from` the end of the window decides.
//!
//! Non-goals: collation; numbers in text.

use std::cmp::Ordering;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{InPlace, KeyPart, Layout};

/// Bytes of the normal form in a window.
pub const WINDOW_BYTES: usize = 10;
/// Bytes of the normal form in a head, which is a shorter window: see [`Key::head`].
pub(crate) const HEAD_BYTES: usize = 8;
/// How many bytes of the normal form are hashed at once.
const HASH_PIECE_BYTES: usize = 1 << 10;

/// Why a key does not fit its layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A part reaches past the end of the fixed-length record.
    #[error(
        "key {}:{} reaches byte {} but a record has {record_bytes} bytes",
        .part.offset, .part.length, u64::from(.part.offset) + u64::from(.part.length)
    )]
    Outside {
        /// The part.
        part: KeyPart,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// Records have no bytes.
    #[error("a record cannot have 0 bytes")]
    EmptyRecord,
}

/// The key of a layout.
#[derive(Debug, Clone)]
pub struct Key {
    form: Form,
    /// The length of the normal form if all records have the same.
    fixed_bytes: Option<usize>,
}

#[derive(Debug, Clone)]
enum Form {
    /// `record[offset..end]`, as far as it exists.
    Slice { offset: usize, end: usize },
    /// Normalised part by part.
    Parts(Vec<Part>),
}

#[derive(Debug, Clone)]
struct Part {
    offset: usize,
    length: usize,
    invert: u8,
    /// Records may be too short for a part: zeros are escaped and the part is terminated.
    escape: bool,
}

impl Key {
    /// The key made of `parts`, or of the whole record if there are none.
    pub fn new(layout: Layout, parts: &[KeyPart]) -> Result<Key, KeyError> {
        let record_bytes = layout.fixed_bytes();
        if let Some(record_bytes) = record_bytes {
            if record_bytes == 0 {
                return Err(KeyError::EmptyRecord);
            }
            let outside = |p: &&KeyPart| u64::from(p.offset) + u64::from(p.length) > record_bytes as u64;
            if let Some(&part) = parts.iter().find(outside) {
                return Err(KeyError::Outside { part, record_bytes: record_bytes as u32 });
            }
        }
        let first = layout.key_offset();
        Ok(match parts {
            [] => Key::slice(first, record_bytes.unwrap_or(usize::MAX), record_bytes),
            [p] if !p.descending => {
                let length = p.length as usize;
                Key::slice(first + p.offset as usize, length, record_bytes.and(Some(length)))
            }
            _ => Key::parts(layout, parts),
        })
    }

    fn slice(offset: usize, length: usize, fixed_bytes: Option<usize>) -> Key {
        Key { form: Form::Slice { offset, end: offset.saturating_add(length) }, fixed_bytes }
    }

    fn parts(layout: Layout, parts: &[KeyPart]) -> Key {
        let escape = layout.fixed_bytes().is_none();
        let fixed_bytes = (!escape).then(|| parts.iter().map(|p| p.length as usize).sum());
        let part = |p: &KeyPart| Part {
            offset: layout.key_offset() + p.offset as usize,
            length: p.length as usize,
            invert: if p.descending { 0xff } else { 0 },
            escape,
        };
        Key { form: Form::Parts(parts.iter().map(part).collect()), fixed_bytes }
    }

    /// Whether the key is the whole record, so that records with equal keys are equal.
    pub fn is_all_of(&self, layout: Layout) -> bool {
        matches!(self.form, Form::Slice { offset, end }
            if offset == layout.key_offset() && end == layout.fixed_bytes().unwrap_or(usize::MAX))
    }

    /// The length of the normal form if all records have the same.
    pub fn fixed_bytes(&self) -> Option<usize> {
        self.fixed_bytes
    }

    /// Offset and length in the record of a key that is its own normal form.
    pub fn as_slice(&self) -> Option<(usize, usize)> {
        match self.form {
            Form::Slice { offset, end } => Some((offset, end - offset)),
            Form::Parts(_) => None,
        }
    }

    /// Whether the window at `skip` includes the end of every key.
    pub fn ends_within(&self, skip: usize) -> bool {
        self.fixed_bytes.is_some_and(|n| n <= skip + WINDOW_BYTES)
    }

    /// Bytes `skip..skip + 10` of the record's normal form, as an 80-bit number.
    #[inline(always)]
    pub fn window(&self, record: InPlace<'_>, skip: usize) -> u128 {
        match &self.form {
            Form::Slice { offset, end } => record.key(*offset, *end, skip).window(),
            Form::Parts(parts) => window_of_parts(parts, record.alone(), skip),
        }
    }

    /// Bytes `skip..skip + 8` of the record's normal form, as a big-endian number padded with zeros.
    #[inline(always)]
    pub(crate) fn head(&self, record: InPlace<'_>, skip: usize) -> u64 {
        match &self.form {
            Form::Slice { offset, end } => record.key(*offset, *end, skip).head(),
            Form::Parts(parts) => {
                (window_of_parts(parts, record.alone(), skip) >> (8 * (WINDOW_BYTES - HEAD_BYTES))) as u64
            }
        }
    }

    /// Compares the keys of two records.
    #[inline]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_from(a, b, 0)
    }

    /// Compares two records whose normal forms agree in the first `skip` bytes.
    #[inline]
    pub fn compare_from(&self, a: &[u8], b: &[u8], skip: usize) -> Ordering {
        match &self.form {
            Form::Slice { offset, end } => {
                tail(slice_of(a, *offset, *end), skip).cmp(tail(slice_of(b, *offset, *end), skip))
            }
            Form::Parts(parts) => compare_parts(parts, a, b),
        }
    }

    /// Compares a record's normal form from byte `skip` on with `normal`, another normal form from byte `skip` on.
    #[inline]
    pub fn compare_with_normal(&self, record: &[u8], skip: usize, normal: &[u8]) -> Ordering {
        match &self.form {
            Form::Slice { offset, end } => compare(tail(slice_of(record, *offset, *end), skip), normal),
            Form::Parts(parts) => normal_bytes(parts, record).skip(skip).cmp(normal.iter().copied()),
        }
    }

    /// Compares a record's normal form from byte `skip` with `start`, up to the length of `start`.
    #[inline(always)]
    pub fn compare_start(&self, record: &[u8], skip: usize, start: &[u8]) -> Ordering {
        match &self.form {
            Form::Slice { offset, end } => {
                let key = tail(slice_of(record, *offset, *end), skip);
                key[..key.len().min(start.len())].cmp(start)
            }
            Form::Parts(parts) => compare_start_of_parts(parts, record, skip, start),
        }
    }

    /// Whether a record's normal form from byte `skip` begins with these bytes.
    #[inline(always)]
    pub(crate) fn begins_with(&self, record: InPlace<'_>, skip: usize, start: &[u8]) -> bool {
        match &self.form {
            Form::Slice { offset, end } => record.key(*offset, *end, skip).begins_with(start),
            Form::Parts(parts) => compare_start_of_parts(parts, record.alone(), skip, start).is_eq(),
        }
    }

    /// The length of the common prefix of `normal` and a record's normal form from byte `skip`.
    pub fn agreement(&self, record: &[u8], skip: usize, normal: &[u8]) -> usize {
        match &self.form {
            Form::Slice { offset, end } => common_prefix(tail(slice_of(record, *offset, *end), skip), normal),
            Form::Parts(parts) => {
                normal_bytes(parts, record).skip(skip).zip(normal).take_while(|(a, b)| a == *b).count()
            }
        }
    }

    /// The length of the record's normal form.
    #[inline]
    pub fn normal_len(&self, record: &[u8]) -> usize {
        match &self.form {
            Form::Slice { offset, end } => slice_of(record, *offset, *end).len(),
            Form::Parts(parts) => self.fixed_bytes.unwrap_or_else(|| normal_bytes(parts, record).count()),
        }
    }

    /// The hash of the record's normal form.
    pub(crate) fn normal_hash(&self, record: &[u8]) -> u128 {
        match &self.form {
            Form::Slice { offset, end } => xxh3_128(slice_of(record, *offset, *end)),
            Form::Parts(parts) => {
                let (mut hash, mut piece) = (Xxh3::new(), Vec::with_capacity(HASH_PIECE_BYTES));
                let mut bytes = normal_bytes(parts, record);
                loop {
                    piece.extend(bytes.by_ref().take(HASH_PIECE_BYTES));
                    hash.update(&piece);
                    if piece.len() < HASH_PIECE_BYTES {
                        return hash.digest128();
                    }
                    piece.clear();
                }
            }
        }
    }

    /// The first `limit` bytes of the record's normal form.
    pub fn normal(&self, record: &[u8], limit: usize) -> Vec<u8> {
        self.normal_from(record, 0, limit)
    }

    /// At most `limit` bytes of the record's normal form from byte `skip`.
    pub fn normal_from(&self, record: &[u8], skip: usize, limit: usize) -> Vec<u8> {
        match &self.form {
            Form::Slice { offset, end } => {
                let key = tail(slice_of(record, *offset, *end), skip);
                key[..key.len().min(limit)].to_vec()
            }
            Form::Parts(parts) => normal_bytes(parts, record).skip(skip).take(limit).collect(),
        }
    }
}

/// The length of the common prefix of two strings.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = size_of::<u64>();
    let mut at = 0;
    for (x, y) in a.chunks_exact(STEP).zip(b.chunks_exact(STEP)) {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let unlike = number(x) ^ number(y);
        if unlike != 0 {
            return at + (unlike.trailing_zeros() / u8::BITS) as usize;
        }
        at += STEP;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

#[inline(always)]
fn slice_of(record: &[u8], offset: usize, end: usize) -> &[u8] {
    let to = end.min(record.len());
    &record[offset.min(to)..to]
}

#[inline(always)]
fn tail(bytes: &[u8], skip: usize) -> &[u8] {
    &bytes[skip.min(bytes.len())..]
}

/// Separate from the window of a slice, so that the common case is short and is inlined.
#[inline(never)]
fn window_of_parts(parts: &[Part], record: &[u8], skip: usize) -> u128 {
    let mut bytes = [0u8; WINDOW_BYTES];
    let mut n = 0;
    for byte in normal_bytes(parts, record).skip(skip).take(WINDOW_BYTES) {
        bytes[n] = byte;
        n += 1;
    }
    InPlace::from(&bytes[..n]).window()
}

#[inline(never)]
fn compare_start_of_parts(parts: &[Part], record: &[u8], skip: usize, start: &[u8]) -> Ordering {
    normal_bytes(parts, record).skip(skip).take(start.len()).cmp(start.iter().copied())
}

/// The bytes of the normal form, computed lazily.
fn normal_bytes<'r>(parts: &'r [Part], record: &'r [u8]) -> impl Iterator<Item = u8> + 'r {
    parts.iter().flat_map(move |part| {
        let escape = part.escape;
        let plain = slice_of(record, part.offset, part.offset + part.length).iter().flat_map(move |&byte| {
            let escaped = escape && byte == 0;
            std::iter::once(byte).chain(escaped.then_some(0xff))
        });
        let end = if escape { &[0, 0][..] } else { &[] };
        plain.chain(end.iter().copied()).map(|byte| byte ^ part.invert)
    })
}

fn compare_parts(parts: &[Part], a: &[u8], b: &[u8]) -> Ordering {
    for part in parts {
        let order = slice_of(a, part.offset, part.offset + part.length).cmp(slice_of(
            b,
            part.offset,
            part.offset + part.length,
        ));
        if order != Ordering::Equal {
            return if part.invert == 0 { order } else { order.reverse() };
        }
    }
    Ordering::Equal
}

/// Compares two byte strings. The second may be an empty vector, whose pointer is dangling: a memcmp of zero bytes
/// there makes a masked load of an unmapped page, and the suppressed fault costs about 100 ns.
#[inline(always)]
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    if b.is_empty() { a.len().cmp(&0) } else { a.cmp(b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asc(offset: u32, length: u32) -> KeyPart {
        KeyPart { offset, length, descending: false }
    }

    fn desc(offset: u32, length: u32) -> KeyPart {
        KeyPart { offset, length, descending: true }
    }

    #[test]
    fn a_key_outside_the_record_is_refused_with_its_numbers() {
        let error = Key::new(Layout::Fixed(100), &[asc(95, 10)]).unwrap_err().to_string();
        assert!(error.contains("95:10") && error.contains("105") && error.contains("100"), "{error}");
        assert!(Key::new(Layout::Fixed(100), &[asc(90, 10)]).is_ok());
        assert!(Key::new(Layout::Lines, &[asc(90, 10)]).is_ok());
    }

    #[test]
    fn a_short_line_is_compared_by_its_existing_bytes() {
        let key = Key::new(Layout::Lines, &[asc(2, 3)]).unwrap();
        assert_eq!(key.compare(b"a", b"zz"), Ordering::Equal);
        assert_eq!(key.compare(b"aab", b"zzbc"), Ordering::Less);
        let key = Key::new(Layout::Lines, &[asc(5, 4), asc(0, 2)]).unwrap();
        assert_eq!(key.compare(b"xxxxxab", b"yyyyyab\0\0"), Ordering::Less);
    }

    fn layouts() -> impl Strategy<Value = (bool, Vec<KeyPart>)> {
        let part = (0u32..6, 1u32..14, any::<bool>()).prop_map(|(offset, length, descending)| KeyPart {
            offset,
            length,
            descending,
        });
        (any::<bool>(), prop::collection::vec(part, 0..4))
    }

    proptest! {
        /// Comparing windows and then the rest agrees with comparing part by part.
        #[test]
        fn windows_order_as_keys_do(
            (lines, parts) in layouts(),
            a in prop::collection::vec(0u8..3, 20),
            b in prop::collection::vec(0u8..3, 20),
            cut_a in 0usize..20, cut_b in 0usize..20,
        ) {
            let layout = if lines { Layout::Lines } else { Layout::Fixed(20) };
            let (a, b) = if lines { (&a[..cut_a], &b[..cut_b]) } else { (&a[..], &b[..]) };
            let key = Key::new(layout, &parts).unwrap();
            let truth = if parts.is_empty() { a.cmp(b) } else {
                parts.iter().map(|p| {
                    let (x, y) = (slice_of(a, p.offset as usize, (p.offset + p.length) as usize),
                                  slice_of(b, p.offset as usize, (p.offset + p.length) as usize));
                    if p.descending { y.cmp(x) } else { x.cmp(y) }
                }).find(|o| *o != Ordering::Equal).unwrap_or(Ordering::Equal)
            };
            prop_assert_eq!(key.compare(a, b), truth);
            let (na, nb) = (key.normal(a, usize::MAX), key.normal(b, usize::MAX));
            prop_assert_eq!(na.cmp(&nb), truth);
            prop_assert_eq!(na.len(), key.normal_len(a));
            prop_assert_eq!(key.normal_hash(a), xxh3_128(&na));
            let agree = na.iter().zip(&nb).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(common_prefix(&na, &nb), agree);
            for skip in 0..=agree {
                prop_assert_eq!(key.compare_with_normal(a, skip, tail(&nb, skip)), truth);
                prop_assert_eq!(key.agreement(a, skip, tail(&nb, skip)), agree - skip);
                prop_assert_eq!(&key.normal_from(a, skip, 3)[..], &na[skip..na.len().min(skip + 3)]);
                let (wa, wb) = (key.window(a.into(), skip), key.window(b.into(), skip));
                prop_assert_eq!(wa, InPlace::from(tail(&na, skip)).window());
                if wa != wb { prop_assert_eq!(wa.cmp(&wb), truth); }
                prop_assert_eq!(key.compare_from(a, b, skip), truth);
                if key.ends_within(skip) && wa == wb { prop_assert_eq!(truth, Ordering::Equal); }
            }
        }
    }

    #[test]
    fn descending_is_the_reverse() {
        let key = Key::new(Layout::Fixed(4), &[desc(0, 4)]).unwrap();
        assert_eq!(key.compare(b"aaaa", b"bbbb"), Ordering::Greater);
        assert!(key.window(b"aaaa"[..].into(), 0) > key.window(b"bbbb"[..].into(), 0));
    }
}

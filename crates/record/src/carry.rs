//! The start of a record whose end has not come yet.
//!
//! Model: of a record that is longer than is kept, only the start is in memory, with hashes of all of it: two lines of
//! 300 MB took 500 MB of memory here, and a third of the time of a sort went into providing it.
//! Non-goals: long records with a key of several parts, which are held whole.

use xxhash_rust::xxh3::Xxh3;

use crate::{Key, Layout};

/// The start of an unfinished record; nothing if there is none.
#[derive(Clone, Default)]
pub(crate) struct Carry {
    start: Vec<u8>,
    long: Option<Box<Hashes>>,
}

/// The hashes of what has come of a long record, and of its key.
#[derive(Clone)]
struct Hashes {
    record: Xxh3,
    normal: Xxh3,
    len: usize,
}

impl std::fmt::Debug for Carry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Carry({} bytes)", self.len())
    }
}

/// A complete record that is not in memory as a whole.
pub(crate) struct LongRecord {
    pub(crate) len: usize,
    pub(crate) hash: u128,
    /// The start of its key's normal form, and the hash of all of it.
    pub(crate) normal: (Vec<u8>, u128),
}

impl Carry {
    pub(crate) fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.long.as_ref().map_or(self.start.len(), |long| long.len)
    }

    /// The record, unless it is long.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.long.is_none().then_some(&self.start)
    }

    /// The long record that has come. At most `keep_bytes` bytes of its key are kept.
    pub(crate) fn long(&self, key: &Key, keep_bytes: usize) -> Option<LongRecord> {
        let Hashes { record, normal, len } = &**self.long.as_ref()?;
        let normal = (key.normal(&self.start, keep_bytes), normal.digest128());
        Some(LongRecord { len: *len, hash: record.digest128(), normal })
    }

    /// How many bytes of `more` complete the record, including its terminator.
    pub(crate) fn completes(&self, layout: Layout, more: &[u8]) -> Option<usize> {
        match &self.long {
            None => layout.completes(&self.start, more),
            Some(long) => layout.completes_long(&self.start, long.len, more),
        }
    }

    /// Adds the next bytes of the record. It becomes long if it has more than `keep_bytes`.
    pub(crate) fn extend(&mut self, key: &Key, keep_bytes: usize, bytes: &[u8]) {
        let Some((offset, length)) = key.as_slice().filter(|_| self.len() + bytes.len() > keep_bytes) else {
            self.start.reserve_exact(bytes.len());
            return self.start.extend_from_slice(bytes);
        };
        let end = offset.saturating_add(length);
        let long = self.long.get_or_insert_with(|| {
            let mut long = Hashes { record: Xxh3::new(), normal: Xxh3::new(), len: 0 };
            long.add(&self.start, offset, end);
            Box::new(long)
        });
        long.add(bytes, offset, end);
        let room = offset.saturating_add(keep_bytes).saturating_sub(self.start.len());
        self.start.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    pub(crate) fn clear(&mut self) {
        self.start.clear();
        self.long = None;
    }
}

impl Hashes {
    /// Adds bytes of a record whose key is at `offset..end`.
    fn add(&mut self, bytes: &[u8], offset: usize, end: usize) {
        let inside = |at: usize| at.saturating_sub(self.len).min(bytes.len());
        let of_key = inside(offset)..inside(end);
        self.record.update(bytes);
        self.normal.update(&bytes[of_key]);
        self.len += bytes.len();
    }
}

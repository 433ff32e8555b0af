//! A cache of the bytes of files in the memory of this client.
//!
//! ```text
//! file   |#### extent ####|   gap   |## extent ##|.. being read ..|      extents do not overlap
//! ```
//!
//! Model: the cached bytes of a file are a set of extents. A reader that finds a gap claims a part of it and fills it;
//! others that need those bytes wait. When memory is short, the least recently used extent is dropped.
//! Invariant: all extents, with their overhead, fit in the size of the cache. A claim whose bytes were changed in the
//! meantime is not filled. The extents of a closed file are used again only if its stamp at the manager is unchanged.
//! Non-goals: bytes that the stores do not have yet; see behind.rs.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::manager::Inode;

/// The unit in which gaps are read: the unit that a store verifies, and a page of the kernel.
pub(crate) const BLOCK_BYTES: u64 = 4 << 10;
/// The most bytes that are claimed at once.
const CLAIM_BYTES_MAX: u64 = 1 << 20;
/// The memory of an extent besides its bytes: entries of maps and allocations.
const OVERHEAD_BYTES: u64 = 192;

/// Changes when another client changes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
    pub(crate) changed_ns: i64,
}

impl Stamp {
    pub(crate) fn of(inode: &Inode) -> Stamp {
        let Inode { generation, size, modified_ns, changed_ns, .. } = *inode;
        Stamp { generation, size, modified_ns, changed_ns }
    }
}

/// The cache of a volume.
pub(crate) struct Cache {
    bytes_max: u64,
    state: Mutex<State>,
    /// A claim ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, Extents>,
    /// Bytes of all extents, with their overhead.
    bytes: u64,
    /// Counts uses and claims.
    tick: u64,
    /// Extents with bytes, in the order of their last use.
    by_use: BTreeMap<u64, (u64, u64)>,
}

#[derive(Default)]
struct Extents {
    by_start: BTreeMap<u64, Extent>,
    /// The stamp of the file when it was closed.
    closed: Option<Stamp>,
}

struct Extent {
    end: u64,
    /// `None` while a thread reads them.
    bytes: Option<Arc<Vec<u8>>>,
    /// The tick of its claim or last use.
    tick: u64,
}

/// What the cache has at an offset.
pub(crate) enum Found<'a> {
    /// The extent that has it, and the offset in it.
    Here(Arc<Vec<u8>>, usize),
    /// Another thread is reading it, up to this byte.
    Loading(u64),
    /// The caller has to read these bytes.
    Claimed(Claim<'a>),
}

/// Bytes that one thread reads, and for which others may wait.
pub(crate) struct Claim<'a> {
    cache: &'a Cache,
    inode: u64,
    pub(crate) range: Range<u64>,
    /// `None` if there was no room to cache them.
    tick: Option<u64>,
}

impl Claim<'_> {
    /// Ends the claim with the bytes that were read.
    pub(crate) fn fill(mut self, bytes: Vec<u8>) -> Arc<Vec<u8>> {
        assert_eq!(bytes.len() as u64, self.range.end - self.range.start, "a claim is filled");
        let bytes = Arc::new(bytes);
        if let Some(tick) = self.tick.take() {
            self.cache.end(self.inode, self.range.start, tick, Some(&bytes));
        }
        bytes
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(tick) = self.tick {
            self.cache.end(self.inode, self.range.start, tick, None);
        }
    }
}

impl Cache {
    /// A cache of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Cache {
        Cache { bytes_max, state: Mutex::default(), ended: Condvar::new() }
    }

    /// The most bytes that it may have.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The bytes that it has.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cache has at the first byte of a range. If that is a gap, it is claimed as far as the range needs it,
    /// in whole multiples of `unit` bytes.
    pub(crate) fn find(&self, inode: u64, range: Range<u64>, unit: u64) -> Found<'_> {
        assert!(range.start < range.end, "{range:?}");
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        let State { files, by_use, .. } = &mut *state;
        let (mut floor, mut ceiling) = (0, u64::MAX);
        if let Some(extents) = files.get_mut(&inode) {
            if let Some((start, extent)) = extents.by_start.range_mut(..=range.start).next_back() {
                if range.start < extent.end {
                    let Some(bytes) = &extent.bytes else { return Found::Loading(extent.end) };
                    by_use.remove(&extent.tick);
                    by_use.insert(tick, (inode, *start));
                    extent.tick = tick;
                    return Found::Here(Arc::clone(bytes), (range.start - start) as usize);
                }
                floor = extent.end;
            }
            ceiling = extents.by_start.range(range.start..).next().map_or(u64::MAX, |(start, _)| *start);
        }
        let start = (range.start / unit * unit).max(floor);
        let end = range.end.next_multiple_of(unit).min(ceiling).min(start + CLAIM_BYTES_MAX);
        let has_room = state.make_room(end - start + OVERHEAD_BYTES, self.bytes_max);
        if has_room {
            let extent = Extent { end, bytes: None, tick };
            state.bytes += end - start + OVERHEAD_BYTES;
            state.files.entry(inode).or_default().by_start.insert(start, extent);
        }
        Found::Claimed(Claim { cache: self, inode, range: start..end, tick: has_room.then_some(tick) })
    }

    /// Waits until no thread is reading this byte.
    pub(crate) fn wait(&self, inode: u64, at: u64) {
        let mut state = self.state();
        let is_loading = |state: &State| {
            let extents = state.files.get(&inode)?;
            let (_, extent) = extents.by_start.range(..=at).next_back()?;
            Some(at < extent.end && extent.bytes.is_none())
        };
        while is_loading(&state) == Some(true) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a claim, with bytes or without.
    fn end(&self, inode: u64, start: u64, claimed: u64, bytes: Option<&Arc<Vec<u8>>>) {
        let mut state = self.state();
        let extent = state.files.get_mut(&inode).and_then(|extents| extents.by_start.get_mut(&start));
        match (extent.filter(|extent| extent.tick == claimed && extent.bytes.is_none()), bytes) {
            (Some(extent), Some(bytes)) => {
                extent.bytes = Some(Arc::clone(bytes));
                state.by_use.insert(claimed, (inode, start));
            }
            (Some(_), None) => state.remove(inode, start),
            (None, _) => {}
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Updates the cache with bytes that the stores have now.
    pub(crate) fn put(&self, inode: u64, at: u64, from: &[u8]) {
        let range = at..at + from.len() as u64;
        let mut state = self.state();
        for start in state.overlapping(inode, &range) {
            let extents = state.files.get_mut(&inode).expect("it has extents");
            let extent = extents.by_start.get_mut(&start).expect("it overlaps");
            let (first, last) = (range.start.max(start), range.end.min(extent.end));
            match &mut extent.bytes {
                Some(bytes) => {
                    let new = &from[(first - at) as usize..(last - at) as usize];
                    let place = (first - start) as usize;
                    Arc::make_mut(bytes)[place..place + new.len()].copy_from_slice(new);
                }
                // Bytes that are being read may be older.
                None => state.remove(inode, start),
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Drops all extents that overlap a range.
    pub(crate) fn forget(&self, inode: u64, range: Range<u64>) {
        let mut state = self.state();
        for start in state.overlapping(inode, &range) {
            state.remove(inode, start);
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Drops all extents of a file.
    pub(crate) fn forget_all(&self, inode: u64) {
        self.forget(inode, 0..u64::MAX);
    }

    /// Drops the extents that end at or before `at`: they were read once.
    pub(crate) fn forget_before(&self, inode: u64, at: u64) {
        let mut state = self.state();
        for start in state.overlapping(inode, &(0..at)) {
            let extent = &state.files[&inode].by_start[&start];
            if extent.end <= at && extent.bytes.is_some() {
                state.remove(inode, start);
            }
        }
    }

    /// Called when this client opens a file that it does not have open, with the manager's stamp of it.
    pub(crate) fn opened(&self, inode: u64, now: Stamp) {
        let mut state = self.state();
        let Some(extents) = state.files.get_mut(&inode) else { return };
        let is_same = extents.closed.take() == Some(now);
        drop(state);
        if !is_same {
            self.forget_all(inode);
        }
    }

    /// Called when this client closes its last descriptor of a file, with the last known stamp of it.
    pub(crate) fn closed(&self, inode: u64, now: Stamp) {
        if let Some(extents) = self.state().files.get_mut(&inode) {
            extents.closed = Some(now);
        }
    }
}

impl State {
    /// The offsets of the extents that overlap a range.
    fn overlapping(&self, inode: u64, range: &Range<u64>) -> Vec<u64> {
        let Some(extents) = self.files.get(&inode) else { return Vec::new() };
        let before = extents.by_start.range(..range.start).next_back();
        let before = before.filter(|(_, extent)| range.start < extent.end);
        let within = extents.by_start.range(range.clone());
        before.into_iter().chain(within).map(|(start, _)| *start).collect()
    }

    fn remove(&mut self, inode: u64, start: u64) {
        let Some(extents) = self.files.get_mut(&inode) else { return };
        let Some(extent) = extents.by_start.remove(&start) else { return };
        if extents.by_start.is_empty() {
            self.files.remove(&inode);
        }
        self.by_use.remove(&extent.tick);
        self.bytes -= extent.end - start + OVERHEAD_BYTES;
    }

    /// Drops the least recently used extents until `bytes` bytes are free; false if that is not possible.
    fn make_room(&mut self, bytes: u64, bytes_max: u64) -> bool {
        while self.bytes + bytes > bytes_max {
            let Some((_, (inode, start))) = self.by_use.first_key_value().map(|(tick, of)| (*tick, *of))
            else {
                return false;
            };
            self.remove(inode, start);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(cache: &Cache, range: Range<u64>, unit: u64) -> Claim<'_> {
        match cache.find(1, range, unit) {
            Found::Claimed(claim) => claim,
            Found::Here(..) => panic!("it is here"),
            Found::Loading(_) => panic!("it is being read"),
        }
    }

    fn here(cache: &Cache, at: u64) -> Option<u8> {
        match cache.find(1, at..at + 1, 1) {
            Found::Here(bytes, place) => Some(bytes[place]),
            _ => None,
        }
    }

    fn load(cache: &Cache, range: Range<u64>, with: u8) {
        let claim = claimed(cache, range, 1);
        let len = (claim.range.end - claim.range.start) as usize;
        claim.fill(vec![with; len]);
    }

    #[test]
    fn gaps_are_claimed_between_extents_in_whole_units() {
        let cache = Cache::new(1 << 20);
        load(&cache, 100..110, 1);
        assert_eq!(claimed(&cache, 50..55, 64).range, 0..64);
        assert_eq!(claimed(&cache, 70..75, 64).range, 64..100);
        assert_eq!(claimed(&cache, 110..300, 64).range, 110..320);
        assert_eq!(here(&cache, 109), Some(1));
    }

    #[test]
    fn a_claim_whose_bytes_changed_is_not_filled() {
        let cache = Cache::new(1 << 20);
        let claim = claimed(&cache, 0..10, 1);
        cache.put(1, 5, &[2]);
        assert_eq!(*claim.fill(vec![1; 10]), [1; 10]);
        assert_eq!(here(&cache, 5), None);
        let claim = claimed(&cache, 0..10, 1);
        drop(claim);
        load(&cache, 0..10, 1);
        cache.put(1, 5, &[2]);
        assert_eq!((here(&cache, 4), here(&cache, 5), here(&cache, 6)), (Some(1), Some(2), Some(1)));
    }

    #[test]
    fn what_was_used_least_recently_goes_first() {
        let cache = Cache::new(3 * (100 + OVERHEAD_BYTES));
        for n in 0..3 {
            load(&cache, n * 100..n * 100 + 100, n as u8);
        }
        assert_eq!(here(&cache, 0), Some(0));
        load(&cache, 300..400, 3);
        assert_eq!((here(&cache, 0), here(&cache, 300)), (Some(0), Some(3)));
        assert!(matches!(cache.find(1, 100..101, 1), Found::Claimed(_)), "it went");
        assert!(cache.state().bytes <= cache.bytes_max);
        cache.forget_all(1);
        assert_eq!(cache.state().bytes, 0);
    }

    #[test]
    fn what_does_not_fit_is_read_and_not_kept() {
        let cache = Cache::new(OVERHEAD_BYTES + 10);
        load(&cache, 0..100, 1);
        assert_eq!(here(&cache, 0), None);
        assert_eq!(cache.state().bytes, 0);
    }

    #[test]
    fn a_file_that_changed_since_it_was_closed_is_read_again() {
        let cache = Cache::new(1 << 20);
        let stamp = Stamp { generation: 1, size: 10, modified_ns: 5, changed_ns: 5 };
        load(&cache, 0..10, 1);
        cache.closed(1, stamp);
        cache.opened(1, stamp);
        assert_eq!(here(&cache, 0), Some(1));
        cache.opened(1, stamp);
        assert_eq!(here(&cache, 0), None, "it was never closed since");
    }

    #[test]
    fn whoever_waits_goes_on_when_a_claim_fails() {
        let cache = Cache::new(1 << 20);
        let claim = claimed(&cache, 0..10, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cache.wait(1, 3));
            assert!(matches!(cache.find(1, 3..4, 1), Found::Loading(10)));
            drop(claim);
            waiting.join().unwrap();
        });
        assert!(matches!(cache.find(1, 3..4, 1), Found::Claimed(_)));
    }
}

//! A part: records in memory, their entries scattered into buckets by key, ready to be sorted bucket
//! by bucket.
//!
//! Model: each page, when it is installed, is scattered by the lane that brought it: records that
//! lie wholly in the page become entries in that lane's chunks of their bucket. Records that touch a
//! page bound are found when the part is sealed, from the bounds that each page left.
//! Law: every record becomes one entry in one bucket; buckets are (low, high] ranges of (key, place).
//! Non-goals: sorting; deciding what fits (the geometry has).

use std::sync::{Mutex, OnceLock};

use thalweg_block::{Block, Chunk, Pool, carve};
use thalweg_record::{Cuts, Key, Layout};

use crate::entry::{Entries, LINES_BYTES_MAX};
use crate::pages::Pages;

/// The pool had no block for another chunk of entries: there are more records than was thought.
#[derive(Debug)]
pub(crate) struct NoRoom;

/// Entries of one bucket, in the order in which lanes met them.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) chunks: Vec<(Chunk, usize)>,
    pub(crate) records: u64,
    /// Bytes of its records in the output, terminators included.
    pub(crate) bytes: u64,
}

/// What a part is made of.
pub(crate) struct Recipe<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    /// Cuts between buckets.
    pub(crate) cuts: Cuts,
    /// Bytes that the keys of each bucket share and windows skip.
    pub(crate) skips: Vec<usize>,
    /// Values in a chunk of entries.
    pub(crate) chunk_entries: usize,
    pub(crate) lanes: usize,
}

/// Records in memory and their scattered entries.
pub(crate) struct Part<'a> {
    pub(crate) pages: Pages,
    recipe: Recipe<'a>,
    entries: Entries,
    /// For lines: the first newline of a page and the byte after its last one.
    bounds: Vec<OnceLock<Option<(u32, u32)>>>,
    lanes: Vec<Mutex<LaneScatter>>,
    buckets: OnceLock<Vec<Mutex<Option<Bucket>>>>,
}

/// One lane's open chunks.
struct LaneScatter {
    buckets: Vec<Bucket>,
    spare: Vec<Chunk>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(recipe: Recipe<'a>, pages: Pages) -> Part<'a> {
        assert_eq!(recipe.skips.len(), recipe.cuts.ranges());
        let addressed = pages.place_of(pages.count());
        assert!(recipe.layout != Layout::Lines || addressed <= LINES_BYTES_MAX, "{addressed} bytes of lines");
        let lane = |_| {
            let buckets = (0..recipe.cuts.ranges()).map(|_| Bucket::default()).collect();
            Mutex::new(LaneScatter { buckets, spare: Vec::new() })
        };
        Part {
            entries: Entries::new(recipe.layout),
            bounds: (0..pages.count()).map(|_| OnceLock::new()).collect(),
            lanes: (0..recipe.lanes).map(lane).collect(),
            buckets: OnceLock::new(),
            pages,
            recipe,
        }
    }

    pub(crate) fn key(&self) -> &'a Key {
        self.recipe.key
    }

    pub(crate) fn entries(&self) -> Entries {
        self.entries
    }

    /// Installs page `index` and scatters the records that lie wholly in it.
    pub(crate) fn take_page(
        &self,
        lane: usize,
        index: usize,
        block: Block,
        pool: &Pool,
    ) -> Result<(), NoRoom> {
        self.pages.install(index, block);
        let mut scatter = self.lanes[lane].lock().expect("no lane panics");
        let page = self.pages.page(index);
        let place = self.pages.place_of(index);
        match self.recipe.layout {
            Layout::Fixed(n) => {
                let n = n as usize;
                let phase = (self.pages.segment_bytes_before(index) % n as u64) as usize;
                let first = if phase == 0 { 0 } else { n - phase };
                for (i, record) in page.get(first..).unwrap_or(&[]).chunks_exact(n).enumerate() {
                    self.add(&mut scatter, record, place + (first + i * n) as u64, pool)?;
                }
            }
            Layout::Lines => {
                let mut from = usize::MAX;
                let mut bounds = None;
                if self.pages.is_segment_start(index) {
                    from = 0;
                }
                for end in memchr_lines(page) {
                    if from != usize::MAX {
                        self.add(&mut scatter, &page[from..end], place + from as u64, pool)?;
                    }
                    bounds = Some((bounds.map_or(end as u32, |(first, _)| first), end as u32 + 1));
                    from = end + 1;
                }
                self.bounds[index].set(bounds).expect("a page is scattered once");
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn add(&self, scatter: &mut LaneScatter, record: &[u8], place: u64, pool: &Pool) -> Result<(), NoRoom> {
        let recipe = &self.recipe;
        let at = recipe.cuts.locate(recipe.key, record, place);
        let window = recipe.key.window(record, recipe.skips[at]);
        let entry = self.entries.make(window, place, record.len());
        let bucket = &mut scatter.buckets[at];
        bucket.records += 1;
        bucket.bytes += (record.len() + self.entries.terminator()) as u64;
        if let Some((chunk, used)) = bucket.chunks.last_mut()
            && *used < chunk.len()
        {
            chunk[*used] = entry;
            *used += 1;
            return Ok(());
        }
        let mut chunk = match scatter.spare.pop() {
            Some(chunk) => chunk,
            None => {
                let block = pool.try_take().ok_or(NoRoom)?;
                scatter.spare.extend(carve(block, recipe.chunk_entries));
                scatter.spare.pop().ok_or(NoRoom)?
            }
        };
        chunk[0] = entry;
        bucket.chunks.push((chunk, 1));
        Ok(())
    }

    /// Adds the records that touch page bounds and puts the lanes' buckets together. Called once,
    /// when every page has been taken.
    pub(crate) fn seal(&self, pool: &Pool) -> Result<(), NoRoom> {
        let mut first = self.lanes[0].lock().expect("no lane panics");
        self.add_crossing(&mut first, pool)?;
        let mut whole = std::mem::take(&mut first.buckets);
        first.spare.clear();
        drop(first);
        for lane in &self.lanes[1..] {
            let mut lane = lane.lock().expect("no lane panics");
            lane.spare.clear();
            for (bucket, more) in whole.iter_mut().zip(std::mem::take(&mut lane.buckets)) {
                bucket.chunks.extend(more.chunks);
                bucket.records += more.records;
                bucket.bytes += more.bytes;
            }
        }
        let whole = whole.into_iter().map(|b| Mutex::new(Some(b))).collect();
        assert!(self.buckets.set(whole).is_ok(), "a part is sealed once");
        Ok(())
    }

    fn add_crossing(&self, scatter: &mut LaneScatter, pool: &Pool) -> Result<(), NoRoom> {
        match self.recipe.layout {
            Layout::Fixed(n) => {
                for index in 0..self.pages.count() {
                    let phase = self.pages.segment_bytes_before(index) % u64::from(n);
                    // A record longer than a page crosses several bounds and counts at the first.
                    if phase != 0 && phase <= self.pages.page(index - 1).len() as u64 {
                        let place = self.pages.place_of(index) - phase;
                        self.add_copied(scatter, place, n as usize, pool)?;
                    }
                }
            }
            Layout::Lines => {
                let mut open = 0;
                for index in 0..self.pages.count() {
                    let place = self.pages.place_of(index);
                    let starts = self.pages.is_segment_start(index);
                    if starts {
                        open = place;
                    }
                    if let Some((first, after)) = *self.bounds[index].get().expect("every page was taken") {
                        if !starts {
                            let end = place + u64::from(first);
                            self.add_copied(scatter, open, (end - open) as usize, pool)?;
                        }
                        open = place + u64::from(after);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_copied(
        &self,
        scatter: &mut LaneScatter,
        place: u64,
        len: usize,
        pool: &Pool,
    ) -> Result<(), NoRoom> {
        match self.pages.whole(place, len) {
            Some(record) => self.add(scatter, record, place, pool),
            None => {
                let mut record = Vec::with_capacity(len);
                self.pages.copy(place, len, &mut record);
                self.add(scatter, &record, place, pool)
            }
        }
    }

    /// How many buckets there are.
    pub(crate) fn bucket_count(&self) -> usize {
        self.recipe.cuts.ranges()
    }

    /// Records and output bytes of a bucket that has not been taken yet.
    pub(crate) fn bucket_size(&self, index: usize) -> (u64, u64) {
        let buckets = self.buckets.get().expect("the part is sealed");
        let bucket = buckets[index].lock().expect("no lane panics");
        let bucket = bucket.as_ref().expect("a bucket is taken once");
        (bucket.records, bucket.bytes)
    }

    /// Takes a bucket out to be sorted, with the bytes that its windows skip.
    pub(crate) fn take_bucket(&self, index: usize) -> (Bucket, usize) {
        let buckets = self.buckets.get().expect("the part is sealed");
        let bucket = buckets[index].lock().expect("no lane panics").take();
        (bucket.expect("a bucket is taken once"), self.recipe.skips[index])
    }
}

/// Where the newlines of a page are.
fn memchr_lines(page: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr::memchr_iter(b'\n', page)
}

//! A transfer from beginning to end: laid out, moved by lanes, finished, told.
//!
//! Invariant: memory in bulk is `streams` x (2 x [`DEPTH`] + 2) blocks of [`BLOCK_BYTES`]; so many each lane can hold, so none
//! waits for another's.
//! Invariant: a new tree gets its name when all of it is there and durable. What is moved into a directory that is there
//! gets its names file by file, and is durable when this returns.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::PumpReceipt;
use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;
use thalweg_base::units::MIB;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::Pool;
use thalweg_io::tree::Dir;
use thalweg_io::{Access, File, FileSystem, host, process};
use thalweg_pump::{Meters, Sink, Source, pump};
use xxhash_rust::xxh3::xxh3_128;

use crate::claim::{claim_new, clear, give_tree_name};
use crate::far::{Far, Streams, nonsense};
use crate::feed::{Feed, Found};
use crate::journal::{Journal, Told, trees_of};
use crate::limit::Limit;
use crate::message::Message;
use crate::moving::{Goal, Moving, Origin};
use crate::place::{Place, There};
use crate::receipt::{Took, receipt};
use crate::roots::{self, From, Root, Roots, To, Transfer};
use crate::shared::{Counts, Links, OneMore, Shared, count};
use crate::sink::SinkLane;
use crate::source::SourceLane;
use crate::{Error, Result, names};

/// Bytes of a block, which are read and written in one go.
pub const BLOCK_BYTES: usize = MIB as usize;
/// Reads in flight for each lane, and as many writes.
pub const DEPTH: usize = 16;
/// So many bytes of small files are written back together.
const FLUSH_BYTES: u64 = 64 * MIB;
/// So many blocks a lane can hold: those in flight, one in its hands, and one to read back with.
pub(crate) const LANE_BLOCKS: usize = 2 * DEPTH + 2;

/// Whoever wants to know how far a transfer is, and may stop it.
pub trait Watch: Sync {
    /// It begins; bytes in all, or 0 if nobody knows.
    fn begin(&self, total_bytes: u64);
    /// So many more bytes are done.
    fn advance(&self, bytes: u64);
    /// Whether to stop.
    fn stopped(&self) -> bool;
    /// Something that should be known at once and is no error.
    fn note(&self, line: &str);
}

/// Moves all sources to the destination. The receipt's invariant: out = in.
pub fn run(transfer: &Transfer, io: &Arc<dyn FileSystem>, watch: &dyn Watch) -> Result<PumpReceipt> {
    let (clock, cpu_before) = (Stopwatch::start(), process::usage().cpu_seconds);
    assert!(!transfer.sources.is_empty() && transfer.streams > 0);
    host::allow_open_files(u64::MAX);
    let roots = roots::look(transfer)?;
    let lanes = if is_in_order(transfer) { 1 } else { transfer.streams };
    let pool = Pool::new(BLOCK_BYTES, lanes * LANE_BLOCKS)?;
    let job = Job { transfer, io, watch, roots, lanes, part: Part::Both };
    let shared = job.shared(pool, None)?;
    let done = job.perform(&shared);
    // Whatever failed first in any lane is what is told.
    let first = shared.error.lock().expect("no lane panics").take();
    let sync_seconds = match first.map_or(done, Err) {
        Ok(seconds) => seconds,
        Err(e) => {
            job.leave(&shared, &e);
            return Err(e);
        }
    };
    let cpu_seconds = process::usage().cpu_seconds - cpu_before;
    Ok(receipt(&job, &shared, &Took { seconds: clock.seconds(), sync_seconds, cpu_seconds }))
}

/// Whether bytes can only come or go one after the other.
pub(crate) fn is_in_order(transfer: &Transfer) -> bool {
    transfer.sources.iter().any(|from| matches!(from, From::Stream(_)))
        || matches!(transfer.dest, To::Stream(_))
}

/// What of a transfer this process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Both,
    Source,
    Sink,
}

pub(crate) struct Job<'j> {
    pub(crate) transfer: &'j Transfer,
    pub(crate) io: &'j Arc<dyn FileSystem>,
    pub(crate) watch: &'j dyn Watch,
    pub(crate) roots: Roots,
    pub(crate) lanes: usize,
    pub(crate) part: Part,
}

impl<'j> Job<'j> {
    /// What lanes share; takes up the journal, or makes one.
    pub(crate) fn shared(&self, pool: Pool, far: Option<Arc<Far<'j>>>) -> Result<Shared<'j>> {
        let transfer = self.transfer;
        let (journal, told) = match &self.roots.dir {
            Some(dir) => {
                let (journal, told) = self.journal(dir)?;
                (Some(journal), told)
            }
            None => (None, Told::default()),
        };
        let one_file = self.roots.roots.len() <= 1 && !self.roots.roots.iter().any(|root| root.is_tree);
        Ok(Shared {
            io: Arc::clone(self.io),
            pool,
            watch: self.watch,
            hashing: transfer.hashing,
            verify: transfer.verify,
            resume: transfer.resume,
            sync_each: one_file,
            one_file,
            limit: transfer.limit.map(Limit::new),
            far,
            journal,
            noted: told.files,
            meters: Meters::default(),
            counts: Counts::default(),
            links: Mutex::new(Links::default()),
            staged: Mutex::default(),
            sums: Mutex::default(),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        })
    }

    /// The journal, with what it says if that is gone on from. Otherwise what an earlier run left is cleared.
    fn journal(&self, dir: &Arc<Dir>) -> Result<(Journal, Told)> {
        let identity = self.identity(dir)?;
        let name = names::journal(&self.roots.stem);
        let wanted = self.transfer.resume.then_some(identity);
        let (journal, told) = Journal::open(self.io, dir, name, wanted)?;
        if told.identity.is_some() {
            return Ok((journal, told));
        }
        if self.transfer.resume && told.end > 0 {
            self.watch.note(
                "nothing to resume: what an earlier run left is damaged, of other sources, or of another version; beginning anew",
            );
        }
        let mut named = self.roots.roots.iter().filter(|root| !root.there.is_empty());
        let cleared = named.try_for_each(|root| {
            // It may have been made by a transfer that brought it alone, or first.
            let its = trees_of(self.io, dir, &names::journal(&root.there));
            clear(self.io, dir, &names::partial(&root.there), &[journal.trees(), its].concat())
        });
        if cleared.is_err() && told.end == 0 {
            // It was made for this.
            let _ = journal.remove();
        }
        cleared?;
        journal.begin(identity)?;
        Ok((journal, Told::default()))
    }

    /// A hash of what must be the same for a later run to go on from this one. Whether the files are the same is looked
    /// at one by one.
    fn identity(&self, dir: &Dir) -> Result<u128> {
        let there = dir.own_facts()?;
        let mut text = format!("{} {} {}", there.device, there.inode, self.transfer.hashing);
        for root in &self.roots.roots {
            text += &format!(
                " {:?} {:?} {:?} {} {}",
                root.source, root.name, root.there, root.is_tree, root.is_new
            );
        }
        Ok(xxh3_128(text.as_bytes()))
    }

    /// Moves everything; returns the seconds that it took to make it durable.
    fn perform(&self, shared: &Shared<'_>) -> Result<f64> {
        self.watch.begin(self.total_bytes()?);
        let feed = Feed::new(shared);
        self.feed(shared, &feed)?;
        let moving = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let _tells = OnPanic(|| moving.store(false, Ordering::Relaxed));
            let lane = |number| {
                let feed = &feed;
                scope.spawn(move || {
                    let _tells = shared.tells_of_panics();
                    if let Err(e) = lane(shared, feed, number) {
                        shared.fail(e);
                    }
                })
            };
            let lanes: Vec<_> = (0..self.lanes).map(lane).collect();
            let flusher = self.roots.dir.as_ref().filter(|_| !shared.sync_each);
            let flusher = flusher.map(|dir| scope.spawn(|| flush_along(shared, dir, &moving)));
            for lane in lanes {
                lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            moving.store(false, Ordering::Relaxed);
            if let Some(flusher) = flusher {
                flusher.thread().unpark();
            }
        });
        drop(feed);
        shared.goes_on()?;
        let clock = Stopwatch::start();
        if let Some(dir) = &self.roots.dir {
            self.finish(shared, dir, None)?;
        }
        Ok(clock.seconds())
    }

    /// Bytes in all, if that can be known without reading a tree.
    pub(crate) fn total_bytes(&self) -> Result<u64> {
        let mut total = 0;
        for source in &self.transfer.sources {
            total += match source {
                From::Zeros(len) | From::Noise(len) => *len,
                From::Stream(_) => return Ok(0),
                From::Path(path) => match self.io.stat(path)? {
                    there if there.is_directory => return Ok(0),
                    there => there.len,
                },
            };
        }
        Ok(total)
    }

    /// Streams for all lanes.
    pub(crate) fn open_lanes(&self, shared: &Shared<'_>, far: &Far<'_>) -> Result<Vec<Streams>> {
        shared.goes_on()?;
        Ok(far.lanes(self.lanes)?)
    }

    /// Where roots go.
    pub(crate) fn there(&self) -> There {
        match (&self.roots.dir, self.part) {
            (Some(dir), _) => There::Open(Arc::clone(dir)),
            (None, Part::Source) => There::Far,
            (None, _) => There::Nowhere,
        }
    }

    /// Gives the feed what was asked for.
    pub(crate) fn feed<'a>(&self, shared: &'a Shared<'a>, feed: &Feed<'a>) -> Result<()> {
        let mut last: Option<(&Root, Arc<Place<'a>>)> = None;
        for (number, root) in self.roots.roots.iter().enumerate() {
            if let To::Stream(path) = &self.transfer.dest {
                self.feed_file_to_stream(shared, feed, root, path)?;
            } else if root.is_tree {
                let parent = Arc::new(Place::of_roots(shared, None, self.there()));
                feed.directory(self.tree(&parent, root, number as u64)?)?;
            } else {
                let place = match last.take() {
                    Some((other, place)) if other.source == root.source => place,
                    _ => Arc::new(Place::of_roots(shared, Some(Dir::open(&root.source)?), self.there())),
                };
                let (name, there) = (root.name.clone(), root.there.clone());
                feed.root(Arc::clone(&place), Found { name, there, what: None });
                last = Some((root, place));
            }
        }
        self.feed_stream(shared, feed)
    }

    fn tree<'a>(&self, parent: &Arc<Place<'a>>, root: &Root, number: u64) -> Result<Place<'a>> {
        let source = Dir::open(&root.source)?;
        Place::root(parent, source, (root.name_for_now(), &root.there), number, root.is_new)
    }

    /// The one source that is no file, if there is one.
    fn feed_stream<'a>(&self, shared: &'a Shared<'a>, feed: &Feed<'a>) -> Result<()> {
        let Some(source) = self.transfer.sources.iter().find(|from| !matches!(from, From::Path(_))) else {
            return Ok(());
        };
        let (origin, len) = match source {
            From::Zeros(len) => (Origin::Zeros, Some(*len)),
            From::Noise(len) => {
                make_noise(&shared.pool);
                (Origin::Noise, Some(*len))
            }
            From::Stream(path) => (Origin::Stream(File::open(self.io, path, Access::Read)?), None),
            From::Path(_) => unreachable!("files were passed over"),
        };
        let goal = match &shared.far {
            Some(far) => {
                let number = far.next_file();
                far.tell(&Message::File(number, 0, OsString::from("stream"), None, len))?;
                Goal::Far(number)
            }
            None => self.goal_of_stream(len)?,
        };
        let (moving, cursor) = Moving::of_origin(shared, origin, goal, len, Vec::new());
        feed.stream(moving, cursor);
        Ok(())
    }

    /// Where what is no file goes.
    pub(crate) fn goal_of_stream(&self, len: Option<u64>) -> Result<Goal> {
        Ok(match (&self.transfer.dest, &self.roots.dir) {
            (To::Path(_), Some(dir)) => {
                let (name, partial) = (self.roots.stem.clone(), names::partial(&self.roots.stem));
                let file = claim_new(self.io, dir, &partial, true, None)?;
                if let Err(e) = file.allocate(len.unwrap_or(0)) {
                    let _ = dir.remove(&partial);
                    return Err(e.into());
                }
                Goal::File { file, dir: Arc::clone(dir), partial, name }
            }
            (To::Stream(path), _) => Goal::Stream(File::open(self.io, path, Access::WriteStream)?),
            _ => Goal::Nowhere,
        })
    }

    fn feed_file_to_stream<'a>(
        &self,
        shared: &'a Shared<'a>,
        feed: &Feed<'a>,
        root: &Root,
        path: &Path,
    ) -> Result<()> {
        let source = Dir::open(&root.source)?.open_file(self.io, &root.name, true)?;
        let len = source.metadata()?.len;
        let goal = Goal::Stream(File::open(self.io, path, Access::WriteStream)?);
        let (moving, cursor) = Moving::of_origin(shared, Origin::File(source), goal, Some(len), Vec::new());
        feed.stream(moving, cursor);
        Ok(())
    }

    /// Everything is written: further names, durability, and the names of whole trees.
    /// Of what another process sent, `sum` is the source's.
    pub(crate) fn finish(&self, shared: &Shared<'_>, dir: &Arc<Dir>, sum: Option<u128>) -> Result<()> {
        let links = std::mem::take(&mut *shared.links.lock().expect("no lane panics"));
        for more in &links.more {
            let root = &self.roots.roots[more.top as usize].there;
            let first = more.first.key(root);
            // Of what lay there before, a source gives further names only where it is gone on from: what is whole is not sent.
            if self.part == Part::Sink && !shared.resume && !links.has_moved(&first) {
                return Err(Error::not_sent(&dir.path().join(OsStr::from_bytes(&first))));
            }
            self.one_more(shared, dir, more)?;
            shared.add_one_more(&links, more, root);
        }
        let written = shared.sums.lock().expect("no lane panics").1;
        if let Some(read) = sum.filter(|sum| shared.hashing && *sum != written) {
            let path = dir.path().join(&self.roots.stem);
            return Err(Error::Mismatch { path, read, written, read_back: false });
        }
        if !shared.sync_each {
            let replaced = self.roots.roots.iter().any(|root| !root.is_new);
            let failed = |e: thalweg_io::Error| if replaced { self.undoable(dir, e) } else { e };
            dir.sync_file_system().map_err(failed)?;
        }
        for (number, root) in self.roots.roots.iter().enumerate().filter(|(_, root)| root.is_new) {
            let partial = names::partial(&root.there);
            // An honest source tells of each.
            let Some(tree) = shared.staged(number as u64) else { return Err(nonsense("the source")) };
            if let Some(facts) = &root.facts {
                tree.dress(facts)?;
            }
            tree.sync()?;
            give_tree_name(dir, &tree, &partial, &root.there)?;
        }
        Ok(self.settle(shared, dir).map_err(|e| self.undoable(dir, e))?)
    }

    /// All has its name, which is made durable.
    fn settle(&self, shared: &Shared<'_>, dir: &Dir) -> thalweg_io::Result<()> {
        if let Some(journal) = &shared.journal {
            journal.remove()?;
        }
        // The hidden names that came and went in it have changed its time.
        let contents = self.roots.roots.iter().filter(|root| root.there.is_empty());
        for facts in contents.filter_map(|root| root.facts) {
            dir.dress(&facts)?;
        }
        dir.sync()
    }

    /// What failed when everything bore its name already.
    fn undoable(&self, dir: &Dir, e: thalweg_io::Error) -> thalweg_io::Error {
        let name = match &self.roots.roots[..] {
            [] => self.roots.stem.as_os_str(),
            [root] => &root.there,
            _ => OsStr::new(""),
        };
        e.undoable(&dir.path().join(name))
    }

    fn one_more(&self, shared: &Shared<'_>, dir: &Arc<Dir>, more: &OneMore) -> Result<()> {
        let root = &self.roots.roots[more.top as usize];
        let top = match (shared.staged(more.top), root.there.is_empty()) {
            (Some(tree), _) => tree,
            (None, true) => Arc::clone(dir),
            (None, false) => Arc::new(dir.open_dir(&root.there)?),
        };
        // The other end gave these paths, and sent the directories that they lead through.
        let place = top.open_below(&more.name.dir)?;
        let above = top.open_below(&more.first.dir)?;
        if place.facts_if_any(&more.name.own)?.is_some() {
            place.remove(&more.name.own)?;
        }
        place.link(&more.name.own, &above, &more.first.own)?;
        count(&shared.counts.hard_links, 1);
        Ok(place.dress(&more.facts)?)
    }

    /// What is left of a transfer that failed: something to go on from, or nothing.
    pub(crate) fn leave(&self, shared: &Shared<'_>, why: &Error) {
        let (Some(dir), Some(journal)) = (&self.roots.dir, &shared.journal) else { return };
        if matches!(why, Error::Io(e) if e.is_undoable()) {
            // There is nothing that could be gone on from: it bears its name.
            let _ = journal.remove();
            return;
        }
        let staged =
            self.roots.roots.iter().filter(|root| root.is_new).map(|root| names::partial(&root.there));
        let hopeless = shared.one_file && matches!(why, Error::Changed(_) | Error::Mismatch { .. });
        let mut worth = journal.has_ranges() && !hopeless;
        let moved =
            shared.counts.bytes.load(Ordering::Relaxed) + shared.counts.resumed_bytes.load(Ordering::Relaxed);
        for partial in staged {
            if moved > 0 || worth {
                worth = true;
            } else {
                // Nothing can be done about a name that cannot be removed; the next run removes it.
                let _ = clear(self.io, dir, &partial, &journal.trees());
            }
        }
        if hopeless {
            // The one file would be begun anew.
            let _ = dir.remove(&names::partial(&self.roots.stem));
        }
        if worth {
            self.watch.note(&format!(
                "what is there of {} is kept beside it; the same command with --resume goes on from there, without it \
                 begins anew",
                dir.path().join(&self.roots.stem).display()
            ));
        } else {
            let _ = journal.remove();
        }
    }
}

/// Has the system write small files back while others are made: left to itself it begins when a tenth of the memory is
/// dirty, and all of it would be waited for at the end.
pub(crate) fn flush_along(shared: &Shared<'_>, dir: &Dir, moving: &AtomicBool) {
    const LOOK: Duration = Duration::from_millis(50);
    let mut flushed = 0;
    while moving.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK);
        let packed = shared.counts.packed_bytes.load(Ordering::Relaxed);
        if packed - flushed >= FLUSH_BYTES {
            flushed = packed;
            // The system says once of an open directory what went wrong: the sync at the end would not say it again.
            if let Err(why) = dir.sync_file_system() {
                return shared.fail(why.into());
            }
        }
    }
}

/// Moves parcels until there are no more.
fn lane<'a>(shared: &'a Shared<'a>, feed: &Feed<'a>, number: usize) -> Result<()> {
    let source = SourceLane::new(shared, feed, number, shared.io.queue(DEPTH)?);
    let sink = SinkLane::new(shared, shared.io.queue(DEPTH)?);
    let mut source = Counted { end: source, cpu_ns: &shared.counts.source_cpu_ns };
    let mut sink = Counted { end: sink, cpu_ns: &shared.counts.sink_cpu_ns };
    pump(&mut source, &mut sink, |bytes| {
        shared.watch.advance(bytes);
        shared.goes_on()
    })
}

/// An end whose CPU time is counted.
pub(crate) struct Counted<'a, T> {
    pub(crate) end: T,
    pub(crate) cpu_ns: &'a AtomicU64,
}

impl<T> Counted<'_, T> {
    fn count<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> R {
        let before = process::thread_cpu_seconds();
        let result = work(&mut self.end);
        count(self.cpu_ns, ((process::thread_cpu_seconds() - before) * 1e9) as u64);
        result
    }
}

impl<C, T: Source<C>> Source<C> for Counted<'_, T> {
    type Error = T::Error;

    fn next(&mut self) -> std::result::Result<Option<C>, T::Error> {
        self.count(T::next)
    }
}

impl<C, T: Sink<C>> Sink<C> for Counted<'_, T> {
    type Error = T::Error;

    fn put(&mut self, carrier: C) -> std::result::Result<(), T::Error> {
        self.count(|end| end.put(carrier))
    }

    fn finish(&mut self) -> std::result::Result<(), T::Error> {
        self.count(T::finish)
    }
}

/// Fills every block once; nobody empties them.
fn make_noise(pool: &Pool) {
    let mut rng = Rng::new(1);
    let mut blocks: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    for block in &mut blocks {
        for word in block.whole_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
}

//! A transfer from beginning to end: planned, moved by lanes, finished, reported.
//!
//! Invariant: bulk memory is `streams` x (2 x [`DEPTH`] + 2) blocks of [`BLOCK_BYTES`]. All lanes together can hold
//! exactly that, so no lane waits for another's blocks.
//! Invariant: a new tree gets its name when it is complete and durable. Files that go into an existing directory get
//! their names one by one, and are durable when the transfer returns.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::PumpReceipt;
use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;
use thalweg_base::units::MIB;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::Pool;
use thalweg_io::extended::Extended;
use thalweg_io::tree::{self, Dir, Tree};
use thalweg_io::{Access, Caching, File, host, process};
use thalweg_pump::{Carrier, Meters, Sink, Source, Watch, pump};
use thalweg_wire::Streams;

use crate::blocks::{BLOCK_BYTES, DEPTH, LANE_BLOCKS};
use crate::choice::Deleter;
use crate::claim::{claim_new, clear, give_tree_name};
use crate::directory::{Directory, Target};
use crate::file_transfer::{FileTransfer, Goal, Origin};
use crate::journal::{Journal, JournalContents, told_by};
use crate::left_out::{End, LeftOuts};
use crate::message::Message;
use crate::peer::Peer;
use crate::rate_limit::Limit;
use crate::receipt::{Took, receipt};
use crate::refused::Refused;
use crate::roots::{self, From, Root, Roots, To, Transfer};
use crate::shared::{Counts, Links, Name, OneMore, Shared, count};
use crate::sink::SinkLane;
use crate::source::SourceLane;
use crate::sources::{Layer, Sources};
use crate::work_queue::{Found, WorkQueue};
use crate::{Error, Result, hidden_names};

/// After this many bytes of small files, the system is asked to write them back.
const FLUSH_BYTES: u64 = 64 * MIB;

/// The name of the one stage of a transfer.
pub const STAGE: &str = "read+write";

/// Moves all sources to the destination. The receipt's invariant: out = in. Refuses a source that is its own
/// destination, but notices this only if both file systems are one `Arc`.
pub fn run(
    transfer: &Transfer,
    source: &Arc<dyn Tree>,
    dest: &Arc<dyn Tree>,
    watch: &dyn Watch,
) -> Result<PumpReceipt> {
    let (clock, cpu_before) = (Stopwatch::start(), process::usage().cpu_seconds);
    assert!(!transfer.sources.is_empty() && transfer.streams > 0);
    host::allow_open_files(u64::MAX);
    let roots = roots::look(transfer, source, dest)?;
    let lanes = if is_in_order(transfer) { 1 } else { transfer.streams };
    let pool = Pool::new(BLOCK_BYTES, lanes * LANE_BLOCKS)?;
    let job = Job { transfer, source, dest, watch, roots, lanes, part: Part::Both };
    let shared = job.shared(pool, None)?;
    let done = job.perform(&shared);
    // The first failure in any lane is the error.
    let first = shared.error.lock().expect("no lane panics").take();
    let sync_seconds = match first.map_or(done, Err) {
        Ok(seconds) => seconds,
        Err(e) => {
            job.leave(&shared, &e);
            return Err(e);
        }
    };
    let cpu_seconds = process::usage().cpu_seconds - cpu_before;
    let receipt = receipt(&job, &shared, &Took { seconds: clock.seconds(), sync_seconds, cpu_seconds });
    Ok(PumpReceipt {
        errors: shared.left_out.list.take(),
        items: shared.deleter.items.take(),
        holds: receipt.is_accounted_for(),
        ..receipt
    })
}

/// Whether an end is a stream, whose bytes can be moved only in order.
pub(crate) fn is_in_order(transfer: &Transfer) -> bool {
    transfer.sources.iter().any(|from| matches!(from, From::Stream(_)))
        || matches!(transfer.dest, To::Stream(_))
}

/// Which ends of a transfer are in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Both,
    Source,
    Sink,
}

pub(crate) struct Job<'j> {
    pub(crate) transfer: &'j Transfer,
    pub(crate) source: &'j Arc<dyn Tree>,
    pub(crate) dest: &'j Arc<dyn Tree>,
    pub(crate) watch: &'j dyn Watch,
    pub(crate) roots: Roots,
    pub(crate) lanes: usize,
    pub(crate) part: Part,
}

impl<'j> Job<'j> {
    /// The state that the lanes share. Opens the journal, or creates one.
    pub(crate) fn shared(&self, pool: Pool, far: Option<Arc<Peer<'j>>>) -> Result<Shared<'j>> {
        let transfer = self.transfer;
        self.check_choice()?;
        let (journal, told) = match &self.roots.dir {
            Some(dir) if !transfer.choice.asked.dry_run => {
                let (journal, told) = self.journal(dir)?;
                (Some(journal), told)
            }
            _ => (None, JournalContents::default()),
        };
        let one_file = self.roots.roots.len() <= 1 && !self.roots.roots.iter().any(|root| root.is_tree);
        let is_missing = !self.roots.missing.lock().expect("no lane panics").is_empty();
        // If one file is all that there is to move, its error is that of the transfer.
        let is_alone = one_file && !is_missing;
        Ok(Shared {
            source: Arc::clone(self.source),
            dest: Arc::clone(self.dest),
            pool,
            watch: self.watch,
            hashing: transfer.hashing,
            verify: transfer.verify,
            strict: transfer.strict,
            left_out: LeftOuts::new(transfer.strict || is_alone),
            choice: &transfer.choice,
            deleter: Deleter::new(&transfer.choice),
            ways: self.roots.roots.iter().map(|root| root.way.clone()).collect(),
            lacks_source: is_missing && self.roots.roots.iter().any(Root::is_contents),
            own_hidden: self.roots.own_hidden(),
            receives: self.part == Part::Sink,
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
            not_kept: Mutex::default(),
            sums: Mutex::default(),
            sum_left_out: Mutex::default(),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        })
    }

    /// Refuses a choice of entries that has no meaning here.
    fn check_choice(&self) -> Result<()> {
        let choice = &self.transfer.choice;
        let no_path = |from: &From| !matches!(from, From::Path(_));
        let is_stream = is_in_order(self.transfer) || self.transfer.sources.iter().any(no_path);
        if is_stream && !choice.is_everything() {
            return Err(Refused::ChoiceOfStream.into());
        }
        match (self.roots.roots.iter().find(|root| root.is_new), &self.roots.dir) {
            (Some(root), Some(dir)) if choice.asked.existing => {
                Err(Refused::NothingExists(dir.path().join(&root.there)).into())
            }
            _ => Ok(()),
        }
    }

    /// Opens the journal, with its contents if this run resumes from it. Otherwise removes what an earlier run left.
    fn journal(&self, dir: &Arc<dyn Dir>) -> Result<(Journal, JournalContents)> {
        let identity = self.roots.identity(self.transfer.hashing)?;
        let name = hidden_names::journal(&self.roots.stem);
        let wanted = self.transfer.resume.then_some(identity);
        if self.roots.roots.iter().any(Root::is_contents) {
            tree::open_up(&**dir)?;
        }
        let opened = Journal::open(&**self.dest, dir, name, wanted);
        let (journal, told) = opened.map_err(|e| match e {
            Error::Busy(_) => Error::Busy(self.goal(&**dir)),
            other => other,
        })?;
        // Another process may have made the tree, and ended, since it was looked for.
        let is_made = |root: &&Root| root.is_new && !matches!(dir.find(&root.there), Ok(None));
        if let Some(root) = self.roots.roots.iter().find(is_made) {
            if told.end == 0 {
                // The journal was created by this transfer.
                let _ = journal.remove();
            }
            return Err(Error::Busy(dir.path().join(&root.there)));
        }
        if told.identity.is_some() {
            return Ok((journal, told));
        }
        if self.transfer.resume && told.end > 0 {
            self.watch.note(
                &"nothing to resume: what an earlier run left is damaged, of other sources, or of another version; beginning anew",
            );
        }
        let mut named = self.roots.roots.iter().filter(|root| !root.there.is_empty());
        let cleared = named.try_for_each(|root| {
            // The journal of a transfer of this source alone, or of this source first, may list the directory.
            let its = told_by(&**dir, &hidden_names::journal(&root.there), None).trees;
            clear(&**self.dest, &**dir, &hidden_names::partial(&root.there), &[journal.trees(), its].concat())
        });
        if cleared.is_err() && told.end == 0 {
            // The journal was created by this transfer.
            let _ = journal.remove();
        }
        cleared?;
        journal.begin(identity)?;
        Ok((journal, JournalContents::default()))
    }

    /// Moves everything. Returns the seconds that it took to make it durable.
    fn perform(&self, shared: &Shared<'_>) -> Result<f64> {
        self.begin_stage(self.total_bytes()?);
        let feed = WorkQueue::new(shared);
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
            let flusher = flusher.map(|dir| scope.spawn(|| flush_along(shared, &**dir, &moving)));
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
        shared.list_missing()?;
        let clock = Stopwatch::start();
        if let Some(dir) = &self.roots.dir {
            self.finish(shared, dir, None)?;
        }
        Ok(clock.seconds())
    }

    /// Reports to the caller that the only stage of a transfer begins.
    pub(crate) fn begin_stage(&self, total_bytes: u64) {
        self.watch.begin(STAGE, 1, 1, total_bytes);
    }

    /// The number of bytes, or 0 if it is known only after reading a tree.
    pub(crate) fn total_bytes(&self) -> Result<u64> {
        let mut total = 0;
        for source in &self.transfer.sources {
            total += match source {
                From::Zeros(len) | From::Noise(len) => *len,
                From::Stream(_) => return Ok(0),
                From::Path(path) => match self.source.io().stat(path) {
                    Ok(there) if there.is_directory => return Ok(0),
                    // One that cannot be inspected is left out.
                    there => there.map_or(0, |there| there.len),
                },
            };
        }
        Ok(total)
    }

    /// Opens a stream for each lane.
    pub(crate) fn open_lanes(&self, shared: &Shared<'_>, far: &Peer<'_>) -> Result<Vec<Streams>> {
        shared.goes_on()?;
        Ok(far.lanes(self.lanes)?)
    }

    /// The directory that roots go to.
    pub(crate) fn there(&self) -> Target {
        match (&self.roots.dir, self.part) {
            (Some(dir), _) => Target::Open(Arc::clone(dir)),
            (None, Part::Source) => Target::Peer,
            (None, _) => Target::Nowhere,
        }
    }

    /// Gives the sources to the work queue.
    pub(crate) fn feed<'a>(&self, shared: &'a Shared<'a>, feed: &WorkQueue<'a>) -> Result<()> {
        for why in std::mem::take(&mut *self.roots.missing.lock().expect("no lane panics")) {
            count(&shared.counts.found, 1);
            shared.left_out.add(End::Source, why)?;
        }
        if self.roots.meet() {
            return feed.directory(self.together(shared)?);
        }
        let mut last: Option<(&Root, Arc<Directory<'a>>)> = None;
        for (number, root) in self.roots.roots.iter().enumerate() {
            if let To::Stream(path) = &self.transfer.dest {
                self.feed_file_to_stream(shared, feed, root, path)?;
            } else if root.is_tree {
                let parent = Arc::new(Directory::of_roots(shared, None, self.there()));
                feed.directory(self.tree(&parent, root, number as u64)?)?;
            } else {
                let place = match last.take() {
                    Some((other, place)) if other.source == root.source => place,
                    _ => Arc::new(Directory::of_roots(
                        shared,
                        Some(Sources::one(self.source.open_dir(&root.source)?)),
                        self.there(),
                    )),
                };
                let (name, there) = (root.name.clone(), root.there.clone());
                feed.root(Arc::clone(&place), Found { name, there, kind: None });
                last = Some((root, place));
            }
        }
        self.feed_stream(shared, feed)
    }

    fn tree<'a>(&self, parent: &Arc<Directory<'a>>, root: &Root, number: u64) -> Result<Directory<'a>> {
        let source = Sources::one(self.source.open_dir(&root.source)?);
        Directory::root(parent, source, (root.name_for_now(), &root.there), number, root.is_new)
    }

    /// The directory that all sources have together, because they go into one directory.
    fn together<'a>(&self, shared: &'a Shared<'a>) -> Result<Directory<'a>> {
        let roots = &self.roots.roots;
        let layer = |root: &Root| {
            let (dir, there) = (self.source.open_dir(&root.source)?, root.there.clone());
            Ok(match root.is_tree {
                true if root.is_contents() => Layer::Contents(dir),
                true => Layer::Tree(there, dir),
                false => Layer::File(root.name.clone(), dir, there),
            })
        };
        let source = Sources::of(roots.iter().map(layer).collect::<Result<Vec<Layer>>>()?);
        let number = roots.iter().position(Root::is_contents).expect("they meet in its directory");
        let parent = Arc::new(Directory::of_roots(shared, None, self.there()));
        let root = &roots[number];
        Directory::root(&parent, source, (root.name_for_now(), &root.there), number as u64, false)
    }

    /// Gives the work queue the one source that is not a file, if there is one.
    fn feed_stream<'a>(&self, shared: &'a Shared<'a>, feed: &WorkQueue<'a>) -> Result<()> {
        let Some(source) = self.transfer.sources.iter().find(|from| !matches!(from, From::Path(_))) else {
            return Ok(());
        };
        let (origin, len) = match source {
            From::Zeros(len) => (Origin::Zeros, Some(*len)),
            From::Noise(len) => {
                make_noise(&shared.pool);
                (Origin::Noise, Some(*len))
            }
            From::Stream(path) => {
                (Origin::Stream(File::open_to_read(self.source.io().clone(), path, Caching::Cached)?), None)
            }
            From::Path(_) => unreachable!("files were passed over"),
        };
        let goal = match &shared.far {
            Some(far) => {
                let number = far.next_file();
                let name = OsString::from("stream");
                far.tell(&Message::File(number, 0, name, None, Extended::default(), len))?;
                Goal::Peer(number)
            }
            None => self.goal_of_stream(len)?,
        };
        let (moving, cursor) = FileTransfer::of_origin(shared, origin, goal, len, Vec::new());
        feed.stream(moving, cursor);
        Ok(())
    }

    /// The destination of a source that is not a file.
    pub(crate) fn goal_of_stream(&self, len: Option<u64>) -> Result<Goal> {
        Ok(match (&self.transfer.dest, &self.roots.dir) {
            (To::Path(_), Some(dir)) => {
                let (name, partial) = (self.roots.stem.clone(), hidden_names::partial(&self.roots.stem));
                let file = claim_new(&**self.dest, &**dir, &partial, true, None)?;
                if let Err(e) = file.allocate(len.unwrap_or(0)) {
                    let _ = dir.remove(&partial);
                    return Err(e.into());
                }
                Goal::File { file, dir: Arc::clone(dir), partial, name }
            }
            (To::Stream(path), _) => Goal::Stream(File::open(self.dest.io(), path, Access::WriteStream)?),
            _ => Goal::Nowhere,
        })
    }

    fn feed_file_to_stream<'a>(
        &self,
        shared: &'a Shared<'a>,
        feed: &WorkQueue<'a>,
        root: &Root,
        path: &Path,
    ) -> Result<()> {
        let source = self.source.open_dir(&root.source)?.open_file(&root.name, true)?;
        let len = source.metadata()?.len;
        let goal = Goal::Stream(File::open(self.dest.io(), path, Access::WriteStream)?);
        let (moving, cursor) =
            FileTransfer::of_origin(shared, Origin::File(source), goal, Some(len), Vec::new());
        feed.stream(moving, cursor);
        Ok(())
    }

    /// After everything is written: creates hard links, makes everything durable, and gives new trees their names.
    /// `sum` is the source's checksum if the peer sent it.
    pub(crate) fn finish(&self, shared: &Shared<'_>, dir: &Arc<dyn Dir>, sum: Option<u128>) -> Result<()> {
        if self.transfer.choice.asked.dry_run {
            return Ok(());
        }
        let links = std::mem::take(&mut *shared.links.lock().expect("no lane panics"));
        for more in &links.more {
            let root = &self.roots.roots[more.top as usize].there;
            let first = more.first.key(root);
            if links.is_left_out(&first) {
                shared.lose_one_more(&links, more, root);
                shared.left_out.add(End::Dest, first_left_out(more, root))?;
                continue;
            }
            if self.part == Part::Sink && !links.is_there(&first) {
                return Err(Refused::NotSent(dir.path().join(OsStr::from_bytes(&first))).into());
            }
            match shared.left_out.or_none(End::Dest, self.one_more(shared, dir, more))? {
                Some(()) => shared.add_one_more(&links, more, root),
                None => shared.lose_one_more(&links, more, root),
            }
        }
        let left_out = *shared.sum_left_out.lock().expect("no lane panics");
        let written = shared.sums.lock().expect("no lane panics").1.wrapping_add(left_out);
        if let Some(read) = sum.filter(|sum| shared.hashing && *sum != written) {
            let path = dir.path().join(&self.roots.stem);
            return Err(Error::Mismatch { path, read, written, read_back: false });
        }
        if !shared.sync_each {
            let replaced = self.roots.roots.iter().any(|root| !root.is_new);
            let failed = |e: thalweg_io::Error| if replaced { self.undoable(&**dir, e) } else { e };
            dir.sync_file_system().map_err(failed)?;
        }
        for (number, root) in self.roots.roots.iter().enumerate().filter(|(_, root)| root.is_new) {
            let partial = hidden_names::partial(&root.there);
            // An honest source announces every new tree.
            let Some((tree, extended)) = shared.staged(number as u64) else {
                return Err(Error::protocol("the source"));
            };
            if let Some(facts) = &root.facts {
                tree.set_attributes(facts)?;
                shared.set_extended_of_dir(root.there.as_bytes(), &*tree, &extended);
            }
            tree.sync()?;
            give_tree_name(&**dir, &*tree, &partial, &root.there)?;
        }
        Ok(self.settle(shared, &**dir).map_err(|e| self.undoable(&**dir, e))?)
    }

    /// Makes the names durable after all of them were given.
    fn settle(&self, shared: &Shared<'_>, dir: &dyn Dir) -> thalweg_io::Result<()> {
        let contents = self.roots.roots.iter().find(|root| root.is_contents());
        if let Some(journal) = &shared.journal {
            if contents.is_some() {
                tree::open_up(dir)?;
            }
            journal.remove()?;
        }
        // Creating and removing hidden names has changed the directory's times.
        if let Some(facts) = contents.and_then(|root| root.facts) {
            match dir.set_attributes(&facts) {
                // It was listed when all entries of the directory existed.
                Err(e) if e.is_of_one_name() && shared.left_out.count() > 0 => {}
                set => set?,
            }
        }
        dir.sync()
    }

    /// An error that occurred after all files had their names.
    fn undoable(&self, dir: &dyn Dir, e: thalweg_io::Error) -> thalweg_io::Error {
        e.undoable(&self.goal(dir))
    }

    /// The path of what is written in a directory.
    fn goal(&self, dir: &dyn Dir) -> PathBuf {
        let name = match &self.roots.roots[..] {
            [] => self.roots.stem.as_os_str(),
            [root] => &root.there,
            _ => OsStr::new(""),
        };
        dir.path().join(name)
    }

    fn one_more(&self, shared: &Shared<'_>, dir: &Arc<dyn Dir>, more: &OneMore) -> Result<()> {
        let root = &self.roots.roots[more.top as usize];
        let top = match (shared.staged(more.top), root.there.is_empty()) {
            (Some((tree, _)), _) => tree,
            (None, true) => Arc::clone(dir),
            (None, false) => dir.open_dir(&root.there)?,
        };
        // These paths come from the peer, which also sent the directories on them.
        let open = |path| top.open_below(path).map_err(|e| self.if_not_sent(shared, e));
        let (place, above) = (open(&more.name.dir)?, open(&more.first.dir)?);
        let found = place.find(&more.name.own)?;
        let is_there = match &found {
            Some(found) => {
                let first = above.attributes_of(&more.first.own)?;
                (found.device, found.inode) == (first.device, first.inode)
            }
            None => false,
        };
        if !is_there {
            tree::open_up(&*place)?;
            if found.is_some() {
                place.remove(&more.name.own)?;
            }
            place.link(&more.name.own, &above, &more.first.own)?;
        }
        place.set_attributes(&more.facts)?;
        count(&shared.counts.hard_links, 1);
        Ok(())
    }

    /// The error for the directory of a further name that cannot be opened. Every directory that the peer sent was created
    /// or left out. If it is a link or a file, and none was left out, the peer has not sent it.
    fn if_not_sent(&self, shared: &Shared<'_>, e: thalweg_io::Error) -> Error {
        let may_be_there = matches!(e.source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
        let is_none = e.is_of_one_name() && !may_be_there;
        let all_made = shared.left_out.count() == 0 && !shared.choice.only_looks();
        if self.part == Part::Sink && is_none && all_made { Error::protocol("the source") } else { e.into() }
    }

    /// Cleans up after a failed transfer. What a later run can resume from stays.
    pub(crate) fn leave(&self, shared: &Shared<'_>, why: &Error) {
        let (Some(dir), Some(journal)) = (&self.roots.dir, &shared.journal) else { return };
        if matches!(why, Error::Io(e) if e.is_undoable()) {
            // The file has its final name already, so there is nothing to resume.
            let _ = journal.remove();
            return;
        }
        let staged =
            self.roots.roots.iter().filter(|root| root.is_new).map(|root| hidden_names::partial(&root.there));
        // Their locks are released.
        shared.staged.lock().expect("no lane panics").clear();
        let is_taken = matches!(why, Error::Busy(_)) && self.roots.roots.iter().any(|root| root.is_new);
        let hopeless = shared.one_file && matches!(why, Error::Changed(_) | Error::Mismatch { .. });
        let mut worth = journal.has_ranges() && !hopeless && !is_taken;
        let moved =
            shared.counts.bytes.load(Ordering::Relaxed) + shared.counts.resumed_bytes.load(Ordering::Relaxed);
        for partial in staged {
            if (moved > 0 && !is_taken) || worth {
                worth = true;
            } else {
                // If the name cannot be removed, the next run removes it.
                let _ = clear(&**self.dest, &**dir, &partial, &journal.trees());
            }
        }
        if hopeless {
            // A later run would start this one file from the beginning.
            let _ = dir.remove(&hidden_names::partial(&self.roots.stem));
        }
        if worth {
            self.watch.note_resumable(&format!(
                "what arrived of {} is kept beside it; run the transfer again to start over, or resume it to continue",
                dir.path().join(&self.roots.stem).display()
            ));
        } else {
            let _ = journal.remove();
        }
    }
}

/// The error of a further name of a file that was left out.
pub(crate) fn first_left_out(more: &OneMore, root: &OsStr) -> Error {
    let path = |name: &Name| Path::new(root).join(name.transport());
    Error::FirstLeftOut { path: path(&more.name), first: path(&more.first) }
}

/// Asks the system to write small files back while others are created. Left to itself, it begins when a tenth of the
/// memory is dirty, and the transfer would wait for all of that at the end.
pub(crate) fn flush_along(shared: &Shared<'_>, dir: &dyn Dir, moving: &AtomicBool) {
    const LOOK: Duration = Duration::from_millis(50);
    let mut flushed = 0;
    while moving.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK);
        let packed = shared.counts.packed_bytes.load(Ordering::Relaxed);
        if packed - flushed >= FLUSH_BYTES {
            flushed = packed;
            // The system reports a write-back error only once per open directory; the sync at the end would miss it.
            if let Err(why) = dir.sync_file_system() {
                return shared.fail(why.into());
            }
        }
    }
}

/// Moves parcels until there are no more.
fn lane<'a>(shared: &'a Shared<'a>, feed: &WorkQueue<'a>, number: usize) -> Result<()> {
    let source = SourceLane::new(shared, feed, number, shared.source.io().queue(DEPTH)?);
    let sink = SinkLane::new(shared, shared.dest.io().queue(DEPTH)?);
    move_all(shared, source, sink)
}

/// Moves carriers from a source to a sink until there are no more, and counts the CPU time of each.
pub(crate) fn move_all<C: Carrier>(
    shared: &Shared<'_>,
    source: impl Source<C, Error = Error>,
    sink: impl Sink<C, Error = Error>,
) -> Result<()> {
    let mut source = Counted { end: source, cpu_ns: &shared.counts.source_cpu_ns };
    let mut sink = Counted { end: sink, cpu_ns: &shared.counts.sink_cpu_ns };
    pump(&mut source, &mut sink, |bytes| {
        shared.watch.advance(bytes);
        shared.goes_on()
    })
}

/// A source or sink that measures its CPU time.
struct Counted<'a, T> {
    end: T,
    cpu_ns: &'a AtomicU64,
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

/// Fills every block of the pool with noise, once.
fn make_noise(pool: &Pool) {
    let mut rng = Rng::new(1);
    let mut blocks: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    for block in &mut blocks {
        for word in block.whole_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
}

//! What the lanes of a transfer share: how it is to be done, what has come of it, and whether to go on.
//!
//! Invariant: the error that came first is the transfer's; after it nobody begins anything.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::PumpVerdict;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::Pool;
use thalweg_io::FileSystem;
use thalweg_io::tree::{Dir, Facts};
use thalweg_pump::Meters;
use thalweg_record::sum_of_file;
use xxhash_rust::xxh3::xxh3_128;

use crate::far::Far;
use crate::job::Watch;
use crate::journal::{Journal, Noted};
use crate::limit::Limit;
use crate::{Error, Result, names};

/// Of what was moved, how much.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) directories: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) hard_links: AtomicU64,
    pub(crate) special: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) packed_bytes: AtomicU64,
    pub(crate) resumed_files: AtomicU64,
    pub(crate) resumed_bytes: AtomicU64,
    pub(crate) direct_read: AtomicU64,
    pub(crate) direct_written: AtomicU64,
    /// Nanoseconds of CPU in lanes, by end; and of waiting for `--limit`.
    pub(crate) source_cpu_ns: AtomicU64,
    pub(crate) sink_cpu_ns: AtomicU64,
    pub(crate) limited_ns: AtomicU64,
}

/// Adds to a count.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A name in a tree: the directory that it lies in, from the top, and its own.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) dir: Arc<Path>,
    pub(crate) own: OsString,
}

impl Name {
    /// From the top of the tree.
    pub(crate) fn way(&self) -> PathBuf {
        self.dir.join(&self.own)
    }

    /// Its place in the transfer, in a root that is called so at the destination.
    pub(crate) fn key(&self, root: &OsStr) -> Vec<u8> {
        Path::new(root).join(self.way()).into_os_string().into_vec()
    }
}

/// A file that has a name already, and gets one more when all is there.
#[derive(Debug)]
pub(crate) struct OneMore {
    pub(crate) name: Name,
    /// Of the directory, which the new name changes.
    pub(crate) facts: Facts,
    pub(crate) first: Name,
    /// The root that both lie in.
    pub(crate) top: u64,
}

/// Files of several names. What is kept of one does not grow with the depth of its directory: with whole paths 4,000 files
/// below 900 directories took 1.1 GB.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Directories, each once however many names lie in it.
    dirs: HashSet<Arc<Path>>,
    /// The first name of each, by tree, device and number.
    pub(crate) first: HashMap<(u64, u64, u64), Name>,
    pub(crate) more: Vec<OneMore>,
    /// Length and sums of those that were moved, by a hash of the place of the first name in the transfer. Where no sums are
    /// taken they say only what was moved.
    sums: HashMap<u128, (u64, (u128, u128))>,
}

impl Links {
    /// Whether the file whose first name has this place in the transfer was moved, as one with several names.
    pub(crate) fn has_moved(&self, first: &[u8]) -> bool {
        self.sums.contains_key(&xxh3_128(first))
    }

    /// A name to be kept, and how many bytes of names are kept for it that were not before.
    pub(crate) fn name(&mut self, dir: &Path, own: OsString) -> (Name, usize) {
        let (dir, dir_bytes) = match self.dirs.get(dir) {
            Some(known) => (Arc::clone(known), 0),
            None => {
                let new: Arc<Path> = dir.into();
                self.dirs.insert(Arc::clone(&new));
                (new, dir.as_os_str().len())
            }
        };
        let bytes = dir_bytes + own.len();
        (Name { dir, own }, bytes)
    }
}

pub(crate) struct Shared<'a> {
    pub(crate) io: Arc<dyn FileSystem>,
    pub(crate) pool: Pool,
    pub(crate) watch: &'a dyn Watch,
    pub(crate) hashing: bool,
    pub(crate) verify: bool,
    /// Whether files that are whole at the destination are left alone.
    pub(crate) resume: bool,
    /// Whether a file is made durable before it gets its name. Otherwise all are at the end.
    pub(crate) sync_each: bool,
    /// Whether the sum is that of one file, and not of files with their names.
    pub(crate) one_file: bool,
    pub(crate) limit: Option<Limit>,
    /// The other end, if this one is the source of a transfer to another process.
    pub(crate) far: Option<Arc<Far<'a>>>,
    pub(crate) journal: Option<Journal>,
    /// What the journal said at the start.
    pub(crate) noted: HashMap<Vec<u8>, Noted>,
    pub(crate) meters: Meters,
    pub(crate) counts: Counts,
    pub(crate) links: Mutex<Links>,
    /// The directories of new trees, by the number of their root, for as long as they have hidden names.
    pub(crate) staged: Mutex<HashMap<u64, Arc<Dir>>>,
    /// Of what was read, and of what was written.
    pub(crate) sums: Mutex<(u128, u128)>,
    pub(crate) failed: AtomicBool,
    pub(crate) error: Mutex<Option<Error>>,
}

impl Shared<'_> {
    /// The directory of a new tree.
    pub(crate) fn staged(&self, root: u64) -> Option<Arc<Dir>> {
        self.staged.lock().expect("no lane panics").get(&root).cloned()
    }

    /// Whether to begin something more.
    pub(crate) fn goes_on(&self) -> Result<()> {
        let stop = self.failed.load(Ordering::Relaxed) || self.watch.stopped();
        if stop { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Whether it is the hidden name of a file that the journal speaks of.
    pub(crate) fn is_noted(&self, name: &OsStr) -> bool {
        let is_it = |key: &Vec<u8>| {
            let own = key.rsplit(|b| *b == b'/').next().unwrap_or_default();
            names::partial(OsStr::from_bytes(own)) == name
        };
        self.noted.keys().any(is_it)
    }

    /// Ends the transfer. The first error is kept, but a cause takes the place of its echo.
    pub(crate) fn fail(&self, error: Error) {
        let mut kept = self.error.lock().expect("no lane panics");
        if kept.as_ref().is_none_or(|first| is_echo(first) && !is_echo(&error)) {
            *kept = Some(error);
        }
        self.failed.store(true, Ordering::Relaxed);
    }

    /// For the stack of a lane: one that panics stops the others.
    pub(crate) fn tells_of_panics(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| self.failed.store(true, Ordering::Relaxed))
    }

    /// Whether it is known why this transfer ends.
    pub(crate) fn has_cause(&self) -> bool {
        self.watch.stopped()
            || self.error.lock().expect("no lane panics").as_ref().is_some_and(|e| !is_echo(e))
    }

    /// Why this transfer ends.
    pub(crate) fn verdict(&self) -> PumpVerdict {
        let error = self.error.lock().expect("no lane panics");
        error.as_ref().unwrap_or(&Error::Stopped).verdict()
    }

    /// Waits until so many bytes may pass.
    pub(crate) fn pass(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            let watch = thalweg_base::clock::Stopwatch::start();
            limit.pass(bytes, || self.goes_on().is_err());
            count(&self.counts.limited_ns, watch.ns());
        }
    }

    /// Counts a file that is whole, with the sums of both ends. Of one with several names they are kept for the others.
    pub(crate) fn whole(&self, key: &[u8], len: u64, sums: (u128, u128), names: u64) {
        count(&self.counts.files, 1);
        count(&self.counts.bytes, len);
        self.add_sums(key, len, sums);
        if names > 1 {
            self.links.lock().expect("no lane panics").sums.insert(xxh3_128(key), (len, sums));
        }
    }

    /// Adds what one more name stands for.
    pub(crate) fn add_one_more(&self, links: &Links, more: &OneMore, root: &OsStr) {
        if let Some((len, sums)) = links.sums.get(&xxh3_128(&more.first.key(root))).copied() {
            self.add_sums(&more.name.key(root), len, sums);
        }
    }

    /// Every name adds the file that it stands for, so it does not matter which of several came first.
    pub(crate) fn add_sums(&self, key: &[u8], len: u64, (read, written): (u128, u128)) {
        if !self.hashing {
            return;
        }
        let of = |sum| if self.one_file { sum } else { sum_of_file(key, len, sum) };
        let mut sums = self.sums.lock().expect("no lane panics");
        sums.0 = sums.0.wrapping_add(of(read));
        sums.1 = sums.1.wrapping_add(of(written));
    }
}

/// Whether an error may be what follows from another, at this end or the other.
fn is_echo(error: &Error) -> bool {
    matches!(error, Error::Link(_) | Error::Stopped)
}

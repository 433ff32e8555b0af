//! The state that is shared by the lanes of a transfer: options, counts, and whether to continue.
//!
//! Invariant: the first error is the transfer's, and after it no lane begins anything new.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::PumpVerdict;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::Pool;
use thalweg_io::File;
use thalweg_io::extended::Extended;
use thalweg_io::tree::{Attributes, Dir, EntryKind, Tree};
use thalweg_pump::Meters;
use thalweg_pump::Watch;
use thalweg_record::sum_of_file;
use xxhash_rust::xxh3::xxh3_128;

use crate::choice::{Choice, Deleter};
use crate::journal::{Journal, ListedFile};
use crate::left_out::{End, LeftOuts};
use crate::peer::Peer;
use crate::rate_limit::Limit;
use crate::rules::Side;
use crate::{Error, Result, hidden_names};

/// How much was moved.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) directories: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) hard_links: AtomicU64,
    pub(crate) special: AtomicU64,
    /// Entries of the source.
    pub(crate) found: AtomicU64,
    /// Entries that are skipped because of what the destination has, or has not.
    pub(crate) skipped: AtomicU64,
    /// Entries of the source that rules exclude.
    pub(crate) excluded: AtomicU64,
    /// Directories in which names came or went while they were read.
    pub(crate) changed_directories: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) packed_bytes: AtomicU64,
    pub(crate) resumed_files: AtomicU64,
    pub(crate) resumed_bytes: AtomicU64,
    pub(crate) direct_read: AtomicU64,
    pub(crate) direct_written: AtomicU64,
    /// CPU time of the lanes in nanoseconds, by end, and the time that they waited for the rate limit.
    pub(crate) source_cpu_ns: AtomicU64,
    pub(crate) sink_cpu_ns: AtomicU64,
    pub(crate) limited_ns: AtomicU64,
}

/// Adds to a count.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A name in a tree: its directory, from the top of the tree, and its own.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) dir: Arc<Path>,
    pub(crate) own: OsString,
}

impl Name {
    /// The path from the top of the tree.
    pub(crate) fn transport(&self) -> PathBuf {
        self.dir.join(&self.own)
    }

    /// Its key: the path in the transfer, which begins with the root's name at the destination.
    pub(crate) fn key(&self, root: &OsStr) -> Vec<u8> {
        Path::new(root).join(self.transport()).into_os_string().into_vec()
    }
}

/// A hard link that is created at the end.
#[derive(Debug)]
pub(crate) struct OneMore {
    pub(crate) name: Name,
    /// The attributes of the directory, which the new name changes.
    pub(crate) facts: Attributes,
    pub(crate) first: Name,
    /// The root that contains both.
    pub(crate) top: u64,
}

/// Files with several names. The memory for a name does not grow with the depth of its directory: with whole paths,
/// 4,000 files below 900 directories took 1.1 GB.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// The directories of these names, each once.
    dirs: HashSet<Arc<Path>>,
    /// The first name of each file, by root, device and inode.
    pub(crate) first: HashMap<(u64, u64, u64), Name>,
    pub(crate) more: Vec<OneMore>,
    /// The length and checksums of each file that was moved, by a hash of the key of its first name. Without checksums
    /// the entries only show which files were moved.
    sums: HashMap<u128, (u64, (u128, u128))>,
    /// Hashes of the keys of first names that were left out, and of those that were complete at the destination.
    left_out: HashSet<u128>,
    complete: HashSet<u128>,
}

impl Links {
    /// Whether a file with several names, the first of which has this key, was moved, or was complete.
    pub(crate) fn is_there(&self, first: &[u8]) -> bool {
        let first = xxh3_128(first);
        self.sums.contains_key(&first) || self.complete.contains(&first)
    }

    /// Records that a file with several names is complete at the destination under the first of them.
    pub(crate) fn was_complete(&mut self, first: &[u8]) {
        self.complete.insert(xxh3_128(first));
    }

    /// Whether a file with several names, the first of which has this key, was left out.
    pub(crate) fn is_left_out(&self, first: &[u8]) -> bool {
        self.left_out.contains(&xxh3_128(first))
    }

    /// Stores a name. Also returns how many bytes of memory that adds.
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

/// Extended attributes that are lost: how many, and the first of them.
#[derive(Debug, Default)]
pub(crate) struct NotKept {
    pub(crate) count: u64,
    pub(crate) first: Vec<String>,
}

/// The most entries whose lost attributes are named, and the most bytes for each of them.
const NOT_KEPT_FIRST: usize = 10;
const NOT_KEPT_BYTES: usize = 1000;

/// A directory of the destination under a name of its own for now, and the attributes that it gets at the end.
pub(crate) type Staged = (Arc<dyn Dir>, Extended);

pub(crate) struct Shared<'a> {
    /// The file system that is read, and the one that is written.
    pub(crate) source: Arc<dyn Tree>,
    pub(crate) dest: Arc<dyn Tree>,
    pub(crate) pool: Pool,
    pub(crate) watch: &'a dyn Watch,
    pub(crate) hashing: bool,
    pub(crate) verify: bool,
    /// Whether files that grow, and directories in which names come or go, count as changed.
    pub(crate) strict: bool,
    pub(crate) left_out: LeftOuts,
    pub(crate) choice: &'a Choice,
    pub(crate) deleter: Deleter<'a>,
    /// The paths of the roots for filter rules.
    pub(crate) ways: Vec<OsString>,
    /// Whether a source is missing that might have had something in each directory.
    pub(crate) lacks_source: bool,
    /// Hidden names of this transfer that its own source may have.
    pub(crate) own_hidden: Vec<OsString>,
    /// Whether the source is another process.
    pub(crate) receives: bool,
    /// Whether files that are complete at the destination are skipped.
    pub(crate) resume: bool,
    /// Whether each file is made durable before it gets its name. Otherwise all are made durable at the end.
    pub(crate) sync_each: bool,
    /// Whether the checksum is that of a single file, without names.
    pub(crate) one_file: bool,
    pub(crate) limit: Option<Limit>,
    /// The other end, if this one is the source of a transfer to another process.
    pub(crate) far: Option<Arc<Peer<'a>>>,
    pub(crate) journal: Option<Journal>,
    /// The files that the journal listed at the start.
    pub(crate) noted: HashMap<Vec<u8>, ListedFile>,
    pub(crate) meters: Meters,
    pub(crate) counts: Counts,
    pub(crate) links: Mutex<Links>,
    /// The directories of new trees and their extended attributes, by the number of their root, while they have hidden
    /// names.
    pub(crate) staged: Mutex<HashMap<u64, Staged>>,
    pub(crate) not_kept: Mutex<NotKept>,
    /// The checksums of what was read and of what was written.
    pub(crate) sums: Mutex<(u128, u128)>,
    /// The checksum of what arrived from the peer and could not be stored.
    pub(crate) sum_left_out: Mutex<u128>,
    pub(crate) failed: AtomicBool,
    pub(crate) error: Mutex<Option<Error>>,
}

impl Shared<'_> {
    /// The directory of a new tree, and its extended attributes.
    pub(crate) fn staged(&self, root: u64) -> Option<(Arc<dyn Dir>, Extended)> {
        self.staged.lock().expect("no lane panics").get(&root).cloned()
    }

    /// The extended attributes of a file of the source, which has this path in the transfer.
    pub(crate) fn extended_of(&self, key: &[u8], file: &File) -> Extended {
        if self.choice.asked.no_xattrs {
            return Extended::default();
        }
        let (extended, unread) = self.source.extended(file);
        self.lose_attributes(key, unread);
        extended
    }

    /// As [`Shared::extended_of`], of a directory.
    pub(crate) fn extended_of_dir(&self, key: &[u8], dir: &dyn Dir) -> Extended {
        if self.choice.asked.no_xattrs {
            return Extended::default();
        }
        let (extended, unread) = dir.extended();
        self.lose_attributes(key, unread);
        extended
    }

    /// Gives a file of the destination these extended attributes.
    pub(crate) fn set_extended(&self, key: &[u8], file: &File, extended: &Extended) {
        if !self.choice.asked.no_xattrs {
            self.lose_attributes(key, self.dest.set_extended(file, extended));
        }
    }

    /// As [`Shared::set_extended`], of a directory.
    pub(crate) fn set_extended_of_dir(&self, key: &[u8], dir: &dyn Dir, extended: &Extended) {
        if !self.choice.asked.no_xattrs {
            self.lose_attributes(key, dir.set_extended(extended));
        }
    }

    fn lose_attributes(&self, key: &[u8], names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        let mut not_kept = self.not_kept.lock().expect("no lane panics");
        not_kept.count += names.len() as u64;
        if not_kept.first.len() < NOT_KEPT_FIRST {
            let mut line = format!("{}: {}", String::from_utf8_lossy(key), names.join(", "));
            line.truncate(line.floor_char_boundary(NOT_KEPT_BYTES));
            not_kept.first.push(line);
        }
    }

    /// Whether rules hide an entry of the source, by its path.
    pub(crate) fn hides(&self, path: &[u8], kind: EntryKind) -> bool {
        self.choice.rules.excludes(Side::Source, path, kind == EntryKind::Directory)
    }

    /// Lists the paths that were asked for and not found.
    pub(crate) fn list_missing(&self) -> Result<()> {
        let Some(listed) = &self.choice.listed else { return Ok(()) };
        listed.missing().try_for_each(|path| {
            count(&self.counts.found, 1);
            self.left_out.add(End::Source, Error::NotFound(path.into()))
        })
    }

    /// An error if the transfer has failed or was stopped.
    pub(crate) fn goes_on(&self) -> Result<()> {
        let stop = self.failed.load(Ordering::Relaxed) || self.watch.stopped();
        if stop { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Whether this is the hidden name of a file that the journal lists.
    pub(crate) fn is_noted(&self, name: &OsStr) -> bool {
        let is_it = |key: &Vec<u8>| {
            let own = key.rsplit(|b| *b == b'/').next().unwrap_or_default();
            hidden_names::partial(OsStr::from_bytes(own)) == name
        };
        self.noted.keys().any(is_it)
    }

    /// Ends the transfer with an error. The first error is kept, but a cause replaces its consequence.
    pub(crate) fn fail(&self, error: Error) {
        let mut kept = self.error.lock().expect("no lane panics");
        if kept.as_ref().is_none_or(|first| is_echo(first) && !is_echo(&error)) {
            *kept = Some(error);
        }
        self.failed.store(true, Ordering::Relaxed);
    }

    /// A guard for the stack of a lane: if it panics, the others stop.
    pub(crate) fn tells_of_panics(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| self.failed.store(true, Ordering::Relaxed))
    }

    /// Whether the cause of the end is known.
    pub(crate) fn has_cause(&self) -> bool {
        self.watch.stopped()
            || self.error.lock().expect("no lane panics").as_ref().is_some_and(|e| !is_echo(e))
    }

    /// The message that reports the failure to the peer.
    pub(crate) fn verdict(&self) -> PumpVerdict {
        let error = self.error.lock().expect("no lane panics");
        error.as_ref().unwrap_or(&Error::Stopped).verdict()
    }

    /// Waits until the rate limit lets this many bytes pass.
    pub(crate) fn pass(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            let watch = thalweg_base::clock::Stopwatch::start();
            limit.pass(bytes, || self.goes_on().is_err());
            count(&self.counts.limited_ns, watch.ns());
        }
    }

    /// Counts a complete file, with the checksums of both ends, which are stored if it has further names.
    pub(crate) fn whole(&self, key: &[u8], len: u64, sums: (u128, u128), names: u64) {
        count(&self.counts.files, 1);
        count(&self.counts.bytes, len);
        self.add_sums(key, len, sums);
        if names > 1 {
            self.links.lock().expect("no lane panics").sums.insert(xxh3_128(key), (len, sums));
        }
    }

    /// Records that a file is left out. `sum` is its checksum if all of it arrived from the peer.
    pub(crate) fn lost(&self, key: &[u8], len: u64, sum: Option<u128>, names: u64) {
        if let (Some(sum), true) = (sum, self.hashing) {
            let mut lost = self.sum_left_out.lock().expect("no lane panics");
            *lost = lost.wrapping_add(self.sum_of(key, len, sum));
        }
        if names > 1 {
            let mut links = self.links.lock().expect("no lane panics");
            links.left_out.insert(xxh3_128(key));
            if let Some(sum) = sum {
                links.sums.insert(xxh3_128(key), (len, (sum, 0)));
            }
        }
    }

    /// Adds the checksums of a file again, for a further name.
    pub(crate) fn add_one_more(&self, links: &Links, more: &OneMore, root: &OsStr) {
        if let Some((len, sums)) = links.sums.get(&xxh3_128(&more.first.key(root))).copied() {
            self.add_sums(&more.name.key(root), len, sums);
        }
    }

    /// Records that a further name is left out.
    pub(crate) fn lose_one_more(&self, links: &Links, more: &OneMore, root: &OsStr) {
        if let (Some((len, (read, _))), true) =
            (links.sums.get(&xxh3_128(&more.first.key(root))), self.receives)
        {
            self.lost(&more.name.key(root), *len, Some(*read), 1);
        }
    }

    /// Every name adds the checksum of its file, so the order of names does not matter.
    pub(crate) fn add_sums(&self, key: &[u8], len: u64, (read, written): (u128, u128)) {
        if !self.hashing {
            return;
        }
        let mut sums = self.sums.lock().expect("no lane panics");
        sums.0 = sums.0.wrapping_add(self.sum_of(key, len, read));
        sums.1 = sums.1.wrapping_add(self.sum_of(key, len, written));
    }

    /// The checksum of a file in the transfer.
    fn sum_of(&self, key: &[u8], len: u64, sum: u128) -> u128 {
        if self.one_file { sum } else { sum_of_file(key, len, sum) }
    }
}

/// Whether an error may be the consequence of another one, at either end.
fn is_echo(error: &Error) -> bool {
    matches!(error, Error::Link(_) | Error::Stopped)
}

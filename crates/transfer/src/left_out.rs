//! What a transfer leaves out because of an error, and goes on without.
//!
//! Model: an error of one entry is listed here, and the transfer continues. An error that affects the whole of an end, as
//! a full disk does, ends the transfer; with [`Transfer::strict`](crate::Transfer), or if only one file was to be moved,
//! every error does.
//! Invariant: what is left out never gets its name at the destination, and everything that was found at the source is
//! moved or counted here (`PumpReceipt::is_accounted_for`).

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_api::{LeftOut, LeftOutKind, PumpItem};
use thalweg_io::Action;
use thalweg_io::tree::Attributes;

use crate::refused::Refused;
use crate::{Error, Result};

/// The most memory for the list; entries that do not fit are only counted.
const LIST_BYTES_MAX: usize = 64 << 20;
/// The memory of an entry, besides its text.
const ENTRY_BYTES: usize = 64;
/// The longest text of an entry; it is cut off there.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// The end of the transfer that an error is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Dest,
}

/// What was left out, at this end and at the other.
pub(crate) struct LeftOuts {
    /// Whether the first error ends the transfer.
    nothing: bool,
    ours: AtomicU64,
    pub(crate) list: Lists<LeftOut>,
}

impl LeftOuts {
    /// An empty list. With `nothing`, the first error ends the transfer.
    pub(crate) fn new(nothing: bool) -> LeftOuts {
        LeftOuts { nothing, ours: AtomicU64::new(0), list: Lists::default() }
    }

    /// Lists the error of an entry. Returns it if it ends the transfer instead.
    pub(crate) fn add(&self, end: End, error: Error) -> Result<()> {
        if self.nothing || !is_of_one_entry(end, &error) {
            return Err(error);
        }
        self.ours.fetch_add(1, Ordering::Relaxed);
        self.list.add(entry(end, &error));
        Ok(())
    }

    /// The result if there is one. Lists an error, unless it ends the transfer.
    pub(crate) fn or_none<T>(&self, end: End, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => self.add(end, error).map(|()| None),
        }
    }

    /// How many entries this end has left out.
    pub(crate) fn count(&self) -> u64 {
        self.ours.load(Ordering::Relaxed)
    }

    /// Does not count an entry twice that the other end has left out, too.
    pub(crate) fn retract(&self) {
        self.ours.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A list of which each end has a part, in bounded memory.
pub(crate) struct Lists<T>(Mutex<Parts<T>>);

struct Parts<T> {
    ours: Vec<T>,
    theirs: Vec<T>,
    bytes: usize,
}

impl<T> Default for Lists<T> {
    fn default() -> Lists<T> {
        Lists(Mutex::new(Parts { ours: Vec::new(), theirs: Vec::new(), bytes: 0 }))
    }
}

/// An entry of a list.
pub(crate) trait Listed: Clone {
    fn texts(&mut self) -> Vec<&mut String>;
}

impl Listed for LeftOut {
    fn texts(&mut self) -> Vec<&mut String> {
        vec![&mut self.path, &mut self.why]
    }
}

impl Listed for PumpItem {
    fn texts(&mut self) -> Vec<&mut String> {
        vec![&mut self.path]
    }
}

impl<T: Listed> Lists<T> {
    /// Adds an entry, if there is room for it.
    pub(crate) fn add(&self, entry: T) {
        self.put(entry, |parts| &mut parts.ours);
    }

    /// Adds an entry of the other end.
    pub(crate) fn add_theirs(&self, entry: T) {
        self.put(entry, |parts| &mut parts.theirs);
    }

    fn put(&self, mut entry: T, to: impl FnOnce(&mut Parts<T>) -> &mut Vec<T>) {
        let mut bytes = ENTRY_BYTES;
        for text in entry.texts() {
            let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
            bytes += text.len();
        }
        let mut parts = self.0.lock().expect("no lane panics");
        parts.bytes += bytes;
        if parts.bytes <= LIST_BYTES_MAX {
            to(&mut parts).push(entry);
        }
    }

    /// The entries of this end, for the other.
    pub(crate) fn ours(&self) -> Vec<T> {
        self.0.lock().expect("no lane panics").ours.clone()
    }

    /// The entries of both ends, which are taken out.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut parts = self.0.lock().expect("no lane panics");
        let (mut all, theirs) = (std::mem::take(&mut parts.ours), std::mem::take(&mut parts.theirs));
        all.extend(theirs);
        all
    }
}

/// Whether an error is of one entry, so that others may well be moved.
fn is_of_one_entry(end: End, error: &Error) -> bool {
    match (error, end) {
        (Error::Changed(_) | Error::FirstLeftOut { .. } | Error::NotFound(_), _) => true,
        (Error::Io(e), End::Source) => !e.is_of_everything(),
        (Error::Io(e), End::Dest) => e.action != Action::Sync && e.is_of_one_name(),
        (Error::Busy(_) | Error::NoDirectory(_), End::Dest) => true,
        (Error::Refused(why), End::Dest) => {
            use Refused::{DirectoryThere, FileThere, NotListed, TooLarge};
            matches!(why, DirectoryThere(_) | FileThere(_) | NotListed(_) | TooLarge { .. })
        }
        _ => false,
    }
}

fn entry(end: End, error: &Error) -> LeftOut {
    let (path, kind) = match error {
        Error::Io(e) => {
            let is_gone = e.source.kind() == std::io::ErrorKind::NotFound;
            (Some(&e.path), if is_gone { LeftOutKind::Vanished } else { LeftOutKind::Unreadable })
        }
        Error::Changed(path) => (Some(path), LeftOutKind::Changed),
        Error::NotFound(path) => (Some(path), LeftOutKind::Vanished),
        Error::FirstLeftOut { path, .. } | Error::Busy(path) | Error::NoDirectory(path) => {
            (Some(path), LeftOutKind::Unreadable)
        }
        Error::Refused(
            Refused::DirectoryThere(path)
            | Refused::FileThere(path)
            | Refused::NotListed(path)
            | Refused::TooLarge { path, .. },
        ) => (Some(path), LeftOutKind::Destination),
        _ => (None, LeftOutKind::Unreadable),
    };
    LeftOut {
        path: path.map(|path| path.display().to_string()).unwrap_or_default(),
        kind: if end == End::Dest { LeftOutKind::Destination } else { kind },
        why: error.to_string(),
    }
}

/// Whether a file that was opened with certain attributes still has the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It is longer now, or something other than its contents changed: reading it again shows.
    Perhaps,
    Certain,
}

/// Compares the attributes of a file before and after it was read. With `strict`, a longer file is another one.
pub(crate) fn change(before: &Attributes, now: &Attributes, strict: bool) -> Change {
    let identity = |a: &Attributes| (a.kind, a.device, a.inode);
    if strict || identity(before) != identity(now) {
        return if now.is_same(before) { Change::None } else { Change::Certain };
    }
    match now.len.cmp(&before.len) {
        Less => Change::Certain,
        Greater => Change::Perhaps,
        Equal if now.modified_ns != before.modified_ns => Change::Certain,
        // Its owner may have set the modification time back.
        Equal if now.changed_ns != before.changed_ns => Change::Perhaps,
        Equal => Change::None,
    }
}

//! What the lanes do next: list a directory, start a file, or move a piece of a large file.
//!
//! Model: a stack of directories that are being listed, a queue of files, and the one file that is being moved in
//! pieces. A lane with free blocks takes work from here. Names are handed out in small batches, and several lanes look
//! at their batches at the same time.
//! Invariant: memory is bounded by the depth of a tree, not by its size: listing a directory continues only after the
//! directories found in it have been listed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use thalweg_io::tree::{EntryKind, Names};

use crate::directory::Directory;
use crate::file_transfer::{Cursor, Entry, FileTransfer, Origin};
use crate::left_out::End;
use crate::message::ASKED;
use crate::refused::Refused;
use crate::shared::{Shared, count};
use crate::{Error, Result};

/// The names that a lane takes at a time. It opens all small files among them before it reads the first.
const NAMES: usize = ASKED;
/// How often a lane that waits checks whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A name in a directory of the source.
pub(crate) struct Found {
    pub(crate) name: OsString,
    /// Its name at the destination.
    pub(crate) there: OsString,
    pub(crate) kind: Option<EntryKind>,
}

/// Something for a lane to do.
pub(crate) enum Work<'a> {
    /// Look at these names, and then call `looked`.
    Names(Arc<Directory<'a>>, Vec<Found>),
    /// Move this piece.
    Piece(Arc<FileTransfer<'a>>, u64, usize),
    /// Finish this file, of which no pieces remain.
    Whole(Arc<FileTransfer<'a>>),
}

struct Scan<'a> {
    place: Arc<Directory<'a>>,
    names: Box<dyn Names>,
    /// The lane that took names from it last.
    lane: Option<usize>,
}

#[derive(Default)]
struct State<'a> {
    /// Files that were named as sources.
    roots: VecDeque<(Arc<Directory<'a>>, Found)>,
    scans: Vec<Scan<'a>>,
    waiting: VecDeque<Entry<'a>>,
    current: Option<(Arc<FileTransfer<'a>>, Cursor)>,
    /// Lanes that look at names, and may add more work.
    looking: usize,
}

/// The work queue; see the head of this file.
pub(crate) struct WorkQueue<'a> {
    shared: &'a Shared<'a>,
    state: Mutex<State<'a>>,
    news: Condvar,
}

impl<'a> WorkQueue<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>) -> WorkQueue<'a> {
        WorkQueue { shared, state: Mutex::default(), news: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().expect("no lane panics")
    }

    /// Adds a file that was named as a source.
    pub(crate) fn root(&self, place: Arc<Directory<'a>>, found: Found) {
        self.lock().roots.push_back((place, found));
    }

    /// Adds the one source that is a stream.
    pub(crate) fn stream(&self, moving: FileTransfer<'a>, cursor: Cursor) {
        self.lock().current = Some((Arc::new(moving), cursor));
    }

    /// Adds a directory to be listed.
    pub(crate) fn directory(&self, place: Directory<'a>) -> Result<()> {
        let Some(names) = self.listed(&place, place.source().names())? else { return Ok(()) };
        self.lock().scans.push(Scan { place: Arc::new(place), names, lane: None });
        self.news.notify_one();
        Ok(())
    }

    /// What was listed of a directory. The names that cannot be listed count as one entry that is left out.
    fn listed<T>(&self, place: &Directory<'_>, names: thalweg_io::Result<T>) -> Result<Option<T>> {
        if names.is_err() {
            place.is_listed_in_part();
            count(&self.shared.counts.found, 1);
        }
        self.shared.left_out.or_none(End::Source, names.map_err(Error::from))
    }

    /// Adds a file that is moved in pieces.
    pub(crate) fn large(&self, entry: Entry<'a>) {
        self.lock().waiting.push_back(entry);
        self.news.notify_one();
    }

    /// Records that a lane has examined the names that it took.
    pub(crate) fn looked(&self) {
        self.lock().looking -= 1;
        self.news.notify_all();
    }

    /// Records the end of the stream.
    pub(crate) fn ended(&self) {
        if let Some((_, cursor)) = &mut self.lock().current {
            cursor.end_now();
        }
    }

    /// The next work; `None` if there is none. With `wait`, `None` means that no more will come.
    pub(crate) fn next(&self, lane: usize, wait: bool) -> Result<Option<Work<'a>>> {
        let mut state = self.lock();
        loop {
            self.shared.goes_on()?;
            if let Some(work) = self.something(&mut state, lane)? {
                return Ok(Some(work));
            }
            if state.looking == 0 || !wait {
                return Ok(None);
            }
            state = self.news.wait_timeout(state, LOOK_UP).expect("no lane panics").0;
        }
    }

    fn something(&self, state: &mut State<'a>, lane: usize) -> Result<Option<Work<'a>>> {
        loop {
            if let Some(work) = piece(state)? {
                return Ok(Some(work));
            }
            if let Some(entry) = state.waiting.pop_front() {
                if let Some((moving, cursor)) = FileTransfer::open(self.shared, entry)? {
                    state.current = Some((Arc::new(moving), cursor));
                }
                continue;
            }
            if let Some(work) = roots(state) {
                state.looking += 1;
                return Ok(Some(work));
            }
            let Some(at) = scan_for(&state.scans, lane) else { return Ok(None) };
            let scan = &mut state.scans[at];
            scan.lane = Some(lane);
            let names = self.listed(&scan.place, scan.names.some(NAMES))?.unwrap_or_default();
            if names.is_empty() {
                state.scans.remove(at);
                continue;
            }
            let place = Arc::clone(&scan.place);
            let found = names.into_iter().map(|(name, kind)| Found { there: name.clone(), name, kind });
            state.looking += 1;
            return Ok(Some(Work::Names(place, found.collect())));
        }
    }
}

/// A piece of the current file. When no piece remains, the lane that completes the last one finishes the file.
fn piece<'a>(state: &mut State<'a>) -> Result<Option<Work<'a>>> {
    let Some((moving, cursor)) = &mut state.current else { return Ok(None) };
    let file = match &moving.origin {
        Origin::File(file) => Some(file),
        _ => None,
    };
    if !moving.is_given_up() {
        match cursor.next(file) {
            Ok(Some((at, len))) => {
                moving.hand_out();
                return Ok(Some(Work::Piece(Arc::clone(moving), at, len)));
            }
            Ok(None) => {}
            Err(why) => moving.give_up(End::Source, why)?,
        }
    }
    let (moving, _) = state.current.take().expect("it was there");
    Ok(moving.let_go().then_some(Work::Whole(moving)))
}

/// The directory that a lane lists next: the newest one that this lane or no lane has listed, otherwise the newest. So
/// two lanes seldom create files in one directory, where the kernel would serialise them.
fn scan_for(scans: &[Scan<'_>], lane: usize) -> Option<usize> {
    let free = scans.iter().rposition(|scan| scan.lane.is_none_or(|other| other == lane));
    free.or(scans.len().checked_sub(1))
}

/// The next named files that lie in one directory.
fn roots<'a>(state: &mut State<'a>) -> Option<Work<'a>> {
    let (place, first) = state.roots.pop_front()?;
    let mut found = vec![first];
    while found.len() < NAMES && state.roots.front().is_some_and(|(next, _)| Arc::ptr_eq(next, &place)) {
        found.extend(state.roots.pop_front().map(|(_, found)| found));
    }
    Some(Work::Names(place, found))
}

/// The error for a source that is neither file, directory nor link.
pub(crate) fn refuse_special(name: &std::path::Path) -> Error {
    Refused::Special(name.into()).into()
}

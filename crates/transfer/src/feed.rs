//! What is next: which directory to read on, which file to begin, which piece of a file to move.
//!
//! Model: a stack of directories that are being read, files that wait, and the one file that is being moved in pieces.
//! Lanes come here when they have room. Names are handed out a few at a time and looked at by the lane that gets them,
//! side by side with others.
//! Invariant: memory is bounded by the depth of a tree and not by its size: directories are read on only when those that
//! were found in them have been read.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use thalweg_io::tree::{Names, What};

use crate::message::ASKED;
use crate::moving::{Cursor, Entry, Moving, Origin};
use crate::place::Place;
use crate::shared::Shared;
use crate::{Error, Result};

/// Names that a lane looks at in one go; so many small files are asked for before the first of them is read.
const NAMES: usize = ASKED;
/// How often who waits for others looks whether somebody asked to stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A name in a directory of the source.
pub(crate) struct Found {
    pub(crate) name: OsString,
    /// What it will be called.
    pub(crate) there: OsString,
    pub(crate) what: Option<What>,
}

/// Something for a lane to do.
pub(crate) enum Work<'a> {
    /// Look at these names, and then say `looked`.
    Names(Arc<Place<'a>>, Vec<Found>),
    /// Move this piece.
    Piece(Arc<Moving<'a>>, u64, usize),
    /// Nothing of it is left to be moved.
    Whole(Arc<Moving<'a>>),
}

struct Scan<'a> {
    place: Arc<Place<'a>>,
    names: Names,
    /// The lane that looked at names of it last.
    lane: Option<usize>,
}

#[derive(Default)]
struct State<'a> {
    /// Names that were typed.
    roots: VecDeque<(Arc<Place<'a>>, Found)>,
    scans: Vec<Scan<'a>>,
    waiting: VecDeque<Entry<'a>>,
    current: Option<(Arc<Moving<'a>>, Cursor)>,
    /// Lanes that look at names, and may bring more.
    looking: usize,
}

/// See the head of this file.
pub(crate) struct Feed<'a> {
    shared: &'a Shared<'a>,
    state: Mutex<State<'a>>,
    news: Condvar,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>) -> Feed<'a> {
        Feed { shared, state: Mutex::default(), news: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().expect("no lane panics")
    }

    /// A file that was named.
    pub(crate) fn root(&self, place: Arc<Place<'a>>, found: Found) {
        self.lock().roots.push_back((place, found));
    }

    /// What is no file.
    pub(crate) fn stream(&self, moving: Moving<'a>, cursor: Cursor) {
        self.lock().current = Some((Arc::new(moving), cursor));
    }

    /// A directory whose names are to be looked at.
    pub(crate) fn directory(&self, place: Place<'a>) -> Result<()> {
        let names = place.source().names()?;
        self.lock().scans.push(Scan { place: Arc::new(place), names, lane: None });
        self.news.notify_one();
        Ok(())
    }

    /// A file that is moved in pieces.
    pub(crate) fn large(&self, entry: Entry<'a>) {
        self.lock().waiting.push_back(entry);
        self.news.notify_one();
    }

    /// The names that were handed out have been looked at.
    pub(crate) fn looked(&self) {
        self.lock().looking -= 1;
        self.news.notify_all();
    }

    /// A stream has ended.
    pub(crate) fn ended(&self) {
        if let Some((_, cursor)) = &mut self.lock().current {
            cursor.end_now();
        }
    }

    /// Something to do; `None` if there is nothing, with `wait` only when nothing will come any more.
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
                let (moving, cursor) = Moving::open(self.shared, entry)?;
                state.current = Some((Arc::new(moving), cursor));
                continue;
            }
            if let Some(work) = roots(state) {
                state.looking += 1;
                return Ok(Some(work));
            }
            let Some(at) = scan_for(&state.scans, lane) else { return Ok(None) };
            let scan = &mut state.scans[at];
            scan.lane = Some(lane);
            let names = scan.names.some(NAMES)?;
            if names.is_empty() {
                state.scans.remove(at);
                continue;
            }
            let place = Arc::clone(&scan.place);
            let found = names.into_iter().map(|(name, what)| Found { there: name.clone(), name, what });
            state.looking += 1;
            return Ok(Some(Work::Names(place, found.collect())));
        }
    }
}

/// A piece of the file that is being moved. When it has no more, whoever let it go last finishes it.
fn piece<'a>(state: &mut State<'a>) -> Result<Option<Work<'a>>> {
    let Some((moving, cursor)) = &mut state.current else { return Ok(None) };
    let file = match &moving.origin {
        Origin::File(file) => Some(file),
        _ => None,
    };
    if let Some((at, len)) = cursor.next(file)? {
        moving.hand_out();
        return Ok(Some(Work::Piece(Arc::clone(moving), at, len)));
    }
    let (moving, _) = state.current.take().expect("it was there");
    Ok(moving.let_go().then_some(Work::Whole(moving)))
}

/// Which directory a lane reads on: the newest that it has begun or nobody has, so that two lanes seldom make files in
/// the same one, where the system lets them in one by one; with no other, the newest there is.
fn scan_for(scans: &[Scan<'_>], lane: usize) -> Option<usize> {
    let free = scans.iter().rposition(|scan| scan.lane.is_none_or(|other| other == lane));
    free.or(scans.len().checked_sub(1))
}

/// Named files that lie in the same directory, together.
fn roots<'a>(state: &mut State<'a>) -> Option<Work<'a>> {
    let (place, first) = state.roots.pop_front()?;
    let mut found = vec![first];
    while found.len() < NAMES && state.roots.front().is_some_and(|(next, _)| Arc::ptr_eq(next, &place)) {
        found.extend(state.roots.pop_front().map(|(_, found)| found));
    }
    Some(Work::Names(place, found))
}

/// For messages: what is neither file, directory nor link.
pub(crate) fn refuse_special(name: &std::path::Path) -> Error {
    Error::Refused(format!(
        "{} is a pipe, a socket or a device; in a tree such are passed over, named alone they are read as streams",
        name.display()
    ))
}

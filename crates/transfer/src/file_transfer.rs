//! The transfer of one large file or stream: the state that is shared by the lanes that move pieces of it.
//!
//! Model: a [`Cursor`] hands out pieces. Each lane reads and writes its pieces, and the lane that writes the last one
//! finishes the file. From time to time a lane lists the written ranges in the journal, with their checksum.
//! Invariant: a range is listed only after the partial file was synced. The file gets its name only if the source is
//! still unchanged and the checksums of both ends agree. If it is dropped before that, it leaves a partial file that a
//! later run can resume, or nothing.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_base::clock::Stopwatch;
use thalweg_base::units::MIB;
use thalweg_io::extended::Extended;
use thalweg_io::tree::{Attributes, Dir};
use thalweg_io::{File, FileSystem, InputFile};
use thalweg_pump::ReadAhead;
use thalweg_record::{CELL_BYTES, sum_at};

use crate::blocks::{BLOCK_BYTES, DEPTH};
use crate::claim::{claim_left, claim_new, give_name};
use crate::directory::Directory;
use crate::journal::{ListedFile, Ranges};
use crate::left_out::{Change, End, change};
use crate::message::{CELLS, Message};
use crate::peer::Peer;
use crate::refused::Refused;
use crate::shared::{Shared, count};
use crate::{Error, Result, hidden_names};

/// A lane lists ranges after it has written this many bytes,
const NOTE_BYTES: u64 = if cfg!(test) { MIB } else { 64 * MIB };
const NOTE_SECONDS_MIN: f64 = if cfg!(test) { 0.0 } else { 0.25 };
/// or after this many seconds, but at most this many times for a file, which bounds the journal.
const NOTE_SECONDS: f64 = 1.0;
const NOTES_MAX: u64 = 1 << 14;
/// The most ranges that the peer may announce: a journal has at most [`NOTES_MAX`] for each file and each time that it
/// was resumed.
const RANGES_MAX: usize = 1 << 20;
/// The number of cells of the listed ranges that are compared with the source before a file is resumed.
const PROBES: usize = 8;
/// Every n-th range is compared, with n rounded down, so that fewer than twice as many are compared.
const _: () = assert!(2 * PROBES <= CELLS);

/// The source of the bytes.
pub(crate) enum Origin {
    File(File),
    /// A stream, read in order until it ends.
    Stream(InputFile),
    Zeros,
    /// Blocks that were filled with noise in advance.
    Noise,
    /// The peer, which has a file of this name.
    Peer(PathBuf),
}

/// The destination of the bytes.
pub(crate) enum Goal {
    /// A file that has a hidden name until it is complete.
    File {
        file: File,
        dir: Arc<dyn Dir>,
        partial: OsString,
        name: OsString,
    },
    /// A stream, written in order.
    Stream(File),
    Nowhere,
    /// The peer, which knows the file under this number.
    Peer(u64),
}

/// A file to be moved, before anything is opened.
pub(crate) struct Entry<'a> {
    pub(crate) place: Arc<Directory<'a>>,
    pub(crate) name: OsString,
    pub(crate) there: OsString,
}

/// A file that the peer sends: its name and attributes. A stream has no attributes, and a length only if it is known.
pub(crate) struct Arriving {
    pub(crate) name: OsString,
    pub(crate) facts: Option<Attributes>,
    pub(crate) extended: Extended,
    pub(crate) len: Option<u64>,
}

/// A number of pieces larger than that of any file, used until the real number is known.
const PIECES_MAX: u64 = 1 << 62;

/// The transfer of one file; see the head of this file.
pub(crate) struct FileTransfer<'a> {
    shared: &'a Shared<'a>,
    pub(crate) origin: Origin,
    pub(crate) goal: Goal,
    facts: Option<Attributes>,
    extended: Extended,
    key: Vec<u8>,
    /// The pieces that were handed out and are not written yet, plus one while more may follow.
    left: AtomicU64,
    state: Mutex<State>,
    finished: AtomicBool,
    /// Whether it is left out, and whether the source said so.
    given_up: AtomicBool,
    lost_at_source: AtomicBool,
    /// Keeps the directory unfinished until this file is.
    _place: Option<Arc<Directory<'a>>>,
}

struct State {
    read: u128,
    written: u128,
    /// The pieces that were sent to the peer.
    pieces: u64,
    /// One byte past the last byte that was moved.
    end: u64,
    /// The ranges that were written and are not in the journal yet.
    unlisted: Ranges,
    unlisted_bytes: u64,
    since: Stopwatch,
    /// The file's number in the journal.
    number: Option<u64>,
    noting: bool,
}

impl<'a> FileTransfer<'a> {
    fn new(shared: &'a Shared<'a>, origin: Origin, goal: Goal, key: Vec<u8>) -> FileTransfer<'a> {
        FileTransfer {
            shared,
            origin,
            goal,
            facts: None,
            extended: Extended::default(),
            key,
            left: AtomicU64::new(1),
            state: Mutex::new(State {
                read: 0,
                written: 0,
                pieces: 0,
                end: 0,
                unlisted: Ranges::new(),
                unlisted_bytes: 0,
                since: Stopwatch::start(),
                number: None,
                noting: false,
            }),
            finished: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            lost_at_source: AtomicBool::new(false),
            _place: None,
        }
    }

    /// A source that is not a file: `len` bytes, or everything until the end.
    pub(crate) fn of_origin(
        shared: &'a Shared<'a>,
        origin: Origin,
        goal: Goal,
        len: Option<u64>,
        key: Vec<u8>,
    ) -> (FileTransfer<'a>, Cursor) {
        let cursor = Cursor { at: 0, end: len.unwrap_or(u64::MAX), data: None, there: Ranges::new() };
        count(&shared.counts.found, 1);
        (FileTransfer::new(shared, origin, goal, key), cursor)
    }

    /// Opens the source and the destination of a file. `None` if the file is left out.
    pub(crate) fn open(
        shared: &'a Shared<'a>,
        entry: Entry<'a>,
    ) -> Result<Option<(FileTransfer<'a>, Cursor)>> {
        let Entry { place, name, there } = entry;
        let opened = || {
            let source = place.source().open_file(&name, true)?;
            let facts = shared.source.attributes(&source)?;
            Ok((source, facts))
        };
        let Some((source, facts)) = shared.left_out.or_none(End::Source, opened())? else { return Ok(None) };
        let key = place.key_of(&there);
        let extended = shared.extended_of(&key, &source);
        let goal = || match (&shared.far, place.target_for(&there)?) {
            (Some(far), _) => {
                far_goal(far, &place, there.clone(), &source, (&facts, &extended), shared.resume)
            }
            (None, None) => Ok((Goal::Nowhere, Existing::default())),
            (None, Some(dir)) => goal(shared, dir, there.clone(), Some(&source), (&facts, &key), false),
        };
        let Some((goal, known)) = shared.left_out.or_none(End::Dest, goal())? else {
            shared.lost(&key, facts.len, None, facts.links);
            return Ok(None);
        };
        let mut moving = FileTransfer::new(shared, Origin::File(source), goal, key);
        moving.goes_on_from(&known);
        (moving.facts, moving.extended, moving._place) = (Some(facts), extended, Some(place));
        let cursor = Cursor { at: 0, end: facts.len, data: None, there: known.ranges };
        Ok(Some((moving, cursor)))
    }

    /// Opens the destination of a file that the peer sends. Also returns what of it exists, which is nothing if it
    /// starts `anew`. If the file is left out, what arrives of it goes nowhere.
    pub(crate) fn arrives(
        shared: &'a Shared<'a>,
        place: &Arc<Directory<'a>>,
        file: &Arriving,
        anew: bool,
    ) -> Result<(FileTransfer<'a>, Existing)> {
        let key = place.key_of(&file.name);
        let goal = || match (place.target_for(&file.name)?, &file.facts) {
            (Some(dir), Some(facts)) => goal(shared, dir, file.name.clone(), None, (facts, &key), anew),
            _ => Ok((Goal::Nowhere, Existing::default())),
        };
        let opened = shared.left_out.or_none(End::Dest, goal())?;
        let is_left_out = opened.is_none();
        let (goal, known) = opened.unwrap_or((Goal::Nowhere, Existing::default()));
        let mut moving = FileTransfer::to(shared, goal, place, file);
        moving.given_up = AtomicBool::new(is_left_out);
        moving.goes_on_from(&known);
        Ok((moving, known))
    }

    /// A transfer of a file from the peer to `goal`.
    pub(crate) fn to(
        shared: &'a Shared<'a>,
        goal: Goal,
        place: &Arc<Directory<'a>>,
        file: &Arriving,
    ) -> FileTransfer<'a> {
        let key = if file.facts.is_some() { place.key_of(&file.name) } else { Vec::new() };
        let mut moving = FileTransfer::new(shared, Origin::Peer(PathBuf::from(&file.name)), goal, key);
        moving.left = AtomicU64::new(PIECES_MAX);
        (moving.facts, moving.extended) = (file.facts, file.extended.clone());
        moving._place = Some(Arc::clone(place));
        moving
    }

    fn goes_on_from(&mut self, known: &Existing) {
        let ranges = &known.ranges;
        let sum = ranges.values().fold(0u128, |sum, (_, part)| sum.wrapping_add(*part));
        count(&self.shared.counts.resumed_bytes, ranges.values().map(|(len, _)| len).sum());
        let state = self.state.get_mut().expect("nobody has it yet");
        (state.read, state.written, state.number) = (sum, sum, known.number);
    }

    /// The number under which the peer knows it.
    pub(crate) fn number(&self) -> u64 {
        match self.goal {
            Goal::Peer(number) => number,
            _ => unreachable!("only what goes to another process has a number"),
        }
    }

    /// Counts a piece that was sent; true if it was the last one.
    pub(crate) fn was_sent(&self, at: u64, len: u64) -> bool {
        let mut state = self.state.lock().expect("no lane panics");
        state.pieces += 1;
        state.end = state.end.max(at + len);
        drop(state);
        self.let_go()
    }

    /// Records how many pieces the source has sent, and their checksum; true if all of them are written.
    pub(crate) fn is_all(&self, pieces: u64, sum: u128) -> bool {
        self.state.lock().expect("no lane panics").read = sum;
        let more = pieces.wrapping_sub(PIECES_MAX);
        self.left.fetch_add(more, Ordering::AcqRel).wrapping_add(more) == 0
    }

    /// Whether a piece from the peer is inside the file. Pieces consist of whole cells, except at the end: otherwise a
    /// peer could make the journal grow with very few bytes.
    pub(crate) fn has_room(&self, at: u64, len: u64) -> bool {
        let cell = CELL_BYTES as u64;
        let Some(end) = at.checked_add(len).filter(|_| at.is_multiple_of(cell)) else { return false };
        match self.facts {
            Some(facts) => len > 0 && end <= facts.len && (len.is_multiple_of(cell) || end == facts.len),
            None => end <= i64::MAX as u64,
        }
    }

    /// Leaves the file out because of an error, which is returned if it ends the transfer instead. Only the first error
    /// is listed.
    pub(crate) fn give_up(&self, end: End, why: impl Into<Error>) -> Result<()> {
        match self.given_up.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => self.shared.left_out.add(end, why.into()),
        }
    }

    /// Leaves the file out because the source did, which lists it.
    pub(crate) fn is_lost_at_source(&self) {
        self.lost_at_source.store(true, Ordering::Relaxed);
        if self.given_up.swap(true, Ordering::Relaxed) {
            self.shared.left_out.retract();
        }
    }

    /// Whether it is left out.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The bytes of its key and its extended attributes.
    pub(crate) fn told_bytes(&self) -> u64 {
        (self.key.len() + self.extended.bytes()) as u64
    }

    /// Counts a piece that is handed out.
    pub(crate) fn hand_out(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a piece that is done, or the end of the file; true if nothing remains.
    pub(crate) fn let_go(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The name at the source, for messages.
    pub(crate) fn name(&self) -> PathBuf {
        match &self.origin {
            Origin::File(file) => file.path().to_path_buf(),
            Origin::Stream(file) => file.path().to_path_buf(),
            Origin::Zeros | Origin::Noise => PathBuf::from("memory"),
            Origin::Peer(name) => name.clone(),
        }
    }

    /// Adds a piece that was read to the checksum.
    pub(crate) fn was_read(&self, at: u64, bytes: &[u8]) {
        if self.shared.hashing {
            let sum = sum_at(at, bytes);
            let mut state = self.state.lock().expect("no lane panics");
            state.read = state.read.wrapping_add(sum);
        }
    }

    /// Records a piece that was written, and lists ranges if that is due; true if it was the last piece.
    pub(crate) fn was_written(&self, at: u64, len: u64, sum: u128) -> Result<bool> {
        let due = {
            let mut state = self.state.lock().expect("no lane panics");
            state.written = state.written.wrapping_add(sum);
            state.end = state.end.max(at + len);
            self.due(&mut state, at, len, sum)
        };
        if let Some(ranges) = due {
            self.note(&ranges)?;
        }
        Ok(self.let_go())
    }

    /// The ranges that are due to be listed now, if a later run could resume from them.
    fn due(&self, state: &mut State, at: u64, len: u64, sum: u128) -> Option<Ranges> {
        let (Some(facts), Goal::File { .. }, true) = (&self.facts, &self.goal, self.shared.hashing) else {
            return None;
        };
        self.shared.journal.as_ref()?;
        join(&mut state.unlisted, at, len, sum);
        state.unlisted_bytes += len;
        let (bytes, seconds) = (state.unlisted_bytes, state.since.seconds());
        let much = bytes >= NOTE_BYTES && seconds >= NOTE_SECONDS_MIN;
        let late = seconds >= NOTE_SECONDS && bytes >= facts.len / NOTES_MAX;
        if state.noting || !(much || late) {
            return None;
        }
        state.noting = true;
        state.unlisted_bytes = 0;
        Some(std::mem::take(&mut state.unlisted))
    }

    fn note(&self, ranges: &Ranges) -> Result<()> {
        let (Some(journal), Some(facts), Goal::File { file, .. }) =
            (&self.shared.journal, &self.facts, &self.goal)
        else {
            return Ok(());
        };
        file.sync()?;
        let known = self.state.lock().expect("no lane panics").number;
        let number = match known {
            Some(number) => number,
            None => journal.list(&self.key, facts)?,
        };
        journal.note(number, ranges)?;
        let mut state = self.state.lock().expect("no lane panics");
        (state.number, state.noting, state.since) = (Some(number), false, Stopwatch::start());
        Ok(())
    }

    /// After everything is written: verifies the file and renames it to its final name, or leaves it out.
    pub(crate) fn finish(&self) -> Result<()> {
        if !self.is_given_up()
            && let Err(why) = self.check_unchanged()
        {
            self.give_up(End::Source, why)?;
        }
        if !self.is_given_up()
            && let Err(why) = self.complete()
        {
            self.give_up(End::Dest, why)?;
        }
        if self.is_given_up() { self.discard() } else { Ok(()) }
    }

    /// An error if the source may have other bytes now than those that were read.
    fn check_unchanged(&self) -> Result<()> {
        let (Origin::File(file), Some(facts)) = (&self.origin, &self.facts) else { return Ok(()) };
        let now = self.shared.source.attributes(file)?;
        let is_same = match change(facts, &now, self.shared.strict) {
            Change::None => true,
            // Without checksums there is nothing to compare.
            Change::Perhaps if !self.shared.hashing => now.len > facts.len,
            Change::Perhaps => {
                let read = self.state.lock().expect("no lane panics").read;
                self.sum_of(self.shared.source.io(), file, facts.len)? == read
            }
            Change::Certain => false,
        };
        if is_same { Ok(()) } else { Err(Error::Changed(self.name())) }
    }

    /// Removes what was written of a file that is left out, and tells the peer.
    fn discard(&self) -> Result<()> {
        let (read, pieces) = {
            let mut state = self.state.lock().expect("no lane panics");
            // Dropping it removes the partial file, even if the journal lists it.
            state.number = None;
            (state.read, state.pieces)
        };
        let (len, names) = self.facts.map_or((0, 1), |facts| (facts.len, facts.links));
        let came = matches!(self.origin, Origin::Peer(_)) && !self.lost_at_source.load(Ordering::Relaxed);
        self.shared.lost(&self.key, len, came.then_some(read), names);
        match (&self.goal, &self.shared.far) {
            (Goal::Peer(number), Some(far)) => far.tell(&Message::FileLost(*number, pieces)),
            _ => Ok(()),
        }
    }

    fn complete(&self) -> Result<()> {
        let (read, written, end, pieces) = {
            let state = self.state.lock().expect("no lane panics");
            (state.read, state.written, state.end, state.pieces)
        };
        let len = self.facts.map_or(end, |facts| facts.len);
        let names = self.facts.map_or(1, |facts| facts.links);
        if let (Goal::Peer(number), Some(far)) = (&self.goal, &self.shared.far) {
            self.shared.whole(&self.key, len, (read, read), names);
            return far.tell(&Message::FileEnd(*number, pieces, read));
        }
        if let Goal::File { file, dir, partial, name } = &self.goal {
            self.compare(read, written, false)?;
            file.set_len(len)?;
            if self.shared.verify {
                self.compare(read, self.read_back(file, len)?, true)?;
            }
            if self.shared.sync_each {
                file.sync()?;
            }
            match &self.facts {
                Some(facts) => {
                    self.shared.dest.set_attributes(file, facts)?;
                    self.shared.set_extended(&self.key, file, &self.extended);
                }
                None => dir.copy_permissions(file, name)?,
            }
            give_name(&**dir, partial, name)?;
            self.finished.store(true, Ordering::Relaxed);
            if self.shared.sync_each {
                dir.sync().map_err(|e| e.undoable(&dir.path().join(name)))?;
            }
        }
        self.compare(read, written, false)?;
        self.finished.store(true, Ordering::Relaxed);
        self.shared.whole(&self.key, len, (read, written), names);
        Ok(())
    }

    fn compare(&self, read: u128, written: u128, read_back: bool) -> Result<()> {
        if read == written {
            return Ok(());
        }
        // No later run could resume it.
        self.state.lock().expect("no lane panics").number = None;
        let path = match &self.goal {
            Goal::File { dir, name, .. } => dir.path().join(name),
            _ => self.name(),
        };
        Err(Error::Mismatch { path, read, written, read_back })
    }

    /// Reads the file back and returns its checksum.
    fn read_back(&self, file: &File, len: u64) -> Result<u128> {
        if !file.is_direct() {
            file.sync()?;
            self.shared.dest.drop_cache(file);
        }
        self.sum_of(self.shared.dest.io(), file, len)
    }

    /// Reads the first `len` bytes of a file and returns their checksum.
    fn sum_of(&self, io: &Arc<dyn FileSystem>, file: &File, len: u64) -> Result<u128> {
        let meters = thalweg_pump::Meters::default();
        let mut ahead = ReadAhead::new(io.queue(DEPTH)?, &self.shared.pool, &meters);
        let (mut cursor, mut sum) = (Cursor { at: 0, end: len, data: None, there: Ranges::new() }, 0u128);
        loop {
            while let Some(block) = ahead.room() {
                let Some((at, len)) = cursor.next(Some(file))? else { break };
                ahead.read(block, file, at, len, at);
            }
            self.shared.goes_on()?;
            let Some((block, at)) = ahead.next_block()? else { return Ok(sum) };
            sum = sum.wrapping_add(sum_at(at, &block));
        }
    }
}

impl Drop for FileTransfer<'_> {
    fn drop(&mut self) {
        let Goal::File { dir, partial, .. } = &self.goal else { return };
        let noted = self.state.get_mut().is_ok_and(|state| state.number.is_some());
        if !*self.finished.get_mut() && !noted {
            // If the name cannot be removed, the next run removes it.
            let _ = dir.remove(partial);
        }
    }
}

/// What exists of a file at the destination: ranges, some cells, and its number in the journal if it is listed.
#[derive(Default)]
pub(crate) struct Existing {
    pub(crate) ranges: Ranges,
    pub(crate) cells: Vec<(u64, Vec<u8>)>,
    number: Option<u64>,
}

/// Announces a file to the peer. If the transfer resumes, compares what the peer already has.
fn far_goal(
    far: &Peer<'_>,
    place: &Directory<'_>,
    there: OsString,
    source: &File,
    (facts, extended): (&Attributes, &Extended),
    resume: bool,
) -> Result<(Goal, Existing)> {
    let number = far.next_file();
    place.count_sent_name();
    let file = Message::File(number, place.number(), there, Some(*facts), extended.clone(), None);
    let (goal, mut known) = (Goal::Peer(number), Existing::default());
    if !resume {
        far.tell(&file)?;
        return Ok((goal, known));
    }
    far.ask(&file, |answer| {
        match answer {
            Message::Ranges(ranges, more) => {
                for (at, len, sum) in ranges {
                    let end = known.ranges.last_key_value().map_or(0, |(at, (len, _))| at + len);
                    let is_next = at >= end && len > 0 && at.is_multiple_of(CELL_BYTES as u64);
                    // The partial file may be longer than the file is now; then the file is sent from the start.
                    if !is_next || at.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
                        return Err(Error::protocol("the other end"));
                    }
                    known.ranges.insert(at, (len, sum));
                }
                return match known.ranges.len() {
                    0..=RANGES_MAX => Ok(more),
                    _ => Err(Error::protocol("the other end")),
                };
            }
            Message::Cells(cells) => known.cells = cells,
            _ => {}
        }
        Ok(false)
    })?;
    let end = known.ranges.last_key_value().map_or(0, |(at, (len, _))| at.saturating_add(*len));
    let same = end <= facts.len && is_same(source, &known.cells);
    if !same {
        known = Existing::default();
    }
    far.tell(&Message::Take(number, !same))?;
    Ok((goal, known))
}

/// Opens the partial file: one from an earlier run that can be resumed, or a new one.
fn goal(
    shared: &Shared<'_>,
    dir: Arc<dyn Dir>,
    name: OsString,
    source: Option<&File>,
    (facts, key): (&Attributes, &[u8]),
    anew: bool,
) -> Result<(Goal, Existing)> {
    let partial = hidden_names::partial(&name);
    if let Some(noted) = shared.noted.get(key) {
        let taken = if anew { None } else { taken_up(shared, &*dir, &partial, noted, facts)? };
        let taken = match (taken, source) {
            (Some((_, cells)), Some(source)) if !is_same(source, &cells) => None,
            (taken, _) => taken,
        };
        match taken {
            Some((file, cells)) => {
                let known = Existing { ranges: noted.ranges.clone(), cells, number: Some(noted.number) };
                return Ok((Goal::File { file, dir, partial, name }, known));
            }
            None => {
                let path = dir.path().join(&name);
                shared.watch.note(&format!(
                    "the source of {} is not what it was, or its beginning is lost; beginning it anew",
                    path.display()
                ));
            }
        }
    }
    let made = claim_new(&*shared.dest, &*dir, &partial, true, Some(facts.user));
    let file = made.map_err(|e| e.on_create(&*dir, &name))?;
    let goal = Goal::File { file: file.clone(), dir: Arc::clone(&dir), partial: partial.clone(), name };
    // Reserves space for a file without holes: writes into reserved space run in parallel.
    let reserved = if facts.is_sparse() { file.set_len(facts.len) } else { file.allocate(facts.len) };
    if let Err(e) = reserved {
        drop(file);
        let _ = dir.remove(&partial);
        return Err(no_room(shared, e, facts.len, goal));
    }
    Ok((goal, Existing::default()))
}

/// The error for a file that does not fit, with the missing space.
fn no_room(shared: &Shared<'_>, e: thalweg_io::Error, len: u64, goal: Goal) -> Error {
    let Goal::File { dir, name, .. } = goal else { return e.into() };
    let e = thalweg_io::Error { path: dir.path().join(name), ..e };
    if !e.is_full() {
        return e.into();
    }
    if e.source.kind() == ErrorKind::FileTooLarge {
        return Refused::TooLarge { path: e.path, needed: len, directory: dir.path().into() }.into();
    }
    let available = shared.dest.io().space(dir.path()).map_or(0, |space| space.available);
    Refused::Full { path: e.path, needed: len, directory: dir.path().into(), available }.into()
}

/// Some cells of a file, each with its offset.
type Cells = Vec<(u64, Vec<u8>)>;

/// The partial file with a few of its cells, if the source has not changed.
fn taken_up(
    shared: &Shared<'_>,
    dir: &dyn Dir,
    partial: &OsString,
    noted: &ListedFile,
    facts: &Attributes,
) -> Result<Option<(File, Cells)>> {
    let end = noted.ranges.last_key_value().map_or(0, |(at, (len, _))| at + len);
    let left = if noted.is_of(facts) { claim_left(&*shared.dest, dir, partial, true)? } else { None };
    let Some(file) = left else { return Ok(None) };
    if file.metadata()?.len < end {
        return Ok(None);
    }
    let step = (noted.ranges.len() / PROBES).max(1);
    let mut cells = Vec::new();
    for (at, (len, _)) in noted.ranges.iter().rev().step_by(step) {
        let cell = at + (len - 1) / CELL_BYTES as u64 * CELL_BYTES as u64;
        let mut bytes = vec![0; (at + len - cell) as usize];
        file.read_at(cell, &mut bytes)?;
        cells.push((cell, bytes));
    }
    Ok(Some((file, cells)))
}

/// Whether the source has the same bytes in these cells. Cells that cannot be read count as different; reading the file
/// from its beginning tells why.
fn is_same(source: &File, cells: &[(u64, Vec<u8>)]) -> bool {
    cells.iter().all(|(at, there)| {
        let mut here = [0; CELL_BYTES];
        let here = here.get_mut(..there.len());
        here.is_some_and(|here| source.read_at(*at, here).is_ok() && here == there)
    })
}

/// Adds a range, and merges it with its neighbours.
fn join(ranges: &mut Ranges, mut at: u64, mut len: u64, mut sum: u128) {
    if let Some((&from, &(bytes, part))) = ranges.range(..at).next_back()
        && from + bytes == at
    {
        (at, len, sum) = (from, bytes + len, part.wrapping_add(sum));
    }
    if let Some((bytes, part)) = ranges.remove(&(at + len)) {
        (len, sum) = (len + bytes, sum.wrapping_add(part));
    }
    ranges.insert(at, (len, sum));
}

/// The part of a file that was not handed out yet. Skips holes, and ranges that the destination has.
pub(crate) struct Cursor {
    at: u64,
    end: u64,
    /// The end of the data that contains `at`; unknown between two stretches of data.
    data: Option<u64>,
    there: Ranges,
}

impl Cursor {
    /// The next piece: its offset and its length.
    pub(crate) fn next(&mut self, file: Option<&File>) -> Result<Option<(u64, usize)>> {
        loop {
            self.pass_over();
            if self.at >= self.end {
                return Ok(None);
            }
            let data_end = match (self.data, file) {
                (Some(end), _) if self.at < end => end,
                (_, None) => self.end,
                (_, Some(file)) => {
                    let Some((from, to)) = file.next_data(self.at, self.end)? else {
                        self.at = self.end;
                        return Ok(None);
                    };
                    let cell = CELL_BYTES as u64;
                    self.at = self.at.max(from / cell * cell);
                    self.data = Some(to.next_multiple_of(cell).min(self.end));
                    continue;
                }
            };
            let next_there = self.there.range(self.at..).next().map_or(self.end, |(at, _)| *at);
            let len = (data_end.min(next_there) - self.at).min(BLOCK_BYTES as u64);
            let at = self.at;
            self.at += len;
            return Ok(Some((at, len as usize)));
        }
    }

    fn pass_over(&mut self) {
        while let Some((from, (len, _))) =
            self.there.range(..=self.at).next_back().filter(|r| r.0 + r.1.0 > self.at)
        {
            self.at = from + len;
        }
    }

    /// Hands out nothing more.
    pub(crate) fn end_now(&mut self) {
        self.end = self.at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ranges_are_one() {
        let mut ranges = Ranges::new();
        for (at, len) in [(8192, 4096), (0, 4096), (4096, 4096), (20480, 100)] {
            join(&mut ranges, at, len, u128::from(at));
        }
        let all: Vec<_> = ranges.into_iter().collect();
        assert_eq!(all, [(0, (12288, 12288)), (20480, (100, 20480))]);
    }

    #[test]
    fn what_is_there_is_not_handed_out_again() {
        let block = BLOCK_BYTES as u64;
        let there = Ranges::from([(0, (4096, 0)), (block, (2 * block, 0)), (5 * block, (100, 0))]);
        let mut cursor = Cursor { at: 0, end: 5 * block + 100, data: None, there };
        let mut handed = Vec::new();
        while let Some((at, len)) = cursor.next(None).unwrap() {
            handed.push((at, len as u64));
        }
        assert_eq!(handed, [(4096, block - 4096), (3 * block, block), (4 * block, block)]);
    }
}

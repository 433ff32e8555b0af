//! The destination's end of a transfer between two processes.
//!
//! Model: the sink lanes of a transfer on one machine, with a [`ReceiveLane`] instead of reads. The control stream
//! announces directories and files by number ([`Arrivals`]). A lane waits if it receives a block for one that was not
//! announced yet.
//! Invariant: a directory is finished when as many names as the source counted have arrived; a file, when all of its
//! pieces are written and their checksum is the source's.
//! Invariant: the source is not trusted. If this end requested certain paths, the source may offer only those. In the
//! parent of the roots, which may hold anything, it reaches only the roots that it offered. Unfinished announcements
//! are bounded by [`TOLD_BYTES_MAX`] and [`DEPTH_MAX`].

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use thalweg_api::{PumpChoice, PumpCompare, PumpReceipt, PumpVerdict};
use thalweg_base::clock::Stopwatch;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::{Block, Pool};
use thalweg_io::extended::Extended;
use thalweg_io::tree::{Attributes, EntryKind, Tree};
use thalweg_io::{host, process};
use thalweg_pump::{Source, Watch};
use thalweg_wire::{Incoming, Streams};

use crate::blocks::{DEPTH, RECEIVE_BLOCKS};
use crate::choice::Choice;
use crate::directory::Directory;
use crate::file_transfer::{Arriving, FileTransfer, Goal};
use crate::job::{Job, Part, flush_along, is_in_order, move_all};
use crate::known::{set_attributes, sum_of_existing};
use crate::left_out::End;
use crate::message::{Message, Offer, RANGES, Tail, is_bare};
use crate::peer::{Control, FRAME_BYTES, Peer, Transport};
use crate::receipt::{Took, link, merged, receipt};
use crate::refused::Refused;
use crate::relay::{Onward, Relay, RelayLane};
use crate::roots::{self, To, Transfer};
use crate::shared::{OneMore, Shared, count};
use crate::sink::SinkLane;
use crate::source::{Content, Of, Packed, Parcel};
use crate::{Error, Result};

/// Blocks to read files back with, for each lane.
const READ_BACK_BLOCKS: usize = 2;
/// The most memory for the source's unfinished announcements: open directories and files, requested names, further
/// names, and checksums of files that may get them. An honest source has few open at a time; more than a million files
/// with one further name each fit.
const TOLD_BYTES_MAX: u64 = 512 << 20;
/// The memory for one of these, besides its names.
const KNOWN_BYTES: u64 = 512;
/// The deepest tree.
const DEPTH_MAX: u32 = 4096;
/// How often a waiting lane checks whether to continue.
const LOOK: Duration = Duration::from_millis(100);

/// What this end has requested of the source.
pub struct Requested<'p> {
    /// The paths.
    pub paths: &'p [PathBuf],
    /// Whether to resume.
    pub resume: bool,
    /// Whether the first error ends the transfer.
    pub strict: bool,
    /// Which entries.
    pub choice: &'p PumpChoice,
}

/// Receives everything from the other end into the destination. The source chooses the options. The receipt is that of
/// this end, with the source's checksum. `asked` is the transfer that this end requested; it then accepts nothing else.
/// `onward` is a host to which everything is sent on. With `chained`, an error of one entry ends the transfer.
pub fn receive(
    dest: &To,
    asked: Option<&Requested<'_>>,
    (transport, control): (&dyn Transport, Streams),
    (onward, chained): (Option<Onward<'_>>, bool),
    tree: &Arc<dyn Tree>,
    watch: &dyn Watch,
) -> Result<PumpReceipt> {
    let (clock, cpu_before) = (Stopwatch::start(), process::usage().cpu_seconds);
    host::allow_open_files(u64::MAX);
    let (far, mut inc) =
        (Arc::new(Peer::new(transport, control.0, false)), Control::new(transport, control.1)?);
    let onward = onward.map(Relay::new).transpose()?;
    let (relay, mut said) = onward.map_or((None, None), |(relay, said)| (Some(relay), Some(said)));
    let refused = |e: &Error| {
        far.give_up(&e.verdict());
        relay.iter().for_each(|relay| relay.peer.give_up(&e.verdict()));
    };
    let offer = match inc.next().inspect_err(refused)? {
        Some(Message::Offer(offer)) => offer,
        _ => return Err(inc.refusal()),
    };
    let transfer = offered(dest, &offer, chained).inspect_err(refused)?;
    let lanes = if is_in_order(&transfer) { 1 } else { (offer.lanes as usize).clamp(1, LANES_MAX) };
    let mut look = || {
        asked.map_or(Ok(()), |asked| asked.check(&offer, &transport.peer()))?;
        let roots = roots::look_at_offer(&**tree, dest, &offer, &transport.peer())?;
        let job =
            Job { transfer: &transfer, source: tree, dest: tree, watch, roots, lanes, part: Part::Sink };
        let shared = job.shared(Pool::new(FRAME_BYTES, lanes * READ_BACK_BLOCKS)?, None)?;
        let names = job.roots.roots.iter().map(|root| root.there.clone()).collect::<Vec<_>>();
        if let (Some(relay), Some(said)) = (&relay, &mut said) {
            relay.agree(said, &offer, (lanes, &names))?;
        }
        Ok((job, shared, names))
    };
    let (job, shared, names) = look().inspect_err(refused)?;
    let take = || perform(&job, &shared, (&far, relay.as_ref()), inc, (offer.total, names));
    let taken = match (&relay, said) {
        (Some(relay), Some(said)) => relay.along(&shared, said, take),
        _ => take(),
    };
    let first = shared.error.lock().expect("no lane panics").take();
    let sync_seconds = match first.map_or(taken, Err) {
        Ok(seconds) => seconds,
        Err(e) => {
            refused(&e);
            job.leave(&shared, &e);
            return Err(e);
        }
    };
    let cpu_seconds = process::usage().cpu_seconds - cpu_before;
    let mut ours = receipt(&job, &shared, &Took { seconds: clock.seconds(), sync_seconds, cpu_seconds });
    ours.link = Some(link(&far));
    let theirs = far.verdict().and_then(|verdict| verdict.receipt.clone());
    let theirs = theirs.ok_or_else(|| Error::protocol(transport.peer())).inspect_err(refused)?;
    if let Some(relay) = &relay {
        ours.onward = relay.receipts(&theirs).inspect_err(refused)?;
    }
    far.tell_lists(&shared)?;
    far.end(&PumpVerdict::done(ours.clone()))?;
    let both = merged(theirs, ours, transport.peer(), false);
    Ok(PumpReceipt { errors: shared.left_out.list.take(), items: shared.deleter.items.take(), ..both })
}

impl Requested<'_> {
    /// An error if something else is offered.
    fn check(&self, offer: &Offer, peer: &str) -> Result<()> {
        let Requested { paths, resume, strict, choice } = self;
        roots::check_asked(paths, &offer.roots, peer)?;
        match (*resume, *strict, &Choice::told(choice)) == (offer.resume, offer.strict, &offer.choice) {
            true => Ok(()),
            false => Err(Error::protocol(peer)),
        }
    }
}

/// The transfer that is offered.
fn offered(dest: &To, offer: &Offer, chained: bool) -> Result<Transfer> {
    let choice = Choice::of(&offer.choice)?;
    if chained && (offer.resume || choice.asks()) {
        return Err(Refused::SeveralHosts.into());
    }
    Ok(Transfer {
        resume: offer.resume,
        verify: offer.verify,
        hashing: offer.hashing,
        strict: offer.strict || chained,
        choice,
        ..Transfer::new(Vec::new(), dest.clone())
    })
}

/// The most lanes that the other end may request.
pub(crate) const LANES_MAX: usize = 64;

fn perform(
    job: &Job<'_>,
    shared: &Shared<'_>,
    (far, relay): (&Peer<'_>, Option<&Relay<'_>>),
    inc: Control,
    (total, names): (u64, Vec<OsString>),
) -> Result<f64> {
    far.tell(&Message::Accept(job.lanes as u32, names))?;
    far.flush()?;
    let lanes = job.open_lanes(shared, far)?;
    let mut on = relay.map(|relay| job.open_lanes(shared, &relay.peer)).transpose()?.unwrap_or_default();
    let lanes: Vec<_> = lanes.into_iter().map(|lane| (lane, on.pop())).collect();
    job.begin_stage(total);
    let arrivals = Arrivals::new(job, shared, far);
    let (moving, done) = (AtomicBool::new(true), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (arrivals, moving, done) = (&arrivals, &moving, &done);
        let _tells = OnPanic(|| {
            moving.store(false, Ordering::Relaxed);
            done.store(true, Ordering::Relaxed);
        });
        let hear = |message| {
            relay.map_or(Ok(()), |relay| relay.peer.tell(&message))?;
            arrivals.hear(message)
        };
        let listener = scope.spawn(move || far.listen(shared, inc, hear));
        let attendant = scope.spawn(move || far.attend(shared, &|| done.load(Ordering::Relaxed)));
        let lane = |(streams, on)| {
            scope.spawn(move || {
                let _tells = shared.tells_of_panics();
                let on = relay.zip(on).map(|(relay, on)| RelayLane::new(&relay.peer, on)).transpose();
                if let Err(e) = on.and_then(|on| lane(shared, arrivals, streams, on)) {
                    shared.fail(e);
                }
            })
        };
        let lanes: Vec<_> = lanes.into_iter().map(lane).collect();
        let flusher = job.roots.dir.as_ref().filter(|_| !shared.sync_each);
        let flusher = flusher.map(|dir| scope.spawn(|| flush_along(shared, &**dir, moving)));
        for lane in lanes {
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        moving.store(false, Ordering::Relaxed);
        done.store(true, Ordering::Relaxed);
        attendant.thread().unpark();
        if let Some(flusher) = flusher {
            flusher.thread().unpark();
        }
    });
    shared.goes_on()?;
    let sum = arrivals.all_came()?;
    // All hosts make what has come durable at the same time.
    relay.map_or(Ok(()), |relay| relay.end(far.verdict()))?;
    let clock = Stopwatch::start();
    if let Some(dir) = &job.roots.dir {
        job.finish(shared, dir, Some(sum))?;
    }
    shared.sums.lock().expect("no lane panics").0 = sum;
    Ok(clock.seconds())
}

fn lane<'a>(
    shared: &'a Shared<'a>,
    arrivals: &Arrivals<'_, 'a>,
    // Dropping the unused outgoing half would end the stream.
    (_out, inc): Streams,
    on: Option<RelayLane<'_>>,
) -> Result<()> {
    let pool = Pool::new(FRAME_BYTES, RECEIVE_BLOCKS)?;
    let mut inc = inc.takes(&pool, DEPTH);
    let source = ReceiveLane { shared, arrivals, inc: &mut inc, on };
    let sink = SinkLane::new(shared, shared.dest.io().queue(DEPTH)?);
    move_all(shared, source, sink).map_err(|e| {
        shared.fail(e);
        // The source would notice the end of this stream, and wait as long for the cause as this end does.
        arrivals.far.wait_until_told();
        Error::Stopped
    })
}

/// A directory that the source announced.
struct KnownDir<'a> {
    place: Arc<Directory<'a>>,
    parent: Option<u64>,
    depth: u32,
    /// Its part of [`TOLD_BYTES_MAX`].
    bytes: u64,
    /// The names that have arrived, and their announced number.
    came: u64,
    in_all: Option<u64>,
}

/// A file that the source announced.
struct Coming<'a> {
    moving: Arc<FileTransfer<'a>>,
    /// Its part of [`TOLD_BYTES_MAX`].
    bytes: u64,
    /// The pieces that have arrived, and their announced number.
    came: u64,
    in_all: Option<u64>,
}

#[derive(Default)]
struct State<'a> {
    dirs: HashMap<u64, KnownDir<'a>>,
    files: HashMap<u64, Coming<'a>>,
    /// The part of [`TOLD_BYTES_MAX`] in use.
    told_bytes: u64,
    /// A partial file that is resumed if the source finds that it matches.
    asked: Option<(u64, Arc<Directory<'a>>, Arriving, FileTransfer<'a>)>,
}

/// The announcements of the source; see the head of this file.
struct Arrivals<'j, 'a> {
    job: &'j Job<'j>,
    shared: &'a Shared<'a>,
    far: &'j Peer<'j>,
    /// The roots that are files, by their names at the destination.
    root_files: HashSet<OsString>,
    state: Mutex<State<'a>>,
    news: Condvar,
    sum: OnceLock<u128>,
}

impl<'j, 'a> Arrivals<'j, 'a> {
    fn new(job: &'j Job<'j>, shared: &'a Shared<'a>, far: &'j Peer<'j>) -> Arrivals<'j, 'a> {
        let place = Arc::new(Directory::of_roots(shared, None, job.there()));
        let mut state = State::default();
        state.dirs.insert(0, KnownDir { place, parent: None, depth: 0, bytes: 0, came: 0, in_all: None });
        let files = job.roots.roots.iter().filter(|root| !root.is_tree);
        let root_files = files.map(|root| root.there.clone()).collect();
        let (state, news, sum) = (Mutex::new(state), Condvar::new(), OnceLock::new());
        Arrivals { job, shared, far, root_files, state, news, sum }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().expect("no lane panics")
    }

    fn protocol_error<T>(&self) -> Result<T> {
        Err(Error::protocol("the source"))
    }

    /// An error for a name in the parent of the roots that is not a root: the source may not see what else is there.
    fn is_its_own(&self, dir: u64, name: &OsStr) -> Result<()> {
        if dir != 0 || self.root_files.contains(name) { Ok(()) } else { self.protocol_error() }
    }

    /// Counts the memory for the source's announcements.
    fn remembers(&self, state: &mut State<'a>, bytes: u64) -> Result<()> {
        state.told_bytes += bytes;
        if state.told_bytes <= TOLD_BYTES_MAX {
            return Ok(());
        }
        Err(Refused::TooManyOpen(TOLD_BYTES_MAX).into())
    }

    /// The checksum of a file with several names is stored until the end.
    fn remembers_sum(&self, facts: &Attributes) -> Result<()> {
        match facts.links > 1 {
            true => self.remembers(&mut self.lock(), KNOWN_BYTES / 4),
            false => Ok(()),
        }
    }

    /// Handles a message of the source.
    fn hear(&self, message: Message) -> Result<()> {
        match message {
            Message::Dir(id, parent, name, facts, extended, root) => {
                self.directory(id, parent, name, (facts, extended), root)?
            }
            Message::DirEnd(id, in_all, is_whole) => {
                let mut state = self.lock();
                let open = state.dirs.get_mut(&id).filter(|known| id != 0 && known.in_all.is_none());
                let Some(known) = open else { return self.protocol_error() };
                known.in_all = Some(in_all);
                if !is_whole {
                    known.place.is_listed_in_part();
                }
                let whole = came(&mut state, id, 0);
                drop(state);
                drop(whole);
            }
            Message::File(id, dir, name, facts, extended, len) => {
                self.file(id, dir, Arriving { name, facts, extended, len })?
            }
            Message::Take(id, anew) => self.take(id, anew)?,
            Message::FileEnd(id, pieces, sum) => {
                let moving = self.file_ends(id, pieces)?;
                if moving.is_all(pieces, sum) {
                    moving.finish()?;
                }
            }
            Message::FileLost(id, pieces) => self.lost(id, pieces)?,
            Message::Names(dir, names) => self.named(dir, names)?,
            Message::AskSums(dir, names) => self.tell_sums(dir, &names)?,
            Message::Facts(dir, name, facts, extended) => self.facts(dir, &name, (&facts, &extended))?,
            Message::Item(item) => self.shared.deleter.items.add_theirs(item),
            Message::LeftOut(entry) => self.shared.left_out.list.add_theirs(entry),
            Message::Ask(dir, names) => self.tell_what_is_there(dir, names)?,
            Message::Name(named) => {
                let named = *named;
                // A root that is a file contains no paths.
                if !self.job.roots.roots.get(named.top as usize).is_some_and(|root| root.is_tree) {
                    return self.protocol_error();
                }
                let (above, first) = (named.first.parent(), named.first.file_name());
                let first = first.unwrap_or_default().to_os_string();
                let mut links = self.shared.links.lock().expect("no lane panics");
                let (name, bytes) = links.name(&named.place, named.name);
                let (first, first_bytes) = links.name(above.unwrap_or(Path::new("")), first);
                // The keys of both names follow from this.
                links.more.push(OneMore { name, facts: named.facts, first, top: named.top });
                drop(links);
                self.remembers(&mut self.lock(), KNOWN_BYTES / 2 + (bytes + first_bytes) as u64)?;
            }
            Message::End(sum) => {
                let _ = self.sum.set(sum);
            }
            _ => return self.protocol_error(),
        }
        self.news.notify_all();
        Ok(())
    }

    /// Records how many pieces of a file were sent.
    fn file_ends(&self, id: u64, pieces: u64) -> Result<Arc<FileTransfer<'a>>> {
        let mut state = self.lock();
        let Some(coming) = state.files.get_mut(&id).filter(|coming| coming.in_all.is_none()) else {
            return self.protocol_error();
        };
        coming.in_all = Some(pieces);
        let moving = Arc::clone(&coming.moving);
        piece_came(&mut state, id, 0);
        Ok(moving)
    }

    /// The source has left out a file that it had announced.
    fn lost(&self, id: u64, pieces: u64) -> Result<()> {
        let moving = self.file_ends(id, pieces)?;
        moving.is_lost_at_source();
        if moving.is_all(pieces, 0) { moving.finish() } else { Ok(()) }
    }

    fn directory(
        &self,
        id: u64,
        parent: u64,
        name: OsString,
        facts: (Attributes, Extended),
        root: Option<u32>,
    ) -> Result<()> {
        let mut state = self.lock();
        let above = state.dirs.get(&parent).map(|known| (Arc::clone(&known.place), known.depth));
        let Some((above, depth)) = above else { return self.protocol_error() };
        if depth >= DEPTH_MAX {
            return Err(Refused::TooDeep(DEPTH_MAX).into());
        }
        let place = match root {
            None if parent != 0 && is_bare(name.as_bytes()) => Directory::came_below(&above, name, facts),
            Some(number) => match self.job.roots.roots.get(number as usize) {
                Some(root) if root.is_tree && parent == 0 => Directory::came(&above, root, facts, number),
                _ => return self.protocol_error(),
            },
            None => return self.protocol_error(),
        };
        let bytes = KNOWN_BYTES + place.told_bytes() as u64;
        self.remembers(&mut state, bytes)?;
        let (place, parent, depth) = (Arc::new(place), Some(parent), depth + 1);
        match state.dirs.insert(id, KnownDir { place, parent, depth, bytes, came: 0, in_all: None }) {
            None => Ok(()),
            Some(_) => self.protocol_error(),
        }
    }

    fn place(&self, dir: u64) -> Result<Arc<Directory<'a>>> {
        match self.lock().dirs.get(&dir) {
            Some(known) => Ok(Arc::clone(&known.place)),
            None => self.protocol_error(),
        }
    }

    fn file(&self, id: u64, dir: u64, file: Arriving) -> Result<()> {
        if self.shared.choice.asked.dry_run {
            return self.protocol_error();
        }
        let place = self.place(dir)?;
        match &file.facts {
            Some(facts) => {
                self.is_its_own(dir, &file.name)?;
                self.remembers_sum(facts)?;
            }
            // A stream is alone in its transfer, and has no name.
            None if dir == 0 && self.job.roots.roots.is_empty() => {}
            None => return self.protocol_error(),
        }
        let whole = came(&mut self.lock(), dir, 1);
        drop(whole);
        let stream = file.facts.is_none().then(|| self.job.goal_of_stream(file.len)).transpose()?;
        let resumes = self.shared.resume && file.facts.is_some();
        let (moving, known) = match self.goal_of(stream)? {
            Some(goal) => (FileTransfer::to(self.shared, goal, &place, &file), None),
            None => {
                let (moving, known) = FileTransfer::arrives(self.shared, &place, &file, false)?;
                (moving, Some(known))
            }
        };
        if !resumes {
            return self.comes(id, moving);
        }
        let known = known.unwrap_or_default();
        let ranges: Vec<_> = known.ranges.iter().map(|(at, (len, sum))| (*at, *len, *sum)).collect();
        self.lock().asked = Some((id, place, file, moving));
        for some in ranges.chunks(RANGES) {
            self.far.tell(&Message::Ranges(some.to_vec(), true))?;
        }
        self.far.tell(&Message::Cells(known.cells))?;
        self.far.flush()
    }

    /// The destination of the bytes if it is not a file in a directory.
    fn goal_of(&self, stream: Option<Goal>) -> Result<Option<Goal>> {
        Ok(match (stream, &self.job.transfer.dest) {
            (Some(goal), _) => Some(goal),
            (None, To::Stream(_)) => Some(self.job.goal_of_stream(None)?),
            (None, _) => None,
        })
    }

    fn take(&self, id: u64, anew: bool) -> Result<()> {
        let Some((asked, place, file, moving)) = self.lock().asked.take() else {
            return self.protocol_error();
        };
        if asked != id {
            return self.protocol_error();
        }
        let moving = match anew {
            false => moving,
            true => {
                drop(moving);
                FileTransfer::arrives(self.shared, &place, &file, true)?.0
            }
        };
        self.comes(id, moving)
    }

    fn comes(&self, id: u64, moving: FileTransfer<'a>) -> Result<()> {
        let bytes = KNOWN_BYTES + moving.told_bytes();
        let mut state = self.lock();
        self.remembers(&mut state, bytes)?;
        match state.files.insert(id, Coming { moving: Arc::new(moving), bytes, came: 0, in_all: None }) {
            None => Ok(()),
            Some(_) => self.protocol_error(),
        }
    }

    /// Remembers names that the source has in a directory.
    fn named(&self, dir: u64, names: Vec<OsString>) -> Result<()> {
        let place = self.place(dir)?;
        let bytes = names.iter().map(|name| KNOWN_BYTES / 4 + name.len() as u64).sum();
        let mut state = self.lock();
        self.remembers(&mut state, bytes)?;
        // They are freed with the directory.
        if let Some(known) = state.dirs.get_mut(&dir) {
            known.bytes += bytes;
        }
        drop(state);
        names.into_iter().for_each(|name| place.add_source_name(name));
        Ok(())
    }

    fn tell_what_is_there(&self, dir: u64, names: Vec<OsString>) -> Result<()> {
        let place = self.place(dir)?;
        if !self.shared.resume && !self.shared.choice.asks() {
            return self.protocol_error();
        }
        let mut known = Vec::with_capacity(names.len());
        self.named(dir, names.clone())?;
        for name in names {
            self.is_its_own(dir, &name)?;
            // An error will be listed when the file is sent.
            let dir = place.target_for(&name);
            let facts = dir.ok().flatten().and_then(|dir| dir.find(&name).ok().flatten());
            known.push(facts);
        }
        self.far.tell(&Message::There(known))?;
        self.far.flush()
    }

    fn tell_sums(&self, dir: u64, names: &[OsString]) -> Result<()> {
        let place = self.place(dir)?;
        if self.shared.choice.asked.compare != PumpCompare::Content {
            return self.protocol_error();
        }
        let mut sums = Vec::with_capacity(names.len());
        for name in names {
            self.is_its_own(dir, name)?;
            let there = place.target_for(name).ok().flatten();
            sums.push(there.and_then(|there| sum_of_existing(self.shared, &there, name)));
        }
        self.far.tell(&Message::Sums(sums))?;
        self.far.flush()
    }

    /// A file is complete, but for its attributes. It may get further names.
    fn facts(&self, dir: u64, name: &OsStr, (facts, extended): (&Attributes, &Extended)) -> Result<()> {
        self.is_its_own(dir, name)?;
        let (shared, place) = (self.shared, self.place(dir)?);
        let PumpChoice { compare, dry_run, .. } = shared.choice.asked;
        if dry_run || (compare == PumpCompare::Nothing && !shared.resume) {
            return self.protocol_error();
        }
        let there = place.target_for(name).ok().flatten().and_then(|dir| dir.find(name).ok().flatten());
        // Unless it has changed since the source was told, it is as long, and as old unless contents were compared.
        let is_it = there.is_some_and(|there| {
            let is_as_old = compare == PumpCompare::Content || there.modified_ns == facts.modified_ns;
            (there.kind, there.len) == (EntryKind::File, facts.len) && is_as_old
        });
        let key = place.key_of(name);
        if !is_it {
            count(&shared.counts.found, 1);
            shared.lost(&key, facts.len, None, facts.links);
            return shared.left_out.add(End::Dest, Error::Changed(OsStr::from_bytes(&key).into()));
        }
        if facts.links > 1 {
            self.remembers_sum(facts)?;
            shared.links.lock().expect("no lane panics").was_complete(&key);
        }
        let attributes = |a: &Attributes| (a.mode, a.user, a.group, a.modified_ns);
        match there.map(|there| attributes(&there)) == Some(attributes(facts)) && extended.is_empty() {
            true => Ok(()),
            false => set_attributes(shared, &place, name, (facts, extended)),
        }
    }

    /// The contents of a block, once everything that it refers to was announced.
    fn parcel(&self, block: &mut Block) -> Result<Of<'a>> {
        let Some((tail, len)) = Tail::decode(block) else { return self.protocol_error() };
        block.set_len(len);
        match tail {
            Tail::Piece(file, at) => {
                let moving = self.told(|state| state.files.get(&file).map(|c| Arc::clone(&c.moving)))?;
                if !moving.has_room(at, len as u64) {
                    return self.protocol_error();
                }
                piece_came(&mut self.lock(), file, 1);
                Ok(Of::Piece(moving, at, len))
            }
            Tail::Pack(_)
                if matches!(self.job.transfer.dest, To::Stream(_)) || self.shared.choice.asked.dry_run =>
            {
                self.protocol_error()
            }
            Tail::Pack(smalls) => {
                let mut pack = Vec::with_capacity(smalls.len());
                let mut from = 0usize;
                for small in smalls {
                    // A root is never a link, because the source resolves it.
                    if small.dir == 0 && small.what.is_err() {
                        return self.protocol_error();
                    }
                    self.is_its_own(small.dir, &small.name)?;
                    let place =
                        self.told(|state| state.dirs.get(&small.dir).map(|k| Arc::clone(&k.place)))?;
                    let what = match small.what {
                        Err(link) => Content::Link(link),
                        Ok(sum) => {
                            let at = from;
                            from = from.saturating_add(small.facts.len as usize);
                            if from > len {
                                return self.protocol_error();
                            }
                            self.remembers_sum(&small.facts)?;
                            Content::Bytes(at, sum)
                        }
                    };
                    let (there, facts, extended) = (small.name, small.facts, small.extended);
                    pack.push(Packed { place, there, facts, extended, what });
                    let whole = came(&mut self.lock(), small.dir, 1);
                    drop(whole);
                }
                Ok(Of::Pack(pack))
            }
        }
    }

    /// Waits until the control stream has announced what `find` looks for.
    fn told<T>(&self, find: impl Fn(&State<'a>) -> Option<T>) -> Result<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&state) {
                return Ok(found);
            }
            self.shared.goes_on()?;
            // The control stream has ended; its error, if any, is known by now.
            if self.far.is_deaf() {
                self.shared.goes_on()?;
                return self.protocol_error();
            }
            state = self.news.wait_timeout(state, LOOK).expect("no lane panics").0;
        }
    }

    /// Checks that everything that was announced has arrived. Returns the source's checksum.
    fn all_came(self) -> Result<u128> {
        let state = self.state.into_inner().expect("no lane panics");
        match self.sum.get() {
            Some(sum) if state.files.is_empty() && state.asked.is_none() && state.dirs.len() == 1 => Ok(*sum),
            _ => Err(Error::protocol("the source")),
        }
    }
}

/// Counts names that arrived in a directory. When all have, it is removed here, and the caller drops it.
fn came<'a>(state: &mut State<'a>, dir: u64, names: u64) -> Vec<Arc<Directory<'a>>> {
    let (mut dir, mut names, mut whole) = (dir, names, Vec::new());
    while let Some(known) = state.dirs.get_mut(&dir) {
        known.came += names;
        if known.in_all != Some(known.came) {
            break;
        }
        let known = state.dirs.remove(&dir).expect("it was there");
        state.told_bytes -= known.bytes;
        whole.push(known.place);
        let Some(parent) = known.parent else { break };
        (dir, names) = (parent, 1);
    }
    whole
}

/// Counts pieces that arrived of a file. After the last one, the file is removed here.
fn piece_came(state: &mut State<'_>, file: u64, pieces: u64) {
    if let Some(coming) = state.files.get_mut(&file) {
        coming.came += pieces;
        if coming.in_all == Some(coming.came) {
            state.told_bytes -= coming.bytes;
            state.files.remove(&file);
        }
    }
}

/// The receiving half of a lane; see the head of this file.
struct ReceiveLane<'f, 'j, 'a> {
    shared: &'a Shared<'a>,
    arrivals: &'f Arrivals<'j, 'a>,
    inc: &'f mut Incoming,
    /// The lane to the next host.
    on: Option<RelayLane<'f>>,
}

impl<'a> Source<Parcel<'a>> for ReceiveLane<'_, '_, 'a> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Parcel<'a>>> {
        let Some((_, mut block)) = self.shared.meters.stage.for_read(|| self.inc.next_on())? else {
            self.on.as_mut().map_or(Ok(()), RelayLane::end)?;
            return Ok(None);
        };
        self.shared.meters.input.read(block.len() as u64);
        let copy = self.on.as_ref().map(|on| on.copy(&block));
        let of = self.arrivals.parcel(&mut block)?;
        if let Some((on, copy)) = self.on.as_mut().zip(copy) {
            self.shared.meters.stage.for_write(|| on.send(copy))?;
        }
        Ok(Some(Parcel { block, of }))
    }
}

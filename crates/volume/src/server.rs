//! Sessions at the manager: which client has which file open, and which may write it.
//!
//! Model: the process that hosts the manager answers the requests of every client's session, and has its own access to
//! the stores. Therefore the server truncates files, removes strips, and finishes what clients left unfinished.
//! Invariant: the strips of a file without names are removed only when no session has it open and the removal of its
//! last name is durable. A file is noted as settled only when no session may write it. Sizes are those of the manager,
//! or, while another client writes, those that the stores know.
//! Non-goals: access control, and how requests arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_io::{File, hidden};
use thalweg_wire::threads::spawn;

use crate::cache::Stamp;
use crate::cached_names::CachedNames;
use crate::connection::PATIENCE;
use crate::fence::Fences;
use crate::healer::Healer;
use crate::leases::Leases;
use crate::manager::{Change, Inode, Kind, Manager, New, Place, Written, cuts};
use crate::opened::{Opened, SessionId};
use crate::request::{Answer, ChangeNumber, Request};
use crate::stores::{Stores, Target};
use crate::{Error, Result, recover};

/// A stand-in for the sessions of the previous server, until it is known which of its clients come back.
pub(crate) const GONE: SessionId = 0;

/// How long the clients of a server that has ended have to join the next one.
const GRACE: Duration = PATIENCE;
/// How long to wait before retrying the work that a lost store has left unfinished.
const AGAIN: Duration = Duration::from_secs(10);
/// The most entries and inodes in one answer.
const PAGE: usize = 1000;

/// A simulation of a server. Without threads, work for which no caller waits is done by the caller.
pub(crate) trait Simulated: Send + Sync {
    /// The time, instead of that of the clock.
    fn now_ns(&self) -> u64;

    /// Lets other requests go on, at most until this time.
    fn wait(&self, until_ns: u64);
}

/// The manager and the stores of a volume, for any number of clients.
pub(crate) struct Server {
    pub(crate) manager: Box<dyn Manager>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) leases: Leases,
    pub(crate) fences: Fences,
    pub(crate) cached_names: CachedNames,
    pub(crate) healer: Arc<Healer>,
    state: Mutex<State>,
    pub(crate) settled: Condvar,
    pub(crate) me: Weak<Server>,
    /// What a simulation has in place of threads and the clock.
    pub(crate) simulated: Option<Arc<dyn Simulated>>,
    /// Held until the manager is closed, so that no other process opens it before.
    _lock: Option<File>,
}

#[derive(Default)]
pub(crate) struct State {
    last_session: SessionId,
    /// Begins at a random number, so that no other server has had the numbers that follow.
    first_change: ChangeNumber,
    last_change: ChangeNumber,
    pub(crate) files: BTreeMap<u64, Opened>,
    /// Files without names that no session has open.
    pub(crate) doomed: Vec<Doomed>,
    /// Those whose strips are being removed, or of which some may be gone.
    pub(crate) removing: BTreeSet<u64>,
    /// A thread removes them.
    pub(crate) reaps: bool,
    /// A thread is waiting to retry.
    finishes_later: bool,
}

/// A file without names that no session has open.
pub(crate) struct Doomed {
    pub(crate) inode: Inode,
    /// The strips that it may have.
    pub(crate) strips: u64,
    pub(crate) since_ns: u64,
}

impl State {
    /// The number of a new change of some file.
    fn next_change(&mut self) -> ChangeNumber {
        self.last_change += 1;
        self.last_change
    }
}

impl Server {
    /// Starts a server with this manager, whose directory is locked, and these stores. Finishes what a crash
    /// interrupted: at once if there can be no clients of an earlier server (`is_alone`), else after [`GRACE`].
    pub(crate) fn start(
        manager: Box<dyn Manager>,
        stores: Arc<Stores>,
        is_alone: bool,
        lock: Option<File>,
    ) -> Result<Arc<Server>> {
        let server = Server::with(manager, stores, (is_alone, None), lock)?;
        if !is_alone {
            // Of clients of the earlier server.
            server.cached_names.note(GONE, server.now_ns());
        }
        if let Some(hold) = server.stores.hold() {
            hold.keep_telling(Arc::downgrade(&server));
        }
        if !is_alone || server.has_gone() {
            let waiting = Arc::downgrade(&server);
            // Without a thread, their unfinished work is done when the server ends.
            spawn("volume", move || {
                let watch = Stopwatch::start();
                while let Some(left) = GRACE.checked_sub(Duration::from_nanos(watch.ns())) {
                    std::thread::park_timeout(left);
                }
                waiting.upgrade().iter().for_each(|server| server.end(GONE));
            });
        }
        Ok(server)
    }

    /// Starts a server, with threads of its own unless it is simulated.
    pub(crate) fn with(
        manager: Box<dyn Manager>,
        stores: Arc<Stores>,
        (is_alone, simulated): (bool, Option<Arc<dyn Simulated>>),
        lock: Option<File>,
    ) -> Result<Arc<Server>> {
        let leases = Leases::new(&*manager, !is_alone)?;
        let first_change = (hidden::random() >> 1).max(1);
        let state = Mutex::new(State { first_change, last_change: first_change, ..State::default() });
        let settled = Condvar::new();
        let server = Arc::new_cyclic(|me| {
            let me = Weak::clone(me);
            let (fences, healer, cached_names) = (Fences::default(), Arc::default(), CachedNames::default());
            Server {
                manager,
                stores,
                leases,
                fences,
                cached_names,
                healer,
                state,
                settled,
                me,
                simulated,
                _lock: lock,
            }
        });
        let has_work = !server.manager.unfinished(0, 1)?.is_empty();
        // If nothing may be changed now, clients can read, and the work is done later.
        let may_change = !has_work || server.may_change().is_ok();
        if has_work && may_change {
            server.begin_run();
        }
        let is_left = |inode: &Inode| server.leave(inode, !is_alone, may_change) || !may_change;
        if !recover::recover(&server, is_left)? || !may_change {
            server.finish_later();
        }
        Ok(server)
    }

    /// An error unless the stores have accepted this manager, or accept it now.
    pub(crate) fn may_change(&self) -> Result<()> {
        self.stores.hold().map_or(Ok(()), |hold| hold.claim())
    }

    /// An error if the stores have accepted another manager since.
    pub(crate) fn stands(&self) -> Result<()> {
        self.stores.hold().map_or(Ok(()), |hold| hold.stands())
    }

    /// Notes that files will change in this run.
    fn begin_run(&self) {
        self.stores.runs().iter().for_each(|runs| runs.begin(&*self.manager));
    }

    /// Runs work for which no caller waits.
    pub(crate) fn aside(&self, work: impl FnOnce() + Send + 'static) {
        match self.simulated {
            None => _ = spawn("volume", work),
            Some(_) => work(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.simulated.as_ref().map_or_else(now_ns, |simulated| simulated.now_ns())
    }

    /// Retries after a while the work that a lost store left unfinished. If there is no thread for it, the next opening
    /// of the volume does it.
    pub(crate) fn finish_later(&self) {
        if self.simulated.is_some() || std::mem::replace(&mut self.state().finishes_later, true) {
            return;
        }
        let (me, stores) = (Weak::clone(&self.me), Arc::downgrade(&self.stores));
        spawn("volume", move || {
            let watch = Stopwatch::start();
            while let Some(left) = AGAIN.checked_sub(Duration::from_nanos(watch.ns())) {
                std::thread::park_timeout(left);
            }
            // Requests to stores that are still lost then fail at once, so that they do not delay closing the manager.
            if let Some(stores) = stores.upgrade() {
                stores.slots().iter().flatten().for_each(|store| _ = store.space());
            }
            if let Some(server) = me.upgrade() {
                server.state().finishes_later = false;
                if !matches!(server.finish_left(), Ok(true)) {
                    server.finish_later();
                }
            }
        });
    }

    /// Finishes the work that a lost store left unfinished: files without names that no session has open, and files
    /// whose writers have ended. Returns whether nothing is left.
    pub(crate) fn finish_left(&self) -> Result<bool> {
        let mut is_done = self.reap(u64::MAX)?;
        let mut after = 0;
        loop {
            let left = self.manager.unfinished(after, PAGE)?;
            let Some(last) = left.last() else { return Ok(is_done) };
            after = last.id;
            self.may_change()?;
            self.manager.sync()?;
            for inode in left {
                let (is_open, is_orphaned) = {
                    let mut state = self.state();
                    let file = state.files.get(&inode.id);
                    let is_orphaned = file.is_some_and(|file| file.is_orphaned && file.writers.is_empty());
                    let is_open = file.is_some();
                    if inode.links == 0 && !is_open {
                        state.removing.insert(inode.id);
                    }
                    (is_open, is_orphaned)
                };
                if inode.links == 0 && !is_open {
                    is_done &= self.forget(&[(inode, u64::MAX)])?;
                } else if inode.links > 0 && is_orphaned {
                    is_done &= self.settle(inode.id)?;
                }
            }
        }
    }

    /// Holds a file open for clients that may come back, if there are any; returns whether it does. If nothing may be
    /// changed yet, readers ask the stores for what its writers have left.
    fn leave(&self, inode: &Inode, to_gone: bool, may_change: bool) -> bool {
        let is_held = to_gone && inode.kind == Kind::File;
        if is_held || (!may_change && inode.unsettled && inode.links > 0) {
            let mut state = self.state();
            let file = state.files.entry(inode.id).or_default();
            if is_held {
                file.holders.insert(GONE, 0);
            }
            (file.is_orphaned, file.is_doomed) = (inode.unsettled, inode.links == 0);
        }
        is_held
    }

    /// Whether files are held open for clients that may come back.
    fn has_gone(&self) -> bool {
        self.state().files.values().any(|file| file.holders.contains_key(&GONE))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request is in the middle of something that others have to wait for.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.state.try_lock().is_err() || self.fences.are_busy()
    }

    /// Begins a session.
    pub(crate) fn begin(&self) -> SessionId {
        let mut state = self.state();
        state.last_session += 1;
        self.cached_names.begins(state.last_session);
        state.last_session
    }

    /// Ends a session whose client cannot come back.
    pub(crate) fn end_for_good(&self, session: SessionId) {
        self.leases.end(&*self.manager, session);
        self.end(session);
    }

    /// Ends a session, which may have files open. Its client may keep locks until its lease ends.
    pub(crate) fn end(&self, session: SessionId) {
        self.fences.end(session);
        self.cached_names.ends(session);
        let held: Vec<u64> = {
            let mut state = self.state();
            let held = state.files.iter_mut().filter(|(_, file)| file.holders.contains_key(&session));
            held.map(|(inode, file)| {
                file.is_orphaned |= file.writers.contains(&session);
                *inode
            })
            .collect()
        };
        // No client is left to report an error to; the next opening of the volume finishes what is left.
        held.into_iter().for_each(|inode| _ = self.close(session, inode, None));
    }

    /// Answers a request of a session.
    pub(crate) fn answer(&self, session: SessionId, request: &Request) -> Result<Answer> {
        if request.may_change() { self.may_change() } else { self.stands() }?;
        let before = self.fences.past();
        let mut answer = self.carry_out(session, request)?;
        // Whatever was read during a fence may show its generation.
        if before.is_none() || self.fences.past() != before {
            let is_exact = matches!(request, Request::Inode(_) | Request::Open(_));
            answer.inodes().try_for_each(|inode| self.wait_for_fence(session, inode, is_exact))?;
        }
        Ok(answer)
    }

    fn carry_out(&self, session: SessionId, request: &Request) -> Result<Answer> {
        Ok(match request {
            Request::Lookup(place) => {
                Answer::Found(self.manager.lookup(place)?.map(|found| self.live_if_known(session, found)))
            }
            Request::Inode(inode) => Answer::Inode(self.live(session, self.manager.inode(*inode)?)?),
            Request::Names(directory, after) => {
                let mut entries = self.manager.names(*directory, after, PAGE)?;
                for entry in &mut entries {
                    entry.inode = self.live_if_known(session, entry.inode.clone());
                }
                Answer::Entries(entries)
            }
            Request::Attributes(inode) => Answer::Attributes(self.manager.attributes(*inode)?),
            Request::Unfinished(after) => Answer::Inodes(self.manager.unfinished(*after, PAGE)?),
            Request::Change(change) => Answer::Inode(self.change(session, change)?),
            Request::Sync => {
                self.manager.sync()?;
                Answer::Done
            }
            Request::SyncAll => {
                self.sync_all()?;
                Answer::Done
            }
            Request::Make(place, new, may_write) => {
                Answer::Inode(self.make(session, place, new, *may_write)?)
            }
            Request::Open(inode) => Answer::Inode(self.open(session, *inode)?),
            Request::Close(inode, written, read_ns) => {
                if let Some(read_ns) = read_ns.filter(|_| self.may_change().is_ok()) {
                    // Without room for the note, the read was one all the same.
                    let _ = self.manager.change(&Change::Accessed(*inode, read_ns));
                }
                self.close(session, *inode, written.as_ref())?;
                Answer::Done
            }
            Request::Append { inode, generation, size, bytes } => {
                Answer::At(self.append(session, *inode, (*generation, *size), *bytes)?)
            }
            Request::Slots => Answer::Slots(self.manager.facts()?.slots),
            Request::Lock { client, table, ask } => {
                let last_change = |inode| self.last_change(session, inode);
                Answer::Lock(self.leases.answer(&*self.manager, (session, *client), *table, ask, last_change))
            }
            Request::Repair => {
                self.begin_run();
                self.begin_repair(session, false)?;
                Answer::Done
            }
            Request::Health => Answer::Health(self.health()?),
            Request::Count => {
                let doomed = self.state().doomed.len() as u64;
                Answer::At(self.manager.count()?.saturating_sub(doomed))
            }
            Request::CacheNames => Answer::MayCache(self.cached_names.may_cache(session, self.now_ns())),
            Request::Fence(inode) => Answer::Inode(self.fence(session, *inode)?),
            Request::Lift(inode) => {
                self.lift(session, *inode);
                Answer::Done
            }
            Request::Undo { inode, at, bytes } => {
                self.undo_append(session, *inode, *at, *bytes)?;
                Answer::Inode(self.live(session, self.manager.inode(*inode)?)?)
            }
            Request::News(since) => {
                let (number, changed, shared) = self.news(session, *since);
                Answer::News(number, changed, shared)
            }
        })
    }

    /// The current inode, or, if stores do not answer, the manager's record of it: enough for names.
    pub(crate) fn live_if_known(&self, session: SessionId, inode: Inode) -> Inode {
        self.live(session, inode.clone()).unwrap_or(inode)
    }

    /// The current inode: while another session may write it, stores know more than the manager.
    pub(crate) fn live(&self, session: SessionId, mut inode: Inode) -> Result<Inode> {
        let is_written = self.state().files.get(&inode.id).is_some_and(|file| {
            file.is_orphaned || file.is_settling || file.writers.iter().any(|writer| *writer != session)
        });
        if let (true, Some(target)) = (is_written, Target::of(&inode)) {
            let (size, strips) = self.stores.extent(&target)?;
            inode.size = inode.size.max(size);
            inode.unsynced |= strips & !inode.strips;
        }
        Ok(inode)
    }

    fn change(&self, session: SessionId, change: &Change) -> Result<Inode> {
        if matches!(change, Change::Unsettle(_) | Change::Resize(..)) {
            self.begin_run();
        }
        match change {
            Change::Unsettle(inode) => self.unsettle(session, *inode),
            Change::Settle(written, is_doubtful) => self.settled(session, written, *is_doubtful),
            Change::Resize(inode, size, modified_ns) => self.resize(session, *inode, *size, *modified_ns),
            Change::Grow(written @ Written { inode, .. }) => {
                self.may_report(session, written)?;
                let grown = self.manager.change(change)?;
                self.has_changed(session, *inode);
                Ok(grown)
            }
            Change::Set(inode, _) | Change::SetAttribute(inode, ..) => {
                let changed = self.manager.change(change)?;
                self.has_changed(session, *inode);
                Ok(changed)
            }
            // From a client, this request reports that a store does not know the generation of its strip yet.
            Change::Cut(inode, _) => {
                let inode = self.live(session, self.manager.inode(*inode)?)?;
                self.tell_generation(inode)
            }
            Change::Remove(..) | Change::Rename(..) => {
                self.wait_for_cached_names(session);
                let left = self.manager.change(change)?;
                // The name is gone, whatever becomes of the strips.
                self.let_go(&left);
                Ok(left)
            }
            Change::Stale(_, _, strips) => {
                self.may_mark(change)?;
                self.begin_generation(session, change, *strips)
            }
            Change::Current(inode, ..) => self.make_current(session, *inode, change),
            Change::Raise(inode, strips) if self.may_write(session, *inode) => {
                self.begin_generation(session, change, *strips)
            }
            Change::Forget(inode) | Change::Raise(inode, _) => {
                Err(Error::system(libc::EPERM, format!("inode {inode}")))
            }
            Change::Slot(slot, _) => Err(Error::system(libc::EPERM, format!("slot {slot}"))),
            _ => self.manager.change(change),
        }
    }

    /// Makes a file that a session has open.
    fn make(&self, session: SessionId, place: &Place, new: &New, may_write: bool) -> Result<Inode> {
        if new.kind != Kind::File {
            return Err(Error::system(libc::EINVAL, String::from_utf8_lossy(&place.name)));
        }
        if may_write {
            self.begin_run();
        }
        // Locked, so that no session removes it before it is open here.
        let mut state = self.state();
        let made = self.manager.change(&Change::Create(place.clone(), new.clone()))?;
        let file = state.files.entry(made.id).or_default();
        file.holders.insert(session, 0);
        // After a power loss it is there as unsettled as it was made, or not at all.
        file.is_noted = true;
        if may_write {
            file.writers.insert(session);
        }
        Ok(made)
    }

    fn open(&self, session: SessionId, inode: u64) -> Result<Inode> {
        let mut state = self.state();
        let found = self.manager.inode(inode)?;
        if found.kind != Kind::File {
            let errno = if found.kind == Kind::Directory { libc::EISDIR } else { libc::EINVAL };
            return Err(Error::system(errno, format!("inode {inode}")));
        }
        let is_open = state.files.get(&inode).is_some_and(|file| !file.holders.is_empty());
        // Another client may have looked it up before it lost its name.
        let mut is_spared = || self.cached_names.are_shared() && state.spare(inode);
        if found.links == 0 && !is_open && !is_spared() {
            return Err(Error::system(libc::ENOENT, format!("inode {inode}")));
        }
        let number = state.next_change();
        let file = state.files.entry(inode).or_default();
        // Not whether other sessions write: even what they wrote before this session began may be new to it.
        let is_shared = file.holders.keys().any(|holder| *holder != session);
        file.holders.insert(session, if is_shared { number } else { 0 });
        drop(state);
        self.live(session, found)
    }

    fn close(&self, session: SessionId, inode: u64, written: Option<&Written>) -> Result<()> {
        let tell = |written: &Written| {
            self.may_report(session, written)?;
            self.manager.change(&Change::Grow(*written)).map(drop)
        };
        let told = written.map_or(Ok(()), tell);
        let mut state = self.state();
        let number = state.next_change();
        let Some(file) = state.files.get_mut(&inode) else { return told };
        file.holders.remove(&session);
        file.news.remove(&session);
        // What it reported before is no news: another client may hold a lock by now, and read what was reported.
        if file.writers.remove(&session) && written.is_some() {
            file.changes(session, number);
        }
        file.is_orphaned |= told.is_err();
        let is_orphaned = file.is_orphaned;
        drop(state);
        if is_orphaned {
            self.settle(inode)?;
        }
        self.release(inode)?;
        told
    }

    /// Drops the state of a file that no session has open. If the file has no names either, it will be removed.
    fn release(&self, inode: u64) -> Result<()> {
        let mut state = self.state();
        let Some(file) = state.files.get(&inode) else { return Ok(()) };
        let (is_doomed, is_orphaned) = (file.is_doomed, file.is_orphaned);
        if !file.holders.is_empty() || file.is_settling || (is_orphaned && !is_doomed) {
            return Ok(());
        }
        state.files.remove(&inode);
        drop(state);
        if !is_doomed {
            return Ok(());
        }
        match self.manager.inode(inode) {
            Ok(found) => {
                self.doom(found, is_orphaned);
                Ok(())
            }
            // Other work has removed it already.
            Err(why) if why.is_not_found() => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Notes that a session may write a file. With copies, the note is durable: a crash may leave copies that differ.
    fn unsettle(&self, session: SessionId, inode: u64) -> Result<Inode> {
        let mut state = self.state();
        loop {
            match state.files.get(&inode) {
                Some(file) if file.is_settling => {
                    self.wait(&self.settled, state, u64::MAX);
                    state = self.state();
                }
                Some(file) if file.holders.contains_key(&session) => break,
                _ => return Err(Error::system(libc::EBADF, format!("inode {inode}"))),
            }
        }
        let found = self.manager.inode(inode)?;
        let changed = if found.unsettled { found } else { self.manager.change(&Change::Unsettle(inode))? };
        let number = state.next_change();
        let file = state.files.entry(inode).or_default();
        file.writers.insert(session);
        file.changes(session, number);
        let (is_noted, settlings) = (file.is_noted, file.settlings);
        drop(state);
        if is_noted || changed.layout.is_none_or(|layout| layout.copies == 1) {
            return Ok(changed);
        }
        self.manager.sync()?;
        if let Some(file) = self.state().files.get_mut(&inode) {
            // If the note was removed meanwhile, the sync was of an earlier one.
            file.is_noted |= file.settlings == settlings && file.writers.contains(&session);
        }
        Ok(changed)
    }

    /// The last change of a file by sessions other than this one. Until a writer has synced or closed the file, each
    /// call counts as a change. The session need not learn it again as news.
    fn last_change(&self, session: SessionId, inode: u64) -> ChangeNumber {
        let mut state = self.state();
        let number = state.next_change();
        let Some(file) = state.files.get_mut(&inode) else { return number };
        file.news.remove(&session);
        let is_written = file.is_orphaned || file.writers.iter().any(|writer| *writer != session);
        match file.holders.get_mut(&session) {
            Some(change) if is_written => {
                *change = number;
                number
            }
            Some(change) => *change,
            None => number,
        }
    }

    /// Notes that a session has changed a file that it keeps open.
    fn has_changed(&self, session: SessionId, inode: u64) {
        let mut state = self.state();
        let number = state.next_change();
        state.files.get_mut(&inode).into_iter().for_each(|file| file.changes(session, number));
    }

    /// The number of the last change; the files of a session that others have changed since `since`; and those that
    /// others have open too. See [`Request::News`].
    fn news(&self, session: SessionId, since: ChangeNumber) -> (ChangeNumber, Vec<u64>, Vec<u64>) {
        let state = self.state();
        let is_known = (state.first_change..=state.last_change).contains(&since);
        let held = || state.files.iter().filter(|(_, file)| file.holders.contains_key(&session));
        let is_new = |file: &Opened| file.news.get(&session).is_some_and(|change| *change > since);
        let changed = held().filter(|(_, file)| !is_known || is_new(file)).map(|(inode, _)| *inode);
        let shared = held().filter(|(_, file)| file.holders.len() > 1).map(|(inode, _)| *inode);
        (state.last_change, changed.collect(), shared.collect())
    }

    /// Notes what a session wrote and made durable. If one of its writes failed (`is_doubtful`), the copies are made
    /// equal as if the session had ended.
    fn settled(&self, session: SessionId, written: &Written, is_doubtful: bool) -> Result<Inode> {
        self.may_report(session, written)?;
        let mut state = self.state();
        let number = state.next_change();
        let file = state.files.entry(written.inode).or_default();
        file.is_orphaned |= is_doubtful;
        let others = file.is_orphaned || file.writers.iter().any(|writer| *writer != session);
        let before = self.manager.inode(written.inode)?;
        let is_shared = others || before.unsynced & !written.strips != 0;
        let changed = self.manager.change(&Change::Settle(*written, is_shared))?;
        if !is_shared {
            file.is_settled();
        }
        // As in `close`.
        if file.writers.remove(&session) && Stamp::of(&before) != Stamp::of(&changed) {
            file.changes(session, number);
        }
        let is_orphaned = file.is_orphaned;
        drop(state);
        if is_orphaned {
            self.settle(written.inode)?;
        }
        Ok(changed)
    }

    /// Finishes the work of writers that have ended, unless a session may still write the file. Returns whether all
    /// stores answered.
    fn settle(&self, inode: u64) -> Result<bool> {
        self.may_change()?;
        let Some(is_orphaned) = self.begin_settling(inode, true) else { return Ok(true) };
        let settled = match self.manager.inode(inode) {
            Ok(found) if found.unsettled && found.links > 0 => recover::settle(self, found, is_orphaned),
            Ok(_) => Ok(true),
            Err(why) => Err(why),
        };
        let settled = match settled {
            // It was removed meanwhile.
            Err(why) if why.is_not_found() => Ok(true),
            // It was cut meanwhile.
            Err(Error::Stale(_)) => Ok(false),
            settled => settled,
        };
        self.end_settling(inode, matches!(settled, Ok(true)))?;
        if !matches!(settled, Ok(true)) {
            self.finish_later();
        }
        settled
    }

    /// Keeps sessions from writing a file that none of them may write now. Returns whether a writer ended without
    /// reporting what it wrote; `None` if the file is not settled now, for example because it may not be of that kind.
    fn begin_settling(&self, inode: u64, may_be_orphaned: bool) -> Option<bool> {
        let mut state = self.state();
        let file = state.files.entry(inode).or_default();
        if !file.writers.is_empty() || file.is_settling || (file.is_orphaned && !may_be_orphaned) {
            return None;
        }
        file.is_settling = true;
        Some(file.is_orphaned)
    }

    fn end_settling(&self, inode: u64, is_done: bool) -> Result<()> {
        let mut state = self.state();
        let file = state.files.entry(inode).or_default();
        // A store that did not answer may know more, so the next session to open the file has to ask it. For a file
        // without names, it was not determined which strips it has.
        (file.is_settling, file.is_orphaned) = (false, file.is_doomed || !is_done);
        file.is_settled();
        drop(state);
        self.settled.notify_all();
        self.release(inode)
    }

    /// Settles the files among these that have one copy and whose writers have reported what they wrote, all at once.
    fn settle_reported(&self, inodes: &[Inode]) -> Result<()> {
        let has_one_copy = |inode: &&Inode| inode.layout.is_some_and(|layout| layout.copies == 1);
        let begun = inodes.iter().filter(has_one_copy);
        let begun = begun.filter(|inode| self.begin_settling(inode.id, false).is_some());
        let numbers: Vec<u64> = begun.map(|inode| inode.id).collect();
        // They may have changed before the settling began.
        let found: Vec<Inode> = numbers.iter().filter_map(|inode| self.manager.inode(*inode).ok()).collect();
        let settled = recover::settle_reported(self, &found);
        let is_done = |inode: &u64| settled.as_ref().is_ok_and(|settled| settled.contains(inode));
        numbers.iter().try_for_each(|inode| self.end_settling(*inode, is_done(inode)))?;
        settled.map(drop)
    }

    pub(crate) fn resize(
        &self,
        session: SessionId,
        inode: u64,
        size: u64,
        modified_ns: i64,
    ) -> Result<Inode> {
        let mut known = self.manager.inode(inode)?;
        if known.cut.is_some() {
            // All stores have to finish the earlier cut: this one would cut off what was written since.
            known = self.cut(known)?;
        }
        let live = self.live(session, known.clone())?;
        if live.size > known.size {
            let Inode { id: inode, generation, size, modified_ns, .. } = live;
            self.manager.change(&Change::Grow(Written {
                inode,
                generation,
                size,
                modified_ns,
                strips: 0,
            }))?;
        }
        let changed = self.manager.change(&Change::Resize(inode, size, modified_ns))?;
        let mut state = self.state();
        let number = state.next_change();
        if let Some(file) = state.files.get_mut(&inode) {
            file.appends.resized(size);
            file.changes(session, number);
        }
        drop(state);
        if cuts(changed.generation) == cuts(known.generation) {
            return Ok(changed);
        }
        // Stores must not be ahead of the manager's durable state.
        self.manager.sync()?;
        self.cut(changed)
    }

    fn last_unfinished(&self) -> Result<u64> {
        let mut end = 0;
        while let Some(last) = self.manager.unfinished(end, PAGE)?.last() {
            end = last.id;
        }
        Ok(end)
    }

    fn sync_all(&self) -> Result<()> {
        // Not what programs make from now on: it could take for ever.
        let (mut after, end) = (0, self.last_unfinished()?);
        while after < end {
            let mut left = self.manager.unfinished(after, PAGE)?;
            let Some(last) = left.last() else { break };
            after = last.id;
            self.may_change()?;
            left.retain(|inode| inode.unsettled && inode.links > 0 && inode.id <= end);
            self.settle_reported(&left)?;
            for inode in left {
                if !self.manager.inode(inode.id).is_ok_and(|found| !found.unsettled) {
                    self.settle(inode.id)?;
                }
            }
        }
        self.reap(u64::MAX)?;
        self.manager.sync()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.healer.ends();
        // No caller is left to report an error to; the next opening of the volume finishes the work.
        let _ = self.sync_all();
        self.stores.runs().iter().for_each(|runs| runs.end(&*self.manager));
    }
}

#[cfg(test)]
#[path = "server_test.rs"]
mod tests;

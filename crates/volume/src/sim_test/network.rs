//! The hosts of a simulation and the network between them.
//!
//! Model: a message, as bytes, arrives when it is sent, and its answer is there when the sender looks for it. A failure
//! ends the connection; the sender then retries or gives up, as with nodes. A client is interrupted before and after
//! its messages, and the manager before and after each request to its database; see turns.rs. No time passes unless a
//! request waits for it, so a seed decides the run.
//! Invariant: a host that is down answers nothing, and messages sent before a crash do not reach it afterwards.
#![allow(clippy::disallowed_methods)] // The manager's database is on a real disk.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use thalweg_api::VolumeRequest;
use thalweg_base::rng::Rng;
use thalweg_io::sim::{Faults, Sim};
use thalweg_wire::Link;

use crate::alone::Watch;
use crate::callers::{Caller, Callers, Entered, Turns as Connections};
use crate::connection::{Connection, Receive};
use crate::hold::Hold;
use crate::keeper::{self, Keeper};
use crate::location::Location;
use crate::message::{Ask, Attached, Head, Reply, send};
use crate::opened::SessionId;
use crate::remote::{Dial, RemoteStore};
use crate::server::{GONE, Server};
use crate::session::{Answering, Session, ask_store, carry_out};
use crate::store::Store;
use crate::stores::{Slot, Stores};
use crate::test_bed::Hooked;
use crate::{Error, LocalStore, Result, SqliteManager, Volume};

use super::turns::Turns;

pub(super) const STORES: u32 = 3;
pub(super) const STRIPE: u64 = 4096;
pub(super) const MANAGER: &str = "m";
const VOLUME: u128 = 7;
/// The space on a disk that is not full, and on one that is.
const ROOM: u64 = 1 << 30;
const NO_ROOM: u64 = 4096;
/// One in this many messages is lost before it is carried out; as many are lost after it, and as many are late. The
/// second is for quiet times.
const LOST_ONE_IN: [u64; 2] = [40, 1000];
const FATES: [&str; 3] = ["is lost", "is carried out, and its answer lost", "is late"];

/// A message that has not arrived.
struct Late {
    peer: Peer,
    entered: Arc<Entered>,
    message: Vec<u8>,
}

/// All hosts.
pub(super) struct Hosts {
    seed: u64,
    place: PathBuf,
    pub(super) turns: Arc<Turns>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    is_calm: bool,
    is_quiet: bool,
    disks: Vec<Sim>,
    /// The stores that are up.
    stores: Vec<Option<Arc<LocalStore>>>,
    /// How often each store was started.
    lives: Vec<u64>,
    /// The callers of each store.
    callers: Vec<Arc<Callers>>,
    /// How often each store lost power.
    boots: Vec<u64>,
    manager: Option<Manager>,
    /// How often the manager was started.
    manager_life: u64,
    /// How often it crashed. It leaves its directory to its own last requests, and the next one gets a copy.
    crashes: u64,
    late: Vec<Late>,
    /// Sessions whose connection ended, which the manager has not noticed yet.
    gone: Vec<(u64, SessionId)>,
    lost_power: bool,
    trace: Vec<String>,
}

#[derive(Clone)]
struct Manager {
    server: Arc<Server>,
    callers: Arc<Callers>,
    port: Arc<Port>,
}

/// One end of the network: a client's, or the manager's for its stores.
pub(super) struct Port {
    hosts: Arc<Hosts>,
    is_gone: AtomicBool,
    /// Whoever uses it may be interrupted before and after a message.
    is_client: bool,
}

/// The other side of a connection, in one of its lives; for the manager, with the session.
#[derive(Debug, Clone, Copy)]
enum Peer {
    Store(usize, u64),
    Manager(u64, SessionId),
}

pub(super) fn request() -> VolumeRequest {
    VolumeRequest::Manager { directory: "/".into(), for_job: false }
}

fn dir(slot: usize) -> PathBuf {
    format!("/s{slot}").into()
}

fn room(disk: &Sim, slot: usize, bytes: u64) {
    disk.set_capacity(dir(slot), bytes);
}

impl Hosts {
    pub(super) fn new(seed: u64) -> Arc<Hosts> {
        // The databases are small and synced often, so they are kept in memory where possible.
        let memory = PathBuf::from("/dev/shm");
        let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let place = above.join(format!("thalweg-sim-{}-{run}", std::process::id()));
        std::fs::create_dir_all(place.join("meta-0")).unwrap();
        let disk = |slot: usize| {
            let disk = Sim::new(seed * 31 + slot as u64);
            disk.make_dir(dir(slot));
            room(&disk, slot, ROOM);
            LocalStore::create(&disk.io(), &dir(slot), VOLUME, slot as u32).unwrap();
            disk
        };
        let slots =
            (0..STORES as usize).map(|slot| PathBuf::from(format!("s{slot}:/s{slot}"))).collect::<Vec<_>>();
        SqliteManager::create(&place.join("meta-0"), VOLUME, &slots, &super::policy(), (0, 0)).unwrap();
        let state = State {
            rng: Rng::new(seed),
            is_calm: true,
            is_quiet: false,
            disks: (0..STORES as usize).map(disk).collect(),
            stores: vec![None; STORES as usize],
            lives: vec![0; STORES as usize],
            callers: (0..STORES).map(|_| Arc::default()).collect(),
            boots: vec![0; STORES as usize],
            manager: None,
            manager_life: 0,
            crashes: 0,
            late: Vec::new(),
            gone: Vec::new(),
            lost_power: false,
            trace: Vec::new(),
        };
        let hosts = Arc::new(Hosts { seed, place, turns: Turns::new(seed), state: Mutex::new(state) });
        hosts.revive();
        hosts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    pub(super) fn is_calm(&self, is_calm: bool) {
        self.state().is_calm = is_calm;
    }

    /// Whether failures are rare, as of the last time that this changed.
    pub(super) fn is_quiet(&self) -> bool {
        self.state().is_quiet
    }

    pub(super) fn set_quiet(&self, is_quiet: bool) {
        self.state().is_quiet = is_quiet;
    }

    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        let what = what();
        self.state().trace.push(what);
    }

    pub(super) fn trace(&self) -> Vec<String> {
        self.state().trace.clone()
    }

    /// Fails, and shows what led to it.
    pub(super) fn fails(&self, what: &str, why: &str) -> ! {
        let trace = self.trace();
        let last = trace.len().saturating_sub(400);
        panic!("seed {} (THALWEG_SEED): {what}: {why}\n{}", self.seed, trace[last..].join("\n"));
    }

    /// Whether a store has lost unsynced bytes since the last call.
    pub(super) fn lost_power(&self) -> bool {
        std::mem::take(&mut self.state().lost_power)
    }

    /// Starts everything that is down, and makes room on all disks.
    pub(super) fn revive(self: &Arc<Hosts>) {
        for slot in 0..STORES as usize {
            self.state().disks[slot].set_faults(Faults::default());
            self.notice_death(slot);
            self.revive_store(slot);
            room(&self.state().disks[slot], slot, ROOM);
        }
        self.revive_manager();
    }

    fn revive_store(&self, slot: usize) {
        let mut state = self.state();
        if state.stores[slot].is_some() {
            return;
        }
        state.disks[slot] = state.disks[slot].restart();
        let store = LocalStore::open(&state.disks[slot].io(), &dir(slot), VOLUME, slot as u32).unwrap();
        state.stores[slot] = Some(Arc::new(store));
        state.lives[slot] += 1;
        state.callers[slot] = Arc::default();
        state.trace.push(format!("store {slot} is up"));
    }

    /// Crashes a store now or in the middle of an operation, or starts it if it is down.
    pub(super) fn crash_or_revive_store(&self, rng: &mut Rng) {
        let slot = rng.below(u64::from(STORES)) as usize;
        if self.state().stores[slot].is_none() {
            return self.revive_store(slot);
        }
        match rng.below(3) {
            0 => {
                let state = self.state();
                let disk = &state.disks[slot];
                let crash_at = Some(disk.boundaries() + rng.below(40));
                disk.set_faults(Faults { crash_at, ..Faults::default() });
            }
            power => self.crash_store(slot, power == 1),
        }
    }

    fn crash_store(&self, slot: usize, loses_power: bool) {
        let mut state = self.state();
        state.trace.push(format!("store {slot} crashes{}", if loses_power { " without power" } else { "" }));
        state.stores[slot] = None;
        state.lost_power |= loses_power;
        state.boots[slot] += u64::from(loses_power);
        let disk = &state.disks[slot];
        if loses_power { disk.power_loss() } else { disk.kill() }
    }

    /// Returns whether a store has crashed in the middle of a request.
    fn notice_death(&self, slot: usize) -> bool {
        let has_died = self.state().disks[slot].io().list(&dir(slot)).is_err();
        if has_died {
            self.crash_store(slot, false);
        }
        has_died
    }

    pub(super) fn fill_or_free_disk(&self, rng: &mut Rng) {
        let slot = rng.below(u64::from(STORES)) as usize;
        let is_full = rng.one_in(2);
        self.note(|| format!("the disk of store {slot} has {} room", if is_full { "no" } else { "some" }));
        room(&self.state().disks[slot], slot, if is_full { NO_ROOM } else { ROOM });
    }

    pub(super) fn crash_or_revive_manager(self: &Arc<Hosts>) {
        if self.crash_manager() {
            self.note(|| "the manager crashes".into());
        } else {
            self.revive_manager();
        }
    }

    fn crash_manager(&self) -> bool {
        let Some(manager) = self.state().manager.take() else { return false };
        manager.port.ends();
        // The next process finds what the database has at this moment.
        let meta = self.meta();
        self.state().crashes += 1;
        let next = self.meta();
        std::fs::create_dir(&next).unwrap();
        for entry in std::fs::read_dir(&meta).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), next.join(entry.file_name())).unwrap();
        }
        true
    }

    /// The directory of the manager.
    fn meta(&self) -> PathBuf {
        self.place.join(format!("meta-{}", self.state().crashes))
    }

    fn revive_manager(self: &Arc<Hosts>) {
        if self.state().manager.is_some() {
            return;
        }
        let port =
            Arc::new(Port { hosts: Arc::clone(self), is_gone: AtomicBool::new(false), is_client: false });
        let manager = SqliteManager::open(&self.meta()).unwrap();
        let (running, turns) = (Arc::<OnceLock<Weak<Server>>>::default(), Arc::clone(&self.turns));
        let own = Arc::clone(&running);
        let hook = move || {
            let server = own.get().and_then(Weak::upgrade);
            // Otherwise the other thread could wait for what this one holds.
            server.filter(|server| !server.is_busy()).iter().for_each(|_| turns.pause());
        };
        let ledger = manager.ledger();
        let manager = Hooked { manager, hook: Box::new(hook) };
        // If it cannot start now, it is started again later.
        let keeper = |store| Ok(store as Arc<dyn Keeper>);
        let keepers =
            port.remote_stores(|slot| Connections::of_manager(VOLUME, slot, MANAGER)).map(keeper).collect();
        let (hold, slots) = Hold::new(("v", MANAGER), Box::new(ledger), keepers, false).unwrap();
        hold.check().unwrap_or_else(|why| self.fails("the manager", &why.to_string()));
        let stores = Arc::new(Stores::in_turn(slots).held(hold));
        let simulated = Some(Arc::clone(&self.turns) as _);
        let Ok(server) = Server::with(Box::new(manager), stores, (false, simulated), None) else { return };
        running.set(Arc::downgrade(&server)).expect("it starts once");
        let mut state = self.state();
        state.manager_life += 1;
        let life = state.manager_life;
        state.gone.push((life, GONE));
        state.manager = Some(Manager { server, port, callers: Arc::default() });
        state.trace.push("the manager is up".into());
    }

    /// Delivers one late message, or lets the manager notice that a client has ended.
    pub(super) fn deliver_late(&self, rng: &mut Rng) {
        let mut state = self.state();
        let count = (state.late.len() + state.gone.len()) as u64;
        if count == 0 {
            return;
        }
        let at = rng.below(count) as usize;
        if at < state.late.len() {
            let late = state.late.remove(at);
            drop(state);
            return self.arrives(&late);
        }
        let at = at - state.late.len();
        let (life, session) = state.gone.remove(at);
        let of_session =
            |late: &mut Late| matches!(late.peer, Peer::Manager(of, by) if (of, by) == (life, session));
        let before: Vec<Late> = state.late.extract_if(.., of_session).collect();
        drop(state);
        before.iter().for_each(|late| self.arrives(late));
        let state = self.state();
        let manager = state.manager.clone().filter(|_| state.manager_life == life);
        drop(state);
        self.note(|| format!("session {session} ends"));
        manager.into_iter().for_each(|manager| manager.server.end(session));
    }

    fn arrives(&self, late: &Late) {
        self.note(|| format!("a late message arrives at {:?}", late.peer));
        let _ = self.carried_out(&late.peer, &late.entered, &late.message);
    }

    /// Lets the manager retry the work that a lost store left unfinished.
    pub(super) fn finish_left(&self) {
        let manager = self.state().manager.clone();
        if let Some(Manager { server, .. }) = manager {
            let done = server.finish_left();
            self.note(|| format!("the manager finishes what was left: {done:?}"));
        }
    }

    /// Delivers everything that is late.
    pub(super) fn deliver_all(&self) {
        let mut rng = Rng::new(0);
        while {
            let state = self.state();
            !state.late.is_empty() || !state.gone.is_empty()
        } {
            self.deliver_late(&mut rng);
        }
    }

    /// Opens the volume in one process with all stores, after the manager has ended in order.
    pub(super) fn open_alone(&self) -> Arc<Volume> {
        let manager = self.state().manager.take();
        drop(manager);
        let stores: Vec<Slot> =
            self.state().stores.iter().map(|store| Ok(store.clone().unwrap() as _)).collect();
        let manager = SqliteManager::open(&self.meta()).unwrap();
        Volume::assemble(Box::new(manager), stores).unwrap_or_else(|e| self.fails("open", &e.to_string()))
    }

    pub(super) fn end(&self) {
        std::fs::remove_dir_all(&self.place).unwrap();
    }

    /// Whether the peer of a connection is still in the life in which the connection was made.
    fn is_up(&self, peer: &Peer) -> bool {
        let state = self.state();
        match peer {
            Peer::Store(slot, life) => state.stores[*slot].is_some() && state.lives[*slot] == *life,
            Peer::Manager(life, _) => state.manager.is_some() && state.manager_life == *life,
        }
    }

    /// The answer of a peer to a message; `None` if it is down, or crashes while it answers.
    fn carried_out(&self, peer: &Peer, entered: &Entered, message: &[u8]) -> Option<Vec<u8>> {
        if !self.is_up(peer) {
            return None;
        }
        let answer = entered.carry_out(|| self.carries_out(peer, message)).flatten();
        answer.filter(|_| self.is_up(peer))
    }

    fn carries_out(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        let mut from = message;
        let head = Head::read(&mut from).unwrap().expect("a message was sent");
        let ask = Ask::decode(&head.body).expect("an ask was sent");
        let (mut data, mut answer) = (Vec::new(), Vec::new());
        let reply = match peer {
            Peer::Store(slot, _) => {
                let store = self.state().stores[*slot].clone()?;
                carry_out(&OfStore(store), &ask, from, &mut data)
            }
            Peer::Manager(_, session) => {
                let Manager { server, .. } = self.state().manager.clone()?;
                carry_out(&Session { server: &server, session: *session }, &ask, from, &mut data)
            }
        };
        if let Peer::Store(slot, _) = peer
            && self.notice_death(*slot)
        {
            return None;
        }
        if let Peer::Store(slot, _) = peer {
            self.note(|| format!("  store {slot}: {ask:?}: {reply:?}"));
        }
        send(&mut answer, head.number, &reply, &data).unwrap();
        Some(answer)
    }

    /// Sends a message to its peer, or loses it. Returns the answer, unless that is lost.
    fn exchange(&self, peer: &Peer, entered: &Arc<Entered>, message: Vec<u8>) -> Option<Vec<u8>> {
        let fate = {
            let mut state = self.state();
            let lost_one_in = LOST_ONE_IN[usize::from(state.is_quiet)];
            let fate = if state.is_calm { u64::MAX } else { state.rng.below(lost_one_in) };
            if let Some(what) = FATES.get(fate as usize) {
                state.trace.push(format!("a message to {peer:?} {what}"));
            }
            fate
        };
        match fate {
            0 => None,
            1 => self.carried_out(peer, entered, &message).and(None),
            2 => {
                self.state().late.push(Late { peer: *peer, entered: Arc::clone(entered), message });
                None
            }
            _ => self.carried_out(peer, entered, &message),
        }
    }
}

/// A store as its node serves it.
struct OfStore(Arc<LocalStore>);

impl Answering for OfStore {
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        let (by, request) = match ask {
            Ask::Store(_, request) => (None, request),
            Ask::Held(_, by, request) => (Some(*by), request),
            _ => unreachable!("requests for the manager go to the manager"),
        };
        if by.is_some() || request.is_managers() {
            return keeper::answer(&*self.0, by, request, (sent, into)).map(Reply::Store);
        }
        ask_store(&*self.0, request, sent, into).map(Reply::Store)
    }
}

impl Port {
    pub(super) fn new(hosts: &Arc<Hosts>) -> Arc<Port> {
        Arc::new(Port { hosts: Arc::clone(hosts), is_gone: AtomicBool::new(false), is_client: true })
    }

    /// Ends the client or manager at this port.
    pub(super) fn ends(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn pause(&self) {
        if self.is_client {
            self.hosts.turns.pause();
        }
    }

    /// All stores, through this port.
    pub(super) fn stores(self: &Arc<Port>) -> Stores {
        Stores::in_turn(
            self.remote_stores(|_| Connections::new()).map(|store| Ok(store as Arc<dyn Store>)).collect(),
        )
    }

    fn remote_stores(
        self: &Arc<Port>,
        turns: impl Fn(u32) -> Connections,
    ) -> impl Iterator<Item = Arc<RemoteStore>> {
        let dial: Arc<dyn Dial> = Arc::new(Arc::clone(self));
        (0..STORES).map(move |slot| {
            let place = Location { node: format!("s{slot}"), directory: dir(slot as usize) };
            let of = (VOLUME, slot);
            Arc::new(RemoteStore::new(&dial, &place, of, (&[], turns(slot)), &Watch::default()))
        })
    }
}

impl Dial for Arc<Port> {
    fn link(&self, _: &str) -> Result<Arc<Link>> {
        unreachable!("streams are made without links")
    }

    fn connect(
        &self,
        what: &str,
        node: &str,
        _: &VolumeRequest,
        caller: Caller,
    ) -> Result<(Connection, Attached)> {
        let state = self.hosts.state();
        let mut attached = Attached::default();
        let peer = match node.strip_prefix('s').map(|slot| slot.parse::<usize>().unwrap()) {
            _ if self.is_gone.load(Ordering::Relaxed) => None,
            Some(slot) => {
                attached.boot = state.boots[slot].to_string();
                let peer = Peer::Store(slot, state.lives[slot]);
                state.stores[slot].is_some().then(|| (peer, Arc::clone(&state.callers[slot])))
            }
            None => {
                let manager = state.manager.as_ref();
                let peer = |manager: &Manager| Peer::Manager(state.manager_life, manager.server.begin());
                manager.map(|manager| (peer(manager), Arc::clone(&manager.callers)))
            }
        };
        drop(state);
        let (peer, callers) = peer.ok_or_else(|| Error::Refused(format!("{what}: {node} is down")))?;
        let entered = Arc::new(callers.enter("", caller)?);
        let stream = Stream { port: Arc::clone(self), peer, entered, answers: Mutex::default() };
        let stream = Arc::new(stream);
        let (from, to) = (From(Arc::clone(&stream)), To(stream, Vec::new()));
        Ok((Connection::new(what, Box::new(from), Box::new(to)), attached))
    }

    /// Nothing takes time here.
    fn pause_ns(&self, _: u64) -> u64 {
        0
    }
}

/// A connection.
struct Stream {
    port: Arc<Port>,
    peer: Peer,
    entered: Arc<Entered>,
    /// The bytes that have arrived, until the stream has ended.
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    bytes: VecDeque<u8>,
    has_ended: bool,
}

impl Stream {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().expect("no holder panics")
    }
}

/// The direction to the peer, with the bytes of an incomplete message.
struct To(Arc<Stream>, Vec<u8>);

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let message = std::mem::take(&mut self.1);
        let Stream { port, peer, entered, .. } = &*self.0;
        if port.is_gone.load(Ordering::Relaxed) || self.0.answers().has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        port.pause();
        let answer = port.hosts.exchange(peer, entered, message);
        port.pause();
        let mut answers = self.0.answers();
        match answer {
            Some(answer) => answers.bytes.extend(answer),
            None => answers.has_ended = true,
        }
        Ok(())
    }
}

/// The direction from the peer.
struct From(Arc<Stream>);

impl Read for From {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.answers().bytes.read(into)
    }
}

impl Receive for From {
    fn wait(&self, _: Duration) -> io::Result<bool> {
        let answers = self.0.answers();
        if answers.bytes.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(true) }
    }
}

impl Drop for From {
    fn drop(&mut self) {
        if let Peer::Manager(life, session) = self.0.peer {
            self.0.port.hosts.state().gone.push((life, session));
        }
    }
}

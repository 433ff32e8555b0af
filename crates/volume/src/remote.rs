//! The manager and the stores of a volume on other nodes.
//!
//! Model: a stream to a node carries the messages of message.rs, one stream for the manager and one for each store.
//! When a stream breaks, the next request opens another. After a store could not be reached, requests to it fail at
//! once for a while, so that reads use the other copy without waiting each time.
//! Invariant: a request is answered or fails within about 10 s. A write is not repeated if it may have been carried
//! out: another client may have written there since.
//! Non-goals: which node has which store.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::slice::from_ref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_api::{ClusterHost, ServiceRequest, VolumeRequest, VolumeWork};
use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_wire::{Client, Host, Id, Link};

use crate::alone::Watch;
use crate::attach::{Mark, Reach, Way};
use crate::callers::{Caller, Turns};
use crate::connection::{Connection, Failure};
use crate::forward::Forward;
use crate::incarnation::{Held, Holder, Incarnation};
use crate::keeper::Keeper;
use crate::location::Location;
use crate::message::{Ask, Attached, Reply, VERSION};
use crate::reached::{AsksStore, wrong};
use crate::request::{Forwarded, StoreAnswer, StoreRequest};
use crate::store::{Strip, Write};
use crate::stream::{self, Ends};
use crate::{Error, Result};

/// The largest block that a client takes from a node.
const BLOCK_BYTES: usize = 256 << 10;
/// How long to keep looking for a lost manager: a dial that begins in this time ends within ten seconds.
const RETURN: Duration = Duration::from_secs(5);
/// How long to wait between two attempts.
const MOMENT: Duration = Duration::from_millis(50);
/// How long a lost store is left alone, plus [`PAUSE_FACTOR`] times the time of the last attempt.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u64 = 4;
/// The most strips that a store's client remembers as written and not synced.
const UNSYNCED_MAX: usize = 1 << 16;
/// A node that is down or restarts refuses the connection sooner than this. One that does not is silent, and dialling
/// it again would take as long again.
const SILENT: Duration = Duration::from_secs(2);
/// How long after its last sign of life a node is taken to be silent still.
const SILENCE: Duration = Duration::from_secs(15);

/// Opens links with nodes.
pub(crate) trait Dial: Send + Sync {
    /// An open link with a node.
    fn link(&self, node: &str) -> Result<Arc<Link>>;

    /// Opens a stream to a node as this caller. Returns the connection, and what the node reports of itself.
    fn connect(
        &self,
        what: &str,
        node: &str,
        request: &VolumeRequest,
        caller: Caller,
    ) -> Result<(Connection, Attached)> {
        let failed = |why: String| Error::Refused(format!("{what}: {why}"));
        let link = self.link(node).map_err(|why| failed(why.to_string()))?;
        let streams = link.open(request.text().as_bytes()).map_err(|why| failed(why.to_string()))?;
        let Ends { from, to, quit, failure } =
            stream::ends(&link, streams).map_err(|why| failed(why.to_string()))?;
        let connection = Connection::new(what, Box::new(from), Box::new(to));
        let connection = connection.quits(move || quit.quit("it did not answer in time"));
        let connection = connection.knows_silence(move || link.ended_in_silence(SILENCE));
        match connection.ask(&Ask::Attach(VERSION, caller), &[], &mut []) {
            Ok(Reply::Attached(attached)) => Ok((connection, attached)),
            Ok(other) => wrong(&other),
            Err(Failure::Told(why)) => Err(failed(why.to_string())),
            Err(_) => {
                // A peer that refuses the stream may have ended it before the request was sent.
                connection.hear(MOMENT);
                let why = failure.get().cloned();
                Err(failed(why.unwrap_or_else(|| format!("{node} ended the stream"))))
            }
        }
    }

    /// How long a store is left alone after an attempt of this many nanoseconds has failed.
    fn pause_ns(&self, took_ns: u64) -> u64 {
        PAUSE.as_nanos() as u64 + PAUSE_FACTOR * took_ns
    }
}

/// A node's links with the others.
impl Dial for Arc<Host> {
    fn link(&self, node: &str) -> Result<Arc<Link>> {
        self.link_with(node).map_err(|why| Error::Refused(why.to_string()))
    }
}

/// A client's links with nodes, one with each.
pub(crate) struct Links {
    client: Client,
    links: Mutex<HashMap<String, Kept>>,
}

type Kept = Arc<Mutex<Option<Arc<Link>>>>;

impl Links {
    pub(crate) fn new(client: Client) -> Links {
        Links { client, links: Mutex::default() }
    }

    fn host(&self, node: &str) -> Result<ClusterHost> {
        let found = self.client.hosts(&[node.to_string()]).map_err(|why| Error::Refused(why.to_string()))?;
        Ok(found.into_iter().next().expect("a host of that name was found"))
    }
}

impl Dial for Links {
    fn link(&self, node: &str) -> Result<Arc<Link>> {
        let kept = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(links.entry(node.into()).or_default())
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = kept.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let link = self.client.link(&self.host(node)?, BLOCK_BYTES);
        let link = Arc::new(link.map_err(|why| Error::Refused(why.to_string()))?);
        // Callers that wait for answers read the link.
        link.keep().map_err(|why| Error::Refused(format!("the system has no thread left: {why}")))?;
        *kept = Some(Arc::clone(&link));
        Ok(link)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let links = self.links.get_mut().unwrap_or_else(PoisonError::into_inner);
        for kept in links.values() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|link| link.close());
        }
    }
}

/// The manager of a volume on a node.
pub(crate) struct RemoteManager {
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) name: String,
    pub(crate) place: Location,
    /// The work on the stores, if it is opened for any.
    pub(crate) work: Option<VolumeWork>,
    /// A node asks, for a job in which it takes part.
    pub(crate) for_job: bool,
    pub(crate) turns: Turns,
}

impl Reach for RemoteManager {
    /// A client with open files waits a while for a node that was restarted, but not for one that is silent.
    fn reach(&self, has_open: bool, _: &mut Mark) -> Result<(Way, Vec<Option<String>>)> {
        let Location { node, directory } = &self.place;
        let directory = directory.display().to_string();
        let request = match self.work {
            None => VolumeRequest::Manager { directory, for_job: self.for_job },
            Some(work) => VolumeRequest::Maintain { directory, work },
        };
        let what = format!("the manager of volume {}", self.name);
        let watch = Stopwatch::start();
        loop {
            let attempt = Stopwatch::start();
            match self.dial.connect(&what, node, &request, self.turns.next()) {
                Ok((connection, attached)) => {
                    return Ok((Way::There(connection, Mutex::default()), attached.lost));
                }
                Err(why)
                    if !has_open
                        || attempt.ns() > SILENT.as_nanos() as u64
                        || watch.ns() > RETURN.as_nanos() as u64 =>
                {
                    return Err(why);
                }
                Err(_) => std::thread::park_timeout(MOMENT),
            }
        }
    }
}

/// A store on a node.
pub(crate) struct RemoteStore {
    dial: Arc<dyn Dial>,
    what: String,
    place: Location,
    slot: u32,
    request: VolumeRequest,
    turns: Turns,
    state: Mutex<State>,
    watch: Watch,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// Until when it is left alone, and why.
    down: Option<(u64, String)>,
    is_lost: bool,
    unsynced: Unsynced,
}

/// Strips that this client wrote and did not sync; a store loses those bytes when its machine loses power.
#[derive(Default)]
struct Unsynced {
    /// The boot of the store's machine in which they were written.
    boot: String,
    written: BTreeSet<Strip>,
    /// Strips of an earlier boot.
    lost: BTreeSet<Strip>,
}

impl Unsynced {
    /// Notes the boot in which the store answers.
    fn boots(&mut self, boot: String) {
        if boot != self.boot {
            self.lost.append(&mut self.written);
            self.boot = boot;
        }
    }

    /// An error if the store may have lost bytes of the strip. A client that changes it then marks this copy stale.
    fn check(&mut self, request: &StoreRequest) -> Result<()> {
        let (strips, is_noted) = match request {
            StoreRequest::Read { strip, .. } | StoreRequest::NextData { strip, .. } => {
                (from_ref(strip), false)
            }
            StoreRequest::Write(Write { strip, .. }) => (from_ref(strip), true),
            StoreRequest::Forward { write: Write { strip, .. }, .. }
            | StoreRequest::Copy { to: Write { strip, .. }, .. } => (from_ref(strip), true),
            StoreRequest::Truncate { strip, .. } | StoreRequest::Punch { strip, .. } => {
                (from_ref(strip), true)
            }
            // Which of several strips it is shows when each is synced alone.
            StoreRequest::Sync(strips) => (&strips[..], strips.len() == 1),
            _ => return Ok(()),
        };
        let lost = &mut self.lost;
        let is_lost = |strip: &&Strip| if is_noted { lost.remove(strip) } else { lost.contains(strip) };
        match strips.iter().find(is_lost) {
            Some(strip) => Err(Error::Missing(*strip, "its node lost power before it was synced".into())),
            None => Ok(()),
        }
    }

    fn wrote(&mut self, strip: Strip) {
        self.written.insert(strip);
        if self.written.len() > UNSYNCED_MAX {
            // The oldest file is the least likely to be synced by a client that still has it open.
            self.written.pop_first();
        }
    }

    /// Those of a file, also those that are lost.
    fn of(&self, inode: u64) -> impl Iterator<Item = Strip> {
        let [first, last] = [0, u32::MAX].map(|end| Strip { inode, index: end, copy: end });
        self.written.range(first..=last).chain(self.lost.range(first..=last)).copied()
    }

    /// Notes a request that was carried out.
    fn note(&mut self, request: &StoreRequest) {
        match request {
            StoreRequest::Write(write) | StoreRequest::Forward { write, .. } => self.wrote(write.strip),
            StoreRequest::Punch { strip, .. } | StoreRequest::Copy { to: Write { strip, .. }, .. } => {
                self.wrote(*strip);
            }
            StoreRequest::Sync(strips) => strips.iter().for_each(|strip| _ = self.written.remove(strip)),
            StoreRequest::Remove { strip, .. } => _ = self.written.remove(strip),
            StoreRequest::RemoveAll(strips) => strips.iter().for_each(|strip| _ = self.written.remove(strip)),
            _ => {}
        }
    }
}

impl RemoteStore {
    /// The store of a slot of this volume. The nodes in `peers` may forward to it; `turns` numbers the connections.
    pub(crate) fn new(
        dial: &Arc<dyn Dial>,
        place: &Location,
        (volume, slot): (u128, u32),
        (peers, turns): (&[String], Turns),
        watch: &Watch,
    ) -> RemoteStore {
        let (directory, volume) = (place.directory.display().to_string(), Id(volume).to_string());
        RemoteStore {
            dial: Arc::clone(dial),
            what: format!("the store in {place}"),
            place: place.clone(),
            slot,
            request: VolumeRequest::Store { directory, volume, slot, peers: peers.to_vec() },
            turns,
            state: Mutex::default(),
            watch: Arc::clone(watch),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the store is lost or back, and reports it if that is new.
    fn note(&self, state: &mut State, lost: Option<&Error>) {
        if state.is_lost == lost.is_some() {
            return;
        }
        state.is_lost = lost.is_some();
        let news = match lost {
            Some(why) => format!("{} is lost: {why}", self.what),
            None => format!("{} is back", self.what),
        };
        self.watch.get().into_iter().for_each(|tell| tell(&news));
    }

    /// Closes the connection, and leaves the store alone for a while. Returns the error of the request that failed.
    fn goes_down(&self, state: &mut State, why: &Error, pause_ns: u64) -> Error {
        self.note(state, Some(why));
        (state.connection, state.down) = (None, Some((now_ns() + pause_ns, why.to_string())));
        Error::system(libc::EIO, why.to_string())
    }

    fn connection(&self) -> Result<Arc<Connection>> {
        let mut state = self.state();
        if let Some(connection) = state.open()? {
            return Ok(connection);
        }
        let watch = Stopwatch::start();
        match self.dial.connect(&self.what, &self.place.node, &self.request, self.turns.next()) {
            Ok((connection, attached)) => {
                let connection = Arc::new(connection);
                state.unsynced.boots(attached.boot);
                (state.connection, state.down) = (Some(Arc::clone(&connection)), None);
                self.note(&mut state, None);
                Ok(connection)
            }
            Err(why) => Err(self.goes_down(&mut state, &why, self.dial.pause_ns(watch.ns()))),
        }
    }
}

impl State {
    /// The connection, if there is one; an error if the store is being left alone.
    fn open(&self) -> Result<Option<Arc<Connection>>> {
        if let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Some(Arc::clone(connection)));
        }
        match self.down.as_ref().filter(|(until_ns, _)| now_ns() < *until_ns) {
            Some((_, why)) => Err(Error::system(libc::EIO, why.clone())),
            None => Ok(None),
        }
    }
}

impl Forward for RemoteStore {
    fn whereabouts(&self) -> (u32, &str, String) {
        (self.slot, &self.place.node, self.place.to_string())
    }

    fn is_connected(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| matches!(state.open(), Ok(Some(_))))
    }

    fn forward(&self, write: &Write, (slot, place): (u32, String), from: &[u8]) -> Result<Forwarded> {
        match self.ask_store(StoreRequest::Forward { write: *write, slot, place }, from, &mut [])? {
            StoreAnswer::Forwarded(forwarded) => Ok(forwarded),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn was_written(&self, strip: Strip, boot: &str) {
        let unsynced = &mut self.state().unsynced;
        if unsynced.boot == boot {
            unsynced.wrote(strip);
        } else {
            unsynced.lost.insert(strip);
        }
    }
}

impl AsksStore for RemoteStore {
    fn is_found(&self) -> bool {
        // Whoever dials holds the lock. A request to a store that is left alone fails at once.
        self.state.try_lock().is_ok_and(|state| !matches!(state.open(), Ok(None)))
    }

    fn unsynced_of(&self, inode: u64) -> Vec<Strip> {
        self.state().unsynced.of(inode).collect()
    }

    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer> {
        self.ask(None, &request, sent, into)
    }
}

impl Keeper for RemoteStore {
    fn held(&self, place: &str) -> Result<Held> {
        match self.ask_store(StoreRequest::Held { place: place.into() }, &[], &mut [])? {
            StoreAnswer::Held(held) => Ok(held),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn claim(&self, before: Incarnation, next: &Holder) -> Result<Holder> {
        match self.ask_store(StoreRequest::Claim { before, next: next.clone() }, &[], &mut [])? {
            StoreAnswer::Holder(holder) => Ok(holder),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn is_found(&self) -> bool {
        AsksStore::is_found(self)
    }

    fn ask(
        &self,
        by: Option<Incarnation>,
        request: &StoreRequest,
        sent: &[u8],
        into: &mut [u8],
    ) -> Result<StoreAnswer> {
        let watch = Stopwatch::start();
        let is_write = matches!(
            request,
            StoreRequest::Write(_)
                | StoreRequest::Forward { .. }
                | StoreRequest::Copy { .. }
                | StoreRequest::Punch { .. }
        );
        let ask = match by {
            Some(by) => Ask::Held(self.slot, by, request.clone()),
            None => Ask::Store(self.slot, request.clone()),
        };
        loop {
            let connection = self.connection()?;
            self.state().unsynced.check(request)?;
            let unsure = match connection.ask(&ask, sent, into) {
                Ok(Reply::Store(answer)) => {
                    if !matches!(answer, StoreAnswer::Holder(_)) {
                        self.state().unsynced.note(request);
                    }
                    return Ok(answer);
                }
                Ok(other) => return wrong(&other),
                Err(Failure::Told(why)) if connection.is_broken() => {
                    return Err(self.goes_down(&mut self.state(), &why, self.dial.pause_ns(0)));
                }
                Err(Failure::Told(Error::Damaged { path, at })) => {
                    let path = Location { node: self.place.node.clone(), directory: path }.to_string().into();
                    return Err(Error::Damaged { path, at });
                }
                Err(Failure::Told(why)) => return Err(why),
                Err(failure) => matches!(failure, Failure::Unanswered),
            };
            let failed = |how: &str| Error::system(libc::EIO, format!("{} {how}", self.what));
            if connection.is_silent() || watch.ns() > SILENT.as_nanos() as u64 {
                // A dial would not be answered either.
                let why = failed("did not answer");
                let took_ns = watch.ns().max(SILENT.as_nanos() as u64);
                return Err(self.goes_down(&mut self.state(), &why, self.dial.pause_ns(took_ns)));
            }
            if unsure && is_write {
                return Err(failed("ended before it answered a write"));
            }
        }
    }
}

/// Parses the number of a volume, as requests contain it.
pub(crate) fn number(volume: &str) -> Result<u128> {
    volume.parse::<Id>().map(|id| id.0).map_err(Error::Refused)
}

/// The directory of a part of a volume on a node.
pub(crate) fn directory(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(Error::Refused(format!("{text} is not an absolute path"))) }
}

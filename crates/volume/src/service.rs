//! The service of volumes on a node: the managers and stores in its directories.
//!
//! Model: a stream is a session with a manager, or carries requests to one store. A manager is opened when the first client
//! comes, and stays open until its volume is removed or the node stops. It asks the stores on other nodes over this node's links.
//! Invariant: a directory is opened once, whoever asks; a client that may only look changes nothing.
//! Non-goals: which volumes there are; their clients know.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_api::{May, ServiceRequest, VolumeRequest, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_io::{File, process, small};
use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, Id, Link, Peer, Service, Streams};

use crate::layout::Policy;
use crate::location::Location;
use crate::manager::Manager;
use crate::message::{Ask, Reply};
use crate::place::{self, Made};
use crate::registry::part;
use crate::remote::{Dial, RemoteStore, directory};
use crate::request::{Request, StoreRequest};
use crate::serve::GRACE;
use crate::server::{GONE, Server, SessionId};
use crate::session::{Answering, ask_store, converse, refuse};
use crate::store::Store;
use crate::stores::{Slot, Stores};
use crate::stream::{self, Ends};
use crate::{Error, LocalStore, Result, SqliteManager};

/// The service of volumes on a node.
pub struct VolumeService {
    host: Arc<Host>,
    stores: Mutex<HashMap<PathBuf, KeptStore>>,
    managers: Mutex<HashMap<PathBuf, KeptManager>>,
    is_stopping: AtomicBool,
}

/// A store that is open, its volume and its slot.
type KeptStore = (Arc<LocalStore>, u128, u32);
/// The manager in a directory; locked while it is opened or removed.
type KeptManager = Arc<Mutex<Option<Arc<Served>>>>;

/// A manager that is open. What is first is dropped first.
struct Served {
    server: Arc<Server>,
    sessions: AtomicUsize,
    _lock: File,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(volume: &str) -> Result<u128> {
    volume.parse::<Id>().map(|id| id.0).map_err(Error::Refused)
}

/// The name of the volume of a directory.
fn name_of(directory: &Path) -> String {
    directory.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

impl VolumeService {
    /// On this host.
    pub fn new(host: &Arc<Host>) -> VolumeService {
        VolumeService {
            host: Arc::clone(host),
            stores: Mutex::default(),
            managers: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// The store in a directory, opened if it is not.
    fn store(&self, dir: &Path, volume: u128, slot: u32) -> Result<Arc<LocalStore>> {
        let mut stores = held(&self.stores);
        match stores.get(dir) {
            Some((store, of, at)) if (*of, *at) == (volume, slot) => return Ok(Arc::clone(store)),
            Some(_) => {
                return Err(Error::Refused(format!("{} is of another volume or slot", dir.display())));
            }
            None => {}
        }
        small::check_own_directory(dir)?;
        let store = Arc::new(LocalStore::open(&place::io(), dir, volume, slot)?);
        stores.insert(dir.into(), (Arc::clone(&store), volume, slot));
        Ok(store)
    }

    fn kept_manager(&self, dir: &Path) -> KeptManager {
        Arc::clone(held(&self.managers).entry(dir.into()).or_default())
    }

    /// Forgets a directory without a manager that is open, unless others wait for it: whoever asks for directories that have
    /// none fills no memory.
    fn forget(&self, dir: &Path) {
        let mut managers = held(&self.managers);
        // One is in the table, and one is the caller's; no further one is made without the table.
        if managers.get(dir).is_some_and(|kept| Arc::strong_count(kept) == 2) {
            managers.remove(dir);
        }
    }

    /// A new session with the manager in a directory, opened if it is not.
    fn session(self: &Arc<Self>, dir: &Path, may_change: bool) -> Result<ManagerSession> {
        let kept = self.kept_manager(dir);
        let mut kept = held(&kept);
        let served = match &*kept {
            Some(served) => Arc::clone(served),
            None => {
                let opened = self.open_manager(dir).inspect_err(|_| self.forget(dir));
                let served = Arc::new(opened?);
                *kept = Some(Arc::clone(&served));
                served
            }
        };
        served.sessions.fetch_add(1, Ordering::AcqRel);
        let session = served.server.begin();
        Ok(ManagerSession { service: Arc::clone(self), served, session, may_change })
    }

    fn open_manager(&self, dir: &Path) -> Result<Served> {
        let lock = place::try_lock(dir)?;
        let lock = lock.map_or_else(|| Err(place::in_use(dir, &name_of(dir))?), Ok)?;
        let manager = SqliteManager::open(dir)?;
        let facts = manager.facts()?;
        let dial: Arc<dyn Dial> = Arc::new(Arc::clone(&self.host));
        let slot = |(slot, place): (u32, &PathBuf)| -> Slot {
            match Location::of(place) {
                Some(place) if place.node != self.host.name() => {
                    Ok(Arc::new(RemoteStore::new(&dial, &place, facts.volume, slot)))
                }
                here => {
                    let dir = here.map_or_else(|| place.clone(), |place| place.directory);
                    let store = self.store(&dir, facts.volume, slot);
                    store.map(|store| store as Arc<dyn Store>).map_err(|why| why.to_string())
                }
            }
        };
        let stores = Stores::new((0..).zip(&facts.slots).map(slot).collect());
        // Clients of a node that ran here before may come back.
        let server = Server::start(Box::new(manager), Arc::new(stores), false)?;
        let gone = Arc::downgrade(&server);
        spawn("volume", move || {
            let watch = Stopwatch::start();
            while let Some(left) = GRACE.checked_sub(Duration::from_nanos(watch.ns())) {
                std::thread::park_timeout(left);
            }
            if let Some(server) = gone.upgrade() {
                server.end(GONE);
            }
        });
        Ok(Served { server, sessions: AtomicUsize::new(0), _lock: lock })
    }

    /// Serves a stream of requests on this thread.
    fn converse<A: Answering>(link: &Link, streams: Streams, open: impl FnOnce() -> Result<A>) {
        let Ok(Ends { from, to, quit, .. }) = stream::ends(link, streams) else { return };
        let shut = || quit.quit("the node ended the session");
        match open() {
            Ok(answering) => converse(&answering, Box::new(from), Box::new(to), &shut),
            Err(why) => refuse(Box::new(from), Box::new(to), why),
        }
    }

    /// Makes or removes a part of a volume.
    fn change(&self, request: VolumeRequest) -> Result<()> {
        match request {
            VolumeRequest::MakeStore { name, directory: dir, volume, slot } => {
                let mut made = Made::default();
                let dir = directory(&dir)?.join(part(&name, "store")?);
                made.store(&dir, number(&volume)?, slot)?;
                made.stays();
                Ok(())
            }
            VolumeRequest::MakeManager { name, directory: dir, volume, stores, layout, user, group } => {
                let policy = Policy::from(layout);
                policy.check(stores.len() as u32)?;
                stores.iter().try_for_each(|store| Location::needed(store).map(drop))?;
                let slots: Vec<PathBuf> = stores.iter().map(PathBuf::from).collect();
                let mut made = Made::default();
                let dir = directory(&dir)?.join(part(&name, "manager")?);
                made.manager(&dir, number(&volume)?, &slots, &policy, (user, group))?;
                made.stays();
                Ok(())
            }
            VolumeRequest::Remove { directory: dir, volume, slot } => {
                let (dir, volume) = (directory(&dir)?, number(&volume)?);
                match slot {
                    Some(slot) => self.remove_store(&dir, volume, slot),
                    None => self.remove_manager(&dir, volume),
                }
            }
            VolumeRequest::Manager { .. } | VolumeRequest::Store { .. } => {
                unreachable!("these are streams of requests")
            }
        }
    }

    fn remove_store(&self, dir: &Path, volume: u128, slot: u32) -> Result<()> {
        let _it_is = self.store(dir, volume, slot)?;
        held(&self.stores).remove(dir);
        place::clear(&place::io(), dir)
    }

    fn remove_manager(&self, dir: &Path, volume: u128) -> Result<()> {
        let kept = self.kept_manager(dir);
        let mut kept = held(&kept);
        if let Some(served) = &*kept {
            let sessions = served.sessions.load(Ordering::Acquire);
            if sessions > 0 {
                let name = name_of(dir);
                return Err(Error::Refused(format!(
                    "volume {name} has {sessions} open sessions; wait for their end"
                )));
            }
        }
        *kept = None;
        let Some(_lock) = place::try_lock(dir)? else { return Err(place::in_use(dir, &name_of(dir))?) };
        if SqliteManager::open(dir)?.facts()?.volume != volume {
            return Err(Error::Refused(format!("{} is of another volume", dir.display())));
        }
        place::clear(&place::io(), dir)
    }
}

impl Service for VolumeService {
    fn name(&self) -> &'static str {
        VolumeRequest::SERVICE
    }

    /// Who may only look may read.
    fn is_harmless(&self, body: &str) -> bool {
        matches!(from_json(body), Ok(VolumeRequest::Manager { .. } | VolumeRequest::Store { .. }))
    }

    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, (mut out, inc): Streams) -> bool {
        let may_change = peer.link.hello().is_local() || peer.may != May::Status;
        let (service, link) = (Arc::clone(&self), Arc::clone(peer.link));
        let request = match from_json(body) {
            Ok(request) => request,
            Err(why) => return out.abort(&format!("a request that is not known here: {why}")).is_ok(),
        };
        match request {
            VolumeRequest::Manager { directory: dir } => spawn("volume", move || {
                let open = || service.session(&directory(&dir)?, may_change);
                VolumeService::converse(&link, (out, inc), open);
            }),
            VolumeRequest::Store { directory: dir, volume, slot } => spawn("volume", move || {
                VolumeService::converse(&link, (out, inc), || {
                    let store = service.store(&directory(&dir)?, number(&volume)?, slot)?;
                    Ok(StoreSession { store, slot, may_change })
                });
            }),
            request => {
                let (what, words) = words(&request);
                peer.entry(what, &words).spawn("volume", move |entry| {
                    // Whoever is gone does not hear it.
                    let _ = match service.change(request) {
                        Ok(()) => {
                            entry.ends("done");
                            out.end(&[])
                        }
                        Err(why) => {
                            entry.refused(&why);
                            out.abort(&why.to_string())
                        }
                    };
                    drop(inc);
                })
            }
        }
    }

    fn stop(&self, _patience: Duration) {
        // What clients have open stays as it is, for the node that runs here next.
        self.is_stopping.store(true, Ordering::Release);
    }
}

/// A request in the words of the audit log.
fn words(request: &VolumeRequest) -> (&'static str, Vec<String>) {
    match request {
        VolumeRequest::MakeStore { name, directory, .. } => {
            ("volume create", vec![name.clone(), "store".into(), directory.clone()])
        }
        VolumeRequest::MakeManager { name, directory, .. } => {
            ("volume create", vec![name.clone(), "manager".into(), directory.clone()])
        }
        VolumeRequest::Manager { directory }
        | VolumeRequest::Store { directory, .. }
        | VolumeRequest::Remove { directory, .. } => ("volume destroy", vec![directory.clone()]),
    }
}

/// A session with a manager.
struct ManagerSession {
    service: Arc<VolumeService>,
    served: Arc<Served>,
    session: SessionId,
    may_change: bool,
}

impl Answering for ManagerSession {
    /// Clients ask the stores themselves.
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn answer(&self, ask: &Ask, _sent: &[u8], _into: &mut [u8]) -> Result<Reply> {
        let Ask::Manager(request) = ask else {
            return Err(Error::Refused("this stream is for requests to a manager".into()));
        };
        let is_read = match request {
            Request::Change(_) | Request::SyncAll | Request::Append { .. } => false,
            Request::Close(_, written) => written.is_none(),
            _ => true,
        };
        if !is_read && !self.may_change {
            return Err(may_only_look());
        }
        self.served.server.answer(self.session, request).map(Reply::Manager)
    }
}

impl Drop for ManagerSession {
    fn drop(&mut self) {
        if !self.service.is_stopping.load(Ordering::Acquire) {
            self.served.server.end(self.session);
        }
        self.served.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Requests to a store.
struct StoreSession {
    store: Arc<LocalStore>,
    slot: u32,
    may_change: bool,
}

impl Answering for StoreSession {
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn boot(&self) -> String {
        process::boot()
    }

    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        let Ask::Store(slot, request) = ask else {
            return Err(Error::Refused("this stream is for requests to a store".into()));
        };
        if *slot != self.slot {
            return Err(Error::Refused(format!("this is the store of slot {}, not of {slot}", self.slot)));
        }
        let changes = matches!(
            request,
            StoreRequest::Write(_)
                | StoreRequest::Truncate { .. }
                | StoreRequest::Sync(_)
                | StoreRequest::Remove(_)
        );
        if changes && !self.may_change {
            return Err(may_only_look());
        }
        ask_store(&*self.store, request, sent, into).map(Reply::Store)
    }
}

fn may_only_look() -> Error {
    Error::system(libc::EROFS, "this certificate may only look")
}

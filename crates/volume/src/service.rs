//! The service of volumes on a node: the managers and stores in its directories.
//!
//! Model: a stream is a session with a manager, or carries requests to one store. A manager is opened for its first
//! client, and closed when its volume is removed or the node stops. It uses this node's links to stores elsewhere.
//! Invariant: a directory is opened only once, for all clients; a client that may only look changes nothing.
//! Non-goals: which volumes exist; their clients know that.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thalweg_api::{May, ServiceRequest, VolumeChange, VolumeRequest, VolumeWork, from_json};
use thalweg_io::{process, small};
use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, Link, Metric, Peer, Role, Service, Streams};

use crate::allowed::Allowed;
use crate::alone::Watch;
use crate::callers::{Callers, Turns};
use crate::connected::{Connected, Connection};
use crate::hold::Hold;
use crate::keeper::{self, Keeper};
use crate::layout::Policy;
use crate::location::Location;
use crate::manager::{Change, Manager};
use crate::managers::{Entered, Managers, name_of};
use crate::message::{Ask, Reply};
use crate::mirror::{Mirrors, Named, Peers};
use crate::opened::SessionId;
use crate::place::{self, Made};
use crate::registry::part;
use crate::remote::{Dial, RemoteStore, directory, number};
use crate::request::{Answer, Request, StoreAnswer, StoreRequest};
use crate::server::{GONE, Server};
use crate::session::{Answering, ask_store, converse, refuse};
use crate::store::{Store, Strip, Write};
use crate::stores::Stores;
use crate::stream::{self, Ends};
use crate::{Error, LocalStore, Result, SqliteManager};

/// The service of volumes on a node.
pub struct VolumeService {
    host: Arc<Host>,
    stores: Mutex<HashMap<PathBuf, KeptStore>>,
    managers: Arc<Managers>,
    mirrors: Arc<Mirrors>,
    callers: Arc<Callers>,
    is_stopping: AtomicBool,
}

/// An open store, with its volume and slot, and the clients that may use it.
#[derive(Clone)]
struct KeptStore {
    store: Arc<LocalStore>,
    volume: u128,
    slot: u32,
    allowed: Allowed,
    peers: Arc<Peers>,
    /// The managers that are connected with it.
    connected: Arc<Connected>,
}

impl VolumeService {
    /// The service of this host.
    pub fn new(host: &Arc<Host>) -> VolumeService {
        VolumeService {
            host: Arc::clone(host),
            stores: Mutex::default(),
            managers: Arc::default(),
            mirrors: Arc::new(Mirrors::new(Arc::new(Arc::clone(host)))),
            callers: Arc::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// The store in a directory, opened if needed, for the peer of a link or for this node itself.
    fn store(&self, dir: &Path, volume: u128, slot: u32, peer: Option<&Link>) -> Result<KeptStore> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        match stores.get(dir) {
            Some(kept) if (kept.volume, kept.slot) == (volume, slot) => {
                peer.map_or(Ok(()), |peer| kept.allowed.check(peer))?;
                return Ok(kept.clone());
            }
            Some(_) => {
                return Err(Error::Refused(format!("{} is of another volume or slot", dir.display())));
            }
            None => {}
        }
        small::check_own_directory(dir)?;
        let allowed = Allowed::read(dir)?;
        peer.map_or(Ok(()), |peer| allowed.check(peer))?;
        let store = Arc::new(LocalStore::open(&place::io(), dir, volume, slot)?);
        let (peers, connected) = (Arc::default(), Arc::default());
        let kept = KeptStore { store, volume, slot, allowed, peers, connected };
        stores.insert(dir.into(), kept.clone());
        Ok(kept)
    }

    /// Begins a session with the manager in a directory.
    fn session(
        self: &Arc<Self>,
        dir: &Path,
        may_change: bool,
        (work, for_job): (Option<VolumeWork>, bool),
        peer: &Link,
    ) -> Result<ManagerSession> {
        let allowed = Allowed::read(dir)?;
        allowed.check(peer)?;
        if for_job {
            allowed.check_for_job()?;
        }
        let is_alone = work.is_some_and(|work| work != VolumeWork::Repair);
        let entered = self.managers.enter(dir, is_alone, || self.open_manager(dir, false))?;
        if is_alone {
            // Clients of an earlier node on this host find the volume in use.
            entered.server().end(GONE);
            entered.server().stores.hold().into_iter().for_each(|hold| hold.claim_for_work());
        }
        let session = entered.server().begin();
        Ok(ManagerSession { service: Arc::clone(self), entered, session, may_change })
    }

    /// Opens a manager; an error if the stores have accepted another one, unless this one is adopted.
    fn open_manager(&self, dir: &Path, is_adopted: bool) -> Result<Arc<Server>> {
        let lock = place::lock(dir)?;
        let manager = SqliteManager::open(dir)?;
        let facts = manager.facts()?;
        let dial: Arc<dyn Dial> = Arc::new(Arc::clone(&self.host));
        let own = Location { node: self.host.name().into(), directory: dir.into() }.to_string();
        let slot = |(slot, place): (u32, &PathBuf)| -> std::result::Result<Arc<dyn Keeper>, String> {
            match Location::of(place) {
                Some(place) if place.node != self.host.name() => {
                    let turns = Turns::of_manager(facts.volume, slot, &own);
                    let of = (facts.volume, slot);
                    Ok(Arc::new(RemoteStore::new(&dial, &place, of, (&[], turns), &Watch::default())))
                }
                here => {
                    let dir = here.map_or_else(|| place.clone(), |place| place.directory);
                    let store = self.store(&dir, facts.volume, slot, None);
                    let connection = store.map(|kept| Connection::new(&kept.store, &kept.connected));
                    Ok(Arc::new(connection.map_err(|why| why.to_string())?))
                }
            }
        };
        let slots = (0..).zip(&facts.slots).map(slot).collect();
        let (hold, slots) = Hold::new((&name_of(dir), &own), Box::new(manager.ledger()), slots, true)?;
        if is_adopted { hold.adopt() } else { hold.check() }?;
        // Clients of an earlier node on this host may come back.
        let stores = Arc::new(Stores::new(slots).held(hold));
        let server = Server::start(Box::new(manager), stores, false, Some(lock))?;
        server.heal();
        Ok(server)
    }

    /// Goes on with a manager that was restored from a backup, copied or moved.
    fn adopt(&self, dir: &Path, volume: u128) -> Result<()> {
        let mut is_opened = false;
        let entered = self.managers.enter(dir, false, || {
            is_opened = true;
            self.open_manager(dir, true)
        })?;
        let server = entered.server();
        if server.manager.facts()?.volume != volume {
            return Err(Error::Refused(format!("{} is of another volume", dir.display())));
        }
        match server.stores.hold() {
            Some(hold) if !is_opened => hold.adopt(),
            _ => Ok(()),
        }
    }

    /// Serves a stream of requests on this thread.
    fn converse<A: Answering>(&self, link: &Link, streams: Streams, open: impl FnOnce() -> Result<A>) {
        let Ok(Ends { mut from, to, quit, .. }) = stream::ends(link, streams) else { return };
        let shut = || quit.quit("the node ended the session");
        match open() {
            Ok(answering) => {
                let bell = from.bell();
                let ends = (Box::new(from) as Box<_>, Box::new(to) as Box<_>);
                let name = format!("{} {}", link.hello().role.name(), link.peer());
                converse(&answering, (&self.callers, &name), ends, (&shut, Some(&bell)));
            }
            Err(why) => refuse(Box::new(from), Box::new(to), why),
        }
    }

    /// Makes or removes a part of a volume.
    fn change(&self, change: VolumeChange, peer: &Link) -> Result<()> {
        match change {
            VolumeChange::MakeStore { name, directory: dir, volume, slot, clients } => {
                let mut made = Made::default();
                let dir = directory(&dir)?.join(part(&name, "store")?);
                made.store(&dir, number(&volume)?, slot)?;
                Allowed::write(&dir, &clients)?;
                made.stays();
                Ok(())
            }
            VolumeChange::MakeManager {
                name,
                directory: dir,
                volume,
                stores,
                layout,
                user,
                group,
                clients,
            } => {
                let policy = Policy::from(layout);
                policy.check(stores.len() as u32)?;
                stores.iter().try_for_each(|store| Location::needed(store).map(drop))?;
                let slots: Vec<PathBuf> = stores.iter().map(PathBuf::from).collect();
                let mut made = Made::default();
                let dir = directory(&dir)?.join(part(&name, "manager")?);
                made.manager(&dir, number(&volume)?, &slots, &policy, (user, group))?;
                Allowed::write(&dir, &clients)?;
                made.stays();
                Ok(())
            }
            VolumeChange::Adopt { directory: dir, volume } => {
                let dir = directory(&dir)?;
                Allowed::read(&dir)?.check(peer)?;
                self.adopt(&dir, number(&volume)?)
            }
            VolumeChange::Remove { directory: dir, volume, slot } => {
                let (dir, volume) = (directory(&dir)?, number(&volume)?);
                Allowed::read(&dir)?.check(peer)?;
                match slot {
                    Some(slot) => self.remove_store(&dir, volume, slot),
                    None => self.remove_manager(&dir, volume),
                }
            }
        }
    }

    fn remove_store(&self, dir: &Path, volume: u128, slot: u32) -> Result<()> {
        let _it_is = self.store(dir, volume, slot, None)?;
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).remove(dir);
        place::clear(&place::io(), dir)
    }

    fn remove_manager(&self, dir: &Path, volume: u128) -> Result<()> {
        self.managers.close(dir, || {
            let _lock = place::lock(dir)?;
            if SqliteManager::open(dir)?.facts()?.volume != volume {
                return Err(Error::Refused(format!("{} is of another volume", dir.display())));
            }
            place::clear(&place::io(), dir)
        })
    }
}

impl Service for VolumeService {
    fn name(&self) -> &'static str {
        VolumeRequest::SERVICE
    }

    /// A client that may only look can read.
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
            VolumeRequest::Manager { directory: dir, for_job } => spawn("volume", move || {
                let open = || service.session(&directory(&dir)?, may_change, (None, for_job), &link);
                service.converse(&link, (out, inc), open);
            }),
            VolumeRequest::Maintain { directory: dir, work } => {
                let entry = peer.entry(work.command(), std::slice::from_ref(&dir));
                entry.spawn("volume", move |entry| {
                    let open = || {
                        let session =
                            service.session(&directory(&dir)?, may_change, (Some(work), false), &link);
                        session.inspect_err(|why| entry.refused(why)).inspect(|_| entry.ends("done"))
                    };
                    service.converse(&link, (out, inc), open);
                })
            }
            VolumeRequest::Store { directory: dir, volume, slot, peers } => spawn("volume", move || {
                service.converse(&link, (out, inc), || {
                    let kept = service.store(&directory(&dir)?, number(&volume)?, slot, Some(&link))?;
                    let named = (may_change && !peers.is_empty()).then(|| kept.peers.name(peers));
                    let is_node = may_change && link.hello().role == Role::Node;
                    let manager = is_node
                        .then(|| (Connection::new(&kept.store, &kept.connected), link.peer().to_string()));
                    Ok(StoreSession {
                        kept,
                        manager,
                        mirrors: Arc::clone(&service.mirrors),
                        may_change,
                        _named: named,
                    })
                });
            }),
            VolumeRequest::Forward { directory: dir, volume, slot } => spawn("volume", move || {
                service.converse(&link, (out, inc), || {
                    let kept = service.store(&directory(&dir)?, number(&volume)?, slot, Some(&link))?;
                    let is_node = may_change && link.hello().role == Role::Node;
                    Ok(ForwardSession { kept, node: is_node.then(|| link.peer().to_string()) })
                });
            }),
            VolumeRequest::Change(change) => {
                let (what, words) = words(&change);
                peer.entry(what, &words).spawn("volume", move |entry| {
                    // A client that has disconnected does not receive the answer.
                    let _ = match service.change(change, &link) {
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

    fn metrics(&self) -> Vec<Metric> {
        let [files, bytes, repaired] = self.managers.healers().map(|count| count as f64);
        let row = |name, kind, help, value| Metric { name, kind, help, value };
        vec![
            row(
                "volume_short_files",
                "gauge",
                "Files of which a copy missed a write, in the volumes managed here.",
                files,
            ),
            row("volume_short_bytes", "gauge", "Bytes of these copies.", bytes),
            row(
                "volume_repaired_bytes_total",
                "counter",
                "Bytes that these volumes copied to repair themselves.",
                repaired,
            ),
        ]
    }

    fn stop(&self, _patience: Duration) {
        // What clients have open stays as it is, for the next node on this host.
        self.is_stopping.store(true, Ordering::Release);
    }
}

/// A change, as the audit log describes it.
fn words(change: &VolumeChange) -> (&'static str, Vec<String>) {
    match change {
        VolumeChange::MakeStore { name, directory, .. } => {
            ("volume create", vec![name.clone(), "store".into(), directory.clone()])
        }
        VolumeChange::MakeManager { name, directory, .. } => {
            ("volume create", vec![name.clone(), "manager".into(), directory.clone()])
        }
        VolumeChange::Remove { directory, .. } => ("volume destroy", vec![directory.clone()]),
        VolumeChange::Adopt { directory, .. } => ("volume manager adopt", vec![directory.clone()]),
    }
}

/// A session with a manager.
struct ManagerSession {
    service: Arc<VolumeService>,
    entered: Entered,
    session: SessionId,
    may_change: bool,
}

impl ManagerSession {
    /// Assigns another store to a slot, or adds the next slot.
    fn set_slot(&self, slot: u32, place: &Path) -> Result<Reply> {
        let manager = &self.entered.server().manager;
        if !self.entered.is_alone || slot as usize > manager.facts()?.slots.len() {
            return Err(Error::system(libc::EPERM, format!("slot {slot}")));
        }
        Location::needed(&place.to_string_lossy())?;
        manager.change(&Change::Slot(slot, place.into())).map(|root| Reply::Manager(Answer::Inode(root)))
    }
}

impl Answering for ManagerSession {
    /// Clients reach the stores themselves.
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn answer(&self, ask: &Ask, _sent: &[u8], _into: &mut [u8]) -> Result<Reply> {
        let Ask::Manager(request) = ask else {
            return Err(Error::Refused("this stream is for requests to a manager".into()));
        };
        let is_read = match request {
            // It makes stores cut strips for a change that was already made.
            Request::Change(Change::Cut(..)) => true,
            Request::Change(_) | Request::SyncAll | Request::Append { .. } | Request::Lock { .. } => false,
            Request::Make(..) | Request::Repair | Request::Fence(_) | Request::Lift(_) => false,
            Request::Close(_, written, _) => written.is_none(),
            _ => true,
        };
        if !is_read && !self.may_change {
            return Err(may_only_look());
        }
        match request {
            Request::Change(Change::Slot(slot, place)) => self.set_slot(*slot, place),
            Request::Close(inode, written, Some(_)) if !self.may_change => {
                let closed = Request::Close(*inode, *written, None);
                self.entered.server().answer(self.session, &closed).map(Reply::Manager)
            }
            request => self.entered.server().answer(self.session, request).map(Reply::Manager),
        }
    }
}

impl Drop for ManagerSession {
    fn drop(&mut self) {
        if !self.service.is_stopping.load(Ordering::Acquire) {
            self.entered.server().end(self.session);
        }
    }
}

/// Requests to a store.
struct StoreSession {
    kept: KeptStore,
    mirrors: Arc<Mirrors>,
    may_change: bool,
    /// For a node, which may have the volume's manager, and its name.
    manager: Option<(Connection, String)>,
    /// The nodes whose forwarded writes the store takes during this session.
    _named: Option<Named>,
}

impl KeptStore {
    /// The request, if it is for this store.
    fn request<'a>(&self, ask: &'a Ask) -> Result<&'a StoreRequest> {
        match ask {
            Ask::Store(slot, request) | Ask::Held(slot, _, request) if *slot == self.slot => Ok(request),
            Ask::Store(slot, _) | Ask::Held(slot, ..) => {
                Err(Error::Refused(format!("this is the store of slot {}, not of {slot}", self.slot)))
            }
            _ => Err(Error::Refused("this stream is for requests to a store".into())),
        }
    }
}

impl StoreSession {
    /// The other side, if it may have the volume's manager, and does not claim to be elsewhere.
    fn manager(&self, request: &StoreRequest) -> Result<&Connection> {
        let (connection, node) = self.manager.as_ref().ok_or_else(may_only_look)?;
        match request {
            StoreRequest::Claim { next, .. } if next.is_on(node) => Ok(connection),
            StoreRequest::Claim { .. } => {
                Err(Error::system(libc::EPERM, format!("{node} cannot claim a store for another node")))
            }
            _ => Ok(connection),
        }
    }
}

impl Answering for StoreSession {
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn boot(&self) -> String {
        process::boot()
    }

    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        let request = self.kept.request(ask)?;
        let by = if let Ask::Held(_, by, _) = ask { Some(*by) } else { None };
        if by.is_some() || request.is_managers() {
            let manager = self.manager(request)?;
            return keeper::answer(manager, by, request, (sent, into)).map(Reply::Store);
        }
        if !request.is_read() && !self.may_change {
            return Err(may_only_look());
        }
        match request {
            StoreRequest::Forward { write, slot, place } => {
                let mirror = self.mirrors.get(place, self.kept.volume, *slot)?;
                let other = Write { strip: Strip { copy: 1, ..write.strip }, ..*write };
                let (forwarded, written) = mirror.write(other, sent, || self.kept.store.write(write, sent));
                written.map(|()| Reply::Store(StoreAnswer::Forwarded(forwarded)))
            }
            request => ask_store(&*self.kept.store, request, sent, into).map(Reply::Store),
        }
    }
}

/// Writes that another node forwards to a store; `node` is `None` if it may not forward.
struct ForwardSession {
    kept: KeptStore,
    node: Option<String>,
}

impl Answering for ForwardSession {
    fn lost(&self) -> Vec<Option<String>> {
        Vec::new()
    }

    fn boot(&self) -> String {
        process::boot()
    }

    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        let request = self.kept.request(ask)?;
        let node = self.node.as_ref().ok_or_else(may_only_look)?;
        self.kept.peers.check(node)?;
        match request {
            StoreRequest::Write(_) if matches!(ask, Ask::Store(..)) => {
                ask_store(&*self.kept.store, request, sent, into).map(Reply::Store)
            }
            _ => Err(Error::Refused("this stream is for writes".into())),
        }
    }
}

fn may_only_look() -> Error {
    Error::system(libc::EROFS, "this certificate may only look")
}

#[cfg(test)]
#[path = "forward_test.rs"]
mod tests;

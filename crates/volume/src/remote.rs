//! The manager and the stores of a volume on other nodes.
//!
//! Model: a stream to a node carries the messages of message.rs, one stream for the manager and one for each store. When one
//! breaks, the next request opens another. A store that cannot be reached fails at once for a while, so that reads use the other
//! copy without waiting each time.
//! Invariant: a request is answered, or fails, within about [`PATIENCE`]. A write of which it is not known whether it was
//! carried out is not repeated: the first may still be on its way.
//! Non-goals: which node has what.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thalweg_api::{ClusterHost, ServiceRequest, VolumeRequest, VolumeWork};
use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_wire::{Client, Host, Id, Link};

use crate::attach::{Reach, Way};
use crate::connection::{Connection, Failure, PATIENCE};
use crate::location::Location;
use crate::message::{Ask, Reply, VERSION};
use crate::reached::{AsksStore, wrong};
use crate::request::{StoreAnswer, StoreRequest};
use crate::stream::{self, Ends};
use crate::{Error, Result};

/// The largest block that a client takes from a node.
const BLOCK_BYTES: usize = 256 << 10;
/// How long to look for a manager that was there: a dial that begins in this time ends within [`PATIENCE`].
const RETURN: Duration = Duration::from_secs(5);
/// How long to wait before looking again.
const MOMENT: Duration = Duration::from_millis(50);
/// How long a store is not asked again, plus [`PAUSE_FACTOR`] times what the last attempt took.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u64 = 4;

/// Opens links with nodes.
pub(crate) trait Dial: Send + Sync {
    /// An open link with a node, which somebody reads all the time.
    fn link(&self, node: &str) -> Result<Arc<Link>>;
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
        let read = Arc::clone(&link);
        // No requests come, but whoever waits for an answer has a deadline, so it cannot read itself.
        if !thalweg_wire::threads::spawn("link", move || while let Ok(Some(_)) = read.accept() {}) {
            return Err(Error::Refused("the system has no thread left".into()));
        }
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

/// Opens a stream to a node, and what answers there; why the store of each slot is lost, if it is.
fn connect(
    dial: &dyn Dial,
    what: &str,
    node: &str,
    request: &VolumeRequest,
) -> Result<(Connection, Vec<Option<String>>)> {
    let failed = |why: String| Error::Refused(format!("{what}: {why}"));
    let link = dial.link(node).map_err(|why| failed(why.to_string()))?;
    let streams = link.open(request.text().as_bytes()).map_err(|why| failed(why.to_string()))?;
    let Ends { from, to, quit, heard } =
        stream::ends(&link, streams).map_err(|why| failed(why.to_string()))?;
    let connection = Connection::new(what, Box::new(from), Box::new(to));
    let connection = connection.quits(move || quit.quit("it did not answer in time"));
    match connection.ask(&Ask::Attach(VERSION), &[], &mut []) {
        Ok(Reply::Attached(lost)) => Ok((connection, lost)),
        Ok(other) => wrong(&other),
        Err(Failure::Told(why)) => Err(failed(why.to_string())),
        Err(_) => Err(failed(heard.why().unwrap_or_else(|| format!("{node} ended the stream")))),
    }
}

/// The manager of a volume on a node.
pub(crate) struct RemoteManager {
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) name: String,
    pub(crate) place: Location,
    /// What it is asked for, if that is work on the stores.
    pub(crate) work: Option<VolumeWork>,
}

impl Reach for RemoteManager {
    /// One who has files open waits a while for a node that was restarted.
    fn reach(&self, has_open: bool) -> Result<(Way, Vec<Option<String>>)> {
        let Location { node, directory } = &self.place;
        let directory = directory.display().to_string();
        let request = match self.work {
            None => VolumeRequest::Manager { directory },
            Some(work) => VolumeRequest::Maintain { directory, work },
        };
        let what = format!("the manager of volume {}", self.name);
        let watch = Stopwatch::start();
        loop {
            match connect(&*self.dial, &what, node, &request) {
                Ok((connection, lost)) => return Ok((Way::There(connection, Mutex::default()), lost)),
                Err(why) if !has_open || watch.ns() > RETURN.as_nanos() as u64 => return Err(why),
                Err(_) => std::thread::park_timeout(MOMENT),
            }
        }
    }
}

/// A store on a node.
pub(crate) struct RemoteStore {
    dial: Arc<dyn Dial>,
    what: String,
    node: String,
    slot: u32,
    request: VolumeRequest,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// Until when it is not asked, and why.
    down: Option<(u64, String)>,
}

impl RemoteStore {
    /// The store of a slot of this volume.
    pub(crate) fn new(dial: &Arc<dyn Dial>, place: &Location, volume: u128, slot: u32) -> RemoteStore {
        let Location { node, directory } = place;
        let directory = directory.display().to_string();
        RemoteStore {
            dial: Arc::clone(dial),
            what: format!("the store in {place}"),
            node: node.clone(),
            slot,
            request: VolumeRequest::Store { directory, volume: Id(volume).to_string(), slot },
            state: Mutex::default(),
        }
    }

    fn connection(&self) -> Result<Arc<Connection>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = state.connection.as_ref().filter(|connection| !connection.is_broken()) {
            return Ok(Arc::clone(connection));
        }
        if let Some((_, why)) = state.down.as_ref().filter(|(until_ns, _)| now_ns() < *until_ns) {
            return Err(Error::system(libc::EIO, why.clone()));
        }
        let watch = Stopwatch::start();
        match connect(&*self.dial, &self.what, &self.node, &self.request) {
            Ok((connection, _)) => {
                let connection = Arc::new(connection);
                *state = State { connection: Some(Arc::clone(&connection)), down: None };
                Ok(connection)
            }
            Err(why) => Err(state.goes_down(&why, watch.ns())),
        }
    }
}

impl State {
    /// Is not asked for a while; the error of the request that finds that out.
    fn goes_down(&mut self, why: &Error, took_ns: u64) -> Error {
        let pause_ns = PAUSE.as_nanos() as u64 + PAUSE_FACTOR * took_ns;
        *self = State { connection: None, down: Some((now_ns() + pause_ns, why.to_string())) };
        Error::system(libc::EIO, why.to_string())
    }
}

impl AsksStore for RemoteStore {
    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer> {
        let watch = Stopwatch::start();
        let is_write = matches!(request, StoreRequest::Write(_));
        let ask = Ask::Store(self.slot, request);
        loop {
            let connection = self.connection()?;
            let unsure = match connection.ask(&ask, sent, into) {
                Ok(Reply::Store(answer)) => return Ok(answer),
                Ok(other) => return wrong(&other),
                Err(Failure::Told(why)) if connection.is_broken() => {
                    let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    return Err(state.goes_down(&why, 0));
                }
                Err(Failure::Told(Error::Damaged { path, at })) => {
                    let path = Location { node: self.node.clone(), directory: path }.to_string().into();
                    return Err(Error::Damaged { path, at });
                }
                Err(Failure::Told(why)) => return Err(why),
                Err(failure) => matches!(failure, Failure::Unanswered),
            };
            if unsure && is_write {
                let what = format!("{} ended before it answered a write", self.what);
                return Err(Error::system(libc::EIO, what));
            }
            if watch.ns() > PATIENCE.as_nanos() as u64 {
                return Err(Error::system(libc::EIO, format!("{} ends again and again", self.what)));
            }
        }
    }
}

/// The directory of a part of a volume on a node.
pub(crate) fn directory(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(Error::Refused(format!("{text} is not an absolute path"))) }
}

//! A volume through the process that serves it: this one or another, or through a node.
//!
//! Model: [`Reach`] finds the server of the volume. On one machine, the process that locks the manager's directory
//! serves it, and all others attach to its socket. When that process ends, the first of the others that takes the lock
//! serves the volume. Each client tells the new server which files it has open, and these stay open. A client repeats a
//! request if that does no harm, or if the request was never sent.
//! Invariant: a change that a killed server may have carried out is not made a second time. The creation of a name is
//! repeated: if the name is then taken, the request fails, since it is unknown whether this client made it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_io::{File, small};

use crate::callers::Turns;
use crate::client::Answers;
use crate::connection::{Connection, Failure, PATIENCE};
use crate::manager::Change;
use crate::message::{Ask, Reply};
use crate::reached::{AsksStore, wrong};
use crate::request::{Answer, ChangeNumber, LockAnswer, Request, StoreAnswer, StoreRequest};
use crate::serve::{self, Listener};
use crate::server::Server;
use crate::session::{Answering, OwnSession};
use crate::store::Store;
use crate::stores::Slot;
use crate::{Error, Result, place};

/// Each client in another process has a shared lock on this file.
pub(crate) const CLIENTS: &str = "clients";
/// How long to wait between two attempts to find a server.
const MOMENT: Duration = Duration::from_millis(5);
/// How long there is no new search after one has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells other processes of this machine that there is a client. A client keeps it from one server to the next, which
/// otherwise would take itself for alone.
pub(crate) type Mark = Option<small::Locked>;

/// Finds the server of a volume.
pub(crate) trait Reach: Send + Sync {
    /// Returns the way there, and why the store of each slot is lost, if it is. The client reopens its files itself.
    /// `mark` is that of the previous way, and stays if this fails.
    fn reach(&self, has_open: bool, mark: &mut Mark) -> Result<(Way, Vec<Option<String>>)>;
}

/// On this machine: this process, if it can lock the manager's directory, or else the process that has it locked.
struct ByLock {
    name: String,
    meta: PathBuf,
    turns: Turns,
}

impl Reach for ByLock {
    fn reach(&self, has_open: bool, mark: &mut Mark) -> Result<(Way, Vec<Option<String>>)> {
        reach(self, has_open, mark)
    }
}

/// A volume that this process or another one serves.
pub(crate) struct Attachment {
    name: String,
    reach: Box<dyn Reach>,
    /// The way to the server, and how often it has changed.
    way: RwLock<(u64, Arc<Way>)>,
    /// Held by the thread that looks for another way; the time of the last failure, and its cause.
    changing: Mutex<Option<(u64, String)>>,
    /// Open files, and whether they may be written.
    open: Mutex<BTreeMap<u64, bool>>,
    /// How often the way had changed when it was last asked for news.
    heard: AtomicU64,
    /// Whether this client has begun a repair.
    repairs: AtomicBool,
}

/// The way to the server of a volume.
pub(crate) enum Way {
    Here(Here),
    There(Connection, Mutex<Mark>),
}

/// The server in this process. Fields are dropped in their order.
pub(crate) struct Here {
    _listener: Listener,
    session: OwnSession,
}

impl Attachment {
    /// Serves the volume with this manager, or attaches to its server. Also returns the slots of its stores.
    pub(crate) fn new(meta: &Path, name: &str) -> Result<(Arc<Attachment>, Vec<Slot>)> {
        let by_lock = ByLock { name: name.into(), meta: meta.into(), turns: Turns::new() };
        let (attachment, lost) = Attachment::by(Box::new(by_lock), name)?;
        let slot = |(slot, lost): (u32, Option<String>)| match lost {
            Some(why) => Err(why),
            None => Ok(Arc::new(Reached { attachment: Arc::clone(&attachment), slot }) as Arc<dyn Store>),
        };
        let slots = (0..).zip(lost).map(slot).collect();
        Ok((attachment, slots))
    }

    /// Attaches to the server of the volume. Also returns why the store of each slot is lost, if it is.
    pub(crate) fn by(reach: Box<dyn Reach>, name: &str) -> Result<(Arc<Attachment>, Vec<Option<String>>)> {
        let (way, lost) = reach.reach(false, &mut None)?;
        let attachment = Attachment {
            name: name.into(),
            reach,
            way: RwLock::new((0, Arc::new(way))),
            changing: Mutex::default(),
            open: Mutex::default(),
            heard: AtomicU64::new(0),
            repairs: AtomicBool::new(false),
        };
        Ok((Arc::new(attachment), lost))
    }

    fn way(&self) -> (u64, Arc<Way>) {
        self.way.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, bool>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the server of the volume, and again to the next one if the server ends.
    fn ask(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        let unknown = || self.lost("ended before it answered; whether the change was made is not known");
        let (begun_ns, mut may_be_made) = (now_ns(), false);
        loop {
            let (turn, way) = self.way();
            let failure = match way.ask(ask, sent, into) {
                Ok(reply) => return Ok(reply),
                Err(Failure::Told(why)) if may_be_made && why.errno() == libc::EEXIST => {
                    return Err(unknown());
                }
                Err(Failure::Told(why)) => return Err(why),
                Err(failure) => failure,
            };
            self.reach_again(turn, &way, begun_ns)?;
            if matches!(failure, Failure::Unanswered) {
                match twice(ask) {
                    Twice::Harmless => {}
                    Twice::Refused => may_be_made = true,
                    Twice::Harmful => return Err(unknown()),
                }
            }
            if now_ns() - begun_ns > PATIENCE.as_nanos() as u64 {
                return Err(self.lost("ends again and again"));
            }
        }
    }

    fn lost(&self, what: &str) -> Error {
        Error::system(libc::EIO, format!("the process that served volume {} {what}", self.name))
    }

    /// Finds the current server of the volume, and tells it what is open here, and whether this client repairs. A request
    /// does not search if a search has failed since it began, or a moment ago: it would wait as long as all those before
    /// it together.
    fn reach_again(&self, turn: u64, old: &Way, begun_ns: u64) -> Result<()> {
        let mut failed = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.way().0 != turn {
            return Ok(());
        }
        let is_new = |at_ns: u64| at_ns >= begun_ns || now_ns() - at_ns < PAUSE.as_nanos() as u64;
        if let Some((_, why)) = failed.as_ref().filter(|(at_ns, _)| is_new(*at_ns)) {
            return Err(Error::Refused(why.clone()));
        }
        let open = self.open().clone();
        let reached = match old {
            Way::There(_, mark) => {
                let mut mark = mark.lock().unwrap_or_else(PoisonError::into_inner);
                self.reach.reach(!open.is_empty(), &mut mark)
            }
            Way::Here(_) => self.reach.reach(!open.is_empty(), &mut None),
        };
        let (way, _) = reached.inspect_err(|why| *failed = Some((now_ns(), why.to_string())))?;
        let tell = |request| way.ask(&Ask::Manager(request), &[], &mut []);
        if self.repairs.load(Ordering::Relaxed) {
            // If another client repairs by now, this one's next fence fails.
            let _ = tell(Request::Repair);
        }
        for (inode, may_write) in open {
            // If a file cannot be reopened, its next use fails.
            let _ = tell(Request::Open(inode));
            if may_write {
                let _ = tell(Request::Change(Change::Unsettle(inode)));
            }
        }
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = (turn + 1, Arc::new(way));
        Ok(())
    }
}

/// Marks files as changed by the last change of the way to the server, if the server knows of no change since they were
/// opened: it does not know what happened before they were reopened.
fn since_reopened(answer: &mut Answer, way_changes: u64) {
    let changed = |change: &mut ChangeNumber| *change = if *change == 0 { way_changes } else { *change };
    match answer {
        Answer::Lock(LockAnswer::Verdict(_, change)) => changed(change),
        Answer::Lock(LockAnswer::News(news)) => news.iter_mut().for_each(|(_, (_, change))| changed(change)),
        _ => {}
    }
}

/// The effect of carrying out a request twice.
enum Twice {
    /// The same as once.
    Harmless,
    /// The second one fails because the name is taken, and changes nothing.
    Refused,
    /// The second one may remove a name that another client has made in the meantime.
    Harmful,
}

fn twice(ask: &Ask) -> Twice {
    match ask {
        Ask::Manager(Request::Change(Change::Create(..) | Change::Link(..)) | Request::Make(..)) => {
            Twice::Refused
        }
        Ask::Manager(Request::Change(Change::Remove(..) | Change::Rename(..))) => Twice::Harmful,
        _ => Twice::Harmless,
    }
}

/// Serves the volume, or attaches to its server. Also returns why the store of each slot is lost, if it is. The client
/// reopens its files itself.
fn reach(by: &ByLock, has_open: bool, mark: &mut Mark) -> Result<(Way, Vec<Option<String>>)> {
    let ByLock { name, meta, turns } = by;
    let watch = Stopwatch::start();
    loop {
        if let Some(lock) = place::try_lock(meta)? {
            // Otherwise this process would count as another client.
            *mark = None;
            return serve(meta, lock, has_open)
                .inspect_err(|_| *mark = small::lock_shared(&meta.join(CLIENTS)).ok());
        }
        // A process that only wants to become a client does not count yet.
        let new = mark.is_none().then(|| small::lock_shared(&meta.join(CLIENTS))).transpose()?;
        if let Some((connection, lost)) = serve::connect(meta, name, turns)? {
            return Ok((Way::There(connection, Mutex::new(new.or_else(|| mark.take()))), lost));
        }
        drop(new);
        if watch.ns() > PATIENCE.as_nanos() as u64 {
            return Err(place::in_use(meta, name)?);
        }
        // The process with the lock is starting to serve, or is ending.
        std::thread::park_timeout(MOMENT);
    }
}

fn serve(meta: &Path, lock: File, has_open: bool) -> Result<(Way, Vec<Option<String>>)> {
    let is_alone = small::try_lock(&meta.join(CLIENTS))?.is_some() && !has_open;
    let (manager, stores, _) = place::parts(meta)?;
    let server = Server::start(manager, Arc::new(stores), is_alone, Some(lock))?;
    let lost = server.stores.lost();
    let listener = Listener::start(meta, &server)?;
    server.heal();
    let session = OwnSession::begin(&server);
    Ok((Way::Here(Here { _listener: listener, session }), lost))
}

impl Way {
    fn ask(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> std::result::Result<Reply, Failure> {
        let here = match self {
            Way::There(connection, _) => return connection.ask(ask, sent, into),
            Way::Here(here) => here,
        };
        here.session.as_session().answer(ask, sent, into).map_err(Failure::Told)
    }
}

impl Answers for Arc<Attachment> {
    fn answer(&self, request: &Request) -> Result<Answer> {
        let mut asked = request.clone();
        if let Request::News(since) = &mut asked {
            let turn = self.way().0;
            if self.heard.swap(turn, Ordering::Relaxed) != turn {
                // What happened until the files were reopened is not known there.
                *since = 0;
            }
        }
        let mut answer = match self.ask(&Ask::Manager(asked), &[], &mut [])? {
            Reply::Manager(answer) => answer,
            other => return wrong(&other),
        };
        match request {
            Request::Make(_, _, may_write) => {
                answer.inodes().for_each(|made| _ = self.open().insert(made.id, *may_write));
            }
            Request::Repair => self.repairs.store(true, Ordering::Relaxed),
            Request::Open(inode) => _ = self.open().insert(*inode, false),
            Request::Close(inode, ..) => _ = self.open().remove(inode),
            Request::Change(Change::Unsettle(inode)) => _ = self.open().insert(*inode, true),
            Request::Change(Change::Settle(written, _)) => {
                self.open().entry(written.inode).and_modify(|may_write| *may_write = false);
            }
            Request::Lock { .. } => since_reopened(&mut answer, self.way().0),
            _ => {}
        }
        Ok(answer)
    }
}

/// The store of a slot, through the server of the volume.
struct Reached {
    attachment: Arc<Attachment>,
    slot: u32,
}

impl AsksStore for Reached {
    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer> {
        match self.attachment.ask(&Ask::Store(self.slot, request), sent, into)? {
            Reply::Store(answer) => Ok(answer),
            other => wrong(&other),
        }
    }
}

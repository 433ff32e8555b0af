//! A volume served to other processes of its user: a socket in the directory of its manager.
//!
//! Model: each connection is a session. A few threads take its requests in turn, and each carries out what it took and answers,
//! so slow requests do not hold up the others.
//! Invariant: only processes of the same user are let in. When the server ends well, what it has read it answers, and what
//! clients have open stays as it is for whoever serves next.
//! Non-goals: other machines.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thalweg_base::clock::Stopwatch;
use thalweg_io::small;

use crate::connection::{Connection, PATIENCE, Receive};
use crate::message::{Ask, Head, Reply, VERSION, send};
use crate::request::{StoreAnswer, StoreRequest};
use crate::server::{GONE, Server, SessionId};
use crate::store::Store;
use crate::{Error, Result};

const SOCKET: &str = "socket";
/// Requests of one client that are carried out at a time.
const WORKERS: usize = 8;
/// How long to wait after a client could not be let in.
const MOMENT: Duration = Duration::from_millis(10);
/// How long clients of a server that is gone have to come to the next one.
const GRACE: Duration = PATIENCE;

/// Serves a volume while it lives.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: Arc<Server>,
    socket: UnixListener,
    is_closing: AtomicBool,
    clients: Mutex<Vec<(UnixStream, JoinHandle<()>)>>,
}

/// The path of the socket of a directory, however long that one's name is: a socket's has at most 108 bytes.
fn socket(meta: &Path) -> Result<(std::fs::File, PathBuf)> {
    let directory = small::open(meta)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    Ok((directory, path.into()))
}

/// Waits until something can be read.
fn readable(socket: impl AsFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        polled => Ok(polled? > 0),
    }
}

impl Receive for UnixStream {
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        readable(self, patience)
    }
}

fn is_own(peer: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(peer).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Connects to whoever serves the volume of this manager; why the store of each slot is lost, if it is. Nothing if nobody
/// serves it now.
pub(crate) fn connect(meta: &Path, name: &str) -> Result<Option<(Connection, Vec<Option<String>>)>> {
    let (_directory, path) = socket(meta)?;
    let Ok(stream) = UnixStream::connect(&path) else { return Ok(None) };
    let prepared =
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    let (Ok(()), Ok(from), true) = (prepared, stream.try_clone(), is_own(&stream)) else { return Ok(None) };
    let connection = Connection::new(name, Box::new(from), Box::new(stream));
    match connection.ask(&Ask::Attach(VERSION), &[], &mut []) {
        Ok(Reply::Attached(slots)) => Ok(Some((connection, slots))),
        Err(crate::connection::Failure::Told(why)) => Err(why),
        _ => Ok(None),
    }
}

impl Listener {
    /// Begins to serve. Clients of a server before may come within a grace period, if there are any.
    pub(crate) fn start(meta: &Path, server: &Arc<Server>, may_come: bool) -> Result<Listener> {
        let failed = |e| Error::Io(thalweg_io::Error::new(thalweg_io::Action::Create, meta.join(SOCKET), e));
        match small::remove(&meta.join(SOCKET)) {
            Err(e) if e.source.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let (_directory, path) = socket(meta)?;
        let socket = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let shared = Arc::new(Shared {
            server: Arc::clone(server),
            socket,
            is_closing: AtomicBool::new(false),
            clients: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("volume".into());
            builder.spawn(move || shared.accept(may_come)).map_err(failed)?
        };
        Ok(Listener { shared, accepting: Some(accepting) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        let clients = std::mem::take(&mut *self.shared.clients());
        // What was sent until now is read and answered.
        clients.iter().for_each(|(stream, _)| _ = stream.shutdown(Shutdown::Read));
        clients.into_iter().for_each(|(_, serving)| _ = serving.join());
    }
}

impl Shared {
    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<(UnixStream, JoinHandle<()>)>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Shared>, may_come: bool) {
        let watch = Stopwatch::start();
        let mut grace = may_come.then_some(GRACE);
        while !self.is_closing.load(Ordering::Acquire) {
            let left = grace.map(|grace| grace.saturating_sub(Duration::from_nanos(watch.ns())));
            if left.is_some_and(|left| left.is_zero()) {
                grace = None;
                self.server.end(GONE);
            }
            // Closing the socket wakes it.
            let Ok(true) = readable(&self.socket, left.unwrap_or(Duration::from_secs(3600))) else {
                continue;
            };
            let accepted = self.socket.accept().and_then(|(stream, _)| Ok((stream.try_clone()?, stream)));
            let Ok((kept, stream)) = accepted else {
                // Too many files are open, say.
                std::thread::park_timeout(MOMENT);
                continue;
            };
            let shared = Arc::clone(&self);
            let serving =
                std::thread::Builder::new().name("client".into()).spawn(move || shared.serve(stream));
            let mut clients = self.clients();
            clients.retain(|(_, serving)| !serving.is_finished());
            clients.extend(serving.ok().map(|serving| (kept, serving)));
        }
    }

    fn serve(&self, stream: UnixStream) {
        let Ok(mut to) = stream.try_clone() else { return };
        let mut from = stream;
        if !is_own(&from) || to.set_write_timeout(Some(PATIENCE)).is_err() {
            return;
        }
        let Ok(Some(first)) = Head::read(&mut from) else { return };
        let reply = match Ask::decode(&first.body) {
            Some(Ask::Attach(VERSION)) => {
                let lost = self.server.stores.slots().iter().map(|slot| slot.as_ref().err().cloned());
                Reply::Attached(lost.collect())
            }
            Some(Ask::Attach(version)) => {
                let why = format!("the volume is served in version {VERSION} of its protocol, not {version}");
                Reply::Failed(Error::Refused(why).into())
            }
            _ => return,
        };
        if send(&mut to, first.number, &reply, &[]).is_err() || !matches!(reply, Reply::Attached(_)) {
            return;
        }
        let session = self.server.begin();
        let (from, to) = (Mutex::new(Some(from)), Mutex::new(to));
        std::thread::scope(|scope| {
            let work = || {
                // A request that panics ends the connection, and no other.
                if catch_unwind(AssertUnwindSafe(|| self.work(session, &from, &to))).is_err() {
                    let stream = to.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = stream.shutdown(Shutdown::Both);
                }
            };
            for _ in 1..WORKERS {
                let _ = std::thread::Builder::new().name("client".into()).spawn_scoped(scope, work);
            }
            work();
        });
        if !self.is_closing.load(Ordering::Acquire) {
            self.server.end(session);
        }
    }

    /// Takes requests and answers them until there are no more.
    fn work(&self, session: SessionId, from: &Mutex<Option<UnixStream>>, to: &Mutex<UnixStream>) {
        let (mut sent, mut data) = (Vec::new(), Vec::new());
        loop {
            let (number, ask) = {
                let mut from = from.lock().unwrap_or_else(PoisonError::into_inner);
                match from.as_mut().map(|from| next(from, &mut sent)) {
                    Some(Ok(Some(next))) => next,
                    _ => {
                        *from = None;
                        return;
                    }
                }
            };
            data.clear();
            let reply = self.carry_out(session, &ask, &sent, &mut data);
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            let answered = match send(&mut *to, number, &reply, &data) {
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    let why = Error::Refused(format!("the answer is too long: {e}"));
                    send(&mut *to, number, &Reply::Failed(why.into()), &[])
                }
                answered => answered,
            };
            if answered.is_err() {
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    fn carry_out(&self, session: SessionId, ask: &Ask, sent: &[u8], data: &mut Vec<u8>) -> Reply {
        if let Ask::Store(_, StoreRequest::Read { bytes, .. }) = ask {
            data.resize(*bytes as usize, 0);
        }
        let answered = match ask {
            Ask::Attach(_) => Err(Error::Refused("this connection is attached already".into())),
            Ask::Manager(request) => self.server.answer(session, request).map(Reply::Manager),
            Ask::Store(slot, request) => match self.server.stores.slots().get(*slot as usize) {
                Some(Ok(store)) => ask_store(&**store, request, sent, data).map(Reply::Store),
                Some(Err(why)) => Err(Error::Refused(why.clone())),
                None => Err(Error::Refused(format!("the volume has no slot {slot}"))),
            },
        };
        answered.unwrap_or_else(|why| {
            data.clear();
            Reply::Failed(why.into())
        })
    }
}

/// The next request, and the bytes that go with it.
fn next(from: &mut UnixStream, sent: &mut Vec<u8>) -> io::Result<Option<(u64, Ask)>> {
    let Some(head) = Head::read(from)? else { return Ok(None) };
    sent.resize(head.data_bytes, 0);
    from.read_exact(sent)?;
    let ask = Ask::decode(&head.body).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((head.number, ask)))
}

/// Has a store carry out a request. What is read fills `into`.
pub(crate) fn ask_store(
    store: &dyn Store,
    request: &StoreRequest,
    sent: &[u8],
    into: &mut [u8],
) -> Result<StoreAnswer> {
    Ok(match request {
        StoreRequest::Read { strip, generation, at, .. } => {
            store.read(*strip, *generation, *at, into)?;
            StoreAnswer::Done
        }
        StoreRequest::Write(write) => {
            store.write(write, sent)?;
            StoreAnswer::Done
        }
        StoreRequest::Truncate { strip, generation, len } => {
            store.truncate(*strip, *generation, *len)?;
            StoreAnswer::Done
        }
        StoreRequest::NextData { strip, generation, at } => {
            let data = store.next_data(*strip, *generation, *at)?;
            StoreAnswer::Data(data.map(|data| (data.start, data.end)))
        }
        StoreRequest::Sync(strip) => {
            store.sync(*strip)?;
            StoreAnswer::Done
        }
        StoreRequest::Remove(strip) => {
            store.remove(*strip)?;
            StoreAnswer::Done
        }
        StoreRequest::Facts(strip) => StoreAnswer::Facts(store.facts(*strip)?),
        StoreRequest::List => StoreAnswer::Strips(store.list()?),
        StoreRequest::Space => StoreAnswer::Space(store.space()?),
    })
}

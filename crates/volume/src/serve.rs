//! Serves a volume to other processes of its user, through a socket in the directory of its manager.
//!
//! Model: each connection is a session of the server; session.rs answers its requests.
//! Invariant: only processes of the same user are let in. When the server ends in order, it answers all requests that
//! it has read, and the clients' open files stay as they are for the next server.
//! Non-goals: other machines.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thalweg_io::small;

use crate::callers::{Callers, Turns};
use crate::connection::{Connection, PATIENCE, Receive};
use crate::message::{Ask, Reply, VERSION};
use crate::server::Server;
use crate::session::{Session, converse};
use crate::{Error, Result};

const SOCKET: &str = "socket";
/// How long to wait after a client could not be accepted.
const MOMENT: Duration = Duration::from_millis(10);
/// How long a single wait for a client lasts.
const HOUR: Duration = Duration::from_secs(3600);

/// Serves a volume until it is dropped.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: Arc<Server>,
    socket: UnixListener,
    callers: Arc<Callers>,
    is_closing: AtomicBool,
    clients: Mutex<Vec<(UnixStream, JoinHandle<()>)>>,
}

/// The path of a directory's socket, through `/proc`: the path of a socket has at most 108 bytes.
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

/// Connects to the server of this manager's volume. Also returns why the store of each slot is lost, if it is. `None`
/// if no process serves the volume now.
pub(crate) fn connect(
    meta: &Path,
    name: &str,
    turns: &Turns,
) -> Result<Option<(Connection, Vec<Option<String>>)>> {
    let (_directory, path) = socket(meta)?;
    let Ok(stream) = UnixStream::connect(&path) else { return Ok(None) };
    let prepared =
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    let (Ok(()), Ok(from), true) = (prepared, stream.try_clone(), is_own(&stream)) else { return Ok(None) };
    let connection = Connection::new(&format!("volume {name}"), Box::new(from), Box::new(stream));
    match connection.ask(&Ask::Attach(VERSION, turns.next()), &[], &mut []) {
        Ok(Reply::Attached(attached)) => Ok(Some((connection, attached.lost))),
        Err(crate::connection::Failure::Told(why)) => Err(why),
        _ => Ok(None),
    }
}

impl Listener {
    /// Starts to serve.
    pub(crate) fn start(meta: &Path, server: &Arc<Server>) -> Result<Listener> {
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
            callers: Arc::default(),
            is_closing: AtomicBool::new(false),
            clients: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("volume".into());
            builder.spawn(move || shared.accept()).map_err(failed)?
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
        self.shared.server.healer.end();
        self.shared.server.leases.close();
        let clients = std::mem::take(&mut *self.shared.clients());
        // Requests that have arrived are read and answered.
        clients.iter().for_each(|(stream, _)| _ = stream.shutdown(Shutdown::Read));
        clients.into_iter().for_each(|(_, serving)| _ = serving.join());
    }
}

impl Shared {
    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<(UnixStream, JoinHandle<()>)>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Shared>) {
        while !self.is_closing.load(Ordering::Acquire) {
            // Closing the socket wakes this thread.
            let Ok(true) = readable(&self.socket, HOUR) else { continue };
            let accepted = self.socket.accept().and_then(|(stream, _)| Ok((stream.try_clone()?, stream)));
            let Ok((kept, stream)) = accepted else {
                // For example because too many files are open.
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
        if !is_own(&stream) || stream.set_write_timeout(Some(PATIENCE)).is_err() {
            return;
        }
        let (Ok(from), Ok(to)) = (stream.try_clone(), stream.try_clone()) else { return };
        let session = self.server.begin();
        let shut = || _ = stream.shutdown(Shutdown::Both);
        let answering = Session { server: &self.server, session };
        // Only processes of this user connect here.
        converse(&answering, (&self.callers, ""), (Box::new(from), Box::new(to)), (&shut, None));
        if !self.is_closing.load(Ordering::Acquire) {
            self.server.end_for_good(session);
        }
    }
}

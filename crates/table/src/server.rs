//! A server for Redis clients: sockets, and the one thread that carries out what comes from them.
//!
//! Model: one thread waits for sockets that are ready, and takes turns with those that are. In its turn a client's requests are
//! carried out in order until no more have come, or until it does not read its replies.
//! Invariant: a client holds at most one request and one reply beyond [`BACKLOG_BYTES`]; all together hold at most
//! [`BUFFERS_BYTES_MAX`]. Who sends what is no request, or may not be answered, is told why and disconnected.
//! Non-goals: what commands do.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::fs::{FileType, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use thalweg_base::clock;

use crate::call::{Session, Shared};
use crate::commands::run;
use crate::error::Refusal;
use crate::keyspace::Keyspace;
use crate::resp::{Parsed, Reply, parse};

/// The most clients at a time.
const CLIENTS_MAX: usize = 10_000;
/// Replies that a client has not read, above which none of its requests are carried out.
const BACKLOG_BYTES: usize = 1 << 20;
/// What all clients' requests and replies may take, beside the memory for records.
const BUFFERS_BYTES_MAX: usize = 256 << 20;
/// The most bytes of a client that has not given the password.
const STRANGER_BYTES_MAX: usize = 16 << 10;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Buffers that are larger are given back when they are empty.
const SMALL_BYTES: usize = 64 << 10;
/// Reads of one client in its turn.
const READS_A_TURN: usize = 16;
/// How often keys that have ended are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
const EVENTS_MAX: usize = 1024;
const LISTEN_BACKLOG: i32 = 511;
/// The least memory that makes sense.
const MEMORY_MIN: usize = 1 << 20;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At an address of this machine.
    Tcp(SocketAddr),
    /// At a socket in the file system, for this user only.
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => write!(f, "{address}"),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    /// `ADDRESS:PORT` of the loopback interface, or `unix:PATH`.
    fn from_str(typed: &str) -> Result<Place, Error> {
        if let Some(path) = typed.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Place::Unix(path.into()));
        }
        let address: SocketAddr = typed.parse().map_err(|_| Error::NoPlace(typed.into()))?;
        if !address.ip().is_loopback() {
            return Err(Error::Reachable(address));
        }
        Ok(Place::Tcp(address))
    }
}

/// What a server is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub place: Place,
    /// Bytes for records and what orders them.
    pub memory: usize,
    /// What clients have to know.
    pub password: Option<Vec<u8>>,
}

/// Why there is no server, or no more.
#[derive(Debug)]
pub enum Error {
    /// Not a place.
    NoPlace(String),
    /// Other machines could reach this address.
    Reachable(SocketAddr),
    /// Too little memory; so many bytes are given.
    LittleMemory(usize),
    /// Somebody listens there, or something else is there.
    Taken(Place),
    /// The system refused it.
    System {
        /// What was done.
        what: &'static str,
        /// Where.
        place: Place,
        /// Why not.
        why: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoPlace(typed) => {
                write!(
                    f,
                    "'{typed}' is no place to listen: write ADDRESS:PORT, as in 127.0.0.1:6379, or unix:PATH"
                )
            }
            Error::Reachable(address) => write!(
                f,
                "other machines could reach {address}, and what clients send is not encrypted: listen on 127.0.0.1 or unix:PATH"
            ),
            Error::LittleMemory(bytes) => {
                write!(f, "{bytes} bytes of memory are too little: give at least 1 MiB")
            }
            Error::Taken(place) => {
                write!(f, "{place} is taken: another program listens there, or a file is there")
            }
            Error::System { what, place, why } => write!(f, "cannot {what} {place}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// Lets the server end before its next request.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        // A thread that cannot be woken sees the flag at the next event.
        let _ = self.waker.wake();
    }
}

/// A server that listens.
pub struct Server {
    poll: Poll,
    listener: Listener,
    place: Place,
    stop: Stop,
    clients: Vec<Option<Client>>,
    vacant: Vec<usize>,
    /// Clients whose turn ended before their requests did.
    again: Vec<usize>,
    /// Connections may wait that could not be accepted.
    accept_again: bool,
    shared: Shared,
    /// Bytes of all buffers.
    buffered: usize,
    scratch: Box<[u8]>,
    parsed: Parsed,
    last_client: u64,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(into),
            Socket::Unix(socket) => socket.read(into),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(from),
            Socket::Unix(socket) => socket.write(from),
        }
    }
}

struct Client {
    socket: Socket,
    session: Session,
    /// What came, and how much of it was carried out.
    input: Vec<u8>,
    done: usize,
    /// Replies, and how much of them was sent.
    output: Vec<u8>,
    sent: usize,
}

/// What becomes of a client after its turn.
enum Fate {
    /// It has to wait for the socket.
    Waits,
    /// It has more to do.
    GoesOn,
    Ends,
}

impl Server {
    /// Listens.
    pub fn bind(options: Options) -> Result<Server, Error> {
        let Options { place, memory, password } = options;
        if memory < MEMORY_MIN {
            return Err(Error::LittleMemory(memory));
        }
        let system = |what| {
            let place = place.clone();
            move |why: io::Error| Error::System { what, place, why }
        };
        let poll = Poll::new().map_err(system("wait for clients of"))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(system("wait for clients of"))?;
        let (mut listener, place) = match &place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(*address).map_err(|why| match why.kind() {
                    io::ErrorKind::AddrInUse => Error::Taken(place.clone()),
                    _ => system("listen on")(why),
                })?;
                let address = listener.local_addr().map_err(system("listen on"))?;
                (Listener::Tcp(listener), Place::Tcp(address))
            }
            Place::Unix(path) => (Listener::Unix(bind_unix(path)?), place.clone()),
        };
        let source: &mut dyn Source = match &mut listener {
            Listener::Tcp(listener) => listener,
            Listener::Unix(listener) => listener,
        };
        poll.registry().register(source, LISTENER, Interest::READABLE).map_err(system("listen on"))?;
        let mut keyspace = Keyspace::new(memory).map_err(|_| Error::LittleMemory(memory))?;
        keyspace.now_ms = now_ms();
        let started_ms = keyspace.now_ms;
        Ok(Server {
            poll,
            listener,
            place,
            stop: Stop { flag: Arc::default(), waker: Arc::new(waker) },
            clients: Vec::new(),
            vacant: Vec::new(),
            again: Vec::new(),
            accept_again: false,
            shared: Shared::new(keyspace, password, started_ms),
            buffered: 0,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            parsed: Parsed::default(),
            last_client: 0,
        })
    }

    /// Where it listens; of port 0, the port that it has.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped.
    pub fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut swept_ms = now_ms();
        while !self.stop.flag.load(Ordering::Acquire) {
            let patience = match (self.again.is_empty(), self.shared.keyspace.may_end() || self.accept_again)
            {
                (false, _) => Some(Duration::ZERO),
                (true, true) => Some(SWEEP_EVERY),
                (true, false) => None,
            };
            match self.poll.poll(&mut events, patience) {
                Err(why) if why.kind() != io::ErrorKind::Interrupted => {
                    return Err(Error::System {
                        what: "wait for clients of",
                        place: self.place.clone(),
                        why,
                    });
                }
                _ => {}
            }
            let now = now_ms();
            self.shared.keyspace.now_ms = now;
            if now - swept_ms >= SWEEP_EVERY.as_millis() as i64 {
                self.shared.keyspace.sweep();
                swept_ms = now;
            }
            let again = std::mem::take(&mut self.again);
            again.into_iter().for_each(|number| self.turn(number));
            for event in &events {
                match event.token() {
                    LISTENER => self.accept_again = true,
                    WAKER => {}
                    Token(number) => self.turn(number),
                }
            }
            if self.accept_again {
                self.accept_again = self.accept();
            }
        }
        Ok(())
    }

    /// Accepts whoever waits; whether some may wait whom the system does not let in now.
    fn accept(&mut self) -> bool {
        loop {
            let accepted = match &self.listener {
                Listener::Tcp(listener) => listener.accept().map(|(socket, _)| {
                    // A reply is small, and waits for nothing.
                    let _ = socket.set_nodelay(true);
                    Socket::Tcp(socket)
                }),
                Listener::Unix(listener) => listener.accept().map(|(socket, _)| Socket::Unix(socket)),
            };
            match accepted {
                Ok(socket) => self.welcome(socket),
                Err(why) => match why.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return true,
                },
            }
        }
    }

    fn welcome(&mut self, mut socket: Socket) {
        if self.shared.clients >= CLIENTS_MAX {
            // It is told if it can be told at once.
            let _ = socket.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let number = self.vacant.last().copied().unwrap_or(self.clients.len());
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(socket.source(), Token(number), interest).is_err() {
            return;
        }
        self.last_client += 1;
        let session = Session::new(self.last_client, &self.shared);
        let client = Client { socket, session, input: Vec::new(), done: 0, output: Vec::new(), sent: 0 };
        match self.vacant.pop() {
            Some(number) => self.clients[number] = Some(client),
            None => self.clients.push(Some(client)),
        }
        self.shared.clients += 1;
        self.again.push(number);
    }

    fn turn(&mut self, number: usize) {
        let Some(mut client) = self.clients.get_mut(number).and_then(Option::take) else { return };
        let before = client.buffered();
        let mut fate = self.serve(&mut client);
        client.shrink();
        self.buffered = self.buffered + client.buffered() - before;
        if self.buffered > BUFFERS_BYTES_MAX && client.buffered() > SMALL_BYTES {
            // It is the one that has just got more.
            let _ = client.socket.write(format!("-{}\r\n", Refusal::Full).as_bytes());
            fate = Fate::Ends;
        }
        match fate {
            Fate::Ends => {
                self.buffered -= client.buffered();
                client.session.unwatch(&mut self.shared.keyspace);
                // Dropping the socket takes it out of the poll, whatever this says.
                let _ = self.poll.registry().deregister(client.socket.source());
                self.vacant.push(number);
                self.shared.clients -= 1;
            }
            Fate::Waits => self.clients[number] = Some(client),
            Fate::GoesOn => {
                self.clients[number] = Some(client);
                self.again.push(number);
            }
        }
    }

    fn serve(&mut self, client: &mut Client) -> Fate {
        for _ in 0..READS_A_TURN {
            self.carry_out(client);
            match client.send() {
                Ok(true) => {}
                Ok(false) if client.backlog() > BACKLOG_BYTES || client.session.ends => return Fate::Waits,
                Ok(false) => {}
                Err(_) => return Fate::Ends,
            }
            if client.session.ends {
                return Fate::Ends;
            }
            match client.socket.read(&mut self.scratch) {
                Ok(0) if client.backlog() == 0 => return Fate::Ends,
                Ok(0) => {
                    client.session.ends = true;
                    return Fate::Waits;
                }
                Ok(n) => client.input.extend_from_slice(&self.scratch[..n]),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Fate::Waits,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Fate::Ends,
            }
        }
        Fate::GoesOn
    }

    /// Carries out what is there whole, until the client has too much to read.
    fn carry_out(&mut self, client: &mut Client) {
        let Client { input, done, output, session, .. } = client;
        while !session.ends && output.len() - client.sent <= BACKLOG_BYTES {
            let rest = &input[*done..];
            match parse(rest, &mut self.parsed) {
                Ok(true) => {
                    let arguments: Vec<&[u8]> =
                        self.parsed.arguments.iter().map(|at| &rest[at.clone()]).collect();
                    if !arguments.is_empty() {
                        run(&mut self.shared, session, &arguments, output);
                    }
                    *done += self.parsed.bytes;
                }
                Ok(false) => {
                    // A request of anybody else is as long as one may be, or was refused.
                    if !session.may && rest.len() > STRANGER_BYTES_MAX {
                        Reply::new(output, 2).error(&Refusal::NoPassword.to_string());
                        session.ends = true;
                    }
                    break;
                }
                Err(why) => {
                    Reply::new(output, 2).error(why.words());
                    session.ends = true;
                }
            }
        }
        if *done == input.len() {
            input.clear();
            *done = 0;
        } else if *done > READ_BYTES {
            input.drain(..*done);
            *done = 0;
        }
    }
}

impl Client {
    fn backlog(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Bytes that its buffers take.
    fn buffered(&self) -> usize {
        self.input.capacity() + self.output.capacity() + self.session.held_bytes()
    }

    /// Sends what the socket takes; whether that is all.
    fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    fn shrink(&mut self) {
        for buffer in [&mut self.input, &mut self.output] {
            if buffer.is_empty() && buffer.capacity() > SMALL_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Place::Unix(path) = &self.place {
            // Whoever listens there next removes it otherwise.
            let _ = rustix::fs::unlink(path);
        }
    }
}

/// A socket in the file system that only this user can connect to, from its first moment on.
fn bind_unix(path: &Path) -> Result<UnixListener, Error> {
    let place = || Place::Unix(path.into());
    let failed =
        |why: rustix::io::Errno| Error::System { what: "listen on", place: place(), why: why.into() };
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes()).map_err(failed)?;
    let bind = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        // The file that bind makes has the mode of the socket.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &address)?;
        Ok(socket)
    };
    let socket = match bind() {
        Err(rustix::io::Errno::ADDRINUSE) if is_left_over(path, &address) => {
            rustix::fs::unlink(path).map_err(failed)?;
            bind().map_err(failed)?
        }
        Err(rustix::io::Errno::ADDRINUSE) => return Err(Error::Taken(place())),
        bound => bound.map_err(failed)?,
    };
    rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(failed)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
    Ok(UnixListener::from_std(socket.into()))
}

/// Whether this is a socket of this user that nobody listens on.
fn is_left_over(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_own_socket = rustix::fs::lstat(path).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::Socket
            && found.st_uid == rustix::process::geteuid().as_raw()
    });
    let connect = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::net::connect(&socket, address)
    };
    is_own_socket && connect() == Err(rustix::io::Errno::CONNREFUSED)
}

fn now_ms() -> i64 {
    clock::wall_ns() / 1_000_000
}

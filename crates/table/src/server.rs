//! A server for Redis clients: one thread that runs the requests from their sockets.
//!
//! Model: the thread waits for ready sockets, and serves them in turn. In its turn, a client's requests run in order
//! until no complete one is left, or until too many of its replies are unread.
//! Invariant: a client holds at most one request and one reply beyond [`BACKLOG_BYTES`]; all together hold at most
//! [`BUFFERS_BYTES_MAX`]. A client gets an error and is disconnected if it sends a malformed request or exceeds these
//! limits. A client that does not send the password in time is disconnected too.
//! Non-goals: what commands do, and where a server listens.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use thalweg_base::clock;

use crate::call::{Session, Shared};
use crate::cluster::Front;
use crate::commands::run;
use crate::error::Refusal;
use crate::keyspace::Keyspace;
use crate::listen::{Error, Listener, Options, Place};
use crate::resp::{Parsed, Reply, parse};
use crate::socket::{Socket, Stream, Tls};

/// The most clients at a time.
const CLIENTS_MAX: usize = 10_000;
/// The most clients with TLS, which takes up to 150 KiB for each.
const TLS_CLIENTS_MAX: usize = 1000;
/// The most clients that have not sent the password yet. If there are more, the oldest is disconnected.
const STRANGERS_MAX: usize = 100;
/// How long a client may take to send the password.
const STRANGER_LIVES_MS: i64 = 60_000;
/// The most bytes of unread replies with which a client's next request is still run.
const BACKLOG_BYTES: usize = 1 << 20;
/// The most bytes of all clients' requests and replies, in addition to the memory for records.
const BUFFERS_BYTES_MAX: usize = 256 << 20;
/// The most bytes of requests from a client that has not sent the password.
const STRANGER_BYTES_MAX: usize = 16 << 10;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Larger buffers are freed when they are empty.
const SMALL_BYTES: usize = 64 << 10;
/// The most reads from one client in its turn.
const READS_A_TURN: usize = 16;
/// How often expired keys are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
const EVENTS_MAX: usize = 1024;
/// Requests with up to this many arguments need no allocation for them.
const FEW_ARGUMENTS: usize = 8;
/// The least memory of a server.
const MEMORY_MIN: usize = 1 << 20;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// Makes the server end before its next request.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        // If the thread cannot be woken, it sees the flag at the next event.
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
    /// Clients whose turn ended before all their requests were run.
    again: Vec<usize>,
    /// Connections may be waiting that could not be accepted.
    accept_again: bool,
    /// Clients that have not sent the password yet, by session: their index, and when they connected.
    strangers: BTreeMap<u64, (usize, i64)>,
    tls: Option<Tls>,
    shared: Shared,
    /// Bytes of the buffers of all clients.
    buffered: usize,
    scratch: Box<[u8]>,
    parsed: Parsed,
    last_client: u64,
    /// The servers that share the limits.
    servers: usize,
}

struct Client {
    socket: Socket,
    session: Session,
    /// The client will send nothing more; only received bytes are left.
    is_whole: bool,
    /// Received bytes, and how many of them were processed.
    input: Vec<u8>,
    done: usize,
    /// Replies, and how many of their bytes were sent.
    output: Vec<u8>,
    sent: usize,
}

/// What happens to a client after its turn.
enum Fate {
    /// It has to wait for the socket.
    Waits,
    /// It has more to do.
    GoesOn,
    Ends,
}

impl Server {
    /// Begins to listen.
    pub fn bind(options: Options) -> Result<Server, Error> {
        let (listener, place) = Server::listen(&options)?;
        Server::on((listener, place), options, (0, 1), None)
    }

    /// Begins to listen for clients of the tables of a cluster, with this number of servers. A client is of one of
    /// them, which waits for the nodes; they share the limits.
    pub(crate) fn bind_on_cluster(
        options: &Options,
        front: &Arc<Front>,
        servers: usize,
    ) -> Result<Vec<Server>, Error> {
        let (listener, place) = Server::listen(options)?;
        let server = |number| {
            let failed = |why| Error::System { what: "listen on", place: place.clone(), why };
            let listener = listener.share().map_err(failed)?;
            Server::on((listener, place.clone()), options.clone(), (number, servers), Some(Arc::clone(front)))
        };
        (0..servers).map(server).collect()
    }

    fn listen(options: &Options) -> Result<(Listener, Place), Error> {
        options.check()?;
        match options.memory < MEMORY_MIN {
            true => Err(Error::LittleMemory(options.memory)),
            false => Listener::bind(&options.place),
        }
    }

    fn on(
        (mut listener, place): (Listener, Place),
        Options { memory, password, tls, .. }: Options,
        (number, servers): (usize, usize),
        front: Option<Arc<Front>>,
    ) -> Result<Server, Error> {
        let failed = |why| Error::System { what: "wait for clients of", place: place.clone(), why };
        let poll = Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        poll.registry().register(listener.source(), LISTENER, Interest::READABLE).map_err(failed)?;
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
            strangers: BTreeMap::new(),
            tls,
            shared: Shared::new(keyspace, password, started_ms, front),
            buffered: 0,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            parsed: Parsed::default(),
            last_client: number as u64,
            servers,
        })
    }

    /// Where the server listens, with the actual port.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A handle that ends the server.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until the server is stopped.
    pub fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut swept_ms = now_ms();
        while !self.stop.flag.load(Ordering::Acquire) {
            let has_to_look =
                self.shared.keyspace.may_end() || self.accept_again || !self.strangers.is_empty();
            let patience = match (self.again.is_empty(), has_to_look) {
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
                self.dismiss_strangers();
                swept_ms = now;
            }
            let again = std::mem::take(&mut self.again);
            again.into_iter().for_each(|number| self.turn(number));
            for event in &events {
                match event.token() {
                    LISTENER => self.accept_again = true,
                    WAKER => {}
                    Token(number) => {
                        if let Some(Some(client)) = self.clients.get_mut(number) {
                            client.is_whole |= event.is_read_closed();
                        }
                        self.turn(number);
                    }
                }
            }
            if self.accept_again {
                self.accept_again = self.accept();
            }
        }
        Ok(())
    }

    /// Accepts waiting connections. Returns whether some may be left that the system does not let in now.
    fn accept(&mut self) -> bool {
        loop {
            match self.listener.accept() {
                Ok(stream) => self.welcome(stream),
                Err(why) => match why.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return true,
                },
            }
        }
    }

    fn welcome(&mut self, stream: Stream) {
        let Ok(mut socket) = Socket::new(stream, self.tls.as_ref()) else { return };
        let most = if self.tls.is_some() { TLS_CLIENTS_MAX } else { CLIENTS_MAX };
        if self.shared.clients >= most / self.servers {
            // Sends the error only if that does not block.
            let _ = socket.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let number = self.vacant.last().copied().unwrap_or(self.clients.len());
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(socket.source(), Token(number), interest).is_err() {
            return;
        }
        self.last_client += self.servers as u64;
        let session = Session::new(self.last_client, &self.shared);
        if !session.may {
            self.strangers.insert(session.number, (number, self.shared.keyspace.now_ms));
        }
        let (input, output) = (Vec::new(), Vec::new());
        let client = Client { socket, session, is_whole: false, input, done: 0, output, sent: 0 };
        match self.vacant.pop() {
            Some(number) => self.clients[number] = Some(client),
            None => self.clients.push(Some(client)),
        }
        self.shared.clients += 1;
        self.again.push(number);
        if self.strangers.len() > STRANGERS_MAX {
            self.dismiss_strangers();
        }
    }

    /// Disconnects clients that have not sent the password in time, and the oldest of them if there are too many.
    fn dismiss_strangers(&mut self) {
        while let Some((_, (number, since_ms))) = self.strangers.first_key_value() {
            let is_late = since_ms + STRANGER_LIVES_MS <= self.shared.keyspace.now_ms;
            if !is_late && self.strangers.len() <= STRANGERS_MAX {
                return;
            }
            let client = self.clients[*number].take().expect("a stranger is a client");
            self.end(*number, client);
        }
    }

    fn end(&mut self, number: usize, mut client: Client) {
        self.buffered -= client.buffered();
        client.session.unwatch(&mut self.shared.keyspace);
        client.socket.close();
        // Dropping the socket removes it from the poll, even if this fails.
        let _ = self.poll.registry().deregister(client.socket.source());
        self.strangers.remove(&client.session.number);
        self.vacant.push(number);
        self.shared.clients -= 1;
    }

    fn turn(&mut self, number: usize) {
        let Some(mut client) = self.clients.get_mut(number).and_then(Option::take) else { return };
        let before = client.buffered();
        let mut fate = self.serve(&mut client);
        client.shrink();
        self.buffered = self.buffered + client.buffered() - before;
        if self.buffered > BUFFERS_BYTES_MAX / self.servers && client.buffered() > SMALL_BYTES {
            // This client's buffers have just grown.
            let _ = client.socket.write(format!("-{}\r\n", Refusal::Full).as_bytes());
            fate = Fate::Ends;
        }
        if client.session.may && !self.strangers.is_empty() {
            self.strangers.remove(&client.session.number);
        }
        match fate {
            Fate::Ends => self.end(number, client),
            Fate::Waits => self.clients[number] = Some(client),
            Fate::GoesOn => {
                self.clients[number] = Some(client);
                self.again.push(number);
            }
        }
    }

    fn serve(&mut self, client: &mut Client) -> Fate {
        let mut is_drained = false;
        for _ in 0..READS_A_TURN {
            let has_more = self.carry_out(client);
            match client.send() {
                Ok(true) => {}
                Ok(false) if client.backlog() > BACKLOG_BYTES || client.session.ends => return Fate::Waits,
                Ok(false) => {}
                Err(_) => return Fate::Ends,
            }
            if client.session.ends {
                return Fate::Ends;
            }
            if has_more {
                continue;
            }
            if is_drained {
                return Fate::Waits;
            }
            match client.socket.read(&mut self.scratch) {
                Ok(0) if client.is_sent() => return Fate::Ends,
                Ok(0) => {
                    client.session.ends = true;
                    return Fate::Waits;
                }
                Ok(n) => {
                    client.input.extend_from_slice(&self.scratch[..n]);
                    // More bytes would raise another event, so another read would find nothing.
                    is_drained = n < READ_BYTES && !client.is_whole && !client.socket.is_encrypted();
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Fate::Waits,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Fate::Ends,
            }
        }
        Fate::GoesOn
    }

    /// Runs complete requests until the client has too many unread replies. Returns whether there may be more of them.
    fn carry_out(&mut self, client: &mut Client) -> bool {
        let Client { input, done, output, session, .. } = client;
        let mut has_more = true;
        while !session.ends && output.len() - client.sent <= BACKLOG_BYTES {
            let rest = &input[*done..];
            match parse(rest, &mut self.parsed) {
                Ok(true) => {
                    let ranges = &self.parsed.arguments;
                    let mut few: [&[u8]; FEW_ARGUMENTS] = [b""; FEW_ARGUMENTS];
                    let many: Vec<&[u8]>;
                    let arguments = match few.get_mut(..ranges.len()) {
                        Some(few) => {
                            few.iter_mut().zip(ranges).for_each(|(one, at)| *one = &rest[at.clone()]);
                            few
                        }
                        None => {
                            many = ranges.iter().map(|at| &rest[at.clone()]).collect();
                            &many[..]
                        }
                    };
                    if !arguments.is_empty() {
                        run(&mut self.shared, session, arguments, output);
                    }
                    *done += self.parsed.bytes;
                }
                Ok(false) => {
                    // A client that has sent the password may send a longer request; `parse` checks the limit.
                    if !session.may && rest.len() > STRANGER_BYTES_MAX {
                        Reply::new(output, 2).error(&Refusal::NoPassword.to_string());
                        session.ends = true;
                    }
                    has_more = false;
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
        has_more
    }
}

impl Client {
    fn backlog(&self) -> usize {
        self.output.len() - self.sent
    }

    fn is_sent(&self) -> bool {
        self.backlog() == 0 && !self.socket.wants_write()
    }

    /// Bytes of the client's buffers.
    fn buffered(&self) -> usize {
        self.input.capacity() + self.output.capacity() + self.session.held_bytes()
    }

    /// Sends as much as the socket takes. Returns whether that is all.
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
        match self.socket.flush() {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    fn shrink(&mut self) {
        for buffer in [&mut self.input, &mut self.output] {
            if buffer.is_empty() && buffer.capacity() > SMALL_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

pub(crate) fn now_ms() -> i64 {
    clock::wall_ns() / 1_000_000
}

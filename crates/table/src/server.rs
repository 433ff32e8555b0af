//! A server for Redis clients: one thread that runs the requests from their sockets.
//!
//! Model: the thread waits for ready sockets, and serves them in turn. In its turn, a client's requests run in order
//! until no complete one is left, or until too many of its replies are unread. The records that several requests read,
//! of one client or of several, are prefetched together.
//! Invariant: a client holds at most one request and one reply beyond [`BACKLOG_BYTES`]; all together hold at most
//! [`BUFFERS_BYTES_MAX`]. A client gets an error and is disconnected if it sends a malformed request or exceeds these
//! limits. A client that does not send the password in time is disconnected too.
//! Non-goals: what commands do, and where a server listens.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use thalweg_base::clock;

use crate::bucket::PREFETCHED;
use crate::call::{Common, Session, Shared};
use crate::cluster::Front;
use crate::commands::run;
use crate::error::Refusal;
use crate::keyspace::Keyspace;
use crate::listen::{Error, Listener, Options, PASSWORD_BYTES_MAX, Place};
use crate::resp::{Malformed, Parsed, Reply, parse};
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
const STRANGER_BYTES_MAX: usize = 2 * PASSWORD_BYTES_MAX;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Larger buffers are freed when they are empty.
const SMALL_BYTES: usize = 64 << 10;
/// The most reads from one client with TLS in its turn.
const READS_A_TURN: usize = 16;
/// How often expired keys are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
const EVENTS_MAX: usize = 1024;
/// The clients that run requests before any of them gets its replies, of which only short ones wait.
const TURNS_TOGETHER: usize = 64;
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
    scratch: Box<[u8]>,
    parsed: [Parsed; PREFETCHED],
    last_client: u64,
    /// The servers that share the limits.
    servers: usize,
}

struct Client {
    socket: Socket,
    session: Session,
    /// The client will send nothing more; only received bytes are left.
    is_whole: bool,
    /// Nothing is left in the socket until the next event.
    is_drained: bool,
    /// The connection failed, or has to end.
    is_broken: bool,
    /// There may be complete requests among the received bytes.
    has_requests: bool,
    /// It is among those that have a turn next.
    has_turn: bool,
    /// Received bytes, and how many of them were processed.
    input: Vec<u8>,
    done: usize,
    /// Replies, and how many of their bytes were sent.
    output: Vec<u8>,
    sent: usize,
}

impl Server {
    /// Begins to listen.
    pub fn bind(options: Options) -> Result<Server, Error> {
        let (listener, place) = Server::listen(&options)?;
        Server::on((listener, place), options, (0, 1, Common::default()), None)
    }

    /// Begins to listen for clients of the tables of a cluster, with this number of servers. A client is of one of
    /// them, which waits for the nodes; they share the limits.
    pub(crate) fn bind_on_cluster(
        options: &Options,
        front: &Arc<Front>,
        servers: usize,
    ) -> Result<Vec<Server>, Error> {
        let (listener, place) = Server::listen(options)?;
        let common = Common::default();
        let server = |number| {
            let failed = |why| Error::System { what: "listen on", place: place.clone(), why };
            let listener = listener.share().map_err(failed)?;
            let one = (number, servers, common.clone());
            Server::on((listener, place.clone()), options.clone(), one, Some(Arc::clone(front)))
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
        (number, servers, common): (usize, usize, Common),
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
            shared: Shared::new(keyspace, password, started_ms, common, front),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            parsed: Default::default(),
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
        let (mut swept_ms, mut turns) = (now_ms(), Vec::new());
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
            for event in &events {
                match event.token() {
                    LISTENER => self.accept_again = true,
                    WAKER => {}
                    Token(number) => {
                        let Some(Some(client)) = self.clients.get_mut(number) else { continue };
                        client.is_whole |= event.is_read_closed();
                        client.is_drained = false;
                        if !client.has_turn {
                            client.has_turn = true;
                            self.again.push(number);
                        }
                    }
                }
            }
            std::mem::swap(&mut turns, &mut self.again);
            self.turns(&turns);
            turns.clear();
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
        // A server may have any share of the clients: the system decides which one a client gets.
        let most = if self.tls.is_some() { TLS_CLIENTS_MAX } else { CLIENTS_MAX };
        if self.shared.common.clients.load(Ordering::Relaxed) >= most {
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
        let client = Client {
            socket,
            session,
            is_whole: false,
            is_drained: false,
            is_broken: false,
            has_requests: false,
            has_turn: true,
            input,
            done: 0,
            output,
            sent: 0,
        };
        match self.vacant.pop() {
            Some(number) => self.clients[number] = Some(client),
            None => self.clients.push(Some(client)),
        }
        self.shared.common.clients.fetch_add(1, Ordering::Relaxed);
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
        self.count(client.buffered(), 0);
        client.session.unwatch(&mut self.shared.keyspace);
        client.socket.close();
        // Dropping the socket removes it from the poll, even if this fails.
        let _ = self.poll.registry().deregister(client.socket.source());
        self.strangers.remove(&client.session.number);
        self.vacant.push(number);
        self.shared.common.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives each of these clients a turn. Those of a group run their requests before any gets its replies, so a program
    /// with many connections is woken once for all of them.
    fn turns(&mut self, numbers: &[usize]) {
        // On a cluster, requests wait for nodes, and replies should not wait for more of them.
        let together = if self.shared.front.is_some() { 1 } else { TURNS_TOGETHER };
        for group in numbers.chunks(together) {
            group.iter().for_each(|number| self.receive(*number));
            if group.len() > 1 {
                self.prefetch(group);
            }
            group.iter().for_each(|number| self.turn(*number));
            group.iter().for_each(|number| self.answer(*number));
        }
    }

    /// Reads from a client, unless it has requests already.
    fn receive(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else { return };
        client.has_turn = false;
        if !client.has_requests && !client.is_blocked() {
            let before = client.buffered();
            client.is_broken = client.receive(&mut self.scratch).is_err();
            let after = client.buffered();
            self.count(before, after);
        }
    }

    /// Counts a change of the bytes of a client's buffers.
    fn count(&self, before: usize, after: usize) {
        if before != after {
            // The sum wraps around if there are fewer.
            self.shared.common.buffered.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Prefetches the records of the first requests of clients.
    fn prefetch(&mut self, group: &[usize]) {
        for some in group.chunks(PREFETCHED) {
            let first = |(number, parsed): (&usize, &mut Parsed)| {
                let client = self.clients.get(*number)?.as_ref().filter(|client| client.has_requests)?;
                let bytes = &client.input[client.done..];
                parse(bytes, parsed).is_ok_and(|is_whole| is_whole).then(|| keys(bytes, &parsed.arguments))
            };
            let keys = some.iter().zip(&mut self.parsed).filter_map(first);
            self.shared.keyspace.prefetch(keys);
        }
    }

    /// Runs the requests of a client.
    fn turn(&mut self, number: usize) {
        let Some(mut client) = self.clients.get_mut(number).and_then(Option::take) else { return };
        let before = client.buffered();
        self.carry_out(&mut client);
        if client.backlog() > SMALL_BYTES && !client.is_broken {
            client.is_broken = client.send().is_err();
        }
        self.count(before, client.buffered());
        let buffered = self.shared.common.buffered.load(Ordering::Relaxed);
        if buffered > BUFFERS_BYTES_MAX && client.buffered() > SMALL_BYTES {
            // This client's buffers have just grown.
            let _ = client.socket.write(format!("-{}\r\n", Refusal::Buffers).as_bytes());
            client.is_broken = true;
        }
        if client.session.may && !self.strangers.is_empty() {
            self.strangers.remove(&client.session.number);
        }
        self.clients[number] = Some(client);
    }

    /// Sends replies to a client. It gets another turn if it has more to do.
    fn answer(&mut self, number: usize) {
        let Some(mut client) = self.clients.get_mut(number).and_then(Option::take) else { return };
        let sent = if client.is_broken { Err(io::ErrorKind::BrokenPipe.into()) } else { client.send() };
        match sent {
            Ok(true) if client.session.ends => return self.end(number, client),
            Ok(_) => {}
            Err(_) => return self.end(number, client),
        }
        let before = client.buffered();
        client.shrink();
        self.count(before, client.buffered());
        if !client.is_blocked() && !client.has_turn && (client.has_requests || !client.is_drained) {
            client.has_turn = true;
            self.again.push(number);
        }
        self.clients[number] = Some(client);
    }

    /// Runs complete requests until the client has too many unread replies.
    fn carry_out(&mut self, client: &mut Client) {
        while client.has_requests && !client.is_blocked() {
            let Client { input, done, output, session, .. } = client;
            let rest = &input[*done..];
            let (count, end) = parse_some(rest, &mut self.parsed);
            if count > 1 && self.shared.front.is_none() {
                let requests = self.parsed[..count].iter().map(|parsed| keys(rest, &parsed.arguments));
                self.shared.keyspace.prefetch(requests);
            }
            for parsed in &self.parsed[..count] {
                if session.ends || output.len() - client.sent > BACKLOG_BYTES {
                    break;
                }
                // Those before it may have taken long.
                self.shared.keyspace.now_ms = now_ms();
                run_parsed(&mut self.shared, session, (rest, parsed), output);
                *done += parsed.bytes;
            }
            match end {
                _ if client.is_blocked() => {}
                Ok(true) => {}
                Ok(false) => {
                    client.has_requests = false;
                    // A client that has sent the password may send a longer request; `parse` checks the limit.
                    if !client.session.may && client.input.len() - client.done > STRANGER_BYTES_MAX {
                        Reply::new(&mut client.output, 2).error(&Refusal::NoPassword.to_string());
                        client.session.ends = true;
                    }
                }
                Err(why) => {
                    Reply::new(&mut client.output, 2).error(why.words());
                    client.session.ends = true;
                }
            }
        }
        client.remove_done();
    }
}

/// Parses the first requests of the bytes, one into each of `into`. Returns how many are complete, and whether there may
/// be more.
fn parse_some(bytes: &[u8], into: &mut [Parsed]) -> (usize, Result<bool, Malformed>) {
    let (mut at, mut count) = (0, 0);
    for parsed in into {
        match parse(&bytes[at..], parsed) {
            Ok(true) => {}
            end => return (count, end),
        }
        for argument in &mut parsed.arguments {
            *argument = at + argument.start..at + argument.end;
        }
        at += parsed.bytes;
        count += 1;
    }
    (count, Ok(true))
}

/// The arguments of a request that may be keys.
fn keys<'a>(bytes: &'a [u8], arguments: &[Range<usize>]) -> [Option<&'a [u8]>; 2] {
    [1, 2].map(|i| arguments.get(i).map(|at| &bytes[at.clone()]))
}

/// Runs a request, unless it is empty.
fn run_parsed(
    shared: &mut Shared,
    session: &mut Session,
    (bytes, parsed): (&[u8], &Parsed),
    output: &mut Vec<u8>,
) {
    let mut few: [&[u8]; FEW_ARGUMENTS] = [b""; FEW_ARGUMENTS];
    let many: Vec<&[u8]>;
    let ranges = &parsed.arguments;
    let arguments = match few.get_mut(..ranges.len()) {
        Some(few) if parsed.quoted.is_empty() => {
            few.iter_mut().zip(ranges).for_each(|(one, at)| *one = &bytes[at.clone()]);
            few
        }
        _ => {
            many = parsed.arguments(bytes);
            &many[..]
        }
    };
    if !arguments.is_empty() {
        run(shared, session, arguments, output);
    }
}

impl Client {
    fn backlog(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Whether it has to read replies before anything else.
    fn is_blocked(&self) -> bool {
        self.session.ends || self.backlog() > BACKLOG_BYTES
    }

    /// Reads what has arrived; bytes without TLS once, because another turn follows if more may have arrived.
    fn receive(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        for _ in 0..READS_A_TURN {
            match self.socket.read(scratch) {
                Ok(0) if self.has_requests => break,
                Ok(0) => {
                    self.session.ends = true;
                    break;
                }
                Ok(n) => {
                    self.input.extend_from_slice(&scratch[..n]);
                    self.has_requests = true;
                    if !self.socket.is_encrypted() {
                        // More bytes would raise another event, so another read would find nothing.
                        self.is_drained = n < READ_BYTES && !self.is_whole;
                        break;
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    self.is_drained = true;
                    break;
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Removes the requests that were run.
    fn remove_done(&mut self) {
        if self.done == self.input.len() {
            self.input.clear();
            self.done = 0;
        } else if self.done > READ_BYTES {
            self.input.drain(..self.done);
            self.done = 0;
        }
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

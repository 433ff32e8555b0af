//! A client's connection to the server of a volume.
//!
//! Model: any number of threads have requests under way. One of the waiting threads reads: its own answer straight into
//! place, those of others into memory. There is no reader thread, which would have to wake the others.
//! Invariant: a request is answered or fails within [`PATIENCE`]. Requests that were sent are still answered when no
//! other can be sent: a server that ends in order answers all that it has read.
//! Non-goals: reconnecting; see attach.rs.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;

use crate::Error;
use crate::codec::decode;
use crate::message::{Ask, Head, Reply, send};

/// The longest time that a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The receiving side of a connection. If the peer is silent for too long, a read fails with `TimedOut`.
pub(crate) trait Receive: Read + Send {
    /// Waits until something can be read, or for `patience`. Returns whether something can be read.
    fn wait(&self, patience: Duration) -> io::Result<bool>;
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended before the whole request was sent, so it was not carried out.
    Unsent,
    /// The connection ended; it is unknown whether the request was carried out.
    Unanswered,
    /// The other side gave a reason, or took too long.
    Told(Error),
}

/// A connection.
pub(crate) struct Connection {
    /// The name of the other side, for errors.
    name: String,
    /// Closes the connection for both sides, if that is to be done when an answer is late.
    quit: Option<Box<dyn Fn() + Send + Sync>>,
    /// Whether what the connection is part of has ended lately, because the peer was silent.
    silence: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    out: Mutex<Out>,
    state: Mutex<State>,
    changed: Condvar,
}

struct Out {
    to: Box<dyn Write + Send>,
    last: u64,
}

struct State {
    /// `None` while a thread reads.
    from: Option<Box<dyn Receive>>,
    /// Requests whose answers another thread may read.
    waiting: HashSet<u64>,
    arrived: HashMap<u64, (Vec<u8>, Vec<u8>)>,
    /// No more requests can be sent.
    is_shut: bool,
    /// No more answers come.
    is_broken: bool,
    /// It ended while a request waited, because the peer was silent.
    is_silent: bool,
}

/// The answer that was read: the one that the reader waits for, or another's.
enum Came {
    Own(Vec<u8>),
    Other,
    Nothing,
}

impl Connection {
    /// A connection over these two directions.
    pub(crate) fn new(name: &str, from: Box<dyn Receive>, to: Box<dyn Write + Send>) -> Connection {
        let (waiting, arrived) = (HashSet::new(), HashMap::new());
        let state =
            State { from: Some(from), waiting, arrived, is_shut: false, is_broken: false, is_silent: false };
        let out = Mutex::new(Out { to, last: 0 });
        let name = name.into();
        Connection { name, quit: None, silence: None, out, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sets how to close the connection when an answer is late; otherwise a thread that sends could wait for ever.
    pub(crate) fn quits(self, quit: impl Fn() + Send + Sync + 'static) -> Connection {
        Connection { quit: Some(Box::new(quit)), ..self }
    }

    /// Sets how to learn of the silence of the peer although no request waits.
    pub(crate) fn knows_silence(self, silence: impl Fn() -> bool + Send + Sync + 'static) -> Connection {
        Connection { silence: Some(Box::new(silence)), ..self }
    }

    /// Whether requests can be sent, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        !self.state().is_shut
    }

    /// Whether no more answers come.
    pub(crate) fn is_broken(&self) -> bool {
        self.state().is_broken
    }

    /// Whether the connection has ended, while a request waited or lately, because the peer was silent: a new one would
    /// not be answered either.
    pub(crate) fn is_silent(&self) -> bool {
        self.state().is_silent || self.silence.as_ref().is_some_and(|silence| silence())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads why the peer has ended the connection, if it says so soon.
    pub(crate) fn hear(&self, patience: Duration) {
        let from = self.state().from.take();
        if let Some(mut from) = from
            && matches!(from.wait(patience), Ok(true))
        {
            let _ = from.read(&mut [0]);
        }
    }

    /// Sends a request with these bytes, and waits for the answer. The bytes of the answer fill `into`.
    pub(crate) fn ask(&self, ask: &Ask, data: &[u8], into: &mut [u8]) -> Result<Reply, Failure> {
        let number = self.send(ask, data)?;
        self.answer(number, into, PATIENCE)
    }

    /// Waits for the answer to a sent request. The bytes of the answer fill `into`.
    pub(crate) fn answer(&self, number: u64, into: &mut [u8], patience: Duration) -> Result<Reply, Failure> {
        let body = self.wait(number, into, patience);
        self.state().waiting.remove(&number);
        match decode::<Reply>(&body?) {
            Some(Reply::Failed(why)) => Err(Failure::Told(why.into())),
            Some(reply) => Ok(reply),
            None => {
                self.break_off(&mut self.state());
                Err(Failure::Unanswered)
            }
        }
    }

    /// Sends a request. Returns its number.
    pub(crate) fn send(&self, ask: &Ask, data: &[u8]) -> Result<u64, Failure> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.last += 1;
        let number = out.last;
        {
            let mut state = self.state();
            if state.is_shut {
                return Err(Failure::Unsent);
            }
            state.waiting.insert(number);
        }
        match send(&mut out.to, number, ask, data) {
            Ok(()) => Ok(number),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                self.state().waiting.remove(&number);
                Err(Failure::Told(Error::Refused(format!("{} cannot be asked: {e}", self.name))))
            }
            Err(_) => {
                let mut state = self.state();
                state.is_shut = true;
                state.waiting.remove(&number);
                Err(Failure::Unsent)
            }
        }
    }

    fn break_off(&self, state: &mut State) {
        (state.is_shut, state.is_broken) = (true, true);
        self.changed.notify_all();
    }

    /// Waits for the body of an answer; the bytes that go with it are then in `into`.
    fn wait(&self, number: u64, into: &mut [u8], patience: Duration) -> Result<Vec<u8>, Failure> {
        let watch = Stopwatch::start();
        let mut state = self.state();
        loop {
            if let Some((body, data)) = state.arrived.remove(&number) {
                return match data.len() == into.len() || data.is_empty() {
                    true => {
                        into[..data.len()].copy_from_slice(&data);
                        Ok(body)
                    }
                    false => Err(Failure::Unanswered),
                };
            }
            if state.is_broken {
                return Err(Failure::Unanswered);
            }
            let left = patience.saturating_sub(Duration::from_nanos(watch.ns()));
            if left.is_zero() {
                let seconds = patience.as_secs();
                let why = format!("{} did not answer within {seconds} seconds", self.name);
                if let Some(quit) = &self.quit {
                    self.break_off(&mut state);
                    drop(state);
                    quit();
                }
                return Err(Failure::Told(Error::system(libc::EIO, why)));
            }
            let Some(mut from) = state.from.take() else {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(state);
            let came = self.read(&mut *from, number, into, left);
            state = self.state();
            state.from = Some(from);
            match came {
                Ok(Came::Own(body)) => {
                    self.changed.notify_all();
                    return Ok(body);
                }
                Ok(Came::Other) => self.changed.notify_all(),
                Ok(Came::Nothing) => {}
                Err(why) => {
                    state.is_silent = why.kind() == io::ErrorKind::TimedOut;
                    self.break_off(&mut state);
                }
            }
        }
    }

    /// Reads one answer.
    fn read(
        &self,
        from: &mut dyn Receive,
        number: u64,
        into: &mut [u8],
        patience: Duration,
    ) -> io::Result<Came> {
        if !from.wait(patience)? {
            return Ok(Came::Nothing);
        }
        let Some(head) = Head::read(from)? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if head.number == number {
            if head.data_bytes != 0 && head.data_bytes != into.len() {
                return Err(io::Error::other("it sent other bytes than were asked for"));
            }
            from.read_exact(&mut into[..head.data_bytes])?;
            return Ok(Came::Own(head.body));
        }
        let mut data = vec![0; head.data_bytes];
        from.read_exact(&mut data)?;
        let mut state = self.state();
        if state.waiting.contains(&head.number) {
            state.arrived.insert(head.number, (head.body, data));
        }
        Ok(Came::Other)
    }
}

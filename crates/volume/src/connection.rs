//! A client's connection to whoever serves a volume.
//!
//! Model: any number of threads ask at a time. One of those that wait reads, for itself straight into where its bytes belong
//! and for the others into memory; there is no thread of its own that would wake them.
//! Invariant: a request is answered, or fails, within [`PATIENCE`].
//! Non-goals: beginning again; see attach.rs.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;

use crate::Error;
use crate::codec::decode;
use crate::message::{Ask, Head, Reply, send};

/// How long a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What a connection reads from.
pub(crate) trait Receive: Read + Send {
    /// Waits until something can be read, or so long; whether something can.
    fn wait(&self, patience: Duration) -> io::Result<bool>;
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended before all of it was sent, so it was not carried out.
    Unsent,
    /// The connection ended; whether it was carried out is not known.
    Unanswered,
    /// The other side says why, or it took too long.
    Told(Error),
}

/// A connection.
pub(crate) struct Connection {
    /// What is asked, for errors.
    name: String,
    /// Gives up the connection for both sides, if that is to be done when an answer does not come in time.
    quit: Option<Box<dyn Fn() + Send + Sync>>,
    out: Mutex<Out>,
    state: Mutex<State>,
    changed: Condvar,
}

struct Out {
    to: Box<dyn Write + Send>,
    last: u64,
}

struct State {
    /// Away while somebody reads.
    from: Option<Box<dyn Receive>>,
    /// Requests whose answers somebody else may read.
    waiting: HashSet<u64>,
    arrived: HashMap<u64, (Vec<u8>, Vec<u8>)>,
    is_broken: bool,
}

/// What was read: the answer that the reader waits for, or another's.
enum Came {
    Own(Vec<u8>),
    Other,
    Nothing,
}

impl Connection {
    /// Over these two directions.
    pub(crate) fn new(name: &str, from: Box<dyn Receive>, to: Box<dyn Write + Send>) -> Connection {
        let state =
            State { from: Some(from), waiting: HashSet::new(), arrived: HashMap::new(), is_broken: false };
        let out = Mutex::new(Out { to, last: 0 });
        let name = name.into();
        Connection { name, quit: None, out, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The same, given up in this way when an answer does not come in time: whoever waits to send would wait for ever.
    pub(crate) fn quits(self, quit: impl Fn() + Send + Sync + 'static) -> Connection {
        Connection { quit: Some(Box::new(quit)), ..self }
    }

    /// Whether it has ended.
    pub(crate) fn is_broken(&self) -> bool {
        self.state().is_broken
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, with these bytes, and waits for the answer, whose bytes fill `into`.
    pub(crate) fn ask(&self, ask: &Ask, data: &[u8], into: &mut [u8]) -> Result<Reply, Failure> {
        let number = self.send(ask, data)?;
        self.answer(number, into, PATIENCE)
    }

    /// Waits for the answer to a request that was sent, whose bytes fill `into`.
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

    /// Sends a request; its number.
    pub(crate) fn send(&self, ask: &Ask, data: &[u8]) -> Result<u64, Failure> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.last += 1;
        let number = out.last;
        {
            let mut state = self.state();
            if state.is_broken {
                return Err(Failure::Unsent);
            }
            state.waiting.insert(number);
        }
        match send(&mut out.to, number, ask, data) {
            Ok(()) => Ok(number),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                self.state().waiting.remove(&number);
                Err(Failure::Told(Error::Refused(format!("volume {} cannot be asked: {e}", self.name))))
            }
            Err(_) => {
                self.break_off(&mut self.state());
                Err(Failure::Unsent)
            }
        }
    }

    fn break_off(&self, state: &mut State) {
        state.is_broken = true;
        self.changed.notify_all();
    }

    /// The body of an answer; its bytes are then in `into`.
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
                let why = format!("volume {} did not answer within {seconds} seconds", self.name);
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
                Err(_) => self.break_off(&mut state),
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

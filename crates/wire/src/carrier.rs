//! Carriers: how the bytes of frames get from one side to the other.
//!
//! Model: a carrier has two independent halves, a [`Transmit`] and a [`Receive`], so that two threads can use it. TCP
//! carries records that are encrypted with the keys of the TLS handshake; within a process, bytes go through memory.
//! Invariant: `receive` fills the whole buffer or moves nothing. A half that fails reports why, and is not used again.
//! Non-goals: the meaning of the bytes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;
use thalweg_io::{pipe, socket};

use crate::error::What;
use crate::seal::{Opening, RECORD_BYTES, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES, Sealing};

/// How often an idle receiver checks its link, if no other thread can wake it.
pub(crate) const MOMENT: Duration = Duration::from_millis(250);
/// The most encrypted bytes received at a time.
const OPENING_BYTES: usize = 256 << 10;
/// The most bytes in transit between two sides in one process.
const PIPE_BYTES: usize = 1 << 20;

/// The sending half.
pub(crate) trait Transmit: Send {
    /// Sends both completely; if `more` follows at once, they may wait for it. The payload is encrypted in place.
    fn send(&mut self, head: &[u8], payload: &mut [u8], more: bool) -> Result<(), What>;

    /// Whether frames other than blocks can be sent without waiting.
    fn is_ready(&self) -> bool;

    /// A handle that ends both directions, even while another thread sends.
    fn end(&self) -> Box<dyn Fn() + Send + Sync>;
}

/// The receiving half.
pub(crate) trait Receive: Send {
    /// Fills `into`; false if nothing arrived for a moment. After the first byte, silence is measured by the clock.
    fn receive(&mut self, into: &mut [u8], clock: &mut Silence<'_>) -> Result<bool, What>;

    /// Waits a moment until something has arrived or a frame can be sent, if one call can wait for both.
    fn wait_for_either(&self) {}

    /// The number of receives that have completed.
    fn receives(&self) -> u64;
}

/// TCP, encrypted.
pub(crate) struct TcpTransmit {
    pub(crate) socket: Arc<TcpStream>,
    pub(crate) sealing: Sealing,
    /// Bytes that are sent before the rest.
    pub(crate) staged: Vec<u8>,
}

impl Transmit for TcpTransmit {
    fn send(&mut self, head: &[u8], payload: &mut [u8], more: bool) -> Result<(), What> {
        let sealing = &mut self.sealing;
        sealing.renew_if_due(&mut self.staged)?;
        if head.len() + payload.len() <= RECORD_BYTES {
            sealing.copy(&[head, payload], &mut self.staged)?;
            if !more {
                write_all(&self.socket, &mut [IoSlice::new(&self.staged)])?;
                self.staged.clear();
            }
            return Ok(());
        }
        sealing.copy(&[head], &mut self.staged)?;
        let whole = (payload.len() - 1) / RECORD_BYTES;
        let mut around = Vec::with_capacity(whole);
        for i in 0..whole {
            around.push(sealing.in_place(&mut payload[i * RECORD_BYTES..])?);
        }
        let first = self.staged.len();
        sealing.copy(&[&payload[whole * RECORD_BYTES..]], &mut self.staged)?;
        let mut slices = vec![IoSlice::new(&self.staged[..first])];
        for ((head, tail), record) in around.iter().zip(payload.chunks(RECORD_BYTES)) {
            slices.extend([IoSlice::new(head), IoSlice::new(record), IoSlice::new(tail)]);
        }
        slices.push(IoSlice::new(&self.staged[first..]));
        write_all(&self.socket, &mut slices)?;
        self.staged.clear();
        Ok(())
    }

    fn is_ready(&self) -> bool {
        pipe::is_writable(&*self.socket)
    }

    fn end(&self) -> Box<dyn Fn() + Send + Sync> {
        let socket = self.socket.clone();
        Box::new(move || drop(socket.shutdown(Shutdown::Both)))
    }
}

/// Writes all of it. No progress within the socket's timeout is an error.
fn write_all(mut socket: &TcpStream, mut slices: &mut [IoSlice<'_>]) -> Result<(), What> {
    /// The most slices of one call.
    const SLICES_MAX: usize = 1024;
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = slices.len().min(SLICES_MAX);
        match socket.write_vectored(&slices[..some]) {
            Ok(0) => return Err(What::Cut("it takes nothing more".into())),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                return Err(What::Cut("it has taken nothing for too long".into()));
            }
            Err(e) => return Err(What::of_socket(&e)),
        }
    }
    Ok(())
}

/// TCP, encrypted.
pub(crate) struct TcpReceive {
    socket: Arc<TcpStream>,
    opening: Opening,
    /// Encrypted bytes that have arrived, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// The part of the buffer with decrypted payload that was not returned yet; it lies before `start`.
    plain: std::ops::Range<usize>,
    receives: u64,
    /// The read timeout of the socket.
    moment: Duration,
}

impl TcpReceive {
    /// Begins with what the handshake has decrypted already.
    pub(crate) fn new(
        socket: Arc<TcpStream>,
        opening: Opening,
        early: Vec<u8>,
        moment: Duration,
    ) -> io::Result<TcpReceive> {
        socket.set_read_timeout(Some(moment))?;
        let (start, plain) = (early.len(), 0..early.len());
        Ok(TcpReceive { socket, opening, buffer: early, start, plain, receives: 0, moment })
    }

    /// Makes at least `need` encrypted bytes available from `start` on, asking for `want` at once; false if nothing
    /// arrived.
    fn has(&mut self, need: usize, want: usize, clock: &mut Silence<'_>) -> Result<bool, What> {
        while self.buffer.len() - self.start < need {
            if self.plain.is_empty() && self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            let had = self.buffer.len();
            let target = (self.start + want.max(need)).min(self.start + OPENING_BYTES).max(self.start + need);
            self.buffer.resize(target, 0);
            let came = socket::receive(&self.socket, &mut self.buffer[had..]);
            self.buffer.truncate(had + *came.as_ref().unwrap_or(&0));
            self.receives += u64::from(came.is_ok());
            // A partial record is part of what was requested.
            if !clock.heard(came, had > self.start)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Receive for TcpReceive {
    fn receive(&mut self, into: &mut [u8], clock: &mut Silence<'_>) -> Result<bool, What> {
        let mut filled = 0;
        while filled < into.len() {
            if !self.plain.is_empty() {
                let some = self.plain.len().min(into.len() - filled);
                let from = self.plain.start;
                into[filled..filled + some].copy_from_slice(&self.buffer[from..from + some]);
                self.plain.start += some;
                filled += some;
                continue;
            }
            clock.begun = filled > 0;
            // At least this many bytes are still to come.
            let left = into.len() - filled;
            let want = left + left.div_ceil(RECORD_BYTES) * RECORD_EXTRA_BYTES;
            if !self.has(RECORD_HEAD_BYTES, want, clock)? {
                return Ok(false);
            }
            let head = self.buffer[self.start..self.start + RECORD_HEAD_BYTES].try_into().expect("a header");
            let record = RECORD_HEAD_BYTES + Opening::follows(head)?;
            clock.begun = true;
            while !self.has(record, record, clock)? {}
            let payload = self.opening.open(&mut self.buffer[self.start..self.start + record])?;
            self.plain = self.start + RECORD_HEAD_BYTES..self.start + RECORD_HEAD_BYTES + payload;
            self.start += record;
        }
        Ok(true)
    }

    fn wait_for_either(&self) {
        if self.plain.is_empty() && self.start == self.buffer.len() {
            socket::wait_for_either(&self.socket, self.moment);
        }
    }

    fn receives(&self) -> u64 {
        self.receives
    }
}

/// Measures the silence of a peer in the middle of a message.
pub(crate) struct Silence<'a> {
    dead: Duration,
    heard: Stopwatch,
    begun: bool,
    /// The next receive continues a message.
    goes_on: bool,
    /// Called about every moment until everything has arrived, with whether more has arrived since.
    meanwhile: &'a mut dyn FnMut(bool),
    told: Stopwatch,
    came: bool,
}

impl<'a> Silence<'a> {
    pub(crate) fn new(dead: Duration, goes_on: bool, meanwhile: &'a mut dyn FnMut(bool)) -> Silence<'a> {
        let (heard, told) = (Stopwatch::start(), Stopwatch::start());
        Silence { dead, heard, begun: false, goes_on, meanwhile, told, came: false }
    }

    /// Handles the result of a receive; false if nothing arrived and no message is in progress.
    pub(crate) fn heard(&mut self, came: io::Result<usize>, partial: bool) -> Result<bool, What> {
        let partial = partial || self.goes_on;
        self.came |= came.as_ref().is_ok_and(|bytes| *bytes > 0);
        if self.told.seconds() >= MOMENT.as_secs_f64() {
            (self.meanwhile)(std::mem::take(&mut self.came));
            self.told = Stopwatch::start();
        }
        match came {
            Ok(0) if partial || self.begun => Err(What::Cut("it ended in the middle of a frame".into())),
            Ok(0) => Err(What::Cut("it ended without a goodbye".into())),
            Ok(_) => {
                self.heard = Stopwatch::start();
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock && !(partial || self.begun) => Ok(false),
            Err(e) if e.kind() == ErrorKind::WouldBlock && self.heard.seconds() < self.dead.as_secs_f64() => {
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                Err(What::Cut(format!("half a frame came, and nothing for {:?}", self.dead)))
            }
            Err(e) => Err(What::of_socket(&e)),
        }
    }
}

/// One direction between two sides in one process.
#[derive(Default)]
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    shut: bool,
}

/// The sending half in memory. Dropping it ends the direction.
pub(crate) struct MemoryTransmit {
    out: Arc<Pipe>,
    back: Arc<Pipe>,
}

/// The receiving half in memory.
pub(crate) struct MemoryReceive(Arc<Pipe>);

/// The carriers of two sides in one process.
pub(crate) fn memory() -> [(MemoryTransmit, MemoryReceive); 2] {
    let (there, back) = (Arc::new(Pipe::default()), Arc::new(Pipe::default()));
    let end = |out: &Arc<Pipe>, back: &Arc<Pipe>| {
        (MemoryTransmit { out: out.clone(), back: back.clone() }, MemoryReceive(back.clone()))
    };
    [end(&there, &back), end(&back, &there)]
}

impl MemoryTransmit {
    fn write(&self, mut bytes: &[u8]) -> Result<(), What> {
        while !bytes.is_empty() {
            let state = self.out.state.lock().expect("no side panics");
            let full = |state: &mut PipeState| state.bytes.len() >= PIPE_BYTES && !state.shut;
            let mut state = self.out.changed.wait_while(state, full).expect("no side panics");
            if state.shut {
                return Err(What::Cut("the other side has gone".into()));
            }
            let some = bytes.len().min(PIPE_BYTES - state.bytes.len());
            state.bytes.extend(&bytes[..some]);
            bytes = &bytes[some..];
            self.out.changed.notify_all();
        }
        Ok(())
    }
}

impl Transmit for MemoryTransmit {
    fn send(&mut self, head: &[u8], payload: &mut [u8], _more: bool) -> Result<(), What> {
        self.write(head).and_then(|()| self.write(payload))
    }

    fn is_ready(&self) -> bool {
        self.out.state.lock().expect("no side panics").bytes.len() <= PIPE_BYTES / 2
    }

    fn end(&self) -> Box<dyn Fn() + Send + Sync> {
        let pipes = [self.out.clone(), self.back.clone()];
        Box::new(move || {
            for pipe in &pipes {
                pipe.state.lock().expect("no side panics").shut = true;
                pipe.changed.notify_all();
            }
        })
    }
}

impl Receive for MemoryReceive {
    fn receive(&mut self, into: &mut [u8], clock: &mut Silence<'_>) -> Result<bool, What> {
        let mut filled = 0;
        while filled < into.len() {
            let state = self.0.state.lock().expect("no side panics");
            let empty = |state: &mut PipeState| state.bytes.is_empty() && !state.shut;
            let waited = self.0.changed.wait_timeout_while(state, MOMENT, empty);
            let (mut state, _) = waited.expect("no side panics");
            let some = state.bytes.len().min(into.len() - filled);
            for (to, from) in into[filled..filled + some].iter_mut().zip(state.bytes.drain(..some)) {
                *to = from;
            }
            filled += some;
            let came = if some == 0 && !state.shut { Err(ErrorKind::WouldBlock.into()) } else { Ok(some) };
            self.0.changed.notify_all();
            drop(state);
            if !clock.heard(came, filled > 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn receives(&self) -> u64 {
        0
    }
}

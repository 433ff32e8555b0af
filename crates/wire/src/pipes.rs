//! A link through two pipes that another program encrypts, as ssh does.
//!
//! Model: each side first sends one line ([`Pipes::say`], [`Pipes::hear`]), which shows whether the sides are
//! compatible; then frames use the same pipes, unencrypted, because the program below encrypts them.
//! Invariant: the caller that made the pipes authenticates the other end. A pipe that makes no progress for a peer's
//! timeout is cut, like a socket.
//! Non-goals: starting the other end.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thalweg_io::pipe;

use crate::carrier::{MOMENT, Receive, Silence, Transmit};
use crate::error::{Result, What};
use crate::hello::{Hello, Id, Role, VERSIONS};
use crate::link::{Link, PeerInfo};
use crate::tls::Terms;

/// The most bytes of a line.
const LINE_BYTES_MAX: usize = 16 << 10;
/// The size of a read before there is a link.
const SOME_BYTES: usize = 4 << 10;

/// What arrived where a line was due.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A line, without its newline.
    Line(Vec<u8>),
    /// These bytes without a newline, then the end of the pipe, or too many bytes.
    Part(Vec<u8>),
    /// No complete line in time.
    Nothing,
}

/// Two pipes, one for each direction.
pub struct Pipes {
    transmit: PipeTransmit,
    receive: PipeReceive,
}

impl Pipes {
    /// The pipe to read, and the pipe to write.
    pub fn new(from: OwnedFd, to: OwnedFd) -> std::io::Result<Pipes> {
        pipe::be_patient(&from)?;
        pipe::be_patient(&to)?;
        let shut = Arc::new(AtomicBool::new(false));
        let transmit = PipeTransmit { to, shut: shut.clone(), dead: Duration::ZERO };
        Ok(Pipes { transmit, receive: PipeReceive { from, shut, early: Vec::new(), receives: 0 } })
    }

    /// Sends a line.
    pub fn say(&mut self, line: &str, patience: Duration) -> std::result::Result<(), What> {
        self.transmit.dead = patience;
        self.transmit.send(line.as_bytes(), &mut b"\n".to_owned(), false)
    }

    /// Waits for the other side's line while `continues`.
    pub fn hear(&mut self, mut continues: impl FnMut() -> bool) -> std::io::Result<Heard> {
        let early = &mut self.receive.early;
        let mut some = [0; SOME_BYTES];
        loop {
            if let Some(end) = early.iter().position(|&b| b == b'\n') {
                let mut line: Vec<u8> = early.drain(..=end).collect();
                line.pop();
                return Ok(Heard::Line(line));
            }
            if early.len() >= LINE_BYTES_MAX {
                return Ok(Heard::Part(std::mem::take(early)));
            }
            // Checked even while a few bytes keep arriving.
            if !continues() {
                return Ok(Heard::Nothing);
            }
            match pipe::receive(&self.receive.from, &mut some, MOMENT) {
                Ok(0) => return Ok(Heard::Part(std::mem::take(early))),
                Ok(bytes) => early.extend_from_slice(&some[..bytes]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Makes a link of the pipes: both sides say hello, as members of this one-time cluster.
    pub fn link(mut self, peer: &str, (cluster, role): (Id, Role), terms: Terms) -> Result<Link> {
        self.transmit.dead = Duration::from_millis(terms.patience.dead_ms);
        let began = role == Role::Client;
        let (versions, node, block_bytes) = (VERSIONS, Id(role as u128), terms.block_bytes);
        let hello = Hello { versions, cluster, node, role, block_bytes, epoch: 0 };
        let carrier = (Box::new(self.transmit) as _, Box::new(self.receive) as _);
        let far = PeerInfo { name: peer.to_string(), proved: None, exporter: None };
        Link::establish(hello, far, began, carrier, terms.patience)
    }
}

/// The sending pipe.
struct PipeTransmit {
    to: OwnedFd,
    shut: Arc<AtomicBool>,
    dead: Duration,
}

impl Transmit for PipeTransmit {
    fn send(&mut self, head: &[u8], payload: &mut [u8], _more: bool) -> std::result::Result<(), What> {
        let (mut slices, mut silent) = ([IoSlice::new(head), IoSlice::new(payload)], Duration::ZERO);
        let mut slices = &mut slices[..];
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            if self.shut.load(Ordering::Relaxed) {
                return Err(What::Closed);
            }
            match pipe::send(&self.to, slices, MOMENT) {
                Ok(sent) => {
                    silent = Duration::ZERO;
                    IoSlice::advance_slices(&mut slices, sent);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && silent < self.dead => silent += MOMENT,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Err(What::Cut("it has taken nothing for too long".into()));
                }
                Err(e) => return Err(What::Cut(e.to_string())),
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        pipe::is_writable(&self.to)
    }

    fn end(&self) -> Box<dyn Fn() + Send + Sync> {
        let shut = self.shut.clone();
        Box::new(move || shut.store(true, Ordering::Relaxed))
    }
}

/// The receiving pipe.
struct PipeReceive {
    from: OwnedFd,
    shut: Arc<AtomicBool>,
    /// Bytes that arrived after a line.
    early: Vec<u8>,
    receives: u64,
}

impl Receive for PipeReceive {
    fn receive(&mut self, into: &mut [u8], clock: &mut Silence<'_>) -> std::result::Result<bool, What> {
        let mut filled = self.early.len().min(into.len());
        into[..filled].copy_from_slice(&self.early[..filled]);
        self.early.drain(..filled);
        while filled < into.len() {
            let came = pipe::receive(&self.from, &mut into[filled..], MOMENT);
            if self.shut.load(Ordering::Relaxed) {
                return Err(What::Closed);
            }
            filled += *came.as_ref().unwrap_or(&0);
            self.receives += u64::from(came.is_ok());
            if !clock.heard(came, filled > 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn receives(&self) -> u64 {
        self.receives
    }
}

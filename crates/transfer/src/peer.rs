//! The other end of a transfer between two processes.
//!
//! Model: there is one control stream, and one stream for each lane. Each end has a thread that reads the control
//! stream ([`Peer::listen`]), and one that ends all streams when something fails here ([`Peer::attend`]), so that
//! threads that wait for the peer wake up.
//! Invariant: of the errors at both ends, the user sees the cause and not its consequence. After a link was closed,
//! this end waits [`ECHO_SECONDS`] for an error that the peer reported earlier.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use thalweg_api::{FailureKind, PumpVerdict, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_wire::{Incoming, Link, LinkError, Outgoing, Streams, What};

use crate::blocks::BLOCK_BYTES;
use crate::message::{MESSAGE_BYTES_MAX, Message, TAIL_BYTES_MAX};
use crate::shared::Shared;
use crate::{Error, Result};

/// The most bytes of a frame: a block and its description.
pub const FRAME_BYTES: usize = BLOCK_BYTES + TAIL_BYTES_MAX;
/// Credits for frames of the control stream.
const CONTROL_WINDOW: usize = 2;
/// Messages are sent when this many bytes are queued, or before the next block.
const GATHERED_BYTES: usize = 32 << 10;
/// How long to wait for the cause of a failure.
const ECHO_SECONDS: f64 = 1.0;
/// The most answers queued for the thread that made the request, and how long to wait while the queue is full.
const ANSWERS: usize = 4;
const BREATH: Duration = Duration::from_millis(1);
/// How often to check for a failure.
const LOOK: Duration = Duration::from_millis(50);

/// A transport to the other end, which owns the links.
pub trait Transport: Sync {
    /// The other end's name in messages: a host.
    fn peer(&self) -> String;
    /// Opens a stream for each lane.
    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>>;
    /// All links of this transfer, each once.
    fn links(&self) -> Vec<Arc<Link>>;
    /// Ends all streams of this transfer. The reason was sent before.
    fn give_up(&self, _why: &str) {
        self.links().iter().for_each(|link| link.close());
    }
    /// The route of the lanes, once they are open.
    fn route(&self) -> Route {
        Route::Direct
    }
}

/// The route between the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Direct links.
    Direct,
    /// The channel of ssh, which encrypts everything in it.
    ThroughSsh,
}

impl Route {
    /// Its name in the receipt.
    pub fn name(self) -> &'static str {
        match self {
            Route::Direct => "direct",
            Route::ThroughSsh => "through ssh",
        }
    }
}

/// The peer; see the head of this file.
pub(crate) struct Peer<'w> {
    transport: &'w dyn Transport,
    /// Whether this end is the source.
    is_source: bool,
    out: Mutex<Out>,
    answers: (SyncSender<Message>, Mutex<Receiver<Message>>),
    /// Whether a thread has made a request and waits for its answer.
    asked: AtomicBool,
    /// The last message of the peer.
    verdict: OnceLock<PumpVerdict>,
    /// Set when the control stream has ended: whether the peer ended it on purpose.
    deaf: OnceLock<bool>,
    files: AtomicU64,
    dirs: AtomicU64,
}

struct Out {
    stream: Option<Outgoing>,
    gathered: Vec<u8>,
}

impl<'w> Peer<'w> {
    pub(crate) fn new(transport: &'w dyn Transport, out: Outgoing, is_source: bool) -> Peer<'w> {
        let (send, receive) = sync_channel(ANSWERS);
        Peer {
            transport,
            is_source,
            out: Mutex::new(Out { stream: Some(out), gathered: Vec::new() }),
            answers: (send, Mutex::new(receive)),
            asked: AtomicBool::new(false),
            verdict: OnceLock::new(),
            deaf: OnceLock::new(),
            files: AtomicU64::new(1),
            dirs: AtomicU64::new(1),
        }
    }

    /// Its name, for messages.
    pub(crate) fn name(&self) -> String {
        self.transport.peer()
    }

    /// Opens a stream for each lane.
    pub(crate) fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        self.transport.lanes(count)
    }

    /// The next number for a file.
    pub(crate) fn next_file(&self) -> u64 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }

    /// The next number for a directory; 0 is the parent of the roots.
    pub(crate) fn next_dir(&self) -> u64 {
        self.dirs.fetch_add(1, Ordering::Relaxed)
    }

    /// Queues a message, which is sent before the next block at the latest.
    pub(crate) fn tell(&self, message: &Message) -> Result<()> {
        let mut out = self.out.lock().expect("no lane panics");
        message.encode(&mut out.gathered);
        if out.gathered.len() >= GATHERED_BYTES { self.send(&mut out) } else { Ok(()) }
    }

    /// Sends the queued messages.
    pub(crate) fn flush(&self) -> Result<()> {
        self.send(&mut self.out.lock().expect("no lane panics"))
    }

    fn send(&self, out: &mut Out) -> Result<()> {
        if out.gathered.is_empty() {
            return Ok(());
        }
        let Some(stream) = &mut out.stream else { return Err(Error::Stopped) };
        stream.send(0, &mut out.gathered)?;
        out.gathered.clear();
        Ok(())
    }

    /// Sends a request, and passes the answers to `take` one by one. One thread at a time makes requests.
    pub(crate) fn ask(&self, message: &Message, take: impl FnMut(Message) -> Result<bool>) -> Result<()> {
        let answers = self.answers.1.lock().expect("no lane panics");
        self.asked.store(true, Ordering::Relaxed);
        let taken = self.ask_and_take(message, &answers, take);
        self.asked.store(false, Ordering::Relaxed);
        taken
    }

    fn ask_and_take(
        &self,
        message: &Message,
        answers: &Receiver<Message>,
        mut take: impl FnMut(Message) -> Result<bool>,
    ) -> Result<()> {
        self.tell(message)?;
        self.flush()?;
        loop {
            match answers.recv_timeout(LOOK) {
                Ok(answer) => match take(answer)? {
                    true => {}
                    false => return Ok(()),
                },
                Err(_) => match self.deaf.get() {
                    // The reason is known.
                    Some(false) => return Err(Error::Stopped),
                    Some(true) => {
                        let why = "it ended before it had answered".into();
                        let kind = FailureKind::Operating;
                        return Err(Error::Peer { peer: self.name(), why, kind });
                    }
                    None => {}
                },
            }
        }
    }

    /// Queues an answer for the thread that made the request; waits while the queue is full. An answer without a
    /// request is an error: waiting for a taker would block the control stream, even its end.
    pub(crate) fn answered(&self, shared: &Shared<'_>, mut answer: Message) -> Result<()> {
        while self.asked.load(Ordering::Relaxed) {
            let Err(TrySendError::Full(back)) = self.answers.0.try_send(answer) else { return Ok(()) };
            shared.goes_on()?;
            answer = back;
            std::thread::park_timeout(BREATH);
        }
        Err(Error::protocol(self.name()))
    }

    /// Sends the lists of what this end has left out, and would change.
    pub(crate) fn tell_lists(&self, shared: &Shared<'_>) -> Result<()> {
        let left_out = shared.left_out.list.ours().into_iter().map(Message::LeftOut);
        let items = shared.deleter.items.ours().into_iter().map(Message::Item);
        left_out.chain(items).try_for_each(|entry| self.tell(&entry))
    }

    /// Ends the control stream with this end's result.
    pub(crate) fn end(&self, verdict: &PumpVerdict) -> Result<()> {
        let mut out = self.out.lock().expect("no lane panics");
        self.send(&mut out)?;
        let Some(mut stream) = out.stream.take() else { return Err(Error::Stopped) };
        Ok(stream.end(to_json(verdict).as_bytes())?)
    }

    /// Reads the control stream to its end. `hear` handles the messages.
    pub(crate) fn listen(
        &self,
        shared: &Shared<'_>,
        control: Control,
        mut hear: impl FnMut(Message) -> Result<()>,
    ) {
        let mut control = control;
        let heard = loop {
            match control.next() {
                Ok(Some(message)) => {
                    if let Err(e) = hear(message) {
                        break Err(e);
                    }
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        let said = control.result().map(String::from_utf8_lossy).unwrap_or_default();
        if let Ok(verdict) = from_json::<PumpVerdict>(&said) {
            if let Some(why) = &verdict.error {
                let (peer, why, kind) = (self.name(), why.clone(), verdict.kind);
                shared.fail(Error::Peer { peer, why, kind });
            }
            let _ = self.verdict.set(verdict);
        }
        let was_meant = heard.is_ok();
        if let Err(e) = heard {
            shared.fail(e);
            // Before the stream is dropped, which the peer would notice first.
            if shared.has_cause() {
                self.give_up(&shared.verdict());
            }
        }
        let _ = self.deaf.set(was_meant);
    }

    /// Whether the control stream has ended.
    pub(crate) fn is_deaf(&self) -> bool {
        self.deaf.get().is_some()
    }

    /// The last message of the peer.
    pub(crate) fn verdict(&self) -> Option<&PumpVerdict> {
        self.verdict.get()
    }

    /// Watches the transfer until `done`. If it fails, reports the failure to the peer and ends all streams.
    pub(crate) fn attend(&self, shared: &Shared<'_>, done: &dyn Fn() -> bool) {
        let mut echo: Option<Stopwatch> = None;
        while !done() {
            std::thread::park_timeout(LOOK);
            if shared.goes_on().is_ok() {
                continue;
            }
            let waited = echo.get_or_insert_with(Stopwatch::start).seconds();
            if shared.has_cause() || self.deaf.get().is_some() || waited >= ECHO_SECONDS {
                return self.give_up(&shared.verdict());
            }
        }
    }

    /// Waits until the peer has been told of a failure, as [`Peer::attend`] does within a moment.
    pub(crate) fn wait_until_told(&self) {
        let waited = Stopwatch::start();
        while self.out.lock().expect("no lane panics").stream.is_some()
            && waited.seconds() < 2.0 * ECHO_SECONDS
        {
            std::thread::park_timeout(LOOK);
        }
    }

    /// Ends all streams, with the reason.
    pub(crate) fn give_up(&self, verdict: &PumpVerdict) {
        let stream = self.out.lock().expect("no lane panics").stream.take();
        if let Some(mut stream) = stream {
            // A peer that the reason does not reach notices that the link ends.
            let _ = if self.is_source {
                stream.abort(&to_json(verdict))
            } else {
                stream.end(to_json(verdict).as_bytes())
            };
        }
        self.transport.give_up(verdict.error.as_deref().unwrap_or_default());
    }

    /// Bytes sent and received by all links, and the number of receives.
    pub(crate) fn traffic(&self) -> (u64, u64, u64) {
        self.transport.links().iter().fold((0, 0, 0), |sum, link| {
            let ((sent, received), completions) = (link.bytes(), link.receives());
            (sum.0 + sent, sum.1 + received, sum.2 + completions)
        })
    }

    pub(crate) fn route(&self) -> Route {
        self.transport.route()
    }
}

/// The incoming half of the control stream.
pub(crate) struct Control {
    peer: String,
    stream: Incoming,
    bytes: Vec<u8>,
    at: usize,
}

impl Control {
    pub(crate) fn new(transport: &dyn Transport, stream: Incoming) -> Result<Control> {
        let stream = stream.takes(&Pool::new(FRAME_BYTES, CONTROL_WINDOW)?, CONTROL_WINDOW);
        Ok(Control { peer: transport.peer(), stream, bytes: Vec::new(), at: 0 })
    }

    /// The next message; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.whole()? {
                return Ok(Some(message));
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            match self.stream.next_on() {
                Ok(Some((_, block))) => self.bytes.extend_from_slice(&block),
                Ok(None) if self.bytes.is_empty() => return Ok(None),
                Ok(None) => return Err(self.protocol_error()),
                Err(LinkError { what: What::Aborted(why), .. }) => {
                    return Err(self.told(&why));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn whole(&mut self) -> Result<Option<Message>> {
        let rest = &self.bytes[self.at..];
        let Some((len, rest)) = rest.split_at_checked(4) else { return Ok(None) };
        let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(self.protocol_error());
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        let message = Message::decode(bytes).ok_or_else(|| self.protocol_error())?;
        self.at += 4 + len;
        Ok(Some(message))
    }

    pub(crate) fn protocol_error(&self) -> Error {
        Error::protocol(&self.peer)
    }

    /// The error if the control stream ended, or sent a message that cannot be understood.
    pub(crate) fn refusal(&self) -> Error {
        let said = self.result().map(String::from_utf8_lossy).unwrap_or_default();
        if said.is_empty() { self.protocol_error() } else { self.told(&said) }
    }

    /// The peer's failure: its verdict, or text of a process in between.
    fn told(&self, said: &str) -> Error {
        let (why, kind) = match from_json::<PumpVerdict>(said) {
            Ok(PumpVerdict { error: Some(why), kind, .. }) => (why, kind),
            Ok(_) => return self.protocol_error(),
            Err(_) => (said.to_string(), FailureKind::Operating),
        };
        Error::Peer { peer: self.peer.clone(), why, kind }
    }

    fn result(&self) -> Option<&[u8]> {
        self.stream.result()
    }
}

//! The core of a link: which frames each side may send when, and which buffers are reserved.
//!
//! Model: [`Core::apply`] takes one [`Event`] (a frame that arrived, a request of this side, the passing of time) and
//! returns [`Effect`]s for the owner of the socket and the streams. Both sides say hello first. Either side may open
//! streams; each direction of a stream ends with an end or an abort, and the stream is forgotten when both have ended.
//! Invariant: a block is sent only for a credit, and a credit is a buffer that the receiver has reserved. So a receiver
//! always has a place for what arrives, and a stream that is not read never delays another. A violation closes the
//! link with one [`Fault`]; nothing happens after that.
//! Non-goals: clocks, sockets, contents of blocks.

use std::collections::BTreeMap;

use thalweg_api::ClusterFile;

use crate::frame::{CONTROL_BYTES_MAX, FrameError, Head, Kind, MORE, PAYLOAD_BYTES_MAX};
use crate::hello::{Hello, HelloError, Id, Role};

/// The most streams of a link at a time.
pub const STREAMS_MAX: usize = 1024;
/// The most blocks that a stream may have reserved at a time.
pub const CREDITS_MAX: u64 = 1 << 16;

/// The timeouts of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The silence of this side after which it sends a sign of life.
    pub ping_ms: u64,
    /// The silence of the peer after which it is considered dead.
    pub dead_ms: u64,
}

/// The silence in milliseconds after which a peer is considered dead, unless its cluster file has another time.
const DEAD_MS: u64 = 5_000;
/// The signs of life that a peer gives in that time.
const PINGS: u64 = 5;

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts::of_dead(DEAD_MS)
    }
}

impl Timeouts {
    /// Those with which a peer is considered dead after `dead_ms`.
    pub fn of_dead(dead_ms: u64) -> Timeouts {
        Timeouts { ping_ms: dead_ms / PINGS, dead_ms }
    }

    /// Those of a cluster.
    pub fn of(cluster: &ClusterFile) -> Timeouts {
        Timeouts::of_dead(cluster.dead_ms.unwrap_or(DEAD_MS))
    }
}

/// Something that happens to a link.
#[derive(Debug)]
pub enum Event {
    /// The header of a data frame has arrived; its payload has not been read.
    Block(Head),
    /// A complete, undamaged frame of another kind has arrived.
    Frame(Head, Vec<u8>),
    /// Bytes arrived that are not a frame.
    Broken(FrameError),
    /// This side opens a stream.
    Open(Vec<u8>),
    /// This side has reserved this many more blocks for a stream.
    Reserve(u32, u64),
    /// This side sends a block, for which it has a credit.
    Put(Head),
    /// This side has completed its direction of a stream.
    End(u32, Vec<u8>),
    /// This side aborts a stream.
    Abort(u32, String),
    /// Time has passed.
    Tick,
    /// This side closes the link.
    Bye,
}

/// An effect of an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this frame; the caller holds the payload of a block.
    Send(Head, Vec<u8>),
    /// The peer has said hello, and it is a member of the cluster.
    HelloReceived(Hello),
    /// The stream that this side opened has this number.
    Opened(u32),
    /// The peer has opened a stream.
    Asked(u32, Vec<u8>),
    /// Read the payload into a block that is reserved for this stream.
    Fill(u32),
    /// Read and discard the payload: the stream is no longer wanted.
    Skip,
    /// More blocks of this stream may be sent.
    Credited(u32),
    /// The peer has completed its direction of a stream.
    Ended(u32, Vec<u8>),
    /// The peer has aborted a stream.
    Aborted(u32, String),
    /// The link is closed; with a fault, unless the peer said goodbye.
    Close(Option<Fault>),
}

/// A violation of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Bytes arrived that are not a frame.
    #[error("sent {0}")]
    Frame(FrameError),
    /// The hello cannot be accepted.
    #[error("sent {0}")]
    Hello(HelloError),
    /// The first frame is not a hello, or a later frame is.
    #[error("sent a {0:?} frame where none may be")]
    Order(Kind),
    /// The peer belongs to this other cluster.
    #[error("is of another cluster, {0}")]
    Cluster(Id),
    /// The peer claims this name and role, but its certificate says otherwise.
    #[error("says that it is {} {}, and its certificate says otherwise", .1.name(), .0)]
    Impostor(Id, Role),
    /// Another frame was due: frames were lost, duplicated or reordered.
    #[error("sent frame {1} where {0} was due: some were lost, doubled or swapped")]
    Sequence(u32, u32),
    /// A frame refers to a stream that does not exist.
    #[error("sent a {0:?} frame for stream {1}, which is not open")]
    Stream(Kind, u32),
    /// More streams than a link may have.
    #[error("opened more than {STREAMS_MAX} streams at once")]
    Streams,
    /// A block for which no buffer is reserved.
    #[error("sent a block of stream {0} for which it had no credit")]
    Credit(u32),
    /// A block that is larger than agreed.
    #[error("sent a block of {0} bytes, where {1} was agreed")]
    Block(u32, u32),
    /// A request or a result that is too long.
    #[error("sent an {0:?} of more than {1} bytes")]
    Long(Kind, usize),
    /// The peer left this many frames unread and sent more that needs an answer.
    #[error("has left {0} answers unread and continues to ask")]
    Deaf(usize),
    /// The peer was silent for this many milliseconds.
    #[error("has said nothing for {:.1} s", *.0 as f64 / 1e3)]
    Silent(u64),
    /// The peer closed the link and reported this violation.
    #[error("says that this side {0}")]
    Told(String),
}

/// A stream, from the view of this side.
#[derive(Debug, Default)]
struct Stream {
    /// Blocks that this side may send.
    credit: u64,
    /// Blocks that the peer may still send.
    reserved: u64,
    /// This side has ended or aborted.
    closed_here: bool,
    /// The peer has ended or aborted.
    closed_there: bool,
    /// What still arrives is discarded.
    unwanted: bool,
}

/// One side of a link.
#[derive(Debug)]
pub struct Core {
    ours: Hello,
    /// The name and role in the peer's certificate, if there was one.
    proved: Option<(Id, Role)>,
    patience: Timeouts,
    met: bool,
    closed: bool,
    block_bytes: u32,
    next_stream: u32,
    /// The smallest number of the peer's next stream.
    next_theirs: u32,
    next_sequence: u32,
    streams: BTreeMap<u32, Stream>,
    /// The first part of a payload that continues in the next frame, with its stream and kind of frame.
    partial: Option<(Kind, u32, Vec<u8>)>,
    /// The most bytes of a payload from the peer.
    payload_bytes_max: usize,
    heard_ms: u64,
    sent_ms: u64,
}

impl Core {
    /// One side of a new link, and its first effect. Streams of the side that `began` have odd numbers.
    pub fn new(
        ours: Hello,
        proved: Option<(Id, Role)>,
        began: bool,
        patience: Timeouts,
        now_ms: u64,
    ) -> (Core, Effect) {
        let core = Core {
            ours,
            proved,
            patience,
            met: false,
            closed: false,
            block_bytes: ours.block_bytes,
            next_stream: if began { 1 } else { 2 },
            next_theirs: if began { 2 } else { 1 },
            next_sequence: 0,
            streams: BTreeMap::new(),
            partial: None,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            heard_ms: now_ms,
            sent_ms: now_ms,
        };
        let payload = ours.encode().to_vec();
        (core, Effect::Send(Head::control(Kind::Hello, 0, 0, &payload), payload))
    }

    /// Whether a block of this stream may be sent now; `None` if this side can send no more at all.
    pub fn may_put(&self, stream: u32) -> Option<bool> {
        self.streams.get(&stream).filter(|s| !s.closed_here && !self.closed).map(|s| s.credit > 0)
    }

    /// Blocks of this stream that the peer may still send.
    pub fn reserved(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.reserved)
    }

    /// The largest block that both sides accept.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Whether this side opened the stream of this number.
    pub fn began(&self, stream: u32) -> bool {
        stream % 2 == self.next_stream % 2
    }

    /// The number of open streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Part of a frame has arrived, so the peer lives.
    pub(crate) fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Handles an event that happens now.
    pub fn apply(&mut self, now_ms: u64, event: Event) -> Vec<Effect> {
        if self.closed {
            return Vec::new();
        }
        let came = matches!(event, Event::Block(_) | Event::Frame(..));
        if came {
            self.heard_ms = now_ms;
        }
        // The peer learns the reason, if it still reads.
        let effects = self.react(now_ms, event).unwrap_or_else(|fault| {
            let why = short(fault.to_string());
            vec![send(Kind::Bye, 0, 0, why), Effect::Close(Some(fault))]
        });
        if effects.iter().any(|effect| matches!(effect, Effect::Close(_))) {
            self.closed = true;
        }
        if effects.iter().any(|effect| matches!(effect, Effect::Send(..))) {
            self.sent_ms = now_ms;
        }
        effects
    }

    fn react(&mut self, now_ms: u64, event: Event) -> Result<Vec<Effect>, Fault> {
        match event {
            Event::Broken(why) => Err(Fault::Frame(why)),
            Event::Block(head) => {
                self.in_sequence(&head)?;
                self.block_came(&head).map(|effect| vec![effect])
            }
            Event::Frame(head, payload) => {
                self.in_sequence(&head)?;
                self.frame_came(&head, payload)
            }
            Event::Tick => self.tick(now_ms),
            Event::Bye => Ok(vec![send(Kind::Bye, 0, 0, Vec::new()), Effect::Close(None)]),
            Event::Open(request) => Ok(self.open(request)),
            Event::Put(head) => Ok(vec![self.put(head)]),
            Event::Reserve(stream, blocks) => Ok(self.reserve(stream, blocks)),
            Event::End(stream, result) => Ok(self.close_here(stream, Kind::End, result)),
            Event::Abort(stream, why) => Ok(self.abort(stream, why)),
        }
    }

    fn in_sequence(&mut self, head: &Head) -> Result<(), Fault> {
        if head.sequence != self.next_sequence {
            return Err(Fault::Sequence(self.next_sequence, head.sequence));
        }
        self.next_sequence = self.next_sequence.wrapping_add(1);
        // The first frame is a hello, and no other is.
        if self.met == (head.kind == Kind::Hello) {
            return Err(Fault::Order(head.kind));
        }
        // A payload continues in the very next frame.
        let goes_on = |(kind, stream, _): &(Kind, u32, _)| (*kind, *stream) == (head.kind, head.stream);
        if !self.partial.as_ref().is_none_or(goes_on) {
            return Err(Fault::Order(head.kind));
        }
        Ok(())
    }

    fn block_came(&mut self, head: &Head) -> Result<Effect, Fault> {
        let most = self.ours.block_bytes;
        let state = self.theirs(head)?;
        if state.reserved == 0 {
            return Err(Fault::Credit(head.stream));
        }
        if head.len > most {
            return Err(Fault::Block(head.len, most));
        }
        state.reserved -= 1;
        Ok(if state.unwanted { Effect::Skip } else { Effect::Fill(head.stream) })
    }

    fn frame_came(&mut self, head: &Head, payload: Vec<u8>) -> Result<Vec<Effect>, Fault> {
        let Some(payload) = self.whole(head, payload)? else { return Ok(Vec::new()) };
        match head.kind {
            Kind::Hello => self.meet(&payload).map(|hello| vec![Effect::HelloReceived(hello)]),
            Kind::Ping => Ok(Vec::new()),
            Kind::Bye if payload.is_empty() => Ok(vec![Effect::Close(None)]),
            Kind::Bye => {
                let why = String::from_utf8_lossy(&payload).into_owned();
                Ok(vec![Effect::Close(Some(Fault::Told(why)))])
            }
            Kind::Open => self.asked(head.stream).map(|()| vec![Effect::Asked(head.stream, payload)]),
            Kind::Credit => {
                let Some(state) = self.known(head)? else { return Ok(Vec::new()) };
                if state.credit.saturating_add(head.value) > CREDITS_MAX {
                    return Err(Fault::Credit(head.stream));
                }
                state.credit += head.value;
                Ok(vec![Effect::Credited(head.stream)])
            }
            Kind::End => {
                let state = self.theirs(head)?;
                state.closed_there = true;
                let wanted = !state.unwanted;
                self.forget(head.stream);
                Ok(if wanted { vec![Effect::Ended(head.stream, payload)] } else { Vec::new() })
            }
            Kind::Abort => {
                let Some(state) = self.known(head)? else { return Ok(Vec::new()) };
                state.closed_there = true;
                let why = String::from_utf8_lossy(&payload).into_owned();
                let mut effects = Vec::new();
                if !state.unwanted {
                    effects.push(Effect::Aborted(head.stream, why));
                }
                effects.extend(self.close_here(head.stream, Kind::Abort, b"the other side gave up".to_vec()));
                self.forget(head.stream);
                Ok(effects)
            }
            Kind::Data => unreachable!("a block comes as one"),
        }
    }

    /// Limits the peer's requests and results to `bytes` bytes from now on.
    pub(crate) fn bound_payloads(&mut self, bytes: usize) {
        self.payload_bytes_max = bytes;
    }

    /// The most bytes of a request from the peer.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// The complete payload of a request or a result, when its last part has arrived.
    fn whole(&mut self, head: &Head, payload: Vec<u8>) -> Result<Option<Vec<u8>>, Fault> {
        let more = head.flags & MORE != 0 && matches!(head.kind, Kind::Open | Kind::End);
        let mut all = match self.partial.take() {
            None if !more => return Ok(Some(payload)),
            None => Vec::new(),
            Some((.., before)) => before,
        };
        if all.len() + payload.len() > self.payload_bytes_max {
            return Err(Fault::Long(head.kind, self.payload_bytes_max));
        }
        all.extend(payload);
        if !more {
            return Ok(Some(all));
        }
        self.partial = Some((head.kind, head.stream, all));
        Ok(None)
    }

    fn meet(&mut self, payload: &[u8]) -> Result<Hello, Fault> {
        let hello = Hello::decode(payload, self.ours.versions).map_err(Fault::Hello)?;
        if hello.cluster != self.ours.cluster {
            return Err(Fault::Cluster(hello.cluster));
        }
        if self.proved.is_some_and(|proved| proved != (hello.node, hello.role)) {
            return Err(Fault::Impostor(hello.node, hello.role));
        }
        self.met = true;
        self.block_bytes = self.ours.block_bytes.min(hello.block_bytes);
        Ok(hello)
    }

    /// The stream of a frame with which the peer continues its direction.
    fn theirs(&mut self, head: &Head) -> Result<&mut Stream, Fault> {
        let state = self.streams.get_mut(&head.stream).filter(|state| !state.closed_there);
        state.ok_or(Fault::Stream(head.kind, head.stream))
    }

    /// The stream of a frame that the peer may have sent before it knew of the end; `None` if it is forgotten.
    fn known(&mut self, head: &Head) -> Result<Option<&mut Stream>, Fault> {
        let next = if self.began(head.stream) { self.next_stream } else { self.next_theirs };
        if head.stream == 0 || head.stream >= next {
            return Err(Fault::Stream(head.kind, head.stream));
        }
        Ok(self.streams.get_mut(&head.stream))
    }

    fn asked(&mut self, stream: u32) -> Result<(), Fault> {
        if stream != self.next_theirs {
            return Err(Fault::Stream(Kind::Open, stream));
        }
        if self.streams.len() >= STREAMS_MAX {
            return Err(Fault::Streams);
        }
        // The link ends after 2^31 streams of the peer.
        self.next_theirs = stream.checked_add(2).ok_or(Fault::Streams)?;
        self.streams.insert(stream, Stream::default());
        Ok(())
    }

    /// Opens a stream. Returns no effects if the link has the maximum of streams.
    fn open(&mut self, request: Vec<u8>) -> Vec<Effect> {
        let stream = self.next_stream;
        // Half of the maximum for each side.
        let ours = self.streams.keys().filter(|id| self.began(**id)).count();
        let Some(next) = stream.checked_add(2).filter(|_| ours < STREAMS_MAX / 2) else {
            return Vec::new();
        };
        self.next_stream = next;
        self.streams.insert(stream, Stream::default());
        let mut effects = pieces(Kind::Open, stream, request);
        effects.push(Effect::Opened(stream));
        effects
    }

    fn put(&mut self, head: Head) -> Effect {
        let state = self.streams.get_mut(&head.stream).expect("a block is put into an open stream");
        assert!(state.credit > 0 && !state.closed_here, "a block was put without a credit");
        assert!(head.len <= self.block_bytes, "a block of {} bytes was put", head.len);
        state.credit -= 1;
        Effect::Send(head, Vec::new())
    }

    fn reserve(&mut self, stream: u32, blocks: u64) -> Vec<Effect> {
        let Some(state) = self.streams.get_mut(&stream).filter(|s| !s.closed_there && !s.unwanted) else {
            return Vec::new();
        };
        state.reserved += blocks;
        assert!(state.reserved <= CREDITS_MAX, "{} blocks are reserved", state.reserved);
        vec![send(Kind::Credit, stream, blocks, Vec::new())]
    }

    /// Tells the peer to stop, even after this side has ended its direction: the peer may be waiting for credits.
    fn abort(&mut self, stream: u32, why: String) -> Vec<Effect> {
        let Some(state) = self.streams.get_mut(&stream).filter(|state| !state.unwanted) else {
            return Vec::new();
        };
        state.unwanted = true;
        state.closed_here = true;
        self.forget(stream);
        vec![send(Kind::Abort, stream, 0, short(why))]
    }

    fn close_here(&mut self, stream: u32, kind: Kind, payload: Vec<u8>) -> Vec<Effect> {
        let Some(state) = self.streams.get_mut(&stream).filter(|state| !state.closed_here) else {
            return Vec::new();
        };
        state.closed_here = true;
        self.forget(stream);
        pieces(kind, stream, payload)
    }

    /// Forgets a stream whose directions have both ended.
    fn forget(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|state| state.closed_here && state.closed_there) {
            self.streams.remove(&stream);
        }
    }

    /// How long nothing has come from the peer.
    pub(crate) fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms)
    }

    fn tick(&mut self, now_ms: u64) -> Result<Vec<Effect>, Fault> {
        let silent_ms = self.silent_ms(now_ms);
        if silent_ms >= self.patience.dead_ms {
            return Err(Fault::Silent(silent_ms));
        }
        let quiet = self.met && now_ms.saturating_sub(self.sent_ms) >= self.patience.ping_ms;
        Ok(if quiet { vec![send(Kind::Ping, 0, 0, Vec::new())] } else { Vec::new() })
    }
}

fn send(kind: Kind, stream: u32, value: u64, payload: Vec<u8>) -> Effect {
    Effect::Send(Head::control(kind, stream, value, &payload), payload)
}

/// Cuts a payload into frames, which are sent one directly after the other.
fn pieces(kind: Kind, stream: u32, payload: Vec<u8>) -> Vec<Effect> {
    assert!(payload.len() <= PAYLOAD_BYTES_MAX, "who has {} bytes to say is told so before", payload.len());
    if payload.len() <= CONTROL_BYTES_MAX as usize {
        return vec![send(kind, stream, 0, payload)];
    }
    let mut effects: Vec<Effect> = Vec::new();
    let mut chunks = payload.chunks(CONTROL_BYTES_MAX as usize).peekable();
    while let Some(chunk) = chunks.next() {
        let mut head = Head::control(kind, stream, 0, chunk);
        head.flags = if chunks.peek().is_some() { MORE } else { 0 };
        effects.push(Effect::Send(head, chunk.to_vec()));
    }
    effects
}

/// Shortens a reason to the size of a frame.
fn short(why: String) -> Vec<u8> {
    const REASON_BYTES_MAX: usize = 1024;
    let mut bytes = why.into_bytes();
    bytes.truncate(REASON_BYTES_MAX);
    bytes
}

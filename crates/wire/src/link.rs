//! A link: the core, a carrier, and the threads that wait for either.
//!
//! Model: a link needs no thread of its own. A thread that waits for a block, a credit or a new stream reads frames
//! while no other thread does, and hands frames of other streams to their threads. So a block is received by the thread
//! that wants it, into the buffer that it reserved. Senders write their own frames. [`Link::keep`] adds a thread that
//! reads when no other has for a while, for links whose owner may be busy longer than the peer's timeout.
//! Invariant: a reader never waits for a writer or for the carrier: its answers are sent when there is room, or by the
//! thread that is sending. Otherwise two sides that both write would each wait for the other to read. So a side that
//! streams in both directions reads on a thread of its own. A closed link reports the first cause to all its users.
//! Invariant: a thread that panics while it uses a link closes that link, and nothing else.
//! Invariant: the memory that a peer can occupy is bounded: [`REQUESTS_MAX`] x [`PAYLOAD_BYTES_MAX`] of requests that
//! were not accepted yet, and [`ANSWERS_MAX`] frames that it does not read. A stream that is given up before it was
//! accepted leaves nothing.
//! Non-goals: reopening; the meaning of requests and blocks.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use thalweg_base::clock::now_ns;
use thalweg_block::{Block, Pool};

use crate::carrier::{Receive, Silence, Transmit};
use crate::core::{Core, Effect, Event, Fault, Timeouts};
use crate::error::{LinkError, Result, What};
use crate::export::{EXPORTED_KEY_BYTES, Exporter};
use crate::frame::{HEAD_BYTES, Head, Kind, PAYLOAD_BYTES_MAX};
use crate::hello::{Hello, Id, Role};
use crate::stream::{Gift, Given, Incoming, News, Outgoing};

/// How long a single wait lasts.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The time without a reader after which the keeper reads.
const KEEPER_MS: u64 = 500;
const KEEPER_STACK_BYTES: usize = 128 << 10;
/// The most bytes of frames other than blocks that are sent together.
pub(crate) const TOGETHER_BYTES: usize = 16 << 10;
/// The number of requests of maximal length, or more shorter ones, that may wait to be accepted. Streams beyond that
/// are refused.
const REQUESTS_MAX: usize = 8;
/// The most frames that may wait to be sent when the peer sends something that needs an answer.
const ANSWERS_MAX: usize = 1 << 16;

/// A link with a peer that has said hello. Dropping it says goodbye; its streams keep it open until they are dropped.
pub struct Link(Arc<Owner>);

/// Says goodbye when the last handle of a link is dropped.
struct Owner(Arc<Shared>);

/// The state that all users of a link share.
pub(crate) struct Shared {
    peer: String,
    exporter: Option<Exporter>,
    hello: Mutex<Option<Hello>>,
    dead: Duration,
    state: Mutex<State>,
    changed: Condvar,
    out: Mutex<Out>,
    /// Ends the carrier.
    end: Box<dyn Fn() + Send + Sync>,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    receives: AtomicU64,
}

pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) streams: BTreeMap<u32, Inbox>,
    /// The receiving half, unless a thread is reading.
    input: Option<Box<dyn Receive>>,
    /// The time of the last read.
    read_ms: u64,
    /// The number of threads that wait for a change. Waking takes a system call, and usually no thread waits.
    waiting: usize,
    asked: VecDeque<(u32, Vec<u8>)>,
    opened: Option<u32>,
    outbox: VecDeque<(Head, Vec<u8>)>,
    pub(crate) closed: Option<What>,
}

/// What has arrived of a stream.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Blocks that arrived, each with its channel.
    pub(crate) ready: VecDeque<(u8, Block)>,
    /// Reserved blocks.
    pub(crate) reserved: Vec<Block>,
    /// How the peer's direction ended.
    pub(crate) end: Option<std::result::Result<Vec<u8>, What>>,
    /// Called when something arrives.
    pub(crate) news: Option<Box<dyn Fn(News) + Send>>,
    /// Receives what arrives, which is then not queued here.
    pub(crate) given: Option<Given>,
}

impl Inbox {
    fn tell(&self, what: News) {
        if let Some(news) = &self.news {
            news(what);
        }
    }
}

struct Out {
    carrier: Box<dyn Transmit>,
    sequence: u32,
}

/// The peer, as far as it is known before the hello.
pub(crate) struct PeerInfo {
    /// Its name in messages.
    pub(crate) name: String,
    /// The name and role in its certificate.
    pub(crate) proved: Option<(Id, Role)>,
    /// The exporter secret of the TLS session, if there is one.
    pub(crate) exporter: Option<Exporter>,
}

pub(crate) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// A reference that can close a link and does not keep it open.
#[derive(Clone)]
pub(crate) struct Watched(Weak<Owner>);

impl Watched {
    /// Whether the link is gone.
    pub(crate) fn has_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Closes the link.
    pub(crate) fn close(&self) {
        if let Some(owner) = self.0.upgrade() {
            Link(owner).close();
        }
    }
}

impl Link {
    /// A reference with which the link can be closed.
    pub(crate) fn watch(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    /// Says hello over a carrier and waits for the peer's hello.
    pub(crate) fn establish(
        ours: Hello,
        far: PeerInfo,
        began: bool,
        carrier: (Box<dyn Transmit>, Box<dyn Receive>),
        patience: Timeouts,
    ) -> Result<Link> {
        let link = Link::before_hello(ours, far, began, carrier, patience);
        link.exchange_hellos()?;
        Ok(link)
    }

    /// A link over a carrier on which nothing was sent yet.
    pub(crate) fn before_hello(
        ours: Hello,
        far: PeerInfo,
        began: bool,
        carrier: (Box<dyn Transmit>, Box<dyn Receive>),
        patience: Timeouts,
    ) -> Link {
        let (core, hello) = Core::new(ours, far.proved, began, patience, now_ms());
        let Effect::Send(head, payload) = hello else { unreachable!("a link begins with a hello") };
        let state = State {
            core,
            streams: BTreeMap::new(),
            input: Some(carrier.1),
            read_ms: 0,
            waiting: 0,
            asked: VecDeque::new(),
            opened: None,
            outbox: VecDeque::from([(head, payload)]),
            closed: None,
        };
        Link(Arc::new(Owner(Arc::new(Shared {
            peer: far.name,
            exporter: far.exporter,
            hello: Mutex::new(None),
            dead: Duration::from_millis(patience.dead_ms),
            state: Mutex::new(state),
            changed: Condvar::new(),
            end: carrier.0.end(),
            out: Mutex::new(Out { carrier: carrier.0, sequence: 0 }),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            receives: AtomicU64::new(0),
        }))))
    }

    /// Says hello unless this side has done so, and waits for the peer's hello.
    pub(crate) fn exchange_hellos(&self) -> Result<()> {
        let shared = &self.0.0;
        shared.flush()?;
        shared.wait(|_| *shared.hello.lock().expect("no holder panics")).map(drop)
    }

    /// The peer's name, for messages.
    pub fn peer(&self) -> &str {
        &self.0.0.peer
    }

    /// A key for one use of the link, which only its two ends can derive (RFC 8446, 7.5). `None` if the link has no TLS
    /// session. The label begins with `EXPORTER-`, has at most 249 bytes, and names the use.
    pub fn export_key(&self, label: &str, context: &[u8]) -> Option<[u8; EXPORTED_KEY_BYTES]> {
        self.0.0.exporter.as_ref().map(|exporter| exporter.key(label, context))
    }

    /// The peer's hello.
    pub fn hello(&self) -> Hello {
        self.0.0.hello.lock().expect("no holder panics").expect("a link is met")
    }

    /// The largest block that both sides accept.
    pub fn block_bytes(&self) -> usize {
        self.0.0.lock().core.block_bytes() as usize
    }

    /// Bytes sent and received, with headers, without encryption overhead.
    pub fn bytes(&self) -> (u64, u64) {
        let shared = &self.0.0;
        (shared.sent_bytes.load(Ordering::Relaxed), shared.received_bytes.load(Ordering::Relaxed))
    }

    /// The number of reads of the socket that these bytes took.
    pub fn receives(&self) -> u64 {
        self.0.0.receives.load(Ordering::Relaxed)
    }

    /// Opens a stream with a request of at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub fn open(&self, request: &[u8]) -> Result<(Outgoing, Incoming)> {
        let shared = &self.0.0;
        let stream = shared.begin(&mut shared.lock(), request)?;
        shared.flush()?;
        Ok(self.ends(stream))
    }

    /// Opens a stream on which this side sends only the request: request, end, and credits for the blocks of the answer
    /// are sent together.
    pub fn ask(&self, request: &[u8], takes: Option<(&Pool, usize)>) -> Result<Incoming> {
        let shared = &self.0.0;
        let mut state = shared.lock();
        let stream = shared.begin(&mut state, request)?;
        shared.apply(&mut state, Event::End(stream, Vec::new()));
        drop(state);
        let mut inc = Incoming::new(shared.clone(), stream);
        if let Some((pool, window)) = takes {
            inc = inc.takes(pool, window);
        }
        shared.flush()?;
        Ok(inc)
    }

    /// The next stream that the peer opens, with its request; `None` when the peer has said goodbye.
    pub fn accept(&self) -> Result<Option<(Vec<u8>, Outgoing, Incoming)>> {
        match self.0.0.wait(|state| state.asked.pop_front()) {
            Ok((stream, request)) => {
                let (out, inc) = self.ends(stream);
                Ok(Some((request, out, inc)))
            }
            Err(LinkError { what: What::Closed, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Closes the link at once for all its users.
    pub fn close(&self) {
        let shared = &self.0.0;
        shared.apply(&mut shared.lock(), Event::Bye);
        let _ = shared.flush();
        // Waits until a frame that another thread may be sending is complete.
        let out = shared.out();
        (shared.end)();
        drop(out);
        shared.wake(&shared.lock());
    }

    /// Limits the peer's requests and results to `bytes` bytes from now on, instead of [`PAYLOAD_BYTES_MAX`], and the
    /// requests that may wait accordingly.
    pub fn bound_payloads(&self, bytes: usize) {
        self.0.0.lock().core.bound_payloads(bytes);
    }

    /// Whether the link is open, as far as this side has noticed.
    pub fn is_open(&self) -> bool {
        self.0.0.lock().closed.is_none()
    }

    /// Whether the link ended because the peer was silent, and the peer was last heard less than `within` ago.
    pub fn ended_in_silence(&self, within: Duration) -> bool {
        let state = self.0.0.lock();
        let is_recent = || u128::from(state.core.silent_ms(now_ms())) < within.as_millis();
        state.closed.as_ref().is_some_and(What::is_silence) && is_recent()
    }

    /// Starts a thread that answers the peer while no other thread reads. It ends with the link.
    pub fn keep(&self) -> std::io::Result<()> {
        let weak = Arc::downgrade(&self.0.0);
        let builder = std::thread::Builder::new().name("keeper".into()).stack_size(KEEPER_STACK_BYTES);
        builder.spawn(move || while keep_once(&weak) {}).map(|_| ())
    }

    fn ends(&self, stream: u32) -> (Outgoing, Incoming) {
        (Outgoing::new(self.0.0.clone(), stream), Incoming::new(self.0.0.clone(), stream))
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({}, {:?})", self.peer(), self.bytes())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let shared = &self.0;
        let mut state = shared.lock();
        // Streams in use keep the link; the last one to end lets the carrier close it.
        if state.core.streams() == 0 {
            shared.apply(&mut state, Event::Bye);
            drop(state);
            let _ = shared.flush();
        }
    }
}

/// Reads once if no thread has for a while; false when the link is gone.
fn keep_once(weak: &Weak<Shared>) -> bool {
    // Reads by other threads happen with every frame, and do not wake this one.
    std::thread::park_timeout(Duration::from_millis(KEEPER_MS));
    let Some(shared) = weak.upgrade() else { return false };
    let mut state = shared.lock();
    if state.closed.is_some() {
        return false;
    }
    if now_ms().saturating_sub(state.read_ms) >= KEEPER_MS
        && let Some(input) = state.input.take()
    {
        drop(shared.read(state, input));
    }
    true
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.sound(self.state.lock())
    }

    /// The state. If a thread panicked while it held the state, the link is closed.
    fn sound<'a>(&'a self, locked: LockResult<MutexGuard<'a, State>>) -> MutexGuard<'a, State> {
        locked.unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            for inbox in state.streams.values_mut() {
                let (news, given) = (inbox.news.take(), inbox.given.take());
                // The callback that panicked may be among these.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(news) = news {
                        news(News::End);
                    }
                    if let Some(mut given) = given {
                        (given.hear)(Gift::Not(What::Cut(INTERNAL.into())));
                    }
                }));
            }
            self.shut(&mut state, Some(What::Cut(INTERNAL.into())));
            state
        })
    }

    /// The sending half, unless a thread is sending.
    fn try_out(&self) -> Option<MutexGuard<'_, Out>> {
        match self.out.try_lock() {
            Ok(out) => Some(out),
            // The peer notices by the sequence number if the panic was in the middle of a frame.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, what: What) -> LinkError {
        LinkError::new(self.peer.clone(), what)
    }

    /// An error if the link is closed.
    pub(crate) fn alive(&self, state: &State) -> Result<()> {
        match &state.closed {
            Some(what) => Err(self.error(what.clone())),
            None => Ok(()),
        }
    }

    /// Opens a stream. Nothing is sent yet.
    fn begin(&self, state: &mut State, request: &[u8]) -> Result<u32> {
        self.alive(state)?;
        if request.len() > PAYLOAD_BYTES_MAX {
            return Err(self.error(What::Long(request.len())));
        }
        self.apply(state, Event::Open(request.to_vec()));
        state.opened.take().ok_or_else(|| self.error(What::Full))
    }

    /// Waits until `ready` returns something, reading frames while no other thread does.
    pub(crate) fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        loop {
            if let Some(value) = self.wait_within(DAY, &mut ready)? {
                return Ok(value);
            }
        }
    }

    /// Like `wait`, but for at most about `patience`: `None` after that.
    pub(crate) fn wait_within<T>(
        &self,
        patience: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let begun_ns = now_ns();
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(Some(value));
            }
            self.alive(&state)?;
            let left = patience.saturating_sub(Duration::from_nanos(now_ns() - begun_ns));
            if left.is_zero() {
                return Ok(None);
            }
            state = match state.input.take() {
                Some(input) => self.read(state, input),
                None => {
                    state.waiting += 1;
                    let waited = self.changed.wait_timeout(state, left).map(|(state, _)| state);
                    let waited = waited.map_err(|poisoned| PoisonError::new(poisoned.into_inner().0));
                    let mut state = self.sound(waited);
                    state.waiting -= 1;
                    state
                }
            };
        }
    }

    /// Waits for a frame or a timeout, handles it, and puts the receiving half back.
    fn read<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut input: Box<dyn Receive>,
    ) -> MutexGuard<'a, State> {
        let answers = !state.outbox.is_empty();
        drop(state);
        let reading = Reading(self);
        if answers {
            // These answers did not fit earlier, and perhaps no thread is sending. The peer may be waiting for them, so
            // wait until the carrier can take or deliver something.
            input.wait_for_either();
            self.flush_what_fits();
        }
        let outcome = self.step(input.as_mut());
        std::mem::forget(reading);
        self.receives.store(input.receives(), Ordering::Relaxed);
        let mut state = self.lock();
        if let Err(what) = outcome {
            self.shut(&mut state, Some(what));
        }
        self.apply(&mut state, Event::Tick);
        state.read_ms = now_ms();
        state.input = Some(input);
        let answers = !state.outbox.is_empty();
        self.wake(&state);
        if answers {
            drop(state);
            self.flush_what_fits();
            state = self.lock();
        }
        // A sending thread would notice only at its own timeout.
        if state.closed.as_ref().is_some_and(What::is_last) && self.try_out().is_none() {
            (self.end)();
        }
        state
    }

    /// Reads a frame and handles it.
    fn step(&self, input: &mut dyn Receive) -> std::result::Result<(), What> {
        let mut bytes = [0; HEAD_BYTES];
        if !input.receive(&mut bytes, &mut Silence::new(self.dead, false, &mut |_| {}))? {
            return Ok(());
        }
        let head = match Head::decode(&bytes) {
            Ok(head) => head,
            Err(why) => {
                self.apply(&mut self.lock(), Event::Broken(why));
                return Ok(());
            }
        };
        self.received_bytes.fetch_add(u64::from(head.len) + HEAD_BYTES as u64, Ordering::Relaxed);
        if head.kind == Kind::Data {
            return self.take_block(input, &head);
        }
        let mut payload = vec![0; head.len as usize];
        self.rest(input, &mut payload)?;
        head.verify(&payload)?;
        let mut state = self.lock();
        for effect in self.apply(&mut state, Event::Frame(head, payload)) {
            let Effect::HelloReceived(hello) = effect else { continue };
            *self.hello.lock().expect("no holder panics") = Some(hello);
        }
        Ok(())
    }

    fn take_block(&self, input: &mut dyn Receive, head: &Head) -> std::result::Result<(), What> {
        let mut state = self.lock();
        // If a sender has found the link broken meanwhile, the streams are gone and the core does not know it yet.
        self.alive(&state).map_err(|closed| closed.what)?;
        let effects = self.apply(&mut state, Event::Block(*head));
        for effect in effects {
            match effect {
                Effect::Fill(stream) => {
                    let inbox = state.streams.get_mut(&stream).expect("a stream that is wanted");
                    let mut block = inbox.reserved.pop().expect("a credit is a block");
                    drop(state);
                    if head.len as usize > block.capacity() {
                        return Err(What::Fault(Fault::Block(head.len, block.capacity() as u32)));
                    }
                    block.set_len(head.len as usize);
                    block.set_offset(head.value);
                    self.rest(input, &mut block)?;
                    head.verify(&block)?;
                    self.block_came(&mut self.lock(), stream, (head.channel(), block));
                    return Ok(());
                }
                Effect::Skip => {
                    drop(state);
                    let mut left = head.len as usize;
                    let mut unwanted = [0; 4096];
                    while left > 0 {
                        let some = left.min(unwanted.len());
                        self.rest(input, &mut unwanted[..some])?;
                        left -= some;
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn block_came(&self, state: &mut State, stream: u32, came: (u8, Block)) {
        let Some(inbox) = state.streams.get_mut(&stream) else { return };
        let Some(given) = &mut inbox.given else {
            inbox.ready.push_back(came);
            return inbox.tell(News::Block);
        };
        let blocks = given.take(came, inbox.reserved.len());
        let count = blocks.len() as u64;
        inbox.reserved.extend(blocks);
        if !inbox.reserved.is_empty() {
            if count > 0 {
                self.apply(state, Event::Reserve(stream, count));
            }
            return;
        }
        let why = "no block is left to receive the rest of the stream";
        self.apply(state, Event::Abort(stream, why.into()));
        ended(state, stream, Err(What::Cut(why.into())));
    }

    /// Receives what must follow a header. On a slow connection this takes longer than a timeout: arriving bytes count
    /// as a sign of life of the peer, and this side sends its own.
    fn rest(&self, input: &mut dyn Receive, into: &mut [u8]) -> std::result::Result<(), What> {
        let mut meanwhile = |came: bool| {
            let mut state = self.lock();
            if came {
                state.core.heard(now_ms());
            }
            self.apply(&mut state, Event::Tick);
            drop(state);
            self.flush_what_fits();
        };
        input.receive(into, &mut Silence::new(self.dead, true, &mut meanwhile)).map(drop)
    }

    /// Applies an event to the core, performs the effects that can be performed here, and returns those that only the
    /// caller can.
    pub(crate) fn apply(&self, state: &mut State, event: Event) -> Vec<Effect> {
        let mut left = Vec::new();
        let came = matches!(event, Event::Frame(..));
        for effect in state.core.apply(now_ms(), event) {
            match effect {
                Effect::Send(head, payload) if head.kind != Kind::Data => {
                    state.outbox.push_back((head, payload));
                }
                Effect::Opened(stream) => {
                    state.streams.insert(stream, Inbox::default());
                    state.opened = Some(stream);
                }
                Effect::Asked(stream, request) => self.asked(state, stream, request),
                Effect::Ended(stream, result) => ended(state, stream, Ok(result)),
                Effect::Aborted(stream, why) => match state.asked.iter().position(|(id, _)| *id == stream) {
                    Some(at) => {
                        state.asked.remove(at);
                        state.streams.remove(&stream);
                    }
                    None => ended(state, stream, Err(What::Aborted(why))),
                },
                Effect::Credited(_) => {}
                Effect::Close(fault) => self.shut(state, fault.map(What::Fault)),
                other => left.push(other),
            }
        }
        let waiting = state.outbox.len();
        if came && waiting > ANSWERS_MAX {
            state.outbox.clear();
            self.shut(state, Some(What::Fault(Fault::Deaf(waiting))));
        }
        left
    }

    /// Keeps a request until it is accepted, if there is room for it.
    fn asked(&self, state: &mut State, stream: u32, request: Vec<u8>) {
        let waiting: usize = state.asked.iter().map(|(_, request)| request.len()).sum();
        let most = REQUESTS_MAX * state.core.payload_bytes_max();
        if waiting + request.len() > most {
            let why = format!("{waiting} bytes of requests wait here, the limit is {most}; try again later");
            self.apply(state, Event::Abort(stream, why));
            return;
        }
        state.streams.insert(stream, Inbox::default());
        state.asked.push_back((stream, request));
    }

    fn shut(&self, state: &mut State, what: Option<What>) {
        let why = state.closed.get_or_insert(what.unwrap_or(What::Closed)).clone();
        state.streams.retain(|_, inbox| {
            inbox.tell(News::End);
            match inbox.given.as_mut().filter(|_| inbox.end.is_none()) {
                Some(given) => {
                    (given.hear)(Gift::Not(why.clone()));
                    false
                }
                None => true,
            }
        });
        self.wake(state);
    }

    /// Wakes all waiting threads.
    pub(crate) fn wake(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Sends the frames that wait. If another thread is sending, it sends these too, and this one does not wait: it may
    /// be the reader, and the peer may be writing until it reads.
    pub(crate) fn flush(&self) -> Result<()> {
        while !self.lock().outbox.is_empty() {
            let Some(mut out) = self.try_out() else { break };
            self.drain(&mut out, false, None)?;
        }
        Ok(())
    }

    /// Like `flush`, for a reader: it does not wait for the carrier either, so frames that do not fit are sent later.
    pub(crate) fn flush_what_fits(&self) {
        while !self.lock().outbox.is_empty() {
            let Some(mut out) = self.try_out() else { break };
            if !self.drain(&mut out, true, None).is_ok_and(|drained| drained) {
                break;
            }
        }
    }

    /// Sends the frames that wait. Returns false if, with `only_what_fits`, some did not fit. If a block of the stream
    /// `followed` comes next, the last frame is sent with it.
    fn drain(&self, out: &mut Out, only_what_fits: bool, followed: Option<u32>) -> Result<bool> {
        let mut held = 0;
        loop {
            let mut state = self.lock();
            if state.outbox.is_empty() {
                return Ok(true);
            }
            if held == 0 && only_what_fits && !out.carrier.is_ready() {
                return Ok(false);
            }
            let (head, mut payload) = state.outbox.pop_front().expect("it is not empty");
            held += HEAD_BYTES + payload.len();
            let fits = |(_, next): &(Head, Vec<u8>)| held + HEAD_BYTES + next.len() <= TOGETHER_BYTES;
            // An event that revokes the permission to send is recorded here, after the frames that wait.
            let follows = || followed.is_some_and(|stream| state.core.may_put(stream).is_some());
            let more = state.outbox.front().map_or_else(follows, fits);
            drop(state);
            self.send(out, head, &mut payload, more)?;
            if !more {
                held = 0;
            }
        }
    }

    /// Sends a block that the core has permitted, after the frames that wait. Returns false if the stream was given up
    /// in the meantime: then the block must not be sent.
    pub(crate) fn send_block(&self, head: Head, payload: &mut [u8]) -> Result<bool> {
        let mut out = self.out();
        self.drain(&mut out, false, Some(head.stream))?;
        let may = self.lock().core.may_put(head.stream).is_some();
        if may {
            self.send(&mut out, head, payload, false)?;
        }
        drop(out);
        self.flush()?;
        Ok(may)
    }

    fn send(&self, out: &mut Out, mut head: Head, payload: &mut [u8], more: bool) -> Result<()> {
        head.sequence = out.sequence;
        out.sequence = out.sequence.wrapping_add(1);
        self.sent_bytes.fetch_add((payload.len() + HEAD_BYTES) as u64, Ordering::Relaxed);
        out.carrier.send(&head.encode(), payload, more).map_err(|what| {
            // A reason that the peer sent before it closed is better than the fact that it closed.
            let mut state = self.lock();
            self.shut(&mut state, Some(what));
            self.error(state.closed.clone().expect("it is shut"))
        })
    }
}

/// The reading thread. If it panics, the link is closed.
struct Reading<'a>(&'a Shared);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.shut(&mut self.0.lock(), Some(What::Cut(INTERNAL.into())));
    }
}

/// The error of a link that a panic has closed.
pub(crate) const INTERNAL: &str = "an internal error on this side; see its log";

pub(crate) fn ended(state: &mut State, stream: u32, how: std::result::Result<Vec<u8>, What>) {
    let Some(inbox) = state.streams.get_mut(&stream) else { return };
    if let Some(given) = &mut inbox.given {
        (given.hear)(how.into());
        state.streams.remove(&stream);
        return;
    }
    // What arrived completely stays complete, even if the peer then gives up the other direction.
    inbox.end.get_or_insert(how);
    inbox.tell(News::End);
}

//! A link: the core, a carrier, and the threads that wait for either.
//!
//! Model: a link has no thread of its own. Whoever waits for something (a block, a credit, a new stream) reads frames
//! while nobody else does, and hands to the others what is theirs; so a block is received by the thread that wants it,
//! into the buffer it reserved. Whoever sends writes his own frame. [`Link::keep`] adds a thread that reads when nobody
//! has for a while, for links whose owner may be away longer than a peer is patient.
//! Invariant: a reader never waits for a writer, nor for the carrier: what it has to answer goes out when there is room, or by
//! whoever is sending; else two sides that both write would each wait for the other to read. So a side that streams both
//! ways at once reads on a thread of its own. Once closed, a link says to everyone the same thing: what closed it first.
//! Invariant: a thread that panics while it has a link closes that link, and nothing else.
//! Invariant: what a peer can make this side keep is bounded: [`REQUESTS_MAX`] x [`PAYLOAD_BYTES_MAX`] of requests that nobody
//! has accepted, and [`ANSWERS_MAX`] frames that it does not read. A stream that is given up before it was accepted leaves nothing.
//! Non-goals: opening it again, what requests and blocks mean.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use thalweg_base::clock::now_ns;
use thalweg_block::{Block, Pool};

use crate::carrier::{Receive, Silence, Transmit};
use crate::core::{Core, Effect, Event, Fault, Patience};
use crate::error::{LinkError, Result, What};
use crate::export::{EXPORTED_KEY_BYTES, Exporter};
use crate::frame::{HEAD_BYTES, Head, Kind, PAYLOAD_BYTES_MAX};
use crate::hello::{Hello, Id, Role};
use crate::stream::{Gift, Given, Incoming, News, Outgoing};

/// How long nobody may have read before a keeper does.
const KEEPER_MS: u64 = 500;
const KEEPER_STACK_BYTES: usize = 128 << 10;
/// What leaves together of frames that are no blocks.
const TOGETHER_BYTES: usize = 16 << 10;
/// So many of the longest requests that the peer may send wait to be accepted, or more of shorter ones; the streams of what is
/// beyond are refused.
const REQUESTS_MAX: usize = 8;
/// The most frames that may wait to leave when the peer says something that has to be answered.
const ANSWERS_MAX: usize = 1 << 16;

/// A link with a peer that has said hello. Dropping it says goodbye; streams keep it open until they are dropped.
pub struct Link(Arc<Owner>);

/// What the last handle of a link does: say goodbye.
struct Owner(Arc<Shared>);

/// What all that use a link share.
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
    /// The way in, unless somebody is reading.
    input: Option<Box<dyn Receive>>,
    /// When somebody last read.
    read_ms: u64,
    /// How many wait for a change. Waking is a system call, and mostly nobody does.
    waiting: usize,
    asked: VecDeque<(u32, Vec<u8>)>,
    opened: Option<u32>,
    outbox: VecDeque<(Head, Vec<u8>)>,
    pub(crate) closed: Option<What>,
}

/// What has come of a stream.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Blocks that came, each with its channel.
    pub(crate) ready: VecDeque<(u8, Block)>,
    /// Blocks for those that have not.
    pub(crate) reserved: Vec<Block>,
    /// How the peer's direction ended.
    pub(crate) end: Option<std::result::Result<Vec<u8>, What>>,
    /// Whom to tell of either.
    pub(crate) news: Option<Box<dyn Fn(News) + Send>>,
    /// Who is given both at once; then they do not wait here.
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

/// Who is on the other side of a carrier, as far as is known before the hello.
pub(crate) struct Far {
    /// For messages.
    pub(crate) name: String,
    /// Whom its certificate names, and as what.
    pub(crate) proved: Option<(Id, Role)>,
    /// Of the TLS session, if there is one.
    pub(crate) exporter: Option<Exporter>,
}

pub(crate) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// A link as seen by who may have to close it, and does not keep it open.
#[derive(Clone)]
pub(crate) struct Watched(Weak<Owner>);

impl Watched {
    /// Whether there is nothing left to close.
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
    /// For whoever may have to close it.
    pub(crate) fn watch(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    /// Says hello over a carrier and waits for the peer's.
    pub(crate) fn establish(
        ours: Hello,
        far: Far,
        began: bool,
        carrier: (Box<dyn Transmit>, Box<dyn Receive>),
        patience: Patience,
    ) -> Result<Link> {
        let link = Link::unmet(ours, far, began, carrier, patience);
        link.meet()?;
        Ok(link)
    }

    /// A link over a carrier on which nothing has been said.
    pub(crate) fn unmet(
        ours: Hello,
        far: Far,
        began: bool,
        carrier: (Box<dyn Transmit>, Box<dyn Receive>),
        patience: Patience,
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

    /// Says hello, if that has not been said yet, and waits for the peer's.
    pub(crate) fn meet(&self) -> Result<()> {
        let shared = &self.0.0;
        shared.flush()?;
        shared.wait(|_| *shared.hello.lock().expect("no holder panics")).map(drop)
    }

    /// The peer, for messages: its name.
    pub fn peer(&self) -> &str {
        &self.0.0.peer
    }

    /// A key for this use of the link, which its two ends have in common and nobody else has (RFC 8446, 7.5). `None` if the
    /// link has no TLS session. The label begins with `EXPORTER-`, has at most 249 bytes, and names the use.
    pub fn export_key(&self, label: &str, context: &[u8]) -> Option<[u8; EXPORTED_KEY_BYTES]> {
        self.0.0.exporter.as_ref().map(|exporter| exporter.key(label, context))
    }

    /// What the peer said of itself.
    pub fn hello(&self) -> Hello {
        self.0.0.hello.lock().expect("no holder panics").expect("a link is met")
    }

    /// The largest block that both sides take.
    pub fn block_bytes(&self) -> usize {
        self.0.0.lock().core.block_bytes() as usize
    }

    /// Bytes sent and received, heads included, seals not.
    pub fn bytes(&self) -> (u64, u64) {
        let shared = &self.0.0;
        (shared.sent_bytes.load(Ordering::Relaxed), shared.received_bytes.load(Ordering::Relaxed))
    }

    /// Receives of the socket that completed, for these bytes.
    pub fn receives(&self) -> u64 {
        self.0.0.receives.load(Ordering::Relaxed)
    }

    /// Begins a stream; the request says to the peer what for. At most [`PAYLOAD_BYTES_MAX`].
    pub fn open(&self, request: &[u8]) -> Result<(Outgoing, Incoming)> {
        let shared = &self.0.0;
        let stream = shared.begin(&mut shared.lock(), request)?;
        shared.flush()?;
        Ok(self.ends(stream))
    }

    /// Begins a stream on which nothing more is said from here: request, end, and credits for the blocks that the answer
    /// may take of a pool, leave together.
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

    /// The next stream that the peer begins, with its request; `None` when the peer has said goodbye.
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

    /// Closes it for everyone who uses it, now.
    pub fn close(&self) {
        let shared = &self.0.0;
        shared.apply(&mut shared.lock(), Event::Bye);
        let _ = shared.flush();
        // Behind what somebody else may be sending.
        let out = shared.out();
        (shared.end)();
        drop(out);
        shared.wake(&shared.lock());
    }

    /// From now on the peer may send requests and results of so many bytes and no more, where [`PAYLOAD_BYTES_MAX`] is the
    /// most for others; and so much less of what it asks waits here.
    pub fn bound_payloads(&self, bytes: usize) {
        self.0.0.lock().core.bound_payloads(bytes);
    }

    /// Whether it still stands, as far as anybody here has noticed.
    pub fn is_open(&self) -> bool {
        self.0.0.lock().closed.is_none()
    }

    /// Answers the peer while nobody here reads. Ends with the link.
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
        // Streams in use keep the link; who ends them last leaves the rest to the carrier's end.
        if state.core.streams() == 0 {
            shared.apply(&mut state, Event::Bye);
            drop(state);
            let _ = shared.flush();
        }
    }
}

/// Reads once if nobody has for a while; false when there is no link any more.
fn keep_once(weak: &Weak<Shared>) -> bool {
    // Not woken by what others read, which is every frame.
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

    /// The state; of a link that somebody had when he panicked, the state of one that is closed.
    fn sound<'a>(&'a self, locked: LockResult<MutexGuard<'a, State>>) -> MutexGuard<'a, State> {
        locked.unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            for inbox in state.streams.values_mut() {
                let (news, given) = (inbox.news.take(), inbox.given.take());
                // Whoever hears of it may be who panicked.
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

    /// Whoever may send now, unless somebody is sending.
    fn try_out(&self) -> Option<MutexGuard<'_, Out>> {
        match self.out.try_lock() {
            Ok(out) => Some(out),
            // The peer finds out by the sequence, if the panic was in the middle of a frame.
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

    /// Opens a stream, of which nothing has left yet.
    fn begin(&self, state: &mut State, request: &[u8]) -> Result<u32> {
        self.alive(state)?;
        if request.len() > PAYLOAD_BYTES_MAX {
            return Err(self.error(What::Long(request.len())));
        }
        self.apply(state, Event::Open(request.to_vec()));
        state.opened.take().ok_or_else(|| self.error(What::Full))
    }

    /// Waits until `ready` returns something, reading frames while nobody else does.
    pub(crate) fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(value);
            }
            self.alive(&state)?;
            state = match state.input.take() {
                Some(input) => self.read(state, input),
                None => {
                    state.waiting += 1;
                    let mut state = self.sound(self.changed.wait(state));
                    state.waiting -= 1;
                    state
                }
            };
        }
    }

    /// Reads a frame, or a moment of silence, and puts the way in back.
    fn read<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut input: Box<dyn Receive>,
    ) -> MutexGuard<'a, State> {
        let answers = !state.outbox.is_empty();
        drop(state);
        let reading = Reading(self);
        if answers {
            // They did not fit, and perhaps nobody sends: then the peer may wait for them before it says more.
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
        // Who is sending would learn it only when his own patience ends.
        if state.closed.as_ref().is_some_and(What::is_last) && self.try_out().is_none() {
            (self.end)();
        }
        state
    }

    /// Reads a frame and does what it says.
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
            let Effect::Met(hello) = effect else { continue };
            *self.hello.lock().expect("no holder panics") = Some(hello);
        }
        Ok(())
    }

    fn take_block(&self, input: &mut dyn Receive, head: &Head) -> std::result::Result<(), What> {
        let mut state = self.lock();
        // Whoever sent may have found the link broken while this came: then its streams are gone, and the core knows nothing
        // of it.
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
        let why = "no block is left for what comes of it";
        self.apply(state, Event::Abort(stream, why.into()));
        ended(state, stream, Err(What::Cut(why.into())));
    }

    /// Receives what must follow a head. Over a slow way that takes longer than a peer is patient: what comes says that this
    /// one is there, and it is told that we are.
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

    /// Lets the core react, does what can be done here, and returns what only the caller can do.
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

    /// Keeps what the peer asks until it is accepted, if there is room for it.
    fn asked(&self, state: &mut State, stream: u32, request: Vec<u8>) {
        let waiting: usize = state.asked.iter().map(|(_, request)| request.len()).sum();
        let most = REQUESTS_MAX * state.core.payload_bytes_max();
        if waiting + request.len() > most {
            let why =
                format!("{waiting} bytes of requests wait here, and {most} is the most; ask again later");
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

    /// Lets all that wait look again.
    pub(crate) fn wake(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Sends what waits to be sent. If somebody is sending already, he does that too, and nobody waits for him: who
    /// comes here may be the one who reads, and the peer may be writing until he does.
    pub(crate) fn flush(&self) -> Result<()> {
        while !self.lock().outbox.is_empty() {
            let Some(mut out) = self.try_out() else { break };
            self.drain(&mut out, false, None)?;
        }
        Ok(())
    }

    /// The same for a reader, who waits for no carrier either: what does not fit is for whoever sends or reads next.
    pub(crate) fn flush_what_fits(&self) {
        while !self.lock().outbox.is_empty() {
            let Some(mut out) = self.try_out() else { break };
            if !self.drain(&mut out, true, None).is_ok_and(|drained| drained) {
                break;
            }
        }
    }

    /// Sends what waits; false if not all of it fitted, where only that is to be sent. A block of the stream that is
    /// `followed`, as long as that may be, takes the last of it along.
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
            // What takes the leave to put away says so here, behind what waited.
            let follows = || followed.is_some_and(|stream| state.core.may_put(stream).is_some());
            let more = state.outbox.front().map_or_else(follows, fits);
            drop(state);
            self.send(out, head, &mut payload, more)?;
            if !more {
                held = 0;
            }
        }
    }

    /// Sends a block, for which the core has given leave, behind what waits and with it; false if the stream was given up
    /// before it could leave: nothing of it may come behind that.
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
            // What the peer said before it went says more than that it has gone.
            let mut state = self.lock();
            self.shut(&mut state, Some(what));
            self.error(state.closed.clone().expect("it is shut"))
        })
    }
}

/// Whoever reads. If he panics, nobody would read any more.
struct Reading<'a>(&'a Shared);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.shut(&mut self.0.lock(), Some(What::Cut(INTERNAL.into())));
    }
}

/// What a link ends with that a panic has closed.
pub(crate) const INTERNAL: &str = "an internal error of this side, which its log tells";

pub(crate) fn ended(state: &mut State, stream: u32, how: std::result::Result<Vec<u8>, What>) {
    let Some(inbox) = state.streams.get_mut(&stream) else { return };
    if let Some(given) = &mut inbox.given {
        (given.hear)(how.into());
        state.streams.remove(&stream);
        return;
    }
    // What came whole stays whole, even if the peer then wants no more of ours.
    inbox.end.get_or_insert(how);
    inbox.tell(News::End);
}

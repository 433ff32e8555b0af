//! The two directions of a stream, as a sink and a source of blocks.
//!
//! Invariant: [`Outgoing::put`] waits for a credit, and [`Incoming`] grants one for each block that it reserves in its
//! pool, at most its window at a time. Dropping either before its end gives up the stream, and notifies the peer.

use std::sync::Arc;
use std::time::Duration;

use thalweg_block::{Block, Pool};
use thalweg_pump::{Sink, Source};

use crate::core::Event;
use crate::error::{LinkError, Result, What};
use crate::frame::{Head, PAYLOAD_BYTES_MAX};
use crate::link::{Shared, State, TOGETHER_BYTES, ended};

/// How long to wait for a free block before checking the link.
const MOMENT: Duration = Duration::from_millis(100);

/// The direction to the peer.
pub struct Outgoing {
    shared: Arc<Shared>,
    stream: u32,
    checked: bool,
    at: u64,
    ended: bool,
}

impl Outgoing {
    pub(crate) fn new(shared: Arc<Shared>, stream: u32) -> Outgoing {
        Outgoing { shared, stream, checked: true, at: 0, ended: false }
    }

    /// Omits the checksum of each block, for a caller that has one of its own.
    pub fn unchecked(mut self) -> Outgoing {
        self.checked = false;
        self
    }

    /// Sends a block on one of the stream's 16 channels, with its offset, when there is a credit for it. The bytes may
    /// be encrypted in place, so the block is then dropped.
    pub fn put_on(&mut self, channel: u8, mut block: Block) -> Result<()> {
        let offset = block.offset();
        self.send_at((channel, offset), &mut block)
    }

    /// Sends bytes that are not a block, after those of earlier calls, in as many frames as necessary.
    pub fn send(&mut self, channel: u8, bytes: &mut [u8]) -> Result<()> {
        let most = self.shared.lock().core.block_bytes() as usize;
        for some in bytes.chunks_mut(most) {
            self.send_at((channel, self.at), some)?;
            self.at += some.len() as u64;
        }
        Ok(())
    }

    /// Sends bytes that are not a block, with an offset that has a meaning for both sides.
    pub fn send_from(&mut self, channel: u8, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let most = self.shared.lock().core.block_bytes() as usize;
        bytes.chunks_mut(most).try_for_each(|some| self.send_at((channel, offset), some))
    }

    fn send_at(&self, (channel, offset): (u8, u64), payload: &mut [u8]) -> Result<()> {
        let head = Head::data(self.stream, channel, offset, payload, self.checked);
        let (shared, stream) = (self.shared.clone(), self.stream);
        let len = payload.len();
        shared.wait(|state| match (shared.alive(state), state.core.may_put(stream)) {
            (Err(closed), _) => Some(Err(closed)),
            _ if len > state.core.block_bytes() as usize => {
                Some(Err(shared.error(What::Block(len, state.core.block_bytes() as usize))))
            }
            (_, None) => Some(Err(self.given_up(state))),
            (_, Some(false)) => None,
            (_, Some(true)) => {
                shared.apply(state, Event::Put(head));
                Some(Ok(()))
            }
        })??;
        if shared.send_block(head, payload)? {
            return Ok(());
        }
        let state = shared.lock();
        shared.alive(&state)?;
        Err(self.given_up(&state))
    }

    fn given_up(&self, state: &State) -> LinkError {
        let end = state.streams.get(&self.stream).and_then(|inbox| inbox.end.as_ref());
        self.shared.error(match end {
            Some(Err(what)) => what.clone(),
            _ => What::GivenUp,
        })
    }

    /// Completes this direction with a result of at most [`PAYLOAD_BYTES_MAX`] bytes. A longer one aborts the stream.
    pub fn end(&mut self, result: &[u8]) -> Result<()> {
        assert!(!self.ended, "a direction ends once");
        self.ended = true;
        if result.len() > PAYLOAD_BYTES_MAX {
            let why = format!("an answer of {} bytes, where {PAYLOAD_BYTES_MAX} is the most", result.len());
            self.say(Event::Abort(self.stream, why))?;
            return Err(self.shared.error(What::Long(result.len())));
        }
        self.say(Event::End(self.stream, result.to_vec()))
    }

    /// Aborts the whole stream, with a reason.
    pub fn abort(mut self, why: &str) -> Result<()> {
        self.ended = true;
        self.say(Event::Abort(self.stream, why.to_string()))
    }

    /// Whether the peer has given up the stream, or the link is closed. Reads nothing.
    pub fn is_given_up(&self) -> bool {
        let state = self.shared.lock();
        state.closed.is_some() || (!self.ended && state.core.may_put(self.stream).is_none())
    }

    fn say(&self, event: Event) -> Result<()> {
        let mut state = self.shared.lock();
        self.shared.alive(&state)?;
        if matches!(event, Event::Abort(..)) {
            ended(&mut state, self.stream, Err(What::GivenUp));
        }
        self.shared.apply(&mut state, event);
        drop(state);
        self.shared.flush()
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.say(Event::Abort(self.stream, dropped("it was dropped before its end")));
        }
    }
}

/// The reason of a stream that is dropped.
fn dropped(why: &str) -> String {
    let panics = std::thread::panicking();
    if panics { "an internal error on the other side; see its log".into() } else { why.into() }
}

impl Sink for Outgoing {
    type Error = LinkError;

    fn put(&mut self, block: Block) -> Result<()> {
        self.put_on(0, block)
    }

    fn finish(&mut self) -> Result<()> {
        self.end(&[])
    }
}

/// What arrived on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// A block.
    Block,
    /// Its end, or an error.
    End,
}

/// What the receiver of a stream gets.
#[derive(Debug)]
pub enum Gift {
    /// A block, and its channel.
    Block(u8, Block),
    /// The end, and the peer's result.
    End(Vec<u8>),
    /// The error that ended the stream.
    Not(What),
}

impl From<std::result::Result<Vec<u8>, What>> for Gift {
    fn from(end: std::result::Result<Vec<u8>, What>) -> Gift {
        end.map_or_else(Gift::Not, Gift::End)
    }
}

/// The receiver that gets blocks as they arrive, and the pool for them.
pub(crate) struct Given {
    pool: Pool,
    window: usize,
    pub(crate) hear: Box<dyn FnMut(Gift) + Send>,
}

impl Given {
    /// Hands over a block, and reserves others for what is still to come.
    pub(crate) fn take(&mut self, (channel, block): (u8, Block), reserved: usize) -> Vec<Block> {
        (self.hear)(Gift::Block(channel, block));
        more_blocks(&self.pool, self.window, reserved)
    }
}

/// Reserves blocks up to the window, if at most half of it is reserved: so one credit frame announces several blocks.
fn more_blocks(pool: &Pool, window: usize, have: usize) -> Vec<Block> {
    let most = if have > 0 && have * 2 > window { have } else { window };
    (have..most).map_while(|_| pool.try_take()).collect()
}

/// The direction from the peer. Receives nothing until it [`takes`](Incoming::takes) blocks of a pool.
pub struct Incoming {
    shared: Arc<Shared>,
    stream: u32,
    pool: Option<Pool>,
    window: usize,
    result: Option<Vec<u8>>,
    /// Whether the stream was handed over by [`Incoming::give`].
    is_given: bool,
}

impl Incoming {
    pub(crate) fn new(shared: Arc<Shared>, stream: u32) -> Incoming {
        Incoming { shared, stream, pool: None, window: 0, result: None, is_given: false }
    }

    /// Receives into blocks of this pool, of which at most `window` are reserved at a time. A peer that sends a larger
    /// block violates the protocol, even if its hello allows more.
    pub fn takes(mut self, pool: &Pool, window: usize) -> Incoming {
        assert!(window > 0, "without a reserved block nothing can come");
        self.pool = Some(pool.clone());
        self.window = window;
        let _ = self.reserve(true);
        self
    }

    /// Waits until [`Incoming::next_on`] has something to return, for at most about `patience`. Returns whether it has.
    /// Meanwhile this thread reads the link, unless another one does.
    pub fn wait(&self, patience: Duration) -> bool {
        let came = self.shared.wait_within(patience, |state| {
            let inbox = state.streams.get(&self.stream).expect("it goes with this");
            (!inbox.ready.is_empty() || inbox.end.is_some()).then_some(())
        });
        // A link that is closed is an error to return.
        !matches!(came, Ok(None))
    }

    /// The next block and its channel, or `None` at the end.
    pub fn next_on(&mut self) -> Result<Option<(u8, Block)>> {
        if self.result.is_some() {
            return Ok(None);
        }
        loop {
            self.reserve(true)?;
            let (stream, shared) = (self.stream, self.shared.clone());
            let without = self.pool.is_some();
            let came = shared.wait(|state| {
                let inbox = state.streams.get_mut(&stream).expect("it goes with this");
                if let Some((channel, block)) = inbox.ready.pop_front() {
                    return Some(Some(Gift::Block(channel, block)));
                }
                match inbox.end.clone() {
                    Some(end) => Some(Some(Gift::from(end))),
                    // A free block is missing.
                    None if without && inbox.reserved.is_empty() => Some(None),
                    None => None,
                }
            })?;
            match came {
                Some(Gift::Block(channel, block)) => {
                    if block.len() <= TOGETHER_BYTES {
                        self.reserve(false)?;
                    }
                    return Ok(Some((channel, block)));
                }
                Some(Gift::End(result)) => {
                    self.result = Some(result);
                    return Ok(None);
                }
                Some(Gift::Not(what)) => return Err(self.shared.error(what)),
                None => {}
            }
        }
    }

    /// Calls `news` for each block that arrives and at the end, at least as often as [`Incoming::next_on`] has
    /// something to return. The thread that reads the link calls it; `news` must not wait or use the link.
    pub fn on_news(&self, news: impl Fn(News) + Send + 'static) {
        let mut state = self.shared.lock();
        let is_closed = state.closed.is_some();
        let inbox = state.streams.get_mut(&self.stream).expect("it goes with this");
        inbox.ready.iter().for_each(|_| news(News::Block));
        if inbox.end.is_some() || is_closed {
            news(News::End);
        }
        inbox.news = Some(Box::new(news));
    }

    /// Gives everything that arrives to `hear`, until the end or an error, without a thread that waits for it. The
    /// thread that reads the link calls `hear`, which must not wait or use the link. Whenever a block is handed over,
    /// the pool must have another, or the stream is given up.
    ///
    /// The side that opened the stream announces the credits with its next frame, or within a second.
    pub fn give(mut self, pool: &Pool, window: usize, mut hear: impl FnMut(Gift) + Send + 'static) {
        let mut state = self.shared.lock();
        let inbox = state.streams.get_mut(&self.stream).expect("it goes with this");
        assert!(self.pool.is_none() && inbox.ready.is_empty(), "it has been taken from");
        let over = inbox.end.clone().map(Gift::from);
        let closed = || state.closed.clone().map(Gift::Not);
        if let Some(over) = over.or_else(closed) {
            hear(over);
            return;
        }
        let blocks = more_blocks(pool, window, 0);
        let count = blocks.len() as u64;
        let inbox = state.streams.get_mut(&self.stream).expect("it goes with this");
        inbox.reserved.extend(blocks);
        inbox.given = Some(Given { pool: pool.clone(), window, hear: Box::new(hear) });
        self.is_given = true;
        self.shared.apply(&mut state, Event::Reserve(self.stream, count));
        let speaks = state.core.began(self.stream) && state.core.may_put(self.stream).is_some();
        drop(state);
        if !speaks {
            self.shared.flush_what_fits();
        }
    }

    /// Whether the peer has given up the stream, or the link is closed. Reads nothing.
    pub fn is_given_up(&self) -> bool {
        let state = self.shared.lock();
        let end = state.streams.get(&self.stream).and_then(|inbox| inbox.end.as_ref());
        matches!(end, Some(Err(_))) || state.closed.is_some()
    }

    /// The peer's result, once [`Incoming::next_on`] has returned `None`.
    pub fn result(&self) -> Option<&[u8]> {
        self.result.as_deref()
    }

    /// A handle that gives up the stream from another thread.
    pub fn quit(&self) -> Quit {
        Quit { shared: self.shared.clone(), stream: self.stream }
    }

    /// Reserves the blocks that the window allows and the pool has, and grants the peer credits for them: now, or,
    /// provided that it has some left, with the next frame, such as the answer to what was just taken. The thread that
    /// reads the link sends them before it waits again, so the peer never waits for them.
    fn reserve(&mut self, now: bool) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let mut state = self.shared.lock();
        let inbox = state.streams.get(&self.stream).expect("it goes with this");
        let idle = inbox.ready.is_empty();
        // A receiver by `news` takes a block for each call, so waiting blocks keep their reservation.
        let waiting = if inbox.news.is_some() { inbox.ready.len() } else { 0 };
        let have = inbox.reserved.len() + waiting;
        if inbox.end.is_some() || (have == 0 && !now) {
            return Ok(());
        }
        let mut blocks = more_blocks(pool, self.window, have);
        if blocks.is_empty() && have == 0 && idle {
            drop(state);
            blocks.extend(pool.take_within(MOMENT));
            state = self.shared.lock();
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let count = blocks.len() as u64;
        let inbox = state.streams.get_mut(&self.stream).expect("it goes with this");
        inbox.reserved.append(&mut blocks);
        self.shared.apply(&mut state, Event::Reserve(self.stream, count));
        drop(state);
        if now {
            self.shared.flush_what_fits();
        }
        Ok(())
    }
}

/// Gives up a stream while other threads wait at its two ends.
pub struct Quit {
    shared: Arc<Shared>,
    stream: u32,
}

impl Quit {
    /// Gives up the stream, with a reason; nothing happens if it has ended.
    pub fn quit(self, why: &str) {
        let mut state = self.shared.lock();
        if state.closed.is_none() {
            ended(&mut state, self.stream, Err(What::GivenUp));
            self.shared.apply(&mut state, Event::Abort(self.stream, why.to_string()));
            self.shared.wake(&state);
            drop(state);
            let _ = self.shared.flush();
        }
    }
}

impl Source for Incoming {
    type Error = LinkError;

    fn next(&mut self) -> Result<Option<Block>> {
        Ok(self.next_on()?.map(|(_, block)| block))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.is_given {
            return;
        }
        let mut state = self.shared.lock();
        let inbox = state.streams.remove(&self.stream).expect("it goes with this");
        if inbox.end.is_none() && state.closed.is_none() {
            let why = dropped("the other side wants no more of it");
            self.shared.apply(&mut state, Event::Abort(self.stream, why));
            drop(state);
            let _ = self.shared.flush();
        }
    }
}

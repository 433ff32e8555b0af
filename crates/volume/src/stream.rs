//! The two directions of a stream between nodes, for reading and writing messages.
//!
//! Invariant: a stream holds at most [`WINDOW`] unread blocks.
//! Non-goals: the messages; see message.rs.

use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_block::{Block, Pool};
use thalweg_wire::{Incoming, Link, News, Outgoing, Quit, Streams};

use crate::connection::Receive;

/// The most blocks that may arrive before they are read.
const WINDOW: usize = 4;

/// Both directions of a stream.
pub(crate) struct Ends {
    pub(crate) from: StreamReader,
    pub(crate) to: StreamWriter,
    pub(crate) quit: QuitOnce,
    /// Why nothing more can be read.
    pub(crate) heard: Arc<Heard>,
}

/// What has arrived, for threads that wait for it with a deadline.
#[derive(Default)]
pub(crate) struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    blocks: usize,
    is_over: bool,
    why: Option<String>,
}

impl Heard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the stream failed, if it did.
    pub(crate) fn why(&self) -> Option<String> {
        self.state().why.clone()
    }
}

/// Gives up a stream, once.
pub(crate) struct QuitOnce(Mutex<Option<Quit>>);

impl QuitOnce {
    pub(crate) fn quit(&self, why: &str) {
        let quit = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        quit.into_iter().for_each(|quit| quit.quit(why));
    }
}

/// Makes a stream of a link readable and writable. A thread must read the link all the time.
pub(crate) fn ends(link: &Link, (out, inc): Streams) -> io::Result<Ends> {
    let pool = Pool::new(link.block_bytes(), WINDOW + 1).map_err(|e| io::Error::other(e.to_string()))?;
    let inc = inc.takes(&pool, WINDOW);
    let quit = QuitOnce(Mutex::new(Some(inc.quit())));
    let heard = Arc::new(Heard::default());
    let told = Arc::clone(&heard);
    inc.on_news(move |news| {
        let mut state = told.state();
        match news {
            News::Block => state.blocks += 1,
            News::End => state.is_over = true,
        }
        told.changed.notify_all();
    });
    let from = StreamReader { inc, block: None, at: 0, heard: Arc::clone(&heard) };
    Ok(Ends { from, to: StreamWriter(out), quit, heard })
}

/// The direction from the peer.
pub(crate) struct StreamReader {
    inc: Incoming,
    /// The block that is being read, and the offset in it.
    block: Option<Block>,
    at: usize,
    heard: Arc<Heard>,
}

impl Read for StreamReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(block) = &self.block {
                let rest = &block[self.at..];
                let n = rest.len().min(into.len());
                into[..n].copy_from_slice(&rest[..n]);
                self.at += n;
                if self.at == block.len() {
                    self.block = None;
                }
                if n > 0 {
                    return Ok(n);
                }
            }
            match self.inc.next_on() {
                Ok(None) => return Ok(0),
                Ok(Some((_, block))) => {
                    let mut state = self.heard.state();
                    state.blocks = state.blocks.saturating_sub(1);
                    (self.block, self.at) = (Some(block), 0);
                }
                Err(why) => {
                    self.heard.state().why = Some(why.to_string());
                    let kind = if why.is_silence() { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
                    return Err(io::Error::new(kind, why.to_string()));
                }
            }
        }
    }
}

impl Receive for StreamReader {
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        if self.block.is_some() {
            return Ok(true);
        }
        let nothing = |state: &mut State| state.blocks == 0 && !state.is_over;
        let waited = self.heard.changed.wait_timeout_while(self.heard.state(), patience, nothing);
        let mut waited = waited.unwrap_or_else(PoisonError::into_inner);
        Ok(!nothing(&mut waited.0))
    }
}

/// The direction to the peer.
pub(crate) struct StreamWriter(Outgoing);

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Copies the bytes, because they are encrypted in place.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(slices.iter().map(|slice| slice.len()).sum());
        slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
        self.0.send(0, &mut bytes).map_err(|why| io::Error::other(why.to_string()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        // The peer, if it still exists, reads to the end.
        let _ = self.0.end(&[]);
    }
}

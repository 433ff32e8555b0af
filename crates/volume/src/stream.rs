//! The two directions of a stream between nodes, for reading and writing messages.
//!
//! Invariant: a stream holds at most [`WINDOW`] unread blocks.
//! Non-goals: the messages; see message.rs.

use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
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
    pub(crate) failure: Arc<OnceLock<String>>,
}

/// Gives up a stream, once.
pub(crate) struct QuitOnce(Mutex<Option<Quit>>);

impl QuitOnce {
    pub(crate) fn quit(&self, why: &str) {
        let quit = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        quit.into_iter().for_each(|quit| quit.quit(why));
    }
}

/// Wakes one of the threads that wait for the next message. If they waited for the reader instead, each message would
/// wake a second thread: the next one to have the reader.
#[derive(Default)]
pub(crate) struct Bell {
    arrived: Mutex<Arrived>,
    rings: Condvar,
}

#[derive(Default)]
struct Arrived {
    /// Blocks that were not read to their end yet.
    blocks: usize,
    is_over: bool,
}

impl Arrived {
    fn is_nothing(&mut self) -> bool {
        self.blocks == 0 && !self.is_over
    }
}

impl Bell {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has arrived, or nothing more will.
    pub(crate) fn wait(&self) {
        drop(self.rings.wait_while(self.arrived(), Arrived::is_nothing));
    }

    /// Lets all threads learn that nothing more will be read.
    pub(crate) fn end(&self) {
        self.arrived().is_over = true;
        self.rings.notify_all();
    }

    /// Whether another thread has read what has arrived.
    pub(crate) fn is_answered(&self) -> bool {
        self.arrived().is_nothing()
    }
}

/// Makes a stream of a link readable and writable.
pub(crate) fn ends(link: &Link, (out, inc): Streams) -> io::Result<Ends> {
    let pool = Pool::new(link.block_bytes(), WINDOW + 1).map_err(|e| io::Error::other(e.to_string()))?;
    let inc = inc.takes(&pool, WINDOW);
    let quit = QuitOnce(Mutex::new(Some(inc.quit())));
    let failure = Arc::<OnceLock<String>>::default();
    let from = StreamReader { inc, block: None, at: 0, bell: None, failure: Arc::clone(&failure) };
    Ok(Ends { from, to: StreamWriter(out), quit, failure })
}

/// The direction from the peer.
pub(crate) struct StreamReader {
    inc: Incoming,
    /// The block that is being read, and the offset in it.
    block: Option<Block>,
    at: usize,
    bell: Option<Arc<Bell>>,
    failure: Arc<OnceLock<String>>,
}

impl StreamReader {
    /// A bell that rings when something arrives. A thread must read the link all the time.
    pub(crate) fn bell(&mut self) -> Arc<Bell> {
        let bell = Arc::<Bell>::default();
        let rung = Arc::clone(&bell);
        self.inc.on_news(move |news| match news {
            News::Block => {
                rung.arrived().blocks += 1;
                rung.rings.notify_one();
            }
            News::End => rung.end(),
        });
        self.bell = Some(Arc::clone(&bell));
        bell
    }
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
                    self.bell.iter().for_each(|bell| bell.arrived().blocks -= 1);
                }
                if n > 0 {
                    return Ok(n);
                }
            }
            match self.inc.next_on() {
                Ok(None) => return Ok(0),
                Ok(Some((_, block))) => (self.block, self.at) = (Some(block), 0),
                Err(why) => {
                    let kind = if why.is_silence() { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
                    let why = self.failure.get_or_init(|| why.to_string());
                    return Err(io::Error::new(kind, why.clone()));
                }
            }
        }
    }
}

impl Receive for StreamReader {
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        Ok(self.block.is_some() || self.inc.wait(patience))
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

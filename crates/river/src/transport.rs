//! Ways: what brings messages from an inlet to an outlet and back.
//!
//! Model: both ends read a [`Mailbox`]; a [`Transport`] is anything that puts messages into somebody's. In one process that
//! is the mailbox itself, and a batch changes hands without being copied.
//! Invariant: messages of one way come in the order in which they were sent. A way waits for nobody: a batch is sent only
//! for a credit, so a mailbox holds no more of them than there are buffers.
//! Non-goals: what messages mean.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, Result};
use crate::{Batch, Head};

/// What goes over a way.
#[derive(Debug)]
pub enum Message {
    /// Records.
    Batch(Batch),
    /// Everything else that there is to say.
    Control(Head),
}

/// One direction between an inlet and an outlet.
pub trait Transport: Send {
    /// Sends a message; a mark may wait until there is a batch, a flush or the end.
    fn send(&mut self, message: Message) -> Result<()>;

    /// Sends what may have waited for more to go with it.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Says something that waits for nothing.
    fn say(&mut self, head: Head) -> Result<()> {
        self.send(Message::Control(head))?;
        self.flush()
    }

    /// Says that there are no more, behind what waited.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What lies in a mailbox.
pub(crate) enum Delivery {
    /// A message from the one of this number on the other side.
    Arrived(usize, Message),
    /// A buffer with a batch of this source is free again.
    Freed(usize),
}

/// Where messages wait for whoever they are for.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    deliveries: VecDeque<Delivery>,
    /// Somebody sleeps until there is a letter. Waking is a system call, and mostly nobody does.
    waited_for: bool,
    /// Nobody is to wait any more.
    stopped: bool,
}

impl Mailbox {
    pub(crate) fn put(&self, deliveries: impl IntoIterator<Item = Delivery>) {
        let mut state = self.state.lock().expect("no holder panics");
        state.deliveries.extend(deliveries);
        if !state.deliveries.is_empty() && std::mem::take(&mut state.waited_for) {
            drop(state);
            self.filled.notify_all();
        }
    }

    /// Takes all that is there into `letters`; with `wait`, until there is something. An error once it is stopped.
    pub(crate) fn take(&self, deliveries: &mut VecDeque<Delivery>, wait: bool) -> Result<()> {
        let mut state = self.state.lock().expect("no holder panics");
        while wait && state.deliveries.is_empty() && !state.stopped {
            state.waited_for = true;
            state = self.filled.wait(state).expect("no holder panics");
        }
        deliveries.append(&mut state.deliveries);
        if state.stopped { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Stops an end of a river, also while it waits for one that says nothing: it gives [`Error::Stopped`] from then on.
pub struct Stopper(pub(crate) Arc<Mailbox>);

impl Stopper {
    /// Stops it.
    pub fn stop(&self) {
        self.0.state.lock().expect("no holder panics").stopped = true;
        self.0.filled.notify_all();
    }
}

/// The way to somebody in this process.
pub(crate) struct MemoryTransport {
    pub(crate) to: Arc<Mailbox>,
    /// Who sends.
    pub(crate) from: usize,
}

impl Transport for MemoryTransport {
    fn send(&mut self, message: Message) -> Result<()> {
        self.to.put([Delivery::Arrived(self.from, message)]);
        Ok(())
    }
}

/// Says to an outlet, when it is dropped, that a buffer is free.
pub(crate) struct Ticket {
    pub(crate) outlet: Arc<Mailbox>,
    pub(crate) source: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.outlet.put([Delivery::Freed(self.source)]);
    }
}

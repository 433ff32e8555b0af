//! Transports carry messages between an inlet and an outlet.
//!
//! Model: each end reads a [`Mailbox`], and a [`Transport`] puts messages into the mailbox of the other end. In one
//! process it does so directly, and a batch changes hands without a copy.
//! Invariant: messages of one transport arrive in the order in which they were sent. A transport never waits for the
//! receiver: a batch is sent only for a credit, so a mailbox holds at most as many batches as there are buffers.
//! Non-goals: the meaning of messages.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::{Batch, Head};

/// How often an end that waits looks whether it should go on.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Says whether an end that waits should go on.
pub(crate) type Look = Box<dyn FnMut() -> bool + Send>;

/// A message between an inlet and an outlet.
#[derive(Debug)]
pub enum Message {
    /// Records.
    Batch(Batch),
    /// Any other message.
    Control(Head),
}

/// One direction between an inlet and an outlet.
pub trait Transport: Send {
    /// Sends a message. A control message may wait for a batch, a flush or the end.
    fn send(&mut self, message: Message) -> Result<()>;

    /// Sends control messages that wait.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sends a control message at once.
    fn say(&mut self, head: Head) -> Result<()> {
        self.send(Message::Control(head))?;
        self.flush()
    }

    /// Ends the transport, after messages that wait.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An item in a mailbox.
pub(crate) enum Delivery {
    /// A message from the end of this number on the other side.
    Arrived(usize, Message),
    /// A buffer that held a batch of this source is free.
    Freed(usize),
}

/// Where messages for one end wait.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    deliveries: VecDeque<Delivery>,
    /// Whether a thread sleeps until there is an item. Waking it is a system call that is mostly not needed.
    waited_for: bool,
    /// Whether this end was stopped.
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

    /// Moves all items into `deliveries`. With `wait`, waits for an item, and is stopped if `look` says so meanwhile.
    /// An error once it is stopped.
    pub(crate) fn take(
        &self,
        deliveries: &mut VecDeque<Delivery>,
        wait: bool,
        look: &mut Option<Look>,
    ) -> Result<()> {
        let mut state = self.state.lock().expect("no holder panics");
        while wait && state.deliveries.is_empty() && !state.stopped {
            state.waited_for = true;
            let Some(look) = look else {
                state = self.filled.wait(state).expect("no holder panics");
                continue;
            };
            let (woken, timeout) = self.filled.wait_timeout(state, LOOK_EVERY).expect("no holder panics");
            state = woken;
            if timeout.timed_out() && state.deliveries.is_empty() {
                // What it looks at may wait for a thread that puts an item here.
                drop(state);
                let goes_on = look();
                state = self.state.lock().expect("no holder panics");
                state.stopped |= !goes_on;
            }
        }
        deliveries.append(&mut state.deliveries);
        if state.stopped { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Stops an end of a river, even while it waits: from then on it returns [`Error::Stopped`].
pub struct Stopper(pub(crate) Arc<Mailbox>);

impl Stopper {
    /// Stops it.
    pub fn stop(&self) {
        self.0.state.lock().expect("no holder panics").stopped = true;
        self.0.filled.notify_all();
    }
}

/// The transport to an end in this process.
pub(crate) struct MemoryTransport {
    pub(crate) to: Arc<Mailbox>,
    /// The number of the sender.
    pub(crate) from: usize,
}

impl Transport for MemoryTransport {
    fn send(&mut self, message: Message) -> Result<()> {
        self.to.put([Delivery::Arrived(self.from, message)]);
        Ok(())
    }
}

/// Tells the outlet on drop that a buffer is free.
pub(crate) struct Ticket {
    pub(crate) outlet: Arc<Mailbox>,
    pub(crate) source: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.outlet.put([Delivery::Freed(self.source)]);
    }
}

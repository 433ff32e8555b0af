//! The back end where io_uring is not available: a thread pool with pread and pwrite.
//!
//! Model: all queues share one pool. It starts a thread when work is waiting and no thread is idle, up to its limit.
//! Each queue has an inbox for its completions.
//! Invariant: the pool ends when the back end and all of its queues have been dropped.
//! Non-goals: an order of operations, fairness between queues.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::os::{self, Queues};
use crate::transfer::{Flight, Ledger};
use crate::{Done, FileId, Kind, Op, Queue, Result};

/// A thread here only makes system calls, so a small stack is enough.
const STACK_BYTES: usize = 128 << 10;

/// The thread back end, with pread and pwrite.
pub struct Threads(Arc<Team>);

impl Threads {
    /// A back end with at most `threads` operations at a time, over all queues. Threads start when first needed.
    pub fn new(threads: usize) -> Threads {
        assert!(threads > 0, "a team of no threads");
        let shared = Shared { limit: threads, state: Mutex::default(), work: Condvar::new() };
        Threads(Arc::new(Team { shared: Arc::new(shared), members: Mutex::default() }))
    }
}

/// The data operations of a file system that replaces pread and pwrite.
pub trait Calls: Send + Sync {
    /// Reads or writes some bytes at an offset; a read returns 0 only at the end of the file.
    fn attempt(&self, id: FileId, kind: Kind, at: u64, bytes: &mut [u8]) -> io::Result<usize>;
}

impl Threads {
    /// A queue whose operations use these calls.
    pub fn queue_of(&self, calls: Arc<dyn Calls>, depth: usize) -> Box<dyn Queue> {
        self.queue_for(Some(calls), depth)
    }

    fn queue_for(&self, calls: Option<Arc<dyn Calls>>, depth: usize) -> Box<dyn Queue> {
        let (team, inbox) = (Arc::clone(&self.0), Arc::new(Inbox::default()));
        Box::new(ThreadsQueue { ledger: Ledger::new(depth), team, inbox, calls })
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({} of {})", self.0.shared.lock().threads, self.0.shared.limit)
    }
}

impl Queues for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(self.queue_for(None, depth))
    }
}

/// The threads and their shared state.
struct Team {
    shared: Arc<Shared>,
    members: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    limit: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
    closing: bool,
}

struct Work {
    flight: Flight,
    inbox: Arc<Inbox>,
    calls: Option<Arc<dyn Calls>>,
}

/// The completions of one queue.
#[derive(Default)]
struct Inbox {
    done: Mutex<VecDeque<Done>>,
    arrived: Condvar,
}

impl Work {
    fn carry_out(self) {
        let done = match self.calls {
            None => self.flight.run(os::attempt, os::length, os::wait_ready),
            // Length and readiness are queried only for direct files and streams, and `calls` has neither.
            Some(calls) => self.flight.run(
                |id, kind, at, bytes| calls.attempt(id, kind, at, bytes),
                |_| unreachable!("no file of it is direct"),
                |_, _| unreachable!("no file of it is a stream"),
            ),
        };
        self.inbox.done.lock().expect("no holder of an inbox panics").push_back(done);
        self.inbox.arrived.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the team's state panics")
    }

    fn work_until_closing(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                work.carry_out();
                state = self.lock();
            } else if state.closing {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).expect("no holder of the team's state panics");
                state.idle -= 1;
            }
        }
    }
}

impl Team {
    fn give(&self, work: Work) {
        let mut state = self.shared.lock();
        state.waiting.push_back(work);
        let grow = state.waiting.len() > state.idle && state.threads < self.shared.limit;
        if grow {
            state.threads += 1;
        }
        drop(state);
        self.shared.work.notify_one();
        if grow {
            self.grow();
        }
    }

    fn grow(&self) {
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("thalweg-io".into()).stack_size(STACK_BYTES);
        if let Ok(member) = builder.spawn(move || shared.work_until_closing()) {
            self.members.lock().expect("no holder of the members panics").push(member);
            return;
        }
        // The system has no thread left. Fewer threads will do; without any, the caller executes the operation itself,
        // which breaks the promise never to wait but keeps the promise to complete.
        let mut state = self.shared.lock();
        state.threads -= 1;
        let work = if state.threads == 0 { state.waiting.pop_front() } else { None };
        drop(state);
        if let Some(work) = work {
            work.carry_out();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Every queue keeps the pool alive and empties its inbox before it ends. So nothing waits here, and no thread
        // holds the last reference to a file, whose drop would make it join itself.
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
        let members = std::mem::take(&mut *self.members.lock().expect("no holder of the members panics"));
        for member in members {
            member.join().expect("members do not panic");
        }
    }
}

/// One thread's operations in the pool.
struct ThreadsQueue {
    ledger: Ledger,
    team: Arc<Team>,
    inbox: Arc<Inbox>,
    calls: Option<Arc<dyn Calls>>,
}

impl Queue for ThreadsQueue {
    fn submit(&mut self, op: Op) {
        self.ledger.enter(&op);
        let (inbox, calls) = (Arc::clone(&self.inbox), self.calls.clone());
        self.team.give(Work { flight: Flight::new(op), inbox, calls });
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        if self.ledger.in_flight() == 0 {
            return None;
        }
        let mut arrived = self.inbox.done.lock().expect("no holder of an inbox panics");
        while wait && arrived.is_empty() {
            arrived = self.inbox.arrived.wait(arrived).expect("no holder of an inbox panics");
        }
        let done = arrived.pop_front()?;
        drop(arrived);
        self.ledger.leave(&done);
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn depth(&self) -> usize {
        self.ledger.depth()
    }
}

impl Drop for ThreadsQueue {
    fn drop(&mut self) {
        while self.reap(true).is_some() {}
    }
}

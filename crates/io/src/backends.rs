//! The back ends of a job, each once, and the queue of a lane whose files are on several of them.
//!
//! Model: a lane has one queue for everything that it reads and writes. If all its files are on one back end, it is
//! that back end's queue. Otherwise it is a [`JointQueue`], which contains a queue of each back end and dispatches
//! operations by file.
//! Invariant: all queues together have at most the requested depth in flight.
//! Non-goals: completions in chronological order; a lane waits for one back end at a time.

use std::fmt;
use std::sync::Arc;

use crate::{Backend, Done, Handle, Op, Queue, Result};

/// A set of back ends.
#[derive(Clone, Default)]
pub struct Backends(Vec<Arc<dyn Backend>>);

impl Backends {
    /// Adds a back end, unless the set has it already.
    pub fn add(&mut self, backend: Arc<dyn Backend>) {
        if !self.0.iter().any(|known| is_same(known, &backend)) {
            self.0.push(backend);
        }
    }

    /// The names of the back ends for the receipt.
    pub fn name(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for backend in &self.0 {
            if !names.contains(&backend.name()) {
                names.push(backend.name());
            }
        }
        names.join("+")
    }

    /// The reason for the first fallback, if any.
    pub fn fallback(&self) -> Option<String> {
        self.0.iter().find_map(|backend| backend.fallback())
    }

    /// A queue for files of all back ends, with room for `depth` operations.
    pub fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        if let [one] = &self.0[..] {
            return one.queue(depth);
        }
        let part = |backend: &Arc<dyn Backend>| Ok((Arc::clone(backend), backend.queue(depth)?));
        let parts = self.0.iter().map(part).collect::<Result<_>>()?;
        Ok(Box::new(JointQueue { parts, depth, next: 0 }))
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromIterator<Arc<dyn Backend>> for Backends {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Backend>>>(some: I) -> Backends {
        let mut backends = Backends::default();
        some.into_iter().for_each(|backend| backends.add(backend));
        backends
    }
}

fn is_same(a: &Arc<dyn Backend>, b: &Arc<dyn Backend>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// Operations on files of several back ends.
struct JointQueue {
    parts: Vec<(Arc<dyn Backend>, Box<dyn Queue>)>,
    depth: usize,
    /// The next part to ask for a completion.
    next: usize,
}

impl JointQueue {
    fn of(&mut self, file: &Handle) -> &mut dyn Queue {
        let part = self.parts.iter_mut().find(|(backend, _)| is_same(backend, file.backend()));
        &mut *part.expect("a queue is for the back ends that it was made for").1
    }

    /// Takes a completion of any part; the parts are asked in rotation.
    fn find(&mut self, wait: bool) -> Option<Done> {
        for _ in 0..self.parts.len() {
            let part = self.next;
            self.next = (part + 1) % self.parts.len();
            if let Some(done) = self.parts[part].1.reap(wait) {
                return Some(done);
            }
        }
        None
    }
}

impl Queue for JointQueue {
    fn submit(&mut self, op: Op) {
        assert!(self.in_flight() < self.depth, "one more than the queue is deep");
        self.of(&op.file).submit(op);
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        match self.find(false) {
            None if wait => self.find(true),
            found => found,
        }
    }

    fn in_flight(&self) -> usize {
        self.parts.iter().map(|(_, queue)| queue.in_flight()).sum()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

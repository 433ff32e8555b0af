//! The queue of a simulated disk.
//!
//! Model: an operation moves its bytes when it is reaped, one at a time and in an order from a seed. Until then the
//! disk has a copy of the data of a write, so that a crash can decide its fate.

use std::io;

use thalweg_base::rng::Rng;

use super::Sim;
use super::disk::Course;
use crate::transfer::{Flight, Ledger};
use crate::{Done, Kind, Op, Queue};

pub(crate) struct SimQueue {
    sim: Sim,
    ledger: Ledger,
    rng: Rng,
    pending: Vec<Pending>,
}

struct Pending {
    flight: Flight,
    /// The disk's number for a write in flight.
    number: Option<u64>,
    /// The error if the process was dead at the submission.
    failure: Option<io::Error>,
}

impl SimQueue {
    pub(crate) fn new(sim: Sim, depth: usize) -> SimQueue {
        let rng = Rng::new(sim.lock().rng.next_u64());
        SimQueue { sim, ledger: Ledger::new(depth), rng, pending: Vec::new() }
    }

    fn carry_out(&mut self, pending: Pending) -> Done {
        let Pending { flight, number, mut failure } = pending;
        let mut disk = self.sim.lock();
        if failure.is_none() {
            failure = disk.step().err();
        }
        if failure.is_some() {
            // The disk keeps the write, and a crash decides its fate.
            return flight.finish(failure);
        }
        if let Some(number) = number {
            disk.land(number);
        }
        drop(disk);
        let mut course = Course { direct: flight.file().is_direct(), ..Course::default() };
        flight.run(
            |id, kind, at, bytes| {
                let mut disk = self.sim.lock();
                disk.assert_aligned(id, at, bytes);
                disk.attempt(id, kind, at, bytes, &mut course)
            },
            |id| self.sim.length(id),
            |_, _| unreachable!("no simulated file is ever busy"),
        )
    }
}

impl Queue for SimQueue {
    fn submit(&mut self, op: Op) {
        self.ledger.enter(&op);
        let mut disk = self.sim.lock();
        let failure = disk.step().err();
        let writes = failure.is_none() && op.kind == Kind::Write;
        let number = writes.then(|| disk.launch(op.file.id(), op.at, &op.block));
        drop(disk);
        self.pending.push(Pending { flight: Flight::new(op), number, failure });
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        let reorders = self.sim.lock().faults.reorder;
        if self.pending.is_empty() || (!wait && reorders && self.rng.one_in(3)) {
            return None;
        }
        let chosen = if reorders { self.rng.below(self.pending.len() as u64) as usize } else { 0 };
        let pending = self.pending.remove(chosen);
        let done = self.carry_out(pending);
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

impl Drop for SimQueue {
    fn drop(&mut self) {
        while self.reap(true).is_some() {}
    }
}

//! The io_uring back end: one ring for each queue.
//!
//! Model: an operation is submitted to the kernel at once, and the thread that reaps takes completions from the ring
//! itself. The rest of a short transfer is submitted again.
//! Invariant: the kernel knows the address of a block only while the block is in a slot, and only a completion empties
//! a slot.
//! Non-goals: registered buffers and files (ordinary users may lock only 8 MiB of memory, and with blocks of 1 MiB the
//! savings cannot be measured), polling, sharing a ring between threads.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::os::{self, Queues};
use crate::transfer::{Flight, Ledger, Step};
use crate::{Action, Done, Error, Kind, Op, Queue, Result};

/// To the kernel: at the file's own position. For streams, which have no other.
const OWN_POSITION: u64 = u64::MAX;

/// Files and queues by io_uring.
#[derive(Debug)]
pub struct Uring(());

impl Uring {
    /// Asks the kernel for a ring and submits one no-op to it; an error if the kernel refuses, as it does in many
    /// containers.
    pub fn new() -> Result<Uring> {
        probe().map_err(|e| Error::new(Action::Setup, "io_uring", explain(e)))?;
        Ok(Uring(()))
    }
}

impl Queues for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        let ring = build(depth).map_err(|e| Error::new(Action::Setup, "io_uring", explain(e)))?;
        Ok(Box::new(UringQueue {
            ring,
            ledger: Ledger::new(depth),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            ready: VecDeque::new(),
        }))
    }
}

fn build(depth: usize) -> io::Result<IoUring> {
    let entries = u32::try_from(depth.max(2)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Without cooperative or deferred task running: with blocks of 1 MiB at depth 4 neither made a measurable
    // difference, from disk or from memory, and the latter ties a queue to the thread that created it.
    IoUring::builder().dontfork().build(entries)
}

fn probe() -> io::Result<()> {
    let mut ring = build(2)?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known)?;
    if !known.is_supported(opcode::Read::CODE) || !known.is_supported(opcode::Write::CODE) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    // SAFETY: the entry refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.expect("a new ring has room");
    while let Err(e) = ring.submit_and_wait(1) {
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    match ring.completion().next() {
        Some(entry) if entry.result() == 0 => Ok(()),
        _ => Err(io::Error::other("the ring does not complete what it is given")),
    }
}

/// Adds the likely reason and remedy to a refusal.
fn explain(e: io::Error) -> io::Error {
    let hint = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "set sysctl kernel.io_uring_disabled=0, or allow it in the container"
        }
        Some(libc::ENOSYS | libc::EINVAL) => {
            "the kernel, or a sandbox, does not offer it; Linux 5.6 is needed"
        }
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{e}; {hint}"))
}

/// Operations on one ring.
struct UringQueue {
    // The ring is the first field, so that it ends before the blocks that the kernel may know.
    ring: IoUring,
    ledger: Ledger,
    /// Operations that the kernel has, by the number with which they were submitted.
    slots: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Operations that completed without the kernel.
    ready: VecDeque<Done>,
}

impl Queue for UringQueue {
    fn submit(&mut self, op: Op) {
        self.ledger.enter(&op);
        let flight = Flight::new(op);
        if flight.is_complete() {
            self.ready.push_back(flight.finish(None));
            return;
        }
        let slot = self.free.pop().expect("there are as many slots as the ledger admits operations");
        self.slots[slot] = Some(flight);
        self.start(slot);
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        loop {
            if let Some(done) = self.ready.pop_front() {
                self.ledger.leave(&done);
                return Some(done);
            }
            if self.take_in_next() {
                continue;
            }
            if !wait || self.ledger.in_flight() == 0 {
                return None;
            }
            self.enter(1);
        }
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn depth(&self) -> usize {
        self.ledger.depth()
    }
}

impl UringQueue {
    /// Submits the rest of a slot's operation to the kernel.
    fn start(&mut self, slot: usize) {
        let flight = self.slots[slot].as_mut().expect("a started slot is filled");
        let (kind, id) = (flight.kind(), flight.file().id());
        let (at, bytes) = flight.rest();
        let at = if os::is_stream(id) { OWN_POSITION } else { at };
        let fd = types::Fd(os::descriptor(id));
        let len = u32::try_from(bytes.len()).expect("a block's length fits");
        let address = bytes.as_mut_ptr();
        let entry = match kind {
            Kind::Read => opcode::Read::new(fd, address, len).offset(at).build(),
            Kind::Write => opcode::Write::new(fd, address.cast_const(), len).offset(at).build(),
        };
        self.push(&entry.user_data(slot as u64));
        self.enter(0);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry's address and length are those of a block in a slot, whose bytes do not
        // move (they are in a pool's mapping, which the block keeps) and which stays there until
        // this entry's completion: `take_in` alone empties slots, and `drop` waits for all.
        // The file stays open because the slot holds it.
        unsafe { self.ring.submission().push(entry) }
            .expect("each slot has one entry at most, and there are as many entries as slots");
    }

    /// Passes new entries to the kernel and waits for `want` completions.
    fn enter(&mut self, want: usize) {
        if let Err(e) = self.ring.submit_and_wait(want) {
            match e.raw_os_error() {
                // Entries that the kernel did not take stay in the ring for the next call, which the wait for their
                // completions makes. A lack of memory is temporary here, because completions free memory.
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => std::thread::yield_now(),
                _ => {
                    // The kernel may still have the blocks, so that they can never be used again.
                    std::mem::forget(std::mem::take(&mut self.slots));
                    panic!("io_uring_enter failed on a valid ring: {e}");
                }
            }
        }
    }

    /// Takes in one completion of the kernel, if there is one.
    fn take_in_next(&mut self) -> bool {
        let Some(entry) = self.ring.completion().next() else { return false };
        self.take_in(entry.user_data() as usize, entry.result());
        true
    }

    fn take_in(&mut self, slot: usize, result: i32) {
        let flight = self.slots[slot].as_mut().expect("the kernel completes only what it was given");
        let outcome = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        let failure = match flight.apply(outcome, os::length) {
            Step::Again => return self.start(slot),
            Step::Blocked => {
                os::wait_ready(flight.file().id(), flight.kind());
                return self.start(slot);
            }
            Step::Complete => None,
            Step::Failed(e) => Some(e),
        };
        let flight = self.slots[slot].take().expect("it was there a moment ago");
        self.free.push(slot);
        self.ready.push_back(flight.finish(failure));
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        while self.reap(true).is_some() {}
        assert!(self.slots.iter().all(Option::is_none), "the kernel still has blocks of a dropped queue");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_remedy() {
        for (errno, remedy) in [
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::ENOSYS, "Linux 5.6"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let text = Error::new(Action::Setup, "io_uring", explain(io::Error::from_raw_os_error(errno)));
            assert!(text.to_string().starts_with("cannot set up io_uring: "), "{text}");
            assert!(text.to_string().contains(remedy), "{text}");
        }
    }
}

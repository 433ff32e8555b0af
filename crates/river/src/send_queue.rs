//! The send queue of an inlet: full batches that wait for credits of their outlets.
//!
//! Invariant: batches for one outlet keep their order and do not delay those for another. At most `of_lane` batches
//! of one lane wait, and `in_all` of all lanes, so that a hot lane leaves room for others.
//! Non-goals: waiting; this only decides which batch may be sent.

use std::collections::VecDeque;

/// Batches that wait, and credits.
#[derive(Debug)]
pub(crate) struct SendQueue<T> {
    outlets: Vec<Waiting<T>>,
    lanes: Vec<usize>,
    of_lane: usize,
    in_all: usize,
    queued: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    /// All credits granted so far, and the number that was used.
    promised: u64,
    sent: u64,
    queue: VecDeque<(usize, T)>,
}

impl<T> SendQueue<T> {
    /// For `outlets` outlets, each of which starts with `promised` credits.
    pub(crate) fn new(
        (outlets, promised): (usize, u64),
        lanes: usize,
        of_lane: usize,
        in_all: usize,
    ) -> SendQueue<T> {
        let waiting = || Waiting { promised, sent: 0, queue: VecDeque::new() };
        SendQueue {
            outlets: (0..outlets).map(|_| waiting()).collect(),
            lanes: vec![0; lanes],
            of_lane,
            in_all,
            queued: 0,
        }
    }

    /// Whether no more batches of this lane can be queued.
    pub(crate) fn is_full(&self, lane: usize) -> bool {
        self.lanes[lane] >= self.of_lane || self.queued >= self.in_all
    }

    /// Appends a batch of a lane that is not full.
    pub(crate) fn push(&mut self, outlet: usize, lane: usize, item: T) {
        self.outlets[outlet].queue.push_back((lane, item));
        self.lanes[lane] += 1;
        self.queued += 1;
    }

    /// The outlet has granted `promised` credits in all.
    pub(crate) fn credit(&mut self, outlet: usize, promised: u64) {
        let waiting = &mut self.outlets[outlet];
        waiting.promised = waiting.promised.max(promised);
    }

    /// Unused credits of this outlet, minus the batches that wait for it.
    pub(crate) fn slack(&self, outlet: usize) -> i64 {
        let waiting = &self.outlets[outlet];
        (waiting.promised - waiting.sent) as i64 - waiting.queue.len() as i64
    }

    /// The next batch that may be sent to this outlet.
    pub(crate) fn next(&mut self, outlet: usize) -> Option<T> {
        let waiting = &mut self.outlets[outlet];
        if waiting.sent == waiting.promised {
            return None;
        }
        let (lane, item) = waiting.queue.pop_front()?;
        waiting.sent += 1;
        self.lanes[lane] -= 1;
        self.queued -= 1;
        Some(item)
    }

    /// Whether batches wait for this outlet.
    pub(crate) fn waits_for(&self, outlet: usize) -> bool {
        !self.outlets[outlet].queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_outlet_queues_its_own_lanes_only() {
        let mut send_queue = SendQueue::new((2, 0), 4, 2, 5);
        send_queue.credit(1, 10);
        for item in 0..2 {
            assert!(!send_queue.is_full(0));
            send_queue.push(0, 0, item);
        }
        assert!(send_queue.is_full(0) && !send_queue.is_full(1) && !send_queue.is_full(2));
        for item in 10..20 {
            send_queue.push(1, 2, item);
            assert_eq!(send_queue.next(1), Some(item));
        }
        assert_eq!((send_queue.next(0), send_queue.next(1)), (None, None));
        send_queue.credit(0, 1);
        assert_eq!((send_queue.next(0), send_queue.next(0)), (Some(0), None));
        assert!(!send_queue.is_full(0) && send_queue.waits_for(0));
    }
}

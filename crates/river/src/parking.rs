//! Parking: full batches that wait in an inlet for a credit of their outlet.
//!
//! Invariant: what waits for one outlet keeps its order and holds up no other outlet's; of one lane at most `of_lane` wait, of
//! all together at most `in_all`, so that a hot lane leaves room for the others.
//! Non-goals: waiting; this only says who may go.

use std::collections::VecDeque;

/// What waits, and what may go.
#[derive(Debug)]
pub(crate) struct Parking<T> {
    outlets: Vec<Waiting<T>>,
    lanes: Vec<usize>,
    of_lane: usize,
    in_all: usize,
    parked: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    /// Credits, and how many were used.
    promised: u64,
    sent: u64,
    queue: VecDeque<(usize, T)>,
}

impl<T> Parking<T> {
    /// For so many outlets, each of which has promised so many credits.
    pub(crate) fn new(
        (outlets, promised): (usize, u64),
        lanes: usize,
        of_lane: usize,
        in_all: usize,
    ) -> Parking<T> {
        let waiting = || Waiting { promised, sent: 0, queue: VecDeque::new() };
        Parking {
            outlets: (0..outlets).map(|_| waiting()).collect(),
            lanes: vec![0; lanes],
            of_lane,
            in_all,
            parked: 0,
        }
    }

    /// Whether another one of this lane may have to wait for room before it can wait for a credit.
    pub(crate) fn is_full(&self, lane: usize) -> bool {
        self.lanes[lane] >= self.of_lane || self.parked >= self.in_all
    }

    /// Puts one of a lane that is not full behind those that wait for its outlet.
    pub(crate) fn park(&mut self, outlet: usize, lane: usize, item: T) {
        self.outlets[outlet].queue.push_back((lane, item));
        self.lanes[lane] += 1;
        self.parked += 1;
    }

    /// An outlet has promised so many credits in all.
    pub(crate) fn credit(&mut self, outlet: usize, promised: u64) {
        let waiting = &mut self.outlets[outlet];
        waiting.promised = waiting.promised.max(promised);
    }

    /// How many more could go to this outlet than wait for it.
    pub(crate) fn slack(&self, outlet: usize) -> i64 {
        let waiting = &self.outlets[outlet];
        (waiting.promised - waiting.sent) as i64 - waiting.queue.len() as i64
    }

    /// The next for this outlet that may go.
    pub(crate) fn next(&mut self, outlet: usize) -> Option<T> {
        let waiting = &mut self.outlets[outlet];
        if waiting.sent == waiting.promised {
            return None;
        }
        let (lane, item) = waiting.queue.pop_front()?;
        waiting.sent += 1;
        self.lanes[lane] -= 1;
        self.parked -= 1;
        Some(item)
    }

    /// Whether any wait for this outlet.
    pub(crate) fn waits_for(&self, outlet: usize) -> bool {
        !self.outlets[outlet].queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_outlet_parks_its_own_lanes_only() {
        let mut parking = Parking::new((2, 0), 4, 2, 5);
        parking.credit(1, 10);
        for item in 0..2 {
            assert!(!parking.is_full(0));
            parking.park(0, 0, item);
        }
        assert!(parking.is_full(0) && !parking.is_full(1) && !parking.is_full(2));
        for item in 10..20 {
            parking.park(1, 2, item);
            assert_eq!(parking.next(1), Some(item));
        }
        assert_eq!((parking.next(0), parking.next(1)), (None, None));
        parking.credit(0, 1);
        assert_eq!((parking.next(0), parking.next(0)), (Some(0), None));
        assert!(!parking.is_full(0) && parking.waits_for(0));
    }
}

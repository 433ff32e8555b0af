//! Lanes: the threads that share one verb's work.
//!
//! Invariant: if one lane fails, the others stop at their next block, and the error that came first is the
//! verb's; if the verb is cancelled, all stop, and that is the verb's result.
//! Non-goals: dividing the work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_base::unwinding::OnPanic;

use crate::{Error, Progress, Result};

/// The state that the lanes of a verb share.
pub(crate) struct Lanes<'a> {
    progress: &'a Progress,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl<'a> Lanes<'a> {
    pub(crate) fn new(progress: &'a Progress) -> Lanes<'a> {
        Lanes { progress, failed: AtomicBool::new(false), error: Mutex::new(None) }
    }

    /// Whether a lane should take another block. Once this is false, the results of all lanes are discarded.
    pub(crate) fn should_continue(&self) -> bool {
        !self.failed.load(Ordering::Relaxed) && self.progress.cancelled().is_none()
    }

    /// Runs `work` for lanes 0 to `count` - 1, each on a thread of its own. Returns their results
    /// in order.
    pub(crate) fn run<T: Send>(
        self,
        count: usize,
        work: impl Fn(&Self, usize) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        assert!(count > 0, "no lanes");
        let made = std::thread::scope(|scope| {
            let lane = |i| {
                let (lanes, work) = (&self, &work);
                scope.spawn(move || {
                    let _tells = OnPanic(|| lanes.failed.store(true, Ordering::Relaxed));
                    work(lanes, i).map_err(|error| lanes.fail(error)).ok()
                })
            };
            let running: Vec<_> = (0..count).map(lane).collect();
            let join = |lane: std::thread::ScopedJoinHandle<'_, Option<T>>| {
                lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect::<Vec<Option<T>>>()
        });
        if let Some(error) = self.error.into_inner().expect("no holder panics") {
            return Err(error);
        }
        if let Some(signal) = self.progress.cancelled() {
            return Err(Error::Interrupted(signal));
        }
        Ok(made.into_iter().map(|part| part.expect("a lane that made nothing has said why")).collect())
    }

    /// Records why a lane failed, which stops the others. After the verb was cancelled, the reason is always that:
    /// lanes may then fail only because others no longer deliver.
    pub(crate) fn fail(&self, error: Error) {
        let error = self.progress.cancelled().map_or(error, Error::Interrupted);
        self.error.lock().expect("no holder panics").get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_lanes_made_comes_back_in_order() {
        let progress = Progress::default();
        assert_eq!(Lanes::new(&progress).run(3, |_, i| Ok(i * 10)).unwrap(), [0, 10, 20]);
    }

    #[test]
    fn one_failure_stops_the_others_and_is_the_result() {
        let progress = Progress::default();
        let result = Lanes::new(&progress).run(3, |lanes, i| {
            if i == 1 {
                return Err(Error::Rates);
            }
            while lanes.should_continue() {
                std::thread::yield_now();
            }
            Ok(())
        });
        assert!(matches!(result, Err(Error::Rates)));
    }

    #[test]
    fn a_lane_that_panics_stops_the_others() {
        let progress = Progress::default();
        let lanes = Lanes::new(&progress);
        let work = |lanes: &Lanes<'_>, i| {
            assert!(i > 0, "on purpose");
            while lanes.should_continue() {
                std::thread::yield_now();
            }
            Ok(())
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lanes.run(3, work))).is_err());
    }

    #[test]
    fn of_a_cancelled_verb_nothing_else_is_the_result() {
        let progress = Progress::default();
        let result = Lanes::new(&progress).run(2, |_, _| {
            progress.cancel(2);
            Err::<(), _>(Error::Rates)
        });
        assert_eq!(result.unwrap_err().exit_status(), 128 + 2);
    }

    #[test]
    fn a_signal_stops_all() {
        let progress = Progress::default();
        progress.cancel(15);
        let result = Lanes::new(&progress).run(2, |lanes, _| Ok(lanes.should_continue()));
        assert_eq!(result.unwrap_err().exit_status(), 128 + 15);
    }
}

//! The messages of the coordinator to a participant, in order, for the thread that waits for them.
//!
//! Invariant: when the coordinator stops the attempt or disconnects, the attempt is cancelled at once. A node that did
//! not run for as long as the timeout of its links considers itself lost, because the others do too, and because the
//! messages in its sockets are old.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{ToParticipant, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::Progress;
use thalweg_wire::LinkError;
use thalweg_wire::message::Reader;

use crate::error::SIGTERM;
use crate::jobs::Job;

/// How often a waiting thread checks whether to continue.
const LOOK: Duration = Duration::from_millis(50);
/// The most messages that wait.
const WAITING_MAX: usize = 16;
/// Why no more messages come from the coordinator.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the coordinator has gone")]
    Asker,
    #[error("it sent more messages than were asked for")]
    TooMany,
    #[error("it sent a message that cannot be understood: {0}")]
    Message(String),
    #[error("this node stood still for {0:.0} s")]
    StoodStill(f64),
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What a participant is to do next.
pub(crate) enum Heard {
    /// What the coordinator told it.
    Told(ToParticipant),
    /// The job was cancelled on this node, with this reason.
    Cancelled(String),
    /// No more messages will come, and why.
    Gone(Lost),
}

/// Messages of the coordinator that have come.
pub(crate) struct Inbox {
    state: Mutex<State>,
    news: Condvar,
    /// The silence after which the other nodes consider this one dead.
    dead_after: Duration,
}

#[derive(Default)]
struct State {
    told: VecDeque<(ToParticipant, Vec<u8>)>,
    gone: Option<Lost>,
    /// The progress of the running attempt.
    progress: Option<Arc<Progress>>,
}

impl State {
    fn stops(&self) -> bool {
        self.gone.is_some() || self.told.iter().any(|(told, _)| matches!(told, ToParticipant::Stop))
    }

    fn cancel(&self) {
        if let Some(progress) = self.progress.as_ref().filter(|_| self.stops()) {
            progress.cancel(SIGTERM);
        }
    }
}

impl Inbox {
    /// An empty one, of a node that the others consider dead after this silence.
    pub(crate) fn new(dead_after: Duration) -> Inbox {
        Inbox { state: Mutex::default(), news: Condvar::new(), dead_after }
    }

    /// Reads messages until the stream ends.
    pub(crate) fn hear_all(&self, hearing: &mut Reader) {
        loop {
            let told = match hearing.next() {
                Ok(Some((told, behind))) => {
                    from_json(&told).map(|told| (told, behind)).map_err(Lost::Message)
                }
                Ok(None) => Err(Lost::Asker),
                Err(why) => Err(why.into()),
            };
            let mut state = self.state.lock().expect("no holder panics");
            match told {
                Ok(told) if state.told.len() < WAITING_MAX => state.told.push_back(told),
                Ok(_) => state.gone = Some(Lost::TooMany),
                Err(why) => state.gone = Some(why),
            }
            state.cancel();
            let ends = state.gone.is_some();
            drop(state);
            self.news.notify_all();
            if ends {
                return;
            }
        }
    }

    /// Sets the attempt that is cancelled when it should stop.
    pub(crate) fn minds(&self, progress: Option<Arc<Progress>>) {
        let mut state = self.state.lock().expect("no holder panics");
        state.progress = progress;
        state.cancel();
    }

    /// What to do next. A cancelled job is reported only if the coordinator does not know of it.
    pub(crate) fn next(&self, job: &Job, cancel_is_known: bool) -> Heard {
        loop {
            if let Some(why) = job.cancelled().filter(|_| !cancel_is_known) {
                return Heard::Cancelled(why);
            }
            // Messages that came before the coordinator disconnected come first.
            let next = |state: &mut State| match state.told.pop_front() {
                Some((told, _)) => Some(Heard::Told(told)),
                None => state.gone.clone().map(Heard::Gone),
            };
            if let Some(heard) = self.look(next) {
                return heard;
            }
        }
    }

    /// The next message that `wanted` takes, for a running attempt; others are skipped. `None` if the attempt is to
    /// stop.
    pub(crate) fn wait<T>(
        &self,
        should_continue: &dyn Fn() -> bool,
        mut wanted: impl FnMut(ToParticipant, Vec<u8>) -> Option<T>,
    ) -> Option<T> {
        while should_continue() {
            let next = |state: &mut State| if state.stops() { None } else { state.told.pop_front() };
            let told = self.look(next).and_then(|(told, behind)| wanted(told, behind));
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Checks for a message, and waits a moment if there is none.
    fn look<T>(&self, mut what: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock().expect("no holder panics");
        if let Some(found) = what(&mut state) {
            return Some(found);
        }
        let moment = Stopwatch::start();
        state = self.news.wait_timeout(state, LOOK).expect("no holder panics").0;
        if stood_still(&moment, self.dead_after) {
            state.gone = Some(Lost::StoodStill(moment.seconds()));
            state.told.clear();
            state.cancel();
        }
        None
    }
}

/// Whether a short wait took so long that the other nodes consider this one dead.
pub(crate) fn stood_still(moment: &Stopwatch, dead_after: Duration) -> bool {
    moment.seconds() >= dead_after.as_secs_f64()
}

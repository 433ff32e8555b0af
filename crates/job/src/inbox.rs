//! What a participant is told by the coordinator, in order, for whichever of its threads waits for it.
//!
//! Invariant: when it is told to stop, or the coordinator has gone, the attempt that runs is cancelled at once, whatever it
//! does. A node that stood still for as long as its links are patient considers itself lost: the others did, too, and what
//! waits in its sockets was sent long ago.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{ToParticipant, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::Progress;
use thalweg_wire::Patience;
use thalweg_wire::message::Reader;

use crate::error::SIGTERM;
use crate::jobs::Job;

/// How often a thread that waits looks whether to continue.
const LOOK: Duration = Duration::from_millis(50);
/// The most messages that wait.
const WAITING_MAX: usize = 16;
/// What a participant is to do next.
pub(crate) enum Heard {
    /// What the coordinator told it.
    Told(ToParticipant),
    /// The job was cancelled on this node, with this reason.
    Cancelled(String),
    /// Nothing more will come, and why.
    Gone(String),
}

/// Messages of the coordinator that have come.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    told: VecDeque<(ToParticipant, Vec<u8>)>,
    gone: Option<String>,
    /// Of the attempt that runs.
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
    /// Reads messages until the stream ends.
    pub(crate) fn hear_all(&self, hearing: &mut Reader) {
        loop {
            let told = match hearing.next() {
                Ok(Some((told, behind))) => from_json(&told).map(|told| (told, behind)),
                Ok(None) => Err("whoever asked for the sort has gone".into()),
                Err(why) => Err(why.to_string()),
            };
            let mut state = self.state.lock().expect("no holder panics");
            match told {
                Ok(told) if state.told.len() < WAITING_MAX => state.told.push_back(told),
                Ok(_) => state.gone = Some("it says more than it was asked".into()),
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

    /// From now on cancels this attempt when it is to stop.
    pub(crate) fn minds(&self, progress: Option<Arc<Progress>>) {
        let mut state = self.state.lock().expect("no holder panics");
        state.progress = progress;
        state.cancel();
    }

    /// What is to be done next. A cancelled job is reported only if the coordinator does not know of it.
    pub(crate) fn next(&self, job: &Job, cancel_is_known: bool) -> Heard {
        loop {
            if let Some(why) = job.cancelled().filter(|_| !cancel_is_known) {
                return Heard::Cancelled(why);
            }
            // What was said before nobody was there any more comes first.
            let next = |state: &mut State| match state.told.pop_front() {
                Some((told, _)) => Some(Heard::Told(told)),
                None => state.gone.clone().map(Heard::Gone),
            };
            if let Some(heard) = self.look(next) {
                return heard;
            }
        }
    }

    /// The next message that `wanted` takes, for an attempt that runs; others are skipped. Nothing if the attempt is to
    /// stop.
    pub(crate) fn wait<T>(
        &self,
        go_on: &dyn Fn() -> bool,
        mut wanted: impl FnMut(ToParticipant, Vec<u8>) -> Option<T>,
    ) -> Option<T> {
        while go_on() {
            let next = |state: &mut State| if state.stops() { None } else { state.told.pop_front() };
            let told = self.look(next).and_then(|(told, behind)| wanted(told, behind));
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Looks for a message, and waits a moment if there is none.
    fn look<T>(&self, mut what: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock().expect("no holder panics");
        if let Some(found) = what(&mut state) {
            return Some(found);
        }
        let moment = Stopwatch::start();
        state = self.news.wait_timeout(state, LOOK).expect("no holder panics").0;
        if stood_still(&moment) {
            state.gone = Some(format!("this node stood still for {:.0} s", moment.seconds()));
            state.told.clear();
            state.cancel();
        }
        None
    }
}

/// Whether a short wait took so long that this process cannot have run meanwhile.
pub(crate) fn stood_still(moment: &Stopwatch) -> bool {
    moment.seconds() * 1e3 >= Patience::default().dead_ms as f64
}

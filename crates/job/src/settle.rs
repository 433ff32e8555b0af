//! Settles what was left undecided: jobs that this node has a vote in and that no node continues. Its process may have
//! ended before it learned of a decision, with outputs that only need their final names, or without any.
//!
//! Invariant: nothing is proposed for a job that runs here, or decided while no quorum can be reached or a host still
//! hears its coordinator. Outputs that stay in doubt are reported in the node's log, once for each reason.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{JobState, VoteRecord};
use thalweg_wire::log;

use crate::agreement::{decide, tell};
use crate::local::Local;
use crate::vote::core::Event;
use crate::vote::{GaveUp, Proposal, Seat, State};

/// How often a node looks for such jobs, and after how many rounds it begins: running nodes continue their jobs first.
const SETTLE: Duration = Duration::from_secs(5);
const SETTLE_ROUNDS_FIRST: usize = 7;

/// Settles what can be settled, until the node goes down.
pub(crate) fn settle(local: &Arc<Local>) {
    let mut round = 0;
    while !local.node.is_stopping_within(SETTLE) {
        round += 1;
        if round >= SETTLE_ROUNDS_FIRST {
            settle_some(local, round);
        }
    }
}

/// Settles all jobs with outputs that wait, and one of the others, because unreachable hosts make each take a while.
pub(crate) fn settle_some(local: &Arc<Local>, round: usize) {
    let undecided = local.votes.seats().into_iter().filter_map(|seat| {
        let record = seat.state.try_lock().ok()?.core.record().clone();
        (record.decided.is_none() && !local.runs(&record.job)).then_some((seat, record))
    });
    let (waiting, others): (Vec<_>, Vec<_>) = undecided.partition(|(_, record)| !record.ready.is_empty());
    let other = others.get(round % others.len().max(1));
    for (seat, record) in waiting.iter().chain(other) {
        settle_one(local, seat, record);
    }
}

fn settle_one(local: &Arc<Local>, seat: &Seat, record: &VoteRecord) {
    let (job, attempt) = (&record.job, &record.attempt);
    local.votes.apply(seat, Event::Hears(false));
    let why = "nobody went on with it before it was committed".to_string();
    match decide(local, (job, attempt.number), Proposal::End(JobState::Failed, why)) {
        Ok(decision) => tell(local, ((job, attempt), &decision), (&attempt.hosts, true)),
        Err(why) => {
            let line = seat.state.lock().expect("no holder panics").doubt(why);
            line.iter().for_each(|line| log(line));
        }
    }
}

impl State {
    /// The line for the log about outputs that wait, unless it was logged before.
    pub(crate) fn doubt(&mut self, why: GaveUp) -> Option<String> {
        let missing = match &why {
            // Both resolve themselves.
            GaveUp::Outbid | GaveUp::Other(_) => return None,
            GaveUp::Hears(coordinator) => format!("{coordinator} continues it"),
            GaveUp::NoVote(why) => why.clone(),
            GaveUp::Few(have, of) => {
                format!(
                    "{have} of {of} hosts are too few to know whether it was committed; bring others back"
                )
            }
        };
        let VoteRecord { job, ready, .. } = self.core.record();
        let (file, more) = (ready.first()?, ready.len() - 1);
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let line = format!(
            "job {job}: {} is whole, at {}{more}, and waits for its name: {missing}",
            file.name, file.hidden
        );
        let is_new = self.doubt.replace(why.clone()) != Some(why);
        is_new.then_some(line)
    }
}

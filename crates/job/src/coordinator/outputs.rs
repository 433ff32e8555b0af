//! The outputs of an attempt: made ready by the nodes, then named, by decision of the client or by a vote.

use std::sync::Arc;

use thalweg_api::{
    AttemptId, Decision, Edge, FromParticipant, ParticipantEnd, ReadyFile, ToParticipant, Trouble, to_json,
};
use thalweg_engine::{Error, Receipt, Result};
use thalweg_wire::message;

use crate::job_options::word_of;
use crate::local::Local;
use crate::vote::Proposal;
use crate::{naming, volumes};

use super::{Attempted, Coordinator, Reason, Whose, reason_of};

/// The message when an attempt fails before outputs are named.
pub(crate) const NONE_NAMED: &str = "no output has its name, and all inputs are as they were";
/// The message when an attempt fails while outputs are being named.
const SOME_NAMED: &str =
    "some outputs may have their names, and that of a node that is lost lies whole beside its own, hidden";

impl Coordinator<'_> {
    /// What became of the outputs, if the reason of the failure does not say that.
    pub(super) fn outputs_after(&self, reason: Reason) -> Option<&'static str> {
        match (reason, self.names) {
            (_, true) => Some(SOME_NAMED),
            (Reason::Lost | Reason::Said(Trouble::Cancelled), false) => Some(NONE_NAMED),
            _ => None,
        }
    }

    /// Makes the file that the nodes write to in this attempt, if it is ours, and returns the nodes' name for it.
    pub(super) fn lend_output(&mut self) -> Result<Option<String>> {
        let Some((server, output)) = &mut self.lent else { return Ok(None) };
        let file = output.begin(self.job.ask.spec.work.output_bytes(self.all_bytes), self.kept.is_some())?;
        if volumes::is_in_volume(&self.job.ask.spec.output) {
            return Ok(Some(word_of(file.path())));
        }
        server.serve_output(self.job.failed.len() as u32 + 1, file);
        Ok(Some(self.job.ask.spec.output.clone()))
    }

    /// Has all outputs named; in a job without its client, once its hosts have agreed on that. Returns a line for each
    /// output that kept its temporary name.
    pub(super) fn publish(&mut self, ends: &[ParticipantEnd], receipt: &Receipt) -> Attempted<Vec<String>> {
        let (bytes, edges) = whole(ends);
        if let Some((_, output)) = &mut self.lent {
            output.publish(bytes, edges)?;
            self.tell_all_others(None);
            return Ok(Vec::new());
        }
        let shared = if self.job.ask.writes_own() {
            for (place, ParticipantEnd { node, edges, .. }) in ends.iter().enumerate() {
                self.tell(place, &ToParticipant::Ready { bytes: node.output.1, edges: edges.clone() }, &[])?;
            }
            self.ready(Whose::All)?;
            None
        } else {
            let maker = self.maker();
            self.tell(maker, &ToParticipant::Ready { bytes, edges }, &[])?;
            Some((maker, self.ready(Whose::Only(maker))?))
        };
        match self.node.clone() {
            Some(node) => {
                let kept = self.commit(&node, shared, receipt)?;
                self.tell_all_others(None);
                Ok(kept)
            }
            None => self.publish_for_client(shared.map(|(maker, _)| maker)),
        }
    }

    /// The client's decision is the commitment.
    fn publish_for_client(&mut self, maker: Option<usize>) -> Attempted<Vec<String>> {
        // With fewer nodes, another attempt's parts would be beside those that have their names by then.
        self.names = true;
        let Some(maker) = maker else {
            // A node that is not told removes its output, while others have named theirs.
            let mut lost = None;
            for peer in &mut self.peers {
                if let Err(why) = message::send(&mut peer.out, &to_json(&ToParticipant::Publish), &[]) {
                    lost.get_or_insert((peer.id, reason_of(&why)));
                }
            }
            return match lost {
                Some((id, reason)) => Err(self.cause(id, reason)),
                None => self.published(Whose::All),
            };
        };
        self.tell(maker, &ToParticipant::Publish, &[])?;
        let kept = self.published(Whose::Only(maker))?;
        self.tell_all_others(Some(maker));
        Ok(kept)
    }

    /// Tells all others, even if some are lost: the attempt is committed.
    fn tell_all_others(&mut self, but: Option<usize>) {
        let told = to_json(&ToParticipant::Publish);
        for (place, peer) in self.peers.iter_mut().enumerate() {
            if but != Some(place) {
                let _ = message::send(&mut peer.out, &told, &[]);
            }
        }
    }

    /// Has the hosts commit the attempt, and all outputs named. Waits as long as needed for hosts with own outputs.
    fn commit(
        &mut self,
        node: &Arc<Local>,
        shared: Option<(usize, Option<ReadyFile>)>,
        receipt: &Receipt,
    ) -> Attempted<Vec<String>> {
        let (maker, shared) = shared.unzip();
        let receipt = Some(Box::new(receipt.clone()));
        let want = Proposal::Commit(Decision::Committed { shared: shared.flatten(), receipt });
        let attempt = self.voted_on(node)?;
        let decision = match self.decide(node, want)? {
            decision @ Decision::Committed { .. } => decision,
            other => return Err(Error::Gone(superseded(&other), None).into()),
        };
        let maker = maker.map(|maker| self.peers[maker].name.clone());
        Ok(naming::name_all(node, ((&self.job.job, &attempt), &decision), maker.as_deref()))
    }

    fn ready(&mut self, whose: Whose) -> Attempted<Option<ReadyFile>> {
        let said = self.each_of(whose, |said, _| match said {
            FromParticipant::Ready(shared) => Some(shared),
            _ => None,
        })?;
        let shared = said.0.into_iter().flatten().flatten().next();
        // If another attempt follows, this file is no longer needed.
        self.job.lost.extend(shared.iter().map(|shared| shared.hidden.clone()));
        Ok(shared)
    }

    /// Waits until these participants have named their outputs.
    fn published(&mut self, whose: Whose) -> Attempted<Vec<String>> {
        let said = self.each_of(whose, |said, _| match said {
            FromParticipant::Published(kept) => Some(kept),
            _ => None,
        })?;
        Ok(said.0.into_iter().flatten().flatten().collect())
    }
}

/// The message of a coordinator whose attempt was replaced by another one.
pub(super) fn superseded(decision: &Decision) -> String {
    match decision {
        Decision::Committed { .. } => "the attempt was committed by another host".into(),
        Decision::Superseded { next, .. } => followed_by(next),
        Decision::Ended { why, .. } => why.clone(),
    }
}

/// The message of a coordinator that this attempt has replaced.
pub(super) fn followed_by(next: &AttemptId) -> String {
    format!("{} took the sort over as attempt {}", next.coordinator, next.number)
}

/// Bytes of the file that all write to, and its edges, which are not whole sectors of any node's range.
fn whole(ends: &[ParticipantEnd]) -> (u64, Vec<Edge>) {
    let bytes = ends.iter().map(|end| end.node.output.1).sum();
    (bytes, ends.iter().flat_map(|end| end.edges.clone()).collect())
}

#[cfg(test)]
mod tests {
    use thalweg_api::{JobSpec, from_json};
    use thalweg_engine::Progress;
    use thalweg_wire::{Terms, pair};

    use super::super::{Peer, Reach};
    use super::*;

    /// The link with the first of three nodes was lost when all were ready: the two others were not told, removed their
    /// outputs when they were stopped, and n1 may have had its name by then.
    #[test]
    fn all_are_told_that_their_outputs_get_names_whoever_is_lost() {
        let job = r#"{"job": "j", "by": "", "hosts": [], "coordinator": null, "failed": [], "lost": [], "ask": {"inputs": [],
            "own_inputs": true, "output": "out", "own_output": true, "record": 100, "keys": [], "unique": false,
            "memory_bytes": null, "scratch": [], "scratch_limit": null, "threads": null}}"#;
        let (progress, links) = (Progress::default(), [(); 3].map(|()| pair(Terms::default()).unwrap()));
        let job = from_json::<JobSpec>(job).unwrap();
        let reach = Reach { to: &|_| unreachable!("all are there"), own: false, all: &[] };
        let mut coordinator = Coordinator::new(job, reach, &progress).unwrap();
        let mut hearing = Vec::new();
        for (id, (near, far)) in links.into_iter().enumerate() {
            let link = Arc::new(near);
            let (out, answers) = link.open(b"").unwrap();
            let (_, answering, inc) = far.accept().unwrap().unwrap();
            if id == 0 {
                link.close();
            }
            hearing.push((
                message::Reader::new(inc, "coordinator", 1 << 16).unwrap(),
                (far, answers, answering),
            ));
            let name = format!("n{}", id + 1);
            coordinator.peers.push(Peer { id, name, link, out, done: (0, 0), range: None });
        }
        assert!(coordinator.publish_for_client(None).is_err());
        for peer in &mut coordinator.peers[1..] {
            message::send(&mut peer.out, &to_json(&ToParticipant::Stop), &[]).unwrap();
        }
        for (hearing, _) in &mut hearing[1..] {
            assert_eq!(hearing.next().unwrap().unwrap().0, to_json(&ToParticipant::Publish));
        }
    }
}

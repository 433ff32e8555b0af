//! What nodes write to, and how it gets its name.

use thalweg::Result;
use thalweg_api::{Edge, ShareEnd, ShareSaid, ShareTold, to_json};

use crate::talk::say;

use super::{Attempted, Coordinator};

/// What is said when an attempt fails while names are given.
pub(super) const SOME_NAMED: &str =
    "some outputs may have their names, and that of a node that is lost lies whole beside its own, hidden";

/// Whose word is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// That of all.
    All,
    /// That of all but one, which may be lost.
    AllButLost,
    /// That of all but the one at this place, which is not to say anything yet.
    AllBut(usize),
    /// That of the one at this place. What becomes of the others does not matter any more.
    Only(usize),
}

impl Whose {
    pub(super) fn waits_for(self, place: usize) -> bool {
        self.minds(place) && self != Whose::AllBut(place)
    }

    pub(super) fn minds(self, place: usize) -> bool {
        !matches!(self, Whose::Only(only) if only != place)
    }
}

impl Coordinator<'_> {
    /// Makes the file that the nodes write to in this attempt, if it is ours, and tells what they call it.
    pub(super) fn lend_output(&mut self) -> Result<Option<String>> {
        let Some((lender, output)) = &mut self.lent else { return Ok(None) };
        let file = output.begin(self.job.ask.work.output_bytes(self.all_bytes), self.kept.is_some())?;
        lender.lend_output(self.job.failed.len() as u32 + 1, file);
        Ok(Some(self.job.ask.output.clone()))
    }

    /// Has all outputs named.
    pub(super) fn publish(&mut self, ends: &[ShareEnd]) -> Attempted<()> {
        if self.job.ask.writes_own() {
            return self.publish_own(ends);
        }
        let bytes: u64 = ends.iter().map(|end| end.node.output.1).sum();
        let edges: Vec<Edge> = ends.iter().flat_map(|end| end.edges.clone()).collect();
        let maker = match &mut self.lent {
            Some((_, output)) => {
                output.publish(bytes, edges)?;
                None
            }
            None => {
                let maker = self.maker();
                self.tell(maker, &ShareTold::Publish { bytes, edges }, &[])?;
                self.published(Whose::Only(maker))?;
                Some(maker)
            }
        };
        // It is done, whoever of them is lost from here on.
        let told = to_json(&ShareTold::Publish { bytes: 0, edges: Vec::new() });
        for (place, peer) in self.peers.iter_mut().enumerate() {
            if maker != Some(place) {
                let _ = say(&mut peer.out, &told, &[]);
            }
        }
        Ok(())
    }

    /// Has the outputs named that each node has for itself, once all have said a moment ago that nothing else is missing: that
    /// of whoever coordinates when those of the others are, so that if it is lost before, one of them knows that there are
    /// names already, and no attempt follows.
    fn publish_own(&mut self, ends: &[ShareEnd]) -> Attempted<()> {
        for (place, ShareEnd { node, edges, .. }) in ends.iter().enumerate() {
            self.tell(place, &ShareTold::Ready { bytes: node.output.1, edges: edges.clone() }, &[])?;
        }
        self.each(|said, _| matches!(said, ShareSaid::Ready).then_some(()))?;
        // Parts of fewer nodes would stand beside those that have their names by then.
        self.names = true;
        let told = |end: &ShareEnd| ShareTold::Publish { bytes: end.node.output.1, edges: Vec::new() };
        let last = self.peers.iter().position(|peer| self.job.coordinator.as_ref() == Some(&peer.name));
        for (place, end) in ends.iter().enumerate().filter(|(place, _)| last != Some(*place)) {
            self.tell(place, &told(end), &[])?;
        }
        let Some(last) = last else { return self.published(Whose::All) };
        self.published(Whose::AllBut(last))?;
        self.tell(last, &told(&ends[last]), &[])?;
        self.published(Whose::Only(last))
    }

    /// Waits until they have given names.
    fn published(&mut self, whose: Whose) -> Attempted<()> {
        self.each_of(whose, |said, _| matches!(said, ShareSaid::Published).then_some(())).map(drop)
    }
}

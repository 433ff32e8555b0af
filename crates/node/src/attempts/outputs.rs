//! What nodes write to, and how it gets its name.

use thalweg::Result;
use thalweg_api::{Edge, ShareEnd, ShareSaid, ShareTold};

use super::{Attempted, Coordinator};

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
        let bytes: u64 = ends.iter().map(|end| end.node.output.1).sum();
        let edges: Vec<Edge> = ends.iter().flat_map(|end| end.edges.clone()).collect();
        if let Some((_, output)) = &mut self.lent {
            output.publish(bytes, edges)?;
            // It is done, whoever of them is lost from here on.
            let _ = self.tell_published(|_| (0, Vec::new()));
            return Ok(());
        }
        if !self.job.ask.writes_own() {
            let maker = self.maker();
            return self.tell_published(|place| {
                if place == maker { (bytes, edges.clone()) } else { (0, Vec::new()) }
            });
        }
        // Parts of fewer nodes would stand beside those that have their names by then.
        self.names = true;
        self.tell_published(|place| (ends[place].node.output.1, ends[place].edges.clone()))
    }

    /// Has each of them give names, the one at a place to an output of so many bytes with these edges.
    fn tell_published(&mut self, of: impl Fn(usize) -> (u64, Vec<Edge>)) -> Attempted<()> {
        for place in 0..self.peers.len() {
            let (bytes, edges) = of(place);
            self.tell(place, &ShareTold::Publish { bytes, edges }, &[])?;
        }
        self.each(|said, _| matches!(said, ShareSaid::Published).then_some(())).map(drop)
    }
}

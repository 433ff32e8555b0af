//! Sorting again only the range of a node that was lost.
//!
//! ```text
//! output  [ range of n1 ][ of n2 ][ of n3, lost ][ of n4 ]        n1, n2 and n4 have written theirs
//!                                 [ n1 | n2 | n4 ]                and sort these keys of all inputs once more
//! ```
//!
//! Model: once all that a node had to send has arrived, the others no longer need it. They write their ranges to
//! the end, and the next attempt is for the keys of the lost node, in its place of the output.
//! Invariant: the lost range takes the same bytes of the output as it would have taken: a node that was only suspended,
//! and continues, writes the same bytes that are there already.
//! Non-goals: a node that is lost earlier; only that node knows how much of its input it had sent.

use std::ops::Range;

use thalweg_api::{FromParticipant, ParticipantEnd, Trouble, Work};
use thalweg_engine::participant::KeyRange;
use thalweg_record::SplitPoint;

use super::{Attempted, Coordinator, Failure, Peer, Reason, Whose};

/// What an attempt wrote, except for the range of a lost node.
pub(super) struct Kept {
    /// The ends of the other shares, in the order of their ranges, and how many are before the lost one.
    ends: Vec<ParticipantEnd>,
    place: usize,
    /// The keys that were lost.
    pub(super) within: KeyRange,
    /// The part of the output that was lost: where it begins, and how long it is.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The file that all write to, and the node that made it, if a node did.
    pub(super) shared: Option<String>,
    pub(super) maker: Option<usize>,
}

impl Coordinator<'_> {
    /// The results of all nodes. If one is lost that can be spared, the results of the others are kept.
    pub(super) fn ends(
        &mut self,
        split_points: &[SplitPoint],
        shared: Option<String>,
    ) -> Attempted<Vec<ParticipantEnd>> {
        let (mut ends, lost) = self.each_of(Whose::AllButLost, |said, _| match said {
            FromParticipant::Done(end) => Some(*end),
            _ => None,
        })?;
        let Some((id, reason, why)) = lost else { return Ok(ends.into_iter().flatten().collect()) };
        let place = self.place_of(id).expect("it was one of them");
        ends.remove(place);
        let range = |peer: &Peer| peer.range.expect("all have told, or can be told by the others");
        self.kept = Some(Kept {
            ends: ends.into_iter().flatten().collect(),
            place,
            within: KeyRange::range(split_points, place),
            at: self.peers[..place].iter().map(range).sum(),
            bytes: range(&self.peers[place]),
            maker: self.lent.is_none().then(|| self.peers[0].id),
            shared,
        });
        Err(Failure::Node(id, reason, why))
    }

    /// All ends in the order of their ranges, with those that were kept; and which of them are of this attempt, if some
    /// were.
    pub(super) fn with_kept(&self, ends: Vec<ParticipantEnd>) -> (Vec<ParticipantEnd>, Range<usize>) {
        let Some(kept) = &self.kept else { return (ends, 0..0) };
        let again = kept.place..kept.place + ends.len();
        let mut all = kept.ends.clone();
        all.splice(kept.place..kept.place, ends);
        (all, again)
    }

    /// Whether the attempt can continue without the node at this place: its only trouble is that it is lost, leaves or
    /// has no room; records have arrived; its range's length is or will be known; and it did not make the output.
    pub(super) fn may_spare(&mut self, place: usize, reason: Reason) -> bool {
        let ask = &self.job.ask;
        let is_gone = matches!(reason, Reason::Lost | Reason::Said(Trouble::Leaves | Trouble::Full));
        let is_first = self.spared.is_none() && self.kept.is_none();
        let is_whole = !ask.own_inputs && !ask.writes_own() && (place > 0 || self.lent.is_some());
        let have_come = |peer: &Peer| peer.range.is_some();
        let is_known =
            have_come(&self.peers[place]) || (self.others_tell() && self.peers.iter().any(have_come));
        let may = is_gone && is_first && is_whole && is_known && self.peers.len() > 1;
        self.spared = self.spared.or(may.then_some(place));
        may
    }

    /// Whether the length of a range can be computed from those of all others.
    fn others_tell(&self) -> bool {
        let ask = &self.job.ask;
        !ask.spec.unique && matches!(ask.spec.work, Work::Sort | Work::Merge | Work::Shuffle(_))
    }

    /// Computes the length of the lost node's range, once that is possible.
    pub(super) fn measure_spared(&mut self) {
        let Some(place) = self.spared.filter(|place| self.peers[*place].range.is_none()) else { return };
        if self.others_tell() {
            let others = self.peers.iter().enumerate().filter(|(other, _)| *other != place);
            let others: Option<u64> = others.map(|(_, peer)| peer.range).sum();
            self.peers[place].range = others.map(|others| self.all_bytes.saturating_sub(others));
        }
    }

    /// Bytes of all ranges of this attempt, if the output is as long as the inputs.
    pub(super) fn bytes_to_write(&self) -> u64 {
        self.kept.as_ref().map_or(self.all_bytes, |kept| kept.bytes)
    }

    /// Forgets what was kept if the maker of the output is among the lost nodes.
    pub(super) fn keep_what_has_an_output(&mut self) {
        let maker = self.kept.as_ref().and_then(|kept| kept.maker);
        if maker.is_some_and(|maker| self.place_of(maker).is_none()) {
            self.kept = None;
        }
    }

    /// The place of the node that made the output that all write to.
    pub(super) fn maker(&self) -> usize {
        self.kept.as_ref().and_then(|kept| kept.maker).and_then(|id| self.place_of(id)).unwrap_or(0)
    }
}

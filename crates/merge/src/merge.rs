//! Merging: repeatedly outputs the least of the current records of all inputs.
//!
//! Invariant: the output is sorted. Records with equal keys are in the order of their inputs, and within an input in
//! its order. An unsorted input is detected at the first record that is less than the one before it.
//! Non-goals: dividing the work among lanes, which [`crate::split`] does; proving the output, which the stretch does.

use thalweg_api::Proof;
use thalweg_base::sabotage::strikes;
use thalweg_pump::Sink;
use thalweg_record::{Key, Layout, add_record};

use crate::split::records_before;
use crate::tournament::Tournament;
use crate::{Error, Failed, Flow, Reads, Result, Stretch};

/// The window of an input that has ended: more than any number of 80 bits.
const ENDED: u128 = u128::MAX;

/// The options of a merge.
#[derive(Debug, Clone, Copy)]
pub struct Merge<'a> {
    /// The layout of the records.
    pub layout: Layout,
    /// The key by which they are sorted.
    pub key: &'a Key,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// The longest line.
    pub line_max: u64,
}

/// The result of one lane.
#[derive(Debug, Clone, Copy, Default)]
pub struct Merged {
    /// The proof of all input records, ignoring order.
    pub input: Proof,
    /// The proof of the records that were dropped.
    pub dropped: Proof,
}

/// The inputs of one lane, each at its current record.
struct Players<'a> {
    merge: Merge<'a>,
    reads: Reads<'a>,
    flows: Vec<Flow>,
    windows: Vec<u128>,
    /// For each input, the number of its current record.
    counts: Vec<u64>,
}

/// Merges everything that `reads` returns into `out`.
pub fn merge<K>(merge: Merge<'_>, reads: Reads<'_>, out: &mut Stretch<'_, K>) -> Result<Merged>
where
    K: Sink<Error = thalweg_io::Error>,
{
    let mut players = Players::new(merge, reads)?;
    let mut merged = Merged::default();
    // The last key of the output, if duplicates are dropped.
    let mut last: Option<(u128, Vec<u8>)> = None;
    let mut tournament = Tournament::new(players.flows.len(), |a, b| players.is_first(a, b));
    while players.windows[tournament.winner()] != ENDED {
        let winner = tournament.winner();
        let (record, window) = (players.flows[winner].record(), players.windows[winner]);
        add_record(&mut merged.input, record);
        if merge.unique
            && last.as_ref().is_some_and(|(w, r)| *w == window && merge.key.compare(r, record).is_eq())
        {
            add_record(&mut merged.dropped, record);
        } else if !strikes("merge-drop") {
            out.push(record)?;
            if !merge.layout.end().is_empty() {
                out.push(merge.layout.end())?;
            }
            if merge.unique {
                let (kept_window, kept) = last.get_or_insert_default();
                *kept_window = window;
                kept.clear();
                kept.extend_from_slice(record);
            }
        }
        players.step(winner)?;
        if strikes("merge-lose") {
            players.windows[winner] = ENDED;
        }
        if !strikes("merge-unordered") {
            tournament.replay(|a, b| players.is_first(a, b));
        }
    }
    Ok(merged)
}

impl<'a> Players<'a> {
    /// Moves to the first record of each input.
    fn new(merge: Merge<'a>, reads: Reads<'a>) -> Result<Players<'a>> {
        let count = reads.inputs();
        let flows = (0..count).map(|_| Flow::new(merge.layout, merge.line_max)).collect();
        let mut players = Players { merge, reads, flows, windows: vec![0; count], counts: vec![0; count] };
        (0..count).try_for_each(|player| players.step(player))?;
        Ok(players)
    }

    /// Whether the current record of input `a` comes before that of `b`.
    #[inline(always)]
    fn is_first(&self, a: usize, b: usize) -> bool {
        let (x, y) = (self.windows[a], self.windows[b]);
        if x == y { self.is_first_of_like(a, b) } else { x < y }
    }

    #[inline(never)]
    fn is_first_of_like(&self, a: usize, b: usize) -> bool {
        let key = self.merge.key;
        if self.windows[a] == ENDED || key.ends_within(0) {
            return a < b;
        }
        key.compare(self.flows[a].record(), self.flows[b].record()).then(a.cmp(&b)).is_lt()
    }

    /// Moves to the next record of an input.
    #[inline(always)]
    fn step(&mut self, player: usize) -> Result<()> {
        let Players { merge, reads, flows, windows, counts } = self;
        let flow = &mut flows[player];
        match flow.advance(|| reads.next(player)) {
            Ok(true) => {}
            Ok(false) => {
                windows[player] = ENDED;
                return Ok(());
            }
            Err(failed) => return Err(self.named(player, failed)),
        }
        let window = merge.key.window(flow.record().into(), 0);
        let before = std::mem::replace(&mut windows[player], window);
        counts[player] += 1;
        if window < before || (window == before && !merge.key.ends_within(0)) {
            self.look_at_order(player)?;
        }
        Ok(())
    }

    /// Fails if the current record is less than the one before it; their windows are equal.
    #[inline(never)]
    fn look_at_order(&self, player: usize) -> Result<()> {
        let flow = &self.flows[player];
        if self.counts[player] == 1 || self.merge.key.compare(flow.before(), flow.record()).is_le() {
            return Ok(());
        }
        let piece = self.reads.piece(player);
        let record = records_before(piece, self.merge.layout)? + self.counts[player] - 1;
        Err(Error::Unordered { path: piece.file().path().to_path_buf(), record })
    }

    #[inline(never)]
    fn named(&self, player: usize, failed: Failed<Error>) -> Error {
        let path = self.reads.piece(player).file().path();
        failed.or(|what| Error::Broken { path: path.to_path_buf(), what })
    }
}

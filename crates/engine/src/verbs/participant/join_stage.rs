//! A node's range of a join: both sides cross rivers with the same split points, one after the other, and are sorted
//! and joined as on one machine.
//!
//! Invariant: that of a join on one machine, for the keys of the range. What came out of the rivers is reported as
//! proofs of both sides, which the receipt adds up.

use thalweg_api::{ParticipantEnd, Proof};
use thalweg_base::units::Size;
use thalweg_block::Pool;
use thalweg_io::{Handle, Location, directory_of};
use thalweg_record::{Key, add_proof};
use thalweg_sort::Expected;

use super::sort_stage::{self, Starts};
use super::stretch::Stretch;
use super::{PreparedParticipant, Rivers, WRITE_BYTES, WRITES};
use crate::verbs::join::{self, Form, Joining};
use crate::{Error, Progress, Result, RightSide, Sorted};

/// The join itself has 1/`OWN_SHARE` of the memory that is left beside the river.
const OWN_SHARE: u64 = 8;
/// Bytes of records that are written at once.
const PIECE_BYTES: usize = 256 << 10;

impl PreparedParticipant {
    /// Sends both sides across their rivers, joins them, and writes the result.
    pub(super) fn join(
        &self,
        right: &RightSide,
        rivers: &mut Rivers<'_>,
        pages: &[Vec<u64>],
        (file, starts): (&Handle, &dyn Starts),
        (progress, written): (&Progress, &Progress),
    ) -> Result<ParticipantEnd> {
        let sort = &self.base.options.sort;
        let layouts = [sort.layout, right.layout];
        let own = self.rest_bytes / OWN_SHARE;
        let (right_proof, mut right_sorted) = self.crossed(1, rivers, pages, progress)?;
        let (left_proof, mut left_sorted) = self.crossed(0, rivers, pages, progress)?;
        starts.crossed();
        let form = Form::of(layouts, right);
        let layout = form.layout;
        let scratch = sort.scratch.first().map_or(directory_of(&self.base.paths[0]), |first| first);
        let joining = Joining {
            layouts,
            keys: join::keys(layouts, [&sort.keys, &right.keys])?,
            kind: right.kind,
            form,
            group_bytes: (own / 4) as usize,
            line_max: own / 10,
            scratch: &Location::new(&self.base.scratch, scratch),
            meters: &self.base.meters,
        };
        let pool = Pool::new(WRITE_BYTES, WRITES + 1)?;
        let mut stretch = Stretch::new(file, file.backend().queue(WRITES)?, &pool, &self.base.meters);
        let should_continue = || progress.cancelled().is_none();
        // The length of a join's range is known only when it is written, so each node waits for the one before it.
        let stopped = || Error::Interrupted(progress.cancelled().unwrap_or(0));
        stretch.begin(starts.wait(&should_continue)?.ok_or_else(stopped)?);
        let mut prover = sort_stage::prover(layout, &Key::new(layout, &[])?);
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let mut write = |piece: &mut Vec<u8>| -> Result<()> {
            prover.push(piece);
            stretch.put(piece)?;
            written.advance(piece.len() as u64);
            piece.clear();
            if should_continue() { Ok(()) } else { Err(stopped()) }
        };
        let made = joining.run((&mut left_sorted, &mut right_sorted), |record, _| {
            piece.extend_from_slice(record);
            if piece.len() < PIECE_BYTES { Ok(()) } else { write(&mut piece) }
        })?;
        write(&mut piece)?;
        let bytes = stretch.bytes();
        let output = Proof { unordered: 0, duplicates: 0, ..*prover.proof() };
        made.look_at(&output, (layout, bytes))?;
        starts.say(bytes)?;
        let [left, right] = [left_sorted.receipt()?, right_sorted.receipt()?];
        let mut input = left_proof;
        add_proof(&mut input, &right_proof);
        let sides = made.sides(left.input, right.input, &output);
        let edges = stretch.finish()?;
        let mut end = self.end(input, (output, bytes), &[left, right]);
        end.edges = edges;
        end.node.sides = Some(sides);
        Ok(end)
    }

    /// A side after it crossed its river, sorted, with the proof of what was put in here.
    fn crossed(
        &self,
        side: usize,
        rivers: &mut Rivers<'_>,
        pages: &[Vec<u64>],
        progress: &Progress,
    ) -> Result<(Proof, Sorted)> {
        let ends = rivers(self, side)?;
        let sort = &self.base.options.sort;
        let threads = self.base.threads();
        let memory = self.rest_bytes / OWN_SHARE * (OWN_SHARE - 1) / 2;
        let mut options = sort_stage::sorter_options(sort, memory, threads, &self.base.paths[0]);
        (options.layout, options.keys) = self.sides[side].travel();
        options.no_proof = false;
        if let Some(Size::Bytes(limit)) = options.scratch_limit {
            options.scratch_limit = Some(Size::Bytes(limit / 2));
        }
        let (proof, sorter) = self.sides[side].pump(
            ends,
            &pages[side],
            (&self.base.meters, progress),
            |outlet, should_continue| {
                let how = (&options, &self.base.scratch, Expected::default());
                Ok(sort_stage::fill(outlet, how, 0, should_continue)?.map(|(sorter, _)| sorter))
            },
        )?;
        Ok((proof, sorter.sorted()?))
    }
}

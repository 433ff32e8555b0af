//! Joins two sorted streams key by key.
//!
//! ```text
//! left   a  b  b     d        left record by left record, each with all right records of its key:
//! right  a     b  b  c        (a a) (b b) (b b) (b b) (b b); left also (d -), anti only d
//! ```
//!
//! Model: if a key has only one left record, its right records are streamed past it. Otherwise they are stored in a
//! [`Group`].
//! Invariant: the expected output is computed from the inputs alone: the sums of a key's left records times the number
//! of its right records, and vice versa. This happens while records are read, before pairs are made.
//! Non-goals: sorting; the format of a pair.

use std::cmp::Ordering;

use thalweg_api::Proof;
use thalweg_base::sabotage::strikes;
use thalweg_block::Block;
use thalweg_record::{Key, Layout, add_proof, add_record};

use crate::{Failed, Flow, Group};

/// Which records come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pairs of equal keys.
    Inner,
    /// Pairs of equal keys, and left records without a right one.
    Left,
    /// Left records without a right one.
    Anti,
}

/// One side: a stream sorted by its key.
pub struct Side<N> {
    key: Key,
    flow: Flow,
    /// Returns the next block.
    next: N,
    /// The window of the current key; none at the end.
    window: Option<u128>,
    /// Sums of the records of the current key so far, and of the key before.
    sums: Proof,
    sums_before: Proof,
}

/// The expected output: sums of the left and the right parts of all its records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpectedJoin {
    /// Left parts.
    pub left: Proof,
    /// Right parts.
    pub right: Proof,
}

/// A join of two sides.
pub struct Join<'a, 'g, L, R> {
    /// The left side.
    pub left: Side<L>,
    /// The right side.
    pub right: Side<R>,
    /// Which records come out.
    pub kind: Kind,
    /// Keeps right records for several left ones.
    pub group: &'g mut Group<'a>,
}

impl<N, E> Side<N>
where
    N: FnMut() -> Result<Option<(Block, usize)>, E>,
{
    /// A side at its first record.
    pub fn new(layout: Layout, key: Key, line_max: u64, next: N) -> Result<Side<N>, Failed<E>> {
        let flow = Flow::new(layout, line_max);
        let (sums, sums_before) = (Proof::default(), Proof::default());
        let mut side = Side { key, flow, next, window: None, sums, sums_before };
        side.step()?;
        Ok(side)
    }

    fn record(&self) -> &[u8] {
        self.flow.record()
    }

    /// Moves to the next record. Returns whether it has the same key.
    fn step(&mut self) -> Result<bool, Failed<E>> {
        let before = self.window;
        let is_there = self.flow.advance(&mut self.next)?;
        self.window = is_there.then(|| self.key.window(self.flow.record().into(), 0));
        let same = is_there
            && self.window == before
            && (self.key.ends_within(0) || self.key.compare(self.flow.before(), self.flow.record()).is_eq());
        if !same {
            self.sums_before = std::mem::take(&mut self.sums);
        }
        if is_there {
            add_record(&mut self.sums, self.flow.record());
        }
        Ok(same)
    }

    /// Moves to the next key.
    fn step_over(&mut self) -> Result<(), Failed<E>> {
        while self.step()? {}
        Ok(())
    }
}

/// Joins the sides. `emit` gets each output record, as its left and its right part.
pub fn join<L, R, E>(
    join: &mut Join<'_, '_, L, R>,
    mut emit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), E>,
) -> Result<ExpectedJoin, Failed<E>>
where
    L: FnMut() -> Result<Option<(Block, usize)>, E>,
    R: FnMut() -> Result<Option<(Block, usize)>, E>,
    E: From<thalweg_io::Error>,
{
    let mut joined = ExpectedJoin::default();
    while join.left.window.is_some() {
        match join.order() {
            Ordering::Greater => join.right.step_over()?,
            Ordering::Equal if join.kind == Kind::Anti => join.left.step_over()?,
            Ordering::Equal => {
                join.pairs(&mut |left, right| emit(left, Some(right)))?;
                let (left, right) = (join.left.sums_before, join.right.sums_before);
                add_times(&mut joined.left, &left, right.records);
                add_times(&mut joined.right, &right, left.records);
            }
            Ordering::Less if join.kind == Kind::Inner => join.left.step_over()?,
            Ordering::Less => {
                loop {
                    emit(join.left.record(), None).map_err(Failed::Source)?;
                    if !join.left.step()? {
                        break;
                    }
                }
                add_proof(&mut joined.left, &join.left.sums_before);
            }
        }
    }
    while join.right.window.is_some() {
        join.right.step_over()?;
    }
    Ok(joined)
}

impl<L, R, E> Join<'_, '_, L, R>
where
    L: FnMut() -> Result<Option<(Block, usize)>, E>,
    R: FnMut() -> Result<Option<(Block, usize)>, E>,
    E: From<thalweg_io::Error>,
{
    /// Compares the current keys; a side that has ended comes last.
    fn order(&self) -> Ordering {
        let (left, right) = (&self.left, &self.right);
        let Some(window) = right.window else { return Ordering::Less };
        let by_window = left.window.cmp(&Some(window));
        if by_window.is_ne() || left.key.ends_within(0) {
            return by_window;
        }
        let normal = left.key.normal(left.record(), usize::MAX);
        right.key.compare_with_normal(right.record(), 0, &normal).reverse()
    }

    /// Emits all pairs of the current key, which both sides have.
    fn pairs(&mut self, emit: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>) -> Result<(), Failed<E>> {
        let Join { left, right, group, .. } = self;
        let first = left.record().to_vec();
        if !left.step()? {
            loop {
                emit(&first, right.record()).map_err(Failed::Source)?;
                if !right.step()? {
                    return Ok(());
                }
            }
        }
        group.clear();
        loop {
            if !strikes("join-drop") {
                group.push(right.record()).map_err(|e| Failed::Source(e.into()))?;
            }
            if !right.step()? {
                break;
            }
        }
        group.each(|record| emit(&first, record)).map_err(Failed::Source)?;
        loop {
            group.each(|record| emit(left.record(), record)).map_err(Failed::Source)?;
            if !left.step()? {
                return Ok(());
            }
        }
    }
}

/// Adds `part` `times` times.
fn add_times(whole: &mut Proof, part: &Proof, times: u64) {
    whole.records += part.records * times;
    whole.bytes += part.bytes * times;
    whole.checksum = whole.checksum.wrapping_add(part.checksum.wrapping_mul(u128::from(times)));
}

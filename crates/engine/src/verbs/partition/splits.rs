//! Splits of files: every page of the inputs is one, and any inlet can read it again.
//!
//! ```text
//! page k     [end of a record that began before | records that begin here | one that goes on]
//! page k + 1 [its end, read with page k | ...
//! ```
//!
//! Invariant: a record belongs to the page that it begins in. A line that begins with a page's first byte belongs to
//! the page before, because only its newline tells that it begins there; so no page needs to know its neighbour. Where
//! only the record before tells where a record begins, one inlet has all pages of a file, in order.

use thalweg_api::Proof;
use thalweg_block::{Block, Pool};
use thalweg_pump::{Input, InputLane, Inputs, Meters, Sink, Source};
use thalweg_record::{Layout, Walk};
use thalweg_river::Inlet;

use super::preprocess::{Preprocess, Preprocessor};
use super::shape::{READS, Shape};
use crate::lane_threads::Lanes;
use crate::{Error, Progress, Result};

/// How much of a file is read at once to find the end of a line.
const PIECE_BYTES: usize = 4 << 10;

/// Which pages an inlet has, and which split of the river each page is.
#[derive(Debug, Clone)]
pub(in crate::verbs) enum Splits {
    /// All inlets have the same files: pages are dealt to them in turn, and keep their numbers.
    Shared {
        /// The index of the inlet, and the number of inlets.
        inlet: (usize, usize),
    },
    /// All inlets have the same files: pages are dealt to them by their shares, and keep their numbers.
    Dealt {
        /// The index of the inlet.
        inlet: usize,
        /// How many pages each gets.
        pages: Vec<u64>,
    },
    /// Each inlet has its own files. Pages are taken in turn, twice as often from an inlet that has twice as many, so
    /// that all inlets come to their end together.
    Own {
        /// The index of the inlet.
        inlet: usize,
        /// How many pages each has.
        pages: Vec<u64>,
    },
}

impl Splits {
    /// How many splits there are, if these are the inlet's files.
    pub(in crate::verbs) fn count(&self, inputs: &Inputs) -> u64 {
        match self {
            Splits::Shared { .. } | Splits::Dealt { .. } => inputs.pages(),
            Splits::Own { pages, .. } => pages.iter().sum(),
        }
    }

    /// The split of a page of the inlet's files.
    pub(in crate::verbs) fn of_page(&self, page: u64) -> u64 {
        match self {
            Splits::Shared { .. } | Splits::Dealt { .. } => page,
            Splits::Own { inlet, pages } => turn(*inlet, page, pages),
        }
    }

    /// The pages of its files that an inlet puts, in order.
    fn mine<'s>(&'s self, inputs: &'s Inputs, layout: Layout) -> Box<dyn Iterator<Item = u64> + 's> {
        let of_files = |inlet, inlets| {
            let is_mine = move |page: &u64| inputs.index_of(*page) % inlets == inlet;
            Box::new((0..inputs.pages()).filter(is_mine))
        };
        match self {
            Splits::Shared { inlet: (inlet, inlets) } if !layout.is_found_anywhere() => {
                of_files(*inlet, *inlets)
            }
            Splits::Dealt { inlet, pages } if !layout.is_found_anywhere() => of_files(*inlet, pages.len()),
            _ => self.some_of(inputs.pages()),
        }
    }

    /// The pages that an inlet puts, of `all` pages, whichever file they are in.
    fn some_of(&self, all: u64) -> Box<dyn Iterator<Item = u64> + '_> {
        match self {
            Splits::Shared { inlet: (inlet, inlets) } => Box::new((*inlet as u64..all).step_by(*inlets)),
            Splits::Dealt { inlet, pages } => Box::new(
                (0..pages[*inlet]).map(|page| turn(*inlet, page, pages)).filter(move |page| *page < all),
            ),
            Splits::Own { .. } => Box::new(0..all),
        }
    }
}

/// The place of an inlet's page if all inlets take turns, each as often as it has pages: page k of n is at
/// (k + 1/2) / n of the whole; if two are at the same place, that of the lower inlet comes first.
fn turn(inlet: usize, page: u64, pages: &[u64]) -> u64 {
    let (own, twice) = (u128::from(pages[inlet]), 2 * u128::from(page) + 1);
    let before = |(other, &count): (usize, &u64)| {
        // Pages m of the other with (2 m + 1) / count before (or at) our place.
        let place = u128::from(count) * twice;
        let odd = if other < inlet { place / own } else { place.saturating_sub(1) / own };
        u128::from(count).min(odd.div_ceil(2)) as u64
    };
    pages.iter().enumerate().map(before).sum()
}

/// Divides `all` pages among inlets in the ratio of these weights, which add up to less than 2^64. All pages are
/// dealt.
pub(in crate::verbs) fn deal(all: u64, weights: &[u64]) -> Vec<u64> {
    assert!(!weights.is_empty(), "nobody to deal to");
    let sum = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>();
    if sum == 0 {
        return deal(all, &vec![1; weights.len()]);
    }
    let (mut weighed, mut dealt) = (0, 0);
    let share = |weight: &u64| {
        weighed += u128::from(*weight);
        let until = (u128::from(all) * weighed / sum) as u64;
        until - std::mem::replace(&mut dealt, until)
    };
    weights.iter().map(share).collect()
}

/// The pages of files, for inlets.
pub(in crate::verbs) struct Pages<'a> {
    pub(in crate::verbs) inputs: &'a Inputs,
    pub(in crate::verbs) layout: Layout,
    pub(in crate::verbs) shape: &'a Shape,
    pub(in crate::verbs) pool: &'a Pool,
    pub(in crate::verbs) meters: &'a Meters,
    pub(in crate::verbs) preprocess: &'a Preprocess,
}

impl Pages<'_> {
    /// Puts an inlet's pages into it and finishes it, unless stopped. Returns the proof of what was put.
    pub(in crate::verbs) fn put_all(
        &self,
        inlet: &mut Inlet,
        splits: &Splits,
        lanes: &Lanes<'_>,
        progress: &Progress,
    ) -> Result<Proof> {
        let mut preprocessor = Preprocessor::new(self.preprocess, self.layout);
        let queue = self.inputs.backends().queue(READS)?;
        let mine = splits.mine(self.inputs, self.layout);
        let mut source = InputLane::of_pages(self.inputs, queue, self.pool, self.meters, mine);
        while lanes.should_continue() {
            let Some(block) = source.next()? else {
                Sink::<Block>::finish(inlet)?;
                break;
            };
            let page = block.offset() / self.shape.page_bytes as u64;
            let beside = self.put((inlet, &mut preprocessor), &block, page, splits.of_page(page))?;
            // The end of the inlet ends the last split too.
            if !source.is_over() {
                inlet.end()?;
            }
            self.meters.input.read(beside);
            progress.advance(block.len() as u64);
        }
        Ok(preprocessor.proof(inlet))
    }

    /// Begins a split, and puts the records of its page into a river. Returns how many bytes were read beyond the page.
    fn put(
        &self,
        (inlet, preprocessor): (&mut Inlet, &mut Preprocessor<'_>),
        block: &Block,
        page: u64,
        split: u64,
    ) -> Result<u64> {
        let page_bytes = self.shape.page_bytes as u64;
        let input = self.inputs.file_of(page);
        let in_file = (page - input.first_page) * page_bytes;
        let found = match self.layout.is_found_anywhere() {
            true => self.layout.first_record(block, in_file),
            false => preprocessor.first_record(block, in_file),
        };
        let from = found.unwrap_or(block.len());
        inlet.begin(split, split * page_bytes + from as u64);
        let mut walk = Walk::new(self.layout);
        walk.pass(&block[from..]);
        // Only a line may begin after its page.
        let goes_on = found.is_some() && (walk.done() > 0 || self.layout.end_bytes() > 0);
        if from == block.len() && !goes_on {
            return Ok(0);
        }
        let (first, end) = (in_file + from as u64, in_file + block.len() as u64);
        let named = |error| self.named(error, input, (split * page_bytes, in_file));
        preprocessor.begin(input, first)?;
        preprocessor.put(inlet, &block[from..]).map_err(named)?;
        let read = if goes_on { put_tail((inlet, preprocessor), input, (end, walk), &named)? } else { 0 };
        preprocessor.end(input, first, end + read)?;
        Ok(read)
    }

    /// Adds this input, and the offset in it, to an error of the river about a record: byte `there` of the river is
    /// byte `here` of the file.
    fn named(&self, error: thalweg_river::Error, input: &Input, (there, here): (u64, u64)) -> Error {
        let thalweg_river::Error::TooLong(at, most) = error else { return error.into() };
        let at = match self.preprocess {
            // There are tags between the records, so offsets in the river are not those in the file.
            Preprocess::Tagged(..) => None,
            _ => Some((at + here).saturating_sub(there)),
        };
        let path = Some(input.path().to_path_buf());
        Error::RecordTooLong { path, at, limit: most, layout: self.layout }
    }
}

/// Reads from the end of a page to the end of the record that crosses it, or of the line that begins there. Returns how
/// many bytes that is.
fn put_tail(
    (inlet, preprocessor): (&mut Inlet, &mut Preprocessor<'_>),
    input: &Input,
    (end, mut walk): (u64, Walk),
    named: &dyn Fn(thalweg_river::Error) -> Error,
) -> Result<u64> {
    let mut piece = [0; PIECE_BYTES];
    let mut at = end;
    if at >= input.len() {
        preprocessor.check_end(input, walk.done())?;
        return Ok(0);
    }
    let file = input.file()?;
    loop {
        let got = file.read_at(at, &mut piece)?;
        if got == 0 {
            preprocessor.check_end(input, walk.done())?;
            break;
        }
        let len = walk.step(&piece[..got]);
        preprocessor.put(inlet, &piece[..len]).map_err(named)?;
        at += len as u64;
        if walk.done() == 0 {
            break;
        }
    }
    Ok(at - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_one_inlets_in_order_and_all_end_together() {
        for pages in [
            &[5, 5, 5][..],
            &[1],
            &[0, 7],
            &[10, 1, 0, 3],
            &[1000, 310, 1000, 310],
            &[3, 3, 2],
            &[u64::from(u32::MAX), 1],
        ] {
            let all: u64 = pages.iter().sum();
            let mut taken = std::collections::BTreeMap::new();
            for (inlet, &count) in pages.iter().enumerate() {
                let some = (0..count.min(2000)).map(|page| turn(inlet, page, pages)).collect::<Vec<u64>>();
                assert!(some.is_sorted_by(|a, b| a < b), "{pages:?}: {some:?}");
                for (page, place) in some.into_iter().enumerate() {
                    assert!(taken.insert(place, inlet).is_none(), "{pages:?}: two are at {place}");
                    // No inlet is ever more than two of its own pages from where it should be.
                    let due = (page as f64 + 0.5) / count as f64 * all as f64;
                    let far = (place as f64 - due).abs();
                    assert!(far <= pages.len() as f64 + 1.0, "{pages:?}: {place} for {due}");
                }
            }
            assert!(all > 10_000 || taken.into_keys().eq(0..all), "{pages:?}");
        }
        // Equal shares are dealt in turn.
        let equal = Splits::Dealt { inlet: 1, pages: deal(12, &[4; 3]) };
        assert_eq!(equal.some_of(12).collect::<Vec<u64>>(), [1, 4, 7, 10]);
    }

    #[test]
    fn all_pages_are_dealt_as_weights_say() {
        assert_eq!(deal(100, &[20, 62, 18]), [20, 62, 18]);
        assert_eq!(deal(10, &[1, 1, 1]).iter().sum::<u64>(), 10);
        assert_eq!(deal(7, &[0, 0]).iter().sum::<u64>(), 7);
        assert_eq!(deal(u64::MAX, &[u64::MAX / 2; 2]), [u64::MAX / 2, u64::MAX / 2 + 1]);
        assert_eq!(deal(0, &[3, 4]), [0, 0]);
    }
}

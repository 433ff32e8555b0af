//! Splits of files: every page of the inputs is one, and can be read again by anybody.
//!
//! ```text
//! page k     [end of a record that began before | records that begin here | one that goes on]
//! page k + 1 [its end, read with page k | ...
//! ```
//!
//! Law: a record belongs to the page that it begins in. A line that begins with a page's first byte belongs to the page
//! before, because only its newline tells that it begins there; so no page needs to know its neighbour.

use std::sync::Arc;

use thalweg_block::{Block, Pool};
use thalweg_io::{File, Io};
use thalweg_pump::{InputLane, Inputs, InputsError, Meters, Sink, Source};
use thalweg_record::Layout;
use thalweg_river::Inlet;

use super::shape::{READS, Shape};
use crate::lanes::Lanes;
use crate::{Progress, Result};

/// How much of a file is read at once to find the end of a line.
const PIECE_BYTES: usize = 4 << 10;

/// Which pages are an inlet's, and which split of the river each is.
#[derive(Debug, Clone)]
pub(in crate::verbs) enum Splits {
    /// All inlets have the same files: pages are dealt to them in turn, and keep their numbers.
    Shared {
        /// Which inlet, of how many.
        inlet: (usize, usize),
    },
    /// Each has files of its own: the first page of each is followed by the second of each, and so on.
    Own {
        /// Which inlet.
        inlet: usize,
        /// How many pages each has.
        pages: Vec<u64>,
    },
}

impl Splits {
    /// How many there are, if the inlet's files have so many pages.
    pub(in crate::verbs) fn count(&self, inputs: &Inputs) -> u64 {
        match self {
            Splits::Shared { .. } => inputs.pages(),
            Splits::Own { pages, .. } => pages.iter().sum(),
        }
    }

    /// The split that a page of the inlet's files is.
    pub(in crate::verbs) fn of_page(&self, page: u64) -> u64 {
        match self {
            Splits::Shared { .. } => page,
            Splits::Own { inlet, pages } => {
                let before = |other: usize| pages[other].min(page + u64::from(other < *inlet));
                (0..pages.len()).map(before).sum()
            }
        }
    }

    /// The pages of an inlet's files that are its own: one of so many, from which on.
    fn mine(&self) -> (usize, usize) {
        match self {
            Splits::Shared { inlet } => *inlet,
            Splits::Own { .. } => (0, 1),
        }
    }
}

/// The pages of files, for inlets.
pub(in crate::verbs) struct Pages<'a> {
    pub(in crate::verbs) io: &'a Arc<dyn Io>,
    pub(in crate::verbs) inputs: &'a Inputs,
    pub(in crate::verbs) layout: Layout,
    pub(in crate::verbs) shape: &'a Shape,
    pub(in crate::verbs) pool: &'a Pool,
    pub(in crate::verbs) meters: &'a Meters,
}

impl Pages<'_> {
    /// Puts those of an inlet into it and finishes it, unless nobody is to go on.
    pub(in crate::verbs) fn put_all(
        &self,
        inlet: &mut Inlet,
        splits: &Splits,
        lanes: &Lanes<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let queue = self.io.queue(READS)?;
        let all = (0, self.inputs.pages());
        let mut source = InputLane::new(self.inputs, queue, self.pool, self.meters, splits.mine(), all);
        while lanes.go_on() {
            let Some(block) = source.next()? else { return Ok(Sink::<Block>::finish(inlet)?) };
            let page = block.offset() / self.shape.page_bytes as u64;
            let beside = self.put(inlet, &block, page, splits.of_page(page))?;
            self.meters.input.read(beside);
            progress.advance(block.len() as u64);
        }
        Ok(())
    }

    /// Puts the records of a page into a river. Returns how many bytes were read beside it.
    fn put(&self, inlet: &mut Inlet, block: &Block, page: u64, split: u64) -> Result<u64> {
        let page_bytes = self.shape.page_bytes as u64;
        let input = self.inputs.file_of(page);
        let in_file = (page - input.first_page) * page_bytes;
        let (from, ends_inside) = bounds(block, in_file, self.layout);
        inlet.begin(split, 0, split * page_bytes + from as u64)?;
        inlet.put_bytes(&block[from..])?;
        let end = in_file + block.len() as u64;
        let mut read = 0;
        if end < input.len() && !ends_inside {
            read = put_tail(inlet, &input.file, end, self.layout)?;
        }
        inlet.end()?;
        Ok(read)
    }
}

/// Where the first record begins in a page at `in_file`, and whether none goes on behind it.
fn bounds(block: &[u8], in_file: u64, layout: Layout) -> (usize, bool) {
    match layout {
        Layout::Fixed(n) => {
            let from = (in_file.next_multiple_of(u64::from(n)) - in_file).min(block.len() as u64) as usize;
            (from, (block.len() - from).is_multiple_of(n as usize))
        }
        Layout::Lines if in_file == 0 => (0, false),
        Layout::Lines => {
            let from = memchr::memchr(b'\n', block).map_or(block.len(), |end| end + 1);
            // Without a newline no line begins here, not even with the next page.
            (from, memchr::memchr(b'\n', block).is_none())
        }
    }
}

/// Reads on from the end of a page to the end of the record that lies there.
fn put_tail(inlet: &mut Inlet, file: &File, end: u64, layout: Layout) -> Result<u64> {
    let mut piece = [0; PIECE_BYTES];
    let mut at = end;
    // Of a fixed record, what is missing; of a line, nobody knows.
    let stop = match layout {
        Layout::Fixed(n) => end.next_multiple_of(u64::from(n)),
        Layout::Lines => u64::MAX,
    };
    while at < stop {
        let want = (stop - at).min(PIECE_BYTES as u64) as usize;
        let got = file.read_at(at, &mut piece[..want])?;
        let newline = memchr::memchr(b'\n', &piece[..got]).filter(|_| layout == Layout::Lines);
        let len = newline.map_or(got, |newline| newline + 1);
        inlet.put_bytes(&piece[..len])?;
        at += len as u64;
        match got {
            _ if newline.is_some() => break,
            0 if layout == Layout::Lines => break,
            0 => return Err(InputsError::Changed(file.path().display().to_string()).into()),
            _ => {}
        }
    }
    Ok(at - end)
}

//! Reads a stream of blocks record by record.
//!
//! ```text
//! block k  [ .. |before|record|      rest      ]      records are read in place;
//! block k+1                           [ rest' |  ]    one that crosses blocks is copied
//! ```
//!
//! Invariant: the current record and the one before it are available until the next step, wherever blocks end.
//! Non-goals: where blocks come from; order.

use thalweg_base::units::Bytes;
use thalweg_block::Block;
use thalweg_record::Layout;

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A variable-length record is too long for the memory.
    #[error("has a {what} of more than {}, the most that memory has room for", Bytes(*.limit))]
    TooLong {
        /// What a record of this layout is called.
        what: &'static str,
        /// The maximum.
        limit: u64,
    },
    /// The stream ends inside a fixed record.
    #[error("ends after {bytes} bytes of a record")]
    CutShort {
        /// The bytes of it that exist.
        bytes: usize,
    },
    /// The stream ends inside a prefixed record.
    #[error("ends inside the record at byte {at}, after {bytes} bytes of it; it is cut off")]
    CutOff {
        /// The offset of the record.
        at: u64,
        /// The bytes of it that exist.
        bytes: usize,
    },
}

/// Why there is no next record.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed<E> {
    /// The record is invalid.
    Broken(Broken),
    /// The next block could not be read.
    Source(E),
}

impl<E> Failed<E> {
    /// The error; `name` converts one about an invalid record.
    pub fn or(self, name: impl FnOnce(Broken) -> E) -> E {
        match self {
            Failed::Broken(what) => name(what),
            Failed::Source(error) => error,
        }
    }
}

/// Where a record is.
#[derive(Debug, Clone, Copy)]
enum Lies {
    /// There is no record.
    Nowhere,
    /// In the block.
    There(usize, usize),
    /// In the copy of a record that crosses blocks.
    Crossing,
    /// In the copy of the record before the block.
    Behind,
}

/// The records of one stream.
#[derive(Debug)]
pub struct Flow {
    layout: Layout,
    /// The maximum length of a variable-length record.
    limit: u64,
    /// The offset of the end of the block in the stream.
    end: u64,
    block: Option<Block>,
    /// Where the next record begins in the block.
    at: usize,
    record: Lies,
    before: Lies,
    crossing: Vec<u8>,
    behind: Vec<u8>,
}

impl Flow {
    /// A stream before its first block. Variable-length records have at most `limit` bytes.
    pub fn new(layout: Layout, limit: u64) -> Flow {
        Flow {
            layout,
            limit,
            end: 0,
            block: None,
            at: 0,
            record: Lies::Nowhere,
            before: Lies::Nowhere,
            crossing: Vec::new(),
            behind: Vec::new(),
        }
    }

    /// The current record, without its terminator.
    #[inline(always)]
    pub fn record(&self) -> &[u8] {
        self.lying(self.record)
    }

    /// The record before it; empty if there is none.
    pub fn before(&self) -> &[u8] {
        self.lying(self.before)
    }

    #[inline(always)]
    fn lying(&self, place: Lies) -> &[u8] {
        match place {
            Lies::There(from, to) => &self.bytes()[from..to],
            Lies::Crossing => &self.crossing,
            Lies::Behind => &self.behind,
            Lies::Nowhere => &[],
        }
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.block.as_deref().unwrap_or(&[])
    }

    /// Moves to the next record and returns whether there is one. `next` returns blocks, each with the offset of its
    /// first valid byte.
    #[inline(always)]
    pub fn advance<E>(
        &mut self,
        next: impl FnMut() -> Result<Option<(Block, usize)>, E>,
    ) -> Result<bool, Failed<E>> {
        match self.whole() {
            Some((to, after)) => {
                self.before = self.record;
                self.record = Lies::There(self.at, to);
                self.at = after;
                Ok(true)
            }
            None => self.cross(next),
        }
    }

    /// If the next record ends in the block: its end, and the start of the record after it.
    #[inline(always)]
    fn whole(&self) -> Option<(usize, usize)> {
        let bytes = self.bytes();
        let after = self.at + self.layout.length(&bytes[self.at..])?;
        (after <= bytes.len()).then_some((after - self.layout.end_bytes(), after))
    }

    /// Moves to a record that ends in a later block.
    #[inline(never)]
    fn cross<E>(
        &mut self,
        mut next: impl FnMut() -> Result<Option<(Block, usize)>, E>,
    ) -> Result<bool, Failed<E>> {
        self.before = match self.record {
            Lies::There(from, to) => {
                self.behind.clear();
                self.behind.extend_from_slice(&self.block.as_deref().expect("it lies there")[from..to]);
                Lies::Behind
            }
            Lies::Crossing => {
                std::mem::swap(&mut self.crossing, &mut self.behind);
                Lies::Behind
            }
            place => place,
        };
        self.crossing.clear();
        let rest = self.block.as_deref().map_or(&[][..], |block| &block[self.at..]);
        self.crossing.extend_from_slice(rest);
        loop {
            // The block must be returned before the next one is taken.
            self.block = None;
            self.at = 0;
            let Some((block, at)) = next().map_err(Failed::Source)? else { break };
            self.end += (block.len() - at) as u64;
            self.block = Some(block);
            self.at = at;
            if self.crossing.is_empty()
                && let Some((to, after)) = self.whole()
            {
                self.record = Lies::There(at, to);
                self.at = after;
                return Ok(true);
            }
            if self.complete().map_err(Failed::Broken)? {
                self.record = Lies::Crossing;
                return Ok(true);
            }
        }
        // Only the last line may lack its terminator.
        let (bytes, may_end) = (self.crossing.len(), self.layout.end_bytes() > 0);
        if bytes > 0 && !may_end {
            return Err(Failed::Broken(match self.layout.fixed_bytes() {
                Some(_) => Broken::CutShort { bytes },
                None => Broken::CutOff { at: self.end - bytes as u64, bytes },
            }));
        }
        self.record = if bytes > 0 { Lies::Crossing } else { Lies::Nowhere };
        Ok(bytes > 0)
    }

    /// Adds the part of the crossing record that is in the block. Returns whether the record is complete.
    fn complete(&mut self) -> Result<bool, Broken> {
        let bytes = &self.block.as_deref().expect("a block has come")[self.at..];
        let ends = self.layout.completes(&self.crossing, bytes);
        let (taken, after) = ends.map_or((bytes.len(), bytes.len()), |n| (n - self.layout.end_bytes(), n));
        self.crossing.extend_from_slice(&bytes[..taken]);
        if self.layout.fixed_bytes().is_none() && self.crossing.len() as u64 > self.limit {
            return Err(Broken::TooLong { what: self.layout.noun(), limit: self.limit });
        }
        self.at += after;
        Ok(ends.is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_block::Pool;

    use super::*;

    /// A record, after the one before it.
    type Shown = (Vec<u8>, Vec<u8>);

    /// Reads all records of some bytes that come in pieces.
    fn records(layout: Layout, bytes: &[u8], pieces: &[usize]) -> Result<Vec<Shown>, Broken> {
        let pool = Pool::new(4096, 1).unwrap();
        let mut rest = bytes;
        let mut sizes = pieces.iter().copied().cycle();
        let mut flow = Flow::new(layout, 50);
        let mut shown = Vec::new();
        let mut next = || -> Result<Option<(Block, usize)>, Broken> {
            let Some(mut block) = (!rest.is_empty()).then(|| pool.try_take().expect("one at a time")) else {
                return Ok(None);
            };
            let (now, later) = rest.split_at(sizes.next().unwrap().min(rest.len()));
            rest = later;
            // Bytes before the first valid one must not matter.
            block.set_len(1 + now.len());
            block[0] = b'\n';
            block[1..].copy_from_slice(now);
            Ok(Some((block, 1)))
        };
        while flow.advance(&mut next).map_err(|failed| failed.or(|what| what))? {
            shown.push((flow.before().to_vec(), flow.record().to_vec()));
        }
        Ok(shown)
    }

    /// Checks the records, and for each the one before it.
    fn are_shown<R: AsRef<[u8]>>(shown: &[Shown], records: &[R]) {
        let records = records.iter().map(AsRef::as_ref);
        assert!(shown.iter().map(|r| &r.1[..]).eq(records.clone()), "{shown:?}");
        let before = std::iter::once(&b""[..]).chain(records);
        assert!(shown.iter().map(|r| &r.0[..]).eq(before.take(shown.len())), "{shown:?}");
    }

    proptest! {
        #[test]
        fn records_do_not_depend_on_pieces(
            text in "[ab\n]{0,60}", pieces in prop::collection::vec(1usize..20, 1..8), n in 1u32..7,
        ) {
            let bytes = text.as_bytes();
            let mut lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
            lines.pop_if(|last| last.is_empty());
            for (layout, plain) in [
                (Layout::Lines, lines.clone()),
                (Layout::Fixed(n), bytes.chunks_exact(n as usize).collect()),
            ] {
                let shown = records(layout, bytes, &pieces);
                let left = if layout == Layout::Lines { 0 } else { bytes.len() % n as usize };
                if left > 0 {
                    prop_assert_eq!(shown, Err(Broken::CutShort { bytes: left }));
                    continue;
                }
                are_shown(&shown.unwrap(), &plain);
            }
            let mut prefixed: Vec<Vec<u8>> = vec![Vec::new(); lines.len()];
            lines.iter().zip(&mut prefixed).for_each(|(line, record)| Layout::Prefixed.push(line, record));
            let mut bytes = prefixed.concat();
            are_shown(&records(Layout::Prefixed, &bytes, &pieces).unwrap(), &prefixed);
            let at = bytes.len() as u64;
            Layout::Prefixed.push(b"abc", &mut bytes);
            for left in 1..7 {
                let cut = &bytes[..at as usize + left];
                prop_assert_eq!(records(Layout::Prefixed, cut, &pieces), Err(Broken::CutOff { at, bytes: left }));
            }
        }
    }

    #[test]
    fn a_line_too_long_for_memory_is_an_error() {
        let long = [b'a'; 60];
        assert_eq!(records(Layout::Lines, &long, &[20]), Err(Broken::TooLong { what: "line", limit: 50 }));
        let ended = [&long[..], b"\n"].concat();
        assert_eq!(records(Layout::Lines, &ended, &[100]).unwrap().len(), 1, "it was in memory anyway");
    }
}

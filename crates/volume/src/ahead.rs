//! Read-ahead: reads the bytes of a file into the cache before they are requested.
//!
//! ```text
//! reads so far  |-------- window, up to 8 times as long ---------|
//! lane 0            [next piece]
//! lane 1                 [next piece]          each lane is one store, if the file's stripes are large enough
//! ```
//!
//! Model: consecutive reads form a run. From the third on, a few jobs read the pieces of a window after the run; each
//! job takes the next piece of the lane with the fewest requests in flight. So all stores send at once, and readers
//! that begin together do not queue at one store.
//! Invariant: all descriptors of a volume together have at most [`STREAMS`] pieces in flight. Random reads cause no
//! read-ahead.
//! Non-goals: reading; see file.rs.

use std::ops::Range;

use crate::hint::Hint;
use crate::layout::Layout;

/// The most requests in flight. With [`PIECE_BYTES`] that is 512 KiB: more than twice what a link of 10 Gbit/s with 0.2
/// ms carries in a round trip, and less than the 50 ms that the queue of a port of 100 Mbit/s holds (625 KB).
pub(crate) const STREAMS: usize = 8;
/// The size of a request.
const PIECE_BYTES: u64 = 64 << 10;
/// The most bytes from the end of a run to the end of the window: eight stripes of the default size.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// The window is this many times as long as the run.
const WINDOW_FACTOR: u64 = 8;
/// The number of consecutive reads before anything is read ahead.
const RUN_READS_MIN: u32 = 3;
/// How far a read may be from the end of its run, in reads: the kernel sends several at once, which may change places.
const OVERTAKEN_READS: u64 = 4;
/// The most bytes that a read may be from the end of its run.
pub(crate) const OVERTAKEN_BYTES_MAX: u64 = 1 << 20;

/// The reads of one descriptor, and what is read ahead for it.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The run: its end, its length, and the number and the size of its reads.
    end: u64,
    bytes: u64,
    reads: u32,
    largest: u64,
    /// What is to be read: up to here, by lanes.
    until: u64,
    lanes: Vec<Lane>,
    /// The number of reading jobs.
    pub(crate) jobs: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    next: u64,
    in_flight: u32,
}

/// A part of the window that one request reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    lane: usize,
}

impl Ahead {
    /// Notes a read of a file of this size; returns whether there is something to read ahead. The window has at most
    /// `room` bytes.
    pub(crate) fn read(
        &mut self,
        range: &Range<u64>,
        size: u64,
        layout: &Layout,
        hint: Hint,
        room: u64,
    ) -> bool {
        let len = range.end - range.start;
        let slack = (OVERTAKEN_READS * self.largest.max(len)).min(OVERTAKEN_BYTES_MAX);
        if range.start.abs_diff(self.end) <= slack && (self.reads > 0 || range.start == 0) {
            self.bytes += len;
            self.reads += 1;
            self.largest = self.largest.max(len);
            self.end = self.end.max(range.end);
        } else {
            let jobs = self.jobs;
            *self = Ahead { end: range.end, bytes: len, reads: 1, largest: len, jobs, ..Ahead::default() };
        }
        let window = match hint {
            Hint::Random => 0,
            Hint::Sequential | Hint::Once => WINDOW_BYTES_MAX,
            _ if self.reads < RUN_READS_MIN => 0,
            _ => (self.bytes * WINDOW_FACTOR).min(WINDOW_BYTES_MAX),
        };
        window > 0 && self.want(self.end..(self.end + window.min(room)).min(size), layout)
    }

    /// Moves the window to this range. Returns whether anything in it is left to read.
    pub(crate) fn want(&mut self, range: Range<u64>, layout: &Layout) -> bool {
        if self.lanes.is_empty() {
            self.lanes = lanes(range.start, layout);
        }
        // The bytes that the run has passed are not read any longer.
        let (unit, row) = unit_and_row(layout);
        for lane in &mut self.lanes {
            if lane.next < range.start {
                let first = lane.next / unit * unit % row;
                lane.next = at_least(range.start, first, unit, row);
            }
        }
        self.until = self.until.max(range.end);
        self.lanes.iter().any(|lane| lane.next < self.until)
    }

    /// Empties the window.
    pub(crate) fn stop(&mut self) {
        self.until = 0;
    }

    /// The piece to read next: of the lane with the fewest requests in flight.
    pub(crate) fn next(&mut self, layout: &Layout) -> Option<Piece> {
        let (unit, row) = unit_and_row(layout);
        let (until, most) = (self.until, self.most_in_flight());
        let is_open = |lane: &Lane| lane.next < until && lane.in_flight < most;
        let open = self.lanes.iter_mut().enumerate().filter(|(_, lane)| is_open(lane));
        let (lane, found) = open.min_by_key(|(_, lane)| (lane.in_flight, lane.next))?;
        let start = found.next;
        let unit_end = (start / unit + 1) * unit;
        let end = ((start / PIECE_BYTES + 1) * PIECE_BYTES).min(unit_end).min(until);
        found.in_flight += 1;
        found.next = if end == unit_end { unit_end + row - unit } else { end };
        Some(Piece { range: start..end, lane })
    }

    /// The most requests in flight in a lane: twice its share. All requests of all readers who wait for the same store
    /// would overflow its port.
    fn most_in_flight(&self) -> u32 {
        (2 * STREAMS).div_ceil(self.lanes.len().max(1)) as u32
    }

    /// How many more jobs there should be.
    pub(crate) fn jobs_wanted(&self) -> usize {
        let most = self.most_in_flight();
        let is_open = |lane: &&Lane| lane.next < self.until && lane.in_flight < most;
        self.lanes.iter().filter(is_open).count().min(STREAMS - self.jobs)
    }

    /// Notes that a piece was read, or could not be.
    pub(crate) fn done(&mut self, piece: &Piece) {
        if let Some(lane) = self.lanes.get_mut(piece.lane) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
    }
}

/// The number of consecutive bytes in one lane, and the period after which the lanes repeat. Stripes that are smaller
/// than a piece are read together, from all of their stores.
fn unit_and_row(layout: &Layout) -> (u64, u64) {
    match layout.stripe_bytes {
        stripe if stripe >= PIECE_BYTES => (stripe, stripe * u64::from(layout.width)),
        _ => (PIECE_BYTES, PIECE_BYTES * STREAMS as u64),
    }
}

/// The first byte at or after `at` in the lane whose first unit begins at `first`.
fn at_least(at: u64, first: u64, unit: u64, row: u64) -> u64 {
    let begin = at / row * row + first;
    if at >= begin + unit { begin + row } else { at.max(begin) }
}

fn lanes(from: u64, layout: &Layout) -> Vec<Lane> {
    let (unit, row) = unit_and_row(layout);
    let first = (0..row / unit).map(|lane| lane * unit);
    first.map(|first| Lane { next: at_least(from, first, unit, row), in_flight: 0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Policy;

    const MIB: u64 = 1 << 20;

    fn layout(stripe_bytes: u64) -> Layout {
        Layout::of(&Policy { stripe_bytes, ..Policy::default() }, 4, 0)
    }

    fn pieces(ahead: &mut Ahead, layout: &Layout) -> Vec<Range<u64>> {
        std::iter::from_fn(|| ahead.next(layout).inspect(|piece| ahead.done(piece)).map(|piece| piece.range))
            .collect()
    }

    /// Every byte of the window is read once, whatever the size of stripes, and no other byte is.
    #[test]
    fn the_pieces_of_a_window_are_the_window() {
        for stripe in [4096, 64 << 10, 100_000, MIB] {
            let layout = layout(stripe);
            let mut ahead = Ahead::default();
            let (mut found, mut from) = (Vec::new(), 12_345);
            for until in [300_000, 300_001, 5 * MIB, 9 * MIB + 7] {
                ahead.want(from..until, &layout);
                found.extend(pieces(&mut ahead, &layout));
                from = from.max(until / 2);
            }
            found.sort_by_key(|piece| piece.start);
            assert_eq!(found.first().unwrap().start, 12_345);
            assert!(found.windows(2).all(|two| two[0].end == two[1].start), "{stripe}: {found:?}");
            assert_eq!(found.last().unwrap().end, 9 * MIB + 7);
            assert!(found.iter().all(|piece| piece.end - piece.start <= PIECE_BYTES));
        }
    }

    #[test]
    fn requests_in_flight_are_of_all_stores() {
        let layout = layout(MIB);
        let mut ahead = Ahead::default();
        ahead.want(0..8 * MIB, &layout);
        let stores: Vec<u64> = (0..4).map(|_| ahead.next(&layout).unwrap().range.start / MIB % 4).collect();
        assert_eq!(stores, [0, 1, 2, 3]);
    }

    /// Where only one store has not sent its part of the window, it gets no more than twice its share of the requests.
    #[test]
    fn a_store_that_all_readers_wait_for_gets_few_requests_of_each() {
        let layout = layout(MIB);
        let mut ahead = Ahead::default();
        ahead.want(0..MIB, &layout);
        let asked = std::iter::from_fn(|| ahead.next(&layout)).count();
        assert_eq!((asked, ahead.jobs_wanted()), (2 * STREAMS / 4, 0));
        ahead.want(0..4 * MIB, &layout);
        assert_eq!(ahead.jobs_wanted(), 3);
    }

    #[test]
    fn only_reads_that_follow_each_other_are_read_ahead_of() {
        let layout = layout(MIB);
        let read = |ahead: &mut Ahead, at, hint| ahead.read(&(at..at + 838), 64 * MIB, &layout, hint, MIB);
        let mut ahead = Ahead::default();
        assert_eq!([0, 838, 1676].map(|at| read(&mut ahead, at, Hint::Normal)), [false, false, true]);
        assert!(!read(&mut ahead, 9 * MIB, Hint::Normal), "elsewhere");
        assert!(pieces(&mut ahead, &layout).is_empty(), "what was to be read is forgotten");
        let mut ahead = Ahead::default();
        assert!(read(&mut ahead, 7 * MIB, Hint::Sequential));
        let read_ahead = pieces(&mut ahead, &layout);
        assert_eq!(
            read_ahead.iter().map(|piece| piece.end - piece.start).sum::<u64>(),
            MIB,
            "the room there is"
        );
        let mut ahead = Ahead::default();
        assert!((0..9).all(|n| !read(&mut ahead, n * 838, Hint::Random)));
        let mut ahead = Ahead::default();
        assert!((1..99_u64).all(|n| !read(&mut ahead, n * 40_503 % 64 * MIB, Hint::Normal)));
    }

    /// The kernel sends several requests at once, and they arrive in any order.
    #[test]
    fn reads_that_overtake_each_other_make_one_run() {
        let layout = layout(MIB);
        let mut ahead = Ahead::default();
        let piece = 128 << 10;
        let order = [0, 2, 1, 4, 3, 5];
        let began = order.map(|n| ahead.read(&(n * piece..(n + 1) * piece), MIB, &layout, Hint::Normal, MIB));
        assert_eq!(began[..2], [false, false]);
        assert!(began[5]);
    }
}

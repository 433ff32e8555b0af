//! Picks: to which lane a record goes (the paper's PickStream).

use std::ops::Range;

use thalweg_record::SplitPoints;
use xxhash_rust::xxh3::xxh3_64;

/// The user's own pick: a record and where it began in the input, to a lane.
type Own = dyn Fn(&[u8], u64) -> usize + Send + Sync;

/// Which lane a record goes to.
pub enum Partitioner {
    /// By the range of its key: lane i takes the keys in (cut i - 1, cut i], ties by origin.
    Range(SplitPoints),
    /// The same for the records of these ranges alone, the first of which is lane 0; the others' go nowhere.
    Among(SplitPoints, Range<usize>),
    /// By a hash of its key: equal keys meet in one lane.
    Hash,
    /// One after the other, dealt anew in each split.
    RoundRobin,
    /// To every lane.
    Copy,
    /// To the outlet that has taken most of what it got: a slow one gets less.
    LeastBusy,
    /// As this function says.
    Own(Box<Own>),
}

impl std::fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Partitioner::Range(_) | Partitioner::Among(..) => "range",
            Partitioner::Hash => "hash",
            Partitioner::RoundRobin => "robin",
            Partitioner::Copy => "copy",
            Partitioner::LeastBusy => "least busy",
            Partitioner::Own(_) => "own",
        })
    }
}

/// A lane for a key, evenly.
#[inline(always)]
pub(crate) fn lane_of_hash(key: &[u8], lanes: usize) -> usize {
    ((u128::from(xxh3_64(key)) * lanes as u128) >> 64) as usize
}

//! The options of the verbs, as typed: nothing here depends on the machine yet.

use std::path::PathBuf;

use thalweg_api::{IoChoice, JoinSpec, PumpChoice, Work, WorkSpec};
use thalweg_base::units::Size;
use thalweg_record::{KeyPart, Layout};

use crate::{Asked, Endpoint, Result};

/// What to do with records, and how: to sort, shuffle, merge, join or partition them.
pub type WorkOptions = WorkSpec<Endpoint, Layout>;

/// The right side of a join, and how both sides are joined.
pub type RightSide = JoinSpec<Endpoint, Layout>;

/// Fails if an option is set that this work does not have, or an end is no place that there is a way to.
pub fn check_options(options: &WorkOptions) -> Result<()> {
    let WorkOptions { work, .. } = options;
    let is_sort = *work == Work::Sort;
    let wrong = [
        (options.unique && !matches!(work, Work::Sort | Work::Merge), "drop records with equal keys"),
        (options.resume && !is_sort, "resume"),
        (options.header > 0 && !is_sort && !matches!(work, Work::Shuffle(_)), "keep a header"),
        (options.no_proof && !is_sort, "go without proofs"),
    ];
    if options.right.is_some() != (*work == Work::Join) {
        return Err(Asked::RightSide.into());
    }
    if options.header > 0 && options.layout != Layout::Lines {
        return Err(Asked::HeaderOfLines.into());
    }
    if let Some((_, what)) = wrong.iter().find(|(asked, _)| *asked) {
        return Err(Asked::NoOption { verb: work.verb(), what }.into());
    }
    options.all_inputs().chain([&options.output]).try_for_each(Endpoint::check)
}

/// How a [`Sorter`](crate::Sorter) is to sort: by default lines, compared as a whole, with the memory and threads that
/// the machine offers.
#[derive(Debug, Clone, Default)]
pub struct SorterOptions {
    /// The layout of the records that are put.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Memory for the sorter alone, at least 16 MiB; if not given, half of what is available, and at most
    /// 1 GiB.
    pub memory: Option<Size>,
    /// Directories for what does not fit, used only if something does not; that of temporary files if empty.
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use; a percentage is of the space available.
    pub scratch_limit: Option<Size>,
    /// Lanes; one for each core if not given.
    pub threads: Option<usize>,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// The I/O back end, for scratch.
    pub io: IoChoice,
    /// Whether to compute no proofs. Only benchmarks do without them.
    pub no_proof: bool,
}

/// What to generate.
#[derive(Debug, Clone, Default)]
pub struct GenOptions {
    /// How many records.
    pub count: u128,
    /// Where they go.
    pub output: Endpoint,
    /// ASCII records instead of binary ones.
    pub ascii: bool,
    /// Skewed keys.
    pub skewed: bool,
    /// Number of the first record.
    pub start: u128,
    /// The I/O back end.
    pub io: IoChoice,
}

/// What to check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// The files, partitions of one sequence in order; with `merge`, summaries in order.
    pub inputs: Vec<Endpoint>,
    /// The layout of the records in the files.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// How many of the first lines of every file are a header, the same in all, and not looked at.
    pub header: usize,
    /// Where to write the 280-byte summary, for 100-byte records with the key 0:10 only.
    pub summary: Option<PathBuf>,
    /// The inputs are summaries to be merged.
    pub merge: bool,
    /// The I/O back end.
    pub io: IoChoice,
}

/// What to move and how.
#[derive(Debug, Clone, Default)]
pub struct PumpOptions {
    /// Where the bytes are.
    pub sources: Vec<Endpoint>,
    /// Where they go.
    pub dest: Endpoint,
    /// Lanes that move side by side; one for each core if not given.
    pub streams: Option<usize>,
    /// The most bytes in a second.
    pub limit: Option<u64>,
    /// Continue from what an earlier run of the same command left.
    pub resume: bool,
    /// Read back what was written.
    pub verify: bool,
    /// Move this many bytes of noise from memory instead.
    pub no_disk: Option<u64>,
    /// Whether to take no checksums.
    pub no_checksum: bool,
    /// Whether the first error ends the transfer. Otherwise what cannot be copied is left out and listed.
    pub strict: bool,
    /// Which entries are copied, and what happens to others at the destination.
    pub choice: PumpChoice,
    /// The I/O back end.
    pub io: IoChoice,
}

impl PumpOptions {
    /// A transfer with defaults for all other options.
    pub fn new(sources: Vec<Endpoint>, dest: Endpoint) -> PumpOptions {
        PumpOptions { sources, dest, ..PumpOptions::default() }
    }
}

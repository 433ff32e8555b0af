//! The options of the verbs, as typed: nothing here depends on the machine yet.

use std::path::PathBuf;

use thalweg_api::{JoinKind, PumpChoice, Work};
use thalweg_base::units::Size;
use thalweg_record::{KeyPart, Layout};

use crate::{Asked, Endpoint, Result};

/// Which I/O back end to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else threads; the receipt says which.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads with pread and pwrite.
    Threads,
}

/// What to do with records, and how: to sort, shuffle, merge, join or partition them.
#[derive(Debug, Clone)]
pub struct WorkOptions {
    /// What is done with them.
    pub work: Work,
    /// Where the records are, in order; standard input if empty. For a join, the left side, which is one input.
    pub inputs: Vec<Endpoint>,
    /// Where the result goes. May be one of the inputs. For a partition, a path with `{}` where a part's number goes.
    pub output: Endpoint,
    /// For a sort or a shuffle of lines: how many of the first lines of every input stay in front of the output, where
    /// they stand once. All inputs must have the same ones.
    pub header: usize,
    /// The layout of the records in the inputs.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// The right side of a join; `None` for all other work.
    pub right: Option<RightSide>,
    /// The memory limit, for this work or, in a program that installed hooks, for the whole process; half of the
    /// available memory if not given.
    pub memory: Option<Size>,
    /// Directories for what does not fit; the output's directory if empty.
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use; a percentage is of the space available.
    pub scratch_limit: Option<Size>,
    /// Threads that work side by side; one for each core if not given.
    pub threads: Option<usize>,
    /// Whether all nodes have equal shares, however fast they are; else each has as much as it can do in the same time.
    pub equal_shares: bool,
    /// For a sort or a merge: keep only the first of records with equal keys.
    pub unique: bool,
    /// For a sort: continue from what an earlier run of the same command left.
    pub resume: bool,
    /// The I/O back end.
    pub io: IoChoice,
    /// Whether to compute proofs. Only benchmarks of a sort turn this off.
    pub proof: bool,
}

impl WorkOptions {
    /// Some work with whole records as keys, and defaults for all other options.
    pub fn new(work: Work, inputs: Vec<Endpoint>, output: Endpoint, layout: Layout) -> WorkOptions {
        WorkOptions {
            work,
            inputs,
            output,
            header: 0,
            layout,
            keys: Vec::new(),
            right: None,
            memory: None,
            scratch: Vec::new(),
            scratch_limit: None,
            threads: None,
            equal_shares: false,
            unique: false,
            resume: false,
            io: IoChoice::Auto,
            proof: true,
        }
    }
}

impl WorkOptions {
    /// Fails if an option is set that this work does not have, or an end is no place that there is a way to.
    pub fn check(&self) -> Result<()> {
        let is_sort = self.work == Work::Sort;
        let wrong = [
            (self.unique && !matches!(self.work, Work::Sort | Work::Merge), "drop records with equal keys"),
            (self.resume && !is_sort, "resume"),
            (self.header > 0 && !is_sort && !matches!(self.work, Work::Shuffle(_)), "keep a header"),
            (!self.proof && !is_sort, "go without proofs"),
        ];
        if self.right.is_some() != (self.work == Work::Join) {
            return Err(Asked::RightSide.into());
        }
        if self.header > 0 && self.layout != Layout::Lines {
            return Err(Asked::HeaderOfLines.into());
        }
        if let Some((_, what)) = wrong.iter().find(|(asked, _)| *asked) {
            return Err(Asked::NoOption { verb: self.work.verb(), what }.into());
        }
        let right = self.right.iter().flat_map(|right| &right.inputs);
        self.inputs.iter().chain(right).chain([&self.output]).try_for_each(Endpoint::check)
    }
}

/// The right side of a join, and how both sides are joined.
#[derive(Debug, Clone)]
pub struct RightSide {
    /// Where its records are: one input, or on a cluster any number of files.
    pub inputs: Vec<Endpoint>,
    /// The layout of the records in them: as in the left side, in lines or with a length.
    pub layout: Layout,
    /// The parts of the key, with the lengths and directions of those of the left side; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Which records to give.
    pub kind: JoinKind,
    /// The separator between the parts of a line.
    pub between: Vec<u8>,
}

/// How a [`Sorter`](crate::Sorter) is to sort.
#[derive(Debug, Clone)]
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
    /// Whether to compute proofs. Only benchmarks turn this off.
    pub proof: bool,
}

/// Lines, compared as a whole, with the memory and threads that the machine offers.
impl Default for SorterOptions {
    fn default() -> SorterOptions {
        SorterOptions {
            layout: Layout::Lines,
            keys: Vec::new(),
            memory: None,
            scratch: Vec::new(),
            scratch_limit: None,
            threads: None,
            unique: false,
            io: IoChoice::Auto,
            proof: true,
        }
    }
}

/// What to generate.
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
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
    /// Whether to take checksums.
    pub checksum: bool,
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
        PumpOptions {
            sources,
            dest,
            streams: None,
            limit: None,
            resume: false,
            verify: false,
            no_disk: None,
            checksum: true,
            strict: false,
            choice: PumpChoice::default(),
            io: IoChoice::Auto,
        }
    }
}

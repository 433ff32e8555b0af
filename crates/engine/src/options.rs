//! What the verbs can be asked, as typed: nothing here has looked at the machine yet.

use std::path::PathBuf;

use thalweg_api::{JoinKind, PartitionPick};
use thalweg_base::units::Size;
use thalweg_record::{KeyPart, Layout};

/// Where bytes come from or go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A file by name.
    Path(PathBuf),
    /// Standard input or output, written `-`.
    Standard,
}

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

/// What to sort and how.
#[derive(Debug, Clone)]
pub struct SortOptions {
    /// Where the records are, in order; standard input if empty.
    pub inputs: Vec<Endpoint>,
    /// Where the sorted records go. May be one of the inputs.
    pub output: Endpoint,
    /// How records lie in the inputs.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Memory for the whole process; half of what is available if not given.
    pub memory: Option<Size>,
    /// Directories for what does not fit; the output's directory if empty.
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use; a percentage is of the space available.
    pub scratch_limit: Option<Size>,
    /// Lanes; one for each core if not given.
    pub threads: Option<usize>,
    /// Nodes inside this process, each of which reads a share of the input and sorts a range of the keys; 1 is the
    /// sort itself, and no river.
    pub nodes: usize,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// Go on from what an earlier run of the same command left.
    pub resume: bool,
    /// The I/O back end.
    pub io: IoChoice,
    /// Whether to compute proofs. Only benchmarks turn this off.
    pub proof: bool,
}

impl SortOptions {
    /// A sort by whole records, with everything as it is if not given.
    pub fn new(inputs: Vec<Endpoint>, output: Endpoint, layout: Layout) -> SortOptions {
        SortOptions {
            inputs,
            output,
            layout,
            keys: Vec::new(),
            memory: None,
            scratch: Vec::new(),
            scratch_limit: None,
            threads: None,
            nodes: 1,
            unique: false,
            resume: false,
            io: IoChoice::Auto,
            proof: true,
        }
    }
}

/// What to shuffle and how.
#[derive(Debug, Clone)]
pub struct ShuffleOptions {
    /// Where the records are, in order; standard input if empty.
    pub inputs: Vec<Endpoint>,
    /// Where the shuffled records go. May be one of the inputs.
    pub output: Endpoint,
    /// How records lie in the inputs.
    pub layout: Layout,
    /// Which of the permutations.
    pub seed: u64,
    /// Memory for the whole process; half of what is available if not given.
    pub memory: Option<Size>,
    /// Directories for what does not fit; the output's directory if empty.
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use; a percentage is of the space available.
    pub scratch_limit: Option<Size>,
    /// Lanes; one for each core if not given.
    pub threads: Option<usize>,
    /// The I/O back end.
    pub io: IoChoice,
}

/// What to merge and how.
#[derive(Debug, Clone)]
pub struct MergeOptions {
    /// Where the records are, each input in order; standard input if empty.
    pub inputs: Vec<Endpoint>,
    /// Where the merged records go. May be one of the inputs.
    pub output: Endpoint,
    /// How records lie in the inputs.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Memory for the whole process; half of what is available if not given, and no more than helps.
    pub memory: Option<Size>,
    /// Lanes; one for each core if not given.
    pub threads: Option<usize>,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// The I/O back end.
    pub io: IoChoice,
}

/// What to join and how. Of a pair, the left comes first.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// Where the records are.
    pub inputs: [Endpoint; 2],
    /// Where what is made goes. May be one of the inputs.
    pub output: Endpoint,
    /// How records lie in the inputs: in both as lines, or in both with a length.
    pub layouts: [Layout; 2],
    /// The parts of the keys, alike in lengths and directions; the whole record if empty.
    pub keys: [Vec<KeyPart>; 2],
    /// Which records to give.
    pub kind: JoinKind,
    /// What stands between the parts of a line.
    pub between: Vec<u8>,
    /// Memory for the whole process; half of what is available if not given.
    pub memory: Option<Size>,
    /// Directories for what does not fit; the output's directory if empty.
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use; a percentage is of the space available.
    pub scratch_limit: Option<Size>,
    /// Lanes of each sort; one for each core if not given.
    pub threads: Option<usize>,
    /// The I/O back end.
    pub io: IoChoice,
}

/// How a [`Sorter`](crate::Sorter) is to sort.
#[derive(Debug, Clone)]
pub struct SorterOptions {
    /// How records lie in what is put.
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

/// Lines, compared as a whole, in what the machine offers.
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

/// What to part and how.
#[derive(Debug, Clone)]
pub struct PartitionOptions {
    /// Where the records are, in order: files, or one stream; standard input if empty.
    pub inputs: Vec<Endpoint>,
    /// The names of the parts, with `{}` where the number goes.
    pub output: PathBuf,
    /// How records lie in the inputs.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// How the part of a record is picked.
    pub pick: PartitionPick,
    /// How many parts.
    pub parts: usize,
    /// Whether records with equal keys may lie in several parts, so that those are equal whatever the keys.
    pub split_keys: bool,
    /// Memory for the whole process; half of what is available if not given.
    pub memory: Option<Size>,
    /// Threads that read, and as many that write; one for each core if not given.
    pub threads: Option<usize>,
    /// The I/O back end.
    pub io: IoChoice,
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
    /// How records lie in the files.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Where to write the 280-byte summary, for 100-byte records with the key 0:10 only.
    pub summary: Option<PathBuf>,
    /// The inputs are summaries to be merged.
    pub merge: bool,
    /// The I/O back end.
    pub io: IoChoice,
}

/// One end of a transfer, as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PumpEnd {
    /// A file or a tree.
    Path(PathBuf),
    /// Standard input or output, written `-`.
    Standard,
    /// So many zeros, written `zero:SIZE`.
    Zeros(u64),
    /// Nothing is kept, written `null:`.
    Null,
    /// One of these on a host of the cluster, written `HOST:/PATH`, `HOST:null:` or `HOST:zero:SIZE`.
    Node(String, Box<PumpEnd>),
    /// A path where ssh goes, written `ssh://[USER@]HOST[:PORT]/PATH`.
    Ssh(SshHost, Box<PumpEnd>),
}

/// Where ssh goes; what is not said is for the user's own settings to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// Who logs in.
    pub user: Option<String>,
    /// The host, or its name in those settings.
    pub host: String,
    /// The port of its ssh.
    pub port: Option<u16>,
}

impl std::fmt::Display for SshHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user}@{}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// What to move and how.
#[derive(Debug, Clone)]
pub struct PumpOptions {
    /// Where the bytes are.
    pub sources: Vec<PumpEnd>,
    /// Where they go.
    pub dest: PumpEnd,
    /// Lanes that move side by side; one for each core if not given.
    pub streams: Option<usize>,
    /// The most bytes in a second.
    pub limit: Option<u64>,
    /// Go on from what an earlier run of the same command left.
    pub resume: bool,
    /// Read back what was written.
    pub verify: bool,
    /// Move so many bytes of noise from memory instead.
    pub no_disk: Option<u64>,
    /// Whether to take checksums.
    pub checksum: bool,
    /// The I/O back end.
    pub io: IoChoice,
}

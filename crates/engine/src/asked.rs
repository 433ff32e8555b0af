//! What cannot be done as it was asked, found before anything is touched.

use std::fmt;
use std::path::PathBuf;

use thalweg_base::units::Bytes;

use crate::Endpoint;

/// Why a verb refuses what it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Asked {
    /// A path cannot be used as it was asked.
    Path(BadPath),
    /// A verb does not have this option.
    NoOption {
        /// The verb.
        verb: &'static str,
        /// What it cannot do.
        what: &'static str,
    },
    /// A join was given no right side, or another verb was given one.
    RightSide,
    /// A side of a join is not exactly one input.
    OneInputPerSide,
    /// The two keys of a join differ in length or order.
    JoinKeys,
    /// The two sides of a join have whole records of different lengths as keys: left and right.
    JoinRecords(u32, u32),
    /// Records of these two lengths are too long to be joined.
    JoinedTooLong(u32, u32),
    /// One side of a join has lines and the other has not.
    JoinLayouts,
    /// A process holds no such number of nodes.
    Nodes {
        /// How many were asked for.
        nodes: usize,
        /// How many there may be.
        max: usize,
    },
    /// Several nodes cannot write to this stream; none is named if it is standard output.
    StreamOutput(Option<PathBuf>),
    /// Several nodes cannot read a stream.
    StreamInput,
    /// There are too many scratch directories.
    TooManyScratch {
        /// How many.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Records are too long to be shuffled.
    ShuffledRecord {
        /// The most bytes that they may have.
        max: u32,
    },
    /// Parts can only be files.
    PartsAreFiles,
    /// A partition reads a stream only as its single input.
    StreamWithOthers,
    /// A partition cannot have this many parts.
    Parts {
        /// How many were asked for.
        parts: usize,
        /// How many there may be.
        max: usize,
    },
    /// A summary was asked for of records that have none.
    Summary,
    /// There is no input.
    NoInput,
    /// More records than a file can hold.
    TooManyRecords {
        /// How many were asked for.
        count: u128,
        /// Bytes of one.
        record_bytes: usize,
        /// How many there may be.
        max: u64,
    },
    /// Records beyond the last one that can be generated.
    PastLastRecord {
        /// How many were asked for.
        count: u64,
        /// The number of the first.
        start: u128,
    },
    /// An input has an empty name.
    NoName,
    /// This end is not on this machine.
    Elsewhere(Endpoint),
    /// An end of a transfer that belongs to verbs on records.
    NotForTransfer(Endpoint),
    /// A source of a transfer that is not on the file system of the first one.
    SourceApart(Endpoint),
    /// `null:` cannot be the source of a transfer.
    NullSource,
    /// `zero:` cannot be the destination of a transfer.
    ZerosDestination,
    /// A stream can only be the single source of a transfer.
    SourceAlone,
    /// A transfer limited to no bytes a second.
    NoRate,
    /// Too many streams of a transfer.
    Streams {
        /// How many were asked for.
        streams: usize,
        /// How many there may be.
        max: usize,
    },
    /// A cluster that is simulated cannot have this many nodes.
    SimulatedNodes {
        /// How many were asked for.
        nodes: u32,
        /// How many there may be.
        max: u32,
    },
    /// A cluster that is simulated would have more memory than a number can hold.
    SimulatedMemory,
    /// Only the nodes of a cluster run a job without their client.
    DetachedHere,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Asked::*;
        match self {
            Path(why) => write!(f, "{why}"),
            NoOption { verb, what } => write!(f, "a {verb} cannot {what}"),
            RightSide => f.write_str("a join has a right side, and no other verb has one"),
            OneInputPerSide => f.write_str("each side of a join is one input"),
            JoinKeys => f.write_str("the parts of both keys must be as long as each other, and in the same order"),
            JoinRecords(left, right) => {
                write!(f, "records of {left} and of {right} bytes are never equal; say which part of them is the key")
            }
            JoinedTooLong(left, right) => {
                write!(f, "records of {left} and {right} bytes are too long to be joined")
            }
            JoinLayouts => f.write_str("lines are joined with lines, records of a fixed length with such records, prefixed with prefixed"),
            Nodes { nodes, max } => write!(f, "{nodes} nodes are too many for one process, which holds at most {max}"),
            StreamOutput(None) => f.write_str("several nodes write the output at once, so it must be a file"),
            StreamOutput(Some(path)) => {
                write!(f, "several nodes write the output at once, and {} is a stream; name a file", path.display())
            }
            StreamInput => f.write_str("several nodes sample their input before they read it, which a stream does not allow; name files"),
            TooManyScratch { count, max } => write!(f, "{count} scratch directories are too many; name at most {max}"),
            ShuffledRecord { max } => write!(f, "records to shuffle have at most {max} bytes"),
            PartsAreFiles => f.write_str("parts are files; name them, as in part-{}"),
            StreamWithOthers => {
                f.write_str("a pipe or - can only be the single input; name it without others, or give files")
            }
            Parts { parts, max } => write!(f, "{parts} parts: a partition has 1 to {max} parts"),
            Summary => f.write_str("a summary needs records of 100 bytes with the key 0:10"),
            NoInput => f.write_str("nothing to check; name a file, or - for standard input"),
            TooManyRecords { count, record_bytes, max } => {
                write!(f, "{count} records of {record_bytes} bytes are more than a file can hold, which is {max}")
            }
            PastLastRecord { count, start } => {
                write!(f, "{count} records from {start} on go past record {}, the last there is", u128::MAX)
            }
            NoName => f.write_str("an empty name; name a file, or - for a stream"),
            Elsewhere(end) => {
                write!(f, "'{end}' is not on this machine; name a file, or say which cluster has it")
            }
            NotForTransfer(end) => write!(f, "'{end}' is for verbs on records; a transfer takes HOST:/PATH"),
            SourceApart(end) => write!(
                f,
                "'{end}' is not on the file system of the first source; make one transfer for each volume, and one for this machine"
            ),
            NullSource => f.write_str("null: gives nothing; it can only be a destination"),
            ZerosDestination => f.write_str("zero: takes nothing; it can only be a source"),
            SourceAlone => f.write_str(
                "a pipe, - and zero: are sources that stand alone; name one of them, or files and directories",
            ),
            NoRate => f.write_str("a limit of 0 bytes a second lets nothing pass"),
            Streams { streams, max } => write!(f, "{streams} streams are too many; a transfer has at most {max}"),
            SimulatedNodes { nodes, max } => write!(f, "{nodes} simulated nodes; there can be 1 to {max}"),
            SimulatedMemory => f.write_str("the simulated nodes have more memory than can be counted"),
            DetachedHere => f.write_str("only the nodes of a cluster run a job without their client"),
        }
    }
}

/// Why a path cannot be used as it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum BadPath {
    /// A directory was given as input.
    InputDirectory(PathBuf),
    /// The output is a directory.
    OutputDirectory(PathBuf),
    /// The output may not be written.
    ReadOnly(PathBuf),
    /// A path that does not end in the name of a file.
    NoFileName(PathBuf),
    /// The output's directory is something else.
    NotInDirectory {
        /// The output.
        output: PathBuf,
        /// What should be a directory.
        directory: PathBuf,
    },
    /// The output's directory does not exist.
    NoDirectory {
        /// The output.
        output: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// A scratch directory is something else.
    ScratchNotDirectory(PathBuf),
    /// Ranges need a sample, and this stream can be read only once.
    RangesOfStream(PathBuf),
    /// The name of the parts does not have `{}` once.
    PartPattern(PathBuf),
    /// A part would be something other than a file.
    PartNotFile(PathBuf),
    /// Two names made of this pattern are the same file.
    SamePart(PathBuf),
    /// A plan needs the size of its inputs, and this is a stream.
    PlanOfStream(PathBuf),
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use BadPath::*;
        match self {
            InputDirectory(path) => write!(f, "{} is a directory; name the files in it", path.display()),
            OutputDirectory(path) => write!(f, "{} is a directory; name a file in it", path.display()),
            ReadOnly(path) => {
                write!(f, "{} is read-only; remove it, or allow writing with chmod u+w", path.display())
            }
            NoFileName(path) => write!(f, "'{}' is no name for a file", path.display()),
            NotInDirectory { output, directory } => {
                write!(f, "cannot create {}: {} is not a directory", output.display(), directory.display())
            }
            NoDirectory { output, directory } => write!(
                f,
                "cannot create {}: there is no directory {}; make it first",
                output.display(),
                directory.display()
            ),
            ScratchNotDirectory(path) => {
                write!(f, "scratch {} is not a directory; name one that is", path.display())
            }
            RangesOfStream(path) => write!(
                f,
                "{} can be read only once, and ranges need a sample first; give a file, or partition by hash",
                path.display()
            ),
            PartPattern(path) => write!(
                f,
                "'{}' must have {{}} once, where the number of the part goes, as in part-{{}}",
                path.display()
            ),
            PartNotFile(path) => write!(f, "{} is not a file, and a part must be one", path.display()),
            SamePart(path) => write!(f, "some names of '{}' lead to the same file", path.display()),
            PlanOfStream(path) => write!(
                f,
                "cannot plan for {}: it is a stream, whose size is known only at its end; name a file",
                path.display()
            ),
        }
    }
}

/// What needs memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needs {
    /// A sort.
    Sort,
    /// A sorter.
    Sorter,
    /// A join.
    Join,
    /// A partition.
    Partition,
    /// A node of a cluster.
    Node,
    /// This many nodes in one process.
    Nodes(usize),
    /// The river of a node, among this many.
    River(usize),
    /// This many parts.
    Parts(usize),
}

/// The memory is too small.
#[derive(Debug, Clone, Copy)]
pub struct TooLittleMemory {
    /// Bytes that were given.
    pub given: u64,
    /// What they are for.
    pub by: Needs,
    /// The least that would do, where that is known.
    pub needed: Option<u64>,
}

impl TooLittleMemory {
    /// What is said behind "is too small": who needs how much, and what to do.
    pub fn need(&self) -> String {
        let (user, needs, remedy) = match self.by {
            Needs::Sort => ("a sort".to_string(), "needs", ""),
            Needs::Sorter => ("a sorter".to_string(), "needs", ""),
            Needs::Join => ("a join".to_string(), "needs", ""),
            Needs::Partition => ("a partition".to_string(), "needs", ""),
            Needs::Node => ("a node".to_string(), "needs", ""),
            Needs::River(nodes) => (format!("the exchange among {nodes} nodes"), "needs", ""),
            Needs::Nodes(nodes) => (format!("{nodes} nodes"), "need", "; give more, or fewer nodes"),
            Needs::Parts(parts) => (format!("{parts} parts"), "need", "; give more, or fewer parts"),
        };
        match self.needed {
            Some(needed) => format!(": {user} {needs} at least {}{remedy}", Bytes(needed)),
            None => format!(" for {user}{remedy}"),
        }
    }
}

impl fmt::Display for TooLittleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {} is too small{}", Bytes(self.given), self.need())
    }
}

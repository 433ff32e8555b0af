//! Requests that a verb refuses before it touches anything.

use std::path::PathBuf;

use thalweg_base::units::Bytes;

use crate::endpoint::not_yet;
use crate::{AskedOfCluster, Endpoint};

/// Why a verb refuses a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Asked {
    /// A path cannot be used as requested.
    #[error("{0}")]
    Path(BadPath),
    /// The nodes of a cluster do not support this.
    #[error("{0}")]
    Cluster(AskedOfCluster),
    /// A verb does not have this option.
    #[error("a {verb} cannot {what}")]
    NoOption {
        /// The verb.
        verb: &'static str,
        /// What it cannot do.
        what: &'static str,
    },
    /// Records that are not lines have no header.
    #[error("a header is of lines; leave it out for other records")]
    HeaderOfLines,
    /// Inputs with different headers.
    #[error("the first {lines} lines of {other} are not those of {first}; give inputs with the same header")]
    Headers {
        /// The lines of a header.
        lines: usize,
        /// The first input.
        first: String,
        /// The input with another header.
        other: String,
    },
    /// A header that is too long.
    #[error("the first {lines} lines of {input} have more than {}; it may have no lines at all", Bytes(*.max))]
    LongHeader {
        /// The input.
        input: String,
        /// The lines of its header.
        lines: usize,
        /// The most bytes that they may have.
        max: u64,
    },
    /// More memory than a control group of this process allows.
    #[error(
        "memory of {} is more than the control group of this process allows: of its {} at most {}; give less, or raise \
         the group's limit",
        Bytes(*.given), Bytes(*.limit), Bytes(*.allowed)
    )]
    BeyondGroup {
        /// The memory that was given.
        given: u64,
        /// The limit of the group.
        limit: u64,
        /// The most that can be given.
        allowed: u64,
    },
    /// A header in work on several nodes.
    #[error("a header is kept by a sort, shuffle or check on one node; leave out the nodes, or the header")]
    HeaderOnNodes,
    /// A join was given no right side, or another verb was given one.
    #[error("a join has a right side, and no other verb has one")]
    RightSide,
    /// A side of a join is not exactly one input.
    #[error("each side of a join is one input")]
    OneInputPerSide,
    /// The two keys of a join differ in length or order.
    #[error("the parts of both keys must be as long as each other, and in the same order")]
    JoinKeys,
    /// The two sides of a join have whole records of different lengths as keys: left and right.
    #[error("records of {0} and of {1} bytes are never equal; say which part of them is the key")]
    JoinRecords(u32, u32),
    /// Records of these two lengths are too long to be joined.
    #[error("records of {0} and {1} bytes are too long to be joined")]
    JoinedTooLong(u32, u32),
    /// The two sides of a join have records of different formats.
    #[error(
        "lines are joined with lines, records of a fixed length with such records, prefixed with prefixed"
    )]
    JoinLayouts,
    /// Too many nodes for one process.
    #[error("{nodes} nodes are too many for one process, which holds at most {max}")]
    Nodes {
        /// The number requested.
        nodes: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// Several nodes cannot write to this stream; none is named if it is standard output.
    #[error(
        "several nodes write the output at once, {}",
        .0.as_ref().map_or("so it must be a file".to_string(), |path| {
            format!("and {} is a stream; name a file", path.display())
        })
    )]
    StreamOutput(Option<PathBuf>),
    /// Several nodes cannot read a stream.
    #[error(
        "several nodes sample their input before they read it, which a stream does not allow; name files"
    )]
    StreamInput,
    /// There are too many scratch directories.
    #[error("{count} scratch directories are too many; name at most {max}")]
    TooManyScratch {
        /// The number given.
        count: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// Records are too long to be shuffled.
    #[error("records to shuffle have at most {max} bytes")]
    ShuffledRecord {
        /// The most bytes that they may have.
        max: u32,
    },
    /// Parts can only be files.
    #[error("parts are files; name them, as in part-{{}}")]
    PartsAreFiles,
    /// A partition reads a stream only as its single input.
    #[error("a pipe or - can only be the single input; name it without others, or give files")]
    StreamWithOthers,
    /// A partition cannot have this many parts.
    #[error("{parts} parts: a partition has 1 to {max} parts")]
    Parts {
        /// The number requested.
        parts: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// A summary was requested for records that cannot have one.
    #[error("a summary needs records of 100 bytes with the key 0:10")]
    Summary,
    /// There is no input.
    #[error("nothing to check; name a file, or - for standard input")]
    NoInput,
    /// More records than a file can hold.
    #[error("{count} records of {record_bytes} bytes are more than a file can hold, which is {max}")]
    TooManyRecords {
        /// The number requested.
        count: u128,
        /// Bytes of one record.
        record_bytes: usize,
        /// The most that are allowed.
        max: u64,
    },
    /// Records beyond the last one that can be generated.
    #[error("{count} records from {start} on go past record {}, the last there is", u128::MAX)]
    PastLastRecord {
        /// The number requested.
        count: u64,
        /// The number of the first record.
        start: u128,
    },
    /// An input has an empty name.
    #[error("an empty name; name a file, or - for a stream")]
    NoName,
    /// This endpoint is not on this machine.
    #[error("'{0}' is not on this machine; name a file, or say which cluster has it")]
    Elsewhere(Endpoint),
    /// An endpoint that only verbs on records accept, not transfers.
    #[error("'{0}' is for verbs on records; a transfer takes HOST:/PATH")]
    NotForTransfer(Endpoint),
    /// A source of a transfer that is not on the file system of the first one.
    #[error(
        "'{0}' is not on the file system of the first source; make one transfer for each volume, and one for this \
         machine"
    )]
    SourceApart(Endpoint),
    /// `null:` cannot be the source of a transfer.
    #[error("null: gives nothing; it can only be a destination")]
    NullSource,
    /// `zero:` cannot be the destination of a transfer.
    #[error("zero: takes nothing; it can only be a source")]
    ZerosDestination,
    /// A stream can only be the single source of a transfer.
    #[error("a pipe, - and zero: are sources that stand alone; name one of them, or files and directories")]
    SourceAlone,
    /// A transfer limited to no bytes a second.
    #[error("a limit of 0 bytes a second lets nothing pass")]
    NoRate,
    /// A stream of this process was named as a file of another host.
    #[error("a stream of this process is not on another host")]
    StreamOnHost,
    /// Neither endpoint of a transfer between hosts is on another host.
    #[error("neither end of the transfer is on another host")]
    NoRemoteEnd,
    /// The sources of a transfer are on several hosts.
    #[error("all sources of a transfer must be on one host; run one transfer for each host")]
    SourcesOnHosts,
    /// A list of hosts cannot be understood.
    #[error("{0}")]
    Hosts(String),
    /// The host of the sources is one of the destinations.
    #[error(
        "{0} has the sources; leave it out of the hosts that they go to, as in '!{0}:/PATH', which is all others"
    )]
    SourceInChain(String),
    /// A transfer that hosts send on would come to this host twice.
    #[error("{0} is there twice in the hosts of a transfer; name each once")]
    HostAgain(String),
    /// A node does not understand this endpoint of a transfer.
    #[error("'{0}' is not an end of a transfer that a node knows")]
    NotAnEnd(String),
    /// A transfer has no destination, or several.
    #[error("a transfer has one destination")]
    OneDestination,
    /// Too many streams of a transfer.
    #[error("{streams} streams are too many; a transfer has at most {max}")]
    Streams {
        /// The number requested.
        streams: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// A simulated cluster cannot have this many nodes.
    #[error("{nodes} simulated nodes; there can be 1 to {max}")]
    SimulatedNodes {
        /// The number requested.
        nodes: u32,
        /// The most that are allowed.
        max: u32,
    },
    /// A simulated cluster would have more memory than fits in a number.
    #[error("the simulated nodes have more memory than can be counted")]
    SimulatedMemory,
    /// Nodes of this process and nodes of a cluster were both requested.
    #[error("a cluster has nodes of its own; run it there, or on nodes of this process")]
    NodesOfCluster,
    /// A node already runs this many transfers, the maximum.
    #[error("this node runs {0} transfers, the maximum; wait for one to end")]
    TransfersMax(usize),
    /// A node already runs the transfer with this id.
    #[error("this node runs transfer {0} already")]
    TransferRuns(String),
    /// A URL of something that no verb can read or write: the URL, and its scheme.
    #[error("{}", not_yet(.0, .1))]
    Scheme(String, String),
    /// Only the nodes of a cluster run a job without their client.
    #[error("only the nodes of a cluster run a job without their client")]
    DetachedHere,
}

/// Why a path cannot be used as requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadPath {
    /// A directory was given as input.
    #[error("{} is a directory; name the files in it", .0.display())]
    InputDirectory(PathBuf),
    /// The output is a directory.
    #[error("{} is a directory; name a file in it", .0.display())]
    OutputDirectory(PathBuf),
    /// The output is read-only.
    #[error("{} is read-only; remove it, or allow writing with chmod u+w", .0.display())]
    ReadOnly(PathBuf),
    /// A path that does not end in the name of a file.
    #[error("'{}' is no name for a file", .0.display())]
    NoFileName(PathBuf),
    /// The parent of the output is not a directory.
    #[error("cannot create {}: {} is not a directory", .output.display(), .directory.display())]
    NotInDirectory {
        /// The output.
        output: PathBuf,
        /// The path that should be a directory.
        directory: PathBuf,
    },
    /// The output's directory does not exist.
    #[error("cannot create {}: there is no directory {}; make it first", .output.display(), .directory.display())]
    NoDirectory {
        /// The output.
        output: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// A scratch directory is not a directory.
    #[error("scratch {} is not a directory; name one that is", .0.display())]
    ScratchNotDirectory(PathBuf),
    /// Ranges need a sample, and this stream can be read only once.
    #[error(
        "{} can be read only once, and ranges need a sample first; give a file, or partition by hash",
        .0.display()
    )]
    RangesOfStream(PathBuf),
    /// The name of the parts does not have `{}` once.
    #[error("'{}' must have {{}} once, where the number of the part goes, as in part-{{}}", .0.display())]
    PartPattern(PathBuf),
    /// A part would be something other than a file.
    #[error("{} is not a file, and a part must be one", .0.display())]
    PartNotFile(PathBuf),
    /// Two names that this pattern produces are the same file.
    #[error("some names of '{}' lead to the same file", .0.display())]
    SamePart(PathBuf),
    /// A plan needs the size of its inputs, and this is a stream.
    #[error("cannot plan for {}: it is a stream, whose size is known only at its end; name a file", .0.display())]
    PlanOfStream(PathBuf),
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
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("memory of {} is too small{}", Bytes(*.given), self.need())]
pub struct TooLittleMemory {
    /// Bytes that were given.
    pub given: u64,
    /// What needs the memory.
    pub by: Needs,
    /// The least that would be enough, if known.
    pub needed: Option<u64>,
}

impl TooLittleMemory {
    /// The end of the message, after "is too small": what needs how much memory, and the remedy.
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

//! Why a node refuses a job. All other errors of jobs are those of the verbs.

use thalweg_api::FailureKind;
use thalweg_engine::Error;

/// Why a node does not begin a job, take part in it, or vote about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The node is ending its jobs and begins no more.
    #[error("{SHUTTING_DOWN}")]
    GoesDown,
    /// The node is about to be restarted.
    #[error("{DRAINS}")]
    Drains,
    /// The node already runs this many jobs or sorts, the maximum.
    #[error("this node already runs {0} {1}, the maximum; wait for one to end")]
    Full(usize, &'static str),
    /// This job runs on this node.
    #[error("job {0} already runs here")]
    Running(String),
    /// This job was begun on this node before.
    #[error("job {0} was begun here before, and does not begin again")]
    Begun(String),
    /// This job has ended on this node.
    #[error("job {0} has ended here, and does not begin again")]
    Ended(String),
    /// Another node should coordinate the job.
    #[error("another node should coordinate this job")]
    OtherCoordinator,
    /// The system has no thread left.
    #[error("no thread is left to coordinate the job")]
    NoThread,
    /// Not an id of a job.
    #[error("a job's id has 32 hexadecimal digits, and '{}' is none", .0.escape_debug())]
    Id(String),
    /// This node does not know the job, and an attempt with this number is not its first.
    #[error("{node} does not know job {job}, and its attempt {number} is not the first")]
    NotFirst {
        /// This node.
        node: String,
        /// The job.
        job: String,
        /// The number of the attempt.
        number: u32,
    },
    /// This node does not know this job.
    #[error("job {0} is not known here")]
    Unknown(String),
    /// An attempt of a job was decided before.
    #[error("attempt {number} of job {job} was decided before")]
    Decided {
        /// The job.
        job: String,
        /// The number of the attempt.
        number: u32,
    },
    /// The node has a vote in this many undecided jobs, the maximum.
    #[error("this node has {0} jobs that are not decided, the maximum; bring their hosts back")]
    Undecided(usize),
    /// The node cannot vote; the text of its vote says why.
    #[error("{0}")]
    NoVote(String),
    /// The names of outputs cannot be made durable.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
}

/// Why jobs end with their node.
pub(crate) const SHUTTING_DOWN: &str = "the node is going down";
/// Why a node that is about to be restarted takes no new jobs.
pub(crate) const DRAINS: &str =
    "this node is about to be restarted, and takes no new jobs until then; try again in a moment";
/// The signal that counts as the reason when work on this node is stopped.
pub(crate) const SIGTERM: i32 = 15;

/// An error that a host, or the link with it, reported.
pub(crate) fn said_by(host: &str, why: impl std::fmt::Display) -> Error {
    Error::Node { why: format!("{host}: {why}"), kind: FailureKind::Operating }
}

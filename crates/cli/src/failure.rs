//! Why a command failed: its message, the flag that helps, and its exit status.

use std::path::PathBuf;

use thalweg::Error;
use thalweg::nodes::ClusterError;
use thalweg_api::Note;
use thalweg_verbs::{RESUME, advised, node_advice};

/// The exit status of a command that succeeded.
pub(crate) const DONE: u8 = 0;
/// The exit status of a check that found something wrong.
pub(crate) const WRONG: u8 = 1;
/// The exit status of a command that failed.
pub(crate) const COULD_NOT: u8 = 2;
/// The exit status of a command that may have made its change, or not.
pub(crate) const UNCERTAIN: u8 = 3;

/// The exit status of a transfer that left something out.
pub(crate) const LEFT_OUT: u8 = 4;

/// A note, with the flag that helps.
pub(crate) fn noted(note: &Note) -> String {
    format!("{}{}", note.text, if note.resumable { RESUME } else { "" })
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A verb failed.
    #[error("{}", advised(.0))]
    Verb(#[from] Error),
    /// A command about nodes failed.
    #[error("{}{}", .0, node_advice(.0))]
    Node(#[from] thalweg::nodes::Error),
    /// An upgrade of a cluster cannot begin, for this reason.
    #[error("{0}")]
    Upgrade(String),
    /// A server of tables could not be started, or failed.
    #[error("{0}")]
    Table(#[from] thalweg::table::ServerError),
    /// An operation on a table failed.
    #[error("{0}")]
    ClusterTable(#[from] thalweg::table::Error),
    /// It is not known whether a table was changed; the last part is the command that shows it.
    #[error("{0}{1}: thalweg table {2} shows it")]
    Uncertain(String, thalweg::table::Error, &'static str),
    /// A file for a server of tables could not be read.
    #[error("{0}")]
    Served(thalweg_io::Error),
    /// Other users may read the file with the key, or the password.
    #[error("{}: others may read this {}: chmod 600 it", .1.display(), .0)]
    Open(&'static str, PathBuf),
    /// What should be the file with the key, or the password, is none.
    #[error("{} is no file; name the one with the {}", .1.display(), .0)]
    NoFile(&'static str, PathBuf),
    /// A certificate and a key cannot be used.
    #[error("{} and {}: {}", .0.display(), .1.display(), .2)]
    Tls(PathBuf, PathBuf, String),
    /// The first line of the file has no password.
    #[error("{}: the first line is empty; a password belongs there", .0.display())]
    NoPassword(PathBuf),
    /// A volume could not be mounted.
    #[error("{0}")]
    Mount(#[from] thalweg::mount::Error),
    /// A benchmark failed.
    #[error("{0}")]
    Bench(#[from] thalweg_measure::Error),
    /// The receipt of this verb shows that its invariant does not hold.
    #[error("{0}: the output is not the input; see the receipt")]
    NotProved(String),
    /// A watched job failed, for this reason.
    #[error("{0}")]
    Job(String),
    /// The kernel refuses to deliver signals to this process.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// The program cannot start itself again.
    #[error("cannot start this program once more: {0}")]
    Program(std::io::Error),
    /// Text could not be written.
    #[error("{0}: {1}")]
    Output(&'static str, std::io::Error),
    /// The receipt could not be written, but the output is complete.
    #[error("{0}; only the receipt is missing: the output is complete")]
    Receipt(Box<Failure>),
}

impl Failure {
    /// The exit status of the command.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Failure::Verb(why) => why.exit_status(),
            Failure::Bench(why) => why.exit_status(),
            Failure::NotProved(_) => WRONG,
            Failure::Uncertain(..) => UNCERTAIN,
            _ => COULD_NOT,
        }
    }

    /// Whether the signal with this number ended the command.
    pub(crate) fn is_signal(&self, number: i32) -> bool {
        let of = |why: &Error| matches!(why, Error::Interrupted(signal) if *signal == number);
        match self {
            Failure::Verb(why) | Failure::Bench(thalweg_measure::Error::Verb(why)) => of(why),
            _ => false,
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(why: ClusterError) -> Failure {
        Failure::Node(why.into())
    }
}

impl From<thalweg::volume::Error> for Failure {
    fn from(why: thalweg::volume::Error) -> Failure {
        Failure::Verb(why.into())
    }
}

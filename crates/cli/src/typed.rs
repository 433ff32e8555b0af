//! The arguments as typed, flag by flag. Nothing here looks at the machine or combines two flags:
//! [`crate::interpret`] does both.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thalweg::model::Simulated;
use thalweg::volume::Hint;
use thalweg::{IoChoice, JoinKind, KeyPart, PartitionPick};
use thalweg_api::{May, PumpChoice, Schedule};
use thalweg_base::units::Size;

use crate::mount_options::MountOptions;

/// All arguments. A list or an `Option` is empty if its flag was not given.
#[derive(Debug, Clone, Default)]
pub(crate) struct TypedArgs {
    /// The command. Only `--generate`, `--help` and `--version` work without one.
    pub(crate) command: Option<crate::commands::Command>,
    /// The arguments after the command that are not flags.
    pub(crate) words: Vec<OsString>,

    // Common to all commands.
    pub(crate) help: Option<Help>,
    pub(crate) all: bool,
    pub(crate) version: bool,
    pub(crate) generate: Option<Document>,
    pub(crate) json: bool,
    pub(crate) progress: When,
    pub(crate) quiet: bool,

    // Records and keys.
    pub(crate) record_bytes: Option<u32>,
    pub(crate) prefixed: bool,
    pub(crate) keys: Vec<KeyPart>,
    pub(crate) datamation: bool,
    pub(crate) header: usize,

    // Sorts.
    pub(crate) output: Option<OsString>,
    pub(crate) memory: Option<Size>,
    pub(crate) scratch: Vec<PathBuf>,
    pub(crate) scratch_limit: Option<Size>,
    pub(crate) threads: Option<usize>,
    pub(crate) unique: bool,
    pub(crate) resume: bool,
    pub(crate) no_proof: bool,
    pub(crate) io: IoChoice,
    pub(crate) simulate: Option<Simulated>,
    pub(crate) equal: bool,

    // Partitions.
    pub(crate) pick: PartitionPick,
    pub(crate) parts: Option<usize>,
    pub(crate) split_keys: bool,

    // Tables.
    pub(crate) resp: Option<thalweg::table::Place>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) capacity: Option<u64>,
    pub(crate) index: bool,
    pub(crate) variant: Option<thalweg::table::Variant>,
    pub(crate) transport: Option<thalweg::table::Transport>,
    pub(crate) on_duplicate: Option<thalweg::table::Duplicates>,
    pub(crate) parity: Option<thalweg::table::Shape>,
    pub(crate) wait_safe: Option<std::time::Duration>,
    pub(crate) hex: bool,
    pub(crate) condition: Option<String>,
    pub(crate) first: Option<u64>,
    pub(crate) descending: bool,
    pub(crate) keys_only: bool,

    // Shuffles.
    pub(crate) seed: Option<u64>,

    // Joins.
    pub(crate) kind: JoinKind,
    pub(crate) right_record_bytes: Option<u32>,
    pub(crate) right_keys: Vec<KeyPart>,
    pub(crate) between: Option<Vec<u8>>,

    // Generated records.
    pub(crate) ascii: bool,
    pub(crate) skewed: bool,
    pub(crate) start: u128,

    // Checks.
    pub(crate) summary: Option<PathBuf>,
    pub(crate) merge: bool,

    // Transfers.
    pub(crate) streams: Option<usize>,
    pub(crate) limit: Option<u64>,
    pub(crate) verify: bool,
    pub(crate) no_disk: Option<u64>,
    pub(crate) no_checksum: bool,
    pub(crate) strict: bool,
    pub(crate) choice: PumpChoice,
    pub(crate) files_from: Option<OsString>,
    pub(crate) there: Option<String>,
    pub(crate) through_ssh: bool,

    // Volumes.
    pub(crate) stores: Vec<PathBuf>,
    pub(crate) manager: Option<PathBuf>,
    pub(crate) clients: Vec<String>,
    pub(crate) stripe_bytes: Option<u64>,
    pub(crate) width: Option<u32>,
    pub(crate) copies: Option<u32>,
    pub(crate) background: bool,
    pub(crate) read_only: bool,
    pub(crate) mount_options: MountOptions,
    pub(crate) recursive: bool,
    pub(crate) force: bool,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) hint: Option<Hint>,

    // Benchmarks.
    pub(crate) size: Option<Size>,
    pub(crate) rows: Vec<String>,
    pub(crate) dirs: Vec<PathBuf>,
    pub(crate) nodes: Vec<u32>,
    pub(crate) cluster: Option<OsString>,
    pub(crate) runs: Option<usize>,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) may: Option<May>,

    // Nodes.
    pub(crate) identity: Option<PathBuf>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) join: Option<PathBuf>,
    pub(crate) on: Vec<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) detach: bool,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) gather: bool,
    pub(crate) fanout: Option<usize>,
    pub(crate) via: Option<String>,
    pub(crate) ssh: Option<String>,
}

/// The amount of help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Help {
    /// `-h`: a line for each flag.
    Short,
    /// `--help`: the full text.
    Long,
}

/// Whether to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum When {
    /// On a terminal.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// A document that is generated from the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    /// The manual page, in roff.
    Man,
    /// Completions for bash.
    Bash,
    /// Completions for zsh.
    Zsh,
    /// Completions for fish.
    Fish,
}

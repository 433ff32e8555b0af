//! The arguments as typed, flag by flag. Nothing here looks at the machine or combines two flags:
//! [`crate::interpret`] does both.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thalweg::volume::Hint;
use thalweg_api::{May, Schedule};
use thalweg_base::units::Size;
use thalweg_verbs::Ask;

use crate::mount_options::MountOptions;

/// All arguments. A list or an `Option` is empty if its flag was not given.
#[derive(Debug, Clone, Default)]
pub(crate) struct TypedArgs {
    /// What is asked of a verb; the command, and the arguments after it that are not flags, of any command.
    pub(crate) ask: Ask,

    // Common to all commands.
    pub(crate) help: Option<Help>,
    pub(crate) all: bool,
    pub(crate) version: bool,
    pub(crate) generate: Option<Document>,
    pub(crate) json: bool,
    pub(crate) progress: When,
    pub(crate) quiet: bool,

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
    pub(crate) runs: Option<usize>,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) may: Option<May>,

    // Nodes.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) join: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) dead_after: Option<Duration>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) gather: bool,
    pub(crate) fanout: Option<usize>,
    pub(crate) via: Option<String>,
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

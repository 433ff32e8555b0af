//! The commands.

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the command's table of commands describes each")]
pub enum Command {
    Gen,
    Check,
    Sort,
    Shuffle,
    Merge,
    Join,
    Plan,
    Partition,
    Pump,
    Volume,
    Mount,
    Table,
    Doctor,
    Bench,
    Exec,
    Job,
    Node,
    Cluster,
    Help,
}

impl Command {
    /// The name, as typed.
    pub fn name(self) -> String {
        format!("{self:?}").to_ascii_lowercase()
    }
}

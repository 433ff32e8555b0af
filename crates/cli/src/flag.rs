//! What a row of the table of flags says of a flag.

use std::ffi::OsStr;

use crate::commands::Command;
use crate::commands::Command::*;
use crate::typed::TypedArgs;

/// A flag.
pub(crate) struct Flag {
    /// After `--`.
    pub(crate) long: &'static str,
    /// After `-`.
    pub(crate) short: Option<char>,
    /// What follows it.
    pub(crate) value: Value,
    /// Where it may stand.
    pub(crate) at: At,
    /// One line, without a full stop.
    pub(crate) about: &'static str,
    /// All there is to say: paragraphs, separated by empty lines.
    pub(crate) doc: &'static str,
    /// Writes down that it was typed.
    pub(crate) set: fn(&mut TypedArgs, &OsStr) -> Result<(), String>,
}

/// What follows a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing.
    None,
    /// Something, shown by this name.
    Any(&'static str),
    /// A file.
    File(&'static str),
    /// A directory.
    Dir(&'static str),
    /// One of these words.
    OneOf(&'static str, &'static [&'static str]),
}

/// Where a flag may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// With or without any command.
    Everywhere,
    /// After these commands.
    Commands(&'static [Command]),
}

pub(crate) const SORTS: At = At::Commands(&[Sort, Plan]);
pub(crate) const SPILLS: At = At::Commands(&[Sort, Shuffle, Join, Plan]);
pub(crate) const WRITES: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition]);
pub(crate) const RECORDS: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check]);
pub(crate) const RECORD_LENGTHS: At =
    At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check, Volume]);
pub(crate) const KEYS: At = At::Commands(&[Sort, Merge, Join, Plan, Partition, Check]);
pub(crate) const PARTS: At = At::Commands(&[Partition]);
pub(crate) const JOINS: At = At::Commands(&[Join]);
pub(crate) const GENERATES: At = At::Commands(&[Gen]);
pub(crate) const CHECKS: At = At::Commands(&[Check]);
pub(crate) const PUMPS: At = At::Commands(&[Pump]);
pub(crate) const BENCHES: At = At::Commands(&[Bench]);
pub(crate) const EXECUTES: At = At::Commands(&[Exec]);
pub(crate) const ON_NODES: At =
    At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Volume, Table]);

impl Flag {
    /// Whether it may follow the command.
    pub(crate) fn is_of(&self, command: Command) -> bool {
        match self.at {
            At::Everywhere => true,
            At::Commands(commands) => commands.contains(&command),
        }
    }

    /// The name of its value, if it takes one.
    pub(crate) fn value_name(&self) -> Option<&'static str> {
        match self.value {
            Value::None => None,
            Value::Any(name) | Value::File(name) | Value::Dir(name) | Value::OneOf(name, _) => Some(name),
        }
    }
}

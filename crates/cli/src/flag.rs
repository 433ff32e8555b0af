//! The row type of the table of flags.

use std::ffi::OsStr;

use crate::commands::Command;
use crate::commands::Command::*;
use crate::typed::TypedArgs;

/// A flag.
pub(crate) struct Flag {
    /// The name after `--`.
    pub(crate) long: &'static str,
    /// The letter after `-`.
    pub(crate) short: Option<char>,
    /// The kind of its value.
    pub(crate) value: Value,
    /// The commands that accept it.
    pub(crate) at: At,
    /// A description in one line, without a full stop.
    pub(crate) about: &'static str,
    /// The full description: paragraphs, separated by empty lines.
    pub(crate) doc: &'static str,
    /// Records in the arguments that the flag was typed.
    pub(crate) set: fn(&mut TypedArgs, &OsStr) -> Result<(), String>,
}

/// The kind of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// No value.
    None,
    /// Any text, shown under this name.
    Any(&'static str),
    /// A file.
    File(&'static str),
    /// A directory.
    Dir(&'static str),
    /// One of these words.
    OneOf(&'static str, &'static [&'static str]),
}

/// The commands that accept a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// All commands; also without a command.
    Everywhere,
    /// These commands.
    Commands(&'static [Command]),
}

pub(crate) const SORTS: At = At::Commands(&[Sort, Plan]);
pub(crate) const SPILLS: At = At::Commands(&[Sort, Shuffle, Join, Plan]);
pub(crate) const WRITES: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition]);
pub(crate) const RECORDS: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check]);
pub(crate) const RECORD_LENGTHS: At =
    At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check, Volume, Table]);
pub(crate) const KEYS: At = At::Commands(&[Sort, Merge, Join, Plan, Partition, Check, Table]);
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
    /// Whether the command accepts it.
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

//! The row type of a table of flags.

use std::ffi::OsStr;

use crate::Command;
use crate::Command::{Check, Join, Merge, Partition, Plan, Shuffle, Sort};

/// A flag: its row, and what records in a `T` that it was given.
#[derive(Debug)]
pub struct Flag<T: 'static> {
    /// What it is called, and what it is for.
    pub row: Row,
    /// Records the value.
    pub set: fn(&mut T, &OsStr) -> Result<(), String>,
}

/// What a flag is called, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name after `--`.
    pub long: &'static str,
    /// The letter after `-`.
    pub short: Option<char>,
    /// The kind of its value.
    pub value: Value,
    /// The commands that accept it.
    pub at: At,
    /// Whether it may be repeated, each time with another value.
    pub many: bool,
    /// A description in one line, without a full stop.
    pub about: &'static str,
    /// The full description: paragraphs, separated by empty lines.
    pub doc: &'static str,
}

/// The kind of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// No value: the flag is there, or not.
    Switch,
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
pub enum At {
    /// All commands; also without a command.
    Everywhere,
    /// These commands.
    Commands(&'static [Command]),
}

/// A flag without a letter, which stands once: its name, value, commands, line, text, and what records it.
pub const fn flag<T>(
    long: &'static str,
    value: Value,
    at: At,
    about: &'static str,
    doc: &'static str,
    set: fn(&mut T, &OsStr) -> Result<(), String>,
) -> Flag<T> {
    Flag { row: Row { long, short: None, value, at, many: false, about, doc }, set }
}

/// Records that a flag without a value was given.
#[macro_export]
macro_rules! on {
    ($($field:ident).+) => {
        |asked, _| {
            asked.$($field).+ = true;
            Ok(())
        }
    };
}

impl<T> Flag<T> {
    /// The same with a letter.
    pub const fn short(mut self, letter: char) -> Flag<T> {
        self.row.short = Some(letter);
        self
    }

    /// The same, to be repeated.
    pub const fn many(mut self) -> Flag<T> {
        self.row.many = true;
        self
    }
}

impl Row {
    /// Whether the command accepts it.
    pub fn is_of(&self, command: Command) -> bool {
        match self.at {
            At::Everywhere => true,
            At::Commands(commands) => commands.contains(&command),
        }
    }

    /// The name of its value, if it takes one.
    pub fn value_name(&self) -> Option<&'static str> {
        match self.value {
            Value::Switch => None,
            Value::Any(name) | Value::File(name) | Value::Dir(name) | Value::OneOf(name, _) => Some(name),
        }
    }

    /// Whether its value is the name of a file or directory.
    pub fn is_name(&self) -> bool {
        matches!(self.value, Value::File(_) | Value::Dir(_))
    }

    /// Its keyword in Python.
    pub fn keyword(&self) -> String {
        self.long.replace('-', "_")
    }
}

pub(crate) const SORTS: At = At::Commands(&[Sort, Plan]);
pub(crate) const SPILLS: At = At::Commands(&[Sort, Shuffle, Join, Plan]);
pub(crate) const WRITES: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition]);
pub(crate) const RECORDS: At = At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check]);
pub(crate) const KEYS: At = At::Commands(&[Sort, Merge, Join, Plan, Partition, Check, Command::Table]);
pub(crate) const PARTS: At = At::Commands(&[Partition]);
pub(crate) const JOINS: At = At::Commands(&[Join]);
pub(crate) const ON_NODES: At =
    At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Command::Volume, Command::Table]);

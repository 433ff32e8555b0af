//! The verbs as they are asked for, by the command or by a call from Python: which options there are, how the value of
//! each is read, and what they mean together.
//!
//! Model: [`rows`] are the table of options: each row has a name, texts, the commands that take it, and a function that
//! puts a value into an [`Ask`]. The methods of an [`Ask`] make a task, a transfer or a check of the facade of it. An
//! option is `--right-by` on the command line and `right_by` in Python; [`in_python`] translates messages.
//! Invariant: nothing here looks at the machine, except for the environment variables of identities and ssh, and a list
//! of files to copy.
//! Non-goals: commands that are no verbs (`volume`, `table`, `node`), help, and how results are shown.

mod advice;
mod ask;
mod command;
mod flag;
mod flags;
mod flags_pump;
mod run;
mod suggest;
mod transfer;
pub mod values;

pub use advice::{RESUME, advice, advised, node_advice};
pub use ask::{Ask, Planned, ssh, text};
pub use command::Command;
pub use flag::{At, Flag, Row, Value, flag};
pub use run::{CallError, run};
pub use suggest::nearest;

/// An error in what was asked, as one line. It names options as the command line does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

/// The options of the verbs: one row for each.
pub fn rows() -> impl Iterator<Item = &'static Flag<Ask>> {
    flags::FLAGS.iter().chain(flags_pump::FLAGS)
}

/// The row of the option with this name.
pub fn named(long: &str) -> Option<&'static Flag<Ask>> {
    rows().find(|flag| flag.row.long == long)
}

/// A message with the names of options as a program in Python writes them: `--right-by` becomes `right_by`.
pub fn in_python(message: &str) -> String {
    let mut pieces = message.split("--");
    let mut text = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let end = piece.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        match named(name) {
            Some(flag) => text += &flag.row.keyword(),
            None => text += &format!("--{name}"),
        }
        text += rest;
    }
    text.replace("(-o)", "(output)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_keywords_of_python() {
        for (said, meant) in [
            ("--memory 5 MiB is too small", "memory 5 MiB is too small"),
            ("keys differ (--by, --right-by)", "keys differ (by, right_by)"),
            ("; leave out --no-proof and --io", "; leave out no_proof and io"),
            ("take one--or two -- of --these", "take one--or two -- of --these"),
            ("it is a stream (-o)", "it is a stream (output)"),
        ] {
            assert_eq!(in_python(said), meant);
        }
    }
}

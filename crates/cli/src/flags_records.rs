//! Flags of the verbs on records and of help, in the table of flags.

use crate::commands::Command::{Check, Plan, Shuffle, Sort};
use crate::flag::{At, Flag, Value};
use crate::values;

pub(crate) const HEADER: Flag = Flag {
    long: "header",
    short: None,
    value: Value::Any("N"),
    at: At::Commands(&[Sort, Shuffle, Plan, Check]),
    about: "the first N lines of each input stay in front",
    doc: "\
The first N lines of each input are a header, such as the names of columns: they are not sorted, and stay in front of \
the output. If there are several inputs, all must have the same header, and the output has it once; an empty input has \
none. For lines, on one node, and not with a sort that is resumed. With check: the header is not looked at.",
    set: |args, value| values::header(value).map(|lines| args.header = lines),
};

pub(crate) const ALL: Flag = Flag {
    long: "all",
    short: None,
    value: Value::None,
    at: At::Everywhere,
    about: "with --help: explain every flag",
    doc: "With --help, or after help COMMAND: explain every flag, also where only the usual ones are shown.",
    set: |args, _| {
        args.all = true;
        Ok(())
    },
};

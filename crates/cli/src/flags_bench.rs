//! Flags of `bench` in the table of flags.

use crate::flag::{BENCHES, Flag, Value};
use crate::values;

pub(crate) const SIZE: Flag = Flag {
    long: "size",
    short: None,
    value: Value::Any("SIZE"),
    at: BENCHES,
    about: "how much data to measure with",
    doc: "\
The amount of data. The data and the memory of each row scale with it. Without this flag, the size of the published \
figures. Up to 64 MB only tests that the benchmark works.",
    set: |args, value| values::parsed(value).map(|size| args.size = Some(size)),
};

pub(crate) const ROWS: Flag = Flag {
    long: "rows",
    short: None,
    value: Value::Any("NAME,..."),
    at: BENCHES,
    about: "measure only these rows; a wrong name lists all",
    doc: "\
Measure only the rows with these names; repeat the flag to add rows. An unknown name prints the list of names.",
    set: |args, value| values::names(value).map(|names| args.rows.extend(names)),
};

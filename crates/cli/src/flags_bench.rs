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

pub(crate) const SUITES: Flag = Flag {
    long: "suites",
    short: None,
    value: Value::None,
    at: BENCHES,
    about: "volume: run suites for file systems, and measure nothing",
    doc: "\
With bench volume: run the long forms of suites for file systems, and programs as they are, on mounts of a volume with two \
copies, and measure nothing else: pjdfstest, fsx (also while a store is killed and restarted), fio with its checks, SQLite, git, cargo, \
tar and rsync, and two mounts that write and read in turn. Each row says what it counted.",
    set: |args, _| {
        args.suites = true;
        Ok(())
    },
};

pub(crate) const RIVALS: Flag = Flag {
    long: "rivals",
    short: None,
    value: Value::None,
    at: BENCHES,
    about: "also measure what bench/rivals has installed",
    doc: "Also measure the other programs that bench/rivals has installed, on the same data in the same run.",
    set: |args, _| {
        args.rivals = true;
        Ok(())
    },
};

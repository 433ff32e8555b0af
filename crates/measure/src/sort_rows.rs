//! The rows of `bench sort`: the data, its memory, what it is compared with, and its targets.
//!
//! Sizes are for a `--size` of 1 GB; another size scales data and memory alike.

use thalweg_api::BenchRow;
use thalweg_base::units::{Bytes, GIB, MIB};

use crate::data::Data;
use crate::table::traffic;
use crate::targets::{Target, Than};

/// One row.
pub(crate) struct Row {
    /// The name by which the row is selected.
    pub(crate) name: &'static str,
    /// The data in words, shown between size and memory.
    pub(crate) work: &'static str,
    pub(crate) data: Data,
    /// Bytes for each byte of `--size`.
    pub(crate) scale: f64,
    /// The least size, so that a row that should spill does so even in the least memory.
    pub(crate) bytes_min: u64,
    pub(crate) memory: Memory,
    /// Whether caches are dropped before each run; otherwise the input is read into them.
    pub(crate) cold: bool,
    /// Further flags for our command line.
    pub(crate) words: &'static [&'static str],
    pub(crate) beside: &'static [Beside],
    pub(crate) targets: &'static [Target],
}

/// The memory of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Enough for all of the data.
    Holds,
    /// This much for each gigabyte of `--size`.
    PerGigabyte(u64),
}

/// The comparison of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// The plan's reads and writes alone.
    Floor,
    /// GNU sort in the same memory, on the same lines.
    Gnu,
    /// Our program on other data or with other arguments.
    Otherwise { name: &'static str, data: Data, words: &'static [&'static str] },
    /// Engines with as many threads as there are cores.
    Rivals,
    /// Rivals that divide a sort among as many workers as ours has nodes.
    Clusters,
}

/// The least memory of a sort.
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// A size that does not fit into that memory.
const SPILLS_BYTES_MIN: u64 = 18_000_000;

impl Row {
    /// The row of the user's file with this index. In the report it has the name of the file.
    pub(crate) fn of_own_file(at: usize) -> Row {
        Row { name: "file", work: "lines", data: Data::Own(at), targets: &[], ..LINES }
    }

    /// Bytes of its input.
    pub(crate) fn bytes(&self, size_bytes: u64) -> u64 {
        let bytes = ((size_bytes as f64 * self.scale) as u64).max(self.bytes_min);
        if self.data.is_lines() { bytes } else { bytes / 100 * 100 }
    }

    /// Bytes of its memory.
    pub(crate) fn memory_bytes(&self, size_bytes: u64) -> u64 {
        let bytes = match self.memory {
            Memory::Holds => self.bytes(size_bytes) * 3 / 2 + 64 * MIB,
            Memory::PerGigabyte(bytes) => (bytes as f64 * size_bytes as f64 / 1e9) as u64,
        };
        bytes.max(MEMORY_BYTES_MIN)
    }

    /// A description of the work.
    fn said(&self, bytes: u64, size_bytes: u64) -> String {
        let memory = match self.memory {
            Memory::Holds => "memory".to_string(),
            Memory::PerGigabyte(_) => Bytes(self.memory_bytes(size_bytes)).to_string(),
        };
        format!("{} {} in {memory}", traffic(bytes), self.work)
    }

    /// The row of a report before it is measured, for this many bytes of input.
    pub(crate) fn unmeasured(&self, bytes: u64, size_bytes: u64) -> BenchRow {
        BenchRow {
            name: self.name.to_string(),
            work: self.said(bytes, size_bytes),
            bytes,
            memory_bytes: self.memory_bytes(size_bytes),
            ..BenchRow::default()
        }
    }

    /// Whether the row is measured only together with rivals.
    pub(crate) fn is_rivals(&self) -> bool {
        self.beside.iter().any(|beside| matches!(beside, Beside::Rivals | Beside::Clusters))
    }
}

/// The defaults of a row.
const USUAL: Row = Row {
    name: "",
    work: "",
    data: Data::Binary,
    scale: 1.0,
    bytes_min: 0,
    memory: Memory::Holds,
    cold: true,
    words: &[],
    beside: &[],
    targets: &[],
};

/// Rows of lines, compared with GNU sort in half a gibibyte.
const LINES: Row = Row {
    memory: Memory::PerGigabyte(512 * MIB),
    beside: &[Beside::Floor, Beside::Gnu],
    targets: &[
        Target::Faster { than: Than::Named(GNU), times: 3.0, or_floor: Some(1.25) },
        Target::LessCpu { than: Than::Named(GNU), times: 6.0 },
    ],
    ..USUAL
};

/// Rows that spill three quarters of their input.
const SPILLS: Row = Row { memory: Memory::PerGigabyte(256 * MIB), bytes_min: SPILLS_BYTES_MIN, ..USUAL };

/// Rows of four nodes in one process, compared with engines of four workers.
const NODES: Row = Row {
    work: "binary by 4 nodes",
    memory: Memory::PerGigabyte(400_000_000),
    words: &["--nodes", "4"],
    beside: &[Beside::Clusters],
    targets: &[
        Target::Faster { than: Than::BestRival, times: 10.0, or_floor: None },
        Target::LessCpu { than: Than::BestRival, times: 10.0 },
        Target::LessMemory { than: Than::BestRival, times: 10.0 },
    ],
    ..USUAL
};

/// The name of GNU sort in reports.
pub(crate) const GNU: &str = "GNU sort";
const URING: Beside = Beside::Otherwise { name: "--io uring", data: Data::Binary, words: &["--io", "uring"] };
const UNPROVED: Beside =
    Beside::Otherwise { name: "without proofs", data: Data::Binary, words: &["--no-proof"] };
const NO_SLOWER_THAN_URING: &[Target] = &[Target::NoSlower { than: "--io uring", times: 1.15 }];
const PROOFS_COST_LITTLE: &[Target] = &[Target::NoSlower { than: "without proofs", times: 1.05 }];

/// Rows with the same data are adjacent, so that it is generated once.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "memory",
        work: "binary",
        beside: &[Beside::Floor],
        targets: &[Target::WallOfFloor(1.25), Target::CpuPerGigabyte(1.3)],
        ..USUAL
    },
    Row {
        name: "threads",
        work: "binary by --io threads",
        words: &["--io", "threads"],
        beside: &[URING],
        targets: NO_SLOWER_THAN_URING,
        ..USUAL
    },
    Row {
        name: "proof",
        work: "binary with proofs",
        beside: &[UNPROVED],
        targets: PROOFS_COST_LITTLE,
        ..USUAL
    },
    Row {
        name: "rivals",
        work: "binary",
        memory: Memory::PerGigabyte(8 * GIB),
        beside: &[Beside::Floor, Beside::Rivals],
        targets: &[
            Target::Faster { than: Than::BestRival, times: 2.5, or_floor: Some(1.25) },
            Target::LessCpu { than: Than::BestRival, times: 4.0 },
        ],
        ..USUAL
    },
    Row {
        name: "rivals-small",
        work: "binary",
        memory: Memory::PerGigabyte(512_000_000),
        beside: &[Beside::Floor, Beside::Rivals],
        targets: &[Target::Faster { than: Than::CappedRivals, times: 2.5, or_floor: None }],
        ..USUAL
    },
    Row { name: "nodes", ..NODES },
    // Ray's memory grows little with the data, and ours is to be a tenth of it.
    Row { name: "nodes-twice", scale: 2.0, memory: Memory::PerGigabyte(500_000_000), ..NODES },
    Row {
        name: "threads-spill",
        work: "binary by --io threads",
        words: &["--io", "threads"],
        beside: &[URING],
        targets: NO_SLOWER_THAN_URING,
        ..SPILLS
    },
    Row {
        name: "proof-spill",
        work: "binary with proofs",
        beside: &[UNPROVED],
        targets: PROOFS_COST_LITTLE,
        ..SPILLS
    },
    Row {
        name: "skewed",
        work: "skewed binary",
        data: Data::Skewed,
        beside: &[Beside::Otherwise { name: "uniform", data: Data::Binary, words: &[] }],
        targets: &[Target::NoSlower { than: "uniform", times: 1.10 }],
        ..SPILLS
    },
    Row { name: "nodes-skewed", work: "skewed binary by 4 nodes", data: Data::Skewed, ..NODES },
    Row {
        name: "two-pass",
        work: "binary",
        scale: 10.0,
        bytes_min: SPILLS_BYTES_MIN,
        memory: Memory::PerGigabyte(GIB),
        beside: &[Beside::Floor],
        targets: &[Target::WallOfFloor(1.20), Target::CpuPerGigabyte(1.6)],
        ..USUAL
    },
    Row {
        name: "datamation",
        work: "warm binary",
        scale: 0.1,
        cold: false,
        targets: &[Target::Wall(0.15)],
        ..USUAL
    },
    Row { name: "lines", work: "benchmark lines", data: Data::Ascii, ..LINES },
    Row { name: "lines-urls", work: "URLs sharing 30 bytes", data: Data::Urls, ..LINES },
    Row { name: "lines-short", work: "lines of 8 bytes", data: Data::Short, ..LINES },
    Row { name: "lines-words", work: "repeated words", data: Data::Words, ..LINES },
    Row { name: "lines-log", work: "log, 99 % in order,", data: Data::Log, ..LINES },
    Row { name: "lines-long", work: "lines of 1-64 KiB", data: Data::Long, ..LINES },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_gigabyte_the_rows_are_what_they_are_published_as() {
        let row = |name| ROWS.iter().find(|row| row.name == name).unwrap();
        let size = 1_000_000_000;
        assert_eq!(row("two-pass").bytes(size), 10 * size);
        assert_eq!(row("two-pass").memory_bytes(size), GIB);
        assert_eq!(row("lines-log").memory_bytes(size), 512 * MIB);
        assert_eq!(row("datamation").bytes(size), 100_000_000);
        assert!(row("memory").memory_bytes(size) > size * 5 / 4);
    }

    #[test]
    fn at_any_size_what_is_to_spill_spills_and_no_memory_is_below_the_least() {
        for size in [100_000, 1_000_000, 64_000_000, 1_000_000_000] {
            for row in ROWS {
                assert!(row.memory_bytes(size) >= MEMORY_BYTES_MIN, "{}", row.name);
                if row.bytes_min > 0 {
                    assert!(row.bytes(size) > row.memory_bytes(size), "{} at {size}", row.name);
                }
            }
        }
    }

    #[test]
    fn a_target_names_only_what_is_measured_beside_its_row() {
        for row in ROWS {
            for target in row.targets {
                let needs = match target {
                    Target::WallOfFloor(_) => Some("floor"),
                    Target::NoSlower { than, .. } => Some(*than),
                    Target::Faster { than, .. }
                    | Target::LessCpu { than, .. }
                    | Target::LessMemory { than, .. } => Some(match than {
                        Than::Named(name) => *name,
                        Than::BestOf(_) | Than::BestRival | Than::CappedRivals => "rivals",
                    }),
                    Target::OtherWall(name, _) => Some(*name),
                    Target::CpuPerGigabyte(_)
                    | Target::ClocksPerByte(_)
                    | Target::Wall(_)
                    | Target::Rate(_)
                    | Target::P99(_) => None,
                };
                let has = |name| {
                    row.beside.iter().any(|beside| match beside {
                        Beside::Floor => name == "floor",
                        Beside::Gnu => name == GNU,
                        Beside::Otherwise { name: other, .. } => name == *other,
                        Beside::Rivals | Beside::Clusters => name == "rivals",
                    })
                };
                assert!(needs.is_none_or(has), "{}: {needs:?}", row.name);
            }
        }
    }
}

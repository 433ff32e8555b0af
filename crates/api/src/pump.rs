//! The receipt of a transfer.

use serde::{Deserialize, Serialize};

use crate::{MemoryReceipt, hex};

/// What one end of a transfer did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpEnd {
    /// What it is: `disk`, `stream`, `memory`, `nothing`.
    pub kind: String,
    /// Bytes read or written here.
    pub bytes: u64,
    /// Of these, past the page cache.
    pub direct_bytes: u64,
    /// Of these, taken from the page cache because it held them. Small files are not counted here.
    pub cached_bytes: u64,
    /// Reads or writes that completed.
    pub completions: u64,
    /// Bytes of each, on average.
    pub bytes_per_completion: f64,
    /// Seconds, summed over the lanes, that they waited for this end.
    pub waited_seconds: f64,
    /// CPU seconds, user and system, that this end took.
    pub cpu_seconds: f64,
    /// Clocks of a core for each byte, if the kernel tells how fast its clock is.
    pub clocks_per_byte: Option<f64>,
}

/// What a transfer did. It succeeded only if `checksum_out` is `checksum_in`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PumpReceipt {
    /// `pump`.
    pub verb: String,
    /// Files that were moved.
    pub files: u64,
    /// Bytes of these files, holes and what an earlier run had moved included.
    pub bytes: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of files that were moved.
    pub hard_links: u64,
    /// Pipes, sockets and devices, which were passed over.
    pub special: u64,
    /// Sum of what was read.
    #[serde(with = "hex")]
    pub checksum_in: u128,
    /// Sum of what was handed to the write.
    #[serde(with = "hex")]
    pub checksum_out: u128,
    /// Whether sums were taken.
    pub proved: bool,
    /// Whether what was written was read back, and had the same sums.
    pub verified: bool,
    /// Whether the law holds: out = in.
    pub holds: bool,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Of these, making names and bytes durable at the end.
    pub sync_seconds: f64,
    /// CPU seconds of the whole process, user and system.
    pub cpu_seconds: f64,
    /// Clocks of a core in a second, if the kernel tells.
    pub clock_hz: Option<f64>,
    /// Lanes.
    pub streams: u32,
    /// The end that was read.
    pub source: PumpEnd,
    /// The end that was written.
    pub dest: PumpEnd,
    /// Seconds, summed over the lanes, that they waited for `--limit`.
    pub limited_seconds: f64,
    /// What the lanes spent most of their time with, and how much of it.
    pub bottleneck: String,
    /// `uring` or `threads`.
    pub backend: String,
    /// Why it is not the one asked for or expected, if so.
    pub fallback: Option<String>,
    /// What memory was used. `limit_bytes` is what blocks may take.
    pub memory: MemoryReceipt,
    /// Files that an earlier run had moved.
    pub resumed_files: u64,
    /// Bytes that an earlier run had moved.
    pub resumed_bytes: u64,
}

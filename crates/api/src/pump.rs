//! The receipt of a transfer, and what its ends say to each other beside it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{MemoryReceipt, hex};

/// What one end of a transfer did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpEnd {
    /// What it is: `disk`, `stream`, `memory`, `nothing`, `link`.
    pub kind: String,
    /// The host that it is on; empty for the one where the command ran.
    #[serde(default)]
    pub host: String,
    /// The process that did its work.
    #[serde(default)]
    pub pid: u32,
    /// The most memory that this process had resident.
    #[serde(default)]
    pub peak_bytes: u64,
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
    /// Whether the invariant holds: out = in.
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
    /// What the links between two processes carried, if there were two.
    #[serde(default)]
    pub link: Option<PumpLink>,
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

/// What the links of a transfer between two processes carried.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpLink {
    /// The way that the data took: `direct`, or `through ssh`.
    #[serde(default)]
    pub route: String,
    /// Whether payloads were sealed, if only by ssh. Always so today; receipts of before 0.2 may say otherwise.
    pub sealed: bool,
    /// Bytes that the source sent, heads of frames included, seals and headers of packets not.
    pub sent_bytes: u64,
    /// Bytes that the sink received.
    pub received_bytes: u64,
    /// Receives that completed at the sink.
    pub completions: u64,
    /// Bytes of each, on average.
    pub bytes_per_completion: f64,
}

/// What an end of a transfer says of it in the end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpVerdict {
    /// Why it could not be done, if so.
    pub error: Option<String>,
    /// Whether that is something that was found wrong, and not something that could not be done.
    pub wrong: bool,
    /// What it did, by its own end.
    pub receipt: Option<PumpReceipt>,
}

impl PumpVerdict {
    /// That it came to nothing, and why.
    pub fn failed(why: impl ToString, wrong: bool) -> PumpVerdict {
        PumpVerdict { error: Some(why.to_string()), wrong, receipt: None }
    }

    /// That it was done.
    pub fn done(receipt: PumpReceipt) -> PumpVerdict {
        PumpVerdict { receipt: Some(receipt), ..PumpVerdict::default() }
    }
}

/// What a node is asked to do for a transfer. Ends are words: `path:` and a path whose odd bytes are `%` and two
/// digits of hexadecimal, `zero:BYTES`, `noise:BYTES` or `null:`; over ssh also
/// `home:` and a path below the user's directory there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PumpRequest {
    /// The transfer: 32 hexadecimal digits, by which its lanes are known.
    pub id: String,
    /// What the node reads, if it is the source.
    pub sources: Vec<String>,
    /// Where it writes, if it is the sink or moves between its own directories.
    pub dest: Option<String>,
    /// The host that it sends to, and what is meant there, if it does.
    pub to: Option<(String, String)>,
    /// How that host is met, if ssh started both ends.
    pub meeting: Option<SshMeeting>,
    /// Lanes.
    pub streams: u32,
    /// The most bytes in a second.
    pub limit: Option<u64>,
    /// Go on from what an earlier run left.
    pub resume: bool,
    /// Read the destination back.
    pub verify: bool,
    /// Whether sums are taken.
    pub checksum: bool,
}

/// What a node says of a transfer with another while it goes on; the end is a [`PumpVerdict`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PumpSaid {
    /// So many bytes are done, of so many; 0 if nobody knows.
    Progress(u64, u64),
    /// What somebody should know at once and is no error.
    Note(String),
    /// First of all, if it is to meet another that ssh started: the certificate by which it can be known, as PEM.
    Authority(String),
}

/// What the end of a transfer that ssh started says first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshGreeting {
    /// The meeting of the two ends: 32 hexadecimal digits.
    pub meeting: String,
    /// The certificate by which it can be known on a direct link, as PEM.
    pub authority: String,
    /// Where it listens for direct links, if it knows an address of its own.
    pub address: Option<SocketAddr>,
}

/// What is answered to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshAnswer {
    /// What the one who greeted is called on direct links.
    pub name: String,
    /// The certificate by which the one who asked can be known on a direct link, as PEM.
    pub authority: String,
}

/// How the source of a transfer, which ssh started, meets the sink, which ssh started elsewhere: streams that the source
/// opens in its channel are passed on to the sink by whoever has both channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshMeeting {
    /// What the sink said; without an address if no direct link is to be tried.
    pub greeting: SshGreeting,
    /// What the sink is called on direct links.
    pub name: String,
    /// The sink's host as it was typed, which may be another address of it.
    pub host: String,
}

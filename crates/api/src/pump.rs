//! The receipt of a transfer, and the messages of its ends.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{MemoryReceipt, hex};

/// What one end of a transfer did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpEnd {
    /// Its kind: `disk`, `stream`, `memory`, `nothing`, `link`.
    pub kind: String,
    /// The host that it is on; empty for the one where the command ran.
    #[serde(default)]
    pub host: String,
    /// The process that did its work.
    #[serde(default)]
    pub pid: u32,
    /// The peak resident memory of that process.
    #[serde(default)]
    pub peak_bytes: u64,
    /// Bytes read or written here.
    pub bytes: u64,
    /// Of these, bytes that bypassed the page cache.
    pub direct_bytes: u64,
    /// Of these, bytes that came from the page cache. Small files are not counted here.
    pub cached_bytes: u64,
    /// Reads or writes that completed.
    pub completions: u64,
    /// Bytes of each, on average.
    pub bytes_per_completion: f64,
    /// Seconds, summed over the lanes, spent waiting for this end.
    pub waited_seconds: f64,
    /// CPU seconds of this end, user and system.
    pub cpu_seconds: f64,
    /// Clocks of a core for each byte, if the kernel reports its frequency.
    pub clocks_per_byte: Option<f64>,
}

/// The result of a transfer. It succeeded only if `checksum_out` is `checksum_in`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PumpReceipt {
    /// `pump`.
    pub verb: String,
    /// Files that were moved.
    pub files: u64,
    /// Bytes of these files, including holes and what an earlier run had moved.
    pub bytes: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of files that were moved.
    pub hard_links: u64,
    /// Pipes, sockets and devices, which were skipped.
    pub special: u64,
    /// The checksum of what was read.
    #[serde(with = "hex")]
    pub checksum_in: u128,
    /// The checksum of what was passed to the write.
    #[serde(with = "hex")]
    pub checksum_out: u128,
    /// Whether checksums were taken.
    pub proved: bool,
    /// Whether the output was read back and had the same checksums.
    pub verified: bool,
    /// Whether the invariant holds: out = in.
    pub holds: bool,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Of these, the seconds to make names and bytes durable at the end.
    pub sync_seconds: f64,
    /// CPU seconds of the whole process, user and system.
    pub cpu_seconds: f64,
    /// Clocks of a core in a second, if the kernel reports it.
    pub clock_hz: Option<f64>,
    /// Lanes.
    pub streams: u32,
    /// The end that was read.
    pub source: PumpEnd,
    /// The end that was written.
    pub dest: PumpEnd,
    /// Seconds, summed over the lanes, spent waiting for `--limit`.
    pub limited_seconds: f64,
    /// What the lanes spent most of their time on, and the share of it.
    pub bottleneck: String,
    /// The traffic of the links between two processes, if there were two.
    #[serde(default)]
    pub link: Option<PumpLink>,
    /// `uring` or `threads`.
    pub backend: String,
    /// Why another back end was used than requested or expected, if so.
    pub fallback: Option<String>,
    /// The memory used. `limit_bytes` is the limit for blocks.
    pub memory: MemoryReceipt,
    /// Files that an earlier run had moved.
    pub resumed_files: u64,
    /// Bytes that an earlier run had moved.
    pub resumed_bytes: u64,
}

/// The traffic of the links of a transfer between two processes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpLink {
    /// The route of the data: `direct`, or `through ssh`.
    #[serde(default)]
    pub route: String,
    /// Whether payloads were encrypted, if only by ssh. They always are today; receipts of versions before 0.2 may say
    /// otherwise.
    pub sealed: bool,
    /// Bytes that the source sent, with headers of frames, without TLS records and headers of packets.
    pub sent_bytes: u64,
    /// Bytes that the sink received.
    pub received_bytes: u64,
    /// Receives that completed at the sink.
    pub completions: u64,
    /// Bytes of each, on average.
    pub bytes_per_completion: f64,
}

/// The kind of a failure, for a process that cannot match the error itself because it happened in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// An operating error.
    #[default]
    Operating,
    /// Data was examined and is wrong.
    Wrong,
    /// A later run that resumes can continue from what is there.
    Resumable,
}

/// The final message of an end of a transfer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PumpVerdict {
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// The kind of the failure.
    #[serde(default)]
    pub kind: FailureKind,
    /// The receipt of this end.
    pub receipt: Option<PumpReceipt>,
}

impl PumpVerdict {
    /// A failure with its cause.
    pub fn failed(why: impl ToString, kind: FailureKind) -> PumpVerdict {
        PumpVerdict { error: Some(why.to_string()), kind, receipt: None }
    }

    /// A success.
    pub fn done(receipt: PumpReceipt) -> PumpVerdict {
        PumpVerdict { receipt: Some(receipt), ..PumpVerdict::default() }
    }
}

/// A request to a node to take part in a transfer. Ends are strings: `path:` and a path whose unusual bytes are `%` and
/// two hexadecimal digits, `zero:BYTES`, `noise:BYTES` or `null:`; over ssh also `home:` and a path below the user's
/// home directory there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PumpRequest {
    /// The transfer's id: 32 hexadecimal digits. Its lanes name it.
    pub id: String,
    /// The sources, if the node reads.
    pub sources: Vec<String>,
    /// The destination, if the node writes.
    pub dest: Option<String>,
    /// The host that it sends to, and the destination there, if it sends.
    pub to: Option<(String, String)>,
    /// How to reach that host, if ssh started both ends.
    pub meeting: Option<SshMeeting>,
    /// Lanes.
    pub streams: u32,
    /// The most bytes in a second.
    pub limit: Option<u64>,
    /// Resume from what an earlier run left.
    pub resume: bool,
    /// Read the destination back.
    pub verify: bool,
    /// Whether checksums are taken.
    pub checksum: bool,
}

/// A notice about running work that the user should see at once, and that is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// One line.
    pub text: String,
    /// Whether it says that a later run can resume.
    pub resumable: bool,
}

/// A message of a node about a transfer that is running. The last one is a [`PumpVerdict`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PumpSaid {
    /// Bytes done, and bytes in all or 0 if that is unknown.
    Progress(u64, u64),
    /// A notice to show at once.
    Note(Note),
    /// The first message, if it connects to another end that ssh started: its certificate, as PEM.
    Authority(String),
}

/// The first message of an end that ssh started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshGreeting {
    /// The id of this pair of ends: 32 hexadecimal digits.
    pub meeting: String,
    /// Its certificate on a direct link, as PEM.
    pub authority: String,
    /// The address on which it listens for direct links, if it has one.
    pub address: Option<SocketAddr>,
}

/// The answer to that message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshAnswer {
    /// The name of the end that sent the message, on direct links.
    pub name: String,
    /// The certificate of the end that answers, on a direct link, as PEM.
    pub authority: String,
}

/// How the source of a transfer, which ssh started, meets the sink, which ssh started elsewhere: streams that the
/// source opens in its channel are passed on to the sink by the process that has both channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SshMeeting {
    /// The first message of the sink, without its address if no direct link should be tried.
    pub greeting: SshGreeting,
    /// The name of the sink on direct links.
    pub name: String,
    /// The sink's host as the user typed it, which may be another address.
    pub host: String,
}

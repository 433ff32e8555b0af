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

/// Why an entry was left out of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOutKind {
    /// The source could not be read.
    Unreadable,
    /// It was there when its directory was listed, and is gone.
    Vanished,
    /// It changed while it was read, and did not merely grow.
    Changed,
    /// The destination could not take it.
    Destination,
}

/// An entry that a transfer left out because of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path: at the destination if that could not take it, otherwise at the source.
    pub path: String,
    /// The kind of the error.
    pub kind: LeftOutKind,
    /// The error: one line, with the path.
    pub why: String,
}

/// The result of a transfer. It succeeded only if `holds`, and is complete only if nothing was left out.
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
    /// The checksum of what was read and arrived, but could not be stored.
    #[serde(with = "hex", default)]
    pub checksum_left_out: u128,
    /// Entries that were found at the source, and those of the destination that could not be deleted or be given their
    /// attributes. One that could not be looked at counts as one.
    #[serde(default)]
    pub found: u64,
    /// Of these, the ones that were left out because of an error.
    #[serde(default)]
    pub left_out: u64,
    /// The first of these, in no particular order, as many as fit in 64 MiB of memory.
    #[serde(default)]
    pub errors: Vec<LeftOut>,
    /// Directories in which names came or went while they were read.
    #[serde(default)]
    pub changed_directories: u64,
    /// Entries of the source that rules exclude; one for a directory with everything in it.
    #[serde(default)]
    pub excluded: u64,
    /// Entries of the destination that were deleted, because the source does not have them.
    #[serde(default)]
    pub deleted: u64,
    /// Entries that were to be deleted, but would have been too many.
    #[serde(default)]
    pub not_deleted: u64,
    /// Entries that were skipped because the destination has newer ones, or none.
    #[serde(default)]
    pub skipped: u64,
    /// Extended attributes, access control lists among them, that could not be read or that the destination cannot keep.
    #[serde(default)]
    pub not_kept: u64,
    /// The first of them, in no particular order: a path in the transfer and names.
    #[serde(default)]
    pub not_kept_first: Vec<String>,
    /// Whether nothing was changed; the numbers are then those of what would be.
    #[serde(default)]
    pub dry_run: bool,
    /// What a dry run would change, in no particular order, as much as fits in 64 MiB of memory.
    #[serde(default)]
    pub items: Vec<PumpItem>,
    /// Whether the invariant holds: out + left out = in, for checksums and for the number of entries.
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
    /// Further ends that were written: hosts of a chain, in its order. Each has sent on to the next what it received.
    #[serde(default)]
    pub onward: Vec<PumpEnd>,
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

impl PumpReceipt {
    /// The entries that were moved, were there already, or are counted as left out. What a peer reports may be anything.
    pub fn accounted(&self) -> u64 {
        let PumpReceipt { files, resumed_files, directories, links, hard_links, .. } = *self;
        let others = [self.skipped, self.special, self.left_out];
        [files, resumed_files, directories, links, hard_links]
            .iter()
            .chain(&others)
            .fold(0, |sum, n| n.saturating_add(sum))
    }

    /// Whether everything that was found is accounted for, and the checksums agree.
    pub fn is_accounted_for(&self) -> bool {
        self.found == self.accounted()
            && self.checksum_in == self.checksum_out.wrapping_add(self.checksum_left_out)
    }
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

/// Which entries a transfer copies, and what happens to others at the destination. Both ends have it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PumpChoice {
    /// Filter rules, as rsync's option `--filter` takes them. The first that matches decides.
    pub rules: Vec<String>,
    /// Delete what the source does not have.
    pub delete: bool,
    /// Delete at most this many entries.
    pub max_delete: Option<u64>,
    /// Change nothing, and list what would be changed.
    pub dry_run: bool,
    /// Which files are taken for equal, and not copied.
    pub compare: PumpCompare,
    /// Skip files that are newer at the destination.
    pub update: bool,
    /// Skip what the destination does not have.
    pub existing: bool,
    /// Only these paths below each source, and everything below those that are directories.
    pub files_from: Option<Vec<String>>,
    /// Leave out access control lists and other extended attributes.
    pub no_xattrs: bool,
}

/// Which files are taken for equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PumpCompare {
    /// None, unless the transfer resumes: then as with `Time`.
    #[default]
    Nothing,
    /// Those with the same length and modification time.
    Time,
    /// Those with the same content.
    Content,
}

/// What a dry run would do to an entry of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PumpChange {
    /// Create it.
    New,
    /// Replace it.
    Changed,
    /// Set its attributes.
    Attributes,
    /// Delete it.
    Deleted,
}

/// An entry that a dry run would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PumpItem {
    /// The change.
    pub change: PumpChange,
    /// Its path in the transfer, with a slash at its end if it is a directory.
    pub path: String,
}

impl PumpChoice {
    /// Excludes what a pattern matches. As with rsync, `+ ` or `- ` may precede it, and `!` removes all rules.
    pub fn exclude(&mut self, pattern: &str) {
        self.pattern('-', pattern);
    }

    /// Includes what a pattern matches, as [`exclude`](Self::exclude).
    pub fn include(&mut self, pattern: &str) {
        self.pattern('+', pattern);
    }

    fn pattern(&mut self, action: char, pattern: &str) {
        let is_rule = pattern == "!" || pattern.starts_with("- ") || pattern.starts_with("+ ");
        self.rules.push(if is_rule { pattern.to_string() } else { format!("{action} {pattern}") });
    }
}

/// A request to a node to take part in a transfer. Ends are strings: `path:` and a path whose unusual bytes are `%` and
/// two hexadecimal digits, `zero:BYTES`, `noise:BYTES` or `null:`; over ssh also `home:` and a path below the user's
/// home directory there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PumpRequest {
    /// The transfer's id: 32 hexadecimal digits. Its lanes name it.
    pub id: String,
    /// The sources, if the node reads.
    pub sources: Vec<String>,
    /// The destination, if the node writes.
    pub dest: Option<String>,
    /// The host that it sends to, and the destination there, if it sends.
    pub to: Option<(String, String)>,
    /// The hosts to which the first destination sends on, each to the next. `Some` also of the last of a chain, which
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onward: Option<Vec<String>>,
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
    /// Whether the first error ends the transfer.
    pub strict: bool,
    /// Which entries.
    pub choice: PumpChoice,
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
    /// Entries that were left out. The receipt at the end only counts them.
    LeftOut(Vec<LeftOut>),
    /// What a dry run would change.
    Items(Vec<PumpItem>),
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

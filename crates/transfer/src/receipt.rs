//! The receipt of a transfer.

use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_api::{MemoryReceipt, PumpEnd, PumpLink, PumpReceipt};
use thalweg_io::process;

use crate::blocks::RECEIVE_BLOCKS;
use crate::job::{Job, Part};
use crate::peer::{FRAME_BYTES, Peer};
use crate::roots::{From, To};
use crate::shared::Shared;

/// The durations of a transfer.
pub(crate) struct Took {
    pub(crate) seconds: f64,
    pub(crate) sync_seconds: f64,
    pub(crate) cpu_seconds: f64,
}

pub(crate) fn receipt(job: &Job<'_>, shared: &Shared<'_>, took: &Took) -> PumpReceipt {
    let counts = &shared.counts;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (waited_read, waited_write) = shared.meters.stage.take_seconds();
    let limited_seconds = get(&counts.limited_ns) as f64 / 1e9;
    let (checksum_in, checksum_out) = *shared.sums.lock().expect("no lane panics");
    let checksum_left_out = *shared.sum_left_out.lock().expect("no lane panics");
    let not_kept = std::mem::take(&mut *shared.not_kept.lock().expect("no lane panics"));
    let clock_hz = process::clock_hz();
    let (source, dest) = ends(job, shared, took, [waited_read, waited_write]);
    PumpReceipt {
        verb: "pump".into(),
        files: get(&counts.files),
        bytes: get(&counts.bytes),
        directories: get(&counts.directories),
        links: get(&counts.links),
        hard_links: get(&counts.hard_links),
        special: get(&counts.special),
        checksum_in,
        checksum_out,
        proved: shared.hashing && !shared.choice.asked.dry_run,
        verified: shared.verify,
        checksum_left_out,
        found: get(&counts.found),
        left_out: shared.left_out.count(),
        errors: Vec::new(),
        changed_directories: get(&counts.changed_directories),
        excluded: get(&counts.excluded),
        deleted: get(&shared.deleter.deleted),
        not_deleted: get(&shared.deleter.not_deleted),
        skipped: get(&counts.skipped),
        not_kept: not_kept.count,
        not_kept_first: not_kept.first,
        dry_run: shared.choice.asked.dry_run,
        items: Vec::new(),
        holds: checksum_in == checksum_out.wrapping_add(checksum_left_out),
        seconds: took.seconds,
        sync_seconds: took.sync_seconds,
        cpu_seconds: took.cpu_seconds,
        clock_hz,
        streams: job.lanes as u32,
        bottleneck: bottleneck(job, took, [waited_read, waited_write, limited_seconds]),
        source,
        dest,
        onward: Vec::new(),
        limited_seconds,
        link: None,
        backend: shared.dest.io().name().into(),
        fallback: None,
        memory: MemoryReceipt {
            limit_bytes: block_bytes(job, shared),
            peak_bytes: process::usage().peak_bytes,
            huge_page_bytes: process::huge_page_bytes(),
        },
        resumed_files: get(&counts.resumed_files),
        resumed_bytes: get(&counts.resumed_bytes),
    }
}

/// What each end did.
fn ends(
    job: &Job<'_>,
    shared: &Shared<'_>,
    took: &Took,
    [waited_read, waited_write]: [f64; 2],
) -> (PumpEnd, PumpEnd) {
    let (counts, clock_hz) = (&shared.counts, process::clock_hz());
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    // CPU time outside the lanes is divided like that of the lanes.
    let ends = [&counts.source_cpu_ns, &counts.sink_cpu_ns].map(|ns| get(ns) as f64 / 1e9);
    let scale = if ends[0] + ends[1] > 0.0 { took.cpu_seconds / (ends[0] + ends[1]) } else { 0.0 };
    let end = |kind: &str, bytes, completions, waited_seconds, cpu: f64| PumpEnd {
        kind: kind.into(),
        bytes,
        direct_bytes: 0,
        cached_bytes: 0,
        completions,
        bytes_per_completion: if completions > 0 { bytes as f64 / completions as f64 } else { 0.0 },
        waited_seconds,
        cpu_seconds: cpu * scale,
        host: String::new(),
        pid: std::process::id(),
        peak_bytes: process::usage().peak_bytes,
        clocks_per_byte: clock_hz.filter(|_| bytes > 0).map(|hz| cpu * scale * hz / bytes as f64),
    };
    let (source_kind, dest_kind) = kinds(job);
    // Streams from and to memory have no read or write of their own.
    let (read, written) = (shared.meters.input.totals().0, shared.meters.output.totals().1);
    let moved = get(&counts.bytes).saturating_sub(get(&counts.resumed_bytes));
    let source_bytes = if source_kind == "memory" { moved } else { read };
    let dest_bytes = if dest_kind == "nothing" { moved.min(source_bytes) } else { written };
    let mut source = end(source_kind, source_bytes, get(&counts.reads), waited_read, ends[0]);
    let mut dest = end(dest_kind, dest_bytes, get(&counts.writes), waited_write, ends[1]);
    source.direct_bytes = get(&counts.direct_read);
    source.cached_bytes = shared.meters.cached.totals().0;
    dest.direct_bytes = get(&counts.direct_written);
    (source, dest)
}

/// The memory limit of blocks. A lane that receives from a peer has further blocks for the frames.
fn block_bytes(job: &Job<'_>, shared: &Shared<'_>) -> u64 {
    let beside = if job.part == Part::Sink { job.lanes * RECEIVE_BLOCKS * FRAME_BYTES } else { 0 };
    (shared.pool.capacity() * shared.pool.block_size() + beside) as u64
}

fn kinds(job: &Job<'_>) -> (&'static str, &'static str) {
    let source = match job.transfer.sources.first() {
        None => "link",
        Some(From::Path(_)) => "disk",
        Some(From::Stream(_)) => "stream",
        Some(From::Zeros(_) | From::Noise(_)) => "memory",
    };
    let dest = match &job.transfer.dest {
        _ if job.part == Part::Source => "link",
        To::Path(_) => "disk",
        To::Stream(_) => "stream",
        To::Null => "nothing",
    };
    (source, dest)
}

/// The resource that the lanes used or waited for most, as a fraction of their time.
fn bottleneck(job: &Job<'_>, took: &Took, waited: [f64; 3]) -> String {
    let all = (took.seconds - took.sync_seconds).max(1e-9) * job.lanes as f64;
    let [read, write, limit] = waited.map(|seconds| seconds / all);
    let cpu = (took.cpu_seconds / all).min(1.0);
    let sync = took.sync_seconds / took.seconds.max(1e-9);
    let share = |share: f64| (share * 100.0).round().min(100.0);
    let (source_kind, dest_kind) = kinds(job);
    let named = |kind: &str, verb: &str, at: &str| match kind {
        "disk" => format!("disk {verb} at the {at}"),
        kind => format!("{kind} {verb} at the {at}"),
    };
    if sync > 0.5 {
        return format!("making it durable, {:.0} % of the time", share(sync));
    }
    let waits = [
        (read, named(source_kind, "read", "source")),
        (write, named(dest_kind, "write", "destination")),
        (limit, "the rate limit".to_string()),
    ];
    let (most, name) = waits.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are three");
    if cpu > most {
        return format!("the cores, {:.0} % busy", share(cpu));
    }
    format!("{name}, {:.0} % busy", share(most))
}

/// The traffic of this end's links.
pub(crate) fn link(far: &Peer<'_>) -> PumpLink {
    let (sent_bytes, received_bytes, completions) = far.traffic();
    let each = if completions > 0 { received_bytes as f64 / completions as f64 } else { 0.0 };
    PumpLink {
        route: far.route().name().into(),
        sealed: true,
        sent_bytes,
        received_bytes,
        completions,
        bytes_per_completion: each,
    }
}

/// The receipt of both ends, one of which is at `peer`.
pub(crate) fn merged(
    source: PumpReceipt,
    sink: PumpReceipt,
    peer: String,
    sink_is_there: bool,
) -> PumpReceipt {
    let bottleneck = slowest(&source, &sink, if sink_is_there { ["", &peer] } else { [&peer, ""] });
    let (mut from, mut to) = (source.source, sink.dest);
    // CPU time outside the lanes is added to each process's end.
    from.cpu_seconds = source.cpu_seconds;
    to.cpu_seconds = sink.cpu_seconds;
    for (end, bytes) in
        [(&mut from, source.bytes - source.resumed_bytes.min(source.bytes)), (&mut to, sink.bytes)]
    {
        let hz = sink.clock_hz.filter(|_| bytes > 0);
        end.clocks_per_byte = hz.map(|hz| end.cpu_seconds * hz / bytes as f64);
    }
    if sink_is_there {
        to.host = peer
    } else {
        from.host = peer
    }
    // The receiver's view of the link is reported.
    let link = match (source.link, sink.link) {
        (Some(ours), Some(theirs)) => Some(PumpLink { sent_bytes: ours.sent_bytes, ..theirs }),
        (ours, theirs) => theirs.or(ours),
    };
    let both = PumpReceipt {
        checksum_in: source.checksum_in,
        found: source.found.saturating_add(sink.found),
        left_out: source.left_out.saturating_add(sink.left_out),
        changed_directories: source.changed_directories,
        excluded: source.excluded,
        skipped: source.skipped,
        not_kept: source.not_kept.saturating_add(sink.not_kept),
        not_kept_first: source.not_kept_first.into_iter().chain(sink.not_kept_first.clone()).collect(),
        seconds: source.seconds.max(sink.seconds),
        cpu_seconds: source.cpu_seconds + sink.cpu_seconds,
        special: source.special,
        source: from,
        dest: to,
        limited_seconds: source.limited_seconds,
        resumed_files: source.resumed_files,
        resumed_bytes: source.resumed_bytes,
        link,
        bottleneck,
        ..sink
    };
    // In a dry run, only the source knows what would be moved.
    let both = match both.dry_run {
        true => PumpReceipt {
            files: source.files,
            bytes: source.bytes,
            links: source.links,
            hard_links: source.hard_links,
            directories: source.directories,
            ..both
        },
        false => both,
    };
    PumpReceipt { holds: both.is_accounted_for(), ..both }
}

/// Where most time went: reading at the source, writing at the destination, or the link, for which both ends wait.
fn slowest(source: &PumpReceipt, sink: &PumpReceipt, [here, there]: [&str; 2]) -> String {
    let all = |receipt: &PumpReceipt| {
        (receipt.seconds - receipt.sync_seconds).max(1e-9) * f64::from(receipt.streams.max(1))
    };
    let share = |seconds: f64, of: &PumpReceipt| seconds / all(of);
    let at = |end: &str, host: &str| match host {
        "" => format!("at the {end}"),
        host => format!("at the {end}, {host}"),
    };
    if sink.sync_seconds > 0.5 * sink.seconds {
        let (share, at) = (100.0 * sink.sync_seconds / sink.seconds, at("destination", there));
        return format!("making it durable {at}, {share:.0} % of the time");
    }
    let link = share(source.dest.waited_seconds, source).min(share(sink.source.waited_seconds, sink));
    let limit = share(source.limited_seconds, source);
    let cpu = |receipt: &PumpReceipt| (receipt.cpu_seconds / all(receipt)).min(1.0);
    let waits = [
        (
            share(source.source.waited_seconds, source),
            format!("{} read {}", source.source.kind, at("source", here)),
        ),
        (
            share(sink.dest.waited_seconds, sink),
            format!("{} write {}", sink.dest.kind, at("destination", there)),
        ),
        (link, "the link".to_string()),
        (limit, "the rate limit".to_string()),
        (cpu(source), format!("the cores {}", at("source", here))),
        (cpu(sink), format!("the cores {}", at("destination", there))),
    ];
    let (most, name) = waits.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are six");
    format!("{name}, {:.0} % busy", (most * 100.0).round().min(100.0))
}

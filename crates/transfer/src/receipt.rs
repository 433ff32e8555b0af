//! What a transfer did, told.

use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_api::{MemoryReceipt, PumpEnd, PumpReceipt};
use thalweg_io::process;

use crate::job::{BLOCK_BYTES, Job};
use crate::roots::{From, To};
use crate::shared::Shared;

/// How long things took.
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
    let clock_hz = process::clock_hz();
    // What the back end's own threads and the beginning and end took is shared out as what the lanes took.
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
        clocks_per_byte: clock_hz.filter(|_| bytes > 0).map(|hz| cpu * scale * hz / bytes as f64),
    };
    let (source_kind, dest_kind) = kinds(job);
    // Bytes of memory are read and written nowhere, and yet they move.
    let (read, written) = (shared.meters.input.totals().0, shared.meters.output.totals().1);
    let moved = get(&counts.bytes).saturating_sub(get(&counts.resumed_bytes));
    let source_bytes = if source_kind == "memory" { moved } else { read };
    let dest_bytes = if dest_kind == "nothing" { moved.min(source_bytes) } else { written };
    let mut source = end(source_kind, source_bytes, get(&counts.reads), waited_read, ends[0]);
    let mut dest = end(dest_kind, dest_bytes, get(&counts.writes), waited_write, ends[1]);
    source.direct_bytes = get(&counts.direct_read);
    source.cached_bytes = shared.meters.cached.totals().0;
    dest.direct_bytes = get(&counts.direct_written);
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
        proved: shared.hashing,
        verified: shared.verify,
        holds: checksum_in == checksum_out,
        seconds: took.seconds,
        sync_seconds: took.sync_seconds,
        cpu_seconds: took.cpu_seconds,
        clock_hz,
        streams: job.lanes as u32,
        bottleneck: bottleneck(job, took, [waited_read, waited_write, limited_seconds], dest_kind),
        source,
        dest,
        limited_seconds,
        backend: shared.io.name().into(),
        fallback: None,
        memory: MemoryReceipt {
            limit_bytes: (shared.pool.capacity() * BLOCK_BYTES) as u64,
            peak_bytes: process::usage().peak_bytes,
            huge_page_bytes: process::huge_page_bytes(),
        },
        resumed_files: get(&counts.resumed_files),
        resumed_bytes: get(&counts.resumed_bytes),
    }
}

fn kinds(job: &Job<'_>) -> (&'static str, &'static str) {
    let source = match &job.transfer.sources[0] {
        From::Path(_) => "disk",
        From::Stream(_) => "stream",
        From::Zeros(_) | From::Noise(_) => "memory",
    };
    let dest = match &job.transfer.dest {
        To::Path(_) => "disk",
        To::Stream(_) => "stream",
        To::Null => "nothing",
    };
    (source, dest)
}

/// What the lanes were busy with or waited for most, as a share of their time.
fn bottleneck(job: &Job<'_>, took: &Took, waited: [f64; 3], dest_kind: &str) -> String {
    let all = (took.seconds - took.sync_seconds).max(1e-9) * job.lanes as f64;
    let [read, write, limit] = waited.map(|seconds| seconds / all);
    let cpu = (took.cpu_seconds / all).min(1.0);
    let sync = took.sync_seconds / took.seconds.max(1e-9);
    let share = |share: f64| (share * 100.0).round().min(100.0);
    let (source_kind, _) = kinds(job);
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
        (limit, "--limit".to_string()),
    ];
    let (most, name) = waits.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are three");
    if cpu > most {
        return format!("the cores, {:.0} % busy", share(cpu));
    }
    format!("{name}, {:.0} % busy", share(most))
}

//! The receipt of a transfer.

use thalweg_api::{PumpEnd, PumpReceipt};
use thalweg_base::units::{Bytes, Count};

use super::columns::{columns, labelled, rate, seconds, traffic};

/// What was moved, that it came out as it went in, what each end cost, and what the rest waited for.
pub(crate) fn pump(receipt: &PumpReceipt) -> String {
    let mut text = headline(receipt);
    text += &proofs(receipt);
    text += &ends(receipt);
    let busy = match receipt.limited_seconds {
        0.0 => String::new(),
        waited => format!("; lanes waited {} for --limit", seconds(waited)),
    };
    text += &labelled("slowest", &format!("{}{busy}", receipt.bottleneck));
    text += &labelled("io", &io(receipt));
    let memory = &receipt.memory;
    let (peak, blocks) = (Bytes(memory.peak_bytes), Bytes(memory.limit_bytes));
    text += &labelled("memory", &format!("peak {peak}, of which blocks at most {blocks}"));
    text + &others(receipt)
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", Count(count), if count == 1 { one } else { many })
}

fn headline(receipt: &PumpReceipt) -> String {
    let files = match receipt.files {
        0 if receipt.directories == 0 => String::new(),
        files => format!("{}, ", counted(files, "file", "files")),
    };
    format!(
        "moved {files}{} bytes, in {}: {}, {:.2} CPU-s\n",
        Count(receipt.bytes),
        seconds(receipt.seconds),
        rate(receipt.bytes, receipt.seconds),
        receipt.cpu_seconds
    )
}

fn proofs(receipt: &PumpReceipt) -> String {
    if !receipt.proved {
        return labelled("law", "out = in: nobody looked; no checksum was taken");
    }
    let verdict = if receipt.holds { "holds" } else { "BROKEN" };
    let back = if receipt.verified { "; read back from the disk, and the same" } else { "" };
    labelled("in", &format!("checksum {:032x}", receipt.checksum_in))
        + &labelled("out", &format!("checksum {:032x}", receipt.checksum_out))
        + &labelled("law", &format!("out = in: {verdict}{back}"))
}

fn ends(receipt: &PumpReceipt) -> String {
    let heads = ["ends", "bytes", "direct", "each", "waited", "CPU", "clocks/byte"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.push(end("  source", &receipt.source));
    rows.push(end("  dest", &receipt.dest));
    columns(&rows)
}

fn end(label: &str, end: &PumpEnd) -> Vec<String> {
    vec![
        format!("{label}: {}", end.kind),
        traffic(end.bytes),
        traffic(end.direct_bytes),
        if end.completions == 0 { "-".into() } else { traffic(end.bytes_per_completion as u64) },
        seconds(end.waited_seconds),
        seconds(end.cpu_seconds),
        end.clocks_per_byte.map_or("-".into(), |clocks| format!("{clocks:.2}")),
    ]
}

fn io(receipt: &PumpReceipt) -> String {
    let fallback = receipt.fallback.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let streams = counted(u64::from(receipt.streams), "stream", "streams");
    let cached = match receipt.source.cached_bytes {
        0 => String::new(),
        cached => format!(", {} from the page cache", traffic(cached)),
    };
    format!(
        "{}{fallback}, {streams}{cached}, made durable in {}",
        receipt.backend,
        seconds(receipt.sync_seconds)
    )
}

/// What is not a file with bytes, and what an earlier run had done.
fn others(receipt: &PumpReceipt) -> String {
    let mut kept = Vec::new();
    for (count, one, many) in [
        (receipt.directories, "directory", "directories"),
        (receipt.links, "symbolic link", "symbolic links"),
        (receipt.hard_links, "further name of a file", "further names of files"),
    ] {
        if count > 0 {
            kept.push(counted(count, one, many));
        }
    }
    let mut text = String::new();
    if !kept.is_empty() {
        text += &labelled("also", &kept.join(", "));
    }
    if receipt.special > 0 {
        let special = counted(receipt.special, "pipe, socket or device", "pipes, sockets or devices");
        text += &labelled("left out", &special);
    }
    let (files, bytes) = (receipt.resumed_files, receipt.resumed_bytes);
    if files + bytes > 0 {
        let files =
            if files > 0 { format!(", of {} whole", counted(files, "file", "files")) } else { String::new() };
        text += &labelled("resumed", &format!("{} were there{files}", traffic(bytes)));
    }
    text
}

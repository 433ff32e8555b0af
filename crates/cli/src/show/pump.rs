//! The receipt of a transfer. Text from the other end may contain anything; it stays on its line.

use thalweg_api::{PumpEnd, PumpLink, PumpReceipt};
use thalweg_base::units::{Bytes, Count};

use super::columns::{columns, labelled, rate, seconds, traffic};
use crate::print::on_one_line;

/// The amount copied, the proof that it arrived unchanged, the cost at each end, and the slowest part.
pub(crate) fn pump(receipt: &PumpReceipt) -> String {
    let mut text = headline(receipt);
    text += &proofs(receipt);
    text += &ends(receipt);
    let busy = match receipt.limited_seconds {
        0.0 => String::new(),
        waited => format!("; lanes waited {} for --limit", seconds(waited)),
    };
    text += &labelled("slowest", &format!("{}{busy}", on_one_line(&receipt.bottleneck)));
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
        return labelled("invariant", "out = in: nobody looked; no checksum was taken");
    }
    let verdict = if receipt.holds { "holds" } else { "BROKEN" };
    let back = if receipt.verified { "; read back from the disk, and the same" } else { "" };
    labelled("in", &format!("checksum {:032x}", receipt.checksum_in))
        + &labelled("out", &format!("checksum {:032x}", receipt.checksum_out))
        + &labelled("invariant", &format!("out = in: {verdict}{back}"))
}

fn ends(receipt: &PumpReceipt) -> String {
    let heads = ["ends", "bytes", "direct", "each", "waited", "CPU", "clocks/byte"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.push(end("  source", &receipt.source));
    rows.push(end("  dest", &receipt.dest));
    columns(&rows) + &receipt.link.as_ref().map(link).unwrap_or_default()
}

fn link(link: &PumpLink) -> String {
    let sealed = if link.sealed { "sealed" } else { "clear" };
    let each = traffic(link.bytes_per_completion as u64);
    let sent = traffic(link.sent_bytes);
    labelled("link", &format!("{sent}, {}, {sealed}, {each} with each receive", on_one_line(&link.route)))
}

fn end(label: &str, end: &PumpEnd) -> Vec<String> {
    let kind = on_one_line(&end.kind);
    vec![
        match &end.host[..] {
            "" => format!("{label}: {kind}"),
            host => format!("{label}: {kind} at {}", on_one_line(host)),
        },
        traffic(end.bytes),
        traffic(end.direct_bytes),
        if end.completions == 0 { "-".into() } else { traffic(end.bytes_per_completion as u64) },
        seconds(end.waited_seconds),
        seconds(end.cpu_seconds),
        end.clocks_per_byte.map_or("-".into(), |clocks| format!("{clocks:.2}")),
    ]
}

fn io(receipt: &PumpReceipt) -> String {
    let fallback =
        receipt.fallback.as_ref().map(|why| format!(" ({})", on_one_line(why))).unwrap_or_default();
    let streams = counted(u64::from(receipt.streams), "stream", "streams");
    let cached = match receipt.source.cached_bytes {
        0 => String::new(),
        cached => format!(", {} from the page cache", traffic(cached)),
    };
    format!(
        "{}{fallback}, {streams}{cached}, made durable in {}",
        on_one_line(&receipt.backend),
        seconds(receipt.sync_seconds)
    )
}

/// Items other than files with data, and the work of an earlier run.
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
            if files > 0 { format!(", {} whole", counted(files, "file", "files")) } else { String::new() };
        text += &labelled("resumed", &format!("{} were there{files}", traffic(bytes)));
    }
    text
}

#[cfg(test)]
mod tests {
    use thalweg_api::MemoryReceipt;

    use super::*;

    fn sample() -> PumpReceipt {
        let end = |kind: &str, waited_seconds| PumpEnd {
            kind: kind.into(),
            host: String::new(),
            pid: 1,
            peak_bytes: 0,
            bytes: 1_000_000_000,
            direct_bytes: 1_000_000_000,
            cached_bytes: 0,
            completions: 954,
            bytes_per_completion: 1_048_218.0,
            waited_seconds,
            cpu_seconds: 0.15,
            clocks_per_byte: Some(0.39),
        };
        PumpReceipt {
            verb: "pump".into(),
            files: 1,
            bytes: 1_000_000_000,
            directories: 0,
            links: 0,
            hard_links: 0,
            special: 0,
            checksum_in: 0xabc,
            checksum_out: 0xabc,
            proved: true,
            verified: false,
            holds: true,
            seconds: 1.25,
            sync_seconds: 0.001,
            cpu_seconds: 0.3,
            clock_hz: Some(2.6e9),
            streams: 2,
            source: end("disk", 0.7),
            dest: end("disk", 1.5),
            limited_seconds: 0.0,
            bottleneck: "disk write at the destination, 60 % busy".into(),
            link: None,
            backend: "uring".into(),
            fallback: None,
            memory: MemoryReceipt { limit_bytes: 36 << 20, peak_bytes: 39 << 20, huge_page_bytes: 0 },
            resumed_files: 0,
            resumed_bytes: 0,
        }
    }

    #[test]
    fn a_transfer_is_told_in_ten_lines() {
        let expected = "\
moved 1 file, 1 000 000 000 bytes, in 1.25 s: 800 MB/s, 0.30 CPU-s
in        checksum 00000000000000000000000000000abc
out       checksum 00000000000000000000000000000abc
invariant out = in: holds
ends              bytes   direct     each  waited     CPU  clocks/byte
  source: disk  1.00 GB  1.00 GB  1.05 MB  0.70 s  0.15 s         0.39
  dest: disk    1.00 GB  1.00 GB  1.05 MB  1.50 s  0.15 s         0.39
slowest   disk write at the destination, 60 % busy
io        uring, 2 streams, made durable in 0.001 s
memory    peak 39 MiB, of which blocks at most 36 MiB
";
        assert_eq!(pump(&sample()), expected);
    }

    #[test]
    fn what_a_tree_holds_beside_files_and_what_was_there_is_told() {
        let mut tree = sample();
        (tree.directories, tree.links, tree.hard_links, tree.special) = (1, 2, 1, 3);
        (tree.resumed_files, tree.resumed_bytes, tree.verified) = (1000, 5_000_000, true);
        let text = pump(&tree);
        for line in [
            "also      1 directory, 2 symbolic links, 1 further name of a file\n",
            "left out  3 pipes, sockets or devices\n",
            "resumed   5.00 MB were there, 1 000 files whole\n",
            "invariant out = in: holds; read back from the disk, and the same\n",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }

    #[test]
    fn what_is_wrong_or_was_not_looked_at_is_said() {
        let broken = PumpReceipt { holds: false, ..sample() };
        assert!(pump(&broken).contains("out = in: BROKEN"));
        let bare = PumpReceipt { proved: false, clock_hz: None, ..sample() };
        assert!(pump(&bare).contains("nobody looked") && !pump(&bare).contains("checksum 0"));
        let limited = PumpReceipt { limited_seconds: 2.0, ..sample() };
        assert!(pump(&limited).contains("; lanes waited 2.00 s for --limit\n"));
    }
}

//! The receipt of a transfer. Text from the other end may contain anything; it stays on its line.

use thalweg_api::{PumpChange, PumpEnd, PumpItem, PumpLink, PumpReceipt};
use thalweg_base::units::{Bytes, Count};

use super::columns::{columns, labelled, rate, seconds, traffic};
use crate::print::on_one_line;

/// The amount copied, the proof that it arrived unchanged, the cost at each end, and the slowest part.
pub(crate) fn pump(receipt: &PumpReceipt) -> String {
    if receipt.dry_run {
        return dry_run(receipt);
    }
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

/// The most entries that were left out to be shown.
const LEFT_OUT_SHOWN: usize = 100;

/// A line for each entry that was left out, the most that are shown, and one with their number; none if there are none.
pub(crate) fn left_out(receipt: &PumpReceipt) -> Vec<String> {
    let count = receipt.left_out;
    let mut lines: Vec<String> = receipt.errors.iter().take(LEFT_OUT_SHOWN).map(|e| e.why.clone()).collect();
    if receipt.not_deleted > 0 {
        let stays = counted(receipt.not_deleted, "entry was", "entries were");
        lines.push(format!(
            "{stays} not deleted, because {} were, the most that --max-delete allows",
            Count(receipt.deleted)
        ));
    }
    if count == 0 {
        return lines;
    }
    let shown = receipt.errors.len().min(LEFT_OUT_SHOWN);
    let more = count.saturating_sub(shown as u64);
    if more > 0 {
        let where_from = if receipt.errors.len() > shown { ", which --json lists" } else { "" };
        lines.push(format!("and {} more{where_from}", Count(more)));
    }
    lines.push(format!("copied but for {} of {}", Count(count), counted(receipt.found, "entry", "entries")));
    lines
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", Count(count), if count == 1 { one } else { many })
}

/// The changes that a transfer would make, by path, and how much it would copy.
fn dry_run(receipt: &PumpReceipt) -> String {
    let mut items: Vec<_> = receipt.items.iter().collect();
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let line = |item: &&PumpItem| {
        let change = match item.change {
            PumpChange::New => "new",
            PumpChange::Changed => "changed",
            PumpChange::Attributes => "attributes",
            PumpChange::Deleted => "deleted",
        };
        format!("{change:10} {}\n", on_one_line(&item.path))
    };
    let mut text: String = items.iter().map(line).collect();
    let (files, bytes) = (counted(receipt.files, "file", "files"), Count(receipt.bytes));
    text += &format!("would copy {files}, {bytes} bytes; nothing was changed\n");
    text + &others(receipt)
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
    let law = if receipt.left_out == 0 { "out = in" } else { "out + left out = in" };
    if !receipt.proved {
        return labelled("invariant", &format!("{law}: nobody looked; no checksum was taken"));
    }
    let verdict = if receipt.holds { "holds" } else { "BROKEN" };
    let back = if receipt.verified { "; read back from the disk, and the same" } else { "" };
    labelled("in", &format!("checksum {:032x}", receipt.checksum_in))
        + &labelled("out", &format!("checksum {:032x}", receipt.checksum_out))
        + &labelled("invariant", &format!("{law}: {verdict}{back}"))
}

fn ends(receipt: &PumpReceipt) -> String {
    let heads = ["ends", "bytes", "direct", "each", "waited", "CPU", "clocks/byte"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.push(end("  source", &receipt.source));
    rows.extend([&receipt.dest].into_iter().chain(&receipt.onward).map(|dest| end("  dest", dest)));
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
    if receipt.left_out > 0 {
        let errors = format!(
            "{} of {}, because of errors",
            Count(receipt.left_out),
            counted(receipt.found, "entry", "entries")
        );
        text += &labelled("left out", &errors);
    }
    for (count, label) in [(receipt.excluded, "excluded"), (receipt.deleted, "deleted")] {
        if count > 0 {
            text += &labelled(label, &counted(count, "entry", "entries"));
        }
    }
    if receipt.skipped > 0 {
        let skipped = counted(receipt.skipped, "entry", "entries");
        text += &labelled("skipped", &format!("{skipped}, because of what is at the destination"));
    }
    if receipt.not_kept > 0 {
        let attributes = counted(receipt.not_kept, "extended attribute", "extended attributes");
        let first: Vec<String> = receipt.not_kept_first.iter().map(|line| on_one_line(line)).collect();
        text += &labelled("not kept", &format!("{attributes}, as of {}", first.join("; ")));
    }
    if receipt.changed_directories > 0 {
        let changed = counted(receipt.changed_directories, "directory", "directories");
        text += &labelled("changed", &format!("names came or went in {changed} meanwhile"));
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
    use thalweg_api::{LeftOut, LeftOutKind, MemoryReceipt};

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
            checksum_left_out: 0,
            found: 1,
            left_out: 0,
            errors: Vec::new(),
            changed_directories: 0,
            excluded: 0,
            deleted: 0,
            not_deleted: 0,
            skipped: 0,
            not_kept: 0,
            not_kept_first: Vec::new(),
            dry_run: false,
            items: Vec::new(),
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
            onward: Vec::new(),
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
    fn what_was_left_out_is_listed_up_to_a_hundred_and_counted() {
        assert_eq!(left_out(&sample()), Vec::<String>::new());
        let error = |n| LeftOut {
            path: format!("f{n}"),
            kind: LeftOutKind::Unreadable,
            why: format!("cannot open f{n}: Permission denied"),
        };
        let some = PumpReceipt { found: 9, left_out: 1, errors: vec![error(5)], ..sample() };
        assert_eq!(left_out(&some), ["cannot open f5: Permission denied", "copied but for 1 of 9 entries"]);
        let text = pump(&some);
        for line in ["out + left out = in: holds\n", "left out  1 of 9 entries, because of errors\n"] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        let many =
            PumpReceipt { found: 9000, left_out: 1234, errors: (0..1234).map(error).collect(), ..sample() };
        let lines = left_out(&many);
        assert_eq!(lines.len(), 102);
        assert_eq!(
            lines[100..],
            ["and 1 134 more, which --json lists", "copied but for 1 234 of 9 000 entries"]
        );
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

//! The receipt of a run.

use thalweg_api::{GrownInputs, Proof, Receipt, Sides, Stage};
use thalweg_base::units::{Bytes, Count, MIB};

use super::columns::{columns, labelled, rate, records, seconds, traffic};
use super::partition::partition;

/// The records in and out, the invariant, and the cost next to the plan's prediction.
pub(crate) fn receipt(receipt: &Receipt) -> String {
    let mut text = headline(receipt);
    text += &proofs(receipt);
    text += &stages(receipt);
    text += &labelled("disk", &disk(receipt));
    if receipt.scratch_peak_bytes > 0 {
        text += &labelled("scratch", &scratch(receipt));
    }
    text += &labelled("io", &io(receipt));
    text += &labelled("memory", &memory(receipt));
    text += &nodes(receipt);
    for (i, why) in receipt.failed.iter().enumerate() {
        text += &labelled("attempt", &format!("{} failed: {why}", i + 1));
    }
    text += &resumed(receipt);
    if !receipt.not_kept.is_empty() {
        text += &labelled("replaced", &format!("a file, without {}", receipt.not_kept.join(", ")));
    }
    text += &receipt.grown.as_ref().map_or_else(String::new, grown);
    text + &receipt.partition.as_ref().map_or_else(String::new, partition)
}

/// The work of an earlier run; empty if the run started from the beginning.
fn resumed(receipt: &Receipt) -> String {
    let Receipt { resumed_bytes, resumed_output_bytes, .. } = *receipt;
    let mut spared = Vec::new();
    if resumed_bytes > 0 {
        spared.push(format!("{} of the input did not have to be read again", traffic(resumed_bytes)));
    }
    if resumed_output_bytes > 0 {
        spared.push(format!("{} of the output were there", traffic(resumed_output_bytes)));
    }
    if spared.is_empty() { String::new() } else { labelled("resumed", &spared.join(", ")) }
}

/// What was not read of inputs that grew.
pub(super) fn grown(grown: &GrownInputs) -> String {
    let many = |n: u64, one: &str| format!("{} {one}{}", Count(n), if n == 1 { "" } else { "s" });
    let left_out = match grown.incomplete_records {
        0 => String::new(),
        n => format!(
            "; {} of {} left out",
            many(n, "incomplete last record"),
            many(grown.incomplete_bytes, "byte")
        ),
    };
    let inputs = many(grown.inputs, "input");
    labelled(
        "grown",
        &format!("{inputs} by {} since the start, which are not read{left_out}", many(grown.bytes, "byte")),
    )
}

fn headline(receipt: &Receipt) -> String {
    let (done, proof, bytes) = match receipt.verb.as_str() {
        "sort" => ("sorted", &receipt.input, receipt.input_file_bytes),
        "partition" => ("parted", &receipt.input, receipt.input_file_bytes),
        "merge" => ("merged", &receipt.input, receipt.input_file_bytes),
        "join" => ("joined", &receipt.input, receipt.input_file_bytes),
        "shuffle" => ("shuffled", &receipt.input, receipt.input_file_bytes),
        "gen" => ("generated", &receipt.output, receipt.output_file_bytes),
        other => (other, &receipt.output, receipt.output_file_bytes),
    };
    format!(
        "{done} {}, {} bytes, in {}: {}, {:.2} CPU-s\n",
        records(proof.records),
        Count(bytes),
        seconds(receipt.seconds),
        rate(bytes, receipt.seconds),
        receipt.cpu_seconds
    )
}

fn proofs(receipt: &Receipt) -> String {
    let makes = receipt.verb == "gen";
    let mut text = String::new();
    if let Some(sides) = &receipt.sides {
        return text + &joined(receipt, sides);
    }
    if !makes {
        text += &proof("in", &receipt.input, receipt.input_file_bytes, receipt);
    }
    text += &proof("out", &receipt.output, receipt.output_file_bytes, receipt);
    if receipt.dropped.records > 0 {
        text += &proof("dropped", &receipt.dropped, receipt.dropped.bytes, receipt);
    }
    if receipt.verb == "partition" {
        return text
            + &labelled("invariant", if receipt.holds { "out = in: holds" } else { "out = in: BROKEN" });
    }
    if makes {
        return text;
    }
    let invariant = if receipt.dropped.records > 0 { "out + dropped = in" } else { "out = in" };
    let verdict = if receipt.holds { "holds" } else { "BROKEN" };
    if !receipt.proved {
        return text
            + &labelled(
                "invariant",
                &format!("{invariant}: {verdict} in counts; nobody looked at the records"),
            );
    }
    if receipt.verb == "shuffle" {
        return text + &labelled("invariant", &format!("{invariant}: {verdict}"));
    }
    let order = match receipt.output.unordered {
        0 => "in order".to_string(),
        n => format!("{} OUT OF ORDER", records(n)),
    };
    let duplicates = Count(receipt.output.duplicates);
    text + &labelled("invariant", &format!("{invariant}: {verdict}; {order}, {duplicates} duplicate keys"))
}

/// The inputs and the output of a join.
fn joined(receipt: &Receipt, sides: &Sides) -> String {
    let bytes = |proof: &Proof| proof.bytes;
    let mut text = proof("left", &sides.left, bytes(&sides.left), receipt);
    text += &proof("right", &sides.right, bytes(&sides.right), receipt);
    text += &proof("out", &receipt.output, receipt.output_file_bytes, receipt);
    let verdict = if receipt.holds { "holds" } else { "BROKEN" };
    // An inner join does not count records without a match.
    let alone = match sides.unmatched {
        0 => String::new(),
        alone => format!(", {} without a match", Count(alone)),
    };
    let pairs = Count(sides.pairs);
    text + &labelled("invariant", &format!("out = left x right, key by key: {verdict}; {pairs} pairs{alone}"))
}

/// Records, bytes and checksum. If the files also hold newlines, both numbers of bytes are shown.
fn proof(label: &str, proof: &Proof, file_bytes: u64, receipt: &Receipt) -> String {
    let checksum =
        if receipt.proved { format!("checksum {:032x}", proof.checksum) } else { "no checksum taken".into() };
    let bytes = if file_bytes == proof.bytes {
        String::new()
    } else {
        format!(", {} bytes ({} without newlines)", Count(file_bytes), Count(proof.bytes))
    };
    labelled(label, &format!("{}{bytes}, {checksum}", records(proof.records)))
}

fn stages(receipt: &Receipt) -> String {
    if receipt.stages.is_empty() {
        return String::new();
    }
    let heads = ["stages", "took", "planned", "waited: reads", "writes", "read", "written"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(receipt.stages.iter().map(stage));
    // In a sort on a cluster either every stage has a prediction, or none.
    let of_stages = || receipt.stages.iter().map(|stage| stage.predicted_seconds).sum::<Option<f64>>();
    let of_nodes = || of_stages().filter(|_| !receipt.nodes.is_empty());
    if let Some(planned) = receipt.plan.as_ref().map(|plan| plan.seconds).or_else(of_nodes) {
        rows.push(vec!["  in all".into(), seconds(receipt.seconds), seconds(planned)]);
    }
    columns(&rows)
}

/// The work of each node, if there were several. Times count from the request to the node.
fn nodes(receipt: &Receipt) -> String {
    if receipt.nodes.is_empty() {
        return String::new();
    }
    let heads = ["nodes", "read", "sent", "received", "wrote", "range came", "written", "CPU", "memory"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(receipt.nodes.iter().map(|node| {
        vec![
            format!("  {}", node.host),
            records(node.input.0),
            traffic(node.link_bytes.0),
            traffic(node.link_bytes.1),
            traffic(node.output.1),
            seconds(node.seconds[1]),
            seconds(node.seconds[2]),
            seconds(node.cpu_seconds),
            Bytes(node.peak_bytes).to_string(),
        ]
    }));
    columns(&rows)
}

fn stage(stage: &Stage) -> Vec<String> {
    vec![
        format!("  {}", stage.name),
        seconds(stage.seconds),
        stage.predicted_seconds.map_or("-".into(), seconds),
        seconds(stage.waited_read_seconds),
        seconds(stage.waited_write_seconds),
        traffic(stage.read_bytes),
        traffic(stage.written_bytes),
    ]
}

fn disk(receipt: &Receipt) -> String {
    let io = &receipt.io;
    let cached = match io.cached_input_bytes {
        0 => String::new(),
        cached => format!(" ({} of it from the page cache)", traffic(cached)),
    };
    let input = match io.input.read_bytes {
        0 => String::new(),
        read => format!("input read {}{cached}, ", traffic(read)),
    };
    format!("{input}output written {}", traffic(io.output.written_bytes))
}

fn scratch(receipt: &Receipt) -> String {
    let scratch = &receipt.io.scratch;
    let (written, read) = (traffic(scratch.written_bytes), traffic(scratch.read_bytes));
    format!("written {written}, read {read}, at most {} at once", traffic(receipt.scratch_peak_bytes))
}

fn io(receipt: &Receipt) -> String {
    let io = &receipt.io;
    let output = if io.direct_output { "direct output" } else { "output through the page cache" };
    let fallback = io.fallback.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{}{fallback}, {output}", io.backend)
}

fn memory(receipt: &Receipt) -> String {
    let memory = &receipt.memory;
    let promised = match memory.limit_bytes {
        0 => String::new(),
        limit if memory.peak_bytes > promised(limit) => {
            format!(", MORE than was promised, {}; see thalweg doctor", promise(limit))
        }
        limit => format!(", promised at most {}", promise(limit)),
    };
    format!("peak {}{promised}, {} in huge pages", Bytes(memory.peak_bytes), Bytes(memory.huge_page_bytes))
}

/// The least by which a peak may exceed the limit.
const SLACK_MIN: u64 = 2 * MIB;

/// The allowed peak: the limit plus 5 % or 2 MiB, whichever is larger.
fn promise(limit: u64) -> String {
    let (twentieth, least) = (limit / 20, SLACK_MIN);
    let slack = if twentieth > least { "5 %".to_string() } else { Bytes(least).to_string() };
    format!("{} ({} and {slack})", Bytes(promised(limit)), Bytes(limit))
}

fn promised(limit: u64) -> u64 {
    limit + (limit / 20).max(SLACK_MIN)
}

#[cfg(test)]
mod tests {
    use thalweg_api::{Disk, IoReceipt, MemoryReceipt};

    use super::*;

    fn sample() -> Receipt {
        let proof =
            Proof { records: 2_000_000, bytes: 200_000_000, checksum: 0xabc, unordered: 0, duplicates: 3 };
        let stage = Stage {
            name: "read+distribute".into(),
            seconds: 0.1234,
            predicted_seconds: Some(0.1),
            waited_read_seconds: 0.05,
            waited_write_seconds: 0.0,
            read_bytes: 200_000_000,
            written_bytes: 120_000_000,
        };
        Receipt {
            verb: "sort".into(),
            input: proof,
            output: proof,
            dropped: Proof::default(),
            input_file_bytes: 200_000_000,
            output_file_bytes: 200_000_000,
            proved: true,
            holds: true,
            seconds: 0.25,
            cpu_seconds: 0.3,
            stages: vec![stage],
            io: IoReceipt {
                backend: "threads".into(),
                fallback: Some("io_uring is disabled".into()),
                cached_input_bytes: 50_000_000,
                direct_output: true,
                input: Disk { read_bytes: 200_000_000, written_bytes: 0 },
                scratch: Disk { read_bytes: 120_000_000, written_bytes: 120_000_000 },
                output: Disk { read_bytes: 0, written_bytes: 200_000_000 },
            },
            memory: MemoryReceipt { limit_bytes: 100 << 20, peak_bytes: 90 << 20, huge_page_bytes: 0 },
            scratch_peak_bytes: 120_000_000,
            ..Receipt::default()
        }
    }

    #[test]
    fn a_sort_is_told_in_ten_lines() {
        let expected = "\
sorted 2 000 000 records, 200 000 000 bytes, in 0.25 s: 800 MB/s, 0.30 CPU-s
in        2 000 000 records, checksum 00000000000000000000000000000abc
out       2 000 000 records, checksum 00000000000000000000000000000abc
invariant out = in: holds; in order, 3 duplicate keys
stages               took  planned  waited: reads   writes    read  written
  read+distribute  0.12 s   0.10 s        0.050 s  0.000 s  200 MB   120 MB
disk      input read 200 MB (50 MB of it from the page cache), output written 200 MB
scratch   written 120 MB, read 120 MB, at most 120 MB at once
io        threads (io_uring is disabled), direct output
memory    peak 90 MiB, promised at most 105 MiB (100 MiB and 5 %), 0 B in huge pages
";
        assert_eq!(receipt(&sample()), expected);
    }

    /// A peak of 64.45 MiB next to "64 MiB promised" was read as a broken promise; the promise allows a little more.
    #[test]
    fn the_promise_of_memory_is_told_with_what_it_allows() {
        for (limit, told) in [
            (16 * MIB, "18 MiB (16 MiB and 2 MiB)"),
            (40 * MIB, "42 MiB (40 MiB and 2 MiB)"),
            (64 * MIB, "67.20 MiB (64 MiB and 5 %)"),
            (256 * MIB, "268.80 MiB (256 MiB and 5 %)"),
        ] {
            assert_eq!(promise(limit), told);
        }
        let mut broken = sample();
        broken.memory.peak_bytes = 106 * MIB;
        let text = receipt(&broken);
        assert!(text.contains("peak 106 MiB, MORE than was promised, 105 MiB (100 MiB and 5 %)"), "{text}");
        let mut bare = sample();
        bare.memory.limit_bytes = 0;
        assert!(receipt(&bare).contains("memory    peak 90 MiB, 0 B in huge pages\n"), "{}", receipt(&bare));
    }

    /// A receipt with 6 bytes for a file of 9 looked like three lost bytes.
    #[test]
    fn of_lines_the_bytes_of_the_file_are_told_and_those_without_newlines() {
        let mut lines = sample();
        lines.input_file_bytes = 201_999_999;
        lines.output_file_bytes = 202_000_000;
        let text = receipt(&lines);
        assert!(
            text.starts_with("sorted 2 000 000 records, 201 999 999 bytes, in 0.25 s: 808 MB/s"),
            "{text}"
        );
        let told =
            "in        2 000 000 records, 201 999 999 bytes (200 000 000 without newlines), checksum 0";
        assert!(text.contains(told), "{text}");
        assert!(
            text.contains("out       2 000 000 records, 202 000 000 bytes (200 000 000 without"),
            "{text}"
        );
    }

    #[test]
    fn what_is_wrong_is_said_loudly() {
        let mut broken = sample();
        broken.holds = false;
        broken.output.unordered = 7;
        broken.dropped = Proof { records: 1, ..Proof::default() };
        broken.resumed_bytes = 1_000_000;
        let text = receipt(&broken);
        assert!(text.contains("out + dropped = in: BROKEN; 7 records OUT OF ORDER"), "{text}");
        assert!(text.contains("resumed   1.00 MB of the input"), "{text}");
        assert!(!text.contains("of the output were there"), "{text}");
        broken.resumed_output_bytes = 2_000_000;
        let text = receipt(&broken);
        assert!(text.contains("to be read again, 2.00 MB of the output were there\n"), "{text}");
    }

    #[test]
    fn without_checksums_the_counts_are_told_and_that_there_are_none() {
        let mut bare = sample();
        bare.proved = false;
        bare.output.duplicates = 0;
        let text = receipt(&bare);
        assert!(text.contains("in        2 000 000 records, no checksum taken\n"), "{text}");
        assert!(
            text.contains("invariant out = in: holds in counts; nobody looked at the records\n"),
            "{text}"
        );
    }

    #[test]
    fn generated_records_have_no_order_to_speak_of() {
        let mut made = sample();
        made.verb = "gen".into();
        made.output.unordered = 7;
        let text = receipt(&made);
        assert!(text.starts_with("generated 2 000 000 records"), "{text}");
        assert!(!text.contains("invariant") && !text.contains("\nin "), "{text}");
    }
}

//! The verbs end to end, and their reaction to bad input, full disks and small limits.

use thalweg_api::{Check, DoctorReport, Plan, Receipt, from_json};

use super::support::Place;

const BENCH: &str = "--datamation";

#[test]
fn records_are_generated_sorted_and_checked() {
    let place = Place::new();
    let told = place.run(&["gen", "100k", "records"]);
    assert!(told.is_done().starts_with("generated 100 000 records, 10 000 000 bytes"), "{told:?}");
    let told = place.run(&["check", BENCH, "records"]);
    assert_eq!(told.status, Some(1), "{told:?}");
    assert!(told.out.contains("First unordered record is record 2\nRecords: 100000\n"), "{told:?}");
    assert!(told.out.contains("ERROR - there are "), "{told:?}");

    let told = place.run(&["sort", "records", "-o", "sorted", BENCH, "--memory", "64MiB"]);
    assert!(told.is_done().starts_with("sorted 100 000 records, 10 000 000 bytes"), "{told:?}");
    assert!(told.out.contains("invariant out = in: holds; in order, 0 duplicate keys\n"), "{told:?}");
    let told = place.run(&["check", BENCH, "sorted"]);
    let lines: Vec<&str> = told.is_done().lines().collect();
    assert_eq!(
        (lines[0], lines[2], lines[3]),
        ("Records: 100000", "Duplicate keys: 0", "SUCCESS - all records are in order")
    );
    assert_eq!(place.names(), ["records", "sorted"]);
}

#[test]
fn lines_come_out_as_from_sort_in_the_c_locale() {
    let place = Place::new();
    place.write("in", b"b\n\na\nab\n\xff\nB\na b\nb");
    place.run(&["sort", "in", "-o", "out", "--memory", "16MiB"]).is_done();
    place.shell("LC_ALL=C sort -s in > expected").is_done();
    assert_eq!(place.read("out"), place.read("expected"));
    // In place, and between pipes.
    place.run(&["sort", "in", "-o", "in", "-q"]).is_done();
    assert_eq!(place.read("in"), place.read("expected"));
    let piped = place.shell("tac in | $T sort -o - -q | cmp - expected");
    assert_eq!(piped.is_done(), "");
    // Without an output, to standard output.
    assert_eq!(place.shell("$T sort in -q | cmp - expected").is_done(), "");
    let told = place.shell("$T sort in --json > out");
    assert!(told.status == Some(0) && told.err.starts_with('{'), "{told:?}");
    assert_eq!(place.read("out"), place.read("expected"));
    let unique = place.shell("printf 'b\\na\\nb\\n' | $T sort - -o - -q --unique");
    assert_eq!(unique.is_done(), "a\nb\n");
}

/// The flags that the message for `-r` and the help of `--by` recommend do reverse whole lines.
#[test]
fn whole_lines_come_out_in_reverse() {
    let place = Place::new();
    place.write("in", b"b\n\na\nab\n\xff\nB\na b\n\0\na\0\na\0b\nb\n");
    place.run(&["sort", "in", "-o", "out", "--by", "0:4294967295:desc"]).is_done();
    place.shell("LC_ALL=C sort -s -r in > expected").is_done();
    assert_eq!(place.read("out"), place.read("expected"));
    place.run(&["check", "out", "--by", "0:4294967295:desc"]).is_done();
    place.run(&["sort", "out", "-o", "up", "--by", "0:4294967295:asc"]).is_done();
    place.shell("LC_ALL=C sort -s in | cmp - up").is_done();
}

#[test]
fn a_check_prints_the_sum_that_the_receipt_of_the_sort_shows() {
    let place = Place::new();
    place.run(&["gen", "1000", "records", "-q"]).is_done();
    let told = place.run(&["sort", "records", "-o", "sorted", BENCH, "--json"]);
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    let sum = format!("\nXXH3 sum (as in a receipt): {:032x}\n", receipt.output.checksum);
    let told = place.run(&["check", "sorted", BENCH]);
    assert!(told.is_done().contains(&sum), "{told:?}");
    place.write("lines", b"a\nb\n");
    let told = place.run(&["sort", "lines", "-o", "sorted", "--json"]);
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    let told = place.run(&["check", "sorted"]);
    assert!(told.is_done().contains(&format!("{:032x}\n", receipt.output.checksum)), "{told:?}");
}

#[test]
fn a_receipt_tells_the_bytes_of_files_as_the_system_does() {
    let place = Place::new();
    place.write("in", b"b\na\nccc\nb");
    place.write("more", b"\n\n");
    for (inputs, bytes) in
        [("in more", 11), ("- < <(cat more in)", 11), ("in - < <(cat more)", 11), ("in", 9)]
    {
        for unique in ["", "--unique"] {
            let told = place.shell(&format!("$T sort -o out --json {unique} {inputs}"));
            let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
            let written = place.read("out").len() as u64;
            assert_eq!((receipt.input_file_bytes, receipt.output_file_bytes), (bytes, written), "{inputs}");
            assert!(receipt.input.bytes < bytes, "{receipt:?}");
        }
    }
    let told = place.run(&["sort", "in", "-o", "out"]);
    assert!(told.is_done().starts_with("sorted 4 records, 9 bytes, in "), "{told:?}");
    assert!(told.out.contains("in        4 records, 9 bytes (6 without newlines), checksum "), "{told:?}");
    let told = place.run(&["gen", "10", "records", "--json"]);
    let mut receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    assert_eq!((receipt.input_file_bytes, receipt.output_file_bytes), (1000, 1000));
    // A receipt from before these fields existed can still be read.
    let without = told.out.replace("\"input_file_bytes\":1000,\"output_file_bytes\":1000,", "");
    assert_ne!(without, told.out);
    (receipt.input_file_bytes, receipt.output_file_bytes) = (0, 0);
    assert_eq!(from_json::<Receipt>(&without).expect("an older receipt"), receipt);
}

/// Leftovers of a killed sort stayed beside the output when a merge, or a sort on nodes, made it; and the other way
/// round.
#[test]
fn whatever_makes_an_output_clears_what_was_left_of_it() {
    let place = Place::new();
    place.run(&["gen", "1000", "records", "-q"]).is_done();
    let scratch = place.scratch("sorted");
    let of_sorts = [".sorted.thalweg-manifest", ".sorted.thalweg-partial", &scratch];
    let of_others = [".sorted.thalweg-4000000-0.partial"];
    for make in [
        &["sort", "records", "-o", "sorted", BENCH, "-q"][..],
        &["sort", "records", "-o", "sorted", BENCH, "-q", "--nodes", "2", "--memory", "64MiB"],
        &["merge", "sorted", "-o", "sorted", BENCH, "-q"],
    ] {
        of_sorts.iter().chain(&of_others).for_each(|name| place.write(name, b"left"));
        place.run(make).is_done();
        assert_eq!(place.names(), ["records", "sorted"], "{make:?}");
    }
}

/// With a percentage, or another size, the sort did not continue, and did not say so.
#[test]
fn a_resume_that_finds_what_it_cannot_use_says_so() {
    let place = Place::new();
    place.run(&["gen", "1M", "records", "-q"]).is_done();
    let sort = |more: &[&str]| place.run(&[&["sort", "records", "-o", "sorted", BENCH], more].concat());
    let told = sort(&["--memory", "24MiB", "--resume"]);
    told.is_done();
    place.write(".sorted.thalweg-manifest", b"of something else");
    let told = sort(&["--memory", "24MiB", "--resume"]);
    assert_eq!((told.status, told.err.lines().count()), (Some(0), 1), "{told:?}");
    assert!(told.err.starts_with("thalweg: nothing to resume: "), "{told:?}");
    assert!(told.err.ends_with(" left is damaged; beginning anew\n"), "{told:?}");
    assert!(told.out.starts_with("sorted 1 000 000 records"), "{told:?}");
    for more in [&["--resume", "-q"][..], &["-q"]] {
        place.write(".sorted.thalweg-manifest", b"of something else");
        sort(more).is_done();
    }
    assert_eq!(place.names(), ["records", "sorted"]);
}

#[test]
fn the_object_is_the_only_thing_on_standard_output() {
    let place = Place::new();
    let told = place.run(&["gen", "1000", "records", "--json"]);
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    assert_eq!((receipt.verb.as_str(), receipt.output.records, receipt.holds), ("gen", 1000, true));
    let told = place.run(&["sort", "records", "-o", "sorted", BENCH, "--json", "-q"]);
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    assert_eq!((receipt.verb.as_str(), receipt.input.records, receipt.holds), ("sort", 1000, true));
    assert_eq!(receipt.input.checksum, receipt.output.checksum);
    let told = place.run(&["check", "sorted", BENCH, "--json"]);
    let check: Check = from_json(told.is_done()).expect("one check");
    assert_eq!((check.crc_sum, check.ordered), (0x1ea6370b955, true));
    let told = place.run(&["plan", "sort", "records", "-o", "sorted", BENCH, "--json"]);
    let plan: Plan = from_json(told.is_done()).expect("one plan");
    assert_eq!((plan.records, plan.input_bytes), (1000, 100_000));
    let told = place.run(&["doctor", "--json"]);
    let report: DoctorReport = from_json(told.is_done()).expect("one report");
    assert!(!report.findings.is_empty());
    place.run(&["check", "missing", "--json"]).is_refused(&["missing"]);
}

#[test]
fn with_records_on_standard_output_the_receipt_goes_to_standard_error() {
    let place = Place::new();
    let told = place.shell("$T gen 10 - > records");
    assert_eq!((told.status, told.out.as_str()), (Some(0), ""));
    assert!(told.err.starts_with("generated 10 records"), "{told:?}");
    let told = place.shell("$T sort records -o - --datamation --json > sorted");
    let receipt: Receipt = from_json(&told.err).expect("one receipt");
    assert_eq!(receipt.output.records, 10);
    assert_eq!(place.read("sorted").len(), 1000);
    // What a shell wrote before is not overwritten.
    let told = place.shell("{ echo first; $T gen 1 - -q --ascii; } > both && head -c 14 both");
    assert_eq!(told.is_done(), "first\nAsfAGHM5");
}

#[test]
fn progress_is_shown_when_asked_for_and_quiet_is_quiet() {
    let place = Place::new();
    let told = place.run(&["gen", "10k", "records", "--progress", "always"]);
    assert_eq!(told.status, Some(0));
    assert!(told.err.lines().all(|line| line.starts_with('[')), "{told:?}");
    assert!(told.err.lines().last().is_some_and(|line| line.contains(" done after ")), "{told:?}");
    assert_eq!(place.run(&["sort", "records", "-o", "sorted", BENCH, "-q"]).is_done(), "");
    assert_eq!(place.run(&["check", "sorted", BENCH, "-q"]).is_done(), "");
    let told = place.run(&["check", "records", BENCH, "-q"]);
    assert_eq!((told.status, told.out.as_str(), told.err.as_str()), (Some(1), "", ""));
}

#[test]
fn plans_and_doctors_are_read_by_people() {
    let place = Place::new();
    place.run(&["gen", "10k", "records", "-q"]).is_done();
    let told = place.run(&["plan", "sort", "records", "-o", "sorted", BENCH, "--memory", "32MiB"]);
    assert!(told.is_done().starts_with("plan to sort 10 000 records, 1 000 000 bytes"), "{told:?}");
    assert_eq!(place.names(), ["records"], "a plan runs nothing");
    place.run(&["gen", "300k", "large", "-q"]).is_done();
    for command in [&["plan", "sort"][..], &["sort"], &["sort", "--resume"]] {
        let args = ["large", "-o", "sorted", BENCH, "--memory", "16MiB", "--scratch-limit", "1MiB"];
        let told = place.run(&[command, &args].concat());
        told.is_refused(&[
            "the scratch limit of 1 MiB is reached: ",
            " of scratch needed, 1 MiB of it left; ",
        ]);
        assert_eq!(place.names(), ["large", "records"], "{command:?}");
    }
    let told = place.run(&["doctor"]);
    for name in ["io_uring", "direct I/O", "open files", "huge pages"] {
        assert!(told.is_done().contains(name), "{name} in {told:?}");
    }
}

#[test]
fn bad_input_is_refused_with_one_line_and_nothing_is_touched() {
    let place = Place::new();
    place.write("odd", &[b'x'; 150]);
    std::fs::create_dir(place.0.join("folder")).unwrap();
    let before = place.names();
    let cases: &[(&[&str], &[&str])] = &[
        (&["sort", "odd", "-o", "out", "--record", "100"], &["odd", "150", "100"]),
        (&["sort", "odd", "-o", "out", "--record", "50", "--by", "45:10"], &["45:10", "50"]),
        (&["sort", "missing", "-o", "out"], &["missing"]),
        (&["sort", "folder", "-o", "out"], &["folder", "directory"]),
        (&["sort", "odd", "-o", "nowhere/out"], &["nowhere"]),
        (&["sort", "odd", "-o", "folder"], &["folder", "directory"]),
        (&["sort", "odd", "-o", "out", "--scratch", "nowhere"], &["nowhere"]),
        (&["sort", "odd", "-o", "out", "--memory", "1MiB"], &["1 MiB", "at least"]),
        (&["gen", "10", "nowhere/out"], &["nowhere"]),
        (&["gen", "10", "folder"], &["folder", "directory"]),
        (&["check", "missing"], &["missing"]),
        (&["check", "odd", "--summary", "s"], &["--datamation"]),
        (&["check", "odd", "--merge"], &["280"]),
    ];
    for (args, holds) in cases {
        place.run(args).is_refused(holds);
        assert_eq!(place.names(), before, "{args:?}");
    }
}

#[test]
fn a_disk_that_is_full_is_an_error_and_a_reader_that_left_is_a_signal() {
    let place = Place::new();
    let told = place.shell("$T gen 100k - > /dev/full");
    told.is_refused(&["No space left on device"]);
    place.run(&["gen", "100k", "/dev/full"]).is_refused(&["/dev/full", "No space left on device"]);
    place.run(&["gen", "10k", "records", "-q"]).is_done();
    place.run(&["sort", "records", "-o", "/dev/full", BENCH]).is_refused(&["/dev/full", "No space left"]);
    let told = place.shell("$T gen 1M - -q | head -c 100 | wc -c; echo ${PIPESTATUS[0]}");
    assert_eq!(told.is_done(), "100\n141\n");
    let told = place.shell("$T sort records -o - --datamation | head -c 100 | wc -c; echo ${PIPESTATUS[0]}");
    assert_eq!(told.is_done(), "100\n141\n");
    // If nobody reads the receipt, the command succeeds; if the receipt cannot be written, it fails.
    let told = place.shell("$T sort records -o sorted --datamation > /dev/full");
    told.is_refused(&["standard output", "No space left on device", "the output is complete"]);
    assert_eq!(place.names(), ["records", "sorted"]);
}

#[test]
fn little_memory_and_few_files_are_enough() {
    let place = Place::new();
    place.run(&["gen", "1M", "records", "--skewed", "-q"]).is_done();
    let line =
        "ulimit -n 64 && ulimit -l 8192 && $T sort records -o sorted --datamation --memory 16MiB --json";
    let told = place.shell(line);
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    let limit = 16u64 << 20;
    assert!(receipt.memory.peak_bytes <= limit + (2 << 20), "{receipt:?}");
    assert_eq!((receipt.input.records, receipt.holds, receipt.output.unordered), (1_000_000, true, 0));
    place.run(&["check", "sorted", BENCH]).is_done();
    assert_eq!(place.names(), ["records", "sorted"]);
}

/// A ring is an open file. With a low limit on open files, the sort failed in the middle, or could not open its scratch
/// file.
#[test]
fn where_open_files_are_few_threads_do_it_or_one_line_says_so() {
    let place = Place::new();
    place.run(&["gen", "300k", "records", "-q"]).is_done();
    let unlimited = place.run(&["gen", "10", "ten", "--json"]);
    let unlimited: Receipt = from_json(unlimited.is_done()).expect("one receipt");
    let mut done = Vec::new();
    // The process that runs the tests may leave files open in them.
    let alone = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    for files in 5..24 {
        for memory in ["64MiB", "16MiB"] {
            let sort = format!("$T sort records -o sorted --datamation --threads 4 --memory {memory} --json");
            let told = place.shell(&format!("{alone}; ulimit -n {files}; exec {sort}"));
            if told.status == Some(2) {
                told.is_refused(&["open files", "ulimit -n"]);
                assert!(done.is_empty() || memory == "16MiB", "{files} were enough before");
                // If a directory cannot be synced, the error comes after the output has got its name.
                let named =
                    told.err.contains("cannot sync") && std::fs::remove_file(place.0.join("sorted")).is_ok();
                assert_eq!(place.names(), ["records", "ten"], "with {files}, {named}");
                continue;
            }
            let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
            let why = receipt.io.fallback.clone().unwrap_or_default();
            assert!(receipt.holds && receipt.input.records == 300_000);
            assert!(receipt.io.backend == unlimited.io.backend || why.contains("ulimit -n"), "{receipt:?}");
            done.push((files, memory, receipt.io.backend));
            // Whatever could be opened, others may read it as far as they may read other new files.
            assert_eq!(place.shell("stat -c %a ten sorted | uniq | wc -l; rm sorted").is_done(), "1\n");
        }
    }
    let first = |memory| done.iter().find(|row| row.1 == memory).map(|row| row.0);
    assert!(first("64MiB").is_some_and(|files| files <= 8), "{done:?}");
    assert!(first("16MiB").is_some_and(|files| files <= 10), "{done:?}");
    if unlimited.io.backend == "uring" {
        assert_eq!(done[0].2, "threads");
        assert_eq!(done.last().unwrap().2, "uring", "{done:?}");
        place
            .shell(&format!("{alone}; ulimit -n 8; $T sort records -o out --io uring"))
            .is_refused(&["ulimit -n"]);
        // A command that does not count its files beforehand uses rings as long as it gets them.
        let told = place.shell(&format!("{alone}; ulimit -n 7; $T gen 300k more --json"));
        let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
        assert_eq!(receipt.io.backend, if receipt.io.fallback.is_some() { "uring+threads" } else { "uring" });
    }
}

/// Memory sizes that no machine has overflowed 64 bits when they were multiplied.
#[test]
fn more_memory_than_the_machine_has_is_what_it_has() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    for size in ["100T", "16777215T"] {
        for input in ["in -o out", "- -o out < <(cat in)"] {
            place.shell(&format!("$T sort --memory {size} -q {input}")).is_done();
            assert_eq!(place.read("out"), b"a\nb\n");
        }
    }
}

#[test]
fn summaries_are_written_and_merged() {
    let place = Place::new();
    place.shell("$T gen 1000 records -q && $T sort records -o sorted -q --datamation").is_done();
    place.shell("head -c 60000 sorted > 0; tail -c 40000 sorted > 1").is_done();
    for part in ["0", "1"] {
        place.run(&["check", part, BENCH, "--summary", &format!("{part}.sum")]).is_done();
    }
    let whole = place.run(&["check", "sorted", BENCH]);
    let merged = place.run(&["check", "--merge", "0.sum", "1.sum"]);
    // Summaries do not contain the sum of the last line.
    let known = |text: &str| text.lines().filter(|line| !line.starts_with("XXH3")).count();
    assert!(whole.is_done().starts_with(merged.is_done()), "{merged:?} {whole:?}");
    assert_eq!(merged.out.lines().count(), known(&whole.out));
    assert_eq!(place.run(&["check", "0", "1", BENCH]).is_done(), whole.out);
    let swapped = place.run(&["check", "--merge", "1.sum", "0.sum"]);
    assert_eq!(swapped.status, Some(1));
    assert!(swapped.out.contains("First unordered record is record 400\n"), "{swapped:?}");
    assert_eq!(place.read("0.sum").len(), 280);
}

#[test]
fn an_empty_file_is_in_order() {
    let place = Place::new();
    place.write("empty", b"");
    let told = place.run(&["check", "empty"]);
    assert!(told.is_done().ends_with("The input is empty\n"), "{told:?}");
    place.run(&["sort", "empty", "-o", "sorted", "-q"]).is_done();
    assert_eq!(place.read("sorted"), b"");
}

/// The place of a page has eight bits for its file: pages in the 257th were looked for in the first, and counted as
/// damaged.
#[test]
fn as_many_scratch_directories_as_pages_can_tell_apart_are_used_and_no_more() {
    let place = Place::new();
    place.shell("mkdir s{0..256}; $T gen 300k in -q").is_done();
    let sort = |last: usize| {
        let all = format!("$(printf -- '--scratch s%d ' {{0..{last}}})");
        place.shell(&format!("$T sort in -o out {BENCH} --memory 16MiB {all} -q"))
    };
    sort(256).is_refused(&["--scratch", "257 scratch directories", "at most 256"]);
    sort(255).is_done();
    place.run(&["check", "out", BENCH, "-q"]).is_done();
}

/// For records of 6 MB in 16 MiB, the messages asked for 25.27, then 31.04, then 32.77 MiB.
#[test]
fn the_memory_that_a_message_names_is_enough() {
    let place = Place::new();
    let random = "head -c 60000000 /dev/urandom > in";
    place.shell(random).is_done();
    place
        .shell("for i in {1..8}; do head -c 4500000 /dev/urandom | base64 -w 0; echo; done > lines")
        .is_done();
    for verb in [
        "sort lines -o out",
        "sort lines -o out --by 2:5 --by 1:1",
        "shuffle lines -o out --seed 1",
        "sort in -o out --record 6000000",
        "sort in -o out --record 3000000 --by 5:100 --by 300:20",
        "shuffle in -o out --record 6000000 --seed 1",
    ] {
        let told = place.shell(&format!("exec $T {verb} --memory 16MiB -q"));
        told.is_refused(&["too small"]);
        let named = told.err.split("needs at least ").nth(1).expect(verb).trim();
        let enough = named.split(';').next().expect("it is first").replace(' ', "");
        place.shell(&format!("exec $T {verb} --memory {enough} -q")).is_done();
    }
    // For records of a tenth of the memory, every sort has enough.
    place
        .shell("exec $T sort in -o out --record 1600000 --by 5:100 --by 300:20 --memory 16MiB -q")
        .is_refused(&["multiple"]);
    place.shell("truncate -s 59200000 in; exec $T sort in -o out --record 1600000 --by 5:100 --by 300:20 --memory 16MiB -q").is_done();
}

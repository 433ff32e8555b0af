//! What `thalweg sort` promises, seen from outside: memory as the kernel counts it, scratch, signals, bad input.
//!
//! Invariant: other processes make and compare inputs, so that this one stays small: what the kernel counts for a child
//! begins with its parent's own memory.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

mod support;

use support::{Place, Running};
use thalweg_api::{Receipt, from_json};

const MIB: u64 = 1 << 20;

impl Place {
    /// Sorts and returns the receipt.
    #[track_caller]
    fn sorts(&self, args: &str, memory_bytes: u64) -> Receipt {
        self.keeps_its_promise(&format!("sort {args} -o sorted"), memory_bytes)
    }

    /// Sorts a stream in 16 MiB, and compares the output with the expected one.
    #[track_caller]
    fn sorts_a_stream_of(&self, file: &str) {
        assert_eq!(self.shell(&format!("mkfifo pipe && {{ cat {file} > pipe & }}")).status, Some(0));
        self.sorts("pipe", 16 * MIB);
        assert_eq!(self.shell("cmp sorted expected && rm pipe").status, Some(0), "a stream of {file}");
    }

    /// Runs a verb, and checks the limit on memory in both ways.
    #[track_caller]
    fn keeps_its_promise(&self, args: &str, memory_bytes: u64) -> Receipt {
        let line = format!("ulimit -n 64 && exec $T {args} --memory {memory_bytes} --json");
        let told = self.shell(&line);
        assert_eq!((told.status, told.err.as_str()), (Some(0), ""), "{args} in {memory_bytes}");
        let receipt: Receipt = from_json(&told.out).expect("one receipt");
        let limit = (memory_bytes / 100 * 105).max(memory_bytes + 2 * MIB);
        let (says, counted) = (receipt.memory.peak_bytes, told.peak_bytes);
        assert!(
            says <= limit && counted <= limit,
            "{args} in {memory_bytes}: {says} said, {counted} counted"
        );
        assert!(counted > memory_bytes / 8, "the kernel counted another process");
        assert!(receipt.holds);
        receipt
    }
}

#[test]
fn memory_is_what_was_promised_for_records() {
    let place = Place::new();
    assert_eq!(place.shell("$T gen 600k records --skewed -q").status, Some(0));
    for memory in [16, 20, 64] {
        place.sorts("records --datamation", memory * MIB);
        let told = place.shell("$T check sorted --datamation -q");
        assert_eq!(told.status, Some(0), "{told:?}");
        assert_eq!(place.names(), ["records", "sorted"]);
    }
}

#[test]
fn memory_is_what_was_promised_for_lines() {
    let place = Place::new();
    let made = place.shell("$T gen 600k lines --ascii -q && LC_ALL=C sort -s lines -o expected");
    assert_eq!(made.status, Some(0), "{made:?}");
    for memory in [16, 20, 64] {
        place.sorts("lines", memory * MIB);
        assert_eq!(place.shell("cmp sorted expected").status, Some(0), "in {memory} MiB");
        assert_eq!(place.names(), ["expected", "lines", "sorted"]);
    }
}

#[test]
fn memory_is_what_was_promised_for_other_verbs() {
    let place = Place::new();
    assert_eq!(place.shell("$T gen 600k a -q && $T sort a -o s --datamation -q").status, Some(0));
    for memory in [16, 64] {
        place.keeps_its_promise("shuffle a -o out --record 100 --seed 1", memory * MIB);
        place.keeps_its_promise("merge s s s s -o out --datamation", memory * MIB);
        place.keeps_its_promise("sort a -o /dev/null --datamation --threads 8", memory * MIB);
    }
    place.keeps_its_promise("join a s -o out --datamation", 64 * MIB);
    place.keeps_its_promise("join a s -o out --datamation", 128 * MIB);
}

/// The points where lanes divide the work were chosen from a sample of whole records, 64 for each lane.
#[test]
fn memory_is_what_was_promised_for_a_merge_of_long_records() {
    let place = Place::new();
    let long = |bytes| format!("{{ head -c {bytes} /dev/zero | tr '\\0' x; echo; }}");
    let made = |first: u32, name: &str| {
        format!(
            "for i in $(seq {first} 2 140); do printf %05d $i; {}; done > lines-{name}; \
             for i in $(seq {first} 2 44); do printf %05d $i; {}; done > records-{name}",
            long(300_000),
            long(999_994),
        )
    };
    place.shell(&format!("{}; {}", made(1, "a"), made(2, "b"))).is_done();
    for memory in [16, 64] {
        place.keeps_its_promise("merge lines-a lines-b -o out", memory * MIB);
        assert_eq!(place.shell("LC_ALL=C sort -m lines-a lines-b | cmp - out").status, Some(0));
        place.keeps_its_promise("merge records-a records-b -o out --record 1000000", memory * MIB);
        assert_eq!(place.shell("LC_ALL=C sort -m records-a records-b | cmp - out").status, Some(0));
    }
}

/// A line that no sample sees, and that is stored whole in a sequence slot, in a proof and in a copy.
#[test]
fn memory_is_what_was_promised_for_a_long_line_among_short_ones() {
    let place = Place::new();
    let long = |bytes| format!("head -c {bytes} /dev/zero | tr '\\0' 5; echo");
    let hidden =
        format!("{{ seq 1000000 5000000; {}; {}; seq 6000000 9000000; }}", long(1 << 20), long(2_000_000));
    let made = place.shell(&format!("{hidden} > lines && LC_ALL=C sort -s lines -o expected"));
    assert_eq!(made.status, Some(0), "{made:?}");
    for memory in [16, 48] {
        place.sorts("lines", memory * MIB);
        assert_eq!(place.shell("cmp sorted expected").status, Some(0), "in {memory} MiB");
        assert_eq!(place.names(), ["expected", "lines", "sorted"]);
    }
    place.sorts_a_stream_of("lines");
    // More of a program that was just written is mapped at once than of one that was read.
    let told = place
        .shell("cp $T copy && T=./copy && ulimit -n 64 && exec $T sort lines -o sorted --memory 16MiB -q");
    assert_eq!((told.status, told.err.as_str()), (Some(0), ""), "a copy");
    assert!(told.peak_bytes <= 18 * MIB, "a copy: {}", told.peak_bytes);
}

/// Keys that agree in more bytes than any sample keeps; these have most of the bytes, but belong to few of the records.
#[test]
fn memory_is_what_was_promised_for_long_lines_that_are_alike() {
    let place = Place::new();
    let alike = "{ head -c 1900000 /dev/zero | tr '\\0' $((i % 3)); echo $((i * 7919 % 101)); }";
    let made = format!("for i in $(seq 40); do {alike}; seq $((i * 1000000)) $((i * 1000000 + 20000)); done");
    let made = place.shell(&format!("{made} > lines && LC_ALL=C sort -s lines -o expected"));
    assert_eq!(made.status, Some(0), "{made:?}");
    for memory in [16, 32] {
        place.sorts("lines", memory * MIB);
        assert_eq!(place.shell("cmp sorted expected").status, Some(0), "in {memory} MiB");
    }
    place.sorts_a_stream_of("lines");
    assert_eq!(place.names(), ["expected", "lines", "sorted"]);
}

#[test]
fn scratch_holds_what_does_not_fit_and_no_more() {
    let place = Place::new();
    {
        let memory = 64 * MIB;
        for times in [1.5, 2.0, 4.0] {
            let records = (memory as f64 * times / 100.0) as u64;
            assert_eq!(place.shell(&format!("$T gen {records} records -q")).status, Some(0));
            let receipt = place.sorts("records --datamation", memory);
            let allowed = 1.05 * ((records * 100) as f64 - 0.8 * memory as f64);
            let peak = receipt.scratch_peak_bytes;
            assert!(peak > 0 && peak as f64 <= allowed, "{times} x {memory}: {peak} > {allowed}");
        }
    }
    // The length of a stream is unknown.
    for (memory, bytes) in [(96 * MIB, 150_000_000), (128 * MIB, 160_000_000), (128 * MIB, 300_000_000)] {
        place.shell(&format!("$T gen {} records -q", bytes / 100)).is_done();
        let line = format!("cat records | $T sort - -o sorted --datamation --memory {memory} --json");
        let receipt: Receipt = from_json(place.shell(&line).is_done().trim()).unwrap();
        // When the lanes take what has arrived depends on how fast the pipe is.
        let allowed = 1.07 * (f64::from(bytes) - 0.8 * memory as f64);
        let peak = receipt.scratch_peak_bytes;
        assert!(peak > 0 && peak as f64 <= allowed, "{bytes} of a stream: {peak} > {allowed}");
        assert!(receipt.memory.peak_bytes <= memory / 20 * 21, "{receipt:?}");
    }
}

#[test]
fn signals_in_the_middle_leave_the_input_and_nothing_else() {
    let place = Place::new();
    assert_eq!(
        place.shell("$T gen 2M records -q && sha256sum records > ../$$.sum && mv ../$$.sum sum").status,
        Some(0)
    );
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        // As soon as a new file exists, the sort is at work.
        let line = format!(
            "set -m; $T sort records -o sorted --datamation --memory 16MiB -q & \
             until [ -n \"$(ls -A | grep thalweg)\" ]; do :; done; kill -{signal} $!; wait $!"
        );
        let told = place.shell(&line);
        assert_eq!(told.status, Some(status), "{told:?}");
        assert_eq!(place.names(), ["records", "sum"]);
    }
    assert_eq!(place.shell("sha256sum -c sum --status").status, Some(0), "the input is whole");
}

/// The bytes that a process has passed to the kernel to write, as the kernel counts them.
fn written_bytes(running: &Running) -> u64 {
    let told = running.told("io");
    let written = told.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("the kernel counts");
    written.parse().expect("a number")
}

/// Sorts, and returns the written bytes: those of the whole run, or at least `most`, after which the process is killed.
fn written_by_sort(place: &Place, args: &str, most: u64) -> (u64, String) {
    let mut command = place.command(&args.split(' ').collect::<Vec<&str>>());
    // The kernel does not count what a ring writes. With this much memory, blocks for input and output are larger than
    // pages.
    command.args(["--datamation", "--memory", "128MiB", "--io", "threads", "--json"]);
    let running = Running::start(&mut command);
    let gone = || running.told("stat").contains(") Z ");
    while written_bytes(&running) < most && !gone() {
        std::thread::yield_now();
    }
    if most < u64::MAX {
        assert!(!gone(), "it has ended");
        running.signal("-KILL");
    }
    let written = written_bytes(&running);
    let told = running.ends();
    assert_eq!(told.status == Some(0), most == u64::MAX);
    (written, told.out)
}

#[test]
fn a_sort_that_is_killed_while_it_writes_does_not_write_all_of_it_again() {
    let place = Place::new();
    assert_eq!(place.shell("$T gen 2M records -q").status, Some(0));
    let (fresh, _) = written_by_sort(&place, "sort records -o expected", u64::MAX);
    // A quarter of the output is missing then.
    let (killed, _) = written_by_sort(&place, "sort records -o sorted", fresh - 50_000_000);
    assert!(!place.names().contains(&"sorted".to_string()), "{:?}", place.names());
    let (resumed, told) = written_by_sort(&place, "sort records -o sorted --resume", u64::MAX);
    let receipt: Receipt = from_json(&told).expect("one receipt");
    println!("{fresh} bytes, killed after {killed}, then {resumed}");
    assert!(receipt.resumed_bytes > 0 && receipt.resumed_output_bytes > 0, "{receipt:?}");
    // A fresh sort writes 0.4 of the input to scratch, and all of it to the output. A resumed one still has to write a
    // quarter, the data between two notes, a range or two, and what went to scratch after the last checkpoint.
    assert!(resumed <= fresh * 35 / 100, "{resumed} bytes were written, {fresh} by a fresh sort");
    assert_eq!(place.shell("cmp sorted expected && rm expected").status, Some(0));
    assert_eq!(place.names(), ["records", "sorted"]);
}

#[test]
fn what_was_left_for_another_size_of_memory_is_not_gone_on_from_and_that_is_said() {
    let place = Place::new();
    assert_eq!(place.shell("$T gen 2M records -q").status, Some(0));
    written_by_sort(&place, "sort records -o sorted", 250_000_000);
    let told = place.shell("$T sort records -o sorted --datamation --memory 65MiB --resume");
    assert_eq!((told.status, told.err.lines().count()), (Some(0), 1), "{told:?}");
    assert!(told.err.starts_with("thalweg: nothing to resume: "), "{told:?}");
    assert!(told.err.contains("is of a sort in 128 MiB of memory; beginning anew"), "{told:?}");
    assert!(!told.out.contains("\nresumed "), "{told:?}");
    assert_eq!(place.names(), ["records", "sorted"]);
}

/// Both wrote to the same hidden file, and the first to end gave its name to what the other had written so far.
#[test]
fn of_two_sorts_that_begin_together_each_leaves_its_own_output_whole() {
    let place = Place::new();
    assert_eq!(place.shell("$T gen 500k many -q && $T gen 200k few -q").status, Some(0));
    let sort = |input: &str| format!("$T sort {input} -o sorted -q --datamation --memory 24MiB");
    let both = format!("{} & {}; few=$?; wait $!; echo $few $?", sort("many"), sort("few"));
    for _ in 0..10 {
        let told = place.shell(&both);
        let last_of: &[u64] = match told.out.trim() {
            "0 0" => &[50_000_000, 20_000_000],
            "0 2" => &[20_000_000],
            "2 0" => &[50_000_000],
            _ => panic!("{told:?}"),
        };
        assert!(
            told.err.lines().all(|line| line.contains("another sort is writing this output")),
            "{told:?}"
        );
        let bytes = std::fs::metadata(place.0.join("sorted")).unwrap().len();
        assert!(last_of.contains(&bytes), "{bytes} after {told:?}");
        assert_eq!(place.shell("$T check sorted --datamation -q").status, Some(0));
        assert_eq!(place.names(), ["few", "many", "sorted"]);
    }
}

#[test]
fn bad_input_is_told_in_one_line_and_nothing_is_touched() {
    let place = Place::new();
    let made = "$T gen 300k r -q && head -c 150 r > odd && mkdir d && { head -c 3M /dev/zero; echo; } > long";
    assert_eq!(place.shell(made).status, Some(0));
    let before = place.names();
    let cases = [
        ("odd -o out --record 100", "odd has 150 bytes"),
        ("r -o /proc/out --record 100", "cannot create /proc/out: "),
        ("odd -o r/out", "cannot create r/out: r is not a directory"),
        ("odd long -o out --memory 16MiB", "--memory 16 MiB is too small: a sort needs at least 24 MiB"),
        ("odd long -o out --memory 64MiB --nodes 2", "a record of long at byte 0 is longer than 320 KiB"),
        ("r -o out --memory 300%", "at most 100%"),
        ("r -o out --record 100 --by 95:10", "95:10"),
        ("long -o out --memory 16MiB", "--memory 16 MiB is too small: a sort needs at least 24 MiB"),
        ("r -o nowhere/out --datamation --memory 16MiB", "nowhere"),
        ("missing -o out", "missing"),
        ("d -o out", "d is a directory"),
        ("r -o out --datamation --memory 16MiB --scratch nowhere", "nowhere"),
        ("r -o out --datamation --memory 16MiB --scratch r", "r"),
        ("r -o out --datamation --memory 16MiB --scratch-limit 1MiB", "scratch limit of 1 MiB is reached"),
        ("- -o out --datamation --memory 16MiB --scratch-limit 1MiB <r", "scratch limit of 1 MiB is reached"),
        (
            "- -o out --datamation --memory 16MiB --scratch-limit 1MiB < <(cat r)",
            "raise the limit, or give more memory (--scratch-limit, --memory)",
        ),
        ("r -o out --datamaton", "--datamation"),
        ("r -o out --datamation --shares equal", "--shares is for a sort on the nodes of a cluster"),
        ("r -o out --datamation --on n1", "--on is for a sort on the nodes of a cluster"),
        ("r -o /dev/full --datamation", "/dev/full"),
        ("r -o r/out --datamation", "r"),
    ];
    for (args, holds) in cases {
        let told = place.shell(&format!("$T sort {args}"));
        assert_eq!((told.status, told.out.as_str()), (Some(2), ""), "{args}: {told:?}");
        assert_eq!(told.err.lines().count(), 1, "{args}: {told:?}");
        assert!(told.err.starts_with("thalweg: ") && told.err.contains(holds), "{args}: {told:?}");
        assert_eq!(place.names(), before, "{args}");
    }
}

/// Numbers as text are unevenly distributed, so buckets are split; a stream cannot be restarted, from either end.
#[test]
fn numbers_through_a_pipe_come_out_whole() {
    let place = Place::new();
    for line in [
        "seq 3000000 | $T sort -o out --memory 16MiB -q && seq 3000000 | LC_ALL=C sort | cmp - out",
        "seq 3000000 > in; $T sort in -o - --memory 16MiB -q | cmp - out",
        // Many lanes, whose blocks wait for one another and for the reader.
        "$T sort in -o - --memory 1GiB --threads 16 -q | { sleep 0.1; cmp - out; }",
        "$T sort in -o - --memory 64MiB --threads 4 -q | cmp - out",
    ] {
        let outcome = place.shell(&format!("set -o pipefail; {line}"));
        assert_eq!(outcome.status, Some(0), "{line}: {outcome:?}");
    }
}

/// As with other programs, the signal of the broken pipe ends it.
#[test]
fn a_reader_that_leaves_ends_a_sort_of_many_lanes() {
    let place = Place::new();
    place.shell("$T gen 1M in -q").is_done();
    let told =
        place.shell("set -o pipefail; $T sort in -o - --datamation --threads 8 -q | head -c 100 | wc -c");
    assert_eq!((told.status, told.out.trim(), told.err.as_str()), (Some(141), "100", ""));
    assert_eq!(place.names(), ["in"]);
}

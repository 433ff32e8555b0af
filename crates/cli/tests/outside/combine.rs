//! Shuffle, merge and join end to end, compared with the system's own tools, and their reaction to bad input.

use thalweg_api::{Receipt, from_json};

use super::support::Place;

#[test]
fn a_shuffle_is_the_same_wherever_its_lines_come_from() {
    let place = Place::new();
    place.shell("seq 20000 > in && head -n 7000 in > a && tail -n +7001 in > b").is_done();
    let told = place.run(&["shuffle", "in", "-o", "out", "--seed", "7", "--memory", "16MiB"]);
    assert!(told.is_done().starts_with("shuffled 20 000 records, 108 894 bytes"), "{told:?}");
    assert!(told.out.contains("invariant out = in: holds\n"), "{told:?}");
    place.shell("sort -n out | cmp - in && ! cmp -s out in").is_done();
    place.shell("$T shuffle a b -o - --seed 7 --threads 1 -q | cmp - out").is_done();
    place.shell("cat in | $T shuffle -o - --seed 7 -q | cmp - out").is_done();
    place.shell("$T shuffle in -o in --seed 7 -q && cmp in out").is_done();
    place.shell("$T shuffle a b -o other --seed 8 -q && ! cmp -s other out").is_done();
}

#[test]
fn a_merge_is_what_sort_makes_of_sorted_files_and_pipes() {
    let place = Place::new();
    place
        .shell("export LC_ALL=C; for i in 1 2 3; do seq $i 3 60000 | sort > $i; done; printf a > 4; : > 5; sort -ms ? > expected")
        .is_done();
    let told = place.run(&["merge", "1", "2", "3", "4", "5", "-o", "out", "--memory", "16MiB"]);
    assert!(told.is_done().starts_with("merged 60 001 records"), "{told:?}");
    assert!(told.out.contains("invariant out = in: holds; in order, 0 duplicate keys\n"), "{told:?}");
    place.shell("cmp out expected").is_done();
    place.shell("$T merge <(cat 1) 2 <(cat 3) 4 -o - -q | cmp - expected").is_done();
    let told = place.shell("$T merge 1 1 2 3 4 2 -o unique --unique --json && cmp unique expected");
    let receipt: Receipt = from_json(told.is_done().trim()).expect("one receipt");
    assert_eq!((receipt.dropped.records, receipt.output.duplicates), (40_000, 0));
    place.shell("$T merge 1 2 3 4 -o 1 -q && cmp 1 expected").is_done();
}

/// The soft limit on open files is raised as far as the hard limit allows. If that is not enough, files are opened one
/// by one, and merges take one more pass.
#[test]
fn inputs_may_be_more_than_open_files_or_blocks() {
    let place = Place::new();
    place
        .shell("for i in $(seq 2000); do echo $i > in-$i; done; seq 2000 | LC_ALL=C sort > expected")
        .is_done();
    let stages = |line: &str| {
        let told = place.shell(&format!("{line} in-* -o out --json && cmp out expected && rm out"));
        let receipt: Receipt = from_json(told.is_done().trim()).expect("one receipt");
        (receipt.verb, receipt.stages.len())
    };
    let merged = |stages| ("merge".to_string(), stages);
    assert_eq!(stages("$T merge --memory 256MiB"), merged(1));
    assert_eq!(stages("$T merge --memory 16MiB"), merged(3));
    assert_eq!(stages("ulimit -n 64 && $T merge"), merged(3));
    assert_eq!(stages("ulimit -n 64 && $T sort --memory 16MiB").0, "sort");
    let told = place
        .shell("ulimit -n 64 && $T shuffle in-* -o out --seed 1 -q && LC_ALL=C sort out | cmp - expected");
    told.is_done();
    place.shell("ulimit -n 64 && $T partition in-* -o 'part-{}' --pick robin --parts 2 -q").is_done();
    place.shell("LC_ALL=C sort part-0 part-1 | cmp - expected").is_done();
    for verb in ["merge", "sort"] {
        place
            .shell(&format!("ulimit -Sn 40 && $T {verb} in-* -o out -q && cmp out expected && rm out"))
            .is_done();
    }
    place.shell("ulimit -Sn 40 && $T partition expected -o 'part-{}' --pick robin --parts 90 -q").is_done();
}

/// A pipe was opened, and closed when there was too little memory to merge so many inputs at once. The sort that was
/// done instead opened it again: it hung, or succeeded without what the pipe's writer had written in between.
#[test]
fn a_pipe_among_more_files_than_memory_has_blocks_for_is_opened_once() {
    let place = Place::new();
    place
        .shell("for i in $(seq 700); do seq $i 700 20000 | LC_ALL=C sort > in-$i; done; seq 5 3 9999 | LC_ALL=C sort > p")
        .is_done();
    place.shell("LC_ALL=C sort -m in-* p > expected; mkfifo pipe").is_done();
    for memory in ["16MiB", "64MiB"] {
        for _ in 0..5 {
            let merge = format!("timeout 20 $T merge in-* pipe -o out --memory {memory} -q");
            place.shell(&format!("cat p > pipe & {merge} && wait $! && cmp out expected")).is_done();
        }
    }
}

/// The input is large enough for several lanes, each of which has to find the frequent key. Lines that the end of a
/// chunk of the sample cut off gave keys that do not exist, and a part of their own for those.
#[test]
fn half_of_all_lines_of_one_key_are_a_part_and_the_others_are_alike() {
    let place = Place::new();
    let lines = "seq 300000 | awk '{ printf \"%s %d\\n\", NR % 2 ? \"hot     \" : sprintf(\"k%07d\", NR * 7368787 % 9999991), NR }'";
    place.shell(&format!("{lines} > in && $T partition in -o 'part-{{}}' --parts 5 --by 0:8 -q")).is_done();
    let count =
        |part: usize| place.read(&format!("part-{part}")).iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(count(0), 150_000);
    let others: Vec<usize> = (1..5).map(count).collect();
    assert!(others.iter().all(|lines| lines.abs_diff(37_500) < 37_500 / 20), "{others:?}");
}

#[test]
fn an_input_out_of_order_is_named_with_its_record() {
    let place = Place::new();
    place.run(&["gen", "300k", "in", "-q"]).is_done();
    place.run(&["sort", "in", "-o", "a", "--datamation", "-q"]).is_done();
    for record in [1usize, 150_000, 299_999] {
        let mut bytes = place.read("a");
        bytes[100 * record..100 * record + 10].fill(0);
        place.write("b", &bytes);
        for inputs in ["a b", "<(cat b) a"] {
            let told = place.shell(&format!("$T merge {inputs} -o out --datamation --threads 3"));
            assert_eq!(
                (told.status, told.out.as_str(), told.err.lines().count()),
                (Some(2), "", 1),
                "{told:?}"
            );
            assert!(told.err.contains(&format!("is not in order: record {record} ")), "{told:?}");
            assert_eq!(place.names(), ["a", "b", "in"]);
        }
    }
}

#[test]
fn a_join_is_what_join_makes_of_the_same_lines() {
    let place = Place::new();
    place
        .shell("export LC_ALL=C; seq -w 1 3 9000 | sed 's/$/ l/' > l; seq -w 1 2 9000 | sed 's/$/ r/' | tac > r; seq -w 7 2 99 | sed 's/$/ s/;s/^/00/' >> r; sort r > rs; join l rs > expected; join -v1 l rs > alone")
        .is_done();
    let told =
        place.run(&["join", "l", "r", "-o", "out", "--by", "0:4", "--between", " ", "--memory", "64MiB"]);
    assert!(
        told.is_done().contains("invariant out = left x right, key by key: holds; 1 516 pairs"),
        "{told:?}"
    );
    place.shell("cut -d' ' -f1,2,4 out | cmp - expected").is_done();
    place.shell("cat r | $T join l - -o - --by 0:4 --type anti -q | cmp - alone").is_done();
    place.shell("$T join l r -o - --by 0:4 --type left -q | wc -l | grep -qx 3016").is_done();
}

#[test]
fn fixed_records_are_joined_side_by_side() {
    let place = Place::new();
    place.write("l", b"k1aak2bbk2cck9dd");
    place.write("r", b"xk2yk2zk1");
    let args = [
        "join",
        "l",
        "r",
        "-o",
        "-",
        "-q",
        "--record",
        "4",
        "--by",
        "0:2",
        "--right-record",
        "3",
        "--right-by",
        "1:2",
    ];
    assert_eq!(place.run(&args).is_done(), "k1aazk1k2bbxk2k2bbyk2k2ccxk2k2ccyk2");
    assert_eq!(place.run(&[&args[..], &["--type", "anti"]].concat()).is_done(), "k9dd");
    assert!(place.run(&[&args[..], &["--type", "left"]].concat()).is_done().ends_with("k9dd\0\0\0"));
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let place = Place::new();
    place.write("a", b"a\nb\n");
    place.write("odd", b"abc");
    let cases: &[(&[&str], &str)] = &[
        (&["shuffle", "a", "-o", "o"], "say which random order: --seed N"),
        (&["shuffle", "odd", "-o", "o", "--seed", "1", "--record", "2"], "not a multiple"),
        (&["shuffle", "a", "-o", "o", "--seed", "1", "--resume"], "--resume is a flag of"),
        (&["merge", "a", "missing", "-o", "o"], "missing"),
        (&["merge", "a", "odd", "-o", "o", "--record", "2"], "not a multiple"),
        (&["merge", "a", ".", "-o", "o"], "is a directory"),
        (&["merge", "a", "a", "-o", "o", "--memory", "1MiB"], "--memory 1 MiB is too small"),
        (&["join", "a", "-o", "o"], "join takes two inputs"),
        (&["join", "-", "-", "-o", "o"], "not both"),
        (&["join", "a", "a", "-o", "o", "--right-record", "3"], "--right-record comes with --record"),
        (&["join", "a", "a", "-o", "o", "--record", "2", "--between", "x"], "--between is for lines"),
        (&["join", "a", "a", "-o", "o", "--by", "0:2", "--right-by", "0:3"], "as long as each other"),
        (&["join", "a", "odd", "-o", "o", "--record", "2"], "not a multiple"),
        (&["join", "a", "a", "-o", "o", "--memory", "16MiB"], "a join needs at least"),
    ];
    for (args, expected) in cases {
        let told = place.run(args);
        assert_eq!((told.status, told.out.as_str(), told.err.lines().count()), (Some(2), "", 1), "{told:?}");
        assert!(told.err.contains(expected), "{args:?}: {told:?}");
        assert_eq!(place.names(), ["a", "odd"]);
    }
}

//! A mistyped command is refused with one line and status 2, and nothing is touched.

use super::support::{Place, run};

#[test]
fn nothing_typed_is_refused_with_the_list_of_commands() {
    run(&[]).is_refused(&[
        "gen, check, sort, shuffle, merge, join, plan, partition, pump, volume, mount, table, doctor, bench, exec, job, node or cluster",
        "thalweg help",
    ]);
}

#[test]
fn unknown_commands_and_flags_suggest_the_near_one() {
    run(&["srot", "in", "-o", "out"]).is_refused(&["unknown command 'srot'", "did you mean sort?"]);
    run(&["sort", "--memroy", "1G"]).is_refused(&["unknown flag --memroy", "did you mean --memory?"]);
    run(&["check", "--sumary=x", "f"]).is_refused(&["did you mean --summary?"]);
    run(&["sort", "--color"]).is_refused(&["unknown flag --color", "thalweg sort -h"]);
    run(&["sort", "--progress", "allways"]).is_refused(&["did you mean always?"]);
}

#[test]
fn gnu_letters_are_reserved_and_say_what_does_it_today() {
    let cases = [
        (["-k", "1,2"], "--by OFFSET:LENGTH"),
        (["-t", ","], "--by OFFSET:LENGTH"),
        (["-n", "x"], "numbers of equal width"),
        (["-S", "1G"], "--memory SIZE"),
        (["-T", "dir"], "--scratch DIR"),
        (["-u", "x"], "--unique"),
        (["-r", "x"], "--by 0:4294967295:desc"),
        (["-b", "x"], "keys compare as bytes"),
        (["-g", "x"], "numbers of equal width"),
        (["-M", "x"], "keys compare as bytes"),
        (["-R", "x"], "thalweg shuffle --seed N"),
        (["--files0-from", "x"], "a pipe"),
    ];
    for ([letter, value], today) in cases {
        run(&["sort", letter, value, "-o", "out"]).is_refused(&[letter, "reserved", today]);
        let between = if letter.starts_with("--") { "=" } else { "" };
        let attached = format!("{letter}{between}{value}");
        run(&["sort", &attached, "-o", "out"]).is_refused(&[letter, "reserved", today]);
    }
}

#[test]
fn values_that_cannot_be_read_are_named() {
    run(&["sort", "in", "-o", "out", "--memory", "lots"]).is_refused(&["--memory", "'lots'", "1GiB"]);
    let memory = ["sort", "in", "-o", "out", "--memory", "99999999999999G"];
    run(&memory).is_refused(&["--memory", "'99999999999999G' is too large", "2^64"]);
    run(&["sort", "in", "-o", "out", "--memory", "101%"]).is_refused(&["--memory", "'101%'"]);
    run(&["sort", "in", "-o", "out", "--record", "0"]).is_refused(&["--record", "'0'", "1 to 4294967295"]);
    run(&["sort", "in", "-o", "out", "--by", "0"]).is_refused(&["--by", "'0'", "OFFSET:LENGTH"]);
    run(&["sort", "in", "-o", "out", "--by", "0:1:down"]).is_refused(&["'0:1:down'", ":asc", ":desc"]);
    run(&["sort", "in", "-o", "out", "--by", "0:0"]).is_refused(&["--by", "'0:0'"]);
    run(&["sort", "in", "-o", "out", "--threads", "0"]).is_refused(&["--threads", "'0'", "1 or more"]);
    run(&["sort", "in", "-o", "out", "--io", "dma"]).is_refused(&["--io", "'dma'", "auto, uring, threads"]);
    run(&["gen", "-1", "file"]).is_refused(&["unknown flag -1"]);
    run(&["gen", "many", "file"]).is_refused(&["'many'", "10M"]);
    let too_many = "340282366920938463463374607431768211456";
    run(&["gen", too_many, "file"]).is_refused(&[too_many, "128 bits"]);
    run(&["gen", "1", "file", "--start", too_many]).is_refused(&["--start", "128 bits"]);
}

#[test]
fn what_is_missing_or_too_much_is_said() {
    run(&["sort", "in"]).is_refused(&["cannot inspect in"]);
    run(&["plan", "sort", "in"]).is_refused(&["cannot inspect in"]);
    run(&["sort", "in", "-o"]).is_refused(&["-o needs a value: -o OUTPUT"]);
    run(&["sort", "in", "-o", ""]).is_refused(&["-o: the name is empty; write -o OUTPUT"]);
    run(&["sort", "in", "--scratch", ""]).is_refused(&["--scratch: the name is empty; write --scratch DIR"]);
    run(&["sort", "in", "-o", "a", "-o", "b"]).is_refused(&["one output", "'a'"]);
    run(&["gen", "10"]).is_refused(&["COUNT and FILE"]);
    run(&["gen", "10", "a", "b"]).is_refused(&["COUNT and FILE"]);
    run(&["check"]).is_refused(&["FILE"]);
    run(&["plan"]).is_refused(&["plan what?", "sort"]);
    run(&["plan", "check", "f"]).is_refused(&["sort", "'check'"]);
    run(&["bench"]).is_refused(&["sort, io, incore"]);
    run(&["doctor", "me"]).is_refused(&["'me'", "one word too many"]);
    run(&["sort", "--unique=yes", "-o", "out"]).is_refused(&["--unique takes no value", "'yes'"]);
    run(&["check", "--resume", "f"]).is_refused(&["--resume is a flag of sort, plan, pump, not of check"]);
    run(&["--record", "1", "sort"]).is_refused(&["--record comes after its command"]);
    let both = ["sort", "in", "-o", "out", "--datamation", "--record", "64"];
    run(&both).is_refused(&["--datamation means --record 100 --by 0:10"]);
}

#[test]
fn a_refusal_touches_nothing() {
    let place = Place::new();
    std::fs::copy("/proc/self/cmdline", place.0.join("in")).unwrap();
    place.run(&["sort", "in", "-o", "out", "--recrod", "100"]).is_refused(&["--record"]);
    place.run(&["sort", "in", "-o", "out", "--json", "--memory", "x"]).is_refused(&["--memory"]);
    let left: Vec<_> = place.0.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["in"]);
}

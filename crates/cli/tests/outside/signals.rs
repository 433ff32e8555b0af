//! Signals: whatever a command does or waits for, a signal ends it soon, and nothing is left.

use std::io::{Read, Write};
use std::process::Stdio;

use super::support::{Outcome, Place, Running};

const BENCH: &str = "--datamation";

/// Starts a command that takes long, sends the signal when it is at work, and returns its outcome.
fn interrupted(place: &Place, args: &[&str], signal: &str) -> Outcome {
    let mut command = place.command(args);
    let mut running = Running::start(command.args(["--progress", "always"]));
    let mut first = [0; 3];
    running.0.stderr.as_mut().expect("a pipe was asked for").read_exact(&mut first).unwrap();
    assert_eq!(&first, b"[1/");
    running.signal(signal);
    let outcome = running.ends();
    let told = |line: &&str| line.starts_with("thalweg: ");
    let err = outcome.err.lines().filter(told).map(|line| format!("{line}\n")).collect();
    Outcome { err, ..outcome }
}

#[test]
fn signals_stop_a_verb_and_leave_nothing() {
    let place = Place::new();
    // XCPU is sent by a limit on CPU time, the others by batch systems and alarms.
    let others = [
        ("-QUIT", 3),
        ("-USR1", 10),
        ("-USR2", 12),
        ("-ALRM", 14),
        ("-VTALRM", 26),
        ("-PROF", 27),
        ("-XCPU", 24),
    ];
    for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)].into_iter().chain(others) {
        let told = interrupted(&place, &["gen", "100M", "records"], signal);
        assert_eq!(told.status, Some(128 + number), "{told:?}");
        assert_eq!(told.err, format!("thalweg: interrupted by signal {number}\n"));
        assert_eq!(told.out, "");
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
}

/// As a shell does with SIGINT for what a script starts with `&`: Ctrl-C is for what runs in the foreground.
#[test]
fn a_signal_that_the_parent_ignores_stops_a_server_but_no_verb() {
    let place = Place::new();
    for signal in ["INT", "TERM", "HUP"] {
        let line = format!(
            "mkfifo pipe; (trap '' {signal}; exec $T sort pipe -o out -q) & exec 3>pipe; kill -{signal} $!; \
             echo b >&3; echo a >&3; exec 3>&-; wait $! && cat out && rm pipe out"
        );
        assert_eq!(place.shell(&line).is_done(), "a\nb\n", "{signal}");
    }
    let serves = place.command(&["table", "serve", "--resp", "127.0.0.1:0"]);
    let mut ignores = std::process::Command::new("bash");
    ignores.args(["-c", "trap '' INT; exec \"$0\" \"$@\""]).arg(serves.get_program()).args(serves.get_args());
    ignores.current_dir(&place.0).envs(serves.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let running = Running::start(&mut ignores);
    running.handles_signals();
    running.signal("-INT");
    assert_eq!(running.ends().status, Some(0));
}

#[test]
fn a_sort_that_is_stopped_leaves_its_input_and_the_older_output() {
    let place = Place::new();
    place.run(&["gen", "2M", "records", "-q"]).is_done();
    place.write("sorted", b"older\n");
    let args = ["sort", "records", "-o", "sorted", BENCH, "--memory", "24MiB"];
    let told = interrupted(&place, &args, "-TERM");
    assert_eq!((told.status, told.err.as_str()), (Some(143), "thalweg: interrupted by signal 15\n"));
    assert_eq!(place.names(), ["records", "sorted"]);
    assert_eq!(place.read("sorted"), b"older\n");
}

/// As `timeout` does: to the process, and then to its process group.
#[test]
fn a_signal_that_is_sent_twice_at_once_is_one_and_a_later_one_kills() {
    let place = Place::new();
    let begun = |place: &Place| {
        let mut running =
            Running::start(&mut place.command(&["gen", "100M", "records", "--progress", "always"]));
        running.0.stderr.as_mut().expect("a pipe was asked for").read_exact(&mut [0; 3]).unwrap();
        running
    };
    for _ in 0..5 {
        let running = begun(&place);
        // By one shell: on a busy machine, another one starts too late.
        let pid = running.0.id();
        running.signal(&format!("-TERM {pid}; kill -TERM"));
        assert_eq!(running.ends().status, Some(143));
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
    // The output goes to a pipe that nobody reads: the first signal is handled, but the write still waits.
    let mut command = place.command(&["gen", "100M", "-", "-q"]);
    let running = Running::start(command.stdout(Stdio::piped()));
    running.handles_signals();
    running.waits();
    running.signal("-TERM");
    // Long enough that the next signal is not taken for a repetition of the first.
    std::thread::sleep(std::time::Duration::from_millis(400));
    running.signal("-TERM");
    assert_eq!(running.ends().status, None);
}

#[test]
fn waiting_for_standard_input_can_be_interrupted() {
    let place = Place::new();
    let mut running = Running::start(place.command(&["sort", "-o", "out"]).stdin(Stdio::piped()));
    let mut stdin = running.0.stdin.take().expect("a pipe was asked for");
    stdin.write_all(b"a\n").unwrap();
    running.handles_signals();
    running.signal("-INT");
    let outcome = running.ends();
    assert_eq!((outcome.status, outcome.out.as_str()), (Some(130), ""), "{outcome:?}");
    assert!(place.names().is_empty());
    drop(stdin);
}

/// Opening a named pipe waits for its other end, which may never come. The first signal was handled only after that.
#[test]
fn waiting_for_the_other_end_of_a_named_pipe_can_be_interrupted() {
    let place = Place::new();
    place.shell("mkfifo pipe").is_done();
    place.run(&["gen", "10", "records", "-q"]).is_done();
    let commands: [&[&str]; 5] = [
        &["sort", "pipe", "-o", "out"],
        &["sort", "records", "pipe", "-o", "out"],
        &["sort", "records", "-o", "pipe", BENCH, "-q"],
        &["check", "pipe", BENCH],
        &["gen", "10", "pipe", "-q"],
    ];
    for args in commands {
        for (signal, number) in [("-INT", 2), ("-TERM", 15)] {
            let running = Running::start(&mut place.command(args));
            running.handles_signals();
            running.waits();
            running.signal(signal);
            let outcome = running.ends();
            assert_eq!(outcome.status, Some(128 + number), "{args:?} {outcome:?}");
            assert_eq!(outcome.err, format!("thalweg: interrupted by signal {number}\n"), "{args:?}");
            assert_eq!(place.names(), ["pipe", "records"], "{args:?}");
        }
    }
}

#[test]
fn named_pipes_are_read_and_written_to_their_ends_whoever_comes_first() {
    let place = Place::new();
    for line in [
        "mkfifo in out; $T sort in -o out -q & (printf 'b\\na\\n' > in) & timeout 10 cat out",
        // The writer has ended before the sort looks at its input.
        "mkfifo in; printf 'b\\na\\n' > in & { wait $!; timeout 10 $T sort - -o - -q; } < in",
        // The writer writes nothing.
        "mkfifo in; (: > in) & timeout 10 $T sort in -o - -q; echo a; echo b",
    ] {
        let told = place.shell(line);
        assert_eq!(told.is_done(), "a\nb\n", "{line}");
        place.shell("rm in").is_done();
    }
}

#[test]
fn a_merge_or_join_that_is_stopped_leaves_what_was_there() {
    let place = Place::new();
    place.run(&["gen", "3M", "records", "-q"]).is_done();
    place.write("out", b"older\n");
    place.shell("head -c 400000000 /dev/zero > zeros").is_done();
    let ways: [&[&str]; 3] = [
        &["merge", "zeros", "zeros", "-o", "out", "--record", "100", "--memory", "16MiB"],
        &["join", "records", "records", "-o", "out", BENCH, "--memory", "64MiB"],
        &["shuffle", "records", "-o", "out", "--record", "100", "--seed", "1", "--memory", "24MiB"],
    ];
    for args in ways {
        let told = interrupted(&place, args, "-TERM");
        assert_eq!((told.status, told.err.as_str()), (Some(143), "thalweg: interrupted by signal 15\n"));
        assert_eq!(place.names(), ["out", "records", "zeros"]);
        assert_eq!(place.read("out"), b"older\n");
    }
}

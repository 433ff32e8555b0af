//! What a sort protects from others: its scratch files from their eyes, its output from another sort. Also files that
//! are not what they claim to be.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Place, Running, until};

/// A sort that spills and then stops, because nobody reads its pipe or because it is frozen.
fn spilling(place: &Place, args: &[&str]) -> Running {
    place.run(&["gen", "600000", "in", "-q"]).is_done();
    let mut command =
        place.command(&["sort", "in", "--datamation", "--memory", "16MiB", "--scratch", ".", "-q"]);
    Running::start(command.args(args))
}

#[test]
fn scratch_of_a_sort_into_a_pipe_has_no_name_and_so_is_never_left() {
    let place = Place::new();
    let mut sort = spilling(&place, &["-o", "-"]);
    let mut byte = [0];
    sort.0.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    // It has spilled: it has read more than its memory, and its output begins.
    assert_eq!(place.names(), ["in"]);
    drop(sort);
    assert_eq!(place.names(), ["in"]);
    place.run(&["sort", "in", "--datamation", "-o", "-", "--resume"]).is_refused(&["--resume", "pipe"]);
}

#[test]
fn scratch_is_for_its_owner_and_a_second_sort_to_the_same_output_is_refused() {
    let place = Place::new();
    let scratch = place.scratch("out");
    let names = [".out.thalweg-manifest", &scratch, ".out.thalweg-partial"];
    let sort = spilling(&place, &["-o", "out"]);
    until("scratch", || names.iter().all(|name| place.0.join(name).exists()));
    sort.signal("-STOP");
    for name in names {
        let mode = std::fs::metadata(place.0.join(name)).expect("it was there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    place.run(&["sort", "in", "-o", "out", "--datamation"]).is_refused(&["another sort", "out", "-o"]);
    sort.signal("-CONT");
    sort.ends().is_done();
    place.run(&["check", "out", "--datamation"]).is_done();
    assert_eq!(place.names(), ["in", "out"]);
}

/// The two were treated as separate: each had a scratch file of the same name, and overwrote the other's pages.
#[test]
fn a_scratch_directory_that_is_named_twice_is_one() {
    let place = Place::new();
    spilling(&place, &["-o", "out", "--scratch", "./."]).ends().is_done();
    place.run(&["check", "out", "--datamation"]).is_done();
}

#[test]
fn a_file_that_says_it_is_empty_and_is_not_is_read_to_its_end() {
    let place = Place::new();
    let sorted = place.shell("$T sort /proc/cpuinfo -o out -q && LC_ALL=C sort -s /proc/cpuinfo | cmp - out");
    assert_eq!(sorted.status, Some(0), "{sorted:?}");
    assert!(!place.read("out").is_empty());
    place.write("empty", b"");
    place.run(&["sort", "empty", "-o", "none", "-q"]).is_done();
    assert!(place.read("none").is_empty());
}

//! What is printed, where, and what happens if nobody reads it.

use std::process::Stdio;

use super::support::{Outcome, Place};

/// Standard output to the device that is always full.
fn full() -> Stdio {
    std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full").into()
}

/// A pipe that nobody reads.
fn broken() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe can be had");
    drop(reader);
    writer.into()
}

#[test]
fn a_full_disk_under_standard_output_is_an_error() {
    let place = Place::new();
    for args in [&["help"][..], &["sort", "--help"], &["--generate", "man"], &["--version"]] {
        let output = place.command(args).stdout(full()).output().unwrap();
        Outcome::of(output).is_refused(&["standard output", "No space left on device"]);
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let place = Place::new();
    for args in [&["help"][..], &["sort", "--help"], &["--generate", "man"]] {
        let output = place.command(args).stdout(broken()).output().unwrap();
        let outcome = Outcome::of(output);
        assert_eq!((outcome.status, outcome.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn an_error_that_nobody_reads_still_ends_in_status_2() {
    let place = Place::new();
    for err in [full(), broken()] {
        let status = place.command(&["sort", "--xyzzy"]).stderr(err).status().unwrap();
        assert_eq!(status.code(), Some(2));
    }
}

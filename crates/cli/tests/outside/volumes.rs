//! Volumes of this machine, as several commands at once use them.

use std::io::{BufRead, BufReader};
use std::path::Path;

use super::support::{Place, Running, skipped, until};

/// A place with a volume `films` of two stores.
fn with_volume() -> Place {
    let place = Place::new();
    place
        .shell("mkdir d1 d2 && XDG_CONFIG_HOME=$PWD/settings $T volume create films --stores d1,d2")
        .is_done();
    place
}

#[test]
fn sorts_that_write_one_output_at_once_all_succeed() {
    let place = with_volume();
    place
        .shell(
            "export XDG_CONFIG_HOME=$PWD/settings
            $T gen 20k volume:films/in -q || exit
            for i in 1 2 3 4; do $T sort volume:films/in -o volume:films/out --datamation -q & jobs[i]=$!; done
            for job in ${jobs[@]}; do wait $job || exit; done
            $T check volume:films/out --datamation -q && $T volume ls volume:films/ | grep -c thalweg && exit 1
            $T volume check films -q",
        )
        .is_done();
}

#[test]
fn directories_are_made_with_those_above_them() {
    let place = with_volume();
    let run = |line: &str| place.shell(&format!("XDG_CONFIG_HOME=$PWD/settings {line}"));
    run("$T volume mkdir volume:films/a/b/c volume:films/a/d").is_done();
    run("$T volume mkdir volume:films/a/b").is_done();
    run("$T gen 1k volume:films/a/b/c/records -q").is_done();
    run("$T volume mkdir volume:films/a/b/c/records/d").is_refused(&["/a/b/c/records", "Not a directory"]);
    run("$T volume mkdir").is_refused(&["volume mkdir takes at least one word"]);
}

#[test]
fn a_second_signal_ends_a_mount_that_programs_use() {
    if !Path::new("/dev/fuse").exists() || !thalweg_io::process::is_root() {
        return skipped("mounting needs /dev/fuse, and here to be root");
    }
    let place = with_volume();
    let at = place.0.join("films");
    std::fs::create_dir(&at).unwrap();
    let mut command = place.command(&["mount", "films", "films"]);
    let mut mount = Running::start(command.env("XDG_CONFIG_HOME", place.0.join("settings")));
    let mut line = String::new();
    BufReader::new(mount.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let open = std::fs::File::create(at.join("open")).unwrap();
    mount.handles_signals();
    mount.signal("-INT");
    mount.waits();
    assert!(mount.0.try_wait().unwrap().is_none() && !at.join("open").exists(), "it is busy, and unmounted");
    // One that comes too soon after the first is taken for the same.
    until("the mount ends", || {
        mount.signal("-INT");
        mount.0.try_wait().unwrap().is_some()
    });
    assert_eq!(mount.0.wait().unwrap().code(), None);
    drop(open);
}

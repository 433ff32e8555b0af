//! `repair` and `replace` of a volume of one machine: killed in the middle, or without room for what they make.
//!
//! Invariant: nothing is lost, and the same command completes the work when it is given again. A store that `replace`
//! had begun to make is removed before.

use std::path::PathBuf;
use std::process::Command;

use thalweg_io::process;

use crate::bed::{Disk, fill};
use crate::support::{Place, Running, skipped, until};

/// So many bytes that making the strips of a store anew takes a while.
const BYTES: usize = 96 << 20;

/// A mirrored volume in d1, d2 and d3, and a directory for one more store.
fn volume(place: &Place) {
    place.shell("mkdir -p d1 d2 d3 d4 m").is_done();
    place.write("in", &(0..BYTES).map(|i| (i >> 12) as u8).collect::<Vec<_>>());
    run(place, "volume create films --stores d1,d2,d3 --manager m --stripe 64KiB --copies 2").is_done();
    run(place, "pump -q in volume:films/in").is_done();
}

fn command(place: &Place, words: &str) -> Command {
    let mut command = place.command(&words.split(' ').collect::<Vec<_>>());
    command.env("XDG_CONFIG_HOME", place.0.join("settings"));
    command
}

fn run(place: &Place, words: &str) -> crate::support::Outcome {
    crate::support::Outcome::of(command(place, words).output().unwrap())
}

/// The strips of a store.
fn strips(place: &Place, dir: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.0.join(dir).join("films.thalweg-store"));
    let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "strip" || end == "sums")).collect()
}

/// Both verbs, each with the directory in which it makes strips.
const VERBS: [(&str, &str); 2] = [("volume repair films", "d2"), ("volume replace films d2 d4", "d4")];

/// `repair` makes anew what was lost; `replace` moves what is there.
fn lose(place: &Place, verb: &str) {
    if verb == VERBS[0].0 {
        strips(place, "d2").iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// Everything is there twice again.
fn is_whole(place: &Place) {
    run(place, "volume repair films");
    let checked = run(place, "volume check films");
    assert!(checked.is_done().contains("everything is as it was written"), "{checked:?}");
    run(place, "pump -q volume:films/in back").is_done();
    assert!(place.read("back") == place.read("in"));
}

#[test]
fn repair_and_replace_that_are_killed_in_the_middle_complete_the_next_time() {
    for (verb, makes_in) in VERBS {
        let place = Place::new();
        volume(&place);
        lose(&place, verb);
        let running = Running::start(&mut command(&place, verb));
        until("the first strip", || !strips(&place, makes_in).is_empty());
        running.signal("-KILL");
        assert_eq!(running.ends().status, None, "{verb} was faster than the signal");
        run(&place, "pump -q volume:films/in while").is_done();
        assert!(place.read("while") == place.read("in"));
        if makes_in == "d4" {
            place.shell("rm -r d4/films.thalweg-store").is_done();
        }
        run(&place, verb).is_done();
        is_whole(&place);
    }
}

#[test]
fn repair_and_replace_without_room_fail_with_one_line_and_complete_with_it() {
    if !process::is_root() {
        return skipped("mounting a small disk needs root");
    }
    for (verb, makes_in) in VERBS {
        let place = Place::new();
        std::fs::create_dir(place.0.join(makes_in)).unwrap();
        let _disk = Disk::mounted(place.0.join(makes_in));
        volume(&place);
        lose(&place, verb);
        fill(&place.0.join(makes_in));
        run(&place, verb).is_refused(&["No space left on device"]);
        run(&place, "pump -q volume:films/in while").is_done();
        assert!(place.read("while") == place.read("in"));
        std::fs::remove_file(place.0.join(makes_in).join("fill")).unwrap();
        run(&place, verb).is_done();
        is_whole(&place);
    }
}

//! What an attempt of a sort on several nodes may still do after another has replaced it: nothing that is visible.

#![allow(clippy::disallowed_methods)] // Other users create files in other ways.

mod place;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use place::Place;
use thalweg_api::Work;
use thalweg_engine::participant::{
    ClientDisks, KeyRange, Participant, ParticipantOptions, PreparedParticipant, Starts,
};
use thalweg_engine::{IoChoice, Layout, Progress, WorkOptions};
use thalweg_io::process;

fn share(place: &Place, node: (usize, usize), number: u64, lost: &[PathBuf]) -> Participant {
    let sort = WorkOptions {
        threads: Some(1),
        io: IoChoice::Threads,
        ..WorkOptions::new(Work::Sort, vec![place.end("in")], place.end("out"), Layout::Fixed(100))
    };
    let lost = lost.to_vec();
    let options = ParticipantOptions {
        sort,
        node,
        in_process: false,
        own_inputs: false,
        own_output: false,
        memory_most: None,
        number,
        lost,
        within: KeyRange::default(),
    };
    Participant::open(options, ClientDisks::default()).unwrap()
}

/// A node that was frozen while the others started again continues where it was: it is about to name the output.
#[test]
fn who_comes_late_finds_nothing_to_name() {
    const MEMORY_BYTES: u64 = 64 << 20;
    let place = Place::new();
    place.write("in", &[7; 10_000]);
    let (mut late, _) = share(&place, (0, 1), 1, &[]).sample(MEMORY_BYTES, (0, 10_000)).unwrap();
    let lost = late.make_shared().unwrap();
    assert!(lost.exists());
    let (mut next, _) =
        share(&place, (0, 1), 2, std::slice::from_ref(&lost)).sample(MEMORY_BYTES, (0, 10_000)).unwrap();
    let shared = next.make_shared().unwrap();
    assert!(shared != lost && shared.exists() && !lost.exists());
    // The same attempt on a host where the process has the same number would use another name, too.
    assert_ne!(lost.file_name(), shared.file_name());
    late.ready(10_000, Vec::new()).unwrap_err();
    assert!(!place.names().contains(&"out".to_string()), "{:?}", place.names());
    drop(next);
    assert_eq!(place.names(), ["in"]);
}

/// Nobody waits for a stretch, because no attempt gets so far.
struct Nobody;

impl Starts for Nobody {
    fn say(&self, bytes: u64) -> thalweg_engine::Result<()> {
        panic!("{bytes} bytes were sorted")
    }

    fn wait(&self, _go_on: &dyn Fn() -> bool) -> thalweg_engine::Result<Option<u64>> {
        panic!("a stretch begins")
    }
}

/// The first node creates the file that all write to, and tells the others its hidden name. Before they open it,
/// another user with write access to the directory can put something else there.
#[test]
fn what_is_planted_at_the_name_of_a_shared_output_gets_no_nodes_records() {
    const MEMORY_BYTES: u64 = 64 << 20;
    let place = Place::new();
    place.write("in", &[7; 10_000]);
    place.write("victim", b"dear");
    let sampled = |node| share(&place, (node, 2), 1, &[]).sample(MEMORY_BYTES, (0, 10_000)).unwrap().0;
    let (mut first, mut second) = (sampled(0), sampled(1));
    let name = first.make_shared().unwrap();
    for (plant, what) in [
        ("ln -s victim $1", "a symbolic link"),
        ("ln -s nowhere $1", "a symbolic link"),
        ("ln victim $1", "a file with 2 names"),
        ("mkfifo -m 666 $1", "no regular file"),
        ("mkdir -m 777 $1", "directory"),
        (": > $1; chmod 666 $1; chown 1234 $1", "a file of user 1234"),
        (":", "No such file"),
    ] {
        if plant.contains("chown") && !process::is_root() {
            continue;
        }
        std::fs::rename(&name, place.at("aside")).unwrap();
        let bash = |line: &str| {
            let mut bash = Command::new("bash");
            bash.args(["-c", line, "bash"]).arg(&name).current_dir(place.at(""));
            assert!(bash.status().unwrap().success(), "{line}");
        };
        bash(plant);
        let there =
            || std::fs::symlink_metadata(&name).ok().map(|m| (m.ino(), m.len(), m.mode(), m.ctime_nsec()));
        let (before, names) = (there(), place.names());
        let progress = (&Progress::default(), &Progress::default());
        let mut rivers = |_: &PreparedParticipant, _| panic!("records are taken");
        let (pages, shared) = ([vec![1, 1]], Some(&*name));
        let why =
            second.run(&mut rivers, (&pages, 10_000, Vec::new()), shared, &Nobody, progress).unwrap_err();
        let why = why.to_string();
        assert!(why.contains(&*name.to_string_lossy()) && why.contains(what), "{plant}: {why}");
        assert_eq!((there(), place.names()), (before, names), "{plant}");
        assert_eq!(place.read("victim"), b"dear", "{plant}");
        bash("rm -rf $1");
        std::fs::rename(place.at("aside"), &name).unwrap();
    }
}

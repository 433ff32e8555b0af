//! What an attempt of a sort on several nodes may still do when another has taken its place: nothing that anybody sees.

mod place;

use std::path::PathBuf;

use place::Place;
use thalweg_api::Work;
use thalweg_engine::share::{LentDisks, Share, ShareOptions, Within};
use thalweg_engine::{IoChoice, Layout, WorkOptions};

fn share(place: &Place, number: u64, lost: &[PathBuf]) -> Share {
    let sort = WorkOptions {
        threads: Some(1),
        io: IoChoice::Threads,
        ..WorkOptions::new(Work::Sort, vec![place.end("in")], place.end("out"), Layout::Fixed(100))
    };
    let (node, lost) = ((0, 1), lost.to_vec());
    let options = ShareOptions {
        sort,
        node,
        own_inputs: false,
        own_output: false,
        memory_most: None,
        number,
        lost,
        within: Within::default(),
    };
    Share::open(options, LentDisks::default()).unwrap()
}

/// A node that stood still while the others began again goes on where it was: about to give the output its name.
#[test]
fn who_comes_late_finds_nothing_to_name() {
    const MEMORY_BYTES: u64 = 64 << 20;
    let place = Place::new();
    place.write("in", &[7; 10_000]);
    let (mut late, _) = share(&place, 1, &[]).sample(MEMORY_BYTES, (0, 10_000)).unwrap();
    let lost = late.make_shared().unwrap();
    assert!(lost.exists());
    let (mut next, _) =
        share(&place, 2, std::slice::from_ref(&lost)).sample(MEMORY_BYTES, (0, 10_000)).unwrap();
    let shared = next.make_shared().unwrap();
    assert!(shared != lost && shared.exists() && !lost.exists());
    // The same attempt on a host where the process has the same number would have another name, too.
    assert_ne!(lost.file_name(), shared.file_name());
    late.ready(10_000, Vec::new()).unwrap_err();
    assert!(!place.names().contains(&"out".to_string()), "{:?}", place.names());
    drop(next);
    assert_eq!(place.names(), ["in"]);
}

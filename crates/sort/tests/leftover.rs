//! Scratch files of a killed sort in directories that the next sort does not use.
//!
//! Invariant: files that the manifest proves to be its own are removed with it; other files of the same name stay.

mod support;

use support::cut_short::{SMALL_BYTES, killed_after, spilling};
use thalweg_sort::Sort;

/// A rejected manifest was removed before its list of files was read.
#[test]
fn scratch_of_a_rejected_manifest_is_removed_from_other_directories() {
    let case = spilling(31, SMALL_BYTES);
    for (resume, grown) in [(true, 1 << 20), (false, 0)] {
        let (stage, sort) = killed_after(&case, 0.9);
        assert!(stage.get(&stage.scratch(0)).is_some(), "nothing was spilled");
        let memory_bytes = sort.memory_bytes + grown;
        let sort = Sort { resume, memory_bytes, scratch: vec![stage.at("scratch1")], ..sort };
        let receipt = stage.attempt(&sort).expect("it is begun anew");
        assert_eq!(receipt.resumed_bytes, 0);
        stage.ends_well(&case, &receipt);
    }
}

#[test]
fn other_files_with_the_name_of_scratch_stay() {
    let case = spilling(32, SMALL_BYTES);
    for resume in [true, false] {
        let (stage, sort) = killed_after(&case, 0.9);
        let foreign = vec![7; SMALL_BYTES];
        let scratch = stage.scratch(0);
        stage.put(&scratch, &foreign);
        let memory_bytes = sort.memory_bytes + (1 << 20);
        let sort = Sort { resume, memory_bytes, scratch: vec![stage.at("scratch1")], ..sort };
        stage.attempt(&sort).expect("it is begun anew");
        assert!(stage.get(&scratch) == Some(foreign), "it was touched");
        assert_eq!(stage.names(), ["in/0", "out/sorted", &scratch]);
    }
}

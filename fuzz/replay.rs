//! Plays a target's corpus back through the function that the target calls: an ordinary test, without a fuzzer.
//! Included by path in the crates that have targets.
#![allow(clippy::disallowed_methods)] // A corpus holds no records; only tests read it.

use std::path::Path;

/// Calls `target` with every file of `fuzz/corpus/<name>`, which must be there.
pub(crate) fn corpus(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut paths: Vec<_> =
        folder.read_dir().expect("the corpus is there").map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "the corpus {} is missing", folder.display());
    for path in paths {
        // Told only if it fails.
        println!("{}", path.display());
        target(&std::fs::read(&path).expect("a file of the corpus"));
    }
}

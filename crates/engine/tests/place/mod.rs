//! A directory for one test, removed when the test ends.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.
#![allow(dead_code)] // Each test program uses its part.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_engine::Endpoint;

/// The directory.
pub(crate) struct Place(PathBuf);

impl Place {
    /// A new empty one.
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("place-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// A path in it.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A path in it as an endpoint.
    pub(crate) fn end(&self, name: &str) -> Endpoint {
        Endpoint::Path(self.at(name))
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Endpoint {
        std::fs::write(self.at(name), bytes).unwrap();
        self.end(name)
    }

    /// Reads a file.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    /// Makes a named pipe.
    pub(crate) fn pipe(&self, name: &str) -> Endpoint {
        assert!(Command::new("mkfifo").arg(self.at(name)).status().unwrap().success());
        self.end(name)
    }

    /// The sorted names in it, including hidden ones.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

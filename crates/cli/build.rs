//! The build of the command: a checksum of the sources of the command and of all crates that it uses, so that equal
//! sources make equal builds on every machine. Nodes show it in their status.
#![allow(clippy::disallowed_methods)] // It runs where the command is built.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates that are no part of the command.
const OTHERS: [&str; 3] = ["bench", "py", "xtask"];

fn main() {
    let crates = Path::new("..");
    let mut files = vec![crates.join("../Cargo.lock")];
    for entry in listed(crates) {
        if !OTHERS.iter().any(|other| entry.ends_with(other)) {
            files.push(entry.join("Cargo.toml"));
            println!("cargo:rerun-if-changed={}", entry.join("src").display());
            add_all(&entry.join("src"), &mut files);
        }
    }
    // The 64 bits of FNV-1a: enough to tell builds of one program apart, and nobody is deceived by making two equal.
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        // Some are not everywhere: a package of the sources of a library has no lock file.
        let Ok(bytes) = fs::read(&file) else { continue };
        println!("cargo:rerun-if-changed={}", file.display());
        for byte in file.to_string_lossy().bytes().chain(bytes) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=THALWEG_BUILD={sum:016x}");
}

/// The entries of a directory, in an order that is the same everywhere.
fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

fn add_all(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in listed(directory) {
        if entry.is_dir() { add_all(&entry, files) } else { files.push(entry) }
    }
}

//! The repository's own checks: `cargo xtask ci|tidy|docs`.
//!
//! Invariant: what CI runs is `ci`, and `ci` is what a developer runs; a rule of style that matters is a rule of
//! `tidy`, with a fixture that breaks it.
//! Non-goal: building or releasing; cargo does.
#![allow(clippy::disallowed_methods)] // This crate reads sources, not records.

mod benchmarks;
mod ci;
mod docs;
mod source;
mod test_programs;
mod tidy;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask ci              every check there is, then `N passed, N failed, N skipped`
cargo xtask tidy            the rules of style that are tests
cargo xtask tidy --ratchet  note in ratchet.txt what has become shorter
cargo xtask docs            write the manual page, the completions and the tables of benchmarks anew
cargo xtask docs --check    or say which of them are out of date
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = root();
    let good = match args.as_slice() {
        ["ci"] => ci::run(&root),
        ["tidy"] => tidy::run(&root),
        ["tidy", "--ratchet"] => tidy::tighten(&root),
        ["docs"] => docs::write(&root),
        ["docs", "--check"] => docs::check(&root),
        _ => {
            eprint!("{USAGE}");
            false
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The root of the repository, whatever the current directory.
fn root() -> PathBuf {
    let own = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo starts this program"));
    let root = own.ancestors().nth(2).expect("this crate lies two levels deep");
    root.to_path_buf()
}

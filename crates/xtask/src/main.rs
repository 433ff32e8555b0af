//! The repository's own checks: `cargo xtask ci|tidy|docs|lines`.
//!
//! Invariant: CI and developers run the same checks, by `ci`. Every important rule of style is checked by `tidy`, with
//! a fixture that breaks it.
//! Non-goal: building or releasing; cargo does.
#![allow(clippy::disallowed_methods)] // This crate reads sources, not records.

mod benchmarks;
mod ci;
mod docs;
mod lines;
mod python;
mod source;
mod test_programs;
mod tidy;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask ci              run every check, then print `N passed, N failed, N skipped`
cargo xtask tidy            check the rules of style
cargo xtask tidy --ratchet  write to ratchet.txt what has become shorter
cargo xtask docs            generate the manual page, completions, tables of benchmarks and classes of Python
cargo xtask docs --check    name those that are out of date
cargo xtask lines           count the lines of code of each room, without tests and generated files
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
        ["lines"] => lines::print(&tree::Tree::of_repository(&root)),
        _ => {
            eprint!("{USAGE}");
            false
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A program in the root, without the variables in which cargo tells this program about its own package. The build
/// script of ring depends on them: if they change, it runs again, and all that depends on ring is built again.
fn command(root: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root);
    let names = std::env::vars_os().map(|(name, _)| name);
    let told = |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    names.filter(|name| name.to_str().is_some_and(told)).for_each(|name| _ = command.env_remove(name));
    command
}

/// The root of the repository, independent of the current directory.
fn root() -> PathBuf {
    let own = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo starts this program"));
    let root = own.ancestors().nth(2).expect("this crate lies two levels deep");
    root.to_path_buf()
}

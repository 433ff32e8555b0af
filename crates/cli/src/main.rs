//! The `thalweg` command. All of its code is in the library beside this file, where fuzzers can call it.

fn main() -> std::process::ExitCode {
    thalweg_cli::main()
}

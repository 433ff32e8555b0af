//! The `thalweg` command. All of it is in the library beside this file, where fuzzers can call it.

fn main() -> std::process::ExitCode {
    thalweg_cli::main()
}

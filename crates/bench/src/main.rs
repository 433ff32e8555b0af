//! The `thalweg-bench` command. All of its code is in the library beside this file: tests start the same servers.

fn main() -> std::process::ExitCode {
    thalweg_bench::main()
}

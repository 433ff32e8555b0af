//! Any words on the command line.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_cli::fuzz::flags(data));

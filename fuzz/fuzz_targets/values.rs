//! Any value of a flag.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_cli::fuzz::values(data));

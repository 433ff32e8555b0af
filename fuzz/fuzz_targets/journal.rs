//! The journal of a transfer.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_transfer::fuzz::journal(data));

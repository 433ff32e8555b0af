//! What the ends of a transfer say.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_transfer::fuzz::messages(data));

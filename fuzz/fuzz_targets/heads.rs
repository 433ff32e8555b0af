//! Heads of a river.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_river::fuzz::heads(data));

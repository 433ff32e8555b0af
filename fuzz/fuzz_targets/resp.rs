//! What a Redis client may send.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_table::fuzz::requests(data));

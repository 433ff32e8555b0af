//! What a client of a volume and its server may say to each other.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_volume::fuzz::messages(data));

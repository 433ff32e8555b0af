//! Samples on their way.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_record::fuzz::packed(data));

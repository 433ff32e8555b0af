//! Records from any number on.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_record::fuzz::gensort(data));

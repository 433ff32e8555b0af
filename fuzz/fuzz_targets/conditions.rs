//! Conditions of general queries.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_table::fuzz::conditions(data));

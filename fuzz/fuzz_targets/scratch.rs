//! Leftovers of a killed sort, damaged, gone on from.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_sort::fuzz::scratch(data));

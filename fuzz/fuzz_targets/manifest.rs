//! The manifest and what is found in it.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_sort::fuzz::manifest(data));

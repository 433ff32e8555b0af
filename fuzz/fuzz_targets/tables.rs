//! What the nodes and clients of a cluster's tables send each other.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_table::fuzz::messages(data));

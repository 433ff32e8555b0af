//! What a peer asks of a node.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_job::fuzz::asked(data));

//! What a peer may say over a link.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_wire::fuzz::frames(data));

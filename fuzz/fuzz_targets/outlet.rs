//! Messages to a river's outlet.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| thalweg_river::fuzz::outlet(data));

//! The records of tables, and their order.

use thalweg_base::rng::Rng;

use thalweg_measure::SEED;

/// Bytes of a record: of key and value together, or of a member.
pub(super) const RECORD_BYTES: usize = 100;

/// The numbers below a bound in a random order, the same in each run.
pub(super) fn shuffled(bound: u64) -> Vec<u64> {
    let mut rng = Rng::new(SEED);
    let mut numbers: Vec<u64> = (0..bound).collect();
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, rng.below(i as u64 + 1) as usize);
    }
    numbers
}

//! A limit on bytes per second: a token bucket that holds a tenth of a second's worth.
//!
//! Invariant: any interval lets pass at most the rate times its length, plus the bucket's capacity, plus one block.

use std::sync::Mutex;
use std::time::Duration;

use thalweg_base::clock::now_ns;

/// The longest wait of a lane between checks whether to stop.
const NAP_NS: u64 = 100_000_000;
/// The capacity of the bucket, as a fraction of a second.
const HELD_SECONDS: f64 = 0.1;

/// The token bucket, without a clock.
#[derive(Debug)]
struct Bucket {
    bytes_per_second: f64,
    /// The bytes that may pass; negative if more have passed.
    left: f64,
    at_ns: u64,
}

impl Bucket {
    /// Takes `bytes`, and returns how long the caller has to wait.
    fn take(&mut self, bytes: u64, now_ns: u64) -> u64 {
        let since = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        self.at_ns = self.at_ns.max(now_ns);
        let most = self.bytes_per_second * HELD_SECONDS;
        self.left = (self.left + since * self.bytes_per_second).min(most) - bytes as f64;
        (-self.left.min(0.0) / self.bytes_per_second * 1e9) as u64
    }
}

/// A limit that all lanes share.
#[derive(Debug)]
pub(crate) struct Limit(Mutex<Bucket>);

impl Limit {
    pub(crate) fn new(bytes_per_second: u64) -> Limit {
        assert!(bytes_per_second > 0, "a limit that lets nothing pass");
        Limit(Mutex::new(Bucket { bytes_per_second: bytes_per_second as f64, left: 0.0, at_ns: now_ns() }))
    }

    /// Waits until `bytes` may pass, or until `stopped`.
    pub(crate) fn pass(&self, bytes: u64, stopped: impl Fn() -> bool) {
        let wait_ns = self.0.lock().expect("no lane panics").take(bytes, now_ns());
        let until = now_ns() + wait_ns;
        while now_ns() < until && !stopped() {
            // There is no event to wait for, only time.
            std::thread::park_timeout(Duration::from_nanos((until - now_ns().min(until)).min(NAP_NS)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_in_a_second_is_what_was_allowed() {
        let mut bucket = Bucket { bytes_per_second: 1e6, left: 0.0, at_ns: 0 };
        let (mut now, mut passed) = (0, 0u64);
        while now < 10_000_000_000 {
            passed += 100_000;
            now += bucket.take(100_000, now);
        }
        assert!((9_900_000..=10_200_000).contains(&passed), "{passed}");
    }

    #[test]
    fn time_that_nobody_used_is_not_saved_up() {
        let mut bucket = Bucket { bytes_per_second: 1e6, left: 0.0, at_ns: 0 };
        // After a minute of silence a tenth of a second's bytes may pass at once.
        assert_eq!(bucket.take(100_000, 60_000_000_000), 0);
        assert_eq!(bucket.take(50_000, 60_000_000_000), 50_000_000);
    }
}

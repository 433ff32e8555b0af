//! The one address of the clock. Elsewhere the linter refuses `Instant::now`.
#![allow(clippy::disallowed_methods)]

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the first call in this process; never goes back.
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Seconds since the Unix epoch, for identities and file names, never for durations.
pub fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Measures the time from its making.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(u64);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Stopwatch(now_ns())
    }

    /// Nanoseconds since the start.
    pub fn ns(self) -> u64 {
        now_ns() - self.0
    }

    /// Seconds since the start.
    pub fn seconds(self) -> f64 {
        self.ns() as f64 / 1e9
    }
}

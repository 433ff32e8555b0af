//! The only access to the clock; elsewhere the linter rejects `Instant::now`.
#![allow(clippy::disallowed_methods)]

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the first call in this process. Monotonic.
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Seconds since the Unix epoch, for identities and file names. Never use it for durations.
pub fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Nanoseconds since the Unix epoch, for file times.
pub fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Measures the time since its creation.
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

/// Formats Unix seconds in UTC as `2026-01-31T12:34:56Z`.
pub fn date(seconds: u64) -> String {
    date_of(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Formats nanoseconds since 1970, or before, as [`date`] does.
pub fn date_of_ns(ns: i64) -> String {
    date_of(ns.div_euclid(1_000_000_000))
}

fn date_of(seconds: i64) -> String {
    let (year, month, day) = day_of(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts days since 1970 to year, month and day. Years start in March here, so that the leap day is the last day
/// of its year.
fn day_of(days: i64) -> (i64, i64, i64) {
    const DAYS_TO_1970: i64 = 719_468; // From the first of March of the year 0.
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, rest) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era = (rest - rest / 1460 + rest / 36_524 - rest / 146_096) / 365;
    let day_of_year = rest - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_of_ns(-1), "1969-12-31T23:59:59Z");
        assert_eq!(date_of_ns(-315_619_200 * 1_000_000_000), "1960-01-01T00:00:00Z");
        assert_eq!(date_of_ns(i64::MIN), "1677-09-21T00:12:43Z");
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(date(1_740_787_200), "2025-03-01T00:00:00Z");
        assert_eq!(date(4_102_444_799), "2099-12-31T23:59:59Z");
    }
}

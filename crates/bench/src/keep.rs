//! Results on disk: one JSON object in `bench/results/<date>-<host>/`, below the current directory.

use std::path::PathBuf;

use thalweg::Result;
use thalweg_api::{BenchReport, to_json};

use crate::failed;

/// Writes the report where results are kept.
pub(crate) fn keep(report: &BenchReport) -> Result<()> {
    let (directory, name) = place_of(report);
    std::fs::create_dir_all(&directory).map_err(|e| failed("make", &directory, &e))?;
    let path = directory.join(name);
    std::fs::write(&path, to_json(report) + "\n").map_err(|e| failed("write", &path, &e))
}

/// The directory and the file: the day and the host, then the benchmark and the time of day.
pub(crate) fn place_of(report: &BenchReport) -> (PathBuf, String) {
    let (day, time) = report.date.split_once('T').unwrap_or((&report.date, ""));
    let time: String = time.chars().filter(char::is_ascii_digit).collect();
    let host: String = report.machine.host.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
    (format!("bench/results/{day}-{host}").into(), format!("{}-{time}.json", report.bench))
}

/// A moment in UTC as `2026-01-31T12:34:56Z`.
pub(crate) fn date(seconds: u64) -> String {
    let (year, month, day) = day_of(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day from the days since 1970. Years are counted from March on, so that the leap day
/// is the last of its year.
fn day_of(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468; // From the first of March of the year 0.
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, rest) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year_of_era = (rest - rest / 1460 + rest / 36_524 - rest / 146_096) / 365;
    let day_of_year = rest - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(date(1_740_787_200), "2025-03-01T00:00:00Z");
        assert_eq!(date(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn results_of_one_host_and_day_lie_together() {
        let mut report = BenchReport { bench: "io".into(), date: date(0), ..BenchReport::default() };
        report.machine.host = "ho/st-1".into();
        let (directory, name) = place_of(&report);
        assert_eq!(directory, PathBuf::from("bench/results/1970-01-01-host-1"));
        assert_eq!(name, "io-000000.json");
    }
}

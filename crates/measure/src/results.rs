//! Results on disk: one JSON object in `bench/results/<date>-<host>/`, below the current directory.

use std::path::PathBuf;

use thalweg_api::{BenchReport, to_json};

use crate::Result;
use crate::failed;

/// Writes the report to its file.
pub(crate) fn write(report: &BenchReport) -> Result<()> {
    let (directory, name) = place_of(report);
    std::fs::create_dir_all(&directory).map_err(|e| failed("make", &directory, &e))?;
    let path = directory.join(name);
    std::fs::write(&path, to_json(report) + "\n").map_err(|e| failed("write", &path, &e))
}

/// The directory, named by day and host, and the file, named by benchmark and time of day.
pub(crate) fn place_of(report: &BenchReport) -> (PathBuf, String) {
    let (day, time) = report.date.split_once('T').unwrap_or((&report.date, ""));
    let time: String = time.chars().filter(char::is_ascii_digit).collect();
    let host: String = report.machine.host.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
    (format!("bench/results/{day}-{host}").into(), format!("{}-{time}.json", report.bench))
}

#[cfg(test)]
mod tests {
    use thalweg_base::clock::date;

    use super::*;

    #[test]
    fn results_of_one_host_and_day_lie_together() {
        let mut report = BenchReport { bench: "io".into(), date: date(0), ..BenchReport::default() };
        report.machine.host = "ho/st-1".into();
        let (directory, name) = place_of(&report);
        assert_eq!(directory, PathBuf::from("bench/results/1970-01-01-host-1"));
        assert_eq!(name, "io-000000.json");
    }
}

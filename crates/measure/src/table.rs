//! A report as text: a table, followed by what was left out and what failed.
//!
//! Invariant: a missed target is shown like a met one.
//! Non-goal: completeness; the single runs behind a median and the memory used are in the JSON.

use std::fmt::Write;

use thalweg_api::{BenchHost, BenchMeasure, BenchOther, BenchRate, BenchReport, BenchRow};
use thalweg_base::units::Bytes;

use crate::targets::{P99_RUNS_MIN, p99};

/// The report as people read it.
pub fn table(report: &BenchReport) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "bench {} of {}, {}, thalweg {}\n{}: {}, {} cores, {}, {}, Linux {}\ncaches: {}\nmedians of {}, seed {:x}\n\n",
        report.bench,
        traffic(report.size_bytes),
        report.date,
        report.version,
        machine.host,
        machine.cpu,
        machine.cores,
        Bytes(machine.memory_bytes),
        machine.disk,
        machine.kernel,
        report.cache,
        report.runs,
        report.seed,
    );
    if !report.rows.is_empty() {
        text += &columns(&rows(&report.rows));
    }
    if !report.rates.is_empty() {
        text += &columns(&rates(&report.rates));
        text += &best_rates(&report.rates);
    }
    if !report.hosts.is_empty() {
        text += &format!("\n{}", columns(&hosts(&report.hosts)));
    }
    for row in &report.rows {
        text += &notes(row);
    }
    for note in &report.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// A line for each target; the measurements are on the first.
fn rows(rows: &[BenchRow]) -> Vec<Vec<String>> {
    let heads = ["row", "work", "floor", "ours", "beside it", "ratio", "target", "met"];
    let mut lines = vec![heads.map(String::from).to_vec()];
    for row in rows {
        let floor = row.floor.as_ref().map_or("-".to_string(), |floor| seconds(floor.seconds));
        let ours = if row.failed.is_empty() { took(&row.ours) } else { "failed".to_string() };
        let count = row.targets.len().max(row.others.len()).max(1);
        for i in 0..count {
            let once = |text: &str| if i == 0 { text.to_string() } else { String::new() };
            let target = row.targets.get(i);
            let met = target.map_or("", |target| match target.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "-",
            });
            lines.push(vec![
                once(&row.name),
                once(&row.work),
                once(&floor),
                once(&ours),
                row.others.get(i).map(beside).unwrap_or_default(),
                target.map(|target| target.measured.clone()).unwrap_or_default(),
                target.map(|target| target.target.clone()).unwrap_or_default(),
                met.to_string(),
            ]);
        }
    }
    lines
}

fn beside(other: &BenchOther) -> String {
    match &other.measure {
        Some(measure) => format!("{} {}", other.name, took(measure)),
        None => format!("{} failed", other.name),
    }
}

fn took(measure: &BenchMeasure) -> String {
    let all = &measure.all_seconds;
    let p99 = if all.len() < P99_RUNS_MIN { String::new() } else { format!(", p99 {}", seconds(p99(all))) };
    let kernel = match measure.kernel_seconds {
        0.0 => String::new(),
        kernel => format!(" ({kernel:.2} kernel)"),
    };
    format!("{}{p99}, {:.2} CPU{kernel}", seconds(measure.seconds), measure.cpu_seconds)
}

/// The notes on a row.
fn notes(row: &BenchRow) -> String {
    let mut text = String::new();
    if !row.failed.is_empty() {
        let _ = writeln!(text, "{}: failed: {}", row.name, row.failed);
    }
    for note in &row.notes {
        let _ = writeln!(text, "{}: {note}", row.name);
    }
    for other in &row.others {
        if !other.note.is_empty() {
            let _ = writeln!(text, "{}: {}: {}", row.name, other.name, other.note);
        }
    }
    if !row.digest.is_empty() {
        let _ = writeln!(text, "{}: output {}", row.name, row.digest);
    }
    text
}

fn rates(rates: &[BenchRate]) -> Vec<Vec<String>> {
    let heads = ["scheme", "bytes", "chunk", "directories", "read MB/s", "write MB/s"];
    let mut lines = vec![heads.map(String::from).to_vec()];
    for rate in rates {
        lines.push(vec![
            rate.scheme.clone(),
            traffic(rate.bytes),
            Bytes(rate.chunk_bytes).to_string(),
            rate.directories.to_string(),
            megabytes(rate.read_bytes_per_second),
            megabytes(rate.write_bytes_per_second),
        ]);
    }
    lines
}

/// The paper's table: each scheme at its best chunk.
fn best_rates(rates: &[BenchRate]) -> String {
    let mut schemes: Vec<&str> = rates.iter().map(|rate| rate.scheme.as_str()).collect();
    schemes.dedup();
    let heads = ["at its best chunk", "read MB/s", "write MB/s"];
    let mut lines = vec![heads.map(String::from).to_vec()];
    for scheme in schemes {
        let of_scheme = || rates.iter().filter(|rate| rate.scheme == scheme);
        let read = of_scheme().map(|rate| rate.read_bytes_per_second).fold(0.0, f64::max);
        let write = of_scheme().map(|rate| rate.write_bytes_per_second).fold(0.0, f64::max);
        lines.push(vec![scheme.to_string(), megabytes(read), megabytes(write)]);
    }
    format!("\n{}", columns(&lines))
}

fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.0}", bytes_per_second / 1e6)
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{s:.3} s"),
        s => format!("{s:.2} s"),
    }
}

/// In units of powers of 1000, as disks are sold.
pub fn traffic(bytes: u64) -> String {
    let (scale, unit) = match bytes {
        b if b >= 1_000_000_000 => (1e9, "GB"),
        b if b >= 1_000_000 => (1e6, "MB"),
        _ => (1e3, "kB"),
    };
    let number = bytes as f64 / scale;
    if number < 10.0 { format!("{number:.2} {unit}") } else { format!("{number:.0} {unit}") }
}

/// Left-aligned columns.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |i: usize| lines.iter().filter_map(|line| Some(line.get(i)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// The kernel's counts, as lines of a table.
fn hosts(hosts: &[BenchHost]) -> Vec<Vec<String>> {
    let heads = ["host", "process", "received", "sent"].map(String::from).to_vec();
    let line = |host: &BenchHost| {
        let bytes = traffic;
        vec![host.host.clone(), host.pid.to_string(), bytes(host.received_bytes), bytes(host.sent_bytes)]
    };
    std::iter::once(heads).chain(hosts.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use thalweg_api::{BenchFloor, BenchTarget};

    use super::*;

    fn measure(seconds: f64) -> BenchMeasure {
        let (cpu_seconds, kernel_seconds) = (seconds / 2.0, seconds / 4.0);
        BenchMeasure { seconds, cpu_seconds, kernel_seconds, peak_bytes: 1 << 30, all_seconds: vec![seconds] }
    }

    #[test]
    fn a_missed_target_is_shown_like_a_met_one() {
        let target = |target: &str, measured: &str, met| BenchTarget {
            target: target.into(),
            measured: measured.into(),
            met,
        };
        let row = BenchRow {
            name: "memory".into(),
            work: "1.00 GB binary".into(),
            ours: measure(1.5),
            floor: Some(BenchFloor { seconds: 1.25, ..BenchFloor::default() }),
            others: vec![BenchOther::measured("GNU sort", measure(8.0))],
            targets: vec![
                target("wall <= 1.25 x floor", "1.20", Some(true)),
                target("CPU <= 0.5 s/GB", "0.75", Some(false)),
            ],
            digest: "xxh3:00".into(),
            ..BenchRow::default()
        };
        let expected = "\
row     work            floor   ours                       beside it                           ratio  target                met
memory  1.00 GB binary  1.25 s  1.50 s, 0.75 CPU (0.38 kernel)  GNU sort 8.00 s, 4.00 CPU (2.00 kernel)  1.20   wall <= 1.25 x floor  yes
                                                                                             0.75   CPU <= 0.5 s/GB       NO
";
        let squeezed = |text: &str| {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().map(words).collect::<Vec<_>>()
        };
        let report = BenchReport { bench: "sort".into(), rows: vec![row], ..BenchReport::default() };
        let text = table(&report);
        let body = text.split_once("\n\n").unwrap().1;
        assert_eq!(squeezed(body)[..3], squeezed(expected)[..], "{text}");
        assert!(text.ends_with("memory: output xxh3:00\n"), "{text}");
    }

    #[test]
    fn what_failed_says_so_in_its_row_and_why_below() {
        let other = BenchOther { name: "spark".into(), note: "no java".into(), ..BenchOther::default() };
        let row = BenchRow {
            name: "rivals".into(),
            failed: "disk full".into(),
            others: vec![other],
            ..BenchRow::default()
        };
        let text = table(&BenchReport { rows: vec![row], ..BenchReport::default() });
        assert!(text.contains("spark failed"), "{text}");
        assert!(text.contains("rivals: failed: disk full\nrivals: spark: no java\n"), "{text}");
    }

    #[test]
    fn rates_end_in_the_best_of_each_scheme() {
        let rate = |scheme: &str, chunk_bytes, read, write| BenchRate {
            scheme: scheme.into(),
            chunk_bytes,
            directories: 1,
            bytes: 256_000_000,
            read_bytes_per_second: read,
            write_bytes_per_second: write,
        };
        let rates = vec![
            rate("direct threads", 65_536, 5e8, 9e8),
            rate("direct threads", 1 << 20, 2e9, 8e8),
            rate("buffered threads", 65_536, 4e8, 3e8),
        ];
        let text = table(&BenchReport { rates, ..BenchReport::default() });
        assert!(text.contains("direct threads    256 MB  64 KiB  1 "), "{text}");
        assert!(text.contains("direct threads     2000       900\n"), "{text}");
    }
}

//! The figures of paper 002 from a run of `thalweg bench table`, as pictures and as a table of points.
//!
//! Model: rows are named as in `insert-cu-adaptive-5`: what clients do, variant, window, servers; `split-50000`:
//! records of a bucket. Every point is in milliseconds a record, as in the paper.

use std::fmt::Write;

use thalweg_api::BenchReport;

use super::figures::{Figure, Line};

const SERVERS: u32 = 5;
/// Records in thousands, of the smallest and the largest bucket that is split, and between them.
const SPLITS: [u32; 8] = [10, 20, 40, 50, 80, 100, 320, 640];
/// The paper's milliseconds a record for one to five servers, with and without flow control.
const PAPER_INSERT: [[f64; 5]; 2] =
    [[0.355, 0.258, 0.235, 0.223, 0.221], [0.275, 0.144, 0.112, 0.092, 0.092]];
const PAPER_SEARCH: [[f64; 5]; 2] =
    [[0.340, 0.258, 0.214, 0.204, 0.200], [0.321, 0.177, 0.160, 0.153, 0.143]];
const PAPER_RANGE: [f64; 5] = [0.035, 0.021, 0.017, 0.014, 0.010];
const LINES: [(&str, &str); 9] = [
    ("Cu, adaptive", "cu-adaptive"),
    ("Cu, window of 10", "cu-10"),
    ("Cu, no window", "cu-none"),
    ("Cu, right image", "cu-right"),
    ("Cu, two clients", "cu-2-clients"),
    ("N, adaptive", "n-adaptive"),
    ("N, window of 10", "n-10"),
    ("N, no window", "n-none"),
    ("N, no window, multicast", "n-none-udp"),
];

/// Milliseconds for each record of a row.
fn per_record(report: &BenchReport, name: &str, records: Option<f64>) -> Option<f64> {
    let row = report.rows.iter().find(|row| row.name == name && row.failed.is_empty())?;
    let records = records.unwrap_or(row.bytes as f64 / 100.0);
    (row.ours.seconds > 0.0).then(|| row.ours.seconds * 1e3 / records)
}

/// The lines of what clients do, by the number of servers.
fn by_servers(report: &BenchReport, what: &str) -> Vec<Line> {
    let line = |(name, row): &(&str, &str)| {
        let point = |servers| Some((servers, per_record(report, &format!("{what}-{row}-{servers}"), None)?));
        Line { name: name.to_string(), points: (1..=SERVERS).filter_map(point).collect() }
    };
    LINES.iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn paper(name: &str, values: &[f64; 5]) -> Line {
    Line { name: name.into(), points: (1..).zip(values.iter().copied()).collect() }
}

/// All figures for which a report has points.
pub(super) fn figures(report: &BenchReport) -> Vec<Figure> {
    let servers = |number: u32, title: &str, mut lines: Vec<Line>, papers: Vec<Line>| {
        lines.extend(papers);
        Figure {
            name: format!("table-{number}"),
            title: format!("Figure {number}. {title}"),
            ticks: (1..=SERVERS).collect(),
            across: "servers",
            unit: "ms",
            lines,
        }
    };
    let both =
        |of: &[[f64; 5]; 2]| vec![paper("paper, window of 10", &of[0]), paper("paper, no window", &of[1])];
    let ranges =
        (1..=SERVERS).filter_map(|k| Some((k, per_record(report, &format!("range-{k}"), None)?))).collect();
    let range = vec![Line { name: "Thalweg".into(), points: ranges }];
    let split = |b: u32| Some((b, per_record(report, &format!("split-{b}000"), Some(f64::from(b) * 1e3))?));
    let splits =
        vec![Line { name: "Thalweg".into(), points: SPLITS.into_iter().filter_map(split).collect() }];
    let all = [
        Figure {
            name: "table-10".into(),
            title: "Figure 10. Split, for each record of the bucket".into(),
            ticks: [SPLITS[0]].into_iter().chain((1..=6).map(|i| i * 100)).chain([SPLITS[7]]).collect(),
            across: "thousand records of the bucket",
            unit: "ms",
            lines: splits,
        },
        servers(12, "Insert, for each record", by_servers(report, "insert"), both(&PAPER_INSERT)),
        servers(14, "Search, for each record", by_servers(report, "search"), both(&PAPER_SEARCH)),
        servers(16, "Range of all records, for each record", range, vec![paper("paper", &PAPER_RANGE)]),
    ];
    let is_ours = |line: &Line| !line.name.starts_with("paper") && line.points.len() > 1;
    let is_measured = |figure: &Figure| figure.lines.iter().any(is_ours);
    all.into_iter().filter(is_measured).collect()
}

/// A table of all points.
pub(super) fn points(report: &BenchReport) -> String {
    let mut text = String::new();
    for figure in figures(report) {
        let mut across: Vec<u32> = figure.lines[0].points.iter().map(|(at, _)| *at).collect();
        across.dedup();
        let heads: Vec<String> = across.iter().map(u32::to_string).collect();
        _ = writeln!(
            text,
            "\n| {}: ms, by {} | {} |\n|---{}|",
            figure.title,
            figure.across,
            heads.join(" | "),
            "|---".repeat(across.len())
        );
        for line in &figure.lines {
            let value = |at: &u32| line.points.iter().find(|(known, _)| known == at);
            let cells = across.iter().map(|at| value(at).map_or("-".into(), |(_, ms)| format!("{ms:.4}")));
            _ = writeln!(text, "| {} | {} |", line.name, cells.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use thalweg_api::{BenchMeasure, BenchRow};

    use super::*;

    #[test]
    fn points_are_milliseconds_a_record_beside_those_of_the_paper() {
        let row = |name: String, seconds: f64| BenchRow {
            name,
            bytes: 10_000_000,
            ours: BenchMeasure { seconds, ..BenchMeasure::default() },
            ..BenchRow::default()
        };
        let inserts = (1..=2).map(|k| row(format!("insert-cu-10-{k}"), f64::from(k)));
        let splits = [10, 640].map(|b| row(format!("split-{b}000"), 1.0));
        let rows = inserts.chain(splits).collect();
        let report = BenchReport { bench: "table".into(), rows, ..BenchReport::default() };
        let points = points(&report);
        assert!(points.contains("| Cu, window of 10 | 0.0100 | 0.0200 |"), "{points}");
        assert!(points.contains("| paper, no window | 0.2750 | 0.1440 |"), "{points}");
        assert!(points.contains("| Thalweg | 0.1000 | 0.0016 |"), "{points}");
        assert!(figures(&report).iter().all(|figure| figure.svg().ends_with("</svg>\n")));
        assert_eq!(figures(&report).len(), 2);
    }
}

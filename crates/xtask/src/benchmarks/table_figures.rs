//! The figures of paper 002 from a run of `thalweg-bench table`, as pictures and as a table of points.
//!
//! Model: rows are named as in `insert-cu-adaptive-5`: what clients do, variant, window, servers; `create-cu-none`:
//! without servers; `split-50000`: records of a bucket. A point is in milliseconds a record, or in seconds for all.

use std::fmt::Write;

use thalweg_api::{BenchReport, BenchRow};

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
/// Records of the rows that insert, search and read, and of those that create a file.
const USED: f64 = 100_000.0;
const CREATED: f64 = 150_000.0;
/// The rows of the figures about a file that is created.
const BY_ONE: [(&str, &str); 6] = [
    ("Cu, adaptive", "cu-adaptive"),
    ("Cu, window of 10", "cu-10"),
    ("Cu, no window", "cu-none"),
    ("N, adaptive", "n-adaptive"),
    ("N, window of 10", "n-10"),
    ("N, no window", "n-none"),
];
const BY_UDP: [(&str, &str); 8] = [
    ("Cu, adaptive, packed", "cu-adaptive-udp"),
    ("Cu, window of 10, packed", "cu-10-udp"),
    ("Cu, no window, packed", "cu-none-udp"),
    ("Cu, no window, one each", "cu-none-udp-single"),
    ("N, adaptive, packed", "n-adaptive-udp"),
    ("N, window of 10, packed", "n-10-udp"),
    ("N, no window, packed", "n-none-udp"),
    ("N, no window, one each", "n-none-udp-single"),
];
const BY_TWO: [(&str, &str); 2] = [("Cu, two clients", "cu-2-clients"), ("N, two clients", "n-2-clients")];
/// Variant and window of the columns of table 7.
const WAYS: [&str; 4] = ["n-10", "n-none", "cu-10", "cu-none"];
/// The rows of table 7: what is measured, the paper's milliseconds, our rows, and what they are divided by.
const COMPARED: [(&str, [f64; 4], &str, f64); 6] = [
    ("creation of 150,000 records", [69_209.0, 47_798.0, 67_838.0, 45_032.0], "create", 1.0),
    ("the same, for each record", [0.461, 0.319, 0.452, 0.3], "create", CREATED),
    ("search", [0.205, 0.145, 0.2, 0.143], "search", USED),
    ("insert", [0.229, 0.095, 0.221, 0.092], "insert", USED),
    ("split of 100,000, for each record", [0.037; 4], "split", USED),
    ("range, for each record", [0.01; 4], "range", USED),
];
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

/// The row of this name, if it was measured.
fn measured<'a>(report: &'a BenchReport, name: &str) -> Option<&'a BenchRow> {
    report.rows.iter().find(|row| row.name == name && row.failed.is_empty() && row.ours.seconds > 0.0)
}

/// Milliseconds for each record of a row.
fn per_record(report: &BenchReport, name: &str, records: Option<f64>) -> Option<f64> {
    let row = measured(report, name)?;
    Some(row.ours.seconds * 1e3 / records.unwrap_or(row.bytes as f64 / 100.0))
}

/// The lines of what clients do, by the number of servers.
fn by_servers(report: &BenchReport, what: &str) -> Vec<Line> {
    let line = |name: &str, row: &str| {
        let point = |servers| Some((servers, per_record(report, &format!("{row}-{servers}"), None)?));
        Line { name: name.into(), points: (1..=SERVERS).filter_map(point).collect() }
    };
    let lines = LINES.iter().map(|(name, row)| line(name, &format!("{what}-{row}")));
    [line("Thalweg", what)].into_iter().chain(lines).filter(|line| !line.points.is_empty()).collect()
}

fn paper(name: &str, values: &[f64; 5]) -> Line {
    Line { name: name.into(), points: (1..).zip(values.iter().copied()).collect() }
}

/// The seconds until so many records of a row were inserted, in `unit` for so many records.
fn curve(report: &BenchReport, row: &str, unit: impl Fn(u32, f64) -> f64) -> Vec<(u32, f64)> {
    let points = measured(report, row).into_iter().flat_map(|row| &row.curve);
    let point = |(records, seconds): &(u64, f64)| {
        let records = u32::try_from(*records).ok()?;
        Some((records, unit(records, *seconds)))
    };
    points.filter_map(point).collect()
}

/// The figures about a file that is created, by the number of its records.
fn created(report: &BenchReport) -> Vec<Figure> {
    let of = |records: u32, seconds: f64| seconds * 1e3 / f64::from(records);
    let figure = |number: u32, title: &str, rows: &[(&str, &str)], is_per_record: bool| {
        let unit = |records, seconds| if is_per_record { of(records, seconds) } else { seconds };
        let line = |(name, row): &(&str, &str)| Line {
            name: name.to_string(),
            points: curve(report, &format!("create-{row}"), unit),
        };
        let lines: Vec<Line> = rows.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let most = lines.iter().flat_map(|line| &line.points).map(|(at, _)| *at).max().unwrap_or(1);
        Figure {
            name: format!("table-{number}"),
            title: format!("Figure {number}. {title}"),
            ticks: (0..=5).map(|i| most / 5 * i).collect(),
            across: "records",
            unit: if is_per_record { "ms" } else { "s" },
            lines,
        }
    };
    let both = [BY_ONE[2], BY_ONE[5], BY_TWO[0], BY_TWO[1]];
    vec![
        figure(5, "Creation by one client, over links", &BY_ONE, false),
        figure(6, "Creation by one client, by UDP", &BY_UDP, false),
        figure(7, "Creation by one client, for each record", &BY_ONE, true),
        figure(8, "Creation by two clients", &BY_TWO, false),
        figure(9, "Creation by one or two clients, for each record", &both, true),
    ]
}

/// All figures for which a report has points.
pub(super) fn figures(report: &BenchReport) -> Vec<Figure> {
    let servers = |number: u32, title: &str, what: &str, papers: &[(&str, &[f64; 5])]| {
        // The even numbers have times of one record, the odd ones of all.
        let is_per_record = number.is_multiple_of(2);
        let mut lines = by_servers(report, what);
        lines.extend(papers.iter().map(|(name, values)| paper(name, values)));
        let points = lines.iter_mut().flat_map(|line| &mut line.points);
        points.filter(|_| !is_per_record).for_each(|(_, ms)| *ms *= USED / 1e3);
        Figure {
            name: format!("table-{number}"),
            title: format!("Figure {number}. {title}"),
            ticks: (1..=SERVERS).collect(),
            across: "servers",
            unit: if is_per_record { "ms" } else { "s" },
            lines,
        }
    };
    let split = |b: u32| Some((b, per_record(report, &format!("split-{b}000"), Some(f64::from(b) * 1e3))?));
    let splits =
        vec![Line { name: "Thalweg".into(), points: SPLITS.into_iter().filter_map(split).collect() }];
    let inserts = [("paper, window of 10", &PAPER_INSERT[0]), ("paper, no window", &PAPER_INSERT[1])];
    let searches = [("paper, window of 10", &PAPER_SEARCH[0]), ("paper, no window", &PAPER_SEARCH[1])];
    let ranges = [("paper", &PAPER_RANGE)];
    let mut all = created(report);
    all.extend([
        Figure {
            name: "table-10".into(),
            title: "Figure 10. Split, for each record of the bucket".into(),
            ticks: [SPLITS[0]].into_iter().chain((1..=6).map(|i| i * 100)).chain([SPLITS[7]]).collect(),
            across: "thousand records of the bucket",
            unit: "ms",
            lines: splits,
        },
        servers(11, "Inserts of 100,000 records", "insert", &inserts),
        servers(12, "Insert, for each record", "insert", &inserts),
        servers(13, "Searches of 100,000 records", "search", &searches),
        servers(14, "Search, for each record", "search", &searches),
        servers(15, "Range of 100,000 records", "range", &ranges),
        servers(16, "Range of all records, for each record", "range", &ranges),
    ]);
    let is_ours = |line: &Line| !line.name.starts_with("paper") && line.points.len() > 1;
    let is_measured = |figure: &Figure| figure.lines.iter().any(is_ours);
    all.into_iter().filter(is_measured).collect()
}

/// A table of all points, one for each figure, or for the lines of a figure that have the same numbers across, and the
/// paper's comparison of all times.
pub(super) fn points(report: &BenchReport) -> String {
    let mut text = String::new();
    for figure in figures(report) {
        let across = |line: &Line| line.points.iter().map(|(at, _)| *at).collect::<Vec<u32>>();
        for lines in figure.lines.chunk_by(|one, other| across(one) == across(other)) {
            let heads: Vec<String> = across(&lines[0]).iter().map(u32::to_string).collect();
            let (title, unit, of) = (&figure.title, figure.unit, figure.across);
            let rule = "|---".repeat(heads.len());
            _ = writeln!(text, "\n| {title}: {unit}, by {of} | {} |\n|---{rule}|", heads.join(" | "));
            for line in lines {
                let cells: Vec<String> = line.points.iter().map(|(_, value)| format!("{value:.4}")).collect();
                _ = writeln!(text, "| {} | {} |", line.name, cells.join(" | "));
            }
        }
    }
    text + &compared(report)
}

/// Table 7 of the paper: its times and ours, or nothing if one of ours is missing.
fn compared(report: &BenchReport) -> String {
    let mut text = String::from(
        "\n| Table 7 | paper, N, window of 10 | paper, N, none | paper, C, window of 10 | paper, C, none \
         | N, window of 10 | N, none | Cu, window of 10 | Cu, none |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, papers, what, times) in COMPARED {
        let rows = match what {
            "range" => ["range-5"; 4].map(String::from),
            "split" => ["split-100000"; 4].map(String::from),
            "create" => WAYS.map(|way| format!("{what}-{way}")),
            _ => WAYS.map(|way| format!("{what}-{way}-{SERVERS}")),
        };
        let ours = rows.map(|row| per_record(report, &row, Some(times)).map(|ms| format!("{ms:.4}")));
        let Some(ours) = ours.into_iter().collect::<Option<Vec<String>>>() else { return String::new() };
        let papers: Vec<String> = papers.iter().map(f64::to_string).collect();
        _ = writeln!(text, "| {name} | {} | {} |", papers.join(" | "), ours.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use thalweg_api::BenchMeasure;

    use super::*;

    #[test]
    fn points_are_ours_beside_those_of_the_paper() {
        let row = |name: &str, seconds: f64, curve: &[(u64, f64)]| BenchRow {
            name: name.into(),
            bytes: 10_000_000,
            curve: curve.to_vec(),
            ours: BenchMeasure { seconds, ..BenchMeasure::default() },
            ..BenchRow::default()
        };
        let mut rows = vec![
            row("create-cu-none", 0.3, &[(10_000, 0.1), (20_000, 0.3)]),
            row("create-cu-2-clients", 0.3, &[(8_000, 0.1), (16_000, 0.2)]),
            row("insert-cu-10-1", 1.0, &[]),
            row("insert-cu-10-2", 2.0, &[]),
            row("split-10000", 1.0, &[]),
            row("split-640000", 1.0, &[]),
        ];
        let report = |rows: &[BenchRow]| BenchReport {
            bench: "table".into(),
            rows: rows.to_vec(),
            ..BenchReport::default()
        };
        let few = report(&rows);
        let text = points(&few);
        for line in [
            "| Figure 5. Creation by one client, over links: s, by records | 10000 | 20000 |",
            "| Cu, no window | 0.1000 | 0.3000 |",
            "| Cu, no window | 0.0100 | 0.0150 |",
            "| Cu, two clients | 0.0125 | 0.0125 |",
            "| Cu, window of 10 | 1.0000 | 2.0000 |",
            "| Cu, window of 10 | 0.0100 | 0.0200 |",
            "| paper, no window | 27.5000 | 14.4000 |",
            "| paper, no window | 0.2750 | 0.1440 |",
            "| Thalweg | 0.1000 | 0.0016 |",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(figures(&few).iter().all(|figure| figure.svg().ends_with("</svg>\n")));
        let numbers: Vec<String> = figures(&few).into_iter().map(|figure| figure.name).collect();
        let wanted = [5, 7, 8, 9, 10, 11, 12].map(|number| format!("table-{number}"));
        assert_eq!(numbers, wanted);
        assert!(!text.contains("Table 7"), "{text}");

        rows.extend(WAYS.map(|way| row(&format!("create-{way}"), 1.5, &[])));
        rows.extend(WAYS.map(|way| row(&format!("insert-{way}-5"), 1.0, &[])));
        rows.extend(WAYS.map(|way| row(&format!("search-{way}-5"), 0.9, &[])));
        rows.extend([row("split-100000", 0.5, &[]), row("range-5", 0.8, &[])]);
        rows.remove(0);
        let text = points(&report(&rows));
        let search = "| search | 0.205 | 0.145 | 0.2 | 0.143 | 0.0090 | 0.0090 | 0.0090 | 0.0090 |";
        assert!(text.contains(search), "{text}");
        assert!(text.contains("| 0.452 | 0.3 | 0.0100 |"), "{text}");
    }
}

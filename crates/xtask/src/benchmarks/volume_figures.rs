//! The figures of paper 001 from a run of `thalweg-bench volume --rows figures`, as pictures and as a table of points.
//!
//! Model: the rows of the run are named as in `whole-350-7`: kind of reading, records per chunk, readers. A line of a
//! figure shows one kind of reading, one chunk size and one file system, by the number of readers.

use std::fmt::Write;

use thalweg_api::BenchReport;

use super::figures::{Figure, Line};

const CHUNKS: [u32; 5] = [1, 10, 50, 150, 350];
/// The chunk sizes of figures 10 and 11.
const FEW_CHUNKS: [u32; 3] = [1, 50, 150];
const READERS: u32 = 7;
/// The paper's own points in figures 3 and 6: kind of reading, readers, MB/s of PVFS, MB/s of NFS.
const PAPER: [(&str, u32, f64, f64); 2] = [("whole", 7, 48.23, 11.76), ("global", 7, 50.06, 9.09)];

/// The file system that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Ours,
    Nfs,
}

impl Who {
    const ALL: [Who; 2] = [Who::Ours, Who::Nfs];

    fn name(self) -> &'static str {
        match self {
            Who::Ours => "Thalweg",
            Who::Nfs => "NFS",
        }
    }
}

/// All figures for which a report has points.
pub(super) fn figures(report: &BenchReport) -> Vec<Figure> {
    let line = |name: String, what: &str, chunk: u32, who: Who| {
        let rate = |readers| Some((readers, rate(report, what, chunk, readers, who)?));
        Line { name, points: (1..=READERS).filter_map(rate).collect() }
    };
    let by_chunk = |what: &str, who: Who| {
        CHUNKS.iter().map(|chunk| line(records(*chunk), what, *chunk, who)).collect::<Vec<_>>()
    };
    let best =
        |what: &str| Who::ALL.iter().map(|who| line(who.name().into(), what, 350, *who)).collect::<Vec<_>>();
    let workloads = |kinds: &[&str], who: Who| {
        let named = |what: &str, chunk| line(format!("{what}, {}", records(chunk)), what, chunk, who);
        kinds.iter().flat_map(|what| FEW_CHUNKS.map(|chunk| named(what, chunk))).collect::<Vec<_>>()
    };
    let one_record = Who::ALL.iter().map(|who| line(who.name().into(), "random", 1, *who)).collect();
    let all: [(u32, &str, Vec<Line>); 11] = [
        (1, "NFS, the whole file by each reader", by_chunk("whole", Who::Nfs)),
        (2, "Thalweg, the whole file by each reader", by_chunk("whole", Who::Ours)),
        (3, "The whole file by each reader, chunks of 350 records", best("whole")),
        (4, "NFS, a part of the file by each reader", by_chunk("global", Who::Nfs)),
        (5, "Thalweg, a part of the file by each reader", by_chunk("global", Who::Ours)),
        (6, "A part of the file by each reader, chunks of 350 records", best("global")),
        (7, "Records at random", one_record),
        (8, "NFS, chunks at random", by_chunk("random", Who::Nfs)),
        (9, "Thalweg, chunks at random", by_chunk("random", Who::Ours)),
        (10, "Thalweg, all ways of reading", workloads(&["whole", "global", "random"], Who::Ours)),
        (11, "NFS, all of a file and parts of it", workloads(&["whole", "global"], Who::Nfs)),
    ];
    let figure = |(number, title, mut lines): (u32, &str, Vec<Line>)| {
        for (what, readers, pvfs, nfs) in PAPER {
            if (number, what) == (3, "whole") || (number, what) == (6, "global") {
                lines.push(Line { name: "PVFS in the paper".into(), points: vec![(readers, pvfs)] });
                lines.push(Line { name: "NFS in the paper".into(), points: vec![(readers, nfs)] });
            }
        }
        Figure {
            name: format!("volume-{number}"),
            title: format!("Figure {number}. {title}"),
            ticks: (1..=READERS).collect(),
            across: "readers",
            unit: "MB/s",
            lines,
        }
    };
    let is_there = |figure: &Figure| figure.lines.iter().any(|line| line.points.len() > 1);
    all.into_iter().map(figure).filter(is_there).collect()
}

fn records(chunk: u32) -> String {
    if chunk == 1 { "1 record".into() } else { format!("{chunk} records") }
}

/// The MB/s of all readers together.
fn rate(report: &BenchReport, what: &str, chunk: u32, readers: u32, who: Who) -> Option<f64> {
    let name = format!("{what}-{chunk}-{readers}");
    let row = report.rows.iter().find(|row| row.name == name)?;
    let nfs = || row.others.iter().find(|other| other.name == "NFS")?.measure.as_ref();
    let measure = match who {
        Who::Ours => Some(&row.ours),
        Who::Nfs => nfs(),
    }?;
    (measure.seconds > 0.0).then(|| row.bytes as f64 / measure.seconds / 1e6)
}

/// A table of all points.
pub(super) fn points(report: &BenchReport) -> String {
    let mut text = String::from(
        "\n| MB/s of all readers | records of a chunk | 1 | 2 | 3 | 4 | 5 | 6 | 7 |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for what in ["whole", "global", "random"] {
        for who in Who::ALL {
            for chunk in CHUNKS {
                let rates: Vec<Option<f64>> =
                    (1..=READERS).map(|readers| rate(report, what, chunk, readers, who)).collect();
                if rates.iter().all(Option::is_none) {
                    continue;
                }
                let cells: Vec<String> = rates
                    .iter()
                    .map(|rate| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}")))
                    .collect();
                _ = writeln!(text, "| {what}, {} | {chunk} | {} |", who.name(), cells.join(" | "));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use thalweg_api::{BenchMeasure, BenchOther, BenchRow};

    use super::*;

    fn report() -> BenchReport {
        let seconds = |seconds| BenchMeasure { seconds, ..BenchMeasure::default() };
        let row = |readers: u32| BenchRow {
            name: format!("whole-350-{readers}"),
            bytes: 100_000_000 * u64::from(readers),
            ours: seconds(10.0),
            others: vec![BenchOther::measured("NFS", seconds(10.0 * f64::from(readers)))],
            ..BenchRow::default()
        };
        BenchReport { rows: (1..=2).map(row).collect(), ..BenchReport::default() }
    }

    #[test]
    fn points_are_rates_of_all_readers_together() {
        let page = points(&report());
        assert!(page.contains("| whole, Thalweg | 350 | 10.0 | 20.0 | - | - | - | - | - |"), "{page}");
        assert!(page.contains("| whole, NFS | 350 | 10.0 | 10.0 | - |"), "{page}");
        assert!(!page.contains("| global"), "what was not measured has no line: {page}");
    }

    #[test]
    fn a_figure_without_points_is_left_out() {
        let names: Vec<String> = figures(&report()).iter().map(|figure| figure.name.clone()).collect();
        assert_eq!(names, ["volume-1", "volume-2", "volume-3"], "the others need other chunks");
        let svg = figures(&report())[2].svg();
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("PVFS in the paper"),
            "{svg}"
        );
        // The points of 10 and 20 MB/s on an axis up to 50: the higher rate has the smaller y.
        assert!(svg.contains("points=\"48.0,262.8 115.0,205.6\""), "{svg}");
    }
}

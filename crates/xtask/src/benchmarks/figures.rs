//! The figures of paper 001 from a run of `thalweg bench volume --rows figures`, as pictures and as a table of points.
//!
//! Model: the rows of the run are named as in `whole-350-7`: kind of reading, records per chunk, readers. A line of a
//! figure shows one kind of reading, one chunk size and one file system, by the number of readers.

use std::fmt::Write;

use thalweg_api::BenchReport;

const CHUNKS: [u32; 5] = [1, 10, 50, 150, 350];
/// The chunk sizes of figures 10 and 11.
const FEW_CHUNKS: [u32; 3] = [1, 50, 150];
const READERS: u32 = 7;
/// The colours of a figure's lines, in order; they repeat.
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#2a9d5c", "#8e5aa8", "#b8860b", "#444444"];
/// The size of a picture.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// The margins, for the axis of rates, the names of the lines, the title and the axis of readers.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
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

/// A figure: its number in the paper, its title and its lines.
pub(super) struct Figure {
    number: u32,
    title: String,
    lines: Vec<Line>,
}

/// The points of a line: readers and MB/s.
struct Line {
    name: String,
    points: Vec<(u32, f64)>,
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
        let title = format!("Figure {number}. {title}");
        Figure { number, title, lines }
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

impl Figure {
    /// The path from the directory of documents.
    pub(super) fn path(&self) -> String {
        format!("figures/volume-{}.svg", self.number)
    }

    /// The figure as an SVG document.
    pub(super) fn svg(&self) -> String {
        let highest =
            self.lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate).fold(1.0, f64::max);
        let step = step(highest);
        let top = (highest / step).ceil() * step;
        let x =
            |readers: u32| LEFT + f64::from(readers - 1) / f64::from(READERS - 1) * (WIDTH - LEFT - RIGHT);
        let y = |rate: f64| HEIGHT - BOTTOM - rate / top * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
            self.title
        );
        let mut text = |x: f64, y: f64, anchor: &str, what: &str| {
            _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
        };
        for readers in 1..=READERS {
            text(x(readers), HEIGHT - BOTTOM + 16.0, "middle", &readers.to_string());
        }
        text(x(4), HEIGHT - 6.0, "middle", "readers");
        text(LEFT - 6.0, TOP - 6.0, "end", "MB/s");
        for i in 0..=(top / step).round() as u32 {
            text(LEFT - 6.0, y(f64::from(i) * step) + 4.0, "end", &(f64::from(i) * step).to_string());
        }
        for (i, line) in self.lines.iter().enumerate() {
            text(WIDTH - RIGHT + 26.0, TOP + 18.0 * i as f64 + 4.0, "start", &line.name);
        }
        for i in 0..=(top / step).round() as u32 {
            let at = y(f64::from(i) * step);
            _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/>", WIDTH - RIGHT);
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dash = if i < COLOURS.len() { "none" } else { "5 3" };
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(readers, rate)| format!("{:.1},{:.1}", x(*readers), y(*rate)))
                .collect();
            _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                points.join(" ")
            );
            for (readers, rate) in &line.points {
                _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                    x(*readers),
                    y(*rate)
                );
            }
            let (from, at) = (WIDTH - RIGHT + 8.0, TOP + 18.0 * i as f64);
            _ = writeln!(
                svg,
                "<path d=\"M{from} {at}h14\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>"
            );
        }
        svg + "</svg>\n"
    }
}

/// A round step such that at most six of them reach `highest`.
fn step(highest: f64) -> f64 {
    let tens = 10f64.powf((highest / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|of| of * tens)
        .into_iter()
        .find(|step| highest / step <= 6.0)
        .unwrap_or(10.0 * tens)
}

/// The section of the page: the pictures, and a table of all their points.
pub(super) fn page(report: &BenchReport) -> String {
    let mut text = String::new();
    for figure in figures(report) {
        _ = writeln!(text, "![{}]({})", figure.title, figure.path());
    }
    text += "\n| MB/s of all readers | records of a chunk | 1 | 2 | 3 | 4 | 5 | 6 | 7 |\n|---|---|---|---|---|---|---|---|---|\n";
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
        let page = page(&report());
        assert!(page.contains("| whole, Thalweg | 350 | 10.0 | 20.0 | - | - | - | - | - |"), "{page}");
        assert!(page.contains("| whole, NFS | 350 | 10.0 | 10.0 | - |"), "{page}");
        assert!(!page.contains("| global"), "what was not measured has no line: {page}");
    }

    #[test]
    fn a_figure_without_points_is_left_out() {
        let numbers: Vec<u32> = figures(&report()).iter().map(|figure| figure.number).collect();
        assert_eq!(numbers, [1, 2, 3], "the others need other chunks");
        let svg = figures(&report())[2].svg();
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("PVFS in the paper"),
            "{svg}"
        );
        // The points of 10 and 20 MB/s on an axis up to 50: the higher rate has the smaller y.
        assert!(svg.contains("points=\"48.0,262.8 115.0,205.6\""), "{svg}");
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!([48.0, 11.8, 90.0, 0.7].map(step), [10.0, 2.0, 20.0, 0.2]);
    }
}

//! Generates the tables of `docs/benchmarks.md` from the JSON files in `bench/results`.
//!
//! The prose of the page is written by hand. A table stands between a comment that defines it and an end mark:
//!
//! ```text
//! <!-- bench 2026-11-23-vm
//! columns: ideal | the model = planned
//! sort-082214 memory: 1 GB binary, in memory
//! cluster-175742+cluster-184609 river2: 2 M records partitioned
//! -->
//! the table
//! <!-- end -->
//! ```
//!
//! A line names files, a row in them, and its label in the table. Files of another directory are written with it.
//! `columns` gives comparisons their own columns, with another heading if one is given. A disk's table is defined by
//! `<!-- rates DIRECTORY/FILE -->`, and the figures of papers 001 and 002 by `<!-- figure DIRECTORY/FILE -->`, where files
//! may be joined too; of a row that several of them have, the last one counts.
//!
//! Invariant: every number between the marks comes from a file, and a missed target is shown like a met one. A number
//! is the median of all runs in its files. Files hold only medians of CPU times, so those numbers are medians of these.
//! Non-goal: numbers in the prose.

mod cells;
mod figures;
mod table;
mod table_figures;
mod volume_figures;

use std::path::Path;

use thalweg_api::{BenchReport, BenchRow, from_json};

use self::figures::Figure;

/// The path of the page from the root.
pub(crate) const PAGE: &str = "docs/benchmarks.md";
const RESULTS: &str = "bench/results";
const END: &str = "<!-- end -->";
const FIGURES: &str = "<!-- figure ";

/// The page with its tables generated from the results.
pub(crate) fn generated(root: &Path) -> Result<String, String> {
    filled(&page(root)?, &|file| report(root, file))
}

/// The pictures of the page, each with its path from the root.
pub(crate) fn pictures(root: &Path) -> Result<Vec<(String, String)>, String> {
    let page = page(root)?;
    let mut pictures = Vec::new();
    for (_, from_mark) in page.match_indices(FIGURES).map(|(at, mark)| page.split_at(at + mark.len())) {
        let (file, _) = from_mark.split_once("-->").ok_or("a comment does not end")?;
        let figures = figures_of(&joined(file.trim(), &|file| report(root, file))?);
        pictures.extend(figures.iter().map(|figure| (format!("docs/{}", figure.path()), figure.svg())));
    }
    Ok(pictures)
}

fn page(root: &Path) -> Result<String, String> {
    std::fs::read_to_string(root.join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))
}

fn report(root: &Path, file: &str) -> Result<BenchReport, String> {
    let path = format!("{RESULTS}/{file}.json");
    let text = std::fs::read_to_string(root.join(&path)).map_err(|e| format!("{path}: {e}"))?;
    from_json(&text).map_err(|e| format!("{path}: {e}"))
}

/// One report with the rows of several files.
fn joined(files: &str, read: Read<'_>) -> Result<BenchReport, String> {
    let mut all = BenchReport::default();
    for file in files.split('+') {
        let BenchReport { bench, rows, .. } = read(file)?;
        all.bench = bench;
        all.rows.retain(|old| rows.iter().all(|new| new.name != old.name));
        all.rows.extend(rows);
    }
    Ok(all)
}

/// The figures for which a report has points.
fn figures_of(report: &BenchReport) -> Vec<Figure> {
    match report.bench.as_str() {
        "table" => table_figures::figures(report),
        _ => volume_figures::figures(report),
    }
}

/// The pictures of a report, and a table of all their points.
fn figures_page(report: &BenchReport) -> String {
    let picture = |figure: Figure| format!("![{}]({})\n", figure.title, figure.path());
    let points = match report.bench.as_str() {
        "table" => table_figures::points(report),
        _ => volume_figures::points(report),
    };
    figures_of(report).into_iter().map(picture).collect::<String>() + &points
}

/// Reads the report in a file.
type Read<'a> = &'a dyn Fn(&str) -> Result<BenchReport, String>;

/// The page with every table regenerated.
fn filled(page: &str, read: Read<'_>) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) =
        ["<!-- bench ", "<!-- rates ", FIGURES].iter().filter_map(|mark| rest.find(mark)).min()
    {
        let (before, from_mark) = rest.split_at(at);
        let (asked, _) = from_mark.split_at(if from_mark.starts_with(FIGURES) {
            FIGURES.len()
        } else {
            "<!-- bench ".len()
        });
        let (spec, behind) = from_mark.split_once("-->").ok_or("a comment does not end")?;
        let (_, after) = behind.split_once(END).ok_or(format!("no {END} behind {}", spec.trim()))?;
        let body = &spec[asked.len()..];
        let made = match asked {
            "<!-- rates " => table::rates(&read(body.trim())?.rates),
            FIGURES => figures_page(&joined(body.trim(), read)?),
            _ => table::rows(&Asked::of(body, read)?),
        };
        text += &format!("{before}{spec}-->\n{made}{END}");
        rest = after;
    }
    Ok(text + rest)
}

/// The definition of a table.
struct Asked {
    /// Comparisons with a column of their own, and its heading.
    columns: Vec<(String, String)>,
    lines: Vec<Line>,
}

/// The definition of a line of a table.
struct Line {
    label: String,
    files: Vec<String>,
    /// The row of each file.
    rows: Vec<BenchRow>,
}

impl Asked {
    fn of(body: &str, read: Read<'_>) -> Result<Asked, String> {
        let (directory, lines) = body.split_once('\n').ok_or("a table without rows")?;
        let mut asked = Asked { columns: Vec::new(), lines: Vec::new() };
        for line in lines.lines() {
            let (what, label) = line.split_once(": ").ok_or(format!("'{line}': no 'FILE ROW: label'"))?;
            if what == "columns" {
                let columns =
                    label.split(" | ").map(|column| column.split_once(" = ").unwrap_or((column, column)));
                asked.columns = columns.map(|(name, heading)| (name.into(), heading.into())).collect();
                continue;
            }
            let (files, name) = what.split_once(' ').ok_or(format!("'{line}': no 'FILE ROW: label'"))?;
            let files: Vec<String> =
                files
                    .split('+')
                    .map(|file| {
                        if file.contains('/') { file.into() } else { format!("{}/{file}", directory.trim()) }
                    })
                    .collect();
            let rows =
                files.iter().map(|file| row(&read(file)?, name).ok_or(format!("{file} has no row '{name}'")));
            let rows = rows.collect::<Result<_, String>>()?;
            asked.lines.push(Line { label: label.into(), files, rows });
        }
        Ok(asked)
    }
}

fn row(report: &BenchReport, name: &str) -> Option<BenchRow> {
    report.rows.iter().find(|row| row.name == name).cloned()
}

#[cfg(test)]
mod tests {
    use thalweg_api::{BenchMeasure, BenchOther, BenchTarget};

    use super::*;

    fn measure(all_seconds: &[f64]) -> BenchMeasure {
        let mut measure = BenchMeasure { all_seconds: all_seconds.to_vec(), ..BenchMeasure::default() };
        measure.seconds = cells::median(all_seconds);
        measure
    }

    fn report(file: &str) -> Result<BenchReport, String> {
        let (ours, ideal) = match file {
            "day/a" => ([4.0, 5.0, 4.2], [4.1, 4.1]),
            "day/b" => ([4.1, 4.3, 9.0], [4.3, 4.3]),
            _ => return Err(format!("{file} is not there")),
        };
        let target = |target: &str, measured: &str| BenchTarget {
            target: target.into(),
            measured: measured.into(),
            met: Some(false),
        };
        let row = BenchRow {
            name: "sort2".into(),
            ours: measure(&ours),
            others: vec![BenchOther::measured("ideal", measure(&ideal))],
            targets: vec![target("0.95 x as fast as ideal", "0.12"), target("wall <= 2 s", "4.2")],
            ..BenchRow::default()
        };
        Ok(BenchReport { rows: vec![row], ..BenchReport::default() })
    }

    #[test]
    fn the_rows_of_joined_files_are_the_last_ones() {
        let read = |file: &str| {
            let mut report = report(file)?;
            let only = BenchRow { name: file.into(), ..BenchRow::default() };
            report.rows.push(only);
            Ok(report)
        };
        let joined = joined("day/a+day/b", &read).unwrap();
        let rows: Vec<(&str, f64)> = joined.rows.iter().map(|row| (&*row.name, row.ours.seconds)).collect();
        assert_eq!(rows, [("day/a", 0.0), ("sort2", 4.3), ("day/b", 0.0)]);
    }

    #[test]
    fn a_table_is_made_anew_between_its_marks_and_nowhere_else() {
        let page = "# Prose 1.23\n<!-- bench day\na sort2: work\n-->\n| old |\n<!-- end -->\nmore\n";
        let expected = "\
# Prose 1.23
<!-- bench day
a sort2: work
-->
| work | Thalweg | compared with | target: measured | runs |
|---|---|---|---|---|
| work | 4.20 s | ideal 4.10 s | 0.95 x as fast as ideal: 0.12, no; wall <= 2 s: 4.2, no | 3 |

Files: `day/a` (sort2).
<!-- end -->
more
";
        let once = filled(page, &report).unwrap();
        assert_eq!(once, expected);
        assert_eq!(filled(&once, &report).unwrap(), expected, "a second time changes nothing");
    }

    #[test]
    fn runs_of_several_files_count_together() {
        let page = "<!-- bench day\ncolumns: ideal = limit\na+b sort2: both\n-->\n<!-- end -->";
        let text = filled(page, &report).unwrap();
        let row = "| both | 4.25 s | 4.20 s | 0.95 x as fast as ideal: 0.99, yes; wall <= 2 s: 4.2, no and 4.2, no | 6 |";
        assert!(text.contains("| work | Thalweg | limit | target: measured | runs |"), "{text}");
        assert!(text.contains(row), "{text}");
        assert!(text.contains("Files: `day/a`, `day/b` (sort2)."), "{text}");
    }

    #[test]
    fn what_is_not_there_is_told() {
        let told = |page: &str| filled(page, &report).unwrap_err();
        assert_eq!(told("<!-- bench day\nc sort2: x\n--><!-- end -->"), "day/c is not there");
        assert_eq!(told("<!-- bench day\na sort3: x\n--><!-- end -->"), "day/a has no row 'sort3'");
        assert_eq!(
            told("<!-- bench day\na sort2: x\n-->"),
            "no <!-- end --> behind <!-- bench day\na sort2: x"
        );
    }

    #[test]
    fn the_page_is_what_its_results_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let kept = std::fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(generated(&root).unwrap() == kept, "{PAGE} is out of date: cargo xtask docs");
    }
}

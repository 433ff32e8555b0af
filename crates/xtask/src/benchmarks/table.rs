//! Tables in Markdown: rows with their targets, and the rates of a disk.

use thalweg_api::{BenchOther, BenchRate};

use super::cells::{others, target, time, together, took};
use super::{Asked, Line};

/// The rows of a table, and below them the names of their source files.
pub(super) fn rows(asked: &Asked) -> String {
    let columns: Vec<&str> = asked.columns.iter().map(|(name, _)| name.as_str()).collect();
    let mut table = vec![vec!["work".to_string(), "Thalweg".into()]];
    table[0].extend(asked.columns.iter().map(|(_, heading)| heading.clone()));
    table[0].extend(["compared with", "target: measured", "runs"].map(String::from));
    table.extend(asked.lines.iter().map(|line| cells_of(line, &columns)));
    format!("{}\nFiles: {}.\n", markdown(&without_empty(table)), files(&asked.lines))
}

fn cells_of(line: &Line, columns: &[&str]) -> Vec<String> {
    let rows = &line.rows;
    let ours = together(rows.iter().map(|row| &row.ours));
    let failed = rows.iter().find(|row| !row.failed.is_empty());
    let mut cells =
        vec![line.label.clone(), failed.map_or_else(|| took(&ours), |row| format!("failed: {}", row.failed))];
    for column in columns {
        let cell = match *column {
            "floor" => rows.iter().find_map(|row| row.floor.as_ref()).map(|floor| time(floor.seconds)),
            name => others(rows, name).next().map(|_| took(&together(others(rows, name)))),
        };
        cells.push(cell.unwrap_or_default());
    }
    let beside = rows[0].others.iter().filter(|other| !columns.contains(&other.name.as_str()));
    cells.push(joined(beside.map(|other| compared(other, line))));
    cells.push(joined(rows[0].targets.iter().map(|one| target(one, rows))));
    cells.push(ours.all_seconds.len().to_string());
    cells
}

fn compared(other: &BenchOther, line: &Line) -> String {
    let name = &other.name;
    let verdict = if other.right == Some(false) { " (its output is wrong)" } else { "" };
    match &other.measure {
        Some(_) => format!("{name} {}{verdict}", took(&together(others(&line.rows, name)))),
        None => format!("{name} failed"),
    }
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join("; ")
}

/// Removes columns that are empty except for their heading.
fn without_empty(mut table: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let is_used: Vec<bool> =
        (0..table[0].len()).map(|i| table[1..].iter().any(|row| !row[i].is_empty())).collect();
    for row in &mut table {
        let mut used = is_used.iter();
        row.retain(|_| *used.next().expect("every row has as many cells"));
    }
    table
}

fn files(lines: &[Line]) -> String {
    let mut named: Vec<(String, Vec<&str>)> = Vec::new();
    for line in lines {
        let files = line.files.iter().map(|file| format!("`{file}`")).collect::<Vec<_>>().join(", ");
        let row = line.rows[0].name.as_str();
        match named.iter_mut().find(|(there, _)| *there == files) {
            Some((_, rows)) => rows.push(row),
            None => named.push((files, vec![row])),
        }
    }
    joined(named.iter().map(|(files, rows)| format!("{files} ({})", rows.join(", "))))
}

/// The GB/s read and written by each scheme, for each size, at its best chunk size on one directory.
pub(super) fn rates(rates: &[BenchRate]) -> String {
    let rates: Vec<&BenchRate> = rates.iter().filter(|rate| rate.directories == 1).collect();
    let mut sizes: Vec<u64> = rates.iter().map(|rate| rate.bytes).collect();
    sizes.sort();
    sizes.dedup();
    let mut schemes: Vec<&str> = Vec::new();
    for rate in &rates {
        if !schemes.contains(&rate.scheme.as_str()) {
            schemes.push(&rate.scheme);
        }
    }
    let mut table = vec![vec!["scheme".to_string()]];
    table[0].extend(sizes.iter().map(|bytes| size(*bytes)));
    for scheme in schemes {
        let mut row = vec![scheme.to_string()];
        for bytes in &sizes {
            let here = rates.iter().filter(|rate| rate.scheme == scheme && rate.bytes == *bytes);
            let best =
                |of: fn(&BenchRate) -> f64| here.clone().map(|rate| of(rate)).fold(0.0, f64::max) / 1e9;
            let (read, written) =
                (best(|rate| rate.read_bytes_per_second), best(|rate| rate.write_bytes_per_second));
            row.push(format!("{read:.2}, {written:.2}"));
        }
        table.push(row);
    }
    markdown(&table)
}

/// A size with one digit, for a heading.
fn size(bytes: u64) -> String {
    match bytes as f64 / 1e6 {
        megabytes if megabytes < 0.95 => format!("{megabytes:.1} MB"),
        megabytes if megabytes < 950.0 => format!("{megabytes:.0} MB"),
        megabytes => format!("{:.0} GB", megabytes / 1e3),
    }
}

fn markdown(table: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", "---|".repeat(table[0].len()));
    line(&table[0]) + &rule + &table[1..].iter().map(|cells| line(cells)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_shown_at_its_best_chunk_on_one_directory() {
        let rate = |scheme: &str, directories, bytes, read, write| BenchRate {
            scheme: scheme.into(),
            chunk_bytes: 1,
            directories,
            bytes,
            read_bytes_per_second: read,
            write_bytes_per_second: write,
        };
        let kept = [
            rate("direct", 1, 102_400, 5e8, 2e8),
            rate("direct", 1, 102_400, 4e8, 3e8),
            rate("direct", 2, 102_400, 9e9, 9e9),
            rate("direct", 1, 1_000_000_000, 2e9, 1e9),
        ];
        let expected = "| scheme | 0.1 MB | 1 GB |\n|---|---|---|\n| direct | 0.50, 0.30 | 2.00, 1.00 |\n";
        assert_eq!(rates(&kept), expected);
    }
}

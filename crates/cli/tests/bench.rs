//! The benchmarks at sizes that measure nothing: they work, their sorts are right, and their stored reports can be
//! read. Where fio, GNU sort or the rivals are missing, the parts that need them are left out, and a note says so.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use support::Place;
use thalweg_api::{BenchReport, from_json};

impl Place {
    fn bench(&self, words: &[&str]) -> Output {
        self.command(&[&["bench"], words].concat()).output().expect("the binary starts")
    }

    /// The report of a successful benchmark, which must equal the stored one.
    fn report(&self, words: &[&str]) -> BenchReport {
        let output = self.bench(&[words, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}\n{text}");
        let report: BenchReport = from_json(&text).expect("one report");
        let kept = self.kept();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(from_json::<BenchReport>(&std::fs::read_to_string(&kept[0]).unwrap()).unwrap(), report);
        assert_eq!(std::fs::read_dir(self.0.join("bench/data")).unwrap().count(), 0, "the data is gone");
        report
    }

    fn kept(&self) -> Vec<PathBuf> {
        let entries = |path: &Path| -> Vec<PathBuf> {
            let all = std::fs::read_dir(path).into_iter().flatten().flatten();
            all.map(|entry| entry.path()).collect()
        };
        entries(&self.0.join("bench/results")).iter().flat_map(|day| entries(day)).collect()
    }
}

#[test]
fn every_row_of_sorts_is_right_and_every_output_is_that_of_gnu_sort() {
    let report = Place::new().report(&["sort", "--size", "1MB"]);
    println!("left out: {:?}", report.notes);
    assert!(report.rows.len() >= 14, "{report:?}");
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.notes.is_empty(), "{row:?}");
        assert!(row.digest.starts_with("xxh3:") && row.ours.all_seconds.len() == 3, "{row:?}");
        assert!(!row.targets.is_empty() && row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        assert!(row.others.iter().all(|other| other.right != Some(false)), "{row:?}");
    }
    let gnu = report.rows.iter().flat_map(|row| &row.others).filter(|other| other.name == "GNU sort");
    let right = gnu.filter(|other| other.right == Some(true)).count();
    assert!(right == 6 || report.notes.iter().any(|note| note.contains("GNU sort")), "{report:?}");
    let floors = report.rows.iter().filter(|row| row.floor.is_some()).count();
    assert!(floors == 8 || report.notes.iter().any(|note| note.contains("fio")), "{report:?}");
    let spilled = report.rows.iter().find(|row| row.name == "two-pass").expect("the row is there");
    if let Some(floor) = &spilled.floor {
        let phases = &floor.phases;
        assert!(phases[0].written_bytes > 0 && phases[1].read_bytes == phases[0].written_bytes, "{floor:?}");
    }
}

#[test]
fn the_same_seed_sorts_to_the_same_bytes_on_every_machine() {
    let report = Place::new().report(&["sort", "--size", "1MB", "--rows", "skewed,lines-log"]);
    let digests: Vec<(&str, &str)> =
        report.rows.iter().map(|row| (row.name.as_str(), row.digest.as_str())).collect();
    let expected = [
        ("skewed", "xxh3:6ffb48221614a1411016e452ca2558f6"),
        ("lines-log", "xxh3:aae8657a112a88fc177b7296470258a8"),
    ];
    assert_eq!(digests, expected);
}

#[test]
fn a_file_of_the_user_is_sorted_beside_gnu_sort_and_stays() {
    let place = Place::new();
    let text = "one\ntwo\nthree\n".repeat(1000);
    place.write("mine.txt", text.as_bytes());
    let report = place.report(&["sort", "mine.txt", "--size", "1MB"]);
    let [row] = &report.rows[..] else { panic!("{report:?}") };
    assert!(row.name == "mine.txt" && row.bytes == text.len() as u64 && row.failed.is_empty(), "{row:?}");
    assert!(row.others.iter().all(|other| other.right == Some(true)), "{row:?}");
    assert_eq!(place.read("mine.txt"), text.as_bytes());
    let output = place.bench(&["sort", "not-there"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read not-there"), "{output:?}");
}

#[test]
fn rates_are_measured_for_each_scheme_and_chunk() {
    let report = Place::new().report(&["io", "--size", "300KB"]);
    assert_eq!(report.rates.len(), 6 * 2, "six schemes, chunks of 64 and 256 KiB: {report:?}");
    assert!(report.rates.iter().all(|r| r.read_bytes_per_second > 0.0 && r.write_bytes_per_second > 0.0));
}

#[test]
fn chunks_go_round_several_directories() {
    let place = Place::new();
    for name in ["a", "b", "bench/data"] {
        std::fs::create_dir_all(place.0.join(name)).unwrap();
    }
    let words = ["io", "--size", "300KB", "--rows", "direct-overlapped", "--dir", "a", "--dir", "b"];
    let report = place.report(&words);
    assert!(report.rates.iter().all(|rate| rate.directories == 2), "{report:?}");
    assert_eq!(std::fs::read_dir(place.0.join("b")).unwrap().count(), 0, "the data is gone");
}

#[test]
fn sorting_in_memory_stands_beside_a_copy() {
    let report = Place::new().report(&["incore", "--size", "1MB"]);
    assert!(!report.rows.is_empty());
    for row in &report.rows {
        assert_eq!(row.digest, report.rows[0].digest, "cores change nothing");
        assert_eq!(row.others[0].name, "copy");
    }
}

#[test]
fn people_read_a_table_and_a_wrong_row_lists_those_there_are() {
    let place = Place::new();
    let output = place.bench(&["sort", "--size", "1MB", "--rows", "datamation"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["row", "floor", "ours", "target", "met", "datamation", "wall <= 0.15 s", "medians of 3"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let output = place.bench(&["sort", "--rows", "memroy"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("'memroy'") && said.contains("memory, threads"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(place.kept().len(), 1, "nothing was measured, nothing is kept");
}

#[test]
fn every_row_of_transfers_is_right() {
    let rows = "disk,threads,checksum,no-disk,small";
    let report = Place::new().report(&["pump", "--size", "2MB", "--rows", rows]);
    println!("left out: {:?}", report.notes);
    assert_eq!(report.rows.len(), 5, "{report:?}");
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.all_seconds.len() == 3, "{row:?}");
        // The disk alone is measured where there is fio, the kernel alone everywhere.
        let told = match &row.name[..] {
            "disk" if row.floor.is_some() => vec!["fio reading alone: "],
            "small" => vec!["the system calls alone: "],
            _ => Vec::new(),
        };
        let is_told = row.notes.iter().zip(&told).all(|(note, what)| note.starts_with(what));
        assert!(row.notes.len() == told.len() && is_told, "{row:?}");
        assert!(!row.targets.is_empty() && row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        assert!(row.others.iter().all(|other| other.right != Some(false)), "{row:?}");
        let cp = row.others.iter().find(|other| other.name == "cp + sync");
        assert!(cp.is_none_or(|cp| cp.right == Some(true)), "{row:?}");
    }
}

#[test]
fn every_row_of_rivers_is_right() {
    let report = Place::new().report(&["river", "--size", "2MB"]);
    println!("left out: {:?}", report.notes);
    assert_eq!(report.rows.len(), 5, "{report:?}");
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.all_seconds.len() == 3, "{row:?}");
        assert!(row.targets.len() == 1 && row.targets[0].met.is_none(), "{row:?}");
    }
}

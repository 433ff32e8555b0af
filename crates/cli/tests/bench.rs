//! The benchmarks at sizes that measure nothing: they work, their sorts are right, and their stored reports can be
//! read. Where fio, GNU sort or the rivals are missing, the parts that need them are left out, and a note says so.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use support::{Place, skipped};
use thalweg_api::{BenchOther, BenchReport, BenchRow, from_json};

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

/// A place from which labs can be started.
fn with_lab() -> Place {
    let place = Place::new();
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
    std::os::unix::fs::symlink(lab, place.0.join("lab")).unwrap();
    place
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
fn transfers_between_hosts_are_right_and_links_carried_what_receipts_say() {
    let place = with_lab();
    let rows = "far-no-disk,far-unsummed,far-narrow,far-delayed,far-disk,far-small";
    let report = place.report(&["pump", "--size", "8MB", "--rows", rows, "--runs", "2"]);
    println!("left out: {:?}", report.notes);
    if report.rows.is_empty() {
        assert!(report.notes.iter().any(|note| note.contains("nothing between hosts")), "{report:?}");
        skipped(&format!("{:?}", report.notes));
        return;
    }
    assert_eq!(report.rows.iter().map(|row| &row.name[..]).collect::<Vec<_>>().join(","), rows);
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.all_seconds.len() == 2, "{row:?}");
        assert!(!row.targets.is_empty() && row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        assert!(row.notes.len() == 1 && row.notes[0].contains("by the kernel"), "{row:?}");
        let well = |other: &BenchOther| other.right != Some(false) && other.note.is_empty();
        assert!(row.others.iter().all(well), "{row:?}");
    }
    let pids: std::collections::BTreeSet<u32> = report.hosts.iter().map(|host| host.pid).collect();
    assert!(report.hosts.len() == 6 && pids.len() == 6 && !pids.contains(&0), "{:?}", report.hosts);
    let to = report.hosts.iter().find(|host| host.host == "n2, wide").expect("it was measured");
    assert!(to.received_bytes > 16_000_000, "two runs of 8 MB: {to:?}");
}

#[test]
fn launches_are_measured_on_nodes_of_their_own() {
    let place = with_lab();
    let report = place.report(&["launch", "--nodes", "1,2", "--runs", "3"]);
    println!("left out: {:?}", report.notes);
    if report.rows.is_empty() {
        assert!(report.notes[0].contains("root") || report.notes[0].contains("missing"), "{report:?}");
        return;
    }
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["exec-1", "exec-2", "ablation"]);
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.all_seconds.len() == 3, "{row:?}");
        assert!(row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        for name in ["via n1", "inside, via n1"] {
            let other = row.others.iter().find(|other| other.name.contains(name)).expect("it is measured");
            assert!(other.right == Some(true) && other.measure.is_some(), "{other:?}");
        }
    }
    let pids: std::collections::BTreeSet<u32> = report.hosts.iter().map(|host| host.pid).collect();
    assert!(pids.len() == 2 && !pids.contains(&0), "{:?}", report.hosts);
    // Every launch transfers at least the bytes of a handshake over the link of every host.
    assert!(report.hosts.iter().all(|h| h.received_bytes > 10_000 && h.sent_bytes > 10_000), "{report:?}");
}

#[test]
fn sorts_on_nodes_are_right_by_the_kernels_count() {
    let rows = [
        "river2-memory",
        "sort2-two-pass",
        "sort2-delayed",
        "datamation-1",
        "datamation-4",
        "scale-2",
        "minutesort",
    ];
    let report = with_lab().report(&["cluster", "--size", "2MB", "--runs", "1", "--rows", &rows.join(",")]);
    println!("left out: {:?}", report.notes);
    if report.rows.is_empty() {
        assert!(report.notes[0].contains("root") || report.notes[0].contains("missing"), "{report:?}");
        return;
    }
    assert!(report.rows.iter().map(|row| &row.name[..]).eq(rows), "{report:?}");
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.seconds > 0.0 && !row.targets.is_empty(), "{row:?}");
        assert!(row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        let hosts = report.hosts.iter().filter(|host| host.host.ends_with(&format!(", {}", row.name)));
        assert!(hosts.clone().count() > 0 && hosts.clone().all(|host| host.pid > 0), "{:?}", report.hosts);
    }
}

#[test]
fn every_order_of_exchange_is_measured() {
    let report = with_lab().report(&["all-to-all", "--size", "2MB", "--runs", "1", "--rows", "short-8"]);
    println!("left out: {:?}", report.notes);
    if report.rows.is_empty() {
        assert!(report.notes[0].contains("root") || report.notes[0].contains("missing"), "{report:?}");
        return;
    }
    let [row] = &report.rows[..] else { panic!("{report:?}") };
    let names = ["together", "same", "shifted", "paced"];
    assert!(names.iter().all(|name| row.others.iter().any(|other| other.name == *name)), "{row:?}");
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

/// A place with the programs that move files for `bench volume`; `None`, with a note, where there is no FUSE.
fn with_rivals(place: Place) -> Option<Place> {
    if let Err(why) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        skipped(&format!("/dev/fuse: {why}"));
        return None;
    }
    std::fs::create_dir(place.0.join("bench")).unwrap();
    let rivals = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/rivals");
    std::os::unix::fs::symlink(rivals, place.0.join("bench/rivals")).unwrap();
    Some(place)
}

#[test]
fn files_of_a_volume_on_nodes_are_read_and_written_also_while_a_store_is_dead() {
    let Some(place) = with_rivals(with_lab()) else { return };
    let rows = "global,again,write-7-copies,dead-store";
    let report = place.report(&["volume", "--size", "1MB", "--runs", "1", "--rows", rows]);
    println!("left out: {:?}", report.notes);
    if report.rows.is_empty() {
        assert!(report.notes[0].contains("root") || report.notes[0].contains("missing"), "{report:?}");
        return;
    }
    assert_eq!(report.rows.iter().map(|row| &*row.name).collect::<Vec<_>>().join(","), rows);
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.seconds > 0.0 && !row.targets.is_empty(), "{row:?}");
    }
}

#[test]
fn files_of_a_volume_are_moved_through_a_mount_and_through_the_library() {
    let Some(place) = with_rivals(Place::new()) else { return };
    let rows = "mount-write,mount-read,mount-random,mount-small,library-write,library-read,library-random,library-small";
    let report = place.report(&["volume", "--size", "1MB", "--runs", "1", "--rows", rows]);
    println!("left out: {:?}", report.notes);
    assert_eq!(report.rows.iter().map(|row| &*row.name).collect::<Vec<_>>().join(","), rows);
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.ours.seconds > 0.0 && row.bytes > 0, "{row:?}");
        assert!(row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
    }
}

#[test]
fn suites_and_programs_work_on_mounts_and_say_what_they_counted() {
    let Some(place) = with_rivals(Place::new()) else { return };
    let rows = "sqlite,git,tree,two-mounts";
    let report = place.report(&["volume", "--suites", "--size", "100KB", "--rows", rows]);
    println!("left out: {:?}", report.notes);
    let counts = ["40 rows by 4 processes", "10 commits", "41 files", "10 turns"];
    let expected =
        |row: &&BenchRow| rows.split(',').zip(counts).find(|(name, _)| *name == row.name).unwrap().1;
    for row in &report.rows {
        assert!(row.failed.is_empty() && row.notes[0].starts_with(expected(&row)), "{row:?}");
    }
    assert_eq!(report.rows.len() + report.notes.len(), 4, "{report:?}");
}

#[test]
fn tables_are_measured_beside_redis_and_etcd_and_in_a_lab() {
    let report = with_lab().report(&["table", "--size", "500KB", "--runs", "1"]);
    println!("left out: {:?}", report.notes);
    let has = |program: &str| !report.notes.iter().any(|note| note.contains(program));
    let expected = [("get-1,hset-1,get-16,hset-16,range", has("redis-tools")), ("memory", true)];
    let etcd = ("etcd-put,etcd-get,etcd-range", has("etcd-server"));
    let here = ("native-insert,native-get,native-scan,native-insert-udp,native-get-udp,simulated", true);
    let lab = "split-50,used-while-split,create-cu-adaptive,insert-parity,insert-n-10-5,search-cu-none-udp-5,\
               search-n-none-udp-5,search-cu-2-clients-5,range-5,used-while-split-parity";
    let lab = (lab, has("the lab"));
    let expected = expected.into_iter().chain([etcd, here, lab]).filter(|(_, is_here)| *is_here);
    let expected: Vec<&str> = expected.flat_map(|(names, _)| names.split(',')).collect();
    assert_eq!(report.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), expected);
    for row in &report.rows {
        // So few records may move in less than a millisecond.
        assert!(row.failed.is_empty() && (row.ours.seconds > 0.0 || row.name == "split-50"), "{row:?}");
        assert!(row.targets.iter().all(|target| target.met.is_none()), "{row:?}");
        assert!(row.others.iter().all(|other| other.measure.is_some()), "{row:?}");
    }
}

//! The benchmarks of labs and rivals at sizes that measure nothing: they work, their outputs are right, and their stored
//! reports can be read. Where a program is missing, the parts that need it are left out, and a note says so.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_api::{BenchOther, BenchReport, BenchRow, from_json};

/// A directory that is removed when the test ends.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("benches-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("the target directory can be written");
        Place(path)
    }

    /// The report of a successful benchmark.
    fn report(&self, words: &[&str]) -> BenchReport {
        let bench = Path::new(env!("CARGO_BIN_EXE_thalweg-bench"));
        let program = bench.with_file_name("thalweg");
        assert!(program.exists(), "build what is measured: cargo test --package thalweg-cli --no-run");
        let mut command = Command::new(bench);
        command.args(words).arg("--json").current_dir(&self.0).stdin(Stdio::null());
        let output = command.output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}\n{text}");
        assert_eq!(std::fs::read_dir(self.0.join("bench/data")).unwrap().count(), 0, "the data is gone");
        from_json(&text).expect("one report")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prints that this test cannot run on this machine, and why. `./test` counts it as skipped.
fn skipped(why: &str) {
    println!("skipped: {why}");
    let Some(file) = std::env::var_os("THALWEG_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("labs::{} {}\n", thread.name().unwrap_or("?"), why.replace("\n", " "));
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
    opened.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes())).expect("it is listed");
}

/// A place from which labs can be started.
fn with_lab() -> Place {
    let place = Place::new();
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
    std::os::unix::fs::symlink(lab, place.0.join("lab")).unwrap();
    place
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

/// A place with the programs that move files for `thalweg-bench volume`; `None`, with a note, where there is no FUSE.
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
    let rows = "small-files,global,again,write-7-copies,dead-store";
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

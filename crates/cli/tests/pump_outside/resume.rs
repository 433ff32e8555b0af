//! Transfers that were killed and resumed: by the kernel's own count, durable data is not moved again, and changed data
//! is.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::files::{bytes, receipt};
use super::support::{Place, until};
use super::walk::are_same;

pub(crate) const FILE_BYTES: u64 = 60_000_000;
pub(crate) const PARTIAL: &str = ".out.thalweg-partial";
pub(crate) const JOURNAL: &str = ".out.thalweg-journal";

fn start(place: &Place, args: &[&str]) -> Child {
    place.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
}

fn kill(mut child: Child) {
    child.kill().expect("it lives");
    child.wait().expect("it ends");
}

/// Bytes that the journal lists.
pub(crate) fn listed(place: &Place, journal: &str) -> u64 {
    let text = std::fs::read_to_string(place.0.join(journal)).unwrap_or_default();
    let lens = text.lines().filter(|line| line.contains(" range ")).filter_map(|line| line.split(' ').nth(4));
    lens.filter_map(|len| len.parse::<u64>().ok()).sum()
}

/// Starts a transfer, and kills it when the journal lists this many bytes.
pub(crate) fn killed_after(place: &Place, args: &[&str], journal: &str, bytes: u64) -> u64 {
    let mut child = start(place, args);
    until("enough listed", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        listed(place, journal) >= bytes
    });
    kill(child);
    listed(place, journal)
}

/// Runs to the end. Returns the bytes that the process read and wrote, as the kernel counts them, and its receipt.
fn counted(place: &Place, args: &[&str]) -> (u64, u64, thalweg_api::PumpReceipt) {
    let mut child = place.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let gone = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ");
    until("its end", gone);
    let io = std::fs::read_to_string(format!("/proc/{}/io", child.id())).expect("it is not reaped yet");
    let field =
        |name: &str| io.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().parse::<u64>().unwrap();
    let (read, written) = (field("rchar:"), field("wchar:"));
    assert!(child.wait().unwrap().success());
    let mut json = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut json).unwrap();
    (read, written, receipt(&json))
}

pub(crate) fn prepared() -> Place {
    let place = Place::new();
    place.write("in", &bytes(FILE_BYTES as usize, 11));
    place
}

/// With the back end of threads, whose reads and writes the kernel counts one by one.
pub(crate) const SLOWLY: &[&str] = &["pump", "in", "out", "--limit", "25MB", "--io", "threads"];
const AGAIN: &[&str] = &["pump", "in", "out", "--resume", "--json", "--io", "threads"];

#[test]
fn what_was_durable_when_it_was_killed_is_not_moved_again() {
    let place = prepared();
    let there = killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 2);
    assert_eq!(place.names(), [JOURNAL, PARTIAL, "in"]);
    let (read, written, told) = counted(&place, AGAIN);
    assert!(place.read("out") == place.read("in"));
    assert_eq!((told.resumed_bytes, told.bytes, told.holds), (there, FILE_BYTES, true));
    // Besides the bytes themselves: the journal, a few cells that are compared, and what the program reads about the
    // machine.
    let rest = FILE_BYTES - there;
    assert!((rest..rest + 1_000_000).contains(&read), "{read} read, {rest} were left");
    assert!((rest..rest + 100_000).contains(&written), "{written} written, {rest} were left");
    assert_eq!(place.names(), ["in", "out"]);
    // The sum is that of the whole file, and of the data on the disk.
    let again = receipt(place.run(&["pump", "out", "null:", "--json"]).is_done());
    assert_eq!((told.checksum_out, told.checksum_in), (again.checksum_in, again.checksum_in));
}

#[test]
fn it_is_gone_on_from_by_the_ring_too_and_again_and_again() {
    let place = prepared();
    for bytes in [FILE_BYTES / 5, FILE_BYTES / 5 * 3] {
        let args = ["pump", "in", "out", "--resume", "--limit", "25MB", "--io", "uring"];
        killed_after(&place, &args, JOURNAL, bytes);
    }
    let told = receipt(place.run(&["pump", "in", "out", "--resume", "--verify", "--json"]).is_done());
    assert!(told.resumed_bytes >= FILE_BYTES / 5 * 3 && told.verified, "{told:?}");
    assert!(place.read("out") == place.read("in"));
    assert_eq!(place.names(), ["in", "out"]);
}

#[test]
fn a_signal_leaves_what_can_be_gone_on_from_and_says_so() {
    let place = prepared();
    let mut child = place.command(SLOWLY).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("a third listed", || listed(&place, JOURNAL) >= FILE_BYTES / 3);
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.lines().count() == 2 && err.contains("resume it to continue (--resume)"), "{err}");
    let told = receipt(place.run(AGAIN).is_done());
    assert!(told.resumed_bytes >= FILE_BYTES / 3 && place.read("out") == place.read("in"));
}

#[test]
fn without_resume_the_next_run_clears_what_is_there_and_begins_anew() {
    let place = prepared();
    killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
    let told = receipt(place.run(&["pump", "in", "out", "--json"]).is_done());
    assert_eq!((told.resumed_bytes, told.source.bytes), (0, FILE_BYTES));
    assert_eq!(place.names(), ["in", "out"]);
}

#[test]
fn a_source_that_changed_since_is_begun_anew_with_a_note() {
    for change in [
        "printf x | dd of=in bs=1 seek=100 conv=notrunc status=none",
        "truncate -s 50000000 in",
        "cp -p in in2; mv in2 in",
        // With the same size, time and inode number as before: only the time of the change differs.
        "touch -r in t; printf zzzzzzzzzz | dd of=in bs=1 seek=5000 conv=notrunc status=none; touch -r t in; rm t",
        "ln in in2; rm in2",
        "touch -r in t; head -c 60000000 /dev/zero | dd of=in bs=1M conv=notrunc status=none; touch -r t in; rm t",
    ] {
        let place = prepared();
        killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
        place.shell(change).is_done();
        let told = place.run(AGAIN);
        assert_eq!(told.status, Some(0), "{told:?}");
        assert!(
            told.err.contains("beginning it anew") && told.err.lines().count() == 1,
            "{change}: {told:?}"
        );
        assert_eq!(receipt(&told.out).resumed_bytes, 0, "{change}");
        assert!(place.read("out") == place.read("in"), "{change}");
        assert_eq!(place.names(), ["in", "out"]);
    }
}

#[test]
fn a_journal_that_is_damaged_or_foreign_is_refused_and_all_begins_anew() {
    let damages: [(&str, bool); 5] = [
        (r"printf x | dd of=.out.thalweg-journal bs=1 seek=40 conv=notrunc status=none", true),
        (": > .out.thalweg-journal", false),
        ("head -c 1000 /dev/urandom > .out.thalweg-journal", false),
        ("sed -i 's/thalweg journal 3/thalweg journal 2/' .out.thalweg-journal", true),
        ("rm .out.thalweg-partial", true),
    ];
    for (damage, noted) in damages {
        let place = prepared();
        killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
        place.shell(damage).is_done();
        let told = place.run(AGAIN);
        assert_eq!(told.status, Some(0), "{damage}: {told:?}");
        assert!(!noted || told.err.contains("beginning"), "{damage}: {told:?}");
        assert_eq!(receipt(&told.out).resumed_bytes, 0, "{damage}");
        assert!(place.read("out") == place.read("in"), "{damage}");
        assert_eq!(place.names(), ["in", "out"]);
    }
    // From another source, to the same name.
    let place = prepared();
    killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
    place.write("other", &bytes(1_000_000, 3));
    let told = place.run(&["pump", "other", "out", "--resume", "--json"]);
    assert!(told.err.contains("other sources") && receipt(&told.out).resumed_bytes == 0, "{told:?}");
    assert!(place.read("out") == place.read("other"));
    assert_eq!(place.names(), ["in", "other", "out"]);
}

#[test]
fn a_torn_last_line_costs_what_it_listed_and_no_more() {
    let place = prepared();
    let there = killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 2);
    place.shell("truncate -s -5 .out.thalweg-journal").is_done();
    let told = receipt(place.run(AGAIN).is_done());
    assert!(told.resumed_bytes > 0 && told.resumed_bytes < there, "{told:?}");
    assert!(place.read("out") == place.read("in"));
}

#[test]
fn of_a_tree_whole_files_are_left_alone_and_large_ones_gone_on_from() {
    let place = Place::new();
    place.shell("mkdir -p tree/a; for i in $(seq 1 100); do echo $i > tree/a/$i; done").is_done();
    place.write("tree/big", &bytes(FILE_BYTES as usize, 5));
    let slowly = ["pump", "tree", "out", "--limit", "25MB", "--io", "threads"];
    killed_after(&place, &slowly, JOURNAL, FILE_BYTES / 2);
    assert_eq!(place.names(), [JOURNAL, PARTIAL, "tree"], "a tree has no name before it is whole");
    // Meanwhile one file disappears, one appears, one changes, and a foreign file is put among ours.
    place.shell("rm tree/a/7; echo new > tree/a/new; echo other > tree/a/8").is_done();
    place.shell("echo stranger > .out.thalweg-partial/stranger; mkdir .out.thalweg-partial/x").is_done();
    let (read, _, told) = counted(&place, &["pump", "tree", "out", "--resume", "--json", "--io", "threads"]);
    are_same(&place.0.join("tree"), &place.0.join("out"));
    assert!(told.resumed_bytes >= FILE_BYTES / 2 && read < FILE_BYTES * 6 / 10, "{told:?}");
    assert_eq!(place.names(), ["out", "tree"]);
    // Into an existing tree: files with the same size and time are skipped.
    place.shell("echo longer than it was > tree/a/9; touch tree/a/10").is_done();
    let told = receipt(place.run(&["pump", "tree/", "out", "--resume", "--json"]).is_done());
    assert_eq!((told.files, told.resumed_files), (2, 99), "{told:?}");
    are_same(&place.0.join("tree"), &place.0.join("out"));
}

#[test]
fn a_tree_that_was_killed_is_cleared_by_the_next_run_without_resume() {
    let place = Place::new();
    place.shell("mkdir tree; echo 1 > tree/one").is_done();
    place.write("tree/big", &bytes(FILE_BYTES as usize, 5));
    killed_after(&place, &["pump", "tree", "out", "--limit", "25MB"], JOURNAL, FILE_BYTES / 3);
    let told = receipt(place.run(&["pump", "tree", "out", "--json"]).is_done());
    assert_eq!((told.resumed_bytes, told.resumed_files), (0, 0));
    are_same(&place.0.join("tree"), &place.0.join("out"));
    assert_eq!(place.names(), ["out", "tree"]);
}

#[test]
fn nobody_writes_where_somebody_does() {
    let place = prepared();
    let child = start(&place, &["pump", "in", "out", "--limit", "10MB"]);
    until("something listed", || listed(&place, JOURNAL) > 0);
    place.run(&["pump", "in", "out"]).is_refused(&["another process", "out"]);
    place.run(&["pump", "in", "elsewhere", "-q"]).is_done();
    kill(child);
    place.run(AGAIN).is_done();
}

/// With another journal: the same name goes to the same directory, after another first source.
#[test]
fn nobody_writes_where_somebody_does_whatever_else_he_brings() {
    let place = prepared();
    place.shell("mkdir -p there tree; cp in tree/; echo 1 > other").is_done();
    for (source, marked) in
        [("in", "there/.in.thalweg-partial"), ("tree", "there/.tree.thalweg-partial/.in.thalweg-partial")]
    {
        let child = start(&place, &["pump", source, "there", "--limit", "10MB"]);
        until(marked, || place.0.join(marked).exists());
        place.run(&["pump", "other", source, "there"]).is_refused(&["another process", source]);
        kill(child);
        place.run(&["pump", "other", source, "there", "-q"]).is_done();
    }
    are_same(&place.0.join("tree"), &place.0.join("there/tree"));
    assert!(place.read("there/in") == place.read("in"));
}

/// A kill costs one second of writes, even if few are in flight.
#[test]
fn a_slow_transfer_is_noted_second_by_second() {
    let place = Place::new();
    place.write("in", &bytes(24_000_000, 11));
    let begun = std::time::Instant::now();
    killed_after(&place, &["pump", "in", "out", "--limit", "8MB"], JOURNAL, 4_000_000);
    assert!(begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
    let told = receipt(place.run(&["pump", "in", "out", "--resume", "--json"]).is_done());
    assert!(told.resumed_bytes >= 4_000_000 && place.read("out") == place.read("in"), "{told:?}");
}

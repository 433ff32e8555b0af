//! Outputs that cannot get their names, or whose names cannot be made durable: the message says what was done.

use thalweg_io::process;

use super::support::{Place, skipped};

const BENCH: &str = "--datamation";
/// Runs as root without its privileges.
const AS_ANYBODY: &str = "setpriv --bounding-set=-all --inh-caps=-all";

#[test]
fn an_output_whose_directory_cannot_be_synced_was_replaced_and_that_is_said() {
    let place = Place::new();
    place.shell("$T gen 100 in -q; $T sort in -o s --datamation -q; mkdir d; chmod 333 d").is_done();
    let anybody = if process::is_root() { AS_ANYBODY } else { "" };
    for (verb, out) in [
        ("sort in -o d/out --datamation -q", "out"),
        ("merge s s -o d/out --datamation -q", "out"),
        ("join in s -o d/out --datamation -q", "out"),
        ("gen 100 d/out -q", "out"),
        ("partition in -o d/out{} --parts 2 --pick hash --datamation -q", "out1"),
    ] {
        let told = place.shell(&format!("echo old > d/{out}; exec {anybody} $T {verb}"));
        told.is_refused(&["cannot sync ", "d: ", "is in place and whole", "power loss"]);
        if verb.starts_with("partition") {
            told.is_refused(&["of 2 parts the first 2 are in place"]);
        }
        assert!(place.read(&format!("d/{out}")) != b"old\n", "{verb}");
        place.shell("chmod 777 d; rm d/*; rmdir d; mkdir d; chmod 333 d").is_done();
    }
}

/// The same if the disk fails, and if it is full when a part gets its name.
#[test]
fn what_is_in_place_when_a_system_call_fails_is_said() {
    let place = Place::new();
    if place.shell("strace -o /dev/null true").status != Some(0) {
        return skipped("no strace, or it may not trace");
    }
    place.shell("$T gen 100 in -q; $T sort in -o s --datamation -q").is_done();
    let failing = |call: &str, verb: &str| {
        place.shell(&format!("exec strace -f -qq -o /dev/null -e inject={call} $T {verb} --io threads -q"))
    };
    // Files are synced with fdatasync, so the first fsync is that of the directory.
    for verb in [
        "sort in -o out --datamation",
        "merge s s -o out --datamation",
        "join in s -o out --datamation",
        "gen 100 out",
    ] {
        place.write("out", b"old\n");
        let told = failing("fsync:error=EIO:when=1", verb);
        told.is_refused(&["cannot sync ", "out is in place and whole, but a power loss may undo that"]);
        assert!(place.read("out").len() >= 10_000, "{verb}");
        // An earlier failure says nothing about that, and leaves the old file.
        place.write("out", b"old\n");
        let told = failing("fdatasync:error=EIO:when=1", verb);
        assert!(told.status == Some(2) && !told.err.contains("in place"), "{verb}: {told:?}");
        assert_eq!((place.read("out"), place.names().len()), (b"old\n".to_vec(), 3), "{verb}");
    }
    let partition = "partition in -o part-{} --parts 3 --pick hash --datamation";
    let told = failing("rename:error=ENOSPC:when=3", partition);
    told.is_refused(&["of 3 parts the first 2 are in place, part-0 to part-1"]);
    assert_eq!(place.names(), ["in", "out", "part-0", "part-1", "s"]);
}

#[test]
fn a_partition_one_of_whose_names_is_not_to_be_had_touches_none() {
    let place = Place::new();
    place.run(&["gen", "100", "in", "-q"]).is_done();
    let args = ["partition", "in", "-o", "d/part-{}", "--parts", "3", "--pick", "hash", BENCH, "-q"];
    place.shell("mkdir -p d/part-1; echo old > d/part-0").is_done();
    place.run(&args).is_refused(&["d/part-1", "directory"]);
    assert_eq!(
        (place.read("d/part-0"), place.shell("ls -A d").out),
        (b"old\n".to_vec(), "part-0\npart-1\n".into())
    );
    if !process::is_root() {
        return;
    }
    let line = format!("exec {AS_ANYBODY} $T {}", args.join(" "));
    let sticky = "rmdir d/part-1; echo theirs > d/part-1; chown 1234 d d/part-1; chmod 1777 d";
    place.shell(sticky).is_done();
    place.shell(&line).is_refused(&["d/part-1", "belongs to user 1234"]);
    assert_eq!((place.read("d/part-0"), place.read("d/part-1")), (b"old\n".to_vec(), b"theirs\n".to_vec()));
    assert_eq!(place.shell("ls -A d").out, "part-0\npart-1\n");
    // A problem that shows only at the rename: something is mounted there.
    let mounted = "chmod 777 d; echo mounted > over; mount --bind over d/part-1 && exec $T";
    let told = place.shell(&format!("exec unshare -m bash -c '{mounted} {}'", args.join(" ")));
    told.is_refused(&["part-1", "busy", "of 3 parts only", "part-0 is in place"]);
    assert!(place.read("d/part-0") != b"old\n");
    assert_eq!(
        (place.read("d/part-1"), place.shell("ls -A d").out),
        (b"theirs\n".to_vec(), "part-0\npart-1\n".into())
    );
}

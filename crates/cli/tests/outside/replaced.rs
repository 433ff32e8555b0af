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

/// A file of mode 600 with an access list for user 1234 became one of mode 660 without the list.
#[test]
fn a_file_that_is_replaced_keeps_its_permissions_or_the_receipt_says_what_it_lacks() {
    let place = Place::new();
    let lists =
        |file: &str| place.shell(&format!("getfacl -nsp --omit-header {file}; stat -c %a {file}")).out;
    place.shell("printf 'b\\na\\n' > f; chmod 600 f; cp f g; cp f plain").is_done();
    if place.shell("setfacl -m u:1234:rw f; setfattr -n user.origin -v films f").status != Some(0) {
        return skipped("no access lists or attributes here");
    }
    let before = lists("f");
    assert!(before.contains("user:1234:rw-") && before.contains("group::---"), "{before}");
    for verb in ["sort f -o f", "shuffle f -o f --seed 1", "merge f -o f"] {
        place.shell("printf 'a\\nb\\n' > f").is_done();
        let told = place.shell(&format!("$T {verb}"));
        assert!(!told.is_done().contains("replaced"), "{verb}: {told:?}");
        assert_eq!(lists("f"), before, "{verb}");
        assert_eq!(place.shell("getfattr --only-values -n user.origin f").out, "films", "{verb}");
    }
    // A list that new files inherit is not given to a file that had none.
    place.shell("setfacl -d -m u:1234:rw .; $T sort plain -o plain -q").is_done();
    assert_eq!(lists("plain"), "600\n");
    place.shell("$T sort f -o f -q; setfacl -k .").is_done();
    assert_eq!(lists("f"), before);
    // Other names keep the older contents.
    place.shell("printf 'b\\na\\n' > g; ln g h; ln g i").is_done();
    let told = place.shell("$T sort g -o g");
    assert!(
        told.is_done().contains("replaced  a file, without its 2 other names, which keep the older"),
        "{told:?}"
    );
    assert_eq!((place.read("g"), place.read("h")), (b"a\nb\n".to_vec(), b"b\na\n".to_vec()));
    // What this user may not set is named; nobody gets more rights.
    if !process::is_root() {
        return;
    }
    place.shell("chmod 777 .; chown 1234:1234 f").is_done();
    let told = place.shell("exec setpriv --reuid 65534 --regid 65534 --clear-groups $T merge f -o f --json");
    assert_eq!(told.status, Some(2), "it may not read it: {told:?}");
    place.shell("setfacl -m u:65534:rw f").is_done();
    let told = place.shell("exec setpriv --reuid 65534 --regid 65534 --clear-groups $T sort f -o f");
    let text = told.is_done();
    for lost in ["its group (1234)", "its access list", "its owner (1234)"] {
        assert!(text.contains(lost), "{text}");
    }
    assert_eq!(place.shell("stat -c %a f").out, "600\n");
}

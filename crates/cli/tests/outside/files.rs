//! Files as a shell passes and finds them: permissions, links, leftovers, limits, and input that begins in the middle
//! of a file.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use thalweg_api::{Receipt, from_json};
use thalweg_io::process;

use super::support::{Place, Running, skipped, until};

/// The permission bits of a file.
fn mode(place: &Place, name: &str) -> u32 {
    place.0.join(name).metadata().expect("it is there").permissions().mode() & 0o7777
}

#[test]
fn a_sort_without_proof_still_counts_and_says_that_it_took_no_checksum() {
    let place = Place::new();
    place.run(&["gen", "300k", "records", "-q"]).is_done();
    let args = "records --datamation --no-proof --memory 16MiB";
    let told = place.shell(&format!("$T sort {args} -o sorted"));
    assert!(told.is_done().starts_with("sorted 300 000 records, 30 000 000 bytes"), "{told:?}");
    for line in ["in        300 000 records, no checksum taken\n", "invariant out = in: holds in counts;"] {
        assert!(told.out.contains(line), "{told:?}");
    }
    place.run(&["check", "sorted", "--datamation", "-q"]).is_done();
    // Lines from a pipe, with repetitions: 'b' twice.
    let told = place.shell("printf 'b\\na\\nccc\\nb' | $T sort -o out --no-proof --unique --json");
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    let counts = [receipt.input, receipt.output, receipt.dropped].map(|p| (p.records, p.bytes, p.checksum));
    assert_eq!(counts, [(4, 6, 0), (3, 5, 0), (1, 1, 0)]);
    assert!(receipt.holds && !receipt.proved);
    assert_eq!(place.read("out"), b"a\nb\nccc\n");
}

#[test]
fn what_is_replaced_keeps_its_permissions_and_what_is_new_gets_those_of_the_umask() {
    let place = Place::new();
    place.run(&["gen", "10", "records", "-q"]).is_done();
    let verbs =
        ["gen 10 out", "sort records -o out --datamation", "check records --datamation --summary out"];
    for verb in verbs {
        for bits in [0o600, 0o640, 0o664, 0o777] {
            place
                .shell(&format!("umask 022; echo old > out; chmod {bits:o} out; $T {verb} -q; exit 0"))
                .is_done();
            assert!(place.read("out").len() >= 280, "{verb}");
            assert_eq!(mode(&place, "out"), bits, "{verb}");
        }
        for (umask, bits) in [("022", 0o644), ("077", 0o600), ("000", 0o666)] {
            place.shell(&format!("rm out; umask {umask}; $T {verb} -q; exit 0")).is_done();
            assert_eq!(mode(&place, "out"), bits, "{verb} with umask {umask}");
        }
    }
    // A user who may give files away does so.
    if process::is_root() {
        place.shell("chown 1234:5678 out; chmod 2640 out; $T gen 10 out -q").is_done();
        let there = place.0.join("out").metadata().unwrap();
        assert_eq!((there.uid(), there.gid(), mode(&place, "out")), (1234, 5678, 0o640));
    }
}

/// A file may be renamed while it is read, and may get a second name, as from a backup.
#[test]
fn an_input_that_is_renamed_meanwhile_is_the_same_input() {
    let place = Place::new();
    place.shell("$T gen 600k in -q && $T sort in -o expected --datamation -q").is_done();
    let sort = Running::start(&mut place.command(&[
        "sort",
        "in",
        "-o",
        "out",
        "--datamation",
        "--memory",
        "16MiB",
        "-q",
    ]));
    // Its name comes before the inputs are opened.
    let partial = place.0.join(".out.thalweg-partial");
    until("room for the output", || partial.metadata().is_ok_and(|there| there.len() > 0));
    place.shell("mv in other && ln other more && chmod 600 other").is_done();
    sort.ends().is_done();
    place.shell("cmp out expected").is_done();
}

#[test]
fn a_disk_with_room_for_the_output_and_no_other_file_is_enough() {
    let place = Place::new();
    place.run(&["gen", "1000", "in", "-q"]).is_done();
    let line = "umask 027; mkdir d; mount -t tmpfs -o nr_inodes=2 none d || exit 77; $T sort in -o d/out --datamation -q && stat -c %a d/out";
    let told = place.shell(&format!("exec unshare -m bash -c '{line}'"));
    if [Some(1), Some(77)].contains(&told.status) {
        return skipped(&format!("nothing can be mounted here: {told:?}"));
    }
    assert_eq!(told.is_done(), "640\n");
}

/// The owner of the new file may not give it to the group of the old one, whose rights then do not pass to the owner's
/// own group.
#[test]
fn a_group_that_an_output_cannot_have_lends_it_no_rights() {
    let place = Place::new();
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    place.run(&["gen", "10", "in", "-q"]).is_done();
    if place.shell(&format!("chmod 777 . && {nobody} test -r in -a -x $T")).status != Some(0) {
        return skipped("no other user can be tried here");
    }
    place.shell("echo old > out; chown 65534:5678 out; chmod 664 out").is_done();
    place.shell(&format!("exec {nobody} $T sort in -o out --datamation -q")).is_done();
    assert_eq!(place.shell("stat -c '%u:%g %a' out").out, "65534:65534 644\n");
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced_or_made() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    place
        .shell("mkdir far; echo old > far/real; ln -s far/real near; ln -s near link; chmod 600 far/real")
        .is_done();
    place.run(&["sort", "in", "-o", "link", "-q"]).is_done();
    assert_eq!(place.read("far/real"), b"a\nb\n");
    assert_eq!(mode(&place, "far/real"), 0o600);
    let links = "readlink link near; ls -A far";
    assert_eq!(place.shell(links).is_done(), "near\nfar/real\nreal\n");
    // A link to a file that does not exist: the file is created where the link leads, as by opening it.
    place.shell("rm far/real").is_done();
    place.run(&["sort", "in", "-o", "link", "-q"]).is_done();
    assert_eq!(place.shell(links).is_done(), "near\nfar/real\nreal\n");
    assert_eq!(place.read("link"), b"a\nb\n");
    // In place, through a link.
    place.write("far/real", b"d\nc\n");
    place.run(&["sort", "link", "-o", "link", "-q"]).is_done();
    assert_eq!(place.read("far/real"), b"c\nd\n");
    place.shell("ln -s round about; ln -s about round; ln -s nowhere/x lost").is_done();
    place.run(&["sort", "in", "-o", "round"]).is_refused(&["round"]);
    place.run(&["sort", "in", "-o", "lost"]).is_refused(&["nowhere"]);
    place.shell("$T sort - - < in").is_refused(&["'-' is there twice"]);
    assert_eq!(place.names(), ["about", "far", "in", "link", "lost", "near", "round"]);
}

#[test]
fn what_a_killed_gen_left_goes_with_the_next_one_and_what_a_living_one_writes_stays() {
    let place = Place::new();
    let partials =
        || -> Vec<String> { place.names().into_iter().filter(|name| name.ends_with(".partial")).collect() };
    let start = || {
        let running = Running::start(&mut place.command(&["gen", "100M", "records"]));
        let own = format!(".records.thalweg-{}-", running.0.id());
        until("its output", || partials().iter().any(|name| name.starts_with(&own)));
        running
    };
    drop(start());
    assert_eq!(partials().len(), 1);
    let living = start();
    assert_eq!(partials().len(), 1, "the next one has cleared what the first one left");
    place.run(&["gen", "10", "records", "-q"]).is_done();
    place.run(&["gen", "10", "record", "-q"]).is_done();
    assert_eq!(partials().len(), 1, "a living one's is not touched");
    drop(living);
    // Held by a process whose number means nothing here, for example on another machine.
    let foreign = ".records.thalweg-4999999-0.partial";
    place.write(foreign, b"x");
    let held = std::fs::File::open(place.0.join(foreign)).unwrap();
    held.lock().unwrap();
    // Requests of a killed process to a ring hold its files, and their locks, a moment longer.
    for _ in 0..100 {
        place.run(&["gen", "10", "records", "-q"]).is_done();
        if partials() == [foreign] {
            break;
        }
    }
    assert_eq!(partials(), [foreign]);
    drop(held);
    place.run(&["gen", "10", "records", "-q"]).is_done();
    assert_eq!(place.names(), ["record", "records"]);
}

#[test]
fn a_file_larger_than_is_allowed_is_an_error_and_no_signal() {
    let place = Place::new();
    place.run(&["gen", "400k", "records", "-q"]).is_done();
    let limit = "ulimit -f 1000";
    for verb in ["gen 100k out", "sort records -o out --datamation"] {
        place.shell(&format!("{limit}; exec $T {verb}")).is_refused(&["out", "ulimit -f"]);
    }
    place.shell(&format!("{limit}; exec $T gen 100k - -q > out")).is_refused(&["/dev/stdout", "ulimit -f"]);
    // A limit that ends inside a page of a file that is written with direct I/O.
    let verb = "exec $T sort records -o out --datamation --io threads";
    place.shell(&format!("ulimit -f 1001; {verb}")).is_refused(&["out", "ulimit -f"]);
    // The output is a pipe, and scratch is what becomes too large.
    let sort = "exec $T sort records -o - --datamation --memory 16MiB -q --scratch .";
    let told = place.shell(&format!("{limit}; ({sort}) | wc -c; exit ${{PIPESTATUS[0]}}"));
    assert_eq!((told.status, told.out.as_str()), (Some(2), "0\n"), "{told:?}");
    assert!(told.err.contains("scratch") && told.err.contains("ulimit -f"), "{told:?}");
    assert_eq!(told.err.lines().count(), 1, "{told:?}");
    assert_eq!(place.names(), ["out", "records"]);
}

#[test]
fn standard_input_is_read_from_where_it_stands() {
    let place = Place::new();
    place.write("lines", b"title\nc\na\nb\n");
    let sorted = place.shell("{ read -r first; echo \"$first\"; $T sort - -o - -q; } < lines");
    assert_eq!(sorted.is_done(), "title\na\nb\nc\n");
    assert_eq!(place.shell("$T sort - -o - -q < lines").is_done(), "a\nb\nc\ntitle\n");
    assert_eq!(place.shell("{ read -r x; read -r y; $T check - -q; } < lines").status, Some(0));
    assert_eq!(place.shell("{ read -r x; $T check - -q; } < lines").status, Some(1));
    // Together with a file; by another descriptor; with records; at the end.
    let both = place.shell("{ read -r x; $T sort lines - -o - -q; } < lines");
    assert_eq!(both.is_done(), "a\na\nb\nb\nc\nc\ntitle\n");
    let other = place.shell("exec 7< lines; read -r x <&7; $T sort /dev/fd/7 -o - -q");
    assert_eq!(other.is_done(), "a\nb\nc\n");
    place.run(&["gen", "300k", "records", "-q"]).is_done();
    let args = "--datamation --memory 16MiB --json";
    let told = place
        .shell(&format!("{{ dd bs=100 count=7 status=none > head; $T sort -o tail {args}; }} < records"));
    let receipt: Receipt = from_json(told.is_done()).expect("one receipt");
    assert_eq!((receipt.input.records, receipt.holds), (299_993, true));
    let told = place.shell("{ dd bs=50 count=1 status=none > head; $T check - --datamation; } < records");
    told.is_refused(&["/dev/stdin", "50 bytes"]);
    let told = place.shell("{ cat > head; $T sort -o tail --datamation -q; } < records");
    assert_eq!((told.is_done(), place.read("tail").len()), ("", 0));
}

/// The standard library opens `/dev/null` in their place: records were lost, or none were read, with status 0.
#[test]
fn a_standard_descriptor_that_was_closed_is_refused() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    let verbs = [
        "sort in -o - >&-",
        "sort in -o /dev/stdout >&-",
        "sort in -o /dev/fd/1 >&-",
        "sort in -o //dev/./stdout >&-",
        "sort in -o /proc/thread-self/fd/1 >&-",
        "shuffle in --seed 1 -o - >&-",
        "merge in in -o - >&-",
        "join in in -o - >&-",
        "gen 10 - >&-",
        "pump in - >&-",
        "sort - -o out <&-",
        "sort -o out <&-",
        "sort in /dev/stdin -o out <&-",
        "shuffle - --seed 1 -o out <&-",
        "merge in - -o out <&-",
        "join in - -o out <&-",
        "partition - -o 'part-{}' --pick robin --parts 2 <&-",
        "check - <&-",
        "pump - out <&-",
    ];
    for verb in verbs {
        let told = place.shell(&format!("exec $T {verb}"));
        told.is_refused(&["closed when this program was started; redirect it, or name a file"]);
        assert_eq!(place.names(), ["in"], "{verb}");
    }
    // By a link in a directory that is itself reached by a link.
    let told = place
        .shell("mkdir d; ln -s ../l d/out; ln -s /dev/stdout l; ln -s d e; exec $T sort in -o e/out >&-");
    told.is_refused(&["closed when this program was started"]);
    place.shell("$T sort in -o e/out -q | cmp - <(sort in) && rm -r d e l").is_done();
    place.shell("exec $T sort in -o out -q <&- >&-").is_done();
    assert_eq!(place.read("out"), b"a\nb\n");
    // A user who opens `/dev/null` on purpose gets it, for reading and for writing.
    place.shell("$T sort in -o - -q >/dev/null && $T sort in -o - -q 1<>/dev/null").is_done();
    place.shell("$T sort - -o out -q </dev/null && $T sort - -o out -q <>/dev/null").is_done();
    assert_eq!(place.read("out"), b"");
}

/// They claim to have 0 or 4096 bytes, and have other sizes.
#[test]
fn files_of_the_kernel_are_read_to_their_end() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    for file in ["/sys/devices/system/cpu/online", "/proc/version"] {
        place.shell(&format!("cat {file} > own; LC_ALL=C sort in own > expected")).is_done();
        place.shell(&format!("$T sort {file} -o - -q | cmp - own && $T check {file} -q")).is_done();
        place.shell(&format!("$T sort in {file} -o - -q | cmp - expected")).is_done();
        place.shell(&format!("$T sort in -o in -q && $T merge in {file} -o - -q | cmp - expected")).is_done();
        place.shell(&format!("$T shuffle {file} --seed 1 -o - -q | cmp - own")).is_done();
        place.shell(&format!("$T join {file} {file} --type left -o - -q > out")).is_done();
        place
            .shell(&format!("$T partition {file} -o 'part-{{}}' --pick robin --parts 1 -q; cmp part-0 own"))
            .is_done();
        place.run(&["sort", file, "-o", "out", "--nodes", "2"]).is_refused(&["name files"]);
    }
    // A file without blocks has the size that it claims.
    place.shell("truncate -s 40000 holes && $T sort holes -o out --record 100 -q && cmp out holes").is_done();
}

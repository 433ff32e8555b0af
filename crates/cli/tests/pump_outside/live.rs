//! A tree that is in use: what cannot be copied is left out and listed, and everything else arrives.

use std::fs::File;
use std::os::unix::fs::FileExt;

use thalweg_api::{LeftOutKind, PumpReceipt};

use super::faults::as_nobody;
use super::files::{bytes, receipt};
use super::support::{Outcome, Place, Running, skipped, until};

/// Checks the status, the last line, and that as many lines were printed.
#[track_caller]
fn is_copied_but_for(told: &Outcome, count: u64, found: u64, lines: usize) {
    let last = format!("thalweg: copied but for {count} of {found} entries\n");
    assert!(told.status == Some(4) && told.err.ends_with(&last), "{told:?}");
    assert_eq!(told.err.lines().count(), lines + 1, "{told:?}");
}

/// One file of nine may not be read: the other eight arrive. Here rsync ends with status 23.
#[test]
fn what_may_not_be_read_is_left_out_and_listed() {
    let place = Place::new();
    place
        .shell("mkdir src; for i in 1 2 3 4 5 6 7 8 9; do echo $i > src/f$i; done; chmod 0 src/f5")
        .is_done();
    let Some(told) = as_nobody(&place, "$T pump src dst") else {
        skipped("nobody else can reach this directory");
        return;
    };
    is_copied_but_for(&told, 1, 10, 1);
    assert!(told.err.contains("/src/f5: Permission denied"), "{told:?}");
    assert!(told.out.contains("invariant out + left out = in: holds\n"), "{told:?}");
    place.shell("ls dst | grep -vc f5 | grep 8 && ! ls -A dst | grep -e f5 -e thalweg").is_done();
    // The next run copies the rest.
    place.shell("chmod 644 src/f5").is_done();
    let again = receipt(as_nobody(&place, "$T pump src/ dst --resume --json").unwrap().is_done());
    assert_eq!((again.files, again.resumed_files, again.left_out), (1, 8, 0), "{again:?}");
    place.shell("diff -r src dst").is_done();
    // The first error ends a strict transfer, before the tree has its name.
    place.shell("chmod 0 src/f5").is_done();
    as_nobody(&place, "$T pump src strict --strict").unwrap().is_refused(&["src/f5", "chmod"]);
    assert!(!place.0.join("strict").exists());
    // If nothing else is to be copied, there is nothing to go on with.
    as_nobody(&place, "$T pump src/f5 one").unwrap().is_refused(&["src/f5", "Permission denied"]);
    // One of several sources is missing.
    let told = as_nobody(&place, "mkdir all; $T pump src/f1 src/f5 src/gone src/f2 all").unwrap();
    is_copied_but_for(&told, 2, 4, 2);
    assert_eq!(place.shell("ls -A all").is_done(), "f1\nf2\n");
}

#[test]
fn a_hundred_errors_are_shown_and_all_are_in_the_json() {
    let place = Place::new();
    place
        .shell(
            "mkdir -p src/shut src/half; for i in $(seq 1 250); do echo $i > src/f$i; done; chmod 0 src/f*
             echo in > src/shut/in; echo in > src/half/in; chmod 0 src/shut; chmod 444 src/half; echo open > src/open",
        )
        .is_done();
    let Some(told) = as_nobody(&place, "$T pump src dst") else {
        skipped("nobody else can reach this directory");
        return;
    };
    // The directory `half` can be listed, but nothing in it can be opened.
    is_copied_but_for(&told, 252, 255, 101);
    assert!(told.err.contains("thalweg: and 152 more, which --json lists\n"), "{told:?}");
    let told = as_nobody(&place, "$T pump src dst2 --json").unwrap();
    let all: PumpReceipt = receipt(&told.out);
    assert_eq!((all.errors.len(), all.left_out, all.found, all.holds), (252, 252, 255, true));
    assert!(all.errors.iter().all(|e| e.kind == LeftOutKind::Unreadable && e.why.contains(&e.path)));
    assert!(all.errors.iter().any(|e| e.path.ends_with("/src/shut")));
    assert!(all.errors.iter().any(|e| e.path.contains("/src/half")));
    place.shell("ls dst | tr '\\n' ' ' | grep -x 'half open '").is_done();
    place.shell("chmod 755 src/* dst/half dst2/half").is_done();
}

/// Changes the file that is being copied, `$F`, after two of its pieces have arrived, or the one that waits, `$O`. Returns
/// the outcome and the name of the first.
fn changed(place: &Place, change: &str, strict: bool) -> (Outcome, &'static str) {
    place
        .shell("rm -rf src dst; mkdir src; for i in 1 2; do cp in src/f$i; done; echo small > src/small")
        .is_done();
    let mut args = vec!["pump", "src", "dst", "--streams", "1", "--limit", "30MB", "--json"];
    if strict {
        args.push("--strict");
    }
    let running = Running::start(&mut place.command(&args));
    let mut current = "";
    until("two pieces of a file", || {
        let arrived = |name: &&str| {
            let partial = place.0.join(format!(".dst.thalweg-partial/.{name}.thalweg-partial"));
            let mut some = [0; 8];
            let read = File::open(partial).and_then(|file| file.read_exact_at(&mut some, 1 << 20));
            read.is_ok() && some != [0; 8]
        };
        current = ["f1", "f2"].into_iter().find(arrived).unwrap_or_default();
        !current.is_empty()
    });
    running.signal("-STOP");
    let other = if current == "f1" { "f2" } else { "f1" };
    place.shell(&format!("cd src; F={current}; O={other}; {change}")).is_done();
    running.signal("-CONT");
    (running.ends(), current)
}

#[test]
fn a_file_that_grows_is_copied_as_long_as_it_was() {
    let place = Place::new();
    place.write("in", &bytes(9_000_000, 1));
    let (told, name) = changed(&place, "echo more >> $F; echo more >> $F", false);
    let all = receipt(told.is_done());
    assert!(all.holds && all.left_out == 0 && all.files == 3, "{all:?}");
    assert!(place.read(&format!("dst/{name}")) == place.read("in"));
    assert_eq!(place.read(&format!("src/{name}")).len(), 9_000_010);
    // With --strict, that is a change.
    let (told, name) = changed(&place, "echo more >> $F", true);
    assert!(told.status == Some(1) && told.err.contains(&format!("src/{name} changed")), "{told:?}");
    assert!(!place.0.join("dst").exists());
    // A single file, too.
    let running = Running::start(&mut place.command(&["pump", "in", "out", "--limit", "30MB"]));
    until("a part of it", || place.names().iter().any(|name| name == ".out.thalweg-partial"));
    running.signal("-STOP");
    place.shell("cp in was; echo more >> in").is_done();
    running.signal("-CONT");
    assert_eq!(running.ends().status, Some(0));
    place.shell("cmp was out").is_done();
}

#[test]
fn a_file_that_is_overwritten_or_vanishes_is_listed_and_never_appears() {
    let place = Place::new();
    place.write("in", &bytes(9_000_000, 1));
    for (change, kind) in [
        ("dd if=/dev/zero of=$F bs=1M count=1 conv=notrunc status=none", LeftOutKind::Changed),
        // Its time is put back afterwards.
        (
            "touch -r $F ../time; dd if=/dev/zero of=$F bs=1M count=1 conv=notrunc status=none; touch -r ../time $F",
            LeftOutKind::Changed,
        ),
        // It is longer afterwards, but its beginning is another.
        (
            "dd if=/dev/zero of=$F bs=1M count=1 conv=notrunc status=none; echo more >> $F",
            LeftOutKind::Changed,
        ),
        ("truncate -s 8000000 $F", LeftOutKind::Changed),
        ("rm $O", LeftOutKind::Vanished),
    ] {
        let (told, name) = changed(&place, change, false);
        let all = receipt(&told.out);
        assert_eq!(
            (told.status, all.left_out, all.files, all.holds),
            (Some(4), 1, 2, true),
            "{change}: {all:?}"
        );
        assert_eq!((all.errors[0].kind, all.errors.len()), (kind, 1), "{change}: {all:?}");
        let gone = if kind == LeftOutKind::Vanished { "O" } else { "F" };
        let gone = if (gone == "F") == (name == "f1") { "f1" } else { "f2" };
        assert!(all.errors[0].path.ends_with(&format!("src/{gone}")), "{change}: {all:?}");
        let there = place.shell("ls -A dst | tr '\\n' ' '").out;
        let other = if gone == "f1" { "f2" } else { "f1" };
        assert_eq!(there, format!("{other} small "), "{change}");
        assert!(place.read(&format!("dst/{other}")) == place.read("in"), "{change}");
        assert_eq!(place.read("dst/small"), b"small\n");
    }
    // A file that loses its name while it is read is still the one that was opened.
    let (told, name) = changed(&place, "cp $F new; mv new $F", false);
    assert_eq!(receipt(told.is_done()).left_out, 0);
    assert!(place.read(&format!("dst/{name}")) == place.read("in"));
}

#[test]
fn what_the_destination_cannot_take_is_left_out_and_the_rest_arrives() {
    let place = Place::new();
    place
        .shell(
            "mkdir -p src/sub/below src/other dst/a/x dst/large/x; echo a > src/a; echo b > src/b; echo c > src/sub/c
             echo d > src/sub/below/d; echo file > dst/sub; echo e > src/other/e; ln src/a src/other/again",
        )
        .is_done();
    place.write("src/large", &bytes(300_000, 1));
    let told = place.run(&["pump", "src/", "dst", "--json", "--streams", "1"]);
    let all = receipt(&told.out);
    let mut paths: Vec<_> =
        all.errors.iter().map(|e| e.path.rsplit_once("/dst/").map_or(&*e.path, |p| p.1)).collect();
    paths.sort_unstable();
    // A directory that cannot be made, and everything in it; a file with two names, whichever is the first of them.
    assert_eq!((told.status, all.holds, all.found), (Some(4), true, 11), "{all:?}");
    let again = ["a", "large", "other/again", "sub", "sub/below", "sub/below/d", "sub/c"];
    let alone = ["a", "large", "sub", "sub/below", "sub/below/d", "sub/c"];
    assert!(paths == again || paths == alone, "{paths:?}");
    assert!(all.errors.iter().all(|e| e.kind == LeftOutKind::Destination), "{all:?}");
    assert_eq!(place.read("dst/sub"), b"file\n");
    place.shell("cmp src/b dst/b && cmp src/other/e dst/other/e && ! find dst | grep thalweg").is_done();
}

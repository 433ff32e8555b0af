//! Failures: one line each, nothing is lost, and no incomplete file has its final name.

use std::process::Stdio;

use thalweg_io::process;

use super::files::bytes;
use super::resume::{JOURNAL, listed};
use super::support::{Place, skipped, until};

#[test]
fn ends_that_do_not_go_together_are_refused_before_anything_is_touched() {
    let place = Place::new();
    place
        .shell("mkdir -p tree/sub there/file there/tree2; echo 1 > file; echo 1 > tree/one; ln file second")
        .is_done();
    place.shell("echo 2 > tree2; mkdir -p x/file y").is_done();
    for (args, holds) in [
        ("file file", &["the same"][..]),
        ("file second", &["the same"]),
        ("file ./tree/../file", &["the same"]),
        ("tree tree", &["lies in"]),
        ("tree tree/sub", &["tree/sub", "outside"]),
        ("tree tree/sub/new", &["outside"]),
        ("tree/ tree", &["lies in"]),
        ("file there", &["is a directory", "cannot replace"]),
        ("tree file", &["not a directory"]),
        ("tree tree2", &["not a directory"]),
        ("file tree none", &["2 sources", "none"]),
        ("file none/", &["no directory none/", "make it first"]),
        ("file none/out", &["no directory none", "make it first"]),
        ("none out", &["none"]),
        ("file x", &["x/file is a directory"]),
        ("file second tree/one there/sub", &["3 sources"]),
        ("file tree/../file y", &["two sources"]),
        ("tree -", &["is a directory"]),
        ("- there", &["is a directory", "name a file in it"]),
        ("- file out", &["stand alone"]),
        ("zero:1 zero:1 there", &["stand alone"]),
        ("zero: out", &["size"]),
        ("null: out", &["null:", "only be a destination"]),
        ("file zero:5", &["zero:", "only be a source"]),
        ("host:/etc/x out --identity nobody", &["no cluster in nobody"]),
        ("host:etc/x out", &["host:/PATH", "./host:etc/x"]),
        ("file ssh://user@host", &["ssh://[USER@]HOST[:PORT]/PATH"]),
        ("file", &["two words"]),
        ("file out --no-disk 1", &["--no-disk"]),
        ("file out --limit 0", &["0 bytes", "--limit"]),
        ("file out --limit 10%", &["10%"]),
        ("file out --streams 65", &["64"]),
        ("file out --streams 0", &["0"]),
    ] {
        let mut words = vec!["pump"];
        words.extend(args.split(' '));
        place.run(&words).is_refused(holds);
    }
    place.run(&["pump", "file", ""]).is_refused(&["an empty name"]);
    let name = "n".repeat(256);
    place.run(&["pump", "file", &name]).is_refused(&["too long"]);
    place.shell("! ls -AR | grep -e thalweg -e out").is_done();
    // With a slash before the colon it is a file.
    place.shell("cp file a:b").is_done();
    place.run(&["pump", "./a:b", "c", "-q"]).is_done();
}

#[test]
fn the_longest_name_arrives() {
    let place = Place::new();
    let name = "n".repeat(255);
    place.write("in", b"some");
    place.run(&["pump", "in", &name, "-q"]).is_done();
    place.shell("mkdir tree there").is_done();
    place.run(&["pump", &name, "tree", "-q"]).is_done();
    place.run(&["pump", "tree", "copy", "-q"]).is_done();
    place.run(&["pump", "tree/", "there", "-q"]).is_done();
    assert_eq!(place.read(&format!("copy/{name}")), b"some");
    assert_eq!(place.read(&format!("there/{name}")), b"some");
}

/// By path, through a bind mount of the source, and through a bind mount of a directory in it.
#[test]
fn a_dest_in_its_source_is_known_through_mounts() {
    let place = Place::new();
    place.shell("mkdir -p tree/sub view view2; echo 1 > tree/one").is_done();
    let mounted = place.shell("mount --bind tree view && mount --bind tree/sub view2");
    if mounted.status != Some(0) {
        skipped(&format!("nothing can be mounted here: {}", mounted.err));
        return;
    }
    let told: Vec<_> = [["view", "tree/new"], ["tree", "view2"], ["tree", "view2/new"], ["tree/", "view"]]
        .map(|[source, dest]| place.run(&["pump", source, dest]))
        .into();
    let beside = place.run(&["pump", "tree/sub", "view/beside", "-q"]);
    place.shell("umount view view2").is_done();
    told.iter().for_each(|told| told.is_refused(&["lies in"]));
    beside.is_done();
    place.shell("! ls -AR | grep -e thalweg -e new").is_done();
}

/// A file that is overwritten or truncated while it is read.
#[test]
fn a_source_that_changes_while_it_is_read_is_named_and_nothing_appears() {
    for change in
        ["truncate -s 1000000 in", "touch in", "dd if=/dev/zero of=in bs=1M count=1 conv=notrunc status=none"]
    {
        let place = Place::new();
        place.write("in", &bytes(30_000_000, 1));
        place.write("out", b"old");
        let args = ["pump", "in", "out", "--limit", "20MB"];
        let child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Its space is reserved when it is created; what the journal lists was read and written.
        until("something listed", || listed(&place, JOURNAL) > 0);
        place.shell(change).is_done();
        let told = child.wait_with_output().unwrap();
        let err = String::from_utf8(told.stderr).unwrap();
        assert_eq!(told.status.code(), Some(1), "{change}: {err}");
        let line = err.lines().last().unwrap();
        assert!(line.contains("/in changed while it was read"), "{change}: {err}");
        assert_eq!(place.read("out"), b"old");
    }
}

/// Runs a line as a user without privileges, if this user may become another.
pub(crate) fn as_nobody(place: &Place, line: &str) -> Option<super::support::Outcome> {
    if !process::is_root() {
        return Some(place.shell(line));
    }
    place.shell("chmod 777 .; cp $T ./thalweg; chmod 755 thalweg").is_done();
    let reaches = place.shell("setpriv --reuid 65534 --regid 65534 --clear-groups test -x ./thalweg").status;
    let line = line.replace("$T", "./thalweg");
    // A parent directory may be closed to others.
    (reaches == Some(0))
        .then(|| place.shell(&format!("setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '{line}'")))
}

#[test]
fn what_may_not_be_read_or_written_is_named() {
    let place = Place::new();
    place
        .shell(
            "mkdir tree shut; echo 1 > tree/open; echo 2 > tree/secret; chmod 0 tree/secret; chmod 555 shut",
        )
        .is_done();
    place.shell("mkdir tree2 tree2/closed; chmod 0 tree2/closed; chmod 755 . tree tree2").is_done();
    let Some(told) = as_nobody(&place, "$T pump tree copy --strict") else {
        skipped("nobody else can reach this directory");
        return;
    };
    told.is_refused(&["tree/secret", "Permission denied", "chmod"]);
    let told = as_nobody(&place, "$T pump tree2 copy --strict").unwrap();
    told.is_refused(&["tree2/closed", "Permission denied"]);
    as_nobody(&place, "$T pump tree/open shut").unwrap().is_refused(&["shut", "Permission denied"]);
    assert!(!place.0.join("copy").exists());
    // A user who may not give files away keeps them.
    as_nobody(&place, "$T pump tree/open mine -q").unwrap().is_done();
    assert_eq!(place.read("mine"), b"1\n");
    place.shell("chmod 755 tree2/closed").is_done();
}

#[test]
fn a_full_disk_says_how_much_was_missing_and_leaves_nothing_in_the_way() {
    let place = Place::new();
    let mounted = place.shell("mkdir disk && mount -t tmpfs -o size=20M,mode=777 none disk");
    if mounted.status != Some(0) {
        skipped(&format!("nothing can be mounted here: {}", mounted.err));
        return;
    }
    place.write("in", &bytes(50_000_000, 1));
    let told = place.run(&["pump", "in", "disk/out"]);
    let left = place.shell("ls -A disk");
    let stream = place.shell("cat in | $T pump - disk/out");
    let left_of_stream = place.shell("ls -A disk");
    place.shell("mkdir tree; for i in $(seq 1 30); do head -c 1000000 in > tree/$i; done").is_done();
    // One stream: some files are complete when the disk is full.
    let tree = place.run(&["pump", "tree", "disk/copy", "--streams", "1"]);
    let resumed = place.shell(
        "rm tree/2*; $T pump tree disk/copy --resume -q; status=$?; diff -r tree disk/copy; exit $status",
    );
    let there = place.run(&["pump", "tree", "disk/copy2"]);
    place.shell("umount disk").is_done();
    told.is_refused(&["disk/out:", "it takes 47.68 MiB and", "MiB left"]);
    assert_eq!(left.out, "");
    stream.is_refused(&["disk/", "No space left"]);
    assert_eq!(left_of_stream.out, "");
    assert_eq!((tree.status, tree.err.lines().count()), (Some(2), 2), "{tree:?}");
    assert!(tree.err.contains("kept") && tree.err.contains("disk/"), "{tree:?}");
    assert_eq!(resumed.status, Some(0), "{resumed:?}");
    assert_eq!(there.status, Some(2), "{there:?}");
}

/// For an open directory, the system reports only once that writing back has failed: that report was ignored in the
/// middle of the transfer, and at the end everything seemed well.
#[test]
fn what_fails_to_be_written_back_on_the_way_is_an_error() {
    let place = Place::new();
    if place.shell("strace -qq -o trace -e trace=syncfs true").status != Some(0) {
        skipped("nothing can be traced here");
        return;
    }
    place.shell("mkdir tree; head -c 150M /dev/zero | split -b 100k -a 4 - tree/").is_done();
    let inject = "-e trace=syncfs -e inject=syncfs:error=EIO:when=1";
    let told = place.shell(&format!("exec strace -f -qq -o trace {inject} $T pump tree copy --limit 400MB"));
    assert!(told.status == Some(2) && told.err.contains("Input/output error"), "{told:?}");
    assert!(!place.0.join("copy").exists());
}

/// The exit status meant failure, and nothing said that the old output was gone.
#[test]
fn a_name_that_cannot_be_made_durable_is_told_as_one_that_was_given() {
    let place = Place::new();
    place.shell("mkdir tree there shut; echo new > in; cp in tree/").is_done();
    if place.shell("strace -qq -o trace -e trace=fsync true").status != Some(0) {
        skipped("nothing can be traced here");
        return;
    }
    for (call, verb, named, out) in [
        ("fsync:error=EIO:when=1", "pump in out", "out", "out"),
        ("fsync:error=EIO:when=1", "pump - out < in", "out", "out"),
        ("fsync:error=EIO:when=2", "pump tree copy", "copy", "copy/in"),
        ("fsync:error=EIO:when=1", "pump tree/ there", "there/", "there/in"),
        ("syncfs:error=EIO:when=1", "pump tree/ there", "there/", "there/in"),
        ("fsync:error=EIO:when=2", "pump tree in there", "there/", "there/in"),
    ] {
        place.shell("echo old > out; rm -rf copy there; mkdir there").is_done();
        let told = place.shell(&format!(
            "exec strace -f -qq -o trace -e trace=fsync,fdatasync,syncfs -e inject={call} $T {verb}"
        ));
        let undoable = format!("{named} is in place and whole, but a power loss may undo that");
        told.is_refused(&["Input/output error", &undoable]);
        assert_eq!(place.read(out), b"new\n", "{call}, {verb}");
        place.shell("! find . -name '.*thalweg*' | grep .").is_done();
    }
    // An earlier failure says nothing about that.
    for (call, verb) in
        [("fdatasync:error=EIO:when=1", "pump in out"), ("fsync:error=EIO:when=1", "pump tree copy")]
    {
        place.shell("echo old > out; rm -rf copy").is_done();
        let told = place.shell(&format!(
            "exec strace -f -qq -o trace -e trace=fsync,fdatasync,syncfs -e inject={call} $T {verb}"
        ));
        assert!(told.status == Some(2) && !told.err.contains("in place"), "{told:?}");
        assert!(place.read("out") == b"old\n" && !place.0.join("copy").exists(), "{told:?}");
    }
    // Only root can sync a directory that cannot be read; for others it is refused before anything is touched.
    place.shell("echo old > shut/out; chmod 666 shut/out; chmod 333 shut").is_done();
    match as_nobody(&place, "$T pump in shut/out") {
        Some(told) => told.is_refused(&["shut", "Permission denied"]),
        None => skipped("nobody else can reach this directory"),
    }
    place.shell("chmod 755 shut; ls -A shut").is_done();
    assert_eq!(place.read("shut/out"), b"old\n");
}

#[test]
fn few_open_files_are_enough_or_are_named() {
    let place = Place::new();
    place.shell("mkdir tree; for i in $(seq 1 50); do mkdir tree/$i; for j in 1 2 3 4 5 6 7 8 9; do echo $j > tree/$i/$j; done; done").is_done();
    place.shell("ulimit -n 512; $T pump tree copy -q && diff -r tree copy").is_done();
    let told = place.shell("ulimit -n 12; exec $T pump tree copy2");
    told.is_refused(&["Too many open files", "ulimit -n"]);
    assert!(!place.0.join("copy2").exists());
}

/// What went wrong: the message said how much room there was on the disk, which was enough, and a tree was given up.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let place = Place::new();
    place
        .shell("mkdir tree && seq 40000 > tree/large && seq 22000 > tree/packed && echo x > tree/small")
        .is_done();
    for (source, dest) in [("tree/large", "copy"), ("tree/packed", "copy")] {
        let told = place.shell(&format!("ulimit -f 100; exec $T pump {source} {dest}"));
        told.is_refused(&["cannot write", "/copy: ", "is more than one file may have in", "see ulimit -f"]);
    }
    let told = place.shell("ulimit -f 100; exec $T pump - copy < tree/large");
    told.is_refused(&["File too large", "see ulimit -f"]);
    assert_eq!(place.names(), ["tree"]);
    // Other files of a tree are copied.
    let told = place.shell("ulimit -f 100; exec $T pump tree copy");
    assert_eq!(told.status, Some(4), "{told:?}");
    assert!(
        told.err.contains("see ulimit -f") && told.err.ends_with("copied but for 2 of 4 entries\n"),
        "{told:?}"
    );
    assert_eq!(
        (place.names(), place.read("copy/small")),
        (vec!["copy".into(), "tree".into()], b"x\n".to_vec())
    );
    let names = place.shell("ls -A copy");
    assert_eq!(names.out, "small\n");
}

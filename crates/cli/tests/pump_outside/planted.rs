//! Hidden names in a directory that others may write to: what another user has put there is neither followed nor used.
//!
//! Cause and consequence: a transfer took anything under the name of its partial file or journal for its own. Another
//! user who had created such a file for all to read then owned the result and could read a secret, the second name of
//! another file was overwritten, and a forged journal vouched for the forger's bytes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use xxhash_rust::xxh3::xxh3_64;

use super::faults::as_nobody;
use super::files::bytes;
use super::resume::{FILE_BYTES, JOURNAL, PARTIAL, SLOWLY, killed_after, prepared};
use super::support::{Place, Running, may_give_away, skipped, until};
use super::walk::are_same;

/// Commands that put something at the hidden name `$1`, and what the error says about it.
const PLANTED: [(&str, &str); 9] = [
    ("ln -s $PWD/victim \"$1\"", "a symbolic link"),
    ("ln -s nowhere \"$1\"", "a symbolic link"),
    ("ln victim \"$1\"", "a file with 2 names"),
    ("mkfifo \"$1\"", "no regular file"),
    (": > \"$1\"; chown 1234 \"$1\"; chmod 666 \"$1\"", "a file of user 1234"),
    ("cp -p journal \"$1\"; chown 1234 \"$1\"; chmod 600 \"$1\"", "a file of user 1234"),
    ("mkdir -m 777 \"$1\"; chown 1234 \"$1\"", "a directory of user 1234"),
    ("mkdir -m 700 \"$1\"; echo dear > \"$1\"/diary", "a directory"),
    ("mkdir -m 1700 \"$1\"; echo dear > \"$1\"/diary", "a directory"),
];

/// A file; a tree with a small and a large file; and a tree with neither.
fn sources() -> Place {
    let place = Place::new();
    place
        .shell("mkdir -p tree there shallow/sub; echo secret > in; chmod 600 in; cp -p in tree/small")
        .is_done();
    place.write("tree/large", &bytes(5_000_000, 1));
    place.write("victim", b"dear\n");
    // The journal as another user's own transfer would begin it.
    place.write("journal", b"thalweg journal 3\n");
    place
}

#[test]
fn what_is_planted_at_a_hidden_name_is_refused_and_untouched() {
    let place = sources();
    for (name, verbs) in [
        (PARTIAL, &["pump in out", "pump tree out", "pump tree out --resume", "pump - out < in"][..]),
        (JOURNAL, &["pump in out", "pump in out --resume", "pump tree out", "pump - out < in"]),
        ("there/.in.thalweg-partial", &["pump in there", "pump shallow in there"]),
        ("there/.tree.thalweg-partial", &["pump tree there"]),
        (
            "there/.small.thalweg-partial",
            &["pump tree/ there --strict", "pump tree/ there", "pump tree/ there --resume --streams 1"],
        ),
        (
            "there/.large.thalweg-partial",
            &["pump tree/ there --strict", "pump tree/ there", "pump tree/ there --resume --streams 1"],
        ),
    ] {
        for (plant, what) in PLANTED {
            if plant.contains("chown") && !may_give_away() {
                continue;
            }
            place.shell(&format!("plant() {{ {plant}; }}; plant {name}")).is_done();
            let there = || {
                let there = std::fs::symlink_metadata(place.0.join(name)).expect("it is there");
                (there.ino(), there.len(), there.mode(), there.uid(), there.ctime_nsec())
            };
            let before = there();
            let names = place.names();
            for verb in verbs {
                let told = place.shell(&format!("exec $T {verb} -q"));
                // One file of a tree is left out, and the rest arrives.
                let may_go_on = verb.starts_with("pump tree/ there") && !verb.contains("--strict");
                let is_refused = told.status == Some(2) || (may_go_on && told.status == Some(4));
                assert!(is_refused, "{plant} at {name}, {verb}: {told:?}");
                let is_named = told.err.lines().any(|line| line.contains(name) && line.contains(what));
                assert!(is_named, "{plant} at {name}, {verb}: {told:?}");
                assert_eq!((there(), place.names()), (before, names.clone()), "{plant} at {name}, {verb}");
                assert_eq!(place.read("victim"), b"dear\n", "{plant} at {name}, {verb}");
            }
            place
                .shell(&format!(
                    "rm -r {name} && ! find . -name '.*thalweg*' | grep . && rm -rf there && mkdir there"
                ))
                .is_done();
        }
    }
    assert_eq!(place.names(), ["in", "journal", "shallow", "there", "tree", "victim"]);
}

/// Another user with write access to a directory may rename entries that he can neither read nor remove. During a
/// transfer, the hidden name of the tree was given to a private directory, which then got the tree's mode and name, for
/// all to read.
#[test]
fn a_private_directory_that_is_put_in_the_place_of_a_tree_stays_private() {
    let place = sources();
    place.shell("chmod 755 tree; mkdir -m 700 private; echo dear > private/diary; chmod 777 there").is_done();
    let pump = Running::start(&mut place.command(&["pump", "tree", "there", "--limit", "5MB", "-q"]));
    let hidden = place.0.join("there/.tree.thalweg-partial");
    until("a tree under its hidden name", || hidden.read_dir().is_ok_and(|mut names| names.next().is_some()));
    place
        .shell("mv there/.tree.thalweg-partial there/aside && mv private there/.tree.thalweg-partial")
        .is_done();
    pump.ends().is_refused(&["there/.tree.thalweg-partial is not the directory that was made there"]);
    let told =
        place.shell("ls -A there; stat -c %a there/.tree.thalweg-partial; ls there/.tree.thalweg-partial");
    assert!(told.out.ends_with("700\ndiary\n") && !told.out.contains("\ntree\n"), "{told:?}");
}

#[test]
fn somebody_who_makes_a_hidden_file_all_the_time_never_gets_what_comes_into_it() {
    let place = sources();
    if !may_give_away() || as_nobody(&place, "true").is_none() {
        skipped("nobody else can reach this directory");
        return;
    }
    place.shell("chmod 777 there").is_done();
    let racing = "set -C; umask 0; cd there; echo > begun; while :; do : > .out.thalweg-partial; done";
    let mut racer = Command::new("setpriv");
    racer.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", racing]);
    let racer = Running::start(racer.current_dir(&place.0).stdin(Stdio::null()).stderr(Stdio::null()));
    until("the race", || place.0.join("there/begun").exists());
    for verb in ["pump in there/out", "pump - there/out < in", "pump tree/large there/out"] {
        for _ in 0..10 {
            let told = place.shell(&format!("exec $T {verb} -q"));
            let out = std::fs::symlink_metadata(place.0.join("there/out"));
            match told.status {
                Some(0) => assert_ne!(out.expect("it is done").uid(), 65534, "{verb}: {told:?}"),
                _ => told.is_refused(&["there/.out.thalweg-partial", "a file of user 65534"]),
            }
            let theirs = std::fs::metadata(place.0.join("there/.out.thalweg-partial"));
            assert!(theirs.is_ok_and(|theirs| theirs.len() == 0), "{verb}");
            place.shell("rm -f there/out").is_done();
        }
    }
    racer.signal("-KILL");
    racer.ends();
}

/// A transfer was killed, another user changed a few bytes of what it left, and the next run continued from that and
/// reported success.
#[test]
fn what_a_killed_transfer_left_is_gone_on_from_only_if_it_is_still_this_users() {
    let place = prepared();
    if !may_give_away() {
        return;
    }
    killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
    for name in [JOURNAL, PARTIAL] {
        for (change, back, what) in [
            ("chown 1234 NAME; chmod 666 NAME", "chown 0 NAME; chmod 600 NAME", "user 1234"),
            // A link to a correct file is refused as a link.
            ("mv NAME kept; ln -s $PWD/kept NAME", "mv kept NAME", "a symbolic link"),
            ("ln NAME kept", "rm kept", "a file with 2 names"),
        ] {
            place.shell(&change.replace("NAME", name)).is_done();
            let held = place.shell(&format!("sha256sum {PARTIAL} {JOURNAL}"));
            for resume in ["--resume", "-q"] {
                let told = place.run(&["pump", "in", "out", resume]);
                let line = told.err.lines().last().unwrap_or_default();
                assert!(told.status == Some(2) && line.contains(name) && line.contains(what), "{told:?}");
            }
            assert_eq!(place.shell(&format!("sha256sum {PARTIAL} {JOURNAL}")).is_done(), held.is_done());
            place.shell(&back.replace("NAME", name)).is_done();
        }
    }
    place.run(&["pump", "in", "out", "--resume", "-q"]).is_done();
    assert!(place.read("out") == place.read("in"));
    assert_eq!(place.names(), ["in", "out"]);
}

/// What a run leaves that was killed just before a rename already belongs to the file's future owner.
#[test]
fn a_file_that_was_given_away_before_its_run_was_killed_is_no_obstacle() {
    let place = sources();
    if !may_give_away() {
        return;
    }
    place
        .shell("chown 1234 tree/*; touch there/.small.thalweg-partial there/.large.thalweg-partial")
        .is_done();
    place.shell("chown 1234 there/.*.thalweg-partial").is_done();
    place.run(&["pump", "tree/", "there", "-q"]).is_done();
    are_same(&place.0.join("tree"), &place.0.join("there"));
}

/// The mode of a stream's partial file depended on the umask alone, and so did that of a file that replaces one of mode
/// 0600.
#[test]
fn a_streams_output_is_for_its_owner_until_it_has_the_mode_and_owner_of_the_old_one() {
    let place = sources();
    place.shell("mkfifo pipe").is_done();
    let line =
        |umask: &str| format!("umask {umask}; exec {} pump pipe out -q", env!("CARGO_BIN_EXE_thalweg"));
    for (umask, old, mode) in [("000", "echo old > out; chmod 640 out", 0o640), ("027", "rm -f out", 0o640)] {
        let old = match may_give_away() && !old.starts_with("rm") {
            true => format!("{old}; chown 1234:5678 out"),
            false => old.into(),
        };
        place.shell(&old).is_done();
        let theirs = std::fs::metadata(place.0.join("out")).ok();
        let mut command = Command::new("bash");
        let running =
            Running::start(command.args(["-c", &line(umask)]).current_dir(&place.0).stdin(Stdio::null()));
        until("its output", || place.0.join(PARTIAL).exists());
        for name in [PARTIAL, JOURNAL] {
            let made = place.0.join(name).metadata().unwrap();
            assert_eq!(made.permissions().mode() & 0o7777, 0o600, "{name}");
            assert_ne!(made.uid(), 1234, "{name}");
        }
        place.shell("cat in > pipe").is_done();
        running.ends().is_done();
        let own = place.0.join("out").metadata().unwrap();
        assert_eq!(own.permissions().mode() & 0o7777, mode, "{umask}");
        if let Some(theirs) = theirs {
            assert_eq!((own.uid(), own.gid()), (theirs.uid(), theirs.gid()));
            assert_ne!(own.ino(), theirs.ino());
        }
        assert_eq!(place.read("out"), b"secret\n");
    }
}

/// The same with a large file under a journal's name.
#[test]
fn a_large_file_at_a_journals_name_is_not_read() {
    let place = sources();
    for verb in ["pump in out", "pump in out --resume"] {
        place.shell(&format!("truncate -s 1023M {JOURNAL}; rm -f out")).is_done();
        let told = place.shell(&format!("exec $T {verb} -q"));
        assert_eq!(told.status, Some(0), "{told:?}");
        assert!(told.peak_bytes < 100 << 20, "{} bytes at the peak", told.peak_bytes);
        assert!(!place.0.join(JOURNAL).exists() && place.0.join("out").exists());
    }
}

/// A journal may be forged with hashes that fit: it was read completely, and its contents took the same memory once
/// more.
#[test]
fn a_forged_journal_takes_little_memory() {
    const FORGED_BYTES: usize = 300 << 20;
    let place = prepared();
    killed_after(&place, SLOWLY, JOURNAL, FILE_BYTES / 4);
    let sound = place.read(JOURNAL);
    let begins = sound.split_inclusive(|b| *b == b'\n').take(2).map(<[u8]>::len).sum();
    let line = |said: String| format!("{:016x} {said}\n", xxh3_64(said.as_bytes()));
    let forged = |line: &dyn Fn(usize) -> String| {
        let mut bytes = sound[..begins].to_vec();
        (0..)
            .take_while(|number| {
                bytes.extend(line(*number).into_bytes());
                bytes.len() < FORGED_BYTES
            })
            .last();
        bytes
    };
    let range = |number: usize| match number {
        0 => line(format!("file 0 {} 0 0 0 0 in", u64::MAX)),
        _ => line(format!("range 0 {} 4096 {:032x}", number << 12, 0)),
    };
    let files = |number: usize| line(format!("file {number} 0 0 0 0 0 {number}"));
    let no_end = |_: usize| "x".repeat(1 << 20);
    for forged in [forged(&range), forged(&files), forged(&no_end)] {
        for resume in ["--resume", ""] {
            place.write(JOURNAL, &forged);
            let told = place.shell(&format!("exec $T pump in out --streams 1 -q {resume}"));
            assert_eq!(told.status, Some(0), "{told:?}");
            assert!(told.peak_bytes < 160 << 20, "{} bytes at the peak, {resume}", told.peak_bytes);
            assert!(place.read("out") == place.read("in"));
            place.shell("rm out").is_done();
        }
    }
    assert_eq!(place.names(), ["in"]);
}

/// The hidden tree of another transfer, with or without its journal, had been renamed to this transfer's hidden name:
/// it was emptied.
#[test]
fn another_transfers_hidden_tree_is_neither_cleared_nor_gone_on_from() {
    let place = sources();
    place.write("tree/large", &bytes(FILE_BYTES as usize, 5));
    let slowly = ["pump", "tree", "there", "--limit", "25MB", "--io", "threads"];
    killed_after(&place, &slowly, "there/.tree.thalweg-journal", FILE_BYTES / 4);
    place.shell("mkdir other; echo 1 > other/one").is_done();
    let tree = "there/.other.thalweg-partial";
    for (away, back) in [
        ("mv there/.tree.thalweg-partial TREE", "mv TREE there/.tree.thalweg-partial"),
        (
            "for end in partial journal; do mv there/.{tree,other}.thalweg-$end; done",
            "for end in partial journal; do mv there/.{other,tree}.thalweg-$end; done",
        ),
    ] {
        place.shell(&away.replace("TREE", tree)).is_done();
        let held = place.shell(&format!("find {tree} -type f | sort | xargs sha256sum"));
        for verb in ["pump other there", "pump other there --resume", "pump other tree there"] {
            let told =
                place.shell(&format!("cp -a there kept; $T {verb} -q; status=$?; rm -rf kept; exit $status"));
            let line = told.err.lines().last().unwrap_or_default();
            assert!(told.status == Some(2) && line.contains(tree) && line.contains("remove it"), "{told:?}");
            let now = place.shell(&format!("find {tree} -type f | sort | xargs sha256sum"));
            assert_eq!(now.is_done(), held.is_done(), "{verb}");
        }
        place.shell(&back.replace("TREE", tree)).is_done();
    }
    let told = place.run(&["pump", "tree", "there", "--resume", "-q"]);
    assert_eq!(told.status, Some(0), "{told:?}");
    are_same(&place.0.join("tree"), &place.0.join("there/tree"));
    assert_eq!(place.shell("ls -A there").is_done(), "tree\n");
}

/// The run was killed after it had created the directory and before it had noted that, or another user removed the
/// journal.
#[test]
fn of_a_tree_that_no_journal_lists_only_an_empty_directory_is_taken() {
    let place = sources();
    for resume in ["-q", "--resume"] {
        place.shell("mkdir -m 777 there/.tree.thalweg-partial there/.in.thalweg-partial").is_done();
        place.run(&["pump", "tree", "in", "there", resume]).is_done();
        are_same(&place.0.join("tree"), &place.0.join("there/tree"));
        assert_eq!(place.shell("ls -A there; rm -r there/*").is_done(), "in\ntree\n");
    }
}

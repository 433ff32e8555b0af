//! Hidden names in a directory that others may write to: what another user has put there is neither followed nor used.
//! Names may have any bytes.
//!
//! Cause and consequence: a link under a name that could be guessed was followed, and another file was overwritten;
//! records went into a file of another user; two outputs of the same name shared their scratch files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use thalweg_api::{Receipt, from_json};
use xxhash_rust::xxh3::xxh3_64;

use super::support::{Place, Running, may_give_away, until};

const BENCH: &str = "--datamation";
/// Commands that put something at the hidden name `$1`, and what the error says about it.
const PLANTED: [(&str, &str); 7] = [
    ("ln -s victim \"$1\"", "a symbolic link"),
    ("ln -s nowhere \"$1\"", "a symbolic link"),
    ("ln victim \"$1\"", "a file with 2 names"),
    ("mkfifo \"$1\"", "no regular file"),
    ("mkdir \"$1\"", "irectory"),
    ("echo theirs > \"$1\"; chown 1234 \"$1\"", "a file of user 1234"),
    ("echo theirs > \"$1\"; chown 1234 \"$1\"; chmod 666 \"$1\"", "a file of user 1234"),
];

/// Kills a sort that has written notes about its progress, and has not begun to remove its files. On a busy machine it
/// may come to that before it is killed, so this tries again.
fn killed_with_notes(place: &Place, scratch: &[&str]) {
    let manifest = place.0.join(".out.thalweg-manifest");
    let has_scratch = |directory: &&str| place.0.join(directory).join(place.scratch("out")).exists();
    let is_killed = || {
        let mut command =
            place.command(&["sort", "in", "-o", "out", BENCH, "--memory", "16MiB", "--resume", "-q"]);
        scratch.iter().for_each(|directory| {
            command.args(["--scratch", directory]);
        });
        let sort = Running::start(&mut command);
        let len = || manifest.metadata().map_or(0, |there| there.len());
        let mut begun = 0;
        until("a checkpoint, or the end", || {
            let (before, now) = (begun, len());
            begun = if before == 0 { now } else { before };
            before > 0 && now > before || sort.told("stat").contains(") Z ")
        });
        sort.signal("-KILL");
        sort.ends();
        manifest.exists() && scratch.iter().all(has_scratch)
    };
    let tries = (0..20).find(|_| {
        is_killed() || {
            place.shell("rm -rf out .out.*").is_done();
            false
        }
    });
    assert!(tries.is_some(), "it was never killed in the middle");
}

#[test]
fn what_is_planted_at_a_hidden_name_is_refused_and_untouched() {
    let place = Place::new();
    place.run(&["gen", "100", "in", "-q"]).is_done();
    place.write("victim", b"dear\n");
    let scratch = place.scratch("out");
    for name in [".out.thalweg-partial", ".out.thalweg-manifest", &scratch] {
        for (plant, what) in PLANTED {
            if plant.contains("chown") && !may_give_away() {
                continue;
            }
            place.shell(&format!("plant() {{ {plant}; }}; plant '{name}'")).is_done();
            let there = || {
                let there = std::fs::symlink_metadata(place.0.join(name)).expect("it is there");
                (there.ino(), there.len(), there.mode(), there.mtime_nsec())
            };
            let (before, names) = (there(), place.names());
            for resume in ["-q", "--resume"] {
                let told = place.run(&["sort", "in", "-o", "out", BENCH, resume]);
                told.is_refused(&[name, what]);
                assert_eq!((there(), place.names()), (before, names.clone()), "{plant} at {name} {resume}");
                assert_eq!(place.read("victim"), b"dear\n", "{plant} at {name} {resume}");
            }
            place.shell(&format!("rm -r '{name}'")).is_done();
        }
    }
    assert_eq!(place.names(), ["in", "victim"]);
}

/// The process number is known before the names are used, because `exec` keeps it.
#[test]
fn links_at_every_name_that_was_used_with_a_number_are_not_followed() {
    let place = Place::new();
    place.run(&["gen", "100", "in", "-q"]).is_done();
    place.run(&["sort", "in", "-o", "s", BENCH, "-q"]).is_done();
    let made = "in s victim";
    for verb in [
        "sort in -o out --datamation",
        "sort in -o out --datamation --nodes 2",
        "shuffle in -o out --record 100 --seed 1",
        "merge s s -o out --datamation",
        "join in s -o out --datamation",
        "partition in -o out{} --parts 1 --pick hash --datamation",
        "gen 100 out",
        "check in --datamation --summary out -q",
        "pump in out",
    ] {
        let plant = "echo dear > victim; for name in out out0 join; do for n in 0 1 2 3; do \
            ln -s victim .$name.thalweg-$$-$n.partial; ln -s victim .$name.thalweg-$$-$n.ready; \
            ln -s victim .thalweg-$name-$$-$n; done; done";
        let told = place.shell(&format!("{plant}; exec $T {verb} > /dev/null"));
        assert!(matches!(told.status, Some(0 | 1)), "{verb}: {told:?}");
        assert_eq!(place.read("victim"), b"dear\n", "{verb}");
        // The links stay, or are removed as links.
        let left =
            place.shell(&format!("find . -name '.*thalweg*' ! -type l; rm -f .*thalweg* out*; ls {made}"));
        assert_eq!(left.is_done(), "in\ns\nvictim\n", "{verb}");
    }
}

#[test]
fn what_a_killed_sort_left_is_gone_on_from_only_if_it_is_still_this_users() {
    let place = Place::new();
    if !may_give_away() {
        return;
    }
    place.shell("mkdir scratch; $T gen 400k in -q && cp in same").is_done();
    killed_with_notes(&place, &["scratch"]);
    let scratch = format!("scratch/{}", place.scratch("out"));
    let sort =
        ["sort", "in", "-o", "out", BENCH, "--memory", "16MiB", "--scratch", "scratch", "--resume", "-q"];
    // A refusal leaves everything that `--resume` needs, even if its cause is in another directory.
    let sums = "sha256sum .out.thalweg-* scratch/.out*";
    let left = place.shell(sums).is_done().to_string();
    place
        .shell(&format!("mkdir other; echo > other/{0}; chown 1234 other/{0}", place.scratch("out")))
        .is_done();
    place.run(&[&sort[..], &["--scratch", "other"]].concat()).is_refused(&["other/", "user 1234"]);
    assert_eq!(place.shell(sums).is_done(), left);
    place.shell("rm -r other").is_done();
    for name in [".out.thalweg-manifest", ".out.thalweg-partial", &scratch] {
        let held = place.shell(&format!("chown 1234 {name}; sha256sum {name}"));
        place.run(&sort).is_refused(&[name, "user 1234"]);
        assert_eq!(place.shell(&format!("sha256sum {name}")).is_done(), held.is_done());
        // A link to a correct file is refused as a link.
        place.shell(&format!("chown 0 {name}; mv {name} kept; ln -s $PWD/kept {name}")).is_done();
        place.run(&sort).is_refused(&[name, "a symbolic link"]);
        place.shell(&format!("rm {name}; mv kept {name}")).is_done();
    }
    assert_eq!(place.shell(sums).is_done(), left);
    // Nor does one directory too many change anything.
    place.shell("mkdir -p many/{1..256}").is_done();
    let many =
        "$T sort in -o out --datamation --memory 16MiB --resume $(printf -- '--scratch many/%d ' {1..256})";
    place.shell(many).is_refused(&["257", "scratch"]);
    place.shell("rm -r many").is_done();
    // The output was not continued.
    assert!(left.ends_with(place.shell("sha256sum scratch/.out*").is_done()));
    assert!(place.0.join(".out.thalweg-manifest").exists());
    let told = place.run(&[&sort[..10], &["--json"]].concat());
    let receipt: Receipt = from_json(told.is_done()).unwrap();
    assert!(receipt.resumed_bytes > 0, "{receipt:?}");
    place.shell("$T sort same -o same --datamation -q && cmp same out").is_done();
    assert_eq!(place.names(), ["in", "out", "same", "scratch"]);
    assert_eq!(place.shell("ls -A scratch").is_done(), "");
}

/// Both had a scratch file of the same name: 8 of 24 sorts ended with 'damaged'.
#[test]
fn two_outputs_of_one_name_do_not_share_their_scratch() {
    let place = Place::new();
    place.shell("mkdir a b scratch; $T gen 300k in -q; $T sort in -o expected --datamation -q").is_done();
    for _ in 0..3 {
        let sort = |place: &str| {
            format!("$T sort in -o {place}/out --datamation --memory 16MiB --scratch scratch --io threads -q")
        };
        place.shell(&format!("{} & {} && wait $!", sort("a"), sort("b"))).is_done();
        place.shell("cmp a/out expected && cmp b/out expected && rm a/out b/out").is_done();
        assert_eq!(place.shell("ls -A a b scratch").is_done(), "a:\n\nb:\n\nscratch:\n");
    }
}

/// A program can restore the length and modification time of a file, but not the time of that change.
#[test]
fn an_input_that_was_changed_in_place_is_not_gone_on_from() {
    let place = Place::new();
    place.run(&["gen", "400k", "in", "-q"]).is_done();
    killed_with_notes(&place, &[]);
    let change = "touch -r in stamp; printf zzzzzzzzzz | dd of=in conv=notrunc status=none; touch -r stamp in; rm stamp";
    place.shell(change).is_done();
    let told = place.run(&["sort", "in", "-o", "out", BENCH, "--memory", "16MiB", "--resume", "-q"]);
    assert_eq!(told.status, Some(0), "{told:?}");
    place.shell("$T sort in -o expected --datamation -q && cmp out expected").is_done();
    assert_eq!(place.names(), ["expected", "in", "out"]);
}

/// The second run had begun a file in a directory of its own, and had not noted it. It stayed when a third run did not
/// use that directory.
#[test]
fn scratch_of_a_run_that_went_on_and_was_stopped_is_gone_at_the_end() {
    let place = Place::new();
    place.shell("mkdir s t; $T gen 1M in -q").is_done();
    let scratch = place.scratch("out");
    for round in 0..3 {
        killed_with_notes(&place, &["t"]);
        let args = ["sort", "in", "-o", "out", BENCH, "--memory", "16MiB", "--resume", "-q"];
        let stopped = Running::start(place.command(&args).args(["--scratch", "s", "--scratch", "t"]));
        until("scratch", || place.0.join("s").join(&scratch).exists());
        stopped.signal("-TERM");
        let told = stopped.ends();
        assert_eq!(told.status, Some(143), "{round}: {told:?}");
        let told = place.run(&[&args[..], &["--scratch", "t"]].concat());
        assert_eq!(told.status, Some(0), "{round}: {told:?}");
        place.shell("$T check out --datamation -q && rm out").is_done();
        assert_eq!(place.shell("ls -A s t").is_done(), "s:\n\nt:\n", "{round}");
        assert_eq!(place.names(), ["in", "s", "t"], "{round}");
    }
}

#[test]
fn names_of_any_bytes_and_any_length_are_names() {
    let place = Place::new();
    place.run(&["gen", "1000", "in", "-q"]).is_done();
    place.run(&["sort", "in", "-o", "s", BENCH, "-q"]).is_done();
    let long = |len: usize| format!("$(printf 'x%.0s' {{1..{len}}})");
    for name in [&long(240), &long(255), "$'\\xff'", "$'a\\xe4\\xff b'"] {
        for verb in [
            "sort in -o \"$o\" --datamation -q",
            "sort in -o \"$o\" --datamation --resume -q",
            "sort in -o \"$o\" --datamation --memory 80MiB --nodes 2 -q",
            "merge s s -o \"$o\" --datamation -q",
            "join s s -o \"$o\" --datamation -q",
            "shuffle in -o \"$o\" --record 100 --seed 1 -q",
            "gen 10 \"$o\" -q",
            "pump in \"$o\" -q",
            "partition in -o \"{}${o#?}\" --parts 2 --pick hash --datamation -q",
        ] {
            let told = place.shell(&format!("o={name}; $T {verb} && rm -f \"$o\" ?\"${{o#?}}\""));
            assert_eq!((told.status, told.err.as_str()), (Some(0), ""), "{verb} to {name}");
            place.run(&["gen", "1000", "in", "-q"]).is_done();
            place.run(&["sort", "in", "-o", "s", BENCH, "-q"]).is_done();
            assert_eq!(place.names(), ["in", "s"], "{verb} to {name}");
        }
    }
    // Two outputs at once whose names differ only in such a byte: neither touches the other's files.
    place.shell("$T gen 300k in -q; $T sort in -o s --datamation -q").is_done();
    let sort = |byte: &str| format!("$T sort in -o $'x\\x{byte}' --datamation --memory 16MiB -q");
    place.shell(&format!("{} & {} && wait $!", sort("ff"), sort("fe"))).is_done();
    place.shell("cmp $'x\\xff' s && cmp $'x\\xfe' s && rm x*").is_done();
    assert_eq!(place.names(), ["in", "s"]);
}

/// While an output was being written, the umask decided who could read it, whatever the mode of the file that it
/// replaces.
#[test]
fn an_output_is_for_its_owner_until_it_has_its_name() {
    let place = Place::new();
    place.shell("mkfifo pipe; $T gen 1000 in -q; $T sort in -o s --datamation -q").is_done();
    for (verb, out) in [
        ("sort pipe -o out --datamation", "out"),
        ("merge pipe s -o out --datamation", "out"),
        ("partition pipe -o out{} --parts 1 --pick hash --datamation", "out0"),
    ] {
        let old = match may_give_away() {
            true => "chown 1234:5678 OLD; chmod 640 OLD".replace("OLD", out),
            false => format!("chmod 640 {out}"),
        };
        place.shell(&format!("echo old > {out}; {old}")).is_done();
        let theirs = place.0.join(out).metadata().unwrap();
        let line = format!("umask 000; exec {} {verb} -q", env!("CARGO_BIN_EXE_thalweg"));
        let mut command = std::process::Command::new("bash");
        let running = Running::start(command.args(["-c", &line]).current_dir(&place.0));
        let hidden = || -> Vec<String> {
            place
                .names()
                .into_iter()
                .filter(|name| name.contains(".thalweg-") && !name.contains("-trial-"))
                .collect()
        };
        until("its output", || !hidden().is_empty());
        for name in hidden() {
            let made = place.0.join(&name).metadata().unwrap();
            assert_eq!(made.permissions().mode() & 0o7777, 0o600, "{name}");
            assert_ne!(made.uid(), 1234, "{name}");
        }
        assert_eq!(place.read(out), b"old\n");
        place.shell("cat s > pipe").is_done();
        running.ends().is_done();
        let own = place.0.join(out).metadata().unwrap();
        let facts = |m: &std::fs::Metadata| (m.uid(), m.gid(), m.mode());
        assert_eq!(facts(&own), facts(&theirs), "{verb}");
        assert_ne!(own.ino(), theirs.ino(), "{verb}");
        place.shell(&format!("rm {out}")).is_done();
    }
}

/// Another user with write access to the directory had renamed a large file to the name of a manifest: all of it was
/// read into memory.
#[test]
fn a_large_file_at_a_manifests_name_is_not_read() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    for verb in ["sort in -o out", "sort in -o out --resume"] {
        place.shell("truncate -s 1G .out.thalweg-manifest").is_done();
        let told = place.shell(&format!("exec $T {verb} --memory 64MiB -q"));
        assert_eq!(told.status, Some(0), "{told:?}");
        assert!(told.peak_bytes < 64 << 20, "{} bytes at the peak", told.peak_bytes);
        assert_eq!(place.names(), ["in", "out"]);
    }
}

/// A frame of a manifest, as in `docs/formats/manifest.md`.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let hashed = [&[kind], payload].concat();
    let len = (payload.len() as u32).to_le_bytes();
    [&len[..], &xxh3_64(&hashed).to_le_bytes(), &hashed].concat()
}

/// A manifest may be forged with hashes that fit: it was read completely, and its contents took several times as much
/// memory.
#[test]
fn a_forged_manifest_takes_no_more_memory_than_the_sort_has() {
    const FORGED_BYTES: usize = 300 << 20;
    let place = Place::new();
    place.run(&["gen", "400k", "in", "-q"]).is_done();
    killed_with_notes(&place, &[]);
    let sound = place.read(".out.thalweg-manifest");
    let begins = 19 + 13 + u32::from_le_bytes(sound[19..23].try_into().unwrap()) as usize;
    let nothing = [0; 52];
    let lists = |files: u32, extents: u32| {
        let head = [&nothing[..], &files.to_le_bytes(), &vec![0; 4 * files as usize]].concat();
        let range = [&1u32.to_le_bytes()[..], &[0; 16], &extents.to_le_bytes()].concat();
        [head, range, vec![0; 16 * extents as usize]].concat()
    };
    let one = frame(2, &lists(1, FORGED_BYTES as u32 / 16));
    let many = frame(2, &lists(200, 1)).repeat(FORGED_BYTES / 900);
    for forged in [one, many] {
        for resume in ["--resume", ""] {
            place.write(".out.thalweg-manifest", &[&sound[..begins], &forged].concat());
            let told = place.shell(&format!("exec $T sort in -o out {BENCH} --memory 16MiB -q {resume}"));
            assert_eq!(told.status, Some(0), "{told:?}");
            assert!(told.peak_bytes < 48 << 20, "{} bytes at the peak, {resume}", told.peak_bytes);
            place.shell("rm out").is_done();
        }
    }
    assert_eq!(place.names(), ["in"]);
}

/// In a directory like `/tmp`, another user had created something under the name of the output: a link was followed, a
/// pipe received the records, and a file that all may read gave its mode to the output.
#[test]
fn what_another_user_put_at_an_outputs_name_is_not_used() {
    let place = Place::new();
    if !may_give_away() {
        return;
    }
    place.shell("echo dear > victim; echo secret > in; mkdir -m 1777 shared").is_done();
    for plant in
        ["ln -s $PWD/victim out", "ln -s $PWD/nowhere out", "mkfifo -m 666 out", ": > out; chmod 666 out"]
    {
        for verb in
            ["sort in -o", "gen 1", "merge in -o", "join in in -o", "partition in --parts 1 -o", "pump in"]
        {
            let output = if verb.starts_with("partition") { "shared/out{}" } else { "shared/out" };
            let name = if verb.starts_with("partition") { "out0" } else { "out" };
            place.shell(&format!("cd shared; {plant}; mv out {name} 2>&-; chown -h 1234 {name}")).is_done();
            let told = place.shell(&format!("timeout 10 $T {verb} {output}"));
            told.is_refused(&["shared/out", "user 1234 made it"]);
            assert_eq!(place.read("victim"), b"dear\n", "{plant}, {verb}");
            assert_eq!(place.names(), ["in", "shared", "victim"], "{plant}, {verb}");
            place.shell(&format!("test \"$(ls -A shared)\" = {name} && rm shared/{name}")).is_done();
        }
    }
    place.shell("mkdir own; ln -s $PWD/own shared/out; chown -h 1234 shared/out").is_done();
    for dest in ["shared/out", "shared/out/", "shared/out/."] {
        place.run(&["pump", "in", dest]).is_refused(&["user 1234 made it"]);
    }
    place.shell("rm shared/out; rmdir own").is_done();
    // What belongs to the user itself is used as before.
    place.shell("ln -s ../victim shared/out; $T sort in -o shared/out -q; cat victim").is_done();
    assert_eq!(place.read("victim"), b"secret\n");
}

/// While an output was being written, another user put a file at its name. That file passed its owner and mode to the
/// output, so the other user could read it.
#[test]
fn what_another_user_puts_at_an_outputs_name_meanwhile_lends_it_nothing() {
    let place = Place::new();
    if !may_give_away() {
        return;
    }
    place.shell("mkfifo pipe; echo secret > in; mkdir -m 1777 shared").is_done();
    for verb in [
        "sort pipe -o shared/out",
        "merge pipe in -o shared/out",
        "partition pipe -o shared/out{} --parts 1 --pick hash",
        "pump - shared/out < pipe",
    ] {
        let name = if verb.starts_with("partition") { "shared/out0" } else { "shared/out" };
        let line = format!("umask 077; exec {} {verb} -q", env!("CARGO_BIN_EXE_thalweg"));
        let mut command = std::process::Command::new("bash");
        let running = Running::start(command.args(["-c", &line]).current_dir(&place.0));
        let mut pipe = std::fs::OpenOptions::new().write(true).open(place.0.join("pipe")).unwrap();
        let is_made =
            |names: &str| names.lines().any(|name| name.contains(".thalweg-") && !name.contains("-trial-"));
        until("its output", || is_made(&place.shell("ls -A shared").out));
        place.shell(&format!(": > {name}; chmod 666 {name}; chown 1234 {name}")).is_done();
        std::io::Write::write_all(&mut pipe, b"secret\n").unwrap();
        drop(pipe);
        running.ends().is_done();
        let made = place.0.join(name).metadata().unwrap();
        assert_eq!((made.uid(), made.mode() & 0o777), (0, 0o600), "{verb}");
        assert!(place.read(name).starts_with(b"secret\n"), "{verb}");
        place.shell(&format!("rm {name}")).is_done();
    }
}

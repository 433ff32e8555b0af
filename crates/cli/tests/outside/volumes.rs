//! Volumes of this machine, as several commands at once use them.

use std::io::{BufRead, BufReader};
use std::path::Path;

use super::support::{Place, Running, skipped, until};

/// A place with a volume `films` of two stores.
fn with_volume() -> Place {
    let place = Place::new();
    place
        .shell("mkdir d1 d2 && XDG_CONFIG_HOME=$PWD/settings $T volume create films --stores d1,d2")
        .is_done();
    place
}

#[test]
fn sorts_that_write_one_output_at_once_succeed_or_say_that_another_does() {
    let place = with_volume();
    place
        .shell(
            "export XDG_CONFIG_HOME=$PWD/settings
            $T gen 20k volume:films/in -q || exit
            for i in 1 2 3 4; do $T sort volume:films/in -o volume:films/out --datamation -q 2>err$i & jobs[i]=$!; done
            for job in ${jobs[@]}; do wait $job && done=1; done
            [ $done ] && $T check volume:films/out --datamation -q && $T volume ls volume:films/ | grep thalweg && exit 1
            $T volume check films -q && cat err?",
        )
        .is_done()
        .lines()
        .for_each(|line| assert!(line.contains("another sort is writing this output"), "{line}"));
}

/// Of one strip, a copy was on the store that is gone, and the other had just got the next generation: that is no loss.
#[test]
fn commands_write_a_volume_with_two_copies_when_a_store_is_gone() {
    let place = Place::new();
    place
        .shell(
            "export XDG_CONFIG_HOME=$PWD/settings
            mkdir d1 d2 d3 meta && $T gen 50k in -q || exit
            $T volume create films --stores d1,d2,d3 --copies 2 --manager meta -q && mv d3 gone || exit
            for i in 1 2 3 4 5 6 7 8; do
                $T pump in volume:films/out$i -q && $T sort in -o volume:films/sorted$i --datamation -q || exit
                $T pump volume:films/out$i - -q | cmp - in || exit
            done",
        )
        .is_done();
    // With two stores gone, parts of files have no copy.
    let status = "XDG_CONFIG_HOME=$PWD/settings $T volume status films";
    assert!(!place.shell(status).is_done().contains("cannot be read"));
    let told = place.shell(&format!("mv d2 gone/d2; {status}"));
    assert!(
        told.status == Some(1) && told.out.contains("16 files cannot be read whole: no copy"),
        "{told:?}"
    );
}

#[test]
fn directories_are_made_with_those_above_them() {
    let place = with_volume();
    let run = |line: &str| place.shell(&format!("XDG_CONFIG_HOME=$PWD/settings {line}"));
    run("$T volume mkdir volume:films/a/b/c volume:films/a/d").is_done();
    run("$T volume mkdir volume:films/a/b").is_done();
    run("$T gen 1k volume:films/a/b/c/records -q").is_done();
    run("$T volume mkdir volume:films/a/b/c/records/d").is_refused(&["/a/b/c/records", "Not a directory"]);
    run("$T volume mkdir volume:films/a/b/c/records").is_refused(&["/a/b/c/records", "File exists"]);
    run("$T volume mkdir").is_refused(&["volume mkdir takes at least one word"]);
}

#[test]
fn a_second_signal_ends_a_mount_that_programs_use() {
    if !Path::new("/dev/fuse").exists() || !thalweg_io::process::is_root() {
        return skipped("mounting needs /dev/fuse, and here to be root");
    }
    let place = with_volume();
    let at = place.0.join("films");
    std::fs::create_dir(&at).unwrap();
    let mut command = place.command(&["mount", "films", "films"]);
    let mut mount = Running::start(command.env("XDG_CONFIG_HOME", place.0.join("settings")));
    let mut line = String::new();
    BufReader::new(mount.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let open = std::fs::File::create(at.join("open")).unwrap();
    mount.handles_signals();
    mount.signal("-INT");
    mount.waits();
    assert!(mount.0.try_wait().unwrap().is_none() && !at.join("open").exists(), "it is busy, and unmounted");
    // One that comes too soon after the first is taken for the same.
    until("the mount ends", || {
        mount.signal("-INT");
        mount.0.try_wait().unwrap().is_some()
    });
    assert_eq!(mount.0.wait().unwrap().code(), None);
    drop(open);
}

/// A shell line with a volume `full` of two stores, the first of which, with the manager, is a small file system
/// `disk`. `None` where none can be mounted, which is said.
fn on_a_small_disk(line: &str) -> Option<super::support::Outcome> {
    let place = Place::new();
    let line = format!(
        "export XDG_CONFIG_HOME=$PWD/settings
        mkdir disk d2 m && mount -t tmpfs -o size=40M none disk || exit 77
        $T volume create full --stores disk,d2 -q
        {line}"
    );
    let told = place.shell(&format!("exec unshare -m bash -c '{line}'"));
    if told.status == Some(77) {
        skipped(&format!("nothing can be mounted here: {}", told.err));
        return None;
    }
    Some(told)
}

#[test]
fn what_fails_on_a_full_disk_leaves_nothing_behind() {
    let told = on_a_small_disk(
        "$T gen 1M volume:full/x -q 2>/dev/null; echo $?
        $T volume ls volume:full/; ls disk/full.thalweg-store
        $T gen 10k volume:full/x -q && $T volume check full -q",
    );
    let Some(told) = told else { return };
    assert_eq!(told.is_done(), "2\nincarnation\nrun\nsuperblock\n");
}

#[test]
fn files_of_a_volume_are_removed_by_name() {
    let place = with_volume();
    let run = |line: &str| place.shell(&format!("XDG_CONFIG_HOME=$PWD/settings {line}"));
    run("$T volume mkdir volume:films/a/b volume:films/c").is_done();
    run("$T gen 1k volume:films/a/b/records -q").is_done();
    run("$T gen 1k volume:films/more -q").is_done();
    run("$T volume rm volume:films/c volume:films/a")
        .is_refused(&["/a is a directory that is not empty; add --recursive"]);
    run("$T volume rm volume:films/none").is_refused(&["/none: No such file"]);
    run("$T volume rm volume:films/ --recursive").is_refused(&["thalweg volume destroy films"]);
    run("$T volume ls volume:films/ --recursive").is_refused(&["--recursive is for volume rm"]);
    run("$T volume rm volume:films/more volume:films/a --recursive").is_done();
    assert_eq!(run("$T volume ls volume:films/").is_done(), "");
    run("$T volume check films -q").is_done();
}

#[test]
fn on_a_full_disk_a_mount_still_reads_and_removes() {
    if !Path::new("/dev/fuse").exists() || !thalweg_io::process::is_root() {
        return skipped("mounting needs /dev/fuse, and here to be root");
    }
    let told = on_a_small_disk(
        "$T mount full m --background -q
        head -c 5000000 /dev/urandom > m/a && cp m/a m/b || exit
        dd if=/dev/urandom of=m/big bs=1M count=100 conv=fsync 2>/dev/null && exit 1
        cat /dev/zero > disk/fill 2>/dev/null
        ls m && cmp m/a m/b && truncate -s 0 m/b && rm m/big && cp m/a m/c && cmp m/a m/c && umount m
        rm disk/fill; $T volume check full -q",
    );
    let Some(told) = told else { return };
    assert_eq!(told.is_done(), "a\nb\nbig\n");
}

#[test]
fn what_is_not_there_is_named_when_a_volume_is_destroyed() {
    let place = with_volume();
    place.shell("mv d2 away").is_done();
    let run = |line: &str| place.shell(&format!("XDG_CONFIG_HOME=$PWD/settings {line}"));
    let told = run("$T volume destroy films");
    assert_eq!(told.status, Some(1), "{told:?}");
    assert!(told.out.starts_with("films: removed and forgotten, except for 1 part\n  manager "), "{told:?}");
    assert!(told.out.contains("d1/films.thalweg-store") && !told.out.contains("d2"), "{told:?}");
    assert!(told.err.contains("d2/films.thalweg-store was not there") && told.err.lines().count() == 1);
    assert_eq!(run("$T volume list; ls away").is_done(), "films.thalweg-store\n");
}

/// Nobody learned that the room was not reserved, until files could not be removed on the full disk.
#[test]
fn a_disk_without_room_for_the_reserve_gets_no_manager() {
    let place = Place::new();
    let told = place.shell(
        "exec unshare -m bash -c 'export XDG_CONFIG_HOME=$PWD/settings
        mkdir disk d2 && mount -t tmpfs -o size=6M none disk || exit 77
        $T volume create full --stores disk,d2; echo $?
        ls disk d2; $T volume list
        $T volume create full --stores disk,d2 --manager d2 -q; echo $?; $T volume destroy full -q'",
    );
    if told.status == Some(77) {
        return skipped(&format!("nothing can be mounted here: {}", told.err));
    }
    assert_eq!((told.status, told.out.as_str()), (Some(0), "2\nd2:\n\ndisk:\n0\n"), "{told:?}");
    assert!(told.err.contains("disk has 5.99 MiB free; ") && told.err.contains("need 8 MiB"), "{told:?}");
}

/// The directories of a volume that no list names were left, and refused the next attempt.
#[test]
fn a_volume_that_cannot_be_listed_is_not_made() {
    let place = Place::new();
    // In the settings there is room for a directory and for the lock, and for no list.
    let told = place.shell(
        "exec unshare -m bash -c 'export XDG_CONFIG_HOME=$PWD/settings
        mkdir settings d1 d2 && mount -t tmpfs -o nr_inodes=3 none settings || exit 77
        $T volume create films --stores d1,d2; echo $?; ls d1 d2 settings/thalweg
        umount settings; $T volume create films --stores d1,d2 -q; $T volume destroy films -q'",
    );
    if told.status == Some(77) {
        return skipped(&format!("nothing can be mounted here: {}", told.err));
    }
    assert_eq!(told.status, Some(0), "{told:?}");
    assert_eq!(told.out, "2\nd1:\n\nd2:\n\nsettings/thalweg:\nvolumes.lock\n");
    assert!(told.err.contains("volumes.json: No space left on device"), "{told:?}");
}

#[test]
fn control_characters_in_names_reach_no_terminal() {
    let place = with_volume();
    if place.shell("script --version").status != Some(0) {
        return skipped("there is no program script, which makes a terminal");
    }
    let run = |line: &str| place.shell(&format!("export XDG_CONFIG_HOME=$PWD/settings; {line}"));
    run("mkdir in; cd in; printf x > $'a\\n\\e[2Jb'; ln -s $'\\e]0;x\\a' link; $T pump -q ./ volume:films/")
        .is_done();
    let raw = run("$T volume ls volume:films/");
    assert!(raw.is_done().contains(" a\n\u{1b}[2Jb\n"), "a program gets the names as they are: {raw:?}");
    place.write("terminal", b"script -qec \"$T volume $1 $2\" /dev/null");
    for what in
        ["ls volume:films/", "ls \"volume:films/$'a\\n\\e[2Jb'\"", "stat \"volume:films/$'a\\n\\e[2Jb'\""]
    {
        let shown = run(&format!("SHELL=/bin/bash bash terminal {what}"));
        let out = shown.is_done();
        assert!(!out.contains('\u{1b}') && out.contains(r"a\n\u{1b}[2Jb"), "{what}: {shown:?}");
    }
    let link = run("SHELL=/bin/bash bash terminal stat volume:films/link");
    assert!(link.is_done().contains(r"target    \u{1b}]0;x\u{7}"), "{link:?}");
    // Reports never have them: a name must not look like a line of its own.
    run("for f in d?/films.thalweg-store/*.strip; do printf y > $f; done").is_done();
    for command in ["check films", "salvage films saved"] {
        let told = run(&format!("$T volume {command}"));
        assert!(told.status == Some(1) && told.out.contains(r"a\n\u{1b}[2Jb: "), "{told:?}");
    }
}

#[test]
fn the_advice_of_salvage_is_given_once() {
    let place = with_volume();
    let run = |line: &str| place.shell(&format!("export XDG_CONFIG_HOME=$PWD/settings; {line}"));
    run("for i in 1 2 3; do $T gen 1k volume:films/$i -q; done").is_done();
    run("for f in d?/films.thalweg-store/*.strip; do printf yyy | dd of=$f conv=notrunc 2>/dev/null; done")
        .is_done();
    let told = run("$T volume salvage films saved");
    assert!(told.status == Some(1) && told.out.matches("are lost: ").count() == 3, "{told:?}");
    assert_eq!(told.out.matches("salvage again").count(), 1, "{told:?}");
    // Who salvages is not told to salvage.
    run("mv d1/films.thalweg-manager away").is_done();
    let told = run("$T volume salvage films again");
    assert!(told.out.contains("called after their numbers: cannot open "), "{told:?}");
    assert!(!told.out.contains("thalweg volume salvage"), "{told:?}");
}

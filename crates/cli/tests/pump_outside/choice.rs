//! Which entries are copied, deleted and skipped: compared with the real rsync.

use std::os::unix::fs::MetadataExt;

use thalweg_api::PumpChange;
use thalweg_base::rng::Rng;

use super::faults::as_nobody;
use super::files::receipt;
use super::support::{Place, skipped};

/// Runs both on copies of `dst`, and compares what is there afterwards, with times. False if there is no rsync.
fn is_as_rsync(place: &Place, flags: &str, of_rsync: &str, of: &str) -> bool {
    if place.shell("rsync --version").status != Some(0) {
        skipped("there is no rsync");
        return false;
    }
    place.shell("rm -rf ours theirs; cp -a dst ours; cp -a dst theirs").is_done();
    // Otherwise rsync compares only whole seconds, and leaves the times of directories that were made within one.
    place.shell(&format!("rsync -a --modify-window=-1 {of_rsync} src/ theirs")).is_done();
    let ours = place.shell(&format!("$T pump src/ ours -q {flags}"));
    assert_eq!(ours.status, Some(0), "{of}: {flags}: {ours:?}");
    let list = |dir: &str| place.shell(&format!("cd {dir}; find . -printf '%P %y %T@ %m\\n' | sort")).out;
    assert_eq!(list("ours"), list("theirs"), "{of}: {flags}");
    let differs = place.shell("diff -r --no-dereference ours theirs");
    assert_eq!(differs.status, Some(0), "{of}: {flags}: {differs:?}");
    true
}

/// Trees with few names, some of which are in both.
fn plant(place: &Place, rng: &mut Rng) {
    let mut line = String::from("rm -rf src dst; mkdir src dst; exec 2>/dev/null\n");
    for root in ["src", "dst"] {
        for _ in 0..6 {
            let names = [
                "a",
                "b.o",
                "sub",
                "sub/a",
                "sub/c.o",
                "sub/deep",
                "sub/deep/a",
                "cache",
                "cache/x",
                "keep",
                "k/a",
            ];
            let name = names[rng.below(names.len() as u64) as usize];
            let stamp = 1_000_000_000 + rng.below(3) * 1000;
            line += &match rng.below(3) {
                0 => format!("mkdir -p {root}/{name}\n"),
                _ => format!(
                    "mkdir -p $(dirname {root}/{name}); echo {} > {root}/{name}; touch -d @{stamp} {root}/{name}\n",
                    rng.below(3)
                ),
            };
        }
    }
    // What is a directory in one and a file in the other is tested elsewhere.
    line += "cd src; find . -type f | while read f; do [ -d ../dst/$f ] && rm -r ../dst/$f; done\n";
    line += "find . -type d | while read f; do [ -f ../dst/$f ] && rm ../dst/$f; done; true";
    place.shell(&line);
}

#[test]
fn rules_and_deletions_are_those_of_rsync() {
    let place = Place::new();
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        plant(&place, &mut rng);
        let mut flags = String::new();
        for _ in 0..rng.below(4) {
            let patterns =
                ["*.o", "sub/", "/sub", "a", "sub/a", "cache/***", "**/deep", "k*", "[ab]", "/*/a", "*"];
            let pattern = patterns[rng.below(patterns.len() as u64) as usize];
            flags += &match rng.below(6) {
                0 | 1 => format!(" --exclude '{pattern}'"),
                2 => format!(" --include '{pattern}'"),
                3 => format!(" --filter 'P {pattern}'"),
                4 => format!(" --filter 'H {pattern}'"),
                _ => format!(" --filter '-p {pattern}'"),
            };
        }
        let of = format!("seed {seed}");
        let delete = if seed % 4 == 0 { "" } else { " --delete" };
        let both = format!("{flags}{delete}");
        if !is_as_rsync(&place, &both, &format!("-I {both}"), &of) {
            return;
        }
        // A dry run tells the same changes, and makes none.
        place.shell("rm -rf ours; cp -a dst ours").is_done();
        let before = place.shell("find ours -printf '%p %y %C@\\n' | sort").out;
        let told = receipt(place.shell(&format!("$T pump src/ ours --json --dry-run{both}")).is_done());
        assert!(told.dry_run && told.holds, "{told:?}");
        assert_eq!(place.shell("find ours -printf '%p %y %C@\\n' | sort").out, before, "{of}");
        for item in &told.items {
            let path = item.path.trim_end_matches('/');
            let was = place.0.join("ours").join(path).symlink_metadata().is_ok();
            let is = place.0.join("theirs").join(path).symlink_metadata().is_ok();
            assert_eq!(
                (was, is),
                (item.change != PumpChange::New, item.change != PumpChange::Deleted),
                "{of}: {item:?}"
            );
        }
        let deleted = told.items.iter().filter(|item| item.change == PumpChange::Deleted).count();
        let gone =
            place.shell("(cd ours; find .) | while read f; do [ -e theirs/$f ] || echo; done | wc -l").out;
        assert_eq!(gone.trim(), deleted.to_string(), "{of}: {told:?}");
    }
}

#[test]
fn what_is_newer_or_not_there_is_skipped_as_by_rsync() {
    let place = Place::new();
    for seed in 100..104 {
        plant(&place, &mut Rng::new(seed));
        for flag in ["--update", "--existing", "--update --existing"] {
            if !is_as_rsync(&place, flag, &format!("-I {flag}"), &format!("seed {seed}")) {
                return;
            }
        }
    }
    place.shell("mkdir -p src; echo 1 > src/one").is_done();
    place.run(&["pump", "src", "none", "--existing"]).is_refused(&["none does not exist", "make it first"]);
}

#[test]
fn only_listed_paths_are_copied() {
    let place = Place::new();
    place
        .shell("mkdir -p src/a/b src/c/d dst; echo 1 > src/a/b/one; echo 2 > src/a/two; echo 3 > src/c/d/three; echo 4 > src/four")
        .is_done();
    place.write("list", b"# a comment\n./a/b/one\n\n/c\nfour\n");
    if is_as_rsync(&place, "--files-from list", "-r --files-from list", "list") {
        assert_eq!(place.shell("cd ours; find . -type f | sort").out, "./a/b/one\n./c/d/three\n./four\n");
    }
    let told = place.shell("printf 'four\\na/none\\n' | $T pump src/ out --files-from -");
    assert!(told.status == Some(4) && told.err.contains("a/none"), "{told:?}");
    assert_eq!(place.shell("find out | sort").out, "out\nout/a\nout/four\n");
    place.write("bad", b"../x\n");
    place.run(&["pump", "src/", "out", "--files-from", "bad"]).is_refused(&["'../x'"]);
}

#[test]
fn contents_decide_if_they_are_compared() {
    let place = Place::new();
    place
        .shell(
            "mkdir src; echo same > src/same; echo old1 > src/differs; head -c 3000000 /dev/urandom > src/large
             cp -a src dst; touch -d 2001-01-01 src/same dst/large; chmod 600 src/same; echo new1 > src/differs
             touch -r dst/differs src/differs; echo more > src/more",
        )
        .is_done();
    let inode = |name: &str| place.0.join("dst").join(name).metadata().unwrap().ino();
    let before = [inode("same"), inode("large"), inode("differs")];
    let args = ["pump", "src/", "dst", "--compare", "content", "--json"];
    let told = receipt(place.run(&[&args[..], &["--dry-run"]].concat()).is_done());
    let changes =
        |change| told.items.iter().filter(|item| item.change == change).map(|i| &*i.path).collect::<Vec<_>>();
    assert_eq!((changes(PumpChange::New), changes(PumpChange::Changed)), (vec!["more"], vec!["differs"]));
    assert_eq!(changes(PumpChange::Attributes).len(), 2, "{told:?}");
    let told = receipt(place.run(&args).is_done());
    assert_eq!((told.files, told.resumed_files, told.holds), (2, 2, true), "{told:?}");
    assert_eq!([inode("same"), inode("large")], before[..2]);
    assert_ne!(inode("differs"), before[2]);
    place.shell("diff -r src dst && [ $(stat -c %a%Y dst/same) = $(stat -c %a%Y src/same) ]").is_done();
    // By time, the same file would not have been noticed.
    place.shell("echo new2 > src/differs; touch -r dst/differs src/differs").is_done();
    let told = receipt(place.run(&["pump", "src/", "dst", "--compare", "time", "--json"]).is_done());
    assert_eq!((told.files, told.resumed_files), (0, 4), "{told:?}");
}

#[test]
fn nothing_is_deleted_below_what_failed_and_no_more_than_allowed() {
    let place = Place::new();
    place
        .shell("mkdir -p src/shut dst/shut dst/gone; echo 1 > src/one; echo 2 > dst/shut/old; echo 3 > dst/gone/old; echo 4 > dst/old")
        .is_done();
    place.shell("chmod 0 src/shut; chmod -R a+rwX dst").is_done();
    let Some(told) = as_nobody(&place, "$T pump src/ dst --delete --max-delete 2") else {
        skipped("nobody else can reach this directory");
        return;
    };
    assert_eq!(told.status, Some(4), "{told:?}");
    assert!(told.err.contains("1 entry was not deleted, because 2 were"), "{told:?}");
    // Only its owner may set the attributes of a directory.
    assert!(told.err.contains("cannot set the permissions of") && told.err.contains("/dst: "), "{told:?}");
    assert!(
        told.err.contains("src/shut: Permission denied") && told.out.contains("deleted   2 entries\n"),
        "{told:?}"
    );
    let told = as_nobody(&place, "$T pump src/ dst --delete").unwrap();
    assert_eq!(told.status, Some(4), "{told:?}");
    assert_eq!(place.shell("cd dst; find . -type f | sort").out, "./one\n./shut/old\n");
    place.shell("chmod 755 src/shut").is_done();
    place.run(&["pump", "src/", "dst", "--delete", "-q"]).is_done();
    assert_eq!(place.shell("cd dst; find . -type f | sort").out, "./one\n");
    place.run(&["pump", "src/", "dst", "--max-delete", "5"]).is_refused(&["deletes"]);
    place.run(&["pump", "src/", "dst", "--filter", "x y"]).is_refused(&["'x y' is not a filter rule"]);
}

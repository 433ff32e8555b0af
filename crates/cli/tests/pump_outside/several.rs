//! Several sources that go into one directory, and a source and DEST of which one is inside the other.
//!
//! What went wrong: each source was a directory of its own, although they were written to one. So `--delete` deleted
//! what another source had just sent, and of two files of one name the last to arrive won.

use thalweg_api::PumpChange;
use thalweg_base::rng::Rng;

use super::files::receipt;
use super::support::{Place, skipped};

#[test]
fn what_another_source_has_is_not_deleted() {
    let place = Place::new();
    for (sources, kept) in [
        ("a/ b/", "./fa ./fb ./sub/one ./sub/two"),
        ("b/ a/", "./fa ./fb ./sub/one ./sub/two"),
        ("b/fb a/", "./fa ./fb ./sub/one"),
        ("a/ b/fb", "./fa ./fb ./sub/one"),
        ("a/ b", "./b/fb ./b/sub/two ./fa ./sub/one"),
        ("a/ b/sub", "./fa ./sub/one ./sub/two"),
    ] {
        place
            .shell(
                "rm -rf a b d; mkdir -p a/sub b/sub d/sub; echo 1 >a/fa; echo 2 >b/fb; echo 3 >a/sub/one
                 echo 4 >b/sub/two; echo 5 >d/old; echo 6 >d/sub/old",
            )
            .is_done();
        let args =
            [&["pump"][..], &sources.split(' ').collect::<Vec<_>>(), &["d", "--delete", "--json"]].concat();
        let told = receipt(place.run(&[&args[..], &["--dry-run"]].concat()).is_done());
        let doomed = told.items.iter().filter(|item| item.change == PumpChange::Deleted);
        let mut doomed: Vec<_> = doomed.map(|item| &*item.path).collect();
        doomed.sort_unstable();
        assert_eq!(doomed, ["old", "sub/old"], "{sources}");
        for _ in 0..2 {
            let told = receipt(place.run(&args).is_done());
            assert!(told.holds && told.skipped == 0, "{sources}: {told:?}");
            let files = place.shell("cd d; echo $(find . -type f | sort)").out;
            assert_eq!(files.trim(), kept, "{sources}");
        }
    }
    // What a missing source has is not known.
    place.shell("rm -rf b; echo 7 > d/more").is_done();
    let told = place.run(&["pump", "a/", "b/", "d", "--delete"]);
    assert_eq!(told.status, Some(4), "{told:?}");
    place.shell("[ -e d/more ] && [ -e d/sub/two ]").is_done();
}

/// Sources with few names, which some have in common, and what is at the destination.
fn planted(rng: &mut Rng) -> String {
    let mut line = String::from("rm -rf s0 s1 s2 dst; mkdir s0 s1 s2 dst; exec 2>/dev/null\n");
    for root in ["s0", "s1", "s2", "dst"] {
        for _ in 0..6 {
            let names = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "l", "s1", "s1/a"];
            let name = names[rng.below(names.len() as u64) as usize];
            let stamp = 1_000_000_000 + rng.below(5) * 1000;
            let path = format!("{root}/{name}");
            line += &match rng.below(4) {
                0 => format!("mkdir -p {path} && chmod 7{}5 {path}\n", rng.below(8)),
                1 => format!("mkdir -p $(dirname {path}); ln -s {stamp} {path}\n"),
                _ => format!("mkdir -p $(dirname {path}); echo {root} > {path}; touch -d @{stamp} {path}\n"),
            };
        }
        line += &format!("touch -d @{} $(find {root} -type d)\n", 1_000_000_000 + rng.below(9) * 1000);
    }
    // What is a directory in one and something else in the other is tested elsewhere.
    line += "for s in s0 s1 s2; do (cd $s; find . -type d) | while read f; do [ -d dst/$f ] || rm -f dst/$f; done\n";
    line += "(cd $s; find . ! -type d) | while read f; do [ -d dst/$f ] && rm -r dst/$f; done; done\n";
    line += "for f in $(find dst -mindepth 1 -type d); do p=${f#dst/}; for s in s0 s1 s2; do\n";
    line += "[ -e $s/$p -o -L $s/$p ] && [ ! -d $s/$p ] && rm -rf $f; done; done; true";
    line
}

#[test]
fn sources_that_meet_are_copied_as_by_rsync() {
    let place = Place::new();
    if place.shell("rsync --version").status != Some(0) {
        return skipped("there is no rsync");
    }
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        place.shell(&planted(&mut rng)).is_done();
        let mut sources: Vec<&str> = Vec::new();
        let file = place.shell("find s2 -type f | head -1").out;
        for _ in 0..2 + rng.below(2) {
            sources.push(["s0/", "s1/", "s2/", "s1", file.trim()][rng.below(5) as usize]);
        }
        sources.retain(|source| !source.is_empty());
        sources.sort_unstable_by_key(|source| (source.len() * 7 + seed as usize) % 5);
        sources.dedup();
        // What cannot go where a file or directory is, is refused beforehand.
        place.shell(&format!("rm -rf dst/s1 dst/$(basename {} none)", file.trim())).is_done();
        if !sources.iter().any(|source| source.ends_with('/')) {
            sources.push("s0/");
        }
        let (sources, delete) = (sources.join(" "), if rng.below(3) == 0 { "" } else { "--delete" });
        let exclude = ["", "--exclude b", "--exclude /d/e"][rng.below(3) as usize];
        let of = format!("seed {seed}: {sources} {delete} {exclude}");
        place.shell("rm -rf ours theirs; cp -a dst ours; cp -a dst theirs").is_done();
        place.shell(&format!("rsync -aI --modify-window=-1 {delete} {exclude} {sources} theirs")).is_done();
        let told = place.shell(&format!("$T pump {sources} ours --json {delete} {exclude}"));
        assert!(told.status == Some(0) && receipt(&told.out).holds, "{of}: {told:?}");
        // As to the directory itself, rsync takes the first of "." in another order.
        let list = |dir: &str| {
            place.shell(&format!("cd {dir}; find . -mindepth 1 -printf '%P %y %T@ %m %l\\n' | sort")).out
        };
        assert_eq!(list("ours"), list("theirs"), "{of}");
        place.shell("diff -r --no-dereference ours theirs").is_done();
    }
}

#[test]
fn of_two_files_of_one_name_the_first_source_is_copied_and_the_other_named() {
    let place = Place::new();
    place
        .shell(
            "mkdir -p a/sub b/sub d; head -c 9000000 /dev/urandom > a/same; head -c 9000000 /dev/urandom > b/same
             echo 1 > a/sub/small; echo 2 > b/sub/small; echo 3 > b/sub/own",
        )
        .is_done();
    for _ in 0..5 {
        let told = place.run(&["pump", "a/", "b/", "d", "--streams", "4"]);
        assert_eq!(told.status, Some(0), "{told:?}");
        for name in ["b/same", "b/sub/small"] {
            let line = format!("{name} is not copied: another source has that name");
            assert_eq!(told.err.lines().filter(|l| l.contains(&line)).count(), 1, "{told:?}");
        }
        place.shell("cmp a/same d/same && cmp a/sub/small d/sub/small && cmp b/sub/own d/sub/own").is_done();
    }
    let told = receipt(&place.run(&["pump", "b/", "a/", "d", "--json", "--streams", "3"]).out);
    assert_eq!((told.files, told.skipped, told.directories, told.holds), (3, 2, 2, true), "{told:?}");
    place.shell("cmp b/same d/same && cmp b/sub/small d/sub/small").is_done();
}

#[test]
fn a_source_in_dest_is_not_deleted() {
    let place = Place::new();
    place
        .shell("mkdir -p par/sub/deep other; echo k > par/sub/k; echo other > par/o; echo 1 > other/x")
        .is_done();
    for args in ["par/sub/ par", "par/sub/deep/ par", "other/ par/sub/k par", "par/sub/ other/ par"] {
        let args: Vec<_> = args.split(' ').collect();
        let told = place.run(&[&["pump"], &args[..], &["--delete"]].concat());
        told.is_refused(&["par/sub", "--delete would delete it"]);
        place.shell("[ -e par/sub/k -a -e par/o -a -e par/sub/deep ]").is_done();
    }
    // What is protected stays.
    place.run(&["pump", "par/sub/", "par", "--delete", "--exclude", "/sub", "-q"]).is_done();
    place.shell("[ -e par/sub/k -a -e par/k -a ! -e par/o ]").is_done();
}

#[test]
fn dest_may_be_in_a_part_of_the_source_that_is_not_copied() {
    let place = Place::new();
    place.shell("mkdir -p src/sub; echo 1 > src/one; echo 2 > src/sub/two; ln src/one src/too").is_done();
    for (line, dest) in [
        ("cd src; $T pump . ./bk --exclude /bk", "src/bk"),
        ("cd src; $T pump . ./bk --exclude /bk", "src/bk"),
        ("cd src; $T pump ../src bk --exclude /src/bk/", "src/bk/src"),
        ("cd src/sub; $T pump .. ../sub/new --exclude new --exclude bk", "src/sub/new"),
    ] {
        let told = place.shell(line);
        assert!(told.status == Some(0) && told.err.is_empty(), "{line}: {told:?}");
        place.shell(&format!("cmp src/one {dest}/one && cmp src/sub/two {dest}/sub/two")).is_done();
        place.shell("! find . -name '.*thalweg*' | grep .").is_done();
    }
    place.shell("printf 'sub/two\\n' > list; rm -rf src/bk src/sub/new").is_done();
    place.run(&["pump", "src", "src/bk", "--files-from", "list", "-q"]).is_done();
    assert_eq!(place.shell("cd src/bk; find . -type f").out, "./sub/two\n");
    place.run(&["pump", "src", "src/sub/r", "--files-from", "list", "-q"]).is_done();
    place.write("list", b"sub\n");
    place.run(&["pump", "src", "src/sub/q", "--files-from", "list"]).is_refused(&["lies in", "exclude it"]);
    place.run(&["pump", "src", "src/q", "--exclude", "r"]).is_refused(&["lies in", "exclude it"]);
}

//! Hard links, where DEST has some of the files already: compared with the real rsync, and with what a copy promises.
//!
//! What went wrong: the first name of a file was chosen before it was known whether DEST keeps what it has under that
//! name. So the other names became names of what was kept, or the newer file was overwritten.

use thalweg_base::rng::Rng;

use super::files::receipt;
use super::named::{files, groups, planted};
use super::support::{Place, skipped};

/// What `--update` makes of `u`: what is newer there stays, even as a further name, which rsync would replace.
fn updated(place: &Place) -> String {
    let (source, dest) = (files(place, "s"), files(place, "u"));
    let mut all: Vec<_> = dest
        .iter()
        .filter(|there| {
            source.iter().find(|file| file.0 == there.0).is_none_or(|file| there.2[..10] > file.2[..10])
        })
        .map(|(path, inode, is)| (path.clone(), format!("u{inode}"), is.clone()))
        .collect();
    let copied: Vec<_> =
        source.into_iter().filter(|file| all.iter().all(|there| there.0 != file.0)).collect();
    all.extend(copied);
    all.sort();
    groups(all)
}

#[test]
fn what_is_newer_stays_and_its_other_names_get_the_file() {
    let place = Place::new();
    for (newer, expected) in [("a", "precious new"), ("b", "new precious")] {
        place
            .shell(&format!(
                "rm -rf s u; mkdir s u; echo new > s/a; ln s/a s/b; echo precious > u/{newer}
                 touch -d 2040-01-01 u/{newer}"
            ))
            .is_done();
        let told = receipt(place.run(&["pump", "--update", "s/", "u", "--json"]).is_done());
        assert!(told.holds && told.skipped == 1, "{newer}: {told:?}");
        assert_eq!(place.shell("echo $(cat u/a u/b)").out.trim(), expected, "{newer}");
    }
}

#[test]
fn names_of_files_are_those_of_rsync() {
    let place = Place::new();
    if place.shell("rsync --version").status != Some(0) {
        return skipped("there is no rsync");
    }
    for seed in 0..12 {
        place.shell(&planted(&mut Rng::new(seed))).is_done();
        for (ours, theirs) in [("", "-I"), ("--existing", "-I --existing"), ("--delete", "-I --delete")] {
            place.shell("rm -rf ours theirs; cp -a u ours; cp -a u theirs").is_done();
            place.shell(&format!("rsync -aH --modify-window=-1 {theirs} s/ theirs")).is_done();
            let told = receipt(place.shell(&format!("$T pump s/ ours --json {ours}")).is_done());
            assert!(told.holds, "seed {seed} {ours}: {told:?}");
            assert_eq!(groups(files(&place, "ours")), groups(files(&place, "theirs")), "seed {seed} {ours}");
        }
        place.shell("rm -rf ours; cp -a u ours").is_done();
        let told = receipt(place.shell("$T pump s/ ours --json --update").is_done());
        assert!(told.holds, "seed {seed}: {told:?}");
        assert_eq!(groups(files(&place, "ours")), updated(&place), "seed {seed}");
        // Files that are skipped because they are there get further names as those that are copied.
        for how in ["--compare content", "--compare time", "--resume"] {
            place.shell("rm -rf ours; cp -a u ours").is_done();
            for _ in 0..2 {
                let told = receipt(place.shell(&format!("$T pump s/ ours --delete --json {how}")).is_done());
                assert!(told.holds, "seed {seed} {how}: {told:?}");
                place.shell("diff -r s ours").is_done();
                let list =
                    |dir: &str| place.shell(&format!("cd {dir}; find . -printf '%P %T@ %m\\n' | sort")).out;
                assert_eq!(list("ours"), list("s"), "seed {seed} {how}");
                // Names of one file at the source are names of one file.
                let apart = place.shell(
                    "cd s; for a in * d/*; do for b in * d/*; do
                            [ $a -ef $b ] && ! [ ../ours/$a -ef ../ours/$b ] && echo $a $b; done; done",
                );
                assert_eq!(apart.out, "", "seed {seed} {how}");
            }
        }
    }
}

#[test]
fn attributes_of_what_is_there_are_set_and_only_its_own() {
    let place = Place::new();
    for how in ["--compare content", "--compare time", "--resume"] {
        place.shell("rm -rf m m2; mkdir m; echo 1 > m/f; chmod 644 m/f; cp -a m m2; chmod 600 m/f").is_done();
        let told = receipt(place.shell(&format!("$T pump m/ m2 --json {how} --dry-run")).is_done());
        assert_eq!(told.items.len(), 1, "{how}: {told:?}");
        let inode = place.shell("stat -c %i m2/f").out;
        let told = receipt(place.shell(&format!("$T pump m/ m2 --json {how}")).is_done());
        assert_eq!((told.files, told.resumed_files), (0, 1), "{how}: {told:?}");
        assert_eq!(place.shell("stat -c %a m2/f; stat -c %i m2/f").out, format!("600\n{inode}"), "{how}");
        // A name that the source does not have is that of another file, and so are those that it has apart.
        place
            .shell(
                "rm -rf h hd; mkdir h hd; echo 1 > h/a; cp -p h/a hd/b; ln hd/b hd/a; ln hd/b hd/kept
                 cp -p h/a h/b; chmod 600 h/a; chmod 640 h/b; chmod 644 hd/b",
            )
            .is_done();
        for _ in 0..2 {
            let told = receipt(place.shell(&format!("$T pump h/ hd --json {how}")).is_done());
            assert!(told.holds, "{how}: {told:?}");
            assert_eq!(
                place.shell("cd hd; stat -c '%n %a %h' *").out,
                "a 600 1\nb 640 1\nkept 644 1\n",
                "{how}"
            );
        }
    }
}

//! Damage that a second copy mends, and stores that are added and replaced.

use std::fs;
use std::path::{Path, PathBuf};

use thalweg_volume::{self as volume, Registry};

use crate::places::{Place, fill, no, policy, strips};

fn problems(registry: &Registry) -> Vec<String> {
    volume::check(&volume::open(registry, "v").unwrap()).unwrap().problems
}

fn repaired(registry: &Registry) -> Vec<String> {
    volume::repair(registry, "v").unwrap()
}

fn content(registry: &Registry) -> Result<Vec<u8>, String> {
    let open = volume::open(registry, "v").unwrap();
    let file = open.volume.open(Path::new("d/f")).map_err(|e| e.to_string())?;
    let mut found = vec![0; file.size() as usize];
    file.read_at(0, &mut found).map_err(|e| e.to_string())?;
    Ok(found)
}

fn damage(strip: &Path, at: usize) {
    let mut bytes = fs::read(strip).unwrap();
    bytes[at] ^= 1;
    fs::write(strip, bytes).unwrap();
}

#[test]
fn damage_and_absence_are_mended_from_the_other_copy() {
    let (_place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(2)).unwrap();
    fill(&registry);
    assert_eq!(repaired(&registry), [""; 0]);
    // Both copies of a strip are damaged, each in another block, and one in its last, which its end cuts.
    let (one, two) = (strips(&dirs[0])[0].clone(), strips(&dirs[1])[0].clone());
    let len = fs::metadata(&one).unwrap().len() as usize;
    let same = |of: &Path| {
        strips(&dirs[1]).into_iter().find(|path| {
            path.file_name().unwrap().to_str().unwrap()[..19]
                == of.file_name().unwrap().to_str().unwrap()[..19]
        })
    };
    damage(&one, 1);
    damage(&same(&one).unwrap(), len - 1);
    assert_eq!(problems(&registry).len(), 2);
    assert_eq!(repaired(&registry).len(), 2);
    assert_eq!(problems(&registry), [""; 0]);
    // One file of a strip is gone, or both, and something is there that no file has.
    for ends in [&["strip"][..], &["sums"], &["strip", "sums"]] {
        ends.iter().for_each(|end| fs::remove_file(two.with_extension(end)).unwrap());
        fs::copy(&one, one.with_file_name("00000000000003e7-00-0.strip")).unwrap();
        assert_eq!(problems(&registry).len(), 2, "{ends:?}");
        let done = repaired(&registry);
        assert!(
            done.len() == 2 && done[0].contains("made anew") && done[1].contains("inode 999"),
            "{done:?}"
        );
        assert_eq!(problems(&registry), [""; 0], "{ends:?}");
    }
    assert_eq!(content(&registry).unwrap(), [7; 30_000]);
}

#[test]
fn a_copy_that_missed_writes_is_made_anew() {
    let (place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(2)).unwrap();
    fill(&registry);
    let (store, away) = (dirs[1].join("v.thalweg-store"), place.0.join("away"));
    fs::rename(&store, &away).unwrap();
    let open = volume::open(&registry, "v").unwrap();
    open.volume.open(Path::new("d/f")).unwrap().write_at(0, &[5; 30_000]).unwrap();
    drop(open);
    fs::rename(&away, &store).unwrap();
    assert!(problems(&registry)[0].contains("missed a write"));
    repaired(&registry);
    assert_eq!(problems(&registry), [""; 0]);
    // The first store alone does not have to answer any more.
    fs::rename(dirs[0].join("v.thalweg-store"), &away).unwrap();
    assert_eq!(content(&registry).unwrap(), [5; 30_000]);
}

#[test]
fn a_store_is_replaced_from_what_it_has_or_from_copies() {
    for (copies, is_gone) in [(1, false), (2, false), (2, true), (1, true)] {
        let (place, registry, mut dirs) = Place::new(4);
        let new = dirs.pop().unwrap();
        volume::create(&registry, "v", &dirs, None, &policy(copies)).unwrap();
        fill(&registry);
        let old = dirs[1].clone();
        if is_gone {
            fs::remove_dir_all(&old).unwrap();
        }
        no(volume::replace(&registry, "v", &place.0.join("none"), &new), "is no store of volume v");
        let lost = volume::replace(&registry, "v", &old, &new).unwrap();
        assert_eq!(lost.is_empty(), copies == 2 || !is_gone, "{lost:?}");
        repaired(&registry);
        let stores = registry.find("v").unwrap().stores;
        assert_eq!(PathBuf::from(&stores[1]), new.join("v.thalweg-store"));
        match content(&registry) {
            Ok(found) => assert_eq!((found, problems(&registry).len()), (vec![7; 30_000], 0)),
            Err(why) => assert!(lost[0].contains("/d/f") && why.contains("not at its store"), "{why}"),
        }
        assert!(is_gone || !old.join("v.thalweg-store").exists());
        assert_eq!(volume::destroy(&registry, "v", false).unwrap().left, [""; 0]);
    }
}

/// A panic in the middle leaves what a killed process leaves.
#[test]
fn a_replacement_that_was_killed_is_begun_anew_or_removed() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let of = |dir: &Path| dir.join("v.thalweg-store");
    for (goes_on, copies) in [("there", 1), ("there", 2), ("elsewhere", 2), ("ends", 1)] {
        let (place, registry, mut dirs) = Place::new(4);
        let new = dirs.pop().unwrap();
        volume::create(&registry, "v", &dirs, None, &policy(copies)).unwrap();
        fill(&registry);
        let replace = |to: &Path, is_stopped: &dyn Fn() -> bool| {
            volume::replace_unless(&registry, "v", (&dirs[1], to), is_stopped)
        };
        let asked = std::cell::Cell::new(0);
        let killed = || {
            asked.set(asked.get() + 1);
            assert!(asked.get() < 2, "it is killed now");
            false
        };
        assert!(catch_unwind(AssertUnwindSafe(|| replace(&new, &killed))).is_err());
        assert!(of(&new).exists() && of(&dirs[1]).exists());
        assert_eq!(content(&registry).unwrap(), [7; 30_000], "the old store is still used");
        match goes_on {
            "there" => assert_eq!(replace(&new, &|| false).unwrap(), [""; 0]),
            "elsewhere" => {
                let other = place.0.join("other");
                fs::create_dir(&other).unwrap();
                assert_eq!(replace(&other, &|| false).unwrap(), [""; 0]);
                assert!(!of(&new).exists());
            }
            _ => {}
        }
        assert_eq!(problems(&registry), [""; 0]);
        assert!(
            volume::open(&registry, "v").unwrap().volume.attributes(Path::new("/")).unwrap().is_empty()
                || goes_on == "ends"
        );
        assert_eq!(volume::destroy(&registry, "v", false).unwrap().left, [""; 0]);
        assert!(!of(&new).exists(), "{goes_on}");
    }
}

#[test]
fn a_replacement_that_is_stopped_leaves_everything_as_it_was() {
    let (_place, registry, mut dirs) = Place::new(4);
    let new = dirs.pop().unwrap();
    volume::create(&registry, "v", &dirs, None, &policy(2)).unwrap();
    fill(&registry);
    for most in [0, 1, 3] {
        let asked = std::cell::Cell::new(0);
        let is_stopped = || asked.replace(asked.get() + 1) == most;
        no(volume::replace_unless(&registry, "v", (&dirs[1], &new), &is_stopped), "stopped");
        assert_eq!(fs::read_dir(&new).unwrap().count(), 0);
        assert_eq!((content(&registry).unwrap(), problems(&registry)), (vec![7; 30_000], vec![]));
    }
    // A directory of something else is not removed.
    fs::create_dir(new.join("v.thalweg-store")).unwrap();
    fs::write(new.join("v.thalweg-store/own"), "x").unwrap();
    no(volume::replace(&registry, "v", &dirs[1], &new), "exists");
    no(volume::replace(&registry, "v", &dirs[1], &new), "exists");
    assert_eq!(fs::read_to_string(new.join("v.thalweg-store/own")).unwrap(), "x");
}

#[test]
fn the_manager_moves_with_the_store_that_it_lies_beside() {
    let (_place, registry, mut dirs) = Place::new(3);
    let new = dirs.pop().unwrap();
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fill(&registry);
    assert_eq!(volume::replace(&registry, "v", &dirs[0], &new).unwrap(), Vec::<String>::new());
    assert_eq!(PathBuf::from(registry.find("v").unwrap().manager), new.join("v.thalweg-manager"));
    assert_eq!(fs::read_dir(&dirs[0]).unwrap().count(), 0, "nothing is left on the old disk");
    fs::remove_dir(&dirs[0]).unwrap();
    assert_eq!(content(&registry).unwrap(), [7; 30_000]);
    assert_eq!(problems(&registry), [""; 0]);
    // One beside another store stays.
    fs::create_dir(&dirs[0]).unwrap();
    volume::replace(&registry, "v", &dirs[1], &dirs[0]).unwrap();
    assert_eq!(PathBuf::from(registry.find("v").unwrap().manager), new.join("v.thalweg-manager"));
}

#[test]
fn a_store_that_is_added_gets_part_of_new_files() {
    let (_place, registry, mut dirs) = Place::new(3);
    let new = dirs.pop().unwrap();
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fill(&registry);
    volume::add_store(&registry, "v", &new).unwrap();
    no(volume::add_store(&registry, "v", &new), "File exists");
    assert_eq!(content(&registry).unwrap(), [7; 30_000]);
    let open = volume::open(&registry, "v").unwrap();
    let file = open.volume.create(Path::new("g"), 0o644, true).unwrap();
    file.write_at(0, &[1; 30_000]).unwrap();
    file.sync().unwrap();
    assert_eq!((file.layout().width, strips(&new).len()), (3, 1));
    drop((file, open));
    assert_eq!(problems(&registry), [""; 0]);
}

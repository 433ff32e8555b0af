//! A store that was restored from a backup. It had every checksum right and the data of the day before, and a volume
//! read that without an error. A store that lacks what the manager has seen is lost, until the newer one is back or
//! `replace` has made another.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use thalweg_volume::{self as volume, OpenVolume, Registry};

use crate::bed::copy;
use crate::places::{Place, fill, no, policy};

fn open(registry: &Registry) -> OpenVolume {
    volume::open(registry, "v").unwrap()
}

fn write(open: &OpenVolume, byte: u8) {
    let file = open.volume.open(Path::new("d/f")).unwrap();
    file.write_at(0, &[byte; 30_000]).unwrap();
    file.sync().unwrap();
}

fn read(registry: &Registry) -> volume::Result<Vec<u8>> {
    let mut found = vec![0; 30_000];
    open(registry).volume.open(Path::new("d/f"))?.read_at(0, &mut found)?;
    Ok(found)
}

/// Puts a copy in the place of a store.
fn restore(backup: &Path, store: &Path) {
    fs::remove_dir_all(store).unwrap();
    copy(backup, store);
    fs::set_permissions(store, fs::Permissions::from_mode(0o700)).unwrap();
}

fn lost(registry: &Registry) -> Vec<Option<String>> {
    volume::status(&open(registry)).unwrap().stores.into_iter().map(|store| store.lost).collect()
}

#[test]
fn a_store_that_was_restored_from_a_backup_is_lost_and_can_be_replaced() {
    // The backup is made between two runs, or while the volume is in use.
    for (copies, is_in_use) in [(1, false), (2, false), (1, true), (2, true)] {
        let (place, registry, mut dirs) = Place::new(4);
        let new = dirs.pop().unwrap();
        volume::create(&registry, "v", &dirs, None, &policy(copies)).unwrap();
        fill(&registry);
        let (store, backup, newer) = (dirs[1].join("v.thalweg-store"), place.0.join("b"), place.0.join("n"));
        let used = is_in_use.then(|| open(&registry));
        used.iter().for_each(|used| write(used, 8));
        copy(&store, &backup);
        write(used.as_ref().unwrap_or(&open(&registry)), 9);
        drop(used);
        copy(&store, &newer);
        assert_eq!(lost(&registry), [None, None, None]);
        restore(&backup, &store);
        let why = lost(&registry)[1].clone().unwrap();
        assert!(why.contains("is older than the volume (run "), "{why}");
        match copies {
            1 => no(read(&registry), "as after a restore from a backup"),
            _ => assert_eq!(read(&registry).unwrap(), [9; 30_000]),
        }
        let salvaged = volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
        assert!(salvaged.problems[0].contains("may be old"), "{:?}", salvaged.problems);
        let saved = fs::read(place.0.join("saved/d/f")).unwrap();
        assert!(copies == 1 || saved == [9; 30_000], "what the other store has is newer");
        if copies == 1 {
            // Its old bytes can still be saved, but it is never taken for the newer store again.
            let lost_files = volume::replace(&registry, "v", &dirs[1], &new).unwrap();
            assert!(lost_files.last().unwrap().contains("is not removed"), "{lost_files:?}");
            let replaced = new.join("v.thalweg-store");
            restore(&backup, &replaced);
            assert!(lost(&registry)[1].clone().unwrap().contains("is older"));
            restore(&newer, &replaced);
            assert!(lost(&registry)[1].clone().unwrap().contains("is older"), "it was replaced");
            continue;
        }
        if is_in_use {
            restore(&newer, &store);
            assert_eq!((lost(&registry), read(&registry).unwrap()), (vec![None; 3], vec![9; 30_000]));
            continue;
        }
        // What it missed while it was lost is no reason to believe it later.
        write(&open(&registry), 10);
        assert!(lost(&registry)[1].is_some());
        assert_eq!(volume::replace(&registry, "v", &dirs[1], &new).unwrap(), [""; 0]);
        volume::repair(&registry, "v").unwrap();
        assert_eq!(volume::check(&open(&registry)).unwrap().problems, [""; 0]);
        assert_eq!((lost(&registry), read(&registry).unwrap()), (vec![None; 3], vec![10; 30_000]));
    }
}

/// The numbers must not make a store look old that is not.
#[test]
fn a_store_that_was_away_or_all_of_an_older_volume_is_not_taken_for_a_backup() {
    let (place, registry, dirs) = Place::new(3);
    volume::create(&registry, "v", &dirs, None, &policy(2)).unwrap();
    fill(&registry);
    let all = dirs.iter().map(|dir| dir.join("v.thalweg-store")).chain([dirs[0].join("v.thalweg-manager")]);
    let all: Vec<_> = all.enumerate().map(|(n, dir)| (place.0.join(format!("b{n}")), dir)).collect();
    let _ = fs::remove_file(dirs[0].join("v.thalweg-manager/socket"));
    all.iter().for_each(|(backup, dir)| copy(dir, backup));
    let away = place.0.join("away");
    fs::rename(&all[1].1, &away).unwrap();
    (1..4).for_each(|byte| write(&open(&registry), byte));
    fs::rename(&away, &all[1].1).unwrap();
    assert_eq!(lost(&registry), [None, None, None]);
    // A backup from before there were numbers has none, and is one all the same.
    fs::remove_file(all[2].1.join("run")).unwrap();
    assert!(lost(&registry)[2].is_some());
    // Of manager and stores together it is no matter how old they are.
    all.iter().for_each(|(backup, dir)| restore(backup, dir));
    assert_eq!((lost(&registry), read(&registry).unwrap()), (vec![None; 3], vec![7; 30_000]));
    // A volume of an earlier version has no numbers yet; what only reads makes none.
    let run = |n: usize| fs::read_to_string(all[n].1.join("run")).unwrap();
    let before = run(0);
    read(&registry).unwrap();
    assert_eq!(run(0), before);
    write(&open(&registry), 5);
    assert!(run(0) != before && run(0) == run(1), "{before} {}", run(0));
}

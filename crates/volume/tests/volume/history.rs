//! Managers that were restored from a backup or copied. Such a manager gave the numbers of files that it did not know
//! to new files, whose holes then had the bytes of the others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thalweg_volume::{self as volume, Registry};

use crate::bed::copy;
use crate::places::{Place, no, policy};

const SECRET: &[u8] = b"SECRET";

/// A volume with a manager of its own, and the directory of that.
fn with_manager(stores: usize, copies: u32) -> (Place, Registry, Vec<PathBuf>, PathBuf) {
    let (place, registry, mut dirs) = Place::new(stores + 1);
    let meta = dirs.pop().unwrap();
    volume::create(&registry, "v", &dirs, Some(&meta), &policy(copies)).unwrap();
    (place, registry, dirs, meta.join("v.thalweg-manager"))
}

/// Copies the directory of a manager, as a backup does.
fn back_up(meta: &Path, to: &Path) {
    let _ = fs::remove_file(meta.join("socket"));
    copy(meta, to);
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
}

fn restore(backup: &Path, meta: &Path) {
    fs::remove_dir_all(meta).unwrap();
    back_up(backup, meta);
}

fn write(registry: &Registry, name: &str, bytes: &[u8], at: u64) {
    let open = volume::open(registry, "v").unwrap();
    let file = open.volume.create(Path::new(name), 0o644, false).unwrap();
    file.write_at(at, bytes).unwrap();
    file.sync().unwrap();
}

fn read(registry: &Registry, name: &str) -> Vec<u8> {
    let open = volume::open(registry, "v").unwrap();
    let file = open.volume.open(Path::new(name)).unwrap();
    let mut found = vec![0; file.size() as usize];
    file.read_at(0, &mut found).unwrap();
    found
}

/// Makes files with one byte behind a hole, and looks for another file's bytes in the holes.
fn has_no_secret(registry: &Registry) {
    for n in 0..4 {
        let name = format!("new{n}");
        write(registry, &name, b"x", 9000);
        let found = read(registry, &name);
        assert!(found[..9000].iter().all(|byte| *byte == 0), "{name} has another file's bytes");
    }
}

#[test]
fn a_manager_restored_from_a_backup_is_refused_until_it_is_adopted() {
    for (stores, copies) in [(1, 1), (3, 2)] {
        let (place, registry, _dirs, meta) = with_manager(stores, copies);
        let backup = place.0.join("backup");
        back_up(&meta, &backup);
        for name in ["a", "b"] {
            write(&registry, name, &SECRET.repeat(3000), 0);
        }
        restore(&backup, &meta);
        for _ in 0..2 {
            no(volume::open(&registry, "v"), "know a later history (incarnation 2, of the manager in ");
            no(volume::open(&registry, "v"), "thalweg volume manager adopt v");
        }
        no(volume::add_store(&registry, "v", &place.0), "know a later history");
        volume::adopt(&registry, "v").unwrap();
        has_no_secret(&registry);
        // What the manager does not know is nobody's, and can be removed.
        let problems = volume::check(&volume::open(&registry, "v").unwrap()).unwrap().problems;
        assert!(problems.iter().all(|why| why.contains("which no name leads to")), "{problems:?}");
        assert!(!problems.is_empty());
        volume::repair(&registry, "v").unwrap();
        assert_eq!(volume::check(&volume::open(&registry, "v").unwrap()).unwrap().problems, [""; 0]);
        // The newer one is now the one that is refused.
        assert_eq!(read(&registry, "new0").len(), 9001);
    }
}

#[test]
fn what_was_cut_since_the_backup_is_an_error_and_can_be_salvaged() {
    let (place, registry, _dirs, meta) = with_manager(2, 1);
    write(&registry, "a", &[7; 9000], 0);
    write(&registry, "b", &[8; 9000], 0);
    let backup = place.0.join("backup");
    back_up(&meta, &backup);
    let open = volume::open(&registry, "v").unwrap();
    open.volume.open(Path::new("a")).unwrap().set_size(100).unwrap();
    drop(open);
    restore(&backup, &meta);
    volume::adopt(&registry, "v").unwrap();
    assert_eq!(read(&registry, "b"), [8; 9000]);
    let open = volume::open(&registry, "v").unwrap();
    assert!(open.volume.open(Path::new("a")).unwrap().read_at(0, &mut [0; 9000]).is_err());
    assert_eq!(volume::check(&open).unwrap().problems.len(), 2, "one for each strip");
    drop(open);
    volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
    assert_eq!(fs::read(place.0.join("saved/a")).unwrap()[..100], [7; 100]);
}

/// A copy that was made while the manager was in use, and put back after that was killed, has the same history as the
/// stores; but no number of a file is used twice.
#[test]
fn a_backup_from_the_middle_of_a_run_makes_no_file_with_the_number_of_another() {
    let (place, registry, _dirs, meta) = with_manager(2, 1);
    let backup = place.0.join("backup");
    let open = volume::open(&registry, "v").unwrap();
    let file = open.volume.create(Path::new("a"), 0o644, true).unwrap();
    file.write_at(0, b"before").unwrap();
    open.volume.sync().unwrap();
    copy_in_use(&meta, &backup);
    for n in 0..4 {
        let file = open.volume.create(Path::new(&format!("b{n}")), 0o644, true).unwrap();
        file.write_at(0, &SECRET.repeat(3000)).unwrap();
        file.sync().unwrap();
    }
    drop((file, open));
    restore(&backup, &meta);
    assert_eq!(read(&registry, "a"), b"before");
    has_no_secret(&registry);
    // That was a change, so a second restore is noticed.
    restore(&backup, &meta);
    no(volume::open(&registry, "v"), "know a later history");
}

/// Copies files that are in use.
fn copy_in_use(meta: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(meta).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Names the manager in this directory as that of the volume, in a registry of its own.
fn registry_of(registry: &Registry, meta: &Path, settings: &Path) -> Registry {
    let mut list = registry.list().unwrap();
    list.volumes[0].manager = meta.to_str().unwrap().into();
    fs::create_dir_all(settings).unwrap();
    let file = settings.join("volumes.json");
    fs::write(&file, thalweg_api::to_json(&list)).unwrap();
    Registry::at(file)
}

#[test]
fn of_two_copies_of_a_manager_one_changes_the_volume() {
    // The copy is made of a manager that was never used, or was.
    for is_used in [false, true] {
        let (place, registry, _dirs, meta) = with_manager(2, 2);
        if is_used {
            write(&registry, "a", b"before", 0);
        }
        let other = place.0.join("other/v.thalweg-manager");
        fs::create_dir(place.0.join("other")).unwrap();
        back_up(&meta, &other);
        let copied = registry_of(&registry, &other, &place.0.join("more"));
        if is_used {
            // Wherever it is not known, it is started first.
            no(volume::open(&copied, "v"), "is a copy of that in ");
        }
        let open = volume::open(&registry, "v").unwrap();
        let file = open.volume.create(Path::new("b"), 0o644, true).unwrap();
        file.write_at(0, &SECRET.repeat(3000)).unwrap();
        no(volume::open(&copied, "v"), "thalweg volume manager adopt v");
        no(volume::adopt(&copied, "v"), "is served by its manager in");
        file.write_at(0, b"after").unwrap();
        file.sync().unwrap();
        drop((file, open));
        assert_eq!(&read(&registry, "b")[..6], b"afterT");
        // The first one has ended, so the copy may take its place, by itself never.
        no(volume::open(&copied, "v"), "thalweg volume manager adopt v");
        volume::adopt(&copied, "v").unwrap();
        has_no_secret(&copied);
        no(volume::open(&registry, "v"), "know a later history");
        no(volume::adopt(&copied, "w"), "no volume 'w'");
    }
}

/// Of two stores, the second alone is no majority.
#[test]
fn a_store_that_is_gone_is_replaced_although_the_others_are_no_majority() {
    for copies in [1, 2] {
        let (place, registry, dirs, _meta) = with_manager(2, copies);
        write(&registry, "a", &SECRET.repeat(3000), 0);
        fs::remove_dir_all(dirs[0].join("v.thalweg-store")).unwrap();
        let open = volume::open(&registry, "v").unwrap();
        assert_eq!(open.volume.create(Path::new("b"), 0o644, true).err().unwrap().errno(), 30);
        drop(open);
        let new = place.0.join("new");
        fs::create_dir(&new).unwrap();
        let lost = volume::replace(&registry, "v", &dirs[0], &new).unwrap();
        assert_eq!(lost.len(), usize::from(copies == 1), "{lost:?}");
        write(&registry, "b", b"all are there", 0);
        if copies == 2 {
            volume::repair(&registry, "v").unwrap();
            assert_eq!(volume::check(&volume::open(&registry, "v").unwrap()).unwrap().problems, [""; 0]);
            assert_eq!(read(&registry, "a"), SECRET.repeat(3000));
        }
    }
}

#[test]
fn without_a_majority_of_stores_a_volume_can_be_read_and_is_changed_only_if_adopted() {
    let (place, registry, dirs, _meta) = with_manager(3, 2);
    write(&registry, "a", &SECRET.repeat(3000), 0);
    let store = |n: usize| dirs[n].join("v.thalweg-store");
    let away = |n: usize| place.0.join(format!("away{n}"));
    fs::rename(store(2), away(2)).unwrap();
    write(&registry, "a", b"one store is lost", 0);
    fs::rename(store(0), away(0)).unwrap();
    let open = volume::open(&registry, "v").unwrap();
    let why = open.volume.create(Path::new("b"), 0o644, true).err().unwrap();
    assert!(why.errno() == 30 && why.to_string().contains("as 1 of its 3 stores answer"), "{why}");
    assert_eq!(open.volume.list(Path::new("/")).unwrap().len(), 1);
    drop(open);
    volume::adopt(&registry, "v").unwrap();
    write(&registry, "b", b"", 0);
    // Those that were away are of the same history.
    (0..3).step_by(2).for_each(|n| fs::rename(away(n), store(n)).unwrap());
    write(&registry, "c", b"all are back", 0);
    volume::repair(&registry, "v").unwrap();
    assert_eq!(volume::check(&volume::open(&registry, "v").unwrap()).unwrap().problems, [""; 0]);
    assert_eq!(&read(&registry, "a")[..17], b"one store is lost");
}

//! Volumes in real directories: made, opened by one at a time, checked, salvaged, destroyed.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_volume::{self as volume, Policy, Registry};

pub(crate) struct Place(pub(crate) PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Place {
    /// A directory with so many more in it, and a registry.
    pub(crate) fn new(stores: usize) -> (Place, Registry, Vec<PathBuf>) {
        static PLACES: AtomicU64 = AtomicU64::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("thalweg-places-{}-{number}", std::process::id()));
        let dirs: Vec<PathBuf> = (0..stores).map(|store| place.join(format!("d{store}"))).collect();
        dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let registry = Registry::at(place.join("settings/volumes.json"));
        (Place(place), registry, dirs)
    }
}

pub(crate) fn policy(copies: u32) -> Policy {
    Policy { stripe_bytes: 4096, copies, ..Policy::default() }
}

pub(crate) fn fill(registry: &Registry) {
    let open = volume::open(registry, "v").unwrap();
    open.volume.make_directory(Path::new("d"), 0o755).unwrap();
    let file = open.volume.create(Path::new("d/f"), 0o644, true).unwrap();
    file.write_at(0, &[7; 30_000]).unwrap();
    file.sync().unwrap();
    open.volume.create(Path::new("empty"), 0o644, true).unwrap();
}

pub(crate) fn no<T>(result: volume::Result<T>, word: &str) {
    let told = result.err().unwrap_or_else(|| panic!("'{word}' was expected")).to_string();
    assert!(told.contains(word), "{told}");
}

#[test]
fn a_volume_is_its_owners_alone_and_stays_while_somebody_has_it_open() {
    let (_place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fill(&registry);
    let open = volume::open(&registry, "v").unwrap();
    let attached = volume::open(&registry, "v").unwrap();
    no(
        volume::destroy(&registry, "v", false).map(drop),
        &format!("in use by process {}", std::process::id()),
    );
    drop(open);
    assert!(!attached.volume.list(Path::new("/")).unwrap().is_empty());
    let mode = fs::metadata(dirs[0].join("v.thalweg-manager/socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(attached);
    let store = dirs[1].join("v.thalweg-store");
    for dir in [&store, &dirs[0].join("v.thalweg-manager")] {
        assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", entry.path().display());
        }
    }
    // What others may enter, or were led to, is no store of ours.
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).unwrap();
    let lost = volume::status(&volume::open(&registry, "v").unwrap()).unwrap().stores[1].lost.clone();
    assert!(lost.unwrap().contains("this user's alone"));
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&store, dirs[1].join("elsewhere")).unwrap();
    symlink("elsewhere", &store).unwrap();
    assert!(volume::status(&volume::open(&registry, "v").unwrap()).unwrap().stores[1].lost.is_some());
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let (_place, registry, dirs) = Place::new(2);
    let twice = [dirs[0].clone(), dirs[0].join("../d0")];
    no(volume::create(&registry, "v", &twice, None, &policy(1)), "given twice");
    no(volume::create(&registry, "v", &[dirs[0].join("none")], None, &policy(1)), "No such file");
    no(volume::create(&registry, "v", &dirs[..1], None, &policy(2)), "2 do not fit a volume with 1 of them");
    no(volume::create(&registry, "../v", &dirs, None, &policy(1)), "no name for a volume");
    no(volume::create(&registry, "v", &[], None, &policy(1)), "at least one store");
    // Somebody was there before.
    fs::create_dir(dirs[1].join("v.thalweg-store")).unwrap();
    no(volume::create(&registry, "v", &dirs, None, &policy(1)), "File exists");
    assert_eq!(fs::read_dir(&dirs[0]).unwrap().count(), 0);
    assert!(dirs[1].join("v.thalweg-store").exists());
    fs::remove_dir(dirs[1].join("v.thalweg-store")).unwrap();
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    no(volume::create(&registry, "v", &dirs, None, &policy(1)), "'v' already");
    fill(&registry);
    // What is not the volume's stays, and so does its entry until that is gone.
    let planted = dirs[1].join("v.thalweg-store/planted");
    fs::create_dir(&planted).unwrap();
    let left = volume::destroy(&registry, "v", false).unwrap().left;
    assert!(left.len() == 1 && left[0].contains("planted is not the volume's"), "{left:?}");
    assert!(
        volume::open(&registry, "v").unwrap().volume.stat(Path::new("d/f")).is_ok(),
        "nothing was removed"
    );
    fs::remove_dir(&planted).unwrap();
    assert_eq!(volume::destroy(&registry, "v", false).unwrap().left, [""; 0]);
    assert!(dirs.iter().all(|dir| fs::read_dir(dir).unwrap().count() == 0), "nothing is left");
    no(volume::open(&registry, "v"), "no volume 'v'");
    // With force the name is free again, whatever is left.
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fs::create_dir(&planted).unwrap();
    let left = volume::destroy(&registry, "v", true).unwrap().left;
    assert!(left.len() == 1 && left[0].contains("v.thalweg-store"), "{left:?}");
    assert_eq!(fs::read_dir(dirs[1].join("v.thalweg-store")).unwrap().count(), 1);
    no(volume::open(&registry, "v"), "no volume 'v'");
}

/// A store whose disk was not mounted was reported as removed, and the files in a directory of that name were removed
/// whatever they were. Only a directory with the superblock is a store, and the others are named.
#[test]
fn stores_that_are_not_there_are_not_removed() {
    for has_manager in [true, false] {
        let (place, registry, dirs) = Place::new(4);
        volume::create(&registry, "v", &dirs[..3], Some(&dirs[3]), &policy(1)).unwrap();
        fill(&registry);
        let [one, two, three] = [0, 1, 2].map(|i: usize| dirs[i].join("v.thalweg-store"));
        fs::rename(&two, place.0.join("two")).unwrap();
        fs::rename(&three, place.0.join("three")).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&three).unwrap();
        // The store of another slot is not the one either.
        fs::copy(one.join("superblock"), three.join("superblock")).unwrap();
        fs::write(three.join("other"), "x").unwrap();
        let manager = dirs[3].join("v.thalweg-manager");
        if !has_manager {
            fs::rename(&manager, place.0.join("manager")).unwrap();
        }
        let destroyed = volume::destroy(&registry, "v", false).unwrap();
        assert!(destroyed.forgotten && destroyed.manager.is_some() == has_manager, "{destroyed:?}");
        assert_eq!(destroyed.stores, [one.display().to_string()]);
        let away = [Some(&two), Some(&three), Some(&manager).filter(|_| !has_manager)];
        let away: Vec<_> = away.into_iter().flatten().collect();
        assert_eq!(destroyed.left.len(), away.len(), "{:?}", destroyed.left);
        for (dir, left) in away.into_iter().zip(&destroyed.left) {
            assert!(left.contains(&format!("in {} was not there", dir.display())), "{left}");
            assert!(left.ends_with("by hand"), "{left}");
        }
        assert!(three.join("other").exists() && !one.exists() && !manager.exists());
    }
}

#[test]
fn a_volume_of_which_nothing_is_there_is_forgotten_only_by_force() {
    let (place, registry, dirs) = Place::new(1);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fs::rename(&dirs[0], place.0.join("away")).unwrap();
    let told = volume::destroy(&registry, "v", false).unwrap();
    assert!(!told.forgotten && told.left.len() == 1 && told.left[0].contains("--force"), "{told:?}");
    fs::rename(place.0.join("away"), &dirs[0]).unwrap();
    drop(volume::open(&registry, "v").unwrap());
    fs::rename(&dirs[0], place.0.join("away")).unwrap();
    let told = volume::destroy(&registry, "v", true).unwrap();
    assert!(told.forgotten && told.left.len() == 2 && told.stores.is_empty(), "{told:?}");
    no(volume::open(&registry, "v"), "no volume 'v'");
    assert_eq!(fs::read_dir(place.0.join("away")).unwrap().count(), 2);
}

/// The files of a store, without their checksums.
pub(crate) fn strips(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("v.thalweg-store")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|end| end == "strip")).collect()
}

#[test]
fn a_check_finds_what_is_damaged_or_belongs_to_nothing() {
    let (_place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fill(&registry);
    let check = || volume::check(&volume::open(&registry, "v").unwrap()).unwrap();
    let good = check();
    assert_eq!((good.files, good.strips, good.bytes, good.problems.len()), (2, 2, 30_000, 0));
    let strip = strips(&dirs[0])[0].clone();
    let mut bytes = fs::read(&strip).unwrap();
    bytes[5000] ^= 1;
    fs::write(&strip, bytes).unwrap();
    for end in ["strip", "sums"] {
        fs::copy(strip.with_extension(end), strip.with_file_name(format!("00000000000003e7-00-0.{end}")))
            .unwrap();
    }
    let bad = check();
    assert_eq!((bad.lost_files, bad.problems.len()), (1, 2), "{:?}", bad.problems);
    assert!(bad.problems[0].contains("/d/f") && bad.problems[0].contains("damaged at byte 4096"));
    assert!(bad.problems[1].contains("inode 999, which no name leads to"));
}

/// No system call takes such a path.
#[test]
fn a_file_whose_path_is_longer_than_4096_bytes_is_salvaged() {
    let (place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    let deep: PathBuf = (0..20).map(|n| format!("{n:0>250}")).collect();
    let open = volume::open(&registry, "v").unwrap();
    open.volume.make_directories(&deep, 0o755).unwrap();
    open.volume.create(&deep.join("f"), 0o644, true).unwrap().write_at(0, &[7; 30_000]).unwrap();
    drop(open);
    let saved = place.0.join("saved");
    let salvaged = volume::salvage(&registry, "v", &saved).unwrap();
    assert_eq!((salvaged.files, salvaged.bytes, salvaged.problems), (1, 30_000, vec![]));
    let io: std::sync::Arc<dyn thalweg_io::FileSystem> =
        std::sync::Arc::new(thalweg_io::threads::Threads::new(1));
    let mut dir = thalweg_io::local::tree(&io).open_dir(&saved).unwrap();
    for name in deep.iter() {
        dir = dir.open_dir(name).unwrap();
    }
    let mut bytes = vec![0; 30_001];
    assert_eq!(dir.open_file("f".as_ref(), false).unwrap().read_at(0, &mut bytes).unwrap(), 30_000);
    assert!(bytes[..30_000] == [7; 30_000]);
}

#[test]
fn what_stores_have_is_salvaged_with_names_or_without() {
    for copies in [1, 2] {
        let (place, registry, dirs) = Place::new(3);
        volume::create(&registry, "v", &dirs, None, &policy(copies)).unwrap();
        fill(&registry);
        let whole = volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
        assert_eq!((whole.files, whole.bytes, whole.problems.len()), (2, 30_000, 0), "{:?}", whole.problems);
        assert_eq!(fs::read(place.0.join("saved/d/f")).unwrap(), [7; 30_000]);
        fs::rename(dirs[0].join("v.thalweg-manager/manager.db"), place.0.join("gone")).unwrap();
        let nameless = volume::salvage(&registry, "v", &place.0.join("nameless")).unwrap();
        assert_eq!((nameless.files, nameless.problems.len()), (1, 1), "{:?}", nameless.problems);
        assert_eq!(
            fs::read(place.0.join(format!("nameless/inode-{}", (1_u64 << 36) + 1))).unwrap(),
            [7; 30_000]
        );
        fs::rename(place.0.join("gone"), dirs[0].join("v.thalweg-manager/manager.db")).unwrap();
        fs::remove_dir_all(dirs[2].join("v.thalweg-store")).unwrap();
        let salvaged = volume::salvage(&registry, "v", &place.0.join("rest")).unwrap();
        if copies == 2 {
            assert_eq!((salvaged.files, salvaged.problems.len()), (2, 1), "{:?}", salvaged.problems);
            continue;
        }
        // A stripe in three is a hole, and each of these is reported.
        let saved = fs::read(place.0.join("rest/d/f")).unwrap();
        let lost: Vec<usize> = (0..8).filter(|stripe| saved[stripe * 4096] == 0).collect();
        assert!((2..=3).contains(&lost.len()) && saved.len() == 30_000, "{lost:?}");
        assert_eq!((salvaged.files, salvaged.partial_files), (1, 1));
        assert_eq!(salvaged.bytes, saved.iter().filter(|byte| **byte == 7).count() as u64);
        assert_eq!(salvaged.problems.len(), 1 + lost.len(), "{:?}", salvaged.problems);
        for (stripe, told) in lost.iter().zip(&salvaged.problems[1..]) {
            assert!(told.starts_with(&format!("d/f: bytes {} to ", stripe * 4096)), "{told}");
        }
    }
}

#[test]
fn who_has_lost_the_manager_is_told_of_salvage_and_of_each_reason_once() {
    let (place, registry, dirs) = Place::new(3);
    volume::create(&registry, "v", &dirs, Some(&dirs[2]), &policy(1)).unwrap();
    fs::rename(dirs[0].join("v.thalweg-store"), place.0.join("away")).unwrap();
    let served = volume::open(&registry, "v").unwrap();
    // Through the socket, and from this process.
    for open in [&volume::open(&registry, "v").unwrap(), &served] {
        let lost = volume::status(open).unwrap().stores[0].lost.clone().unwrap();
        assert_eq!(lost.matches("No such file").count(), 1, "{lost}");
    }
    drop(served);
    fs::rename(dirs[2].join("v.thalweg-manager"), place.0.join("gone")).unwrap();
    no(volume::open(&registry, "v"), "thalweg volume salvage v DIR");
}

#[test]
fn a_block_that_is_damaged_is_the_only_hole_in_what_is_salvaged() {
    let (place, registry, dirs) = Place::new(1);
    volume::create(&registry, "v", &dirs, None, &Policy::default()).unwrap();
    fill(&registry);
    let strip = strips(&dirs[0])[0].clone();
    let mut bytes = fs::read(&strip).unwrap();
    bytes[10_000] ^= 1;
    fs::write(&strip, bytes).unwrap();
    let salvaged = volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
    assert_eq!((salvaged.files, salvaged.partial_files, salvaged.bytes), (1, 1, 30_000 - 4096));
    assert!(
        salvaged.problems[0].starts_with("d/f: bytes 8192 to 12287 are lost: "),
        "{:?}",
        salvaged.problems
    );
    let saved = fs::read(place.0.join("saved/d/f")).unwrap();
    let expected: Vec<u8> = (0..30_000).map(|at| if (8192..12288).contains(&at) { 0 } else { 7 }).collect();
    assert!(saved == expected);
}

/// A file that is nearly all hole is as much work as its bytes, whatever its length: also after a crash, when it is
/// unknown which bytes are durable.
#[test]
fn the_holes_of_a_file_are_not_read() {
    const END: u64 = 8 << 30;
    let (place, registry, dirs) = Place::new(3);
    volume::create(&registry, "v", &dirs, None, &Policy { copies: 2, ..Policy::default() }).unwrap();
    let open = volume::open(&registry, "v").unwrap();
    let file = open.volume.create(Path::new("f"), 0o644, true).unwrap();
    file.write_at(0, &[7; 4096]).unwrap();
    file.write_at(END - 4096, &[8; 4096]).unwrap();
    drop((file, open));
    assert_eq!(volume::repair(&registry, "v").unwrap(), Vec::<String>::new());
    let check = volume::check(&volume::open(&registry, "v").unwrap()).unwrap();
    assert_eq!((check.files, check.bytes), (1, 4 * 4096), "{:?}", check.problems);
    assert_eq!(check.problems, Vec::<String>::new());
    let salvaged = volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
    assert_eq!((salvaged.files, salvaged.bytes), (1, END), "{:?}", salvaged.problems);
    let saved = fs::File::open(place.0.join("saved/f")).unwrap();
    assert!(saved.metadata().unwrap().blocks() * 512 <= 1 << 20, "holes stay holes");
    let mut bytes = [0; 4096];
    for (at, byte) in [(0, 7), (4096, 0), (END - 4096, 8)] {
        saved.read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes, [byte; 4096], "at {at}");
    }
}

/// A repair of a file system may cut a file short. The missing end of a strip looked like a hole to `replace`, which
/// wrote zeros with valid checksums to the new store; and it removed the old store, with what could be read of damaged
/// strips. What was cut off is damage, wherever the strip goes, and what can be read of it stays.
#[test]
fn what_was_cut_off_a_strip_does_not_become_zeros() {
    for (left, bytes_left) in [(0, 0), (8192, 8192), (10_000, 8192)] {
        let (place, registry, dirs) = Place::new(2);
        volume::create(&registry, "v", &dirs[..1], None, &Policy::default()).unwrap();
        fill(&registry);
        let strip = fs::File::options().write(true).open(&strips(&dirs[0])[0]).unwrap();
        strip.set_len(left).unwrap();
        let check = || volume::check(&volume::open(&registry, "v").unwrap()).unwrap();
        assert_eq!(check().lost_files, 1);
        let salvaged = volume::salvage(&registry, "v", &place.0.join("saved")).unwrap();
        assert_eq!((salvaged.files, salvaged.bytes), (1, bytes_left), "{:?}", salvaged.problems);
        let told = format!("d/f: bytes {bytes_left} to 29999 are lost");
        assert!(salvaged.problems[0].starts_with(&told), "{:?}", salvaged.problems);
        let lost = volume::replace(&registry, "v", &dirs[0], &dirs[1]).unwrap();
        assert!(lost.iter().any(|line| line.contains("damaged at byte")), "{lost:?}");
        assert_eq!(check().lost_files, 1);
        // The old store stays, with what can be read of the strip.
        assert!(lost.last().unwrap().contains("put it in the place of"), "{lost:?}");
        let [old, new] = [0, 1].map(|dir: usize| dirs[dir].join("v.thalweg-store"));
        fs::remove_dir_all(&new).unwrap();
        fs::rename(old, new).unwrap();
        let again = volume::salvage(&registry, "v", &place.0.join("again")).unwrap();
        assert_eq!(again.bytes, bytes_left, "{:?}", again.problems);
    }
}

#[test]
fn a_damaged_database_or_registry_is_an_error_with_a_remedy() {
    let (_place, registry, dirs) = Place::new(1);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    fs::write(dirs[0].join("v.thalweg-manager/manager.db"), [1; 8192]).unwrap();
    no(volume::open(&registry, "v"), "thalweg volume salvage v DIR");
    fs::write(dirs[0].join("../settings/volumes.json"), "{").unwrap();
    no(volume::open(&registry, "v"), "docs/formats/volume.md");
}

#[test]
fn a_check_reads_what_was_closed_and_is_not_durable_yet() {
    let (_place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(2)).unwrap();
    let open = volume::open(&registry, "v").unwrap();
    let write = |name: &str| {
        let file = open.volume.create(Path::new(name), 0o644, true).unwrap();
        file.write_at(0, &[7; 8192]).unwrap();
        file
    };
    drop(write("closed"));
    let _still_open = write("open");
    // Another process learns from the stores what is being written here.
    let check = volume::check(&volume::open(&registry, "v").unwrap()).unwrap();
    assert_eq!((check.files, check.strips, check.bytes), (2, 8, 32_768), "{:?}", check.problems);
    assert_eq!(check.problems, Vec::<String>::new());
}

#[test]
fn a_process_that_is_ending_is_waited_for() {
    let (_place, registry, dirs) = Place::new(2);
    volume::create(&registry, "v", &dirs, None, &policy(1)).unwrap();
    let open = volume::open(&registry, "v").unwrap();
    std::thread::scope(|scope| {
        let destroyed = scope.spawn(|| volume::destroy(&registry, "v", false));
        std::thread::park_timeout(std::time::Duration::from_millis(300));
        assert!(!destroyed.is_finished());
        drop(open);
        assert_eq!(destroyed.join().unwrap().unwrap().left, [""; 0]);
    });
}

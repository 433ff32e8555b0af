//! Limits: stores that are full, where no more is accepted than is stored but for what may be unsent at a time, and the
//! memory of a mount.

use std::fs::{self, File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;

use thalweg_volume::{CACHE_BYTES_MIN, Hint};

use crate::bed::{Bed, sh_output};

const ROOM: &str = "24m";
const PIECE: usize = 1 << 20;
const PIECES: u64 = 64;
/// The most bytes that are accepted and not stored.
const UNSENT: u64 = 16 << 20;

/// Writes pieces one after the other, whatever happens to them. Returns how many bytes were accepted, and the errors.
fn fill(write: impl Fn(u64, &[u8]) -> Option<i32>) -> (u64, Vec<i32>) {
    let failed: Vec<i32> =
        (0..PIECES).filter_map(|n| write(n * PIECE as u64, &[n as u8 + 1; PIECE])).collect();
    ((PIECES - failed.len() as u64) * PIECE as u64, failed)
}

/// What a file of pieces holds must have been written, up to its last byte.
fn is_what_was_written(found: &[u8]) {
    let stored = found.iter().enumerate().filter(|(at, byte)| **byte == (at / PIECE) as u8 + 1).count();
    let holes = found.iter().filter(|byte| **byte == 0).count();
    assert_eq!(stored + holes, found.len(), "there are other bytes");
    assert!(stored > 10 * PIECE && holes < UNSENT as usize, "{stored} bytes and holes of {holes}");
    assert_ne!(found.last(), Some(&0), "it ends with a stored byte");
}

fn errno(done: Result<()>) -> Option<i32> {
    done.err().map(|why| why.raw_os_error().unwrap())
}

#[test]
fn no_more_is_accepted_than_there_is_room_for_and_each_descriptor_is_told_once() {
    let Some(bed) = Bed::small(ROOM) else { return };
    let free = bed.free_bytes();
    let path = bed.path("f");
    let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
    let (file, other) = (open(), open());
    other.write_all_at(&[1; 100], 0).unwrap();
    let (accepted, failed) = fill(|at, piece| errno(file.write_all_at(piece, at)));
    assert!(accepted <= free + UNSENT, "{accepted} bytes were accepted, and {free} were free");
    assert!(accepted + (2 << 20) > free, "{accepted} bytes were accepted, and {free} were free");
    assert!(failed.iter().all(|why| *why == libc::ENOSPC), "{failed:?}");
    // It has been told; the other has not.
    file.sync_all().unwrap();
    assert_eq!(errno(other.sync_all()), Some(libc::ENOSPC));
    other.sync_all().unwrap();
    drop((file, other));
    let found = fs::read(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), found.len() as u64);
    is_what_was_written(&found);
    // The next write of the same descriptor is tried afresh.
    let file = open();
    let (accepted, _) = fill(|at, piece| errno(file.write_all_at(piece, found.len() as u64 + at)));
    assert!(accepted <= UNSENT, "{accepted} bytes were accepted, and nothing was free");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    file.write_all_at(&[7; PIECE], 0).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(&path).unwrap()[..PIECE] == [7; PIECE]);
    drop(file);
    bed.ends_sound();
}

#[test]
fn a_small_write_that_did_not_fit_is_an_error_of_close() {
    let Some(bed) = Bed::small(ROOM) else { return };
    fs::write(bed.path("a"), vec![1; 8 << 20]).unwrap();
    File::create(bed.beside("disk/ballast"))
        .unwrap()
        .write_all_at(&vec![1; bed.free_bytes() as usize], 0)
        .unwrap();
    let copied = sh_output(&bed.root(), "dd if=/dev/zero of=f bs=100000 count=1");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(!copied.status.success() && said.contains("No space left on device"), "{said}");
    assert_eq!(fs::metadata(bed.path("f")).unwrap().len(), 0, "nothing of it is stored");
    fs::remove_file(bed.beside("disk/ballast")).unwrap();
    bed.ends_sound();
}

#[test]
fn the_library_accepts_no_more_than_there_is_room_for() {
    for cache_bytes in [0, CACHE_BYTES_MIN] {
        let Some(bed) = Bed::unmounted(Some(ROOM)) else { return };
        let free = bed.free_bytes();
        let open = bed.open();
        open.volume.set_cache(cache_bytes, Hint::Normal).unwrap();
        let file = open.volume.create(Path::new("f"), 0o644, true).unwrap();
        let (accepted, failed) = fill(|at, piece| file.write_at(at, piece).err().map(|why| why.errno()));
        let unsent = if cache_bytes > 0 { UNSENT } else { 0 };
        assert!(accepted <= free + unsent, "{accepted} bytes were accepted, and {free} were free");
        assert!(failed.iter().all(|why| *why == libc::ENOSPC), "{failed:?}");
        file.sync().unwrap();
        let mut found = vec![0; file.stat().unwrap().size as usize];
        assert_eq!(file.read_at(0, &mut found).unwrap(), found.len());
        is_what_was_written(&found);
        drop(file);
        assert_eq!(thalweg_volume::check(&open).unwrap().problems, Vec::<String>::new());
    }
}

/// The memory of a process that is not mapped from files.
fn anonymous_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_mount_takes_no_more_memory_than_its_cache_and_64_mib() {
    const CACHE_BYTES: u64 = 32 << 20;
    const FILES: u64 = 4;
    const FILE_BYTES: usize = 24 << 20;
    let Some(bed) = Bed::new() else { return };
    let mount = bed.with_cache(CACHE_BYTES);
    let mut most = 0;
    for round in 0..3 {
        std::thread::scope(|scope| {
            for n in 0..FILES {
                let path = mount.at.join(format!("f{n}"));
                scope.spawn(move || {
                    if round == 0 {
                        fs::write(&path, vec![n as u8; FILE_BYTES]).unwrap();
                    }
                    // Past the pages of the kernel, so that the mount has to have them.
                    let file = OpenOptions::new().read(true).open(&path).unwrap();
                    rustix::fs::setxattr(
                        &path,
                        "user.thalweg.hint",
                        b"random",
                        rustix::fs::XattrFlags::empty(),
                    )
                    .unwrap();
                    let mut rng = thalweg_base::rng::Rng::new(n + round);
                    let mut piece = vec![0; 200_000];
                    for at in 0..FILE_BYTES / piece.len() {
                        let random = rng.below((FILE_BYTES - piece.len()) as u64);
                        let at = if round == 1 { (at * piece.len()) as u64 } else { random };
                        file.read_exact_at(&mut piece, at).unwrap();
                    }
                });
            }
        });
        most = most.max(anonymous_bytes(mount.child.id()));
    }
    println!("{} MiB with a cache of {} MiB", most >> 20, CACHE_BYTES >> 20);
    assert!(most > CACHE_BYTES && most <= CACHE_BYTES + (64 << 20), "{most} bytes");
    drop(mount);
    bed.ends_sound();
}

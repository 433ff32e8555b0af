//! Files and names, as single system calls see them.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use thalweg_base::clock::Stopwatch;
use thalweg_volume::Policy;

use crate::bed::{Bed, sh, skipped};

/// Bytes that differ from place to place.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 + i) as u8).collect()
}

#[test]
fn what_is_written_is_read_now_and_after_mounting_again() {
    let Some(mut bed) = Bed::new() else { return };
    let whole = bytes(5_000_011);
    fs::write(bed.path("a"), &whole).unwrap();
    assert_eq!(fs::read(bed.path("a")).unwrap(), whole);
    bed.mount_again();
    assert_eq!(fs::read(bed.path("a")).unwrap(), whole);
    let file = File::open(bed.path("a")).unwrap();
    let mut piece = vec![0; 100_000];
    file.read_exact_at(&mut piece, 1_234_567).unwrap();
    assert_eq!(piece, whole[1_234_567..1_334_567]);
    drop(file);
    bed.ends_sound();
}

#[test]
fn a_file_grows_by_holes_and_appended_lines_and_is_cut() {
    let Some(mut bed) = Bed::new() else { return };
    let mut file = OpenOptions::new().create_new(true).append(true).open(bed.path("log")).unwrap();
    for i in 0..100 {
        // Where the descriptor stands does not matter.
        file.seek(SeekFrom::Start(0)).unwrap();
        writeln!(file, "line {i}").unwrap();
    }
    file.set_len(200_000).unwrap();
    file.write_all(b"end").unwrap();
    file.set_len(200_002).unwrap();
    file.sync_all().unwrap();
    drop(file);
    bed.mount_again();
    let mut expected: Vec<u8> = (0..100).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    expected.resize(200_000, 0);
    expected.extend(b"en");
    assert_eq!(fs::read(bed.path("log")).unwrap(), expected);
    bed.ends_sound();
}

#[test]
fn names_are_any_bytes_up_to_255_and_a_listing_has_them_all() {
    let Some(bed) = Bed::new() else { return };
    let long = "x".repeat(255);
    let names: Vec<&OsStr> = vec![
        OsStr::new("plain"),
        OsStr::new(&long),
        OsStr::from_bytes(b"\xff\x01\n *"),
        OsStr::new("volume:v"),
    ];
    for name in &names {
        fs::write(bed.root().join(name), name.as_bytes()).unwrap();
    }
    let mut listed: Vec<_> =
        fs::read_dir(bed.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(listed, sorted);
    let too_long = fs::write(bed.path(&"x".repeat(256)), b"").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
    for i in 0..3000 {
        fs::create_dir(bed.path(&format!("dir-{i}"))).unwrap();
    }
    let found: Vec<_> = fs::read_dir(bed.root()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(found.len(), 3004);
    assert_eq!(found.iter().filter(|entry| entry.metadata().unwrap().is_dir()).count(), 3000);
    drop(found);
    bed.ends_sound();
}

#[test]
fn links_renames_and_kinds_are_those_of_a_local_file_system() {
    let Some(mut bed) = Bed::new() else { return };
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error().unwrap();
    fs::write(bed.path("a"), b"a").unwrap();
    fs::write(bed.path("b"), b"b").unwrap();
    fs::hard_link(bed.path("a"), bed.path("c")).unwrap();
    assert_eq!(fs::metadata(bed.path("a")).unwrap().nlink(), 2);
    symlink("a", bed.path("l")).unwrap();
    assert_eq!(fs::read(bed.path("l")).unwrap(), b"a");
    let rename = |flags, from: &str, to: &str| {
        renameat_with(CWD, bed.path(from), CWD, bed.path(to), flags).map_err(std::io::Error::from)
    };
    assert_eq!(errno(rename(RenameFlags::NOREPLACE, "a", "b")), libc::EEXIST);
    rename(RenameFlags::EXCHANGE, "a", "b").unwrap();
    assert_eq!(
        (fs::read(bed.path("a")).unwrap(), fs::read(bed.path("b")).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    fs::rename(bed.path("b"), bed.path("a")).unwrap();
    assert_eq!(fs::read(bed.path("c")).unwrap(), b"a");
    fs::create_dir_all(bed.path("d/e")).unwrap();
    assert_eq!(fs::metadata(bed.path("d")).unwrap().nlink(), 3);
    assert_eq!(errno(fs::rename(bed.path("d"), bed.path("d/e/f"))), libc::EINVAL);
    assert_eq!(errno(fs::remove_dir(bed.path("d"))), libc::ENOTEMPTY);
    rename(RenameFlags::EXCHANGE, "d", "a").unwrap();
    assert!(bed.path("a/e").is_dir() && bed.path("d").is_file());
    rustix::fs::mkfifoat(CWD, bed.path("p"), rustix::fs::Mode::RUSR).unwrap();
    drop(std::os::unix::net::UnixListener::bind(bed.path("s")).unwrap());
    bed.mount_again();
    assert!(fs::metadata(bed.path("p")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(bed.path("s")).unwrap().file_type().is_socket());
    bed.ends_sound();
}

#[test]
fn a_file_without_names_can_be_used_until_it_is_closed() {
    let Some(bed) = Bed::new() else { return };
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(bed.path("a")).unwrap();
    fs::remove_file(bed.path("a")).unwrap();
    file.write_all(b"still here").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("still here", 0));
    drop(file);
    bed.ends_sound();
}

#[test]
fn modes_and_times_are_kept_to_the_nanosecond_and_only_changes_change_them() {
    let Some(mut bed) = Bed::new() else { return };
    fs::write(bed.path("a"), b"a").unwrap();
    fs::set_permissions(bed.path("a"), Permissions::from_mode(0o4751)).unwrap();
    let at = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let file = OpenOptions::new().write(true).open(bed.path("a")).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(at).set_accessed(at)).unwrap();
    let set = file.metadata().unwrap();
    assert_eq!((set.modified().unwrap(), set.accessed().unwrap()), (at, at));
    // What is told at the end of its use is no change of it.
    file.sync_all().unwrap();
    drop(file);
    bed.mount_again();
    let kept = fs::metadata(bed.path("a")).unwrap();
    assert_eq!((kept.mtime_nsec(), kept.mode() & 0o7777), (123_456_789, 0o4751));
    assert_eq!((kept.ctime(), kept.ctime_nsec()), (set.ctime(), set.ctime_nsec()));
    assert_eq!(fs::read(bed.path("a")).unwrap(), b"a");
    let read = fs::metadata(bed.path("a")).unwrap();
    assert!(read.accessed().unwrap() > at, "the first read after a change is noted");
    assert_eq!((read.mtime(), read.ctime_nsec()), (kept.mtime(), set.ctime_nsec()));
    OpenOptions::new().append(true).open(bed.path("a")).unwrap().write_all(b"b").unwrap();
    let written = fs::metadata(bed.path("a")).unwrap();
    assert!(
        written.modified().unwrap() > at
            && (written.ctime(), written.ctime_nsec()) > (set.ctime(), set.ctime_nsec())
    );
    assert_eq!((written.ctime(), written.ctime_nsec()), (written.mtime(), written.mtime_nsec()));
    bed.ends_sound();
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let Some(bed) = Bed::new() else { return };
    fs::write(bed.path("a"), b"").unwrap();
    let set = |value: &[u8], flags| rustix::fs::setxattr(bed.path("a"), "user.k", value, flags);
    set(b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"two", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    set(b"two", XattrFlags::REPLACE).unwrap();
    let mut value = [0; 8];
    let n = rustix::fs::getxattr(bed.path("a"), "user.k", &mut value[..]).unwrap();
    assert_eq!(&value[..n], b"two");
    let mut names = [0; 64];
    let n = rustix::fs::listxattr(bed.path("a"), &mut names[..]).unwrap();
    assert_eq!(&names[..n], b"user.k\0");
    rustix::fs::removexattr(bed.path("a"), "user.k").unwrap();
    let gone = rustix::fs::getxattr(bed.path("a"), "user.k", &mut value[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    bed.ends_sound();
}

#[test]
fn room_is_made_and_holes_are_punched() {
    use rustix::fs::FallocateFlags;
    let Some(bed) = Bed::new() else { return };
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(bed.path("a")).unwrap();
    let mut expected = bytes(300_000);
    file.write_all_at(&expected, 0).unwrap();
    let allocate = |flags, at, len| rustix::fs::fallocate(&file, flags, at, len);
    allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 100_001, 99_999).unwrap();
    allocate(FallocateFlags::KEEP_SIZE, 0, 1_000_000).unwrap();
    allocate(FallocateFlags::empty(), 0, 400_000).unwrap();
    expected[100_001..200_000].fill(0);
    expected.resize(400_000, 0);
    allocate(FallocateFlags::ZERO_RANGE, 300_000, 150_000).unwrap();
    allocate(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 440_000, 150_000).unwrap();
    expected.resize(450_000, 0);
    assert_eq!(fs::read(bed.path("a")).unwrap(), expected);
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    bed.ends_sound();
}

/// The bytes that the stores of a bed take on their disks.
fn taken(bed: &Bed) -> u64 {
    sh(&bed.beside("disk"), "sync -f .; du -s --block-size=1 .")
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn a_hole_takes_no_time_and_no_space_and_readers_find_it() {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
    const LARGE: u64 = 2 << 30;
    for copies in [1, 2] {
        let Some(mut bed) = Bed::unmounted(None) else { return };
        let policy = Policy { stripe_bytes: 64 << 10, copies, ..Policy::default() };
        bed.open().volume.set_policy(Path::new("/"), &policy).unwrap();
        bed.mount();
        let open = |name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(bed.path(name))
                .unwrap()
        };
        let (file, before) = (open("a"), taken(&bed));
        let punch = |at, len| {
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).unwrap()
        };
        let watch = Stopwatch::start();
        file.set_len(LARGE).unwrap();
        punch(0, LARGE);
        assert!(watch.seconds() < 2.0, "{} s", watch.seconds());
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        assert!(taken(&bed) - before < 1 << 20, "{} of {before}", taken(&bed));
        // Data of some stripes, at one end and in the middle of the file.
        let data = bytes(10 << 20);
        file.write_all_at(&data, 0).unwrap();
        file.write_all_at(&data, LARGE / 2).unwrap();
        file.sync_all().unwrap();
        let blocks =
            || OpenOptions::new().read(true).open(bed.path("a")).unwrap().metadata().unwrap().blocks() * 512;
        std::thread::park_timeout(Duration::from_millis(1100));
        assert!((20 << 20..21 << 20).contains(&blocks()), "{}", blocks());
        let to = |to| seek(&file, to);
        let end = data.len() as u64;
        assert_eq!(to(SeekFrom::Hole(5)), Ok(end));
        assert_eq!(to(SeekFrom::Data(end)), Ok(LARGE / 2));
        assert_eq!(to(SeekFrom::Hole(LARGE / 2 + 70_000)), Ok(LARGE / 2 + end));
        assert_eq!(to(SeekFrom::Data(LARGE / 2 + end)), Err(rustix::io::Errno::NXIO));
        let watch = Stopwatch::start();
        sh(&bed.root(), "cp a b; cmp -n 20000000 a b; tar -cSf t b; test $(stat -c %s t) -lt 22000000");
        println!("a sparse file of 2 GiB is copied and archived in {:.1} s", watch.seconds());
        assert!(taken(&bed) - before < u64::from(copies) * (64 << 20), "{}", taken(&bed) - before);
        // All of its blocks are free again, on every copy.
        fs::remove_file(bed.path("b")).unwrap();
        fs::remove_file(bed.path("t")).unwrap();
        sh(&bed.root(), "sync -f .");
        let full = taken(&bed);
        punch(1, LARGE / 2 - 1);
        assert!(full - taken(&bed) >= u64::from(copies) * (10 << 20) - (1 << 20), "{full} {}", taken(&bed));
        let mut found = vec![1; data.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[0] == data[0] && found[1..].iter().all(|byte| *byte == 0));
        drop(file);
        bed.ends_sound();
    }
}

/// Of three new files, one has its strips on the stores where those of the first are: there the stores copy the bytes.
#[test]
fn ranges_are_copied_within_the_volume() {
    let Some(bed) = Bed::new() else { return };
    let data = bytes(3_000_000);
    fs::write(bed.path("a"), &data).unwrap();
    let from = File::open(bed.path("a")).unwrap();
    for (name, at) in [("b", 1000), ("c", 1000), ("d", 1000), ("e", 500_001)] {
        fs::write(bed.path(name), vec![7; 600_000]).unwrap();
        let to = OpenOptions::new().write(true).open(bed.path(name)).unwrap();
        let (mut from_at, mut to_at) = (1000, at);
        while from_at < 2_001_000 {
            let left = 2_001_000 - from_at as usize;
            let n =
                rustix::fs::copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), left).unwrap();
            assert!(n > 0, "{from_at}");
        }
        drop(to);
        let mut expected = vec![7; at as usize];
        expected.extend(&data[1000..2_001_000]);
        assert!(fs::read(bed.path(name)).unwrap() == expected, "{name}");
    }
    drop(from);
    bed.ends_sound();
}

/// The stores' file system has its own limit, of which the write itself must tell.
#[test]
fn an_offset_that_no_store_can_have_is_an_error_of_the_write() {
    let Some(bed) = Bed::new() else { return };
    let at = i64::MAX as u64 - 5000;
    let local = File::create(bed.beside("disk/local")).unwrap();
    if local.write_all_at(b"x", at / 3).is_ok() {
        return crate::bed::skipped("the file system here takes any offset");
    }
    let file = File::create(bed.path("f")).unwrap();
    assert_eq!(file.write_all_at(b"x", at).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    file.write_all_at(b"x", 10).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 11);
    drop(file);
    bed.ends_sound();
}

#[test]
fn a_directory_that_another_mount_removed_is_empty() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    fs::create_dir(bed.path("d")).unwrap();
    fs::write(bed.path("d/f"), b"").unwrap();
    let open = File::open(bed.path("d")).unwrap();
    fs::remove_dir_all(again.at.join("d")).unwrap();
    assert_eq!(rustix::fs::Dir::new(open.try_clone().unwrap()).unwrap().count(), 0);
    assert_eq!((open.metadata().unwrap().nlink(), open.metadata().unwrap().is_dir()), (0, true));
    // A program whose working directory it is.
    fs::create_dir(bed.path("e")).unwrap();
    let script = format!("cd e; rmdir '{}/e'; sleep 1.1; ls -a; stat -c %h .", again.at.display());
    assert_eq!(sh(&bed.root(), &script).trim(), "0");
    fs::metadata(bed.path("d")).unwrap_err();
    drop((open, again));
    bed.ends_sound();
}

/// Two stores in one file system, and a copy of each byte in both.
#[test]
fn a_disk_is_counted_once_and_inodes_are_counted() {
    let Some(bed) = Bed::new() else { return };
    let there = |path: &Path| rustix::fs::statvfs(path).unwrap();
    let (ours, disk) = (there(&bed.root()), there(&bed.beside(".")));
    let bytes = |found: &rustix::fs::StatVfs| found.f_blocks * found.f_frsize;
    let copies = bed.open().volume.stat(Path::new("/")).unwrap().policy.unwrap().copies;
    assert!(
        bytes(&ours).abs_diff(bytes(&disk) / u64::from(copies)) < 8192,
        "{} {}",
        bytes(&ours),
        bytes(&disk)
    );
    let used = || there(&bed.root()).f_files - there(&bed.root()).f_ffree;
    let before = used();
    assert!((1..100).contains(&before), "{before}");
    fs::create_dir(bed.path("d")).unwrap();
    (0..20).for_each(|n| fs::write(bed.path(&format!("d/{n}")), b"x").unwrap());
    assert_eq!(used(), before + 21);
    fs::remove_dir_all(bed.path("d")).unwrap();
    assert_eq!(used(), before);
    bed.ends_sound();
}

/// The kernel drops what no program uses; the handle names the file all the same.
#[test]
fn a_handle_is_good_after_the_kernel_has_dropped_the_file() {
    let Some(bed) = Bed::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root opens by handle");
    }
    let script = r#"mkdir -p a/b; echo kept >a/b/f; python3 -c "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
  _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('it', ctypes.c_ubyte * 128)]
def handle(path):
  found, mount = Handle(128, 0), ctypes.c_int()
  assert libc.name_to_handle_at(-100, path, ctypes.byref(found), ctypes.byref(mount), 0) == 0, ctypes.get_errno()
  return found
found = [handle(path) for path in [b'a/b/f', b'a/b', b'a']]
at = os.open('.', os.O_RDONLY)
def opened(handle, use):
  fd = libc.open_by_handle_at(at, ctypes.byref(handle), os.O_RDONLY)
  if fd < 0:
    return os.strerror(ctypes.get_errno())
  found = use(fd)
  os.close(fd)
  return found
text = lambda fd: os.read(fd, 10).decode().strip()
def dropped():
  open('/proc/sys/vm/drop_caches', 'w').write('2')
dropped()
print(opened(found[0], text))
dropped()
print(opened(found[1], os.listdir), opened(found[2], os.listdir))
os.unlink('a/b/f'); os.rmdir('a/b')
dropped()
print(opened(found[0], text), opened(found[1], os.listdir))
""#;
    let said = sh(&bed.root(), script);
    assert_eq!(said, "kept\n['f'] ['b']\nStale file handle Stale file handle\n");
    bed.ends_sound();
}

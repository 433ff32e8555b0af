//! Two mounts of one volume, each with a cache: what one has closed, the other reads that opens it then.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;

use crate::bed::{Bed, sh};

/// Bytes of several stripes.
const LEN: usize = 300_000;

#[test]
fn what_one_mount_has_closed_the_other_reads() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let also = again.at.clone();
    let places = [bed.path("f"), also.join("f")];
    let mut expected = vec![1; LEN];
    fs::write(&places[0], &expected).unwrap();
    for round in 0..12_usize {
        let (writer, reader) = (&places[round % 2], &places[1 - round % 2]);
        assert!(fs::read(reader).unwrap() == expected, "before round {round}");
        let mut file = OpenOptions::new().write(true).open(writer).unwrap();
        match round % 4 {
            // In its place, so that only the time of the file tells.
            0 | 1 => {
                let at = 1000 * round;
                file.write_all_at(&[round as u8 + 2; 100], at as u64).unwrap();
                expected[at..at + 100].fill(round as u8 + 2);
            }
            2 => {
                file.seek(SeekFrom::End(0)).unwrap();
                file.write_all(b"more").unwrap();
                expected.extend(b"more");
            }
            _ => {
                file.set_len((LEN / 2) as u64).unwrap();
                expected.truncate(LEN / 2);
                file.set_len(LEN as u64).unwrap();
                expected.resize(LEN, 0);
            }
        }
        drop(file);
        assert!(fs::read(writer).unwrap() == expected, "in round {round}");
        assert!(fs::read(reader).unwrap() == expected, "after round {round}");
    }
    drop(again);
    bed.ends_sound();
}

/// The other mount has the old file open, so that the file stays, and the kernel has cached the name. What a program
/// wrote to the file of that name, and synced, was lost with the old file.
#[test]
fn a_name_that_one_mount_gave_to_another_file_the_other_opens_at_once() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let (here, there) = (bed.path("f"), again.at.join("f"));
    fs::write(&here, "old").unwrap();
    let old = File::open(&there).unwrap();
    fs::write(bed.path("new"), "new").unwrap();
    fs::rename(bed.path("new"), &here).unwrap();
    assert_eq!(fs::read_to_string(&there).unwrap(), "new");
    // The old file can still be opened by its descriptor.
    assert_eq!(fs::read_to_string(format!("/proc/self/fd/{}", old.as_raw_fd())).unwrap(), "old");
    drop((old, again));
    bed.ends_sound();
}

#[test]
fn a_hint_is_set_and_shown_and_reads_are_right_with_each() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let also = again.at.clone();
    let expected: Vec<u8> = (0..LEN).map(|n| (n / 97) as u8).collect();
    fs::write(bed.path("f"), &expected).unwrap();
    for hint in ["sequential", "random", "once", "normal"] {
        let script = format!("setfattr -n user.thalweg.hint -v {hint} f");
        sh(&bed.root(), &script);
        let shown = sh(&also, "getfattr --only-values -n user.thalweg.hint f");
        assert_eq!(shown, hint);
        let file = fs::File::open(also.join("f")).unwrap();
        let mut record = [0; 838];
        for at in (0..LEN - 838).step_by(838 * 7) {
            file.read_exact_at(&mut record, at as u64).unwrap();
            assert!(record == expected[at..at + 838], "{hint} at {at}");
        }
    }
    for now in ["willneed", "dontneed"] {
        sh(&bed.root(), &format!("setfattr -n user.thalweg.hint -v {now} f"));
        assert!(fs::read(bed.path("f")).unwrap() == expected);
    }
    sh(&bed.root(), "! setfattr -n user.thalweg.hint -v often f");
    assert_eq!(sh(&also, "getfattr --only-values -n user.thalweg.hint f"), "normal");
    drop(again);
    bed.ends_sound();
}

/// What a descriptor reads, from the start.
fn all_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

/// The writer keeps its descriptor open, and does not sync. The readers have read the file before.
#[test]
fn what_one_mount_writes_the_open_descriptors_of_others_read_within_a_second() {
    let Some(bed) = Bed::new() else { return };
    let (again, without_cache) = (bed.again(), bed.with_cache(0));
    let path = bed.path("f");
    fs::write(&path, "12345678").unwrap();
    let plain = |path| OpenOptions::new().read(true).open(path).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(again.at.join("f")).unwrap();
    let readers = [plain(again.at.join("f")), direct, plain(without_cache.at.join("f")), plain(path.clone())];
    let mut expected = b"12345678".to_vec();
    readers.iter().for_each(|file| assert_eq!(all_of(file), expected));
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut appender = OpenOptions::new().append(true).open(&path).unwrap();
    let mut longest = 0.0_f64;
    for round in 0..12 {
        match round % 4 {
            0 => {
                appender.write_all(b"more\n").unwrap();
                expected.extend(b"more\n");
            }
            1 => {
                writer.write_all_at(&[b'a' + round as u8], 3).unwrap();
                expected[3] = b'a' + round as u8;
            }
            2 => {
                writer.set_len(5).unwrap();
                expected.truncate(5);
            }
            _ => {
                writer.set_len(100_000).unwrap();
                expected.resize(100_000, 0);
            }
        }
        let watch = Stopwatch::start();
        for (n, reader) in readers.iter().enumerate() {
            while all_of(reader) != expected || reader.metadata().unwrap().len() != expected.len() as u64 {
                assert!(watch.seconds() < 10.0, "reader {n} does not see what was written in round {round}");
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
        longest = longest.max(watch.seconds());
    }
    println!("after {longest:.2} s at most");
    // Twice what it takes on an idle machine.
    assert!(longest < 2.0, "{longest} s");
    drop((readers, writer, appender, again, without_cache));
    bed.ends_sound();
}

#[test]
fn appends_of_two_mounts_are_whole() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let paths = [bed.path("f"), again.at.join("f")];
    let open = |path| OpenOptions::new().create(true).append(true).open(path).unwrap();
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        for (name, path) in ["a", "b"].iter().zip(&paths) {
            let mut file = open(path);
            scope.spawn(move || {
                for n in 0..2000 {
                    file.write_all(format!("{name} line {n:04} of the test. {name}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    println!("an append takes {:.0} us", watch.seconds() * 1e6 / 2000.0);
    let text = fs::read_to_string(&paths[0]).unwrap();
    for name in ["a", "b"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
        let expected = (0..2000).map(|n| format!("{name} line {n:04} of the test. {name}"));
        assert!(lines.iter().copied().eq(expected), "the lines of {name} are not whole, or not in order");
    }
    assert_eq!(text.lines().count(), 4000);
    // The largest appends that one request can have, at any alignment.
    let mut expected = text.len() as u64;
    for n in 0..4_u8 {
        let piece = vec![n + 1; (1 << 20) - 4096 - usize::from(n)];
        std::thread::scope(|scope| {
            for path in &paths {
                let (mut file, piece) = (open(path), &piece);
                scope.spawn(move || file.write_all(piece).unwrap());
            }
        });
        expected += 2 * piece.len() as u64;
    }
    let found = fs::read(&paths[1]).unwrap();
    assert_eq!(found.len() as u64, expected);
    let changes = found[text.len()..].windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, 3, "a piece is torn");
    drop(again);
    bed.ends_sound();
}

//! Two mounts of one volume, each with a cache: what one has closed, the other reads that opens it then.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

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

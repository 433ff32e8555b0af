//! How a mount begins and ends.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::bed::{Bed, has, refusal, sh};

#[test]
fn umount_ends_it_and_all_that_was_written_is_there_the_next_time() {
    let Some(mut bed) = Bed::new() else { return };
    if !has("umount") {
        return;
    }
    fs::write(bed.path("a"), b"kept").unwrap();
    sh(&bed.beside(""), "umount mnt");
    bed.ended();
    assert!(!bed.path("a").exists());
    bed.mount(false);
    assert_eq!(fs::read(bed.path("a")).unwrap(), b"kept");
    bed.ends_sound();
}

#[test]
fn of_a_mount_that_is_for_reading_nothing_changes() {
    let Some(mut bed) = Bed::new() else { return };
    fs::write(bed.path("a"), b"kept").unwrap();
    bed.unmount();
    bed.mount(true);
    let before = fs::metadata(bed.path("a")).unwrap();
    assert_eq!(fs::read(bed.path("a")).unwrap(), b"kept");
    for refused in
        [fs::write(bed.path("a"), b"x"), fs::remove_file(bed.path("a")), fs::create_dir(bed.path("d"))]
    {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    let after = fs::metadata(bed.path("a")).unwrap();
    assert_eq!((before.atime_nsec(), before.ctime_nsec()), (after.atime_nsec(), after.ctime_nsec()));
    bed.ends_sound();
}

#[test]
fn programs_see_what_it_is_and_how_much_room_there_is() {
    let Some(bed) = Bed::new() else { return };
    let shown = sh(&bed.root(), "stat -f -c '%T %S %l' . && findmnt -n -o SOURCE -T .");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(words, ["fuseblk", "4096", "255", "v"]);
    bed.ends_sound();
}

#[test]
fn a_place_where_a_mount_would_do_harm_is_refused() {
    let Some(bed) = Bed::new() else { return };
    let file = bed.beside("file");
    fs::write(&file, b"kept").unwrap();
    assert!(refusal(&bed, &file).contains("Not a directory"), "{}", refusal(&bed, &file));
    // Its own process would have to ask itself for the names in its stores.
    let store = bed.beside("disk/s1/v.thalweg-store");
    for at in [bed.beside("disk/s1"), bed.beside(""), store.clone(), bed.beside("disk/s0")] {
        assert!(refusal(&bed, &at).contains("the volume's own"), "{}", at.display());
    }
    assert!(refusal(&bed, &bed.root()).contains("mounted there already"));
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    bed.ends_sound();
}

//! How a mount begins and ends.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::mount::UnmountFlags;

use crate::bed::{Bed, ended, has, refusal, sh, skipped};

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
    bed.mount();
    assert_eq!(fs::read(bed.path("a")).unwrap(), b"kept");
    bed.ends_sound();
}

#[test]
fn of_a_mount_that_is_for_reading_nothing_changes() {
    let Some(mut bed) = Bed::new() else { return };
    fs::write(bed.path("a"), b"kept").unwrap();
    bed.unmount();
    bed.mount_with("ro");
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
fn the_kernel_follows_the_options_of_a_mount() {
    let Some(mut bed) = Bed::new() else { return };
    fs::write(bed.path("f"), b"kept").unwrap();
    bed.unmount();
    bed.mount_with("noatime,noexec,nosymfollow,suid");
    let shown = sh(&bed.beside(""), "findmnt -n -o FSTYPE,OPTIONS -T mnt");
    let words: Vec<&str> = shown.trim().split([' ', ',']).filter(|word| !word.is_empty()).collect();
    assert_eq!(words[0], "fuse.thalweg");
    for option in ["rw", "noatime", "noexec", "nosymfollow", "nodev"] {
        assert!(words.contains(&option), "{shown}");
    }
    assert_eq!(words.contains(&"nosuid"), !rustix::process::geteuid().is_root(), "{shown}");
    let before = fs::metadata(bed.path("f")).unwrap();
    assert_eq!(fs::read(bed.path("f")).unwrap(), b"kept");
    bed.mount_again();
    let after = fs::metadata(bed.path("f")).unwrap();
    assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
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

/// Something of the machine's own that is mounted below a bed. It goes at the end.
struct Below(PathBuf);

impl Below {
    /// `None` if nothing can be mounted on this machine.
    fn new(bed: &Bed) -> Option<Below> {
        if !rustix::process::geteuid().is_root() {
            skipped("only root mounts a tmpfs");
            return None;
        }
        sh(&bed.beside(""), "mount -t tmpfs below mnt && touch mnt/below");
        Some(Below(bed.root()))
    }

    /// It is what is seen, and nobody wrote to it.
    fn is_seen(&self) {
        assert_eq!(sh(&self.0, "ls"), "below\n");
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The process of an unmounted mount once unmounted what was at its place then: what was below, or the next mount of the
/// volume. Programs then wrote to the directory below.
#[test]
fn a_process_unmounts_nothing_but_its_own_mount() {
    let Some(mut bed) = Bed::new() else { return };
    bed.unmount();
    let Some(below) = Below::new(&bed) else { return };

    // Each is mounted before the process of the one before has ended, and every second one has an open file until then.
    let mut before: Option<(_, Option<File>)> = None;
    for round in 0..8_u8 {
        bed.mount();
        if let Some((serving, open)) = before.take() {
            drop(open);
            ended(serving);
        }
        fs::write(bed.path("f"), [round]).unwrap();
        let open = (round % 2 == 1).then(|| File::open(bed.path("f")).unwrap());
        sh(&bed.beside(""), if open.is_some() { "umount -l mnt" } else { "umount mnt" });
        before = Some((bed.left(), open));
    }
    let (serving, open) = before.unwrap();
    below.is_seen();
    drop(open);
    ended(serving);
    below.is_seen();

    // One that was killed, and one that the kernel ended.
    bed.mount();
    bed.server().kill().unwrap();
    bed.left().0.wait().unwrap();
    sh(&bed.beside(""), "umount mnt");
    below.is_seen();
    bed.mount();
    let abort = format!(
        "mkdir ctl && mount -t fusectl none ctl && echo 1 >ctl/{}/abort; umount ctl",
        rustix::fs::minor(fs::metadata(bed.root()).unwrap().dev())
    );
    sh(&bed.beside(""), &abort);
    bed.left().0.wait().unwrap();
    below.is_seen();

    drop(below);
    bed.mount();
    assert_eq!(fs::read(bed.path("f")).unwrap(), [7]);
    bed.ends_sound();
}

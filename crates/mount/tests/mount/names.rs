//! Names that one mount has cached, and another gives to other files: what is done under a name is done to the file
//! that has it then.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use thalweg_base::clock::Stopwatch;

use crate::bed::{Bed, sh, sh_output};

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| why.to_string())
}

/// The other mount, `b`, has looked at each name just before, and acts at once after the change. A log that was rotated
/// got what was written to the new one, a backup of another name was overwritten, and files of a renamed directory were
/// removed.
#[test]
fn what_is_done_under_a_name_is_done_to_what_has_that_name_now() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let changes: [fn(&Path, &Path); 5] = [
        a_log_is_rotated,
        a_file_has_a_second_name,
        a_directory_is_replaced,
        attributes_are_of_the_file_that_has_the_name,
        a_link_is_replaced,
    ];
    for round in 0..5 {
        let (a, b) = (bed.path(&round.to_string()), again.at.join(round.to_string()));
        fs::create_dir(&a).unwrap();
        changes.iter().for_each(|change| change(&a, &b));
    }
    drop(again);
    bed.ends_sound();
}

/// A log is rotated, and then written or appended to.
fn a_log_is_rotated(a: &Path, b: &Path) {
    for (log, appends) in [("log", false), ("appended", true)] {
        let old = a.join(format!("{log}.1"));
        fs::write(a.join(log), "precious").unwrap();
        assert_eq!(text(&b.join(log)), "precious");
        fs::rename(a.join(log), &old).unwrap();
        let mut options = OpenOptions::new();
        let opened = if appends { options.append(true) } else { options.write(true).truncate(true) };
        opened.create(true).open(b.join(log)).unwrap().write_all(b"new").unwrap();
        assert_eq!((text(&old), text(&a.join(log))), ("precious".into(), "new".into()));
    }
}

/// A file has a second name, and its first one is given to another file, or removed.
fn a_file_has_a_second_name(a: &Path, b: &Path) {
    for (name, is_replaced) in [("f", true), ("g", false)] {
        let [here, keep] = [name, "keep"].map(|end| a.join(format!("{name}.{end}")));
        fs::write(&here, "one").unwrap();
        assert_eq!(text(&b.join(here.file_name().unwrap())), "one");
        fs::hard_link(&here, &keep).unwrap();
        if is_replaced {
            fs::write(a.join("new"), "two").unwrap();
            fs::rename(a.join("new"), &here).unwrap();
        } else {
            fs::remove_file(&here).unwrap();
        }
        fs::write(b.join(here.file_name().unwrap()), "three").unwrap();
        assert_eq!((text(&keep), text(&here)), ("one".into(), "three".into()));
        fs::remove_file(&keep).unwrap();
    }
}

/// A directory is renamed, and another one made in its place.
fn a_directory_is_replaced(a: &Path, b: &Path) {
    for removes in [false, true] {
        fs::create_dir(a.join("d")).unwrap();
        fs::write(a.join("d/x"), "kept").unwrap();
        assert_eq!((text(&b.join("d/x")), fs::read_dir(b.join("d")).unwrap().count()), ("kept".into(), 1));
        fs::rename(a.join("d"), a.join("dn")).unwrap();
        if removes {
            assert!(fs::remove_file(b.join("d/x")).is_err());
        }
        fs::create_dir(a.join("d")).unwrap();
        match removes {
            true => _ = sh(b, "rm -r d"),
            false => fs::write(b.join("d/new"), "new").unwrap(),
        }
        assert_eq!(text(&a.join("dn/x")), "kept");
        assert!(!a.join("dn/new").exists() && a.join("d/new").exists() != removes);
        sh(a, "rm -rf d dn");
    }
}

/// The file of a name is another one, or there is none.
fn attributes_are_of_the_file_that_has_the_name(a: &Path, b: &Path) {
    for is_there in [true, false] {
        let (old, name) = (a.join("m.old"), b.join("m"));
        fs::write(a.join("m"), "old").unwrap();
        fs::set_permissions(a.join("m"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(text(&name), "old");
        fs::rename(a.join("m"), &old).unwrap();
        if is_there {
            fs::write(a.join("m"), "newer").unwrap();
        }
        let attribute = sh_output(b, "setfattr -n user.of -v m m");
        let done = [
            fs::set_permissions(&name, fs::Permissions::from_mode(0o600)).is_ok(),
            CString::new(name.as_os_str().as_bytes())
                .is_ok_and(|at| rustix::fs::access(&*at, rustix::fs::Access::EXISTS).is_ok()),
            fs::hard_link(&name, b.join("m.link")).is_ok(),
            OpenOptions::new().write(true).open(&name).and_then(|file| file.set_len(1)).is_ok(),
            attribute.status.success(),
            fs::rename(&name, b.join("m.new")).is_ok(),
        ];
        assert_eq!(done, [is_there; 6]);
        assert_eq!(text(&old), "old");
        assert_eq!(fs::metadata(&old).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(sh(a, "getfattr --absolute-names m.old"), "");
        sh(a, "rm -f m.*");
    }
}

/// A link is replaced.
fn a_link_is_replaced(a: &Path, b: &Path) {
    symlink("one", a.join("s")).unwrap();
    assert_eq!(fs::read_link(b.join("s")).unwrap(), Path::new("one"));
    fs::remove_file(a.join("s")).unwrap();
    symlink("two", a.join("s")).unwrap();
    assert_eq!(fs::read_link(b.join("s")).unwrap(), Path::new("two"));
}

/// It has names cached, since it was alone.
#[test]
fn a_client_that_has_just_come_renames_what_a_mount_has_cached() {
    let Some(bed) = Bed::new() else { return };
    let mut longest = 0.0_f64;
    for round in 0..5 {
        let [log, old] = ["log", "log.1"].map(|name| format!("{name}.{round}"));
        fs::create_dir_all(bed.path("d")).unwrap();
        let [here, there] = [&log, &old].map(|name| bed.path("d").join(name));
        fs::write(&here, "precious").unwrap();
        // So long that it has asked for a lease.
        for _ in 0..30 {
            assert_eq!(text(&here), "precious");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let other = bed.open();
        let watch = Stopwatch::start();
        other.volume.rename(&Path::new("/d").join(&log), &Path::new("/d").join(&old)).unwrap();
        longest = longest.max(watch.seconds());
        fs::write(&here, "new").unwrap();
        assert_eq!((text(&there), text(&here)), ("precious".into(), "new".into()), "{round}");
        let watch = Stopwatch::start();
        other.volume.remove(&Path::new("/d").join(&log)).unwrap();
        assert!(watch.seconds() < 0.3, "only the first one waits: {}", watch.seconds());
        assert!(!here.exists());
    }
    assert!(longest < 1.0, "it waited {longest} s");
    bed.ends_sound();
}

/// A mount that is alone asks for a name once in a while: a program that opens a file again and again makes few requests.
#[test]
fn a_mount_that_is_alone_caches_names() {
    let Some(bed) = Bed::new() else { return };
    fs::create_dir_all(bed.path("a/b/c")).unwrap();
    fs::write(bed.path("a/b/c/f"), "x").unwrap();
    let stats = |many: u32| {
        let watch = Stopwatch::start();
        (0..many).for_each(|_| _ = fs::symlink_metadata(bed.path("a/b/c/f")).unwrap());
        watch.seconds() / f64::from(many) * 1e6
    };
    stats(1000);
    let alone = stats(3000);
    let again = bed.again();
    std::thread::park_timeout(Duration::from_millis(600));
    let shared = stats(3000);
    println!("stat of /a/b/c/f: {alone:.1} us alone, {shared:.1} us with another mount");
    assert!(alone * 3.0 < shared, "names are cached: {alone} {shared}");
    drop(again);
    bed.ends_sound();
}

/// Readers of a name that another mount replaces again and again.
#[test]
fn a_name_that_is_replaced_all_the_time_can_always_be_opened() {
    let Some(bed) = Bed::new() else { return };
    let again = bed.again();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    for len in [100, 2 << 20] {
        fs::write(bed.path("v"), vec![7; len]).unwrap();
        is_over.store(false, std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut opened, mut failed) = (0, Vec::new());
                        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                            match fs::read(again.at.join("v")) {
                                Ok(bytes) if bytes.len() == len => opened += 1,
                                Ok(bytes) => failed.push(format!("{} bytes", bytes.len())),
                                Err(why) => failed.push(why.to_string()),
                            }
                        }
                        (opened, failed)
                    })
                })
                .collect();
            let watch = Stopwatch::start();
            let mut replaced = 0;
            while watch.seconds() < 3.0 {
                fs::write(bed.path("n"), vec![9; len]).unwrap();
                fs::rename(bed.path("n"), bed.path("v")).unwrap();
                replaced += 1;
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            for reader in readers {
                let (opened, failed) = reader.join().unwrap();
                println!("{len} bytes: replaced {replaced} times, opened {opened} times");
                assert!(opened > 0 && failed.is_empty(), "{opened} opened: {failed:?}");
            }
        });
    }
    drop(again);
    bed.ends_sound();
}

#[test]
fn times_before_1970_keep_their_fraction() {
    let Some(mut bed) = Bed::new() else { return };
    let times = [
        "1969-12-31 23:59:59.25",
        "1969-12-31 23:59:59",
        "1960-02-29 01:02:03.999999999",
        "1970-01-01 00:00:00.5",
    ];
    for (n, time) in times.iter().enumerate() {
        sh(
            &bed.root(),
            &format!(
                "touch -a -d '2001-02-03 04:05:06.5Z' {n}; touch -m -d '{time}Z' {n}; touch -d '{time}Z' both{n}"
            ),
        );
    }
    for _ in 0..2 {
        for (n, time) in times.iter().enumerate() {
            let shown = sh(&bed.root(), &format!("export TZ=UTC; stat -c '%x %y' {n} both{n}"));
            let shown: Vec<&str> = shown.lines().collect();
            let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
            let expected = format!("{whole}.{fraction:0<9} +0000");
            assert_eq!(shown[0], format!("2001-02-03 04:05:06.500000000 +0000 {expected}"));
            assert_eq!(shown[1], format!("{expected} {expected}"));
        }
        bed.mount_again();
    }
    bed.ends_sound();
}

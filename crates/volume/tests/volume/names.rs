//! Paths, links, and files that have lost their names.

use std::path::Path;

use thalweg_volume::Kind;
use thalweg_volume::layout::Policy;

use crate::bed::Bed;

#[test]
fn paths_lead_through_links_and_not_out_of_the_volume() {
    let bed = Bed::new(1, &Policy::default(), 1);
    let volume = bed.open().unwrap();
    volume.make_directory(Path::new("/a"), 0o755).unwrap();
    volume.make_directory(Path::new("a/b"), 0o755).unwrap();
    volume.create(Path::new("a/b/f"), 0o644, true).unwrap().write_at(0, b"text").unwrap();
    volume.make_link(Path::new("to"), b"a/b").unwrap();
    volume.make_link(Path::new("a/b/up"), b"../../to/f").unwrap();
    volume.make_link(Path::new("out"), b"/etc/passwd").unwrap();
    volume.make_link(Path::new("loop"), b"loop").unwrap();
    for path in ["a/b/f", "/a/./b//f", "to/f", "to/up", "a/../a/b/../b/f"] {
        assert_eq!(volume.stat(Path::new(path)).unwrap().size, 4, "{path}");
    }
    assert_eq!(volume.stat_link(Path::new("to")).unwrap().kind, Kind::Link);
    for (path, errno) in [
        ("out", libc::ELOOP),
        ("loop", libc::ELOOP),
        ("a/b/f/x", libc::ENOTDIR),
        ("none/x", libc::ENOENT),
        ("a", libc::EISDIR),
    ] {
        let failed = volume.open(Path::new(path)).err().unwrap_or_else(|| panic!("{path} opens"));
        assert_eq!(failed.errno(), errno, "{path}: {failed}");
    }
    for path in ["..", "/../a/b/f", "a/../../a/b/f"] {
        let failed = volume.stat(Path::new(path)).unwrap_err().to_string();
        assert!(failed.ends_with("leads above the root of the volume"), "{path}: {failed}");
    }
    assert_eq!(volume.rename(Path::new("/"), Path::new("x")).unwrap_err().errno(), libc::EBUSY);
    volume.set_attribute(Path::new("to/f"), b"user.k", Some(b"v")).unwrap();
    assert_eq!(volume.attributes(Path::new("a/b/f")).unwrap(), [(b"user.k".to_vec(), b"v".to_vec())]);
}

#[test]
fn a_file_without_names_lives_until_it_is_closed() {
    let mut bed = Bed::new(2, &Policy { stripe_bytes: 4096, ..Policy::default() }, 1);
    let volume = bed.open().unwrap();
    let file = volume.create(Path::new("f"), 0o644, true).unwrap();
    file.write_at(0, &[3; 10_000]).unwrap();
    volume.remove(Path::new("f")).unwrap();
    let mut found = vec![0; 10_000];
    assert_eq!(file.read_at(0, &mut found).unwrap(), 10_000);
    assert_eq!(found, [3; 10_000]);
    drop(file);
    volume.sync().unwrap();
    assert_eq!(bed.strips().len(), 0);
    // Nor does it come back after a crash.
    let file = volume.create(Path::new("g"), 0o644, true).unwrap();
    file.write_at(0, &[3; 10_000]).unwrap();
    volume.remove(Path::new("g")).unwrap();
    assert_eq!(bed.strips().len(), 2);
    bed.sim.kill();
    drop(file);
    bed.killed(Some(volume));
    let volume = bed.open().unwrap();
    assert_eq!((bed.strips().len(), volume.list(Path::new("/")).unwrap().len()), (0, 0));
}

#[test]
fn files_are_laid_out_as_their_directory_says() {
    let bed = Bed::new(3, &Policy::default(), 1);
    let volume = bed.open().unwrap();
    volume.make_directory(Path::new("d"), 0o755).unwrap();
    let policy = Policy { width: 2, stripe_bytes: 64 << 10, copies: 2, record_bytes: 838 };
    volume.set_policy(Path::new("d"), &policy).unwrap();
    volume.make_directory(Path::new("d/e"), 0o755).unwrap();
    let layout = volume.create(Path::new("d/e/f"), 0o644, true).unwrap().layout();
    assert_eq!((layout.width, layout.copies, layout.stripe_bytes), (2, 2, 78 * 838));
    assert_eq!(volume.create(Path::new("f"), 0o644, true).unwrap().layout().width, 3);
    let none = Policy { width: 4, ..policy };
    assert!(volume.set_policy(Path::new("d"), &none).unwrap_err().to_string().contains("3 stores"));
}

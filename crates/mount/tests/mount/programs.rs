//! Programs as they are, at work on a mount.

use std::fs;
use std::path::Path;

use crate::bed::{Bed, has, sh};

/// A tree with files of many sizes, links, modes and times, made outside of the mount.
fn make_tree(at: &Path) {
    fs::create_dir(at).unwrap();
    sh(
        at,
        "umask 022
        for i in $(seq 150); do mkdir -p d$((i % 7))/e$((i % 3)); head -c $((i * i * 37)) /dev/urandom >d$((i % 7))/e$((i % 3))/f$i; done
        ln -s d1/e1 link; ln d1/e1/f1 hard; mkfifo pipe; mkdir empty; : >'a  name
with two lines'
        chmod 4755 d2/e2/f2; chmod 0 d3/e0/f3
        # Not of this second: rsync sets the times of all but files again only if their seconds differ.
        touch -h -d '2001-02-03 04:05:06.789012345' d5/e2/f5 link pipe; find . -type d -exec touch -d '2002-02-03 04:05:06.789012345' {} +",
    );
}

const DIGEST: &str = r"find . -printf '%P %y %m %s %l %n %T@\n' | sed 's/^\(.* d [0-7]*\) [0-9]*/\1/; s/^ .*//' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum";

/// The lines of two lists are the same; else those that are not are shown.
fn assert_same(found: &str, expected: &str, what: &str) {
    let only = |one: &str, other: &str| {
        let lines = one.lines().filter(|line| !other.lines().any(|known| known == *line));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert!(found == expected, "{what}: {:#?} is {:#?}", only(expected, found), only(found, expected));
}

#[test]
fn a_tree_goes_there_and_back_with_tar_and_rsync_and_is_equal() {
    let Some(mut bed) = Bed::new() else { return };
    if !has("rsync") || !has("tar") {
        return;
    }
    let tree = bed.beside("tree");
    make_tree(&tree);
    let expected = sh(&tree, DIGEST);
    sh(
        &bed.beside(""),
        "rsync -aH tree/ mnt/tree && tar --format=posix -C tree -cf - . | (mkdir mnt/tarred && tar -C mnt/tarred -xpf -)",
    );
    bed.mount_again();
    for there in ["mnt/tree", "mnt/tarred"] {
        assert_same(&sh(&bed.beside(there), DIGEST), &expected, there);
    }
    sh(&bed.beside(""), "rsync -aH mnt/tree/ back");
    assert_same(&sh(&bed.beside("back"), DIGEST), &expected, "back");
    assert_eq!(sh(&bed.beside(""), "rsync -aHin --checksum tree/ mnt/tree"), "");
    bed.ends_sound();
}

#[test]
fn git_and_sqlite_work_there() {
    let Some(mut bed) = Bed::new() else { return };
    if !has("git") || !has("sqlite3") {
        return;
    }
    let git = "git -c user.name=a -c user.email=a@b";
    sh(
        &bed.root(),
        &format!(
            "git init -q r && cd r && for i in $(seq 60); do echo $i >f$i; git add f$i; {git} commit -qm $i; done; git gc -q"
        ),
    );
    sh(&bed.root(), "git clone -q r r2");
    sh(
        &bed.root(),
        "sqlite3 db 'PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB);'
        for i in 1 2 3 4; do
            (for j in $(seq 25); do
                echo '.timeout 60000'; echo 'INSERT INTO t (x) VALUES (randomblob(5000));'
            done | sqlite3 db >/dev/null) &
        done
        for job in $(jobs -p); do wait $job; done",
    );
    bed.mount_again();
    sh(&bed.path("r2"), "git fsck --strict && test -z \"$(git status --porcelain)\"");
    assert_eq!(sh(&bed.path("r2"), "git log --oneline | wc -l; cat f60"), "60\n60\n");
    assert_eq!(sh(&bed.root(), "sqlite3 db 'PRAGMA integrity_check; SELECT count(*) FROM t'"), "ok\n100\n");
    bed.ends_sound();
}

#[test]
fn cargo_builds_there_and_what_it_built_runs() {
    let Some(bed) = Bed::new() else { return };
    sh(
        &bed.root(),
        "cargo init -q --vcs none --name tiny tiny && cd tiny && env -u CARGO_TARGET_DIR cargo build -q --offline",
    );
    assert_eq!(sh(&bed.root(), "tiny/target/debug/tiny"), "Hello, world!\n");
    bed.ends_sound();
}

/// The kernel drops the pages of an asynchronous write before it, and not after it: readers filled them with old bytes.
#[test]
fn a_write_past_the_pages_is_read_by_every_later_read() {
    let Some(bed) = Bed::new() else { return };
    fs::write(bed.beside("past_pages.c"), include_str!("past_pages.c")).unwrap();
    sh(&bed.beside(""), "cc -Wall -O1 -pthread past_pages.c -o past_pages");
    assert_eq!(sh(&bed.beside(""), "./past_pages mnt/f"), "0 of 1500, then 0 bytes\n");
    bed.ends_sound();
}

#[test]
fn whether_a_write_appends_can_be_changed() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let script = "python3 -c \"
import fcntl, os
f = os.open('a', os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(f, b'abc')
fcntl.fcntl(f, fcntl.F_SETFL, 0)
os.pwrite(f, b'XX', 0)
fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND)
os.pwrite(f, b'!', 0)
\" && cat a";
    assert_eq!(sh(&bed.root(), script), "XXc!");
    bed.ends_sound();
}

#[test]
fn mapped_pages_and_written_bytes_are_the_same_within_a_mount() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    sh(
        &bed.root(),
        "python3 -c \"
import mmap, os
f = os.open('m', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 300000)
m = mmap.mmap(f, 300000)
m[100000:100005] = b'mmap!'
assert os.pread(f, 5, 100000) == b'mmap!'
os.pwrite(f, b'write', 200000)
assert m[200000:200005] == b'write'
m.flush()
os.fsync(f)
\"",
    );
    let found = fs::read(bed.path("m")).unwrap();
    assert_eq!(
        (&found[100_000..100_005], &found[200_000..200_005], found.len()),
        (&b"mmap!"[..], &b"write"[..], 300_000)
    );
    bed.ends_sound();
}

//! Trees: everything in them, and where it goes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::files::{bytes, receipt};
use super::support::Place;
use super::walk::are_same;

/// A tree with one of everything that a copy preserves.
pub(crate) const OF_EVERYTHING: &str = r#"
mkdir -p tree/a/b/c 'tree/empty' tree/closed tree/many
head -c 5000000 /dev/urandom > tree/a/large
head -c 131072 /dev/urandom > tree/a/edge; head -c 131073 /dev/urandom > tree/a/beyond
: > tree/a/nothing; printf x > tree/a/b/one
ln tree/a/large tree/a/b/again; ln tree/a/b/one tree/one_too; ln tree/a/b/one tree/closed/one_three
ln -s a/large tree/link; ln -s /nowhere/at/all tree/dangling; ln -s ../.. tree/a/b/up
printf odd > $'tree/odd\nname\xff\xfe'; printf dash > tree/-dash; printf sp > 'tree/ a  b '
truncate -s 40M tree/holes; printf in > tree/in; dd if=tree/in of=tree/holes bs=1 seek=20M conv=notrunc status=none
for i in $(seq 1 700); do echo $i > tree/many/$i; done
chmod 4755 tree/in; chmod 600 tree/a/b/one; chmod 400 tree/a/edge; chmod 555 tree/closed
touch -d '1999-12-31 23:59:59.987654321' tree/a/nothing tree/empty tree/many; touch -h -d 2002-02-02 tree/link
touch -d '1960-01-01 00:00:00.5' tree/in
"#;

#[test]
fn a_tree_of_everything_arrives_as_it_was_by_either_back_end() {
    let place = Place::new();
    place.shell(OF_EVERYTHING).is_done();
    let mut sums = Vec::new();
    for (io, streams) in [("uring", "1"), ("uring", "3"), ("threads", "2")] {
        let told = receipt(
            place.run(&["pump", "tree", "copy", "--io", io, "--streams", streams, "--json"]).is_done(),
        );
        are_same(&place.0.join("tree"), &place.0.join("copy"));
        place.shell("diff -r --no-dereference tree copy").is_done();
        let inode = |name: &str| place.0.join("copy").join(name).metadata().unwrap().ino();
        assert_eq!(inode("a/large"), inode("a/b/again"));
        assert_eq!(inode("one_too"), inode("closed/one_three"));
        assert!(place.0.join("copy/holes").metadata().unwrap().blocks() * 512 < 1 << 20);
        assert_eq!((told.links, told.hard_links, told.directories, told.special), (3, 3, 7, 0), "{told:?}");
        assert!(told.holds);
        sums.push(told.checksum_in);
        assert_eq!(place.names(), ["copy", "tree"]);
        place.shell("chmod 755 copy/closed; rm -r copy").is_done();
    }
    assert!(sums[0] != 0 && sums.iter().all(|sum| *sum == sums[0]), "{sums:x?}");
}

#[test]
fn a_tree_goes_where_the_words_say() {
    let place = Place::new();
    place
        .shell("mkdir -p tree/sub there; echo 1 > tree/one; echo 2 > tree/sub/two; echo 3 > there/three")
        .is_done();
    let (at, tree) = (|name: &str| place.0.join(name), place.0.join("tree"));
    // Into a directory, under its own name.
    place.run(&["pump", "tree", "there", "-q"]).is_done();
    are_same(&tree, &at("there/tree"));
    // Its contents, next to the existing files.
    place.run(&["pump", "tree/", "there", "-q"]).is_done();
    assert_eq!(
        place.shell("cd there; find . -type f | sort").is_done(),
        "./one\n./sub/two\n./three\n./tree/one\n./tree/sub/two\n"
    );
    // Once more, over the existing files.
    place.shell("echo other > there/tree/one; chmod 700 there/tree").is_done();
    place.run(&["pump", "tree", "there/", "-q"]).is_done();
    are_same(&tree, &at("there/tree"));
    // A DEST that does not exist; and the current directory, from within.
    place.run(&["pump", "tree/", "new/", "-q"]).is_done();
    are_same(&tree, &at("new"));
    place.shell("cd tree && $T pump . ../dot -q").is_done();
    are_same(&tree, &at("dot"));
    // Several files and trees into one directory.
    place.run(&["pump", "tree", "there/three", "there/one", "new", "-q"]).is_done();
    assert_eq!(place.shell("ls new").is_done(), "one\nsub\nthree\ntree\n");
    // A link that is named on the command line is followed.
    place.shell("ln -s tree near; ln -s there/three far").is_done();
    place.run(&["pump", "near", "through", "-q"]).is_done();
    are_same(&tree, &at("through"));
    place.run(&["pump", "far", "through", "-q"]).is_done();
    assert_eq!(place.read("through/far"), b"3\n");
    place.shell("! ls -A . there new through | grep thalweg").is_done();
}

/// The path of an entry of `SOURCE/` does not begin with a name of the source's own.
#[test]
fn what_cannot_replace_the_other_is_named_and_nothing_is_left() {
    let place = Place::new();
    place.shell("mkdir -p one/a two/b && echo 1 > one/b && echo 2 > two/a && seq 100000 > two/big").is_done();
    place.shell("mkdir one/big").is_done();
    let of_file = ["/one/a is a directory; a file cannot replace it"];
    place.shell("rm -r two/b two/big && $T pump two/ one --strict").is_refused(&of_file);
    place
        .shell("rm two/a && mkdir two/b && $T pump two/ one --strict")
        .is_refused(&["/one/b exists and is not a directory"]);
    place
        .shell("rmdir two/b && seq 100000 > two/big && $T pump two/ one --strict")
        .is_refused(&["/one/big is a directory"]);
    assert_eq!(place.shell("ls -A one").is_done(), "a\nb\nbig\n");
    place.shell("$T pump two/big x --verify --no-checksum").is_refused(&["leave one of them out"]);
}

#[test]
fn further_names_of_what_is_in_a_directory_come_along() {
    let place = Place::new();
    place
        .shell("mkdir -p tree/sub there; echo 1 > tree/x; ln tree/x tree/yy; ln tree/x tree/sub/zz")
        .is_done();
    for _ in 0..2 {
        place.run(&["pump", "tree/", "there", "-q"]).is_done();
        are_same(&place.0.join("tree"), &place.0.join("there"));
        assert_eq!(place.shell("stat -c %h there/x there/yy there/sub/zz").is_done(), "3\n3\n3\n");
    }
}

#[test]
fn pipes_sockets_and_devices_are_passed_over_and_counted() {
    let place = Place::new();
    place.shell("mkdir tree; mkfifo tree/pipe tree/pipe2; echo 1 > tree/one").is_done();
    let told = place.run(&["pump", "tree", "copy", "--json"]);
    assert_eq!((told.status, told.err.lines().count()), (Some(0), 2), "{told:?}");
    assert!(told.err.lines().all(|line| line.contains("/pipe") && line.contains("passed over")), "{told:?}");
    assert_eq!(receipt(&told.out).special, 2);
    let told = place.run(&["pump", "tree", "copy2"]);
    assert!(told.out.contains("left out  2 pipes, sockets or devices"), "{told:?}");
    assert_eq!(place.shell("ls copy copy2").out, "copy:\none\n\ncopy2:\none\n");
}

#[test]
fn any_tree_arrives_whole() {
    // Trees from seeds, with awkward names and sizes.
    for seed in 1..=6 {
        let place = Place::new();
        std::fs::create_dir(place.0.join("tree")).unwrap();
        let mut words = bytes(4096, seed).into_iter();
        let mut left = 60;
        fill(&place.0.join("tree"), &mut words, &mut left, 0);
        let io = if seed % 2 == 0 { "uring" } else { "threads" };
        place.run(&["pump", "tree", "copy", "-q", "--io", io, "--streams", "3"]).is_done();
        are_same(&place.0.join("tree"), &place.0.join("copy"));
        // And file by file into the existing tree.
        place.run(&["pump", "tree/", "copy/", "-q", "--io", io]).is_done();
        are_same(&place.0.join("tree"), &place.0.join("copy"));
    }
}

fn fill(dir: &Path, words: &mut impl Iterator<Item = u8>, left: &mut u32, depth: u32) {
    use std::os::unix::ffi::OsStringExt;
    let mut word = || words.next().unwrap_or(0);
    let many = word() % 12;
    let made: Vec<_> = (0..many).map(|i| (i, word(), word(), word())).collect();
    for (i, kind, size, name) in made {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let mut bare: Vec<u8> = vec![b'a' + i, name.max(1)];
        bare.retain(|b| *b != b'/');
        if kind % 7 == 0 {
            bare.resize(200 + usize::from(size) % 56, b'n');
        }
        let path = dir.join(std::ffi::OsString::from_vec(bare));
        match kind % 5 {
            0 if depth < 8 => {
                std::fs::create_dir(&path).unwrap();
                fill(&path, words, left, depth + 1);
            }
            1 => std::os::unix::fs::symlink(format!("to/{size}"), &path).unwrap(),
            2 => std::fs::write(&path, bytes(usize::from(size) * 4096 + usize::from(name), 1)).unwrap(),
            _ => std::fs::write(&path, bytes(usize::from(size), 2)).unwrap(),
        }
    }
}

#[test]
fn a_tree_that_is_deeper_than_a_path_may_be_long_arrives() {
    let place = Place::new();
    let name = "d".repeat(200);
    let make =
        format!("mkdir tree; (cd tree; for i in $(seq 1 40); do mkdir {name}; cd {name}; echo $i > f; done)");
    place.shell(&make).is_done();
    place.run(&["pump", "tree", "copy", "-q"]).is_done();
    let deep = format!("for i in $(seq 1 40); do cd {name} || exit 1; done; cat f");
    assert_eq!(place.shell(&format!("cd copy; {deep}")).is_done(), "40\n");
    place.shell("rm -rf tree copy").is_done();
}

//! The contents of a tree, by a walk of our own: everything that a copy preserves.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// By path from the top: kind and permissions, owner, time, number of names, and contents or target.
pub(crate) type Tree = BTreeMap<Vec<u8>, One>;
type One = (u32, (u32, u32), (i64, i64), u64, Vec<u8>);

/// Everything under `top`, including `top` itself, except pipes, sockets and devices.
pub(crate) fn tree(top: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(top, top, &mut tree);
    tree
}

fn walk(top: &Path, path: &Path, tree: &mut Tree) {
    let meta = path.symlink_metadata().expect("it is there");
    let kind = meta.file_type();
    let content = if kind.is_symlink() {
        path.read_link().unwrap().as_os_str().as_bytes().to_vec()
    } else if kind.is_file() {
        std::fs::read(path).unwrap()
    } else if kind.is_dir() {
        Vec::new()
    } else {
        return;
    };
    let links = if kind.is_file() { meta.nlink() } else { 0 };
    // A link's permissions mean nothing.
    let mode = if kind.is_symlink() { 0o120000 } else { meta.mode() };
    let key = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
    let time = (meta.mtime(), meta.mtime_nsec());
    tree.insert(key, (mode, (meta.uid(), meta.gid()), time, links, content));
    if kind.is_dir() {
        for entry in path.read_dir().unwrap() {
            walk(top, &entry.unwrap().path(), tree);
        }
    }
}

/// Checks that two trees are the same in everything that a walk sees.
#[track_caller]
pub(crate) fn are_same(a: &Path, b: &Path) {
    let (a, b) = (tree(a), tree(b));
    let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let names = |tree: &Tree| tree.keys().map(|key| name(key)).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for (key, one) in &a {
        let other = &b[key];
        let short = |x: &One| (x.0, x.1, x.2, x.3, x.4.len());
        assert_eq!(short(one), short(other), "{}", name(key));
        assert!(one.4 == other.4, "{}: other bytes", name(key));
    }
}

/// Makes `tree`, with everything that a tree may contain.
#[allow(dead_code)] // Not every program of tests makes it.
pub(crate) const OF_EVERYTHING: &str = r#"
mkdir -p tree/a/b/c tree/empty tree/closed tree/many
head -c 5000000 /dev/urandom > tree/a/large; head -c 131073 /dev/urandom > tree/a/beyond
: > tree/a/nothing; printf x > tree/a/b/one
ln tree/a/large tree/a/b/again; ln tree/a/b/one tree/one_too; ln tree/a/b/one tree/closed/one_three
ln -s a/large tree/link; ln -s /nowhere/at/all tree/dangling; ln -s ../.. tree/a/b/up
printf odd > $'tree/odd\nname\xff\xfe'; printf dash > tree/-dash
truncate -s 40M tree/holes; printf in > tree/in; dd if=tree/in of=tree/holes bs=1 seek=20M conv=notrunc status=none
for i in $(seq 1 700); do echo $i > tree/many/$i; done
chmod 4755 tree/in; chmod 600 tree/a/b/one; chmod 555 tree/closed
touch -d '1999-12-31 23:59:59.987654321' tree/a/nothing tree/empty tree/many; touch -h -d 2002-02-02 tree/link
"#;

/// Makes `tree`, with attributes of all kinds on files and directories.
#[allow(dead_code)] // Not every program of tests makes it.
pub(crate) const WITH_ATTRIBUTES: &str = r#"
mkdir -p tree/sub/deep tree/plain; echo 1 > tree/small; echo 2 > tree/plain/none; : > tree/sub/deep/nothing
head -c 3000000 /dev/urandom > tree/large; cp /bin/true tree/sub/program; ln tree/small tree/sub/again
setfattr -n user.comment -v hello tree/small; setfattr -n user.empty tree/small
setfattr -n user.binary -v 0x00ff0a tree/large; setfattr -n user.long -v $(printf '%01500d' 7) tree/sub/deep/nothing
setfattr -n user.directory -v x tree/sub/deep; setfattr -n trusted.note -v y tree/sub; setfattr -n user.top -v z tree
setfacl -m u:1234:rw,g:77:r tree/small; setfacl -m u:1234:- tree/large; setfacl -d -m u:1234:rx,o::- tree/sub
setfacl -m g:77:rwx tree/sub/deep; setfacl -m u:55:rx tree; chmod 2750 tree/sub/deep
setcap cap_net_raw+ep tree/sub/program; touch -d 2001-02-03 tree/small tree/large tree/sub/deep tree/sub tree
"#;

/// Prints the attributes of everything in a directory.
#[allow(dead_code)] // As above.
pub(crate) const ATTRIBUTES: &str = "find . ! -type l | sort | while read -r name; do \
stat -c '%n %a %u %g %Y' \"$name\"; getfattr -d -m - -e hex \"$name\"; getfacl -n -p \"$name\"; getcap \"$name\"; done";

//! What is in a tree, by a walk of our own: everything that a copy has to keep.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// By its way from the top: kind and permissions, owner, time, names, and bytes or where it leads.
pub(crate) type Tree = BTreeMap<Vec<u8>, One>;
type One = (u32, (u32, u32), (i64, i64), u64, Vec<u8>);

/// Everything under `top`, itself included, but for pipes, sockets and devices.
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

/// That two trees are the same in all that a walk sees.
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

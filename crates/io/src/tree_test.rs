//! The contract of every file system, tested on the local one and on the simulated one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sim::Sim;
use crate::threads::Threads;
use crate::tree::{Attributes, Dir, EntryKind, Tree, clear, remove_all};
use crate::{FileSystem, Result, local};

/// A directory of a real or simulated disk; removed when the test ends.
struct Place {
    tree: Arc<dyn Tree>,
    path: PathBuf,
    dir: Arc<dyn Dir>,
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

impl Place {
    /// On each disk: an open directory `in` with a tree, and `out` beside it, which nothing may touch.
    fn all(test: &str) -> [Place; 2] {
        let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
        let sim = Sim::new(1);
        let above = std::env::temp_dir();
        sim.make_dir(&above);
        [local::tree(&io), sim.tree()].map(|tree| {
            let top = tree.open_dir(&above).unwrap();
            let called = format!("thalweg-tree-{test}-{}", std::process::id());
            assert!(top.make_dir(name(&called)).unwrap());
            let place = top.open_dir(name(&called)).unwrap();
            for (way, new) in [("", "in"), ("in", "a"), ("in/a", "b"), ("", "out"), ("out", "etc")] {
                assert!(place.open_below(Path::new(way)).unwrap().make_dir(name(new)).unwrap());
            }
            let path = above.join(called);
            let dir = tree.open_dir(&path.join("in")).unwrap();
            dir.open_dir(name("a")).unwrap().make_link(name("l"), name("../../out")).unwrap();
            dir.make_link(name("absolute"), path.join("out").as_os_str()).unwrap();
            Place { tree, path, dir }
        })
    }

    fn names_of(&self, path: &str) -> Vec<String> {
        let dir = self.tree.open_dir(&self.path.join(path)).unwrap();
        let mut names: Vec<_> = dir.names().unwrap().some(1000).unwrap().into_iter().map(|n| n.0).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let above = self.tree.open_dir(self.path.parent().unwrap());
        let _ = above.and_then(|above| remove_all(&*above, self.path.file_name().unwrap()));
    }
}

#[test]
fn no_operation_leaves_its_directory() {
    for place in Place::all("leaves") {
        let dir = &place.dir;
        let (attributes, a) = (dir.attributes().unwrap(), dir.open_dir(name("a")).unwrap());
        let good = name("b");
        for bad in ["", "..", "../out", "/etc/passwd", "a/l", "a/l/etc", "absolute/etc", "a/", "b\0c"] {
            let n = name(bad);
            let mut refused = vec![
                dir.open_dir(n).map(drop),
                dir.attributes_of(n).map(drop),
                dir.open_file(n, false).map(drop),
                dir.reopen_file(n, true, None).map(drop),
                dir.reopen_dir(n).map(drop),
                dir.read_link(n).map(drop),
                dir.link(good, &a, n),
                dir.rename(n, good),
                dir.remove(n),
                remove_all(&**dir, n),
                dir.remove_dir(n),
                dir.set_link_attributes(n, &attributes),
            ];
            // A simulated disk accepts any name without a slash.
            if !bad.contains('\0') {
                refused.extend([
                    dir.create_file(n, 0o600, false).map(drop),
                    dir.make_dir(n).map(drop),
                    dir.make_link(n, good),
                    dir.link(n, &a, good),
                    dir.rename(good, n),
                ]);
            }
            for (number, outcome) in refused.into_iter().enumerate() {
                assert!(outcome.is_err(), "operation {number} on {bad:?} of {:?}", place.tree);
            }
        }
        assert_eq!(place.names_of("out"), ["etc"]);
    }
}

#[test]
fn a_path_below_leads_down_and_through_no_link() {
    for place in Place::all("below") {
        let below = |path: &str| place.dir.open_below(Path::new(path));
        for path in
            ["a/l", "a/l/etc", "absolute", "absolute/etc", "..", "a/../..", "/", "/etc", "a/../../out"]
        {
            assert!(below(path).is_err(), "{path}");
        }
        assert!(below("a/b").unwrap().path().ends_with("in/a/b"));
        assert_eq!(below("").unwrap().attributes().unwrap(), place.dir.attributes().unwrap());
    }
}

#[test]
fn a_tree_goes_with_all_that_is_in_it_and_links_in_it_lead_nowhere() {
    for place in Place::all("goes") {
        let mut dir = place.dir.open_dir(name("a")).unwrap();
        for _ in 0..300 {
            assert!(dir.make_dir(name("d")).unwrap());
            dir = dir.open_dir(name("d")).unwrap();
        }
        remove_all(&*place.dir, name("a")).unwrap();
        remove_all(&*place.dir, name("absolute")).unwrap();
        assert_eq!(place.names_of("in"), [""; 0]);
        assert_eq!(place.names_of("out"), ["etc"]);
    }
}

#[test]
fn names_links_and_attributes_are_what_they_were_made() {
    for place in Place::all("made") {
        let (tree, dir) = (&*place.tree, &place.dir);
        let a = dir.open_dir(name("a")).unwrap();
        let file = dir.create_file(name("f"), 0o600, false).unwrap();
        file.write_at(0, b"four").unwrap();
        let wanted =
            Attributes { mode: 0o640, modified_ns: -5_000_000_003, ..tree.attributes(&file).unwrap() };
        tree.set_attributes(&file, &wanted).unwrap();
        a.link(name("g"), dir, name("f")).unwrap();
        let found = a.attributes_of(name("g")).unwrap();
        assert_eq!((found.kind, found.len, found.mode, found.links), (EntryKind::File, 4, 0o640, 2));
        assert_eq!(found.modified_ns, -5_000_000_003);
        assert!(found.is_same(&tree.attributes(&file).unwrap()));
        assert!(dir.create_file(name("f"), 0o600, false).is_err() && !dir.make_dir(name("f")).unwrap());
        let several = dir.reopen_file(name("f"), false, None).map(drop);
        assert!(several.is_err(), "a file of two names may be somebody else's");
        a.remove(name("g")).unwrap();
        dir.reopen_file(name("f"), false, None).unwrap();
        assert_eq!(a.read_link(name("l")).unwrap(), "../../out");
        assert_eq!(
            tree.canonical(&place.path.join("in/a/l/etc/..")).unwrap(),
            tree.canonical(&place.path.join("out")).unwrap()
        );
    }
}

#[test]
fn a_directory_stays_the_same_one_when_it_is_renamed() {
    for place in Place::all("renamed") {
        let dir = &place.dir;
        let a = dir.open_dir(name("a")).unwrap();
        let (before, created) = (a.attributes().unwrap().inode, a.created_ns());
        dir.rename(name("a"), name("z")).unwrap();
        assert!(a.make_dir(name("new")).unwrap());
        assert_eq!(place.names_of("in/z"), ["b", "l", "new"]);
        let now = dir.open_dir(name("z")).unwrap();
        assert_eq!((now.attributes().unwrap().inode, now.created_ns()), (before, created));
        let refused: [Result<()>; 4] = [
            dir.remove(name("z")),
            dir.remove_dir(name("z")),
            dir.rename(name("absolute"), name("z")),
            dir.rename(name("z"), name("absolute")),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        clear(&*now).unwrap();
        assert!(now.is_empty().unwrap());
        dir.remove_dir(name("z")).unwrap();
        assert_eq!(dir.find(name("z")).unwrap(), None);
    }
}

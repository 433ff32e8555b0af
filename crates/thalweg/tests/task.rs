//! The builder: each verb on real files, and options that do not fit together are refused.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

use std::path::{Path, PathBuf};

use thalweg::{
    Cluster, Endpoint, Error, JoinKind, KeyPart, PartitionPick, Progress, Receipt, Task, Transfer,
};

/// A directory for one test, removed when the test ends.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("task-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn done(task: Task) -> Receipt {
    let receipt = task.memory(64 << 20).threads(2).run(&Progress::default()).unwrap();
    assert!(receipt.holds, "{receipt:?}");
    receipt
}

#[test]
fn each_verb_does_what_its_name_says() {
    let place = Place::new("verbs");
    let (a, b) = (place.write("a", "fig\nkiwi\nfig\n"), place.write("b", "apple\nplum\n"));
    done(Task::sort([a.clone(), b.clone()], place.at("out")).scratch(&place.0));
    assert_eq!(place.read("out"), "apple\nfig\nfig\nkiwi\nplum\n");
    done(Task::sort([a.clone()], place.at("out")).unique());
    assert_eq!(place.read("out"), "fig\nkiwi\n");
    done(Task::merge([place.at("out"), b], place.at("merged")));
    assert_eq!(place.read("merged"), "apple\nfig\nkiwi\nplum\n");
    done(Task::shuffle([place.at("merged")], place.at("shuffled"), 7));
    let mut lines: Vec<String> = place.read("shuffled").lines().map(String::from).collect();
    lines.sort();
    assert_eq!(lines, ["apple", "fig", "kiwi", "plum"]);
    let parted = done(Task::partition([a], place.at("part-{}"), PartitionPick::Robin, 2));
    assert_eq!(parted.partition.unwrap().parts.len(), 2);
    assert_eq!((place.read("part-0"), place.read("part-1")), ("fig\nfig\n".into(), "kiwi\n".into()));
}

#[test]
fn a_join_has_a_key_and_a_length_for_each_side() {
    let place = Place::new("join");
    let (left, right) = (place.write("left", "aa1bb2"), place.write("right", "9bb8cc"));
    let join = Task::join(left, right, place.at("out"), JoinKind::Inner).record(3).key(0, 2);
    done(join.right_record(3).right_key(&[KeyPart { offset: 1, length: 2, descending: false }]));
    assert_eq!(place.read("out"), "bb29bb");
}

#[test]
fn a_transfer_moves_a_file() {
    let place = Place::new("transfer");
    let from = place.write("from", "bytes");
    let receipt = Transfer::new([from], place.at("to")).run(&Progress::default()).unwrap();
    assert!(receipt.holds && place.read("to") == "bytes", "{receipt:?}");
}

#[test]
fn what_a_verb_does_not_have_is_refused() {
    let place = Place::new("refused");
    let from = place.write("in", "b\na\n");
    let refused = |task: Task| match task.run(&Progress::default()) {
        Err(Error::Asked(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let shuffle = || Task::shuffle([from.clone()], place.at("out"), 1);
    let both = shuffle().nodes(2).on(Cluster::default());
    assert!(refused(both).contains("a cluster has nodes of its own"));
    assert!(refused(shuffle().unique()).contains("a shuffle cannot drop records"));
    assert!(refused(shuffle().resume()).contains("a shuffle cannot resume"));
    let mut one_side = Task::join(from.clone(), from.clone(), place.at("out"), JoinKind::Left);
    one_side.options.right = None;
    assert!(refused(one_side).contains("a join has a right side"));
    assert!(
        refused(Task::sort([Endpoint::from("nodes:in")], place.at("out"))).contains("not on this machine")
    );
    assert!(!place.at("out").exists());
}

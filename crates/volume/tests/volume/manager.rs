//! The manager killed after every change, and without power anywhere in its log.

use std::path::{Path, PathBuf};

use thalweg_base::rng::Rng;
use thalweg_volume::layout::Policy;
use thalweg_volume::{Change, Inode, Kind, Manager, New, Place, ROOT, Renaming, SqliteManager, Written};

use crate::bed::copy;

/// Everything that the manager knows: each path, what it leads to, and its attributes.
type State = Vec<(Vec<u8>, Inode, Vec<(Vec<u8>, Vec<u8>)>)>;

fn state(manager: &SqliteManager) -> State {
    fn walk(manager: &SqliteManager, directory: u64, above: &[u8], all: &mut State) {
        for entry in manager.names(directory, b"", usize::MAX).unwrap() {
            let path = [above, b"/", &entry.name].concat();
            let id = entry.inode.id;
            all.push((path.clone(), entry.inode, manager.attributes(id).unwrap()));
            if all.last().unwrap().1.kind == Kind::Directory {
                walk(manager, id, &path, all);
            }
        }
    }
    let mut all = Vec::new();
    walk(manager, ROOT, b"", &mut all);
    all
}

fn place(rng: &mut Rng, directories: &[u64]) -> Place {
    let directory = directories[rng.below(directories.len() as u64) as usize];
    Place { directory, name: vec![b'a' + rng.below(4) as u8, 0xff] }
}

fn change(rng: &mut Rng, inodes: &[u64], directories: &[u64]) -> Change {
    let inode = inodes[rng.below(inodes.len() as u64) as usize];
    let kind = [Kind::File, Kind::Directory, Kind::Link, Kind::BlockDevice(7)][rng.below(4) as usize];
    let new = New { kind, mode: 0o640, umask: 0, user: 1, group: 2, target: vec![] };
    let n = rng.below(1000);
    match rng.below(12) {
        0..5 => Change::Create(place(rng, directories), new),
        5 => Change::Remove(place(rng, directories), rng.one_in(2)),
        6 => {
            let how = [Renaming::Replace, Renaming::NoReplace, Renaming::Exchange][rng.below(3) as usize];
            Change::Rename(place(rng, directories), place(rng, directories), how)
        }
        7 => Change::Link(inode, place(rng, directories)),
        8 => Change::Settle(Written { inode, generation: 0, size: n, modified_ns: 5, strips: 3 }, false),
        9 => Change::Resize(inode, n, 6),
        10 => Change::SetAttribute(inode, b"user.x".to_vec(), (n > 300).then(|| n.to_le_bytes().to_vec())),
        _ => Change::Unsettle(inode),
    }
}

struct Cleared(PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn new(name: &str) -> (Cleared, PathBuf) {
    let place = std::env::temp_dir().join(format!("thalweg-manager-{name}-{}", std::process::id()));
    let dir = place.join("meta");
    std::fs::create_dir_all(&dir).unwrap();
    SqliteManager::create(&dir, 7, &["/a".into(), "/b".into()], &Policy::default(), (3, 4)).unwrap();
    (Cleared(place), dir)
}

/// What whoever opens the database finds, if its log ends here.
fn found(dir: &Path, log_bytes: Option<u64>) -> State {
    let left = dir.with_extension("left");
    copy(dir, &left);
    if let Some(bytes) = log_bytes {
        std::fs::OpenOptions::new()
            .write(true)
            .open(left.join("manager.db-wal"))
            .unwrap()
            .set_len(bytes)
            .unwrap();
    }
    let state = state(&SqliteManager::open(&left).unwrap());
    std::fs::remove_dir_all(&left).unwrap();
    state
}

fn log_bytes(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("manager.db-wal")).unwrap().len()
}

#[test]
fn what_is_acknowledged_survives_a_kill_and_a_power_loss_costs_the_newest_changes_only() {
    let (_place, dir) = new("crash");
    let manager = SqliteManager::open(&dir).unwrap();
    let mut rng = Rng::new(1);
    let (mut inodes, mut directories) = (vec![ROOT], vec![ROOT]);
    let mut history = vec![state(&manager)];
    let (mut synced, mut synced_log_bytes) = (0, 0);
    for n in 0..150 {
        let change = change(&mut rng, &inodes, &directories);
        let before = history.last().unwrap();
        match manager.change(&change) {
            Ok(made) if matches!(change, Change::Create(..)) => {
                inodes.push(made.id);
                directories.extend((made.kind == Kind::Directory).then_some(made.id));
            }
            Ok(_) => {}
            Err(_) => assert_eq!(&state(&manager), before, "a change that is refused changes nothing"),
        }
        history.push(state(&manager));
        assert_eq!(&found(&dir, None), history.last().unwrap(), "after {change:?}");
        if n % 10 == 0 {
            manager.sync().unwrap();
            (synced, synced_log_bytes) = (history.len() - 1, log_bytes(&dir));
        }
        let most = log_bytes(&dir) - synced_log_bytes;
        let cut = synced_log_bytes + if most == 0 { 0 } else { rng.below(most) };
        let after = found(&dir, Some(cut));
        assert!(history[synced..].contains(&after), "the log ends at byte {cut}, after {change:?}");
    }
    assert!(history.iter().any(|state| state.len() > 5), "most changes were carried out");
}

#[test]
fn the_number_of_an_inode_is_never_given_again() {
    let (_place, dir) = new("numbers");
    let create = |manager: &SqliteManager, name: &str| {
        let new = New { kind: Kind::File, mode: 0o600, umask: 0, user: 0, group: 0, target: vec![] };
        manager.change(&Change::Create(Place { directory: ROOT, name: name.into() }, new)).unwrap().id
    };
    let manager = SqliteManager::open(&dir).unwrap();
    create(&manager, "first");
    manager.sync().unwrap();
    let bytes = log_bytes(&dir);
    let lost = create(&manager, "lost");
    let left = dir.with_extension("left");
    copy(&dir, &left);
    std::fs::OpenOptions::new()
        .write(true)
        .open(left.join("manager.db-wal"))
        .unwrap()
        .set_len(bytes)
        .unwrap();
    let next = SqliteManager::open(&left).unwrap();
    assert!(next.lookup(&Place { directory: ROOT, name: b"lost".to_vec() }).unwrap().is_none());
    assert!(create(&next, "next") > lost);
}

#[test]
fn names_are_refused_as_system_calls_refuse_them() {
    let (_place, dir) = new("names");
    let manager = SqliteManager::open(&dir).unwrap();
    let at = |directory: u64, name: &[u8]| Place { directory, name: name.to_vec() };
    let make = |place: Place, kind: Kind| {
        let new = New { kind, mode: 0o600, umask: 0, user: 0, group: 0, target: vec![] };
        manager.change(&Change::Create(place, new))
    };
    let outer = make(at(ROOT, b"outer"), Kind::Directory).unwrap().id;
    let inner = make(at(outer, b"inner"), Kind::Directory).unwrap().id;
    let file = make(at(ROOT, b"file"), Kind::File).unwrap().id;
    assert_eq!((manager.inode(ROOT).unwrap().links, manager.inode(outer).unwrap().links), (3, 3));
    make(at(ROOT, &[0xfe; 255]), Kind::File).unwrap();
    let refused = |change: Change| manager.change(&change).unwrap_err().errno();
    let new = || New { kind: Kind::File, mode: 0o600, umask: 0, user: 0, group: 0, target: vec![] };
    for (errno, change) in [
        (libc::EEXIST, Change::Create(at(ROOT, b"file"), new())),
        (libc::ENAMETOOLONG, Change::Create(at(ROOT, &[b'x'; 256]), new())),
        (libc::EINVAL, Change::Create(at(ROOT, b".."), new())),
        (libc::EINVAL, Change::Create(at(ROOT, b"a/b"), new())),
        (libc::EINVAL, Change::Create(at(ROOT, b"a\0b"), new())),
        (libc::ENOTDIR, Change::Create(at(file, b"x"), new())),
        (libc::ENOENT, Change::Remove(at(ROOT, b"none"), false)),
        (libc::EISDIR, Change::Remove(at(ROOT, b"outer"), false)),
        (libc::ENOTDIR, Change::Remove(at(ROOT, b"file"), true)),
        (libc::ENOTEMPTY, Change::Remove(at(ROOT, b"outer"), true)),
        (libc::EINVAL, Change::Rename(at(ROOT, b"outer"), at(inner, b"x"), Renaming::Replace)),
        (libc::EISDIR, Change::Rename(at(ROOT, b"file"), at(ROOT, b"outer"), Renaming::Replace)),
        (libc::ENOTDIR, Change::Rename(at(ROOT, b"outer"), at(ROOT, b"file"), Renaming::Replace)),
        (libc::EPERM, Change::Link(outer, at(ROOT, b"x"))),
        (libc::ENODATA, Change::SetAttribute(file, b"user.none".to_vec(), None)),
    ] {
        assert_eq!(refused(change.clone()), errno, "{change:?}");
    }
    assert_eq!(manager.change(&Change::Link(file, at(outer, b"more"))).unwrap().links, 2);
    assert_eq!(manager.change(&Change::Remove(at(ROOT, b"file"), false)).unwrap().links, 1);
    manager.change(&Change::Rename(at(outer, b"inner"), at(ROOT, b"moved"), Renaming::Replace)).unwrap();
    assert_eq!((manager.inode(ROOT).unwrap().links, manager.inode(outer).unwrap().links), (4, 2));
}

//! Transfers on a simulated disk that are killed, or lose power, at every operation.
//!
//! Invariant: whatever was durable before stays. A new tree is absent or complete; a file in an existing directory is
//! the old one or the new one. The same transfer completes when resumed, and leaves nothing hidden. The result of a
//! complete transfer survives a power loss.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::PumpReceipt;
use thalweg_base::rng::Rng;
use thalweg_io::sim::{Faults, Sim};
use thalweg_io::threads::Threads;
use thalweg_io::tree::{Attributes, Dir, EntryKind, Tree};
use thalweg_io::{FileSystem, local};
use thalweg_pump::Unwatched;
use xxhash_rust::xxh3::xxh3_128;

use crate::{Error, From, Result, To, Transfer, run};

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(len).collect()
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// Gives an entry a time and a mode that no other entry has.
fn dated(attributes: Attributes, number: u32) -> Attributes {
    Attributes { mode: 0o700 + number, modified_ns: 1_000_000_000 * i128::from(number) + 7, ..attributes }
}

fn put(tree: &dyn Tree, dir: &dyn Dir, (called, number): (&str, u32), bytes: &[u8]) {
    let file = dir.create_file(name(called), 0o600, false).unwrap();
    file.write_at(0, bytes).unwrap();
    tree.set_attributes(&file, &dated(tree.attributes(&file).unwrap(), number)).unwrap();
}

/// A tree with small files, one that moves in pieces and has a hole, links, and a file with two names.
fn build(tree: &dyn Tree, at: &Path) {
    let above = tree.open_dir(at.parent().unwrap()).unwrap();
    assert!(above.make_dir(at.file_name().unwrap()).unwrap());
    let top = tree.open_dir(at).unwrap();
    assert!(top.make_dir(name("sub")).unwrap());
    let sub = top.open_dir(name("sub")).unwrap();
    put(tree, &*top, ("empty", 1), b"");
    put(tree, &*top, ("small", 2), b"a small file");
    put(tree, &*sub, ("other", 3), &noise(1, 10_000));
    let large = top.create_file(name("large"), 0o600, false).unwrap();
    large.write_at(0, &noise(2, 150_000)).unwrap();
    large.write_at(250_000, &noise(3, 9_999)).unwrap();
    tree.set_attributes(&large, &dated(tree.attributes(&large).unwrap(), 4)).unwrap();
    top.make_link(name("link"), name("sub/other")).unwrap();
    top.set_link_attributes(name("link"), &dated(top.attributes_of(name("link")).unwrap(), 5)).unwrap();
    sub.link(name("second"), &top, name("small")).unwrap();
    sub.set_attributes(&dated(sub.attributes().unwrap(), 6)).unwrap();
    top.set_attributes(&dated(top.attributes().unwrap(), 7)).unwrap();
    top.sync_file_system().unwrap();
}

/// The properties of one entry: its kind, mode, time, a hash of its bytes or its target, and the first of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    kind: EntryKind,
    mode: u32,
    modified_ns: i128,
    hash: u128,
    first: PathBuf,
}

type Entries = BTreeMap<PathBuf, Entry>;

/// Everything below a directory, and the directory itself.
fn entries(tree: &dyn Tree, at: &Path) -> Option<Entries> {
    let top = tree.open_dir(at).ok()?;
    let mut firsts = BTreeMap::new();
    let mut entries = Entries::new();
    let mut open = vec![(PathBuf::new(), top)];
    while let Some((path, dir)) = open.pop() {
        let mut add = |path: PathBuf, attributes: Attributes, bytes: &[u8]| {
            let Attributes { kind, mode, modified_ns, inode, .. } = attributes;
            let first = firsts.entry(inode).or_insert_with(|| path.clone()).clone();
            entries.insert(path, Entry { kind, mode, modified_ns, hash: xxh3_128(bytes), first });
        };
        add(path.clone(), dir.attributes().unwrap(), b"");
        let mut names: Vec<OsString> =
            dir.names().unwrap().some(1000).unwrap().into_iter().map(|n| n.0).collect();
        names.sort();
        for called in names {
            let attributes = dir.attributes_of(&called).unwrap();
            match attributes.kind {
                EntryKind::Directory => open.push((path.join(&called), dir.open_dir(&called).unwrap())),
                EntryKind::Link => {
                    let target = dir.read_link(&called).unwrap().into_encoded_bytes();
                    add(path.join(&called), attributes, &target);
                }
                _ => {
                    let mut bytes = vec![0; attributes.len as usize];
                    dir.open_file(&called, false).unwrap().read_exact_at(0, &mut bytes).unwrap();
                    add(path.join(&called), attributes, &bytes);
                }
            }
        }
    }
    Some(entries)
}

fn has_hidden(tree: &dyn Tree) -> bool {
    let is_hidden = |path: &PathBuf| path.iter().any(|name| name.as_encoded_bytes().starts_with(b"."));
    ["/here", "/there"].iter().any(|at| entries(tree, Path::new(at)).unwrap().keys().any(is_hidden))
}

/// A transfer, and what must hold on its disk.
struct Case {
    from: &'static str,
    to: &'static str,
    base: Sim,
    /// Checks a disk after a crash.
    holds: fn(&dyn Tree, &Tried),
    /// Checks a disk after the transfer.
    done: fn(&dyn Tree, &Tried),
}

/// The disk before the transfer.
struct Tried {
    source: Entries,
    dest: Option<Entries>,
    what: String,
}

fn transfer(sim: &Sim, (from, to): (&str, &str), resume: bool) -> Result<PumpReceipt> {
    let tree = sim.tree();
    let transfer = Transfer { resume, ..Transfer::new(vec![From::Path(from.into())], To::Path(to.into())) };
    run(&transfer, &tree, &tree, &Unwatched)
}

impl Case {
    /// The disk that the next process finds when this transfer ends at boundary `crash_at`, and the transfer's result.
    fn crash(&self, sim: &Sim, crash_at: u64, power: bool, resume: bool) -> (Sim, Option<PumpReceipt>) {
        sim.set_faults(Faults {
            crash_at: Some(sim.boundaries() + crash_at),
            reorder: true,
            ..Faults::default()
        });
        let receipt = match transfer(sim, (self.from, self.to), resume) {
            Ok(receipt) => Some(receipt),
            Err(Error::Io(e)) if Sim::is_crash(&e) => None,
            Err(e) => panic!("{} -> {} at {crash_at}: {e}", self.from, self.to),
        };
        if power {
            sim.power_loss();
        }
        (sim.restart(), receipt)
    }

    /// Crashes at every boundary, and again while it resumes; returns the bytes that were not moved again.
    fn crash_everywhere(&self, seed: u64) -> u64 {
        let mut rng = Rng::new(seed);
        let mut resumed = 0;
        let base = self.base.restart();
        let tree = base.tree();
        let (source, dest) = (self.look(&*tree, self.from), self.look(&*tree, self.to));
        let mut tried = Tried { source: source.unwrap(), dest, what: String::new() };
        for power in [false, true] {
            for crash_at in 0.. {
                let (mut sim, mut receipt) = self.crash(&self.base.restart(), crash_at, power, false);
                let ended = receipt.is_some();
                let mut crashes = 1;
                loop {
                    tried.what = format!(
                        "{} -> {}, seed {seed}, power {power}, boundary {crash_at}, crash {crashes}",
                        self.from, self.to
                    );
                    assert_eq!(
                        self.look(&*sim.tree(), self.from).as_ref(),
                        Some(&tried.source),
                        "{}",
                        tried.what
                    );
                    (self.holds)(&*sim.tree(), &tried);
                    if receipt.is_some() || self.is_complete(&*sim.tree(), &tried) {
                        break;
                    }
                    let next = if crashes < 3 { rng.below(40) } else { u64::MAX / 2 };
                    (sim, receipt) = self.crash(&sim, next, power, true);
                    crashes += 1;
                }
                (self.done)(&*sim.tree(), &tried);
                assert!(!has_hidden(&*sim.tree()), "{}", tried.what);
                if let Some(receipt) = receipt {
                    resumed += receipt.resumed_bytes;
                    let there = self.look(&*sim.tree(), self.to);
                    sim.power_loss();
                    assert_eq!(
                        self.look(&*sim.restart().tree(), self.to),
                        there,
                        "not durable: {}",
                        tried.what
                    );
                }
                if ended {
                    break;
                }
            }
        }
        resumed
    }

    /// Whether a transfer has succeeded although its result was lost. Running it again would put the tree into itself.
    fn is_complete(&self, tree: &dyn Tree, tried: &Tried) -> bool {
        self.look(tree, self.to).as_ref() == Some(&tried.source) && !has_hidden(tree)
    }

    /// Everything below a path, or the file that it names.
    fn look(&self, tree: &dyn Tree, path: &str) -> Option<Entries> {
        let path = Path::new(path);
        entries(tree, path).or_else(|| {
            let mut there = entries(tree, path.parent().unwrap())?;
            there.retain(|other, _| Some(other.as_os_str()) == path.file_name());
            (!there.is_empty()).then_some(there)
        })
    }
}

fn disk(seed: u64) -> Sim {
    let sim = Sim::new(seed);
    sim.make_dir("/here");
    sim.make_dir("/there");
    build(&*sim.tree(), Path::new("/here/tree"));
    sim
}

/// A transfer has some hundreds of boundaries, so a few seeds take seconds.
const SEEDS: u64 = 3;

#[test]
fn a_new_tree_is_absent_or_complete_whenever_its_transfer_ends() {
    let mut resumed = 0;
    for seed in 0..SEEDS {
        let case = Case {
            from: "/here/tree",
            to: "/there/copy",
            base: disk(seed),
            holds: |tree, tried| {
                if let Some(there) = entries(tree, Path::new("/there/copy")) {
                    assert_eq!(there, tried.source, "{}", tried.what);
                }
            },
            done: |tree, tried| {
                assert_eq!(
                    entries(tree, Path::new("/there/copy")).as_ref(),
                    Some(&tried.source),
                    "{}",
                    tried.what
                );
            },
        };
        resumed += case.crash_everywhere(seed);
    }
    assert!(resumed > 0, "nothing was ever resumed");
}

#[test]
fn canary_a_transfer_is_lost_if_the_disk_ignores_its_syncs() {
    let is_lost = |seed| {
        let sim = disk(seed);
        sim.set_faults(Faults { ignore_syncs: true, ..Faults::default() });
        assert!(transfer(&sim, ("/here/tree", "/there/copy"), false).unwrap().holds);
        sim.power_loss();
        entries(&*sim.restart().tree(), Path::new("/there/copy")).is_none()
    };
    let lost = (0..20).filter(|seed| is_lost(*seed)).count();
    assert!((1..20).contains(&lost), "{lost} of 20");
}

/// The other direction: into a directory that has some of the names, with older files.
#[test]
fn files_of_a_directory_are_old_or_new_whenever_the_transfer_into_it_ends() {
    for seed in 0..SEEDS {
        let sim = disk(seed);
        let tree = sim.tree();
        let there = tree.open_dir(Path::new("/there")).unwrap();
        put(&*tree, &*there, ("small", 8), b"older");
        put(&*tree, &*there, ("large", 9), &noise(9, 300_000));
        put(&*tree, &*there, ("own", 10), b"not in the source");
        there.sync_file_system().unwrap();
        let case = Case {
            from: "/here/tree/",
            to: "/there",
            base: sim,
            holds: |tree, tried| {
                let (now, before) =
                    (entries(tree, Path::new("/there")).unwrap(), tried.dest.as_ref().unwrap());
                for (path, old) in before.iter().filter(|(_, old)| old.kind == EntryKind::File) {
                    let found = &now[path];
                    let new = tried.source.get(path);
                    let is =
                        |entry: &Entry| (found.hash, found.modified_ns) == (entry.hash, entry.modified_ns);
                    assert!(is(old) || new.is_some_and(is), "{} of {}", path.display(), tried.what);
                }
            },
            done: |tree, tried| {
                let mut now = entries(tree, Path::new("/there")).unwrap();
                let own = now.remove(Path::new("own")).unwrap();
                assert_eq!(own, tried.dest.as_ref().unwrap()[Path::new("own")]);
                assert_eq!(now, tried.source, "{}", tried.what);
            },
        };
        case.crash_everywhere(seed);
    }
}

#[test]
fn a_file_is_old_or_new_whenever_its_transfer_ends_and_what_was_listed_is_not_read_again() {
    let mut resumed = 0;
    for seed in 0..SEEDS {
        let sim = disk(seed);
        sim.put("/here/file", &noise(4, 5 << 20));
        sim.put("/there/file", b"old");
        let case = Case {
            from: "/here/file",
            to: "/there/file",
            base: sim,
            holds: |tree, tried| {
                let now = entries(tree, Path::new("/there")).unwrap()[Path::new("file")].hash;
                let is = |entries: &Entries| now == entries[Path::new("file")].hash;
                assert!(is(&tried.source) || tried.dest.as_ref().is_some_and(is), "{}", tried.what);
            },
            done: |tree, tried| {
                let now = entries(tree, Path::new("/there")).unwrap();
                assert_eq!(now[Path::new("file")], tried.source[Path::new("file")], "{}", tried.what);
            },
        };
        resumed += case.crash_everywhere(seed);
    }
    assert!(resumed > 0, "nothing was ever resumed");
}

#[test]
fn a_tree_goes_from_a_real_disk_to_a_simulated_one_and_back() {
    let io: Arc<dyn FileSystem> = Arc::new(Threads::new(2));
    let (real, sim) = (local::tree(&io), Sim::new(1));
    let place = std::env::temp_dir().join(format!("thalweg-trees-{}", std::process::id()));
    let top = real.open_dir(&std::env::temp_dir()).unwrap();
    assert!(top.make_dir(place.file_name().unwrap()).unwrap());
    build(&*real, &place.join("tree"));
    sim.make_dir("/d");
    let go = |from: &Path, to: &Path, source: &Arc<dyn Tree>, dest: &Arc<dyn Tree>| {
        let transfer = Transfer {
            streams: 2,
            verify: true,
            ..Transfer::new(vec![From::Path(from.to_path_buf())], To::Path(to.to_path_buf()))
        };
        assert!(run(&transfer, source, dest, &Unwatched).unwrap().holds);
        assert_eq!(entries(&**source, from), entries(&**dest, to));
    };
    go(&place.join("tree"), Path::new("/d/tree"), &real, &sim.tree());
    go(Path::new("/d/tree"), &place.join("back"), &sim.tree(), &real);
    thalweg_io::tree::remove_all(&*top, place.file_name().unwrap()).unwrap();
}

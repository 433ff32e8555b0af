//! Trees that a transfer moves into a volume, out of it, and within it, also when it is killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::sim::{Faults, Sim};
use thalweg_io::tree::{Attributes, EntryKind, Tree};
use thalweg_pump::Unwatched;
use thalweg_transfer::{Error, From, To, Transfer, run};
use thalweg_volume::layout::Policy;
use thalweg_volume::{Volume, VolumeFs};

use crate::bed::Bed;

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// With a time, a mode and an owner that nothing else has.
fn marked(attributes: Attributes, number: u32) -> Attributes {
    let modified_ns = 1_000_000_000 * i128::from(number) - 3;
    Attributes { mode: 0o700 + number, modified_ns, user: 100 + number, group: 200 + number, ..attributes }
}

/// A tree with an empty file, a small one of two names, one that has a hole and moves in pieces, a link, and a directory.
fn build(sim: &Sim) {
    sim.make_dir("/here");
    let tree = sim.tree();
    let here = tree.open_dir(Path::new("/here")).unwrap();
    assert!(here.make_dir(name("tree")).unwrap());
    let top = here.open_dir(name("tree")).unwrap();
    assert!(top.make_dir(name("sub")).unwrap());
    let sub = top.open_dir(name("sub")).unwrap();
    for (called, number, parts) in
        [("empty", 1, &[][..]), ("small", 2, &[(0, 9000)]), ("holes", 3, &[(0, 100_000), (400_000, 60_001)])]
    {
        let file = top.create_file(name(called), 0o600, false).unwrap();
        for (at, len) in parts {
            file.write_at(*at, &vec![number as u8; *len]).unwrap();
        }
        tree.set_attributes(&file, &marked(tree.attributes(&file).unwrap(), number)).unwrap();
    }
    sub.link(name("second"), &top, name("small")).unwrap();
    top.make_link(name("link"), name("sub/second")).unwrap();
    top.set_link_attributes(name("link"), &marked(top.attributes_of(name("link")).unwrap(), 4)).unwrap();
    sub.set_attributes(&marked(sub.attributes().unwrap(), 5)).unwrap();
    top.set_attributes(&marked(top.attributes().unwrap(), 6)).unwrap();
    top.sync_file_system().unwrap();
}

/// What is known of an entry: kind, mode, owner, group, time, its bytes or where it leads, and the first of its names.
type Entry = (EntryKind, u32, u32, u32, i128, Vec<u8>, PathBuf);

/// Everything below a directory, and it.
fn entries(tree: &dyn Tree, at: &str) -> Option<BTreeMap<PathBuf, Entry>> {
    let mut left = vec![(PathBuf::new(), tree.open_dir(Path::new(at)).ok()?)];
    let (mut entries, mut firsts) = (BTreeMap::new(), BTreeMap::new());
    while let Some((path, dir)) = left.pop() {
        let mut add = |path: PathBuf, found: Attributes, bytes: Vec<u8>| {
            let Attributes { kind, mode, user, group, modified_ns, inode, .. } = found;
            let first = firsts.entry(inode).or_insert_with(|| path.clone()).clone();
            entries.insert(path, (kind, mode, user, group, modified_ns, bytes, first));
        };
        add(path.clone(), dir.attributes().unwrap(), Vec::new());
        let mut names: Vec<OsString> =
            dir.names().unwrap().some(1000).unwrap().into_iter().map(|n| n.0).collect();
        names.sort();
        for called in names {
            let found = dir.attributes_of(&called).unwrap();
            let bytes = match found.kind {
                EntryKind::Directory => {
                    left.push((path.join(&called), dir.open_dir(&called).unwrap()));
                    continue;
                }
                EntryKind::Link => dir.read_link(&called).unwrap().into_encoded_bytes(),
                _ => {
                    let mut bytes = vec![0; found.len as usize];
                    dir.open_file(&called, false).unwrap().read_exact_at(0, &mut bytes).unwrap();
                    bytes
                }
            };
            add(path.join(&called), found, bytes);
        }
    }
    Some(entries)
}

fn go(
    (from, source): (&str, &Arc<dyn Tree>),
    (to, dest): (&str, &Arc<dyn Tree>),
    resume: bool,
) -> Result<u64, Error> {
    let transfer = Transfer {
        streams: 2,
        resume,
        verify: true,
        ..Transfer::new(vec![From::Path(from.into())], To::Path(to.into()))
    };
    let receipt = run(&transfer, source, dest, &Unwatched)?;
    assert!(receipt.holds);
    Ok(receipt.resumed_bytes)
}

fn bed(seed: u64) -> Bed {
    let policy = Policy { width: 0, stripe_bytes: 16 << 10, copies: 1, record_bytes: 0 };
    let bed = Bed::new(3, &policy, seed);
    build(&bed.sim);
    bed
}

fn tree(volume: &Arc<Volume>) -> Arc<dyn Tree> {
    VolumeFs::of("v", Arc::clone(volume)).tree()
}

#[test]
fn a_tree_goes_into_a_volume_within_it_and_back_as_it_was() {
    let bed = bed(1);
    let volume = bed.open().unwrap();
    let (sim, inside) = (bed.sim.tree(), tree(&volume));
    let wanted = entries(&*sim, "/here/tree");
    go(("/here/tree", &sim), ("volume:v/copy", &inside), false).unwrap();
    assert_eq!(entries(&*inside, "volume:v/copy"), wanted);
    go(("volume:v/copy/", &inside), ("volume:v/again", &inside), false).unwrap();
    assert_eq!(entries(&*inside, "volume:v/again"), wanted);
    go(("volume:v/again", &inside), ("/here/back", &sim), false).unwrap();
    assert_eq!(entries(&*sim, "/here/back"), wanted);
    let holes = |at: &str| {
        let dir = sim.open_dir(Path::new(at)).unwrap();
        dir.attributes_of(name("holes")).unwrap().allocated
    };
    assert!(holes("/here/back") <= holes("/here/tree") + 2 * (64 << 10), "{} bytes", holes("/here/back"));
    // A whole volume: what is in it goes.
    go(("volume:v/", &inside), ("/here/all", &sim), false).unwrap();
    assert_eq!(entries(&*sim, "/here/all/copy"), wanted);
    let into_itself = go(("volume:v/copy", &inside), ("volume:v/copy/sub", &inside), false);
    assert!(matches!(into_itself, Err(Error::Refused(_))), "{into_itself:?}");
}

#[test]
fn a_new_tree_is_absent_or_complete_whenever_its_transfer_ends() {
    let mut resumed = 0;
    for power in [false, true] {
        // Each boundary would take a minute; the two turns have different ones.
        for crash_at in (u64::from(power)..).step_by(7) {
            let mut bed = bed(crash_at);
            let wanted = entries(&*bed.sim.tree(), "/here/tree");
            let mut ends = vec![crash_at, crash_at % 41];
            let about = format!("power {power}, boundary {crash_at}");
            let mut is_first = true;
            let ended = loop {
                let volume = bed.open().unwrap();
                let inside = tree(&volume);
                let there = entries(&*inside, "volume:v/copy");
                assert!(there.is_none() || there == wanted, "{about}");
                if there.is_some() {
                    break false;
                }
                let end = if ends.is_empty() { None } else { Some(bed.sim.boundaries() + ends.remove(0)) };
                bed.sim.set_faults(Faults { crash_at: end, ..Faults::default() });
                let moved = go(("/here/tree", &bed.sim.tree()), ("volume:v/copy", &inside), !is_first);
                drop(inside);
                if let Ok(bytes) = moved {
                    resumed += bytes;
                    bed.without_power(Some(volume));
                    break is_first;
                }
                is_first = false;
                if power { bed.without_power(Some(volume)) } else { bed.killed(Some(volume)) }
            };
            let volume = bed.open().unwrap();
            let inside = tree(&volume);
            assert_eq!(entries(&*inside, "volume:v/copy"), wanted, "{about}");
            if ended {
                assert!(crash_at > 50, "the transfer has {crash_at} boundaries");
                break;
            }
        }
    }
    assert!(resumed > 0, "nothing was ever resumed");
}

#[test]
fn no_name_leads_out_of_its_directory() {
    let bed = bed(1);
    let volume = bed.open().unwrap();
    let inside = tree(&volume);
    go(("/here/tree", &bed.sim.tree()), ("volume:v/copy", &inside), false).unwrap();
    let dir = inside.open_dir(Path::new("volume:v/copy")).unwrap();
    let sub = dir.open_dir(name("sub")).unwrap();
    for bad in ["", "..", "sub/second", "link/x", "b\0c"] {
        let (n, good) = (name(bad), name("good"));
        let refused = [
            dir.open_dir(n).map(drop),
            dir.attributes_of(n).map(drop),
            dir.open_file(n, false).map(drop),
            dir.reopen_file(n, false, None).map(drop),
            dir.create_file(n, 0o600, false).map(drop),
            dir.make_dir(n).map(drop),
            dir.make_link(n, good),
            dir.link(n, &sub, name("second")),
            dir.rename(name("empty"), n),
            dir.remove(n),
            dir.remove_dir(n),
        ];
        for (number, outcome) in refused.into_iter().enumerate() {
            assert!(outcome.is_err(), "operation {number} on {bad:?}");
        }
    }
    assert!(dir.reopen_file(name("small"), false, None).is_err(), "it has two names");
    for path in ["link", "sub/..", "/", "/copy", ".."] {
        assert!(dir.open_below(Path::new(path)).is_err(), "{path}");
    }
    dir.rename(name("sub"), name("other")).unwrap();
    assert!(sub.make_dir(name("new")).unwrap());
    assert!(dir.open_below(Path::new("other/new")).is_ok(), "a directory stays the same one");
}

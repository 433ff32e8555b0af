//! Random operations on a volume and on lists of bytes, at silly sizes, with restarts in between.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_base::rng::Rng;
use thalweg_volume::Volume;
use thalweg_volume::layout::Policy;

use crate::bed::Bed;

type Model = BTreeMap<PathBuf, Vec<u8>>;

/// What files of a volume are, compared with what they should be.
pub(crate) fn compare(volume: &Arc<Volume>, model: &Model) {
    let names: Vec<PathBuf> = volume
        .list(Path::new("/"))
        .unwrap()
        .into_iter()
        .map(|entry| PathBuf::from(String::from_utf8(entry.name).unwrap()))
        .collect();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (path, bytes) in model {
        assert_eq!(volume.stat(path).unwrap().size, bytes.len() as u64, "{}", path.display());
        let mut found = vec![0xee; bytes.len() + 3];
        let n = volume.open(path).unwrap().read_at(0, &mut found).unwrap();
        assert_eq!(n, bytes.len());
        assert!(found[..n] == bytes[..], "{} has other bytes", path.display());
    }
}

fn bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.next_u64() as u8 | 1).collect()
}

fn step(rng: &mut Rng, volume: &Arc<Volume>, model: &mut Model) {
    let path = PathBuf::from(format!("f{}", rng.below(3)));
    let at = rng.below(30_000);
    match rng.below(10) {
        0 => {
            assert_eq!(volume.remove(&path).is_ok(), model.remove(&path).is_some());
        }
        1 => {
            let to = PathBuf::from(format!("f{}", rng.below(3)));
            let renamed = volume.rename(&path, &to);
            assert_eq!(renamed.is_ok(), model.contains_key(&path));
            if let Some(bytes) = model.remove(&path) {
                model.insert(to, bytes);
            }
        }
        2 => {
            volume.create(&path, 0o644, false).unwrap().set_size(at).unwrap();
            model.entry(path).or_default().resize(at as usize, 0);
        }
        3 => {
            volume.create(&path, 0o644, false).unwrap().sync().unwrap();
            model.entry(path).or_default();
        }
        4 => {
            let (new, there) = (bytes(rng, 9_000), model.entry(path.clone()).or_default());
            assert_eq!(volume.create(&path, 0o644, false).unwrap().append(&new).unwrap(), there.len() as u64);
            there.extend(new);
        }
        5 => {
            let Some(there) = model.get(&path) else { return };
            let mut into = vec![0; rng.below(9_000) as usize];
            let n = volume.open(&path).unwrap().read_at(at, &mut into).unwrap();
            let from = (at as usize).min(there.len());
            assert!(into[..n] == there[from..(from + into.len()).min(there.len())]);
        }
        _ => {
            let (new, there) = (bytes(rng, 9_000), model.entry(path.clone()).or_default());
            volume.create(&path, 0o644, false).unwrap().write_at(at, &new).unwrap();
            if !new.is_empty() {
                let end = at as usize + new.len();
                there.resize(there.len().max(end), 0);
                there[at as usize..end].copy_from_slice(&new);
            }
        }
    }
}

/// Small stripes, wide and narrow, one copy and two, stripes that no block of a checksum divides.
fn policies() -> Vec<(u32, Policy)> {
    let of = |slots, width, stripe_bytes, copies, record_bytes| {
        (slots, Policy { width, stripe_bytes, copies, record_bytes })
    };
    vec![of(1, 0, 4096, 1, 0), of(3, 0, 4096, 1, 838), of(3, 2, 8192, 2, 0), of(4, 0, 5000, 2, 0)]
}

#[test]
fn files_are_what_was_written_whatever_restarts() {
    for (seed, (slots, policy)) in (0..).zip(policies()) {
        let mut bed = Bed::new(slots, &policy, seed);
        let mut rng = Rng::new(seed);
        let mut model = Model::new();
        for _ in 0..6 {
            let volume = bed.open().unwrap();
            compare(&volume, &model);
            for _ in 0..40 {
                step(&mut rng, &volume, &mut model);
            }
            compare(&volume, &model);
            // Closed, or killed: what was acknowledged is there.
            if rng.one_in(2) { bed.killed(Some(volume)) } else { drop(volume) }
        }
        let volume = bed.open().unwrap();
        compare(&volume, &model);
        for path in model.keys() {
            volume.remove(path).unwrap();
        }
        drop(volume);
        assert_eq!(bed.strips(), Vec::<PathBuf>::new(), "removed files leave nothing");
        assert_eq!(bed.sim.open_files(), 0);
    }
}

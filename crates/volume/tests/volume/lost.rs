//! Stores and strips that are gone: an error or the other copy, never zeros.

use std::path::Path;
use std::sync::Arc;

use thalweg_volume::Volume;
use thalweg_volume::layout::Policy;

use crate::bed::{Bed, dir};

const LEN: usize = 40_000;

fn filled(bed: &Bed, copies_differ: u8) -> Arc<Volume> {
    let volume = bed.open().unwrap();
    let file = volume.create(Path::new("f"), 0o644, true).unwrap();
    file.write_at(0, &[copies_differ; LEN]).unwrap();
    file.sync().unwrap();
    volume
}

fn read(volume: &Arc<Volume>) -> Result<Vec<u8>, String> {
    let file = volume.open(Path::new("f")).map_err(|e| e.to_string())?;
    let mut found = vec![0; file.size() as usize];
    file.read_at(0, &mut found).map_err(|e| e.to_string())?;
    Ok(found)
}

fn policy(copies: u32) -> Policy {
    Policy { width: 0, stripe_bytes: 4096, copies, record_bytes: 0 }
}

#[test]
fn a_lost_store_is_an_error_and_with_copies_none() {
    for copies in [1, 2] {
        let bed = Bed::new(3, &policy(copies), 1);
        drop(filled(&bed, 9));
        // Somebody mounted another disk there.
        bed.sim.io().rename(&dir(1).join("superblock"), &dir(1).join("other")).unwrap();
        let volume = bed.open().unwrap();
        match copies {
            1 => {
                let told = read(&volume).unwrap_err();
                assert!(
                    told.contains("f at byte 0: copy 0 of strip") && told.contains("/s1/superblock"),
                    "{told}"
                );
            }
            _ => assert_eq!(read(&volume).unwrap(), [9; LEN]),
        }
    }
}

#[test]
fn a_missing_file_of_a_strip_is_an_error_and_with_copies_none() {
    for (copies, end) in [(1, "strip"), (1, "sums"), (2, "strip"), (2, "sums")] {
        let bed = Bed::new(3, &policy(copies), 1);
        drop(filled(&bed, 9));
        let gone = bed.strips()[0].with_extension(end);
        bed.sim.io().remove(&gone).unwrap();
        let volume = bed.open().unwrap();
        match copies {
            1 => {
                let told = read(&volume).unwrap_err();
                assert!(told.contains(gone.to_str().unwrap()) && told.contains("is gone"), "{told}");
            }
            _ => assert_eq!(read(&volume).unwrap(), [9; LEN]),
        }
    }
    let bed = Bed::new(3, &policy(1), 1);
    drop(filled(&bed, 9));
    let gone = bed.strips()[0].clone();
    bed.sim.io().remove(&gone).unwrap();
    bed.sim.io().remove(&gone.with_extension("sums")).unwrap();
    let volume = bed.open().unwrap();
    assert!(read(&volume).unwrap_err().contains("not at its store"));
    // Nor does a write put a new one in its place.
    let file = volume.open(Path::new("f")).unwrap();
    assert!((0..3).any(|stripe| file.write_at(stripe * 4096, &[1; 10]).is_err()));
    assert!(read(&volume).is_err());
}

#[test]
fn a_copy_that_missed_a_write_is_read_no_more() {
    let mut bed = Bed::new(3, &policy(2), 1);
    drop(filled(&bed, 9));
    bed.sim.io().rename(&dir(1).join("superblock"), &dir(1).join("away")).unwrap();
    let volume = bed.open().unwrap();
    volume.open(Path::new("f")).unwrap().write_at(0, &[5; LEN]).unwrap();
    assert_eq!(read(&volume).unwrap(), [5; LEN]);
    // The store comes back with what it had, and nobody has told it.
    bed.killed(Some(volume));
    bed.sim.io().rename(&dir(1).join("away"), &dir(1).join("superblock")).unwrap();
    let volume = bed.open().unwrap();
    assert_eq!(read(&volume).unwrap(), [5; LEN]);
    drop(volume);
    // Without its neighbours there is nothing else to read.
    bed.sim.io().rename(&dir(2).join("superblock"), &dir(2).join("away")).unwrap();
    assert!(read(&bed.open().unwrap()).is_err());
}

#[test]
fn a_store_that_was_away_is_cut_when_it_is_back() {
    let bed = Bed::new(2, &policy(1), 1);
    drop(filled(&bed, 9));
    bed.sim.io().rename(&dir(1).join("superblock"), &dir(1).join("away")).unwrap();
    let volume = bed.open().unwrap();
    let file = volume.open(Path::new("f")).unwrap();
    assert!(file.set_size(100).is_err(), "a strip could not be cut");
    drop((file, volume));
    bed.sim.io().rename(&dir(1).join("away"), &dir(1).join("superblock")).unwrap();
    let volume = bed.open().unwrap();
    assert_eq!(read(&volume).unwrap(), [9; 100]);
    volume.open(Path::new("f")).unwrap().set_size(LEN as u64).unwrap();
    let found = read(&volume).unwrap();
    assert!(found[..100] == [9; 100] && found[100..].iter().all(|byte| *byte == 0), "what was cut is zeros");
}

//! Clients with memories, on stores of a simulated disk, compared with byte vectors.

use std::path::Path;

use thalweg_base::rng::Rng;

use super::*;
use crate::layout::Policy;
use crate::test_bed::{Bed, STORES, file};

/// The size of a file for which read-ahead is noticeable.
const LARGE: usize = 2 << 20;

/// The number of bytes that the stores have read.
fn bytes_read(bed: &Bed) -> u64 {
    (0..STORES).map(|slot| bed.sim.bytes_read(format!("/s{slot}"))).sum()
}

fn patterned(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4096) as u8).collect()
}

/// Makes a file of these bytes, and closes it.
fn written(bed: &Bed, bytes: &[u8]) {
    let file = file(&bed.client_with_cache(1 << 20));
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
}

fn bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.next_u64() as u8 | 1).collect()
}

/// One operation on a descriptor, and on the model.
fn step(rng: &mut Rng, file: &File, model: &mut Vec<u8>, about: &str) {
    let at = rng.below(60_000);
    match rng.below(13) {
        12 => {
            let len = rng.below(9_000);
            file.punch(at, len).unwrap();
            let end = model.len().min((at + len) as usize);
            model[(at as usize).min(end)..end].fill(0);
        }
        0..6 => {
            // Some are sequential.
            let at = if rng.one_in(2) { at / 8000 * 8000 } else { at } as usize;
            let mut into = vec![0xee; rng.below(9_000) as usize];
            let n = file.read_at(at as u64, &mut into).unwrap();
            let from = at.min(model.len());
            let expected = &model[from..(from + into.len()).min(model.len())];
            assert!(into[..n] == *expected, "{about}: {n} bytes at {at} of {}", model.len());
        }
        6 => {
            let new = bytes(rng, 3_000);
            assert_eq!(file.append(&new).unwrap(), model.len() as u64, "{about}");
            model.extend(new);
        }
        7 => {
            file.set_size(at).unwrap();
            model.resize(at as usize, 0);
        }
        8 => {
            let hints =
                [Hint::Normal, Hint::Sequential, Hint::Random, Hint::Once, Hint::WillNeed, Hint::DontNeed];
            file.hint(hints[rng.below(6) as usize]).unwrap();
        }
        9 => file.sync().unwrap(),
        _ => {
            let new = bytes(rng, 9_000);
            file.write_at(at, &new).unwrap();
            if !new.is_empty() {
                let end = at as usize + new.len();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&new);
            }
        }
    }
    assert_eq!(file.size(), model.len() as u64, "{about}");
}

/// Two clients open and close a file in turn, each time by several descriptors, one of which bypasses the memory.
#[test]
fn several_descriptors_and_two_clients_see_what_was_written() {
    for (seed, (stripe_bytes, copies, cache_bytes)) in
        (0..).zip([(4096, 1, 1 << 20), (4096, 2, 9_000), (64 << 10, 1, 40_000), (5_000, 1, 300)])
    {
        let policy = Policy { stripe_bytes, copies, ..Policy::default() };
        let bed = Bed::new(&format!("model-{seed}"), &policy);
        let clients = [bed.client_with_cache(cache_bytes), bed.client_with_cache(cache_bytes)];
        let (mut rng, mut model) = (Rng::new(seed), Vec::new());
        for round in 0..30 {
            let client = &clients[rng.below(2) as usize];
            let mut files = vec![file(client), file(client), file(client).direct()];
            for n in 0..rng.below(30) {
                let which = rng.below(files.len() as u64) as usize;
                step(&mut rng, &files[which], &mut model, &format!("seed {seed}, round {round}, step {n}"));
                if files.len() > 1 && rng.one_in(20) {
                    files.pop();
                }
            }
            files.iter().for_each(|file| file.flush().unwrap());
        }
        assert!(clients.iter().all(|client| client.memory().unwrap().cache.bytes() <= cache_bytes));
    }
}

#[test]
fn a_second_pass_asks_no_store() {
    let bed = Bed::new("again", &Policy::default());
    let expected = patterned(LARGE);
    written(&bed, &expected);
    let client = bed.client_with_cache(4 << 20);
    let read = || {
        let (file, mut found) = (file(&client), vec![0; LARGE]);
        // Record by record.
        for (n, record) in found.chunks_mut(838).enumerate() {
            assert_eq!(file.read_at(n as u64 * 838, record).unwrap(), record.len());
        }
        assert!(found == expected);
    };
    read();
    let once = bytes_read(&bed);
    assert!(once < (LARGE + LARGE / 50) as u64, "{once} bytes were read of {LARGE}");
    read();
    assert_eq!(bytes_read(&bed), once);
    // The file is read again after another client has changed it.
    let other = bed.client_with_cache(1 << 20);
    file(&other).write_at(5, &expected[5..6]).unwrap();
    read();
    assert!(bytes_read(&bed) > once);
}

#[test]
fn reads_at_random_places_read_only_the_blocks_there() {
    let bed = Bed::new("random", &Policy::default());
    let expected = patterned(LARGE);
    written(&bed, &expected);
    let client = bed.client_with_cache(4 << 20);
    let (file, mut rng, before) = (file(&client), Rng::new(1), bytes_read(&bed));
    let mut record = [0; 838];
    for _ in 0..100 {
        let at = rng.below((LARGE / 838) as u64) * 838;
        file.read_at(at, &mut record).unwrap();
        assert!(record == expected[at as usize..at as usize + 838]);
    }
    assert!(
        bytes_read(&bed) - before < 100 * 2 * 4096 + 100 * 64,
        "{} bytes were read",
        bytes_read(&bed) - before
    );
}

#[test]
fn a_write_that_fails_later_is_reported_once_to_each_who_wrote() {
    let bed = Bed::of_stores("full", &Policy::default(), (Some(100_000), None));
    let client = bed.client_with_cache(4 << 20);
    let (first, second, reader) = (file(&client), file(&client), file(&client));
    first.write_at(0, &[1; 100]).unwrap();
    second.write_at(100, &[2; 100]).unwrap();
    second.sync().unwrap();
    first.write_at(1 << 20, &[3; 200_000]).unwrap();
    let later = file(&client);
    assert_eq!(first.sync().unwrap_err().errno(), libc::ENOSPC);
    first.sync().unwrap();
    assert_eq!(second.flush().unwrap_err().errno(), libc::ENOSPC);
    second.flush().unwrap();
    reader.sync().unwrap();
    later.sync().unwrap();
    let mut found = [0; 200];
    reader.read_at(0, &mut found).unwrap();
    assert!(found == *[[1; 100], [2; 100]].concat(), "what was there before is there");
}

#[test]
fn what_is_written_is_at_the_stores_before_a_name_changes() {
    let bed = Bed::new("rename", &Policy::default());
    let (client, other) = (bed.client_with_cache(4 << 20), bed.client_with_cache(4 << 20));
    let held = file(&client);
    held.write_at(0, &[7; 10_000]).unwrap();
    client.rename(Path::new("f"), Path::new("g")).unwrap();
    let mut found = vec![0; 20_000];
    let n = other.open(Path::new("g")).unwrap().read_at(0, &mut found).unwrap();
    assert!(found[..n] == [7; 10_000]);
}

#[test]
fn a_hint_is_known_to_all_clients() {
    let bed = Bed::new("hint", &Policy::default());
    written(&bed, &patterned(LARGE));
    let (client, other) = (bed.client_with_cache(4 << 20), bed.client_with_cache(4 << 20));
    let (held, again) = (file(&client), file(&other));
    held.hint(Hint::Random).unwrap();
    assert_eq!((held.hinted(), again.hinted()), (Hint::Random, Hint::Random));
    let id = held.inode();
    other.set_attribute_of(id, crate::HINT_ATTRIBUTE, Some(b"often")).unwrap_err();
    other.set_attribute_of(id, crate::HINT_ATTRIBUTE, None).unwrap();
    assert_eq!(again.hinted(), Hint::Normal);
    // Read once, and not kept in the cache.
    again.hint(Hint::Once).unwrap();
    let mut all = vec![0; LARGE];
    again.read_at(0, &mut all).unwrap();
    assert!(other.memory().unwrap().cache.bytes() <= OVERTAKEN_BYTES_MAX + (1 << 20));
    again.hint(Hint::WillNeed).unwrap();
    let before = bytes_read(&bed);
    again.hint(Hint::DontNeed).unwrap();
    assert_eq!(other.memory().unwrap().cache.bytes(), 0);
    again.hint(Hint::Normal).unwrap();
    again.read_at(0, &mut all).unwrap();
    assert!(bytes_read(&bed) > before);
}

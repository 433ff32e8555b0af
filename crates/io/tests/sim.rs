//! The promises of the simulated disk: faults, crashes, space; and that the harness detects missing syncs.

mod stage;

use std::path::Path;

use stage::{BLOCK, PAGE, bytes, op, panic_of, read_file, read_op, write_file};
use thalweg_block::Pool;
use thalweg_io::sim::{Faults, Sim};
use thalweg_io::{Access, Action, Caching, File, Kind, Result};

const OLD: &[u8] = b"the old content";

fn disk(seed: u64) -> Sim {
    let sim = Sim::new(seed);
    sim.make_dir("/d");
    sim
}

/// Replaces a file in a way that survives a crash; `syncs` can be omitted to show that they matter.
fn publish(sim: &Sim, content: &[u8], syncs: bool) -> Result<()> {
    let io = sim.io();
    let file = write_file(&io, Path::new("/d/new"), Access::CreateDirect, content)?;
    if syncs {
        file.sync()?;
    }
    io.rename(Path::new("/d/new"), Path::new("/d/file"))?;
    io.sync_directory(Path::new("/d"))
}

/// Replaces a file with a crash at each call and each kind of end; returns how often the contents were neither old nor
/// new, and how often each of those.
fn publish_with_every_crash(syncs: bool, power: bool, seeds: u64) -> (usize, usize, usize) {
    let content = bytes(1, 2 * BLOCK + 100);
    let (mut broken, mut old, mut new) = (0, 0, 0);
    for seed in 0..seeds {
        for crash_at in 0.. {
            let sim = disk(seed);
            sim.put("/d/file", OLD);
            sim.set_faults(Faults { crash_at: Some(crash_at), reorder: true, ..Faults::default() });
            let outcome = publish(&sim, &content, syncs);
            if power {
                sim.power_loss();
            }
            let found = sim.restart().get("/d/file");
            match found.as_deref() {
                Some(bytes) if bytes == OLD => old += 1,
                Some(bytes) if bytes == content => new += 1,
                _ => broken += 1,
            }
            match outcome {
                Ok(()) => {
                    assert!(!syncs || found.as_deref() == Some(&content), "what was published stays");
                    break;
                }
                Err(error) => assert!(Sim::is_crash(&error), "{error}"),
            }
        }
    }
    (broken, old, new)
}

#[test]
fn a_file_is_replaced_wholly_or_not_at_all_whenever_the_process_or_the_machine_ends() {
    for power in [false, true] {
        let (broken, old, new) = publish_with_every_crash(true, power, 30);
        assert_eq!(broken, 0, "power {power}");
        assert!(old > 0 && new > 0, "{old} {new}");
    }
}

#[test]
fn canary_a_missing_sync_is_found_by_a_power_loss_and_only_by_that() {
    assert!(publish_with_every_crash(false, true, 30).0 > 0, "the harness does not bite");
    assert_eq!(publish_with_every_crash(false, false, 30).0, 0);
}

#[test]
fn canary_a_name_without_a_synced_directory_can_be_lost() {
    let lost = (0..50).filter(|&seed| {
        let sim = disk(seed);
        write_file(&sim.io(), Path::new("/d/file"), Access::Create, b"x").unwrap().sync().unwrap();
        sim.power_loss();
        sim.restart().get("/d/file").is_none()
    });
    assert!((1..50).contains(&lost.count()));
}

#[test]
fn canary_a_flipped_bit_is_seen_by_whoever_compares() {
    let sim = disk(1);
    let content = bytes(2, BLOCK + 1);
    write_file(&sim.io(), Path::new("/d/file"), Access::CreateDirect, &content).unwrap();
    sim.flip_bit("/d/file", 8 * BLOCK as u64);
    let found = read_file(&sim.io(), Path::new("/d/file"), Caching::Direct).unwrap();
    assert_ne!(found, content);
    assert_eq!(found[BLOCK], content[BLOCK] ^ 1);
    assert_eq!(found[..BLOCK], content[..BLOCK]);
}

#[test]
fn short_transfers_happen_though_nobody_above_sees_them() {
    let sim = disk(3);
    let content = bytes(4, 20 * BLOCK);
    sim.put("/d/file", &content);
    sim.set_faults(Faults { short_one_in: 2, eintr_one_in: 2, ..Faults::default() });
    let found = read_file(&sim.io(), Path::new("/d/file"), Caching::Direct).unwrap();
    assert!(found == content);
    // A direct read that stops inside a page is repeated from the page's start.
    assert!(sim.bytes_read("/d/file") > content.len() as u64, "no attempt was short");
}

#[test]
fn the_same_seed_gives_the_same_order_of_completions_and_another_seed_another() {
    let order = |seed| {
        let sim = disk(seed);
        sim.put("/d/file", &bytes(5, 16 * PAGE));
        sim.set_faults(Faults { reorder: true, ..Faults::default() });
        let io = sim.io();
        let file = File::open_to_read(io.clone(), Path::new("/d/file"), Caching::Direct).unwrap();
        let pool = Pool::new(PAGE, 16).unwrap();
        let mut queue = io.queue(16).unwrap();
        (0..16).for_each(|i| queue.submit(read_op(&file, i * PAGE as u64, &pool, PAGE, i)));
        std::iter::from_fn(|| queue.reap(true)).map(|done| done.tag).collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(order(1), (0..16).collect::<Vec<_>>());
}

#[test]
fn a_bad_medium_fails_operations_with_eio_and_their_place() {
    let sim = disk(6);
    sim.put("/d/file", &bytes(6, 64 * PAGE));
    sim.set_faults(Faults { eio_one_in: 4, ..Faults::default() });
    let io = sim.io();
    let file = File::open(&io, Path::new("/d/file"), Access::UpdateDirect).unwrap();
    let pool = Pool::new(PAGE, 1).unwrap();
    let mut queue = io.queue(1).unwrap();
    let mut failed = 0;
    for i in 0..64 {
        queue.submit(read_op(&file, i * PAGE as u64, &pool, PAGE, i));
        let done = queue.reap(true).unwrap();
        if let Err(e) = done.result {
            assert_eq!((e.action, e.offset, e.errno()), (Action::Read, Some(done.at), Some(libc::EIO)));
            assert!(!Sim::is_crash(&e));
            failed += 1;
        }
    }
    assert!((5..40).contains(&failed), "{failed} of 64");
    assert!((0..50).any(|_| file.sync().is_err()), "a sync fails too");
}

#[test]
fn one_directory_is_full_and_another_is_not() {
    let sim = disk(7);
    sim.set_capacity("/small", 10 * PAGE as u64);
    let io = sim.io();
    let error =
        write_file(&io, Path::new("/small/a"), Access::CreateDirect, &bytes(7, 5 * BLOCK)).unwrap_err();
    assert!(error.is_full() && error.action == Action::Write, "{error}");
    assert_eq!(error.offset, Some(10 * PAGE as u64), "the last page that fits was written");
    assert_eq!(io.space(Path::new("/small")).unwrap().available, 0);
    write_file(&io, Path::new("/d/a"), Access::CreateDirect, &bytes(7, 5 * BLOCK)).unwrap();

    let held = File::open(&io, Path::new("/small/a"), Access::Update).unwrap();
    io.remove(Path::new("/small/a")).unwrap();
    assert_eq!(io.space(Path::new("/small")).unwrap().available, 0, "an open file keeps its room");
    drop(held);
    assert_eq!(io.space(Path::new("/small")).unwrap().available, 10 * PAGE as u64);

    let file = File::open(&io, Path::new("/small/b"), Access::CreateDirect).unwrap();
    assert!(file.allocate(11 * PAGE as u64).unwrap_err().is_full());
    file.allocate(10 * PAGE as u64).unwrap();
    let other = File::open(&io, Path::new("/small/c"), Access::Create).unwrap();
    assert!(other.write_at(0, b"x").unwrap_err().is_full(), "reserved room is taken");
    file.write_at(0, &bytes(7, 10 * PAGE)).unwrap();
    let error = io.rename(Path::new("/small/b"), Path::new("/d/b")).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EXDEV));

    sim.set_capacity("/small", 11 * PAGE as u64);
    other.write_at(0, b"x").unwrap();
    sim.set_faults(Faults { enospc_after_bytes: Some(21 * PAGE as u64), ..Faults::default() });
    let whole = File::open(&io, Path::new("/d/whole"), Access::Create).unwrap();
    assert!(whole.write_at(0, &[1; 2 * PAGE]).unwrap_err().is_full());
    assert_eq!(sim.get("/d/whole").unwrap().len(), PAGE);
}

#[test]
fn writes_in_flight_at_a_kill_survive_wholly_in_part_or_not() {
    let (mut none, mut part, mut all) = (0, 0, 0);
    for seed in 0..60 {
        let sim = disk(seed);
        let io = sim.io();
        let file = File::open(&io, Path::new("/d/file"), Access::CreateDirect).unwrap();
        file.allocate(BLOCK as u64).unwrap();
        let pool = Pool::new(BLOCK, 1).unwrap();
        let mut queue = io.queue(1).unwrap();
        queue.submit(op(Kind::Write, &file, 0, &pool, &[9; BLOCK], 0));
        sim.kill();
        assert!(Sim::is_crash(&queue.reap(true).unwrap().result.unwrap_err()));
        let found = sim.restart().get("/d/file").unwrap();
        let pages = found.chunks(PAGE).filter(|page| page.iter().all(|&b| b == 9)).count();
        assert_eq!(found.iter().filter(|&&b| b == 9).count(), pages * PAGE, "a page is whole or absent");
        match pages {
            0 => none += 1,
            4 => all += 1,
            _ => part += 1,
        }
    }
    assert!(none > 5 && part > 5 && all > 5, "{none} {part} {all}");
}

#[test]
fn completed_writes_survive_a_kill_though_nothing_was_synced() {
    let sim = disk(8);
    let content = bytes(8, 3 * BLOCK + 1);
    write_file(&sim.io(), Path::new("/d/file"), Access::Create, &content).unwrap();
    sim.kill();
    let next = sim.restart();
    assert!(next.get("/d/file").unwrap() == content);
    // They are still not durable for the next process.
    let lost = (0..20).any(|_| {
        let later = next.restart();
        later.power_loss();
        later.get("/d/file").is_none_or(|found| found != content)
    });
    assert!(lost);
}

#[test]
fn after_the_end_every_call_fails_and_says_so() {
    let sim = disk(9);
    sim.put("/d/file", b"x");
    let io = sim.io();
    let file = File::open(&io, Path::new("/d/file"), Access::Update).unwrap();
    let mut queue = io.queue(1).unwrap();
    let at = sim.boundaries();
    sim.set_faults(Faults { crash_at: Some(at), ..Faults::default() });
    let pool = Pool::new(PAGE, 1).unwrap();
    queue.submit(op(Kind::Write, &file, 0, &pool, b"y", 0));
    let d = Path::new("/d");
    let errors = [
        queue.reap(true).unwrap().result.err(),
        file.read_at(0, &mut [0]).err(),
        file.write_at(0, &[0]).err(),
        file.sync().err(),
        file.set_len(0).err(),
        file.allocate(1).err(),
        file.metadata().err(),
        io.stat(d).err(),
        io.list(d).err(),
        io.space(d).err(),
        io.rename(d, d).err(),
        io.remove(d).err(),
        io.sync_directory(d).err(),
        io.queue(1).err(),
        File::open_to_read(io.clone(), &d.join("file"), Caching::Cached).err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {i} did not fail"));
        assert!(Sim::is_crash(&error), "{error}");
        assert!(Sim::is_crash(&std::io::Error::other(error)), "also when it is wrapped");
    }
    assert_eq!(sim.boundaries(), at, "a dead process passes no boundary");
    assert_eq!(sim.get("/d/file").unwrap(), b"x", "the call at the boundary has done nothing");
}

#[test]
fn what_is_counted_and_looked_at_is_right() {
    let sim = disk(10);
    sim.put("/d/in", &bytes(10, 2 * BLOCK));
    assert_eq!((sim.boundaries(), sim.bytes_written("/")), (0, 0), "what a test puts there is not counted");
    let io = sim.io();
    let content = read_file(&io, Path::new("/d/in"), Caching::Cached).unwrap();
    let file = write_file(&io, Path::new("/d/out/../x"), Access::Create, b"").err();
    assert!(file.is_some(), "that directory is not there");
    let file = write_file(&io, Path::new("/d/out"), Access::Create, &content).unwrap();
    assert_eq!((sim.bytes_read("/d/in"), sim.bytes_written("/d/in")), (2 * BLOCK as u64, 0));
    assert_eq!((sim.bytes_read("/d"), sim.bytes_written("/d")), (2 * BLOCK as u64, 2 * BLOCK as u64));
    assert_eq!(sim.names(), ["/d/in", "/d/out"].map(std::path::PathBuf::from));
    assert_eq!(sim.open_files(), 1);
    sim.set_cached("/d/out", 0.5);
    assert_eq!((file.cached_share(10), file.cached_share(0)), (0.5, 0.0));
    drop(file);
    assert_eq!(sim.open_files(), 0);
    sim.truncate("/d/out", 10);
    assert_eq!(sim.get("/d/out").unwrap(), &content[..10]);
    let id = io.open_to_read(Path::new("/d/in"), Caching::Cached).unwrap().0;
    io.close(id);
    assert!(panic_of(|| io.close(id)).contains("closed twice"));
}

#[test]
fn names_go_back_to_some_moment_and_never_to_half_a_rename() {
    for seed in 0..100 {
        let sim = disk(seed);
        sim.put("/d/a", b"a");
        let io = sim.io();
        io.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap();
        write_file(&io, Path::new("/d/c"), Access::Create, b"").unwrap();
        io.remove(Path::new("/d/b")).unwrap();
        sim.power_loss();
        let names: Vec<_> = sim.restart().names().iter().map(|n| n.display().to_string()).collect();
        let moments: [&[&str]; 4] = [&["/d/a"], &["/d/b"], &["/d/b", "/d/c"], &["/d/c"]];
        assert!(moments.iter().any(|moment| names == *moment), "seed {seed}: {names:?}");
    }
}

//! Several clients of one volume, in turn and at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Volume;
use crate::layout::Policy;
use crate::locks::{How, Lock, Verdict};
use crate::manager::{Change, Kind, New, Place, ROOT};
use crate::request::{LockAnswer, LockRequest};
use crate::test_bed::{Bed, STORES, file};

const STRIPE: usize = 4096;

/// A volume with small stripes.
fn small_stripes(name: &str, copies: u32) -> Bed {
    Bed::new(name, &Policy { stripe_bytes: STRIPE as u64, copies, ..Policy::default() })
}

fn strips(bed: &Bed) -> usize {
    bed.sim.names().iter().filter(|path| path.extension().is_some_and(|end| end == "strip")).count()
}

fn contents(file: &crate::File) -> Vec<u8> {
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    let n = file.read_at(0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

#[test]
fn clients_that_append_in_turn_do_not_overwrite_each_other() {
    let bed = small_stripes("append", 1);
    let clients = [bed.client(), bed.client()];
    let files = [file(&clients[0]), file(&clients[1])];
    let mut expected = Vec::new();
    for n in 0..20_u8 {
        let bytes = vec![n; 1000 + usize::from(n)];
        assert_eq!(files[usize::from(n) % 2].append(&bytes).unwrap(), expected.len() as u64);
        expected.extend(bytes);
    }
    for file in &files {
        assert!(contents(file) == expected);
    }
}

/// The first bytes of the append that fails get to a store, the others do not.
#[test]
fn an_append_that_fails_leaves_nothing() {
    let bed = small_stripes("failed", 1);
    let clients = [bed.client_without(1), bed.client()];
    let files = [file(&clients[0]), file(&clients[1])];
    let layout = files[0].layout();
    let lost = (0..layout.width).find(|strip| layout.slot(*strip, 0) == 1).unwrap();
    let mut expected = vec![1; (layout.width + lost) as usize * STRIPE - 10];
    files[1].append(&expected).unwrap();
    for n in 2..5 {
        files[0].append(&[n; 100]).unwrap_err();
        assert_eq!(files[1].stat().unwrap().size, expected.len() as u64, "after append {n}");
    }
    assert_eq!(files[1].append(&[9; 100]).unwrap(), expected.len() as u64);
    expected.extend([9; 100]);
    assert!(contents(&files[1]) == expected);
}

#[test]
fn a_file_is_as_long_as_what_another_client_has_written() {
    let bed = small_stripes("size", 1);
    let (writer, reader) = (bed.client(), bed.client());
    let written = file(&writer);
    written.write_at(0, &[1; 3 * STRIPE]).unwrap();
    assert_eq!(reader.stat(Path::new("f")).unwrap().size, 3 * STRIPE as u64);
    assert_eq!(contents(&file(&reader)), [1; 3 * STRIPE]);
    // A late report does not make it shorter.
    let other = file(&reader);
    other.write_at(5 * STRIPE as u64, &[2]).unwrap();
    drop(other);
    written.write_at(0, &[3]).unwrap();
    drop(written);
    assert_eq!(bed.client().stat(Path::new("f")).unwrap().size, 5 * STRIPE as u64 + 1);
}

#[test]
fn a_file_without_names_is_there_until_the_last_client_closes_it() {
    let bed = small_stripes("unlink", 1);
    let (one, other) = (bed.client(), bed.client());
    let held = file(&one);
    held.write_at(0, &[5; 2 * STRIPE]).unwrap();
    held.sync().unwrap();
    other.remove(Path::new("f")).unwrap();
    other.sync().unwrap();
    assert_eq!(contents(&held), [5; 2 * STRIPE]);
    drop(held);
    one.sync().unwrap();
    assert_eq!(strips(&bed), 0);
}

#[test]
fn a_client_finds_a_file_cut_that_another_truncated() {
    let bed = small_stripes("cut", 2);
    let (one, other) = (bed.client(), bed.client());
    let first = file(&one);
    first.write_at(0, &[1; 4 * STRIPE]).unwrap();
    let second = file(&other);
    first.set_size(10).unwrap();
    let mut bytes = [9; 100];
    assert_eq!(second.read_at(0, &mut bytes).unwrap(), 10, "the store tells that the file was cut");
    second.write_at(20, &[2; 10]).unwrap();
    assert_eq!(contents(&first), [&[1; 10][..], &[0; 10], &[2; 10]].concat());
    // A strip that an earlier write made.
    second.set_size(0).unwrap();
    first.write_at(0, &[3; 2 * STRIPE]).unwrap();
    assert_eq!(contents(&second), [3; 2 * STRIPE]);
}

#[test]
fn a_cut_that_a_lost_store_missed_cuts_off_nothing_that_is_written_later() {
    const AWAY: u32 = 0;
    let policy = Policy { stripe_bytes: STRIPE as u64, ..Policy::default() };
    let bed = Bed::of_stores("missed-cut", &policy, (None, Some(AWAY)));
    let cut = file(&bed.client());
    assert_ne!(cut.layout().slot(0, 0), AWAY);
    cut.write_at(0, &[1; 100]).unwrap();
    let why = cut.set_size(10).unwrap_err().to_string();
    assert!(why.contains("it is away"), "{why}");
    cut.write_at(20, &[2; 10]).unwrap();
    let expected = [&[1; 10][..], &[0; 10], &[2; 10]].concat();
    assert_eq!(contents(&cut), expected);
    // The lost store has to get the first length before another.
    cut.set_size(25).unwrap_err();
    assert_eq!(contents(&cut), expected);
}

#[test]
fn a_file_is_settled_when_nobody_may_write_it_any_more() {
    let bed = small_stripes("settle", 2);
    let (one, other) = (bed.client(), bed.client());
    let (first, second) = (file(&one), file(&other));
    first.write_at(0, &[1; 10]).unwrap();
    second.write_at(STRIPE as u64, &[2; 10]).unwrap();
    first.sync().unwrap();
    let unsettled = || bed.server.manager.inode(first.inode()).unwrap().unsettled;
    assert!(unsettled(), "the second client may write");
    second.sync().unwrap();
    assert!(!unsettled());
    // When a client ends without closing its files, the server settles them.
    second.write_at(2 * STRIPE as u64, &[3; 10]).unwrap();
    assert!(unsettled());
    let size = 2 * STRIPE as u64 + 10;
    bed.server.end(2);
    let found = bed.server.manager.inode(first.inode()).unwrap();
    assert_eq!((found.unsettled, found.size, found.strips), (false, size, 0b111));
}

/// A mount may get several locks before it has dropped its pages after the first of them.
#[test]
fn every_lock_tells_of_the_last_change_by_others() {
    let bed = small_stripes("change", 1);
    let (one, other) = (bed.client(), bed.client());
    let written = file(&one);
    let join =
        |client: &Volume, n| match client.manager.lock([n; 2], 0, LockRequest::Claim(Vec::new())).unwrap() {
            LockAnswer::Claimed(table) => table,
            answer => panic!("{answer:?}"),
        };
    let tables = [join(&one, 1), join(&other, 2)];
    let change = |client: &Volume, n: u64| {
        let lock = Lock { inode: written.inode(), owner: n, start: 0, end: 9, exclusive: false, pid: 0 };
        let ask = LockRequest::Ask(n, lock, How::Try);
        match client.manager.lock([n; 2], tables[n as usize - 1], ask).unwrap() {
            LockAnswer::Verdict(Some(Verdict::Free), change) => change,
            answer => panic!("{answer:?}"),
        }
    };
    written.write_at(0, &[1]).unwrap();
    assert_eq!(change(&one, 1), 0, "nobody else has opened it");
    let read = file(&other);
    written.sync().unwrap();
    let first = change(&other, 2);
    assert_ne!(first, 0);
    assert_eq!(change(&other, 2), first);
    // While another client may write, it may have done so before each lock.
    written.write_at(0, &[2]).unwrap();
    let (second, third) = (change(&other, 2), change(&other, 2));
    assert!(second != first && third != second);
    written.write_at(0, &[3]).unwrap();
    written.sync().unwrap();
    let last = change(&other, 2);
    assert!(last != third, "it was written after the last lock");
    assert_eq!((change(&other, 2), change(&one, 1)), (last, 0));
    drop(read);
}

/// News after a grant make a mount drop the file that a program reads under its lock.
#[test]
fn what_a_grant_told_is_no_news() {
    let bed = small_stripes("no-news", 1);
    let (one, other) = (bed.client(), bed.client());
    let written = file(&one);
    let read = file(&other);
    let LockAnswer::Claimed(table) = other.manager.lock([2; 2], 0, LockRequest::Claim(Vec::new())).unwrap()
    else {
        panic!("it cannot join")
    };
    let changed = |since| other.manager.news(since).unwrap().1;
    let begun = other.manager.news(0).unwrap().0;
    let lock = |inode| {
        let lock = Lock { inode, owner: 2, start: 0, end: 9, exclusive: false, pid: 0 };
        other.manager.lock([2; 2], table, LockRequest::Ask(1, lock, How::Try)).unwrap()
    };
    written.write_at(0, &[1]).unwrap();
    written.flush().unwrap();
    assert_eq!(changed(begun), [written.inode()]);
    assert!(matches!(lock(written.inode()), LockAnswer::Verdict(Some(Verdict::Free), change) if change > 0));
    assert!(changed(begun).is_empty(), "the grant told");
    // All that it wrote is reported.
    written.sync().unwrap();
    assert!(changed(begun).is_empty(), "it is the same file, only durable");
    written.write_at(0, &[2]).unwrap();
    written.flush().unwrap();
    assert_eq!(changed(begun), [written.inode()]);
    lock(written.inode());
    drop(written);
    assert!(changed(begun).is_empty(), "nothing was left to report when it was closed");
    drop(read);
}

#[test]
fn of_two_copies_one_stays_current() {
    let bed = small_stripes("stale", 2);
    let (one, other) = (bed.client(), bed.client());
    let written = file(&one);
    written.write_at(0, &[1; 10]).unwrap();
    let stale = |client: &Volume, copy| client.manager.change(&Change::Stale(written.inode(), copy, 0b101));
    assert_eq!(stale(&one, 1).unwrap().stale, [0, 0b101]);
    assert_eq!(stale(&one, 1).unwrap().stale, [0, 0b101]);
    assert_eq!(stale(&other, 0).unwrap_err().errno(), 5);
    assert_eq!(other.manager.inode(written.inode()).unwrap().stale, [0, 0b101]);
}

/// Repairs the volume as another client would. Returns the lines of the repair.
fn repaired(client: &Arc<Volume>) -> Vec<String> {
    crate::repair::run(client, &[String::new(), String::new(), String::new()]).unwrap()
}

/// The contents without a slot's store, that is, from the other copies; an error if a strip has no other readable copy.
fn contents_without(bed: &Bed, slot: u32) -> Vec<u8> {
    contents(&file(&bed.client_without(slot)))
}

#[test]
fn a_client_that_slept_does_not_write_to_one_copy_alone() {
    let bed = small_stripes("slept", 2);
    let sleeper = bed.client();
    let written = file(&sleeper);
    written.write_at(0, &[1; STRIPE]).unwrap();
    let slot = written.layout().slot(0, 1);
    // A store is lost to another client, so the sleeper learns that its copy is stale.
    let partial = bed.client_without(slot);
    file(&partial).write_at(0, &[2; STRIPE]).unwrap();
    written.write_at(1, &[3]).unwrap();
    assert_eq!(sleeper.manager.inode(written.inode()).unwrap().stale[1], 1);
    // While the sleeper sleeps, the copy is made current, so its next write has to go to both.
    assert_eq!(repaired(&bed.client()).len(), 1);
    written.write_at(2, &[4]).unwrap();
    written.sync().unwrap();
    let expected = [&[2, 3, 4][..], &[2; STRIPE - 3]].concat();
    for slot in 0..STORES {
        assert!(contents_without(&bed, slot) == expected, "without slot {slot}");
    }
}

#[test]
fn a_client_that_does_not_know_of_a_stale_copy_is_refused_by_the_other() {
    let bed = small_stripes("unaware", 2);
    let (one, other) = (bed.client(), bed.client());
    let (first, second) = (file(&one), file(&other));
    first.write_at(0, &[1; STRIPE]).unwrap();
    second.write_at(0, &[2; STRIPE]).unwrap();
    let slot = first.layout().slot(0, 0);
    let partial = file(&bed.client_without(slot));
    partial.write_at(0, &[3; STRIPE]).unwrap();
    // The copy that missed this is back for the others; they soon learn that they must not take it for current.
    for file in [&first, &second] {
        let mut found = [0; STRIPE];
        let is_new = |found: &[u8]| found == [3; STRIPE];
        while !is_new(&found) {
            file.read_at(0, &mut found).unwrap();
        }
    }
}

#[test]
fn a_volume_is_repaired_while_clients_write() {
    let bed = small_stripes("busy", 2);
    let len = 12 * STRIPE;
    let base = file(&bed.client());
    base.write_at(0, &vec![1; len]).unwrap();
    base.sync().unwrap();
    for slot in 0..STORES {
        file(&bed.client_without(slot)).write_at(0, &vec![2 + slot as u8; len]).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let expected = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let (written, mut expected) = (file(&bed.client()), vec![2 + slot as u8; len]);
                let mut rng = thalweg_base::rng::Rng::new(u64::from(slot));
                let mut last = false;
                while !last {
                    // A few more after the end, so that there are writes in every phase.
                    last = is_over.load(std::sync::atomic::Ordering::Acquire);
                    let at = rng.below(len as u64 - 100) as usize;
                    let with = rng.below(250) as u8;
                    written.write_at(at as u64, &[with; 100]).unwrap();
                    expected[at..at + 100].fill(with);
                }
                written.sync().unwrap();
                expected
            });
            let done = scope.spawn(|| repaired(&bed.client())).join();
            is_over.store(true, std::sync::atomic::Ordering::Release);
            let done = done.unwrap();
            assert!(done.iter().filter(|line| line.contains("may have missed")).count() == 2, "{done:?}");
            writing.join().unwrap()
        });
        for slot in 0..STORES {
            assert!(contents_without(&bed, slot) == expected, "without slot {slot}");
        }
        assert_eq!(bed.client().manager.inode(base.inode()).unwrap().stale, [0, 0]);
    }
    // Only one client at a time can repair.
    let (one, other) = (bed.client(), bed.client());
    one.manager.repair().unwrap();
    assert!(other.manager.repair().unwrap_err().to_string().contains("another client repairs"));
    assert!(other.manager.fence(base.inode()).is_err());
    let current = Change::Current(base.inode(), 0, 0, 1);
    assert!(one.manager.change(&current).is_err(), "it is not fenced");
    // Its fences are lifted when its session ends.
    one.manager.fence(base.inode()).unwrap();
    drop(one);
    base.write_at(0, &[9]).unwrap();
    other.manager.repair().unwrap();
    // The server's own repair gives way to that of a client, and does not go on meanwhile.
    drop(other);
    let own = bed.server.begin();
    bed.server.begin_repair(own, true).unwrap();
    bed.server.fence(own, base.inode()).unwrap();
    bed.server.lift(own, base.inode());
    let client = bed.client();
    client.manager.repair().unwrap();
    assert!(bed.server.fence(own, base.inode()).is_err() && bed.server.begin_repair(own, true).is_err());
    client.manager.fence(base.inode()).unwrap();
}

#[test]
fn only_regions_that_were_written_are_copied() {
    const REGION: u64 = 1 << 20;
    let bed = Bed::new("regions", &Policy { width: 1, copies: 2, ..Policy::default() });
    let whole = file(&bed.client());
    whole.write_at(0, &vec![1; 8 << 20]).unwrap();
    whole.sync().unwrap();
    let slot = whole.layout().slot(0, 1);
    let partial = file(&bed.client_without(slot));
    for at in [REGION + 5, 5 * REGION, 5 * REGION + 9] {
        partial.write_at(at, &[7]).unwrap();
        partial.sync().unwrap();
    }
    let done = repaired(&bed.client());
    assert!(done.len() == 1 && done[0].contains("has got the 2 MiB"), "{done:?}");
    assert_eq!(repaired(&bed.client()), [""; 0]);
    assert!(contents_without(&bed, slot) == contents_without(&bed, whole.layout().slot(0, 0)));
}

#[test]
fn a_damaged_block_is_mended_by_the_read_that_finds_it() {
    let bed = small_stripes("mend", 2);
    let client = bed.client();
    let written = file(&client);
    written.write_at(0, &[1; STRIPE]).unwrap();
    written.write_at(9 * STRIPE as u64, &[2; 100]).unwrap();
    written.sync().unwrap();
    let strips: Vec<PathBuf> = bed.sim.names();
    let first_copies = strips.iter().filter(|path| path.to_str().unwrap().ends_with("-00-0.strip"));
    for path in first_copies.clone() {
        let before = bed.sim.get(path).unwrap();
        // In the first block and in the last, which is a partial one.
        for at in [5, before.len() - 1] {
            bed.sim.flip_bit(path.clone(), 8 * at as u64);
            assert_eq!(contents(&written).len(), 9 * STRIPE + 100);
            assert!(bed.sim.get(path).unwrap() == before, "byte {at}");
        }
    }
    assert_eq!(first_copies.count(), 1);
    // A block is not rewritten from bytes that do not match its checksum.
    let strip = crate::store::Strip { inode: written.inode(), index: 0, copy: 0 };
    let store = bed.server.stores.of(&written.layout(), strip).unwrap();
    let generation = client.manager.inode(written.inode()).unwrap().generation;
    store.mend(strip, generation, 0, &[7; STRIPE]).unwrap();
    assert_eq!(contents(&written)[..STRIPE], [1; STRIPE]);
    assert!(store.mend(strip, generation, 1, &[1; STRIPE]).is_err());
    assert!(store.mend(strip, generation, 0, &[1; 10]).is_err());
}

/// What a client asks the manager for is what a small file costs. A file that is new is as unsettled as it was made, also
/// after a power loss, so its first write needs no sync of the manager's log.
#[test]
fn a_small_new_file_costs_the_manager_two_requests() {
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let policy = Policy { copies: 2, ..Policy::default() };
    let hook = Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
    let bed = Bed::hooked("small", &policy, (None, None), hook);
    let volume = bed.client_with_cache(16 << 20);
    // The hook is called before and after each request.
    let since_last = || calls.swap(0, Ordering::Relaxed) / 2;
    since_last();
    let place = Place { directory: ROOT, name: b"f".into() };
    let new = New { kind: Kind::File, mode: 0o600, umask: 0, user: 0, group: 0, target: Vec::new() };
    let (made, file) = volume.make_file_at(place, new, true).unwrap();
    file.write_at(0, &[7; STRIPE]).unwrap();
    file.flush().unwrap();
    drop(file);
    assert_eq!(since_last(), 2, "it is made, and its size is reported");
    let file = volume.open_by_number(made.id).unwrap();
    file.note_read(99);
    assert_eq!((since_last(), volume.inode(made.id).unwrap().accessed_ns), (1, 99), "it is opened");
    since_last();
    file.write_at(0, &[8]).unwrap();
    assert_eq!(since_last(), 2, "what was closed meanwhile is noted durably");
    file.sync().unwrap();
    drop(file);
    assert_eq!(volume.inode(made.id).unwrap().accessed_ns, 99);
    volume.remove_at(Place { directory: ROOT, name: b"f".into() }, false).unwrap();
    volume.sync().unwrap();
    assert_eq!(strips(&bed), 0);
}

/// A descriptor that is open keeps a file from being opened anew, and one that is being closed makes the next one wait.
#[test]
fn files_are_made_opened_and_closed_by_many_threads() {
    let bed = small_stripes("many", 2);
    let volume = bed.client_with_cache(16 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let volume = &volume;
            scope.spawn(move || {
                for n in 0..100_u8 {
                    let path = format!("f{}", n % 7);
                    let file = volume.create(Path::new(&path), 0o600, false).unwrap();
                    file.write_at(u64::from(thread) * 10, &[n + 1; 10]).unwrap();
                    file.flush().unwrap();
                    let mut found = [0; 10];
                    file.read_at(u64::from(thread) * 10, &mut found).unwrap();
                    assert_eq!(found, [n + 1; 10], "no other thread writes there");
                }
            });
        }
    });
    assert!(!volume.has_open_files());
    assert_eq!(volume.list(Path::new("/")).unwrap().len(), 7);
}

/// Other work, such as that of a client that ends, has already removed one of the files that wait for it.
#[test]
fn a_large_file_is_removed_although_another_one_is_gone_already() {
    let bed = small_stripes("gone", 1);
    let client = bed.client();
    for (name, len) in [("small", 10), ("large", 2 << 20)] {
        let file = client.create(Path::new(name), 0o644, true).unwrap();
        file.write_at(0, &vec![7; len]).unwrap();
    }
    let small = client.stat(Path::new("small")).unwrap();
    client.remove(Path::new("small")).unwrap();
    bed.server.manager.change(&Change::Forget(small.id)).unwrap();
    client.remove(Path::new("large")).unwrap();
    client.sync().unwrap();
    assert_eq!(strips(&bed), 0);
    assert_eq!(bed.server.manager.unfinished(0, 10).unwrap(), []);
}

/// It was looked up before it lost its name, and nobody had it open.
#[test]
fn a_file_of_a_shared_volume_can_be_opened_a_moment_after_it_has_lost_its_name() {
    for len in [10, 2 << 20] {
        let bed = small_stripes("spared", 1);
        let (one, other) = (bed.client(), bed.client());
        file(&one).write_at(0, &vec![7; len]).unwrap();
        let found = other.stat(Path::new("f")).unwrap();
        one.remove(Path::new("f")).unwrap();
        let late = other.open_file(found.id, Path::new("f")).unwrap();
        one.sync().unwrap();
        assert!(contents(&late) == vec![7; len]);
        drop(late);
        one.sync().unwrap();
        assert_eq!(strips(&bed), 0);
        assert!(other.open_file(found.id, Path::new("f")).is_err());
        // What is large goes by itself.
        file(&one).write_at(0, &vec![7; 2 << 20]).unwrap();
        one.remove(Path::new("f")).unwrap();
        let watch = thalweg_base::clock::Stopwatch::start();
        while strips(&bed) > 0 {
            assert!(watch.seconds() < 10.0);
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }
}

/// Files are made, written, cut, renamed and removed during the walk.
#[test]
fn a_check_and_a_repair_find_nothing_wrong_with_a_healthy_volume_in_use() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let bed = small_stripes("in-use", 2);
    let (is_over, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|n| {
                let (bed, is_over, rounds) = (&bed, &is_over, &rounds);
                scope.spawn(move || {
                    let client = bed.client();
                    let path = |round: u64| PathBuf::from(format!("{n}-{}", round % 7));
                    while !is_over.load(Ordering::Relaxed) {
                        let round = rounds[usize::from(n)].fetch_add(1, Ordering::Relaxed);
                        let file = client.create(&path(round), 0o644, false).unwrap();
                        file.write_at(0, &vec![n; 5 * STRIPE + 10]).unwrap();
                        if round % 3 == 0 {
                            file.set_size(STRIPE as u64).unwrap();
                        }
                        drop(file);
                        match round % 5 {
                            0 | 1 => client.remove(&path(round)).unwrap(),
                            2 => client.rename(&path(round), &path(round + 1)).unwrap(),
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        let client = bed.client();
        let watch = thalweg_base::clock::Stopwatch::start();
        let is_enough =
            |round| round >= 60 && rounds.iter().all(|rounds| rounds.load(Ordering::Relaxed) >= 60);
        for round in (0..).take_while(|round| !is_enough(*round)) {
            assert!(watch.seconds() < 60.0, "{rounds:?}");
            if round % 2 == 0 {
                assert_eq!(checked(&client), [""; 0], "{round}");
            } else {
                repaired(&bed.client());
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    assert_eq!(checked(&bed.client()), [""; 0]);
}

fn checked(volume: &Arc<Volume>) -> Vec<String> {
    let stores = (0..STORES).map(|slot| format!("/s{slot}")).collect();
    let entry = thalweg_api::VolumeEntry {
        name: "v".into(),
        cluster: None,
        manager: "m".into(),
        stores,
        clients: Vec::new(),
    };
    let watch = crate::alone::Watch::default();
    crate::check::check(&crate::OpenVolume { volume: Arc::clone(volume), entry, watch }).unwrap().problems
}

/// The session of a command may end a moment after its process.
#[test]
fn a_repair_waits_for_the_end_of_one_that_is_ending() {
    let bed = small_stripes("ending", 2);
    let (one, other) = (bed.client(), bed.client());
    one.manager.repair().unwrap();
    let ending = std::thread::spawn(move || {
        std::thread::park_timeout(std::time::Duration::from_millis(300));
        drop(one);
    });
    other.manager.repair().unwrap();
    ending.join().unwrap();
}

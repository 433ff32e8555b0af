//! The promises of every back end: one suite over the ring, the threads and the simulated disk, the last also with
//! short transfers, interruptions and completions out of order.

mod stage;

use stage::{BLOCK, PAGE, bytes, op, panic_of, read_file, read_op, read_opened, stages, write_file};
use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_io::{Access, Action, Backends, Caching, Kind};

#[test]
fn files_of_every_awkward_size_come_back_as_they_were_written() {
    for stage in stages("sizes") {
        let sizes =
            [0, 1, PAGE - 1, PAGE, PAGE + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - PAGE, 5 * BLOCK + 5];
        for (i, size) in sizes.into_iter().enumerate() {
            let content = bytes(i as u64, size);
            for create in [Access::CreateDirect, Access::Create] {
                let _ = stage.io.remove(&stage.path("file"));
                let file = write_file(&stage.io, &stage.path("file"), create, &content).unwrap();
                if create == Access::CreateDirect && !file.is_direct() && size == 0 {
                    println!("{}: direct access is refused here and not tested", stage.label);
                }
                assert_eq!(file.metadata().unwrap().len, size as u64);
                for caching in [Caching::Direct, Caching::Cached] {
                    let found = read_file(&stage.io, &stage.path("file"), caching).unwrap();
                    assert!(found == content, "{} {size} bytes, {create:?} then {caching:?}", stage.label);
                }
                for update in [Access::Update, Access::UpdateDirect] {
                    let found = read_opened(&stage.io, &stage.open("file", update).unwrap()).unwrap();
                    assert!(found == content, "{} {size} bytes, {create:?} then {update:?}", stage.label);
                }
            }
        }
    }
}

#[test]
fn every_operation_is_reaped_once_and_no_more_are_taken_than_the_depth() {
    for stage in stages("laws") {
        let file = write_file(&stage.io, &stage.path("file"), Access::Create, &bytes(1, 8 * BLOCK)).unwrap();
        let pool = Pool::new(BLOCK, 9).unwrap();
        let mut queue = stage.io.queue(8).unwrap();
        assert_eq!((queue.depth(), queue.in_flight()), (8, 0));
        assert!(queue.reap(true).is_none() && queue.reap(false).is_none());
        for round in 0..20u64 {
            let mut seen = [false; 8];
            for tag in 0..8u64 {
                queue.submit(read_op(&file, tag * BLOCK as u64, &pool, BLOCK, round * 8 + tag));
                assert_eq!(queue.in_flight() as u64, tag + 1);
            }
            for left in (0..8).rev() {
                // Sometimes without waiting, until one is ready.
                let done = if left % 2 == 0 {
                    queue.reap(true).unwrap()
                } else {
                    loop {
                        if let Some(done) = queue.reap(false) {
                            break done;
                        }
                        std::thread::yield_now();
                    }
                };
                assert_eq!(queue.in_flight(), left);
                assert_eq!((done.kind, done.tag / 8), (Kind::Read, round));
                assert_eq!(done.at, done.tag % 8 * BLOCK as u64);
                assert!(!std::mem::replace(&mut seen[(done.tag % 8) as usize], true), "{}", stage.label);
            }
            assert!(queue.reap(true).is_none());
            assert_eq!(seen, [true; 8]);
        }
        for tag in 0..8 {
            queue.submit(read_op(&file, 0, &pool, BLOCK, tag));
        }
        let text = panic_of(|| queue.submit(read_op(&file, 0, &pool, BLOCK, 8)));
        assert!(text.contains("more than 8 operations"), "{text}");
        drop(queue);
        assert_eq!(pool.free(), 9, "{}", stage.label);
    }
}

#[test]
fn a_dropped_queue_has_finished_its_writes_and_given_up_its_blocks() {
    for stage in stages("drop") {
        for access in [Access::CreateDirect, Access::Create] {
            let file = stage.anew("file", access);
            let pool = Pool::new(BLOCK, 4).unwrap();
            let content = bytes(2, 4 * BLOCK);
            let mut queue = stage.io.queue(4).unwrap();
            for (i, chunk) in content.chunks(BLOCK).enumerate() {
                queue.submit(op(Kind::Write, &file, (i * BLOCK) as u64, &pool, chunk, 0));
            }
            drop(queue);
            assert_eq!(pool.free(), 4);
            assert!(
                read_file(&stage.io, &stage.path("file"), Caching::Cached).unwrap() == content,
                "{}",
                stage.label
            );
        }
    }
}

#[test]
fn empty_operations_complete_and_reads_beyond_the_end_find_nothing() {
    for stage in stages("empty") {
        let file = write_file(&stage.io, &stage.path("file"), Access::Create, b"abc").unwrap();
        let pool = Pool::new(BLOCK, 4).unwrap();
        let mut queue = stage.io.queue(4).unwrap();
        queue.submit(op(Kind::Write, &file, 1 << 20, &pool, b"", 0));
        queue.submit(read_op(&file, 0, &pool, 0, 1));
        queue.submit(read_op(&file, 1 << 20, &pool, BLOCK, 2));
        queue.submit(read_op(&file, 3, &pool, BLOCK, 3));
        for _ in 0..4 {
            let done = queue.reap(true).unwrap();
            done.result.unwrap();
            assert_eq!(done.block.len(), 0, "{} operation {}", stage.label, done.tag);
        }
        assert_eq!(file.metadata().unwrap().len, 3);
    }
}

#[test]
fn a_ragged_operation_on_a_direct_file_is_refused_at_once() {
    for stage in stages("ragged") {
        let file = stage.open("file", Access::CreateDirect).unwrap();
        if !file.is_direct() {
            println!("{}: direct access is refused here and not tested", stage.label);
            continue;
        }
        let pool = Pool::new(BLOCK, 1).unwrap();
        let mut queue = stage.io.queue(1).unwrap();
        for (at, len) in [(512, PAGE), (0, 512), (1, PAGE), (0, PAGE + 1)] {
            let text = panic_of(|| queue.submit(op(Kind::Write, &file, at, &pool, &vec![0; len], 0)));
            assert!(text.contains("of a direct file"), "{text}");
        }
        assert_eq!(queue.in_flight(), 0);
    }
}

#[test]
fn a_failed_operation_gives_its_block_back_and_names_the_place() {
    for stage in stages("failed") {
        write_file(&stage.io, &stage.path("file"), Access::Create, &bytes(3, BLOCK)).unwrap();
        let file = stage.open_to_read("file", Caching::Cached).unwrap();
        let pool = Pool::new(BLOCK, 2).unwrap();
        let mut queue = stage.io.queue(2).unwrap();
        queue.submit(op(Kind::Write, &file, 4096, &pool, b"no", 7));
        let done = queue.reap(true).unwrap();
        let error = done.result.unwrap_err();
        assert_eq!(
            (error.action, error.offset, error.errno()),
            (Action::Write, Some(4096), Some(libc::EBADF))
        );
        assert!(error.to_string().contains("file at byte 4096"), "{error}");
        assert_eq!((done.tag, done.block.len()), (7, 2));
        drop(done.block);
        assert_eq!(pool.free(), 2);
        queue.submit(read_op(&file, 0, &pool, BLOCK, 8));
        queue.reap(true).unwrap().result.expect("the queue goes on after a failed operation");
    }
}

#[test]
fn small_reads_and_writes_reach_every_byte_of_any_file() {
    for stage in stages("small") {
        for (create, update) in
            [(Access::CreateDirect, Access::UpdateDirect), (Access::Create, Access::Update)]
        {
            let mut model = bytes(4, 3 * PAGE + 100);
            drop(stage.anew("file", create));
            let file = stage.open("file", update).unwrap();
            file.write_at(0, &model).unwrap();
            let mut rng = Rng::new(5);
            for round in 0..60 {
                let at = rng.below(4 * PAGE as u64) as usize;
                let new = bytes(round, 1 + rng.below(2 * PAGE as u64) as usize);
                file.write_at(at as u64, &new).unwrap();
                model.resize(model.len().max(at + new.len()), 0);
                model[at..at + new.len()].copy_from_slice(&new);
                let from = rng.below(model.len() as u64 + 100) as usize;
                let mut found = vec![0xa5; rng.below(2 * PAGE as u64) as usize];
                let n = file.read_at(from as u64, &mut found).unwrap();
                assert_eq!(n, found.len().min(model.len().saturating_sub(from)), "{}", stage.label);
                assert!(
                    n == 0 || found[..n] == model[from..from + n],
                    "{} {update:?} round {round}",
                    stage.label
                );
                assert!(found[n..].iter().all(|&b| b == 0xa5), "what was not read is left alone");
            }
            assert_eq!(file.metadata().unwrap().len, model.len() as u64);
            assert!(read_file(&stage.io, &stage.path("file"), Caching::Direct).unwrap() == model);
        }
    }
}

#[test]
fn a_long_read_at_an_odd_byte_of_a_direct_file_is_whole() {
    for stage in stages("odd") {
        let content = bytes(6, 600_001);
        write_file(&stage.io, &stage.path("file"), Access::CreateDirect, &content).unwrap();
        let file = stage.open_to_read("file", Caching::Direct).unwrap();
        let mut found = vec![0; 700_000];
        assert_eq!(file.read_at(777, &mut found).unwrap(), content.len() - 777);
        assert!(found[..content.len() - 777] == content[777..], "{}", stage.label);
    }
}

#[test]
fn lengths_are_set_and_room_is_reserved_without_touching_what_is_there() {
    for stage in stages("lengths") {
        let content = bytes(7, 2 * PAGE);
        let file = write_file(&stage.io, &stage.path("file"), Access::Create, &content).unwrap();
        let len = || file.metadata().unwrap().len;
        file.allocate(0).unwrap();
        file.allocate(10).unwrap();
        assert_eq!(len(), 2 * PAGE as u64);
        file.allocate(5 * PAGE as u64 + 1).unwrap();
        assert_eq!(len(), 5 * PAGE as u64 + 1);
        file.set_len(PAGE as u64 + 7).unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        file.sync().unwrap();
        let found = read_file(&stage.io, &stage.path("file"), Caching::Cached).unwrap();
        assert!(found[..PAGE + 7] == content[..PAGE + 7], "{}", stage.label);
        assert!(found.len() == 3 * PAGE && found[PAGE + 7..].iter().all(|&b| b == 0), "{}", stage.label);
    }
}

#[test]
fn names_are_listed_changed_and_removed() {
    for stage in stages("names") {
        for (name, content) in [("b", "bb"), ("a", "a"), ("c", "ccc")] {
            write_file(&stage.io, &stage.path(name), Access::Create, content.as_bytes()).unwrap();
        }
        let list = || stage.io.list(&stage.directory).unwrap();
        assert_eq!(list(), ["a", "b", "c"].map(|name| stage.path(name)));
        let (before, open) =
            (stage.io.stat(&stage.path("a")).unwrap(), stage.open_to_read("a", Caching::Cached).unwrap());
        assert_eq!((before.len, before.is_regular, before.is_directory), (1, true, false));
        stage.io.rename(&stage.path("a"), &stage.path("b")).unwrap();
        stage.io.remove(&stage.path("c")).unwrap();
        stage.io.sync_directory(&stage.directory).unwrap();
        assert_eq!(list(), [stage.path("b")]);
        let after = stage.io.stat(&stage.path("b")).unwrap();
        assert_eq!((after.device, after.inode), (before.device, before.inode), "it is the same file");
        assert_eq!(open.metadata().unwrap().inode, after.inode);
        assert!(stage.io.stat(&stage.directory).unwrap().is_directory);
        let space = stage.io.space(&stage.directory).unwrap();
        assert!(space.available <= space.total && space.total > 0);
    }
}

#[test]
fn a_new_file_has_a_name_that_was_free_and_an_update_keeps_what_is_there() {
    for stage in stages("create") {
        for (create, update) in
            [(Access::Create, Access::Update), (Access::CreateDirect, Access::UpdateDirect)]
        {
            stage.anew("file", create).write_at(0, &bytes(8, 100)).unwrap();
            assert_eq!(stage.open("file", create).unwrap_err().errno(), Some(libc::EEXIST));
            assert_eq!(stage.open("file", update).unwrap().metadata().unwrap().len, 100);
        }
    }
}

#[test]
fn what_cannot_be_opened_says_what_and_why() {
    for stage in stages("refused") {
        let refused = |path: &std::path::Path, access| {
            let error = thalweg_io::File::open(&stage.io, path, access).unwrap_err();
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            (error.action, error.errno().unwrap())
        };
        let (gone, nowhere) = (stage.path("gone"), stage.path("no/where"));
        for caching in [Caching::Cached, Caching::Direct] {
            for (name, errno) in [("gone", libc::ENOENT), ("", libc::EISDIR)] {
                let error = stage.open_to_read(name, caching).unwrap_err();
                assert_eq!((error.action, error.errno()), (Action::Open, Some(errno)), "{error}");
                assert!(error.to_string().contains(&stage.path(name).display().to_string()), "{error}");
            }
        }
        for access in [Access::Update, Access::UpdateDirect, Access::WriteStream] {
            assert_eq!(refused(&gone, access), (Action::Open, libc::ENOENT), "{} {access:?}", stage.label);
            assert_eq!(
                refused(&stage.directory, access),
                (Action::Open, libc::EISDIR),
                "{} {access:?}",
                stage.label
            );
        }
        for access in [Access::Create, Access::CreateDirect] {
            assert_eq!(refused(&nowhere, access), (Action::Create, libc::ENOENT));
            assert_eq!(refused(&stage.directory, access), (Action::Create, libc::EEXIST));
        }
        let io = &stage.io;
        assert_eq!(io.remove(&gone).unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(io.rename(&gone, &nowhere).unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(io.stat(&gone).unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(io.list(&gone).unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(io.sync_directory(&gone).unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(io.space(&gone).unwrap_err().errno(), Some(libc::ENOENT));
    }
}

#[test]
fn an_open_file_outlives_its_name_and_its_clones() {
    for stage in stages("outlive") {
        let file = write_file(&stage.io, &stage.path("file"), Access::Create, b"still here").unwrap();
        let clone = file.clone();
        drop(file);
        stage.io.remove(&stage.path("file")).unwrap();
        let mut found = [0; 10];
        assert_eq!(clone.read_at(0, &mut found).unwrap(), 10);
        assert_eq!(&found, b"still here");
    }
}

#[test]
fn queues_of_several_threads_share_one_file() {
    for stage in stages("shared") {
        let file = stage.open("file", Access::CreateDirect).unwrap();
        let content = bytes(9, 24 * BLOCK);
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let (file, content, io) = (file.clone(), &content, &stage.io);
                // Created here and used there: a queue may be moved before its first use.
                let mut queue = io.queue(2).unwrap();
                scope.spawn(move || {
                    let pool = Pool::new(BLOCK, 2).unwrap();
                    for (i, chunk) in content.chunks(BLOCK).enumerate().filter(|(i, _)| i % 4 == lane) {
                        if queue.in_flight() == 2 {
                            queue.reap(true).unwrap().result.unwrap();
                        }
                        queue.submit(op(Kind::Write, &file, (i * BLOCK) as u64, &pool, chunk, 0));
                    }
                });
            }
        });
        assert!(
            read_file(&stage.io, &stage.path("file"), Caching::Direct).unwrap() == content,
            "{}",
            stage.label
        );
    }
}

#[test]
fn a_queue_may_end_on_another_thread_with_work_in_flight() {
    for stage in stages("moved") {
        let file = stage.open("file", Access::CreateDirect).unwrap();
        let pool = Pool::new(BLOCK, 1).unwrap();
        let content = bytes(10, BLOCK);
        let mut queue = stage.io.queue(1).unwrap();
        queue.submit(op(Kind::Write, &file, 0, &pool, &content, 0));
        std::thread::spawn(move || drop(queue)).join().unwrap();
        assert_eq!(pool.free(), 1);
        assert!(
            read_file(&stage.io, &stage.path("file"), Caching::Cached).unwrap() == content,
            "{}",
            stage.label
        );
    }
}

/// The files of one lane are on a simulated disk with completions in any order, on another one, and on a real one.
#[test]
fn a_lane_with_files_of_several_back_ends_has_one_queue() {
    let mut stages = stages("joint");
    stages.retain(|stage| stage.label != "uring");
    let backends: Backends = stages.iter().map(|stage| stage.io.clone() as _).collect();
    assert_eq!(backends.name(), "threads+sim");
    let (pool, spare) = (Pool::new(BLOCK, 4).unwrap(), Pool::new(BLOCK, 1).unwrap());
    let mut queue = backends.queue(4).unwrap();
    assert_eq!((queue.depth(), queue.in_flight()), (4, 0));
    assert!(queue.reap(true).is_none(), "nothing is in flight");
    let files: Vec<_> = stages.iter().map(|stage| stage.anew("file", Access::Create)).collect();
    let content = |at: usize| bytes(at as u64, BLOCK);
    let mut reaped = vec![0; files.len()];
    for round in 0..2 * files.len() {
        while queue.in_flight() < queue.depth() {
            let file = (round + queue.in_flight()) % files.len();
            queue.submit(op(Kind::Write, &files[file], 0, &pool, &content(file), file as u64));
        }
        assert!(
            panic_of(|| queue.submit(op(Kind::Write, &files[0], 0, &spare, b"", 0))).contains("one more")
        );
        let done = queue.reap(true).expect("four are in flight");
        done.result.unwrap();
        assert_eq!(done.file.path(), files[done.tag as usize].path());
        reaped[done.tag as usize] += 1;
    }
    while let Some(done) = queue.reap(true) {
        done.result.unwrap();
        reaped[done.tag as usize] += 1;
    }
    assert_eq!(queue.in_flight(), 0);
    for (i, stage) in stages.iter().enumerate() {
        let file = stage.path("file");
        assert!(reaped[i] > 0 && read_file(&stage.io, &file, Caching::Cached).unwrap() == content(i));
    }
}

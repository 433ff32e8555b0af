//! What only a real system has: pipes, devices, permissions, the page cache, threads.
#![allow(clippy::disallowed_methods)] // The tests create files directly.

mod stage;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use stage::{BLOCK, bytes, op, panic_of, read_op, real_stages, write_file};
use thalweg_block::Pool;
use thalweg_io::threads::Threads;
use thalweg_io::{Access, Caching, File, FileSystem, Kind};

/// More than a pipe holds, so that writes are short and readers are awaited.
const LONG: usize = 20 * BLOCK;

fn named(file: &impl AsRawFd) -> PathBuf {
    format!("/dev/fd/{}", file.as_raw_fd()).into()
}

fn send(io: &Arc<dyn FileSystem>, file: &File, content: &[u8]) {
    // Not a divisor of what a pipe holds, so that a pipe fills up in the middle of a block.
    const PIECE: usize = BLOCK - 1000;
    let pool = Pool::new(BLOCK, 1).unwrap();
    let mut queue = io.queue(2).unwrap();
    for (i, chunk) in content.chunks(PIECE).enumerate() {
        queue.submit(op(Kind::Write, file, (i * PIECE) as u64, &pool, chunk, 0));
        queue.reap(true).unwrap().result.unwrap();
    }
}

#[test]
fn a_pipe_is_written_in_order_through_its_name() {
    for stage in real_stages("pipe-out") {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let content = bytes(1, LONG);
        let listening = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let file = File::open(&stage.io, &named(&writer), Access::WriteStream).unwrap();
        assert!(!file.metadata().unwrap().is_regular);
        send(&stage.io, &file, &content[..LONG / 2]);
        file.write_at(LONG as u64 / 2, &content[LONG / 2..]).unwrap();
        file.sync().expect("a pipe has nothing to make durable");
        drop((file, writer));
        assert!(listening.join().unwrap() == content, "{}", stage.label);
    }
}

#[test]
fn a_pipe_that_does_not_block_is_waited_for() {
    for stage in real_stages("pipe-busy") {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let by_name = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let busy =
            std::fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(by_name).unwrap();
        drop(writer);
        let content = bytes(2, LONG);
        let file = File::open(&stage.io, &named(&busy), Access::WriteStream).unwrap();
        let all = std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&stage.io, &file, &content);
                drop((file, busy));
            });
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        assert!(all == content, "{}", stage.label);
    }
}

#[test]
fn a_block_read_from_a_pipe_is_full_until_the_pipe_ends() {
    for stage in real_stages("pipe-in") {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let content = bytes(3, 2 * BLOCK + 5);
        let by_name = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let file = File::open_to_read(stage.io.clone(), &by_name, Caching::Direct).unwrap();
        assert!(!file.is_direct());
        let pool = Pool::new(BLOCK, 1).unwrap();
        let mut queue = stage.io.queue(1).unwrap();
        queue.submit(read_op(&file, 0, &pool, BLOCK, 0));
        for piece in content[..BLOCK - 1].chunks(5000) {
            writer.write_all(piece).unwrap();
            for _ in 0..1000 {
                assert!(queue.reap(false).is_none(), "{}: a block is not full yet", stage.label);
                std::thread::yield_now();
            }
        }
        let rest = content[BLOCK - 1..].to_vec();
        let sending =
            std::thread::spawn(move || rest.chunks(1000).for_each(|c| writer.write_all(c).unwrap()));
        let mut found = Vec::new();
        for expected in [BLOCK, BLOCK, 5, 0] {
            if !found.is_empty() {
                queue.submit(read_op(&file, found.len() as u64, &pool, BLOCK, 0));
            }
            let done = queue.reap(true).unwrap();
            done.result.unwrap();
            assert_eq!(done.block.len(), expected, "{}", stage.label);
            found.extend_from_slice(&done.block);
        }
        sending.join().unwrap();
        assert!(found == content);
    }
}

#[test]
fn a_second_operation_at_once_on_a_stream_is_refused() {
    for stage in real_stages("pipe-two") {
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = File::open(&stage.io, &named(&writer), Access::WriteStream).unwrap();
        let pool = Pool::new(BLOCK, 2).unwrap();
        let mut queue = stage.io.queue(2).unwrap();
        queue.submit(op(Kind::Write, &file, 0, &pool, b"one", 0));
        let text = panic_of(|| queue.submit(op(Kind::Write, &file, 3, &pool, b"two", 0)));
        assert!(text.contains("two operations at once"), "{text}");
    }
}

#[test]
fn a_reader_that_went_away_is_an_error() {
    for stage in real_stages("pipe-broken") {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = File::open(&stage.io, &named(&writer), Access::WriteStream).unwrap();
        drop(reader);
        let pool = Pool::new(BLOCK, 1).unwrap();
        let mut queue = stage.io.queue(1).unwrap();
        queue.submit(op(Kind::Write, &file, 0, &pool, b"anyone?", 0));
        assert_eq!(queue.reap(true).unwrap().result.unwrap_err().errno(), Some(libc::EPIPE));
    }
}

#[test]
fn a_full_device_is_a_full_disk() {
    for stage in real_stages("full") {
        let file = File::open(&stage.io, "/dev/full".as_ref(), Access::WriteStream).unwrap();
        let pool = Pool::new(BLOCK, 1).unwrap();
        let mut queue = stage.io.queue(1).unwrap();
        queue.submit(op(Kind::Write, &file, 0, &pool, b"no room", 0));
        let error = queue.reap(true).unwrap().result.unwrap_err();
        assert!(error.is_full(), "{}: {error}", stage.label);
        assert!(file.write_at(0, b"no room").unwrap_err().is_full());
    }
}

#[test]
fn a_redirected_file_goes_on_where_it_was() {
    for stage in real_stages("redirected") {
        let path = stage.path("log");
        let mut log = std::fs::File::create(&path).unwrap();
        log.write_all(b"header\n").unwrap();
        let file = File::open(&stage.io, &named(&log), Access::WriteStream).unwrap();
        send(&stage.io, &file, b"records\n");
        drop(file);
        log.write_all(b"footer\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"header\nrecords\nfooter\n", "{}", stage.label);
    }
}

#[test]
fn a_new_file_is_for_its_owner_until_it_gets_the_mode_of_what_it_replaces_or_of_all_new_files() {
    for stage in real_stages("mode") {
        std::fs::File::create(stage.path("theirs")).unwrap();
        let theirs = stage.io.stat(&stage.path("theirs")).unwrap().mode;
        std::fs::write(stage.path("old"), b"old").unwrap();
        std::fs::set_permissions(stage.path("old"), std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(stage.path("old"), stage.path("link")).unwrap();
        for access in [Access::CreateDirect, Access::Create] {
            let ours = stage.open(&format!("{access:?}"), access).unwrap();
            assert_eq!(ours.metadata().unwrap().mode, 0o600, "{access:?}");
            for (like, mode) in [("old", 0o640), ("none", theirs), ("link", theirs)] {
                ours.resemble(&stage.path(like)).unwrap();
                assert_eq!(ours.metadata().unwrap().mode, mode, "{access:?} like {like}");
            }
        }
    }
}

/// What went wrong: a pipe that another user put at the name of an output, after the name had been checked, got the
/// records.
#[test]
fn a_stream_that_another_user_planted_is_not_written() {
    for stage in real_stages("planted-stream") {
        let (shared, pipe) = (stage.path("shared"), stage.path("shared/pipe"));
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let opened = |path: &PathBuf| File::open(&stage.io, path, Access::WriteStream).map(drop);
        opened(&pipe).unwrap();
        let link = stage.path("shared/link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(opened(&link).unwrap_err().to_string().contains("another file has taken its name"));
        if std::os::unix::fs::chown(&pipe, Some(1234), None).is_ok() {
            assert!(opened(&pipe).unwrap_err().to_string().contains("user 1234 made it"));
        }
        std::fs::remove_dir_all(&shared).unwrap();
    }
}

/// What went wrong: hidden names can be guessed. Another user of the same directory put there a link to a file, which
/// was overwritten, or a file of his own, which got the records.
#[test]
fn what_another_user_planted_under_a_hidden_name_is_neither_written_nor_gone_on_from() {
    for stage in real_stages("planted") {
        let precious = stage.path("precious");
        std::fs::write(&precious, b"precious").unwrap();
        std::os::unix::fs::symlink(&precious, stage.path("link")).unwrap();
        std::fs::hard_link(&precious, stage.path("other-name")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(stage.path("pipe")).status().unwrap().success());
        let mut planted = vec!["link", "other-name", "pipe"];
        // Only the superuser can make what belongs to another user.
        std::fs::write(stage.path("theirs"), b"theirs").unwrap();
        if std::os::unix::fs::chown(stage.path("theirs"), Some(1234), None).is_ok() {
            std::fs::set_permissions(stage.path("theirs"), std::fs::Permissions::from_mode(0o666)).unwrap();
            planted.push("theirs");
        }
        for name in planted {
            for access in [Access::Create, Access::CreateDirect, Access::Update, Access::UpdateDirect] {
                let failed = stage.open(name, access).expect_err(name);
                let told = failed.to_string();
                if access.creates() {
                    assert_eq!(failed.source.kind(), std::io::ErrorKind::AlreadyExists, "{told}");
                } else {
                    assert!(told.contains(name) && told.contains("; remove it"), "{told}");
                }
            }
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious", "{}", stage.label);
        // What this user's process made is opened again.
        stage.open("own", Access::CreateDirect).unwrap().write_at(0, b"own").unwrap();
        stage.open("own", Access::Update).unwrap().write_at(3, b"er").unwrap();
        assert_eq!(std::fs::read(stage.path("own")).unwrap(), b"owner");
        let left = stage.io.list(&stage.directory).unwrap();
        assert!(!left.iter().any(|path| path.to_string_lossy().contains("trial")), "{left:?}");
    }
}

#[test]
fn a_direct_file_that_was_renamed_still_takes_small_writes() {
    for stage in real_stages("renamed") {
        let file = write_file(&stage.io, &stage.path("old"), Access::CreateDirect, &bytes(4, 5000)).unwrap();
        stage.io.rename(&stage.path("old"), &stage.path("new")).unwrap();
        file.write_at(4999, b"xyz").unwrap();
        assert_eq!(&std::fs::read(stage.path("new")).unwrap()[4999..], b"xyz");
    }
}

#[test]
fn the_page_cache_is_asked_what_it_holds() {
    for stage in real_stages("cached") {
        let file = write_file(&stage.io, &stage.path("file"), Access::Create, &bytes(5, 64 << 10)).unwrap();
        let share = file.cached_share(64 << 10);
        assert!(share == 0.0 || share > 0.9, "{} {share}", stage.label);
        if share == 0.0 {
            println!("{}: the kernel does not say what it caches", stage.label);
        }
        assert_eq!(file.cached_share(0), 0.0);
        let half = file.cached_share(128 << 10);
        assert!(half <= 0.6, "{half} of twice the file");
    }
}

#[test]
fn threads_start_when_needed_and_stay_within_their_limit() {
    let team = Threads::new(3);
    assert_eq!(format!("{team:?}"), "Threads(0 of 3)");
    let team = Arc::new(team);
    let io: Arc<dyn FileSystem> = team.clone();
    let path = std::env::temp_dir().join(format!("thalweg-io-{}-team", std::process::id()));
    let file = write_file(&io, &path, Access::Create, &bytes(6, 8 * BLOCK)).unwrap();
    let pool = Pool::new(BLOCK, 16).unwrap();
    let mut queues: Vec<_> = (0..2).map(|_| io.queue(8).unwrap()).collect();
    for round in 0..32u64 {
        for queue in &mut queues {
            for i in 0..8 {
                queue.submit(read_op(&file, i * BLOCK as u64, &pool, BLOCK, round));
            }
        }
        for queue in &mut queues {
            while let Some(done) = queue.reap(true) {
                done.result.unwrap();
            }
        }
    }
    let now = format!("{team:?}");
    assert!(["Threads(1 of 3)", "Threads(2 of 3)", "Threads(3 of 3)"].contains(&now.as_str()), "{now}");
    io.remove(&path).unwrap();
    let held = Arc::downgrade(&team);
    drop((queues, file, io, team));
    assert!(held.upgrade().is_none(), "nothing keeps the team, so its threads have been joined");
}

//! The work of the local rows of `thalweg-bench volume`, done through the library in this process.
//!
//! Non-goals: a cache: the library has none, so each request goes to the stores.

use std::path::Path;

use thalweg::Volume;
use thalweg::volume::Result;
use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;

use super::access::Moved;
use super::local::{CHUNK, RANDOM_CHUNK, SMALL};

/// Threads that move a file.
pub(super) const THREADS: u64 = 4;

/// Each thread moves every fourth chunk of a file. Written data is durable at the end.
pub(super) fn sequential(volume: &Volume, path: &Path, bytes: u64, writes: bool) -> Result<Moved> {
    let watch = Stopwatch::start();
    let file = volume.create(path)?;
    let each = |thread: u64| -> Result<()> {
        let mut chunk = vec![thread as u8; CHUNK as usize];
        for at in (0..bytes / CHUNK).skip(thread as usize).step_by(THREADS as usize) {
            if writes {
                file.write_at(at * CHUNK, &chunk)?;
            } else {
                file.read_at(at * CHUNK, &mut chunk)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || each(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    if writes {
        file.sync()?;
    }
    Ok(Moved { seconds: watch.seconds(), bytes, ..Moved::default() })
}

/// Reads chunks of 4 KiB at random offsets of a file of `len` bytes, one after the other.
pub(super) fn random(volume: &Volume, path: &Path, len: u64, bytes: u64) -> Result<Moved> {
    let file = volume.open_file(path)?;
    let (mut rng, mut chunk, mut took_us) = (Rng::new(1), [0; RANDOM_CHUNK as usize], Vec::new());
    let watch = Stopwatch::start();
    for _ in 0..bytes / RANDOM_CHUNK {
        let request = Stopwatch::start();
        file.read_at(rng.below(len / RANDOM_CHUNK) * RANDOM_CHUNK, &mut chunk)?;
        took_us.push((request.ns() / 1000) as u32);
    }
    Ok(Moved { seconds: watch.seconds(), bytes, p99_us: p99(took_us), made_seconds: 0.0 })
}

/// Makes, inspects, reads and removes this many small files.
pub(super) fn small(volume: &Volume, files: u64) -> Result<Moved> {
    volume.make_directory("/small")?;
    let paths: Vec<String> = (0..files).map(|i| format!("/small/{i:06}")).collect();
    let mut bytes = vec![7; SMALL.1 as usize];
    let (mut took_us, watch) = (Vec::new(), Stopwatch::start());
    for path in &paths {
        let request = Stopwatch::start();
        volume.create(path)?.write_at(0, &bytes)?;
        took_us.push((request.ns() / 1000) as u32);
    }
    let made_seconds = watch.seconds();
    for path in &paths {
        assert_eq!(volume.stat(path)?.size, SMALL.1, "{path} has its size");
    }
    for path in &paths {
        let read = volume.open_file(path)?.read_at(0, &mut bytes)?;
        assert_eq!(read, bytes.len(), "{path} has its bytes");
    }
    paths.iter().try_for_each(|path| volume.remove(path))?;
    let bytes = 2 * files * SMALL.1;
    Ok(Moved { seconds: watch.seconds(), bytes, p99_us: p99(took_us), made_seconds })
}

fn p99(mut took_us: Vec<u32>) -> u32 {
    took_us.sort_unstable();
    took_us.get(took_us.len() * 99 / 100).copied().unwrap_or(0)
}

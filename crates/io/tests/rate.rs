//! The speed of each real back end with blocks of 1 MiB at depth 4.
//!
//! Runs with 4 MiB among the tests. For a figure: `THALWEG_IO_RATE_MIB=1024 cargo test --release -p thalweg-io --test
//! rate -- --nocapture`. Prints a digest of the data, which must be the same for both.

use std::path::Path;
use std::sync::Arc;

use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Access, Caching, File, FileSystem, Handle, Kind, Op};

const BLOCK: usize = 1 << 20;
const DEPTH: usize = 4;

/// Moves `blocks` blocks and calls `end`; returns seconds and the digest of the bytes.
fn stream(
    io: &Arc<dyn FileSystem>,
    file: &Handle,
    kind: Kind,
    blocks: usize,
    end: impl FnOnce(),
) -> (f64, u64) {
    let pool = Pool::new(BLOCK, DEPTH).unwrap();
    let mut queue = io.queue(DEPTH).unwrap();
    let mut digest = 0u64;
    let watch = Stopwatch::start();
    let mut next = 0;
    loop {
        while next < blocks && queue.in_flight() < DEPTH {
            let mut block = pool.take();
            block.set_len(BLOCK);
            if kind == Kind::Write {
                let number = Rng::new(next as u64).next_u64();
                block
                    .chunks_exact_mut(4096)
                    .for_each(|page| page[..8].copy_from_slice(&number.to_le_bytes()));
            }
            let at = (next * BLOCK) as u64;
            queue.submit(Op { kind, file: file.clone(), at, block, tag: next as u64 });
            next += 1;
        }
        let Some(done) = queue.reap(true) else { break };
        done.result.unwrap();
        assert_eq!(done.block.len(), BLOCK);
        for page in done.block.chunks_exact(4096) {
            let number = u64::from_le_bytes(page[..8].try_into().unwrap());
            digest = digest.wrapping_add(number.wrapping_mul(done.tag * 2 + 1));
        }
    }
    end();
    (watch.seconds(), digest)
}

fn measure(io: &Arc<dyn FileSystem>, path: &Path, blocks: usize) -> u64 {
    let rate = |seconds: f64| blocks as f64 / seconds;
    let _ = io.remove(path);
    let file = File::open(io, path, Access::CreateDirect).unwrap();
    file.allocate((blocks * BLOCK) as u64).unwrap();
    let (write, wrote) = stream(io, &file, Kind::Write, blocks, || file.sync().unwrap());
    let file = File::open_to_read(io.clone(), path, Caching::Direct).unwrap();
    let (read, digest) = stream(io, &file, Kind::Read, blocks, || ());
    assert_eq!(wrote, digest);
    println!(
        "{:8} {blocks} MiB, direct {}: write {:.0} MiB/s, read {:.0} MiB/s, digest {digest:016x}",
        io.name(),
        file.is_direct(),
        rate(write),
        rate(read)
    );
    digest
}

#[test]
fn both_back_ends_move_the_same_bytes() {
    let blocks = std::env::var("THALWEG_IO_RATE_MIB").map_or(4, |text| text.parse().unwrap());
    let path = std::env::temp_dir().join(format!("thalweg-rate-{}", std::process::id()));
    let mut digests = Vec::new();
    for _ in 0..2 {
        match Uring::new() {
            Ok(uring) => digests.push(measure(&(Arc::new(uring) as Arc<dyn FileSystem>), &path, blocks)),
            Err(e) => println!("not measured: {e}"),
        }
        digests.push(measure(&(Arc::new(Threads::new(16)) as Arc<dyn FileSystem>), &path, blocks));
    }
    Threads::new(1).remove(&path).unwrap();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}

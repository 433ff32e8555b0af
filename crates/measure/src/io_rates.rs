//! `bench io`: table 2 of paper 004 on this machine. It combines buffered or direct I/O, three ways of issuing requests
//! (synchronous, overlapped, in threads) and several chunk sizes, over one to four directories.
//!
//! Model: the chunks of one stream are spread over one file in each directory. Synchronous has one request in flight,
//! overlapped has four for each directory, and threads has four threads for each directory that read and write without
//! overlap. All requests go through `thalweg_io`, so our own sorts can have these rates.
//! Invariant: a write ends when the files are durable. A read begins with cold caches if they can be dropped. Every
//! chunk that is read is compared with what was written.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::{BenchRate, BenchReport};
use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;
use thalweg_base::units::{KIB, MIB};
use thalweg_block::Pool;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Access, Caching, File, FileSystem, Handle, Kind, Op};

use crate::data_dir::DataDir;
use crate::process::median;
use crate::{Asked, SEED};
use crate::{Error, Result};

/// Requests in flight for each directory, for schemes that overlap.
const DEPTH: usize = 4;
const CHUNKS: [u64; 5] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];
/// Sizes of the whole table.
const SIZES: [u64; 6] = [100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 8_000_000_000];
const DIRECTORIES_MAX: usize = 4;
/// The row that selects the whole table instead of one size.
const WHOLE: &str = "whole";
const PAGE: u64 = 4096;

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Synchronous,
    Overlapped,
    Threads,
}

/// One line of the paper's table.
#[derive(Debug, Clone, Copy)]
struct Scheme {
    direct: bool,
    manner: Manner,
}

const MANNERS: [Manner; 3] = [Manner::Synchronous, Manner::Overlapped, Manner::Threads];

impl Scheme {
    fn all() -> Vec<Scheme> {
        [false, true].iter().flat_map(|&direct| MANNERS.map(|manner| Scheme { direct, manner })).collect()
    }

    /// The paper's name for it.
    fn name(self) -> String {
        format!("{} {:?}", if self.direct { "direct" } else { "buffered" }, self.manner).to_lowercase()
    }

    /// Its name in requests.
    fn row(self) -> &'static str {
        match (self.direct, self.manner) {
            (false, Manner::Synchronous) => "buffered-synchronous",
            (false, Manner::Overlapped) => "buffered-overlapped",
            (false, Manner::Threads) => "buffered-threads",
            (true, Manner::Synchronous) => "direct-synchronous",
            (true, Manner::Overlapped) => "direct-overlapped",
            (true, Manner::Threads) => "direct-threads",
        }
    }

    fn depth(self, directories: usize) -> usize {
        if self.manner == Manner::Synchronous { 1 } else { DEPTH * directories }
    }

    /// The back end, and whether it differs from the one for this scheme.
    fn io(self, directories: usize) -> (Arc<dyn FileSystem>, bool) {
        let threads = || Arc::new(Threads::new(self.depth(directories))) as Arc<dyn FileSystem>;
        match (self.manner, Uring::new()) {
            (Manner::Threads, _) => (threads(), false),
            (_, Ok(uring)) => (Arc::new(uring), false),
            (_, Err(_)) => (threads(), true),
        }
    }
}

/// Names by which parts of the table can be selected.
pub(crate) fn names() -> Vec<&'static str> {
    Scheme::all().into_iter().map(Scheme::row).chain([WHOLE]).collect()
}

/// Measures one size over all directories given, or with the row `whole` all sizes over one to all of them.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let directories = dir.paths().len();
    if directories > DIRECTORIES_MAX {
        let message = format!("bench io takes up to {DIRECTORIES_MAX} directories, not {directories}");
        return Err(Error::Failed(message));
    }
    let whole = asked.options.rows.iter().any(|row| row == WHOLE);
    let sizes = if whole { SIZES.to_vec() } else { vec![asked.bytes] };
    let spreads = if whole { (1..=directories).collect() } else { vec![directories] };
    let named = asked.options.rows.iter().any(|row| row != WHOLE);
    let schemes: Vec<Scheme> =
        Scheme::all().into_iter().filter(|scheme| !named || asked.wants(scheme.row())).collect();
    dir.need(sizes.iter().max().copied().unwrap_or(0) * 2)?;
    let mut step = 0;
    let steps = (schemes.len() * sizes.len() * spreads.len()) as u64;
    for scheme in schemes {
        if scheme.io(1).1 {
            report.notes.push(format!("{}: in threads, because io_uring is not available", scheme.name()));
        }
        for (&bytes, &spread) in
            sizes.iter().flat_map(|bytes| spreads.iter().map(move |spread| (bytes, spread)))
        {
            step += 1;
            asked.progress.begin(scheme.row(), step, steps, 0);
            for chunk in CHUNKS.into_iter().filter(|&chunk| chunk <= bytes.next_multiple_of(CHUNKS[0])) {
                asked.should_continue()?;
                let stream = Stream::new(scheme, &dir.paths()[..spread], bytes, chunk)?;
                report.rates.push(stream.rate(asked, dir)?);
            }
        }
    }
    Ok(())
}

/// One stream of chunks over its directories.
struct Stream {
    scheme: Scheme,
    io: Arc<dyn FileSystem>,
    paths: Vec<PathBuf>,
    bytes: u64,
    chunk: u64,
    pool: Pool,
}

impl Stream {
    fn new(scheme: Scheme, directories: &[PathBuf], bytes: u64, chunk: u64) -> Result<Stream> {
        let (io, _) = scheme.io(directories.len());
        let paths = directories.iter().map(|directory| directory.join("stream")).collect();
        let pool = Pool::new(chunk as usize, scheme.depth(directories.len()))
            .map_err(|e| Error::Failed(e.to_string()))?;
        // Direct requests are whole pages.
        Ok(Stream { scheme, io, paths, bytes: bytes.next_multiple_of(PAGE), chunk, pool })
    }

    /// Writes and reads several times.
    fn rate(&self, asked: &Asked<'_>, dir: &DataDir) -> Result<BenchRate> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..asked.runs {
            dir.cool()?;
            writes.push(self.bytes as f64 / self.once(Kind::Write)?);
            dir.cool()?;
            reads.push(self.bytes as f64 / self.once(Kind::Read)?);
            for path in &self.paths {
                self.io.remove(path)?;
            }
        }
        Ok(BenchRate {
            scheme: self.scheme.name(),
            chunk_bytes: self.chunk,
            directories: self.paths.len() as u32,
            bytes: self.bytes,
            read_bytes_per_second: median(&reads),
            write_bytes_per_second: median(&writes),
        })
    }

    /// Moves all chunks once; returns the seconds.
    fn once(&self, kind: Kind) -> Result<f64> {
        let (access, caching) = match self.scheme.direct {
            false => (Access::Create, Caching::Cached),
            true => (Access::CreateDirect, Caching::Direct),
        };
        let mut written = Vec::new();
        let mut files = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            if kind == Kind::Read {
                files.push(File::open_to_read(self.io.clone(), path, caching)?.handle().clone());
            } else {
                let _ = self.io.remove(path);
                let file = File::open(&self.io, path, access)?;
                files.push(file.handle().clone());
                written.push(file);
            }
        }
        let depth = self.scheme.depth(self.paths.len());
        let mut queue = self.io.queue(depth)?;
        let watch = Stopwatch::start();
        let chunks = self.bytes.div_ceil(self.chunk);
        let mut next = 0;
        loop {
            while next < chunks && queue.in_flight() < depth {
                queue.submit(self.op(kind, &files, next));
                next += 1;
            }
            let Some(done) = queue.reap(true) else { break };
            done.result?;
            if kind == Kind::Read && !is_mark(&done.block, done.tag) {
                let name = done.file.path().display();
                return Err(Error::Wrong(format!("{name}: chunk {} is not what was written", done.tag)));
            }
        }
        written.iter().try_for_each(File::sync)?;
        Ok(watch.seconds())
    }

    /// The request for one chunk: chunks go round the files.
    fn op(&self, kind: Kind, files: &[Handle], index: u64) -> Op {
        let count = files.len() as u64;
        let length = self.chunk.min(self.bytes - index * self.chunk);
        let mut block = self.pool.take();
        block.set_len(length as usize);
        if kind == Kind::Write {
            mark(&mut block, index);
        }
        let file = files[(index % count) as usize].clone();
        Op { kind, file, at: index / count * self.chunk, block, tag: index }
    }
}

/// Writes into each page the number of its chunk.
fn mark(bytes: &mut [u8], index: u64) {
    let number = Rng::new(SEED ^ index).next_u64().to_le_bytes();
    bytes.chunks_mut(PAGE as usize).for_each(|page| page[..8].copy_from_slice(&number));
}

fn is_mark(bytes: &[u8], index: u64) -> bool {
    let number = Rng::new(SEED ^ index).next_u64().to_le_bytes();
    bytes.chunks(PAGE as usize).all(|page| page[..8] == number)
}

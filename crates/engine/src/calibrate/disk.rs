//! The disk's rates: reading alone, writing alone, both at once, and making durable.
//!
//! Model: blocks of a mebibyte, past the page cache, eight in flight. Reads come from the input, a few
//! neighbouring blocks at each of several places far apart; writes go to a file in the scratch directory
//! whose name is removed as soon as it is open, so that nothing is left even by a process that is killed.
//! Invariant: no more than an eighth of an input is read; no part starts an operation after its time is up.
//! Non-goals: finding the best depth and size, which `bench io` does.

use std::sync::Arc;

use thalweg_base::clock::Stopwatch;
use thalweg_base::rng::Rng;
use thalweg_base::units::MIB;
use thalweg_block::{Block, Pool};
use thalweg_io::{
    Access, Action, Backends, Caching, Error, File, Handle, InputLocation, Kind, Location, Op, Queue, Result,
    hidden,
};

const BLOCK_BYTES: u64 = MIB;
/// As many operations in flight as two lanes of a sort have.
const DEPTH: usize = 8;
/// Blocks of each part.
const BLOCKS: u64 = 64;
/// Fewer blocks than this measure nothing; then reads come from the file that was just written.
const BLOCKS_MIN: u64 = 8;
/// Neighbouring blocks at each place.
const TOGETHER: u64 = 8;
/// Seconds of each part when a plan waits for the result.
pub(super) const PART_SECONDS: f64 = 0.33;

/// Bytes per second.
pub(super) struct Rates {
    pub(super) read: f64,
    pub(super) write: f64,
    /// The sum of bytes read and bytes written.
    pub(super) mixed: f64,
    pub(super) sync_seconds: f64,
}

/// One operation to be carried out.
type Step = (Kind, Handle, u64);

/// Measures the disks of `input`, if there is one, and of `directory`, each part for so long at most.
pub(super) fn measure(
    input: Option<&InputLocation>,
    directory: &Location,
    part_seconds: f64,
) -> Result<Rates> {
    let trial = trial_file(directory)?;
    let pool = Pool::new(BLOCK_BYTES as usize, DEPTH)
        .map_err(|e| Error::new(Action::Setup, &directory.path, std::io::Error::other(e.to_string())))?;
    fill(&pool);
    let backends = input.map(|input| Arc::clone(&input.fs) as _);
    let backends: Backends = backends.into_iter().chain([Arc::clone(&directory.fs) as _]).collect();
    let mut queue = backends.queue(DEPTH)?;
    let writes = (0..BLOCKS).map(|i| (Kind::Write, trial.handle().clone(), i * BLOCK_BYTES));
    let (written_bytes, write_seconds) = carry_out(&mut *queue, &pool, part_seconds, writes)?;
    let watch = Stopwatch::start();
    trial.sync()?;
    let sync_seconds = watch.seconds();
    let (source, places) = places_of(input, &trial, written_bytes);
    let reads = places.iter().map(|&at| (Kind::Read, source.clone(), at));
    let (read_bytes, read_seconds) = carry_out(&mut *queue, &pool, part_seconds, reads)?;
    // Into space that has not been written before, as is that of scratch and output.
    let pairs = places.iter().take(BLOCKS as usize / 2).enumerate().flat_map(|(i, &at)| {
        let to = (BLOCKS + i as u64) * BLOCK_BYTES;
        [(Kind::Read, source.clone(), at), (Kind::Write, trial.handle().clone(), to)]
    });
    let (mixed_bytes, mixed_seconds) = carry_out(&mut *queue, &pool, part_seconds, pairs)?;
    // Through the page cache, a write is complete only after the sync.
    let late = if trial.is_direct() { 0.0 } else { sync_seconds };
    Ok(Rates {
        read: read_bytes as f64 / read_seconds,
        write: written_bytes as f64 / (write_seconds + late),
        mixed: mixed_bytes as f64 / mixed_seconds,
        sync_seconds: sync_seconds - late,
    })
}

/// A file without a name, with room for all writes.
fn trial_file(directory: &Location) -> Result<File> {
    let location = directory.at(directory.path.join(hidden::unique("calibration")));
    let file = location.open(Access::CreateDirect)?;
    location.remove()?;
    file.allocate((BLOCKS + BLOCKS / 2) * BLOCK_BYTES)?;
    Ok(file)
}

/// Fills the blocks of a pool with bytes that a disk cannot compress.
fn fill(pool: &Pool) {
    let mut rng = Rng::new(1);
    let mut blocks: Vec<Block> = (0..DEPTH).map(|_| pool.take()).collect();
    for block in &mut blocks {
        block.set_len(BLOCK_BYTES as usize);
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    }
}

/// The file to read, and the offsets: the input if an eighth of it is enough, else the file that was just written.
fn places_of(input: Option<&InputLocation>, trial: &File, written_bytes: u64) -> (Handle, Vec<u64>) {
    let opened = input.and_then(|input| input.open(Caching::Direct).ok());
    if let Some(file) = opened.filter(|file| file.is_direct())
        && let Ok(about) = file.metadata()
    {
        let places = places_in(about.len);
        if places.len() as u64 >= BLOCKS_MIN {
            return (file.handle().clone(), places);
        }
    }
    (trial.handle().clone(), (0..written_bytes / BLOCK_BYTES).map(|i| i * BLOCK_BYTES).collect())
}

/// The offsets at which blocks of a file of `len` bytes are read.
fn places_in(len: u64) -> Vec<u64> {
    let blocks = (len / 8 / BLOCK_BYTES).min(BLOCKS);
    let groups = blocks.div_ceil(TOGETHER).max(1);
    let stride = len / groups / BLOCK_BYTES * BLOCK_BYTES;
    (0..blocks).map(|i| i / TOGETHER * stride + i % TOGETHER * BLOCK_BYTES).collect()
}

/// Carries out steps until there are no more or time is up. Returns bytes and seconds.
fn carry_out(
    queue: &mut dyn Queue,
    pool: &Pool,
    part_seconds: f64,
    steps: impl IntoIterator<Item = Step>,
) -> Result<(u64, f64)> {
    let watch = Stopwatch::start();
    let mut steps = steps.into_iter();
    let mut bytes = 0;
    loop {
        while queue.in_flight() < queue.depth() && watch.seconds() < part_seconds {
            let Some((kind, file, at)) = steps.next() else { break };
            let mut block = pool.take();
            block.set_len(BLOCK_BYTES as usize);
            queue.submit(Op { kind, file, at, block, tag: 0 });
        }
        let Some(done) = queue.reap(true) else { break };
        done.result?;
        bytes += done.block.len() as u64;
    }
    Ok((bytes, watch.seconds()))
}

#[cfg(test)]
mod tests {
    use thalweg_io::sim::Sim;

    use super::*;

    #[test]
    fn places_lie_all_over_the_file_and_are_at_most_an_eighth_of_it() {
        for len in [0, 1, 64 * MIB, 64 * MIB + 1, 100_000_000, 1_000_000_000, 10_000_000_001] {
            let places = places_in(len);
            assert!(places.len() as u64 * BLOCK_BYTES <= len / 8);
            assert!(places.iter().all(|at| at % 4096 == 0 && at + BLOCK_BYTES <= len), "{len}");
            assert!(places.is_sorted_by(|a, b| a + BLOCK_BYTES <= *b), "{len}: {places:?}");
        }
        let places = places_in(1_000_000_000);
        assert_eq!(places.len() as u64, BLOCKS);
        assert!(*places.last().unwrap() > 800_000_000, "{places:?}");
    }

    #[test]
    fn nothing_is_left_of_a_measurement() {
        let sim = Sim::new(1);
        sim.make_dir("/scratch");
        let rates = measure(None, &Location::new(&sim.io(), "/scratch"), PART_SECONDS).unwrap();
        assert!(rates.read > 0.0 && rates.write > 0.0 && rates.mixed > 0.0 && rates.sync_seconds >= 0.0);
        assert!(sim.names().is_empty() && sim.open_files() == 0);
    }

    #[test]
    fn a_disk_without_room_is_no_measurement() {
        let sim = Sim::new(1);
        sim.set_capacity("/scratch", MIB);
        assert!(measure(None, &Location::new(&sim.io(), "/scratch"), PART_SECONDS).is_err());
        assert!(sim.names().is_empty() && sim.open_files() == 0);
    }
}

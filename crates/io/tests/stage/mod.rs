//! Helpers of the tests: every back end with a directory of its own, and moves of whole files.
#![allow(dead_code)] // Each test program uses a part.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_io::sim::{Faults, Sim};
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Access, Caching, Done, File, FileSystem, Handle, InputFile, Kind, Op, ReadFiles, Result};

/// Small, so that files of several blocks are cheap.
pub(crate) const BLOCK: usize = 16 << 10;
pub(crate) const PAGE: usize = 4096;

/// A back end and its directory, which is removed afterwards.
pub(crate) struct Stage {
    pub(crate) io: Arc<dyn FileSystem>,
    pub(crate) label: &'static str,
    pub(crate) directory: PathBuf,
    real: bool,
}

impl Stage {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn open(&self, name: &str, access: Access) -> Result<File> {
        File::open(&self.io, &self.path(name), access)
    }

    pub(crate) fn open_to_read(&self, name: &str, caching: Caching) -> Result<InputFile> {
        File::open_to_read(self.io.clone(), &self.path(name), caching)
    }

    /// Replaces a file.
    pub(crate) fn anew(&self, name: &str, access: Access) -> File {
        let _ = self.io.remove(&self.path(name));
        self.open(name, access).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.real {
            std::fs::remove_dir_all(&self.directory).expect("the test's own directory can go");
        }
    }
}

fn on_disk(label: &'static str, io: Arc<dyn FileSystem>, test: &str) -> Stage {
    let directory = std::env::temp_dir().join(format!("thalweg-io-{}-{test}-{label}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    Stage { io, label, directory, real: true }
}

fn simulated(label: &'static str, faults: Faults) -> Stage {
    let sim = Sim::new(17);
    sim.make_dir("/stage");
    sim.set_faults(faults);
    Stage { io: sim.io(), label, directory: "/stage".into(), real: false }
}

/// The back ends of this machine.
pub(crate) fn real_stages(test: &str) -> Vec<Stage> {
    let mut stages = vec![on_disk("threads", Arc::new(Threads::new(4)), test)];
    match Uring::new() {
        Ok(uring) => stages.push(on_disk("uring", Arc::new(uring), test)),
        Err(e) => println!("{test}: not tested on a ring: {e}"),
    }
    stages
}

/// All back ends; the simulated one also with every fault that callers must not see.
pub(crate) fn stages(test: &str) -> Vec<Stage> {
    let mut stages = real_stages(test);
    stages.push(simulated("sim", Faults::default()));
    let rough = Faults { short_one_in: 2, eintr_one_in: 3, reorder: true, ..Faults::default() };
    stages.push(simulated("rough sim", rough.clone()));
    stages.push(simulated("rough buffered sim", Faults { refuse_direct: true, ..rough }));
    stages
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut all = Vec::with_capacity(len + 8);
    while all.len() < len {
        all.extend(rng.next_u64().to_le_bytes());
    }
    all.truncate(len);
    all
}

pub(crate) fn op(kind: Kind, file: &Handle, at: u64, pool: &Pool, bytes: &[u8], tag: u64) -> Op {
    let mut block = pool.take();
    block.set_len(bytes.len());
    block.copy_from_slice(bytes);
    Op { kind, file: file.clone(), at, block, tag }
}

/// A read of `len` bytes into a block with other contents.
pub(crate) fn read_op(file: &Handle, at: u64, pool: &Pool, len: usize, tag: u64) -> Op {
    let mut block = pool.take();
    block.whole_mut().fill(0xa5);
    block.set_len(len);
    Op { kind: Kind::Read, file: file.clone(), at, block, tag }
}

/// Writes a file through a queue, as the engine does: whole pages if it is direct, then truncated.
pub(crate) fn write_file(
    io: &Arc<dyn FileSystem>,
    path: &Path,
    access: Access,
    content: &[u8],
) -> Result<File> {
    let file = File::open(io, path, access)?;
    let pool = Pool::new(BLOCK, 3).unwrap();
    let mut queue = io.queue(3)?;
    for (i, chunk) in content.chunks(BLOCK).enumerate() {
        if queue.in_flight() == queue.depth() {
            queue.reap(true).expect("something is in flight").result?;
        }
        let mut padded = chunk.to_vec();
        if file.is_direct() {
            padded.resize(chunk.len().next_multiple_of(PAGE), 0);
        }
        queue.submit(op(Kind::Write, &file, (i * BLOCK) as u64, &pool, &padded, i as u64));
    }
    while let Some(done) = queue.reap(true) {
        done.result?;
    }
    file.set_len(content.len() as u64)?;
    Ok(file)
}

/// Reads a file through a queue, block by block, until one block after its end. Checks that only the last ones are
/// short.
pub(crate) fn read_file(io: &Arc<dyn FileSystem>, path: &Path, caching: Caching) -> Result<Vec<u8>> {
    read_opened(io, &File::open_to_read(io.clone(), path, caching)?)
}

/// The same for an open file.
pub(crate) fn read_opened<F: ReadFiles + ?Sized>(
    io: &Arc<dyn FileSystem>,
    file: &File<F>,
) -> Result<Vec<u8>> {
    let len = file.metadata()?.len as usize;
    let pool = Pool::new(BLOCK, 3).unwrap();
    let mut queue = io.queue(3)?;
    let blocks = len / BLOCK + 2;
    let mut all = vec![0; len];
    let mut reaped = 0;
    let mut place = |done: Done| -> Result<()> {
        done.result?;
        let at = done.at as usize;
        assert_eq!(done.block.len(), len.saturating_sub(at).min(BLOCK), "the block at {at} of {len}");
        if !done.block.is_empty() {
            all[at..at + done.block.len()].copy_from_slice(&done.block);
        }
        reaped += 1;
        Ok(())
    };
    for i in 0..blocks {
        if queue.in_flight() == queue.depth() {
            place(queue.reap(true).expect("something is in flight"))?;
        }
        queue.submit(read_op(file, (i * BLOCK) as u64, &pool, BLOCK, i as u64));
    }
    while let Some(done) = queue.reap(true) {
        place(done)?;
    }
    assert_eq!(reaped, blocks);
    assert_eq!(pool.free(), pool.capacity());
    Ok(all)
}

/// The message of a closure's panic.
pub(crate) fn panic_of(does: impl FnOnce()) -> String {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(does)).expect_err("it has to panic");
    match caught.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast::<&str>().map_or(String::new(), |text| text.to_string()),
    }
}

//! A disk that writes other bytes than it was given is detected only by reading back. Its files never get their names.
#![allow(clippy::disallowed_methods)] // Tests create files directly.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::local;
use thalweg_io::threads::Threads;
use thalweg_io::tree::Tree;
use thalweg_io::{
    Access, Backend, Caching, Done, FileId, FileSystem, Kind, Metadata, Op, Queue, ReadFiles, Result, Space,
};
use thalweg_pump::Unwatched;
use thalweg_transfer::{Error, From, To, Transfer, run};

/// The thread back end, which changes one byte of every large write.
struct Lying(Threads);

struct LyingQueue(Box<dyn Queue>);

impl Queue for LyingQueue {
    fn submit(&mut self, mut op: Op) {
        if op.kind == Kind::Write && op.block.len() > 100_000 {
            op.block[100_000] ^= 1;
        }
        self.0.submit(op);
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        self.0.reap(wait)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }
}

impl Backend for Lying {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(LyingQueue(Backend::queue(&self.0, depth)?)))
    }

    fn close(&self, id: FileId) {
        self.0.close(id);
    }
}

impl ReadFiles for Lying {
    fn open_to_read(&self, path: &Path, caching: Caching) -> Result<(FileId, bool)> {
        self.0.open_to_read(path, caching)
    }

    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata> {
        self.0.metadata(id, path)
    }

    fn stat(&self, path: &Path) -> Result<Metadata> {
        self.0.stat(path)
    }

    fn cached_share(&self, id: FileId, len: u64) -> f64 {
        self.0.cached_share(id, len)
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read_at(id, path, at, into)
    }
}

impl FileSystem for Lying {
    fn open(&self, path: &Path, access: Access) -> Result<(FileId, bool)> {
        self.0.open(path, access)
    }

    fn set_len(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        self.0.set_len(id, path, len)
    }

    fn allocate(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        self.0.allocate(id, path, len)
    }

    fn mark(&self, id: FileId) -> bool {
        self.0.mark(id)
    }

    fn is_marked_by_another(&self, id: FileId) -> bool {
        self.0.is_marked_by_another(id)
    }

    fn sync(&self, id: FileId, path: &Path) -> Result<()> {
        self.0.sync(id, path)
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        self.0.sync_directory(path)
    }

    fn sync_file_system(&self, path: &Path) -> Result<()> {
        self.0.sync_file_system(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.remove(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.0.list(path)
    }

    fn space(&self, path: &Path) -> Result<Space> {
        self.0.space(path)
    }

    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> Result<()> {
        self.0.write_at(id, path, at, from)
    }
}

#[test]
fn a_disk_that_lies_is_found_out_by_reading_back() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lying-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let place = place.canonicalize().unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (source, dest) = (place.join("in"), place.join("out"));
    std::fs::write(&source, &bytes).unwrap();
    std::fs::write(&dest, b"old").unwrap();
    let asked = |verify| Transfer {
        streams: 2,
        verify,
        ..Transfer::new(vec![From::Path(source.clone())], To::Path(dest.clone()))
    };
    let tree = |io: Arc<dyn FileSystem>| -> Arc<dyn Tree> { local::tree(&io) };
    let honest = tree(Arc::new(Threads::new(4)));
    let lying = tree(Arc::new(Lying(Threads::new(4))));
    match run(&asked(true), &lying, &lying, &Unwatched) {
        Err(Error::Mismatch { path, read, written, read_back: true }) => {
            assert_eq!((path, read == written), (dest.clone(), false));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read(&dest).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 2, "nothing is left beside it");
    // The same transfer with an honest disk succeeds, so the disk is what was detected.
    assert!(run(&asked(true), &honest, &honest, &Unwatched).unwrap().verified);
    assert!(std::fs::read(&dest).unwrap() == bytes);
    // Without reading back, the transfer believes the disk.
    assert!(run(&asked(false), &lying, &lying, &Unwatched).unwrap().holds);
    assert!(std::fs::read(&dest).unwrap() != bytes);
    std::fs::remove_dir_all(&place).unwrap();
}

//! Disk space set aside beside the manager's database, so that files can still be removed when its disk is full.
//!
//! Model: a file of allocated blocks that nothing reads. When a change that needs no lasting room meets a full disk,
//! these blocks are given back. They suffice to checkpoint the database's log, which is then overwritten from its
//! beginning and so needs no more room. When the disk has room again, the blocks are allocated again.
//! Non-goals: room for new files and names; these fail when the disk is full.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_base::units::Bytes;
use thalweg_io::{Access, File, FileSystem};

use crate::{Error, Result, place};

const FILE: &str = "reserve";
/// The size of SQLite's log when it is checkpointed: 1000 pages of 4 KiB, rounded up.
const BYTES: u64 = 4 << 20;
/// The blocks are allocated only if the disk has this many bytes free, so that the reserve never fills it.
const AVAILABLE_BYTES_MIN: u64 = 2 * BYTES;

/// The file of reserved blocks.
pub(crate) struct Reserve {
    io: Arc<dyn FileSystem>,
    path: PathBuf,
    is_allocated: bool,
}

impl Reserve {
    /// The reserve in the directory of a manager, allocated if there is room.
    pub(crate) fn new(dir: &Path) -> Reserve {
        let mut reserve = Reserve { io: place::io(), path: dir.join(FILE), is_allocated: false };
        reserve.refill();
        reserve
    }

    /// An error if the disk has no room for the reserve of a new volume in this directory.
    pub(crate) fn check_room(dir: &Path) -> Result<()> {
        let available = place::io().space(dir)?.available;
        if available >= AVAILABLE_BYTES_MIN {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{} has {} free; the names of a volume need {}, so that files can be removed when the disk is full: free \
             some, or give another directory with --manager",
            dir.display(),
            Bytes(available),
            Bytes(AVAILABLE_BYTES_MIN)
        )))
    }

    /// Gives the blocks back to the file system.
    pub(crate) fn release(&mut self) {
        if std::mem::take(&mut self.is_allocated) {
            // If this fails, the change that needs the room fails and is reported.
            let _ = self.file().and_then(|file| Ok(file.set_len(0)?));
        }
    }

    /// Allocates the blocks again if they were given back and the disk has room. Without them the volume works, but
    /// files cannot be removed once the disk is full.
    pub(crate) fn refill(&mut self) {
        if !self.is_allocated {
            self.is_allocated = self.allocate().unwrap_or(false);
        }
    }

    fn allocate(&self) -> Result<bool> {
        let file = self.file()?;
        if file.metadata()?.len == BYTES {
            return Ok(true);
        }
        if self.io.space(&self.path)?.available < AVAILABLE_BYTES_MIN {
            return Ok(false);
        }
        file.allocate(BYTES)?;
        Ok(true)
    }

    fn file(&self) -> Result<File> {
        match File::open(&self.io, &self.path, Access::Update) {
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => {
                Ok(File::open(&self.io, &self.path, Access::Create)?)
            }
            opened => Ok(opened?),
        }
    }
}

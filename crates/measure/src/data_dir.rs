//! The directories of a benchmark's data, and control of the page cache.
//!
//! Invariant: what was created here is removed when the value is dropped. What a killed benchmark left behind is
//! removed by the next one in the same directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_base::units::Bytes;
use thalweg_io::FileSystem;
use thalweg_io::threads::Threads;

use crate::{Asked, failed};
use crate::{Error, Result};

/// The prefix of our directories' names; the process id follows.
const NAME: &str = "thalweg-bench-";
/// Tells the kernel to drop pages and names of files.
const DROP_ALL: &str = "3";

/// One directory in each of the given ones.
pub struct DataDir {
    paths: Vec<PathBuf>,
    cache: Cache,
}

/// How the page cache is treated before a cold run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    Dropped,
    LeftTiny,
    LeftNotRoot,
}

impl DataDir {
    /// Creates a directory in each of the given ones.
    pub fn make(asked: &Asked<'_>) -> Result<DataDir> {
        let usual = [PathBuf::from("bench/data")];
        let given = &asked.options.dirs;
        let above: &[PathBuf] = if given.is_empty() { &usual } else { given };
        if given.is_empty() {
            std::fs::create_dir_all(&usual[0]).map_err(|e| failed("make", &usual[0], &e))?;
        }
        let cache = if asked.tiny {
            Cache::LeftTiny
        } else if may_drop() {
            Cache::Dropped
        } else {
            Cache::LeftNotRoot
        };
        let mut dir = DataDir { paths: Vec::new(), cache };
        for directory in above {
            dir.paths.push(make_in(directory)?);
        }
        Ok(dir)
    }

    /// The first directory.
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// All directories.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// How the page cache is treated, for the report.
    pub fn cache(&self) -> &'static str {
        match self.cache {
            Cache::Dropped => "cold: written back and dropped before each run",
            Cache::LeftTiny => "as it was: the size is too small to measure anything cold",
            Cache::LeftNotRoot => {
                "as it was: only root may drop it, so reads through it are faster than cold ones"
            }
        }
    }

    /// Writes dirty pages back, and drops the page cache where that is possible and not a tiny run.
    pub fn cool(&self) -> Result<()> {
        if self.cache == Cache::LeftTiny {
            return Ok(());
        }
        let ended = Command::new("sync").status();
        ended.map_err(|e| Error::Failed(format!("sync cannot be run: {e}; install coreutils")))?;
        if self.cache == Cache::Dropped {
            let path = Path::new("/proc/sys/vm/drop_caches");
            std::fs::write(path, DROP_ALL).map_err(|e| failed("write", path, &e))?;
        }
        Ok(())
    }

    /// Fails if the first directory has less space than this many bytes.
    pub fn need(&self, bytes: u64) -> Result<()> {
        let space = Threads::new(1).space(self.path())?;
        if space.available < bytes {
            return Err(Error::Failed(format!(
                "{} has {} free, and this needs {}; give --dir DIR with more, or a smaller --size",
                self.path().display(),
                Bytes(space.available),
                Bytes(bytes)
            )));
        }
        Ok(())
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Whether this process may drop caches: whether it can open the switch for writing.
fn may_drop() -> bool {
    std::fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").is_ok()
}

fn make_in(directory: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory).map_err(|e| failed("use", directory, &e))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        if owner.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let path = directory.join(format!("{NAME}{}", std::process::id()));
    std::fs::create_dir(&path).map_err(|e| failed("make", &path, &e))?;
    // Other tests start child processes at the same time.
    std::fs::canonicalize(&path).map_err(|e| failed("find", &path, &e))
}

//! Volumes as a program uses them: files by path, wherever the volume is.
//!
//! Model: [`Volume`] names files by their paths, and is the same for a volume of this machine and one of a cluster.
//! Invariant: what one handle wrote, every other one in this process reads; another process that opens the file after it was
//! synced or closed, too.
//! Non-goals: how a volume is made and cared for, which the functions of this module do.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

pub use thalweg_volume::{
    CACHE_BYTES, Entry, Error, HINT_ATTRIBUTE, Hint, Inode, Kind, Layout, Location, OfCluster, OpenVolume,
    Policy, Registry, Result, add_store, check, create, create_on_nodes, destroy, file, files, open, repair,
    replace, salvage, status,
};

/// Permissions of a file that is made.
const FILE_MODE: u32 = 0o644;
/// Permissions of a directory that is made.
const DIRECTORY_MODE: u32 = 0o755;

/// An open volume.
///
/// ```
/// use thalweg::Volume;
/// use thalweg::volume::{self, Policy, Registry};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let place = std::env::temp_dir().join(format!("thalweg-volume-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&place)?;
/// let stores = ["disk1", "disk2"].map(|name| place.join(name));
/// stores.iter().try_for_each(std::fs::create_dir)?;
/// let registry = Registry::at(place.join("volumes.json"));
/// volume::create(&registry, "films", &stores, None, &Policy::default())?;
///
/// let films = Volume::open_of(&registry, "films")?;
/// films.make_directory("raw")?;
/// let reel = films.create("raw/reel")?;
/// reel.write_at(0, b"abcdefgh")?;
/// reel.sync()?;
/// films.rename("raw/reel", "reel")?;
///
/// let mut read = [0; 4];
/// assert_eq!(films.open_file("reel")?.read_at(2, &mut read)?, 4);
/// assert_eq!(&read, b"cdef");
/// assert_eq!(films.stat("reel")?.size, 8);
/// assert_eq!(films.list("")?.len(), 2);
/// films.remove("reel")?;
/// assert!(films.open_file("reel").is_err_and(|why| why.is_not_found()));
/// # drop((reel, films));
/// # std::fs::remove_dir_all(&place)?;
/// # Ok(())
/// # }
/// ```
pub struct Volume(OpenVolume);

/// What is known of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl From<Inode> for Stat {
    fn from(inode: Inode) -> Stat {
        let Inode { kind, size, mode, user, group, modified_ns, .. } = inode;
        Stat { kind, size, mode, user, group, modified_ns }
    }
}

impl Volume {
    /// Opens one of this user's volumes, on this machine or on a cluster.
    ///
    /// # Errors
    /// If there is none of this name, or its manager cannot be had.
    pub fn open(name: &str) -> Result<Volume> {
        Volume::open_of(&Registry::of_user()?, name)
    }

    /// Opens a volume of a registry.
    ///
    /// # Errors
    /// If there is none of this name, or its manager cannot be had.
    pub fn open_of(registry: &Registry, name: &str) -> Result<Volume> {
        open(registry, name).map(Volume)
    }

    /// Makes a file, or opens the one that is there.
    ///
    /// # Errors
    /// If the directory is not there, or something else has the name.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.0.volume.create(path.as_ref(), FILE_MODE, false).map(File)
    }

    /// Opens a file to read and write it.
    ///
    /// # Errors
    /// If it is not there, or is not a file.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.0.volume.open(path.as_ref()).map(File)
    }

    /// The names in a directory, in the order of their bytes, each with what has it.
    ///
    /// # Errors
    /// If it is not there, or is not a directory.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Stat)>> {
        let entries = self.0.volume.list(path.as_ref())?.into_iter();
        Ok(entries.map(|Entry { name, inode }| (OsString::from_vec(name), inode.into())).collect())
    }

    /// What is at a path; of a symbolic link, what it leads to.
    ///
    /// # Errors
    /// If there is nothing.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat> {
        self.0.volume.stat(path.as_ref()).map(Stat::from)
    }

    /// Removes a file, or a directory that is empty.
    ///
    /// # Errors
    /// If it is not there, or has names in it.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let volume = &self.0.volume;
        match volume.stat_link(path.as_ref())?.kind {
            Kind::Directory => volume.remove_directory(path.as_ref()),
            _ => volume.remove(path.as_ref()),
        }
    }

    /// Removes a file, or a directory with everything in it. What others add to it meanwhile is removed too.
    ///
    /// # Errors
    /// If it is not there, or something in it cannot be removed; what was removed until then is gone.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut left = vec![path.as_ref().to_path_buf()];
        while let Some(path) = left.last() {
            let names = match self.0.volume.stat_link(path)?.kind {
                Kind::Directory => self.0.volume.list(path)?,
                _ => Vec::new(),
            };
            if names.is_empty() {
                self.remove(path)?;
                left.pop();
            } else {
                let path = path.clone();
                left.extend(names.into_iter().map(|entry| path.join(OsString::from_vec(entry.name))));
            }
        }
        Ok(())
    }

    /// Gives a file or directory another name. A file that has it is replaced.
    ///
    /// # Errors
    /// If there is no such file, or the directory of its new name is not there.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.0.volume.rename(from.as_ref(), to.as_ref())
    }

    /// Makes a directory, and those above it that are not there.
    ///
    /// # Errors
    /// If something else has one of the names.
    pub fn make_directory(&self, path: impl AsRef<Path>) -> Result<()> {
        self.0.volume.make_directories(path.as_ref(), DIRECTORY_MODE)
    }
}

/// An open file of a volume. It keeps the volume open.
pub struct File(thalweg_volume::File);

impl File {
    /// Reads from a byte on. Less than `into` holds is read only at the end of the file.
    ///
    /// # Errors
    /// If a store cannot be read, or what it has is not what was written, and there is no other copy.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read_at(at, into)
    }

    /// Writes all of `from` at a byte.
    ///
    /// # Errors
    /// If no copy of some of it could be written.
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<()> {
        self.0.write_at(at, from)
    }

    /// Writes all of `from` behind the end, and returns where that was. Appends of several processes do not overlap.
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at).
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.0.append(from)
    }

    /// Cuts the file, or makes it longer with zeros.
    ///
    /// # Errors
    /// If manager and stores do not agree on it.
    pub fn set_size(&self, bytes: u64) -> Result<()> {
        self.0.set_size(bytes)
    }

    /// Makes bytes, size and name durable.
    ///
    /// # Errors
    /// If something that was written is not durable.
    pub fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    /// What is known of it now.
    ///
    /// # Errors
    /// If the manager cannot be asked.
    pub fn stat(&self) -> Result<Stat> {
        self.0.stat().map(Stat::from)
    }
}

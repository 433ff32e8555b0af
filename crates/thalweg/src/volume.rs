//! Volumes as a library: files by path, wherever the volume is.
//!
//! Model: [`Volume`] names files by their paths, and works the same for a volume of this machine and one of a cluster.
//! Invariant: every handle in this process reads what another handle wrote. Another process reads it if it opens the
//! file after a sync or close.
//! Non-goals: creating and maintaining volumes; other functions of this module do that.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use thalweg_volume::Edit;
pub use thalweg_volume::{
    CACHE_BYTES, Entry, Error, HINT_ATTRIBUTE, Hint, Inode, Kind, Layout, Location, OfCluster, OpenVolume,
    Policy, REPAIR_RATE_ATTRIBUTE, Registry, Result, add_store, adopt, check, create, create_on_nodes,
    destroy, file, files, open, repair, replace, replace_unless, salvage, status,
};

/// The permissions of a new file.
const FILE_MODE: u32 = 0o644;
/// The permissions of a new directory.
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

/// The metadata of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Its type.
    pub kind: Kind,
    /// Its size in bytes.
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
    /// If no volume has this name, or its manager cannot be reached.
    pub fn open(name: &str) -> Result<Volume> {
        Volume::open_of(&Registry::of_user()?, name)
    }

    /// Opens a volume listed in a registry.
    ///
    /// # Errors
    /// If no volume has this name, or its manager cannot be reached.
    pub fn open_of(registry: &Registry, name: &str) -> Result<Volume> {
        open(registry, name).map(Volume)
    }

    /// Creates a file, or opens the existing one.
    ///
    /// # Errors
    /// If the directory does not exist, or something other than a file has the name.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.0.volume.create(path.as_ref(), FILE_MODE, false).map(File)
    }

    /// Creates a file.
    ///
    /// # Errors
    /// If anything has the name, or the directory does not exist.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        self.0.volume.create(path.as_ref(), FILE_MODE, true).map(File)
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// If it does not exist, or is not a file.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.0.volume.open(path.as_ref()).map(File)
    }

    /// The names in a directory, in byte order, each with its metadata.
    ///
    /// # Errors
    /// If it does not exist, or is not a directory.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Stat)>> {
        let entries = self.0.volume.list(path.as_ref())?.into_iter();
        Ok(entries.map(|Entry { name, inode }| (OsString::from_vec(name), inode.into())).collect())
    }

    /// The metadata of a path. Symbolic links are followed.
    ///
    /// # Errors
    /// If nothing exists there.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat> {
        self.0.volume.stat(path.as_ref()).map(Stat::from)
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// If it does not exist, or is a directory that is not empty.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let volume = &self.0.volume;
        match volume.stat_link(path.as_ref())?.kind {
            Kind::Directory => volume.remove_directory(path.as_ref()),
            _ => volume.remove(path.as_ref()),
        }
    }

    /// Removes a file, or a directory with everything in it, including what others add to it during the removal.
    ///
    /// # Errors
    /// If it does not exist, or something in it cannot be removed. What was removed before the error stays removed.
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

    /// Sets the permission bits of a file or directory.
    ///
    /// # Errors
    /// If nothing exists there.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let inode = self.0.volume.stat(path.as_ref())?;
        self.0.volume.set(inode.id, Edit { mode: Some(mode & 0o7777), ..Edit::default() }).map(drop)
    }

    /// Renames a file or directory. An existing file with the new name is replaced.
    ///
    /// # Errors
    /// If it does not exist, or the directory of its new name does not exist.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.0.volume.rename(from.as_ref(), to.as_ref())
    }

    /// Creates a directory, and its missing parent directories.
    ///
    /// # Errors
    /// If something other than a directory has one of the names.
    pub fn make_directory(&self, path: impl AsRef<Path>) -> Result<()> {
        self.0.volume.make_directories(path.as_ref(), DIRECTORY_MODE)
    }
}

/// An open file of a volume. It keeps the volume open.
pub struct File(thalweg_volume::File);

impl File {
    /// Reads from offset `at`. It reads fewer bytes than `into` holds only at the end of the file.
    ///
    /// # Errors
    /// If a store cannot be read or its data is damaged, and there is no other copy.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read_at(at, into)
    }

    /// Writes all of `from` at offset `at`.
    ///
    /// # Errors
    /// If part of it could not be written to any copy.
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<()> {
        self.0.write_at(at, from)
    }

    /// Appends all of `from`, and returns the offset where it begins. Appends of several processes do not overlap.
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at).
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.0.append(from)
    }

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// If the manager or a store could not change the size.
    pub fn set_size(&self, bytes: u64) -> Result<()> {
        self.0.set_size(bytes)
    }

    /// Makes the data, the size and the name durable.
    ///
    /// # Errors
    /// If something that was written is not durable.
    pub fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    /// The current metadata.
    ///
    /// # Errors
    /// If the manager cannot be reached.
    pub fn stat(&self) -> Result<Stat> {
        self.0.stat().map(Stat::from)
    }
}

//! Volumes mounted as file systems, over FUSE.
//!
//! ```text
//! program --system call--> kernel --request--> MountedFs (fs.rs) --inode, name, bytes--> Volume
//! ```
//!
//! Model: the kernel checks permissions, and caches pages and names. It sends requests for what it does not have, which
//! several threads answer.
//! Invariant: the kernel has no dirty pages except those of shared mappings. When `fsync` or `close` returns, all
//! writes are at the stores, or it fails. Pages are kept from one open to the next only if the file has not changed.
//! Non-goals: the kernel's writeback cache, which trusts its own sizes and times; time limits of the kernel, which end
//! a mount; making the kernel drop pages from inside any request, which can deadlock when all threads do it.

mod attributes;
mod callers;
mod directories;
mod extended;
mod fs;
mod handles;
mod kernel;
mod locks;
mod news;
mod pages;
mod place;
mod privileges;
mod ranges;
mod removed;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::kernel::Kernel;
pub use crate::place::{KernelFlags, MountPoint};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use rustix::io::Errno;
use thalweg_volume::OpenVolume;

/// The number of threads that answer requests. They wait for disks, so there are more than cores.
const THREADS: usize = 8;

/// How a volume is mounted.
pub struct Options {
    /// What the kernel does, and does not: `ro`, for example, lets nothing be changed through the mount.
    pub flags: KernelFlags,
    /// Called with the cause when a program gets EIO, and when a store is lost or back.
    pub complain: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A mounted volume.
pub struct Mounted {
    session: BackgroundSession,
    place: MountPoint,
}

/// Why a volume could not be mounted or unmounted, or why its mount ended.
#[derive(Debug)]
pub struct Error {
    what: &'static str,
    at: PathBuf,
    why: io::Error,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Error { what, at, why } = self;
        write!(f, "{what} {}: {}", at.display(), why.to_string().trim_end())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// Mounts a volume on a directory, which is ready for use when this returns.
pub fn mount(open: OpenVolume, at: &Path, options: Options) -> Result<Mounted, Error> {
    let failed = |why| Error { what: "cannot mount a volume on", at: at.into(), why };
    let full = place_for(&open, at).map_err(failed)?;
    let (name, flags) = (open.entry.name.clone(), options.flags);
    let kernel = Arc::<Kernel>::default();
    let fs = fs::MountedFs::new(open, options, Arc::clone(&kernel)).map_err(failed)?;
    let (device, place) = place::mount(&full, &name, flags).map_err(failed)?;
    let begin = || {
        let session = Session::from_fd(fs, device, who_may(), config())?;
        kernel.is_there(session.notifier());
        session.spawn()
    };
    match begin() {
        Ok(session) => Ok(Mounted { session, place }),
        Err(why) => {
            // The last descriptor of the device.
            drop(kernel);
            place.clear();
            Err(failed(why))
        }
    }
}

/// The absolute path of a directory, if a volume can be mounted on it.
fn place_for(open: &OpenVolume, at: &Path) -> io::Result<PathBuf> {
    let refused = |why: String| Err(io::Error::other(why));
    let full = match at.canonicalize() {
        Err(why) if why.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return refused("a mount is there whose process has ended; umount it first".into());
        }
        full => full?,
    };
    if !full.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    // The kernel does not say which FUSE file system it is.
    let mounted = thalweg_io::mounts_at(&full).map_err(|why| why.source)?;
    if mounted.iter().any(|kind| kind.starts_with("fuse")) {
        return refused("a FUSE file system is mounted there already".into());
    }
    let entry = &open.entry;
    for own in
        entry.stores.iter().chain([&entry.manager]).filter_map(|own| Path::new(own).canonicalize().ok())
    {
        // Otherwise a lookup there would go to this process, which would need that lookup for its answer.
        if own.starts_with(&full) || full.starts_with(&own) {
            return refused(format!("{} is there, which is the volume's own", own.display()));
        }
    }
    Ok(full)
}

/// Only root may let other users in without a setting in /etc/fuse.conf.
fn who_may() -> SessionACL {
    if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner }
}

fn config() -> Config {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}

impl Mounted {
    /// The absolute path of the directory.
    pub fn at(&self) -> &Path {
        &self.place.at
    }

    /// The argument for [`unmount`].
    pub fn place(&self) -> MountPoint {
        self.place.clone()
    }

    /// Returns when the volume is unmounted and closed.
    pub fn wait(self) -> Result<(), Error> {
        let Mounted { session, place } = self;
        let ended = session.join();
        place.clear();
        match ended {
            // The end of the file system came while a thread was about to take a request.
            Err(why) if why.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => Ok(()),
            Err(why) => Err(Error { what: "the kernel took away the mount on", at: place.at, why }),
            Ok(()) => Ok(()),
        }
    }
}

/// Unmounts a volume. Programs keep the files that they have open there until they close them.
pub fn unmount(place: &MountPoint) -> Result<(), Error> {
    place.unmount().map_err(|why| Error { what: "cannot unmount", at: place.at.clone(), why })
}

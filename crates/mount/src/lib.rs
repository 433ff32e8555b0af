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
//! a mount; making the kernel drop pages from inside a request, which can deadlock.

mod attributes;
mod directories;
mod fs;
mod handles;
mod locks;
mod news;
mod ranges;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use thalweg_volume::OpenVolume;

/// The number of threads that answer requests. They wait for disks, so there are more than cores.
const THREADS: usize = 8;

/// How a volume is mounted.
pub struct Options {
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Called with the cause when a program gets EIO, and when a store is lost or back.
    pub complain: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A mounted volume.
pub struct Mounted {
    session: BackgroundSession,
    place: MountPoint,
}

/// The place of a mounted volume.
#[derive(Debug, Clone)]
pub struct MountPoint {
    at: PathBuf,
    /// The number of its file system, which distinguishes it from others that may be mounted there later.
    device: (u32, u32),
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

/// Tells the kernel to drop cached data; set once the volume is mounted.
type Kernel = Arc<OnceLock<Notifier>>;

/// Mounts a volume on a directory, which is ready for use when this returns.
pub fn mount(open: OpenVolume, at: &Path, options: Options) -> Result<Mounted, Error> {
    let failed = |why| Error { what: "cannot mount a volume on", at: at.into(), why };
    let full = place_for(&open, at).map_err(failed)?;
    let config = config(&open.entry.name, options.read_only);
    let kernel = Kernel::default();
    let fs = fs::MountedFs::new(open, options, Arc::clone(&kernel)).map_err(failed)?;
    let session = Session::new(fs, &full, &config).map_err(failed)?;
    kernel.get_or_init(|| session.notifier());
    let session = session.spawn().map_err(failed)?;
    let device = device_of(&full).map_err(failed)?;
    Ok(Mounted { session, place: MountPoint { at: full, device } })
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

/// The number of the file system of a directory, without a request to a process that may serve it.
fn device_of(at: &Path) -> io::Result<(u32, u32)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let found = statx(CWD, at, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

fn config(name: &str, read_only: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.into()),
        MountOption::Subtype("thalweg".into()),
        MountOption::DefaultPermissions,
        if read_only { MountOption::RO } else { MountOption::RW },
    ];
    // Only root may let other users in without a setting in /etc/fuse.conf.
    config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
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
        let Mounted { session, place: MountPoint { at, .. } } = self;
        session.join().map_err(|why| Error { what: "the kernel took away the mount on", at, why })
    }
}

/// Unmounts a volume. Programs keep the files that they have open there until they close them.
pub fn unmount(place: &MountPoint) -> Result<(), Error> {
    let at = &place.at;
    let failed = |why| Error { what: "cannot unmount", at: at.clone(), why };
    if device_of(at).map_err(failed)? != place.device {
        return Err(failed(io::Error::other("something else is mounted there now; unmount that first")));
    }
    match rustix::mount::unmount(at, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        // Users other than root need a privileged program.
        Err(Errno::PERM) => {
            let args = [OsStr::new("-u"), OsStr::new("-z"), OsStr::new("--"), at.as_os_str()];
            let done =
                Command::new("fusermount3").args(args).stdin(Stdio::null()).output().map_err(failed)?;
            match done.status.success() {
                true => Ok(()),
                false => Err(failed(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))),
            }
        }
        Err(e) => Err(failed(e.into())),
    }
}

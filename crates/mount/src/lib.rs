//! Volumes mounted as file systems, over FUSE.
//!
//! ```text
//! program --system call--> kernel --request--> MountedFs (fs.rs) --inode, name, bytes--> Volume
//! ```
//!
//! Model: the kernel checks permissions, and keeps pages and names. It asks here for what it does not have, and several
//! threads answer.
//! Invariant: the kernel has no dirty pages but those of shared mappings. What was written is at the stores when `fsync` or
//! `close` returns, and what could not be brought there is an error of these. Pages are kept from one open to the next only if the file did not change in between.
//! Non-goals: the kernel's writeback cache, which believes its own sizes and times; time limits of the kernel's, which end a
//! mount; telling the kernel from inside a request to forget pages, which can deadlock.

mod attributes;
mod directories;
mod fs;
mod handles;
mod locks;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use thalweg_volume::OpenVolume;

/// Threads that answer requests. They wait for disks, so there are more than there are cores.
const THREADS: usize = 8;

/// How a volume is mounted.
pub struct Options {
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Is told why a program got EIO, and when a store is lost or back.
    pub complain: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A volume that is mounted.
pub struct Mounted {
    session: BackgroundSession,
    place: MountPoint,
}

/// Where a volume is mounted.
#[derive(Debug, Clone)]
pub struct MountPoint {
    at: PathBuf,
    /// The number of its file system, which tells it from what else may come to be mounted there.
    device: (u32, u32),
}

/// Why a volume could not be mounted or unmounted, or is mounted no more.
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

/// What tells the kernel to forget something, once the mount is there.
type Kernel = Arc<OnceLock<Notifier>>;

/// Mounts a volume on a directory. It can be used when this returns.
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

/// The whole path of a directory on which a volume can be mounted.
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
        // Whoever asks for a name there would be answered by a process that has to ask for that name.
        if own.starts_with(&full) || full.starts_with(&own) {
            return refused(format!("{} is there, which is the volume's own", own.display()));
        }
    }
    Ok(full)
}

/// The number of the file system that a directory is on, which nobody has to be asked for.
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
    // Only root may let others in without a setting in /etc/fuse.conf.
    config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}

impl Mounted {
    /// The directory, from the root.
    pub fn at(&self) -> &Path {
        &self.place.at
    }

    /// What [`unmount`] needs.
    pub fn place(&self) -> MountPoint {
        self.place.clone()
    }

    /// Returns when the volume is unmounted and closed.
    pub fn wait(self) -> Result<(), Error> {
        let Mounted { session, place: MountPoint { at, .. } } = self;
        session.join().map_err(|why| Error { what: "the kernel took away the mount on", at, why })
    }
}

/// Takes a mount away. Programs that have files open there keep them until they close them.
pub fn unmount(place: &MountPoint) -> Result<(), Error> {
    let at = &place.at;
    let failed = |why| Error { what: "cannot unmount", at: at.clone(), why };
    if device_of(at).map_err(failed)? != place.device {
        return Err(failed(io::Error::other("something else is mounted there now; unmount that first")));
    }
    match rustix::mount::unmount(at, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        // Users other than root ask a program that may.
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

//! Where a volume is mounted: mount(2), or `fusermount3` for users other than root, and the end of the mount.
//!
//! Invariant: only the mount that was made here is ever unmounted, whatever is mounted on its directory later. A mount
//! is known by the number of its file system and by the kernel's number of the mount.
//! Non-goals: unmounting when the process is killed; what is left then answers ENOTCONN until someone unmounts it.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

const DEVICE: &str = "/dev/fuse";
const PROGRAM: &str = "fusermount3";
/// Tells `fusermount3` the descriptor of a socket, to which it sends the one of the device.
const SOCKET: &str = "_FUSE_COMMFD";
/// The type of file system that tables of mounts show.
const SUBTYPE: &str = "thalweg";
/// `STATX_MNT_ID_UNIQUE`: a number that no other mount ever has (since Linux 6.8).
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The options of mount(8) that the kernel carries out: each adds a flag, or takes it away.
const OPTIONS: [(&str, MountFlags, bool); 24] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("nodirsync", MountFlags::DIRSYNC, false),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, true),
    ("symfollow", MountFlags::NOSYMFOLLOW, false),
];

/// What options of mount(8) ask of the kernel. Without any, set-user-ID bits and device files have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFlags(MountFlags);

impl Default for KernelFlags {
    fn default() -> KernelFlags {
        KernelFlags(MountFlags::NOSUID | MountFlags::NODEV)
    }
}

impl KernelFlags {
    /// Follows an option; false if the kernel has none of that name.
    pub fn set(&mut self, option: &str) -> bool {
        let found = OPTIONS.iter().find(|(name, ..)| *name == option);
        found.map(|(_, flag, adds)| self.0.set(*flag, *adds)).is_some()
    }

    /// The names of all options.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OPTIONS.iter().map(|(name, ..)| *name)
    }

    /// Whether reads change the time of the last one.
    pub(crate) fn notes_reads(self) -> bool {
        !self.0.intersects(MountFlags::RDONLY | MountFlags::NOATIME)
    }

    /// For `fusermount3`.
    fn typed(self) -> String {
        let has = |(_, flag, adds): &&(&str, MountFlags, bool)| *adds && self.0.contains(*flag);
        OPTIONS.iter().filter(has).map(|(name, ..)| format!(",{name}")).collect()
    }
}

/// The place of a mounted volume.
#[derive(Debug, Clone)]
pub struct MountPoint {
    pub(crate) at: PathBuf,
    mount: MountNumber,
}

/// What distinguishes a mount from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MountNumber {
    file_system: (u32, u32),
    mount: u64,
}

impl MountNumber {
    /// Of the mount that is seen through this descriptor. It asks no process that may serve the mount.
    fn of(fd: impl AsFd) -> io::Result<MountNumber> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(fd, "", how, StatxFlags::MNT_ID | UNIQUE)?;
        Ok(MountNumber { file_system: (found.stx_dev_major, found.stx_dev_minor), mount: found.stx_mnt_id })
    }
}

/// A descriptor of what is mounted on a directory last.
fn seen_at(at: &Path) -> io::Result<OwnedFd> {
    Ok(open(at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts a file system under the name of a volume. Returns the descriptor with the kernel's requests.
pub(crate) fn mount(at: &Path, volume: &str, flags: KernelFlags) -> io::Result<(OwnedFd, MountPoint)> {
    let device = match with_system_call(at, volume, flags) {
        Err(why) if why.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            with_program(at, volume, flags)?
        }
        device => device?,
    };
    let mount = MountNumber::of(seen_at(at)?)?;
    Ok((device, MountPoint { at: at.into(), mount }))
}

fn with_system_call(at: &Path, volume: &str, flags: KernelFlags) -> io::Result<OwnedFd> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| io::Error::other(format!("{DEVICE}: {}", io::Error::from(why))))?;
    let user = rustix::process::geteuid();
    // Only root may let other users in without a setting in /etc/fuse.conf.
    let others = if user.is_root() { ",allow_other" } else { "" };
    let (fd, user, group) = (device.as_raw_fd(), user.as_raw(), rustix::process::getegid().as_raw());
    let data = format!("fd={fd},rootmode=40000,user_id={user},group_id={group},default_permissions{others}");
    let data = CString::new(data).expect("it has no NUL");
    rustix::mount::mount(volume, at, format!("fuse.{SUBTYPE}"), flags.0, data.as_c_str())?;
    Ok(device)
}

/// `fusermount3` may mount for other users. It sends the descriptor through a socket, its standard input.
fn with_program(at: &Path, volume: &str, flags: KernelFlags) -> io::Result<OwnedFd> {
    let (ours, its) = UnixStream::pair()?;
    let options = format!("fsname={volume},subtype={SUBTYPE},default_permissions{}", flags.typed());
    let mut command = Command::new(PROGRAM);
    command.args(["-o", &options, "--"]).arg(at).env(SOCKET, "0");
    command.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|why| io::Error::new(why.kind(), format!("{PROGRAM}: {why}")))?;
    // The program has the other end of the socket alone now, so this ends when the program does.
    drop(command);
    let device = received(&ours);
    let mut said = String::new();
    child.stderr.take().map(|mut err| err.read_to_string(&mut said)).transpose()?;
    child.wait()?;
    device?.ok_or_else(|| io::Error::other(said))
}

/// A descriptor that another process sent; `None` if it closed the socket without.
fn received(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
        _ => None,
    });
    Ok(sent)
}

impl MountPoint {
    /// Unmounts it. Programs keep the files that they have open there until they close them.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        let seen = seen_at(&self.at)?;
        if MountNumber::of(&seen)? != self.mount {
            return Err(io::Error::other("it is not mounted there, or something else is mounted over it"));
        }
        // By the descriptor, so that nothing that is mounted there in this moment is unmounted instead.
        match rustix::mount::unmount(format!("/proc/self/fd/{}", seen.as_raw_fd()), UnmountFlags::DETACH) {
            Err(Errno::PERM) => unmount_with_program(&self.at),
            done => Ok(done?),
        }
    }

    /// Unmounts it if it is still there without a process, as when the kernel was told to abort it.
    pub(crate) fn clear(&self) {
        let is_there = seen_at(&self.at).and_then(MountNumber::of).is_ok_and(|mount| mount == self.mount);
        // Kernels before 6.8 use the numbers of mounts again, so this is asked too.
        if is_there && rustix::fs::statfs(&self.at).err() == Some(Errno::NOTCONN) {
            // If this fails, the next command there says what is left.
            let _ = self.unmount();
        }
    }
}

fn unmount_with_program(at: &Path) -> io::Result<()> {
    let args = [OsStr::new("-u"), OsStr::new("-z"), OsStr::new("--"), at.as_os_str()];
    let done = Command::new(PROGRAM).args(args).stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned())),
    }
}

//! The state of a simulated disk: names, files, room, and the moments at which it may fail.
//!
//! Model: names lead to inodes; a change of names waits in its file system's journal until a
//! directory is synced, and a power loss keeps some beginning of what waits. A file system has its
//! own room, so that one scratch directory can be full and another not.
//! Invariant: a change of names is durable only together with all that came before it on its file system,
//! as with every journal in use; so a rename is never half done.
//! Non-goals: permissions, links, directories that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use thalweg_base::rng::Rng;

use super::content::{Content, PAGE, split};
use super::{Crash, Faults};
use crate::transfer::ALIGN;
use crate::{Access, Action, Error, FileId, Kind, Metadata, Result, Space};

/// The room of a file system that was given no limit.
const UNLIMITED_BYTES: u64 = 1 << 50;

#[derive(Debug, Clone, Default)]
pub(crate) struct Inode {
    pub(crate) content: Content,
    volume: usize,
    modified: u64,
    /// Some name or open file leads here, so that its pages take room.
    live: bool,
}

#[derive(Debug, Clone)]
struct Volume {
    root: PathBuf,
    capacity_bytes: Option<u64>,
    /// Changes of names that are not durable yet, in order.
    journal: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Change::Link(path, inode) => drop(names.insert(path.clone(), *inode)),
            Change::Unlink(path) => drop(names.remove(path)),
            Change::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }

    fn touches(&self, directory: &Path) -> bool {
        match self {
            Change::Link(path, _) | Change::Unlink(path) => parent(path) == directory,
            Change::Rename(from, to) => parent(from) == directory || parent(to) == directory,
        }
    }
}

#[derive(Debug, Clone)]
struct Handle {
    inode: u64,
    path: PathBuf,
    direct: bool,
    reads: bool,
    writes: bool,
}

/// A write that was submitted and is not complete.
#[derive(Debug, Clone)]
struct Pending {
    inode: u64,
    at: u64,
    bytes: Vec<u8>,
}

/// What the attempts at one transfer share.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// They are whole pages, and stop where a direct one can.
    pub(crate) direct: bool,
    /// The last one was interrupted. No signal comes for ever, so the next one is not.
    pub(crate) interrupted: bool,
}

/// Bytes moved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) boundaries: u64,
    pub(crate) traffic: BTreeMap<PathBuf, Traffic>,
    pub(crate) cached: BTreeMap<PathBuf, f64>,
    /// The process that used it is gone: every call fails from here on.
    dead: bool,
    inodes: BTreeMap<u64, Inode>,
    volumes: Vec<Volume>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    directories: BTreeSet<PathBuf>,
    handles: BTreeMap<i32, Handle>,
    in_flight: BTreeMap<u64, Pending>,
    /// The last number given to an inode, a handle, an operation or a moment.
    last_number: u64,
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn system(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let whole = Volume { root: PathBuf::new(), capacity_bytes: None, journal: Vec::new() };
        Disk {
            rng: Rng::new(seed),
            faults: Faults::default(),
            boundaries: 0,
            traffic: BTreeMap::new(),
            cached: BTreeMap::new(),
            dead: false,
            inodes: BTreeMap::new(),
            volumes: vec![whole],
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            directories: ["", ".", "/"].map(PathBuf::from).into(),
            handles: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// What a new process finds: the content as it is, not durable where it was not, and no faults.
    pub(crate) fn survivor(&mut self) -> Disk {
        self.die();
        let mut next = Disk {
            inodes: self.inodes.clone(),
            volumes: self.volumes.clone(),
            names: self.names.clone(),
            durable_names: self.durable_names.clone(),
            directories: self.directories.clone(),
            last_number: self.last_number,
            cached: self.cached.clone(),
            ..Disk::new(self.rng.next_u64())
        };
        next.collect();
        next
    }

    // Moments at which it may fail.

    /// Passes a boundary: a crash at it has not done what follows.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        if self.faults.crash_at == Some(self.boundaries) {
            self.dead = true;
        }
        self.alive()?;
        self.boundaries += 1;
        Ok(())
    }

    /// Fails once the process is gone.
    pub(crate) fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other(Crash)) } else { Ok(()) }
    }

    fn medium(&mut self) -> io::Result<()> {
        if self.rng.one_in(self.faults.eio_one_in) { Err(system(libc::EIO)) } else { Ok(()) }
    }

    /// The process is gone; writes that were in flight survive or not, or in part.
    pub(crate) fn die(&mut self) {
        self.dead = true;
        for (_, write) in std::mem::take(&mut self.in_flight) {
            let mode = self.rng.below(3);
            let mut done = 0;
            for (_, _, n) in split(write.at, write.bytes.len()) {
                if mode == 0 || (mode == 1 && self.rng.one_in(2)) {
                    let room = self.room(write.inode);
                    if let Some(inode) = self.inodes.get_mut(&write.inode) {
                        inode.content.write(write.at + done as u64, &write.bytes[done..done + n], room);
                    }
                }
                done += n;
            }
        }
    }

    /// What was not synced is gone too, or not.
    pub(crate) fn lose_power(&mut self) {
        self.die();
        for inode in self.inodes.values_mut() {
            inode.content.lose_power(&mut self.rng);
        }
        for volume in &mut self.volumes {
            let waiting = volume.journal.len() as u64;
            let kept = match self.rng.below(4) {
                0 => 0,
                1 => waiting,
                _ => self.rng.below(waiting + 1),
            };
            for change in volume.journal.drain(..).take(kept as usize) {
                change.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        self.collect();
    }

    // Names.

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn make_dir(&mut self, path: &Path) {
        self.directories.extend(path.ancestors().map(Path::to_path_buf));
    }

    pub(crate) fn set_capacity(&mut self, path: &Path, bytes: u64) {
        self.make_dir(path);
        if let Some(volume) = self.volumes.iter_mut().find(|v| v.root == path) {
            volume.capacity_bytes = Some(bytes);
            return;
        }
        assert!(
            !self.names.keys().any(|name| name.starts_with(path)),
            "{} has files already",
            path.display()
        );
        let volume = Volume { root: path.to_path_buf(), capacity_bytes: Some(bytes), journal: Vec::new() };
        self.volumes.push(volume);
    }

    fn volume_of(&self, path: &Path) -> usize {
        let holds = |i: &usize| path.starts_with(&self.volumes[*i].root);
        let deepest = (0..self.volumes.len()).filter(holds);
        deepest.max_by_key(|&i| self.volumes[i].root.components().count()).expect("the first holds all")
    }

    fn require_directory(&self, path: &Path) -> io::Result<()> {
        if self.directories.contains(path) {
            return Ok(());
        }
        Err(system(if self.names.contains_key(path) { libc::ENOTDIR } else { libc::ENOENT }))
    }

    /// Makes an empty file under a name that is free.
    pub(crate) fn create(&mut self, path: &Path) -> io::Result<u64> {
        self.require_directory(parent(path))?;
        let (number, volume) = (self.number(), self.volume_of(path));
        self.inodes.insert(number, Inode { volume, modified: number, live: true, ..Inode::default() });
        self.names.insert(path.to_path_buf(), number);
        self.volumes[volume].journal.push(Change::Link(path.to_path_buf(), number));
        Ok(number)
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.find(from)?;
        self.require_directory(parent(to))?;
        if self.directories.contains(to) {
            return Err(system(libc::EISDIR));
        }
        let volume = self.volume_of(from);
        if volume != self.volume_of(to) {
            return Err(system(libc::EXDEV));
        }
        if from != to {
            let change = Change::Rename(from.to_path_buf(), to.to_path_buf());
            change.apply(&mut self.names);
            self.volumes[volume].journal.push(change);
            self.collect();
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        let (volume, change) = (self.volume_of(path), Change::Unlink(path.to_path_buf()));
        change.apply(&mut self.names);
        self.volumes[volume].journal.push(change);
        self.collect();
        Ok(())
    }

    pub(crate) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        self.require_directory(path)?;
        self.medium()?;
        self.settle_names(path);
        Ok(())
    }

    /// Makes a directory's names durable, with all changes before the last of them.
    pub(crate) fn settle_names(&mut self, path: &Path) {
        let volume = self.volume_of(path);
        let journal = &mut self.volumes[volume].journal;
        let count = journal.iter().rposition(|change| change.touches(path)).map_or(0, |i| i + 1);
        for change in journal.drain(..count) {
            change.apply(&mut self.durable_names);
        }
        self.collect();
    }

    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.require_directory(path)?;
        let entries = self.names.keys().chain(&self.directories);
        let mut names: Vec<PathBuf> =
            entries.filter(|name| parent(name) == path && name.file_name().is_some()).cloned().collect();
        names.sort();
        Ok(names)
    }

    pub(crate) fn names(&self) -> Vec<PathBuf> {
        self.names.keys().cloned().collect()
    }

    /// The file of a name.
    pub(crate) fn find(&self, path: &Path) -> io::Result<u64> {
        if self.directories.contains(path) {
            return Err(system(libc::EISDIR));
        }
        self.names.get(path).copied().ok_or_else(|| system(libc::ENOENT))
    }

    pub(crate) fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("names and handles lead to inodes")
    }

    /// Says which inodes take room, and forgets those that nothing leads to.
    fn collect(&mut self) {
        let open = self.handles.values().map(|handle| handle.inode);
        let live: BTreeSet<u64> = self.names.values().copied().chain(open).collect();
        let waiting =
            self.volumes.iter().flat_map(|volume| &volume.journal).filter_map(|change| match change {
                Change::Link(_, inode) => Some(*inode),
                _ => None,
            });
        let durable: BTreeSet<u64> = self.durable_names.values().copied().chain(waiting).collect();
        self.inodes.retain(|number, inode| {
            inode.live = live.contains(number);
            inode.live || durable.contains(number)
        });
    }

    // Files.

    pub(crate) fn open(&mut self, path: &Path, access: Access) -> io::Result<(FileId, bool)> {
        let inode = match self.find(path) {
            Err(e) if access.creates() && e.raw_os_error() == Some(libc::ENOENT) => self.create(path)?,
            _ if access.creates() => return Err(system(libc::EEXIST)),
            found => found?,
        };
        let handle = Handle {
            inode,
            path: path.to_path_buf(),
            direct: access.is_direct() && !self.faults.refuse_direct,
            reads: access != Access::WriteStream,
            writes: !matches!(access, Access::Read | Access::ReadDirect),
        };
        let direct = handle.direct;
        // Never used twice, so that a handle used after its end is caught.
        let id = i32::try_from(self.number()).expect("fewer numbers than that in a simulation");
        self.handles.insert(id, handle);
        Ok((FileId(id), direct))
    }

    pub(crate) fn close(&mut self, id: FileId) {
        assert!(self.handles.remove(&id.0).is_some(), "{id:?} was closed twice");
        self.collect();
    }

    pub(crate) fn open_files(&self) -> usize {
        self.handles.len()
    }

    fn handle(&self, id: FileId) -> &Handle {
        self.handles.get(&id.0).unwrap_or_else(|| panic!("{id:?} is used after its end"))
    }

    pub(crate) fn inode_of(&self, id: FileId) -> u64 {
        self.handle(id).inode
    }

    pub(crate) fn path_of(&self, id: FileId) -> &Path {
        &self.handle(id).path
    }

    pub(crate) fn metadata(&mut self, inode: u64) -> Metadata {
        let file = self.inode(inode);
        Metadata {
            len: file.content.len(),
            is_regular: true,
            is_directory: false,
            device: file.volume as u64,
            inode,
            modified_ns: i128::from(file.modified),
            changed_ns: i128::from(file.modified),
            mode: 0o644,
        }
    }

    pub(crate) fn stat(&mut self, path: &Path) -> io::Result<Metadata> {
        if self.directories.contains(path) {
            return Ok(Metadata {
                len: 0,
                is_regular: false,
                is_directory: true,
                device: self.volume_of(path) as u64,
                inode: 0,
                modified_ns: 0,
                changed_ns: 0,
                mode: 0o755,
            });
        }
        let inode = self.find(path)?;
        Ok(self.metadata(inode))
    }

    fn change(&mut self, id: FileId) -> io::Result<&mut Inode> {
        let handle = self.handle(id);
        if !handle.writes {
            return Err(system(libc::EBADF));
        }
        let (number, moment) = (handle.inode, self.number());
        let inode = self.inode(number);
        inode.modified = moment;
        Ok(inode)
    }

    pub(crate) fn set_len(&mut self, id: FileId, len: u64) -> io::Result<()> {
        self.medium()?;
        self.change(id)?.content.set_len(len);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, id: FileId, len: u64) -> io::Result<()> {
        self.medium()?;
        let room = self.room(self.inode_of(id));
        let content = &mut self.change(id)?.content;
        if content.reserve_takes(len) > room {
            return Err(system(libc::ENOSPC));
        }
        content.reserve(len);
        Ok(())
    }

    pub(crate) fn sync(&mut self, id: FileId) -> io::Result<()> {
        self.medium()?;
        let inode = self.inode_of(id);
        self.inode(inode).content.sync();
        Ok(())
    }

    // Room.

    fn capacity_bytes(&self, volume: usize) -> u64 {
        let shared = self.faults.enospc_after_bytes;
        self.volumes[volume].capacity_bytes.or(shared).unwrap_or(UNLIMITED_BYTES)
    }

    fn free_pages(&self, volume: usize) -> u64 {
        let taken = self.inodes.values().filter(|inode| inode.live && inode.volume == volume);
        let pages: u64 = taken.map(|inode| inode.content.allocated()).sum();
        (self.capacity_bytes(volume) / PAGE as u64).saturating_sub(pages)
    }

    fn room(&self, inode: u64) -> u64 {
        self.inodes.get(&inode).map_or(0, |inode| self.free_pages(inode.volume))
    }

    pub(crate) fn space(&self, path: &Path) -> io::Result<Space> {
        if !self.directories.contains(path) {
            self.find(path)?;
        }
        let volume = self.volume_of(path);
        Ok(Space { available: self.free_pages(volume) * PAGE as u64, total: self.capacity_bytes(volume) })
    }

    // Bytes.

    /// Enters a write whose fate a crash would decide; returns its number.
    pub(crate) fn launch(&mut self, id: FileId, at: u64, bytes: &[u8]) -> u64 {
        let (number, inode) = (self.number(), self.inode_of(id));
        self.in_flight.insert(number, Pending { inode, at, bytes: bytes.to_vec() });
        number
    }

    /// A write that was launched is about to complete.
    pub(crate) fn land(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// One attempt to move bytes, as a system call would make it, with the faults of one.
    pub(crate) fn attempt(
        &mut self,
        id: FileId,
        kind: Kind,
        at: u64,
        bytes: &mut [u8],
        course: &mut Course,
    ) -> io::Result<usize> {
        course.interrupted = !course.interrupted && self.rng.one_in(self.faults.eintr_one_in);
        if course.interrupted {
            return Err(system(libc::EINTR));
        }
        self.medium()?;
        let amount = if self.rng.one_in(self.faults.short_one_in) {
            self.less_than(bytes.len(), course.direct)
        } else {
            bytes.len()
        };
        let moved = match kind {
            Kind::Read => self.read(id, at, &mut bytes[..amount])?,
            Kind::Write => self.write(id, at, &bytes[..amount])?,
        };
        let traffic = self.traffic.entry(self.handle(id).path.clone()).or_default();
        match kind {
            Kind::Read => traffic.read += moved as u64,
            Kind::Write => traffic.written += moved as u64,
        }
        Ok(moved)
    }

    /// How much a short attempt moves: if direct whole pages and some sectors, else anything.
    fn less_than(&mut self, len: usize, direct: bool) -> usize {
        if !direct {
            return if len > 1 { 1 + self.rng.below(len as u64 - 1) as usize } else { len };
        }
        if len <= ALIGN {
            return len;
        }
        let pages = 1 + self.rng.below((len / ALIGN - 1) as u64) as usize;
        pages * ALIGN + self.rng.below(8) as usize * 512
    }

    fn read(&mut self, id: FileId, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let handle = self.handle(id);
        if !handle.reads {
            return Err(system(libc::EBADF));
        }
        let inode = handle.inode;
        Ok(self.inode(inode).content.read(at, into))
    }

    fn write(&mut self, id: FileId, at: u64, from: &[u8]) -> io::Result<usize> {
        let room = self.room(self.inode_of(id));
        match self.change(id)?.content.write(at, from, room) {
            0 if !from.is_empty() => Err(system(libc::ENOSPC)),
            written => Ok(written),
        }
    }

    /// What a queue asserts of an attempt at a direct file, in the words of the kernel's EINVAL.
    pub(crate) fn assert_aligned(&self, id: FileId, at: u64, bytes: &[u8]) {
        let aligned = at.is_multiple_of(ALIGN as u64)
            && bytes.len().is_multiple_of(ALIGN)
            && (bytes.as_ptr() as usize).is_multiple_of(ALIGN);
        assert!(
            aligned || !self.handle(id).direct,
            "{} bytes at {at} of {}, which is direct",
            bytes.len(),
            self.path_of(id).display()
        );
    }
}

/// An error of the simulated system as the seam reports it.
pub(crate) fn of<T>(action: Action, path: &Path, outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|e| Error::new(action, path, e))
}

/// An error of a transfer as the seam reports it.
pub(crate) fn of_transfer<T>(kind: Kind, path: &Path, at: u64, outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|e| Error::at(kind.action(), path, at, e))
}

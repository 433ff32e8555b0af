//! The state of a simulated disk: inodes, open files, free space, and the points at which it may fail.
//!
//! Model: names lead to inodes ([`Names`](super::names::Names)), which are files, directories or links. Each file
//! system has its own free space, so that one scratch directory can be full and another not.
//! Invariant: if a change of a file's attributes is durable, so are the bytes written before it, as on ext4 in its
//! default mode (data=ordered).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use thalweg_base::rng::Rng;

use super::content::{Content, PAGE, split};
use super::names::{Names, Settings};
use super::{Crash, Faults};
use crate::transfer::ALIGN;
use crate::tree::{Attributes, EntryKind};
use crate::{Access, Action, Caching, Error, FileId, Metadata, Result, Space};

/// The directories that absolute and relative paths begin at.
pub(crate) const ROOTS: [(u64, &str); 2] = [(1, "/"), (2, "")];
/// The user and group of everything that a simulated process creates.
pub(crate) const OWNER: u32 = 1000;
/// The space of a file system without a limit.
const UNLIMITED_BYTES: u64 = 1 << 50;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// With its target.
    Link(OsString),
}

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) content: Content,
    pub(crate) volume: usize,
    pub(crate) settings: Settings,
    /// The settings that survive a power loss.
    durable: Settings,
    /// The time of the last change.
    pub(crate) changed: u64,
    /// Whether a name or an open file leads here, so that its pages take space.
    live: bool,
}

#[derive(Debug, Clone)]
struct Volume {
    /// The inode of its uppermost directory.
    root: u64,
    capacity_bytes: Option<u64>,
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

/// The state that the attempts at one transfer share.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Whether they move whole pages, as direct access does.
    pub(crate) direct: bool,
    /// Whether the last attempt was interrupted. Then the next one is not, because signals do not arrive forever.
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
    /// Whether the process that used it has ended, so that every further call fails.
    dead: bool,
    pub(crate) inodes: BTreeMap<u64, Inode>,
    volumes: Vec<Volume>,
    pub(crate) names: Names,
    handles: BTreeMap<i32, Handle>,
    in_flight: BTreeMap<u64, Pending>,
    /// The last number given to an inode, a handle, an operation or a moment.
    last_number: u64,
}

pub(crate) fn system(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let mut disk = Disk {
            rng: Rng::new(seed),
            faults: Faults::default(),
            boundaries: 0,
            traffic: BTreeMap::new(),
            cached: BTreeMap::new(),
            dead: false,
            inodes: BTreeMap::new(),
            volumes: Vec::new(),
            names: Names::default(),
            handles: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last_number: 0,
        };
        disk.make_roots();
        disk
    }

    /// The disk that a new process finds: the same contents, durable or not as before, and no faults.
    pub(crate) fn survivor(&mut self) -> Disk {
        self.die();
        let mut next = Disk {
            inodes: self.inodes.clone(),
            volumes: self.volumes.clone(),
            names: self.names.clone(),
            last_number: self.last_number,
            cached: self.cached.clone(),
            ..Disk::new(self.rng.next_u64())
        };
        next.collect();
        next
    }

    // Points at which it may fail.

    /// Passes a point at which a crash may happen, before the operation that follows.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        if self.faults.crash_at == Some(self.boundaries) {
            self.dead = true;
        }
        self.alive()?;
        self.boundaries += 1;
        Ok(())
    }

    /// Fails if the process has ended.
    pub(crate) fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other(Crash)) } else { Ok(()) }
    }

    pub(crate) fn medium(&mut self) -> io::Result<()> {
        if self.rng.one_in(self.faults.eio_one_in) { Err(system(libc::EIO)) } else { Ok(()) }
    }

    /// The process ends. Each write in flight survives completely, in part or not at all.
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

    /// The power fails: the first of each file system's waiting changes survive, and any part of the unsynced data.
    pub(crate) fn lose_power(&mut self) {
        self.die();
        for volume in 0..self.volumes.len() {
            let waiting = self.names.waiting(volume) as u64;
            let kept = match self.rng.below(4) {
                0 => 0,
                1 => waiting,
                _ => self.rng.below(waiting + 1),
            };
            let set = self.names.settle(volume, kept as usize);
            self.were_set(set);
        }
        self.names.lose_power();
        for inode in self.inodes.values_mut() {
            inode.content.lose_power(&mut self.rng);
            inode.settings = inode.durable;
        }
        self.collect();
    }

    /// Makes the settings durable, and all bytes written before them.
    pub(crate) fn were_set(&mut self, set: Vec<(u64, Settings)>) {
        for (number, settings) in set {
            if let Some(inode) = self.inodes.get_mut(&number) {
                inode.durable = settings;
                inode.content.sync();
            }
        }
    }

    // Names.

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn new_inode(&mut self, kind: Kind, volume: usize, mode: u32) -> u64 {
        let number = self.number();
        let settings = Settings { mode, user: OWNER, group: OWNER, modified_ns: i128::from(number) };
        let content = Content::default();
        let inode = Inode { kind, content, volume, settings, durable: settings, changed: number, live: true };
        self.inodes.insert(number, inode);
        number
    }

    /// Records that the contents of an inode change now. The time becomes durable with them.
    pub(crate) fn touch(&mut self, number: u64) {
        let now = self.number();
        let inode = self.inode(number);
        (inode.settings.modified_ns, inode.durable.modified_ns) = (i128::from(now), i128::from(now));
        inode.changed = now;
    }

    /// Records that an attribute of an inode changes now.
    pub(crate) fn change_now(&mut self, number: u64) {
        let now = self.number();
        self.inode(number).changed = now;
    }

    pub(crate) fn add_volume(&mut self, root: u64, capacity_bytes: Option<u64>) -> usize {
        self.volumes.push(Volume { root, capacity_bytes });
        self.names.add_volume();
        self.volumes.len() - 1
    }

    pub(crate) fn set_capacity(&mut self, path: &Path, bytes: u64) {
        let root = self.make_dirs(path);
        if let Some(volume) = self.volumes.iter_mut().find(|volume| volume.root == root) {
            volume.capacity_bytes = Some(bytes);
            return;
        }
        assert!(self.names.of(root).next().is_none(), "{} has files already", path.display());
        let volume = self.add_volume(root, Some(bytes));
        self.inode(root).volume = volume;
    }

    /// Creates an empty file under a name that must be free.
    pub(crate) fn create(&mut self, path: &Path) -> io::Result<u64> {
        let (directory, name) = self.entry_at(path)?;
        self.make(directory, name, Kind::File, 0o644)
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.entry_at(from)?, self.entry_at(to)?);
        self.rename_entry(from, to)
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.entry_at(path)?;
        self.unlink(directory, name, false)
    }

    pub(crate) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        let directory = self.directory_at(path)?;
        self.sync_names(directory)
    }

    pub(crate) fn sync_names(&mut self, directory: u64) -> io::Result<()> {
        self.medium()?;
        if !self.faults.ignore_syncs {
            self.settle_names(directory);
        }
        Ok(())
    }

    /// Makes a directory's names durable, with all changes before the last of them.
    pub(crate) fn settle_names(&mut self, directory: u64) {
        let Some(inode) = self.inodes.get(&directory) else { return };
        let set = self.names.sync(inode.volume, directory);
        self.were_set(set);
        self.collect();
    }

    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let directory = self.directory_at(path)?;
        Ok(self.names.of(directory).map(|(name, _)| path.join(name)).collect())
    }

    /// The file of a name.
    pub(crate) fn find(&self, path: &Path) -> io::Result<u64> {
        let (number, _) = self.walk(path)?;
        if self.inodes[&number].kind == Kind::Directory {
            return Err(system(libc::EISDIR));
        }
        Ok(number)
    }

    pub(crate) fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("names and handles lead to inodes")
    }

    /// Determines which inodes take space, and removes those that nothing leads to.
    pub(crate) fn collect(&mut self) {
        let open = self.handles.values().map(|handle| handle.inode);
        let roots = ROOTS.map(|(number, _)| number);
        let live: BTreeSet<u64> = self.names.live().chain(roots).chain(open).collect();
        let durable: BTreeSet<u64> = self.names.durable().collect();
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
        Ok(self.hand_out(inode, path, access.is_direct(), (access != Access::WriteStream, true)))
    }

    pub(crate) fn open_to_read(&mut self, path: &Path, caching: Caching) -> io::Result<(FileId, bool)> {
        let inode = self.find(path)?;
        Ok(self.hand_out(inode, path, caching == Caching::Direct, (true, false)))
    }

    /// Opens an inode to be read, or written, or both.
    pub(crate) fn hand_out(
        &mut self,
        inode: u64,
        path: &Path,
        wants_direct: bool,
        (reads, writes): (bool, bool),
    ) -> (FileId, bool) {
        let direct = wants_direct && !self.faults.refuse_direct;
        let handle = Handle { inode, path: path.to_path_buf(), direct, reads, writes };
        // Ids are never reused, so a use after close is detected.
        let id = i32::try_from(self.number()).expect("fewer numbers than that in a simulation");
        self.handles.insert(id, handle);
        (FileId(id), direct)
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

    pub(crate) fn metadata(&self, inode: u64) -> io::Result<Metadata> {
        let Attributes { kind, len, device, inode, modified_ns, changed_ns, mode, .. } =
            self.attributes(inode)?;
        let (is_regular, is_directory) = (kind == EntryKind::File, kind == EntryKind::Directory);
        Ok(Metadata { len, is_regular, is_directory, device, inode, modified_ns, changed_ns, mode })
    }

    fn change(&mut self, id: FileId) -> io::Result<&mut Inode> {
        let handle = self.handle(id);
        if !handle.writes {
            return Err(system(libc::EBADF));
        }
        let number = handle.inode;
        self.touch(number);
        Ok(self.inode(number))
    }

    pub(crate) fn set_len(&mut self, id: FileId, len: u64) -> io::Result<()> {
        self.medium()?;
        self.change(id)?.content.set_len(len);
        Ok(())
    }

    pub(crate) fn punch(&mut self, id: FileId, at: u64, len: u64) -> io::Result<()> {
        self.medium()?;
        self.change(id)?.content.punch(at, len);
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
        if !self.faults.ignore_syncs {
            self.inode(inode).content.sync();
        }
        Ok(())
    }

    // Space.

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
        let (number, _) = self.walk(path)?;
        let volume = self.inodes[&number].volume;
        Ok(Space { available: self.free_pages(volume) * PAGE as u64, total: self.capacity_bytes(volume) })
    }

    // Bytes.

    /// Adds a write in flight, which a crash may lose; returns its number.
    pub(crate) fn launch(&mut self, id: FileId, at: u64, bytes: &[u8]) -> u64 {
        let (number, inode) = (self.number(), self.inode_of(id));
        self.in_flight.insert(number, Pending { inode, at, bytes: bytes.to_vec() });
        number
    }

    /// Removes a write in flight that is about to complete.
    pub(crate) fn land(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// One attempt to move bytes, with the faults of a system call.
    pub(crate) fn attempt(
        &mut self,
        id: FileId,
        kind: crate::Kind,
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
            crate::Kind::Read => self.read(id, at, &mut bytes[..amount])?,
            crate::Kind::Write => self.write(id, at, &bytes[..amount])?,
        };
        let traffic = self.traffic.entry(self.handle(id).path.clone()).or_default();
        match kind {
            crate::Kind::Read => traffic.read += moved as u64,
            crate::Kind::Write => traffic.written += moved as u64,
        }
        Ok(moved)
    }

    /// How much a short attempt moves: whole pages and some sectors if it is direct, otherwise any number of bytes.
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

    /// Asserts the alignment that the kernel requires of a direct file; it would return EINVAL.
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

/// An error of the simulated system, as a file system reports it.
pub(crate) fn of<T>(action: Action, path: &Path, outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|e| Error::new(action, path, e))
}

/// An error of a transfer, as a file system reports it.
pub(crate) fn of_transfer<T>(kind: crate::Kind, path: &Path, at: u64, outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|e| Error::at(kind.action(), path, at, e))
}

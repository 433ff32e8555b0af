//! An open volume: names by path, files by [`File`].
//!
//! Model: the manager has names, sizes and layouts, the stores have the bytes, and the client, here, uses both.
//! Invariant: close-to-open consistency: a client that opens a file sees what others wrote before they closed it.
//! Non-goals: access control: the directories of a local volume belong to their owner alone.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use thalweg_io::{Space, process};

use crate::cache::Stamp;
use crate::cached_names::{Cacheable, Lease};
use crate::client::Client;
use crate::file::{File, Node};
use crate::hint::Hint;
use crate::layout::Policy;
use crate::manager::{Change, Edit, Entry, Inode, Kind, Manager, New, Place, ROOT, Renaming};
use crate::memory::{CACHE_BYTES_MIN, Memory};
use crate::request::ChangeNumber;
use crate::server::Server;
use crate::session::OwnSession;
use crate::store::Strip;
use crate::stores::{Slot, Stores};
use crate::{Error, Result};

/// The most links that a path may lead through.
const LINKS_MAX: usize = 40;
/// The most closed files whose lost bytes are remembered until they are opened again.
const FORGOTTEN_MAX: usize = 1024;

/// An open volume.
pub struct Volume {
    pub(crate) manager: Client,
    pub(crate) stores: Arc<Stores>,
    /// Without it, each read and write goes to the stores.
    pub(crate) memory: OnceLock<Arc<Memory>>,
    pub(crate) lease: Lease,
    nodes: Mutex<Nodes>,
    /// Whoever waits until a file is no longer being opened or closed.
    opened: Condvar,
    /// Held shared while a file is made: nobody else opens a file under the number that it gets, until it is known here.
    making: RwLock<()>,
    /// Files that were closed by a descriptor that did not write, after a store had lost bytes that another one wrote.
    forgotten: Mutex<BTreeMap<u64, (Strip, String)>>,
}

#[derive(Default)]
struct Nodes {
    /// Open files, and how often each is open.
    open: HashMap<u64, (Arc<Node>, usize)>,
    /// Files that are being opened, or closed, with what is then told of them: the manager is told of one after the other.
    busy: BTreeMap<u64, Option<Arc<Node>>>,
}

/// What other clients have done with open files.
pub struct FileNews {
    /// The number for the next call.
    pub next: ChangeNumber,
    /// The files that others have changed.
    pub changed: Vec<u64>,
    /// The files that others have open too.
    pub shared: Vec<u64>,
}

impl Volume {
    /// A volume of this manager and these stores, after any work that a crash interrupted is finished.
    pub fn assemble(manager: Box<dyn Manager>, stores: Vec<Slot>) -> Result<Arc<Volume>> {
        let server = Server::start(manager, Arc::new(Stores::new(stores)), true, None)?;
        Ok(Volume::of(Client::by(OwnSession::begin(&server)), Arc::clone(&server.stores)))
    }

    /// A volume as a client of its manager and its stores.
    pub(crate) fn of(manager: Client, stores: Arc<Stores>) -> Arc<Volume> {
        let (nodes, opened, making) = (Mutex::default(), Condvar::new(), RwLock::default());
        let (memory, lease, forgotten) = (OnceLock::new(), Lease::default(), Mutex::default());
        Arc::new(Volume { manager, stores, memory, lease, nodes, opened, making, forgotten })
    }

    /// Caches what is read, in at most `bytes` bytes, reads ahead, and delays writes; `hint` is for files without a
    /// hint of their own. 0 bytes set no cache. An error if there are too few bytes, or if there is a cache already.
    pub fn set_cache(&self, bytes: u64, hint: Hint) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        if bytes < CACHE_BYTES_MIN {
            return Err(Error::Refused(format!(
                "a cache has at least {} MiB, or 0 bytes for none, not {bytes} bytes",
                CACHE_BYTES_MIN >> 20
            )));
        }
        if !hint.lasts() {
            return Err(Error::Refused(format!(
                "{hint} is a hint for one file, not for all files of a mount"
            )));
        }
        let is_first = self.memory.set(Arc::new(Memory::new(bytes, hint)?)).is_ok();
        if is_first { Ok(()) } else { Err(Error::Refused("the volume has a cache already".into())) }
    }

    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.memory.get().map(|memory| &**memory)
    }

    /// How long names that are read from now on may be cached: not at all while another client uses the volume.
    pub fn cacheable(&self) -> Cacheable {
        self.lease.cacheable(|| self.manager.may_cache_names().unwrap_or(false))
    }

    /// The inode at a path; for a link, that of its target.
    pub fn stat(&self, path: &Path) -> Result<Inode> {
        self.walk(path, true)?.found.ok_or_else(|| not_found(path)).map(|found| self.with_open(found))
    }

    /// The inode at a path; for a link, the link itself.
    pub fn stat_link(&self, path: &Path) -> Result<Inode> {
        self.walk(path, false)?.found.ok_or_else(|| not_found(path)).map(|found| self.with_open(found))
    }

    /// The absolute path, without links, of the inode at a path.
    pub fn canonical(&self, path: &Path) -> Result<PathBuf> {
        let walked = self.walk(path, true)?;
        match walked.found {
            Some(_) => Ok(Path::new("/")
                .join(walked.names.iter().map(|name| OsStr::from_bytes(name)).collect::<PathBuf>())),
            None => Err(not_found(path)),
        }
    }

    /// The names in a directory, in byte order.
    pub fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        let directory = self.stat(path)?;
        if directory.kind != Kind::Directory {
            return Err(Error::system(libc::ENOTDIR, path.to_string_lossy()));
        }
        let mut entries = self.manager.names(directory.id)?;
        entries.iter_mut().for_each(|entry| entry.inode = self.with_open(entry.inode.clone()));
        Ok(entries)
    }

    /// Opens a file.
    pub fn open(self: &Arc<Volume>, path: &Path) -> Result<File> {
        let found = self.walk(path, true)?.found.ok_or_else(|| not_found(path))?;
        self.open_inode(&found, path)
    }

    /// Makes a file, or opens the existing one unless it must be new.
    pub fn create(self: &Arc<Volume>, path: &Path, mode: u32, must_be_new: bool) -> Result<File> {
        let walked = self.walk(path, !must_be_new)?;
        match walked.found {
            Some(_) if must_be_new => Err(Error::system(libc::EEXIST, path.to_string_lossy())),
            Some(found) => self.open_inode(&found, path),
            None => match self.make_file(walked.place(path)?, own(Kind::File, mode, b""), true, path) {
                // Another client has made it meanwhile.
                Err(why) if why.exists_already() && !must_be_new => self.open(path),
                made => Ok(made?.1),
            },
        }
    }

    pub(crate) fn open_inode(self: &Arc<Volume>, found: &Inode, path: &Path) -> Result<File> {
        if found.kind == Kind::Directory {
            return Err(Error::system(libc::EISDIR, path.to_string_lossy()));
        }
        if found.layout.is_none() {
            return Err(Error::system(libc::EINVAL, path.to_string_lossy()));
        }
        self.open_file(found.id, path)
    }

    /// Opens the inode with this number, which must be a file.
    pub(crate) fn open_file(self: &Arc<Volume>, inode: u64, path: &Path) -> Result<File> {
        // If it is just being made here, that is done then.
        drop(self.making.write().unwrap_or_else(PoisonError::into_inner));
        let mut nodes = self.nodes_without(inode);
        if let Some((node, users)) = nodes.open.get_mut(&inode) {
            *users += 1;
            let node = Arc::clone(node);
            drop(nodes);
            let found = self.manager.inode(inode).inspect_err(|_| _ = self.close(&node))?;
            node.refresh(self.memory(), &found);
            return Ok(File::new(Arc::clone(self), node, path.into()));
        }
        nodes.busy.insert(inode, None);
        drop(nodes);
        let opened = self.manager.open(inode);
        let mut nodes = self.nodes();
        nodes.busy.remove(&inode);
        self.opened.notify_all();
        let found = opened?;
        let node = self.new_node(&found, path)?;
        nodes.open.insert(inode, (Arc::clone(&node), 1));
        drop(nodes);
        Ok(File::new(Arc::clone(self), node, path.into()))
    }

    /// Makes a file under a name that must be free, and opens it, to write it soon if it `may_write`.
    pub(crate) fn make_file(
        self: &Arc<Volume>,
        place: Place,
        new: New,
        may_write: bool,
        path: &Path,
    ) -> Result<(Inode, File)> {
        let _making = self.making.read().unwrap_or_else(PoisonError::into_inner);
        let made = self.manager.make(place, new, may_write)?;
        let node = self.new_node(&made, path)?;
        {
            let mut state = node.state();
            (state.is_noted, state.lacks_capability) = (may_write, true);
        }
        self.nodes().open.insert(made.id, (Arc::clone(&node), 1));
        let file = File::new(Arc::clone(self), node, path.into());
        Ok((made, file))
    }

    fn new_node(&self, found: &Inode, path: &Path) -> Result<Arc<Node>> {
        if found.layout.is_none() {
            return Err(Error::system(libc::EINVAL, path.to_string_lossy()));
        }
        if let Some(memory) = self.memory() {
            memory.cache.opened(found.id, Stamp::of(found));
        }
        let node = Arc::new(Node::new(found));
        node.state().forgotten = self.forgotten().remove(&found.id);
        Ok(node)
    }

    /// Makes a directory.
    pub fn make_directory(&self, path: &Path, mode: u32) -> Result<Inode> {
        let place = self.free_place(path)?;
        self.make_own(place, Kind::Directory, mode, b"")
    }

    /// Makes a directory, and any missing parents.
    pub fn make_directories(&self, path: &Path, mode: u32) -> Result<()> {
        let above = path.ancestors().filter(|above| !above.as_os_str().is_empty());
        for above in above.collect::<Vec<_>>().into_iter().rev() {
            match self.make_directory(above, mode) {
                Err(why) if matches!(why.errno(), libc::EEXIST | libc::EBUSY) => {
                    if self.stat(above)?.kind != Kind::Directory {
                        let number = if above == path { libc::EEXIST } else { libc::ENOTDIR };
                        return Err(Error::system(number, above.to_string_lossy()));
                    }
                }
                made => drop(made?),
            }
        }
        Ok(())
    }

    /// Makes a symbolic link that leads to `target`.
    pub fn make_link(&self, path: &Path, target: &[u8]) -> Result<Inode> {
        let place = self.free_place(path)?;
        self.make_own(place, Kind::Link, 0o777, target)
    }

    /// Makes an inode that belongs to this user, under a name that must be free.
    pub(crate) fn make_own(&self, place: Place, kind: Kind, mode: u32, target: &[u8]) -> Result<Inode> {
        self.create_at(place, own(kind, mode, target))
    }

    /// Adds a name to a file.
    pub fn link(&self, from: &Path, to: &Path) -> Result<Inode> {
        let found = self.stat_link(from)?;
        let place = self.free_place(to)?;
        self.link_at(found.id, place)
    }

    /// Removes the name of a file or link.
    pub fn remove(&self, path: &Path) -> Result<()> {
        self.take_name(path, false)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: &Path) -> Result<()> {
        self.take_name(path, true)
    }

    fn take_name(&self, path: &Path, is_directory: bool) -> Result<()> {
        self.remove_at(self.walk(path, false)?.place(path)?, is_directory).map(drop)
    }

    /// Renames an inode, replacing any with the new name.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.walk(from, false)?.place(from)?, self.walk(to, false)?.place(to)?);
        self.rename_at(from, to, Renaming::Replace).map(drop)
    }

    /// Sets attributes.
    pub fn set(&self, inode: u64, edit: Edit) -> Result<Inode> {
        // Not while it is being closed: what is told then has an earlier time.
        if let Some((node, _)) = self.nodes_without(inode).open.get(&inode) {
            node.follow(&edit);
        }
        self.manager.change(&Change::Set(inode, edit)).map(|found| self.with_open(found))
    }

    /// Sets the layout of files that are created in a directory from now on.
    pub fn set_policy(&self, path: &Path, policy: &Policy) -> Result<()> {
        policy.check(self.stores.slots().len() as u32)?;
        let directory = self.stat(path)?;
        if directory.kind != Kind::Directory {
            return Err(Error::system(libc::ENOTDIR, path.to_string_lossy()));
        }
        self.manager.change(&Change::SetPolicy(directory.id, *policy)).map(drop)
    }

    /// The extended attributes of the inode at a path.
    pub fn attributes(&self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.attributes_of(self.stat(path)?.id)
    }

    /// Sets or removes an extended attribute.
    pub fn set_attribute(self: &Arc<Volume>, path: &Path, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.set_attribute_of(self.stat(path)?.id, name, value)
    }

    /// Makes everything durable: names, and the bytes of all files.
    pub fn sync(&self) -> Result<()> {
        for node in self.open_nodes() {
            node.sync(self, false)?;
        }
        self.manager.sync_all()
    }

    /// Sends the delayed writes of all files to the stores.
    pub(crate) fn send_all(&self) {
        if self.memory.get().is_some() {
            self.open_nodes().iter().for_each(|node| node.send_all(self));
        }
    }

    /// The state that all descriptors of an open file share.
    pub(crate) fn open_node(&self, inode: u64) -> Option<Arc<Node>> {
        self.nodes().open.get(&inode).map(|(node, _)| Arc::clone(node))
    }

    /// The state of a file that is open, or is being closed.
    pub(crate) fn untold_node(&self, inode: u64) -> Option<Arc<Node>> {
        let nodes = self.nodes();
        let open = nodes.open.get(&inode).map(|(node, _)| Arc::clone(node));
        open.or_else(|| nodes.busy.get(&inode)?.clone())
    }

    /// Whether any file is open.
    pub fn has_open_files(&self) -> bool {
        !self.nodes().open.is_empty()
    }

    fn open_nodes(&self) -> Vec<Arc<Node>> {
        self.nodes().open.values().map(|(node, _)| Arc::clone(node)).collect()
    }

    /// Makes all names durable.
    pub fn sync_names(&self) -> Result<()> {
        self.manager.sync()
    }

    /// The number of files, directories and others.
    pub fn inodes(&self) -> Result<u64> {
        self.manager.count()
    }

    /// The free space if bytes are spread evenly over all stores: on each as much as on the fullest. Stores in one file
    /// system share its space.
    pub fn space(&self) -> Result<Space> {
        // Lost stores have none.
        let spaces: Vec<(Space, u64)> =
            self.stores.slots().iter().flatten().filter_map(|store| store.space().ok()).collect();
        let copies = u64::from(self.manager.inode(ROOT)?.policy.unwrap_or_default().copies);
        let mut shared: BTreeMap<u64, (Space, u64)> = BTreeMap::new();
        spaces.iter().for_each(|(space, number)| shared.entry(*number).or_insert((*space, 0)).1 += 1);
        let available = shared.values().map(|(space, stores)| space.available / stores).min().unwrap_or(0);
        Ok(Space {
            available: available.saturating_mul(spaces.len() as u64) / copies,
            total: shared.values().map(|(space, _)| space.total).sum::<u64>() / copies,
        })
    }

    /// Drops one user of an open file.
    pub(crate) fn close(&self, node: &Arc<Node>) -> Result<()> {
        let inode = node.id();
        let mut nodes = self.nodes();
        let Some((_, users)) = nodes.open.get_mut(&inode) else { return Ok(()) };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        nodes.open.remove(&inode);
        // The next open waits, so that it finds what is reported.
        nodes.busy.insert(inode, Some(Arc::clone(node)));
        drop(nodes);
        // Whoever wants to know of failures has flushed the file; but the store reports only once what it has lost.
        if let Err(Error::Missing(strip, how)) = node.end_doubts(self) {
            let mut forgotten = self.forgotten();
            forgotten.insert(inode, (strip, how));
            if forgotten.len() > FORGOTTEN_MAX {
                forgotten.pop_first();
            }
        }
        let closed = self.manager.close(inode, node.untold(), node.read_ns());
        if let (Ok(()), Some(memory)) = (&closed, self.memory()) {
            memory.cache.closed(inode, node.stamp());
        }
        self.nodes().busy.remove(&inode);
        self.opened.notify_all();
        closed
    }

    fn forgotten(&self) -> MutexGuard<'_, BTreeMap<u64, (Strip, String)>> {
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open files, when this one is not being opened or closed.
    fn nodes_without(&self, inode: u64) -> MutexGuard<'_, Nodes> {
        let is_busy = |nodes: &mut Nodes| nodes.busy.contains_key(&inode);
        self.opened.wait_while(self.nodes(), is_busy).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the current size and time of an open file, which learns from this what others have changed.
    pub(crate) fn with_open(&self, mut inode: Inode) -> Inode {
        if let Some(node) = self.open_node(inode.id) {
            node.refresh(self.memory(), &inode);
            node.overlay(&mut inode);
        }
        inode
    }

    /// Learns what other clients have changed in open files since the call that returned `since`; for the first one it
    /// is 0, and all may be changed. If this and [`Volume::report_to_others`] are called several times a second, each
    /// client's open files show within a second what another one has written.
    pub fn news(&self, since: ChangeNumber) -> Result<FileNews> {
        let (number, changed, shared) = self.manager.news(since)?;
        let mut next = number;
        for inode in &changed {
            if let Some(node) = self.open_node(*inode) {
                match self.manager.inode(*inode) {
                    Ok(found) => node.refresh(self.memory(), &found),
                    // A store that has to be asked is lost. The next call returns this file again.
                    Err(_) => next = since,
                }
                // Although the time may be the same: bytes that were read before may be older.
                self.memory().iter().for_each(|memory| memory.cache.forget_all(*inode));
            }
        }
        Ok(FileNews { next, changed, shared })
    }

    /// Reports what was written to these files, which others have open too.
    pub fn report_to_others(&self, shared: &[u64]) {
        for node in shared.iter().filter_map(|inode| self.open_node(*inode)) {
            if node.untold().is_some() || node.behind.end() > 0 {
                // Whoever wrote gets the error.
                let _ = node.report(self);
            }
        }
    }

    fn free_place(&self, path: &Path) -> Result<Place> {
        let walked = self.walk(path, false)?;
        match walked.found {
            Some(_) => Err(Error::system(libc::EEXIST, path.to_string_lossy())),
            None => walked.place(path),
        }
    }

    /// Follows a path, through links whose targets are in the volume.
    fn walk(&self, path: &Path, follow: bool) -> Result<Walked> {
        let names = |path: &Path| -> Vec<Vec<u8>> {
            let names = path.components().filter_map(|part| match part {
                Component::Normal(name) => Some(name.as_bytes().to_vec()),
                Component::ParentDir => Some(b"..".to_vec()),
                _ => None,
            });
            names.rev().collect()
        };
        let about = || path.to_string_lossy();
        if leads_out(path) {
            return Err(Error::Refused(format!("{} leads above the root of the volume", about())));
        }
        let (mut above, mut left, mut links) = (vec![self.manager.inode(ROOT)?], names(path), 0);
        let mut place = None;
        let mut way = Vec::new();
        let mut missing = false;
        while let Some(name) = left.pop() {
            if missing {
                return Err(Error::system(libc::ENOENT, about()));
            }
            if name == b".." {
                above.truncate(above.len().saturating_sub(1).max(1));
                way.pop();
                place = None;
                continue;
            }
            let directory = above.last().expect("the root stays");
            if directory.kind != Kind::Directory {
                return Err(Error::system(libc::ENOTDIR, about()));
            }
            let here = Place { directory: directory.id, name };
            let found = self.manager.lookup(&here)?;
            match found {
                Some(link) if link.kind == Kind::Link && (follow || !left.is_empty()) => {
                    links += 1;
                    let target = Path::new(OsStr::from_bytes(&link.target));
                    if links > LINKS_MAX || target.is_absolute() {
                        return Err(Error::system(libc::ELOOP, about()));
                    }
                    left.extend(names(target));
                }
                Some(found) => {
                    way.push(here.name.clone());
                    place = Some(here);
                    above.push(found);
                }
                None => {
                    place = Some(here);
                    missing = true;
                }
            }
        }
        Ok(Walked { place, names: way, found: if missing { None } else { above.pop() } })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // No caller is left to report an error to; the next opening of the volume finishes the work.
        let _ = self.sync();
    }
}

/// The end of a path.
struct Walked {
    /// The last name; `None` if it was `..` or the root.
    place: Option<Place>,
    /// The names from the root on, without links.
    names: Vec<Vec<u8>>,
    found: Option<Inode>,
}

impl Walked {
    fn place(self, path: &Path) -> Result<Place> {
        self.place.ok_or_else(|| Error::system(libc::EBUSY, path.to_string_lossy()))
    }
}

/// Whether a path has more `..` than names before them.
fn leads_out(path: &Path) -> bool {
    let mut depth = 0;
    path.components().any(|part| {
        depth += match part {
            Component::Normal(_) => 1,
            Component::ParentDir => -1,
            _ => 0,
        };
        depth < 0
    })
}

/// An inode that belongs to this user.
fn own(kind: Kind, mode: u32, target: &[u8]) -> New {
    let (user, group) = process::user_and_group();
    New { kind, mode, umask: 0, user, group, target: target.to_vec() }
}

fn not_found(path: &Path) -> Error {
    Error::system(libc::ENOENT, path.to_string_lossy())
}

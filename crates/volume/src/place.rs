//! Makes, opens and removes volumes of this machine.
//!
//! ```text
//! STORE/NAME.thalweg-store/      in each directory given for a store; see local.rs
//! MANAGER/NAME.thalweg-manager/  manager.db; `lock`, which the process that serves the volume holds; its `socket`
//! ```
//!
//! Invariant: these directories are newly made, and used only if they are still this user's and closed to others.
//! Non-goals: which process serves a volume (attach.rs), and volumes on nodes (cluster.rs).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{VolumeDestroyed, VolumeEntry};
use thalweg_base::clock::Stopwatch;
use thalweg_io::threads::Threads;
use thalweg_io::{Access, File, FileSystem, hidden, process, small};

use crate::alone::{Alone, OpenAlone, OpenVolume, UNFINISHED, Watch, unfinished};
use crate::attach::{Attachment, CLIENTS};
use crate::client::Client;
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::layout::Policy;
use crate::local::SUPERBLOCK;
use crate::manager::{Change, Facts, Manager, ROOT};
use crate::managers::name_of;
use crate::registry::{Registry, part};
use crate::reserve::Reserve;
use crate::runs::{self, Runs};
use crate::server::Server;
use crate::session::OwnSession;
use crate::store::Store;
use crate::stores::{Slot, Stores};
use crate::{Error, LocalStore, Result, SqliteManager, Volume};

const LOCK: &str = "lock";
/// How long to wait for a process that is ending: one that serves a mount ends a while after `umount` has returned.
const ENDING: Duration = Duration::from_secs(3);
/// How long to wait between attempts to lock a volume. No event signals that another process has released a lock.
const MOMENT: Duration = Duration::from_millis(10);
/// More digits than a process id has.
const LOCK_BYTES_MAX: usize = 32;

/// Makes a volume with a store in each of these directories. Its manager is in the first of them, unless another is
/// given.
pub fn create(
    registry: &Registry,
    name: &str,
    stores: &[PathBuf],
    manager: Option<&Path>,
    policy: &Policy,
) -> Result<()> {
    let mut dirs = stores.iter().map(|dir| below(dir, name, "store")).collect::<Result<Vec<_>>>()?;
    let slots = dirs.clone();
    dirs.sort();
    if let Some(twice) = dirs.windows(2).find(|two| two[0] == two[1]) {
        let place = twice[0].parent().unwrap_or(&twice[0]).display();
        return Err(Error::Refused(format!("{place} is given twice; each store has a directory of its own")));
    }
    let Some(first) = stores.first() else {
        return Err(Error::Refused("a volume has at least one store; give --stores DIR,...".into()));
    };
    policy.check(slots.len() as u32)?;
    let meta = below(manager.unwrap_or(first), name, "manager")?;
    let entry = VolumeEntry {
        name: name.into(),
        cluster: None,
        manager: text(&meta)?,
        stores: slots.iter().map(|dir| text(dir)).collect::<Result<_>>()?,
        clients: Vec::new(),
    };
    let mut made = Made::default();
    registry.add(entry, || {
        let volume = new_number();
        for (slot, dir) in (0..).zip(&slots) {
            made.store(dir, volume, slot)?;
        }
        made.manager(&meta, volume, &slots, policy, process::user_and_group())
    })?;
    made.stays();
    Ok(())
}

/// A unique number for a new volume.
pub(crate) fn new_number() -> u128 {
    u128::from(hidden::random()) << 64 | u128::from(hidden::random())
}

/// Directories that are removed again if not all of a volume could be made.
#[derive(Default)]
pub(crate) struct Made(Vec<PathBuf>);

impl Made {
    fn directory(&mut self, dir: &Path) -> Result<()> {
        small::make_new_directory(dir)?;
        self.0.push(dir.into());
        Ok(small::sync_directory(thalweg_io::directory_of(dir))?)
    }

    /// Makes a store.
    pub(crate) fn store(&mut self, dir: &Path, volume: u128, slot: u32) -> Result<()> {
        self.directory(dir)?;
        LocalStore::create(&io(), dir, volume, slot)
    }

    /// Makes a manager for the stores in these slots. This user and group own its root directory.
    pub(crate) fn manager(
        &mut self,
        dir: &Path,
        volume: u128,
        slots: &[PathBuf],
        policy: &Policy,
        owner: (u32, u32),
    ) -> Result<()> {
        Reserve::check_room(thalweg_io::directory_of(dir))?;
        self.directory(dir)?;
        SqliteManager::create(dir, volume, slots, policy, owner)?;
        make_lock(dir)
    }

    /// Makes a copy of a manager that no process has open.
    fn copy_of_manager(&mut self, from: &Path, dir: &Path) -> Result<()> {
        self.directory(dir)?;
        SqliteManager::copy(from, dir)?;
        SqliteManager::open(dir)?.ledger().moves(&place_of(dir))?;
        make_lock(dir)
    }

    /// Everything was made: nothing is removed.
    pub(crate) fn stays(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // The first error is returned; what cannot be removed is left.
            let _ = clear(&io(), dir);
        }
    }
}

fn make_lock(meta: &Path) -> Result<()> {
    File::open(&io(), &meta.join(LOCK), Access::Create)?;
    Ok(small::sync_directory(meta)?)
}

/// Opens a volume: serves it, or attaches to the process that does.
pub(crate) fn open(entry: VolumeEntry) -> Result<OpenVolume> {
    let (attachment, slots) = Attachment::new(Path::new(&entry.manager), &entry.name)?;
    let volume = Volume::of(Client::by(attachment), Arc::new(Stores::new(slots)));
    Ok(OpenVolume { volume, entry, watch: Watch::default() })
}

/// The reason why a volume cannot be opened, with a remedy if its manager does not exist or its database is damaged.
pub(crate) fn with_remedy(why: Error, entry: &VolumeEntry) -> Error {
    match why {
        other if entry.cluster.is_some() => other,
        Error::Io(e) if e.source.kind() == std::io::ErrorKind::NotFound => Error::Refused(format!(
            "{e}; mount the disk with the manager of volume {0}, or, if it is gone, save the contents of files with \
             thalweg volume salvage {0} DIR",
            entry.name
        )),
        Error::Database(..) if why.errno() == libc::EIO => Error::Refused(format!(
            "{why}; restore it from a backup, or save the contents of files with thalweg volume salvage {} DIR",
            entry.name
        )),
        other => other,
    }
}

/// Keeps other processes from a volume while its stores change.
struct Here {
    name: String,
    meta: PathBuf,
    /// The number of the volume.
    volume: u128,
    _lock: File,
    _clients: small::Locked,
}

/// Opens a volume exclusively: no other process uses it, and none can in the meantime.
pub(crate) fn open_alone(mut entry: VolumeEntry) -> Result<OpenAlone> {
    let meta = PathBuf::from(&entry.manager);
    let locked = wait_for(|| Ok(try_lock(&meta)?.zip(small::try_lock(&meta.join(CLIENTS))?)))?;
    let Some((lock, clients)) = locked else { return Err(in_use(&meta, &entry.name)?) };
    let (manager, stores, facts) = parts(&meta)?;
    entry.stores = facts.slots.iter().map(|dir| text(dir)).collect::<Result<_>>()?;
    stores.hold().into_iter().for_each(|hold| hold.claim_for_work());
    let server = Server::start(manager, Arc::new(stores), true, None)?;
    let volume = Volume::of(Client::by(OwnSession::begin(&server)), Arc::clone(&server.stores));
    let here = Here { name: entry.name.clone(), meta, volume: facts.volume, _lock: lock, _clients: clients };
    Ok(OpenAlone { volume, entry, alone: Box::new(here) })
}

impl Alone for Here {
    fn directory(&self, place: &Path) -> Result<String> {
        let directory = below(place, &self.name, "store").or_else(|_| {
            // A missing directory still has a name.
            let absolute = std::path::absolute(place).map_err(|e| failed_to_open(place, e))?;
            Ok::<_, Error>(absolute.join(part(&self.name, "store")?))
        })?;
        text(&directory)
    }

    fn make(&self, directory: &str, slot: u32) -> Result<Arc<dyn Store>> {
        let mut made = Made::default();
        made.store(Path::new(directory), self.volume, slot)?;
        let store = LocalStore::open(&io(), Path::new(directory), self.volume, slot)?;
        made.stays();
        Ok(Arc::new(store))
    }

    fn remove(&self, directory: &str, slot: u32) -> Result<()> {
        let (io, directory) = (io(), Path::new(directory));
        LocalStore::check(&io, directory, Some(self.volume), slot)?;
        clear(&io, directory)
    }

    fn copy_manager(&self, from: &str, to: &str) -> Result<Option<String>> {
        if self.meta.parent() != Path::new(from).parent() {
            return Ok(None);
        }
        let meta = below(thalweg_io::directory_of(Path::new(to)), &self.name, "manager")?;
        let mut made = Made::default();
        made.copy_of_manager(&self.meta, &meta)?;
        made.stays();
        text(&meta).map(Some)
    }

    fn remove_manager(&self) -> Result<()> {
        clear(&io(), &self.meta)
    }

    fn give(&self, volume: Arc<Volume>, slot: u32, directory: &str) -> Result<()> {
        // Only one connection at a time can use the manager's database.
        drop(volume);
        let manager = SqliteManager::open(&self.meta)?;
        // The store that was there before is older than its successor, should it ever come back.
        let run = manager.runs()?.get(&slot).map_or(1, |run| run + 1);
        runs::note(Path::new(directory), run)?;
        manager.change(&Change::Slot(slot, directory.into()))?;
        manager.change(&Change::SetAttribute(ROOT, UNFINISHED.into(), None))?;
        manager.set_run(slot, run)
    }
}

/// The manager in its directory, and the stores of its volume; an error if they have accepted another manager.
pub(crate) fn parts(meta: &Path) -> Result<(Box<dyn Manager>, Stores, Facts)> {
    let (manager, stores, facts) = unchecked_parts(meta)?;
    stores.hold().map_or(Ok(()), |hold| hold.check())?;
    Ok((Box::new(manager), stores, facts))
}

fn unchecked_parts(meta: &Path) -> Result<(SqliteManager, Stores, Facts)> {
    let manager = SqliteManager::open(meta)?;
    let facts = manager.facts()?;
    let slots = slots_of(&facts, &manager)?;
    let there = (0..).zip(&slots).filter(|(_, store)| store.is_ok());
    let runs = Runs::new(there.map(|(slot, _)| (slot, facts.slots[slot as usize].clone())).collect());
    let (hold, slots) =
        Hold::new((&name_of(meta), &place_of(meta)), Box::new(manager.ledger()), slots, false)?;
    Ok((manager, Stores::new(slots).counting(runs).held(hold), facts))
}

/// The place of a manager of this machine.
fn place_of(meta: &Path) -> String {
    std::fs::canonicalize(meta).unwrap_or_else(|_| meta.into()).to_string_lossy().into_owned()
}

/// Goes on with a manager that was restored from a backup, copied or moved.
pub(crate) fn adopt(entry: &VolumeEntry) -> Result<()> {
    let meta = PathBuf::from(&entry.manager);
    let locked = wait_for(|| Ok(try_lock(&meta)?.zip(small::try_lock(&meta.join(CLIENTS))?)))?;
    let Some(_locked) = locked else { return Err(in_use(&meta, &entry.name)?) };
    let (_manager, stores, _) = unchecked_parts(&meta)?;
    stores.hold().map_or(Ok(()), |hold| hold.adopt())
}

fn slots_of(
    facts: &Facts,
    manager: &SqliteManager,
) -> Result<Vec<std::result::Result<Arc<dyn Keeper>, String>>> {
    let (io, runs) = (io(), manager.runs()?);
    let slot = |(slot, dir): (u32, &PathBuf)| {
        let store = store(&io, dir, facts.volume, slot)?;
        let seen = runs.get(&slot).copied().unwrap_or(0);
        runs::check(dir, seen).map(|()| store).map_err(|why| why.to_string())
    };
    Ok((0..).zip(&facts.slots).map(slot).collect())
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(String::from);
    text.ok_or_else(|| {
        Error::Refused(format!("{} is not valid UTF-8, as the list of volumes needs it", path.display()))
    })
}

fn store(
    io: &Arc<dyn FileSystem>,
    dir: &Path,
    volume: u128,
    slot: u32,
) -> std::result::Result<Arc<dyn Keeper>, String> {
    let opened = small::check_own_directory(dir).map_err(Error::from);
    let opened = opened.and_then(|()| LocalStore::open(io, dir, volume, slot));
    opened.map(|store| Arc::new(store) as Arc<dyn Keeper>).map_err(|why| why.to_string())
}

/// Locks the directory of a manager for the process that serves the volume; `None` if another process has it locked.
pub(crate) fn try_lock(meta: &Path) -> Result<Option<File>> {
    small::check_own_directory(meta)?;
    let file = File::open(&io(), &meta.join(LOCK), Access::Update)?;
    if !file.mark() {
        return Ok(None);
    }
    file.set_len(0)?;
    file.write_at(0, std::process::id().to_string().as_bytes())?;
    Ok(Some(file))
}

/// Locks the directory of a manager; an error that names the process that has it locked.
pub(crate) fn lock(meta: &Path) -> Result<File> {
    match try_lock(meta)? {
        Some(lock) => Ok(lock),
        None => Err(in_use(meta, &meta.file_stem().unwrap_or_default().to_string_lossy())?),
    }
}

/// Repeats `attempt` until it returns a value; `None` if it does not within [`ENDING`].
fn wait_for<T>(attempt: impl Fn() -> Result<Option<T>>) -> Result<Option<T>> {
    let watch = Stopwatch::start();
    loop {
        let got = attempt()?;
        if got.is_some() || watch.ns() > ENDING.as_nanos() as u64 {
            return Ok(got);
        }
        std::thread::park_timeout(MOMENT);
    }
}

/// An error that says which process serves a volume.
pub(crate) fn in_use(meta: &Path, name: &str) -> Result<Error> {
    let mut who = [0; LOCK_BYTES_MAX];
    let n = File::open(&io(), &meta.join(LOCK), Access::Update)?.read_at(0, &mut who)?;
    let who = String::from_utf8_lossy(&who[..n]).into_owned();
    Ok(Error::Refused(format!(
        "volume {name} is in use by process {who}; wait for its end, or unmount it if it is mounted"
    )))
}

/// Adds to the error where volumes of this name are mounted on this machine. Those of another registry may have the same
/// name, so this says only what may be.
pub(crate) fn if_mounted(why: Error, name: &str) -> Error {
    match thalweg_io::mounts_of("fuse.thalweg", name) {
        Ok(at) if !at.is_empty() => {
            let at: Vec<String> = at.iter().map(|at| at.display().to_string()).collect();
            let at = at.join(" and ");
            Error::Refused(format!(
                "{why}; a volume named {name} is mounted on {at}: if it is this one, unmount it first"
            ))
        }
        _ => why,
    }
}

/// What is in the place of a part of a volume.
enum Found {
    /// The part.
    Part,
    /// Something that may not be removed, and why.
    Foreign(String),
    /// Nothing of this volume: the disk may not be mounted. Why that is known.
    Nothing(String),
}

/// Removes the directories of a volume and everything in them. A part that is not there is left where it may be. If
/// there is anything in a part that is not the volume's, or none of them is there, nothing is removed, or, with
/// `force`, everything else is.
pub(crate) fn destroy(entry: &VolumeEntry, force: bool) -> Result<VolumeDestroyed> {
    let (io, meta) = (io(), Path::new(&entry.manager));
    // A volume without its manager can still be removed.
    let held = match wait_for(|| try_lock(meta)) {
        Ok(None) => return Err(in_use(meta, &entry.name)?),
        Ok(held) => held,
        Err(Error::Io(e)) if e.source.kind() == std::io::ErrorKind::NotFound || !meta.exists() => None,
        Err(why) => return Err(why),
    };
    let manager = held.as_ref().and_then(|_| SqliteManager::open(meta).ok());
    let volume = manager.as_ref().and_then(|manager| manager.facts().ok()).map(|facts| facts.volume);
    // What a `replace` has left that was killed.
    let left = manager.and_then(|manager| unfinished(&manager.attributes(ROOT).ok()?));
    let left = left.filter(|(_, dir)| !entry.stores.contains(dir) && Path::new(dir).exists());
    let left = left.iter().map(|(slot, dir)| (Some(*slot), dir));
    let stores = (0..).zip(&entry.stores).map(|(slot, dir)| (Some(slot), dir)).chain(left);
    let (mut parts, mut foreign, mut away) = (Vec::new(), Vec::new(), Vec::new());
    // The manager is the last: until then the volume can be destroyed again.
    for (slot, dir) in stores.chain([(None, &entry.manager)]) {
        let what = if slot.is_some() { "store" } else { "manager" };
        match find(&io, Path::new(dir), slot.map(|slot| (volume, slot))) {
            Found::Part => parts.push((slot, dir)),
            Found::Foreign(why) => {
                foreign.push(why);
                parts.push((slot, dir));
            }
            Found::Nothing(why) => away.push(format!(
                "the {what} in {dir} was not there, so it is not removed: {why}; if it is on a disk that is not \
                 mounted, mount that and remove {dir} by hand"
            )),
        }
    }
    if parts.is_empty() {
        foreign.push(format!(
            "nothing of volume {0} is there; mount its disks, or give --force to forget it",
            entry.name
        ));
    }
    let mut told = VolumeDestroyed { name: entry.name.clone(), ..VolumeDestroyed::default() };
    if !foreign.is_empty() && !force {
        told.left = foreign;
        return Ok(told);
    }
    for (slot, dir) in parts {
        let path = Path::new(dir);
        match small::check_own_directory(path).map_err(Error::from).and_then(|()| clear(&io, path)) {
            Ok(()) if slot.is_some() => told.stores.push(dir.clone()),
            Ok(()) => told.manager = Some(dir.clone()),
            Err(why) => told.left.push(why.to_string()),
        }
    }
    told.forgotten = force || told.left.is_empty();
    told.left.extend(away);
    drop(held);
    Ok(told)
}

/// Looks for a part of a volume: the store of a slot, of this volume if its number is known, or the manager.
fn find(io: &Arc<dyn FileSystem>, dir: &Path, store: Option<(Option<u128>, u32)>) -> Found {
    if let Err(why) = std::fs::symlink_metadata(dir) {
        return Found::Nothing(failed_to_open(dir, why).to_string());
    }
    if let Err(why) = small::check_own_directory(dir) {
        return Found::Foreign(why.to_string());
    }
    let checked = match store {
        Some((volume, slot)) => LocalStore::check(io, dir, volume, slot),
        None => File::open(io, &dir.join(LOCK), Access::Update).map(drop).map_err(Error::from),
    };
    match checked.map(|()| foreign(io, dir)) {
        Err(why) => Found::Nothing(why.to_string()),
        Ok(Ok(None)) => Found::Part,
        Ok(Ok(Some(path))) => {
            Found::Foreign(format!("{} is not the volume's; move it away, or give --force", path.display()))
        }
        Ok(Err(why)) => Found::Foreign(why.to_string()),
    }
}

/// A directory inside a directory of a volume: it is not the volume's, whose parts are files.
fn foreign(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<Option<PathBuf>> {
    Ok(io.list(dir)?.into_iter().find(|path| path.is_dir() && !path.is_symlink()))
}

/// Removes a directory of files, or as many of them as possible. What shows that it is a part of a volume goes last, so
/// that the rest can be removed later.
pub(crate) fn clear(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<()> {
    let mut files = io.list(dir)?;
    files.sort_by_key(|path| path.ends_with(SUPERBLOCK) || path.ends_with(LOCK));
    let removed: Vec<_> = files.iter().map(|path| io.remove(path)).collect();
    removed.into_iter().collect::<std::result::Result<(), _>>()?;
    Ok(small::remove_directory(dir)?)
}

/// The directory of a part of a volume, in an existing directory.
fn below(dir: &Path, name: &str, what: &str) -> Result<PathBuf> {
    let dir = std::fs::canonicalize(dir).map_err(|e| failed_to_open(dir, e))?;
    Ok(dir.join(part(name, what)?))
}

fn failed_to_open(path: &Path, why: std::io::Error) -> Error {
    Error::Io(thalweg_io::Error::new(thalweg_io::Action::Open, path, why))
}

/// The backend for the files of stores and locks, whose calls need no queue.
pub(crate) fn io() -> Arc<dyn FileSystem> {
    Arc::new(Threads::new(1))
}

/// The stores of a volume by its registry entry, or why one is lost; for when there is no manager.
pub(crate) fn stores_alone(entry: &VolumeEntry) -> Vec<Slot> {
    let io = io();
    let open = |dir: &String| {
        let dir = Path::new(dir);
        small::check_own_directory(dir).map_err(|e| e.to_string())?;
        let store = LocalStore::open_any(&io, dir).map_err(|e| e.to_string())?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    };
    entry.stores.iter().map(open).collect()
}

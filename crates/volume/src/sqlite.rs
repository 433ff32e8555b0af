//! The manager's state in an SQLite database.
//!
//! Model: a write-ahead log, and a transaction for each change. The log is synced when [`Manager::sync`] is called, and
//! about once a second while there are changes, so a power loss costs at most the last second, in order. One thread
//! does that, and another makes checkpoints with a connection of its own, so that neither holds up changes.
//! Invariant: inode numbers are taken from ranges that were reserved durably. So if a power loss costs a file, no other
//! file gets its number, under which stores may have strips.
//! Non-goals: access control of the database: its directory belongs to its owner alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use thalweg_base::clock;
use thalweg_io::{Access, File};

use crate::apply::Applying;
use crate::layout::Policy;
use crate::manager::{Change, Entry, Facts, Inode, Kind, Manager, New, Place, ROOT};
use crate::reserve::Reserve;
use crate::{Error, Result, rows};

const DATABASE: &str = "manager.db";
const LOG: &str = "manager.db-wal";
const FORMAT: i64 = 4;
/// How many inode numbers are reserved at a time: a change that needs more waits until these are durable.
const RESERVED: i64 = 1 << 16;
/// The longest time until a change is durable.
const FLUSH: Duration = Duration::from_secs(1);
/// After this many changes the thread makes a checkpoint.
const CHECKPOINT_CHANGES: u64 = 512;
/// At this length of the log a change makes the checkpoint itself, because the thread does not keep up. Then the log is
/// overwritten from its beginning.
const LOG_PAGES_MAX: u32 = 8192;
/// Connections of this process share the index of the log in memory, and no other process can open the database.
const VFS: &str = "unix-excl";

const SCHEMA: &str = "
CREATE TABLE facts (format INTEGER, volume BLOB, reserved INTEGER);
CREATE TABLE slots (slot INTEGER PRIMARY KEY, directory BLOB NOT NULL);
CREATE TABLE inodes (
    id INTEGER PRIMARY KEY, kind INTEGER, device INTEGER, mode INTEGER, user INTEGER, grp INTEGER, links INTEGER,
    size INTEGER, accessed INTEGER, modified INTEGER, changed INTEGER, target BLOB, layout BLOB, policy BLOB, generation INTEGER, cut INTEGER,
    strips INTEGER, stale0 INTEGER, stale1 INTEGER, unsynced INTEGER, unsettled INTEGER);
CREATE INDEX unfinished ON inodes (id) WHERE links = 0 OR cut IS NOT NULL OR unsettled = 1;
CREATE TABLE names (
    directory INTEGER, name BLOB, inode INTEGER NOT NULL, PRIMARY KEY (directory, name)) WITHOUT ROWID;
CREATE TABLE parents (directory INTEGER PRIMARY KEY, above INTEGER NOT NULL);
CREATE TABLE attributes (inode INTEGER, name BLOB, value BLOB, PRIMARY KEY (inode, name)) WITHOUT ROWID;
";
/// Tables and indexes that older volumes lack.
const ADDED: &str = "
CREATE TABLE IF NOT EXISTS lockers (client BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (slot INTEGER PRIMARY KEY, run INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS behind (slot INTEGER PRIMARY KEY, since INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS stale ON inodes (id) WHERE stale0 != 0 OR stale1 != 0;
";

/// Format 3 had an index of the names of every inode. Only directories need one, and each has one name.
const FROM_FORMAT_3: &str = "
BEGIN;
CREATE TABLE parents (directory INTEGER PRIMARY KEY, above INTEGER NOT NULL);
INSERT INTO parents SELECT inode, directory FROM names JOIN inodes ON id = inode WHERE kind = 1;
DROP INDEX names_of;
UPDATE facts SET format = 4;
COMMIT;
";

/// A manager in this process.
pub struct SqliteManager {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    closes: Condvar,
    path: PathBuf,
    /// The log, to sync it without the connection.
    log: File,
    /// The number of changes that are durable. It is locked before the state, and during a sync, so that callers that
    /// arrive in the meantime share the next one.
    durable: Mutex<u64>,
}

struct State {
    connection: Connection,
    /// The next inode number, and the first that is not reserved.
    next: i64,
    reserved: i64,
    slots: u32,
    reserve: Reserve,
    /// The number of changes, including those of a process that was killed before it synced them.
    changes: u64,
    closing: bool,
}

impl SqliteManager {
    /// Makes the database of a new volume in an empty directory. Durable.
    pub fn create(
        dir: &Path,
        volume: u128,
        slots: &[PathBuf],
        policy: &Policy,
        owner: (u32, u32),
    ) -> Result<()> {
        let path = dir.join(DATABASE);
        let failed = |e| Error::Database(path.clone(), e);
        // SQLite gives its log the permissions of the database, which it would create readable for others.
        thalweg_io::small::write(&path, b"")?;
        let connection = connect(&path).map_err(failed)?;
        let fill = || {
            connection.execute_batch("PRAGMA synchronous = FULL; BEGIN;")?;
            connection.execute_batch(SCHEMA)?;
            connection.execute_batch(ADDED)?;
            let facts = "INSERT INTO facts VALUES (?, ?, ?)";
            connection.execute(facts, params![FORMAT, volume.to_be_bytes(), ROOT as i64 + 1])?;
            for (slot, directory) in (0_i64..).zip(slots) {
                let row = params![slot, directory.as_os_str().as_bytes()];
                connection.execute("INSERT INTO slots VALUES (?, ?)", row)?;
            }
            let (user, group) = owner;
            let new = New { kind: Kind::Directory, mode: 0o755, user, group, target: Vec::new() };
            let root = Inode { policy: Some(*policy), links: 2, ..rows::inode(ROOT, &new, clock::wall_ns()) };
            rows::put(&connection, &root)?;
            connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);")
        };
        fill().map_err(failed)?;
        Ok(thalweg_io::small::sync_directory(dir)?)
    }

    /// Copies the database in a directory, which no process may have open, to an empty one. Durable but for the name.
    ///
    /// # Errors
    /// If the database cannot be read, or there is no room for the copy.
    pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
        let (path, copy) = (from.join(DATABASE), to.join(DATABASE));
        let failed = |e| Error::Database(path.clone(), e);
        // SQLite fills an empty file, and keeps its permissions.
        thalweg_io::small::write(&copy, b"")?;
        let connection = connect(&path).map_err(failed)?;
        let name = copy.to_str().ok_or_else(|| {
            Error::Refused(format!("{} is not readable text, as SQLite needs it", copy.display()))
        })?;
        connection.execute("VACUUM INTO ?", [name]).map_err(failed)?;
        Ok(thalweg_io::File::open(&crate::place::io(), &copy, thalweg_io::Access::Update)?.sync()?)
    }

    /// Opens the database in a directory.
    pub fn open(dir: &Path) -> Result<SqliteManager> {
        let path = dir.join(DATABASE);
        let failed = |e| Error::Database(path.clone(), e);
        let connection = connect(&path).map_err(failed)?;
        let told = connection.query_row("SELECT format, reserved FROM facts", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        });
        let (format, reserved) = told.map_err(failed)?;
        if format == 3 {
            connection.execute_batch(FROM_FORMAT_3).map_err(failed)?;
        } else if format != FORMAT {
            return Err(Error::Refused(format!(
                "{} has format {format}; this thalweg reads format {FORMAT}",
                path.display()
            )));
        }
        connection.execute_batch(ADDED).map_err(failed)?;
        let slots =
            connection.query_row("SELECT count(*) FROM slots", [], |row| row.get(0)).map_err(failed)?;
        let log = File::open(&crate::place::io(), &dir.join(LOG), Access::Update)?;
        let changes = u64::from(log.metadata()?.len > 0);
        if changes > 0 {
            thalweg_io::small::sync_directory(dir)?;
        }
        let reserve = Reserve::new(dir);
        let state = State { connection, next: reserved, reserved, slots, reserve, changes, closing: false };
        let (state, closes, durable) = (Mutex::new(state), Condvar::new(), Mutex::default());
        let own = connect(&path).map_err(failed)?;
        let shared = Arc::new(Shared { state, closes, path, log, durable });
        let (syncs, checkpoints) = (Arc::clone(&shared), Arc::clone(&shared));
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work)
        };
        let mut threads = Vec::new();
        // Without the first, changes are durable only after a sync; without the second, some changes take longer.
        threads.extend(spawn("manager", Box::new(move || syncs.sync_now_and_again())));
        threads.extend(spawn("checkpoint", Box::new(move || checkpoints.checkpoint_now_and_again(&own))));
        Ok(SqliteManager { shared, threads })
    }

    /// The last run of the store of each slot that has had one.
    pub(crate) fn runs(&self) -> Result<BTreeMap<u32, u64>> {
        self.ask(|connection| {
            let mut statement = connection.prepare_cached("SELECT slot, run FROM runs")?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?.collect()
        })
    }

    fn ask<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        ask(&self.shared.lock().connection).map_err(|e| self.shared.failed(e))
    }
}

impl Drop for SqliteManager {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.closes.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("it does not panic");
        }
        // No caller is left to report an error to.
        let _ = self.sync();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, e: rusqlite::Error) -> Error {
        Error::Database(self.path.clone(), e)
    }

    /// Carries out changes in one transaction, and returns the answer of the last one. On a full disk, changes that
    /// need no lasting room use the reserve.
    fn change(&self, changes: &[Change]) -> Result<Option<Inode>> {
        let mut state = self.lock();
        match self.transact(&mut state, changes) {
            Err(why) if why.errno() == libc::ENOSPC && changes.iter().all(Change::needs_no_room) => {
                state.make_room();
                self.transact(&mut state, changes)
            }
            changed => changed,
        }
    }

    fn transact(&self, state: &mut State, changes: &[Change]) -> Result<Option<Inode>> {
        let database = |e| self.failed(e);
        let number = match changes {
            [Change::Create(..)] => self.number(state)?,
            _ => 0,
        };
        assert!(number > 0 || !changes.iter().any(|change| matches!(change, Change::Create(..))));
        let (now_ns, slots) = (clock::wall_ns(), state.slots);
        let transaction = state.connection.unchecked_transaction().map_err(database)?;
        let applying = Applying { connection: &transaction, now_ns, slots, number };
        let mut changed = None;
        for change in changes {
            changed = Some(applying.apply(change).map_err(|e| e.into_error(&self.path))?);
        }
        transaction.commit().map_err(database)?;
        state.changes += changes.len() as u64;
        if changes.iter().any(Change::is_durable) {
            // Nobody learns of it before it is durable.
            self.log.sync()?;
        }
        Ok(changed)
    }

    /// A number that no inode ever had.
    fn number(&self, state: &mut State) -> Result<u64> {
        if state.next == state.reserved {
            let reserved = state.reserved + RESERVED;
            let text = "UPDATE facts SET reserved = ?";
            state.connection.execute(text, [reserved]).map_err(|e| self.failed(e))?;
            self.log.sync()?;
            state.reserved = reserved;
        }
        state.next += 1;
        Ok(state.next as u64 - 1)
    }

    /// Makes all changes durable that were made before the call.
    fn sync(&self) -> Result<()> {
        let made = self.lock().changes;
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        if *durable < made {
            let made = self.lock().changes;
            self.log.sync()?;
            *durable = made;
        }
        Ok(())
    }

    /// Calls `work` about once a second with the number of changes, until the manager is closed.
    fn every_second(&self, mut work: impl FnMut(u64)) {
        loop {
            let waited = self.closes.wait_timeout_while(self.lock(), FLUSH, |state| !state.closing);
            let changes = match waited.unwrap_or_else(PoisonError::into_inner).0 {
                state if state.closing => return,
                state => state.changes,
            };
            work(changes);
        }
    }

    fn sync_now_and_again(&self) {
        self.every_second(|_| {
            // If this fails, so does the next request.
            let _ = self.sync();
            self.lock().reserve.refill();
        });
    }

    fn checkpoint_now_and_again(&self, own: &Connection) {
        let mut done = 0;
        self.every_second(|changes| {
            // If this fails, a change makes the checkpoint.
            if changes - done >= CHECKPOINT_CHANGES && checkpoint(own, "PASSIVE").is_ok() {
                done = changes;
            }
        });
    }
}

impl State {
    /// Lets the log be overwritten from its beginning, with the room that was reserved for that.
    fn make_room(&mut self) {
        self.reserve.release();
        // If this fails, so does the change that needs the room.
        let _ = checkpoint(&self.connection, "RESTART");
    }
}

/// Copies changes from the log to the database.
fn checkpoint(connection: &Connection, how: &str) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |_| Ok(()))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags_and_vfs(path, flags, VFS)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES_MAX)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn numbers(client: u128) -> [u64; 2] {
    [(client >> 64) as u64, client as u64]
}

impl Manager for SqliteManager {
    fn facts(&self) -> Result<Facts> {
        self.ask(|connection| {
            let volume =
                connection.query_row("SELECT volume FROM facts", [], |row| row.get::<_, [u8; 16]>(0))?;
            let mut statement = connection.prepare_cached("SELECT directory FROM slots ORDER BY slot")?;
            let directories = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
            let slots = directories
                .map(|found| Ok(OsString::from_vec(found?).into()))
                .collect::<rusqlite::Result<_>>()?;
            Ok(Facts { volume: u128::from_be_bytes(volume), slots })
        })
    }

    fn lookup(&self, place: &Place) -> Result<Option<Inode>> {
        self.ask(|connection| rows::lookup(connection, place))
    }

    fn inode(&self, inode: u64) -> Result<Inode> {
        self.ask(|connection| rows::by_id(connection, inode))?
            .ok_or_else(|| Error::system(libc::ENOENT, format!("inode {inode}")))
    }

    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.ask(|connection| rows::names(connection, directory, after, most))
    }

    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.ask(|connection| {
            let text = "SELECT name, value FROM attributes WHERE inode = ? ORDER BY name";
            let mut statement = connection.prepare_cached(text)?;
            statement.query_map([inode as i64], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
    }

    fn change(&self, change: &Change) -> Result<Inode> {
        let changed = self.shared.change(std::slice::from_ref(change))?;
        Ok(changed.expect("a change answers with an inode"))
    }

    fn changes(&self, changes: &[Change]) -> Result<()> {
        self.shared.change(changes).map(drop)
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.ask(|connection| rows::unfinished(connection, after, most))
    }

    fn stale(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.ask(|connection| rows::stale(connection, after, most))
    }

    fn behind(&self) -> Result<Vec<(u32, i64)>> {
        self.ask(|connection| {
            let mut statement = connection.prepare_cached("SELECT slot, since FROM behind ORDER BY slot")?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
    }

    fn lockers(&self) -> Result<Vec<[u64; 2]>> {
        self.ask(|connection| {
            let mut statement = connection.prepare_cached("SELECT client FROM lockers")?;
            let clients = statement.query_map([], |row| row.get::<_, [u8; 16]>(0))?;
            clients.map(|client| client.map(|bytes| numbers(u128::from_be_bytes(bytes)))).collect()
        })
    }

    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()> {
        let statement = match may_have {
            true => "INSERT OR IGNORE INTO lockers VALUES (?)",
            false => "DELETE FROM lockers WHERE client = ?",
        };
        let bytes = (u128::from(client[0]) << 64 | u128::from(client[1])).to_be_bytes();
        let mut state = self.shared.lock();
        let set = state.connection.execute(statement, params![bytes]);
        state.changes += set.map_err(|e| self.shared.failed(e))? as u64;
        drop(state);
        if may_have { self.shared.sync() } else { Ok(()) }
    }

    fn set_run(&self, slot: u32, run: u64) -> Result<()> {
        let statement =
            "INSERT INTO runs VALUES (?, ?) ON CONFLICT DO UPDATE SET run = max(run, excluded.run)";
        let mut state = self.shared.lock();
        let set = state.connection.execute(statement, params![slot, run as i64]);
        state.changes += set.map_err(|e| self.shared.failed(e))? as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Renaming;

    /// What is in the database of format 3, as earlier versions left it.
    const TO_FORMAT_3: &str = "
        DROP TABLE parents; CREATE INDEX names_of ON names (inode); UPDATE facts SET format = 3;";

    #[test]
    fn a_database_of_format_3_is_converted_and_knows_what_lies_in_what() {
        let dir = std::env::temp_dir().join(format!("thalweg-format-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        SqliteManager::create(&dir, 7, &["/a".into()], &Policy::default(), (3, 4)).unwrap();
        let at = |directory, name: &str| Place { directory, name: name.into() };
        let make = |manager: &SqliteManager, place| {
            let new = New { kind: Kind::Directory, mode: 0o700, user: 1, group: 2, target: vec![] };
            manager.change(&Change::Create(place, new)).unwrap().id
        };
        let manager = SqliteManager::open(&dir).unwrap();
        let outer = make(&manager, at(ROOT, "outer"));
        let inner = make(&manager, at(outer, "inner"));
        drop(manager);
        connect(&dir.join(DATABASE)).unwrap().execute_batch(TO_FORMAT_3).unwrap();
        for _ in 0..2 {
            let manager = SqliteManager::open(&dir).unwrap();
            let into_itself = Change::Rename(at(ROOT, "outer"), at(inner, "x"), Renaming::Replace);
            assert_eq!(manager.change(&into_itself).unwrap_err().errno(), libc::EINVAL);
        }
        let manager = SqliteManager::open(&dir).unwrap();
        // Another directory moves, so that the first may move below it.
        manager.change(&Change::Rename(at(outer, "inner"), at(ROOT, "inner"), Renaming::Replace)).unwrap();
        manager.change(&Change::Rename(at(ROOT, "outer"), at(inner, "x"), Renaming::Replace)).unwrap();
        drop(manager);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

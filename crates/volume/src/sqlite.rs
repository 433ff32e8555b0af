//! The manager's state in an SQLite database.
//!
//! Model: one connection, a write-ahead log, a transaction for each change. The log is synced when [`Manager::sync`] is
//! called, and about once a second while there are changes, so a power loss costs at most the last second, in order.
//! Invariant: inode numbers are taken from ranges that were reserved durably. So if a power loss costs a file, no other
//! file gets its number, under which stores may have strips.
//! Non-goals: access control of the database: its directory belongs to its owner alone.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use thalweg_base::clock;

use crate::apply::Applying;
use crate::layout::Policy;
use crate::manager::{Change, Entry, Facts, Inode, Kind, Manager, New, Place, ROOT};
use crate::reserve::Reserve;
use crate::{Error, Result, rows};

const DATABASE: &str = "manager.db";
const FORMAT: i64 = 3;
/// How many inode numbers are reserved at a time.
const RESERVED: i64 = 4096;
/// The longest time until a change is durable.
const FLUSH: Duration = Duration::from_secs(1);

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
CREATE INDEX names_of ON names (inode);
CREATE TABLE attributes (inode INTEGER, name BLOB, value BLOB, PRIMARY KEY (inode, name)) WITHOUT ROWID;
";
/// Tables that older volumes lack.
const ADDED: &str = "CREATE TABLE IF NOT EXISTS lockers (client BLOB PRIMARY KEY) WITHOUT ROWID;";

/// A manager in this process.
pub struct SqliteManager {
    shared: Arc<Shared>,
    flusher: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    path: PathBuf,
}

struct State {
    connection: Connection,
    /// The next inode number, and the first that is not reserved.
    next: i64,
    reserved: i64,
    slots: u32,
    reserve: Reserve,
    /// Some changes are not durable.
    dirty: bool,
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
        if format != FORMAT {
            return Err(Error::Refused(format!(
                "{} has format {format}; this thalweg reads format {FORMAT}",
                path.display()
            )));
        }
        connection.execute_batch(ADDED).map_err(failed)?;
        let slots =
            connection.query_row("SELECT count(*) FROM slots", [], |row| row.get(0)).map_err(failed)?;
        let reserve = Reserve::new(dir);
        let state =
            State { connection, next: reserved, reserved, slots, reserve, dirty: false, closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), path });
        let flusher = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("manager".into()).spawn(move || shared.flush_now_and_again())
        };
        // Without the thread, changes are durable only after a sync.
        Ok(SqliteManager { shared, flusher: flusher.ok() })
    }

    fn ask<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        ask(&self.shared.lock().connection).map_err(|e| self.shared.failed(e))
    }
}

impl Drop for SqliteManager {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(flusher) = self.flusher.take() {
            flusher.join().expect("the flusher does not panic");
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
            [Change::Create(..)] => state.number().map_err(database)?,
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
        state.dirty = true;
        if changes.iter().any(Change::is_durable) {
            state.sync().map_err(database)?;
        }
        Ok(changed)
    }

    fn flush_now_and_again(&self) {
        let mut state = self.lock();
        while !state.closing {
            let waited = self.changed.wait_timeout_while(state, FLUSH, |state| !state.closing);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // If this fails, so does the next request.
            let _ = state.sync();
            state.reserve.refill();
        }
    }
}

impl State {
    /// The commit of a durable transaction makes all earlier ones durable.
    fn sync(&mut self) -> rusqlite::Result<()> {
        if self.dirty {
            let sync = "UPDATE facts SET format = format";
            self.durably(sync).or_else(|e| match e.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => {
                    self.make_room();
                    self.durably(sync)
                }
                _ => Err(e),
            })?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Lets the log be overwritten from its beginning, with the room that was reserved for that.
    fn make_room(&mut self) {
        self.reserve.release();
        // If this fails, so does the change that needs the room.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
    }

    fn durably(&mut self, statement: &str) -> rusqlite::Result<()> {
        self.connection.execute_batch("PRAGMA synchronous = FULL")?;
        let done = self.connection.execute_batch(statement);
        self.connection.execute_batch("PRAGMA synchronous = NORMAL")?;
        done
    }

    /// A number that no inode ever had.
    fn number(&mut self) -> rusqlite::Result<u64> {
        if self.next == self.reserved {
            let reserved = self.reserved + RESERVED;
            self.durably(&format!("UPDATE facts SET reserved = {reserved}"))?;
            self.reserved = reserved;
        }
        self.next += 1;
        Ok(self.next as u64 - 1)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    // No other process opens it, so it needs no shared memory.
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
    )?;
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
        self.shared.lock().sync().map_err(|e| self.shared.failed(e))
    }

    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.ask(|connection| rows::unfinished(connection, after, most))
    }

    fn lockers(&self) -> Result<Vec<[u64; 2]>> {
        self.ask(|connection| {
            let mut statement = connection.prepare_cached("SELECT client FROM lockers")?;
            let clients = statement.query_map([], |row| row.get::<_, [u8; 16]>(0))?;
            clients.map(|client| client.map(|bytes| numbers(u128::from_be_bytes(bytes)))).collect()
        })
    }

    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()> {
        let mut state = self.shared.lock();
        let statement = match may_have {
            true => "INSERT OR IGNORE INTO lockers VALUES (?)",
            false => "DELETE FROM lockers WHERE client = ?",
        };
        let bytes = (u128::from(client[0]) << 64 | u128::from(client[1])).to_be_bytes();
        let set = state.connection.execute(statement, params![bytes]).and_then(|changed| {
            state.dirty |= changed > 0;
            if may_have { state.sync() } else { Ok(()) }
        });
        set.map_err(|e| self.shared.failed(e))
    }
}

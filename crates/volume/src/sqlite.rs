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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use thalweg_base::clock;
use thalweg_io::{Access, File};

use crate::apply::Applying;
use crate::attributes::{self, ACLS};
use crate::incarnation::{Holder, Incarnation};
use crate::keeper::Ledger;
use crate::layout::Policy;
use crate::manager::{Change, Entry, Facts, Inode, Kind, Manager, New, Place, ROOT};
use crate::reserve::Reserve;
use crate::{Error, Result, rows};

const DATABASE: &str = "manager.db";
const LOG: &str = "manager.db-wal";
const FORMAT: i64 = 4;
/// How many inode numbers are reserved at a time: a change that needs more waits until these are durable.
const RESERVED: i64 = 1 << 16;
/// The most incarnations that are remembered.
const INCARNATIONS_MAX: i64 = 1000;
/// The number of the last one that was accepted.
const LAST_ACCEPTED: &str = "SELECT max(number) FROM incarnations WHERE voters IS NOT NULL";
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
CREATE TABLE IF NOT EXISTS incarnations (
    number INTEGER PRIMARY KEY, bits BLOB NOT NULL, place TEXT NOT NULL, voters TEXT);
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
    /// The number of inodes when the database was opened, once somebody has asked for it.
    counted: Mutex<Option<i64>>,
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
    /// How many more inodes there are than when the database was opened.
    more_inodes: i64,
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
            connection.execute_batch(ACLS)?;
            let facts = "INSERT INTO facts VALUES (?, ?, ?)";
            connection.execute(facts, params![FORMAT, volume.to_be_bytes(), ROOT as i64 + 1])?;
            for (slot, directory) in (0_i64..).zip(slots) {
                let row = params![slot, directory.as_os_str().as_bytes()];
                connection.execute("INSERT INTO slots VALUES (?, ?)", row)?;
            }
            let (user, group) = owner;
            let new = New { kind: Kind::Directory, mode: 0o755, umask: 0, user, group, target: Vec::new() };
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
        attributes::convert(&connection).map_err(failed)?;
        let slots =
            connection.query_row("SELECT count(*) FROM slots", [], |row| row.get(0)).map_err(failed)?;
        let log = File::open(&crate::place::io(), &dir.join(LOG), Access::Update)?;
        let changes = u64::from(log.metadata()?.len > 0);
        if changes > 0 {
            thalweg_io::small::sync_directory(dir)?;
        }
        let reserve = Reserve::new(dir);
        let state = State {
            connection,
            next: reserved,
            reserved,
            slots,
            reserve,
            changes,
            more_inodes: 0,
            closing: false,
        };
        let (state, closes, durable) = (Mutex::new(state), Condvar::new(), Mutex::default());
        let counted = Mutex::default();
        let own = connect(&path).map_err(failed)?;
        let shared = Arc::new(Shared { state, closes, path, log, durable, counted });
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

    /// The incarnations of this manager.
    pub(crate) fn ledger(&self) -> OpenLedger {
        OpenLedger(Arc::downgrade(&self.shared))
    }

    fn ask<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        self.shared.ask(ask)
    }
}

/// The incarnations of a manager, while that is open.
pub(crate) struct OpenLedger(Weak<Shared>);

impl OpenLedger {
    /// A column of the last incarnation that was accepted.
    fn last_accepted(&self, column: &str) -> Result<Option<String>> {
        let text = format!("SELECT {column} FROM incarnations WHERE number = ({LAST_ACCEPTED})");
        self.shared()?.ask(|connection| connection.query_row(&text, [], |row| row.get(0)).optional())
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        self.0.upgrade().ok_or_else(|| Error::Refused("the volume's manager is closed".into()))
    }

    /// Notes that the manager was moved, in order, to another place.
    pub(crate) fn moves(&self, place: &str) -> Result<()> {
        let shared = self.shared()?;
        let text = format!("UPDATE incarnations SET place = ? WHERE number = ({LAST_ACCEPTED})");
        shared.ask(|connection| connection.execute(&text, [place]))?;
        Ok(shared.log.sync()?)
    }
}

impl Ledger for OpenLedger {
    fn list(&self) -> Result<Vec<Holder>> {
        self.shared()?.ask(|connection| {
            let text = "SELECT number, bits, place FROM incarnations ORDER BY number";
            let mut statement = connection.prepare_cached(text)?;
            let holder = |row: &rusqlite::Row<'_>| {
                let bits = numbers(u128::from_be_bytes(row.get(1)?));
                let incarnation = Incarnation { number: row.get::<_, i64>(0)? as u64, bits };
                Ok(Holder { incarnation, place: row.get(2)? })
            };
            statement.query_map([], holder)?.collect()
        })
    }

    fn place(&self) -> Result<Option<String>> {
        self.last_accepted("place")
    }

    fn voters(&self) -> Result<Vec<usize>> {
        let text = self.last_accepted("voters")?.unwrap_or_default();
        Ok(text.split_whitespace().filter_map(|slot| slot.parse().ok()).collect())
    }

    fn begin(&self, next: &Holder) -> Result<()> {
        let shared = self.shared()?;
        let mut state = shared.lock();
        match shared.begin(&mut state, next) {
            Err(why) if why.errno() == libc::ENOSPC => {
                state.make_room();
                shared.begin(&mut state, next)
            }
            begun => begun,
        }
    }

    fn accepted(&self, incarnation: Incarnation, voters: &[usize]) -> Result<()> {
        let voters = voters.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let row = params![voters, incarnation.number as i64];
        let text = "UPDATE incarnations SET voters = ? WHERE number = ?";
        self.shared()?.ask(|connection| connection.execute(text, row)).map(drop)
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

    fn ask<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        ask(&self.lock().connection).map_err(|e| self.failed(e))
    }

    fn begin(&self, state: &mut State, next: &Holder) -> Result<()> {
        let Holder { incarnation: Incarnation { number, bits: [high, low] }, place } = next;
        let bits = (u128::from(*high) << 64 | u128::from(*low)).to_be_bytes();
        let first = state.reserved.max(next.incarnation.first_inode() as i64);
        let begin = || {
            let transaction = state.connection.unchecked_transaction()?;
            let row = params![*number as i64, bits, place];
            transaction.execute("INSERT INTO incarnations VALUES (?, ?, ?, NULL)", row)?;
            let last = "SELECT number FROM incarnations ORDER BY number DESC LIMIT ?";
            let text = format!("DELETE FROM incarnations WHERE number NOT IN ({last})");
            transaction.execute(&text, [INCARNATIONS_MAX])?;
            transaction.execute("UPDATE facts SET reserved = ?", [first])?;
            transaction.commit()
        };
        begin().map_err(|e| self.failed(e))?;
        self.log.sync()?;
        (state.next, state.reserved) = (first, first);
        state.changes += 1;
        Ok(())
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
        state.more_inodes += changes.iter().map(Change::more_inodes).sum::<i64>();
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
        self.ask(|connection| match &place.name[..] {
            b"." => rows::by_id(connection, place.directory),
            b".." => rows::above(connection, place.directory),
            _ => rows::lookup(connection, place),
        })
    }

    fn inode(&self, inode: u64) -> Result<Inode> {
        self.ask(|connection| rows::by_id(connection, inode))?
            .ok_or_else(|| Error::system(libc::ENOENT, format!("inode {inode}")))
    }

    fn count(&self) -> Result<u64> {
        let more = |state: &State| state.more_inodes;
        let mut counted = self.shared.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match *counted {
            Some(before) => before,
            None => {
                // With a connection of its own, so that it holds up no change.
                let count = || {
                    let own = connect(&self.shared.path)?;
                    let snapshot = own.unchecked_transaction()?;
                    let state = self.shared.lock();
                    snapshot.query_row("SELECT format FROM facts", [], |_| Ok(()))?;
                    let more = more(&state);
                    drop(state);
                    Ok(snapshot.query_row("SELECT count(*) FROM inodes", [], |row| row.get::<_, i64>(0))?
                        - more)
                };
                *counted.insert(count().map_err(|e| self.shared.failed(e))?)
            }
        };
        Ok((before + more(&self.shared.lock())) as u64)
    }

    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.ask(|connection| rows::names(connection, directory, after, most))
    }

    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.ask(|connection| attributes::all(connection, inode))
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

    /// Earlier versions kept lists as attributes without effect: of what may have one, of what may not, and what is none.
    #[test]
    fn lists_of_earlier_versions_take_effect_or_are_dropped_and_are_counted() {
        let dir = std::env::temp_dir().join(format!("thalweg-lists-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        SqliteManager::create(&dir, 7, &["/a".into()], &Policy::default(), (3, 4)).unwrap();
        let manager = SqliteManager::open(&dir).unwrap();
        let make = |name: &str, kind| {
            let new = New { kind, mode: 0o600, umask: 0, user: 1, group: 2, target: vec![] };
            let place = Place { directory: ROOT, name: name.into() };
            manager.change(&Change::Create(place, new)).unwrap().id
        };
        let [file, plain, broken] = ["file", "plain", "broken"].map(|name| make(name, Kind::File));
        let (directory, link) = (make("directory", Kind::Directory), make("link", Kind::Link));
        drop(manager);

        // The owner, the group and others; in the first list also a user, and a mask.
        let [named, minimal] = [
            "02000000 01000600ffffffff 0200040088130000 04000400ffffffff 10000600ffffffff 20000400ffffffff",
            "02000000 01000700ffffffff 04000500ffffffff 20000500ffffffff",
        ]
        .map(|hex| hex.replace(' ', ""));
        let connection = connect(&dir.join(DATABASE)).unwrap();
        connection.execute_batch("DROP TABLE acls; DROP TABLE acls_converted;").unwrap();
        for (inode, kind, hex) in [
            (file, "access", &named[..]),
            (plain, "access", &minimal),
            (broken, "access", "02"),
            (file, "default", &named),
            (directory, "default", &named),
            (link, "access", &named),
        ] {
            let set = format!(
                "INSERT INTO attributes VALUES ({inode}, CAST('system.posix_acl_{kind}' AS BLOB), X'{hex}')"
            );
            connection.execute_batch(&set).unwrap();
        }
        drop(connection);
        let manager = SqliteManager::open(&dir).unwrap();
        let modes = [file, plain, broken, directory].map(|inode| manager.inode(inode).unwrap().mode);
        assert_eq!(modes, [0o664, 0o755, 0o600, 0o600]);
        let count = |inode| manager.attributes(inode).unwrap().len();
        assert_eq!([file, plain, broken, directory, link].map(count), [1, 0, 0, 1, 0]);
        let converted = manager.ask(|connection| {
            let text = "SELECT applied, dropped FROM acls_converted";
            connection.query_row(text, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        });
        assert_eq!(converted.unwrap(), (3, 3));
        drop(manager);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_database_of_format_3_is_converted_and_knows_what_lies_in_what() {
        let dir = std::env::temp_dir().join(format!("thalweg-format-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        SqliteManager::create(&dir, 7, &["/a".into()], &Policy::default(), (3, 4)).unwrap();
        let at = |directory, name: &str| Place { directory, name: name.into() };
        let make = |manager: &SqliteManager, place| {
            let new = New { kind: Kind::Directory, mode: 0o700, umask: 0, user: 1, group: 2, target: vec![] };
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

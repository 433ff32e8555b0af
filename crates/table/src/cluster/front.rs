//! The tables of a cluster as Redis clients see them: by their names, opened when they are first used.
//!
//! Model: a table that a Redis client makes has a kind in the list of the registrar, which its first write fixes. A
//! table that `thalweg table create` made is a hash, and no Redis client removes it.
//! Invariant: a table that was dropped or loaded since it was opened is opened again: its old id is refused then. While
//! one is being dropped, it is there, but only those use it who have it open.
//! Non-goals: the commands.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_api::{TableEntry, TableKind, TableList};

use super::error::{Error, Result};
use super::nodes::{Beside, CAPACITY, CAPACITY_BYTES, Tables};
use super::registrar::find_or_none;
use super::table::{ClusterOptions, Table};
use crate::error::Refusal;

/// The table with the keys that have strings.
const STRINGS: &str = "redis-strings";
/// The most tables that are open at a time.
const OPEN_MAX: usize = 1024;

/// An open table.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) table: Table,
    entry: Arc<TableEntry>,
}

/// Whether a table is a sorted set; others are hashes.
fn is_sorted(entry: &TableEntry) -> bool {
    matches!(entry.kind, Some(TableKind::Sorted { .. }))
}

impl Opened {
    fn is_sorted(&self) -> bool {
        is_sorted(&self.entry)
    }

    /// The score of all members, if this is a sorted set.
    pub(crate) fn score(&self) -> Option<f64> {
        match &self.entry.kind {
            Some(TableKind::Sorted { score }) => score.parse().ok(),
            _ => None,
        }
    }
}

/// Says how much memory a node's tables use, and the most that they may use.
pub(crate) type Memory = Box<dyn Fn() -> (usize, usize) + Send + Sync>;

/// The tables of a cluster for Redis clients.
pub(crate) struct Front {
    memory: Memory,
    /// The directory of the node's identity.
    directory: PathBuf,
    state: Mutex<State>,
}

struct State {
    tables: Tables,
    open: HashMap<Vec<u8>, Opened>,
}

impl Front {
    /// The tables of the cluster of the identity in this directory.
    pub(crate) fn load(directory: &Path, memory: Memory) -> std::result::Result<Front, String> {
        let tables = Tables::load(directory, None).map_err(|why| why.to_string())?;
        Ok(Front {
            memory,
            directory: directory.into(),
            state: Mutex::new(State { tables, open: HashMap::new() }),
        })
    }

    /// The memory of the node that its tables use, and the most that they may use.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.memory)()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> Tables {
        self.state().tables.clone()
    }

    /// The table of this name in the list, if there is one. It is an error if one is being dropped.
    fn entry(&self, name: &[u8]) -> Result<Option<TableEntry>> {
        let list = self.tables().list()?;
        std::str::from_utf8(name).map_or(Ok(None), |name| find_or_none(&list, name))
    }

    /// All tables, as the registrar lists them now. Those that are being dropped are there until that is done.
    fn all(&self) -> Result<Vec<TableEntry>> {
        let TableList { mut tables, mut dropping } = self.tables().list()?;
        // One that was loaded is listed beside the empty one from before.
        dropping.retain(|entry| tables.iter().all(|table| table.name != entry.name));
        tables.append(&mut dropping);
        Ok(tables)
    }

    /// The tables but that of the strings.
    fn entries(&self) -> Result<impl Iterator<Item = TableEntry>> {
        Ok(self.all()?.into_iter().filter(|entry| entry.name != STRINGS))
    }

    fn opened(&self, entry: TableEntry) -> Result<Opened> {
        let name = entry.name.clone().into_bytes();
        let opened = Opened {
            table: Table::of(&self.tables(), &entry, ClusterOptions::default())?,
            entry: Arc::new(entry),
        };
        let mut state = self.state();
        if state.open.len() >= OPEN_MAX {
            state.open.clear();
        }
        state.open.insert(name, opened.clone());
        Ok(opened)
    }

    /// Forgets the open tables, so that they are opened again: one may have been dropped or loaded. The cluster file
    /// may be another, too.
    pub(crate) fn forget(&self) {
        let tables = Tables::load(&self.directory, None);
        let mut state = self.state();
        state.open.clear();
        if let Ok(tables) = tables {
            state.tables = tables;
        }
    }

    /// The table of this name, if there is one, but not that of the strings.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Option<Opened>> {
        if name == STRINGS.as_bytes() { Ok(None) } else { self.find_any(name) }
    }

    /// Those of these keys that are names of tables. The registrar is asked once, as one that is open may be dropped.
    pub(crate) fn tables_of<'a>(&self, mut keys: Vec<&'a [u8]>) -> Result<Vec<&'a [u8]>> {
        if !keys.is_empty() {
            let names: HashSet<Vec<u8>> = self.names()?.into_iter().map(String::into_bytes).collect();
            keys.retain(|key| names.contains(*key));
        }
        Ok(keys)
    }

    /// The table with the strings, if there is one.
    pub(crate) fn strings(&self) -> Result<Option<Table>> {
        Ok(self.find_any(STRINGS.as_bytes())?.map(|opened| opened.table))
    }

    fn find_any(&self, name: &[u8]) -> Result<Option<Opened>> {
        let known = self.state().open.get(name).cloned();
        match known {
            Some(known) => Ok(Some(known)),
            None => self.entry(name)?.map(|entry| self.opened(entry)).transpose(),
        }
    }

    /// The table of this name, which is made if there is none.
    fn find_or_make(&self, name: &[u8], kind: TableKind) -> Result<Opened> {
        if let Some(known) = self.find_any(name)? {
            return Ok(known);
        }
        let text = String::from_utf8(name.to_vec());
        let text =
            text.map_err(|_| Error::Refused("the name of a table on a cluster is plain text".into()))?;
        match self.tables().create_as(&text, (CAPACITY, CAPACITY_BYTES), Beside::default(), Some(kind)) {
            Ok(entry) => self.opened(entry),
            // Another client may have made it meanwhile.
            Err(why) => self.find_any(name)?.ok_or(why),
        }
    }

    /// The table with the strings, which is made if there is none.
    pub(crate) fn strings_to_write(&self) -> Result<Table> {
        self.find_or_make(STRINGS.as_bytes(), TableKind::Hash).map(|opened| opened.table)
    }

    /// The hash or sorted set of this name, which is made if there is none.
    fn named(&self, name: &[u8], kind: TableKind) -> Result<Opened> {
        match name == STRINGS.as_bytes() {
            true => Err(Error::Refused(format!(
                "'{STRINGS}' is the table that has the keys with strings; choose another name"
            ))),
            false => self.find_or_make(name, kind),
        }
    }

    /// What `find` finds, if that fits. What does not fit is looked for again: it may have been dropped through another
    /// node, and another table made in its place.
    fn fitting<T>(&self, name: &[u8], find: impl Fn() -> Result<T>, fits: impl Fn(&T) -> bool) -> Result<T> {
        let found = find()?;
        if fits(&found) {
            return Ok(found);
        }
        self.state().open.remove(name);
        find()
    }

    /// The hash or sorted set of this name, if there is one.
    fn of_kind(&self, name: &[u8], is_sorted: bool) -> std::result::Result<Option<Opened>, Refusal> {
        let fits = |found: &Option<Opened>| found.as_ref().is_none_or(|table| table.is_sorted() == is_sorted);
        let found = self.fitting(name, || self.find(name), fits)?;
        if fits(&found) { Ok(found) } else { Err(Refusal::WrongType) }
    }

    /// The hash of this name, if there is one.
    pub(crate) fn hash(&self, name: &[u8]) -> std::result::Result<Option<Opened>, Refusal> {
        self.of_kind(name, false)
    }

    /// The hash of this name, which is made if there is none.
    pub(crate) fn hash_to_write(&self, name: &[u8]) -> std::result::Result<Opened, Refusal> {
        let fits = |table: &Opened| !table.is_sorted();
        let hash = self.fitting(name, || self.named(name, TableKind::Hash), fits)?;
        if fits(&hash) { Ok(hash) } else { Err(Refusal::WrongType) }
    }

    /// The sorted set of this name, if there is one.
    pub(crate) fn sorted(&self, name: &[u8]) -> std::result::Result<Option<Opened>, Refusal> {
        self.of_kind(name, true)
    }

    /// The sorted set of this name, which is made with this score if there is none.
    pub(crate) fn sorted_to_write(&self, name: &[u8], score: f64) -> std::result::Result<Opened, Refusal> {
        let kind = TableKind::Sorted { score: score.to_string() };
        let fits = |table: &Opened| table.score() == Some(score);
        let set = self.fitting(name, || self.named(name, kind.clone()), fits)?;
        if set.is_sorted() { Ok(set) } else { Err(Refusal::WrongType) }
    }

    /// The names of all tables but that of the strings.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        Ok(self.entries()?.map(|entry| entry.name).collect())
    }

    /// The names of all tables but that of the strings, and their types.
    pub(crate) fn types(&self) -> Result<Vec<(String, &'static str)>> {
        let type_of = |entry: &TableEntry| if is_sorted(entry) { "zset" } else { "hash" };
        Ok(self.entries()?.map(|entry| (entry.name.clone(), type_of(&entry))).collect())
    }

    /// Removes a table that a Redis client has made, but not that of the strings. Returns whether it did.
    pub(crate) fn remove(&self, name: &[u8]) -> Result<bool> {
        if name == STRINGS.as_bytes() { Ok(false) } else { self.remove_any(name) }
    }

    /// Removes all strings.
    pub(crate) fn remove_strings(&self) -> Result<()> {
        self.remove_any(STRINGS.as_bytes()).map(drop)
    }

    fn remove_any(&self, name: &[u8]) -> Result<bool> {
        let is_it = |entry: &TableEntry| entry.name.as_bytes() == name && entry.kind.is_some();
        let Some(entry) = self.all()?.into_iter().find(is_it) else { return Ok(false) };
        self.state().open.remove(name);
        self.tables().drop_table(&entry.name).map(|_| true)
    }
}

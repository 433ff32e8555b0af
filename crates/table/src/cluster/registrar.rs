//! The list of a cluster's tables: a file of one node, the registrar.
//!
//! Model: the registrar is the first node of the cluster file with the role `registrar`, or else the first node. Its
//! file `tables.json`, in the directory of its identity, is replaced as a whole. The registrar does not know where the
//! buckets of a table are, except which node had the first.
//! Invariant: a table is listed before it has a bucket, and until all servers refuse its id; see drops.rs. So no bucket
//! belongs to an unknown table, and no two tables have one name.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use thalweg_api::{ClusterHost, TableEntry, TableList, from_json, to_json};
use thalweg_base::names;
use thalweg_io::small;

use super::error::{Error, Result};
use super::message::TableId;

const FILE: &str = "tables.json";
/// The role of the node that has the list of tables.
pub(crate) const ROLE: &str = "registrar";
/// The role of nodes that have buckets. If no node has it, all have.
const SERVER_ROLE: &str = "tables";
const NAME_BYTES_MAX: usize = 64;
/// The most tables of a cluster.
const TABLES_MAX: usize = 4096;

/// The registrar among the nodes of a cluster.
pub(crate) fn registrar(hosts: &[ClusterHost]) -> Option<&ClusterHost> {
    hosts.iter().find(|host| host.roles.iter().any(|role| role == ROLE)).or(hosts.first())
}

/// The names of the nodes that have buckets.
pub(crate) fn servers(hosts: &[ClusterHost]) -> Vec<&str> {
    let has_role = |host: &&ClusterHost| host.roles.iter().any(|role| role == SERVER_ROLE);
    let is_chosen = hosts.iter().any(|host| has_role(&host));
    hosts.iter().filter(|host| !is_chosen || has_role(host)).map(|host| &*host.name).collect()
}

/// The tables of a cluster, on its registrar.
pub(crate) struct Registrar {
    /// `None` in a process without an identity; its tables end with the process.
    file: Option<PathBuf>,
    list: Mutex<Option<TableList>>,
}

impl Registrar {
    /// A registrar whose file is in this directory.
    pub(crate) fn in_directory(directory: Option<&std::path::Path>) -> Registrar {
        Registrar { file: directory.map(|directory| directory.join(FILE)), list: Mutex::default() }
    }

    fn read(&self) -> Result<TableList> {
        let Some(file) = &self.file else { return Ok(TableList::default()) };
        match small::read(file) {
            Ok(text) => from_json(&String::from_utf8_lossy(&text))
                .map_err(|why| Error::Refused(format!("{}: {why}; it lists the tables", file.display()))),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(TableList::default()),
            Err(e) => Err(Error::refused(e)),
        }
    }

    /// The list of tables.
    pub(crate) fn list(&self) -> Result<TableList> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        match &*list {
            Some(list) => Ok(list.clone()),
            None => Ok(list.insert(self.read()?).clone()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut TableList) -> Result<()>) -> Result<()> {
        let mut known = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = match known.take() {
            Some(list) => list,
            None => self.read()?,
        };
        change(&mut list)?;
        if let Some(file) = &self.file {
            small::write(file, (to_json(&list) + "\n").as_bytes()).map_err(Error::refused)?;
        }
        *known = Some(list);
        Ok(())
    }

    /// Checks that a table can be added.
    pub(crate) fn check(&self, entry: &TableEntry) -> Result<()> {
        check_name(&entry.name)?;
        has_room(&self.list()?, &entry.name)
    }

    /// Adds a table, whose name must be free.
    pub(crate) fn add(&self, entry: &TableEntry) -> Result<()> {
        check_name(&entry.name)?;
        self.change(|list| {
            has_room(list, &entry.name)?;
            list.tables.push(entry.clone());
            list.tables.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })
    }

    /// Lists this table in place of the one with this id, which has the same name, and is being dropped from now on.
    pub(crate) fn replace(&self, entry: &TableEntry, id: &str) -> Result<()> {
        self.change(|list| match list.tables.iter_mut().find(|table| table.id == id) {
            Some(table) => {
                list.dropping.push(std::mem::replace(table, entry.clone()));
                Ok(())
            }
            None => Err(Error::Refused(format!("'{}' was dropped or loaded meanwhile", entry.name))),
        })
    }

    /// Begins to drop a table, unless that has begun. Its name stays taken.
    pub(crate) fn begin_drop(&self, name: &str) -> Result<TableEntry> {
        let list = self.list()?;
        if let Some(entry) = list.dropping.iter().find(|entry| entry.name == name)
            && list.tables.iter().all(|table| table.name != name)
        {
            return Ok(entry.clone());
        }
        let entry = find(&list, name)?;
        self.change(|list| {
            list.dropping.extend(list.tables.extract_if(.., |table| table.id == entry.id));
            Ok(())
        })?;
        Ok(entry)
    }

    /// Forgets a table that has been dropped.
    pub(crate) fn forget(&self, id: TableId) -> Result<()> {
        self.change(|list| {
            list.dropping.retain(|table| number(&table.id) != Ok(id));
            Ok(())
        })
    }
}

/// Checks that a table of this name can be added.
fn has_room(list: &TableList, name: &str) -> Result<()> {
    if list.tables.iter().any(|table| table.name == name) {
        return Err(Error::Refused(format!("there is a table '{name}' already")));
    }
    if list.dropping.iter().any(|table| table.name == name) {
        return Err(Error::dropping(name));
    }
    if list.tables.len() + list.dropping.len() >= TABLES_MAX {
        return Err(Error::Refused(format!("a cluster has at most {TABLES_MAX} tables; drop one")));
    }
    Ok(())
}

/// The table of this name.
pub(crate) fn find(list: &TableList, name: &str) -> Result<TableEntry> {
    let none =
        || Error::Refused(format!("there is no table '{name}'; thalweg table list shows those there are"));
    find_or_none(list, name)?.ok_or_else(none)
}

/// The table of this name, if there is one. It is an error if one is being dropped.
pub(crate) fn find_or_none(list: &TableList, name: &str) -> Result<Option<TableEntry>> {
    let is_it = |table: &&TableEntry| table.name == name;
    match list.tables.iter().find(is_it) {
        Some(found) => Ok(Some(found.clone())),
        None if list.dropping.iter().any(|table| is_it(&table)) => Err(Error::dropping(name)),
        None => Ok(None),
    }
}

/// The id of a table as a number.
pub(crate) fn number(id: &str) -> Result<TableId> {
    u64::from_str_radix(id, 16).map_err(|_| Error::Refused(format!("'{id}' is no id of a table")))
}

/// Checks the name of a table, which becomes part of `table:NAME@LOW..HIGH`.
fn check_name(name: &str) -> Result<()> {
    if names::is_plain(name, NAME_BYTES_MAX) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "'{name}' is no name for a table; write at most {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, a letter or digit first"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> TableEntry {
        let (id, home) = (format!("{name:0>16}"), "n1".into());
        TableEntry {
            name: name.into(),
            id,
            capacity: 10,
            capacity_bytes: 1000,
            home,
            index: false,
            parity: None,
            form: None,
            kind: None,
        }
    }

    #[test]
    fn tables_are_there_after_a_restart_until_they_are_dropped() {
        let place = std::env::temp_dir().join(format!("thalweg-registrar-{}", std::process::id()));
        small::make_directory(&place).unwrap();
        let registrar = Registrar::in_directory(Some(&place));
        ["b", "a"].iter().for_each(|name| registrar.add(&entry(name)).unwrap());
        assert!(registrar.add(&entry("a")).is_err());
        assert!(registrar.add(&entry("a/b")).is_err());
        let again = Registrar::in_directory(Some(&place));
        assert_eq!(again.list().unwrap().tables, [entry("a"), entry("b")]);
        assert_eq!(again.begin_drop("a"), Ok(entry("a")));
        let again = Registrar::in_directory(Some(&place));
        let list = again.list().unwrap();
        assert_eq!((list.tables, list.dropping), (vec![entry("b")], vec![entry("a")]));
        assert!(again.add(&entry("a")).unwrap_err().to_string().contains("is being dropped"));
        assert_eq!(again.begin_drop("a"), Ok(entry("a")));
        again.forget(number(&entry("a").id).unwrap()).unwrap();
        assert!(again.begin_drop("a").is_err());
        let list = Registrar::in_directory(Some(&place)).list().unwrap();
        assert_eq!((list.tables, list.dropping), (vec![entry("b")], vec![]));
        small::remove(&place.join(FILE)).unwrap();
        small::remove_directory(&place).unwrap();
    }

    #[test]
    fn the_registrar_is_the_first_node_unless_another_has_the_role() {
        let host = |name: &str, role: &str| {
            from_json::<ClusterHost>(&format!(
                r#"{{"name":"{name}","address":"x:1","id":"1","roles":["{role}"],"data":[]}}"#
            ))
            .unwrap()
        };
        let mut hosts = vec![host("n1", "sorter"), host("n2", "sorter")];
        assert_eq!(registrar(&hosts).unwrap().name, "n1");
        hosts.push(host("n3", ROLE));
        assert_eq!(registrar(&hosts).unwrap().name, "n3");
        assert_eq!(servers(&hosts), ["n1", "n2", "n3"]);
        hosts.push(host("n4", SERVER_ROLE));
        assert_eq!(servers(&hosts), ["n4"]);
    }
}

//! Extended attributes, and the access control lists among them: changes within a transaction.
//!
//! Invariant: a list and the permission bits of its file agree. Lists are in a table of their own, because earlier
//! versions kept what programs set under these names as bytes without effect.
//! Non-goals: who may set an attribute, which the kernel checks.

use rusqlite::{Connection, OptionalExtension, params};

use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::apply::{Applying, Failed, Result};
use crate::manager::{Inode, Kind};
use crate::rows;

/// The beginnings of the names that an attribute may have, besides those of the lists.
const KINDS: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The most bytes of the names of an inode's attributes, each with a NUL: more cannot be listed (listxattr(2)).
const NAMES_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a value.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// The most bytes of all values of an inode, which one answer of the manager contains.
const VALUES_BYTES_MAX: usize = 8 << 20;

/// The attribute with a program's capabilities. The kernel asks for it before each write, which takes it away.
pub const CAPABILITY: &[u8] = b"security.capability";

/// The table of lists, which older volumes lack, and how many the conversion found.
pub(crate) const ACLS: &str = "
CREATE TABLE acls (inode INTEGER, name BLOB, value BLOB, PRIMARY KEY (inode, name)) WITHOUT ROWID;
CREATE TABLE acls_converted (applied INTEGER, dropped INTEGER);
";

/// Whether an attribute may have this name.
pub fn is_attribute_name(name: &[u8]) -> bool {
    is_list(name) || KINDS.iter().any(|kind| name.len() > kind.len() && name.starts_with(kind))
}

fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The attributes of an inode, by name.
pub(crate) fn all(connection: &Connection, inode: u64) -> rusqlite::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let text = "SELECT name, value FROM attributes WHERE inode = ?1 \
                UNION ALL SELECT name, value FROM acls WHERE inode = ?1 ORDER BY name";
    let mut statement = connection.prepare_cached(text)?;
    statement.query_map([inode as i64], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Removes all attributes of an inode.
pub(crate) fn forget(connection: &Connection, inode: u64) -> rusqlite::Result<()> {
    for text in ["DELETE FROM attributes WHERE inode = ?", "DELETE FROM acls WHERE inode = ?"] {
        connection.prepare_cached(text)?.execute([inode as i64])?;
    }
    Ok(())
}

fn refuse<T>(errno: i32, name: &[u8]) -> Result<T> {
    Err(Failed::System(errno, String::from_utf8_lossy(name).into_owned()))
}

fn list(connection: &Connection, inode: u64, name: &[u8]) -> rusqlite::Result<Option<Acl>> {
    let text = "SELECT value FROM acls WHERE inode = ? AND name = ?";
    let row = connection.prepare_cached(text)?.query_row(params![inode as i64, name], |row| row.get(0));
    Ok(row.optional()?.and_then(|value: Vec<u8>| Acl::read(&value)))
}

fn set_list(connection: &Connection, inode: u64, name: &[u8], acl: Option<&Acl>) -> rusqlite::Result<()> {
    match acl {
        Some(acl) => {
            let text = "INSERT OR REPLACE INTO acls VALUES (?, ?, ?)";
            connection.prepare_cached(text)?.execute(params![inode as i64, name, acl.value()])?;
        }
        None => {
            let text = "DELETE FROM acls WHERE inode = ? AND name = ?";
            connection.prepare_cached(text)?.execute(params![inode as i64, name])?;
        }
    }
    Ok(())
}

/// Sets the list of a file, unless the permission bits that it gets say the same.
fn set_access(connection: &Connection, inode: &mut Inode, acl: &Acl) -> rusqlite::Result<()> {
    inode.mode = inode.mode & !0o777 | acl.mode();
    set_list(connection, inode.id, ACCESS, (!acl.is_minimal()).then_some(acl))
}

impl Applying<'_> {
    /// Sets an attribute, or removes it.
    pub(crate) fn set_attribute(&self, inode: u64, name: &[u8], value: Option<&[u8]>) -> Result<Inode> {
        let mut found = self.inode(inode)?;
        match value {
            _ if is_list(name) => self.set_acl(&mut found, name, value)?,
            Some(value) => {
                self.check_attribute(inode, name, value)?;
                let text = "INSERT OR REPLACE INTO attributes VALUES (?, ?, ?)";
                self.connection.prepare_cached(text)?.execute(params![inode as i64, name, value])?;
            }
            None => {
                let text = "DELETE FROM attributes WHERE inode = ? AND name = ?";
                if self.connection.prepare_cached(text)?.execute(params![inode as i64, name])? == 0 {
                    return refuse(libc::ENODATA, name);
                }
            }
        }
        let mode = found.mode;
        self.edit(inode, |inode| inode.mode = mode)
    }

    fn check_attribute(&self, inode: u64, name: &[u8], value: &[u8]) -> Result<()> {
        if !is_attribute_name(name) {
            return refuse(libc::EOPNOTSUPP, name);
        }
        if value.len() > VALUE_BYTES_MAX {
            return refuse(libc::E2BIG, name);
        }
        let text = "SELECT coalesce(sum(length(name) + 1), 0), coalesce(sum(length(value)), 0) \
                    FROM (SELECT name, value FROM attributes WHERE inode = ?1 \
                          UNION ALL SELECT name, value FROM acls WHERE inode = ?1) WHERE name <> ?2";
        let mut statement = self.connection.prepare_cached(text)?;
        let (names, values): (i64, i64) =
            statement.query_row(params![inode as i64, name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        match names as usize + name.len() + 1 > NAMES_BYTES_MAX
            || values as usize + value.len() > VALUES_BYTES_MAX
        {
            true => refuse(libc::ENOSPC, name),
            false => Ok(()),
        }
    }

    fn set_acl(&self, inode: &mut Inode, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let acl = match value.map(Acl::read) {
            Some(None) => return refuse(libc::EINVAL, name),
            acl => acl.flatten(),
        };
        match &acl {
            Some(_) if name == DEFAULT && inode.kind != Kind::Directory => refuse(libc::EACCES, name),
            Some(acl) if name == ACCESS => Ok(set_access(self.connection, inode, acl)?),
            // To remove a list that is not there is no error, as in local file systems.
            acl => Ok(set_list(self.connection, inode.id, name, acl.as_ref())?),
        }
    }

    /// The list of an inode follows its permission bits, which are set.
    pub(crate) fn follow_mode(&self, inode: u64, mode: u32) -> Result<()> {
        if let Some(acl) = list(self.connection, inode, ACCESS)? {
            set_list(self.connection, inode, ACCESS, Some(&acl.with_mode(mode)))?;
        }
        Ok(())
    }

    /// Gives a new inode what the default list of its directory says, or if there is none, takes the bits of the umask.
    pub(crate) fn inherit(&self, directory: u64, made: &mut Inode, umask: u32) -> Result<()> {
        if made.kind == Kind::Link {
            return Ok(());
        }
        let Some(default) = list(self.connection, directory, DEFAULT)? else {
            made.mode &= !umask;
            return Ok(());
        };
        if made.kind == Kind::Directory {
            set_list(self.connection, made.id, DEFAULT, Some(&default))?;
        }
        let own = default.inherited(made.mode);
        Ok(set_access(self.connection, made, &own)?)
    }
}

/// Gives a volume of an earlier version its table of lists. Lists that were set there take effect; what is no list, or
/// is not where it could be, is dropped. Both are counted.
pub(crate) fn convert(connection: &Connection) -> rusqlite::Result<()> {
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'acls')";
    if connection.query_row(is_there, [], |row| row.get(0))? {
        return Ok(());
    }
    let transaction = connection.unchecked_transaction()?;
    connection.execute_batch(ACLS)?;
    let text = "SELECT inode, name, value FROM attributes WHERE name IN (?, ?)";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?, row.get(2)?));
    let set: Vec<(u64, Vec<u8>, Vec<u8>)> =
        connection.prepare(text)?.query_map([ACCESS, DEFAULT], row)?.collect::<rusqlite::Result<_>>()?;
    let (mut applied, mut dropped) = (0, 0);
    for (id, name, value) in set {
        let found = rows::by_id(connection, id)?
            .filter(|inode| inode.kind != Kind::Link && (name == ACCESS || inode.kind == Kind::Directory));
        let (Some(mut inode), Some(acl)) = (found, Acl::read(&value)) else {
            dropped += 1;
            continue;
        };
        let before = inode.clone();
        match name == ACCESS {
            true => set_access(connection, &mut inode, &acl)?,
            false => set_list(connection, id, DEFAULT, Some(&acl))?,
        }
        rows::update(connection, &before, &inode)?;
        applied += 1;
    }
    connection.execute("DELETE FROM attributes WHERE name IN (?, ?)", [ACCESS, DEFAULT])?;
    connection.execute("INSERT INTO acls_converted VALUES (?, ?)", [applied, dropped])?;
    transaction.commit()
}

//! The rows of the manager's database.
//!
//! Invariant: a row is written whole, so a read returns what was put.
//! Non-goals: which rows belong together; see apply.rs.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::layout::{Layout, Policy};
use crate::manager::{Entry, Inode, Kind, New, Place, ROOT};

const COLUMNS: &str = "id, kind, device, mode, user, grp, links, size, accessed, modified, changed, target, layout, policy, generation, \
    cut, strips, stale0, stale1, unsynced, unsettled";

/// A new inode.
pub(crate) fn inode(id: u64, new: &New, now: i64) -> Inode {
    Inode {
        id,
        kind: new.kind,
        mode: new.mode & 0o7777,
        user: new.user,
        group: new.group,
        links: 1,
        size: new.target.len() as u64,
        accessed_ns: now,
        modified_ns: now,
        changed_ns: now,
        target: new.target.clone(),
        layout: None,
        policy: None,
        generation: 0,
        cut: None,
        strips: 0,
        stale: [0; 2],
        unsynced: 0,
        unsettled: false,
    }
}

fn inode_of(row: &Row<'_>) -> rusqlite::Result<Inode> {
    let number = |i: usize| row.get::<_, i64>(i).map(|n| n as u64);
    Ok(Inode {
        id: number(0)?,
        kind: kind_of(row.get(1)?, row.get(2)?),
        mode: row.get(3)?,
        user: row.get(4)?,
        group: row.get(5)?,
        links: number(6)?,
        size: number(7)?,
        accessed_ns: row.get(8)?,
        modified_ns: row.get(9)?,
        changed_ns: row.get(10)?,
        target: row.get(11)?,
        layout: row.get::<_, Option<Vec<u8>>>(12)?.and_then(|bytes| layout_of(&bytes)),
        policy: row.get::<_, Option<Vec<u8>>>(13)?.and_then(|bytes| policy_of(&bytes)),
        generation: number(14)?,
        cut: row.get::<_, Option<i64>>(15)?.map(|n| n as u64),
        strips: number(16)?,
        stale: [number(17)?, number(18)?],
        unsynced: number(19)?,
        unsettled: row.get(20)?,
    })
}

/// Writes an inode that was `before`. While no column of an index changes, only its row is written.
pub(crate) fn update(connection: &Connection, before: &Inode, inode: &Inode) -> rusqlite::Result<()> {
    let indexed = |inode: &Inode| (inode.links, inode.cut, inode.unsettled, inode.stale);
    if indexed(before) != indexed(inode) {
        return put(connection, inode);
    }
    let text = "UPDATE inodes SET mode = ?, user = ?, grp = ?, size = ?, accessed = ?, modified = ?, changed = ?, \
                policy = ?, generation = ?, strips = ?, unsynced = ? WHERE id = ?";
    connection.prepare_cached(text)?.execute(params![
        inode.mode,
        inode.user,
        inode.group,
        inode.size as i64,
        inode.accessed_ns,
        inode.modified_ns,
        inode.changed_ns,
        inode.policy.as_ref().map(policy_bytes),
        inode.generation as i64,
        inode.strips as i64,
        inode.unsynced as i64,
        inode.id as i64,
    ])?;
    Ok(())
}

/// Writes an inode, and replaces its row if there is one.
pub(crate) fn put(connection: &Connection, inode: &Inode) -> rusqlite::Result<()> {
    let (kind, device) = kind_columns(inode.kind);
    let statement = format!(
        "INSERT OR REPLACE INTO inodes ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
    );
    connection.prepare_cached(&statement)?.execute(params![
        inode.id as i64,
        kind,
        device,
        inode.mode,
        inode.user,
        inode.group,
        inode.links as i64,
        inode.size as i64,
        inode.accessed_ns,
        inode.modified_ns,
        inode.changed_ns,
        inode.target,
        inode.layout.as_ref().map(layout_bytes),
        inode.policy.as_ref().map(policy_bytes),
        inode.generation as i64,
        inode.cut.map(|n| n as i64),
        inode.strips as i64,
        inode.stale[0] as i64,
        inode.stale[1] as i64,
        inode.unsynced as i64,
        inode.unsettled,
    ])?;
    Ok(())
}

fn kind_columns(kind: Kind) -> (i64, u32) {
    match kind {
        Kind::File => (0, 0),
        Kind::Directory => (1, 0),
        Kind::Link => (2, 0),
        Kind::Pipe => (3, 0),
        Kind::Socket => (4, 0),
        Kind::CharacterDevice(device) => (5, device),
        Kind::BlockDevice(device) => (6, device),
    }
}

fn kind_of(kind: i64, device: u32) -> Kind {
    match kind {
        0 => Kind::File,
        1 => Kind::Directory,
        2 => Kind::Link,
        3 => Kind::Pipe,
        4 => Kind::Socket,
        5 => Kind::CharacterDevice(device),
        _ => Kind::BlockDevice(device),
    }
}

fn layout_bytes(layout: &Layout) -> Vec<u8> {
    let Layout { slots, first, width, copies, record_bytes, stripe_bytes } = *layout;
    let small = [slots, first, width, copies, record_bytes].map(u32::to_le_bytes).concat();
    [&stripe_bytes.to_le_bytes()[..], &small].concat()
}

fn layout_of(bytes: &[u8]) -> Option<Layout> {
    let (stripe_bytes, small) = bytes.split_first_chunk::<8>()?;
    let (small, []) = small.as_chunks::<4>() else { return None };
    let [slots, first, width, copies, record_bytes] = small.first_chunk::<5>()?.map(u32::from_le_bytes);
    let stripe_bytes = u64::from_le_bytes(*stripe_bytes);
    let layout = Layout { slots, first, width, copies, stripe_bytes, record_bytes };
    layout.is_sound().then_some(layout)
}

fn policy_bytes(policy: &Policy) -> Vec<u8> {
    let Policy { width, stripe_bytes, copies, record_bytes } = *policy;
    [&stripe_bytes.to_le_bytes()[..], &[width, copies, record_bytes].map(u32::to_le_bytes).concat()].concat()
}

fn policy_of(bytes: &[u8]) -> Option<Policy> {
    let (stripe_bytes, small) = bytes.split_first_chunk::<8>()?;
    let (small, []) = small.as_chunks::<4>() else { return None };
    let [width, copies, record_bytes] = small.first_chunk::<3>()?.map(u32::from_le_bytes);
    Some(Policy { width, stripe_bytes: u64::from_le_bytes(*stripe_bytes), copies, record_bytes })
}

/// The inode with this number.
pub(crate) fn by_id(connection: &Connection, id: u64) -> rusqlite::Result<Option<Inode>> {
    let text = format!("SELECT {COLUMNS} FROM inodes WHERE id = ?");
    connection.prepare_cached(&text)?.query_row([id as i64], inode_of).optional()
}

/// The inode of a name.
pub(crate) fn lookup(connection: &Connection, place: &Place) -> rusqlite::Result<Option<Inode>> {
    let text = format!(
        "SELECT {COLUMNS} FROM inodes WHERE id = (SELECT inode FROM names WHERE directory = ? AND name = ?)"
    );
    let place = params![place.directory as i64, place.name];
    connection.prepare_cached(&text)?.query_row(place, inode_of).optional()
}

/// The directory that a directory lies in; the root lies in itself.
pub(crate) fn above(connection: &Connection, directory: u64) -> rusqlite::Result<Option<Inode>> {
    let text = format!(
        "SELECT {COLUMNS} FROM inodes WHERE id = coalesce((SELECT above FROM parents WHERE directory = ?1), {ROOT}) \
         AND EXISTS (SELECT 1 FROM inodes WHERE id = ?1 AND kind = 1)"
    );
    connection.prepare_cached(&text)?.query_row([directory as i64], inode_of).optional()
}

/// The names of a directory after this one, in byte order.
pub(crate) fn names(
    connection: &Connection,
    directory: u64,
    after: &[u8],
    most: usize,
) -> rusqlite::Result<Vec<Entry>> {
    let text = format!(
        "SELECT {COLUMNS}, name FROM names JOIN inodes ON id = inode \
         WHERE directory = ? AND name > ? ORDER BY name LIMIT ?"
    );
    let mut statement = connection.prepare_cached(&text)?;
    let entry = |row: &Row<'_>| Ok(Entry { inode: inode_of(row)?, name: row.get("name")? });
    statement.query_map(params![directory as i64, after, most as i64], entry)?.collect()
}

/// Inodes with unfinished work and numbers higher than `after`.
pub(crate) fn stale(connection: &Connection, after: u64, most: usize) -> rusqlite::Result<Vec<Inode>> {
    let text = format!(
        "SELECT {COLUMNS} FROM inodes WHERE (stale0 != 0 OR stale1 != 0) AND id > ? ORDER BY id LIMIT ?"
    );
    connection.prepare_cached(&text)?.query_map([after as i64, most as i64], inode_of)?.collect()
}

pub(crate) fn unfinished(connection: &Connection, after: u64, most: usize) -> rusqlite::Result<Vec<Inode>> {
    let text = format!(
        "SELECT {COLUMNS} FROM inodes \
         WHERE (links = 0 OR cut IS NOT NULL OR unsettled = 1) AND id > ? ORDER BY id LIMIT ?"
    );
    connection.prepare_cached(&text)?.query_map([after as i64, most as i64], inode_of)?.collect()
}

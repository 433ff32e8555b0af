//! A table with parity for a test, the load on it, and the audit of what was acknowledged.
#![allow(dead_code)] // Each program of tests uses its part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg::table::{ClusterOptions, Operation, Table, Tables, Variant};
use thalweg_api::{TableStatus, from_json};

use super::{Outcome, until};

/// The keys that change.
pub(crate) const KEYS: u32 = 3_000;

/// The nodes of a cluster, whose owner runs commands.
pub(crate) trait Owner {
    fn run(&self, args: &[&str]) -> Outcome;
    /// The directory of the owner's identity.
    fn identity(&self) -> std::path::PathBuf;

    fn table_status(&self) -> TableStatus {
        from_json(&self.run(&["table", "status", "events", "--json"]).out).unwrap()
    }

    fn open(&self) -> Table {
        open_as(&self.identity(), Variant::Nearest)
    }

    /// Creates the table, and waits until it is in several buckets and nothing moves.
    fn create(&self, args: &[&str]) {
        self.run(&[&["table", "create", "events", "--capacity", "500"], args].concat()).is_done();
        let table = self.open();
        write(&table, 0).for_each(drop);
        until("nothing moves", || {
            let status = self.table_status();
            let buckets: Vec<_> = status.nodes.iter().flat_map(|share| &share.buckets).collect();
            buckets.len() > 4 && buckets.iter().all(|bucket| !bucket.is_moving && bucket.records <= 500)
        });
    }
}

/// Opens the table with a client that finds records in this manner.
pub(crate) fn open_as(identity: &Path, variant: Variant) -> Table {
    let tables = Tables::load(identity, None).unwrap();
    Table::open_with(&tables, "events", ClusterOptions { variant, ..ClusterOptions::default() }).unwrap()
}

pub(crate) fn key(i: u32) -> Vec<u8> {
    i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()
}

fn value(version: u32) -> Vec<u8> {
    format!("{version:08}").into_bytes()
}

/// Writes a version of each record. Returns the keys whose change was acknowledged.
pub(crate) fn write(table: &Table, version: u32) -> impl Iterator<Item = Vec<u8>> {
    let upsert = |i| Operation::Upsert { key: key(i).into(), value: value(version).into() };
    let tickets: Vec<_> = (0..KEYS).map(|i| (key(i), table.submit(upsert(i)).unwrap())).collect();
    tickets.into_iter().filter_map(|(key, ticket)| ticket.wait().ok().map(|_| key))
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The least version that each record must have.
pub(crate) type Acknowledged = BTreeMap<Vec<u8>, u32>;

/// Changes all records again and again while `fails` lets nodes fail.
pub(crate) fn under_load(table: &Table, fails: impl FnOnce()) -> Acknowledged {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut acknowledged = BTreeMap::new();
            let mut version = 1;
            while !is_over.load(Ordering::Relaxed) {
                acknowledged.extend(write(table, version).map(|key| (key, version)));
                version += 1;
            }
            acknowledged
        });
        // The load ends as well if this fails.
        let ends = Ends(&is_over);
        fails();
        drop(ends);
        load.join().unwrap()
    })
}

/// Changes one record after the other while `fails` lets all nodes end, as long as that succeeds.
pub(crate) fn until_it_fails(table: &Table, fails: impl FnOnce()) -> Acknowledged {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut acknowledged = BTreeMap::new();
            for (i, version) in (0..u32::MAX).map(|i| (i % KEYS, 1 + i / KEYS)) {
                if is_over.load(Ordering::Relaxed) || table.upsert(key(i), value(version)).is_err() {
                    break;
                }
                acknowledged.insert(key(i), version);
            }
            acknowledged
        });
        let ends = Ends(&is_over);
        fails();
        drop(ends);
        load.join().unwrap()
    })
}

pub(crate) fn audit(table: &Table, acknowledged: &Acknowledged) {
    let records: BTreeMap<Vec<u8>, Vec<u8>> = table.range(..).collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), KEYS as usize);
    for (key, version) in acknowledged {
        assert!(
            records[key] >= value(*version),
            "{key:?} has {:?}, not {version}",
            records[key].escape_ascii()
        );
    }
}

/// Nodes with data buckets, or parity buckets, of the first group, other than the registrar's.
pub(crate) fn members(status: &TableStatus, is_parity: bool) -> Vec<String> {
    let seats = status.groups[0].seats.iter().flatten().filter(|seat| seat.is_parity == is_parity);
    seats.map(|seat| seat.node.clone()).filter(|node| node != "n1").collect()
}

/// Whether every group has all its buckets on different nodes.
pub(crate) fn is_sound(status: &TableStatus) -> bool {
    status.groups.iter().all(|group| {
        let seats: Vec<_> = group.seats.iter().flatten().collect();
        let nodes: BTreeSet<_> = seats.iter().map(|seat| &seat.node).collect();
        let has_parity = group.seats.last().is_some_and(Option::is_some);
        nodes.len() == seats.len() && seats.iter().all(|seat| seat.is_complete) && has_parity
    })
}

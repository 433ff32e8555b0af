//! How the registrar's node drops tables: it asks the servers to refuse them, and tells whoever waits for that.
//!
//! Invariant: a drop is acknowledged when it is finished; see drops.rs. One that has begun is finished by itself, also
//! after a restart. Whoever waits for it hears after [`WAIT_MS`] at the latest.

use std::sync::{Arc, PoisonError};

use thalweg_api::TableEntry;

use super::error::{Error, Result};
use super::image::Address;
use super::interval::Interval;
use super::message::{Outbox, TableId};
use super::registrar::number;
use super::service::{Medium, TICK, TableService};
use super::stream::locked;
use super::table::now_ms;

/// How long a client waits for the end of a drop.
const WAIT_MS: u64 = 5_000;

impl TableService {
    /// Drops a table, or waits for the end of its drop if that has begun.
    pub(super) fn drop_table(self: &Arc<Self>, name: &str) -> Result<()> {
        let entry = self.registrar()?.begin_drop(name)?;
        self.begin_drop(&entry)?;
        self.await_drop(&entry).map_err(|left| Error::not_dropped(name, &left))
    }

    /// Begins to drop a table that can no longer be opened.
    pub(super) fn begin_drop(self: &Arc<Self>, entry: &TableEntry) -> Result<()> {
        let table = number(&entry.id)?;
        if !locked(&self.drops).has(table) {
            let seats = entry.parity.as_ref().and_then(|_| self.drop_groups(table));
            locked(&self.drops).begin(table, seats);
        }
        // From now on there are ticks.
        self.with_buckets(|_, _| ());
        self.tick_drops();
        Ok(())
    }

    /// Goes on with the drops that had begun when the node was last stopped.
    pub(super) fn resume_drops(self: &Arc<Self>) {
        let list = self.registrar().and_then(|registrar| registrar.list()).unwrap_or_default();
        list.dropping.iter().for_each(|entry| _ = self.begin_drop(entry));
    }

    /// Waits for the end of a drop. If that takes too long, returns the nodes that it waits for.
    pub(super) fn await_drop(&self, entry: &TableEntry) -> std::result::Result<(), Vec<String>> {
        let until_ms = now_ms() + WAIT_MS;
        let is_over = |list: thalweg_api::TableList| list.dropping.iter().all(|table| table.id != entry.id);
        let mut drops = locked(&self.drops);
        while !self.registrar.list().is_ok_and(is_over) {
            if now_ms() >= until_ms || self.host.is_stopping_within(std::time::Duration::ZERO) {
                let left = number(&entry.id).map(|table| drops.left(table)).unwrap_or_default();
                return Err(left.iter().map(ToString::to_string).collect());
            }
            drops = self.dropped.wait_timeout(drops, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Whether a table is being dropped, or was lately.
    pub(super) fn drops(&self, table: TableId) -> bool {
        locked(&self.drops).has(table)
    }

    /// Does what is due for drops, if this node is the registrar.
    pub(super) fn tick_drops(self: &Arc<Self>) {
        let mut out = Outbox::new();
        {
            let mut drops = locked(&self.drops);
            if drops.is_empty() {
                return;
            }
            drops.tick(now_ms(), &self.all_nodes(), &mut out);
        }
        self.send(Medium::Link, out);
        self.finish_drops();
    }

    /// Handles the answer of a server.
    pub(super) fn ended(self: &Arc<Self>, from: &Address, answer: (TableId, u64, u64), had: &[Interval]) {
        locked(&self.drops).ended(now_ms(), from, answer, had);
        self.tick_drops();
    }

    /// Takes the tables whose drops are finished from the list. What cannot be stored is tried again.
    fn finish_drops(&self) {
        let finished = locked(&self.drops).finished(now_ms());
        for table in finished {
            if self.registrar.forget(table).is_ok() {
                locked(&self.drops).finish(table);
                self.dropped.notify_all();
            }
        }
    }
}

//! The groups of the registrar: in a file, and at work on its node.
//!
//! Model: `table-groups`, beside the identity of the node, is replaced as a whole before anything is sent.
//! Invariant: after a failure to store a change, the groups are those of the file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_api::TableList;
use thalweg_base::codec::{Plain, decode};
use thalweg_io::small;

use super::super::error::{Error, Result};
use super::super::image::Address;
use super::super::message::{Outbox, Spec, TableId};
use super::super::registrar::{number, registrar};
use super::super::service::{Medium, TableService};
use super::super::table::now_ms;
use super::directory::{Directory, Stored};
use super::message::{ParityMessage, Shape};

const FILE: &str = "table-groups";

/// The groups of all tables with parity, on the registrar.
pub(crate) struct ParityService {
    /// `None` in a process without an identity; its groups end with the process.
    file: Option<PathBuf>,
    directory: Mutex<Option<Directory>>,
    has_groups: AtomicBool,
}

impl ParityService {
    /// The groups whose file is in this directory.
    pub(crate) fn in_directory(directory: Option<&Path>) -> ParityService {
        let file = directory.map(|directory| directory.join(FILE));
        let has_groups = file.as_ref().is_some_and(|file| small::read(file).is_ok());
        ParityService { file, directory: Mutex::default(), has_groups: has_groups.into() }
    }

    /// Whether there is, or was, a table with parity.
    pub(crate) fn has_groups(&self) -> bool {
        self.has_groups.load(Ordering::Relaxed)
    }

    /// From now on there are tables with parity.
    pub(crate) fn begin(&self) {
        self.has_groups.store(true, Ordering::Relaxed);
    }

    fn read(&self) -> Result<Stored> {
        let Some(file) = &self.file else { return Ok(Stored::default()) };
        match small::read(file) {
            Ok(bytes) => decode(&bytes).ok_or_else(|| {
                Error::Refused(format!("{} is damaged, or of another version", file.display()))
            }),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(Stored::default()),
            Err(e) => Err(Error::refused(e)),
        }
    }

    /// Works on the groups, and stores them if they have changed. Returns the messages to send.
    pub(crate) fn with<T>(
        &self,
        now_ms: u64,
        me: &str,
        work: impl FnOnce(&mut Directory, &mut Outbox) -> T,
    ) -> Result<(T, Outbox)> {
        let mut known = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut directory = match known.take() {
            Some(directory) => directory,
            None => Directory::new(now_ms, me.into(), self.read()?),
        };
        let mut out = Outbox::new();
        let done = work(&mut directory, &mut out);
        if std::mem::take(&mut directory.has_changed)
            && let Some(file) = &self.file
        {
            let mut bytes = Vec::new();
            directory.stored.put(&mut bytes);
            small::write(file, &bytes).map_err(Error::refused)?;
        }
        *known = Some(directory);
        Ok((done, out))
    }
}

impl TableService {
    /// The name of the registrar's node.
    pub(in super::super) fn registrar_name(&self) -> Option<Address> {
        let hosts = self.host.cluster_file()?.hosts;
        registrar(&hosts).map(|host| Address::from(&*host.name))
    }

    /// Changes the groups of tables with parity, stores the change, and sends the resulting messages.
    pub(in super::super) fn with_directory<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Directory, &mut Outbox) -> T,
    ) -> Result<T> {
        let (done, out) = self.parity.with(now_ms(), self.host.name(), work)?;
        self.send(Medium::Link, out);
        Ok(done)
    }

    /// Handles a message for the registrar, if this node is the registrar. Otherwise the sender asks again.
    pub(in super::super) fn register(self: &Arc<Self>, from: &Address, message: ParityMessage) {
        let Ok(registrar) = self.registrar() else { return };
        if matches!(&message, ParityMessage::Join { spec, .. } if self.drops(spec.id)) {
            return;
        }
        if let ParityMessage::Dropped { table } = message {
            let is_listed = |list: TableList| list.tables.iter().any(|entry| number(&entry.id) == Ok(table));
            // A table is listed once it is loaded.
            if registrar.list().is_ok_and(|list| !is_listed(list)) {
                self.drop_groups(table);
            }
            return;
        }
        let _ = self.with_directory(|directory, out| directory.take(now_ms(), from, message, out));
    }

    /// Removes the groups of a table, if this node is the registrar. Returns the nodes that have seats of them, if any
    /// has.
    pub(in super::super) fn drop_groups(self: &Arc<Self>, table: TableId) -> Option<BTreeSet<Address>> {
        if !self.parity.has_groups() || self.registrar().is_err() {
            return None;
        }
        // Servers that have removed the table remind the registrar of groups that could not be removed.
        let seats = self.with_directory(|directory, _| directory.drop_table(table)).ok()?;
        Some(seats).filter(|seats| !seats.is_empty())
    }

    /// Does what is due for the registrar, if this node is the registrar and there are groups.
    pub(in super::super) fn tick_registrar(self: &Arc<Self>) {
        if self.parity.has_groups() && self.registrar().is_ok() {
            let servers = self.servers();
            // What could not be stored is tried again.
            let _ = self.with_directory(|directory, out| directory.tick(now_ms(), &servers, out));
        }
    }

    /// Makes the first group of a new table with parity, as soon as it is known which nodes are there. Returns the node
    /// of the first bucket.
    pub(in super::super) fn create_group(self: &Arc<Self>, spec: Spec, shape: Shape) -> Result<Address> {
        self.parity.begin();
        self.with_buckets(|_, _| ());
        while !self.with_directory(|directory, _| directory.knows_servers(now_ms()))? {
            self.wait()?;
        }
        self.with_directory(|directory, out| {
            let alive = directory.alive(now_ms()).count();
            let home = (alive >= shape.seats()).then(|| directory.create(now_ms(), spec, out));
            home.flatten().ok_or_else(|| {
                Error::Refused(format!(
                    "parity {shape} needs {} nodes, each for one bucket of a group; {alive} can be reached",
                    shape.seats()
                ))
            })
        })?
    }
}

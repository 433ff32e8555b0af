//! Requests about tables to the nodes of a cluster: which tables exist, and what each node has of one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{
    ClusterHost, ServiceRequest, TableBucket, TableEntry, TableGroup, TableGroups, TableHeld, TableKind,
    TableList, TableRequest, TableShare, TableStatus, from_json,
};
use thalweg_wire::cluster::name_of;
use thalweg_wire::{Client, ClusterError, Link, message};

use super::error::{Error, Result};
use super::interval::{Bytes, Interval, Upper};
use super::parity::Shape;
use super::registrar::{ROLE, find, registrar};
use super::text::parse_hex;

/// The largest block that a client takes from a node.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// The default of the most records of a bucket.
pub const CAPACITY: u64 = 50_000;
/// The default of the most bytes of keys and values of a bucket. It is split when it exceeds either limit.
pub const CAPACITY_BYTES: u64 = 64 << 20;

/// The most looks at the buckets of a table while some keys are not found.
const LOOKS: usize = 5;
/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The tables of a cluster, for a client. Clones share its links.
#[derive(Clone)]
pub struct Tables {
    pub(crate) client: Arc<Client>,
}

/// What a table has beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Beside {
    /// Pages that say where its buckets are, for clients of [`Variant::Indexed`](super::Variant::Indexed).
    pub index: bool,
    /// Parity buckets, so that it survives the failure of any node, or of any two. Without them, the records of a node
    /// are lost when it fails.
    pub parity: Option<Shape>,
}

impl Tables {
    /// The tables of the client's cluster.
    pub fn new(client: Client) -> Tables {
        Tables { client: Arc::new(client) }
    }

    /// The tables of the cluster with the identity in this directory, which must have this name if one is given.
    ///
    /// # Errors
    /// If the identity cannot be used.
    pub fn load(identity: &Path, name: Option<&str>) -> std::result::Result<Tables, ClusterError> {
        Client::load_named(identity, name).map(Tables::new)
    }

    pub(crate) fn link(&self, host: &ClusterHost) -> Result<Arc<Link>> {
        self.client.kept_link(host, BLOCK_BYTES).map_err(Error::refused)
    }

    pub(crate) fn host(&self, node: &str) -> Result<ClusterHost> {
        let found = self.client.hosts(&[node.to_string()]).map_err(Error::refused)?;
        Ok(found.into_iter().next().expect("a host of that name was found"))
    }

    /// Checks that the cluster has a node of this name.
    ///
    /// # Errors
    /// If it has none.
    pub fn check_node(&self, node: &str) -> Result<()> {
        self.host(node).map(drop)
    }

    /// Sends a request to a node, and parses its answer with `read`.
    fn ask<T>(
        &self,
        host: &ClusterHost,
        request: &TableRequest,
        read: impl FnOnce(&str) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let text = message::ask(&*self.link(host)?, &request.text()).map_err(Error::refused)?;
        read(&text).map_err(|why| Error::Refused(format!("{}: {why}", host.name)))
    }

    fn registrar(&self) -> Result<&ClusterHost> {
        registrar(&self.client.file().hosts).ok_or_else(|| Error::Refused("the cluster has no nodes".into()))
    }

    /// Creates a table whose buckets have at most as many records, and as many bytes of keys and values, as `capacity`
    /// says.
    ///
    /// # Errors
    /// If a table of this name exists, there are too few nodes, or the registrar cannot be reached.
    pub fn create(&self, name: &str, capacity: (u64, u64), beside: Beside) -> Result<TableEntry> {
        self.create_as(name, capacity, beside, None)
    }

    /// Creates a table, for a Redis client if `kind` is given.
    pub(crate) fn create_as(
        &self,
        name: &str,
        (capacity, capacity_bytes): (u64, u64),
        beside: Beside,
        kind: Option<TableKind>,
    ) -> Result<TableEntry> {
        let Beside { index, parity } = beside;
        let parity = parity.map(|shape| shape.to_string());
        let request =
            TableRequest::Create { name: name.into(), capacity, capacity_bytes, index, parity, kind };
        self.ask(self.registrar()?, &request, from_json)
    }

    /// All tables.
    ///
    /// # Errors
    /// If the registrar cannot be reached.
    pub fn list(&self) -> Result<TableList> {
        self.ask(self.registrar()?, &TableRequest::List, from_json)
    }

    /// The table of this name.
    ///
    /// # Errors
    /// If there is none, or the registrar cannot be reached.
    pub fn find(&self, name: &str) -> Result<TableEntry> {
        find(&self.list()?, name)
    }

    /// Removes a table with all its records.
    ///
    /// # Errors
    /// If there is none of this name, or the registrar cannot be reached. Also if a node that may have a part of it does
    /// not answer within some seconds: then the drop is finished when it does, and the name is taken until then.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.ask(self.registrar()?, &TableRequest::Drop { name: name.into() }, |_| Ok(()))
    }

    /// Asks the registrar to list a loaded table.
    pub(crate) fn loaded(&self, request: &TableRequest) -> Result<()> {
        self.ask(self.registrar()?, request, |_| Ok(()))
    }

    /// The names of the registrar, and of that after these hosts were dropped, and those added that are described like
    /// this.
    pub fn registrars(&self, dropped: &[String], added: &[String]) -> (Option<String>, Option<String>) {
        let hosts = &self.client.file().hosts;
        let is_registrar = |typed: &&String| typed.split(['@', ',']).skip(1).any(|role| role == ROLE);
        let left: Vec<ClusterHost> =
            hosts.iter().filter(|host| !dropped.contains(&host.name)).cloned().collect();
        let has_role = left.iter().any(|host| host.roles.iter().any(|role| role == ROLE));
        let new = added.iter().find(is_registrar).filter(|_| !has_role);
        let name = |host: &ClusterHost| host.name.clone();
        let next = new.map(|typed| name_of(typed).to_string()).or_else(|| registrar(&left).map(name));
        (registrar(hosts).map(name), next)
    }

    /// Checks that tables and records stay known if these hosts are dropped from the cluster, or another becomes the
    /// registrar.
    ///
    /// # Errors
    /// If the registrar would change while it lists tables, or a host has records that no other has; or the registrar
    /// cannot be reached.
    pub fn outlive(&self, dropped: &[String], registrar: Option<&str>) -> Result<()> {
        let TableList { tables, dropping } = self.list()?;
        let now = self.registrar()?.name.as_str();
        let next = registrar.filter(|next| *next != now && !(tables.is_empty() && dropping.is_empty()));
        if let Some(next) = next {
            let count = tables.len() + dropping.len();
            return Err(Error::Refused(format!(
                "{now} has the list of {count} table{}, and {next} would not know {}; drop the tables first, or leave \
                 the registrar as it is",
                if count == 1 { "" } else { "s" },
                if count == 1 { "it" } else { "them" },
            )));
        }
        for table in tables.iter().filter(|table| table.parity.is_none()) {
            for host in self.client.file().hosts.iter().filter(|host| dropped.contains(&host.name)) {
                let share = self.share(host, table);
                if share.is_ok_and(|share| share.buckets.iter().any(|bucket| bucket.records > 0)) {
                    return Err(Error::Refused(format!(
                        "{} has records of table '{}'; stop its node first: it then gives them to the others",
                        host.name, table.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// What a node has of a table.
    fn share(&self, host: &ClusterHost, table: &TableEntry) -> Result<TableShare> {
        self.ask(host, &TableRequest::Share { id: table.id.clone() }, from_json)
    }

    /// The groups of a table with parity.
    fn groups(&self, table: &TableEntry) -> Result<Vec<TableGroup>> {
        match table.parity {
            None => Ok(Vec::new()),
            Some(_) => {
                let request = TableRequest::Groups { id: table.id.clone() };
                Ok(self.ask::<TableGroups>(self.registrar()?, &request, from_json)?.groups)
            }
        }
    }

    /// The state of a table: which parts of it each node has, as the nodes say after the call. Keys are missing if no
    /// node has them at any of several looks, as a bucket that moves meanwhile may be seen on neither node.
    ///
    /// # Errors
    /// If there is none of this name, or the registrar cannot be reached.
    pub fn status(&self, name: &str) -> Result<TableStatus> {
        let table = self.find(name)?;
        let mut groups = self.groups(&table)?;
        let (mut nodes, mut unreachable, mut reached) = (Vec::new(), Vec::new(), Vec::new());
        for host in &self.client.file().hosts {
            match self.share(host, &table) {
                Ok(share) => {
                    nodes.push(share);
                    reached.push(host);
                }
                Err(why) => unreachable.push(why.to_string()),
            }
        }
        let mut missing = missing_of(buckets(&nodes));
        let mut has_moved = confirm(&mut groups, &nodes);
        for _ in 1..LOOKS {
            if missing.is_empty() && !has_moved {
                break;
            }
            std::thread::park_timeout(LOOK_EVERY);
            groups = self.groups(&table)?;
            let again = reached.iter().map(|host| self.share(host, &table)).collect::<Result<_>>();
            let Ok(again) = again else {
                // A node has failed meanwhile. What it said before may not be so any more.
                confirm(&mut groups, &[]);
                break;
            };
            nodes = again;
            missing = in_both(&missing, &missing_of(buckets(&nodes)));
            has_moved = confirm(&mut groups, &nodes);
        }
        let missing = missing.iter().map(Interval::to_string).collect();
        let records = buckets(&nodes).map(|bucket| bucket.records).sum();
        let bytes = buckets(&nodes).map(|bucket| bucket.bytes).sum();
        Ok(TableStatus { table, records, bytes, nodes, unreachable, missing, groups })
    }
}

/// Takes the registrar's word for a bucket of a group only if its node has just said the same. Returns whether a node that
/// answered has said something else: the bucket may have moved in between.
fn confirm(groups: &mut [TableGroup], nodes: &[TableShare]) -> bool {
    let mut has_moved = false;
    for group in groups {
        let id = group.id;
        for (index, seat) in (0..).zip(&mut group.seats) {
            let Some(seat) = seat.as_mut().filter(|seat| seat.is_complete) else { continue };
            let node = nodes.iter().find(|share| share.node == seat.node);
            let held = TableHeld { group: id, index, incarnation: seat.incarnation, is_complete: true };
            seat.is_complete = node.is_some_and(|share| share.seats.contains(&held));
            has_moved |= node.is_some() && !seat.is_complete;
        }
    }
    has_moved
}

fn buckets(nodes: &[TableShare]) -> impl Iterator<Item = &TableBucket> {
    nodes.iter().flat_map(|share| &share.buckets)
}

/// The keys that are in an interval of both lists.
fn in_both(some: &[Interval], others: &[Interval]) -> Vec<Interval> {
    let pairs = some.iter().flat_map(|one| others.iter().map(|other| one.intersection(other)));
    pairs.filter(|both| !both.is_empty()).collect()
}

/// The keys of a bucket.
pub(crate) fn interval(bucket: &TableBucket) -> Option<Interval> {
    let to = bucket.to.as_deref().map(parse_hex).transpose().ok()?;
    Some(Interval::new(&parse_hex(&bucket.from).ok()?, to.as_deref()))
}

/// The intervals of keys that none of these buckets has.
pub(crate) fn missing_of<'a>(buckets: impl Iterator<Item = &'a TableBucket>) -> Vec<Interval> {
    missing(buckets.filter_map(interval))
}

/// The intervals between these intervals, that is, all keys that are in none of them.
fn missing(intervals: impl Iterator<Item = Interval>) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = intervals.collect();
    intervals.sort_by(|a, b| a.from.cmp(&b.from));
    let mut missing = Vec::new();
    let mut reached = Upper::Key(Bytes::default());
    for Interval { from, to } in intervals {
        if let Upper::Key(key) = &reached
            && *key < from
        {
            missing.push(Interval { from: key.clone(), to: Upper::Key(from) });
        }
        reached = reached.max(to);
    }
    if let Upper::Key(key) = reached {
        missing.push(Interval { from: key, to: Upper::Infinite });
    }
    missing
}

#[cfg(test)]
mod tests {
    use thalweg_api::TableSeat;

    use super::*;

    #[test]
    fn what_no_bucket_has_is_missing() {
        let interval = |from: &str, to: Option<&str>| Interval::new(from.as_bytes(), to.map(str::as_bytes));
        let of = |intervals: &[Interval]| missing(intervals.iter().cloned());
        assert_eq!(of(&[]), [Interval::all()]);
        assert_eq!(of(&[interval("m", None), interval("", Some("m"))]), []);
        let gaps = [interval("b", Some("d")), interval("c", Some("e")), interval("f", Some("g"))];
        let expected = [interval("", Some("b")), interval("e", Some("f")), interval("g", None)];
        assert_eq!(of(&gaps), expected);
        // A bucket that moved was not seen at the first look, and another not at the second.
        let (first, second) = (of(&[interval("", Some("c")), interval("m", None)]), of(&gaps));
        assert_eq!(in_both(&first, &second), [interval("e", Some("f")), interval("g", Some("m"))]);
        assert_eq!(in_both(&first, &of(&[interval("c", Some("n"))])), []);
    }

    /// What went wrong: a status said that any node may fail for as long as the registrar had not noticed that one had.
    #[test]
    fn a_bucket_is_there_if_its_node_says_so() {
        let seat = |node: &str, incarnation| {
            Some(TableSeat { node: node.into(), incarnation, is_parity: false, is_complete: true })
        };
        let held = |index, incarnation, is_complete| TableHeld { group: 1, index, incarnation, is_complete };
        let share = |node: &str, seats: &[TableHeld]| TableShare { seats: seats.to_vec(), ..share(node) };
        let all = [seat("n1", 5), seat("n2", 6), None, seat("n3", 7)];
        let sound = [share("n1", &[held(0, 5, true)]), share("n2", &[held(1, 6, true)])];
        for (third, expected) in [
            (Some(share("n3", &[held(3, 7, true)])), (true, false)),
            // It is not reached, it has forgotten the bucket, has another one, or is building it.
            (None, (false, false)),
            (Some(share("n3", &[])), (false, true)),
            (Some(share("n3", &[held(3, 8, true)])), (false, true)),
            (Some(share("n3", &[held(3, 7, false)])), (false, true)),
        ] {
            let mut groups = [TableGroup { id: 1, seats: all.to_vec() }];
            let nodes: Vec<TableShare> = sound.iter().cloned().chain(third).collect();
            let has_moved = confirm(&mut groups, &nodes);
            let is_complete = |index: usize| groups[0].seats[index].as_ref().unwrap().is_complete;
            assert!(is_complete(0) && is_complete(1));
            assert_eq!((is_complete(3), has_moved), expected);
        }
    }

    fn share(node: &str) -> TableShare {
        TableShare {
            node: node.into(),
            buckets: Vec::new(),
            memory_used_bytes: 0,
            memory_bytes: 0,
            last_move: None,
            seats: Vec::new(),
            index_pages: Vec::new(),
            losses: Vec::new(),
            received_datagrams: 0,
            dropped_datagrams: 0,
            multicast: None,
        }
    }
}

//! The service of tables on a node: its buckets, and, on one node, the registrar.
//!
//! ```text
//! stream of a client --Reader--> BucketServer --Outlet--> stream of that client
//! stream of a node   --Reader-->              --Outlet--> streams to other nodes
//! ```
//!
//! Model: a thread for each stream reads messages. One lock guards the buckets, so each message is carried out as a
//! whole. The resulting messages go to outlets, whose threads send them. A stream to another node is opened on demand.
//! Invariant: the link says who the peer is, whatever its messages say. A client that may only look changes nothing.
//! Only nodes can send the messages between nodes.
//! When the node is asked to stop, it gives its buckets to others, or dumps those that none takes; see dump.rs.
//! Non-goals: durability. The records are in memory, and are lost when the node fails.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use thalweg_api::{
    May, ServiceRequest, TableBucket, TableEntry, TableKind, TableList, TableMove, TableRequest, TableShare,
    from_json, to_json,
};
use thalweg_base::clock::now_ns;
use thalweg_base::units::Size;
use thalweg_io::{process, small};
use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, Incoming, Link, Peer, Role, Service, Streams, cluster, log, message, new_id};

use super::datagrams::{self, Datagrams};
use super::drops::Drops;
use super::dump::{self, Dump, Verdict};
use super::error::{Error, Result};
use super::image::Address;
use super::interval::Interval;
use super::journal::ClientId;
use super::message::{Message, Outcome, Refused, Replies, Requests, Spec, TableId};
use super::multicast::Group;
use super::nodes::interval;
use super::owned::Owned;

use super::parity::message::Shape;
use super::parity::service::ParityService;
use super::registrar::{Registrar, number, registrar, servers};
use super::resp;
use super::server::{BucketServer, Outbox, To};
use super::spare::{self, LONG_BYTES};
use super::stream::{Outlet, Reader, framed, framed_in, locked, unframed};
use super::table::now_ms;
use super::text::show_hex;
use crate::server::Stop;
use crate::slab::Full;

/// The interval between ticks of the buckets.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// The same while records that have moved away are removed, some in each: the bucket is not split again before that.
const SHEDDING_TICK: Duration = Duration::from_millis(1);
/// How long no connection is tried to a node that could not be reached.
const PAUSE_NS: u64 = 500_000_000;
/// How long a node that stops waits for others to take its buckets: `cluster down` kills it after ten seconds. What is
/// left goes to files.
const LEAVE_MS: u64 = 5_000;
/// How long to wait before others are asked again about the dumps of a node that has started.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The directory of dumps, in that of the node's identity.
const DUMPS: &str = "tables";
/// By default, tables may use this percentage of the memory that is available when the first table is created.
const MEMORY_PERCENT: u64 = 50;

/// The service of tables on a node.
pub struct TableService {
    pub(super) host: Arc<Host>,
    pub(super) registrar: Registrar,
    memory: Option<Size>,
    pub(super) parity: ParityService,
    pub(super) drops: Mutex<Drops>,
    /// Notified when a drop is finished.
    pub(super) dropped: Condvar,
    buckets: Mutex<Option<BucketServer>>,
    pub(super) clients: Mutex<BTreeMap<ClientId, ToClient>>,
    /// Made when the first client asks for it; `None` if there is no port.
    datagrams: OnceLock<Option<Arc<Datagrams>>>,
    /// Joined when the first client asks for it.
    pub(super) group: OnceLock<std::result::Result<Arc<Group>, String>>,
    /// Tables that clients are loading, and that are not listed yet.
    pub(crate) loads: Mutex<BTreeSet<TableId>>,
    peers: Mutex<HashMap<Address, ToPeer>>,
    /// The servers of Redis clients.
    resp: OnceLock<Vec<Stop>>,
}

/// How replies get to a client.
#[derive(Clone)]
pub(super) struct ToClient {
    pub(super) outlet: Arc<Outlet>,
    pub(super) datagrams: Option<Arc<datagrams::Session>>,
}

/// How replies should travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    Link,
    /// As datagrams, if the client uses them and they fit.
    Datagrams,
}

/// The state of the connection to another node.
enum ToPeer {
    Open(Arc<Outlet>),
    /// The node could not be reached, and is not tried before this time.
    Down(u64),
}

/// The properties of a table, for its servers.
pub(crate) fn spec(entry: &TableEntry) -> Result<Spec> {
    let id = number(&entry.id)?;
    let parity = entry.parity.as_deref().map(Shape::parse).transpose().map_err(Error::Refused)?;
    Ok(Spec { id, capacity: entry.capacity.max(1), capacity_bytes: entry.capacity_bytes.max(1), parity })
}

impl TableService {
    /// The service on this host, with so much memory for tables. Buckets that were dumped when the node last stopped
    /// return as soon as it is known that no other node has had their keys since. If the cluster file says so, Redis
    /// clients are served, too.
    ///
    /// # Errors
    /// One line, if Redis clients cannot be served.
    pub fn start(host: &Arc<Host>, memory: Option<Size>) -> std::result::Result<Arc<TableService>, String> {
        let service = Arc::new(TableService {
            host: Arc::clone(host),
            registrar: Registrar::in_directory(host.directory()),
            memory,
            parity: ParityService::in_directory(host.directory()),
            drops: Mutex::default(),
            dropped: Condvar::new(),
            buckets: Mutex::default(),
            clients: Mutex::default(),
            datagrams: OnceLock::new(),
            group: OnceLock::new(),
            loads: Mutex::default(),
            peers: Mutex::default(),
            resp: OnceLock::new(),
        });
        let node = Arc::downgrade(&service);
        let memory = move || node.upgrade().map(|node| node.memory()).unwrap_or_default();
        let _ = service.resp.set(resp::serve(host, Box::new(memory))?);
        if let Some(directory) = service.dumps()
            && !dump::files(&directory, "").is_empty()
        {
            let failed = service.with_buckets(|buckets, _| buckets.return_seats(now_ms(), &directory));
            failed.iter().for_each(|why| log(why));
            let service = Arc::clone(&service);
            spawn("tables", move || {
                while !service.return_dumps(&directory) && !service.host.is_stopping_within(ASK_AGAIN) {}
            });
        }
        if service.parity.has_groups() {
            service.with_buckets(|_, _| ());
        }
        service.resume_drops();
        Ok(service)
    }

    /// The directory of the node's dumps, if the node has an identity.
    fn dumps(&self) -> Option<PathBuf> {
        self.host.directory().map(|directory| directory.join(DUMPS))
    }

    /// Works on the buckets under their lock, then sends the resulting messages.
    pub(crate) fn with_buckets<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut BucketServer, &mut Outbox) -> T,
    ) -> T {
        self.with_buckets_by(Medium::Datagrams, work)
    }

    /// Works on the buckets; replies to a client travel as it says.
    fn with_buckets_by<T>(
        self: &Arc<Self>,
        medium: Medium,
        work: impl FnOnce(&mut BucketServer, &mut Outbox) -> T,
    ) -> T {
        let (done, out) = self.work(work);
        self.send(medium, out);
        done
    }

    fn work<T>(self: &Arc<Self>, work: impl FnOnce(&mut BucketServer, &mut Outbox) -> T) -> (T, Outbox) {
        let mut out = Outbox::new();
        let mut buckets = locked(&self.buckets);
        let buckets = buckets.get_or_insert_with(|| self.first_buckets());
        (work(buckets, &mut out), out)
    }

    /// The memory for tables, if they begin now.
    fn memory_bytes(&self) -> usize {
        let available = process::available_memory_bytes();
        let declared = self.host.declared().and_then(|host| host.memory_bytes);
        let half = available / 100 * MEMORY_PERCENT;
        let memory = match self.memory {
            Some(memory) => memory.of(available),
            None => declared.map_or(half, |declared| declared.min(half)),
        };
        memory as usize
    }

    /// The memory of this node that its tables use, and the most that they may use.
    pub(crate) fn memory(&self) -> (usize, usize) {
        match &*locked(&self.buckets) {
            Some(buckets) => (buckets.slab.used(), buckets.slab.limit()),
            None => (0, self.memory_bytes()),
        }
    }

    /// Creates the buckets, without records, and starts the thread that ticks them.
    fn first_buckets(self: &Arc<Self>) -> BucketServer {
        let service = Arc::clone(self);
        spawn("tables", move || {
            let mut pause = TICK;
            while !service.host.is_stopping_within(pause) {
                let may_shed = service.with_buckets(|buckets, out| {
                    buckets.peers = service.others();
                    buckets.tick(now_ms(), out);
                    buckets.may_shed(now_ms())
                });
                pause = if may_shed { SHEDDING_TICK } else { TICK };
                service.tick_registrar();
                service.tick_drops();
            }
        });
        let mut buckets = BucketServer::new(self.host.name().into(), new_id().0 as u64, self.memory_bytes());
        buckets.peers = self.others();
        buckets
    }

    /// The other nodes that have buckets.
    fn others(&self) -> Vec<Address> {
        let own = self.host.name();
        self.servers().into_iter().filter(|name| **name != *own).collect()
    }

    /// The nodes that have buckets; without a cluster, this one.
    pub(super) fn servers(&self) -> Vec<Address> {
        let hosts = self.host.cluster_file().map(|file| file.hosts).unwrap_or_default();
        let mut servers: Vec<Address> = servers(&hosts).into_iter().map(Address::from).collect();
        if servers.is_empty() {
            servers.push(self.host.name().into());
        }
        servers
    }

    /// All nodes.
    pub(crate) fn all_nodes(&self) -> Vec<Address> {
        self.others().into_iter().chain([self.name().into()]).collect()
    }

    /// The name of this node.
    pub(crate) fn name(&self) -> &str {
        self.host.name()
    }

    pub(super) fn send(self: &Arc<Self>, medium: Medium, out: Outbox) {
        let mut out = VecDeque::from(out);
        while let Some((to, message)) = out.pop_front() {
            match (to, message) {
                (To::Client, Message::Replies(replies)) => self.reply(medium, replies),
                (To::Client, _) => {}
                (To::Registrar, message) => match self.registrar_name() {
                    Some(name) if *name != *self.host.name() => self.send_to(&name, framed(&message)),
                    _ => self.take_from(&self.host.name().into(), message),
                },
                // A server that merges two of its buckets sends many messages to itself.
                (To::Server(server), message) if *server == *self.host.name() => {
                    out.extend(self.work(|buckets, out| buckets.take(now_ms(), &server, message, out)).1);
                }
                (To::Server(server), message) => self.send_to(&server, framed(&message)),
            }
        }
    }

    /// Sends replies to a client, which needs none if it is gone.
    fn reply(&self, medium: Medium, replies: Replies) {
        let Some(to) = locked(&self.clients).get(&replies.client).cloned() else { return };
        let rest = match (to.datagrams, self.datagrams.get()) {
            (Some(session), Some(Some(datagrams))) if medium == Medium::Datagrams => {
                datagrams.send(&session, replies)
            }
            _ => Some(replies),
        };
        if let Some(rest) = rest {
            let is_long =
                rest.outcomes.iter().map(|(_, outcome)| outcome.bytes()).sum::<usize>() >= LONG_BYTES;
            let buffer = if is_long { spare::take() } else { Vec::new() };
            to.outlet.put(framed_in(buffer, &Message::Replies(rest)));
        }
    }

    /// The datagrams of this node. A thread receives them.
    pub(super) fn datagrams(self: &Arc<Self>) -> Option<&Arc<Datagrams>> {
        let start = || {
            let address = self.host.declared().and_then(|host| cluster::address_of(&host).ok());
            let datagrams = Arc::new(Datagrams::at(address).ok()?);
            let (service, receives) = (Arc::clone(self), Arc::clone(&datagrams));
            let is_needed = move || !service.host.is_stopping_within(Duration::ZERO);
            let service = Arc::clone(self);
            let take = move |client, may_change, requests| {
                service.requests((client, Medium::Datagrams), may_change, requests);
            };
            spawn("datagrams", move || receives.run(is_needed, take)).then_some(datagrams)
        };
        self.datagrams.get_or_init(start).as_ref()
    }

    /// Carries out requests of a client, or refuses them if it may only read.
    pub(super) fn requests(
        self: &Arc<Self>,
        (client, medium): (ClientId, Medium),
        may_change: bool,
        requests: Requests,
    ) {
        let mut requests = Requests { client, path: Vec::new(), visited: Vec::new(), ..requests };
        if !may_change {
            self.refuse_changes(medium, &mut requests);
        }
        let message = Message::Requests(requests);
        self.with_buckets_by(medium, |buckets, out| buckets.take(now_ms(), &"".into(), message, out));
    }

    /// Refuses the requests that change something, and removes them.
    fn refuse_changes(&self, medium: Medium, requests: &mut Requests) {
        let changes = requests.asks.extract_if(.., |(_, ask)| !ask.is_read());
        let outcomes: Vec<_> =
            changes.map(|(number, _)| (number, Outcome::Refused(Refused::ReadOnly))).collect();
        let Requests { table, client, .. } = *requests;
        if !outcomes.is_empty() {
            let path = Vec::new();
            self.reply(
                medium,
                Replies { table, client, path, adjustment: Vec::new(), outcomes, trace: None },
            );
        }
    }

    /// Sends a message to another node through its outlet.
    fn send_to(self: &Arc<Self>, server: &Address, frame: Vec<u8>) {
        let outlet = {
            let mut peers = locked(&self.peers);
            match peers.get(server) {
                Some(ToPeer::Open(outlet)) => Arc::clone(outlet),
                Some(ToPeer::Down(until_ns)) if now_ns() < *until_ns => {
                    drop(peers);
                    return self.not_sent(server, vec![frame]);
                }
                _ => {
                    let outlet = Arc::new(Outlet::default());
                    peers.insert(server.clone(), ToPeer::Open(Arc::clone(&outlet)));
                    let (service, server, sends) = (Arc::clone(self), server.clone(), Arc::clone(&outlet));
                    spawn("tables", move || service.run_peer(&server, &sends));
                    outlet
                }
            }
        };
        // If the outlet has just been closed, this is as if the message was lost.
        outlet.put(frame);
    }

    /// Opens a stream to another node, and sends the messages of its outlet until that fails.
    fn run_peer(self: &Arc<Self>, server: &Address, outlet: &Outlet) {
        let open = || {
            let link = self.host.link_with(server).ok()?;
            link.open(TableRequest::Peer.text().as_bytes()).ok()
        };
        let left = match open() {
            Some((out, _inc)) => outlet.run_or_return(out),
            None => outlet.close(),
        };
        locked(&self.peers).insert(server.clone(), ToPeer::Down(now_ns() + PAUSE_NS));
        self.not_sent(server, left);
    }

    /// Handles messages that could not be sent: requests among them are refused, and the server has no room.
    fn not_sent(self: &Arc<Self>, server: &Address, frames: Vec<Vec<u8>>) {
        let mut out = Outbox::new();
        for message in frames.iter().filter_map(|frame| unframed(frame)) {
            locked(&self.buckets).iter_mut().for_each(|buckets| match &message {
                Message::Requests(requests) => buckets.unreachable(requests.clone(), server, &mut out),
                Message::Reserve { id, .. } => buckets.no_room(now_ms(), server, *id),
                _ => {}
            });
        }
        self.send(Medium::Datagrams, out);
    }

    /// Processes the messages of another node.
    fn peer(self: &Arc<Self>, link: &Link, inc: Incoming) -> std::result::Result<(), String> {
        let from = Address::from(link.peer());
        let mut reader = Reader::new(link, inc)?;
        while let Some(message) = reader.next()? {
            self.take_from(&from, message);
        }
        Ok(())
    }

    /// Processes a message of a node: as the registrar, or for its buckets.
    fn take_from(self: &Arc<Self>, from: &Address, message: Message) {
        match message {
            Message::Parity(message) if message.is_for_registrar() => self.register(from, message),
            Message::Parity(message)
                if message.is_of_registrar() && self.registrar_name().is_none_or(|name| name != *from) => {}
            Message::Ended { table, round, run, had } => self.ended(from, (table, round, run), &had),
            Message::End { .. } if self.registrar_name().is_none_or(|name| name != *from) => {}
            message => self.with_buckets(|buckets, out| buckets.take(now_ms(), from, message, out)),
        }
    }

    /// Waits for the time of a tick.
    pub(crate) fn wait(&self) -> Result<()> {
        match self.host.is_stopping_within(TICK) {
            true => Err(Error::Refused("this node is stopping".into())),
            false => Ok(()),
        }
    }

    /// The registrar, if this node is the registrar.
    pub(crate) fn registrar(&self) -> Result<&Registrar> {
        let hosts = self.host.cluster_file().map(|file| file.hosts).unwrap_or_default();
        match registrar(&hosts) {
            Some(host) if host.name != self.host.name() => Err(Error::Refused(format!(
                "the registrar of tables is {}, not {}",
                host.name,
                self.host.name()
            ))),
            _ => Ok(&self.registrar),
        }
    }

    /// Sends a request to a node, or carries it out if that is this node. Returns the answer.
    pub(crate) fn tell(self: &Arc<Self>, node: &str, request: &TableRequest) -> Result<String> {
        if node == self.host.name() {
            return self.answer(request);
        }
        self.ask(node, request)
    }

    fn done(self: &Arc<Self>, request: &TableRequest) -> Result<()> {
        match request {
            TableRequest::Begin(entry) => {
                let spec = spec(entry)?;
                let begun = self.with_buckets(|buckets, _| {
                    // With parity, the registrar has made the first bucket.
                    if spec.parity.is_none() {
                        buckets.begin(spec)?;
                    }
                    if entry.index {
                        buckets.begin_index(spec.id, &[]);
                    }
                    Ok(())
                });
                begun.map_err(|Full| Error::Full(self.host.name().into()))
            }
            TableRequest::Keep { id } => self.keep(number(id)?),
            TableRequest::Loaded { entry, replaces, nodes } => self.replace(entry.clone(), replaces, nodes),
            _ => Err(Error::Refused("a node is not asked that by another".into())),
        }
    }

    fn create(
        self: &Arc<Self>,
        name: String,
        (capacity, capacity_bytes): (u64, u64),
        (index, parity): (bool, Option<String>),
        kind: Option<TableKind>,
    ) -> Result<TableEntry> {
        let registrar = self.registrar()?;
        let mut nodes = self.servers();
        let list = registrar.list()?;
        // The home is the node that is home to the fewest tables, of those that can be reached.
        nodes.sort_by_key(|node| list.tables.iter().filter(|table| *table.home == **node).count());
        let is_here = |node: &&Address| ***node == *self.name() || self.host.link_with(node).is_ok();
        let home = nodes.iter().find(is_here).unwrap_or(&nodes[0]);
        let id = format!("{:016x}", new_id().0 as u64);
        let home = home.to_string();
        let mut entry =
            TableEntry { name, id, capacity, capacity_bytes, home, index, parity, form: None, kind };
        let spec = spec(&entry)?;
        if let Some(shape) = spec.parity {
            registrar.check(&entry)?;
            entry.home = self.create_group(spec, shape)?.to_string();
            registrar.add(&entry)?;
            if index {
                // Otherwise the home makes the root when it is first asked for it.
                let _ = self.tell(&entry.home, &TableRequest::Begin(entry.clone()));
            }
            return Ok(entry);
        }
        registrar.add(&entry)?;
        match self.tell(&entry.home, &TableRequest::Begin(entry.clone())) {
            Ok(_) => Ok(entry),
            Err(why) => {
                // The node may have made the bucket all the same, and others may use it.
                self.begin_drop(&registrar.begin_drop(&entry.name)?)?;
                Err(why)
            }
        }
    }

    fn share(self: &Arc<Self>, id: &str) -> Result<TableShare> {
        let id = number(id)?;
        let datagrams = self.datagrams.get().and_then(Option::as_ref);
        let (received_datagrams, dropped_datagrams) =
            datagrams.map_or((0, 0), |datagrams| datagrams.counts.get());
        let multicast = self.multicast();
        Ok(self.with_buckets(|buckets, _| {
            let seats = buckets.seats(now_ms(), id);
            let served = buckets.tables.get(&id);
            let own = served.into_iter().flat_map(|served| &served.buckets);
            let losses = buckets.losses.iter().filter(|(table, ..)| *table == id);
            let loss = |interval, server| {
                format!("changes of {interval} that {server} acknowledged right before it failed may be lost")
            };
            TableShare {
                node: self.host.name().into(),
                buckets: own
                    .filter(|bucket| !bucket.served().is_empty())
                    .map(|bucket| bucket.shown(&buckets.slab))
                    .collect(),
                memory_used_bytes: buckets.slab.used() as u64,
                memory_bytes: buckets.slab.limit() as u64,
                last_move: served.and_then(|served| served.last_move.clone()).map(
                    |(to, records, milliseconds)| TableMove { to: to.to_string(), records, milliseconds },
                ),
                seats,
                index_pages: buckets.index.pages(id),
                losses: losses.map(|(_, interval, server)| loss(interval, server)).collect(),
                received_datagrams,
                dropped_datagrams,
                multicast,
            }
        }))
    }

    /// Makes buckets of dumps that are current. What the registrar neither lists nor drops is kept: its list may be older
    /// than the dump. Returns whether nothing is left to be done.
    fn return_dumps(self: &Arc<Self>, directory: &Path) -> bool {
        let Ok(list) = self.ask_registrar() else { return false };
        let mut shares = HashMap::new();
        let mut is_all = true;
        let has = |tables: &[TableEntry], id| tables.iter().any(|table| number(&table.id) == Ok(id));
        let exists = |id: TableId| has(&list.tables, id);
        let is_dropped =
            |buckets: &BucketServer, id| has(&list.dropping, id) || buckets.dropped.contains(&id);
        self.with_buckets(|buckets, _| {
            let dropped = buckets.dropped.clone();
            buckets.forget_returned(|id| !has(&list.dropping, id) && !dropped.contains(&id));
        });
        for file in dump::files(directory, dump::ENDING) {
            let remove = || {
                small::remove(&file)
                    .and_then(|()| small::sync_directory(directory))
                    .map_err(|why| why.to_string())
            };
            let dump: Dump = match dump::read(&file) {
                Ok(dump) => dump,
                Err(why) => {
                    log(&why);
                    continue;
                }
            };
            let id = dump.spec.id;
            let others = shares.entry(id).or_insert_with(|| self.shares_of_others(id));
            let returned = match dump.judge(others) {
                Verdict::Unknown => {
                    is_all = false;
                    continue;
                }
                Verdict::Current if exists(id) => {
                    self.with_buckets(|buckets, _| match buckets.has_some(id, &dump.interval) {
                        true => remove(),
                        false => buckets.returns(now_ms(), dump, remove),
                    })
                }
                Verdict::Current if !self.with_buckets(|buckets, _| is_dropped(buckets, id)) => {
                    Err("it has records of a table that the registrar does not list; bring the registrar's \
                         tables.json back and start this node again, or remove this file if the table was dropped"
                        .into())
                }
                Verdict::Current | Verdict::Stale => remove(),
            };
            returned.unwrap_or_else(|why| log(&format!("{}: {why}", file.display())));
        }
        is_all
    }

    fn ask_registrar(self: &Arc<Self>) -> Result<TableList> {
        let hosts = self.host.cluster_file().map(|file| file.hosts).unwrap_or_default();
        match registrar(&hosts) {
            Some(host) if host.name != self.host.name() => {
                from_json(&self.ask(&host.name, &TableRequest::List)?).map_err(Error::Refused)
            }
            _ => self.registrar.list(),
        }
    }

    /// The intervals of a table with their epochs, on each other node that can be reached.
    fn shares_of_others(self: &Arc<Self>, id: TableId) -> Vec<(Address, Vec<(Interval, u64)>)> {
        let request = TableRequest::Share { id: format!("{id:016x}") };
        let share = |node: Address| {
            let share: TableShare = from_json(&self.ask(&node, &request).ok()?).ok()?;
            let buckets = share.buckets.iter().map(|bucket| Some((interval(bucket)?, bucket.epoch)));
            Some((node, buckets.collect::<Option<Vec<_>>>()?))
        };
        self.others().into_iter().filter_map(share).collect()
    }

    /// Asks another node, and returns the text of its answer.
    fn ask(self: &Arc<Self>, node: &str, request: &TableRequest) -> Result<String> {
        let link = self.host.link_with(node).map_err(Error::refused)?;
        message::ask(&link, &request.text()).map_err(Error::refused)
    }

    /// Answers a request that has one immediate answer, with an object.
    fn answer(self: &Arc<Self>, request: &TableRequest) -> Result<String> {
        Ok(match request {
            TableRequest::Create { name, capacity, capacity_bytes, index, parity, kind } => {
                let (capacity, beside) = ((*capacity, *capacity_bytes), (*index, parity.clone()));
                to_json(&self.create(name.clone(), capacity, beside, kind.clone())?)
            }
            TableRequest::Groups { id } => {
                let id = number(id)?;
                self.registrar()?;
                to_json(&self.with_directory(|directory, _| directory.shown(now_ms(), id))?)
            }
            TableRequest::List => to_json(&self.registrar()?.list()?),
            TableRequest::Drop { name } => self.drop_table(name).map(|()| String::new())?,
            TableRequest::Share { id } => to_json(&self.share(id)?),
            TableRequest::Freeze { id } => {
                self.freeze(id)?;
                to_json(&self.share(id)?)
            }
            other => self.done(other).map(|()| String::new())?,
        })
    }
}

impl Owned {
    /// The bucket as reports show it.
    fn shown(&self, slab: &crate::slab::Slab) -> TableBucket {
        let served = self.served();
        let (from, to) = served.bounds();
        TableBucket {
            from: show_hex(from),
            to: to.map(show_hex),
            epoch: self.epoch,
            records: self.records(slab),
            bytes: self.bytes,
            is_moving: self.leaving.is_some(),
        }
    }
}

impl Service for TableService {
    fn name(&self) -> &'static str {
        TableRequest::SERVICE
    }

    /// A client that may only look may read.
    fn is_harmless(&self, body: &str) -> bool {
        use TableRequest::{Groups, List, Session, Share};
        matches!(from_json(body), Ok(Session | List | Groups { .. } | Share { .. }))
    }

    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, (mut out, inc): Streams) -> bool {
        let link = Arc::clone(peer.link);
        let is_node = link.hello().is_local() || link.hello().role == Role::Node;
        let may_change = link.hello().is_local() || peer.may != May::Status;
        let request = match from_json(body) {
            Ok(request) => request,
            Err(why) => return out.abort(&format!("a request that is not known here: {why}")).is_ok(),
        };
        match request {
            // If the stream is dropped, its reader tells the peer.
            TableRequest::Session => spawn("table", move || _ = self.session(&link, (out, inc), may_change)),
            TableRequest::Peer if is_node => spawn("table", move || {
                let _ = self.peer(&link, inc);
                let _ = out.end(&[]);
            }),
            TableRequest::Load(entry) => spawn("table", move || self.load(&link, &entry, (out, inc))),
            TableRequest::Begin(_)
            | TableRequest::Keep { .. }
            | TableRequest::Freeze { .. }
            | TableRequest::Peer
                if !is_node =>
            {
                out.abort("only nodes ask that of each other").is_ok()
            }
            request => {
                let work = move |answered: Result<String>| {
                    let said = match answered {
                        Ok(text) => out.end(text.as_bytes()),
                        Err(why) => out.abort(&why.to_string()),
                    };
                    // If it were dropped earlier, the stream would end.
                    drop(inc);
                    said
                };
                match words(&request) {
                    None => spawn("table", move || _ = work(self.answer(&request))),
                    Some((what, name)) => peer.entry(what, &[name]).spawn("table", move |entry| {
                        let answered = self.answer(&request);
                        match &answered {
                            Ok(_) => entry.ends("done"),
                            Err(why) => entry.refused(why),
                        }
                        // A client that is gone does not get the answer.
                        let _ = work(answered);
                    }),
                }
            }
        }
    }

    fn leave(self: Arc<Self>) -> std::result::Result<(), String> {
        if locked(&self.buckets).is_none() {
            return Ok(());
        }
        self.with_buckets(|buckets, _| buckets.close(now_ms()));
        let until_ms = now_ms() + LEAVE_MS;
        while now_ms() < until_ms && !self.with_buckets(|buckets, _| buckets.has_given_away(now_ms())) {
            self.host.is_stopping_within(TICK);
        }
        let Some(directory) = self.dumps() else { return Ok(()) };
        match self.with_buckets(|buckets, _| buckets.dump(&directory)) {
            Ok(0) => {}
            Ok(_) => log(&format!(
                "no other node has room for the tables of this one: they are in {} until it starts again",
                directory.display()
            )),
            Err(why) => {
                return Err(format!("records of tables are lost, because they could not be written: {why}"));
            }
        }
        Ok(())
    }

    fn stop(&self, _patience: Duration) {
        self.resp.get().into_iter().flatten().for_each(Stop::stop);
        std::mem::take(&mut *locked(&self.clients)).into_values().for_each(|to| _ = to.outlet.close());
        let peers = std::mem::take(&mut *locked(&self.peers));
        for to in peers.into_values() {
            if let ToPeer::Open(outlet) = to {
                outlet.close();
            }
        }
    }
}

/// A change as the audit log names it.
fn words(request: &TableRequest) -> Option<(&'static str, String)> {
    match request {
        TableRequest::Create { name, .. } => Some(("table create", name.clone())),
        TableRequest::Drop { name } => Some(("table drop", name.clone())),
        TableRequest::Loaded { entry, .. } => Some(("table load", entry.name.clone())),
        _ => None,
    }
}

//! A table of a cluster, as a program uses it.
//!
//! Model: any number of threads send requests. A thread that waits sends what is queued, and repeats what is not
//! answered. Each server has a stream, with a thread that reads the replies. A message has requests of many threads.
//! Invariant: the number of outstanding requests has a limit ([`Window`]); a thread with one more waits. Each request
//! gets an answer, or an error within about ten seconds.
//! Non-goals: where the records are; see client.rs.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use thalweg_api::{ClusterHost, ServiceRequest, TableEntry, TableForm, TableRequest};
use thalweg_base::clock::now_ns;
use thalweg_wire::threads::spawn;
use thalweg_wire::{Link, Outgoing, cluster, new_id};

use super::client::{Client, Failed, Sent, Transport, Variant};
use super::datagrams::{MACHINE_BYTES, NETWORK_BYTES, ToNode};
use super::error::{Error, Result, fits};
use super::image::Address;
use super::interval::Interval;
use super::journal::ClientId;
use super::message::{Answer, Arrange, Ask, Message, Operation, Outcome, Replies, Requests, Scan, What};
use super::multicast::Multicast;
use super::nodes::Tables;
use super::numbers::NumberMap;
use super::range::Range;
use super::registrar::{number, servers};
use super::stream::{Reader, WAITING_BYTES_MAX, framed, locked};
use super::window::{DATAGRAM_WINDOW_MAX, Outstanding, WINDOW_MAX, Window};
use crate::condition::Condition;

/// With this many queued requests they are sent, even if no thread waits for an answer.
const SENT_TOGETHER: usize = 256;
/// How often a waiting thread looks for requests that must be repeated.
const TICK: Duration = Duration::from_millis(50);

/// How a client uses a table.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterOptions {
    /// How it finds the servers of keys.
    pub variant: Variant,
    /// How many requests may be outstanding.
    pub window: Window,
    /// How requests for single records travel.
    pub transport: Transport,
}

/// A table of a cluster. Clones share it.
#[derive(Clone)]
pub struct Table {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    tables: Tables,
    /// The form of the records, if the table was loaded.
    form: Option<TableForm>,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
    /// Streams to servers; `None` while there is no stream.
    connections: Mutex<HashMap<Address, Arc<Mutex<Option<Line>>>>>,
    /// The most bytes of a datagram, if datagrams are used.
    datagram_bytes: Option<usize>,
    /// If datagrams are used, and some are for all servers.
    multicast: Option<Mutex<Multicast>>,
}

/// The state of the stream to a server.
enum Line {
    Open(Connection),
    /// A thread is connecting; a server that does not answer must not delay requests to others. It sends these messages.
    Opening(Vec<u8>),
}

/// A stream to a server. Its own thread reads the replies.
struct Connection {
    out: Outgoing,
    link: Arc<Link>,
    /// Datagrams beside the stream, as soon as the server has answered that it receives them.
    datagrams: Arc<OnceLock<Arc<ToNode>>>,
}

pub(crate) struct State {
    pub(crate) client: Client,
    window: Outstanding,
    unsent: usize,
    done: NumberMap<std::result::Result<Outcome, Failed>>,
    /// Requests whose outcomes are dropped.
    forgotten: NumberMap<()>,
}

const NS_PER_MS: u64 = 1_000_000;

pub(crate) fn now_ms() -> u64 {
    now_ns() / NS_PER_MS
}

/// In place of the number of a request that has been waited for.
const ANSWERED: u64 = 0;

/// A submitted request, whose answer can be waited for.
pub struct Ticket {
    shared: Arc<Shared>,
    number: u64,
}

impl Ticket {
    /// Whether [`Ticket::wait`] returns at once.
    pub fn is_answered(&self) -> bool {
        self.shared.state().done.contains_key(&self.number)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn wait(mut self) -> Result<Answer> {
        let number = std::mem::replace(&mut self.number, ANSWERED);
        match self.shared.outcome(|state| state.take(number))? {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Refused(why) => Err(why.into()),
            Outcome::Page(_) => Err(Error::Refused("a node answered what it was not asked".into())),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.number != ANSWERED {
            self.shared.state().forget(self.number);
        }
    }
}

impl State {
    /// Drops the outcome of a request, now or when it arrives.
    pub(crate) fn forget(&mut self, number: u64) {
        if self.done.remove(&number).is_none() && self.client.is_outstanding(number) {
            self.forgotten.insert(number, ());
        }
    }

    fn ended(&mut self, now_ns: u64, number: u64, outcome: std::result::Result<Outcome, Failed>) {
        self.window.ended(now_ns, number);
        if self.forgotten.is_empty() || self.forgotten.remove(&number).is_none() {
            self.done.insert(number, outcome);
        }
    }

    /// The outcome of a request, if it has one.
    pub(crate) fn take(&mut self, number: u64) -> Option<std::result::Result<Outcome, Failed>> {
        self.done.remove(&number)
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `find` finds an outcome. Sends what is queued, and repeats what is not answered.
    pub(crate) fn outcome(
        self: &Arc<Self>,
        mut find: impl FnMut(&mut State) -> Option<std::result::Result<Outcome, Failed>>,
    ) -> Result<Outcome> {
        let mut found = None;
        self.until(|state| {
            found = find(state);
            found.is_some()
        });
        found.expect("it was waited for").map_err(Error::from)
    }

    /// Waits until `is_so` holds. Sends what is queued, and repeats what is not answered.
    pub(crate) fn until(self: &Arc<Self>, mut is_so: impl FnMut(&mut State) -> bool) {
        if is_so(&mut self.state()) {
            return;
        }
        loop {
            self.flush();
            let mut state = self.state();
            loop {
                if is_so(&mut state) {
                    return;
                }
                let waited = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                let failed = state.client.tick(now_ms());
                failed.into_iter().for_each(|(number, why)| state.ended(now_ns(), number, Err(why)));
                if state.client.has_queued() {
                    break;
                }
            }
        }
    }

    /// Sends all queued requests.
    pub(crate) fn flush(self: &Arc<Self>) {
        let mut messages = Vec::new();
        if !self.multicast.as_ref().is_some_and(|multicast| locked(multicast).holds(now_ms())) {
            let mut state = self.state();
            state.unsent = 0;
            messages = state.client.messages(now_ms());
        }
        self.tend_multicast();
        messages.into_iter().for_each(|sent| self.send(sent));
    }

    /// Does what is due so that servers receive what is multicast.
    fn tend_multicast(self: &Arc<Self>) {
        let sent = self.multicast.as_ref().map(|multicast| locked(multicast).step(now_ms()));
        sent.into_iter().flatten().for_each(|sent| self.send(sent));
    }

    /// Sends a message to its servers, in one datagram if it is for all and they receive that.
    fn send(self: &Arc<Self>, sent: Sent) {
        if let (Some(multicast), Message::Requests(Requests { is_to_all: true, asks, .. })) =
            (&self.multicast, &sent.message)
        {
            let mut multicast = locked(multicast);
            if sent.is_datagram && multicast.send(&sent.message) {
                return;
            }
            if !sent.is_datagram && asks.iter().any(|(_, ask)| matches!(**ask, Ask::Record(_))) {
                multicast.doubt();
            }
        }
        for to in &sent.to {
            if self.send_to(to, &sent).is_err() {
                self.state().client.unreachable(now_ms(), to);
            }
        }
    }

    fn send_to(self: &Arc<Self>, to: &Address, Sent { message, is_datagram, .. }: &Sent) -> Result<()> {
        let connection = {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(connections.entry(to.clone()).or_default())
        };
        let mut line = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match &mut *line {
            Some(Line::Opening(messages)) => {
                // What does not fit is sent again later, like a message that was lost.
                if messages.len() <= WAITING_BYTES_MAX {
                    messages.extend(framed(message));
                }
                return Ok(());
            }
            Some(Line::Open(open)) if open.link.is_open() => {
                if *is_datagram && open.datagrams.get().is_some_and(|datagrams| datagrams.send(message)) {
                    return Ok(());
                }
                open.out.send(0, &mut framed(message))
            }
            _ => {
                *line = Some(Line::Opening(framed(message)));
                drop(line);
                return self.open(to, connection);
            }
        };
        if sent.is_err() {
            *line = None;
        }
        sent.map_err(Error::refused)
    }

    /// Connects to a server in a thread, which sends what waits for it.
    fn open(self: &Arc<Self>, to: &Address, connection: Arc<Mutex<Option<Line>>>) -> Result<()> {
        let (shared, server, opened) = (Arc::clone(self), to.clone(), Arc::clone(&connection));
        let opens = move || {
            let mut connected = shared.connect(&server);
            let mut line = opened.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Ok(open), Some(Line::Opening(messages))) = (&mut connected, &mut *line)
                && open.out.send(0, messages).is_err()
            {
                connected = Err(Error::Unreachable(server.to_string()));
            }
            let is_open = connected.is_ok();
            *line = connected.ok().map(Line::Open);
            drop(line);
            if !is_open {
                shared.ended(&server, None);
                shared.changed.notify_all();
            }
        };
        if spawn("table", opens) {
            return Ok(());
        }
        *connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Err(Error::Refused("the system has no thread left".into()))
    }

    fn connect(self: &Arc<Self>, to: &Address) -> Result<Connection> {
        let host = self.tables.host(to)?;
        let link = self.tables.link(&host)?;
        let (mut out, inc) = link.open(TableRequest::Session.text().as_bytes()).map_err(Error::refused)?;
        let mut reader = Reader::new(&link, inc).map_err(Error::Refused)?;
        let datagrams = Arc::new(OnceLock::new());
        if let Some(bytes) = self.datagram_bytes {
            let open = Message::OpenDatagrams { client: self.state().client.id(), bytes: bytes as u32 };
            out.send(0, &mut framed(&open)).map_err(Error::refused)?;
        }
        let node = cluster::address_of(&host).map_err(Error::refused)?;
        let (shared, to, opened) = (Arc::downgrade(self), to.clone(), Arc::downgrade(&datagrams));
        let exports = Arc::downgrade(&link);
        let reads = move || {
            let mut own = None;
            while let Ok(Some(message)) = reader.next()
                && let Some(shared) = Weak::upgrade(&shared)
            {
                if let Message::Datagrams { session, port } = message {
                    own = Some(session);
                    let node = SocketAddr::new(node.ip(), port as u16);
                    let link = exports.upgrade();
                    shared.opened(&to, (session, node), link.as_deref(), opened.upgrade().as_deref());
                } else if !shared.take(&to, message) {
                    break;
                }
            }
            if let Some(shared) = Weak::upgrade(&shared) {
                shared.ended(&to, own);
            }
        };
        match spawn("replies", reads) {
            true => Ok(Connection { out, link, datagrams }),
            false => Err(Error::Refused("the system has no thread left".into())),
        }
    }

    /// Handles the end of the stream to a server, which had this session of datagrams, or the failure to open one.
    fn ended(&self, server: &Address, session: Option<u64>) {
        self.multicast.iter().for_each(|multicast| locked(multicast).ended(server, session));
        self.state().client.unreachable(now_ms(), server);
    }

    /// Uses the session of datagrams that a node has opened.
    fn opened(
        self: &Arc<Self>,
        server: &Address,
        (session, node): (u64, SocketAddr),
        link: Option<&Link>,
        datagrams: Option<&OnceLock<Arc<ToNode>>>,
    ) {
        let (Some(link), Some(datagrams), Some(bytes)) = (link, datagrams, self.datagram_bytes) else {
            return;
        };
        let Some(to) = ToNode::new(link, session, node, bytes).map(Arc::new) else { return };
        let (shared, weak, from) = (Arc::downgrade(self), Arc::downgrade(&to), server.clone());
        let reads = {
            let weak = weak.clone();
            move || {
                ToNode::run(&weak, |message| {
                    Weak::upgrade(&shared).map(|shared| shared.take(&from, message)).is_some()
                });
            }
        };
        if spawn("replies", reads) {
            let _ = datagrams.set(to);
            self.multicast
                .iter()
                .for_each(|multicast| locked(multicast).opened(server, session, weak.clone()));
            self.tend_multicast();
        }
    }

    /// Processes a message of a server. Returns false if a server sends no such message to a client.
    fn take(self: &Arc<Self>, from: &Address, message: Message) -> bool {
        match message {
            Message::Replies(replies) => self.replied(from, replies),
            Message::Multicast { session, group, port } => {
                let group = SocketAddrV4::new(Ipv4Addr::from_bits(group), port as u16);
                self.multicast.iter().for_each(|multicast| locked(multicast).joined(from, session, group));
                self.tend_multicast();
            }
            Message::Probe { session } => {
                self.multicast.iter().for_each(|multicast| locked(multicast).received(from, session));
                // Requests may have waited for this.
                self.changed.notify_all();
            }
            _ => return false,
        }
        true
    }

    /// Processes replies.
    fn replied(&self, from: &Address, replies: Replies) {
        let now_ns = now_ns();
        let mut state = self.state();
        state.client.note_places(now_ns / NS_PER_MS, from, &replies);
        let outcomes = state.client.take(now_ns / NS_PER_MS, replies);
        outcomes.into_iter().for_each(|(number, outcome)| state.ended(now_ns, number, Ok(outcome)));
        drop(state);
        self.changed.notify_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let connections = self.connections.get_mut().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.values() {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Line::Open(open)) = &*connection {
                open.link.close();
            }
        }
    }
}

impl Table {
    /// A table of a cluster, used in a certain way.
    ///
    /// # Errors
    /// If there is none of this name, or the registrar cannot be reached.
    pub fn open_with(tables: &Tables, name: &str, options: ClusterOptions) -> Result<Table> {
        Table::of(tables, &tables.find(name)?, options)
    }

    /// The table of this entry of the list.
    pub(crate) fn of(
        tables: &Tables,
        entry: &TableEntry,
        ClusterOptions { variant, window, transport }: ClusterOptions,
    ) -> Result<Table> {
        if variant == Variant::Indexed && !entry.index {
            let name = &entry.name;
            return Err(Error::Refused(format!(
                "the table '{name}' has no index; create it with --index, or use it with --variant cu"
            )));
        }
        let id = ClientId { peer: [0; 2], session: new_id().0 as u64 };
        let servers: Vec<_> = servers(&tables.client.file().hosts).into_iter().map(Address::from).collect();
        let home = (number(&entry.id)?, (*entry.home).into());
        let client = Client::new(id, home, servers.clone(), variant);
        let mut client = client.of_recovered(entry.parity.is_some());
        let hosts = &tables.client.file().hosts;
        let is_local = |host: &ClusterHost| cluster::address_of(host).is_ok_and(|at| at.ip().is_loopback());
        let most = || if hosts.iter().all(is_local) { MACHINE_BYTES } else { NETWORK_BYTES };
        let datagram_bytes = (transport != Transport::Links).then(most);
        if let Some(bytes) = datagram_bytes {
            client = client.in_datagrams(if transport == Transport::UdpSingle { 0 } else { bytes });
        }
        let asks_all = matches!(variant, Variant::All | Variant::Known);
        let multicast =
            datagram_bytes.filter(|_| asks_all).map(|bytes| Mutex::new(Multicast::new(servers, bytes)));
        let most = if datagram_bytes.is_some() { DATAGRAM_WINDOW_MAX } else { WINDOW_MAX };
        let window = Outstanding::new(window, most);
        let state =
            State { client, window, unsent: 0, done: NumberMap::default(), forgotten: NumberMap::default() };
        let shared = Shared {
            tables: tables.clone(),
            form: entry.form.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            connections: Mutex::default(),
            datagram_bytes,
            multicast,
        };
        Ok(Table { shared: Arc::new(shared) })
    }

    /// Submits an operation without waiting for its answer. Waits only while the window is full.
    ///
    /// # Errors
    /// If the key or the value is too long.
    pub fn submit(&self, operation: Operation) -> Result<Ticket> {
        fits(operation.key(), operation.value())?;
        self.check_form(&operation)?;
        let ask = Arc::new(Ask::Record(operation));
        let shared = &self.shared;
        let mut state = shared.state();
        if state.client.outstanding() >= state.window.limit() {
            drop(state);
            // A part of it becomes free, so that the next message has several requests.
            shared.until(|state| state.client.outstanding() <= state.window.limit() * 3 / 4);
            state = shared.state();
        }
        let now_ns = now_ns();
        state.unsent += 1;
        let number = state.client.ask(now_ns / NS_PER_MS, ask);
        state.window.submitted(now_ns, number);
        let is_message_full = state.unsent >= SENT_TOGETHER;
        drop(state);
        if is_message_full {
            shared.flush();
        }
        Ok(Ticket { shared: Arc::clone(shared), number })
    }

    /// Changes which buckets there are, or which node has them, and waits until it is done. Records can be used
    /// meanwhile.
    ///
    /// # Errors
    /// If the node that should get a bucket has no room, or cannot be reached.
    pub fn arrange(&self, arrange: Arrange) -> Result<()> {
        let ask = Arc::new(Ask::Arrange(arrange));
        if !ask.is_sound() {
            return Err(Error::Refused("the key or the name of the node is too long".into()));
        }
        let number = self.shared.state().client.ask(now_ms(), ask);
        Ticket { shared: Arc::clone(&self.shared), number }.wait().map(drop)
    }

    /// Checks that a new record has the form of the loaded ones.
    fn check_form(&self, operation: &Operation) -> Result<()> {
        let Some(form) = &self.shared.form else { return Ok(()) };
        let value = match operation {
            Operation::Get { .. }
            | Operation::Delete { .. }
            | Operation::CompareAndSet { value: None, .. } => {
                return Ok(());
            }
            other => other.value(),
        };
        let is_of_form = (operation.key().len(), operation.key().len() + value.len())
            == (form.key_bytes as usize, form.record_bytes as usize);
        if is_of_form { Ok(()) } else { Err(Error::wrong_form(form, operation.key(), value)) }
    }

    /// The form of the records, if the table was loaded.
    pub(crate) fn form(&self) -> Option<&TableForm> {
        self.shared.form.as_ref()
    }

    fn done(&self, operation: Operation) -> Result<Answer> {
        self.submit(operation)?.wait()
    }

    /// Inserts a record. Returns false if there is one with this key.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.done(Operation::Insert { key: key.into(), value: value.into() })
            .map(|answer| answer == Answer::Done)
    }

    /// Inserts a record, or replaces the value of the one with this key.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.done(Operation::Upsert { key: key.into(), value: value.into() }).map(drop)
    }

    /// Replaces the value of a record. Returns false if there is none with this key.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.done(Operation::Update { key: key.into(), value: value.into() })
            .map(|answer| answer == Answer::Done)
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// If the node with the record cannot be reached.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.done(Operation::Get { key: key.into() })? {
            Answer::Value(value) => Ok(value.map(Vec::from)),
            _ => Err(Error::Refused("a node answered what it was not asked".into())),
        }
    }

    /// Removes a record. Returns false if there is none with this key.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.done(Operation::Delete { key: key.into() }).map(|answer| answer == Answer::Done)
    }

    /// Sets or removes the value of a key if its present value, or absence, is `expected`. Returns whether it did.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn compare_and_set(&self, key: &[u8], expected: Option<&[u8]>, value: Option<&[u8]>) -> Result<bool> {
        let (expected, value) = (expected.map(Into::into), value.map(Into::into));
        self.done(Operation::CompareAndSet { key: key.into(), expected, value })
            .map(|answer| answer == Answer::Done)
    }

    /// The records of an interval, in order. Each that exists throughout is returned once; this is not a snapshot.
    pub fn range(&self, interval: Interval) -> Range {
        self.scan(interval, None, What::Records)
    }

    /// The records of an interval whose values meet a condition, found in parallel by the nodes.
    pub fn find(&self, interval: Interval, condition: &Condition) -> Range {
        self.scan(interval, Some(condition), What::Records)
    }

    /// The number of records of an interval whose values meet the condition, if one is given.
    ///
    /// # Errors
    /// If a node with records of the interval cannot be reached.
    pub fn count(&self, interval: Interval, condition: Option<&Condition>) -> Result<u64> {
        self.scan(interval, condition, What::Count).count_all()
    }

    /// The numbers of records of the buckets of an interval, in order, each with its interval of keys.
    pub(crate) fn counts(&self, interval: Interval) -> impl Iterator<Item = Result<(Interval, u64)>> + use<> {
        self.scan(interval, None, What::Count).counts()
    }

    fn scan(&self, interval: Interval, condition: Option<&Condition>, what: What) -> Range {
        let condition = condition.map(|condition| condition.text().into());
        Range::new(
            self,
            Scan { interval, is_descending: false, what, limit: u64::MAX, condition, rest: None },
        )
    }
}

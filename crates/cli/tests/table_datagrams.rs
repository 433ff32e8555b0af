//! Requests for records of a table in datagrams, seen from outside: real daemons on loopback ports.
//!
//! Invariant: the records are those that requests over links would give. What no client has sent, or has arrived before,
//! is dropped, counted and never answered, and changes nothing.
#![allow(clippy::disallowed_methods)] // Tests open sockets themselves.

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use support::nodes::Nodes;
use support::until;
use thalweg::table::{Answer, ClusterOptions, Operation, Table, Tables, Transport, Variant};
use thalweg_api::{ServiceRequest, TableRequest, TableStatus, from_json};
use thalweg_base::codec::Plain;
use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_wire::{
    Client, DATAGRAM_EXTRA_BYTES, DATAGRAM_HEAD_BYTES, DatagramOpening, DatagramSealing, Link,
};

const BLOCK_BYTES: usize = 64 << 10;
/// The numbers of messages, as in docs/formats/table.md.
const REQUESTS: u8 = 0;
const REPLIES: u8 = 1;
const OPEN_DATAGRAMS: u8 = 20;
const DATAGRAMS: u8 = 21;

fn status(nodes: &Nodes) -> TableStatus {
    from_json(&nodes.run(&["table", "status", "events", "--json"]).out).unwrap()
}

/// The datagrams that all nodes have received and dropped.
fn counted(nodes: &Nodes) -> (u64, u64) {
    let shares = status(nodes).nodes;
    let sum = |of: fn(&thalweg_api::TableShare) -> u64| shares.iter().map(of).sum();
    (sum(|share| share.received_datagrams), sum(|share| share.dropped_datagrams))
}

#[test]
fn datagrams_carry_requests_of_every_variant_while_buckets_split() {
    let nodes = Nodes::start(3);
    nodes.run(&["table", "create", "events", "--capacity", "500"]).is_done();
    let tables = Tables::load(&nodes.place.0.join("own"), None).unwrap();
    let open = |variant, transport| {
        let options = ClusterOptions { variant, transport, ..ClusterOptions::default() };
        Table::open_with(&tables, "events", options).unwrap()
    };
    let mut rng = Rng::new(22);
    // Some values are longer than a datagram, and some answers are when they are together.
    let value = |i: u64| vec![i as u8; if i.is_multiple_of(1000) { 100_000 } else { 1 + i as usize % 90 }];
    let model: BTreeMap<[u8; 8], Vec<u8>> =
        (0..6_000).map(|i| (rng.next_u64().to_be_bytes(), value(i))).collect();
    let insert = |(key, value): (&[u8; 8], &Vec<u8>)| Operation::Insert {
        key: (*key).into(),
        value: value[..].into(),
    };
    let table = open(Variant::Nearest, Transport::Udp);
    let tickets: Vec<_> = model.iter().map(|record| table.submit(insert(record)).unwrap()).collect();
    assert!(tickets.into_iter().all(|ticket| ticket.wait().unwrap() == Answer::Done));
    let is_on_all = || status(&nodes).nodes.iter().all(|share| !share.buckets.is_empty());
    until("the table is on all nodes", is_on_all);

    for (variant, transport) in [
        (Variant::Nearest, Transport::Udp),
        (Variant::Known, Transport::Udp),
        (Variant::All, Transport::Udp),
        (Variant::Nearest, Transport::UdpSingle),
    ] {
        let (before, _) = counted(&nodes);
        let table = open(variant, transport);
        let get = |key: &[u8; 8]| table.submit(Operation::Get { key: (*key).into() }).unwrap();
        let tickets: Vec<_> = model.keys().map(get).collect();
        for (ticket, value) in tickets.into_iter().zip(model.values()) {
            assert_eq!(ticket.wait().unwrap(), Answer::Value(Some(value[..].into())), "{variant:?}");
        }
        assert!(counted(&nodes).0 > before, "{variant:?} {transport:?}");
        assert_eq!(table.count(.., None).unwrap(), model.len() as u64);
    }
    assert_eq!(counted(&nodes).1, 0);
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    run(&["put", "events", "a", "1", "--transport", "udp"]).is_done();
    assert_eq!(run(&["get", "events", "a", "--transport", "udp"]).is_done(), "a\t1\n");
    run(&["range", "events", "--transport", "udp"]).is_refused(&["--transport is for table put"]);
}

/// A client that a test makes by hand, with a session of datagrams.
struct Raw {
    /// The link, which ends the session when it is dropped.
    link: Link,
    _streams: (thalweg_wire::Outgoing, thalweg_wire::Incoming),
    /// The number that it chose for its id.
    chosen: u64,
    session: u64,
    node: SocketAddr,
    socket: UdpSocket,
    sealing: DatagramSealing,
    opening: DatagramOpening,
    table: u64,
    next: u64,
}

impl Raw {
    fn new(nodes: &Nodes, chosen: u64) -> Raw {
        let client = Client::load(&nodes.place.0.join("own")).unwrap();
        let host = client.file().hosts[0].clone();
        let link = client.link(&host, BLOCK_BYTES).unwrap();
        let (mut out, inc) = link.open(TableRequest::Session.text().as_bytes()).unwrap();
        let mut open = vec![OPEN_DATAGRAMS];
        Raw::client(chosen, &mut open);
        1400_u32.put(&mut open);
        let mut frame = Vec::new();
        open.put(&mut frame);
        out.send(0, &mut frame).unwrap();
        let mut inc = inc.takes(&Pool::new(BLOCK_BYTES, 4).unwrap(), 2);
        let (_, block) = inc.next_on().unwrap().unwrap();
        let mut answer = &block[4..];
        assert_eq!(u8::take(&mut answer), Some(DATAGRAMS));
        let (session, port) = <(u64, u32)>::take(&mut answer).unwrap();
        let (sealing, opening) = link.datagrams(session, true).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let node = SocketAddr::from(([127, 0, 0, 1], port as u16));
        let table = u64::from_str_radix(&status(nodes).table.id, 16).unwrap();
        Raw { link, _streams: (out, inc), chosen, session, node, socket, sealing, opening, table, next: 1 }
    }

    /// A client chooses only the last of the three numbers of its id.
    fn client(chosen: u64, into: &mut Vec<u8>) {
        [0, 0, chosen].iter().for_each(|number| number.put(into));
    }

    /// A datagram that puts a record.
    fn put(&mut self, key: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0; DATAGRAM_HEAD_BYTES];
        bytes.push(REQUESTS);
        self.table.put(&mut bytes);
        Raw::client(self.chosen, &mut bytes);
        // No path, no visited buckets, not to all nodes, without an index.
        [0; 1 + 1 + 1 + 1].iter().for_each(|zero| bytes.push(*zero));
        self.next.put(&mut bytes);
        1_u32.put(&mut bytes);
        self.next.put(&mut bytes);
        self.next += 1;
        // A request for a record, which upserts it.
        bytes.extend([0, 1]);
        [key, value].iter().for_each(|text| text.to_string().put(&mut bytes));
        self.sealing.seal(&mut bytes);
        bytes
    }

    fn send(&self, datagram: &[u8]) {
        assert_eq!(self.socket.send_to(datagram, self.node).unwrap(), datagram.len());
    }

    /// Receives one datagram of the node, which must be replies.
    fn is_answered(&mut self) {
        let mut bytes = [0; 2048];
        let (len, from) = self.socket.recv_from(&mut bytes).unwrap();
        assert_eq!(from, self.node);
        assert_eq!(self.opening.open(&mut bytes[..len]).unwrap()[0], REPLIES);
    }
}

fn has_nothing(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    socket.recv(&mut [0; 2048]).is_err_and(|why| why.kind() == ErrorKind::WouldBlock)
}

#[test]
fn datagrams_that_no_client_has_sent_are_dropped_and_counted_and_never_answered() {
    let nodes = Nodes::start(1);
    nodes.run(&["table", "create", "events"]).is_done();
    let mut client = Raw::new(&nodes, 7);
    let mut other = Raw::new(&nodes, 8);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();

    let first = client.put("a", "first");
    client.send(&first);
    client.is_answered();
    let second = client.put("a", "second");
    client.send(&second);
    client.is_answered();

    let forged = client.put("a", "forged");
    let mut changed = forged.clone();
    *changed.last_mut().unwrap() ^= 1;
    // The other client has a link with the same node, and so other keys.
    let (mut sealing, _) = other.link.datagrams(client.session, true).unwrap();
    std::mem::swap(&mut other.sealing, &mut sealing);
    let foreign = other.put("a", "foreign");
    let unknown = [&u64::MAX.to_le_bytes()[..], &[0; 100]].concat();
    let attacks: Vec<&[u8]> = vec![
        &[],
        &[1],
        &first[..DATAGRAM_EXTRA_BYTES - 1],
        &changed,
        &forged[..forged.len() - 1],
        &foreign,
        &unknown,
        &first,
        &second,
    ];
    for attack in &attacks {
        client.send(attack);
        stranger.send_to(attack, client.node).unwrap();
    }
    // An authentic datagram from elsewhere gets no answer either.
    stranger.send_to(&forged, client.node).unwrap();
    let dropped = 2 * attacks.len() as u64 + 1;

    // The node receives in order, so it has seen everything before this.
    let last = client.put("b", "last");
    client.send(&last);
    client.is_answered();
    assert_eq!(counted(&nodes), (3, dropped));
    assert!(has_nothing(&client.socket) && has_nothing(&stranger));
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    assert_eq!(run(&["range", "events"]).is_done(), "a\tsecond\nb\tlast\n");

    // The session ends with its link. Until the node has noticed, datagrams are accepted.
    let mut late = (0..10_000).map(|_| client.put("a", "late")).collect::<Vec<_>>().into_iter();
    let after = client.put("a", "after");
    let Raw { link, _streams, socket, node, .. } = client;
    drop(_streams);
    link.close();
    until("the session has ended", || {
        socket.send_to(&late.next().expect("it ends soon"), node).unwrap();
        counted(&nodes).1 > dropped
    });
    let (_, dropped) = counted(&nodes);
    socket.send_to(&after, node).unwrap();
    until("it is dropped", || counted(&nodes).1 > dropped);
    assert!(!run(&["range", "events"]).is_done().contains("after"));
}

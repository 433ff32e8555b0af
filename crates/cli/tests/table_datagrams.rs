//! Requests for records of a table in datagrams, to one node and to all, seen from outside: real daemons on loopback
//! ports, and in a lab.
//!
//! Invariant: the records are those that requests over links would give. What no client has sent, or has arrived before,
//! is dropped, counted and never answered, and changes nothing.
#![allow(clippy::disallowed_methods)] // Tests open sockets themselves.

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::lab::Lab;
use support::nodes::{Nodes, terminate};
use support::until;
use thalweg::table::{Answer, ClusterOptions, Operation, Table, Tables, Transport, Variant};
use thalweg_api::{ServiceRequest, TableMulticast, TableRequest, TableShare, TableStatus, from_json};
use thalweg_base::codec::Plain;
use thalweg_base::rng::Rng;
use thalweg_block::Pool;
use thalweg_io::socket::multicasts_towards;
use thalweg_wire::{
    Client, DATAGRAM_EXTRA_BYTES, DATAGRAM_HEAD_BYTES, DatagramOpening, DatagramSealing, Incoming, Link,
    Outgoing, multicast_datagrams,
};

const BLOCK_BYTES: usize = 64 << 10;
/// The numbers of messages, as in docs/formats/table.md.
const REQUESTS: u8 = 0;
const REPLIES: u8 = 1;
const OPEN_DATAGRAMS: u8 = 20;
const DATAGRAMS: u8 = 21;
const OPEN_MULTICAST: u8 = 22;
const MULTICAST: u8 = 23;

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
    let has_buckets = |share: &thalweg_api::TableShare| !share.buckets.is_empty();
    let is_on_all = || status(&nodes).nodes.iter().filter(|share| has_buckets(share)).count() == 3;
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
    out: Outgoing,
    inc: Incoming,
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
        Raw::of(nodes, "own", chosen)
    }

    fn of(nodes: &Nodes, identity: &str, chosen: u64) -> Raw {
        let client = Client::load(&nodes.place.0.join(identity)).unwrap();
        let host = client.file().hosts[0].clone();
        let link = client.link(&host, BLOCK_BYTES).unwrap();
        let (mut out, inc) = link.open(TableRequest::Session.text().as_bytes()).unwrap();
        let mut open = vec![OPEN_DATAGRAMS];
        Raw::client(chosen, &mut open);
        1400_u32.put(&mut open);
        let mut inc = inc.takes(&Pool::new(BLOCK_BYTES, 4).unwrap(), 2);
        send_on(&mut out, open);
        let answer = next_on(&mut inc, DATAGRAMS);
        let (session, port) = <(u64, u32)>::take(&mut &answer[..]).unwrap();
        let (sealing, opening) = link.datagrams(session, true).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let node = SocketAddr::from(([127, 0, 0, 1], port as u16));
        let table = u64::from_str_radix(&status(nodes).table.id, 16).unwrap();
        Raw { link, out, inc, chosen, session, node, socket, sealing, opening, table, next: 1 }
    }

    /// A client chooses only the last of the three numbers of its id.
    fn client(chosen: u64, into: &mut Vec<u8>) {
        [0, 0, chosen].iter().for_each(|number| number.put(into));
    }

    /// A datagram that puts a record.
    fn put(&mut self, key: &str, value: &str) -> Vec<u8> {
        let mut bytes = self.requests(key, value, false);
        self.sealing.seal(&mut bytes);
        bytes
    }

    /// A datagram for all nodes that puts a record.
    fn put_to_all(&mut self, sender: &mut Sender, key: &str, value: &str) -> Vec<u8> {
        let mut bytes = self.requests(key, value, true);
        sender.sealing.seal(&mut bytes);
        bytes
    }

    /// A request that puts a record, not yet encrypted.
    fn requests(&mut self, key: &str, value: &str, is_to_all: bool) -> Vec<u8> {
        let mut bytes = vec![0; DATAGRAM_HEAD_BYTES];
        bytes.push(REQUESTS);
        self.table.put(&mut bytes);
        Raw::client(self.chosen, &mut bytes);
        // No path, and no visited buckets.
        bytes.extend([0; 1 + 1]);
        is_to_all.put(&mut bytes);
        // Without an index.
        bytes.push(0);
        self.next.put(&mut bytes);
        1_u32.put(&mut bytes);
        self.next.put(&mut bytes);
        self.next += 1;
        // A request for a record, which upserts it.
        bytes.extend([0, 1]);
        [key, value].iter().for_each(|text| text.to_string().put(&mut bytes));
        bytes
    }

    /// Tells the node this secret, and gets the group.
    fn multicasts(&mut self, secret: [u8; 32]) -> Sender {
        let mut open = vec![OPEN_MULTICAST];
        secret.to_vec().put(&mut open);
        send_on(&mut self.out, open);
        let answer = &mut &next_on(&mut self.inc, MULTICAST)[..];
        let (session, sealing, _) = multicast_datagrams(&secret);
        assert_eq!(u64::take(answer), Some(session));
        let (address, port) = <(u32, u32)>::take(answer).unwrap();
        Sender { sealing, group: SocketAddrV4::new(Ipv4Addr::from_bits(address), port as u16) }
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

/// A client as a sender of multicast datagrams.
struct Sender {
    sealing: DatagramSealing,
    group: SocketAddrV4,
}

fn send_on(out: &mut Outgoing, message: Vec<u8>) {
    let mut frame = (message.len() as u32).to_le_bytes().to_vec();
    frame.extend(message);
    out.send(0, &mut frame).unwrap();
}

/// The fields of the next message on a stream, which must be of this kind.
fn next_on(inc: &mut Incoming, kind: u8) -> Vec<u8> {
    let (_, block) = inc.next_on().unwrap().unwrap();
    assert_eq!(block[4], kind);
    block[5..].to_vec()
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
    let Raw { link, out, inc, socket, node, .. } = client;
    drop((out, inc));
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

/// A socket that multicasts on this machine.
fn towards_loopback() -> UdpSocket {
    multicasts_towards(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)).unwrap()
}

/// What nodes have received and dropped in the multicast group.
fn multicast(shares: &[TableShare]) -> Vec<(u64, u64)> {
    let of = |share: &TableShare| {
        share.multicast.as_ref().map(|TableMulticast { received, dropped, .. }| (*received, *dropped))
    };
    shares.iter().map(|share| of(share).unwrap_or_default()).collect()
}

#[test]
fn what_no_client_multicasts_is_dropped_and_counted_and_never_answered() {
    let nodes = Nodes::start(1);
    nodes.run(&["table", "create", "events"]).is_done();
    let (mut client, mut other) = (Raw::new(&nodes, 7), Raw::new(&nodes, 8));
    let (mut sender, mut foreign) = (client.multicasts([7; 32]), other.multicasts([8; 32]));
    let group = sender.group;
    assert_eq!(group, foreign.group);
    let [ours, stranger] = [(); 2].map(|()| towards_loopback());
    let send = |socket: &UdpSocket, datagram: &[u8]| _ = socket.send_to(datagram, group).unwrap();

    // Nobody can have answers sent to an address that has not sent a datagram of the client's own session.
    let first = client.put_to_all(&mut sender, "a", "first");
    send(&stranger, &first);
    next_on(&mut client.inc, REPLIES);
    let unicast = client.put("a", "unicast");
    client.send(&unicast);
    client.is_answered();
    let second = client.put_to_all(&mut sender, "a", "second");
    send(&stranger, &second);
    client.is_answered();

    let forged = client.put_to_all(&mut sender, "a", "forged");
    let mut changed = forged.clone();
    *changed.last_mut().unwrap() ^= 1;
    // The other client can name this client's session, but has not got its secret.
    let mut named = client.put_to_all(&mut foreign, "a", "foreign");
    named[..8].copy_from_slice(&first[..8]);
    let (_, mut unknown, _) = multicast_datagrams(&[9; 32]);
    let mut strange = client.requests("a", "strange", true);
    unknown.seal(&mut strange);
    // Every node would forward a request that is not for all.
    let mut for_one = client.requests("a", "for one", false);
    sender.sealing.seal(&mut for_one);
    let attacks: Vec<&[u8]> = vec![
        &[],
        &[1],
        &first[..DATAGRAM_EXTRA_BYTES - 1],
        &changed,
        &forged[..forged.len() - 1],
        &named,
        &strange,
        &for_one,
        &first,
        &second,
        &unicast,
    ];
    for attack in &attacks {
        send(&ours, attack);
        send(&stranger, attack);
    }
    let dropped = 2 * attacks.len() as u64;
    // What is multicast is not accepted where one node receives.
    client.send(&forged);

    // The node receives in order, so it has seen everything before this.
    let last = client.put_to_all(&mut sender, "b", "last");
    send(&ours, &last);
    client.is_answered();
    assert_eq!(multicast(&status(&nodes).nodes), [(3, dropped)]);
    assert_eq!(counted(&nodes), (1, 1));
    assert!([&client.socket, &ours, &stranger].into_iter().all(has_nothing));
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    assert_eq!(run(&["range", "events"]).is_done(), "a\tsecond\nb\tlast\n");
}

#[test]
fn a_new_secret_ends_the_earlier_one_and_the_end_of_the_stream_ends_the_new_one() {
    let nodes = Nodes::start(1);
    nodes.run(&["table", "create", "events"]).is_done();
    let mut client = Raw::new(&nodes, 7);
    let mut sender = client.multicasts([7; 32]);
    let mut renewed = client.multicasts([10; 32]);
    let (ours, group) = (towards_loopback(), sender.group);
    let send = |datagram: &[u8]| _ = ours.send_to(datagram, group).unwrap();
    let dropped = || multicast(&status(&nodes).nodes)[0].1;
    let late = client.put_to_all(&mut sender, "a", "late");
    let after = client.put_to_all(&mut renewed, "a", "after");
    send(&late);
    until("the earlier secret is refused", || dropped() == 1);
    let Raw { link, out, inc, .. } = client;
    drop((out, inc));
    link.close();
    until("the session has ended", || {
        send(&after);
        dropped() > 1
    });
    let before = dropped();
    send(&after);
    until("it is dropped", || dropped() > before);
}

#[test]
fn a_secret_is_received_once() {
    let nodes = Nodes::start(1);
    nodes.run(&["table", "create", "events"]).is_done();
    let mut client = Raw::new(&nodes, 7);
    client.multicasts([7; 32]);
    // Otherwise, what was multicast before would be accepted again.
    let mut open = vec![OPEN_MULTICAST];
    vec![7_u8; 32].put(&mut open);
    send_on(&mut client.out, open);
    assert!(!matches!(client.inc.next_on(), Ok(Some(_))), "the stream has ended");
}

#[test]
fn a_client_that_may_only_read_multicasts_no_changes() {
    let nodes = Nodes::start(1);
    nodes.run(&["cluster", "client", "eye", "--may", "status", "--identity", "own"]).is_done();
    nodes.run(&["table", "create", "events"]).is_done();
    let eye = "own/clients/eye";
    until("the node knows the client", || nodes.run_as(eye, &["table", "list"]).status == Some(0));
    let mut client = Raw::of(&nodes, eye, 7);
    let mut sender = client.multicasts([7; 32]);
    let change = client.put_to_all(&mut sender, "a", "1");
    towards_loopback().send_to(&change, sender.group).unwrap();
    next_on(&mut client.inc, REPLIES);
    assert_eq!(multicast(&status(&nodes).nodes), [(0, 1)]);
    assert_eq!(nodes.run(&["table", "count", "events"]).is_done(), "0\n");
    let tables = Tables::load(&nodes.place.0.join(eye), None).unwrap();
    let why = open(&tables, Variant::All).upsert(b"a", b"1").unwrap_err().to_string();
    assert!(why.contains("may only look"), "{why}");
}

fn open(tables: &Tables, variant: Variant) -> Table {
    let options = ClusterOptions { variant, transport: Transport::Udp, ..ClusterOptions::default() };
    Table::open_with(tables, "events", options).unwrap()
}

/// Gets a record until nodes receive the requests by multicast. Some may be lost.
fn is_multicast(table: &Table, seen: impl Fn() -> Vec<(u64, u64)>) {
    until("nodes receive what is multicast", || {
        let before = seen();
        for _ in 0..20 {
            assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        }
        seen().iter().zip(&before).all(|(now, before)| now.0 >= before.0 + 15)
    });
}

#[test]
fn requests_for_all_nodes_are_multicast_also_when_a_node_fails_and_returns() {
    let mut nodes = Nodes::start(3);
    let run = |nodes: &Nodes, args: &[&str]| _ = nodes.run(&[&["table"], args].concat()).is_done();
    run(&nodes, &["create", "events"]);
    run(&nodes, &["put", "events", "a", "1", "m", "2"]);
    until("n2 has a bucket", || nodes.run(&["table", "split", "events", "m", "n2"]).status == Some(0));
    let tables = Tables::load(&nodes.place.0.join("own"), None).unwrap();
    let seen = |nodes: &Nodes, of: &[&str]| {
        let shares = status(nodes).nodes.into_iter().filter(|share| of.contains(&&*share.node));
        multicast(&shares.collect::<Vec<_>>())
    };
    for variant in [Variant::All, Variant::Known] {
        let table = open(&tables, variant);
        table.upsert(b"a", b"1").unwrap();
        assert_eq!(table.get(b"m").unwrap().as_deref(), Some(&b"2"[..]));
    }
    let table = open(&tables, Variant::All);
    is_multicast(&table, || seen(&nodes, &["n1", "n2", "n3"]));
    // The last datagrams of the clients before may have come after these had ended.
    let dropped = || seen(&nodes, &["n1", "n2", "n3"]).into_iter().map(|(_, dropped)| dropped);
    let before: Vec<u64> = dropped().collect();
    is_multicast(&table, || seen(&nodes, &["n1", "n2", "n3"]));
    assert!(dropped().eq(before));
    terminate(&nodes.running[2]);
    nodes.running.remove(2).wait().unwrap();
    is_multicast(&table, || seen(&nodes, &["n1", "n2"]));
    nodes.begin(2);
    until("n3 has it", || nodes.run(&["table", "move", "events", "m", "n3"]).status == Some(0));
    assert_eq!(table.get(b"m").unwrap().as_deref(), Some(&b"2"[..]));
    is_multicast(&table, || seen(&nodes, &["n1", "n2", "n3"]));
    // A change is made once, however often it is sent.
    assert!(table.insert(b"z", b"3").unwrap() && !table.insert(b"z", b"4").unwrap());
}

#[test]
fn where_nothing_that_is_multicast_arrives_requests_travel_to_each_node() {
    let Some(lab) = Lab::up(&["3", "--loss", "1%"]) else { return };
    lab.run(&["table", "create", "events"]).is_done();
    lab.run(&["table", "put", "events", "a", "1"]).is_done();
    let shares =
        || from_json::<TableStatus>(&lab.run(&["table", "status", "events", "--json"]).out).unwrap().nodes;
    let tables = Tables::load(Path::new(&lab.identity), None).unwrap();
    is_multicast(&open(&tables, Variant::All), || multicast(&shares()));

    let filter = |change: &str| {
        let space = lab.space(2);
        let rule = ["-d", "239.0.0.0/8", "-j", "DROP"];
        let done = Command::new("ip")
            .args(["netns", "exec", &space, "iptables", change, "INPUT"])
            .args(rule)
            .status();
        assert!(done.unwrap().success());
    };
    lab.call("kill", &["n2"]);
    lab.call("revive", &["n2"]);
    until("n2 is up", || shares().len() == 3);
    filter("-I");
    let table = open(&tables, Variant::All);
    until("n2 says so", || {
        assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        let failed = |share: &TableShare| share.multicast.as_ref().is_some_and(|of| of.failed.is_some());
        shares().iter().any(|share| share.node == "n2" && failed(share))
    });
    let shown = lab.run(&["table", "status", "events"]);
    assert!(
        shown.is_done().contains("n2: NO MULTICAST: nothing has arrived in the group 239.255."),
        "{shown:?}"
    );
    filter("-D");
    is_multicast(&table, || multicast(&shares()));
}

//! Requests for single records in datagrams to all nodes at once, for clients that ask all of them: RP*N and RP*C of
//! paper 002.
//!
//! ```text
//! client --OpenMulticast--> each node      on its stream, over the link: the secret of the client's datagrams
//! client <--Multicast------ each node      the group
//! client ==Probe==========> the group      and to each node; see thalweg_wire's datagram.rs
//! client <=Probe=========== each node that has received both
//! client ==Requests=======> the group      once every node that is up has answered
//! client <=Replies========= the node that has the records
//! ```
//!
//! Model: the group is derived from the cluster's id: an address for local use (RFC 2365), and a port. Datagrams do not
//! leave the network (TTL 1). Until nodes have answered a probe, and where they never do, the client sends its requests
//! to each node (datagrams.rs). Nodes answer in the client's session of datagrams.
//! Invariant: what a node accepts was sent by the client of its link, once, and may do what that client's certificate
//! may do. A client gives a secret to a node once: when a stream to a node ends, it takes a new one, so neither a node
//! that was dropped nor one that was restarted accepts or sends anything under the old one.
//! Non-goals: a secret of all clients, from which one could derive the key of another; scans; IPv6.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Mutex, Weak};

use thalweg_api::TableMulticast;
use thalweg_io::socket;
use thalweg_wire::{
    DATAGRAM_SECRET_BYTES, DatagramOpening, DatagramSealing, datagram_session, multicast_datagrams, new_id,
};

use super::client::Sent;
use super::datagrams::{Counts, Datagrams, Session, ToNode, may_arrive, receive, receiving, sealed};
use super::image::Address;
use super::message::{Message, Requests};
use super::stream::locked;

/// The first two bytes of the group's address: the local scope of RFC 2365.
const SCOPE: [u8; 2] = [239, 255];
/// The group's port is one of so many from the first one on, below those that Linux gives to sockets without a number.
const FIRST_PORT: u16 = 20_480;
const PORTS: u16 = 8_192;
/// A probe is repeated after this time, which doubles up to the longest one.
const PROBE_MS: u64 = 50;
const PROBE_MS_MAX: u64 = 10_000;
/// How long requests after the first ones wait until they can be multicast. Sent to each server instead, they would fill
/// the link of the client for longer, and those that are not answered by then would be sent again.
const HELD_MS: u64 = 200;

/// The group of a cluster with this id.
fn group_of(cluster: &str) -> Option<SocketAddrV4> {
    let number = u32::from_str_radix(cluster.get(..8)?, 16).ok()?;
    let [a, b, port @ ..] = number.to_be_bytes();
    let port = FIRST_PORT + u16::from_be_bytes(port) % PORTS;
    Some(SocketAddrV4::new(Ipv4Addr::new(SCOPE[0], SCOPE[1], a, b), port))
}

/// What a node receives in the group.
pub(crate) struct Group {
    address: SocketAddrV4,
    socket: UdpSocket,
    senders: Mutex<HashMap<u64, Arc<Sender>>>,
    counts: Counts,
}

/// A client that multicasts.
struct Sender {
    session: Arc<Session>,
    opening: Mutex<DatagramOpening>,
}

impl Group {
    /// Joins the group of a cluster, at the interface of the node's address.
    pub(crate) fn join(cluster: &str, node: SocketAddr) -> Result<Group, String> {
        let SocketAddr::V4(node) = node else { return Err("multicast needs an IPv4 address".into()) };
        let address = group_of(cluster).ok_or("the cluster has no id")?;
        let joined = socket::join(address, *node.ip()).and_then(receiving);
        let socket = joined.map_err(|why| format!("{address} cannot be joined at {}: {why}", node.ip()))?;
        Ok(Group { address, socket, senders: Mutex::default(), counts: Counts::default() })
    }

    /// Receives what the client of a session multicasts with this secret. Returns the number of the sender, and the
    /// message that tells the client. `None` if that is received already.
    pub(crate) fn open(&self, secret: &[u8], session: &Arc<Session>) -> Option<(u64, Message)> {
        let (number, _, opening) = multicast_datagrams(secret.try_into().ok()?);
        let mut senders = locked(&self.senders);
        if senders.contains_key(&number) {
            return None;
        }
        let sender = Sender { session: Arc::clone(session), opening: Mutex::new(opening) };
        senders.insert(number, Arc::new(sender));
        let (group, port) = (self.address.ip().to_bits(), u32::from(self.address.port()));
        Some((number, Message::Multicast { session: number, group, port }))
    }

    /// Ends what a client multicasts.
    pub(crate) fn close(&self, number: u64) {
        locked(&self.senders).remove(&number);
    }

    /// The session and the message of a datagram, if a client may multicast it.
    fn open_datagram(&self, datagram: &mut [u8]) -> Option<(Arc<Session>, Message)> {
        let sender = locked(&self.senders).get(&datagram_session(datagram)?).cloned()?;
        let message = Message::decode(locked(&sender.opening).open(datagram).ok()?)?;
        let is_to_all = !matches!(message, Message::Requests(Requests { is_to_all: false, .. }));
        (is_to_all && may_arrive(&message)).then(|| (Arc::clone(&sender.session), message))
    }

    /// What has been received.
    pub(crate) fn shown(&self) -> TableMulticast {
        let (received, dropped) = self.counts.get();
        let failed = (received == 0).then(|| {
            format!("nothing has arrived in the group {}, which all nodes have to join", self.address)
        });
        TableMulticast { group: self.address.to_string(), received, dropped, failed }
    }

    /// Receives datagrams until `is_needed` is false. Answers probes, and gives requests to `take`.
    pub(crate) fn run(
        &self,
        datagrams: &Datagrams,
        is_needed: impl Fn() -> bool,
        take: impl Fn(&Session, Requests),
    ) {
        receive(&self.socket, |datagram| {
            let Some((datagram, _)) = datagram else { return is_needed() };
            let opened = self.open_datagram(datagram);
            // What `take` refuses is counted, too.
            self.counts.add(opened.as_ref().is_some_and(|(session, message)| session.may_send(message)));
            match opened {
                Some((session, Message::Requests(requests))) => take(&session, requests),
                Some((session, probe)) => datagrams.answer(&session, &probe),
                None => {}
            }
            true
        });
    }
}

/// What a client has asked a node, and what the node has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The node has not got the present secret.
    New,
    Asked,
    Joined,
    /// The node has received a probe.
    Receives,
}

/// A node with which a client has a session of datagrams.
struct Member {
    session: u64,
    node: Weak<ToNode>,
    stage: Stage,
}

/// The multicast of a client.
pub(crate) struct Multicast {
    /// The most bytes of a datagram.
    bytes: usize,
    servers: Vec<Address>,
    members: BTreeMap<Address, Member>,
    /// Servers that cannot be reached.
    down: BTreeSet<Address>,
    secret: [u8; DATAGRAM_SECRET_BYTES],
    session: u64,
    sealing: DatagramSealing,
    /// The group, as soon as a node has named it.
    group: Option<(UdpSocket, SocketAddrV4)>,
    /// When the next probe is due, and how long after it another one.
    due_ms: u64,
    wait_ms: u64,
    /// When there were first requests for the servers that the present secret is for.
    begun_ms: Option<u64>,
}

/// A new secret.
fn secret() -> [u8; DATAGRAM_SECRET_BYTES] {
    let mut secret = [0; DATAGRAM_SECRET_BYTES];
    secret.chunks_exact_mut(16).for_each(|half| half.copy_from_slice(&new_id().0.to_le_bytes()));
    secret
}

impl Multicast {
    /// A client of these servers, before there are sessions.
    pub(crate) fn new(servers: Vec<Address>, bytes: usize) -> Multicast {
        let secret = secret();
        let (session, sealing, _) = multicast_datagrams(&secret);
        let (members, down) = (BTreeMap::new(), BTreeSet::new());
        let (due_ms, wait_ms) = (0, PROBE_MS);
        let (group, begun_ms) = (None, None);
        Multicast {
            bytes,
            servers,
            members,
            down,
            secret,
            session,
            sealing,
            group,
            due_ms,
            wait_ms,
            begun_ms,
        }
    }

    /// Handles a new session of datagrams with a server.
    pub(crate) fn opened(&mut self, server: &Address, session: u64, node: Weak<ToNode>) {
        self.down.remove(server);
        let member = Member { session, node, stage: Stage::New };
        if self.members.insert(server.clone(), member).is_some() {
            self.renew();
        }
    }

    /// Handles the end of the stream to a server, which had this session of datagrams, or the failure to open one.
    pub(crate) fn ended(&mut self, server: &Address, session: Option<u64>) {
        if self.members.get(server).map(|member| member.session) != session {
            return;
        }
        self.down.insert(server.clone());
        if self.members.remove(server).is_some() {
            self.renew();
        }
    }

    /// Takes a new secret, which no server has got yet.
    fn renew(&mut self) {
        self.secret = secret();
        (self.session, self.sealing, _) = multicast_datagrams(&self.secret);
        self.begun_ms = None;
        self.members.values_mut().for_each(|member| member.stage = Stage::New);
        (self.due_ms, self.wait_ms) = (0, PROBE_MS);
    }

    /// Handles the answer of a server that it receives what is sent to the group in this session. A server cannot make
    /// the client send to an address that is no group.
    pub(crate) fn joined(&mut self, server: &Address, session: u64, group: SocketAddrV4) {
        let is_sound = session == self.session && group.ip().octets().starts_with(&SCOPE);
        let Some(member) = self.members.get_mut(server).filter(|_| is_sound) else { return };
        member.stage = Stage::Joined;
        (self.due_ms, self.wait_ms) = (0, PROBE_MS);
        if self.group.is_none()
            && let Some(SocketAddr::V4(node)) = member.node.upgrade().map(|node| node.address())
        {
            self.group = socket::multicasts_towards(node).ok().map(|socket| (socket, group));
        }
    }

    /// Handles the answer of a server to a probe.
    pub(crate) fn received(&mut self, server: &Address, session: u64) {
        if let Some(member) = self.members.get_mut(server).filter(|_| session == self.session) {
            member.stage = Stage::Receives;
        }
    }

    /// Handles requests that no server has answered: perhaps not all receive what is multicast any more.
    pub(crate) fn doubt(&mut self) {
        let receives = self.members.values_mut().filter(|member| member.stage == Stage::Receives);
        receives.for_each(|member| member.stage = Stage::Joined);
    }

    /// Sends a probe if one is due, once all servers have joined that are up. Returns messages for servers.
    pub(crate) fn step(&mut self, now_ms: u64) -> Vec<Sent> {
        let probe = Message::Probe { session: self.session };
        let mut sent = Vec::new();
        for (server, member) in self.members.iter_mut().filter(|(_, member)| member.stage == Stage::New) {
            member.stage = Stage::Asked;
            let message = Message::OpenMulticast { secret: self.secret.as_slice().into() };
            sent.push(Sent { to: vec![server.clone()], message, is_datagram: false });
            // From this the node learns where to send its answers.
            member.node.upgrade().inspect(|node| _ = node.send(&probe));
        }
        if self.all_are(Stage::Joined) && !self.all_are(Stage::Receives) && now_ms >= self.due_ms {
            let joined = self.members.values().filter(|member| member.stage == Stage::Joined);
            joined.filter_map(|member| member.node.upgrade()).for_each(|node| _ = node.send(&probe));
            self.multicast(&probe);
            self.due_ms = now_ms + self.wait_ms;
            self.wait_ms = (2 * self.wait_ms).min(PROBE_MS_MAX);
        }
        sent
    }

    /// Whether requests wait for a moment. The first ones do not: with them the servers are reached.
    pub(crate) fn holds(&mut self, now_ms: u64) -> bool {
        let is_first = self.begun_ms.is_none();
        let begun_ms = *self.begun_ms.get_or_insert(now_ms);
        !is_first && now_ms < begun_ms + HELD_MS && !self.all_are(Stage::Receives)
    }

    /// Whether all servers that are up have reached a stage.
    fn all_are(&self, least: Stage) -> bool {
        let is_there = |server| self.members.get(server).is_some_and(|member| member.stage >= least);
        let is_sound = |server| self.down.contains(server) || is_there(server);
        !self.members.is_empty() && self.servers.iter().all(is_sound)
    }

    /// Multicasts a message, if all servers that are up receive that, and it fits into a datagram.
    pub(crate) fn send(&mut self, message: &Message) -> bool {
        self.all_are(Stage::Receives) && self.multicast(message)
    }

    fn multicast(&mut self, message: &Message) -> bool {
        let Some((socket, group)) = &self.group else { return false };
        let datagram = sealed(&mut self.sealing, message, self.bytes);
        datagram.is_some_and(|datagram| socket.send_to(&datagram, group).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(SCOPE[0], SCOPE[1], 0, 1), 1);

    /// Gives the secret to the servers that have not got it. Returns it, and which got it.
    fn given(client: &mut Multicast) -> Vec<(String, Box<[u8]>)> {
        let secret = |sent: Sent| match sent.message {
            Message::OpenMulticast { secret } => (sent.to[0].to_string(), secret),
            other => panic!("{other:?}"),
        };
        client.step(0).into_iter().map(secret).collect()
    }

    /// Lets servers join and receive.
    fn receive(client: &mut Multicast, servers: &[Address]) {
        let session = client.session;
        for server in servers {
            client.joined(server, session, GROUP);
            client.received(server, session);
        }
    }

    #[test]
    fn no_server_gets_a_secret_twice_and_all_that_are_up_have_to_receive() {
        let servers: Vec<Address> = ["n1", "n2"].map(Address::from).to_vec();
        let mut client = Multicast::new(servers.clone(), 1400);
        let mut all = Vec::new();
        (1..).zip(&servers).for_each(|(session, server)| client.opened(server, session, Weak::new()));
        all.extend(given(&mut client));
        assert_eq!(all.len(), 2);
        receive(&mut client, &servers[..1]);
        assert!(!client.all_are(Stage::Receives), "n2 has not answered");
        receive(&mut client, &servers[1..]);
        assert!(client.all_are(Stage::Receives));
        client.doubt();
        assert!(!client.all_are(Stage::Receives));
        receive(&mut client, &servers);

        // A late notice of the end of an earlier stream changes nothing; the end of this one ends the secret.
        client.ended(&servers[1], Some(9));
        assert!(client.all_are(Stage::Receives));
        let earlier = client.session;
        client.ended(&servers[1], Some(2));
        assert!(!client.all_are(Stage::Receives));
        client.received(&servers[0], earlier);
        all.extend(given(&mut client));
        assert!(
            !client.all_are(Stage::Receives),
            "an answer about the earlier secret is none about this one"
        );
        receive(&mut client, &servers[..1]);
        assert!(client.all_are(Stage::Receives), "n2 is down");

        client.opened(&servers[1], 3, Weak::new());
        assert!(!client.all_are(Stage::Receives), "n2 is back");
        all.extend(given(&mut client));
        client.opened(&servers[1], 4, Weak::new());
        all.extend(given(&mut client));
        let of = |server: &str| {
            all.iter().filter(|(to, _)| to == server).map(|(_, secret)| &secret[..]).collect::<Vec<_>>()
        };
        let distinct = |secrets: &[&[u8]]| secrets.iter().collect::<BTreeSet<_>>().len() == secrets.len();
        assert!(distinct(&of("n1")) && distinct(&of("n2")) && all.len() == 6, "{all:?}");
    }

    #[test]
    fn a_server_cannot_name_an_address_that_is_no_group() {
        let server = Address::from("n1");
        let mut client = Multicast::new(vec![server.clone()], 1400);
        client.opened(&server, 1, Weak::new());
        client.step(0);
        client.joined(&server, client.session, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));
        assert!(!client.all_are(Stage::Joined));
        client.joined(&server, client.session, GROUP);
        assert!(client.all_are(Stage::Joined));
    }

    #[test]
    fn probes_become_rare_where_none_is_answered() {
        let server = Address::from("n1");
        let mut client = Multicast::new(vec![server.clone()], 1400);
        client.opened(&server, 1, Weak::new());
        client.step(0);
        client.joined(&server, client.session, GROUP);
        let mut probes = Vec::new();
        for now_ms in (1..60_000).step_by(10) {
            let due_ms = client.due_ms;
            client.step(now_ms);
            probes.extend((client.due_ms != due_ms).then_some(now_ms));
        }
        assert_eq!(probes.len(), 13, "{probes:?}");
    }

    #[test]
    fn the_group_of_a_cluster_is_local_and_has_a_port_that_linux_does_not_give_away() {
        let group = group_of("0a0b2001ffffffffffffffffffffffff").unwrap();
        assert_eq!(group.to_string(), "239.255.10.11:20481");
        assert_eq!(group_of("none"), None);
    }
}

//! Datagrams between a client and a node, beside the stream of the client's requests.
//!
//! ```text
//! client --OpenDatagrams--> node      on the stream, over the link
//! client <--Datagrams------ node      the session, and the node's port
//! client ==Requests=======> node      datagrams, encrypted; see thalweg_wire's datagram.rs
//! client <=Replies========= node
//! ```
//! multicast.rs adds datagrams to all nodes.
//!
//! Model: each datagram holds a message. A client sends requests for single records; whatever does not fit into a
//! datagram travels on the stream. Lost datagrams are sent again by client.rs, and the journal recognises them.
//! Invariant: a session ends with its stream. A datagram that was not encrypted by the client of its session, or that
//! arrived before, is counted and dropped; it is never answered. Answers go to the address of the first authentic one.
//! Non-goals: congestion control, beyond the limit of outstanding requests.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use thalweg_base::codec::Plain;
use thalweg_io::socket;
use thalweg_wire::{
    DATAGRAM_EXTRA_BYTES, DATAGRAM_HEAD_BYTES, DatagramOpening, DatagramSealing, Link, datagram_session,
    new_id,
};

use super::journal::ClientId;
use super::message::{Ask, Message, Replies, Requests};
use super::stream::locked;

/// The most bytes of a datagram: in a network, less than its packets have, and on one machine less than UDP allows.
pub(crate) const NETWORK_BYTES: usize = 1400;
pub(crate) const MACHINE_BYTES: usize = 60 << 10;
/// The most bytes of datagrams that wait in the kernel, if it allows that many.
const WAITING_BYTES: usize = 4 << 20;
/// How often a thread that receives datagrams checks whether it is still needed.
const LOOKS: Duration = Duration::from_secs(1);

/// One end of a session.
struct End {
    sealing: Mutex<DatagramSealing>,
    opening: Mutex<DatagramOpening>,
    /// The most bytes of a datagram.
    bytes: usize,
}

impl End {
    fn new(link: &Link, session: u64, is_client: bool, bytes: usize) -> Option<End> {
        let (sealing, opening) = link.datagrams(session, is_client)?;
        Some(End { sealing: Mutex::new(sealing), opening: Mutex::new(opening), bytes })
    }

    /// A datagram with this message, unless it is too long.
    fn datagram(&self, message: &Message) -> Option<Vec<u8>> {
        sealed(&mut locked(&self.sealing), message, self.bytes)
    }

    /// The message of a datagram of the other end.
    fn message(&self, datagram: &mut [u8]) -> Option<Message> {
        let opened = locked(&self.opening).open(datagram).ok()?;
        Message::decode(opened)
    }
}

/// A datagram with a message, unless it has more than `bytes_max` bytes.
pub(super) fn sealed(sealing: &mut DatagramSealing, message: &Message, bytes_max: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; DATAGRAM_HEAD_BYTES];
    message.put(&mut bytes);
    if bytes.len() - DATAGRAM_HEAD_BYTES + DATAGRAM_EXTRA_BYTES > bytes_max {
        return None;
    }
    sealing.seal(&mut bytes);
    Some(bytes)
}

/// Receives datagrams until `take` returns false, which is also called when none has arrived for a while.
pub(super) fn receive(socket: &UdpSocket, mut take: impl FnMut(Option<(&mut [u8], SocketAddr)>) -> bool) {
    let mut buffer = vec![0; u16::MAX.into()];
    loop {
        let is_needed = match socket.recv_from(&mut buffer) {
            Ok((len, from)) => take(Some((&mut buffer[..len], from))),
            Err(_) => take(None),
        };
        if !is_needed {
            return;
        }
    }
}

fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    UdpSocket::bind(address).and_then(receiving)
}

/// A socket that is about to receive datagrams.
pub(super) fn receiving(socket: UdpSocket) -> std::io::Result<UdpSocket> {
    socket::hold_datagrams(&socket, WAITING_BYTES);
    socket.set_read_timeout(Some(LOOKS))?;
    Ok(socket)
}

/// The number of datagrams that were received, without those that were dropped; and of those.
#[derive(Default)]
pub(super) struct Counts {
    received: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, is_received: bool) {
        let count = if is_received { &self.received } else { &self.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }
}

/// The datagrams of a node.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(super) counts: Counts,
}

/// The session of a client, at its node.
pub(crate) struct Session {
    pub(super) client: ClientId,
    /// Whether it may change records.
    pub(super) may_change: bool,
    /// The number of the session, which only its two ends know before the first datagram.
    number: u64,
    end: End,
    /// Where the client is.
    to: Mutex<Option<SocketAddr>>,
}

impl Session {
    /// Whether its client may do all that a message asks for.
    pub(super) fn may_send(&self, message: &Message) -> bool {
        let is_read = |requests: &Requests| requests.asks.iter().all(|(_, ask)| ask.is_read());
        self.may_change || !matches!(message, Message::Requests(requests) if !is_read(requests))
    }
}

impl Datagrams {
    /// Datagrams at the address of the node, if possible with the number of its port.
    pub(crate) fn at(address: Option<SocketAddr>) -> std::io::Result<Datagrams> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let own = address.unwrap_or(any);
        let socket = bind(own).or_else(|_| bind(SocketAddr::new(own.ip(), 0))).or_else(|_| bind(any))?;
        Ok(Datagrams { socket, sessions: Mutex::default(), counts: Counts::default() })
    }

    /// Opens a session beside a link, and returns it with the message that tells the client.
    pub(crate) fn open(
        self: &Arc<Self>,
        link: &Link,
        client: ClientId,
        bytes: u32,
        may_change: bool,
    ) -> Option<(Arc<Session>, Message)> {
        let number = new_id().0 as u64;
        let end = End::new(link, number, false, (bytes as usize).min(MACHINE_BYTES))?;
        let port = self.socket.local_addr().ok()?.port();
        let session = Session { client, may_change, number, end, to: Mutex::default() };
        let session = Arc::new(session);
        locked(&self.sessions).insert(number, Arc::clone(&session));
        Some((session, Message::Datagrams { session: number, port: u32::from(port) }))
    }

    /// Ends a session.
    pub(crate) fn close(&self, session: &Session) {
        locked(&self.sessions).remove(&session.number);
    }

    /// Receives requests until `is_needed` is false, and gives them to `take` with the client that sent them, and
    /// whether it may change records.
    pub(crate) fn run(&self, is_needed: impl Fn() -> bool, take: impl Fn(ClientId, bool, Requests)) {
        receive(&self.socket, |datagram| {
            let Some((datagram, from)) = datagram else { return is_needed() };
            let opened = self.open_datagram(datagram, from);
            self.counts.add(opened.is_some());
            if let Some((session, Message::Requests(requests))) = opened {
                take(session.client, session.may_change, requests);
            }
            true
        });
    }

    /// The message of a datagram from this address, if a client may send it.
    fn open_datagram(&self, datagram: &mut [u8], from: SocketAddr) -> Option<(Arc<Session>, Message)> {
        let session = locked(&self.sessions).get(&datagram_session(datagram)?).cloned()?;
        let message = session.end.message(datagram)?;
        let is_from = *locked(&session.to).get_or_insert(from) == from;
        (is_from && may_arrive(&message)).then_some((session, message))
    }

    /// Sends a message to a client, if it fits into a datagram and an authentic one of the client has arrived.
    pub(super) fn answer(&self, session: &Session, message: &Message) {
        let to = *locked(&session.to);
        if let (Some(to), Some(datagram)) = (to, session.end.datagram(message)) {
            // A datagram that cannot be sent is like one that is lost.
            let _ = self.socket.send_to(&datagram, to);
        }
    }

    /// Sends replies as far as they fit into datagrams. Returns the rest.
    pub(crate) fn send(&self, session: &Session, replies: Replies) -> Option<Replies> {
        let to = *locked(&session.to);
        match to {
            Some(to) => self.send_parts(session, to, replies),
            None => Some(replies),
        }
    }

    fn send_parts(&self, session: &Session, to: SocketAddr, replies: Replies) -> Option<Replies> {
        let message = Message::Replies(replies);
        if let Some(datagram) = session.end.datagram(&message) {
            // A datagram that cannot be sent is like one that is lost.
            let _ = self.socket.send_to(&datagram, to);
            return None;
        }
        let Message::Replies(mut replies) = message else { unreachable!("they are replies") };
        if replies.outcomes.len() < 2 {
            return Some(replies);
        }
        let half = replies.outcomes.split_off(replies.outcomes.len() / 2);
        let others =
            Replies { adjustment: Vec::new(), trace: None, outcomes: half, path: Vec::new(), ..replies };
        let rest = [replies, others].map(|part| self.send_parts(session, to, part));
        rest.into_iter().flatten().reduce(|mut all, more| {
            all.outcomes.extend(more.outcomes);
            all
        })
    }
}

/// Whether a client may send this message in a datagram.
pub(super) fn may_arrive(message: &Message) -> bool {
    match message {
        Message::Requests(requests) => requests.asks.iter().all(|(_, ask)| matches!(**ask, Ask::Record(_))),
        Message::Probe { .. } => true,
        _ => false,
    }
}

/// The datagrams of a client to one node.
pub(crate) struct ToNode {
    socket: UdpSocket,
    node: SocketAddr,
    end: End,
}

impl ToNode {
    /// The client's end of a session beside a link.
    pub(crate) fn new(link: &Link, session: u64, node: SocketAddr, bytes: usize) -> Option<ToNode> {
        let any = if node.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = bind(any.parse().expect("an address")).ok()?;
        Some(ToNode { socket, node, end: End::new(link, session, true, bytes)? })
    }

    /// Where the node receives them.
    pub(super) fn address(&self) -> SocketAddr {
        self.node
    }

    /// Sends a message, if it fits into a datagram and can be sent.
    pub(crate) fn send(&self, message: &Message) -> bool {
        let datagram = self.end.datagram(message);
        datagram.is_some_and(|datagram| self.socket.send_to(&datagram, self.node).is_ok())
    }

    /// Receives messages until `take` returns false or the other owners have dropped this end.
    pub(crate) fn run(weak: &Weak<ToNode>, mut take: impl FnMut(Message) -> bool) {
        let Some(Ok(socket)) = weak.upgrade().map(|to| to.socket.try_clone()) else { return };
        receive(&socket, |datagram| {
            let Some(to) = weak.upgrade() else { return false };
            datagram.and_then(|(datagram, _)| to.end.message(datagram)).is_none_or(&mut take)
        });
    }
}

//! The state of a client of a table, without threads, sockets or a clock: its requests, and its image of the buckets.
//!
//! Model: a request goes to the bucket of its key, or to the nearest known one before it (RP*Cu in paper 002), at first
//! to the server that had the first bucket, the table's *home*. A client of another [`Variant`] asks all servers. Servers
//! forward requests for others' records, and replies say where these were. An unanswered request is sent again with the
//! same number, every other time by way of the home. When a server is gone or has lost its buckets, all servers are
//! asked which buckets they have.
//! Invariant: a request has one outcome, and a change is made once, however often it is sent. With one request
//! outstanding, at most k - 1 requests of a new client of k buckets are forwarded.
//! Non-goals: the number of outstanding requests, and threads that wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_base::codec::number_bytes;

use super::image::{Address, Image};
use super::index_message::{Descent, LEVELS_MAX};
use super::interval::{Interval, Point};
use super::journal::ClientId;
use super::message::{Ask, Message, Outcome, Refused, Replies, Requests, TableId};
use super::numbers::NumberMap;

/// The time after which an unanswered request is sent again.
const RESEND_MS: u64 = 1_000;
/// The time after which a request is sent again that was refused for a temporary reason.
const PAUSE_MS: u64 = 100;
/// How long a request is tried, and how long if no server knows its records: a bucket that moves is known by then.
const GIVE_UP_MS: u64 = 10_000;
const LOST_MS: u64 = 2_000;
/// How often a request whose records no server knows is tried at the least, however slow messages are.
const LOST_TRIES: u32 = 6;
/// A server has been silent if it has not said for this long which buckets it has. It is asked every second.
const SILENT_MS: u64 = GIVE_UP_MS / 2;
/// How long to wait until buckets are split, merged or moved.
const ARRANGE_MS: u64 = 120_000;
/// The time of the next attempt of a request that is about to be sent.
const QUEUED: u64 = u64::MAX;
/// The most bytes of requests in a message over a link, beyond one request.
const MESSAGE_BYTES: usize = 64 << 10;
/// The bytes of most requests without their numbers, keys and values, and of a message and its datagram without requests.
const REQUEST_EXTRA_BYTES: usize = 5;
const MESSAGE_EXTRA_BYTES: usize = 86;
/// An unanswered datagram is sent again after this time and twice the usual time of an answer, which double each time;
/// after so many datagrams the link is used.
const RESEND_DATAGRAM_MS: u64 = 50;
const DATAGRAMS_MAX: u32 = 3;

/// How a client finds the server of a key: the variants of RP* in paper 002.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// RP*N: it asks all servers, and only the one that has the key answers.
    All,
    /// RP*C: it asks the server that had the key, as far as it knows, or else all servers.
    Known,
    /// RP*Cu: it asks the server that had the key, or else that of the nearest range before it.
    #[default]
    Nearest,
    /// RP*S: it asks the server that had the key, or else goes down the pages of the table's index, as far as it knows
    /// them, from server to server. Only for a table with an index.
    Indexed,
}

impl Variant {
    /// The word for each of them.
    pub const WORDS: [(&str, Variant); 4] =
        [("n", Variant::All), ("c", Variant::Known), ("cu", Variant::Nearest), ("s", Variant::Indexed)];

    /// The variant with this word.
    pub fn of(word: &str) -> Option<Variant> {
        Variant::WORDS.iter().find(|(name, _)| *name == word).map(|(_, variant)| *variant)
    }
}

/// How the requests of a client for single records travel. Everything else travels over links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Over links.
    #[default]
    Links,
    /// In datagrams (UDP), each with as many requests as it can hold.
    Udp,
    /// In datagrams with one request each, as in paper 002. Only for comparisons.
    UdpSingle,
}

/// A message for servers.
pub(crate) struct Sent {
    pub(crate) to: Vec<Address>,
    pub(crate) message: Message,
    /// Whether it may travel as a datagram.
    pub(crate) is_datagram: bool,
}

impl Sent {
    /// The message for each server.
    pub(crate) fn each(self) -> impl Iterator<Item = (Address, Message)> {
        let Sent { to, message, .. } = self;
        to.into_iter().map(move |to| (to, message.clone()))
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    Refused(Refused),
    /// These servers did not answer: the one that has the key, if that is known, or else all that may have it. Others
    /// said that they do not have it.
    Silent {
        silent: Vec<Address>,
        without: Vec<Address>,
    },
    /// For this reason, it is not known whether a change was made.
    Uncertain(Box<Failed>),
}

struct Pending {
    ask: Arc<Ask>,
    /// The server, or `None` for all.
    to: Option<Address>,
    descent: Descent,
    asked_ms: u64,
    /// When it was asked, or a server last answered that it has to wait.
    born_ms: u64,
    due_ms: u64,
    sent_ms: u64,
    tries: u32,
    /// The reason of the latest refusal.
    refused: Option<Refused>,
}

/// A client of a table.
pub(crate) struct Client {
    id: ClientId,
    table: TableId,
    home: Address,
    variant: Variant,
    pub(crate) image: Image,
    /// Where the pages of each level of the index are, as far as is known.
    pages: [Image; LEVELS_MAX],
    next: u64,
    pending: NumberMap<Pending>,
    /// All requests with lower numbers have their outcomes.
    done_below: u64,
    /// Requests to be sent.
    queued: Vec<u64>,
    /// All servers.
    servers: Vec<Address>,
    /// When a server last said which buckets it has, and their keys.
    placed: BTreeMap<Address, (u64, Vec<Interval>)>,
    /// Whether a server did not know where some records are, or is gone.
    is_astray: bool,
    /// Whether records that are lost with a server are recovered.
    is_recovered: bool,
    /// The most bytes of requests in a datagram, beyond one request, if datagrams are used.
    datagram_bytes: Option<usize>,
    /// The usual time from a request in a datagram to its answer.
    answer_ms: u64,
}

impl Client {
    /// A client that knows only the home of a table.
    pub(crate) fn new(
        id: ClientId,
        (table, home): (TableId, Address),
        servers: Vec<Address>,
        variant: Variant,
    ) -> Client {
        Client {
            id,
            table,
            home,
            variant,
            image: Image::default(),
            pages: Default::default(),
            next: 1,
            pending: NumberMap::default(),
            done_below: 1,
            queued: Vec::new(),
            servers,
            placed: BTreeMap::new(),
            is_astray: false,
            is_recovered: false,
            datagram_bytes: None,
            answer_ms: 0,
        }
    }

    /// Sends requests for single records in datagrams of at most `datagram_bytes` bytes.
    pub(crate) fn in_datagrams(self, datagram_bytes: usize) -> Client {
        Client { datagram_bytes: Some(datagram_bytes.saturating_sub(MESSAGE_EXTRA_BYTES)), ..self }
    }

    /// Records that no server knows may be about to be recovered, as the table has parity.
    pub(crate) fn of_recovered(self, is_recovered: bool) -> Client {
        Client { is_recovered, ..self }
    }

    /// Its id.
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// The number of requests without an outcome.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Whether the request with this number has no outcome yet.
    pub(crate) fn is_outstanding(&self, number: u64) -> bool {
        self.pending.contains_key(&number)
    }

    /// Whether there are messages to send.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty() || self.is_astray
    }

    /// The server to which requests for the point of `ask` are sent, `None` for all, and how they continue there.
    fn route(&self, ask: &Ask) -> (Option<Address>, Descent) {
        let point = ask.point();
        let element = match self.variant {
            Variant::All => None,
            Variant::Known | Variant::Indexed => self.image.owner(point),
            Variant::Nearest => self.image.route(point),
        };
        let page = self.pages.iter().find_map(|level| level.owner(point));
        match (element, page) {
            (Some(bucket), _) => (Some(bucket.address.clone()), Descent::No),
            (None, Some(page)) => (Some(page.address.clone()), Descent::Page),
            (None, None) => self.anywhere(),
        }
    }

    /// Where requests go whose server is not known.
    fn anywhere(&self) -> (Option<Address>, Descent) {
        match self.variant {
            Variant::All | Variant::Known => (None, Descent::No),
            Variant::Nearest => (Some(self.home.clone()), Descent::No),
            Variant::Indexed => (Some(self.home.clone()), Descent::Root),
        }
    }

    /// Forgets the bucket and the page because of which requests for a point are sent to this server.
    fn forget(image: &mut Image, pages: &mut [Image], point: Point<'_>, server: &Address) {
        [image].into_iter().chain(pages).for_each(|image| image.forget(point, server));
    }

    /// Adds a request, and returns its number.
    pub(crate) fn ask(&mut self, now_ms: u64, ask: Arc<Ask>) -> u64 {
        let number = self.next;
        self.next += 1;
        let (to, descent) = self.route(&ask);
        let pending = Pending {
            ask,
            to,
            descent,
            asked_ms: now_ms,
            born_ms: now_ms,
            due_ms: QUEUED,
            sent_ms: 0,
            tries: 0,
            refused: None,
        };
        self.pending.insert(number, pending);
        self.queued.push(number);
        number
    }

    /// Messages with all requests that are due.
    pub(crate) fn messages(&mut self, now_ms: u64) -> Vec<Sent> {
        while self.done_below < self.next && !self.pending.contains_key(&self.done_below) {
            self.done_below += 1;
        }
        let done_below = self.done_below;
        let mut messages: BTreeMap<(Option<Address>, Descent, bool), (Requests, usize)> = BTreeMap::new();
        let mut full = Vec::new();
        for number in std::mem::take(&mut self.queued) {
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            let datagram_bytes =
                self.datagram_bytes.filter(|_| pending.fits_datagram() && pending.descent == Descent::No);
            let resend_ms = |_| (RESEND_DATAGRAM_MS + 2 * self.answer_ms) << pending.tries;
            pending.due_ms = now_ms + datagram_bytes.map_or(RESEND_MS, resend_ms);
            pending.sent_ms = now_ms;
            pending.tries += 1;
            let empty = || Requests {
                table: self.table,
                client: self.id,
                path: Vec::new(),
                visited: Vec::new(),
                is_to_all: pending.to.is_none(),
                descent: pending.descent,
                done_below,
                asks: Vec::new(),
            };
            let to = (pending.to.clone(), pending.descent, datagram_bytes.is_some());
            let (requests, bytes) = messages.entry(to).or_insert_with(|| (empty(), 0));
            let more = number_bytes(number) + pending.ask.bytes() + REQUEST_EXTRA_BYTES;
            if *bytes + more > datagram_bytes.unwrap_or(MESSAGE_BYTES) && *bytes > 0 {
                let to = (pending.to.clone(), datagram_bytes.is_some());
                full.push((to, std::mem::replace(requests, empty())));
                *bytes = 0;
            }
            requests.asks.push((number, Arc::clone(&pending.ask)));
            *bytes += more;
        }
        let mut sent = Vec::new();
        let rest =
            messages.into_iter().map(|((to, _, is_datagram), (requests, _))| ((to, is_datagram), requests));
        for ((to, is_datagram), requests) in full.into_iter().chain(rest) {
            let to = to.map_or_else(|| self.servers.clone(), |to| vec![to]);
            sent.push(Sent { to, message: Message::Requests(requests), is_datagram });
        }
        if self.is_astray {
            let message = Message::Where { table: self.table, client: self.id };
            sent.push(Sent { to: self.servers.clone(), message, is_datagram: false });
        }
        self.is_astray = false;
        sent
    }

    /// Takes note of which buckets a server has, if these replies answer that question.
    pub(crate) fn note_places(&mut self, now_ms: u64, server: &Address, replies: &Replies) {
        if replies.outcomes.is_empty() {
            let places = replies.adjustment.iter().filter(|element| element.address == *server);
            let places = places.map(|element| element.interval.clone()).collect();
            self.placed.insert(server.clone(), (now_ms, places));
        }
    }

    /// Processes replies. Returns the outcomes of requests.
    pub(crate) fn take(&mut self, now_ms: u64, replies: Replies) -> Vec<(u64, Outcome)> {
        for page in replies.trace.iter().flatten() {
            let level = usize::from(page.level);
            let below = if level == 0 { &mut self.image } else { &mut self.pages[level - 1] };
            page.entries.iter().for_each(|entry| below.learn(entry));
            self.pages[level].learn(&page.place);
        }
        replies.adjustment.iter().for_each(|element| self.image.learn(element));
        let outcomes = replies.outcomes.into_iter();
        outcomes.filter_map(|(number, outcome)| self.outcome(now_ms, number, outcome)).collect()
    }

    fn outcome(&mut self, now_ms: u64, number: u64, outcome: Outcome) -> Option<(u64, Outcome)> {
        let anywhere = self.anywhere();
        let pending = self.pending.get_mut(&number)?;
        let may_pass = match &outcome {
            Outcome::Refused(Refused::Lost(_)) => {
                let is_recovered = self.is_recovered || pending.tries < LOST_TRIES;
                let least_ms = if is_recovered { GIVE_UP_MS } else { LOST_MS };
                now_ms < pending.born_ms + least_ms
            }
            // It is given up with this reason if there is no better answer in time.
            Outcome::Refused(Refused::Unreachable(_) | Refused::Far(_)) => true,
            // The server is up, so the time limit of the request starts again.
            Outcome::Refused(Refused::Busy(_)) => {
                pending.born_ms = now_ms;
                true
            }
            Outcome::Refused(Refused::Underway(_)) => {
                pending.born_ms = now_ms;
                now_ms < pending.asked_ms + ARRANGE_MS
            }
            _ => false,
        };
        if let (true, Outcome::Refused(why)) = (may_pass, &outcome) {
            if let Refused::Lost(server) | Refused::Unreachable(server) = why {
                Client::forget(&mut self.image, &mut self.pages, pending.ask.point(), server);
                (pending.to, pending.descent) = anywhere;
                self.is_astray = true;
            }
            pending.refused = Some(why.clone());
            pending.due_ms = now_ms + PAUSE_MS;
            return None;
        }
        if self.datagram_bytes.is_some() && pending.tries == 1 {
            self.answer_ms = (7 * self.answer_ms + now_ms.saturating_sub(pending.sent_ms)).div_ceil(8);
        }
        self.pending.remove(&number);
        Some((number, outcome))
    }

    /// Handles a server that cannot be reached: requests that were sent to it go to the home.
    pub(crate) fn unreachable(&mut self, now_ms: u64, server: &Address) {
        let anywhere = self.anywhere();
        for pending in self.pending.values_mut().filter(|pending| pending.to.as_ref() == Some(server)) {
            Client::forget(&mut self.image, &mut self.pages, pending.ask.point(), server);
            (pending.to, pending.descent) = anywhere.clone();
            if pending.due_ms != QUEUED {
                // Not later than it was: the home may be the server that cannot be reached.
                pending.due_ms = pending.due_ms.min(now_ms + PAUSE_MS);
            }
            // The question where buckets are may have met the same server.
            let refused = Some(Refused::Unreachable(server.clone()));
            self.is_astray |= pending.refused != refused;
            pending.refused = refused;
        }
    }

    /// Which servers did not answer a request for a point.
    fn silent(&self, now_ms: u64, point: Point<'_>) -> Failed {
        let place =
            |server: &Address| self.placed.get(server).filter(|(at_ms, _)| now_ms < at_ms + SILENT_MS);
        let has_it = |(_, keys): &(u64, Vec<Interval>)| keys.iter().any(|keys| point.is_in(keys));
        let holder = self.servers.iter().find(|server| place(server).is_some_and(has_it));
        let believed = self.image.owner(point).map(|element| &element.address);
        match holder.or(believed.filter(|server| place(server).is_none())) {
            Some(server) => Failed::Silent { silent: vec![server.clone()], without: Vec::new() },
            None => {
                let (without, silent) =
                    self.servers.iter().cloned().partition(|server| place(server).is_some());
                Failed::Silent { silent, without }
            }
        }
    }

    /// Why this request is given up, which was not answered in time.
    fn given_up(&self, now_ms: u64, pending: &Pending) -> Failed {
        let why = match &pending.refused {
            Some(why @ (Refused::Lost(_) | Refused::Unreachable(_) | Refused::Far(_))) => {
                Failed::Refused(why.clone())
            }
            // A server that had to wait answered, and none has since.
            _ => self.silent(now_ms, pending.ask.point()),
        };
        // A server that is silent, or that others could not reach, may have the request all the same.
        if pending.ask.is_read() { why } else { Failed::Uncertain(Box::new(why)) }
    }

    /// Sends again what is due. Returns the requests that are given up.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<(u64, Failed)> {
        let mut due: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.due_ms <= now_ms).map(|(n, _)| *n).collect();
        due.sort_unstable();
        let mut given_up = Vec::new();
        for number in due {
            let pending = self.pending.get_mut(&number).expect("it was just found");
            if now_ms >= pending.born_ms + GIVE_UP_MS {
                let pending = self.pending.remove(&number).expect("it was just found");
                given_up.push((number, self.given_up(now_ms, &pending)));
                continue;
            }
            let datagrams = if self.datagram_bytes.is_some() { DATAGRAMS_MAX } else { 0 };
            // Alternates between the server that the image names and the home, or all servers.
            let (ask, tries) = (Arc::clone(&pending.ask), pending.tries);
            let (to, descent) = if tries.is_multiple_of(2) { self.route(&ask) } else { self.anywhere() };
            let pending = self.pending.get_mut(&number).expect("it was just found");
            (pending.to, pending.descent) = (to, descent);
            pending.due_ms = QUEUED;
            self.is_astray |= matches!(pending.refused, Some(Refused::Lost(_) | Refused::Unreachable(_)));
            self.queued.push(number);
            // A server that is silent may have lost its buckets to another one.
            self.is_astray |= pending.tries > 1 + datagrams;
        }
        given_up
    }
}

impl Pending {
    /// Whether the request, which is about to be sent, should travel as a datagram.
    fn fits_datagram(&self) -> bool {
        self.tries < DATAGRAMS_MAX && matches!(*self.ask, Ask::Record(_))
    }
}

impl Ask {
    /// The approximate bytes of keys and values.
    fn bytes(&self) -> usize {
        match self {
            Ask::Record(operation) => operation.bytes(),
            Ask::Scan(scan) => scan.interval.from.len(),
            Ask::Arrange(arrange) => arrange.key().len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::Error;
    use super::super::image::Element;
    use super::super::message::Operation;
    use super::*;

    /// Lets a client of three servers ask until it gives up. Some of them answer, with these buckets, where they are;
    /// none answers the request. Returns what the client is told.
    fn told(variant: Variant, ask: Ask, knows: &[Element], answers: &[(&str, &[Interval])]) -> String {
        let id = ClientId { peer: [0; 2], session: 1 };
        let servers: Vec<Address> = ["n1", "n2", "n3"].map(Address::from).to_vec();
        let mut client = Client::new(id, (1, "n1".into()), servers, variant);
        knows.iter().for_each(|element| client.image.learn(element));
        client.ask(0, Arc::new(ask));
        for now_ms in (0..=GIVE_UP_MS).step_by(50) {
            if let [(_, why)] = &client.tick(now_ms)[..] {
                assert_eq!(now_ms, GIVE_UP_MS);
                return Error::from(why.clone()).to_string();
            }
            let asks_all = |sent: &Sent| matches!(sent.message, Message::Where { .. }) && sent.to.len() == 3;
            if client.messages(now_ms).iter().any(asks_all) {
                for (server, places) in answers {
                    let element = |interval: &Interval| element(server, interval.clone());
                    let adjustment = places.iter().map(element).collect();
                    let (path, outcomes) = (Vec::new(), Vec::new());
                    let replies = Replies { table: 1, client: id, path, adjustment, outcomes, trace: None };
                    client.note_places(now_ms, &Address::from(*server), &replies);
                    client.take(now_ms, replies);
                }
            }
        }
        panic!("it does not give up");
    }

    fn element(server: &str, interval: Interval) -> Element {
        Element { interval, address: server.into(), epoch: 1 }
    }

    /// What went wrong: the table's home was named, although it had answered, and had not the key.
    #[test]
    fn the_server_that_does_not_answer_is_named_or_those_that_may_be_it() {
        let get = || Ask::Record(Operation::Get { key: (*b"m").into() });
        let (below, above) = (Interval::new(b"", Some(b"k")), Interval::new(b"k", None));
        let all = Variant::WORDS.map(|(_, variant)| variant);
        for variant in all {
            assert_eq!(
                told(variant, get(), &[], &[("n1", std::slice::from_ref(&below)), ("n2", &[])]),
                "n3 did not answer within ten seconds; n1 and n2 answered, without having the key"
            );
            let known = [element("n3", above.clone())];
            let answers: [(&str, &[Interval]); 1] = [("n1", std::slice::from_ref(&below))];
            assert_eq!(told(variant, get(), &known, &answers), "n3 did not answer within ten seconds");
        }
        let none = told(Variant::All, get(), &[], &[]);
        assert_eq!(none, "n1, n2 and n3 did not answer within ten seconds");
        // It gave the bucket to a server that it cannot reach.
        let gave = [element("n2", above.clone())];
        assert_eq!(
            told(Variant::All, get(), &gave, &[("n1", &[]), ("n2", &[])]),
            "n3 did not answer within ten seconds; n1 and n2 answered, without having the key"
        );
        // It has the key, and waits for another server.
        let here: [(&str, &[Interval]); 2] = [("n1", &[]), ("n2", &[above])];
        assert_eq!(told(Variant::All, get(), &[], &here), "n2 did not answer within ten seconds");
        assert_eq!(
            told(Variant::All, get(), &[], &[("n1", &[]), ("n2", &[]), ("n3", &[])]),
            "no node answered within ten seconds that has the key; n1, n2 and n3 answered, without having the key"
        );
    }

    /// What went wrong: records of a table with parity were said to be lost while they were recovered.
    #[test]
    fn records_that_are_recovered_are_not_said_to_be_lost() {
        let id = ClientId { peer: [0; 2], session: 1 };
        for is_recovered in [false, true] {
            let client = Client::new(id, (1, "n1".into()), vec!["n1".into()], Variant::Nearest);
            let mut client = client.of_recovered(is_recovered);
            let get = Ask::Record(Operation::Get { key: (*b"m").into() });
            let number = client.ask(0, Arc::new(get));
            let ends = |now_ms: &u64| {
                if !client.tick(*now_ms).is_empty() {
                    return true;
                }
                let is_request = |sent: &Sent| matches!(sent.message, Message::Requests(_));
                if !client.messages(*now_ms).iter().any(is_request) {
                    return false;
                }
                let outcomes = vec![(number, Outcome::Refused(Refused::Lost("n1".into())))];
                let (path, adjustment) = (Vec::new(), Vec::new());
                let replies = Replies { table: 1, client: id, path, adjustment, outcomes, trace: None };
                !client.take(*now_ms, replies).is_empty()
            };
            let ended_ms = (0..=GIVE_UP_MS).step_by(50).find(ends);
            assert_eq!(ended_ms, Some(if is_recovered { GIVE_UP_MS } else { LOST_MS }));
        }
    }

    #[test]
    fn of_a_change_without_an_answer_it_is_not_known_whether_it_was_made() {
        let delete = Ask::Record(Operation::Delete { key: (*b"m").into() });
        let why = told(Variant::Nearest, delete, &[], &[("n1", &[]), ("n2", &[])]);
        assert!(why.ends_with("; the change may have been made"), "{why}");

        // Servers that say that they cannot reach it may have sent it the change before.
        let id = ClientId { peer: [0; 2], session: 1 };
        for is_read in [true, false] {
            let refused = Refused::Unreachable("n2".into());
            let mut client = Client::new(id, (1, "n1".into()), vec!["n1".into()], Variant::Nearest);
            let key = (*b"m").into();
            let ask = if is_read { Operation::Get { key } } else { Operation::Delete { key } };
            let number = client.ask(0, Arc::new(Ask::Record(ask)));
            let mut given_up = Vec::new();
            for now_ms in (0..GIVE_UP_MS + RESEND_MS).step_by(50) {
                given_up.extend(client.tick(now_ms));
                let is_request = |sent: &Sent| matches!(sent.message, Message::Requests(_));
                if !client.messages(now_ms).iter().any(is_request) {
                    continue;
                }
                let outcomes = vec![(number, Outcome::Refused(refused.clone()))];
                let (path, adjustment) = (Vec::new(), Vec::new());
                let replies = Replies { table: 1, client: id, path, adjustment, outcomes, trace: None };
                assert!(client.take(now_ms, replies).is_empty());
            }
            let why = Failed::Refused(refused);
            let why = if is_read { why } else { Failed::Uncertain(Box::new(why)) };
            assert_eq!(given_up, [(number, why)]);
        }
    }

    #[test]
    fn a_request_that_is_lost_in_datagrams_travels_over_the_link() {
        let id = ClientId { peer: [0; 2], session: 1 };
        let mut client =
            Client::new(id, (1, "n1".into()), vec!["n1".into()], Variant::Nearest).in_datagrams(1400);
        let get = |i: u8| Arc::new(Ask::Record(Operation::Get { key: [i; 100].into() }));
        (0..36).for_each(|i| _ = client.ask(0, get(i)));
        let kinds = |client: &mut Client, now_ms| {
            client.tick(now_ms);
            client.messages(now_ms).iter().map(|sent| sent.is_datagram).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&mut client, 0), [true; 3], "twelve requests fit into a datagram");
        for (now_ms, len) in [(49, 0), (50, 3), (149, 0), (150, 3), (349, 0)] {
            assert_eq!(kinds(&mut client, now_ms), vec![true; len], "after {now_ms} ms");
        }
        assert_eq!(kinds(&mut client, 350), [false]);
        assert_eq!(kinds(&mut client, 350 + RESEND_MS - 1), [false; 0]);
        assert_eq!(kinds(&mut client, 350 + RESEND_MS), [false]);
    }
}

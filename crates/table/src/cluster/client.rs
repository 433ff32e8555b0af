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

use super::image::{Address, Image};
use super::index::{Descent, LEVELS_MAX};
use super::interval::Point;
use super::journal::ClientId;
use super::message::{Ask, Message, Outcome, Refused, Replies, Requests, TableId};

/// The time after which an unanswered request is sent again.
const RESEND_MS: u64 = 1_000;
/// The time after which a request is sent again that was refused for a temporary reason.
const PAUSE_MS: u64 = 100;
/// How long a request is tried, and how long if no server knows its records: a bucket that moves is known by then.
const GIVE_UP_MS: u64 = 10_000;
const LOST_MS: u64 = 2_000;
/// How long to wait until buckets are split, merged or moved.
const ARRANGE_MS: u64 = 120_000;
/// The time of the next attempt of a request that is about to be sent.
const QUEUED: u64 = u64::MAX;
/// The most bytes of keys and values in a message, beyond one request.
const MESSAGE_BYTES: usize = 64 << 10;

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

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    Refused(Refused),
    /// No server answered. A change may have been made.
    Silent(Address),
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
    pending: BTreeMap<u64, Pending>,
    /// Requests to be sent.
    queued: Vec<u64>,
    /// All servers.
    servers: Vec<Address>,
    /// Whether a server did not know where some records are, or is gone.
    is_astray: bool,
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
            pending: BTreeMap::new(),
            queued: Vec::new(),
            servers,
            is_astray: false,
        }
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
            tries: 0,
            refused: None,
        };
        self.pending.insert(number, pending);
        self.queued.push(number);
        number
    }

    /// Messages with all requests that are due.
    pub(crate) fn messages(&mut self, now_ms: u64) -> Vec<(Address, Message)> {
        let done_below = self.pending.first_key_value().map_or(self.next, |(first, _)| *first);
        let mut messages: BTreeMap<(Option<Address>, Descent), (Requests, usize)> = BTreeMap::new();
        let mut full = Vec::new();
        for number in std::mem::take(&mut self.queued) {
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            pending.due_ms = now_ms + RESEND_MS;
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
            let to = (pending.to.clone(), pending.descent);
            let (requests, bytes) = messages.entry(to.clone()).or_insert_with(|| (empty(), 0));
            requests.asks.push((number, Arc::clone(&pending.ask)));
            *bytes += pending.ask.bytes();
            if *bytes >= MESSAGE_BYTES {
                full.extend(messages.remove_entry(&to).map(|((to, _), (requests, _))| (to, requests)));
            }
        }
        let rest = messages.into_iter().map(|((to, _), (requests, _))| (to, requests));
        let requests = full.into_iter().chain(rest).flat_map(|(to, requests)| {
            let to = to.map_or_else(|| self.servers.clone(), |to| vec![to]);
            to.into_iter().map(move |to| (to, Message::Requests(requests.clone())))
        });
        let (table, client) = (self.table, self.id);
        let astray = std::mem::take(&mut self.is_astray).then_some(&self.servers).into_iter().flatten();
        requests.chain(astray.map(|to| (to.clone(), Message::Where { table, client }))).collect()
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
            Outcome::Refused(Refused::Lost(_)) => now_ms < pending.born_ms + LOST_MS,
            Outcome::Refused(Refused::Unreachable(_) | Refused::Far(_)) => {
                now_ms < pending.born_ms + GIVE_UP_MS
            }
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

    /// Sends again what is due. Returns the requests that are given up.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<(u64, Failed)> {
        let due: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.due_ms <= now_ms).map(|(n, _)| *n).collect();
        let mut given_up = Vec::new();
        for number in due {
            let pending = self.pending.get_mut(&number).expect("it was just found");
            if now_ms >= pending.born_ms + GIVE_UP_MS {
                let pending = self.pending.remove(&number).expect("it was just found");
                let silent = || Failed::Silent(pending.to.unwrap_or_else(|| self.home.clone()));
                let failed = pending.refused.map_or_else(silent, Failed::Refused);
                given_up.push((number, failed));
                continue;
            }
            // Alternates between the server that the image names and the home, or all servers.
            let (ask, tries) = (Arc::clone(&pending.ask), pending.tries);
            let (to, descent) = if tries.is_multiple_of(2) { self.route(&ask) } else { self.anywhere() };
            let pending = self.pending.get_mut(&number).expect("it was just found");
            (pending.to, pending.descent) = (to, descent);
            pending.due_ms = QUEUED;
            self.is_astray |= matches!(pending.refused, Some(Refused::Lost(_) | Refused::Unreachable(_)));
            self.queued.push(number);
            // A server that is silent may have lost its buckets to another one.
            self.is_astray |= pending.tries > 1;
        }
        given_up
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

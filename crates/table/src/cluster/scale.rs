//! Tables on many servers, simulated without delays or losses: messages for each request, and how full buckets are.
//!
//! Model: each server has one bucket. Records are inserted one after the other until the table has as many buckets as
//! wanted. Then a new client, which knows only the table's first server, reads records at random.
//! Non-goals: time, and faults; sim_test.rs has those.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_base::rng::Rng;

use super::client::{Client, Sent, Variant};
use super::image::Address;
use super::journal::ClientId;
use super::message::{Ask, Message, Operation, Spec};
use super::server::{BucketServer, Outbox, To};

const TABLE: u64 = 1;
const MEMORY: usize = 64 << 20;
/// Reads of the new client, for each server.
const READS: u64 = 5;

/// The time after which a client that was refused asks again, at the least.
const AGAIN_MS: u64 = 100;

/// The order of the keys of the inserted records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// At random.
    Random,
    /// Each after all others.
    Ascending,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The buckets, each on a server of its own.
    pub buckets: u64,
    /// The records in a bucket, on average, as a part of its capacity.
    pub load: f64,
    /// Messages for each insert while the table grew, replies included, without those that split buckets.
    pub per_insert: f64,
    /// Messages for each read of a new client, until it has read five times as many records as there are servers.
    pub per_read: f64,
    /// Its reads that had to be forwarded.
    pub astray: u64,
    /// Messages for each of the reads after these.
    pub per_later_read: f64,
    /// The levels and the pages of the index, if the new client uses one.
    pub index: (u64, u64),
}

struct World {
    servers: Vec<BucketServer>,
    /// The next server without a bucket.
    next: usize,
    /// Messages of requests so far, and whether the last request was forwarded.
    messages: u64,
    is_forwarded: bool,
    now_ms: u64,
}

/// The address of a simulated server.
pub(super) fn name(server: usize) -> Address {
    format!("n{server}").into()
}

/// The number of a simulated server.
pub(super) fn number(address: &str) -> usize {
    address[1..].parse().expect("every server is named by its number")
}

impl World {
    /// Delivers messages until none is left, also those for the client.
    fn deliver(&mut self, client: &mut Client, sent: Vec<(Address, Message)>) {
        let mut network: VecDeque<(Option<Address>, Address, Message)> =
            sent.into_iter().map(|(to, message)| (Some(to), "".into(), message)).collect();
        while let Some((to, from, message)) = network.pop_front() {
            self.messages += u64::from(matches!(message, Message::Requests(_) | Message::Replies(_)));
            let Some(to) = to else {
                let Message::Replies(replies) = message else { unreachable!("clients get replies") };
                client.take(self.now_ms, replies);
                continue;
            };
            self.is_forwarded |= !from.is_empty() && matches!(message, Message::Requests(_));
            let server = &mut self.servers[number(&to)];
            let mut out = Outbox::new();
            // Each server takes one bucket, so the next one without is the first to answer.
            server.peers = vec![name(self.next)];
            server.take(self.now_ms, &from, message, &mut out);
            self.next +=
                usize::from(!self.servers[self.next].tables.is_empty() && self.next + 1 < self.servers.len());
            network.extend(out.into_iter().map(|(receiver, message)| match receiver {
                To::Server(server) => (Some(server), to.clone(), message),
                To::Client => (None, to.clone(), message),
                To::Registrar => unreachable!("only tables with parity need the registrar"),
            }));
        }
    }

    /// Returns whether the request was forwarded.
    fn ask(&mut self, client: &mut Client, operation: Operation) -> bool {
        self.is_forwarded = false;
        client.ask(self.now_ms, Arc::new(Ask::Record(operation)));
        while client.outstanding() > 0 {
            let sent = client.messages(self.now_ms).into_iter().flat_map(Sent::each).collect();
            self.deliver(client, sent);
            // A request that was forwarded too often is asked again.
            self.now_ms += AGAIN_MS;
            client.tick(self.now_ms);
        }
        self.is_forwarded
    }

    /// The pages of the index, by level.
    fn pages(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for pages in self.servers.iter().map(|server| server.index.pages(TABLE)) {
            all.resize(pages.len().max(all.len()), 0);
            all.iter_mut().zip(pages).for_each(|(all, pages)| *all += pages);
        }
        all
    }

    fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets =
            self.servers.iter().flat_map(|server| server.tables.values()).flat_map(|served| &served.buckets);
        buckets.map(|bucket| (bucket.tree.len() as u64, 1))
    }
}

/// Simulates a table with at least two servers that grows to this many servers, and a new client of this variant.
pub fn simulate(servers: usize, capacity: u64, order: Order, variant: Variant) -> Scale {
    let all: Vec<Address> = (0..servers).map(name).collect();
    let server = |number| BucketServer::new(name(number), number as u64, MEMORY);
    let mut world = World {
        servers: (0..servers).map(server).collect(),
        next: 1,
        messages: 0,
        is_forwarded: false,
        now_ms: 0,
    };
    let spec = Spec { id: TABLE, capacity, capacity_bytes: u64::MAX, parity: None };
    world.servers[0].begin(spec).expect("an empty bucket fits");
    if variant == Variant::Indexed {
        world.servers[0].begin_index(TABLE, &[]);
    }
    let client = |session, variant| {
        Client::new(ClientId { peer: [0; 2], session }, (TABLE, name(0)), all.clone(), variant)
    };
    let (mut rng, mut keys) = (Rng::new(servers as u64), Vec::new());
    let mut first = client(1, Variant::Nearest);
    while world.servers[servers - 1].tables.is_empty() {
        let key = match order {
            Order::Random => rng.next_u64(),
            Order::Ascending => keys.len() as u64,
        };
        keys.push(key);
        let operation = Operation::Upsert { key: key.to_be_bytes().into(), value: (*b"v").into() };
        world.ask(&mut first, operation);
    }
    let (records, buckets) =
        world.buckets().fold((0, 0), |(records, buckets), (more, one)| (records + more, buckets + one));
    let per_insert = world.messages as f64 / keys.len() as f64;
    let mut new = client(2, variant);
    let mut read = |world: &mut World| {
        world.messages = 0;
        let (reads, mut astray) = (READS * servers as u64, 0);
        for _ in 0..reads {
            let key = keys[rng.below(keys.len() as u64) as usize].to_be_bytes().into();
            astray += u64::from(world.ask(&mut new, Operation::Get { key }));
        }
        (world.messages as f64 / reads as f64, astray)
    };
    let (per_read, astray) = read(&mut world);
    let (per_later_read, _) = read(&mut world);
    Scale {
        buckets,
        load: records as f64 / (buckets * capacity) as f64,
        per_insert,
        per_read,
        astray,
        per_later_read,
        index: (world.pages().len() as u64, world.pages().iter().sum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 40;

    #[test]
    fn a_request_takes_two_messages_once_the_image_is_right() {
        let scale = simulate(30, CAPACITY, Order::Random, Variant::Nearest);
        assert_eq!(scale.buckets, 30);
        assert!((0.55..0.85).contains(&scale.load), "{scale:?}");
        // A new client is wrong at most once for each bucket but the first, as in the paper.
        assert!(scale.astray < 30 && scale.per_later_read < 2.1 && scale.per_insert < 2.5, "{scale:?}");
        let known = simulate(30, CAPACITY, Order::Random, Variant::Known);
        assert!(
            known.astray == 0 && known.per_read > scale.per_read && known.per_later_read < 3.0,
            "{known:?}"
        );
        let all = simulate(30, CAPACITY, Order::Random, Variant::All);
        assert_eq!((all.astray, all.per_read, all.per_later_read), (0, 31.0, 31.0), "{all:?}");
    }

    #[test]
    fn a_client_of_an_index_learns_a_page_at_a_time() {
        let nearest = simulate(200, CAPACITY, Order::Random, Variant::Nearest);
        let scale = simulate(200, CAPACITY, Order::Random, Variant::Indexed);
        // 200 buckets need a root and at least four pages of at most 64 entries.
        let (levels, pages) = scale.index;
        assert!(levels == 2 && (5..=12).contains(&pages), "{scale:?}");
        assert!(scale.astray <= 2 * pages && scale.astray * 5 < nearest.astray, "{scale:?}, {nearest:?}");
        assert!(scale.per_read < nearest.per_read && scale.per_later_read < 2.01, "{scale:?}, {nearest:?}");
    }

    #[test]
    fn ascending_keys_leave_full_buckets() {
        let scale = simulate(30, CAPACITY, Order::Ascending, Variant::Nearest);
        assert!(scale.load > 0.95, "{scale:?}");
    }
}

//! Indexes on servers without delays: what a lost page or root costs, and that it is rebuilt.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::{Client, Sent, Variant};
use super::image::Address;
use super::interval::Point;
use super::journal::ClientId;
use super::message::{Answer, Ask, Message, Operation, Outcome, Spec};
use super::scale::{name, number};
use super::server::{BucketServer, Outbox, To};

const TABLE: u64 = 5;
const SERVERS: usize = 5;
const RECORDS: u32 = 1_000;
const SPEC: Spec = Spec { id: TABLE, capacity: 20, capacity_bytes: 1 << 20, parity: None };
const MEMORY: usize = 16 << 20;

struct World {
    servers: Vec<BucketServer>,
    now_ms: u64,
    clients: u64,
}

fn key(i: u32) -> Box<[u8]> {
    i.wrapping_mul(2_654_435_761).to_be_bytes().into()
}

fn server(i: usize, run: u64) -> BucketServer {
    let mut server = BucketServer::new(name(i), run, MEMORY);
    server.peers = (0..SERVERS).filter(|other| *other != i).map(name).collect();
    server.index.fanout = 4;
    server
}

impl World {
    /// A table with an index and records.
    fn new() -> World {
        let servers = (0..SERVERS).map(|i| server(i, i as u64)).collect();
        let mut world = World { servers, now_ms: 0, clients: 0 };
        world.servers[0].begin(SPEC).unwrap();
        world.servers[0].begin_index(TABLE, &[]);
        let mut client = world.client(Variant::Nearest);
        for i in 0..RECORDS {
            let outcome = world.ask(&mut client, Operation::Upsert { key: key(i), value: key(i) });
            assert_eq!(outcome, Outcome::Answer(Answer::Done));
        }
        world
    }

    fn client(&mut self, variant: Variant) -> Client {
        self.clients += 1;
        let id = ClientId { peer: [0; 2], session: self.clients };
        Client::new(id, (TABLE, name(0)), (0..SERVERS).map(name).collect(), variant)
    }

    /// The outcome of a request.
    fn ask(&mut self, client: &mut Client, operation: Operation) -> Outcome {
        client.ask(self.now_ms, Arc::new(Ask::Record(operation)));
        loop {
            self.now_ms += 100;
            assert!(client.tick(self.now_ms).is_empty(), "a request has no answer");
            let mut outcomes = Vec::new();
            let messages = client.messages(self.now_ms);
            let mut network: VecDeque<(Option<Address>, Address, Message)> = messages
                .into_iter()
                .flat_map(Sent::each)
                .map(|(to, message)| (Some(to), "".into(), message))
                .collect();
            for server in 0..SERVERS {
                let mut out = Outbox::new();
                self.servers[server].tick(self.now_ms, &mut out);
                network.extend(sent(&name(server), out));
            }
            while let Some((to, from, message)) = network.pop_front() {
                match (to, message) {
                    (Some(to), message) => {
                        let mut out = Outbox::new();
                        self.servers[number(&to)].take(self.now_ms, &from, message, &mut out);
                        network.extend(sent(&to, out));
                    }
                    (None, Message::Replies(replies)) => outcomes.extend(client.take(self.now_ms, replies)),
                    (None, other) => panic!("{other:?} for a client"),
                }
            }
            if let Some((_, outcome)) = outcomes.pop() {
                return outcome;
            }
        }
    }

    fn is_there(&self, key: &[u8]) -> bool {
        let served = |server: &BucketServer| Some(server.tables.get(&TABLE)?.at(Point::At(key)).is_some());
        self.servers.iter().any(|server| served(server) == Some(true))
    }

    /// Reads all records that are there, with a new client. Returns how many it had to ask for again.
    fn reads_all(&mut self, variant: Variant) -> usize {
        let (mut client, mut again) = (self.client(variant), 0);
        for i in 0..RECORDS {
            if self.is_there(&key(i)) {
                let before_ms = self.now_ms;
                let outcome = self.ask(&mut client, Operation::Get { key: key(i) });
                assert_eq!(outcome, Outcome::Answer(Answer::Value(Some(key(i)))));
                again += usize::from(self.now_ms > before_ms + 100);
            }
        }
        again
    }

    fn pages(&self) -> Vec<Vec<u64>> {
        self.servers.iter().map(|server| server.index.pages(TABLE)).collect()
    }
}

fn sent(from: &Address, out: Outbox) -> impl Iterator<Item = (Option<Address>, Address, Message)> {
    out.into_iter().map(|(to, message)| match to {
        To::Server(server) => (Some(server), from.clone(), message),
        To::Client => (None, from.clone(), message),
        To::Registrar => unreachable!("only tables with parity have something for it"),
    })
}

#[test]
fn a_page_that_is_lost_with_its_server_is_rebuilt() {
    let mut world = World::new();
    assert_eq!(world.reads_all(Variant::Indexed), 0);
    let before = world.pages();
    let lost: u64 = before[2].iter().sum();
    assert!(lost > 1, "{before:?}");
    // It comes back without its records and pages.
    world.servers[2] = server(2, 99);
    // A client that meets a lost page asks all servers, and meets no other.
    let met = (0..=lost).take_while(|_| world.reads_all(Variant::Indexed) > 0).count() as u64;
    assert!(
        (1..=lost).contains(&met),
        "{met} of {lost} pages were lost: {before:?}, now {:?}",
        world.pages()
    );
}

#[test]
fn a_root_that_is_lost_with_the_home_is_rebuilt() {
    let mut world = World::new();
    world.servers[0] = server(0, 99);
    assert_eq!(world.pages()[0], Vec::<u64>::new());
    assert!(world.reads_all(Variant::Indexed) > 0);
    assert_eq!(world.reads_all(Variant::Indexed), 0, "{:?}", world.pages());
    assert!(world.pages()[0].len() > 1, "the home has no root above other pages: {:?}", world.pages());
}

//! The fuzz targets of tables: requests of any bytes, conditions, and messages of clusters. Each function takes any
//! bytes and panics if an invariant is broken. `fuzz/` calls them, and the tests replay their corpora.
//!
//! Invariant: nothing here is compiled into a release build.

use thalweg_base::codec::Plain;

use crate::Condition;
use crate::call::{Common, Session, Shared};
use crate::cluster::fuzz::{BucketServer, Message, Outbox, Spec};
use crate::commands::run;
use crate::keyspace::Keyspace;
use crate::resp::{Parsed, parse};

/// The memory of the keyspace, small enough to fill up.
const MEMORY: usize = 128 << 10;
/// The memory of a server of a cluster, small enough that it has no room for some buckets.
const CLUSTER_MEMORY: usize = 96 << 10;

/// Runs the requests in the bytes: each has a reply, memory stays within its limit, and all of it is freed at the end.
pub fn requests(data: &[u8]) {
    let keyspace = Keyspace::new(MEMORY).expect("the memory is enough for no keys");
    let mut shared = Shared::new(keyspace, None, 0, Common::default(), None);
    let empty = shared.keyspace.memory().0;
    let mut session = Session::new(1, &shared);
    let (mut parsed, mut rest, mut replies) = (Parsed::default(), data, Vec::new());
    while let Ok(true) = parse(rest, &mut parsed) {
        let arguments = parsed.arguments(rest);
        if !arguments.is_empty() {
            run(&mut shared, &mut session, &arguments, &mut replies);
            assert!(
                replies.ends_with(b"\r\n") && b"+-:$*%_,".contains(&replies[0]),
                "{}",
                replies.escape_ascii()
            );
            replies.clear();
        }
        let (used, limit) = shared.keyspace.memory();
        assert!(used <= limit);
        shared.keyspace.now_ms += 1;
        rest = &rest[parsed.bytes..];
    }
    shared.keyspace.sweep();
    // Without memory for another tree, `clear` fails.
    if shared.keyspace.clear().is_ok() {
        assert_eq!((shared.keyspace.memory().0, shared.keyspace.len()), (empty, 0));
    }
}

/// Tests a condition, the first line, on the value after it.
pub fn conditions(data: &[u8]) {
    let at = memchr::memchr(b'\n', data).unwrap_or(data.len());
    let (typed, value) = data.split_at(at);
    match Condition::parse(typed) {
        Ok(condition) => {
            let again = Condition::parse(&condition.text()).expect("what was written is a condition");
            assert_eq!(again.text(), condition.text());
            assert_eq!(again.matches(value), condition.matches(value));
        }
        Err(why) => assert!(why.to_string().lines().count() == 1),
    }
}

/// Delivers messages of any bytes, each after its length in two bytes, to a server as if another one sent them: it does
/// not panic, its memory stays within its limit, and what it sends can be decoded.
pub fn messages(data: &[u8]) {
    deliver(data);
}

/// Delivers the messages, and returns how many of them are decoded, and how many cannot be.
fn deliver(data: &[u8]) -> (usize, usize) {
    let mut server = BucketServer::new("n1".into(), 1, CLUSTER_MEMORY);
    server.peers = vec!["n2".into()];
    server
        .begin(Spec { id: 1, capacity: 4, capacity_bytes: 4096, parity: None })
        .expect("an empty bucket fits");
    let (mut rest, mut now_ms, mut decoded, mut malformed) = (data, 0, 0, 0);
    while let Some((len, tail)) = rest.split_first_chunk() {
        let (bytes, tail) = tail.split_at((u16::from_le_bytes(*len) as usize).min(tail.len()));
        rest = tail;
        now_ms += 50;
        let mut out = Outbox::new();
        match Message::decode(bytes) {
            Some(message) => {
                decoded += 1;
                server.take(now_ms, &"n2".into(), message, &mut out);
            }
            None => malformed += 1,
        }
        server.tick(now_ms, &mut out);
        for (_, message) in out {
            let mut bytes = Vec::new();
            message.put(&mut bytes);
            assert_eq!(Message::decode(&bytes).as_ref(), Some(&message));
        }
        assert!(server.slab.used() <= server.slab.limit());
    }
    (decoded, malformed)
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay;

    #[test]
    fn the_corpora_are_answered() {
        replay::corpus("resp", super::requests);
        replay::corpus("conditions", super::conditions);
    }

    /// Of these, none can be decoded.
    const MALFORMED: &[u8] = include_bytes!("../../../fuzz/corpus/tables/malformed");

    #[test]
    fn the_seeds_of_messages_are_decoded_unless_they_are_malformed_on_purpose() {
        replay::corpus("tables", |seed| {
            let (decoded, malformed) = super::deliver(seed);
            let (expected, other) =
                if seed == MALFORMED { (malformed, decoded) } else { (decoded, malformed) };
            assert!(expected > 0 && other == 0, "{decoded} messages are decoded, {malformed} are not");
        });
    }
}

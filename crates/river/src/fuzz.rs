//! Entry points for fuzzers: arbitrary heads, and arbitrary messages to the core of an outlet. They take any bytes
//! and panic if an invariant is broken. `fuzz/` calls them, and the tests replay its corpus.
//!
//! Invariant: nothing here is compiled into a release.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::core::{BatchId, Core, Effect, Event, Rules};
use crate::head::{HEAD_BYTES, Head, Kind};

const RIVER: u64 = 7;
const SOURCES: usize = 3;
const KINDS: [Kind; 7] =
    [Kind::Batch, Kind::End, Kind::Close, Kind::Finish, Kind::Lost, Kind::Credit, Kind::Gone];

/// Bytes that decode must encode to the same bytes. The checksum is also corrected, to test the other fields.
pub fn heads(data: &[u8]) {
    for bytes in data.chunks(HEAD_BYTES) {
        let mut mended = bytes.to_vec();
        mended.resize(HEAD_BYTES, 0);
        let check = xxh3_64(&mended[..HEAD_BYTES - 8]);
        mended[HEAD_BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        for bytes in [bytes, &mended] {
            if let Some(head) = Head::decode(bytes) {
                assert_eq!(head.encode()[..], bytes[..HEAD_BYTES], "a head is written as it was read");
            }
        }
    }
}

/// Sends arbitrary messages from arbitrary sources, in any order, to the core of an outlet.
pub fn outlet(data: &[u8]) {
    let Some((&[how, exclusive, float], messages)) = data.split_first_chunk() else { return };
    let rules = Rules {
        river: RIVER,
        sources: SOURCES,
        exclusive: 1 + u64::from(exclusive % 4),
        float: u64::from(float % 4),
        ordered: how & 1 != 0,
    };
    let mut desk =
        Desk { core: Core::new(rules), kept: BTreeMap::new(), gone: BTreeSet::new(), given: Vec::new() };
    for message in messages.chunks_exact(MESSAGE_BYTES) {
        if desk.takes(message, &rules) {
            return;
        }
    }
}

/// Bytes of one event.
const MESSAGE_BYTES: usize = 6;

struct Desk {
    core: Core,
    /// Batches that are stored, and their sources.
    kept: BTreeMap<BatchId, usize>,
    /// Ids of batches that were given out.
    gone: BTreeSet<BatchId>,
    /// The sources of batches that were given out and not freed.
    given: Vec<usize>,
}

impl Desk {
    /// Handles one event; true at the end of the river.
    fn takes(&mut self, bytes: &[u8], rules: &Rules) -> bool {
        let source = usize::from(bytes[1]) % SOURCES;
        let (event, head) = match bytes[0] % 12 {
            7.. if !self.given.is_empty() => {
                let one = usize::from(bytes[1]) % self.given.len();
                (Event::Freed(self.given.swap_remove(one)), None)
            }
            kind => {
                let head = head_of(KINDS[usize::from(kind) % KINDS.len()], bytes);
                (Event::Arrived(source, head), Some(head))
            }
        };
        let effects = self.core.apply(event);
        let failed = effects.iter().any(|effect| matches!(effect, Effect::Fail(_)));
        if let Some(head) = head.filter(|head| head.kind == Kind::Batch) {
            let kept = effects.iter().filter(|effect| matches!(effect, Effect::Keep)).count();
            assert!(kept == 1 || failed && kept == 0, "a batch is held: {effects:?}");
            if kept == 1 {
                let name = (head.split, head.lane, head.sequence);
                assert!(!self.gone.contains(&name), "{name:?} was given out before");
                assert!(self.kept.insert(name, source).is_none(), "{name:?} is held already");
            }
        }
        for effect in &effects {
            match effect {
                Effect::Give(source, name) => {
                    assert_eq!(self.kept.remove(name), Some(*source), "{name:?} is given as it came");
                    assert!(self.gone.insert(*name), "{name:?} is given twice");
                    self.given.push(*source);
                }
                Effect::Fail(why) => assert_eq!(why.to_string().lines().count(), 1),
                _ => {}
            }
        }
        let most = SOURCES as u64 * rules.exclusive + rules.float;
        assert!(failed || self.core.buffers() <= most, "{} of {most} buffers", self.core.buffers());
        failed || effects.contains(&Effect::End)
    }
}

/// A head with small numbers, and sometimes a very large one.
fn head_of(kind: Kind, bytes: &[u8]) -> Head {
    let number = |byte: u8, below: u8| match byte {
        255 => u64::MAX,
        254 => 1 << 63,
        byte => u64::from(byte % below),
    };
    Head {
        more: bytes[0] & 128 != 0,
        split: number(bytes[2], 4),
        lane: number(bytes[3], 3) as u32,
        sequence: number(bytes[4], 5),
        records: number(bytes[5], 3),
        bytes: number(bytes[5], 3),
        checksum: u128::from(number(bytes[5], 3)),
        ..Head::new(kind, RIVER + u64::from(bytes[1] == 255))
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use thalweg_base::rng::Rng;

    use super::*;

    #[test]
    fn the_corpora_are_handled() {
        replay::corpus("heads", heads);
        replay::corpus("outlet", outlet);
    }

    /// Random events: mostly from sources that send in order.
    #[test]
    fn any_messages_are_handled() {
        for seed in 0..20_000 {
            let mut rng = Rng::new(seed);
            let mut data = vec![rng.below(8) as u8, rng.below(4) as u8, rng.below(4) as u8];
            // Each source has a split of its own, with two lanes.
            let mut sent = [[0; 2]; SOURCES];
            for _ in 0..rng.below(60) {
                let (source, lane) = (rng.below(3), rng.below(2));
                let count = &mut sent[source as usize][lane as usize];
                // Mostly batches and freed buffers.
                let kind = match rng.below(40) {
                    rare @ 1..7 => rare,
                    batch if batch < 25 => 0,
                    _ => 7,
                };
                let mut message = [kind, source, source, lane, *count, 1];
                *count += u64::from(kind == 0);
                if rng.one_in(20) {
                    message[rng.below(6) as usize] = 256 - 1 - rng.below(3);
                }
                data.extend(message.map(|n| n as u8));
            }
            outlet(&data);
        }
    }
}

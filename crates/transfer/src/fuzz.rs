//! Entry points for fuzzers: journals and messages of arbitrary bytes. They panic where an invariant is broken. `fuzz/`
//! calls them, and the tests replay its corpus.
//!
//! Invariant: builds for users do not contain this module.

use std::os::unix::ffi::OsStrExt;

use thalweg_record::CELL_BYTES;
use xxhash_rust::xxh3::xxh3_64;

use crate::journal::{JournalContents, line, parse};
use crate::message::{Message, TAIL_BYTES_MAX, Tail, is_bare};

/// Reads a journal as it is, and again with a correct hash in every line, to reach the code after the hash check.
pub fn journal(data: &[u8]) {
    is_sound(data, &parse(data));
    let mended = mended(data);
    is_sound(&mended, &parse(&mended));
}

/// Gives every line but the first its correct hash.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut lines = data.split_inclusive(|b| *b == b'\n');
    let mut mended = lines.next().unwrap_or_default().to_vec();
    for text in lines {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let said = String::from_utf8_lossy(text.get(17..).unwrap_or(text)).into_owned();
        mended.extend_from_slice(line(&said).as_bytes());
    }
    mended
}

/// Asserts that the contents are consistent, and come only from the valid lines.
fn is_sound(data: &[u8], told: &JournalContents) {
    assert!(told.end <= data.len());
    assert_eq!(*told, parse(&data[..told.end]), "what comes behind the sound part changes nothing");
    assert!(told.files.len() as u64 <= told.count);
    assert!(told.count == 0 || told.identity.is_some());
    for noted in told.files.values() {
        assert!(noted.number < told.count);
        let mut end = 0;
        for (at, (len, _)) in &noted.ranges {
            assert!(*at >= end && *len > 0 && at.is_multiple_of(CELL_BYTES as u64));
            end = at + len;
        }
        assert!(end <= noted.len);
    }
}

/// Messages and descriptions of blocks: what can be decoded encodes to the same bytes, and names stay in their
/// directory.
pub fn messages(data: &[u8]) {
    if let Some(message) = Message::decode(data) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(Message::decode(&bytes[4..]), Some(message), "a message is read as it was written");
    }
    let (hash, len) = (xxh3_64(data), data.len() as u32);
    let mended = [data, &hash.to_le_bytes(), &len.to_le_bytes()].concat();
    for block in [data, &mended] {
        let Some((tail, start)) = Tail::decode(block) else { continue };
        assert!(start <= block.len());
        if let Tail::Pack(pack) = &tail {
            assert!(pack.iter().all(|small| is_bare(small.name.as_bytes())), "{pack:?}");
        }
        // No sender writes a longer one.
        if block.len() - start < TAIL_BYTES_MAX / 2 {
            assert_eq!(Tail::decode(&tail.encode()), Some((tail, 0)), "a tail is read as it was written");
        }
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
    fn the_corpus_is_answered() {
        replay::corpus("journal", journal);
        replay::corpus("messages", messages);
    }

    /// Mutations from a seed, for machines without a fuzzer.
    #[test]
    fn mutations_of_a_journal_are_answered() {
        let mut whole = b"thalweg journal 3\n".to_vec();
        for said in [
            "job 000000000000000000000000000000ab",
            "tree 3 -5 .a.thalweg-partial",
            "file 0 100000 -5 6 1 2 a%20b",
            "range 0 0 4096 00000000000000000000000000000001",
            "file 1 18446744073709551615 7 8 1 3 b",
            "range 1 4096 18446744073709547519 00000000000000000000000000000002",
            "range 0 8192 91808 00000000000000000000000000000003",
        ] {
            whole.extend_from_slice(line(said).as_bytes());
        }
        assert_eq!(parse(&whole).end, whole.len());
        for seed in 0..20_000 {
            let mut rng = Rng::new(seed);
            let mut pick = |below: usize| rng.below(below.max(1) as u64) as usize;
            let mut bytes = whole.clone();
            for _ in 0..=pick(4) {
                // Four steps leave something of it.
                let at = pick(bytes.len());
                match pick(4) {
                    0 => bytes[at] = b" %\n0919-zf\xff"[pick(11)],
                    1 => bytes.insert(at, b" %\n0919-zf\xff"[pick(11)]),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at.max(8)),
                }
            }
            journal(&bytes);
        }
    }
}

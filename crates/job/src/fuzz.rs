//! Entry points for fuzzers: anything that a peer may send on a stream. Takes any bytes and panics where an invariant
//! is broken; `fuzz/` calls them, and the tests play its corpus back.
//!
//! Invariant: nothing here is compiled into a build that users get.

use std::fmt::Debug;

use thalweg_api::{
    CheckSaid, CommandRequest, FromParticipant, HostRequest, JobRequest, Request, ToParticipant,
    TransferRequest, from_json, to_json,
};
use thalweg_engine::{KeyPart, Layout};
use thalweg_record::{Key, StretchCheck, unpack_sample};
use thalweg_wire::message::take;

/// The most bytes after a message that are read here.
const KEYS_BYTES: usize = 1 << 16;

/// A stream of messages, cut anywhere: read the same as whole, each parsed or refused in one line.
pub fn asked(data: &[u8]) {
    let (mut whole, mut messages) = (data.to_vec(), Vec::new());
    let end = loop {
        match take(&mut whole) {
            Ok(Some(message)) => messages.push(message),
            other => break other.map(drop),
        }
    };
    let (mut came, mut again) = (Vec::new(), Vec::new());
    for byte in data {
        came.push(*byte);
        while let Ok(Some(message)) = take(&mut came) {
            again.push(message);
        }
    }
    assert!(again == messages, "what is heard does not depend on how it comes");
    if let Err(why) = end {
        assert_eq!(why.lines().count(), 1);
    }
    for (text, behind) in &messages {
        is_understood(text);
        let _ = unpack_sample(behind, KEYS_BYTES);
    }
    is_understood(&String::from_utf8_lossy(data));
}

fn is_understood(text: &str) {
    if let Ok(Request { body, .. }) = Request::parse(text) {
        same::<HostRequest>(&body, from_json, to_json);
        same::<CommandRequest>(&body, from_json, to_json);
        same::<TransferRequest>(&body, from_json, to_json);
        if let Some(request) = same::<JobRequest>(&body, from_json, to_json) {
            looks_at(&request);
        }
    }
    same::<ToParticipant>(text, from_json, to_json);
    // Its seconds may differ in their last digit.
    let _ = from_json::<FromParticipant>(text);
    let Some(CheckSaid::Done(examined)) = same(text, from_json, to_json) else { return };
    for layout in [Layout::Lines, Layout::Fixed(3), Layout::Prefixed] {
        let part = KeyPart { offset: 1, length: 2, descending: true };
        let key = Key::new(layout, &[part]).expect("a key of each");
        match StretchCheck::of_examined(layout, &key, (*examined).clone()) {
            Ok(piece) => {
                let mut whole = StretchCheck::first(layout, &key);
                if whole.join_told(&piece) && whole.join_told(&piece) {
                    assert!(whole.proof().records >= 2 * piece.proof().records);
                }
            }
            Err(why) => assert_eq!(why.lines().count(), 1),
        }
    }
}

/// What is done with a request before anything is opened.
fn looks_at(request: &JobRequest) {
    let (layout, keys) = match request {
        JobRequest::Sort(job) | JobRequest::Coordinate(job) => (&job.ask.spec.layout, &job.ask.spec.keys),
        JobRequest::Check(check) => (&check.layout, &check.keys),
        _ => return,
    };
    if let Err(why) = Key::new(Layout::of(layout), keys) {
        assert_eq!(why.to_string().lines().count(), 1);
    }
}

/// A message that can be parsed is written and parsed the same again.
fn same<T: PartialEq + Debug>(
    text: &str,
    read: fn(&str) -> Result<T, String>,
    write: fn(&T) -> String,
) -> Option<T> {
    let told = read(text).ok()?;
    assert_eq!(read(&write(&told)).as_ref(), Ok(&told), "what is said is what was meant");
    Some(told)
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_answered() {
        super::replay::corpus("asked", super::asked);
    }
}

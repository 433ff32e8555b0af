//! Fuzz targets of volumes: messages and access control lists of arbitrary bytes. The function panics if an invariant is broken; `fuzz/` calls
//! it, and the tests replay its corpus.
//!
//! Invariant: nothing here is compiled into a build that users get.

use crate::acl::Acl;
use crate::codec::{Plain, decode};
use crate::message::{Ask, BODY_BYTES_MAX, DATA_BYTES_MAX, Head, Reply};

/// Requests, answers and heads of messages: a message that decodes is encoded to the same bytes, and the limits hold.
pub fn messages(data: &[u8]) {
    let written = |message: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        message(&mut bytes);
        bytes
    };
    if let Some(ask) = Ask::decode(data) {
        assert_eq!(written(&|into| ask.put(into)), data, "{ask:?}");
    }
    if let Some(reply) = decode::<Reply>(data) {
        assert_eq!(written(&|into| reply.put(into)), data, "{reply:?}");
    }
    if let Some(acl) = Acl::read(data) {
        assert_eq!((acl.value(), acl.with_mode(acl.mode())), (data.to_vec(), acl));
    }
    let mut rest = data;
    while let Ok(Some(head)) = Head::read(&mut rest) {
        assert!(head.body.len() <= BODY_BYTES_MAX.min(data.len()) && head.data_bytes <= DATA_BYTES_MAX);
        rest = &rest[head.data_bytes.min(rest.len())..];
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn sound_messages_are_understood_and_others_refused() {
        let read = |name: &str| {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/volume");
            thalweg_io::small::read(&folder.join(name)).unwrap()
        };
        for name in [
            "attach", "lookup", "create", "settle", "set", "close", "append", "lock", "read", "write",
            "forward", "held", "claim",
        ] {
            assert!(super::Ask::decode(&read(name)).is_some(), "{name}");
        }
        for name in [
            "stale-of-no-copy",
            "lock-backwards",
            "read-too-much",
            "write-beyond",
            "write-unsound-layout",
            "nothing",
        ] {
            assert!(super::Ask::decode(&read(name)).is_none(), "{name}");
        }
        assert!(super::decode::<super::Reply>(&read("reply-entries")).is_some());
        assert!(super::decode::<super::Reply>(&read("reply-entries-too-many")).is_none());
    }

    #[test]
    fn the_corpus_is_answered() {
        super::replay::corpus("volume", super::messages);
    }
}

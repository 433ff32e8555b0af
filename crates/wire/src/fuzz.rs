//! Entry points for fuzzers: a link with a peer that sends arbitrary bytes. They panic where an invariant is broken.
//! `fuzz/` calls them, and the tests replay its corpus.
//!
//! Invariant: builds for users contain nothing of this.

use crate::core::{CREDITS_MAX, Core, Effect, Event, STREAMS_MAX, Timeouts};
use crate::frame::{CONTROL_BYTES_MAX, DATA_BYTES_MAX, HEAD_BYTES, Head, Kind};
use crate::hello::{Hello, Id, Role, VERSIONS};

/// A peer sends these bytes to a side with two open streams. If the first byte is odd, headers are corrected, to reach
/// the code after the checks.
pub fn frames(data: &[u8]) {
    let Some((&how, mut rest)) = data.split_first() else { return };
    let (cluster, node, role) = (Id(1), Id(1), Role::Node);
    let ours = Hello { versions: VERSIONS, cluster, node, role, block_bytes: 1 << 20, epoch: 0 };
    let (mut core, _) = Core::new(ours, None, true, Timeouts::default(), 0);
    let mut sequence = 0;
    let mut closed = false;
    while !rest.is_empty() && !closed {
        let Some((head, behind)) = head_of(rest, how % 2 == 1, sequence) else { break };
        let head = match head {
            Ok(head) => head,
            Err(why) => {
                assert!(why.to_string().len() < 200);
                closes(&core.apply(1, Event::Broken(why)));
                return;
            }
        };
        let most = if head.kind == Kind::Data { DATA_BYTES_MAX } else { CONTROL_BYTES_MAX };
        assert!(head.len <= most, "{head:?}");
        sequence = head.sequence.wrapping_add(1);
        let some = (head.len as usize).min(behind.len());
        let payload = behind[..some].to_vec();
        rest = &behind[some..];
        let event = match head.kind {
            Kind::Data => Event::Block(head),
            _ => Event::Frame(head, payload),
        };
        let effects = core.apply(u64::from(sequence), event);
        assert!(effects.len() <= 2, "{effects:?}");
        closed = effects.iter().any(|effect| matches!(effect, Effect::Close(_)));
        if effects.iter().any(|effect| matches!(effect, Effect::HelloReceived(_))) {
            for _ in 0..2 {
                core.apply(1, Event::Open(b"fuzz".to_vec()));
            }
            core.apply(1, Event::Reserve(1, 2));
        }
        assert!(core.streams() <= STREAMS_MAX && core.reserved(1) <= CREDITS_MAX);
    }
    if closed {
        assert_eq!(core.apply(u64::MAX, Event::Tick), [], "a closed link is silent");
    }
}

fn closes(effects: &[Effect]) {
    assert!(matches!(effects, [.., Effect::Close(Some(_))]), "{effects:?}");
}

type Decoded = Result<Head, crate::frame::FrameError>;

/// The header at the beginning of these bytes, and the bytes after it.
fn head_of(bytes: &[u8], mended: bool, sequence: u32) -> Option<(Decoded, &[u8])> {
    let (head, behind) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    if !mended {
        let decoded = Head::decode(head);
        if let Ok(decoded) = decoded {
            assert_eq!(decoded.encode(), *head);
        }
        return Some((decoded, behind));
    }
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let value = u64::from(number(16)) | u64::from(number(20)) << 32;
    let kinds =
        [Kind::Hello, Kind::Open, Kind::Data, Kind::Credit, Kind::End, Kind::Abort, Kind::Ping, Kind::Bye];
    let kind = kinds[usize::from(head[0]) % kinds.len()];
    let plain = Head {
        kind,
        flags: head[1],
        stream: number(4),
        len: number(8),
        sequence,
        value,
        checksum: u64::from(number(24)),
    };
    Some((Head::decode(&plain.encode()), behind))
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_answered() {
        super::replay::corpus("frames", super::frames);
    }
}

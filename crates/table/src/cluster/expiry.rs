//! Strings of Redis clients that expire, on a cluster: the time is stored before the value, so one record has both.
//!
//! ```text
//! value                                  a string that does not expire
//! [MARK][ends: i64][value]               one that does, in milliseconds since 1970, little-endian
//! ```
//!
//! Model: whoever reads a string that has expired takes it as missing. One node removes those that nobody reads.
//! Invariant: a string that begins with the mark itself is stored with the end [`NEVER`], so every string can be stored.
//! A string is removed only if it is still the one that was found to have expired.
//! Non-goals: equal clocks; nodes whose clocks differ disagree about the end by as much.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::ClusterHost;
use thalweg_base::clock::Stopwatch;
use thalweg_wire::Host;

use super::error::Result;
use super::front::Front;
use super::interval::Interval;
use crate::condition::Condition;

/// What a stored value begins with if an end follows.
const MARK: &[u8; 8] = b"\0expires";
const HEAD_BYTES: usize = MARK.len() + size_of::<i64>();
/// The end of a string that does not expire.
const NEVER: i64 = i64::MAX;
/// The least time between two searches for expired strings, and how much longer it is than a search takes.
const SEARCH_EVERY: Duration = Duration::from_secs(5);
const SEARCH_SHARE: u32 = 100;

/// A string, and when it expires, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) value: Vec<u8>,
    pub(crate) ends_ms: Option<i64>,
}

impl Text {
    /// The string of a stored value, if it has not expired.
    pub(crate) fn of(stored: &[u8], now_ms: i64) -> Option<Text> {
        let head = stored.strip_prefix(MARK).and_then(|rest| rest.split_first_chunk());
        let Some((ends, value)) = head else { return Some(Text { value: stored.into(), ends_ms: None }) };
        let ends_ms = Some(i64::from_le_bytes(*ends)).filter(|ends| *ends != NEVER);
        ends_ms.is_none_or(|ends| ends > now_ms).then(|| Text { value: value.into(), ends_ms })
    }

    /// The value to be stored.
    pub(crate) fn stored(&self) -> Vec<u8> {
        if self.ends_ms.is_none() && !self.value.starts_with(MARK) {
            return self.value.clone();
        }
        let mut stored = Vec::with_capacity(HEAD_BYTES + self.value.len());
        stored.extend_from_slice(MARK);
        stored.extend_from_slice(&self.ends_ms.unwrap_or(NEVER).to_le_bytes());
        stored.extend_from_slice(&self.value);
        stored
    }
}

/// Whether this node removes expired strings: the first one that serves Redis clients does.
pub(crate) fn is_sweeper(hosts: &[ClusterHost], name: &str) -> bool {
    hosts.iter().find(|host| host.resp.is_some()).is_some_and(|host| host.name == name)
}

/// Removes expired strings until the node stops.
pub(crate) fn sweep_until_stopped(host: &Host, front: &Arc<Front>, now_ms: fn() -> i64) {
    let mut pause = SEARCH_EVERY;
    while !host.is_stopping_within(pause) {
        let hosts = host.cluster_file().map(|file| file.hosts).unwrap_or_default();
        if !is_sweeper(&hosts, host.name()) {
            continue;
        }
        let watch = Stopwatch::start();
        if sweep(front, now_ms()).is_err() {
            // The table was dropped since it was opened, or a node cannot be reached.
            front.forget();
        }
        pause = SEARCH_EVERY.max(Duration::from_secs_f64(watch.seconds()) * SEARCH_SHARE);
    }
}

/// Removes the strings that have expired.
fn sweep(front: &Front, now_ms: i64) -> Result<()> {
    let Some(strings) = front.strings()? else { return Ok(()) };
    let marked = Condition::parse(&[b"prefix:", &MARK[..]].concat()).expect("it is a condition");
    for record in strings.find(Interval::all(), &marked) {
        let (key, stored) = record?;
        if Text::of(&stored, now_ms).is_none() {
            strings.compare_and_set(&key, Some(&stored), None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_string_can_be_stored_and_ends_when_it_is_to() {
        let marked = [&MARK[..], b"12345678 and more"].concat();
        for value in [&b""[..], b"value", MARK, &marked] {
            for ends_ms in [None, Some(5)] {
                let text = Text { value: value.into(), ends_ms };
                let stored = text.stored();
                assert_eq!(Text::of(&stored, 4), Some(text.clone()), "{}", value.escape_ascii());
                assert_eq!(Text::of(&stored, 5).is_some(), ends_ms.is_none());
            }
        }
        assert_eq!(Text { value: b"value".into(), ends_ms: None }.stored(), b"value");
    }
}

//! The answers to each client's requests that may change something, so that no request is carried out twice.
//!
//! Model: a client numbers its requests, and says below which number it has all answers; those are dropped. Answers to
//! requests that changed nothing are stored too: a late copy of one might change records that were written since.
//! Invariant: a request is carried out once, unless a copy is under way for longer than [`LASTS_MS`]. A bucket stores
//! at most [`ANSWERS_MAX`] answers with [`VALUE_BYTES`] of values. Its journal moves with its records.
//! Non-goals: answers to reads.

use std::collections::{BTreeMap, VecDeque};

use thalweg_base::codec::record;

use super::message::Answer;

/// How long the answers of a silent client are stored: longer than a client repeats a request.
pub(crate) const LASTS_MS: u64 = 60_000;
/// The most answers that are stored.
pub(crate) const ANSWERS_MAX: usize = 32 << 10;
/// The most bytes of values in them, beyond one.
pub(crate) const VALUE_BYTES: usize = 2 << 20;

/// The most clients whose answers are stored.
const CLIENTS_MAX: usize = 4096;

/// A client: the id of the peer on its link, and a number that the client chose for this use of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId {
    pub(crate) peer: [u64; 2],
    pub(crate) session: u64,
}

record!(ClientId { peer, session });

/// What a bucket knows about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The request is not known.
    New,
    /// The request was carried out, with this answer.
    Done(Answer),
    /// The client has the answer.
    Answered,
}

/// The answers to one client, for another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Noted {
    client: ClientId,
    done_below: u64,
    done: Vec<(u64, Answer)>,
}

record!(Noted { client, done_below, done });

impl Noted {
    /// The answer to one request.
    pub(crate) fn one(client: ClientId, (done_below, number): (u64, u64), answer: &Answer) -> Noted {
        Noted { client, done_below, done: vec![(number, answer.clone())] }
    }
}

#[derive(Debug, Default)]
struct Client {
    done_below: u64,
    /// The stored answers, in the order of their numbers.
    done: VecDeque<(u64, Answer)>,
    heard_ms: u64,
}

impl Client {
    /// Stores an answer, unless there is one. Returns whether there was none.
    fn note(&mut self, number: u64, answer: Answer) -> bool {
        if self.is_above_all(number) {
            self.done.push_back((number, answer));
            return true;
        }
        let at = self.done.partition_point(|(done, _)| *done < number);
        let is_new = self.done.get(at).is_none_or(|(done, _)| *done != number);
        if is_new {
            self.done.insert(at, (number, answer));
        }
        is_new
    }

    /// Whether a number is above those of all stored answers, as that of a request that was not sent again.
    fn is_above_all(&self, number: u64) -> bool {
        self.done.back().is_none_or(|(last, _)| *last < number)
    }

    /// Drops all answers below a number, and returns them.
    fn forget_below(&mut self, number: u64) -> impl Iterator<Item = (u64, Answer)> {
        self.done_below = self.done_below.max(number);
        let is_below = |(done, _): &(u64, Answer)| *done < self.done_below;
        let count =
            if self.done.front().is_some_and(is_below) { self.done.partition_point(is_below) } else { 0 };
        self.done.drain(..count)
    }
}

/// The bytes of values in an answer.
fn value_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Differs(Some(value)) => value.len(),
        _ => 0,
    }
}

/// The answers of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    clients: BTreeMap<ClientId, Client>,
    len: usize,
    value_bytes: usize,
}

impl Journal {
    /// Looks up a request of a client that has all answers below `done_below`.
    pub(crate) fn look(&mut self, now_ms: u64, client: ClientId, done_below: u64, number: u64) -> Seen {
        let Some(known) = self.clients.get_mut(&client) else { return Seen::New };
        known.heard_ms = now_ms;
        for (_, forgotten) in known.forget_below(done_below) {
            self.len -= 1;
            self.value_bytes -= value_bytes(&forgotten);
        }
        if number < known.done_below {
            return Seen::Answered;
        }
        if known.is_above_all(number) {
            return Seen::New;
        }
        let found = known.done.binary_search_by_key(&number, |(done, _)| *done);
        found.map_or(Seen::New, |at| Seen::Done(known.done[at].1.clone()))
    }

    /// Whether there is room for another answer.
    pub(crate) fn has_room(&mut self, now_ms: u64) -> bool {
        let has_room = |journal: &Journal| {
            journal.len < ANSWERS_MAX
                && journal.value_bytes < VALUE_BYTES
                && journal.clients.len() < CLIENTS_MAX
        };
        if !has_room(self) {
            self.expire(now_ms);
        }
        has_room(self)
    }

    /// Stores the answer to a new request.
    pub(crate) fn note(
        &mut self,
        now_ms: u64,
        client: ClientId,
        (done_below, number): (u64, u64),
        answer: &Answer,
    ) {
        let known = self.clients.entry(client).or_default();
        known.heard_ms = now_ms;
        known.done_below = known.done_below.max(done_below);
        self.len += 1;
        self.value_bytes += value_bytes(answer);
        known.note(number, answer.clone());
    }

    /// Removes clients that have not been heard from for [`LASTS_MS`].
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.clients.retain(|_, client| now_ms < client.heard_ms + LASTS_MS);
        let answers = || self.clients.values().flat_map(|client| &client.done);
        (self.len, self.value_bytes) =
            (answers().count(), answers().map(|(_, answer)| value_bytes(answer)).sum());
    }

    /// A copy of the journal, for another server.
    pub(crate) fn copy(&self) -> Vec<Noted> {
        let noted = |(client, known): (&ClientId, &Client)| Noted {
            client: *client,
            done_below: known.done_below,
            done: known.done.iter().cloned().collect(),
        };
        self.clients.iter().map(noted).collect()
    }

    /// Adds the journal of another bucket.
    pub(crate) fn add(&mut self, now_ms: u64, noted: Vec<Noted>) {
        // Those of silent clients make room. There may be somewhat more than the limit, as others have counted.
        let _ = self.has_room(now_ms);
        for Noted { client, done_below, done } in noted {
            let known = self.clients.entry(client).or_default();
            known.heard_ms = now_ms;
            for (number, answer) in done {
                let bytes = value_bytes(&answer);
                if known.note(number, answer) {
                    self.len += 1;
                    self.value_bytes += bytes;
                }
            }
            for (_, forgotten) in known.forget_below(done_below) {
                self.len -= 1;
                self.value_bytes -= value_bytes(&forgotten);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId { peer: [1, 2], session: 3 };

    #[test]
    fn an_answer_is_known_until_the_client_has_it() {
        let mut journal = Journal::default();
        assert_eq!(journal.look(0, CLIENT, 0, 5), Seen::New);
        journal.note(0, CLIENT, (0, 5), &Answer::Missing);
        journal.note(0, CLIENT, (0, 3), &Answer::Done);
        let seen = [3, 4, 5].map(|number| journal.look(0, CLIENT, 0, number));
        assert_eq!(seen, [Seen::Done(Answer::Done), Seen::New, Seen::Done(Answer::Missing)]);
        let mut other = Journal::default();
        other.add(0, journal.copy());
        assert_eq!(other.look(0, CLIENT, 4, 3), Seen::Answered);
        assert_eq!((other.look(0, CLIENT, 4, 5), other.len), (Seen::Done(Answer::Missing), 1));
        other.expire(LASTS_MS - 1);
        assert_eq!(other.look(0, CLIENT, 4, 5), Seen::Done(Answer::Missing));
        other.expire(LASTS_MS);
        assert_eq!((other.look(0, CLIENT, 4, 5), other.len), (Seen::New, 0));
    }

    #[test]
    fn answers_are_bounded_until_old_ones_are_forgotten() {
        let mut journal = Journal::default();
        (0..ANSWERS_MAX as u64).for_each(|number| journal.note(0, CLIENT, (0, number), &Answer::Done));
        assert!(!journal.has_room(LASTS_MS - 1));
        assert!(journal.has_room(LASTS_MS));
        journal.note(0, CLIENT, (0, 1), &Answer::Differs(Some(vec![0; VALUE_BYTES].into())));
        assert!(!journal.has_room(LASTS_MS - 1));
        assert_eq!(journal.look(0, CLIENT, 2, 2), Seen::New);
        assert!(journal.has_room(0));
    }
}

//! Tables that are being dropped, on the registrar: which servers have yet to refuse them.
//!
//! ```text
//! registrar                                      each server
//! lists the table as one that is being dropped
//! End: table, round                     --->     removes what it has of the table, and refuses its id in this run
//!                                       <---     Ended: table, round, run, the keys that nobody else had
//! lists it no more: its name is free
//! ```
//!
//! Model: a server that does not answer is asked again, after pauses that grow. Messages come in, messages go out, and
//! time is an argument. Until a drop is finished, the table may still be used through servers that have not heard of it.
//! Invariant: once a drop is finished, no server serves a key of the table, and none ever will. That is so
//! - without parity, if each key was of one server alone when that refused the table: nobody else can get the key then;
//! - if all servers refused the table at one instant: each has answered in two rounds in one run, and the second round
//!   began after all had answered in the first. A server that is restarted in between may have got a bucket since;
//! - with parity, if all servers with seats have refused it, and the leases that they gave before have ended. The
//!   registrar has removed the groups, so nobody gets a seat any more.
//!
//! Non-goals: the list of tables; see registrar.rs.

use std::collections::{BTreeMap, BTreeSet};

use super::image::Address;
use super::interval::Interval;
use super::message::{Message, Outbox, TableId, To};
use super::parity::LEASE_MS;

/// The time after which a server is asked again, which doubles each time up to the other one.
const RESEND_MS: u64 = 250;
const RESEND_MS_MAX: u64 = 4_000;
/// The most finished drops of which some servers have yet to hear, so that they remove what they have.
const FINISHED_MAX: usize = 256;

/// What a server has said of a drop.
#[derive(Default)]
struct Told {
    /// The run in which it has last answered, with the first and the last round that it has answered in this run.
    run: u64,
    first: u64,
    last: u64,
    due_ms: u64,
    pause_ms: u64,
}

/// A drop.
struct Ending {
    /// The servers with seats of the table, if it has parity and they are known.
    seats: Option<BTreeSet<Address>>,
    /// The keys that a server may have that has not refused the table.
    keys: Vec<Interval>,
    round: u64,
    servers: BTreeMap<Address, Told>,
    /// When a server last answered.
    heard_ms: u64,
    /// Whether the name is free again.
    is_finished: bool,
}

/// The drops of a registrar.
#[derive(Default)]
pub(crate) struct Drops {
    drops: BTreeMap<TableId, Ending>,
}

impl Drops {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.drops.is_empty()
    }

    /// Whether this table is being dropped, or was lately.
    pub(crate) fn has(&self, table: TableId) -> bool {
        self.drops.contains_key(&table)
    }

    /// Begins to drop a table, whose seats these servers have if it has parity and they are known. Without `seats`, keys
    /// of a table with parity are never reported as those of one server alone.
    pub(crate) fn begin(&mut self, table: TableId, seats: Option<BTreeSet<Address>>) {
        self.drops.entry(table).or_insert_with(|| Ending {
            seats,
            keys: vec![Interval::all()],
            round: 1,
            servers: BTreeMap::new(),
            heard_ms: 0,
            is_finished: false,
        });
    }

    /// Asks servers that have not answered.
    pub(crate) fn tick(&mut self, now_ms: u64, servers: &[Address], out: &mut Outbox) {
        for (table, ending) in &mut self.drops {
            ending.servers.retain(|server, _| servers.contains(server));
            for server in servers {
                let told = ending.servers.entry(server.clone()).or_default();
                let lacks = if ending.is_finished { told.last == 0 } else { told.last < ending.round };
                if lacks && now_ms >= told.due_ms {
                    told.pause_ms = (2 * told.pause_ms).clamp(RESEND_MS, RESEND_MS_MAX);
                    told.due_ms = now_ms + told.pause_ms;
                    let message = Message::End { table: *table, round: ending.round };
                    out.push((To::Server(server.clone()), message));
                }
            }
        }
        self.drops
            .retain(|_, ending| !ending.is_finished || ending.servers.values().any(|told| told.last == 0));
    }

    /// Handles the answer of a server, which had these keys alone.
    pub(crate) fn ended(
        &mut self,
        now_ms: u64,
        from: &Address,
        (table, round, run): (TableId, u64, u64),
        had: &[Interval],
    ) {
        let Some(ending) = self.drops.get_mut(&table) else { return };
        for had in had {
            let left = ending.keys.iter().flat_map(|keys| <[_; 2]>::from(keys.minus(had))).flatten();
            ending.keys = left.collect();
        }
        let Some(told) = ending.servers.get_mut(from).filter(|_| round == ending.round) else { return };
        ending.heard_ms = now_ms;
        if told.run != run || told.first == 0 {
            (told.run, told.first) = (run, round);
        }
        told.last = round;
        let is_round = ending.servers.values().all(|told| told.last == round);
        if is_round && !ending.have_all_refused() {
            ending.round += 1;
            ending.servers.values_mut().for_each(|told| (told.due_ms, told.pause_ms) = (0, 0));
        }
    }

    /// The drops that are finished, until [`Drops::finish`] says that the names are free.
    pub(crate) fn finished(&self, now_ms: u64) -> Vec<TableId> {
        let done = |ending: &Ending| !ending.is_finished && ending.is_done(now_ms);
        self.drops.iter().filter(|(_, ending)| done(ending)).map(|(table, _)| *table).collect()
    }

    /// The name of the table is free. Servers that have not heard of the drop still will.
    pub(crate) fn finish(&mut self, table: TableId) {
        if let Some(ending) = self.drops.get_mut(&table) {
            ending.is_finished = true;
        }
        let finished = || self.drops.iter().filter(|(_, ending)| ending.is_finished);
        if finished().count() > FINISHED_MAX
            && let Some(oldest) =
                finished().min_by_key(|(_, ending)| ending.heard_ms).map(|(table, _)| *table)
        {
            self.drops.remove(&oldest);
        }
    }

    /// The servers that have yet to refuse a table.
    pub(crate) fn left(&self, table: TableId) -> Vec<Address> {
        let Some(ending) = self.drops.get(&table) else { return Vec::new() };
        let lacks = |(server, told): &(&Address, &Told)| {
            let matters = ending.seats.as_ref().is_none_or(|seats| seats.contains(*server));
            matters && (told.last < ending.round || told.first == 0)
        };
        ending.servers.iter().filter(lacks).map(|(server, _)| server.clone()).collect()
    }
}

impl Ending {
    /// Whether all servers have refused the table at one instant.
    fn have_all_refused(&self) -> bool {
        let has_twice = |told: &Told| told.last == self.round && told.first < self.round;
        !self.servers.is_empty() && self.servers.values().all(has_twice)
    }

    fn is_done(&self, now_ms: u64) -> bool {
        let has_refused = |server: &Address| self.servers.get(server).is_none_or(|told| told.first > 0);
        let have_seats_refused = self.seats.as_ref().is_some_and(|seats| {
            !self.servers.is_empty() && seats.iter().all(has_refused) && now_ms >= self.heard_ms + LEASE_MS
        });
        self.keys.is_empty() || self.have_all_refused() || have_seats_refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = 7;

    fn servers() -> Vec<Address> {
        ["n1", "n2", "n3"].map(Address::from).to_vec()
    }

    fn asked(drops: &mut Drops, now_ms: u64) -> Vec<(String, u64)> {
        let mut out = Outbox::new();
        drops.tick(now_ms, &servers(), &mut out);
        let asked = out.into_iter().map(|(to, message)| match (to, message) {
            (To::Server(server), Message::End { table: TABLE, round }) => (server.to_string(), round),
            other => panic!("{other:?}"),
        });
        asked.collect()
    }

    fn is_finished(drops: &Drops) -> bool {
        drops.finished(0) == [TABLE]
    }

    #[test]
    fn a_drop_is_finished_when_each_key_was_of_a_server_that_refuses_it() {
        let mut drops = Drops::default();
        drops.begin(TABLE, None);
        assert_eq!(asked(&mut drops, 0).len(), 3);
        let part = |from: &str, to: Option<&str>| Interval::new(from.as_bytes(), to.map(str::as_bytes));
        drops.ended(0, &"n1".into(), (TABLE, 1, 1), &[part("", Some("k")), part("p", None)]);
        assert!(!is_finished(&drops));
        assert_eq!(drops.left(TABLE), ["n2", "n3"].map(Address::from));
        drops.ended(0, &"n3".into(), (TABLE, 1, 1), &[part("k", Some("p"))]);
        assert!(is_finished(&drops), "n2 has no keys");
        drops.finish(TABLE);
        assert!(drops.finished(0).is_empty());
        // It hears of the drop when it returns.
        assert_eq!(asked(&mut drops, 10_000), [("n2".to_string(), 1)]);
        drops.ended(10_000, &"n2".into(), (TABLE, 1, 1), &[]);
        assert!(asked(&mut drops, 20_000).is_empty() && drops.is_empty());
    }

    #[test]
    fn if_keys_are_missing_all_servers_have_to_refuse_the_table_at_one_instant() {
        let mut drops = Drops::default();
        drops.begin(TABLE, None);
        asked(&mut drops, 0);
        let end = |drops: &mut Drops, server: &str, round, run| {
            drops.ended(0, &server.into(), (TABLE, round, run), &[]);
        };
        ["n1", "n2", "n3"].iter().for_each(|server| end(&mut drops, server, 1, 1));
        assert!(!is_finished(&drops));
        assert_eq!(asked(&mut drops, 1).len(), 3, "the second round");
        // n2 was restarted, and may have got a bucket from n3 before that refused the table.
        [("n1", 1), ("n2", 2), ("n3", 1)].iter().for_each(|(server, run)| end(&mut drops, server, 2, *run));
        assert!(!is_finished(&drops));
        // A late copy of an answer changes nothing.
        end(&mut drops, "n2", 1, 1);
        asked(&mut drops, 2);
        [("n1", 1), ("n2", 2), ("n3", 1)].iter().for_each(|(server, run)| end(&mut drops, server, 3, *run));
        assert!(is_finished(&drops));
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_less_and_less_often() {
        let mut drops = Drops::default();
        drops.begin(TABLE, None);
        let times: Vec<u64> = (0..60_000).filter(|now_ms| !asked(&mut drops, *now_ms).is_empty()).collect();
        let pauses: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(pauses[..5], [250, 500, 1_000, 2_000, 4_000]);
        assert!(pauses[5..].iter().all(|pause| *pause == RESEND_MS_MAX), "{pauses:?}");
    }

    #[test]
    fn with_parity_those_with_seats_have_to_refuse_the_table_and_leases_to_end() {
        let mut drops = Drops::default();
        drops.begin(TABLE, Some(["n1", "n2"].map(Address::from).into()));
        asked(&mut drops, 0);
        drops.ended(5, &"n1".into(), (TABLE, 1, 1), &[]);
        assert_eq!(drops.left(TABLE), ["n2"].map(Address::from));
        drops.ended(9, &"n2".into(), (TABLE, 1, 1), &[]);
        assert!(drops.finished(8 + LEASE_MS).is_empty());
        assert_eq!(drops.finished(9 + LEASE_MS), [TABLE]);
    }
}

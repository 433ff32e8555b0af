//! Locks on byte ranges of files, and the requests that wait for them.
//!
//! Model: an owner is a number that a client chose for a process or for an open file. It has ranges of a file, each
//! shared or exclusive; as with fcntl(2), a new lock replaces what its owner had in that range. A client that is silent
//! for [`LEASE`] loses all its locks. For as long, a new table grants only what clients had in the previous one.
//! Invariant: ranges of two owners overlap only where both are shared. The table is bounded: excess requests fail.
//! Non-goals: clock, threads and messages. Fairness: a free range is granted even if a request waits for part of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

/// After this long without a request a client has lost its locks, and a new table grants what was not reclaimed.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// The most locked ranges in a volume.
pub(crate) const LOCKS_MAX: usize = 1 << 15;
/// The most locked ranges of one client.
pub(crate) const CLIENT_LOCKS_MAX: usize = LOCKS_MAX / 8;
/// The most waiting requests in a volume.
pub(crate) const WAITS_MAX: usize = 4096;
/// The most clients that have locks or recently asked for some.
const CLIENTS_MAX: usize = 4096;
/// The most owners that are examined to find a cycle of owners that wait for each other.
const CIRCLE_MAX: usize = 64;

/// The number of a client: random, so that no other client knows it.
pub(crate) type ClientId = [u64; 2];

/// A locked range of a file, or one to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The file.
    pub inode: u64,
    /// The owner of the lock.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// No other owner may have a lock there; otherwise others may have shared ones.
    pub exclusive: bool,
    /// The process that requested it.
    pub pid: u32,
}

impl Lock {
    /// Whether the range is valid.
    pub(crate) fn is_sound(&self) -> bool {
        self.start <= self.end
    }
}

/// The kind of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Lock now, or fail.
    Try,
    /// Wait until the lock is free.
    Wait,
    /// Only test whether the lock is free.
    Test,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The owner has the lock, or could have it.
    Free,
    /// This lock conflicts. Its process is 0 if it is another client's.
    Taken(Lock),
    /// The owner would wait for an owner that waits for it.
    Deadlock,
    /// There are too many locks, or too many waiting requests.
    Full,
}

/// The locked ranges of one file. Each belongs to an owner of something: in the table of the server, of a client.
#[derive(Debug)]
pub(crate) struct Ranges<Of>(Vec<(Of, Lock)>);

impl<Of> Default for Ranges<Of> {
    fn default() -> Ranges<Of> {
        Ranges(Vec::new())
    }
}

impl<Of: Copy + PartialEq> Ranges<Of> {
    /// Gives a range to an owner, in place of what the owner had there.
    pub(crate) fn put(&mut self, of: Of, lock: Lock) {
        self.cut(of, lock);
        // Adjacent ranges are merged, so that a file that is locked piece by piece does not fill the table.
        let touches = |(theirs, own): &(Of, Lock)| {
            let same = (*theirs, own.owner, own.exclusive) == (of, lock.owner, lock.exclusive);
            same && (own.end.checked_add(1) == Some(lock.start) || lock.end.checked_add(1) == Some(own.start))
        };
        let mut whole = lock;
        self.0.retain(|known| {
            let joins = touches(known);
            if joins {
                (whole.start, whole.end) = (whole.start.min(known.1.start), whole.end.max(known.1.end));
            }
            !joins
        });
        self.0.push((of, whole));
    }

    /// Takes a range from an owner.
    pub(crate) fn cut(&mut self, of: Of, range: Lock) {
        self.cut_where(|theirs| theirs == of, range);
    }

    /// Takes a range from the owner with this number in each of these.
    pub(crate) fn cut_where(&mut self, is_of: impl Fn(Of) -> bool, range: Lock) {
        let mut rests = Vec::new();
        self.0.retain(|(of, own)| {
            let is_hit = is_of(*of) && own.owner == range.owner && overlap(own, &range);
            if is_hit && own.start < range.start {
                rests.push((*of, Lock { end: range.start - 1, ..*own }));
            }
            if is_hit && range.end < own.end {
                rests.push((*of, Lock { start: range.end + 1, ..*own }));
            }
            !is_hit
        });
        self.0.append(&mut rests);
    }

    /// All ranges.
    pub(crate) fn all(&self) -> impl Iterator<Item = &(Of, Lock)> {
        self.0.iter()
    }

    fn count(&self, of: Of) -> usize {
        self.0.iter().filter(|(theirs, _)| *theirs == of).count()
    }
}

impl Ranges<ClientId> {
    /// The ranges of other owners that conflict with a lock.
    fn in_the_way(&self, client: ClientId, lock: Lock) -> impl Iterator<Item = &(ClientId, Lock)> {
        self.0.iter().filter(move |(of, other)| {
            (*of, other.owner) != (client, lock.owner)
                && overlap(other, &lock)
                && (other.exclusive || lock.exclusive)
        })
    }
}

fn overlap(one: &Lock, other: &Lock) -> bool {
    one.start <= other.end && other.start <= one.end
}

/// A request that has not been answered yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    client: ClientId,
    ticket: u64,
    lock: Lock,
    how: How,
}

#[derive(Debug, Default)]
struct FileLocks {
    held: Ranges<ClientId>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Default)]
struct Member {
    heard_ns: u64,
    /// The number of its locked ranges.
    held: usize,
    news: Vec<(u64, u64, Verdict)>,
}

/// The locks of a volume.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    files: HashMap<u64, FileLocks>,
    members: HashMap<ClientId, Member>,
    held: usize,
    waiting: usize,
    /// Until this time only reclaims are granted, and only to these clients.
    grace_until_ns: Option<u64>,
    expected: HashSet<ClientId>,
}

impl Locks {
    /// An empty table. These clients of the previous table may reclaim their locks for a while, or until all have come.
    pub(crate) fn new(now_ns: u64, expected: impl IntoIterator<Item = ClientId>) -> Locks {
        let expected: HashSet<ClientId> = expected.into_iter().collect();
        let grace_until_ns = (!expected.is_empty()).then(|| now_ns + LEASE.as_nanos() as u64);
        Locks { grace_until_ns, expected, ..Locks::default() }
    }

    /// A client reclaims its locks of the previous table. False if it cannot have all of them.
    pub(crate) fn claim(&mut self, client: ClientId, locks: &[Lock], now_ns: u64) -> bool {
        self.leave(client);
        let fits = self.members.len() < CLIENTS_MAX
            && locks.len() <= CLIENT_LOCKS_MAX
            && self.held + locks.len() <= LOCKS_MAX;
        let is_free = |lock: &Lock| {
            self.files
                .get(&lock.inode)
                .is_none_or(|file| file.held.in_the_way(client, *lock).next().is_none())
        };
        let may = locks.is_empty() || self.expected.contains(&client);
        if !fits || !may || !locks.iter().all(is_free) {
            return false;
        }
        self.members.insert(client, Member { heard_ns: now_ns, ..Member::default() });
        locks.iter().for_each(|lock| self.put(client, *lock));
        if self.expected.remove(&client) && self.expected.is_empty() {
            self.end_grace();
        }
        true
    }

    /// Notes that a client is alive; false if it is not known, or no longer.
    pub(crate) fn hear(&mut self, client: ClientId, now_ns: u64) -> bool {
        let member = self.members.get_mut(&client);
        member.map(|member| member.heard_ns = now_ns).is_some()
    }

    /// The immediate result of a request; `None` if it waits, and its verdict will be among the client's news.
    pub(crate) fn ask(&mut self, client: ClientId, ticket: u64, lock: Lock, how: How) -> Option<Verdict> {
        // A repeated request replaces the first.
        self.cancel(client, lock.inode, ticket);
        let ask = Waiting { client, ticket, lock, how };
        if self.grace_until_ns.is_none() {
            match self.decide(&ask) {
                Verdict::Taken(_) if how == How::Wait && self.is_circle(client, lock) => {
                    return Some(Verdict::Deadlock);
                }
                Verdict::Taken(_) if how == How::Wait => {}
                verdict => {
                    self.look_again(lock.inode);
                    return Some(verdict);
                }
            }
        }
        let unheard = self.members.get(&client).map_or(0, |member| member.news.len());
        if self.waiting == WAITS_MAX || unheard >= WAITS_MAX {
            return Some(Verdict::Full);
        }
        self.waiting += 1;
        self.files.entry(lock.inode).or_default().waiting.push_back(ask);
        None
    }

    /// Carries out a request, if no lock conflicts.
    fn decide(&mut self, ask: &Waiting) -> Verdict {
        let Waiting { client, lock, how, .. } = *ask;
        let file = self.files.get(&lock.inode);
        let in_the_way = file.into_iter().flat_map(|file| file.held.in_the_way(client, lock));
        // The first in the file, which F_GETLK of fcntl(2) reports.
        if let Some((of, other)) = in_the_way.min_by_key(|(_, other)| other.start) {
            let pid = if *of == client { other.pid } else { 0 };
            return Verdict::Taken(Lock { pid, ..*other });
        }
        match how {
            How::Test => Verdict::Free,
            // One range may become three.
            _ if !self.has_room(client, 2) => Verdict::Full,
            _ => {
                self.put(client, lock);
                Verdict::Free
            }
        }
    }

    fn has_room(&self, client: ClientId, more: usize) -> bool {
        let own = self.members.get(&client).map_or(0, |member| member.held);
        self.held + more <= LOCKS_MAX && own + more <= CLIENT_LOCKS_MAX
    }

    fn put(&mut self, client: ClientId, lock: Lock) {
        self.change(client, lock.inode, |held| held.put(client, lock));
    }

    fn change(&mut self, client: ClientId, inode: u64, change: impl FnOnce(&mut Ranges<ClientId>)) {
        let file = self.files.entry(inode).or_default();
        let before = file.held.count(client);
        change(&mut file.held);
        let after = file.held.count(client);
        self.held = self.held + after - before;
        if let Some(member) = self.members.get_mut(&client) {
            member.held = member.held + after - before;
        }
    }

    /// Whether an owner that waits for this lock would wait for itself.
    fn is_circle(&self, client: ClientId, lock: Lock) -> bool {
        let blockers = |client, lock: Lock| {
            let file = self.files.get(&lock.inode).into_iter();
            file.flat_map(move |file| file.held.in_the_way(client, lock)).map(|(of, held)| (*of, held.owner))
        };
        let (mut seen, mut next) = (Vec::new(), blockers(client, lock).collect::<Vec<_>>());
        while let Some((of, owner)) = next.pop() {
            if (of, owner) == (client, lock.owner) {
                return true;
            }
            if seen.len() == CIRCLE_MAX || seen.contains(&(of, owner)) {
                continue;
            }
            seen.push((of, owner));
            let waits = self.files.values().flat_map(|file| &file.waiting);
            let own = waits.filter(|wait| (wait.client, wait.lock.owner) == (of, owner));
            own.for_each(|wait| next.extend(blockers(of, wait.lock)));
        }
        false
    }

    /// Takes a range from an owner. False if there is no room for what is left of its ranges.
    pub(crate) fn unlock(&mut self, client: ClientId, range: Lock) -> bool {
        if !self.files.contains_key(&range.inode) {
            return true;
        }
        // Before the first byte, nothing is left.
        if range.start > 0 && !self.has_room(client, 1) {
            return false;
        }
        self.change(client, range.inode, |held| held.cut(client, range));
        self.look_again(range.inode);
        true
    }

    /// Cancels a waiting request for a lock of a file. False if it is not waiting.
    pub(crate) fn cancel(&mut self, client: ClientId, inode: u64, ticket: u64) -> bool {
        let Some(file) = self.files.get_mut(&inode) else { return false };
        let before = file.waiting.len();
        file.waiting.retain(|wait| (wait.client, wait.ticket) != (client, ticket));
        let cancelled = before - file.waiting.len();
        self.waiting -= cancelled;
        self.forget_empty(inode);
        cancelled > 0
    }

    /// Removes a client with its locks and requests.
    pub(crate) fn leave(&mut self, client: ClientId) {
        if self.members.remove(&client).is_none() {
            return;
        }
        for file in self.files.values_mut() {
            let (held, waiting) = (file.held.0.len(), file.waiting.len());
            file.held.0.retain(|(of, _)| *of != client);
            file.waiting.retain(|wait| wait.client != client);
            self.held -= held - file.held.0.len();
            self.waiting -= waiting - file.waiting.len();
        }
        self.look_at_all();
    }

    /// Removes a client that will not come back, even if it could still reclaim its locks.
    pub(crate) fn end(&mut self, client: ClientId) {
        self.leave(client);
        if self.expected.remove(&client) && self.expected.is_empty() {
            self.end_grace();
        }
    }

    /// Applies the passing of time: removes clients that were silent for too long, and ends the time for reclaims.
    /// Returns the clients that have nothing in this table any longer.
    pub(crate) fn tick(&mut self, now_ns: u64) -> Vec<ClientId> {
        let silent = |member: &Member| now_ns.saturating_sub(member.heard_ns) >= LEASE.as_nanos() as u64;
        let mut gone: Vec<ClientId> =
            self.members.iter().filter(|(_, member)| silent(member)).map(|(client, _)| *client).collect();
        gone.iter().for_each(|client| self.leave(*client));
        if self.grace_until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            gone.extend(self.expected.drain());
            self.end_grace();
        }
        gone
    }

    fn end_grace(&mut self) {
        self.grace_until_ns = None;
        self.look_at_all();
    }

    fn look_at_all(&mut self) {
        let files: Vec<u64> = self.files.keys().copied().collect();
        files.into_iter().for_each(|inode| self.look_again(inode));
    }

    /// Decides the waiting requests for a file, in the order in which they came.
    fn look_again(&mut self, inode: u64) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        if self.grace_until_ns.is_none() {
            let waiting = std::mem::take(&mut file.waiting);
            for ask in waiting {
                let verdict = self.decide(&ask);
                let file = self.files.entry(inode).or_default();
                if ask.how == How::Wait && matches!(verdict, Verdict::Taken(_)) {
                    file.waiting.push_back(ask);
                    continue;
                }
                self.waiting -= 1;
                if let Some(member) = self.members.get_mut(&ask.client) {
                    member.news.push((ask.ticket, inode, verdict));
                }
            }
        }
        self.forget_empty(inode);
    }

    fn forget_empty(&mut self, inode: u64) {
        if self.files.get(&inode).is_some_and(|file| file.held.0.is_empty() && file.waiting.is_empty()) {
            self.files.remove(&inode);
        }
    }

    /// The decisions of a client's waiting requests: tickets, files and verdicts.
    /// `None` if the client is no longer known.
    pub(crate) fn news(&mut self, client: ClientId) -> Option<Vec<(u64, u64, Verdict)>> {
        self.members.get_mut(&client).map(|member| std::mem::take(&mut member.news))
    }
}

#[cfg(test)]
#[path = "locks_test.rs"]
mod tests;

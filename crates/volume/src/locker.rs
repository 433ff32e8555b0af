//! The locks of one client: those that it holds, its waiting requests, and whether it still holds what it did.
//!
//! Model: while there are locks or waiting requests, a thread asks the server for news, which renews the lease. When a
//! new server replaces the previous one, the client reports its locks to it.
//! Invariant: after [`LEASE`] without an answer, the client has lost its locks by its own clock, which began earlier
//! than the server's. So when another client is granted them, this one no longer believes that it holds them.
//! For each range it knows through which open file it was locked, because some locks end with that file. The kernel may
//! give their owner's number to the next open file before it reports the end of the previous one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_base::clock::now_ns;
use thalweg_io::hidden;

use crate::client::Client;
use crate::locks::{ClientId, How, LEASE, Lock, Ranges, Verdict};
use crate::request::{ChangeNumber, LockAnswer, LockRequest};
use crate::{Error, Result, Volume};

/// How long to wait after a request to the server failed.
const MOMENT: Duration = Duration::from_millis(100);

/// The number of an open file, as the client chose it.
type Through = u64;

/// Later news of a client's locks.
#[derive(Debug)]
pub enum LockNews {
    /// A waiting request was decided.
    Decided {
        /// The ticket of the request.
        ticket: u64,
        /// The decision.
        verdict: Verdict,
        /// The last change of the file by other clients.
        change: ChangeNumber,
    },
    /// A waiting request failed, because the server cannot be reached.
    Failed {
        /// The ticket of the request.
        ticket: u64,
    },
    /// These locks are lost. Each pair is a file and an owner.
    Lost(Vec<(u64, u64)>),
}

/// The locks of a client.
pub struct Locker {
    me: ClientId,
    client: Client,
    tell: Box<dyn Fn(LockNews) + Send + Sync>,
    state: Mutex<State>,
    /// Held by the thread that joins a server.
    joining: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The number of the server's lock table that has the locks.
    table: u64,
    /// When the last answered request was sent.
    renewed_ns: u64,
    last_ticket: u64,
    /// The locks in each file. Ranges of one owner do not overlap.
    held: HashMap<u64, Ranges<Through>>,
    /// Files and owners of lost locks that were not reported yet. They are in doubt until then.
    losing: Vec<(u64, u64)>,
    waiting: HashMap<u64, (Lock, How, Through)>,
    /// A thread is asking for news.
    is_kept: bool,
    thread: Option<JoinHandle<()>>,
    is_leaving: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    fn has_expired(&self) -> bool {
        now_ns() >= self.renewed_ns + LEASE.as_nanos() as u64
    }

    fn all(&self) -> Vec<Lock> {
        self.held.values().flat_map(Ranges::all).map(|(_, lock)| *lock).collect()
    }

    /// Drops all locks. Returns their files and owners.
    fn lose(&mut self) -> Vec<(u64, u64)> {
        let mut lost: Vec<(u64, u64)> = self.all().iter().map(|lock| (lock.inode, lock.owner)).collect();
        self.held.clear();
        self.table = 0;
        lost.sort_unstable();
        lost.dedup();
        self.losing.extend(&lost);
        lost
    }
}

impl Locker {
    /// A client of a volume, without locks. A thread of its own calls `tell` with later news.
    pub fn new(volume: &Volume, tell: impl Fn(LockNews) + Send + Sync + 'static) -> Arc<Locker> {
        Arc::new(Locker {
            me: [hidden::random(), hidden::random()],
            client: volume.manager.clone(),
            tell: Box::new(tell),
            state: Mutex::default(),
            joining: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new ticket for a request.
    pub fn ticket(&self) -> u64 {
        let mut state = self.state();
        state.last_ticket += 1;
        state.last_ticket
    }

    /// Requests a lock through an open file. Returns the decision, and the last change of the file by other clients; `None` if the decision
    /// comes later.
    pub fn ask(
        self: &Arc<Self>,
        ticket: u64,
        lock: Lock,
        how: How,
        through: Through,
    ) -> Result<Option<(Verdict, ChangeNumber)>> {
        {
            let mut state = self.state();
            if state.is_idle() {
                // There are no locks that could be in doubt.
                state.renewed_ns = now_ns();
            }
            state.waiting.insert(ticket, (lock, how, through));
        }
        let asked = self.keep().and_then(|()| self.decide(ticket, lock, how));
        if asked.is_err() {
            self.state().waiting.remove(&ticket);
        }
        asked
    }

    fn decide(&self, ticket: u64, lock: Lock, how: How) -> Result<Option<(Verdict, ChangeNumber)>> {
        while self.state().waiting.contains_key(&ticket) {
            match self.send(&LockRequest::Ask(ticket, lock, how))? {
                (table, LockAnswer::Verdict(Some(verdict), change)) => {
                    let mut state = self.state();
                    if state.table == table {
                        return Ok(state.decided(ticket, verdict).then_some((verdict, change)));
                    }
                    // The client has joined another server in the meantime, which does not have this lock.
                }
                (_, LockAnswer::Verdict(None, _)) => return Ok(None),
                (_, other) => return wrong(&other),
            }
        }
        Ok(None)
    }

    /// Releases a range.
    pub fn unlock(&self, range: Lock) -> Result<()> {
        loop {
            let has = |(_, own): &(Through, Lock)| {
                own.owner == range.owner && own.start <= range.end && range.start <= own.end
            };
            if !self.state().held.get(&range.inode).is_some_and(|held| held.all().any(has)) {
                return Ok(());
            }
            let answer = self.send(&LockRequest::Unlock(range)).inspect_err(|_| {
                // The server may believe that this client has the lock, so the client drops all locks and joins again.
                let lost = self.state().lose();
                self.tell_lost(lost);
            });
            match answer? {
                (table, LockAnswer::Done) => {
                    let mut state = self.state();
                    if state.table != table {
                        continue;
                    }
                    let held = state.held.entry(range.inode).or_default();
                    held.cut_where(|_| true, range);
                    if held.all().next().is_none() {
                        state.held.remove(&range.inode);
                    }
                    return Ok(());
                }
                (_, LockAnswer::Verdict(Some(Verdict::Full), _)) => {
                    return Err(Error::system(libc::ENOLCK, "unlock"));
                }
                (_, other) => return wrong(&other),
            }
        }
    }

    /// Releases all ranges of an owner in a file.
    pub fn unlock_all(&self, inode: u64, owner: u64) -> Result<()> {
        self.unlock(Lock { inode, owner, start: 0, end: u64::MAX, exclusive: false, pid: 0 })
    }

    /// Releases the ranges of a file that were locked through this open file, which is closed, and not again through
    /// another one since.
    pub fn unlock_through(&self, inode: u64, through: Through) -> Result<()> {
        let ranges: Vec<Lock> = match self.state().held.get(&inode) {
            Some(held) => held.all().filter(|(of, _)| *of == through).map(|(_, lock)| *lock).collect(),
            None => return Ok(()),
        };
        ranges.into_iter().try_for_each(|range| self.unlock(range))
    }

    /// Cancels a waiting request, of which no news will come. Returns false if it was already decided.
    pub fn cancel(&self, ticket: u64) -> Result<bool> {
        let Some((lock, ..)) = self.state().waiting.get(&ticket).copied() else { return Ok(false) };
        match self.send(&LockRequest::Cancel(lock.inode, ticket))? {
            (_, LockAnswer::Cancelled(waited)) => {
                Ok(waited && self.state().waiting.remove(&ticket).is_some())
            }
            (_, other) => wrong(&other),
        }
    }

    /// Whether an owner has locks in a file that other clients may have been granted since.
    pub fn is_in_doubt(&self, inode: u64, owner: u64) -> bool {
        let state = self.state();
        let has = |held: &Ranges<Through>| held.all().any(|(_, lock)| lock.owner == owner);
        state.losing.contains(&(inode, owner))
            || state.has_expired() && state.held.get(&inode).is_some_and(has)
    }

    /// Releases everything, and returns when no more news will come.
    pub fn leave(&self) {
        let mut state = self.state();
        state.is_leaving = true;
        let table = state.table;
        drop(state);
        if table != 0 {
            // If this fails, the locks end with the lease.
            let _ = self.client.lock(self.me, table, LockRequest::Leave);
        }
        let thread = self.state().thread.take();
        thread.into_iter().for_each(|thread| _ = thread.join());
    }

    /// Sends a request to the server, and joins it first if needed. Also returns the number of the table that answered.
    fn send(&self, ask: &LockRequest) -> Result<(u64, LockAnswer)> {
        loop {
            let (table, begun_ns) = (self.state().table, now_ns());
            match self.client.lock(self.me, table, ask.clone())? {
                LockAnswer::Unknown(number) => self.join(table, number)?,
                answer => {
                    let mut state = self.state();
                    if state.table == table {
                        state.renewed_ns = state.renewed_ns.max(begun_ns);
                    }
                    return Ok((table, answer));
                }
            }
        }
    }

    /// Joins the server that has the table `number`, in place of table `known`.
    fn join(&self, known: u64, number: u64) -> Result<()> {
        let _alone = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let (locks, lost) = {
            let mut state = self.state();
            if state.is_leaving {
                return Err(Error::system(libc::ENOLCK, "the mount ends"));
            }
            if state.table != known {
                return Ok(());
            }
            // The same server does not know this client any longer: its lease has ended.
            let has_ended = known == number || state.has_expired();
            let lost = if has_ended { state.lose() } else { Vec::new() };
            (state.all(), lost)
        };
        self.tell_lost(lost);
        let begun_ns = now_ns();
        let mut answer = self.client.lock(self.me, 0, LockRequest::Claim(locks.clone()))?;
        if matches!(answer, LockAnswer::Unknown(_)) && !locks.is_empty() {
            let lost = self.state().lose();
            self.tell_lost(lost);
            answer = self.client.lock(self.me, 0, LockRequest::Claim(Vec::new()))?;
        }
        let LockAnswer::Claimed(table) = answer else {
            return Err(Error::system(
                libc::ENOLCK,
                "the server of the volume has too many clients with locks",
            ));
        };
        let waiting: Vec<(u64, Lock, How)> = {
            let mut state = self.state();
            (state.table, state.renewed_ns) = (table, begun_ns);
            state.waiting.iter().map(|(ticket, (lock, how, _))| (*ticket, *lock, *how)).collect()
        };
        for (ticket, lock, how) in waiting {
            let asked = self.client.lock(self.me, table, LockRequest::Ask(ticket, lock, how))?;
            if let LockAnswer::Verdict(Some(verdict), change) = asked {
                self.deliver(table, ticket, verdict, change);
            }
        }
        Ok(())
    }

    fn tell_lost(&self, lost: Vec<(u64, u64)>) {
        if !lost.is_empty() {
            (self.tell)(LockNews::Lost(lost.clone()));
            self.state().losing.retain(|pair| !lost.contains(pair));
        }
    }

    /// Reports the decision of a request, unless it was already reported.
    fn deliver(&self, table: u64, ticket: u64, verdict: Verdict, change: ChangeNumber) {
        let mut state = self.state();
        let is_news = state.table == table && state.decided(ticket, verdict);
        drop(state);
        if is_news {
            (self.tell)(LockNews::Decided { ticket, verdict, change });
        }
    }

    /// Starts the thread that asks for news, unless it runs.
    fn keep(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state();
        if state.is_leaving {
            return Err(Error::system(libc::ENOLCK, "the mount ends"));
        }
        if !state.is_kept {
            let locker = Arc::clone(self);
            let builder = std::thread::Builder::new().name("locks".into());
            let spawned = builder.spawn(move || locker.renew());
            let failed = |why| Error::system(libc::ENOLCK, format!("no thread for locks: {why}"));
            state.thread = Some(spawned.map_err(failed)?);
            state.is_kept = true;
        }
        Ok(())
    }

    /// Asks for news as long as there are locks or waiting requests.
    fn renew(&self) {
        loop {
            {
                let mut state = self.state();
                if state.is_leaving || state.is_idle() {
                    state.is_kept = false;
                    return;
                }
            }
            match self.send(&LockRequest::News) {
                Ok((table, LockAnswer::News(news))) => {
                    for (ticket, (verdict, change)) in news {
                        self.deliver(table, ticket, verdict, change);
                    }
                }
                _ => std::thread::park_timeout(MOMENT),
            }
            self.expire();
        }
    }

    /// Drops all locks if the lease has expired, and fails all waiting requests.
    fn expire(&self) {
        let mut state = self.state();
        if !state.has_expired() {
            return;
        }
        let (lost, failed) = (state.lose(), std::mem::take(&mut state.waiting));
        drop(state);
        self.tell_lost(lost);
        failed.into_keys().for_each(|ticket| (self.tell)(LockNews::Failed { ticket }));
    }
}

impl State {
    /// Records the decision of a request. Returns false if that was done before.
    fn decided(&mut self, ticket: u64, verdict: Verdict) -> bool {
        let Some((lock, how, through)) = self.waiting.remove(&ticket) else { return false };
        if verdict == Verdict::Free && how != How::Test {
            let held = self.held.entry(lock.inode).or_default();
            held.cut_where(|_| true, lock);
            held.put(through, lock);
        }
        true
    }
}

fn wrong<T>(answer: &LockAnswer) -> Result<T> {
    Err(Error::Refused(format!("the server answered another question about locks: {answer:.100?}")))
}

//! A manager's hold on the stores of its volume: it changes nothing before a majority of them has accepted it.
//!
//! Model: before its first change, an opened manager becomes a new incarnation. It asks each store which one it has. If
//! a majority has one that this manager was, the manager notes the next one, durably, and claims these stores; each of
//! them accepts it in the place of what it had, and refuses requests of any other from then on. A store that was away
//! is claimed with the first request that it answers. If a majority has accepted another manager, this one ends.
//! Invariant: of two copies of a manager, at most one changes anything. A manager that was restored from a backup, or
//! copied to another place, is refused until somebody adopts it; and it cannot be adopted while another one that the
//! stores have accepted is connected.
//! Invariant: of an even number of stores, half suffice if the first is among them, so two majorities have one in common.
//! All stores vote; but after an adoption only those do that answered then, until the others are back.
//! Non-goals: clients, whose requests stores accept by the generation of the file.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;
use thalweg_wire::threads::spawn;

use crate::incarnation::{Held, Holder, Incarnation, PLACE_BYTES_MAX};
use crate::keeper::{Keeper, Ledger};
use crate::reached::AsksStore;
use crate::request::{StoreAnswer, StoreRequest};
use crate::store::Store;
use crate::stores::Slot;
use crate::{Error, Result};

/// How long to wait for the answers of stores, and for the others after a majority has answered.
const ANSWERS: Duration = Duration::from_secs(4);
const STRAGGLERS: Duration = Duration::from_millis(300);
/// The time between two signs of life.
const TELLING: Duration = Duration::from_secs(3);
/// How often a request is sent again to a store that has accepted an earlier incarnation.
const TRIES: usize = 2;
/// How much the number of an incarnation grows when a manager is adopted: more than what stores may have that do not
/// answer.
const ADOPTED: u64 = 1000;

/// The hold of an open manager.
pub(crate) struct Hold {
    /// The name of the volume.
    name: String,
    place: String,
    ledger: Box<dyn Ledger>,
    keepers: Vec<Option<Arc<dyn Keeper>>>,
    /// Stores are asked side by side, and none for long.
    has_threads: bool,
    state: RwLock<State>,
    claiming: Mutex<()>,
}

struct State {
    /// The incarnations that this manager was, in order.
    known: Vec<Holder>,
    /// Where it was when it was accepted last, if it was.
    place: Option<String>,
    /// The slots whose stores vote; none if all do.
    voters: Vec<usize>,
    /// The one that a majority has accepted since it was opened.
    mine: Option<Incarnation>,
    /// Why it may do nothing any more.
    ended: Option<String>,
}

/// Why the stores do not take this manager for theirs.
enum Not {
    /// So many have answered.
    Few(usize),
    /// They know another.
    Other(Holder),
}

/// For each slot, the answer of its store, if it has one and has answered in time.
type Answers<T> = Vec<Option<Result<T>>>;

/// Whether the stores for which this is so are a majority of the voters.
fn is_majority(is_so: &[bool], voters: &[usize]) -> bool {
    let votes = || is_so.iter().enumerate().filter(|(slot, _)| voters.is_empty() || voters.contains(slot));
    let (all, count) = (votes().count(), votes().filter(|(_, is_so)| **is_so).count());
    2 * count > all || (2 * count == all && votes().next().is_none_or(|(_, first)| *first))
}

/// The slots for which this is so.
fn slots_of(is_so: &[bool]) -> impl Iterator<Item = usize> {
    is_so.iter().enumerate().filter(|(_, is_so)| **is_so).map(|(slot, _)| slot)
}

impl Hold {
    /// The hold of the manager of this volume in this place on the stores of its slots. Also returns these stores for
    /// the manager's requests.
    pub(crate) fn new(
        (name, place): (&str, &str),
        ledger: Box<dyn Ledger>,
        slots: Vec<std::result::Result<Arc<dyn Keeper>, String>>,
        has_threads: bool,
    ) -> Result<(Arc<Hold>, Vec<Slot>)> {
        let end = place.ceil_char_boundary(place.len().saturating_sub(PLACE_BYTES_MAX));
        let place = place[end..].to_string();
        let (known, accepted, voters) = (ledger.list()?, ledger.place()?, ledger.voters()?);
        let state = RwLock::new(State { known, place: accepted, voters, mine: None, ended: None });
        let keepers = slots.iter().map(|slot| slot.as_ref().ok().cloned()).collect();
        let claiming = Mutex::default();
        let hold = Hold { name: name.into(), place, ledger, keepers, has_threads, state, claiming };
        let hold = Arc::new(hold);
        let store = |keeper| Arc::new(OfManager { hold: Arc::clone(&hold), keeper }) as Arc<dyn Store>;
        let stores = slots.into_iter().map(|slot| slot.map(store)).collect();
        Ok((hold, stores))
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn one_claim(&self) -> MutexGuard<'_, ()> {
        self.claiming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The incarnation that a majority has accepted, if there is one yet; an error if it has accepted another since.
    fn mine(&self) -> Result<Option<Incarnation>> {
        let state = self.state();
        match &state.ended {
            Some(why) => Err(Error::Refused(why.clone())),
            None => Ok(state.mine),
        }
    }

    /// An error if the manager may do nothing any more.
    pub(crate) fn stands(&self) -> Result<()> {
        self.mine().map(drop)
    }

    fn is_majority(&self, is_so: &[bool]) -> bool {
        is_majority(is_so, &self.state().voters)
    }

    fn knows(&self, holder: &Holder) -> bool {
        let incarnation = holder.incarnation;
        incarnation == Incarnation::default()
            || self.state().known.iter().any(|known| known.incarnation == incarnation)
    }

    /// Asks all stores.
    fn ask_all<T: Send + 'static>(
        &self,
        ask: impl Fn(usize, &dyn Keeper) -> Result<T> + Send + Sync + 'static,
    ) -> Answers<T> {
        let keepers =
            || self.keepers.iter().enumerate().filter_map(|(slot, keeper)| Some((slot, keeper.as_ref()?)));
        let mut answers: Answers<T> = self.keepers.iter().map(|_| None).collect();
        if !self.has_threads {
            keepers().for_each(|(slot, keeper)| answers[slot] = Some(ask(slot, &**keeper)));
            return answers;
        }
        let (watch, ask, (answered, arrived)) = (Stopwatch::start(), Arc::new(ask), channel());
        for (slot, keeper) in keepers() {
            let (keeper, ask, answered) = (Arc::clone(keeper), Arc::clone(&ask), answered.clone());
            // Without a thread, the store does not answer; and nobody may wait for its answer any more.
            let _ = spawn("volume", move || _ = answered.send((slot, ask(slot, &*keeper))));
        }
        drop(answered);
        let mut until = ANSWERS;
        while let Some(left) = until.checked_sub(Duration::from_nanos(watch.ns())) {
            let Ok((slot, answer)) = arrived.recv_timeout(left) else { break };
            answers[slot] = Some(answer);
            let there: Vec<bool> = answers.iter().map(|answer| matches!(answer, Some(Ok(_)))).collect();
            if self.is_majority(&there) {
                until = until.min(Duration::from_nanos(watch.ns()) + STRAGGLERS);
            }
        }
        answers
    }

    fn ask_holders(&self) -> Answers<Held> {
        let place = self.place.clone();
        self.ask_all(move |_, keeper| keeper.held(&place))
    }

    /// Whether a majority of stores has an incarnation that this manager was.
    fn judge(&self, found: &Answers<Held>) -> std::result::Result<(), Not> {
        let holder = |answer: &Option<Result<Held>>| Some(answer.as_ref()?.as_ref().ok()?.holder.clone());
        let found: Vec<Option<Holder>> = found.iter().map(holder).collect();
        let known: Vec<bool> =
            found.iter().map(|found| found.as_ref().is_some_and(|holder| self.knows(holder))).collect();
        if self.is_majority(&known) {
            return Ok(());
        }
        let mut others = found.iter().flatten().filter(|holder| !self.knows(holder));
        Err(match others.next() {
            Some(other) => Not::Other(other.clone()),
            None => Not::Few(found.iter().flatten().count()),
        })
    }

    fn refusal(&self, not: Not) -> Error {
        let Hold { name, place, .. } = self;
        let adopt = format!("thalweg volume manager adopt {name}");
        match not {
            Not::Few(answered) => Error::system(
                libc::EROFS,
                format!(
                    "volume {name} cannot be changed, as {answered} of its {} stores answer; bring the others back, or \
                     go on without them with {adopt}",
                    self.keepers.len()
                ),
            ),
            Not::Other(Holder { incarnation, place: other }) => {
                let last = self.state().known.last().map_or(0, |last| last.incarnation.number);
                Error::Refused(format!(
                    "the stores of volume {name} know a later history (incarnation {}, of the manager in {other}) than \
                     its manager in {place} (incarnation {last}), as after a restore from a backup; restore the newest \
                     one, or go on from this one with {adopt}",
                    incarnation.number
                ))
            }
        }
    }

    /// An error if this manager is a copy of one elsewhere.
    fn check_place(&self) -> Result<()> {
        match &self.state().place {
            Some(place) if *place != self.place => Err(Error::Refused(format!(
                "the manager of volume {0} in {1} is a copy of that in {2}, or was moved from there; use that one, or, if \
                 it is gone, go on with this one with thalweg volume manager adopt {0}",
                self.name, self.place, place
            ))),
            _ => Ok(()),
        }
    }

    /// An error if the stores know a later history than this manager. If too few of them answer, that shows at the first
    /// change.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_place()?;
        match self.judge(&self.ask_holders()) {
            Err(not @ Not::Other(_)) => Err(self.refusal(not)),
            _ => Ok(()),
        }
    }

    /// Makes sure that a majority of stores has accepted this manager.
    pub(crate) fn claim(&self) -> Result<()> {
        if self.mine()?.is_some() {
            return Ok(());
        }
        let _one = self.one_claim();
        if self.mine()?.is_some() {
            return Ok(());
        }
        self.check_place()?;
        let found = self.ask_holders();
        self.judge(&found).map_err(|not| self.refusal(not))?;
        let known = |held: Option<Result<Held>>| Some(held?.ok()?.holder).filter(|holder| self.knows(holder));
        let known: Vec<Option<Holder>> = found.into_iter().map(known).collect();
        // Those that are back vote again.
        let mut voters = self.state().voters.clone();
        if !voters.is_empty() {
            voters.extend(slots_of(&known.iter().map(Option::is_some).collect::<Vec<_>>()));
        }
        self.become_next(known, 1, voters, |ours, voters| self.is_majority(ours) && is_majority(ours, voters))
    }

    /// Makes sure of it for work on the stores. Whoever replaces one says that it is gone, so the others suffice, unless
    /// another manager serves the volume. If no store is left, the work changes only the manager.
    pub(crate) fn claim_for_work(&self) {
        if self.claim().is_err_and(|why| why.errno() == libc::EROFS) {
            let _ = self.adopt();
        }
    }

    /// Accepts this manager although its stores may know a later history, or are not all there. An error if another one
    /// serves the volume.
    pub(crate) fn adopt(&self) -> Result<()> {
        let _one = self.one_claim();
        let found = self.ask_holders();
        let served = found.iter().flatten().flatten().find(|held| held.is_served);
        if let Some(Held { holder, .. }) = served {
            return Err(Error::Refused(format!(
                "volume {} is served by its manager in {}; stop that first",
                self.name, holder.place
            )));
        }
        let found: Vec<_> = found.into_iter().map(|held| Some(held?.ok()?.holder)).collect();
        if found.iter().all(Option::is_none) {
            return Err(Error::Refused(format!("no store of volume {} answers; bring them back", self.name)));
        }
        let asked: Vec<bool> = found.iter().map(Option::is_some).collect();
        let voters = slots_of(&asked).collect();
        self.become_next(found, ADOPTED, voters, is_majority)
    }

    /// Becomes the next incarnation, with these voters, if `enough` of the stores with these holders accept it.
    fn become_next(
        &self,
        from: Vec<Option<Holder>>,
        step: u64,
        mut voters: Vec<usize>,
        enough: impl FnOnce(&[bool], &[usize]) -> bool,
    ) -> Result<()> {
        voters.sort_unstable();
        voters.dedup();
        if voters.len() == self.keepers.len() {
            voters.clear();
        }
        let known = self.state().known.last().map_or(0, |last| last.incarnation.number);
        let seen = from.iter().flatten().map(|holder| holder.incarnation.number).max().unwrap_or(0);
        let incarnation = Incarnation::new(known.max(seen).saturating_add(step))?;
        let next = Holder { incarnation, place: self.place.clone() };
        self.ledger.begin(&next)?;
        self.change(|state| state.known.push(next.clone()));
        let accepted = self.ask_all(move |slot, keeper| match &from[slot] {
            Some(holder) => Ok(keeper.claim(holder.incarnation, &next)? == next),
            None => Ok(false),
        });
        let ours: Vec<bool> = accepted.iter().map(|accepted| matches!(accepted, Some(Ok(true)))).collect();
        if enough(&ours, &voters) {
            let _ = self.ledger.accepted(incarnation, &voters);
            let place = Some(self.place.clone());
            self.change(|state| {
                (state.mine, state.ended, state.place, state.voters) =
                    (Some(incarnation), None, place, voters);
            });
            return Ok(());
        }
        match accepted.into_iter().flatten().find_map(Result::err) {
            Some(why) => Err(Error::Refused(format!("volume {} cannot be changed: {why}", self.name))),
            None => Err(self.refusal(Not::Few(ours.iter().filter(|is_ours| **is_ours).count()))),
        }
    }

    /// Claims a store that has an earlier incarnation of this manager. If it has another's, an error.
    fn catches_up(&self, keeper: &dyn Keeper, found: &Holder) -> Result<()> {
        let last = self.state().known.last().cloned();
        let mine = last.filter(|last| Some(last.incarnation) == self.state().mine);
        if let Some(mine) = mine.filter(|_| self.knows(found))
            && keeper.claim(found.incarnation, &mine)? == mine
        {
            return Ok(());
        }
        if let Err(not @ Not::Other(_)) = self.judge(&self.ask_holders()) {
            let why = self.refusal(not).to_string();
            self.change(|state| state.ended = Some(why));
        }
        self.stands()?;
        let Holder { incarnation: Incarnation { number, .. }, place } = found;
        Err(Error::Refused(format!(
            "a store of volume {0} has accepted another manager, in {place} (incarnation {number}); thalweg volume \
             manager adopt {0} takes it back",
            self.name
        )))
    }

    /// Tells the stores that this manager is there, and learns whether they have accepted another one.
    pub(crate) fn tell(self: &Arc<Hold>) {
        let Ok(Some(mine)) = self.mine() else { return };
        let (hold, held) = (Arc::clone(self), StoreRequest::Held { place: self.place.clone() });
        let _ = self.ask_all(move |_, keeper| match keeper.ask(Some(mine), &held, &[], &mut [])? {
            StoreAnswer::Holder(found) => hold.catches_up(keeper, &found),
            _ => Ok(()),
        });
    }
}

impl Hold {
    /// Tells stores on other nodes every few seconds, until the server ends. Without a thread, this manager learns with
    /// its next request to a store that it has ended.
    pub(crate) fn keep_telling<S: Send + Sync + 'static>(self: &Arc<Hold>, server: Weak<S>) {
        let hold = Arc::downgrade(self);
        if !self.has_threads {
            return;
        }
        spawn("volume", move || {
            while server.strong_count() > 0 {
                let watch = Stopwatch::start();
                while let Some(left) = TELLING.checked_sub(Duration::from_nanos(watch.ns())) {
                    std::thread::park_timeout(left);
                }
                hold.upgrade().iter().for_each(Hold::tell);
            }
        });
    }
}

/// A store that its manager asks. Whatever changes something is carried out only if the store has accepted the manager.
struct OfManager {
    hold: Arc<Hold>,
    keeper: Arc<dyn Keeper>,
}

impl AsksStore for OfManager {
    fn is_found(&self) -> bool {
        self.keeper.is_found()
    }

    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer> {
        if !request.is_read() {
            self.hold.claim()?;
        }
        let mut tries = TRIES;
        loop {
            match self.keeper.ask(self.hold.mine()?, &request, sent, into)? {
                StoreAnswer::Holder(found) if tries > 0 => self.hold.catches_up(&*self.keeper, &found)?,
                answer => return Ok(answer),
            }
            tries -= 1;
        }
    }
}

#[cfg(test)]
#[path = "hold_test.rs"]
mod tests;

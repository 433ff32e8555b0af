//! A store as its manager asks it, and the manager's list of its own incarnations.

use crate::Result;
use crate::incarnation::{Held, Holder, Incarnation};
use crate::request::{StoreAnswer, StoreRequest};

/// A store as its manager asks it.
pub(crate) trait Keeper: Send + Sync {
    /// The holder of the store, for a manager in this place.
    fn held(&self, place: &str) -> Result<Held>;

    /// Accepts the next holder, if the store has that of `before`. Returns the holder from then on.
    fn claim(&self, before: Incarnation, next: &Holder) -> Result<Holder>;

    /// Answers a request; with an incarnation, only if it is that of the holder, and otherwise with the holder.
    fn ask(
        &self,
        by: Option<Incarnation>,
        request: &StoreRequest,
        sent: &[u8],
        into: &mut [u8],
    ) -> Result<StoreAnswer>;

    /// See [`Store::is_ready`](crate::Store::is_ready).
    fn is_found(&self) -> bool {
        true
    }
}

/// Answers a request of a manager that has arrived in a message.
pub(crate) fn answer(
    keeper: &dyn Keeper,
    by: Option<Incarnation>,
    request: &StoreRequest,
    (sent, into): (&[u8], &mut [u8]),
) -> Result<StoreAnswer> {
    match (by, request) {
        (None, StoreRequest::Held { place }) => keeper.held(place).map(StoreAnswer::Held),
        (None, StoreRequest::Claim { before, next }) => keeper.claim(*before, next).map(StoreAnswer::Holder),
        _ => keeper.ask(by, request, sent, into),
    }
}

/// The incarnations of a manager, in its database.
pub(crate) trait Ledger: Send + Sync {
    /// The last ones, in order.
    fn list(&self) -> Result<Vec<Holder>>;

    /// Where the manager was when it was accepted last, if it was.
    fn place(&self) -> Result<Option<String>>;

    /// The slots whose stores vote on the next incarnation; none if all do.
    fn voters(&self) -> Result<Vec<usize>>;

    /// Notes a new incarnation, durably, and lets inodes have its numbers from now on.
    fn begin(&self, next: &Holder) -> Result<()>;

    /// Notes that an incarnation was accepted, and who votes on the next one. If that is lost, the voters before do.
    fn accepted(&self, incarnation: Incarnation, voters: &[usize]) -> Result<()>;
}

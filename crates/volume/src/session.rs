//! Reads the requests of one client from its connection, and answers them.
//!
//! Model: a few threads take the requests in turn. Each carries out and answers the request that it took, so slow
//! requests do not hold up the others.
//! Invariant: a client with another version of the protocol is told so, and none of its requests is carried out. Of the
//! connections of one caller, only the last is answered; see callers.rs.
//! Non-goals: the rights of the client, and the transport.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::callers::{Callers, Entered};
use crate::client::Answers;
use crate::message::{Ask, Attached, Head, Reply, VERSION, pairs, send};
use crate::opened::SessionId;
use crate::request::{Answer, Request, StoreAnswer, StoreRequest};
use crate::server::Server;
use crate::store::Store;
use crate::stream::Bell;
use crate::{Error, Result};

/// The most requests of one client that are carried out at a time.
const WORKERS: usize = 8;

type From = Box<dyn Read + Send>;
type To = Box<dyn Write + Send>;

/// Answers the requests of one client.
pub(crate) trait Answering: Sync {
    /// For each slot, why its store is lost, if it is.
    fn lost(&self) -> Vec<Option<String>>;

    /// For a store: the boot of its machine.
    fn boot(&self) -> String {
        String::new()
    }

    /// The answer to one request. Bytes that are read fill `into`.
    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply>;
}

/// A session of a server, with its stores.
pub(crate) struct Session<'a> {
    pub(crate) server: &'a Server,
    pub(crate) session: SessionId,
}

/// A session of a client in the server's own process. It ends when this is dropped.
pub(crate) struct OwnSession {
    server: Arc<Server>,
    pub(crate) session: SessionId,
}

impl OwnSession {
    pub(crate) fn begin(server: &Arc<Server>) -> OwnSession {
        OwnSession { server: Arc::clone(server), session: server.begin() }
    }

    pub(crate) fn as_session(&self) -> Session<'_> {
        Session { server: &self.server, session: self.session }
    }
}

impl Answers for OwnSession {
    fn answer(&self, request: &Request) -> Result<Answer> {
        self.server.answer(self.session, request)
    }
}

impl Drop for OwnSession {
    fn drop(&mut self) {
        self.server.end_for_good(self.session);
    }
}

impl Answering for Session<'_> {
    fn lost(&self) -> Vec<Option<String>> {
        self.server.stores.lost()
    }

    fn answer(&self, ask: &Ask, sent: &[u8], into: &mut [u8]) -> Result<Reply> {
        match ask {
            Ask::Attach(..) => Err(Error::Refused("this connection is attached already".into())),
            Ask::Held(..) => Err(Error::Refused("this connection is for clients".into())),
            Ask::Manager(request) => self.server.answer(self.session, request).map(Reply::Manager),
            Ask::Store(slot, request) => match self.server.stores.slots().get(*slot as usize) {
                Some(Ok(store)) => ask_store(&**store, request, sent, into).map(Reply::Store),
                Some(Err(why)) => Err(Error::Refused(why.clone())),
                None => Err(Error::Refused(format!("the volume has no slot {slot}"))),
            },
        }
    }
}

/// Answers the client of this name until there are no more requests, or until it has made another connection. `shut`
/// ends the connection, so that no thread waits for it. If there is a `bell`, threads wait for it before they read.
pub(crate) fn converse(
    answering: &dyn Answering,
    (callers, name): (&Arc<Callers>, &str),
    (mut from, mut to): (From, To),
    (shut, bell): (&(dyn Fn() + Sync), Option<&Bell>),
) {
    let Ok(Some(first)) = Head::read(&mut from) else { return };
    let entered = match Ask::decode(&first.body) {
        Some(Ask::Attach(VERSION, caller)) => callers.enter(name, caller),
        _ => Err(Error::Refused(format!(
            "the volume is served in version {VERSION} of its protocol; use the same version of thalweg everywhere"
        ))),
    };
    let (reply, entered) = match entered {
        Ok(entered) => {
            (Reply::Attached(Attached { lost: answering.lost(), boot: answering.boot() }), Some(entered))
        }
        Err(why) => (Reply::Failed(why.into()), None),
    };
    let (Ok(()), Some(entered)) = (send(&mut to, first.number, &reply, &[]), entered) else { return };
    let (from, to) = (Mutex::new(Some(from)), Mutex::new(to));
    std::thread::scope(|scope| {
        let work = || {
            // A request that panics ends its own connection, and no other.
            if catch_unwind(AssertUnwindSafe(|| work((answering, &entered), &from, &to, (shut, bell))))
                .is_err()
            {
                shut();
            }
        };
        for _ in 1..WORKERS {
            let _ = std::thread::Builder::new().name("client".into()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// Sends a client the reason why it is refused.
pub(crate) fn refuse(mut from: From, mut to: To, why: Error) {
    if let Ok(Some(first)) = Head::read(&mut from) {
        // A client that does not receive it has disconnected.
        let _ = send(&mut to, first.number, &Reply::Failed(why.into()), &[]);
    }
}

/// Takes and answers requests until there are no more.
fn work(
    (answering, entered): (&dyn Answering, &Entered),
    from: &Mutex<Option<From>>,
    to: &Mutex<To>,
    (shut, bell): (&(dyn Fn() + Sync), Option<&Bell>),
) {
    let (mut sent, mut data) = (Vec::new(), Vec::new());
    loop {
        bell.into_iter().for_each(Bell::wait);
        let (number, ask) = {
            let mut from = from.lock().unwrap_or_else(PoisonError::into_inner);
            if from.is_some() && bell.is_some_and(Bell::is_answered) {
                continue;
            }
            match from.as_mut().map(|from| next(from, &mut sent)) {
                Some(Ok(Some(next))) => next,
                _ => {
                    *from = None;
                    bell.into_iter().for_each(Bell::end);
                    return;
                }
            }
        };
        let Some(reply) = entered.carry_out(|| carry_out(answering, &ask, &sent, &mut data)) else {
            shut();
            return;
        };
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = match send(&mut *to, number, &reply, &data) {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                let why = Error::Refused(format!("the answer is too long: {e}"));
                send(&mut *to, number, &Reply::Failed(why.into()), &[])
            }
            answered => answered,
        };
        if answered.is_err() {
            shut();
            return;
        }
    }
}

/// The reply to a request with these bytes; the bytes that it returns are then in `data`.
pub(crate) fn carry_out(answering: &dyn Answering, ask: &Ask, sent: &[u8], data: &mut Vec<u8>) -> Reply {
    data.clear();
    if let Ask::Store(_, StoreRequest::Read { bytes, .. })
    | Ask::Held(_, _, StoreRequest::Read { bytes, .. }) = ask
    {
        data.resize(*bytes as usize, 0);
    }
    answering.answer(ask, sent, data).unwrap_or_else(|why| {
        data.clear();
        Reply::Failed(why.into())
    })
}

/// Reads the next request, and the bytes that go with it.
fn next(from: &mut dyn Read, sent: &mut Vec<u8>) -> io::Result<Option<(u64, Ask)>> {
    let Some(head) = Head::read(from)? else { return Ok(None) };
    sent.resize(head.data_bytes, 0);
    from.read_exact(sent)?;
    let ask = Ask::decode(&head.body).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((head.number, ask)))
}

/// Lets a store carry out a request. Bytes that are read fill `into`.
pub(crate) fn ask_store(
    store: &dyn Store,
    request: &StoreRequest,
    sent: &[u8],
    into: &mut [u8],
) -> Result<StoreAnswer> {
    Ok(match request {
        StoreRequest::Read { strip, generation, at, .. } => {
            store.read(*strip, *generation, *at, into)?;
            StoreAnswer::Done
        }
        StoreRequest::Write(write) => {
            store.write(write, sent)?;
            StoreAnswer::Done
        }
        StoreRequest::Forward { .. } => {
            return Err(Error::Refused("a store on this machine does not forward".into()));
        }
        StoreRequest::Copy { from, to, len } => {
            store.copy(*from, to, *len)?;
            StoreAnswer::Done
        }
        StoreRequest::Punch { strip, generation, from, to } => {
            store.punch(*strip, *generation, *from..*to)?;
            StoreAnswer::Done
        }
        StoreRequest::Held { .. } | StoreRequest::Claim { .. } => {
            return Err(Error::Refused("only the manager of a volume asks that".into()));
        }
        StoreRequest::Truncate { strip, generation, len } => {
            store.truncate(*strip, *generation, *len)?;
            StoreAnswer::Done
        }
        StoreRequest::NextData { strip, generation, at } => {
            let data = store.next_data(*strip, *generation, *at)?;
            StoreAnswer::Data(data.map(|data| (data.start, data.end)))
        }
        StoreRequest::Sync(strips) => StoreAnswer::Synced(store.sync(strips)?),
        StoreRequest::Settle { strip, generation, sync } => {
            store.settle(*strip, *generation, *sync)?;
            StoreAnswer::Done
        }
        StoreRequest::Changes { strip, generation } => {
            StoreAnswer::Changes(pairs(&store.changes(*strip, *generation)?))
        }
        StoreRequest::Mend { strip, generation, at } => {
            store.mend(*strip, *generation, *at, sent)?;
            StoreAnswer::Done
        }
        StoreRequest::Remove { strip, below } => {
            store.remove(*strip, *below)?;
            StoreAnswer::Done
        }
        StoreRequest::RemoveAll(strips) => {
            store.remove_all(strips)?;
            StoreAnswer::Done
        }
        StoreRequest::Facts(strip) => StoreAnswer::Facts(store.facts(*strip)?),
        StoreRequest::List => StoreAnswer::Strips(store.list()?),
        StoreRequest::Space => {
            let (space, file_system) = store.space()?;
            StoreAnswer::Space(space, file_system)
        }
    })
}

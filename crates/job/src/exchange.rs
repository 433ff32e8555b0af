//! Exchanges: every node sends the same number of bytes to every other, in a chosen order, and the time that this takes
//! is measured.
//!
//! Model: the client talks to every node on a stream of its own, and each node opens one to every other. Then come
//! rounds: all are told to begin, each sends to the others, waits until they have everything, and reports that.
//!
//! ```text
//! together   one thread for each of the others
//! same       one after the other, and all nodes begin with the first host
//! shifted    one after the other from the next host on, so that no two send to the same one if all are as fast
//! paced      like shifted, but the next host gets something only when the one before has everything
//! ```
//!
//! Invariant: a node reports a round only when those it sent to have counted what arrived. At most [`BYTES_MAX`] for
//! each pair, and [`ROUNDS_MAX`]. Source of the idea: paper 004, section 2.2, which measures all to all before it plans
//! a sort.
//! Non-goals: rates of single links ([`crate::rates`]).

use std::path::Path;

use thalweg_api::{
    ClusterHost, ExchangeAsk, ExchangeReport, JobRequest, ProbeRequest, Schedule, ServiceRequest,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{
    Client, ClusterError as Error, ClusterResult as Result, Incoming, Link, LinkError, Outgoing, Streams,
};

use crate::node::Node;
use crate::rates::{at_once, named};

/// Bytes for each pair of nodes in a round.
const BYTES_MAX: u64 = 1 << 30;
const ROUNDS_MAX: u32 = 1000;
/// Bytes that are sent at once.
const SENT_BYTES: usize = 256 << 10;
/// Blocks that are reserved for what one node sends.
const WINDOW: usize = 4;
/// Bytes of a block on a link with a client that only sends requests.
const ASKED_BYTES: usize = 64 << 10;
/// The message that a round begins, and that everything has arrived.
const WORD: [u8; 1] = [1];
const STACK_BYTES: usize = 256 << 10;

/// Fewer bytes than this for each pair are a short exchange: 24 nodes with 400 kB took 1.19 s shifted and 1.30
/// together, 8 nodes with 2 MB 1.67 and 1.35.
const SHORT_BYTES: u64 = 1 << 20;

/// The best schedule for this many bytes between each pair.
fn best(bytes: u64) -> Schedule {
    if bytes < SHORT_BYTES { Schedule::Shifted } else { Schedule::Together }
}

/// Has these hosts, or all, exchange this many bytes in each pair, for a number of rounds; `None` is the best schedule.
pub fn exchange(
    identity: &Path,
    on: &[String],
    (bytes, rounds): (u64, u32),
    schedule: Option<Schedule>,
) -> Result<ExchangeReport> {
    let schedule = schedule.unwrap_or_else(|| best(bytes));
    if !(1..=BYTES_MAX).contains(&bytes) || !(1..=ROUNDS_MAX).contains(&rounds) {
        let most = thalweg_base::units::Bytes(BYTES_MAX);
        return Err(Error::Asked(format!(
            "an exchange is of 1 to {most} for each two hosts, in 1 to {ROUNDS_MAX} rounds"
        )));
    }
    let client = Client::load(identity)?;
    let hosts = client.hosts(on)?;
    if hosts.len() < 2 {
        return Err(Error::Asked("an exchange takes two hosts at least".into()));
    }
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let mut asked = at_once(&hosts, |index, host| {
        let ask = ExchangeAsk { hosts: names.clone(), index, bytes, rounds, schedule };
        Asked::open(&client, host, ask)
    })?;
    let mut seconds = Vec::with_capacity(rounds as usize);
    for _ in 0..rounds {
        let watch = Stopwatch::start();
        asked.iter_mut().try_for_each(Asked::go)?;
        asked.iter_mut().try_for_each(Asked::hear)?;
        seconds.push(watch.seconds());
    }
    Ok(ExchangeReport { hosts: names, bytes, schedule, seconds })
}

/// A node that takes part, as the client sees it.
struct Asked {
    host: String,
    out: Outgoing,
    inc: Incoming,
    _link: Link,
}

impl Asked {
    /// Sends it the request, and waits until it is ready.
    fn open(client: &Client, host: &ClusterHost, ask: ExchangeAsk) -> Result<Asked> {
        let link = client.link(host, ASKED_BYTES)?;
        // While one node is read the others are not, and a round may last longer than the timeout of a node.
        link.keep()
            .map_err(|e| Error::Asked(format!("no thread for the link with {} is left: {e}", host.name)))?;
        let request = JobRequest::Probe(ProbeRequest::Exchange(ask)).text();
        let (out, inc) = link.open(request.as_bytes())?;
        let inc = inc.takes(&pool(ASKED_BYTES)?, WINDOW);
        let mut asked = Asked { host: host.name.clone(), out, inc, _link: link };
        asked.hear()?;
        Ok(asked)
    }

    fn go(&mut self) -> Result<()> {
        self.out.send(0, &mut WORD.clone()).map_err(|why| self.named(why))
    }

    fn hear(&mut self) -> Result<()> {
        match self.inc.next_on() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Error::Asked(format!("{}: it ended before the exchange did", self.host))),
            Err(why) => Err(self.named(why)),
        }
    }

    fn named(&self, why: LinkError) -> Error {
        named(&self.host, &why)
    }
}

fn pool(block_bytes: usize) -> Result<Pool> {
    Pool::new(block_bytes, WINDOW + 1).map_err(|why| Error::Asked(why.to_string()))
}

/// Takes part in an exchange to its end.
pub(crate) fn serve(node: &dyn Node, ask: &ExchangeAsk, (mut out, inc): Streams) {
    // To want no more before the end would abort the stream.
    let mut inc = match pool(ASKED_BYTES) {
        Ok(pool) => inc.takes(&pool, WINDOW),
        Err(why) => return drop(out.abort(&why.to_string())),
    };
    let _ = match take_part(node, ask, &mut out, &mut inc) {
        Ok(()) => out.end(&[]),
        Err(why) => out.abort(&why.to_string()),
    };
}

fn take_part(node: &dyn Node, ask: &ExchangeAsk, out: &mut Outgoing, inc: &mut Incoming) -> Result<()> {
    let bytes = ask.bytes.min(BYTES_MAX);
    let rounds = ask.rounds.min(ROUNDS_MAX);
    let order = order(ask);
    let request = JobRequest::Probe(ProbeRequest::TakeRounds { bytes, rounds }).text();
    let mut others: Vec<Other> = at_once(&order, |_, host| Other::open(node, host, &request))?;
    out.send(0, &mut WORD.clone())?;
    for _ in 0..rounds {
        if inc.next_on()?.is_none() {
            return Ok(());
        }
        match ask.schedule {
            Schedule::Together => together(&mut others, bytes)?,
            Schedule::Same | Schedule::Shifted => {
                others.iter_mut().try_for_each(|other| other.send(bytes))?;
                others.iter_mut().try_for_each(Other::hear)?;
            }
            Schedule::Paced => {
                for other in &mut others {
                    other.send(bytes)?;
                    other.hear()?;
                }
            }
        }
        out.send(0, &mut WORD.clone())?;
    }
    Ok(())
}

/// The other hosts, in the order in which this node sends to them.
fn order(ask: &ExchangeAsk) -> Vec<String> {
    let mut hosts = ask.hosts.clone();
    if ask.index < hosts.len() {
        match ask.schedule {
            Schedule::Same => {}
            _ => hosts.rotate_left(ask.index),
        }
        let own = &ask.hosts[ask.index];
        hosts.retain(|host| host != own);
    }
    hosts
}

fn together(others: &mut [Other], bytes: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let mut sending = Vec::with_capacity(others.len());
        for other in others {
            let thread = std::thread::Builder::new().name("exchange".into()).stack_size(STACK_BYTES);
            let send = move || other.send(bytes).and_then(|()| other.hear());
            let thread = thread.spawn_scoped(scope, send);
            sending.push(thread.map_err(|e| Error::Asked(format!("no thread to send with: {e}")))?);
        }
        sending.into_iter().try_for_each(|sending| sending.join().expect("nothing here panics"))
    })
}

/// Another node, as the sender sees it.
struct Other {
    out: Outgoing,
    inc: Incoming,
    bytes: Vec<u8>,
}

impl Other {
    fn open(node: &dyn Node, host: &str, request: &str) -> Result<Other> {
        let (out, inc) = node.link_with(host)?.open(request.as_bytes())?;
        Ok(Other { out, inc: inc.takes(&pool(ASKED_BYTES)?, WINDOW), bytes: vec![0; SENT_BYTES] })
    }

    fn send(&mut self, bytes: u64) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let some = left.min(SENT_BYTES as u64);
            self.out.send(0, &mut self.bytes[..some as usize])?;
            left -= some;
        }
        Ok(())
    }

    /// Waits until it has received everything.
    fn hear(&mut self) -> Result<()> {
        match self.inc.next_on()? {
            Some(_) => Ok(()),
            None => Err(Error::Asked("another node ended before the exchange did".into())),
        }
    }
}

/// Receives what another node sends, and reports the end of each round.
pub(crate) fn take((bytes, rounds): (u64, u32), (mut out, inc): Streams) {
    let taken = (|| -> Result<()> {
        let mut inc = inc.takes(&pool(FRAME_BYTES)?, WINDOW);
        for _ in 0..rounds {
            let mut left = bytes;
            while left > 0 {
                let Some((_, block)) = inc.next_on()? else { return Ok(()) };
                left = left
                    .checked_sub(block.len() as u64)
                    .ok_or_else(|| Error::Asked("more came than a round has".into()))?;
            }
            out.send(0, &mut WORD.clone())?;
        }
        while inc.next_on()?.is_some() {}
        Ok(())
    })();
    let _ = match taken {
        Ok(()) => out.end(&[]),
        Err(why) => out.abort(&why.to_string()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_no_two_begin_with_the_same_and_each_has_all_others() {
        let hosts: Vec<String> = ["a", "b", "c", "d"].map(String::from).to_vec();
        let order = |index, schedule| {
            order(&ExchangeAsk { hosts: hosts.clone(), index, bytes: 1, rounds: 1, schedule }).concat()
        };
        assert_eq!([0, 1, 2, 3].map(|i| order(i, Schedule::Same)), ["bcd", "acd", "abd", "abc"]);
        assert_eq!([0, 1, 2, 3].map(|i| order(i, Schedule::Shifted)), ["bcd", "cda", "dab", "abc"]);
    }
}

//! The rates of a node: how it measures them, and how it stores them.
//!
//! Model: the engine measures disk and cores, in the node's data directory. A link is measured by sending over
//! the one that is open to the other host, which counts what arrives; so the bytes go the way of a river's batches.
//! The rates from a probe of the whole cluster are stored beside the node's certificate, because they are the host's
//! own. In the cluster file every change would be a new epoch, and would have to be distributed to all hosts.
//! Invariant: one measurement at a time on a node. None lasts longer than its parts' declared times; none leaves a
//! file.
//! Non-goals: which node sends to which, and when ([`crate::rates`]).

use std::path::PathBuf;
use std::sync::TryLockError;

use thalweg_api::{
    Hardware, JobRequest, NodeRates, ProbeRequest, ProbeSaid, ServiceRequest, from_json, to_json,
};
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_block::Pool;
use thalweg_engine::{Error, JobFault, Result};
use thalweg_io::{process, small};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{ClusterError, Incoming, LinkError, Streams, What};

use crate::exchange;
use crate::local::Local;

/// Beside the node's certificate.
const RATES_FILE: &str = "rates.json";
/// Bytes that are sent at once.
const SENT_BYTES: usize = 256 << 10;
/// The longest time for which a link is measured.
const SEND_MS_MAX: u64 = 5_000;
/// What arrives in this time is not counted: connections start slowly, and traffic shapers let a burst pass.
const WARM_SECONDS: f64 = 0.1;
/// Blocks that are reserved for what arrives.
const WINDOW: usize = 8;

/// The stored rates of this node, if they are usable.
pub(crate) fn kept_rates(local: &Local) -> Option<NodeRates> {
    let bytes = small::read(&rates_file(local)?).ok()?;
    let rates: NodeRates = from_json(std::str::from_utf8(&bytes).ok()?.trim()).ok()?;
    let since = wall_seconds().checked_sub(rates.hardware.measured_at_seconds);
    (since.is_some() && thalweg_engine::model::is_sound(&rates)).then_some(rates)
}

fn keep_rates(local: &Local, rates: &NodeRates) -> Result<()> {
    let file = rates_file(local).ok_or(ClusterError::NoIdentity)?;
    if !thalweg_engine::model::is_sound(rates) {
        return Err(Error::Rates);
    }
    Ok(small::write(&file, (to_json(rates) + "\n").as_bytes())?)
}

fn rates_file(local: &Local) -> Option<PathBuf> {
    Some(local.node.directory()?.join(RATES_FILE))
}

/// Serves a stream on which rates are requested, to its end.
pub(crate) fn serve(local: &Local, request: ProbeRequest, (mut out, inc): Streams) {
    // If nothing is taken, `inc` stays until the answer was sent: to want no more before would abort the stream.
    let said = match request {
        ProbeRequest::Exchange(ask) => return exchange::serve(&*local.node, &ask, (out, inc)),
        ProbeRequest::TakeRounds { bytes, rounds } => return exchange::take((bytes, rounds), (out, inc)),
        ProbeRequest::Take => take(inc),
        ProbeRequest::Kept => Ok(ProbeSaid::Rates(kept_rates(local))),
        ProbeRequest::Keep(rates) => keep_rates(local, &rates).map(|()| ProbeSaid::Rates(Some(rates))),
        ProbeRequest::Disk { thorough } => {
            here(local, || thalweg_engine::probe_disk(&local.node.data(), thorough))
        }
        ProbeRequest::Cores => here(local, thalweg_engine::probe_cores),
        ProbeRequest::Send { to, milliseconds } => send(local, &to, milliseconds.min(SEND_MS_MAX)),
    };
    let _ = match said {
        Ok(said) => out.end(to_json(&said).as_bytes()),
        Err(why) => out.abort(&why.to_string()),
    };
}

/// Measures something of this host, unless another measurement is running.
fn here(local: &Local, measure: impl FnOnce() -> Result<Hardware>) -> Result<ProbeSaid> {
    let _turn = match local.probing.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err(JobFault::Measuring.into());
        }
        turn => turn,
    };
    Ok(ProbeSaid::Rates(Some(NodeRates {
        memory_bytes: process::available_memory_bytes(),
        hardware: measure()?,
        send_bytes_per_second: 0.0,
        receive_bytes_per_second: 0.0,
        trunk_bytes_per_second: None,
    })))
}

/// Sends to a host for `milliseconds`. Returns what arrived there.
fn send(local: &Local, to: &str, milliseconds: u64) -> Result<ProbeSaid> {
    let link = local.node.link_with(to)?;
    let ask = JobRequest::Probe(ProbeRequest::Take).text();
    let (mut out, mut inc) = link.open(ask.as_bytes())?;
    let watch = Stopwatch::start();
    let mut bytes = vec![0; SENT_BYTES];
    while watch.seconds() * 1e3 < milliseconds as f64 {
        out.send(0, &mut bytes)?;
    }
    out.end(&[])?;
    while inc.next_on()?.is_some() {}
    let said = from_json(&String::from_utf8_lossy(inc.result().unwrap_or_default()));
    Ok(said.map_err(|why| LinkError::new(to, What::Cut(why)))?)
}

/// Counts the bytes that arrive.
fn take(inc: Incoming) -> Result<ProbeSaid> {
    let pool = Pool::new(FRAME_BYTES, WINDOW + 1)?;
    let mut inc = inc.takes(&pool, WINDOW);
    let watch = Stopwatch::start();
    // When counting began, the bytes counted, and when the last of them arrived.
    let (mut from, mut bytes, mut last) = (None, 0, 0.0);
    while let Some((_, block)) = inc.next_on()? {
        last = watch.seconds();
        match from {
            Some(_) => bytes += block.len() as u64,
            None if last >= WARM_SECONDS => from = Some(last),
            None => {}
        }
    }
    Ok(ProbeSaid::Sent { bytes, seconds: last - from.unwrap_or(last) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thalweg_wire::{Host, Terms, pair};

    use super::*;
    use crate::{JobService, Jobs};

    #[test]
    fn an_answer_does_not_wait_for_whoever_asks_to_say_no_more() {
        let host = Arc::new(Host::embedded("n1", Terms::default()));
        host.offer(vec![Arc::new(JobService::new(&host, &Arc::new(Jobs::default())))]);
        let (near, far) = pair(host.terms()).unwrap();
        let serving = std::thread::spawn(move || host.serve(&Arc::new(far)));
        let near = Arc::new(near);
        let read = near.clone();
        let reading = std::thread::spawn(move || while let Ok(Some(_)) = read.accept() {});
        let ask = JobRequest::Probe(ProbeRequest::Kept).text();
        let (_out, mut inc) = near.open(ask.as_bytes()).unwrap();
        assert!(inc.next_on().unwrap().is_none());
        let said = from_json(std::str::from_utf8(inc.result().unwrap()).unwrap());
        assert_eq!(said, Ok(ProbeSaid::Rates(None)));
        assert!(near.is_open());
        near.close();
        serving.join().unwrap();
        reading.join().unwrap();
    }
}

//! How fast a node is: what it keeps of that, and how it measures it.
//!
//! Model: disk and cores as the facade measures them, below the node's directory for data; a link by sending over the one
//! that is kept with the other host, where what arrives is counted, so it goes the way that a river's batches go.
//! What a probe of the whole cluster found is kept beside the node's certificate: it is the host's own, and the cluster
//! file, whose every change is a new epoch, would have to be brought to all for it.
//! Invariant: one measurement at a time on a node. None lasts longer than its parts' declared times; none leaves a file.
//! Non-goals: which node sends to which, and when; that is [`crate::rates`]'s.

use std::path::PathBuf;
use std::sync::{Arc, TryLockError};

use thalweg_api::{Hardware, NodeRates, NodeRequest, ProbeRequest, ProbeSaid, from_json, to_json};
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_block::Pool;
use thalweg_io::{process, small};
use thalweg_wire::{Incoming, Outgoing};

use crate::daemon::{BLOCK_BYTES, Node};
use crate::exchange;

/// Beside the node's certificate.
const RATES_FILE: &str = "rates.json";
/// Bytes that are sent at once.
const SENT_BYTES: usize = 256 << 10;
/// The longest that a link is measured.
const SEND_MS_MAX: u64 = 5_000;
/// What arrives in this time is not counted: connections begin slowly, and what shapes links lets some of it pass.
const WARM_SECONDS: f64 = 0.1;
/// Blocks that are reserved for what comes.
const WINDOW: usize = 8;

type Answer<T> = Result<T, String>;

impl Node {
    /// The rates that it keeps, if they can be used.
    pub(crate) fn kept_rates(&self) -> Option<NodeRates> {
        let bytes = small::read(&self.rates_file()?).ok()?;
        let rates: NodeRates = from_json(std::str::from_utf8(&bytes).ok()?.trim()).ok()?;
        let since = wall_seconds().checked_sub(rates.hardware.measured_at_seconds);
        (since.is_some() && thalweg_engine::model::is_sound(&rates)).then_some(rates)
    }

    fn keep_rates(&self, rates: &NodeRates) -> Answer<()> {
        let file = self.rates_file().ok_or("a node without identity keeps no rates")?;
        if !thalweg_engine::model::is_sound(rates) {
            return Err("rates that are none are not kept".into());
        }
        small::write(&file, (to_json(rates) + "\n").as_bytes()).map_err(|e| e.to_string())
    }

    fn rates_file(&self) -> Option<PathBuf> {
        Some(self.directory()?.join(RATES_FILE))
    }
}

/// Serves a stream on which rates are asked for, to its end.
pub(crate) fn serve(node: &Arc<Node>, request: ProbeRequest, (mut out, inc): (Outgoing, Incoming)) {
    // Where nothing is taken, `inc` stays until the answer has left: to want no more before would give the stream up.
    let said = match request {
        ProbeRequest::Exchange(ask) => return exchange::serve(node, &ask, (out, inc)),
        ProbeRequest::TakeRounds { bytes, rounds } => return exchange::take((bytes, rounds), (out, inc)),
        ProbeRequest::Take => take(inc),
        ProbeRequest::Kept => Ok(ProbeSaid::Rates(node.kept_rates())),
        ProbeRequest::Keep(rates) => node.keep_rates(&rates).map(|()| ProbeSaid::Rates(Some(rates))),
        ProbeRequest::Disk { thorough } => here(node, || thalweg_engine::probe_disk(&node.data(), thorough)),
        ProbeRequest::Cores => here(node, thalweg_engine::probe_cores),
        ProbeRequest::Send { to, milliseconds } => send(node, &to, milliseconds.min(SEND_MS_MAX)),
    };
    let _ = match said {
        Ok(said) => out.end(to_json(&said).as_bytes()),
        Err(why) => out.abort(&why),
    };
}

/// Measures something of this host, unless somebody does already.
fn here(node: &Node, measure: impl FnOnce() -> thalweg_engine::Result<Hardware>) -> Answer<ProbeSaid> {
    let _turn = match node.probing.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err("it is being measured already; try again when that has ended".into());
        }
        turn => turn,
    };
    Ok(ProbeSaid::Rates(Some(NodeRates {
        memory_bytes: process::available_memory_bytes(),
        hardware: measure().map_err(|e| e.to_string())?,
        send_bytes_per_second: 0.0,
        receive_bytes_per_second: 0.0,
        trunk_bytes_per_second: None,
    })))
}

/// Sends to a host for so long; what arrived there.
fn send(node: &Arc<Node>, to: &str, milliseconds: u64) -> Answer<ProbeSaid> {
    let link = node.link_with(to).map_err(|e| e.to_string())?;
    let ask = to_json(&NodeRequest::Probe(ProbeRequest::Take));
    let (mut out, mut inc) = link.open(ask.as_bytes()).map_err(|e| e.to_string())?;
    let watch = Stopwatch::start();
    let mut bytes = vec![0; SENT_BYTES];
    while watch.seconds() * 1e3 < milliseconds as f64 {
        out.send(0, &mut bytes).map_err(|e| e.to_string())?;
    }
    out.end(&[]).map_err(|e| e.to_string())?;
    while inc.next_on().map_err(|e| e.to_string())?.is_some() {}
    from_json(&String::from_utf8_lossy(inc.result().unwrap_or_default()))
}

/// Counts what comes.
fn take(inc: Incoming) -> Answer<ProbeSaid> {
    let pool = Pool::new(BLOCK_BYTES, WINDOW + 1).map_err(|e| e.to_string())?;
    let mut inc = inc.takes(&pool, WINDOW);
    let watch = Stopwatch::start();
    // When counting began, what was counted, and when the last of it came.
    let (mut from, mut bytes, mut last) = (None, 0, 0.0);
    while let Some((_, block)) = inc.next_on().map_err(|e| e.to_string())? {
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
    use thalweg_wire::pair;

    use super::*;
    use crate::daemon::NodeOptions;

    #[test]
    fn an_answer_does_not_wait_for_whoever_asks_to_say_no_more() {
        let node = Arc::new(Node::new(&NodeOptions::default()).unwrap());
        let (near, far) = pair(node.terms).unwrap();
        let serving = std::thread::spawn(move || node.serve(far));
        let near = Arc::new(near);
        let read = near.clone();
        let reading = std::thread::spawn(move || while let Ok(Some(_)) = read.accept() {});
        let ask = to_json(&NodeRequest::Probe(ProbeRequest::Kept));
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

//! The rates of the nodes of a cluster: those that they keep, or those measured now.
//!
//! Model: all nodes measure their disks at the same time, and then their cores, so that nodes on one machine share it
//! as they do when they sort. Then each sends to the next, so that every link carries the same both ways; and each
//! sends to the one half the cluster further, so that all traffic crosses whatever is between the halves.
//!
//! ```text
//! next    n1 -> n2 -> n3 -> n4 -> n1        a link's rate is the best of these
//! across  n1 -> n3, n2 -> n4, n3 -> n1 ...  much less in all: a trunk, and this is its rate
//! back    n4 -> n3 -> n2 -> n1 -> n4        only then: for links whose next host is beyond the trunk
//! ```
//!
//! Invariant: a probe takes [`SEND_MS`] for each of its two or three rounds, and the time of
//! [`thalweg_engine::probe_disk`] and [`thalweg_engine::probe_cores`]. A node that cannot be measured is an error that
//! names it.
//! Non-goals: trunks between other parts of a cluster than its halves, in the order of the cluster file.

use std::path::Path;

use thalweg_api::{
    ClusterHost, Hardware, JobRequest, NodeRates, ProbeReport, ProbeRequest, ProbeSaid, ProbedHost,
    ServiceRequest, from_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{Client, ClusterError as Error, ClusterResult as Result, LinkError, What, message};

/// How long each node sends in a thorough measurement, and when a plan waits for it.
const SEND_MS: u64 = 1000;
const SEND_MS_SHORT: u64 = 400;
/// Bytes of a block on a link with a client that only sends requests.
const BLOCK_BYTES: usize = 64 << 10;
/// With fewer hosts than this, no half has several links to the other.
const HALVES_MIN: usize = 4;
/// If the traffic across, relative to that of the same links to their neighbours, is less than this, a trunk limits it.
const TRUNK_SHARE: f64 = 0.8;

/// Measures these hosts, or all, and has each store its rates.
pub fn probe(identity: &Path, on: &[String]) -> Result<ProbeReport> {
    let watch = Stopwatch::start();
    let client = Client::load(identity)?;
    let hosts = client.hosts(on)?;
    let rates = measure(&client, &hosts, true)?;
    let keeping = |i: usize, _: &ClusterHost| ProbeRequest::Keep(rates[i]);
    ask_all(&client, &hosts, &keeping)?;
    let probed = hosts.iter().zip(&rates);
    let probed = probed.map(|(host, rates)| ProbedHost { host: host.name.clone(), rates: *rates });
    Ok(ProbeReport { hosts: probed.collect(), seconds: watch.seconds() })
}

/// The rates of these hosts, measured now.
pub(crate) fn measure(client: &Client, hosts: &[ClusterHost], thorough: bool) -> Result<Vec<NodeRates>> {
    let disks = ask_all(client, hosts, &|_, _| ProbeRequest::Disk { thorough })?;
    let cores = ask_all(client, hosts, &|_, _| ProbeRequest::Cores)?;
    let mut rates: Vec<NodeRates> = Vec::with_capacity(hosts.len());
    for ((host, disk), cores) in hosts.iter().zip(disks).zip(cores) {
        let (ProbeSaid::Rates(Some(found)), ProbeSaid::Rates(Some(cores))) = (disk, cores) else {
            return Err(elsewhere(host));
        };
        let hardware = Hardware {
            distribute_records_per_second: cores.hardware.distribute_records_per_second,
            sort_records_per_second: cores.hardware.sort_records_per_second,
            ..found.hardware
        };
        rates.push(NodeRates { hardware, ..found });
    }
    let nodes = hosts.len();
    if nodes == 1 {
        return Ok(rates);
    }
    let milliseconds = if thorough { SEND_MS } else { SEND_MS_SHORT };
    let next = sent(client, hosts, 1, milliseconds)?;
    let across = match nodes >= HALVES_MIN {
        true => sent(client, hosts, nodes / 2, milliseconds)?,
        false => next.clone(),
    };
    let trunk = trunk(&next, &across);
    let mut rounds = vec![Round { further: 1, sent: next }];
    if nodes >= HALVES_MIN {
        rounds.push(Round { further: nodes / 2, sent: across });
    }
    if trunk.is_some() {
        let further = nodes - 1;
        rounds.push(Round { further, sent: sent(client, hosts, further, milliseconds)? });
    }
    for (i, rates) in rates.iter_mut().enumerate() {
        let sends = rounds.iter().map(|round| round.sent[i]);
        let receives = rounds.iter().map(|round| round.sent[(i + nodes - round.further) % nodes]);
        rates.send_bytes_per_second = sends.fold(0.0, f64::max).round();
        rates.receive_bytes_per_second = receives.fold(0.0, f64::max).round();
        rates.trunk_bytes_per_second = trunk.map(f64::round);
    }
    Ok(rates)
}

/// The bytes per second that every host sent to the one `further` places after it.
struct Round {
    further: usize,
    sent: Vec<f64>,
}

/// The rate from each half to the other, if it is less than the links carry.
fn trunk(next: &[f64], across: &[f64]) -> Option<f64> {
    let half = across.len() / 2;
    let all = |rates: &[f64]| rates.iter().sum::<f64>();
    let each_way = all(&across[..half]).min(all(&across[half..]));
    let is_less = across.len() >= HALVES_MIN && all(across) < TRUNK_SHARE * all(next);
    is_less.then_some(each_way)
}

/// Bytes per second from each host to the one `further` places after it, all measured at once.
fn sent(client: &Client, hosts: &[ClusterHost], further: usize, milliseconds: u64) -> Result<Vec<f64>> {
    let to = |i: usize, _: &ClusterHost| ProbeRequest::Send {
        to: hosts[(i + further) % hosts.len()].name.clone(),
        milliseconds,
    };
    let said = ask_all(client, hosts, &to)?;
    let rate = |(host, said): (&ClusterHost, ProbeSaid)| match said {
        ProbeSaid::Sent { bytes, seconds } if bytes > 0 && seconds > 0.0 => Ok(bytes as f64 / seconds),
        ProbeSaid::Sent { .. } => Err(Error::Asked(format!(
            "{}: too little arrived of what it sent to tell how fast; look at its link",
            host.name
        ))),
        ProbeSaid::Rates(_) => Err(elsewhere(host)),
    };
    hosts.iter().zip(said).map(rate).collect()
}

fn elsewhere(host: &ClusterHost) -> Error {
    Error::Asked(format!("{} sent an answer that does not belong here", host.name))
}

/// Sends a request to all hosts at once. Returns the answers in the order of the hosts.
fn ask_all(
    client: &Client,
    hosts: &[ClusterHost],
    what: &(dyn Fn(usize, &ClusterHost) -> ProbeRequest + Sync),
) -> Result<Vec<ProbeSaid>> {
    at_once(hosts, |i, host| ask(client, host, what(i, host)))
}

/// Runs a function for each item, with its index, on a thread of its own. Returns the results in order.
pub(crate) fn at_once<T: Sync, R: Send>(
    each: &[T],
    what: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let what = &what;
    std::thread::scope(|scope| {
        let doing: Vec<_> =
            each.iter().enumerate().map(|(i, one)| scope.spawn(move || what(i, one))).collect();
        doing.into_iter().map(|doing| doing.join().expect("nothing here panics")).collect()
    })
}

fn ask(client: &Client, host: &ClusterHost, what: ProbeRequest) -> Result<ProbeSaid> {
    let link = client.link(host, BLOCK_BYTES)?;
    let said = message::ask(&link, &JobRequest::Probe(what).text()).map_err(|why| named(&host.name, &why))?;
    from_json(&said).map_err(|why| Error::Asked(format!("{}: an answer that is none: {why}", host.name)))
}

/// The reason why a node gave up, after its name.
pub(crate) fn named(host: &str, why: &LinkError) -> Error {
    match &why.what {
        What::Aborted(text) => Error::Asked(format!("{host}: {text}")),
        _ => Error::Asked(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::trunk;

    #[test]
    fn a_trunk_is_what_carries_less_than_its_links() {
        assert_eq!(trunk(&[10.0; 4], &[10.0; 4]), None);
        assert_eq!(trunk(&[10.0; 4], &[9.0; 4]), None);
        assert_eq!(trunk(&[10.0; 4], &[3.0, 4.0, 5.0, 3.0]), Some(7.0));
        assert_eq!(trunk(&[10.0; 2], &[1.0; 2]), None, "two hosts have one link between them");
    }
}

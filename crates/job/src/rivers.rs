//! The rivers of an attempt: a stream to every other node and from each of them, on the open links.
//!
//! Non-goals: what the ends of a river do with records.

use std::sync::Arc;

use thalweg_api::{JobAttempt, JobRequest, JobSpec, ServiceRequest};
use thalweg_engine::{Error, Missed, Result};
use thalweg_river::core::Fault;
use thalweg_river::{Connection, Error as RiverError, Inlet, Outlet};
use thalweg_wire::Link;

use crate::node::Node;
use crate::participations::Place;

/// Names the host of a river's lost end: its number would mean nothing to a reader. A host whose link is open has
/// aborted its streams, perhaps since it misses another one itself.
pub(crate) fn named(why: Error, hosts: &[String], links: Option<&Links>) -> Error {
    let Error::River(river) = &why else { return why };
    let Some(place) = river.missed() else { return why };
    let is_linked = hosts.get(place).is_some_and(|host| links.is_some_and(|links| links.reach(host)));
    let text = match (river, hosts.get(place)) {
        (RiverError::Gone(_), Some(host)) => {
            format!("the node of {host} has gone before the river's end; run again")
        }
        (RiverError::Fault(Fault::Lost(_)), Some(host)) => {
            format!("the node of {host} has gone before its end; run again")
        }
        _ => river.to_string(),
    };
    Error::Gone(text, Some(Missed { place, is_linked }))
}

/// The links with the other nodes, and how many bytes each had carried before.
pub(crate) struct Links(pub(crate) Vec<(Arc<Link>, (u64, u64))>);

impl Links {
    /// How many bytes they have carried since then: sent and received.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let since = |(link, before): &(Arc<Link>, (u64, u64))| {
            let now = link.bytes();
            (now.0 - before.0, now.1 - before.1)
        };
        self.0.iter().map(since).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Whether all links with this host are open.
    fn reach(&self, host: &str) -> bool {
        let mut with_it = self.0.iter().filter(|(link, _)| link.peer() == host).peekable();
        with_it.peek().is_some() && with_it.all(|(link, _)| link.is_open())
    }
}

/// Opens a stream to every other node and waits for theirs. `build` makes the inlet and the outlet from them: how
/// outlets are reached, and how inlets are.
pub(crate) fn join(
    node: &dyn Node,
    (job, attempt, side): (&JobSpec, &JobAttempt, usize),
    (place, should_continue): (&Place<'_>, &dyn Fn() -> bool),
    build: impl FnOnce(Vec<Connection>, Vec<Connection>) -> Result<(Inlet, Outlet)>,
) -> Result<((Inlet, Outlet), Links)> {
    let mut links: Vec<Arc<Link>> = Vec::new();
    let mut to = Vec::with_capacity(attempt.hosts.len());
    let from = side * attempt.hosts.len() + attempt.index;
    let river = JobRequest::River { job: job.job.clone(), attempt: attempt.number(), from }.text();
    for (i, host) in attempt.hosts.iter().enumerate() {
        if i == attempt.index {
            to.push(Connection::Here);
            continue;
        }
        let gone =
            |why: &dyn ToString| Error::Gone(why.to_string(), Some(Missed { place: i, is_linked: false }));
        let link = node.link_with(host).map_err(|why| gone(&why))?;
        let (out, inc) = link.open(river.as_bytes()).map_err(|why| gone(&why))?;
        to.push(Connection::Stream(out, inc));
        links.push(link);
    }
    let mut from = Vec::with_capacity(attempt.hosts.len());
    for came in place.streams((attempt, side), should_continue)? {
        from.push(match came {
            Some(((out, inc), link)) => {
                links.push(link);
                Connection::Stream(out, inc)
            }
            None => Connection::Here,
        });
    }
    links.sort_by_key(Arc::as_ptr);
    links.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let with_bytes = |link: Arc<Link>| {
        let bytes = link.bytes();
        (link, bytes)
    };
    let links = Links(links.into_iter().map(with_bytes).collect());
    Ok((build(to, from)?, links))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_is_told_by_the_name_of_its_host() {
        let hosts = ["n1", "n2", "n3"].map(String::from);
        let told = |why: thalweg_river::Error| named(why.into(), &hosts, None).to_string();
        assert!(
            told(thalweg_river::Error::Gone(2)).starts_with("the node of n3 has gone before the river's end")
        );
        let lost = thalweg_river::Error::Fault(thalweg_river::core::Fault::Lost(1));
        assert!(told(lost).starts_with("the node of n2 has gone before its end"));
        assert!(told(thalweg_river::Error::Gone(7)).starts_with("outlet 7 "));
        assert!(told(thalweg_river::Error::Stopped).contains("stopped"));
    }
}

//! Has the outputs of a committed attempt named, on whichever hosts they lie.
//!
//! Model: each host names its own outputs; the output that all wrote to is named by the host that made it, or after
//! [`NAMING_SECONDS`] by another one.
//! Invariant: this ends only when all outputs have their names, the job is cancelled or the node goes down; a line
//! reports each output that has no name then.
//! Non-goals: how a file gets its name ([`crate::vote`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use thalweg_api::{Decision, ReadyFile, VoteSaid};
use thalweg_base::clock::Stopwatch;

use crate::agreement::{Told, tell, tell_one};
use crate::local::Local;

/// How long the host that made the shared output has to name it, before another one does.
const NAMING_SECONDS: f64 = 8.0;
/// How often to check whether the job was cancelled.
const LOOK: Duration = Duration::from_millis(20);
/// How long to wait before a host that could not be reached is told again.
const NAMES_AGAIN: Duration = Duration::from_secs(1);

/// Has the outputs of a committed attempt named: a shared output by the node that made it, or else by this node or
/// another one; each host's own output by that host. This waits as long as necessary, unless the job is cancelled.
/// Returns a line for each output that kept its temporary name, or may have.
pub(crate) fn name_all(local: &Arc<Local>, about: Told<'_>, maker: Option<&str>) -> Vec<String> {
    let hosts = &about.0.1.hosts;
    let Some(maker) = maker else { return name_own(local, about) };
    let others = hosts.iter().map(String::as_str).filter(|host| *host != maker && *host != local.name());
    let mut namers: Vec<&str> = [maker, local.name()].into_iter().chain(others).collect();
    namers.dedup();
    let kept = name_shared(local, about, &namers);
    tell(local, about, (hosts, false));
    kept
}

/// Has a shared output named by the first of these hosts that can.
fn name_shared(local: &Arc<Local>, about: Told<'_>, namers: &[&str]) -> Vec<String> {
    let (tell, said) = channel();
    let mut told = BTreeSet::new();
    loop {
        for namer in namers {
            // A host that has not answered yet is not told again.
            if told.insert(namer.to_string()) {
                tell_one(local, about, (namer, true), &tell);
            }
            let asked = Stopwatch::start();
            while asked.seconds() < NAMING_SECONDS && !goes(local, about.0.0) {
                let Ok((host, _, answer)) = said.recv_timeout(LOOK) else { continue };
                if let Some(VoteSaid::Learned(kept)) = answer {
                    return kept;
                }
                told.remove(&host);
                if host == *namer {
                    break;
                }
            }
            show_waiting(local, about.0.0, namers[0]);
        }
        if goes(local, about.0.0) || local.node.is_stopping_within(NAMES_AGAIN) {
            let Decision::Committed { shared: Some(shared), .. } = about.1 else { return Vec::new() };
            let ReadyFile { hidden, name, .. } = shared;
            return vec![format!(
                "nobody has said that {name} has its name; else it is whole, at {hidden}, and {} names it when it can be reached",
                namers[0]
            )];
        }
    }
}

/// Has every host name its own output.
fn name_own(local: &Arc<Local>, about: Told<'_>) -> Vec<String> {
    let (tell, said) = channel();
    let (mut kept, mut told) = (Vec::new(), BTreeSet::new());
    let mut waiting = about.0.1.hosts.clone();
    while !waiting.is_empty() && !goes(local, about.0.0) {
        for host in &waiting {
            // A host that has not answered yet is not told again.
            if told.insert(host.clone()) {
                tell_one(local, about, (host, false), &tell);
            }
        }
        let round = Stopwatch::start();
        while !waiting.is_empty() && round.seconds() < NAMES_AGAIN.as_secs_f64() {
            let Ok((host, _, answer)) = said.recv_timeout(LOOK) else { continue };
            told.remove(&host);
            match answer {
                Some(VoteSaid::Learned(lines)) => kept.extend(lines),
                Some(VoteSaid::Abstains(why)) => kept.push(why),
                _ => continue,
            }
            waiting.retain(|other| *other != host);
        }
        if !waiting.is_empty() {
            show_waiting(local, about.0.0, &waiting.join(", "));
        }
    }
    let late = |host: String| {
        format!("{host} has not given its output its name yet, and will when it can be reached")
    };
    kept.extend(waiting.into_iter().map(late));
    kept
}

/// Whether waiting for the names of the job's outputs should end.
fn goes(local: &Local, job: &str) -> bool {
    local.node.is_stopping_within(Duration::ZERO)
        || local.jobs.find(job).is_some_and(|job| job.cancelled().is_some())
}

fn show_waiting(local: &Local, job: &str, hosts: &str) {
    if let Some(job) = local.jobs.find(job) {
        job.show(|view| view.stage = format!("committed, waiting for {hosts}"));
    }
}

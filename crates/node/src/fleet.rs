//! Where nodes come from: one small trait, and the way in which they live in this process.
//!
//! Model: a [`Fleet`] knows its hosts, brings a node to life on one, looks after it and puts a new one in its place. Hosts
//! that ssh reaches are one ([`crate::hosts::Hosts`]); [`Embedded`] is another, whose links go through memory. [`mend`]
//! does not know which it has.
//! Invariant: what is done to hosts is done to all at once, at most [`AT_ONCE`], each with a result of its own.
//! Non-goals: choosing hosts, deciding when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use thalweg_api::{HostStep, HostSteps, NodeRequest, NodeStatus, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{Link, Terms};

use crate::daemon::Node;
use crate::error::{Error, Result};
use crate::talk::answer;
use crate::threads::spawn;

/// The most hosts that something is done to at once.
const AT_ONCE: usize = 32;

/// Nodes, wherever they are.
pub trait Fleet: Sync {
    /// Its hosts, by name.
    fn list(&self) -> Vec<String>;

    /// Brings a node to life on a host; leaves one alone that lives. Says what was done.
    fn place(&self, host: &str) -> Result<String>;

    /// What a host's node says of itself; an error if it says nothing.
    fn watch(&self, host: &str) -> Result<NodeStatus>;

    /// Ends a host's node, whatever its state, and brings a new one to life. Says what was done.
    fn replace(&self, host: &str) -> Result<String>;
}

/// Puts new nodes in the place of those that do not answer, on these hosts or on all.
pub fn mend(fleet: &dyn Fleet, on: &[String]) -> Result<HostSteps> {
    let all = fleet.list();
    if let Some(unknown) = on.iter().find(|host| !all.contains(host)) {
        return Err(Error::Asked(format!("'{unknown}' is none of the hosts, which are {}", all.join(", "))));
    }
    let hosts = if on.is_empty() { all } else { on.to_vec() };
    Ok(on_each(&hosts, |host| match fleet.watch(host) {
        Ok(status) => Ok(format!("answers, as process {}", status.pid)),
        Err(_) => fleet.replace(host).map_err(|e| e.to_string()),
    }))
}

/// Does something to all hosts at once.
pub(crate) fn on_each(
    hosts: &[String],
    step: impl Fn(&str) -> std::result::Result<String, String> + Sync,
) -> HostSteps {
    let next = Mutex::new(hosts.iter().enumerate());
    let steps = Mutex::new(vec![None; hosts.len()]);
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(AT_ONCE) {
            scope.spawn(|| {
                loop {
                    let Some((i, host)) = next.lock().expect("no holder panics").next() else { return };
                    let watch = Stopwatch::start();
                    let (done, error) = match step(host) {
                        Ok(done) => (Some(done), None),
                        Err(why) => (None, Some(why)),
                    };
                    let step = HostStep { host: host.clone(), done, error, seconds: watch.seconds() };
                    steps.lock().expect("no holder panics")[i] = Some(step);
                }
            });
        }
    });
    HostSteps { hosts: steps.into_inner().expect("no holder panics").into_iter().flatten().collect() }
}

/// Nodes in this process. They do what all nodes do, over links through memory.
pub struct Embedded {
    hosts: Vec<String>,
    links: Mutex<BTreeMap<String, Arc<Link>>>,
}

impl Embedded {
    /// Of these names, none of which lives yet.
    pub fn new(hosts: &[&str]) -> Embedded {
        Embedded {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            links: Mutex::new(BTreeMap::new()),
        }
    }

    /// The link with a host's node, as a client has one.
    pub fn link(&self, host: &str) -> Result<Arc<Link>> {
        let link =
            self.links.lock().expect("no holder panics").get(host).filter(|link| link.is_open()).cloned();
        link.ok_or_else(|| Error::Asked(format!("no node lives on {host} in this process")))
    }

    /// What a host's node answers.
    pub fn ask(&self, host: &str, request: &NodeRequest) -> Result<String> {
        let link = self.link(host)?;
        Ok(answer(&link, request)?)
    }
}

impl Fleet for Embedded {
    fn list(&self) -> Vec<String> {
        self.hosts.clone()
    }

    fn place(&self, host: &str) -> Result<String> {
        if self.link(host).is_ok() {
            return Ok("lives already".into());
        }
        if !self.hosts.iter().any(|known| known == host) {
            let hosts = self.hosts.join(", ");
            return Err(Error::Asked(format!("'{host}' is none of the hosts, which are {hosts}")));
        }
        let (near, far) = thalweg_wire::pair(Terms::default())?;
        let no_thread = |e: std::io::Error| Error::Asked(format!("no thread for a node is left: {e}"));
        near.keep().map_err(no_thread)?;
        let node = Arc::new(Node::embedded(host)?);
        if !spawn("embedded", move || node.serve(far)) {
            return Err(Error::Asked("no thread for a node is left".into()));
        }
        self.links.lock().expect("no holder panics").insert(host.to_string(), Arc::new(near));
        Ok("began in this process".into())
    }

    fn watch(&self, host: &str) -> Result<NodeStatus> {
        from_json(&self.ask(host, &NodeRequest::Status)?).map_err(Error::Asked)
    }

    fn replace(&self, host: &str) -> Result<String> {
        if let Some(link) = self.links.lock().expect("no holder panics").remove(host) {
            link.close();
        }
        self.place(host)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.links.lock().expect("no holder panics").values().for_each(|link| link.close());
    }
}

#[cfg(test)]
mod tests {
    use thalweg_api::ExecEnd;

    use super::*;

    #[test]
    fn nodes_in_this_process_live_die_and_are_replaced_by_the_same_hands_as_others() {
        let fleet = Embedded::new(&["a", "b"]);
        assert!(fleet.watch("a").unwrap_err().to_string().contains("no node lives on a"));
        assert_eq!(fleet.place("a").unwrap(), "began in this process");
        assert_eq!(fleet.place("a").unwrap(), "lives already");
        assert_eq!(fleet.watch("a").unwrap().name, "a");
        let steps = |on: &[String]| {
            let steps = mend(&fleet, on).unwrap().hosts;
            steps.into_iter().map(|step| step.done.unwrap()).collect::<Vec<_>>()
        };
        let answers = format!("answers, as process {}", std::process::id());
        assert_eq!(steps(&[]), [answers.clone(), "began in this process".into()]);
        let end: ExecEnd = from_json(&fleet.ask("b", &NodeRequest::Ping).unwrap()).unwrap();
        assert_eq!(end.status, Some(0));
        // One that has died.
        fleet.link("a").unwrap().close();
        assert!(fleet.watch("a").is_err());
        assert_eq!(steps(&["a".into()]), ["began in this process"]);
        assert_eq!(steps(&[]), [answers.clone(), answers]);
        assert!(mend(&fleet, &["c".into()]).unwrap_err().to_string().contains("'c' is none of the hosts"));
    }
}

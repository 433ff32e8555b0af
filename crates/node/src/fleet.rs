//! A trait for the source of nodes, and nodes inside this process.
//!
//! Model: a [`Fleet`] lists its hosts and starts, inspects and replaces their nodes. [`crate::installer::Hosts`] is the
//! fleet of hosts that ssh reaches; [`Embedded`] has links through memory. [`mend`] works with any.
//! Invariant: steps run on up to [`AT_ONCE`] hosts at the same time, and each host has its own result.
//! Non-goals: deciding on which hosts or when to act.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{HostStep, HostSteps, NodeStatus};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::threads::spawn;
use thalweg_wire::{ClusterError, Host, Link};

use crate::daemon::{Node, Services, terms};
use crate::{Error, Result};

/// The most hosts on which steps run at the same time.
const AT_ONCE: usize = 32;

/// A source of nodes.
pub trait Fleet: Sync {
    /// Its hosts, by name.
    fn list(&self) -> Vec<String>;

    /// Starts a host's node unless it runs. Returns what was done.
    fn place(&self, host: &str) -> Result<String>;

    /// The status of a host's node; an error if it does not answer.
    fn watch(&self, host: &str) -> Result<NodeStatus>;

    /// Ends a host's node, whatever its state, and starts a new one. Returns what was done.
    fn replace(&self, host: &str) -> Result<String>;
}

/// Replaces the nodes that do not answer, on these hosts or on all.
pub fn mend(fleet: &dyn Fleet, on: &[String]) -> Result<HostSteps> {
    let all = fleet.list();
    if let Some(unknown) = on.iter().find(|host| !all.contains(host)) {
        return Err(Error::UnknownHost { host: unknown.clone(), hosts: all });
    }
    let hosts = if on.is_empty() { all } else { on.to_vec() };
    Ok(on_each(&hosts, |host| match fleet.watch(host) {
        Ok(status) => Ok(format!("answers, as process {}", status.pid)),
        Err(_) => fleet.replace(host),
    }))
}

/// Runs a step on all hosts at the same time.
pub(crate) fn on_each(hosts: &[String], step: impl Fn(&str) -> Result<String> + Sync) -> HostSteps {
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
                        Err(why) => (None, Some(why.to_string())),
                    };
                    let step = HostStep { host: host.clone(), done, error, seconds: watch.seconds() };
                    steps.lock().expect("no holder panics")[i] = Some(step);
                }
            });
        }
    });
    HostSteps { hosts: steps.into_inner().expect("no holder panics").into_iter().flatten().collect() }
}

/// A node in this process, and a client's link with it.
type Life = (Arc<Node>, Arc<Link>);

/// Nodes in this process, with links through memory.
pub struct Embedded<'s> {
    hosts: Vec<String>,
    services: Services<'s>,
    lives: Mutex<BTreeMap<String, Life>>,
}

impl<'s> Embedded<'s> {
    /// A fleet with these hosts, whose nodes will offer these services. None runs yet.
    pub fn new(hosts: &[&str], services: Services<'s>) -> Embedded<'s> {
        let hosts = hosts.iter().map(ToString::to_string).collect();
        Embedded { hosts, services, lives: Mutex::default() }
    }

    /// A client's link with a host's node.
    pub fn link(&self, host: &str) -> Result<Arc<Link>> {
        self.living(host).map(|(_, link)| link)
    }

    fn living(&self, host: &str) -> Result<Life> {
        let lives = self.lives.lock().expect("no holder panics");
        let found = lives.get(host).filter(|(_, link)| link.is_open()).cloned();
        found.ok_or_else(|| Error::NotRunning(host.into()))
    }
}

impl Fleet for Embedded<'_> {
    fn list(&self) -> Vec<String> {
        self.hosts.clone()
    }

    fn place(&self, host: &str) -> Result<String> {
        if self.link(host).is_ok() {
            return Ok("lives already".into());
        }
        if !self.hosts.iter().any(|known| known == host) {
            return Err(Error::UnknownHost { host: host.into(), hosts: self.hosts.clone() });
        }
        let (near, far) = thalweg_wire::pair(terms())?;
        near.keep().map_err(Error::Thread)?;
        let node = Arc::new(Node::new(Host::embedded(host, terms()), self.services, "")?);
        let served = node.host.clone();
        if !spawn("embedded", move || served.serve(&Arc::new(far))) {
            return Err(ClusterError::NoThread.into());
        }
        self.lives.lock().expect("no holder panics").insert(host.to_string(), (node, Arc::new(near)));
        Ok("began in this process".into())
    }

    fn watch(&self, host: &str) -> Result<NodeStatus> {
        Ok(self.living(host)?.0.status())
    }

    fn replace(&self, host: &str) -> Result<String> {
        if let Some(life) = self.lives.lock().expect("no holder panics").remove(host) {
            end(&life);
        }
        self.place(host)
    }
}

impl Drop for Embedded<'_> {
    fn drop(&mut self) {
        self.lives.lock().expect("no holder panics").values().for_each(end);
    }
}

fn end((node, link): &Life) {
    node.host.stop(Duration::ZERO);
    link.close();
}

#[cfg(test)]
mod tests {
    use thalweg_api::{CommandRequest, ExecEnd, ServiceRequest, from_json};
    use thalweg_wire::{Service, message};

    use super::*;
    use crate::ExecService;

    #[test]
    fn embedded_nodes_start_fail_and_are_replaced() {
        let fleet = Embedded::new(&["a", "b"], &|host, jobs| {
            Ok(vec![Arc::new(ExecService::new(host, jobs)?) as Arc<dyn Service>])
        });
        assert!(fleet.watch("a").unwrap_err().to_string().contains("no node a runs"));
        assert_eq!(fleet.place("a").unwrap(), "began in this process");
        assert_eq!(fleet.place("a").unwrap(), "lives already");
        assert_eq!(fleet.watch("a").unwrap().name, "a");
        let steps = |on: &[String]| {
            let steps = mend(&fleet, on).unwrap().hosts;
            steps.into_iter().map(|step| step.done.unwrap()).collect::<Vec<_>>()
        };
        let answers = format!("answers, as process {}", std::process::id());
        assert_eq!(steps(&[]), [answers.clone(), "began in this process".into()]);
        let ping = message::ask(&fleet.link("b").unwrap(), &CommandRequest::Ping.text());
        let end: ExecEnd = from_json(&ping.unwrap()).unwrap();
        assert_eq!(end.status, Some(0));
        // A node that has failed.
        fleet.link("a").unwrap().close();
        assert!(fleet.watch("a").is_err());
        assert_eq!(steps(&["a".into()]), ["began in this process"]);
        assert_eq!(steps(&[]), [answers.clone(), answers]);
        assert!(mend(&fleet, &["c".into()]).unwrap_err().to_string().contains("'c' is none of the hosts"));
    }
}

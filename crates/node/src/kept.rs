//! Links with the other hosts that are opened when a node starts, and kept.
//!
//! Model: of two hosts the one that the cluster file names first opens the link, and says that it is to be kept; from
//! then on both open streams on it. One thread looks every [`ROUND`] which links are missing and dials them, each
//! after a pause that grows with its failures; whoever needs one at once dials it himself.
//! A node that takes a newer cluster file tells all with whom it keeps a link, and so do they; what gets lost of that is made up
//! for by comparing epochs with one of them every [`ROUND`], in turn.
//! Invariant: a link is kept only with a host of the cluster file; at most [`DIALS_MAX`] are dialled at once; beyond
//! [`MESH_MAX`] hosts links are opened when they are needed, not before.
//! Non-goals: what goes over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{ClusterHost, NodeRequest, NodeStatus, from_json};
use thalweg_base::clock::now_ns;
use thalweg_wire::{Id, Link, Role};

use crate::cluster;
use crate::daemon::{Node, log};
use crate::error::{Error, Result};
use crate::talk::answer;
use crate::threads::{caught, spawn};

/// How often missing links are looked for, and what lies in the identity's directory.
pub(crate) const ROUND: Duration = Duration::from_secs(1);
/// The longest that a node which starts waits for what the others know.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The most hosts that it asks at once then; of more, the next when one has answered.
const CATCH_UP_MAX: usize = 128;
/// How long those wait for whom nobody could dial yet.
const CROWDED: Duration = Duration::from_millis(50);
/// The most links that are dialled at once.
const DIALS_MAX: usize = 8;
/// With more hosts than this, each node would hold too many links that nobody uses.
const MESH_MAX: usize = 128;
/// The longest pause between two attempts, in rounds.
const PAUSE_ROUNDS_MAX: u64 = 32;

/// Rings once, for all who wait.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl Bell {
    /// Rings it.
    pub(crate) fn ring(&self) {
        *self.rung.lock().expect("no holder panics") = true;
        self.ring.notify_all();
    }

    /// Waits for it, or so long; whether it has rung.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let rung = self.rung.lock().expect("no holder panics");
        *self.ring.wait_timeout_while(rung, patience, |rung| !*rung).expect("no holder panics").0
    }
}

/// How long a host is told to be there twice after that was seen last.
const TWICE: Duration = Duration::from_secs(60);

/// The links that are kept, by node, and attempts to make more.
#[derive(Default)]
pub(crate) struct Kept {
    links: Mutex<BTreeMap<Id, Arc<Link>>>,
    dialling: Mutex<BTreeSet<Id>>,
    failed: Mutex<BTreeMap<Id, Failures>>,
    /// With whom epochs were compared last.
    compared: Mutex<Option<Id>>,
    /// Hosts whose certificate two processes showed, and when that was seen last.
    twice: Mutex<BTreeMap<String, u64>>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    again_ns: u64,
}

impl Kept {
    /// The link with a node, if there is one that stands.
    pub(crate) fn with(&self, node: Id) -> Option<Arc<Link>> {
        self.links.lock().expect("no holder panics").get(&node).filter(|link| link.is_open()).cloned()
    }

    /// Keeps a link; returns the one in whose place it is, if that stands.
    fn keep(&self, node: Id, link: Arc<Link>) -> Option<Arc<Link>> {
        let before = self.links.lock().expect("no holder panics").insert(node, link);
        before.filter(|before| before.is_open())
    }

    /// The hosts that are there twice.
    pub(crate) fn twice(&self) -> Vec<String> {
        let mut twice = self.twice.lock().expect("no holder panics");
        twice.retain(|_, seen_ns| now_ns().saturating_sub(*seen_ns) < TWICE.as_nanos() as u64);
        twice.keys().cloned().collect()
    }

    /// A host is there twice: says so, unless it was said.
    fn is_twice(&self, host: &str) {
        let is_new = !self.twice().iter().any(|known| known == host);
        self.twice.lock().expect("no holder panics").insert(host.to_string(), now_ns());
        if is_new {
            log(&there_twice(host));
        }
    }

    /// Keeps a link unless another stands already; the one that is kept.
    fn keep_first(&self, node: Id, link: Arc<Link>) -> Arc<Link> {
        let mut links = self.links.lock().expect("no holder panics");
        if let Some(first) = links.get(&node).filter(|first| first.is_open()) {
            link.close();
            return first.clone();
        }
        links.insert(node, link.clone());
        link
    }

    /// Lets go of a link that has ended.
    pub(crate) fn forget(&self, link: &Arc<Link>) {
        self.links.lock().expect("no holder panics").retain(|_, kept| !Arc::ptr_eq(kept, link));
    }

    /// Lets go of all links, because this node has a new certificate. What runs on them goes on.
    pub(crate) fn forget_all(&self) {
        self.links.lock().expect("no holder panics").clear();
    }

    /// Tells all hosts with which a link is kept of a cluster file. None is waited for.
    pub(crate) fn tell(&self, text: &str) {
        let request = NodeRequest::Cluster(Some(text.to_string()));
        for (_, link) in self.others() {
            let request = request.clone();
            // Who is not told finds out when epochs are compared.
            spawn("tell", move || drop(answer(&link, &request)));
        }
    }

    /// The links with others that stand.
    fn others(&self) -> Vec<(Id, Arc<Link>)> {
        let links = self.links.lock().expect("no holder panics");
        let stands = links.iter().filter(|(_, link)| link.is_open() && !link.hello().is_local());
        stands.map(|(id, link)| (*id, link.clone())).collect()
    }

    /// The link with which epochs are to be compared next.
    fn next_to_compare(&self) -> Option<Arc<Link>> {
        let others = self.others();
        let mut last = self.compared.lock().expect("no holder panics");
        let next = others.iter().find(|(id, _)| last.is_none_or(|last| *id > last)).or(others.first())?;
        *last = Some(next.0);
        Some(next.1.clone())
    }

    /// Whether as many are dialled as may be.
    fn is_crowded(&self) -> bool {
        self.dialling.lock().expect("no holder panics").len() >= DIALS_MAX
    }

    /// Whether a node may be dialled now: nobody does, and its pause is over.
    fn may_dial(&self, node: Id) -> bool {
        let paused = self
            .failed
            .lock()
            .expect("no holder panics")
            .get(&node)
            .is_some_and(|failures| failures.again_ns > now_ns());
        let mut dialling = self.dialling.lock().expect("no holder panics");
        !paused && dialling.insert(node)
    }

    fn dialled(&self, node: Id, well: bool) {
        self.dialling.lock().expect("no holder panics").remove(&node);
        let mut failed = self.failed.lock().expect("no holder panics");
        if well {
            failed.remove(&node);
            return;
        }
        let failures = failed.entry(node).or_insert(Failures { count: 0, again_ns: 0 });
        failures.count += 1;
        let rounds = (1 << failures.count.min(6) >> 1).min(PAUSE_ROUNDS_MAX);
        failures.again_ns = now_ns() + rounds * ROUND.as_nanos() as u64;
    }
}

/// That two processes show a host's certificate, and what to do about it.
pub(crate) fn there_twice(host: &str) -> String {
    format!(
        "{host} is there twice: two processes show its certificate; stop one of them, or thalweg cluster renew {host}"
    )
}

/// Asks all other hosts at once for a newer cluster file than its own, so that one that is silent delays no other; waits
/// until each has answered, or [`CATCH_UP`].
pub(crate) fn catch_up(node: &Arc<Node>) {
    let Some(hands) = node.hands() else { return };
    let file = node.cluster.lock().expect("no holder panics").clone();
    let hosts = file.into_iter().flat_map(|file| file.hosts).filter(|host| host.name != node.name());
    let hosts: Vec<ClusterHost> = hosts.collect();
    let threads = hosts.len().min(CATCH_UP_MAX);
    let hosts = Arc::new(Mutex::new(hosts.into_iter()));
    let (said, answers) = std::sync::mpsc::channel::<()>();
    for _ in 0..threads {
        let (node, hands, said, hosts) = (node.clone(), hands.clone(), said.clone(), hosts.clone());
        let next = move || hosts.lock().expect("no holder panics").next();
        spawn("catch up", move || {
            while let Some(host) = next() {
                let Ok(address) = cluster::address_of(&host) else { continue };
                if let Ok(link) = hands.connect(&host.name, address, node.terms) {
                    node.agree(&link);
                }
            }
            drop(said);
        });
    }
    drop(said);
    // It ends when the last has let go of it.
    let _ = answers.recv_timeout(CATCH_UP);
}

/// Keeps a node's links until it goes down.
pub(crate) fn run(node: &Arc<Node>) {
    loop {
        let all = caught(|| {
            node.look_at_identity();
            if let Some(hands) = node.hands() {
                hands.identity().members.close_old();
            }
            let comparing = node.clone();
            spawn("compare", move || comparing.compare_epochs());
            dial_missing(node)
        });
        if node.bell.wait(if all == Ok(false) { CROWDED } else { ROUND }) {
            return;
        }
    }
}

/// Dials what is missing; false if some had to wait for others.
fn dial_missing(node: &Arc<Node>) -> bool {
    for (id, host) in missing(node) {
        if node.kept.is_crowded() {
            return false;
        }
        if !node.kept.may_dial(id) {
            continue;
        }
        let dialler = node.clone();
        let dial = move || {
            let well = caught(|| dialler.dial(id, &host).is_ok()).unwrap_or(false);
            dialler.kept.dialled(id, well);
        };
        if !spawn("dial", dial) {
            node.kept.dialled(id, false);
        }
    }
    true
}

/// The hosts behind ours in the cluster file with which there is no link.
fn missing(node: &Node) -> Vec<(Id, ClusterHost)> {
    let file = node.cluster.lock().expect("no holder panics");
    let Some(file) = file.as_ref().filter(|file| file.hosts.len() <= MESH_MAX) else { return Vec::new() };
    let behind = file.hosts.iter().skip_while(|host| host.name != node.name()).skip(1);
    let with_ids = behind.filter_map(|host| Some((host.id.parse().ok()?, host.clone())));
    with_ids.filter(|(id, _)| node.kept.with(*id).is_none()).collect()
}

impl Node {
    /// Brings this node and the next of those that it has links with to the newer of their cluster files.
    fn compare_epochs(&self) {
        let Some(link) = self.kept.next_to_compare() else { return };
        let Ok(said) = answer(&link, &NodeRequest::Status) else { return };
        if let Ok(status) = from_json::<NodeStatus>(&said) {
            self.agree_at(&link, status.epoch);
        }
    }

    /// Keeps a link. If another with the same certificate stands, it is looked whether that is with another process: then the two
    /// take each other's place again and again.
    pub(crate) fn keep(self: &Arc<Node>, id: Id, link: &Arc<Link>) {
        // A client says nothing to who asks.
        if link.hello().role != Role::Node {
            return;
        }
        let Some(before) = self.kept.keep(id, link.clone()) else { return };
        let (node, links) = (self.clone(), [before, link.clone()]);
        spawn("twice", move || {
            let process = |link: &Arc<Link>| {
                let status = from_json::<NodeStatus>(&answer(link, &NodeRequest::Status).ok()?).ok()?;
                Some((status.pid, (now_ns() as f64 / 1e9 - status.seconds)))
            };
            // One that has gone without a word says nothing, and was the same one.
            if let [Some((pid, began)), Some((other, other_began))] = [process(&links[0]), process(&links[1])]
                && (pid != other || (began - other_began).abs() > 1.0)
            {
                node.kept.is_twice(links[0].peer());
            }
        });
    }

    /// The link that is kept with a host.
    pub(crate) fn kept_with(self: &Arc<Node>, host: &str) -> Option<Arc<Link>> {
        self.kept.with(self.host(host).ok()?.0)
    }

    /// A link with a host: the one that is kept, or a new one that is kept from now on.
    pub(crate) fn link_with(self: &Arc<Node>, host: &str) -> Result<Arc<Link>> {
        let (id, host) = self.host(host)?;
        match self.kept.with(id) {
            Some(link) => Ok(link),
            None if host.name == self.name() => self.link_with_itself(id),
            None => self.dial(id, &host),
        }
    }

    fn host(&self, name: &str) -> Result<(Id, ClusterHost)> {
        let file = self.cluster.lock().expect("no holder panics");
        let file =
            file.as_ref().ok_or_else(|| Error::Asked("a node without identity has no others".into()))?;
        let host = file.hosts.iter().find(|host| host.name == name);
        let host = host.ok_or_else(|| cluster::unknown(file, name))?;
        Ok((host.id.parse().map_err(Error::Asked)?, host.clone()))
    }

    fn dial(self: &Arc<Node>, id: Id, host: &ClusterHost) -> Result<Arc<Link>> {
        let hands = self.hands().expect("whoever has a cluster file has hands");
        let link = hands.connect(&host.name, cluster::address_of(host)?, self.terms)?;
        self.agree(&link);
        answer(&link, &NodeRequest::Keep)?;
        self.keep_and_serve(id, link)
    }

    /// A node is one of its own hosts, and talks to itself as to the others.
    fn link_with_itself(self: &Arc<Node>, id: Id) -> Result<Arc<Link>> {
        let (near, far) = thalweg_wire::pair(self.terms)?;
        let node = self.clone();
        spawn("link", move || node.serve(far));
        let near = Arc::new(near);
        let read = near.clone();
        // Nobody asks anything there; but what comes has to be read.
        if !spawn("link", move || while let Ok(Some(_)) = read.accept() {}) {
            return Err(Error::Asked("no thread for a link is left".into()));
        }
        Ok(self.kept.keep_first(id, near))
    }

    fn keep_and_serve(self: &Arc<Node>, id: Id, link: Link) -> Result<Arc<Link>> {
        let link = Arc::new(link);
        self.keep(id, &link);
        let (node, served) = (self.clone(), link.clone());
        if !spawn("link", move || node.serve_kept(id, &served)) {
            self.kept.forget(&link);
            return Err(Error::Asked("no thread for a link is left".into()));
        }
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::daemon::NodeOptions;

    /// What went wrong: epochs were compared only when somebody dialled, so a link that stood never brought news.
    #[test]
    #[allow(clippy::disallowed_methods)] // Tests listen by themselves.
    fn links_that_stand_bring_the_news_that_got_lost() {
        let owner = std::env::temp_dir().join(format!("thalweg-kept-{}", std::process::id()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hosts = [format!("n1={address}"), "n2=127.0.0.1:1".to_string()];
        cluster::init(&owner, "river", &hosts).unwrap();
        let [near, far] = ["n2", "n1"].map(|host| {
            let identity = Some(cluster::host_directory(&owner, host));
            Arc::new(Node::new(&NodeOptions { identity, ..NodeOptions::default() }).unwrap())
        });
        let served = far.clone();
        let serving = std::thread::spawn(move || {
            let link = served.hands().unwrap().accept(listener.accept().unwrap().0, served.terms).unwrap();
            served.serve(link);
        });
        let (id, _) = near.host("n1").unwrap();
        let link = near.hands().unwrap().connect("n1", address, near.terms).unwrap();
        near.kept.keep(id, Arc::new(link));
        let epochs = || [&near, &far].map(|node| node.status().epoch);
        for (taker, client) in [(&far, "ada"), (&near, "bob")] {
            cluster::client(&owner, client, thalweg_api::May::All).unwrap();
            // As if nobody had been told.
            let kept = std::mem::take(&mut *taker.kept.links.lock().unwrap());
            let before = epochs()[0].max(epochs()[1]);
            taker.take_cluster(&cluster::text_in(&owner).unwrap()).unwrap();
            *taker.kept.links.lock().unwrap() = kept;
            assert_ne!(epochs()[0], epochs()[1]);
            near.compare_epochs();
            assert_eq!(epochs(), [before + 1; 2], "{client}");
        }
        near.kept.with(id).unwrap().close();
        serving.join().unwrap();
        std::fs::remove_dir_all(&owner).unwrap();
    }
}

//! The mesh: links with the other hosts that are opened when a node starts, and kept open.
//!
//! Model: of two hosts, the one that comes first in the cluster file opens the link and asks the other to keep it; then
//! both open streams on it. One thread checks every [`ROUND`] which links are missing and dials them, with pauses that
//! grow with each failure. If a link is needed at once, the thread that needs it dials. A node that accepts a newer
//! cluster file passes it on over all links that it keeps, and so do the others. To make up for losses, it compares
//! epochs with one of them every [`ROUND`], in turn.
//! Invariant: links are kept only with hosts of the cluster file; at most [`DIALS_MAX`] are dialled at a time; in
//! clusters of more than [`MESH_MAX`] hosts links are opened only when they are needed.
//! Non-goals: what the links carry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{ClusterHost, HostProcess, HostRequest, ServiceRequest, from_json};
use thalweg_base::clock::now_ns;

use crate::cluster_error::{ClusterError as Error, ClusterResult as Result};
use crate::host::Host;
use crate::threads::{caught, spawn};
use crate::{Id, Link, Role, cluster, log, message};

/// How often to check for missing links, and for changes in the identity's directory.
const ROUND: Duration = Duration::from_secs(1);
/// How long a starting node waits for newer cluster files of the others.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The most hosts that it asks at the same time.
const CATCH_UP_MAX: usize = 128;
/// How long to wait before the next check when some dials had to wait.
const CROWDED: Duration = Duration::from_millis(50);
/// The most links that are dialled at a time.
const DIALS_MAX: usize = 8;
/// The most hosts of a mesh: in larger clusters a node would hold too many unused links.
const MESH_MAX: usize = 128;
/// The longest pause between two attempts, in rounds.
const PAUSE_ROUNDS_MAX: u64 = 32;

/// How long a duplicate host is reported after it was last seen.
const TWICE: Duration = Duration::from_secs(60);

/// The links that are kept, by node, and attempts to open more.
#[derive(Default)]
pub(crate) struct Mesh {
    links: Mutex<BTreeMap<Id, Arc<Link>>>,
    dialling: Mutex<BTreeSet<Id>>,
    failed: Mutex<BTreeMap<Id, Failures>>,
    /// The host with which epochs were last compared.
    compared: Mutex<Option<Id>>,
    /// Hosts whose certificate two processes showed, and when that was last seen.
    twice: Mutex<BTreeMap<String, u64>>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    again_ns: u64,
}

impl Mesh {
    /// The open link with a node, if there is one.
    pub(crate) fn with(&self, node: Id) -> Option<Arc<Link>> {
        self.links.lock().expect("no holder panics").get(&node).filter(|link| link.is_open()).cloned()
    }

    /// Keeps a link; returns the open one that it replaces.
    fn keep(&self, node: Id, link: Arc<Link>) -> Option<Arc<Link>> {
        let before = self.links.lock().expect("no holder panics").insert(node, link);
        before.filter(|before| before.is_open())
    }

    /// The duplicate hosts.
    pub(crate) fn twice(&self) -> Vec<String> {
        let mut twice = self.twice.lock().expect("no holder panics");
        twice.retain(|_, seen_ns| now_ns().saturating_sub(*seen_ns) < TWICE.as_nanos() as u64);
        twice.keys().cloned().collect()
    }

    /// Records that a host is duplicate, and logs it if that is new.
    fn is_twice(&self, host: &str) {
        let is_new = !self.twice().iter().any(|known| known == host);
        self.twice.lock().expect("no holder panics").insert(host.to_string(), now_ns());
        if is_new {
            log(&there_twice(host));
        }
    }

    /// Keeps a link unless another is open; returns the one that is kept.
    fn keep_first(&self, node: Id, link: Arc<Link>) -> Arc<Link> {
        let mut links = self.links.lock().expect("no holder panics");
        if let Some(first) = links.get(&node).filter(|first| first.is_open()) {
            link.close();
            return first.clone();
        }
        links.insert(node, link.clone());
        link
    }

    /// Forgets a link that has ended.
    pub(crate) fn forget(&self, link: &Arc<Link>) {
        self.links.lock().expect("no holder panics").retain(|_, kept| !Arc::ptr_eq(kept, link));
    }

    /// Forgets all links, because this node has a new certificate. Work on them continues.
    pub(crate) fn forget_all(&self) {
        self.links.lock().expect("no holder panics").clear();
    }

    /// Sends a cluster file to all hosts with a kept link, without waiting for them.
    pub(crate) fn tell(&self, text: &str) {
        let request = HostRequest::Cluster(Some(text.to_string())).text();
        for (_, link) in self.others() {
            let request = request.clone();
            // A host that misses it finds out when epochs are compared.
            spawn("tell", move || drop(message::ask(&link, &request)));
        }
    }

    /// The open links with others.
    fn others(&self) -> Vec<(Id, Arc<Link>)> {
        let links = self.links.lock().expect("no holder panics");
        let stands = links.iter().filter(|(_, link)| link.is_open() && !link.hello().is_local());
        stands.map(|(id, link)| (*id, link.clone())).collect()
    }

    /// The link with which to compare epochs next.
    fn next_to_compare(&self) -> Option<Arc<Link>> {
        let others = self.others();
        let mut last = self.compared.lock().expect("no holder panics");
        let next = others.iter().find(|(id, _)| last.is_none_or(|last| *id > last)).or(others.first())?;
        *last = Some(next.0);
        Some(next.1.clone())
    }

    /// Whether the maximum of hosts is being dialled.
    fn is_crowded(&self) -> bool {
        self.dialling.lock().expect("no holder panics").len() >= DIALS_MAX
    }

    /// Whether a node may be dialled now: no other thread does, and its pause is over.
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

/// The warning that two processes show a host's certificate.
pub fn there_twice(host: &str) -> String {
    format!(
        "{host} is there twice: two processes show its certificate; stop one of them, or thalweg cluster renew {host}"
    )
}

/// Asks all other hosts for a newer cluster file, at the same time, so that a silent host delays no other. Waits until
/// each has answered, but at most [`CATCH_UP`].
pub fn catch_up(node: &Arc<Host>) {
    let Some(credentials) = node.credentials() else { return };
    let hosts =
        node.cluster_file().into_iter().flat_map(|file| file.hosts).filter(|host| host.name != node.name());
    let hosts: Vec<ClusterHost> = hosts.collect();
    let threads = hosts.len().min(CATCH_UP_MAX);
    let hosts = Arc::new(Mutex::new(hosts.into_iter()));
    let (said, answers) = std::sync::mpsc::channel::<()>();
    for _ in 0..threads {
        let (node, credentials, said, hosts) =
            (node.clone(), credentials.clone(), said.clone(), hosts.clone());
        let next = move || hosts.lock().expect("no holder panics").next();
        spawn("catch up", move || {
            while let Some(host) = next() {
                let Ok(address) = cluster::address_of(&host) else { continue };
                if let Ok(link) = credentials.connect(&host.name, address, node.terms()) {
                    node.agree(&link);
                }
            }
            drop(said);
        });
    }
    drop(said);
    // The channel closes when the last thread has dropped its end.
    let _ = answers.recv_timeout(CATCH_UP);
}

/// Keeps links with the other hosts until this one stops.
pub fn keep(node: &Arc<Host>) {
    loop {
        let all = caught(|| {
            node.reload_identity();
            if let Some(credentials) = node.credentials() {
                credentials.identity().members.close_old();
            }
            let comparing = node.clone();
            spawn("compare", move || comparing.compare_epochs());
            dial_missing(node)
        });
        if node.stopping.wait(if all == Ok(false) { CROWDED } else { ROUND }) {
            return;
        }
    }
}

/// Dials hosts without a link; false if some had to wait for others.
fn dial_missing(node: &Arc<Host>) -> bool {
    for (id, host) in missing(node) {
        if node.mesh.is_crowded() {
            return false;
        }
        if !node.mesh.may_dial(id) {
            continue;
        }
        let dialler = node.clone();
        let dial = move || {
            let well = caught(|| dialler.dial(id, &host).is_ok()).unwrap_or(false);
            dialler.mesh.dialled(id, well);
        };
        if !spawn("dial", dial) {
            node.mesh.dialled(id, false);
        }
    }
    true
}

/// The hosts after ours in the cluster file that have no link.
fn missing(node: &Host) -> Vec<(Id, ClusterHost)> {
    let Some(file) = node.cluster_file().filter(|file| file.hosts.len() <= MESH_MAX) else {
        return Vec::new();
    };
    let behind = file.hosts.iter().skip_while(|host| host.name != node.name()).skip(1);
    let with_ids = behind.filter_map(|host| Some((host.id.parse().ok()?, host.clone())));
    with_ids.filter(|(id, _)| node.mesh.with(*id).is_none()).collect()
}

/// The process that serves the other end of a link, if it answers.
fn process_at(link: &Link) -> Option<HostProcess> {
    from_json(&message::ask(link, &HostRequest::Identify.text()).ok()?).ok()
}

impl Host {
    /// The hosts whose certificate two processes have shown recently.
    pub fn twice(&self) -> Vec<String> {
        self.mesh.twice()
    }

    /// Brings this node and the next of its peers to the newer of their cluster files.
    fn compare_epochs(&self) {
        let Some(link) = self.mesh.next_to_compare() else { return };
        if let Some(process) = process_at(&link) {
            self.agree_at(&link, process.epoch);
        }
    }

    /// Keeps a link. If another with the same certificate is open, checks whether it belongs to another process: the
    /// two would replace each other again and again.
    pub(crate) fn keep(self: &Arc<Host>, id: Id, link: &Arc<Link>) {
        // A client answers no requests.
        if link.hello().role != Role::Node {
            return;
        }
        let Some(before) = self.mesh.keep(id, link.clone()) else { return };
        let (node, links) = (self.clone(), [before, link.clone()]);
        spawn("twice", move || {
            let process = |link: &Arc<Link>| {
                let process = process_at(link)?;
                Some((process.pid, (now_ns() as f64 / 1e9 - process.seconds)))
            };
            // A process that is gone does not answer, so it is not a duplicate.
            if let [Some((pid, began)), Some((other, other_began))] = [process(&links[0]), process(&links[1])]
                && (pid != other || (began - other_began).abs() > 1.0)
            {
                node.mesh.is_twice(links[0].peer());
            }
        });
    }

    /// The kept link with a host.
    pub fn kept_with(self: &Arc<Host>, host: &str) -> Option<Arc<Link>> {
        self.mesh.with(self.host(host).ok()?.0)
    }

    /// A link with a host: the kept one, or a new one that is kept from now on.
    pub fn link_with(self: &Arc<Host>, host: &str) -> Result<Arc<Link>> {
        let (id, host) = self.host(host)?;
        match self.mesh.with(id) {
            Some(link) => Ok(link),
            None if host.name == self.name() => self.link_with_itself(id),
            None => self.dial(id, &host),
        }
    }

    fn host(&self, name: &str) -> Result<(Id, ClusterHost)> {
        let file = self.cluster_file();
        let file = file.ok_or(Error::NoIdentity)?;
        let host = file.hosts.iter().find(|host| host.name == name);
        let host = host.ok_or_else(|| cluster::unknown(&file, name))?;
        Ok((host.id.parse().map_err(Error::Malformed)?, host.clone()))
    }

    fn dial(self: &Arc<Host>, id: Id, host: &ClusterHost) -> Result<Arc<Link>> {
        let credentials = self.credentials().expect("whoever has a cluster file has credentials");
        let link = credentials.connect(&host.name, cluster::address_of(host)?, self.terms())?;
        self.agree(&link);
        message::ask(&link, &HostRequest::Keep.text())?;
        self.keep_and_serve(id, link)
    }

    /// A node also has a link with itself.
    fn link_with_itself(self: &Arc<Host>, id: Id) -> Result<Arc<Link>> {
        let (near, far) = crate::pair(self.terms())?;
        let node = self.clone();
        spawn("link", move || node.serve(&Arc::new(far)));
        let near = Arc::new(near);
        let read = near.clone();
        // No requests arrive there, but frames have to be read.
        if !spawn("link", move || while let Ok(Some(_)) = read.accept() {}) {
            return Err(Error::NoThread);
        }
        Ok(self.mesh.keep_first(id, near))
    }

    fn keep_and_serve(self: &Arc<Host>, id: Id, link: Link) -> Result<Arc<Link>> {
        let link = Arc::new(link);
        self.keep(id, &link);
        let (node, served) = (self.clone(), link.clone());
        if !spawn("link", move || node.serve_of(id, &served)) {
            self.mesh.forget(&link);
            return Err(Error::NoThread);
        }
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::Terms;

    /// What went wrong: epochs were compared only when a link was dialled, so an open link never brought a newer file.
    #[test]
    #[allow(clippy::disallowed_methods)] // Tests listen themselves.
    fn links_that_stand_bring_the_news_that_got_lost() {
        let owner = std::env::temp_dir().join(format!("thalweg-kept-{}", std::process::id()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hosts = [format!("n1={address}"), "n2=127.0.0.1:1".to_string()];
        cluster::init(&owner, "river", &hosts, None).unwrap();
        let [near, far] = ["n2", "n1"].map(|host| {
            let identity = cluster::host_directory(&owner, host);
            Arc::new(Host::load(Some(&identity), Terms::default()).unwrap())
        });
        let served = far.clone();
        let serving = std::thread::spawn(move || {
            let link =
                served.credentials().unwrap().accept(listener.accept().unwrap().0, served.terms()).unwrap();
            served.serve(&Arc::new(link));
        });
        let (id, _) = near.host("n1").unwrap();
        let link = near.credentials().unwrap().connect("n1", address, near.terms()).unwrap();
        near.mesh.keep(id, Arc::new(link));
        let epochs = || [&near, &far].map(|node| node.epoch());
        for (taker, client) in [(&far, "ada"), (&near, "bob")] {
            cluster::client(&owner, client, thalweg_api::May::All).unwrap();
            // As if the message to the others had been lost.
            let kept = std::mem::take(&mut *taker.mesh.links.lock().unwrap());
            let before = epochs()[0].max(epochs()[1]);
            taker.take_cluster(&cluster::text_in(&owner).unwrap()).unwrap();
            *taker.mesh.links.lock().unwrap() = kept;
            assert_ne!(epochs()[0], epochs()[1]);
            near.compare_epochs();
            assert_eq!(epochs(), [before + 1; 2], "{client}");
        }
        near.mesh.with(id).unwrap().close();
        serving.join().unwrap();
        std::fs::remove_dir_all(&owner).unwrap();
    }
    /// What went wrong: a node with a full disk continued to serve clients that the newer file had dropped.
    #[test]
    #[allow(clippy::disallowed_methods)] // The test replaces the file directly.
    fn a_cluster_file_that_cannot_be_kept_holds() {
        let owner = std::env::temp_dir().join(format!("thalweg-unkept-{}", std::process::id()));
        cluster::init(&owner, "river", &["n1=127.0.0.1:1".to_string()], None).unwrap();
        let ada =
            cluster::client(&owner, "ada", thalweg_api::May::All).unwrap().clients[1].id.parse().unwrap();
        let identity = cluster::host_directory(&owner, "n1");
        let host = Host::load(Some(&identity), Terms::default()).unwrap();
        cluster::drop_named(&owner, &["ada".to_string()]).unwrap();
        std::fs::remove_file(identity.join("cluster.json")).unwrap();
        std::fs::create_dir(identity.join("cluster.json")).unwrap();
        let has = || host.credentials().unwrap().identity().members.has(ada);
        assert!(has());
        assert_eq!(host.take_cluster(&cluster::text_in(&owner).unwrap()).unwrap(), (3, true));
        assert!(!has() && host.epoch() == 3);
        std::fs::remove_dir_all(&owner).unwrap();
    }
}

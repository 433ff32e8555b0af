//! The mesh: links with the other hosts that are opened when a node starts, and kept.
//!
//! Model: of two hosts the one that the cluster file names first opens the link, and asks the other to keep it; from then
//! on both open streams on it. One thread looks every [`ROUND`] which links are missing and dials them, each after a
//! pause that grows with its failures. Whoever needs a link at once dials it directly.
//! A node that takes a newer cluster file passes it on over all links that it keeps, and so do the others. What gets lost
//! of that is made up for by comparing epochs with one of them every [`ROUND`], in turn.
//! Invariant: a link is kept only with a host of the cluster file; at most [`DIALS_MAX`] are dialled at once; in clusters of
//! more than [`MESH_MAX`] hosts links are opened when they are needed, not before.
//! Non-goals: what goes over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{ClusterHost, HostProcess, HostRequest, ServiceRequest, from_json};
use thalweg_base::clock::now_ns;

use crate::cluster_error::{ClusterError as Error, ClusterResult as Result};
use crate::host::Host;
use crate::threads::{caught, spawn};
use crate::{Id, Link, Role, cluster, log, message};

/// How often missing links are looked for, and what lies in the identity's directory.
const ROUND: Duration = Duration::from_secs(1);
/// The longest that a node which starts waits for what the others know.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The most hosts that it asks at once then; of more, the next when one has answered.
const CATCH_UP_MAX: usize = 128;
/// How long to wait before the next look when the dials of some hosts had to wait.
const CROWDED: Duration = Duration::from_millis(50);
/// The most links that are dialled at once.
const DIALS_MAX: usize = 8;
/// With more hosts than this, each node would hold too many links that nobody uses.
const MESH_MAX: usize = 128;
/// The longest pause between two attempts, in rounds.
const PAUSE_ROUNDS_MAX: u64 = 32;

/// How long it is reported that a host is there twice, after that was seen last.
const TWICE: Duration = Duration::from_secs(60);

/// The links that are kept, by node, and attempts to make more.
#[derive(Default)]
pub(crate) struct Mesh {
    links: Mutex<BTreeMap<Id, Arc<Link>>>,
    dialling: Mutex<BTreeSet<Id>>,
    failed: Mutex<BTreeMap<Id, Failures>>,
    /// The host with which epochs were compared last.
    compared: Mutex<Option<Id>>,
    /// Hosts whose certificate two processes showed, and when that was seen last.
    twice: Mutex<BTreeMap<String, u64>>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    again_ns: u64,
}

impl Mesh {
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

    /// Notes that a host is there twice, and logs it if that is new.
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

    /// Sends a cluster file to all hosts with which a link is kept, and waits for none of them.
    pub(crate) fn tell(&self, text: &str) {
        let request = HostRequest::Cluster(Some(text.to_string())).text();
        for (_, link) in self.others() {
            let request = request.clone();
            // A host that is not told finds out when epochs are compared.
            spawn("tell", move || drop(message::ask(&link, &request)));
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

    /// Whether as many hosts are being dialled as may be.
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

/// That two processes show a host's certificate, and what to do about it.
pub fn there_twice(host: &str) -> String {
    format!(
        "{host} is there twice: two processes show its certificate; stop one of them, or thalweg cluster renew {host}"
    )
}

/// Asks all other hosts at once for a newer cluster file than its own, so that a silent host delays no other. Waits until
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
    // It ends when the last has let go of it.
    let _ = answers.recv_timeout(CATCH_UP);
}

/// Keeps links with the other hosts until this one stops.
pub fn keep(node: &Arc<Host>) {
    loop {
        let all = caught(|| {
            node.look_at_identity();
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

/// Dials hosts with which there is no link; false if some had to wait for others.
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

/// The hosts behind ours in the cluster file with which there is no link.
fn missing(node: &Host) -> Vec<(Id, ClusterHost)> {
    let Some(file) = node.cluster_file().filter(|file| file.hosts.len() <= MESH_MAX) else {
        return Vec::new();
    };
    let behind = file.hosts.iter().skip_while(|host| host.name != node.name()).skip(1);
    let with_ids = behind.filter_map(|host| Some((host.id.parse().ok()?, host.clone())));
    with_ids.filter(|(id, _)| node.mesh.with(*id).is_none()).collect()
}

/// Which process serves the other end of a link, if it answers.
fn process_at(link: &Link) -> Option<HostProcess> {
    from_json(&message::ask(link, &HostRequest::Identify.text()).ok()?).ok()
}

impl Host {
    /// The hosts whose certificate two processes showed lately.
    pub fn twice(&self) -> Vec<String> {
        self.mesh.twice()
    }

    /// Brings this node and the next of those that it has links with to the newer of their cluster files.
    fn compare_epochs(&self) {
        let Some(link) = self.mesh.next_to_compare() else { return };
        if let Some(process) = process_at(&link) {
            self.agree_at(&link, process.epoch);
        }
    }

    /// Keeps a link. If another with the same certificate is open, looks whether that is with another process: then the two would
    /// replace each other again and again.
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
            // A process that has gone silently does not answer, and was the same one.
            if let [Some((pid, began)), Some((other, other_began))] = [process(&links[0]), process(&links[1])]
                && (pid != other || (began - other_began).abs() > 1.0)
            {
                node.mesh.is_twice(links[0].peer());
            }
        });
    }

    /// The link that is kept with a host.
    pub fn kept_with(self: &Arc<Host>, host: &str) -> Option<Arc<Link>> {
        self.mesh.with(self.host(host).ok()?.0)
    }

    /// A link with a host: the one that is kept, or a new one that is kept from now on.
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

    /// A node is one of its own hosts, and talks to itself as it talks to the others.
    fn link_with_itself(self: &Arc<Host>, id: Id) -> Result<Arc<Link>> {
        let (near, far) = crate::pair(self.terms())?;
        let node = self.clone();
        spawn("link", move || node.serve(&Arc::new(far)));
        let near = Arc::new(near);
        let read = near.clone();
        // No requests come there, but frames have to be read.
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
            // As if nobody had been told.
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
    /// A node whose disk was full went on serving those whom the newer file had dropped.
    #[test]
    #[allow(clippy::disallowed_methods)] // The place of the file is taken by other means than ours.
    fn a_cluster_file_that_cannot_be_kept_holds() {
        let owner = std::env::temp_dir().join(format!("thalweg-unkept-{}", std::process::id()));
        cluster::init(&owner, "river", &["n1=127.0.0.1:1".to_string()]).unwrap();
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

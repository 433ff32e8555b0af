//! The daemon: one port, a bounded number of peers, and what they may ask for.
//!
//! Model: one thread accepts and shakes hands (the asynchronous edge); what asks for a link goes, socket and keys, to a
//! thread of its own that blocks; what asks for HTTP stays at the edge.
//! Invariant: nothing is listed, read, run or written for a peer without a certificate of the cluster. There are at most
//! [`HANDSHAKES_MAX`] handshakes and [`CONNECTIONS_MAX`] connections at once, [`CONNECTIONS_OF_LOOKER_MAX`] of one client that
//! may only look and [`CONNECTIONS_OF_LOOKERS_MAX`] of all such clients; when there are more handshakes the oldest of the
//! address that has most gives way, so a flood from one stranger does not keep the others out. A node without identity
//! listens on loopback only, and answers with nothing but its status.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use thalweg_api::{
    ClusterFile, ClusterHost, ExecRequest, May, NodeReady, NodeRequest, NodeStatus, RelayRequest, from_json,
    to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_io::socket::resend_soon;
use thalweg_io::{host, process, small};
use thalweg_wire::{
    ALPN_LINK, Agreed, CERTIFICATE_FILE, CLUSTER_FILE, HANDSHAKE_SECONDS, Hands, Id, Identity, Incoming,
    Link, Named, Outgoing, Role, Terms,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::audit::{Audit, Entry, Who};
use crate::check::{self, Checks};
use crate::cluster::{self, PORT};
use crate::cork::Cork;
use crate::error::{Error, Result};
use crate::job::Jobs;
use crate::kept::{self, Bell, Kept};
use crate::pump::{self, Pumps};
use crate::share::{self, Sorts};
use crate::talk::answer;
use crate::threads::{caught, spawn};
use crate::vote::{self, Votes};
use crate::{ask, command, http, probe, relay, successor};

/// The most handshakes at once.
pub const HANDSHAKES_MAX: usize = 256;
/// The most connections at once that have proved who they are.
pub const CONNECTIONS_MAX: usize = 1024;
/// The most of them of one client that may only look, who could else keep out those who may drop it.
const CONNECTIONS_OF_LOOKER_MAX: usize = 32;
/// The most of them of all such clients together.
const CONNECTIONS_OF_LOOKERS_MAX: usize = CONNECTIONS_MAX / 2;
/// The most bytes of what such a client asks: a cluster file.
const REQUEST_OF_LOOKER_BYTES_MAX: usize = 256 << 10;
/// Files that a node may have open, if the system allows it.
const FILES: u64 = 16_384;
/// Threads of the edge for what is asked beside watching jobs.
const FOR_OTHERS: usize = 64;
/// Blocks for what clients send.
const BLOCKS: usize = 64;
pub(crate) const BLOCK_BYTES: usize = thalweg_transfer::FRAME_BYTES;
/// How long jobs and links may take to end when the node goes down.
const GOING_DOWN: Duration = Duration::from_secs(3);

/// How a node is to run.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Where to listen; without it where the cluster file says.
    pub listen: Option<SocketAddr>,
    /// The directory of its identity, if it has one.
    pub identity: Option<PathBuf>,
}

/// Asks a node to end. All clones are one.
#[derive(Clone, Default)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// Asks.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

/// A node.
pub(crate) struct Node {
    /// Changed when its certificate is.
    hands: RwLock<Option<Arc<Hands>>>,
    name: String,
    directory: Option<PathBuf>,
    /// Certificate and cluster file as they were last looked at.
    files: Mutex<Vec<Vec<u8>>>,
    pub(crate) cluster: Mutex<Option<ClusterFile>>,
    pub(crate) jobs: Jobs,
    pub(crate) pumps: Pumps,
    pub(crate) sorts: Sorts,
    pub(crate) checks: Checks,
    pub(crate) votes: Votes,
    pub(crate) audit: Arc<Audit>,
    watch: Stopwatch,
    links: Mutex<Vec<(Id, Arc<Link>)>>,
    connections: AtomicUsize,
    /// How many of them each client has that may only look.
    of_lookers: Mutex<HashMap<Id, usize>>,
    refused: AtomicU64,
    pub(crate) pool: Pool,
    pub(crate) terms: Terms,
    pub(crate) kept: Kept,
    pub(crate) doctoring: Mutex<()>,
    pub(crate) probing: Mutex<()>,
    /// Rings when the node goes down.
    pub(crate) bell: Bell,
    /// Told when the cluster file has changed.
    pub(crate) changed: Notify,
}

impl Node {
    /// One in this process, of this name, which nobody has to prove anything to.
    pub(crate) fn embedded(name: &str) -> Result<Node> {
        Ok(Node { name: name.to_string(), ..Node::new(&NodeOptions::default())? })
    }

    pub(crate) fn new(options: &NodeOptions) -> Result<Node> {
        let loaded = options.identity.as_deref().map(cluster::hands_in).transpose()?;
        if let Some((hands, _)) = &loaded
            && hands.identity().role != Role::Node
        {
            return Err(Error::Asked(
                "that is a client's identity, and a node is a host's; give --identity DIR of one, as cluster init \
                 makes them in hosts/"
                    .into(),
            ));
        }
        let (hands, cluster) = loaded.unzip();
        let name = hands.as_ref().map_or(String::new(), |hands| hands.identity().name.clone());
        let pool = Pool::new(BLOCK_BYTES, BLOCKS).map_err(|e| Error::Asked(e.to_string()))?;
        Ok(Node {
            audit: Audit::open(options.identity.as_deref()),
            votes: Votes::load(&name, options.identity.as_deref()),
            name,
            hands: RwLock::new(hands.map(Arc::new)),
            files: Mutex::new(options.identity.as_deref().map_or(Vec::new(), files_in)),
            directory: options.identity.clone(),
            cluster: Mutex::new(cluster),
            jobs: Jobs::default(),
            pumps: Pumps::default(),
            sorts: Sorts::default(),
            checks: Checks::default(),
            watch: Stopwatch::start(),
            links: Mutex::new(Vec::new()),
            connections: AtomicUsize::new(0),
            of_lookers: Mutex::default(),
            refused: AtomicU64::new(0),
            pool,
            terms: Terms { block_bytes: BLOCK_BYTES as u32, ..Terms::default() },
            kept: Kept::default(),
            doctoring: Mutex::new(()),
            probing: Mutex::new(()),
            bell: Bell::default(),
            changed: Notify::default(),
        })
    }

    /// Its hands as they are now.
    pub(crate) fn hands(&self) -> Option<Arc<Hands>> {
        self.hands.read().expect("no holder panics").clone()
    }

    /// Takes a certificate that was brought meanwhile, and a newer cluster file. Links that are open stay so, for what runs on
    /// them; those that are kept are dialled anew, so that the others see the new certificate.
    pub(crate) fn look_at_identity(&self) {
        let Some(directory) = self.directory.as_deref() else { return };
        let now = files_in(directory);
        let mut last = self.files.lock().expect("no holder panics");
        if now == *last {
            return;
        }
        // Its files come one by one: until they fit each other, the old ones hold.
        let Ok((mut identity, file)) = Identity::load(directory) else { return };
        let Some(old) = self.hands() else { return };
        let ours = old.identity();
        let is_ours =
            |role| (&identity.name, identity.cluster, role) == (&ours.name, ours.cluster, Role::Node);
        if !is_ours(identity.role) || !file.hosts.iter().any(|host| host.id == identity.node.to_string()) {
            return;
        }
        identity.members = ours.members.clone();
        let (Ok(hands), Ok(text)) = (Hands::of(identity), cluster::text_in(directory)) else { return };
        // An older list, or another of the same epoch, is no news, nor is what came with it.
        if self.take_cluster(&text).is_ok() {
            if hands.identity().node != ours.node {
                self.kept.forget_all();
            }
            *self.hands.write().expect("no holder panics") = Some(Arc::new(hands));
            *last = now;
        }
    }

    /// Where paths begin that do not begin at the root: the first of the host's directories for data, or where this
    /// process was started.
    pub(crate) fn data(&self) -> PathBuf {
        let first = self.declared().and_then(|host| host.data.into_iter().next()).map(PathBuf::from);
        first.or_else(|| std::env::current_dir().ok()).unwrap_or_default()
    }

    /// The most memory that a share of a job has here, if its host says so.
    pub(crate) fn memory_most(&self) -> Option<u64> {
        self.declared().and_then(|host| host.memory_bytes)
    }

    /// What the cluster file says of its host.
    fn declared(&self) -> Option<ClusterHost> {
        let file = self.cluster.lock().expect("no holder panics");
        file.as_ref().and_then(|file| file.hosts.iter().find(|host| host.name == self.name).cloned())
    }

    /// The names of all hosts of its cluster, in the order of its file.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let file = self.cluster.lock().expect("no holder panics");
        file.iter().flat_map(|file| file.hosts.iter().map(|host| host.name.clone())).collect()
    }

    /// The directory of its identity, if it has one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The host's name; empty without an identity.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What it says of itself.
    pub(crate) fn status(&self) -> NodeStatus {
        let (jobs_running, jobs_ended) = self.jobs.counts();
        let hands = self.hands();
        let identity = hands.as_ref().map(|hands| hands.identity());
        NodeStatus {
            name: self.name().to_string(),
            id: identity.map_or(String::new(), |identity| identity.node.to_string()),
            cluster: identity.map_or(String::new(), |identity| identity.cluster.to_string()),
            epoch: self.cluster.lock().expect("no holder panics").as_ref().map_or(0, |file| file.epoch),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            seconds: self.watch.seconds(),
            links: self.links.lock().expect("no holder panics").len() as u64,
            jobs_running,
            jobs_ended,
            refused: self.refused.load(Ordering::Relaxed),
            resident_bytes: process::resident_bytes(),
            certificate_ends: identity.map_or(0, |identity| identity.ends[0]),
            twice: self.kept.twice(),
        }
    }

    /// Takes a newer cluster file, keeps it, closes all that those have here whom it does not list, and passes it on. Returns the
    /// epoch that holds, and whether it is a new one.
    pub(crate) fn take_cluster(&self, text: &str) -> Result<(u64, bool)> {
        let (Some(directory), Some(hands)) = (&self.directory, self.hands()) else {
            return Err(Error::Asked("a node without identity is of no cluster".into()));
        };
        let mut ours = self.cluster.lock().expect("no holder panics");
        let now = ours.as_ref().expect("whoever has hands has a cluster file");
        let Some(file) = cluster::newer(directory, now, text)? else { return Ok((now.epoch, false)) };
        small::write(&directory.join(CLUSTER_FILE), text.as_bytes())?;
        let epoch = file.epoch;
        *ours = Some(file.clone());
        drop(ours);
        hands.identity().members.set(&file);
        self.changed.notify_waiters();
        self.kept.tell(text);
        Ok((epoch, true))
    }

    /// The text of its cluster file.
    fn cluster_text(&self) -> Result<String> {
        let none = || Error::Asked("a node without identity is of no cluster".into());
        let _ours = self.cluster.lock().expect("no holder panics");
        cluster::text_in(self.directory.as_deref().ok_or_else(none)?)
    }

    /// Brings both ends of a link to the newer of their cluster files.
    pub(crate) fn agree(&self, link: &Link) {
        self.agree_at(link, link.hello().epoch);
    }

    /// The same, if the other's is of this epoch.
    pub(crate) fn agree_at(&self, link: &Link, theirs: u64) {
        let Some(hands) = self.hands() else { return };
        let ours = hands.identity().members.epoch();
        if theirs > ours {
            // What is wrong with it is no reason to refuse the peer, whom our own list has.
            let _ = answer(link, &NodeRequest::Cluster(None)).map(|text| self.take_cluster(&text));
        } else if theirs < ours
            && let Ok(text) = self.cluster_text()
        {
            let _ = answer(link, &NodeRequest::Cluster(Some(text)));
        }
    }

    /// What this peer may ask.
    pub(crate) fn may(&self, peer: Id) -> May {
        self.hands().map_or(May::All, |hands| hands.identity().members.may(peer))
    }

    /// Serves a link until its peer has gone.
    pub(crate) fn serve(self: &Arc<Node>, link: Link) {
        let peer = link.hello().node;
        self.serve_kept(peer, &Arc::new(link));
    }

    /// Serves a link that others may hold too.
    pub(crate) fn serve_kept(self: &Arc<Node>, peer: Id, link: &Arc<Link>) {
        self.links.lock().expect("no holder panics").push((peer, link.clone()));
        // A panic ends this link, and is told by its being closed.
        let _ = caught(|| self.serve_streams(peer, link));
        // From here on nobody reads it.
        link.close();
        self.links.lock().expect("no holder panics").retain(|(_, other)| !Arc::ptr_eq(other, link));
        self.kept.forget(link);
    }

    /// How a share of a job ended here.
    fn job_ended(&self, entry: &mut Entry, id: &str) {
        match self.jobs.find(id).map(|job| job.report()) {
            Some(job) => {
                let why = job.why.map_or(String::new(), |why| format!(": {why}"));
                entry.ends(format!("{:?}", job.state).to_lowercase() + &why);
            }
            None => entry.ends("it came to nothing"),
        }
    }

    fn serve_streams(self: &Arc<Node>, peer: Id, link: &Arc<Link>) {
        while let Ok(Some((request, out, inc))) = link.accept() {
            let request = String::from_utf8_lossy(&request).into_owned();
            if !link.hello().is_local() && self.may(peer) == May::Status && !is_harmless(&request) {
                let why = if link.hello().role == Role::Node { WAS_RENEWED } else { MAY_ONLY_LOOK };
                self.audit.begin(self.audit.who(link), "request", &[]).refused(why);
                let _ = out.abort(why);
                continue;
            }
            let Some((out, inc)) = pump::serve(self, link, &request, (out, inc)) else { continue };
            let answered = match from_json::<NodeRequest>(&request) {
                Ok(request) => self.serve_stream(peer, link, request, (out, inc)),
                Err(why) => out.abort(&format!("a request that is not known here: {why}")).is_ok(),
            };
            if !answered {
                break;
            }
        }
    }

    /// Serves one stream, at once or on a thread of its own; false if its link is of no more use.
    fn serve_stream(
        self: &Arc<Node>,
        peer: Id,
        link: &Arc<Link>,
        request: NodeRequest,
        (mut out, inc): (Outgoing, Incoming),
    ) -> bool {
        let asked = link.clone();
        match request {
            NodeRequest::Exec(exec) => self.serve_exec(link, exec, (out, inc)),
            NodeRequest::Relay(request) => self.serve_relay(link, request, (out, inc)),
            NodeRequest::Ping => out.end(to_json(&command::nothing()).as_bytes()).is_ok(),
            NodeRequest::Status => out.end(to_json(&self.status()).as_bytes()).is_ok(),
            NodeRequest::Cluster(file) => tell(out, self.serve_list(link, file.as_deref())),
            NodeRequest::Keep => {
                self.keep(peer, &asked);
                out.end(&[]).is_ok()
            }
            NodeRequest::Sort(request) => {
                let entry = self.audit.begin(self.audit.who(link), "job", &ask::typed(&request.ask));
                self.audited("sort", entry.of_job(&request.job), move |node, entry| {
                    let id = request.job.clone();
                    share::serve(node, &asked, request, (out, inc));
                    node.job_ended(entry, &id);
                })
            }
            NodeRequest::Check(request) => {
                let entry = self.audit.begin(self.audit.who(link), "check", &request.inputs);
                self.audited("check", entry, move |node, entry| {
                    check::serve(node, &asked, &request, (out, inc));
                    entry.ends("done");
                })
            }
            NodeRequest::Coordinate(request) => {
                let words = ask::typed(&request.ask);
                let entry = self.audit.begin(self.audit.who(link), "coordinate", &words);
                let mut entry = entry.of_job(&request.job);
                let begun = successor::begin(self, request);
                entry.ends(begun.as_ref().map_or_else(|why| format!("refused: {why}"), |()| "begun".into()));
                out.end(to_json(&command::begun(begun)).as_bytes()).is_ok()
            }
            NodeRequest::River { job, attempt, from } => {
                self.sorts.river((&job, attempt), from, (out, inc), link);
                true
            }
            NodeRequest::Vote(request) => {
                let node = self.clone();
                // A vote waits for the disk.
                spawn("vote", move || {
                    let said = vote::serve(&node, &asked, *request);
                    let _ = out.end(to_json(&said).as_bytes());
                    drop(inc);
                })
            }
            NodeRequest::Probe(request) => {
                let entry = self.audit.begin(self.audit.who(link), "probe", &[]);
                self.audited("probe", entry, move |node, entry| {
                    probe::serve(node, request, (out, inc));
                    entry.ends("done");
                })
            }
            NodeRequest::Pump(_) | NodeRequest::PumpLane { .. } => {
                out.abort("a transfer has links of its own").is_ok()
            }
        }
    }

    /// Does what a link's peer asks for on a thread of this name, with an entry in the audit log.
    fn audited(
        self: &Arc<Node>,
        thread: &'static str,
        entry: Entry,
        work: impl FnOnce(&Arc<Node>, &mut Entry) + Send + 'static,
    ) -> bool {
        let (node, mut entry) = (self.clone(), entry.runs());
        spawn(thread, move || work(&node, &mut entry))
    }

    /// Runs a command for a peer.
    fn serve_exec(
        self: &Arc<Node>,
        link: &Link,
        exec: ExecRequest,
        (out, inc): (Outgoing, Incoming),
    ) -> bool {
        let by = link.peer().to_string();
        let what = if exec.detach { "exec detached" } else { "exec" };
        let entry = self.audit.begin(self.audit.who(link), what, &exec.command).of_job(&exec.job);
        self.audited("stream", entry, move |node, entry| {
            let id = exec.job.clone();
            let end = command::run(&node.jobs, (node.name(), &by), exec, out, inc, &node.pool);
            entry.ends_as(&end);
            if let Some(job) = node.jobs.find(&id) {
                entry.bytes(job.report().output_bytes);
            }
        })
    }

    /// Asks other hosts for a peer.
    fn serve_relay(
        self: &Arc<Node>,
        link: &Link,
        request: RelayRequest,
        (out, inc): (Outgoing, Incoming),
    ) -> bool {
        let (job, words) = match &*request.ask {
            NodeRequest::Exec(exec) => (&*exec.job, &exec.command[..]),
            _ => ("", &[][..]),
        };
        let entry = self.audit.begin(self.audit.who(link), "relay", words).of_job(job).on(&request.on);
        self.audited("relay", entry, move |node, entry| {
            relay::run(node, request, out, inc);
            entry.ends("done");
        })
    }

    /// Takes the cluster file that a peer brings, if it is newer, and answers with the one that holds.
    fn serve_list(self: &Arc<Node>, link: &Link, file: Option<&str>) -> Result<String> {
        let Some(text) = file else { return self.cluster_text() };
        let answer = self.take_cluster(text);
        let begin = || self.audit.begin(self.audit.who(link), "cluster file", &[]);
        match &answer {
            Ok((epoch, true)) => begin().ends(format!("epoch {epoch} holds")),
            // All who know of it bring it.
            Ok((_, false)) => {}
            Err(why) => begin().refused(why),
        }
        answer.map(|(epoch, _)| epoch.to_string())
    }
}

/// A line in the node's own log.
pub(crate) fn log(line: &str) {
    use std::io::Write;
    // Where there is no log there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "thalweg: {line}");
}

/// Ends a stream with an answer, or why there is none; whether that could be said.
fn tell(mut out: Outgoing, answer: Result<String>) -> bool {
    match answer {
        Ok(said) => out.end(said.as_bytes()).is_ok(),
        Err(why) => out.abort(&why.to_string()).is_ok(),
    }
}

/// What a client is told that may only look.
pub(crate) const MAY_ONLY_LOOK: &str = "this certificate may only look at status, jobs and metrics; thalweg cluster client NAME --may all makes one for more";

/// What a host is told that asks over a link of before its renewal.
const WAS_RENEWED: &str =
    "this host has shown a newer certificate since this link was opened; open a new one";

/// Whether a request only looks. A cluster file is the authority's word, whoever brings it.
fn is_harmless(request: &str) -> bool {
    use NodeRequest::{Cluster, Ping, Status};
    matches!(from_json(request), Ok(Status | Ping | Cluster(_)))
}

/// What may change in an identity's directory while its node runs.
fn files_in(directory: &Path) -> Vec<Vec<u8>> {
    let read = |name| small::read(&directory.join(name)).unwrap_or_default();
    [CERTIFICATE_FILE, CLUSTER_FILE].map(read).to_vec()
}

/// Runs a node until it is asked to stop. `ready` is called once it listens.
pub fn run(options: &NodeOptions, stop: &Stop, ready: impl FnOnce(&NodeReady)) -> Result<()> {
    host::allow_open_files(FILES);
    let node = Arc::new(Node::new(options)?);
    let address = listen_at(options, &node)?;
    // What changed while it was down it learns before it serves anybody.
    kept::catch_up(&node);
    // Each connection may watch a job, and each watcher has a thread.
    let threads = CONNECTIONS_MAX + FOR_OTHERS;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(threads).build();
    let runtime = runtime.map_err(|e| Error::Asked(format!("no runtime for the edge: {e}")))?;
    let outcome = runtime.block_on(async {
        #[allow(clippy::disallowed_methods)] // Accepting is the edge's, and the edge is here.
        let listener = TcpListener::bind(address).await.map_err(|e| {
            Error::Asked(format!("cannot listen on {address}: {e}; give another address with --listen"))
        })?;
        let at = listener.local_addr().map_or(address, |at| at);
        ready(&NodeReady {
            name: node.name().to_string(),
            id: node.hands().map_or(String::new(), |hands| hands.identity().node.to_string()),
            address: at.to_string(),
            cluster: node.status().cluster,
            pid: std::process::id(),
        });
        if node.hands().is_some() {
            let (keeper, settler) = (node.clone(), node.clone());
            spawn("keeper", move || kept::run(&keeper));
            spawn("settler", move || while caught(|| vote::settle(&settler)).is_err() {});
        }
        tokio::select! {
            () = accept(&node, &listener) => {}
            () = stop.0.notified() => {}
        }
        Ok(())
    });
    runtime.shutdown_background();
    node.bell.ring();
    node.jobs.close(GOING_DOWN);
    for (_, link) in node.links.lock().expect("no holder panics").iter() {
        link.close();
    }
    outcome
}

fn listen_at(options: &NodeOptions, node: &Node) -> Result<SocketAddr> {
    let file = node.cluster.lock().expect("no holder panics");
    let host = file.as_ref().and_then(|file| file.hosts.iter().find(|host| host.name == node.name()));
    let address = match (options.listen, host) {
        (Some(address), _) => address,
        (None, Some(host)) => cluster::address_of(host)?,
        (None, None) => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PORT),
    };
    if node.hands().is_none() && !address.ip().is_loopback() {
        return Err(Error::Asked(format!(
            "a node without certificate listens on loopback only, and {address} is not; thalweg cluster init makes certificates"
        )));
    }
    Ok(address)
}

async fn accept(node: &Arc<Node>, listener: &TcpListener) {
    /// How long to wait before the next attempt when the system has no descriptor left.
    const BREATH: Duration = Duration::from_millis(20);
    let mut handshakes: Vec<(IpAddr, AbortHandle)> = Vec::new();
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        resend_soon(&socket);
        handshakes.retain(|(_, handshake)| !handshake.is_finished());
        if handshakes.len() >= HANDSHAKES_MAX {
            node.refused.fetch_add(1, Ordering::Relaxed);
            handshakes.remove(gives_way(&handshakes)).1.abort();
        }
        let node = node.clone();
        let (shaken, proved) = tokio::sync::oneshot::channel();
        let handshake = tokio::spawn(async move {
            let patience = Duration::from_secs(HANDSHAKE_SECONDS);
            let greeted = tokio::time::timeout(patience, greet(&node, socket)).await;
            let _ = shaken.send((node, greeted));
        });
        handshakes.push((address.ip(), handshake.abort_handle()));
        tokio::spawn(async move {
            if let Ok((node, greeted)) = proved.await {
                match greeted {
                    Ok(Some(peer)) => converse(&node, peer).await,
                    _ => {
                        node.refused.fetch_add(1, Ordering::Relaxed);
                        node.audit.refused(address.to_string(), "it did not prove that it is of the cluster");
                    }
                }
            }
        });
    }
}

/// The place of the handshake that gives way to another: the oldest of the address that has most, so that a flood from one does not
/// cut off those whose way is long.
fn gives_way<T>(handshakes: &[(IpAddr, T)]) -> usize {
    let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
    handshakes.iter().for_each(|(address, _)| *of_address.entry(*address).or_default() += 1);
    // Of several that have as many, the address of the oldest.
    let most = of_address.values().max().copied().unwrap_or(0);
    handshakes.iter().position(|(address, _)| of_address[address] == most).unwrap_or(0)
}

type Tls = tokio_rustls::server::TlsStream<Cork>;

/// A peer that has proved who it is, or one on loopback where nothing has to be proved.
enum Peer {
    Proved(Box<Tls>, Agreed),
    Local(TcpStream),
}

async fn greet(node: &Node, socket: TcpStream) -> Option<Peer> {
    let Some(hands) = node.hands() else { return Some(Peer::Local(socket)) };
    socket.set_nodelay(true).ok()?;
    let (config, agreed) = hands.server();
    let tls = TlsAcceptor::from(config).accept(Cork::new(socket)).await.ok()?;
    Some(Peer::Proved(Box::new(tls), agreed))
}

async fn converse(node: &Arc<Node>, peer: Peer) {
    let named = match &peer {
        Peer::Local(_) => None,
        Peer::Proved(tls, _) => {
            tls.get_ref().1.peer_certificates().and_then(|chain| Named::of(chain.first()?))
        }
    };
    let Some(place) = Place::take(node, named.as_ref().map(|named| named.node)) else { return };
    match peer {
        Peer::Local(socket) => http::serve(node, socket, Who::default()).await,
        Peer::Proved(tls, agreed) if tls.get_ref().1.alpn_protocol() == Some(ALPN_LINK) => {
            let _ = hand_over(node, (*tls, agreed), place);
        }
        Peer::Proved(mut tls, _) => {
            tls.get_mut().0.uncork();
            if let Some(named) = named {
                let address = tls.get_ref().0.socket.peer_addr();
                let peer =
                    address.map_or_else(|_| "an address that has gone".into(), |address| address.to_string());
                let peer = format!("{} at {peer}", named.host);
                http::serve(node, *tls, Who { peer, proved: Some((named.node, named.role)) }).await;
            }
        }
    }
}

/// Gives a link's socket and keys to a thread that blocks.
fn hand_over(node: &Arc<Node>, (tls, agreed): (Tls, Agreed), place: Place) -> std::io::Result<()> {
    let (cork, connection) = tls.into_inner();
    let socket = cork.socket.into_std()?;
    socket.set_nonblocking(false)?;
    let (node, terms, from) = (node.clone(), node.terms, socket.peer_addr()?);
    spawn("link", move || {
        let hands = node.hands().expect("it shook them");
        match hands.adopt(socket, (connection.into(), agreed), terms) {
            Ok(link) => {
                let link = Arc::new(link);
                if place.looker.is_some() {
                    link.bound_payloads(REQUEST_OF_LOOKER_BYTES_MAX);
                }
                node.audit.came(&link, from);
                node.serve_kept(link.hello().node, &link);
            }
            Err(why) => {
                node.refused.fetch_add(1, Ordering::Relaxed);
                node.audit.refused(why.peer.clone(), &why.to_string());
            }
        }
        drop(place);
    });
    Ok(())
}

/// One of the connections that a node may have.
struct Place {
    node: Arc<Node>,
    /// The client that has it, if that may only look.
    looker: Option<Id>,
}

impl Place {
    /// None if there are as many as may be: of all, of a peer that may only look, or of all such peers.
    fn take(node: &Arc<Node>, peer: Option<Id>) -> Option<Place> {
        let looker = peer.filter(|peer| node.may(*peer) == May::Status);
        let had = node.connections.fetch_add(1, Ordering::Relaxed);
        let place = Place { node: node.clone(), looker };
        let mut of_lookers = node.of_lookers.lock().expect("no holder panics");
        let (has, have) = looker.map_or((0, 0), |looker| {
            *of_lookers.entry(looker).or_default() += 1;
            (of_lookers[&looker], of_lookers.values().sum())
        });
        drop(of_lookers);
        let has_room = has <= CONNECTIONS_OF_LOOKER_MAX && have <= CONNECTIONS_OF_LOOKERS_MAX;
        if had < CONNECTIONS_MAX && has_room {
            return Some(place);
        }
        node.refused.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.node.connections.fetch_sub(1, Ordering::Relaxed);
        let Some(looker) = self.looker else { return };
        let mut of_lookers = self.node.of_lookers.lock().expect("no holder panics");
        let left = of_lookers.get_mut(&looker).map_or(0, |of_it| {
            *of_it -= 1;
            *of_it
        });
        if left == 0 {
            of_lookers.remove(&looker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_handshakes_the_oldest_of_the_address_with_most_gives_way() {
        let of = |hosts: &[u8]| -> Vec<(IpAddr, ())> {
            hosts.iter().map(|host| (IpAddr::from([10, 0, 0, *host]), ())).collect()
        };
        assert_eq!(gives_way(&of(&[1, 2, 2, 3])), 1);
        assert_eq!(gives_way(&of(&[1, 2, 3])), 0);
        assert_eq!(gives_way(&of(&[3, 1, 1, 3])), 0);
    }
}

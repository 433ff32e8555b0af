//! The daemon: one port, and a bounded number of connections.
//!
//! Model: one asynchronous thread accepts connections and does handshakes. A link's socket and keys then move to a
//! blocking thread of its own; HTTP stays on the asynchronous thread.
//! Invariant: nothing is listed, read, run or written for a peer without a certificate of the cluster. There are at
//! most [`HANDSHAKES_MAX`] handshakes and [`CONNECTIONS_MAX`] connections at a time. One client with status rights has
//! at most [`CONNECTIONS_OF_LOOKER_MAX`] of them, and all such clients together [`CONNECTIONS_OF_LOOKERS_MAX`]. If
//! there are more handshakes, the oldest of the address with the most is aborted, so a flood from one address does not
//! lock others out. A node without an identity listens on loopback only and serves only its status.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{May, NodeReady, NodeStatus};
use thalweg_base::units::Size;
use thalweg_io::process;
use thalweg_io::socket::resend_soon;
use thalweg_job::Jobs;
use thalweg_wire::cluster::{self, PORT};
use thalweg_wire::threads::spawn;
use thalweg_wire::{
    ALPN_LINK, Agreed, HANDSHAKE_SECONDS, Host, Id, Named, Service, Terms, VERSIONS, Who, mesh,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::join::{self, Join, Joined};
use crate::tls_records::TlsRecords;
use crate::{Error, Result, http};

/// The most handshakes at a time.
pub const HANDSHAKES_MAX: usize = 256;
/// The most authenticated connections at a time.
pub const CONNECTIONS_MAX: usize = 1024;
/// The most connections of one client with status rights. Otherwise it could lock out the owner who wants to drop it.
const CONNECTIONS_OF_LOOKER_MAX: usize = 32;
/// The most connections of all such clients together.
const CONNECTIONS_OF_LOOKERS_MAX: usize = CONNECTIONS_MAX / 2;
/// The most bytes in a request of such a client, which may be a cluster file.
const REQUEST_OF_LOOKER_BYTES_MAX: usize = 256 << 10;
/// The limit of open files that a node sets, if the system allows it.
const FILES: u64 = 16_384;
/// Threads for HTTP requests that do not watch jobs.
const FOR_OTHERS: usize = 64;
/// The time limit for jobs and links to end when the node stops.
const GOING_DOWN: Duration = Duration::from_secs(3);

/// Where a node listens that joins others, at a free port: it has the name of its host, not an address of it.
const EVERYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// How a node is to run.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Where to listen; by default at the address in the cluster file.
    pub listen: Option<SocketAddr>,
    /// The directory of its identity, if it has one.
    pub identity: Option<PathBuf>,
    /// Makes a cluster together with other processes, and gets its identity from that.
    pub join: Option<Join>,
    /// The memory for records of tables, if it is not to be the default.
    pub memory: Option<Size>,
    /// The build of the program, which its status shows.
    pub build: String,
}

/// Asks a node to stop. Clones share the node.
#[derive(Clone, Default)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// Asks the node to stop.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

/// Makes the services of a host; they list their jobs in the `Jobs`.
pub type Services<'s> = &'s (dyn Fn(&Arc<Host>, &Arc<Jobs>) -> Result<Vec<Arc<dyn Service>>> + Sync);

/// A node: a host, its jobs, and the connections to its port.
pub(crate) struct Node {
    pub(crate) host: Arc<Host>,
    pub(crate) jobs: Arc<Jobs>,
    connections: AtomicUsize,
    /// The number of connections of each client with status rights.
    of_lookers: Mutex<HashMap<Id, usize>>,
    refused: AtomicU64,
    /// Held while the host is examined.
    pub(crate) doctoring: Mutex<()>,
    /// Notified when the cluster file changes.
    pub(crate) changed: Arc<Notify>,
    build: String,
}

impl Node {
    /// A node of this build on this host, with these services.
    pub(crate) fn new(host: Host, services: Services<'_>, build: &str) -> Result<Node> {
        let (host, jobs, changed) = (Arc::new(host), Arc::new(Jobs::default()), Arc::new(Notify::new()));
        host.offer(services(&host, &jobs)?);
        let told = changed.clone();
        host.on_change(move || told.notify_waiters());
        Ok(Node {
            host,
            jobs,
            connections: AtomicUsize::new(0),
            of_lookers: Mutex::default(),
            refused: AtomicU64::new(0),
            doctoring: Mutex::default(),
            changed,
            build: build.into(),
        })
    }

    /// The node's status.
    pub(crate) fn status(&self) -> NodeStatus {
        let (jobs_running, jobs_ended) = self.jobs.counts();
        let credentials = self.host.credentials();
        let identity = credentials.as_ref().map(|credentials| credentials.identity());
        let process = self.host.process();
        NodeStatus {
            name: self.host.name().to_string(),
            id: identity.map_or(String::new(), |identity| identity.node.to_string()),
            cluster: identity.map_or(String::new(), |identity| identity.cluster.to_string()),
            epoch: process.epoch,
            version: env!("CARGO_PKG_VERSION").into(),
            build: self.build.clone(),
            protocols: [VERSIONS.first, VERSIONS.last],
            pid: process.pid,
            seconds: process.seconds,
            links: self.host.link_count() as u64,
            jobs_running,
            jobs_ended,
            refused: self.refused.load(Ordering::Relaxed),
            resident_bytes: process::resident_bytes(),
            certificate_ends: identity.map_or(0, |identity| identity.ends[0]),
            twice: self.host.twice(),
        }
    }
}

/// The terms of nodes' links.
pub(crate) fn terms() -> Terms {
    Terms { block_bytes: thalweg_transfer::FRAME_BYTES as u32, ..Terms::default() }
}

/// Runs a node with these services until it is asked to stop. `ready` is called once it listens.
pub fn run(
    options: &NodeOptions,
    services: Services<'_>,
    stop: &Stop,
    ready: impl FnOnce(&NodeReady),
) -> Result<()> {
    thalweg_io::host::allow_open_files(FILES);
    // Each connection may watch a job, which takes a thread.
    let threads = CONNECTIONS_MAX + FOR_OTHERS;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(threads).build();
    let runtime = runtime.map_err(Error::Thread)?;
    let mut met = None;
    if let Some(asked) = &options.join {
        met = meet(asked, options.listen, &runtime, stop)?;
        if met.is_none() {
            return Ok(());
        }
    }
    let identity = met.as_ref().map(|(_, joined)| &joined.identity).or(options.identity.as_ref());
    let node =
        Arc::new(Node::new(Host::load(identity.map(PathBuf::as_path), terms())?, services, &options.build)?);
    let host = &node.host;
    let (listener, _joined) = match met {
        Some((listener, joined)) => (listener, Some(joined)),
        None => {
            let address = listen_at(options, host)?;
            // Learns of changes during its absence before it serves any peer.
            mesh::catch_up(host);
            (runtime.block_on(listen(address))?, None)
        }
    };
    let at = address_at(&listener)?;
    runtime.block_on(async {
        let NodeStatus { name, id, cluster, pid, .. } = node.status();
        ready(&NodeReady { name, id, address: at.to_string(), cluster, pid });
        if host.credentials().is_some() {
            let keeper = host.clone();
            spawn("keeper", move || mesh::keep(&keeper));
        }
        tokio::select! {
            () = accept(&node, &listener) => {}
            () = stop.0.notified() => {}
        }
    });
    runtime.shutdown_background();
    let left = host.leave();
    host.stop(GOING_DOWN);
    left.map_err(Error::Service)
}

/// Listens, and makes a cluster with the other processes. `None` if it was asked to stop meanwhile.
fn meet(
    asked: &Join,
    at: Option<SocketAddr>,
    runtime: &Runtime,
    stop: &Stop,
) -> Result<Option<(TcpListener, Joined)>> {
    let listener = runtime.block_on(listen(at.unwrap_or(EVERYWHERE)))?;
    let wait = || {
        runtime.block_on(async {
            tokio::select! {
                () = stop.0.notified() => false,
                () = tokio::time::sleep(join::LOOK) => true,
            }
        })
    };
    let joined = join::join(asked, address_at(&listener)?, wait)?;
    Ok(joined.map(|joined| (listener, joined)))
}

#[allow(clippy::disallowed_methods)] // The asynchronous side accepts connections.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|why| Error::Listen { address, why })
}

fn address_at(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(Error::Standard)
}

fn listen_at(options: &NodeOptions, host: &Host) -> Result<SocketAddr> {
    let address = match (options.listen, host.declared()) {
        (Some(address), _) => address,
        (None, Some(declared)) => cluster::address_of(&declared)?,
        (None, None) => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PORT),
    };
    if host.credentials().is_none() && !address.ip().is_loopback() {
        return Err(Error::NoCertificate(address));
    }
    Ok(address)
}

async fn accept(node: &Arc<Node>, listener: &TcpListener) {
    /// The wait before the next try when the system has no descriptors left.
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
                        node.host
                            .audit()
                            .refused(address.to_string(), "it did not prove its membership of the cluster");
                    }
                }
            }
        });
    }
}

/// The index of the handshake to abort: the oldest one of the address with the most handshakes. So a flood from one
/// address does not abort the handshakes of distant peers.
fn gives_way<T>(handshakes: &[(IpAddr, T)]) -> usize {
    let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
    handshakes.iter().for_each(|(address, _)| *of_address.entry(*address).or_default() += 1);
    // If several addresses have the most, the one with the oldest handshake.
    let most = of_address.values().max().copied().unwrap_or(0);
    handshakes.iter().position(|(address, _)| of_address[address] == most).unwrap_or(0)
}

type Tls = tokio_rustls::server::TlsStream<TlsRecords>;

/// An authenticated peer, or one on loopback at a node without an identity.
enum Peer {
    Proved(Box<Tls>, Agreed),
    Local(TcpStream),
}

async fn greet(node: &Node, socket: TcpStream) -> Option<Peer> {
    let Some(credentials) = node.host.credentials() else { return Some(Peer::Local(socket)) };
    socket.set_nodelay(true).ok()?;
    let (config, agreed) = credentials.server();
    let tls = TlsAcceptor::from(config).accept(TlsRecords::new(socket)).await.ok()?;
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
            tls.get_mut().0.pass_all();
            if let Some(named) = named {
                let address = tls.get_ref().0.socket.peer_addr();
                let peer =
                    address.map_or_else(|_| "an unknown address".into(), |address| address.to_string());
                let peer = format!("{} at {peer}", named.host);
                http::serve(node, *tls, Who { peer, proved: Some((named.node, named.role)) }).await;
            }
        }
    }
}

/// Moves a link's socket and keys to a blocking thread.
fn hand_over(node: &Arc<Node>, (tls, agreed): (Tls, Agreed), place: Place) -> std::io::Result<()> {
    let (records, connection) = tls.into_inner();
    let socket = records.socket.into_std()?;
    socket.set_nonblocking(false)?;
    let (node, terms, from) = (node.clone(), node.host.terms(), socket.peer_addr()?);
    spawn("link", move || {
        let credentials = node.host.credentials().expect("it shook them");
        match credentials.adopt(socket, (connection.into(), agreed), terms) {
            Ok(link) => {
                let link = Arc::new(link);
                if place.looker.is_some() {
                    link.bound_payloads(REQUEST_OF_LOOKER_BYTES_MAX);
                }
                node.host.audit().came(&link, from);
                node.host.serve(&link);
            }
            Err(why) => {
                node.refused.fetch_add(1, Ordering::Relaxed);
                node.host.audit().refused(why.peer.clone(), &why.to_string());
            }
        }
        drop(place);
    });
    Ok(())
}

/// One of a node's connections.
struct Place {
    node: Arc<Node>,
    /// The client, if it has status rights.
    looker: Option<Id>,
}

impl Place {
    /// `None` if a limit is reached: of all connections, of this client with status rights, or of all such clients.
    fn take(node: &Arc<Node>, peer: Option<Id>) -> Option<Place> {
        let looker = peer.filter(|peer| node.host.may(*peer) == May::Status);
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

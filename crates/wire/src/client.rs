//! A client of a cluster: its identity, the hosts that it can reach, and the links that it opens.
//!
//! Model: a client dials each host that it needs. If the two know different epochs of the cluster file, both take the
//! newer one.
//! Non-goals: the requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::{ClusterFile, ClusterHost, HostRequest, ServiceRequest};
use thalweg_block::Pool;
use thalweg_io::small;

use crate::cluster_error::{ClusterError, ClusterResult};
use crate::{
    CLUSTER_FILE, Credentials, Incoming, Link, LinkError, Result, Terms, Timeouts, What, cluster, message,
};

/// A client of a cluster.
pub struct Client {
    directory: PathBuf,
    /// Whether a newer cluster file was requested already.
    asked: AtomicBool,
    credentials: Credentials,
    file: ClusterFile,
}

impl Client {
    /// The client with the identity in this directory.
    pub fn load(identity: &Path) -> ClusterResult<Client> {
        let (credentials, file) = cluster::credentials_in(identity)?;
        Ok(Client { directory: identity.into(), asked: AtomicBool::new(false), credentials, file })
    }

    /// Like [`load`](Client::load), but fails if `name` is given and is not the name of the client's cluster.
    pub fn load_named(identity: &Path, name: Option<&str>) -> ClusterResult<Client> {
        let client = Client::load(identity)?;
        if let Some(name) = name.filter(|name| *name != client.file.name) {
            let (cluster, directory) = (client.file.name, identity.into());
            return Err(ClusterError::OtherCluster { directory, cluster, named: name.into() });
        }
        Ok(client)
    }

    /// Its credentials.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Its cluster file.
    pub fn file(&self) -> &ClusterFile {
        &self.file
    }

    /// The hosts with these names or roles (`@ROLE`), or all if none are named; each once, and without those that an
    /// item with `!` before it names.
    pub fn hosts(&self, on: &[String]) -> ClusterResult<Vec<ClusterHost>> {
        let named = |name: &str| {
            let role = name.strip_prefix('@').map(String::from);
            let is_meant = |host: &&ClusterHost| match &role {
                Some(role) => host.roles.contains(role),
                None => host.name == *name,
            };
            let found: Vec<&ClusterHost> = self.file.hosts.iter().filter(is_meant).collect();
            if found.is_empty() { Err(cluster::unknown(&self.file, name)) } else { Ok(found) }
        };
        let (without, with): (Vec<&String>, Vec<&String>) = on.iter().partition(|name| name.starts_with('!'));
        let mut hosts: Vec<&ClusterHost> = Vec::new();
        for name in &with {
            hosts.extend(named(name)?.into_iter().filter(|host| !hosts.contains(host)).collect::<Vec<_>>());
        }
        if with.is_empty() {
            hosts = self.file.hosts.iter().collect();
        }
        for name in &without {
            let left_out = named(&name[1..])?;
            hosts.retain(|host| !left_out.contains(host));
        }
        if hosts.is_empty() {
            return Err(ClusterError::NoHostLeft(on.join(",")));
        }
        Ok(hosts.into_iter().cloned().collect())
    }

    /// Opens a link with a host, for blocks of `block_bytes` bytes.
    pub fn link(&self, host: &ClusterHost, block_bytes: usize) -> ClusterResult<Link> {
        let address = cluster::address_of(host)?;
        let link = self.credentials.connect(&host.name, address, self.terms(block_bytes))?;
        self.agree(&link);
        Ok(link)
    }

    /// Opens a link with a host. A thread reads it when no other thread does.
    pub fn kept_link(&self, host: &ClusterHost, block_bytes: usize) -> Result<Arc<Link>> {
        let cut = |why: String| LinkError::new(&host.name, What::Cut(why));
        let link = self.link(host, block_bytes).map_err(|why| match why {
            ClusterError::Link(why) => why,
            other => cut(other.to_string()),
        })?;
        link.keep().map_err(|e| cut(format!("no thread for it is left: {e}")))?;
        Ok(Arc::new(link))
    }

    /// Opens a link with a host and sends a request in the same round trip.
    pub fn link_and_ask(
        &self,
        host: &ClusterHost,
        block_bytes: usize,
        request: &str,
        takes: (&Pool, usize),
    ) -> ClusterResult<(Link, Incoming)> {
        let at = (&*host.name, cluster::address_of(host)?);
        let asked =
            self.credentials.connect_and_ask(at, self.terms(block_bytes), request.as_bytes(), Some(takes));
        let (link, inc) = asked?;
        self.agree(&link);
        Ok((link, inc))
    }

    fn terms(&self, block_bytes: usize) -> Terms {
        Terms { block_bytes: block_bytes as u32, patience: Timeouts::of(&self.file) }
    }

    /// Brings both ends to the newer of their cluster files. If a newer file does not list a host, the link is closed
    /// at once; other changes take effect with the next command.
    fn agree(&self, link: &Link) {
        let theirs = link.hello().epoch;
        if theirs > self.file.epoch && !self.asked.swap(true, Ordering::SeqCst) {
            let Ok(text) = message::ask(link, &HostRequest::Cluster(None).text()) else { return };
            if let Ok(Some(file)) = cluster::newer(&self.directory, &self.file, &text) {
                self.credentials.identity().members.set(&file);
                // A client that may not write there requests the file again next time.
                let _ = small::write(&self.directory.join(CLUSTER_FILE), text.as_bytes());
            }
        } else if theirs < self.file.epoch
            && let Ok(text) = cluster::text_in(&self.directory)
        {
            let _ = message::ask(link, &HostRequest::Cluster(Some(text)).text());
        }
    }
}

/// Cancels work on several links by closing them. Clones share the links.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Cancelling>);

#[derive(Default)]
struct Cancelling {
    signal: AtomicI32,
    links: Mutex<Vec<Arc<Link>>>,
}

impl Cancel {
    /// Closes all links, so that the nodes end their work; remembers the signal.
    pub fn cancel(&self, signal: i32) {
        self.0.signal.store(signal, Ordering::SeqCst);
        for link in self.0.links.lock().expect("no holder panics").iter() {
            link.close();
        }
    }

    /// The signal that cancelled the work, if any.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Closes a link on cancellation; at once if that has happened before.
    pub fn watch(&self, link: &Arc<Link>) {
        self.0.links.lock().expect("no holder panics").push(link.clone());
        if self.signal().is_some() {
            link.close();
        }
    }
}

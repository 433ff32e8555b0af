//! This host as a member of its cluster: its identity, the current cluster file, its links, and the services on them.
//!
//! Model: a link is served until its peer goes; each stream goes to the service that it names. A newer cluster file is
//! stored, applied to open links, and passed on ([`crate::mesh`] keeps links with the other hosts).
//! Invariant: a client with status rights reaches a service only if the service declares the request harmless.
//! Non-goals: accepting connections; the services.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::time::Duration;

use thalweg_api::{
    ClusterFile, ClusterHost, HostProcess, HostRequest, May, Request, ServiceRequest, from_json, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_io::small;

use crate::audit::{Audit, Entry};
use crate::cluster_error::{ClusterError as Error, ClusterResult as Result};
use crate::mesh::Mesh;
use crate::service::{Peer, Service, Streams};
use crate::threads::caught;
use crate::{
    CERTIFICATE_FILE, CLUSTER_FILE, Credentials, Id, Identity, Link, Outgoing, Role, Terms, Timeouts,
    cluster, log, message,
};

/// The answer to a client whose certificate allows no changes.
pub const MAY_ONLY_LOOK: &str = "this certificate may only look at status, jobs, metrics, volumes and tables; the cluster's owner can use thalweg cluster client to make one with all rights";

/// The answer to a request on a link from before the host's renewal.
const WAS_RENEWED: &str =
    "your host has presented a newer certificate since this link was opened; open a new link";

/// A host, as a member of its cluster.
pub struct Host {
    name: String,
    directory: Option<PathBuf>,
    /// Its credentials; replaced when its certificate is.
    credentials: RwLock<Option<Arc<Credentials>>>,
    /// The state of the certificate and cluster files when they were last checked.
    files: Mutex<Vec<Vec<u8>>>,
    cluster: Mutex<Option<ClusterFile>>,
    /// Called when the cluster file changes.
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
    audit: Arc<Audit>,
    terms: Terms,
    started: Stopwatch,
    links: Mutex<Vec<(Id, Arc<Link>)>>,
    pub(crate) mesh: Mesh,
    services: RwLock<Vec<Arc<dyn Service>>>,
    pub(crate) stopping: Latch,
}

/// A gate that closes once and wakes all waiting threads.
#[derive(Default)]
pub(crate) struct Latch {
    closed: Mutex<bool>,
    change: Condvar,
}

impl Latch {
    fn close(&self) {
        *self.closed.lock().expect("no holder panics") = true;
        self.change.notify_all();
    }

    /// Waits for at most `patience` until it is closed; returns whether it is closed.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let closed = self.closed.lock().expect("no holder panics");
        *self.change.wait_timeout_while(closed, patience, |closed| !*closed).expect("no holder panics").0
    }
}

impl Host {
    /// A host of this name inside this process, without authentication.
    pub fn embedded(name: &str, terms: Terms) -> Host {
        Host { name: name.to_string(), ..Host::with(None, terms) }
    }

    /// The host with the identity in this directory; without one it belongs to no cluster.
    pub fn load(directory: Option<&Path>, terms: Terms) -> Result<Host> {
        let Some(directory) = directory else { return Ok(Host::with(None, terms)) };
        let (credentials, file) = cluster::credentials_in(directory)?;
        if credentials.identity().role != Role::Node {
            return Err(Error::ClientIdentity);
        }
        Ok(Host {
            name: credentials.identity().name.clone(),
            credentials: RwLock::new(Some(Arc::new(credentials))),
            cluster: Mutex::new(Some(file)),
            ..Host::with(Some(directory), terms)
        })
    }

    fn with(directory: Option<&Path>, terms: Terms) -> Host {
        Host {
            name: String::new(),
            directory: directory.map(PathBuf::from),
            credentials: RwLock::default(),
            files: Mutex::new(directory.map_or(Vec::new(), files_in)),
            cluster: Mutex::default(),
            on_change: OnceLock::new(),
            audit: Audit::open(directory),
            terms,
            started: Stopwatch::start(),
            links: Mutex::default(),
            mesh: Mesh::default(),
            services: RwLock::default(),
            stopping: Latch::default(),
        }
    }

    /// Offers these services to peers from now on.
    pub fn offer(&self, services: Vec<Arc<dyn Service>>) {
        *self.services.write().expect("no holder panics") = services;
    }

    /// The services.
    pub fn services(&self) -> Vec<Arc<dyn Service>> {
        self.services.read().expect("no holder panics").clone()
    }

    /// Sets a function that is called whenever the cluster file changes. Only the first is kept.
    pub fn on_change(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(call));
    }

    /// Lets all services give to other hosts what would end with this one, while its links and services still work.
    ///
    /// # Errors
    /// If a service loses something: the first loss.
    pub fn leave(&self) -> std::result::Result<(), String> {
        self.services().into_iter().map(|service| service.leave()).fold(Ok(()), std::result::Result::and)
    }

    /// Stops all services, waits for each for at most `patience`, and closes all links.
    pub fn stop(&self, patience: Duration) {
        self.stopping.close();
        let services = std::mem::take(&mut *self.services.write().expect("no holder panics"));
        services.iter().for_each(|service| service.stop(patience));
        self.links.lock().expect("no holder panics").iter().for_each(|(_, link)| link.close());
    }

    /// Waits for at most `patience` until this host stops; returns whether it stops.
    pub fn is_stopping_within(&self, patience: Duration) -> bool {
        self.stopping.wait(patience)
    }

    /// Its name; empty without an identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of its identity, if it has one.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Its current credentials.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.read().expect("no holder panics").clone()
    }

    /// Its current cluster file.
    pub fn cluster_file(&self) -> Option<ClusterFile> {
        self.cluster.lock().expect("no holder panics").clone()
    }

    /// The epoch of the cluster file; 0 without one.
    pub fn epoch(&self) -> u64 {
        self.cluster.lock().expect("no holder panics").as_ref().map_or(0, |file| file.epoch)
    }

    /// Its entry in the cluster file.
    pub fn declared(&self) -> Option<ClusterHost> {
        let file = self.cluster.lock().expect("no holder panics");
        file.as_ref().and_then(|file| file.hosts.iter().find(|host| host.name == self.name).cloned())
    }

    /// The names of all hosts of its cluster, in the order of its file.
    pub fn hosts(&self) -> Vec<String> {
        let file = self.cluster.lock().expect("no holder panics");
        file.iter().flat_map(|file| file.hosts.iter().map(|host| host.name.clone())).collect()
    }

    /// The audit log.
    pub fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    /// The terms of the links that it opens and accepts from now on.
    pub fn terms(&self) -> Terms {
        let cluster = self.cluster.lock().expect("no holder panics");
        Terms { patience: cluster.as_ref().map_or(self.terms.patience, Timeouts::of), ..self.terms }
    }

    /// The number of open links.
    pub fn link_count(&self) -> usize {
        self.links.lock().expect("no holder panics").len()
    }

    /// The process that serves this host.
    pub fn process(&self) -> HostProcess {
        HostProcess { pid: std::process::id(), seconds: self.started.seconds(), epoch: self.epoch() }
    }

    /// The rights of this peer.
    pub fn may(&self, peer: Id) -> May {
        self.credentials().map_or(May::All, |credentials| credentials.identity().members.may(peer))
    }

    /// Loads newly installed files: a certificate and a newer cluster file. Open links stay for the work on them. If
    /// the certificate has a new id, kept links are dialled again, so that the other hosts see it.
    pub(crate) fn reload_identity(&self) {
        let Some(directory) = self.directory.as_deref() else { return };
        let now = files_in(directory);
        let mut last = self.files.lock().expect("no holder panics");
        if now == *last {
            return;
        }
        // The files arrive one by one: until they match, the old ones stay in use.
        let Ok((mut identity, file)) = Identity::load(directory) else { return };
        let Some(old) = self.credentials() else { return };
        let ours = old.identity();
        let is_ours =
            |role| (&identity.name, identity.cluster, role) == (&ours.name, ours.cluster, Role::Node);
        if !is_ours(identity.role) || !file.hosts.iter().any(|host| host.id == identity.node.to_string()) {
            return;
        }
        identity.members = ours.members.clone();
        let (Ok(credentials), Ok(text)) = (Credentials::of(identity), cluster::text_in(directory)) else {
            return;
        };
        // If the list is older, or another one of the same epoch, it is ignored with its certificate.
        if self.take_cluster(&text).is_ok() {
            if credentials.identity().node != ours.node {
                self.mesh.forget_all();
            }
            *self.credentials.write().expect("no holder panics") = Some(Arc::new(credentials));
            *last = now;
        }
    }

    /// Accepts a newer cluster file: stores it, closes all links and connections of peers that it does not list, and
    /// passes it on. Returns the current epoch, and whether it is new. A file that cannot be stored, for example
    /// because the disk is full, is in effect until the node ends.
    pub fn take_cluster(&self, text: &str) -> Result<(u64, bool)> {
        let (Some(directory), Some(credentials)) = (&self.directory, self.credentials()) else {
            return Err(Error::NoIdentity);
        };
        let mut ours = self.cluster.lock().expect("no holder panics");
        let now = ours.as_ref().expect("a host with credentials has a cluster file");
        let Some(file) = cluster::newer(directory, now, text)? else { return Ok((now.epoch, false)) };
        if let Err(why) = small::write(&directory.join(CLUSTER_FILE), text.as_bytes()) {
            log(&format!(
                "the cluster file of epoch {} is in effect, but could not be stored: {why}",
                file.epoch
            ));
        }
        let epoch = file.epoch;
        *ours = Some(file.clone());
        drop(ours);
        credentials.identity().members.set(&file);
        self.on_change.get().iter().for_each(|call| call());
        self.mesh.tell(text);
        Ok((epoch, true))
    }

    /// The text of its cluster file.
    fn cluster_text(&self) -> Result<String> {
        let _ours = self.cluster.lock().expect("no holder panics");
        cluster::text_in(self.directory.as_deref().ok_or(Error::NoIdentity)?)
    }

    /// Brings both ends of a link to the newer of their cluster files.
    pub(crate) fn agree(&self, link: &Link) {
        self.agree_at(link, link.hello().epoch);
    }

    /// Brings both ends of a link to the newer of their cluster files. The peer's has the epoch `theirs`.
    pub(crate) fn agree_at(&self, link: &Link, theirs: u64) {
        let Some(credentials) = self.credentials() else { return };
        let ours = credentials.identity().members.epoch();
        if theirs > ours {
            // An unusable file is no reason to refuse a peer that our own file lists.
            let text = message::ask(link, &HostRequest::Cluster(None).text());
            let _ = text.map(|text| self.take_cluster(&text));
        } else if theirs < ours
            && let Ok(text) = self.cluster_text()
        {
            let _ = message::ask(link, &HostRequest::Cluster(Some(text)).text());
        }
    }

    /// Serves a link until its peer goes.
    pub fn serve(self: &Arc<Host>, link: &Arc<Link>) {
        let peer = link.hello().node;
        self.serve_of(peer, link);
    }

    /// Serves a link with the host of this id.
    pub(crate) fn serve_of(self: &Arc<Host>, peer: Id, link: &Arc<Link>) {
        self.links.lock().expect("no holder panics").push((peer, link.clone()));
        // A panic ends this link; its peer sees that it is closed.
        let _ = caught(|| self.serve_streams(peer, link));
        // From now on no thread reads it.
        link.close();
        self.links.lock().expect("no holder panics").retain(|(_, other)| !Arc::ptr_eq(other, link));
        self.mesh.forget(link);
    }

    fn serve_streams(self: &Arc<Host>, id: Id, link: &Arc<Link>) {
        while let Ok(Some((request, out, inc))) = link.accept() {
            let request = Request::parse(&String::from_utf8_lossy(&request));
            let peer = Peer { link, may: self.may(id), audit: &self.audit };
            let is_harmless = |request: &Request| match self.service(&request.service) {
                Some(service) => service.is_harmless(&request.body),
                None => {
                    request.service == HostRequest::SERVICE
                        && !matches!(from_json(&request.body), Ok(HostRequest::Keep) | Err(_))
                }
            };
            let looks_only = !link.hello().is_local() && peer.may == May::Status;
            if looks_only && !request.as_ref().is_ok_and(is_harmless) {
                let why = if link.hello().role == Role::Node { WAS_RENEWED } else { MAY_ONLY_LOOK };
                peer.entry("request", &[]).refused(why);
                let _ = out.abort(why);
                continue;
            }
            let unknown =
                |out: Outgoing, why: String| out.abort(&format!("a request that is not known here: {why}"));
            let continues = match request {
                Ok(Request { service, body }) if service == HostRequest::SERVICE => match from_json(&body) {
                    Ok(request) => self.answer((id, &peer), request, (out, inc)),
                    Err(why) => unknown(out, why).is_ok(),
                },
                Ok(Request { service, body }) => match self.service(&service) {
                    Some(service) => service.serve(&peer, &body, (out, inc)),
                    None => unknown(out, format!("there is no service '{}'", service.escape_debug())).is_ok(),
                },
                Err(why) => unknown(out, why).is_ok(),
            };
            if !continues {
                break;
            }
        }
    }

    fn service(&self, name: &str) -> Option<Arc<dyn Service>> {
        let services = self.services.read().expect("no holder panics");
        services.iter().find(|service| service.name() == name).cloned()
    }

    /// Serves requests about the membership itself; false if the link is of no further use.
    fn answer(
        self: &Arc<Host>,
        (id, peer): (Id, &Peer<'_>),
        request: HostRequest,
        (mut out, _inc): Streams,
    ) -> bool {
        let answer = match request {
            HostRequest::Keep => {
                self.keep(id, peer.link);
                Ok(String::new())
            }
            HostRequest::Identify => Ok(to_json(&self.process())),
            HostRequest::Cluster(None) => self.cluster_text(),
            HostRequest::Cluster(Some(text)) => self.take_from(peer, &text),
        };
        match answer {
            Ok(said) => out.end(said.as_bytes()).is_ok(),
            Err(why) => out.abort(&why.to_string()).is_ok(),
        }
    }

    /// Accepts the cluster file that a peer sent, if it is newer; returns the current epoch.
    fn take_from(&self, peer: &Peer<'_>, text: &str) -> Result<String> {
        let taken = self.take_cluster(text);
        let entry = || -> Entry { peer.entry("cluster file", &[]) };
        match &taken {
            Ok((epoch, true)) => entry().ends(format!("epoch {epoch} holds")),
            // Every host that has this file sends it.
            Ok((_, false)) => {}
            Err(why) => entry().refused(why),
        }
        taken.map(|(epoch, _)| epoch.to_string())
    }
}

/// The files of an identity that may change while its node runs.
fn files_in(directory: &Path) -> Vec<Vec<u8>> {
    let read = |name| small::read(&directory.join(name)).unwrap_or_default();
    [CERTIFICATE_FILE, CLUSTER_FILE].map(read).to_vec()
}

//! The transport to a node of the cluster: a link for the control stream, and one for each lane.

use std::sync::{Arc, Mutex};

use thalweg_api::{ClusterFile, ClusterHost, ServiceRequest, TransferRequest};
use thalweg_transfer::{FRAME_BYTES, Transport};
use thalweg_wire::{Credentials, Link, LinkError, Streams, Terms, Timeouts, What, cluster, new_id};

use crate::ends::{Initiator, Result};

/// The host of this name.
pub(crate) fn find<'f>(file: &'f ClusterFile, host: &str) -> Result<&'f ClusterHost> {
    let found = file.hosts.iter().find(|other| other.name == host);
    found.ok_or_else(|| cluster::unknown(file, host).into())
}

/// The transport to a node, for the initiator of a transfer.
pub(crate) struct ToNode<'h> {
    credentials: &'h Credentials,
    host: ClusterHost,
    terms: Terms,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
    /// A link that is not in use yet.
    spare: Mutex<Option<Arc<Link>>>,
}

impl<'h> ToNode<'h> {
    pub(crate) fn new(credentials: &'h Credentials, file: &ClusterFile, host: &str) -> Result<ToNode<'h>> {
        let terms = Terms { block_bytes: FRAME_BYTES as u32, patience: Timeouts::of(file) };
        let host = find(file, host)?.clone();
        let (links, spare) = (Mutex::default(), Mutex::default());
        Ok(ToNode { credentials, host, terms, id: new_id().to_string(), links, spare })
    }

    fn connect(&self) -> thalweg_wire::Result<Arc<Link>> {
        let unreachable = |why: String| LinkError::new(self.host.name.clone(), What::Unreachable(why));
        let address = cluster::address_of(&self.host).map_err(|e| unreachable(e.to_string()))?;
        let link = Arc::new(self.credentials.connect(&self.host.name, address, self.terms)?);
        link.keep().map_err(|e| unreachable(e.to_string()))?;
        Ok(link)
    }

    /// Opens a stream on a link of its own.
    pub(crate) fn open(&self, request: &TransferRequest) -> thalweg_wire::Result<Streams> {
        let spare = self.spare.lock().expect("no holder panics").take();
        let link = spare.map_or_else(|| self.connect(), Ok)?;
        let streams = link.open(request.text().as_bytes())?;
        self.links.lock().expect("no holder panics").push(link);
        Ok(streams)
    }
}

impl Initiator for ToNode<'_> {
    fn id(&self) -> String {
        self.id.clone()
    }

    /// Opens the link for the first lane at the same time, because opening a link takes three round trips.
    fn begin(&self, request: &TransferRequest) -> thalweg_wire::Result<Streams> {
        std::thread::scope(|scope| {
            let spare = scope.spawn(|| self.connect());
            let control = self.open(request);
            // If this fails, the first lane tries again and reports the error.
            *self.spare.lock().expect("no holder panics") =
                spare.join().expect("connecting does not panic").ok();
            control
        })
    }
}

impl Transport for ToNode<'_> {
    fn peer(&self) -> String {
        self.host.name.clone()
    }

    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        let lane = TransferRequest::Lane { id: self.id.clone() };
        std::thread::scope(|scope| {
            let opened: Vec<_> = (0..count).map(|_| scope.spawn(|| self.open(&lane))).collect();
            opened.into_iter().map(|lane| lane.join().expect("connecting does not panic")).collect()
        })
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().expect("no holder panics").clone()
    }
}

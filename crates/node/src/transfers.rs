//! The service `transfer`: this process is one end of a transfer for a peer, or both ends.
//!
//! Invariant: only peers of the cluster are served, with the rights of the node's user. At most [`PUMPS_MAX`] transfers
//! run at a time, with at most [`LANES_MAX`] lanes in all. If a node is both ends, it sends its notes to the client.
//! Non-goals: copying the data (the crate `transfer`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{
    ClusterFile, Note, PumpReceipt, PumpRequest, PumpSaid, PumpVerdict, ServiceRequest, TransferRequest,
    from_json, to_json,
};
use thalweg_engine::{Asked, Endpoint, Error, Progress, PumpOptions, ends};
use thalweg_pump::Unwatched;
use thalweg_transfer::{Onward, Route, Transport, receive, send};
use thalweg_wire::{
    ClusterError, Credentials, Host, Incoming, Link, LinkError, Outgoing, Peer, Service, Streams, What,
    message,
};

use crate::ends::{Initiator, LOOK, Result, end_of, no_link, push, route_of};
use crate::ssh_between::introduced;
use crate::to_node::ToNode;

/// The most transfers of a node at a time.
const PUMPS_MAX: usize = 64;
/// How long lanes may take to arrive.
const LANES_SECONDS: u64 = 10;
/// The most lanes of all transfers of a node: 9 GiB of blocks, if it is the sink.
const LANES_MAX: usize = 256;

/// Entries of a list in one message: with the longest texts they fit in a frame.
const LISTED_SOME: usize = 16;

/// Lanes that wait for their transfer, each with its link, and the number that have arrived in all.
type Lanes = (Vec<(Streams, Arc<Link>)>, usize);

/// The service `transfer`, with the lanes of each transfer by its id. A process started by ssh has no host, and cannot
/// reach other hosts.
#[derive(Default)]
pub struct TransferService {
    host: Option<Arc<Host>>,
    table: Mutex<HashMap<String, Lanes>>,
    news: Condvar,
}

impl TransferService {
    /// The service on this host.
    pub fn new(host: &Arc<Host>) -> TransferService {
        TransferService { host: Some(host.clone()), ..TransferService::default() }
    }

    /// What this node needs to reach other nodes, if it has it.
    fn cluster(&self) -> Option<(Arc<Credentials>, ClusterFile)> {
        let host = self.host.as_ref()?;
        Some((host.credentials()?, host.cluster_file()?))
    }

    /// An error if a transfer that is sent on to these hosts would come to one of them again, or to this one: so no
    /// request occupies more than one transfer of a node.
    fn check_chain(&self, onward: &[String]) -> Result<()> {
        let own = self.host.as_ref().map_or("", |host| host.name());
        let mut seen = HashSet::from([own]);
        match onward.iter().find(|host| !seen.insert(host)) {
            Some(host) => Err(Asked::HostAgain(host.clone()).into()),
            None => Ok(()),
        }
    }

    /// Waits until no transfer runs, at most for `patience`.
    pub(crate) fn rest(&self, patience: Duration) {
        let table = self.table.lock().expect("no holder panics");
        let busy = |table: &mut HashMap<String, Lanes>| !table.is_empty();
        drop(self.news.wait_timeout_while(table, patience, busy).expect("no holder panics"));
    }

    /// Adds a lane that arrived, and waits until its transfer has ended.
    fn lane(&self, id: &str, streams: Streams, link: &Arc<Link>) {
        let mut table = self.table.lock().expect("no holder panics");
        let all: usize = table.values().map(|(_, count)| count).sum();
        let Some((lanes, count)) = table.get_mut(id) else {
            let _ = streams.0.abort("this node does not know the transfer of this lane");
            return;
        };
        if all >= LANES_MAX {
            let _ = streams.0.abort(&format!(
                "transfers use {LANES_MAX} streams of this node, the maximum; wait for one to end, or use fewer streams"
            ));
            return;
        }
        *count += 1;
        lanes.push((streams, Arc::clone(link)));
        self.news.notify_all();
        drop(self.news.wait_while(table, |table| table.contains_key(id)).expect("no holder panics"));
    }
}

/// The transport to the initiator of a transfer, at the node that received the request.
struct FromPeer<'n> {
    service: &'n TransferService,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
}

impl<'n> FromPeer<'n> {
    fn begin(service: &'n TransferService, id: &str, link: &Arc<Link>) -> Result<FromPeer<'n>> {
        let mut table = service.table.lock().expect("no holder panics");
        if table.len() >= PUMPS_MAX {
            return Err(Asked::TransfersMax(PUMPS_MAX).into());
        }
        if table.contains_key(id) {
            return Err(Asked::TransferRuns(id.to_string()).into());
        }
        table.insert(id.to_string(), Lanes::default());
        Ok(FromPeer { service, id: id.to_string(), links: Mutex::new(vec![Arc::clone(link)]) })
    }
}

impl Drop for FromPeer<'_> {
    fn drop(&mut self) {
        self.service.table.lock().expect("no holder panics").remove(&self.id);
        self.service.news.notify_all();
    }
}

impl Transport for FromPeer<'_> {
    fn peer(&self) -> String {
        self.links.lock().expect("no holder panics")[0].peer().to_string()
    }

    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        let table = self.service.table.lock().expect("no holder panics");
        let few = |table: &mut HashMap<String, Lanes>| table[&self.id].0.len() < count;
        let patience = Duration::from_secs(LANES_SECONDS);
        let (mut table, late) =
            self.service.news.wait_timeout_while(table, patience, few).expect("no holder panics");
        if late.timed_out() {
            let why = format!("not all of {count} lanes arrived within {LANES_SECONDS} s");
            return Err(LinkError::new(self.peer(), What::Cut(why)));
        }
        let came = std::mem::take(&mut table.get_mut(&self.id).expect("it is there until this goes").0);
        drop(table);
        let mut links = self.links.lock().expect("no holder panics");
        let streams = came.into_iter().map(|(streams, link)| {
            if !links.iter().any(|other| Arc::ptr_eq(other, &link)) {
                links.push(link);
            }
            streams
        });
        Ok(streams.collect())
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().expect("no holder panics").clone()
    }

    fn route(&self) -> Route {
        route_of(&self.links())
    }
}

impl Service for TransferService {
    fn name(&self) -> &'static str {
        TransferRequest::SERVICE
    }

    /// A link of a transfer carries one stream, so its thread serves the stream to its end.
    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, streams: Streams) -> bool {
        let request = match from_json(body) {
            Ok(request) => request,
            Err(why) => {
                return streams.0.abort(&format!("this node does not know the request: {why}")).is_ok();
            }
        };
        let _ = peer.link.keep();
        match request {
            TransferRequest::Lane { id } => self.lane(&id, streams, peer.link),
            TransferRequest::Pump(request) => {
                let ends = request.sources.iter().chain(&request.dest).cloned();
                let to = request.to.iter().map(|(host, word)| format!("{host}:{word}"));
                let words: Vec<String> = ends.chain(to).collect();
                let what = match (request.sources.is_empty(), &request.dest) {
                    (false, Some(_)) => "pump",
                    (true, _) => "pump sink",
                    (false, None) => "pump source",
                };
                let mut entry = peer.entry(what, &words).of_job(&request.id).runs();
                match take_part(&self, peer.link, &request, streams) {
                    Ok(receipt) => {
                        entry.bytes(receipt.bytes);
                        entry.ends("done");
                    }
                    Err(why) => entry.ends(format!("failed: {why}")),
                }
            }
        }
        true
    }
}

fn take_part(
    service: &TransferService,
    link: &Arc<Link>,
    request: &PumpRequest,
    (mut out, inc): Streams,
) -> Result<PumpReceipt> {
    let refuse = |out: Outgoing, why: Error| {
        let _ = out.abort(&why.to_string());
        Err(why)
    };
    let begun = || {
        let options = options_of(request)?;
        service.check_chain(request.onward.as_deref().unwrap_or_default())?;
        let transport = FromPeer::begin(service, &request.id, link)?;
        let (tree, _) = ends::tree(&options)?;
        Ok((options, transport, tree))
    };
    let (options, transport, tree) = match begun() {
        Ok(begun) => begun,
        Err(why) => return refuse(out, why),
    };
    if request.to.is_some() || (request.dest.is_some() && !request.sources.is_empty()) {
        let mut moved = both_ends((service, link), request, &options, (&mut out, &inc));
        if let Ok(receipt) = &mut moved {
            let errors = std::mem::take(&mut receipt.errors);
            let items = std::mem::take(&mut receipt.items);
            let errors = errors.chunks(LISTED_SOME).map(|some| PumpSaid::LeftOut(some.to_vec()));
            for said in errors.chain(items.chunks(LISTED_SOME).map(|some| PumpSaid::Items(some.to_vec()))) {
                // A client that is gone does not hear the verdict either.
                let _ = message::send(&mut out, &to_json(&said), &[]);
            }
        }
        let verdict = match &moved {
            Ok(receipt) => PumpVerdict::done(receipt.clone()),
            Err(why) => PumpVerdict::failed(why, why.kind()),
        };
        let _ = out.end(to_json(&verdict).as_bytes());
        return moved;
    }
    // The other end learns the outcome from the transfer itself.
    if request.dest.is_some() {
        let cluster = service.cluster();
        let next = || -> Result<_> {
            // The source names the destination itself.
            let dest = ends::dest(&options, &*tree)?;
            let Some([next, rest @ ..]) = request.onward.as_deref() else { return Ok((dest, None)) };
            let (credentials, file) = cluster.as_ref().ok_or(ClusterError::NoIdentity)?;
            let next = ToNode::new(credentials, file, next)?;
            let request = PumpRequest { id: next.id(), onward: Some(rest.to_vec()), ..request.clone() };
            let control = next.begin(&TransferRequest::Pump(Box::new(request))).map_err(no_link)?;
            Ok((dest, Some((next, control))))
        };
        match next() {
            Ok((dest, next)) => {
                let (next, control) = next.unzip();
                let onward = next.as_ref().zip(control);
                let onward = onward.map(|(transport, control)| Onward { transport, control });
                let onward = (onward, request.onward.is_some());
                Ok(receive(&dest, None, (&transport, (out, inc)), onward, &tree, &Unwatched)?)
            }
            Err(why) => refuse(out, why),
        }
    } else {
        match ends::sources(&options, &*tree) {
            Ok(transfer) => Ok(send(&transfer, &transport, (out, inc), &tree, &Unwatched)?),
            Err(why) => refuse(out, why),
        }
    }
}

fn options_of(request: &PumpRequest) -> Result<PumpOptions> {
    let end = |word: &String| end_of(word).ok_or_else(|| Asked::NotAnEnd(word.clone()).into());
    let dest = match (&request.dest, &request.to) {
        (Some(word), None) => end(word)?,
        (None, Some((host, word))) => Endpoint::Host(host.clone(), Box::new(end(word)?)),
        (None, None) if !request.sources.is_empty() => Endpoint::Null,
        _ => return Err(Asked::OneDestination.into()),
    };
    Ok(PumpOptions {
        streams: Some(request.streams as usize).filter(|streams| *streams > 0),
        limit: request.limit,
        resume: request.resume,
        verify: request.verify,
        no_checksum: !request.checksum,
        strict: request.strict,
        choice: request.choice.clone(),
        ..PumpOptions::new(request.sources.iter().map(end).collect::<Result<_>>()?, dest)
    })
}

/// Sends progress and notes of a transfer to the client until it has ended. An error if the client has disconnected.
fn tell_on(
    out: &mut Outgoing,
    inc: &Incoming,
    (progress, notes): (&Progress, &std::sync::mpsc::Receiver<Note>),
    over: &AtomicBool,
) -> thalweg_wire::Result<()> {
    let mut told = (0, 0);
    loop {
        let last = over.load(Ordering::Relaxed);
        for note in notes.try_iter() {
            message::send(out, &to_json(&PumpSaid::Note(note)), &[])?;
        }
        let view = progress.view();
        let now = (view.done_bytes, view.total_bytes);
        if now != told {
            told = now;
            message::send(out, &to_json(&PumpSaid::Progress(now.0, now.1)), &[])?;
        }
        if last {
            return Ok(());
        }
        if inc.is_given_up() {
            return Err(LinkError::new("the client", What::Closed));
        }
        std::thread::park_timeout(LOOK);
    }
}

/// Sends to another node, or copies between directories of this host, while the client is connected, and reports
/// progress to it.
fn both_ends(
    (service, link): (&TransferService, &Arc<Link>),
    request: &PumpRequest,
    options: &PumpOptions,
    (out, inc): (&mut Outgoing, &Incoming),
) -> Result<PumpReceipt> {
    const SIGTERM: i32 = 15;
    let met = match (&request.to, &request.meeting, &service.host) {
        (Some((host, _)), Some(meeting), None) => Some(introduced(host, meeting, link, out)?),
        _ => None,
    };
    let progress = Progress::default();
    let (note, notes) = std::sync::mpsc::channel();
    progress.notes_to(move |line| drop(note.send(line.clone())));
    let done = AtomicBool::new(false);
    let (shown, over) = (&progress, &done);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            if tell_on(out, inc, (shown, &notes), over).is_err() {
                shown.cancel(SIGTERM);
            }
        });
        let cluster = || service.cluster();
        let onward = || request.onward.clone();
        let moved = match (&request.to, &met) {
            (None, _) => thalweg_engine::pump(options, &progress),
            (Some((_, dest)), Some(transport)) => push(transport, (dest.clone(), None), options, &progress),
            (Some((host, dest)), None) => match cluster() {
                Some((credentials, file)) => ToNode::new(&credentials, &file, host)
                    .and_then(|transport| push(&transport, (dest.clone(), onward()), options, &progress)),
                None => Err(ClusterError::NoIdentity.into()),
            },
        };
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        moved
    })
}

#[cfg(test)]
mod tests {
    use thalweg_wire::Terms;

    use super::*;

    #[test]
    fn lanes_beyond_what_all_transfers_may_have_are_refused_in_one_line() {
        let service = TransferService::default();
        let (near, far) = thalweg_wire::pair(Terms::default()).unwrap();
        let (near, far) = (near, Arc::new(far));
        let came = || {
            let ours = near.open(b"lane").unwrap();
            let (_, out, there) = far.accept().unwrap().unwrap();
            service.lane("b", (out, there), &far);
            ours
        };
        // Dropping its outgoing half would abort the stream on this side.
        let refusal = |(_out, mut inc): Streams| inc.next_on().unwrap_err().to_string();
        assert!(refusal(came()).contains("does not know the transfer"));
        let transfers =
            [("a", LANES_MAX - 1), ("b", 1)].map(|(id, count)| (id.to_string(), (Vec::new(), count)));
        service.table.lock().unwrap().extend(transfers);
        assert!(refusal(came()).contains("transfers use 256 streams of this node, the maximum"));
        assert_eq!(service.table.lock().unwrap()["b"].1, 1);
        // A second transfer with the same id does not affect the first.
        assert!(FromPeer::begin(&service, "b", &far).is_err());
        assert_eq!(service.table.lock().unwrap()["b"].1, 1);
    }
}

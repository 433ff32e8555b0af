//! Transfers between hosts: this process is one end of them, or asks two nodes to be the ends.
//!
//! ```text
//! client reads, n1 writes       client ==lanes==> n1
//! n1 reads, client writes       client <==lanes== n1
//! n1 reads, n2 writes           client --asks--> n1 ==lanes==> n2
//! ```
//!
//! Model: whoever begins opens a link for the control stream and one for each lane, so that each lane's thread receives
//! what is its own and two cores can open seals. A node puts lanes together by the transfer's id.
//! Invariant: a node does this only for a peer of the cluster, as the user that it runs as; at most [`PUMPS_MAX`] at once, which
//! have at most [`LANES_MAX`] lanes. What a node that does both ends for a client notices, the client hears.
//! Non-goals: how bytes are moved; that is the transfer crate's.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{
    ClusterFile, ClusterHost, NodeRequest, PumpReceipt, PumpRequest, PumpSaid, PumpVerdict, from_json,
    to_json,
};
use thalweg_engine::{Endpoint, Progress, PumpOptions, ends};
use thalweg_transfer::{FRAME_BYTES, Route, Streams, Watch, Way, escaped, receive, send, unescaped};
use thalweg_wire::{Hands, Incoming, Link, LinkError, Outgoing, Patience, Terms, What, new_id};

use crate::cluster;
use crate::daemon::Node;
use crate::exec::Client;
use crate::ssh_between::introduced;
use crate::talk::{Hearing, say};

/// The most transfers of a node at once.
pub(crate) const PUMPS_MAX: usize = 64;
/// How long lanes may take to come.
const LANES_SECONDS: u64 = 10;
/// The most lanes of all transfers together that a node is asked to be an end of: 9 GiB of blocks, if it is the sink.
const LANES_MAX: usize = 256;
/// How often it is looked whether somebody asked to stop.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) type Result<T> = std::result::Result<T, thalweg_engine::Error>;

pub(crate) fn could_not(why: impl ToString) -> thalweg_engine::Error {
    thalweg_engine::Error::CouldNot(why.to_string())
}

/// Moves files between this machine and a host of the cluster, or between two hosts.
pub fn pump(identity: &Path, options: &PumpOptions, progress: &Progress) -> Result<PumpReceipt> {
    let client = Client::load(identity).map_err(could_not)?;
    let from = sources_host(options)?;
    match (from, &options.dest) {
        (None, Endpoint::Host(host, end)) => {
            push(&ToNode::new(&client.hands, &client.file, host)?, word_of(end)?, options, progress)
        }
        (Some(host), Endpoint::Host(to, end)) => between(&client, &host, to, end, options, progress),
        (Some(host), _) => pull(&ToNode::new(&client.hands, &client.file, &host)?, options, progress),
        (None, _) => Err(could_not("neither end is on another host")),
    }
}

/// A way that begins here, to whom can be asked to be the other end.
pub(crate) trait Asks: Way {
    /// The transfer's id.
    fn id(&self) -> String;
    /// The control stream, with this request. Lanes will follow.
    fn begin(&self, request: &NodeRequest) -> thalweg_wire::Result<Streams>;
}

/// The one host that all sources are on, or none.
fn sources_host(options: &PumpOptions) -> Result<Option<String>> {
    let mut hosts = options.sources.iter().map(|end| match end {
        Endpoint::Host(host, _) => Some(host),
        _ => None,
    });
    let first = hosts.next().flatten();
    match hosts.all(|host| host == first) {
        true => Ok(first.cloned()),
        false => Err(could_not("all sources of a transfer are on one host; make one for each host")),
    }
}

/// Sends from here to the other end.
pub(crate) fn push(
    way: &dyn Asks,
    dest: String,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let (io, fallback) = ends::io(options)?;
    let transfer = ends::sources(options, &io)?;
    let request = PumpRequest { dest: Some(dest), ..request(way, options, Vec::new()) };
    let control = way.begin(&NodeRequest::Pump(request)).map_err(could_not)?;
    let sent = send(&transfer, way, control, &io, &ends::watch(progress));
    if sent.is_err() && progress.cancelled().is_some() {
        let peer = way.peer();
        progress.note(&format!(
            "what came to {peer} is kept there; the same command with --resume goes on from it"
        ));
    }
    let mut receipt = sent.map_err(|e| ends::error(e, progress))?;
    receipt.fallback = fallback;
    Ok(receipt)
}

/// Receives from the other end.
pub(crate) fn pull(way: &dyn Asks, options: &PumpOptions, progress: &Progress) -> Result<PumpReceipt> {
    let (io, fallback) = ends::io(options)?;
    let dest = ends::dest(options, &io)?;
    let request = request(way, options, words_of(options)?);
    let control = way.begin(&NodeRequest::Pump(request)).map_err(could_not)?;
    let asked = paths_of(options);
    let received = receive(&dest, Some((&asked, options.resume)), way, control, &io, &ends::watch(progress));
    let mut receipt = received.map_err(|e| ends::error(e, progress))?;
    receipt.fallback = fallback;
    Ok(receipt)
}

/// Has one host send to another, or move between its own directories.
fn between(
    client: &Client,
    host: &str,
    to: &str,
    end: &Endpoint,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    find(&client.file, to)?;
    let way = ToNode::new(&client.hands, &client.file, host)?;
    let mut request = request(&way, options, words_of(options)?);
    match (host == to, word_of(end)?) {
        (true, word) => request.dest = Some(word),
        (false, word) => request.to = Some((to.to_string(), word)),
    }
    let (_out, inc) = way.open(&NodeRequest::Pump(request)).map_err(could_not)?;
    let hearing = Hearing::new(inc, host, FRAME_BYTES).map_err(could_not)?;
    follow(hearing, &way, to, progress)
}

/// Shows how a transfer goes that another host does for this client, and what comes of it.
pub(crate) fn follow(
    mut hearing: Hearing,
    way: &dyn Way,
    to: &str,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let host = hearing.peer().to_string();
    let done = AtomicBool::new(false);
    let heard = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(LOOK);
                if progress.cancelled().is_some() {
                    way.links().iter().for_each(|link| link.close());
                }
            }
        });
        let heard = show_all(&mut hearing, &ends::watch(progress));
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        heard
    });
    if let Some(signal) = progress.cancelled() {
        return Err(thalweg_engine::Error::Interrupted(signal));
    }
    heard.map_err(|e| ends::error(e.into(), progress))?;
    let said = hearing.result().map(String::from_utf8_lossy).unwrap_or_default();
    let verdict: PumpVerdict = from_json(&said).map_err(|why| could_not(format!("{host}: {why}")))?;
    match (verdict.receipt, verdict.error) {
        (Some(mut receipt), None) => {
            receipt.source.host = host;
            receipt.dest.host = to.to_string();
            Ok(receipt)
        }
        (_, why) => {
            let why = format!("{host}: {}", why.unwrap_or_default());
            Err(if verdict.wrong { thalweg_engine::Error::Wrong(why) } else { could_not(why) })
        }
    }
}

/// Shows what a node says of a transfer, to its end.
fn show_all(hearing: &mut Hearing, shown: &impl Watch) -> std::result::Result<(), LinkError> {
    let (mut all, mut shown_bytes) = (None, 0);
    while let Some((text, _)) = hearing.next()? {
        match from_json(&text) {
            Ok(PumpSaid::Progress(done, total)) => {
                if all != Some(total) {
                    (all, shown_bytes) = (Some(total), 0);
                    shown.begin(total);
                }
                shown.advance(done.saturating_sub(shown_bytes));
                shown_bytes = shown_bytes.max(done);
            }
            Ok(PumpSaid::Note(line)) => shown.note(&line),
            Ok(PumpSaid::Authority(_)) => {}
            Err(why) => return Err(LinkError::new(hearing.peer(), What::Cut(why))),
        }
    }
    Ok(())
}

pub(crate) fn request(way: &dyn Asks, options: &PumpOptions, sources: Vec<String>) -> PumpRequest {
    PumpRequest {
        id: way.id(),
        sources,
        dest: None,
        to: None,
        meeting: None,
        streams: options.streams.map_or(0, |streams| streams as u32),
        limit: options.limit,
        resume: options.resume,
        verify: options.verify,
        checksum: options.checksum,
    }
}

pub(crate) fn words_of(options: &PumpOptions) -> Result<Vec<String>> {
    let of = |end: &Endpoint| match end {
        Endpoint::Host(_, end) => word_of(end),
        Endpoint::Ssh(_, path) => Ok(word_over_ssh(path)),
        end => word_of(end),
    };
    options.sources.iter().map(of).collect()
}

/// The paths that were typed as sources.
fn paths_of(options: &PumpOptions) -> Vec<PathBuf> {
    // The user's own directory goes as it is.
    let over_ssh = |path: &PathBuf| match below_home(path) {
        Some(below) if below.as_os_str().is_empty() => "/~/".into(),
        _ => path.clone(),
    };
    let path = |end: &Endpoint| match end {
        Endpoint::Path(path) => Some(path.clone()),
        Endpoint::Ssh(_, path) => Some(over_ssh(path)),
        Endpoint::Host(_, end) => match &**end {
            Endpoint::Path(path) => Some(over_ssh(path)),
            _ => None,
        },
        _ => None,
    };
    options.sources.iter().filter_map(path).collect()
}

/// A path where ssh goes, if it begins at the user's own directory there; with the slash at its end, which means something.
fn below_home(path: &Path) -> Option<&Path> {
    let below = path.as_os_str().as_bytes().strip_prefix(b"/~")?;
    let below = if below.is_empty() { below } else { below.strip_prefix(b"/")? };
    Some(Path::new(OsStr::from_bytes(below)))
}

/// An end, as one word.
pub(crate) fn word_of(end: &Endpoint) -> Result<String> {
    match end {
        Endpoint::Path(path) => Ok(word_of_path(path)),
        Endpoint::Zeros(bytes) => Ok(format!("zero:{bytes}")),
        Endpoint::Null => Ok("null:".into()),
        _ => Err(could_not("a stream of this process is not on another host")),
    }
}

/// The same of an end where ssh goes: below `/~` it is the user's own directory there.
pub(crate) fn word_over_ssh(path: &Path) -> String {
    match below_home(path) {
        Some(below) => format!("home:{}", escaped(below.as_os_str().as_bytes())),
        None => word_of_path(path),
    }
}

fn word_of_path(path: &Path) -> String {
    format!("path:{}", escaped(path.as_os_str().as_bytes()))
}

fn end_of(word: &str) -> Option<Endpoint> {
    if let Some(below) = word.strip_prefix("home:") {
        let below = PathBuf::from(std::ffi::OsString::from_vec(unescaped(below)?));
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        return home.filter(|_| below.is_relative()).map(|home| Endpoint::Path(home.join(below)));
    }
    if let Some(path) = word.strip_prefix("path:") {
        let path = PathBuf::from(std::ffi::OsString::from_vec(unescaped(path)?));
        return path.is_absolute().then_some(Endpoint::Path(path));
    }
    match word.strip_prefix("zero:") {
        Some(bytes) => bytes.parse().ok().map(Endpoint::Zeros),
        None => (word == "null:").then_some(Endpoint::Null),
    }
}

fn find<'f>(file: &'f ClusterFile, host: &str) -> Result<&'f ClusterHost> {
    let found = file.hosts.iter().find(|other| other.name == host);
    found.ok_or_else(|| could_not(cluster::unknown(file, host)))
}

/// The way to a node, for whoever begins.
struct ToNode<'h> {
    hands: &'h Hands,
    host: ClusterHost,
    terms: Terms,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
    /// One that nothing uses yet.
    spare: Mutex<Option<Arc<Link>>>,
}

impl<'h> ToNode<'h> {
    fn new(hands: &'h Hands, file: &ClusterFile, host: &str) -> Result<ToNode<'h>> {
        let terms = Terms { block_bytes: FRAME_BYTES as u32, patience: Patience::default() };
        let host = find(file, host)?.clone();
        let (links, spare) = (Mutex::default(), Mutex::default());
        Ok(ToNode { hands, host, terms, id: new_id().to_string(), links, spare })
    }

    fn connect(&self) -> thalweg_wire::Result<Arc<Link>> {
        let unreachable = |why: String| LinkError::new(self.host.name.clone(), What::Unreachable(why));
        let address = cluster::address_of(&self.host).map_err(|e| unreachable(e.to_string()))?;
        let link = Arc::new(self.hands.connect(&self.host.name, address, self.terms)?);
        link.keep().map_err(|e| unreachable(e.to_string()))?;
        Ok(link)
    }

    /// A stream on a link of its own.
    fn open(&self, request: &NodeRequest) -> thalweg_wire::Result<Streams> {
        let spare = self.spare.lock().expect("no holder panics").take();
        let link = spare.map_or_else(|| self.connect(), Ok)?;
        let streams = link.open(to_json(request).as_bytes())?;
        self.links.lock().expect("no holder panics").push(link);
        Ok(streams)
    }
}

impl Asks for ToNode<'_> {
    fn id(&self) -> String {
        self.id.clone()
    }

    /// Meanwhile a link is opened for the first lane: a link takes three times the way there and back.
    fn begin(&self, request: &NodeRequest) -> thalweg_wire::Result<Streams> {
        std::thread::scope(|scope| {
            let spare = scope.spawn(|| self.connect());
            let control = self.open(request);
            // Why there is none, who needs it is told when he tries.
            *self.spare.lock().expect("no holder panics") =
                spare.join().expect("connecting does not panic").ok();
            control
        })
    }
}

impl Way for ToNode<'_> {
    fn peer(&self) -> String {
        self.host.name.clone()
    }

    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        let lane = NodeRequest::PumpLane { id: self.id.clone() };
        std::thread::scope(|scope| {
            let opened: Vec<_> = (0..count).map(|_| scope.spawn(|| self.open(&lane))).collect();
            opened.into_iter().map(|lane| lane.join().expect("connecting does not panic")).collect()
        })
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().expect("no holder panics").clone()
    }
}

/// Lanes that have no links of their own share the first, which only ssh's channel is for.
pub(crate) fn route_of(links: &[Arc<Link>]) -> Route {
    if links.len() > 1 { Route::Direct } else { Route::ThroughSsh }
}

/// Lanes that have come and wait for their transfer, each with its link; and how many came in all.
type Lanes = (Vec<(Streams, Arc<Link>)>, usize);

/// The transfers that a node is an end of, by id, each with the lanes that have come.
#[derive(Default)]
pub(crate) struct Pumps {
    table: Mutex<HashMap<String, Lanes>>,
    news: Condvar,
}

impl Pumps {
    /// A lane has come; waits until its transfer is over.
    fn lane(&self, id: &str, streams: Streams, link: &Arc<Link>) {
        let mut table = self.table.lock().expect("no holder panics");
        let all: usize = table.values().map(|(_, count)| count).sum();
        let Some((lanes, count)) = table.get_mut(id) else {
            let _ = streams.0.abort("a lane of a transfer that is not known here");
            return;
        };
        if all >= LANES_MAX {
            let _ = streams.0.abort(&format!(
                "{LANES_MAX} streams of transfers go on here, as many as may; wait for one to end, or give fewer --streams"
            ));
            return;
        }
        *count += 1;
        lanes.push((streams, Arc::clone(link)));
        self.news.notify_all();
        drop(self.news.wait_while(table, |table| table.contains_key(id)).expect("no holder panics"));
    }
}

impl Pumps {
    /// Waits until no transfer goes on, or so long.
    pub(crate) fn rest(&self, patience: Duration) {
        let table = self.table.lock().expect("no holder panics");
        let busy = |table: &mut HashMap<String, Lanes>| !table.is_empty();
        drop(self.news.wait_timeout_while(table, patience, busy).expect("no holder panics"));
    }
}

/// The way to whoever began, for the node that was asked.
struct FromPeer<'n> {
    pumps: &'n Pumps,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
}

impl<'n> FromPeer<'n> {
    fn begin(pumps: &'n Pumps, id: &str, link: &Arc<Link>) -> std::result::Result<FromPeer<'n>, String> {
        let mut table = pumps.table.lock().expect("no holder panics");
        if table.len() >= PUMPS_MAX {
            return Err(format!("{PUMPS_MAX} transfers go on here, as many as may; wait for one to end"));
        }
        if table.contains_key(id) {
            return Err(format!("transfer {id} goes on here already"));
        }
        table.insert(id.to_string(), Lanes::default());
        Ok(FromPeer { pumps, id: id.to_string(), links: Mutex::new(vec![Arc::clone(link)]) })
    }
}

impl Drop for FromPeer<'_> {
    fn drop(&mut self) {
        self.pumps.table.lock().expect("no holder panics").remove(&self.id);
        self.pumps.news.notify_all();
    }
}

impl Way for FromPeer<'_> {
    fn peer(&self) -> String {
        self.links.lock().expect("no holder panics")[0].peer().to_string()
    }

    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        let table = self.pumps.table.lock().expect("no holder panics");
        let few = |table: &mut HashMap<String, Lanes>| table[&self.id].0.len() < count;
        let patience = Duration::from_secs(LANES_SECONDS);
        let (mut table, late) =
            self.pumps.news.wait_timeout_while(table, patience, few).expect("no holder panics");
        if late.timed_out() {
            let why = format!("not all of {count} lanes came within {LANES_SECONDS} s");
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

/// Serves a stream that is about a transfer, to its end. Gives one that is about something else back.
pub(crate) fn serve(node: &Node, link: &Arc<Link>, request: &str, streams: Streams) -> Option<Streams> {
    if matches!(from_json(request), Ok(NodeRequest::PumpLane { .. } | NodeRequest::Pump(_))) {
        let _ = link.keep();
    }
    serve_alone(&node.pumps, Some(node), link, request, streams)
}

/// The same for who may be no node: then other hosts are none of its business.
pub(crate) fn serve_alone(
    pumps: &Pumps,
    node: Option<&Node>,
    link: &Arc<Link>,
    request: &str,
    streams: Streams,
) -> Option<Streams> {
    match from_json::<NodeRequest>(request) {
        Ok(NodeRequest::PumpLane { id }) => pumps.lane(&id, streams, link),
        Ok(NodeRequest::Pump(request)) => {
            let ends = request.sources.iter().chain(&request.dest).cloned();
            let to = request.to.iter().map(|(host, word)| format!("{host}:{word}"));
            let words: Vec<String> = ends.chain(to).collect();
            let what = match (request.sources.is_empty(), &request.dest) {
                (false, Some(_)) => "pump",
                (true, _) => "pump sink",
                (false, None) => "pump source",
            };
            let entry = node.map(|node| node.audit.begin(node.audit.who(link), what, &words));
            let entry = entry.map(|entry| entry.of_job(&request.id).runs());
            let ended = take_part(pumps, node, link, &request, streams);
            if let Some(mut entry) = entry {
                match ended {
                    Ok(receipt) => {
                        entry.bytes(receipt.bytes);
                        entry.ends("done");
                    }
                    Err(why) => entry.ends(format!("failed: {why}")),
                }
            }
        }
        _ => return Some(streams),
    }
    None
}

fn take_part(
    pumps: &Pumps,
    node: Option<&Node>,
    link: &Arc<Link>,
    request: &PumpRequest,
    (mut out, inc): Streams,
) -> std::result::Result<PumpReceipt, String> {
    let refuse = |out: Outgoing, why: String| {
        let _ = out.abort(&why);
        Err(why)
    };
    let (options, way) = match (options_of(request), FromPeer::begin(pumps, &request.id, link)) {
        (Ok(options), Ok(way)) => (options, way),
        (Err(why), _) => return refuse(out, why.to_string()),
        (_, Err(why)) => return refuse(out, why),
    };
    let io = match ends::io(&options) {
        Ok((io, _)) => io,
        Err(why) => return refuse(out, why.to_string()),
    };
    if request.to.is_some() || (request.dest.is_some() && !request.sources.is_empty()) {
        let moved = both_ends((node, link), request, &options, (&mut out, &inc));
        let verdict = match &moved {
            Ok(receipt) => PumpVerdict::done(receipt.clone()),
            Err(why) => PumpVerdict::failed(why, matches!(why, thalweg_engine::Error::Wrong(_))),
        };
        let _ = out.end(to_json(&verdict).as_bytes());
        return moved.map_err(|why| why.to_string());
    }
    // What comes of it the other end hears from the transfer itself.
    if request.dest.is_some() {
        match ends::dest(&options, &io) {
            // Whoever is the source said where it goes as well.
            Ok(dest) => receive(&dest, None, &way, (out, inc), &io, &Alone).map_err(|why| why.to_string()),
            Err(why) => refuse(out, why.to_string()),
        }
    } else {
        match ends::sources(&options, &io) {
            Ok(transfer) => send(&transfer, &way, (out, inc), &io, &Alone).map_err(|why| why.to_string()),
            Err(why) => refuse(out, why.to_string()),
        }
    }
}

fn options_of(request: &PumpRequest) -> Result<PumpOptions> {
    let end = |word: &String| {
        end_of(word).ok_or_else(|| could_not(format!("'{word}' is no end of a transfer on a node")))
    };
    let dest = match (&request.dest, &request.to) {
        (Some(word), None) => end(word)?,
        (None, Some((host, word))) => Endpoint::Host(host.clone(), Box::new(end(word)?)),
        (None, None) if !request.sources.is_empty() => Endpoint::Null,
        _ => return Err(could_not("a transfer has one destination")),
    };
    Ok(PumpOptions {
        streams: Some(request.streams as usize).filter(|streams| *streams > 0),
        limit: request.limit,
        resume: request.resume,
        verify: request.verify,
        checksum: request.checksum,
        ..PumpOptions::new(request.sources.iter().map(end).collect::<Result<_>>()?, dest)
    })
}

/// Tells the client how far a transfer is, and what it should know, until it is over; an error if the client has gone.
fn tell_on(
    out: &mut Outgoing,
    inc: &Incoming,
    (progress, notes): (&Progress, &std::sync::mpsc::Receiver<String>),
    over: &AtomicBool,
) -> thalweg_wire::Result<()> {
    let mut told = (0, 0);
    loop {
        let last = over.load(Ordering::Relaxed);
        for note in notes.try_iter() {
            say(out, &to_json(&PumpSaid::Note(note)), &[])?;
        }
        let view = progress.view();
        let now = (view.done_bytes, view.total_bytes);
        if now != told {
            told = now;
            say(out, &to_json(&PumpSaid::Progress(now.0, now.1)), &[])?;
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

/// Sends to another node for the client, or moves between directories of this host, while the client is there. It is told
/// how far it is, and what it should know.
fn both_ends(
    (node, link): (Option<&Node>, &Arc<Link>),
    request: &PumpRequest,
    options: &PumpOptions,
    (out, inc): (&mut Outgoing, &Incoming),
) -> Result<PumpReceipt> {
    const SIGTERM: i32 = 15;
    let met = match (&request.to, &request.meeting, node) {
        (Some((host, _)), Some(meeting), None) => Some(introduced(host, meeting, link, out)?),
        _ => None,
    };
    let progress = Progress::default();
    let (note, notes) = std::sync::mpsc::channel();
    progress.notes_to(move |line| drop(note.send(line.to_string())));
    let done = AtomicBool::new(false);
    let (shown, over) = (&progress, &done);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            if tell_on(out, inc, (shown, &notes), over).is_err() {
                shown.cancel(SIGTERM);
            }
        });
        let cluster = || {
            let (node, hands) = node.and_then(|node| Some((node, node.hands()?)))?;
            Some((hands, node.cluster.lock().expect("no holder panics").clone()?))
        };
        let moved = match (&request.to, &met) {
            (None, _) => thalweg_engine::pump(options, &progress),
            (Some((_, dest)), Some(way)) => push(way, dest.clone(), options, &progress),
            (Some((host, dest)), None) => match cluster() {
                Some((hands, file)) => ToNode::new(&hands, &file, host)
                    .and_then(|way| push(&way, dest.clone(), options, &progress)),
                None => Err(could_not("this node is of no cluster")),
            },
        };
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        moved
    })
}

/// Nobody looks at a node's own end.
struct Alone;

impl Watch for Alone {
    fn begin(&self, _total_bytes: u64) {}

    fn advance(&self, _bytes: u64) {}

    fn stopped(&self) -> bool {
        false
    }

    fn note(&self, _line: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_beyond_what_all_transfers_may_have_are_refused_in_one_line() {
        let pumps = Pumps::default();
        let (near, far) = thalweg_wire::pair(Terms::default()).unwrap();
        let (near, far) = (near, Arc::new(far));
        let came = || {
            let ours = near.open(b"lane").unwrap();
            let (_, out, there) = far.accept().unwrap().unwrap();
            pumps.lane("b", (out, there), &far);
            ours
        };
        // To drop its own direction would give the stream up on this side.
        let refusal = |(_out, mut inc): Streams| inc.next_on().unwrap_err().to_string();
        assert!(refusal(came()).contains("not known here"));
        let transfers =
            [("a", LANES_MAX - 1), ("b", 1)].map(|(id, count)| (id.to_string(), (Vec::new(), count)));
        pumps.table.lock().unwrap().extend(transfers);
        assert!(refusal(came()).contains("256 streams of transfers go on here, as many as may"));
        assert_eq!(pumps.table.lock().unwrap()["b"].1, 1);
        // The same transfer twice does not harm the first.
        assert!(FromPeer::begin(&pumps, "b", &far).is_err());
        assert_eq!(pumps.table.lock().unwrap()["b"].1, 1);
    }
}

//! A check of files and tables on the nodes of a cluster: the client's side, and a node's.
//!
//! Model: the client opens one stream to every node. Each node examines one piece of the sequence: files of its own, a
//! range of a table, or its share of files that all nodes see. It reports progress, and at the end what it found, with its first
//! and last record. The client joins the pieces in order, so order and duplicates are also counted across their borders.
//! Invariant: a node that fails, disconnects or is silent ends the check, and the error names it. If its client has
//! disconnected, a node stops within [`PROGRESS`]. A node runs at most [`CHECKS_MAX`] at once.
//! Invariant: shared files have the same lengths for all nodes, or the check fails.
//! Non-goals: merging summaries.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use thalweg_api::{
    Check, CheckSaid, CheckShare, ClusterHost, Examined, JobRequest, ServiceRequest, SharedFiles, from_json,
    to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::{
    Asked, AskedOfCluster, CheckOptions, Endpoint, Error, IoChoice, JobFault, Layout, Progress, Result,
    check_joined, check_key, examine, examine_share,
};
use thalweg_io::ReadFiles;
use thalweg_table::cluster::{TableFiles, Tables, is_table};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Cancel, Client, Link, LinkError, Outgoing, Streams, What, message};

use crate::client::{BLOCK_BYTES, Cluster};
use crate::error::{SIGTERM, said_by};
use crate::job_options::{matching, path_of, word_of, word_of_end};
use crate::local::Local;
use crate::node::Node;
use crate::volumes::{self, endpoint_of};

/// The most checks that a node does at once: each has up to 72 MB of blocks.
const CHECKS_MAX: usize = 4;
/// How often a node reports progress, and learns whether the client still listens.
const PROGRESS: Duration = Duration::from_millis(100);
/// How often to check whether the check was cancelled.
const LOOK: Duration = Duration::from_millis(50);
/// The longest first or last record that a node can report, and the longest part of a record before and after its
/// piece: in hexadecimal digits, all four fit in a message.
const END_BYTES_MAX: usize = 500 << 10;
const STACK_BYTES: usize = 256 << 10;

/// Checks that the nodes' own files, those of each host in turn, or tables, are one sorted sequence.
pub fn check(cluster: &Cluster, options: &CheckOptions, progress: &Progress) -> Result<Check> {
    let watch = Stopwatch::start();
    check_key(options)?;
    let client = Arc::new(Client::load_named(&cluster.identity, cluster.name.as_deref())?);
    let pieces = pieces(cluster, options, &client)?;
    let cancel = Cancel::default();
    let (tell, said) = channel();
    for (index, (host, share)) in pieces.iter().enumerate() {
        let ask = Ask {
            index,
            client: client.clone(),
            host: host.clone(),
            request: JobRequest::Check(share.clone()).text(),
            cancel: cancel.clone(),
            tell: tell.clone(),
        };
        let thread = std::thread::Builder::new().name(host.name.clone()).stack_size(STACK_BYTES);
        thread.spawn(move || ask.run()).map_err(|e| JobFault::Thread("hear a node", e))?;
    }
    drop(tell);
    let heard = hear(&said, pieces.len(), progress);
    if heard.is_err() {
        cancel.cancel(SIGTERM);
    }
    let pieces: Vec<_> = pieces.into_iter().map(|(host, _)| host.name).zip(heard?).collect();
    let same_files = |pair: &&[(String, Examined)]| pair[0].1.lengths == pair[1].1.lengths;
    if let Some(pair) = pieces.windows(2).find(|pair| !same_files(pair)) {
        return Err(JobFault::DifferentInputs(pair[0].0.clone(), pair[1].0.clone()).into());
    }
    check_joined(options, pieces, &watch)
}

/// The results of all nodes, in their order.
fn hear(said: &Receiver<Said>, count: usize, progress: &Progress) -> Result<Vec<Examined>> {
    let mut found: Vec<Option<Examined>> = vec![None; count];
    let mut shown = Shown { progress, done: vec![None; count], bytes: 0 };
    while found.iter().any(Option::is_none) {
        if let Some(signal) = progress.cancelled() {
            return Err(Error::Interrupted(signal));
        }
        match said.recv_timeout(LOOK) {
            Ok((node, Ok(CheckSaid::Done(examined)))) => {
                let all = shown.done[node].map_or(examined.proof.bytes, |(_, all)| all);
                shown.advance(node, (all, all));
                found[node] = Some(*examined);
            }
            Ok((node, Ok(CheckSaid::Progress(bytes, all)))) => shown.advance(node, (bytes, all)),
            Ok((_, Err(why))) => return Err(why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(JobFault::Silence.into()),
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// The progress of all nodes, as it is shown.
struct Shown<'p> {
    progress: &'p Progress,
    /// For each node the bytes that it has examined, and the total; `None` until it has reported that.
    done: Vec<Option<(u64, u64)>>,
    /// The sum of these bytes that is shown.
    bytes: u64,
}

impl Shown<'_> {
    fn advance(&mut self, node: usize, done: (u64, u64)) {
        let begun = self.done.iter().all(Option::is_some);
        self.done[node] = Some(done);
        // The total is known when all nodes have reported theirs.
        let Some(known) = self.done.iter().copied().collect::<Option<Vec<_>>>() else { return };
        if !begun {
            self.progress.begin(
                "check",
                1,
                1,
                known.iter().map(|(_, all)| *all).fold(0, u64::saturating_add),
            );
        }
        let bytes = known.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
        self.progress.advance(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.max(bytes);
    }
}

/// A message of one node, or why none will follow.
type Said = (usize, Result<CheckSaid>);

/// The request to one node.
struct Ask {
    index: usize,
    client: Arc<Client>,
    host: ClusterHost,
    request: String,
    cancel: Cancel,
    tell: Sender<Said>,
}

impl Ask {
    fn run(self) {
        if let Err(why) = self.hear() {
            let _ = self.tell.send((self.index, Err(why)));
        }
    }

    fn hear(&self) -> Result<()> {
        let link = self.client.kept_link(&self.host, BLOCK_BYTES)?;
        let (mut out, inc) = link.open(self.request.as_bytes())?;
        let mut hearing = message::Reader::new(inc, &self.host.name, FRAME_BYTES)?;
        self.cancel.watch(&link);
        loop {
            let heard = hearing.next().map_err(|why| self.named(&why))?;
            let (text, _) = heard.ok_or_else(|| JobFault::Ended(self.host.name.clone()))?;
            let said: CheckSaid = from_json(&text).map_err(|why| said_by(&self.host.name, why))?;
            let last = matches!(said, CheckSaid::Done(_));
            let _ = self.tell.send((self.index, Ok(said)));
            if last {
                let _ = out.end(&[]);
                return Ok(());
            }
        }
    }

    fn named(&self, why: &LinkError) -> Error {
        match &why.what {
            What::Aborted(text) => said_by(&self.host.name, text),
            _ => said_by(&self.host.name, why),
        }
    }
}

/// The pieces of the sequence, in order, each with the host that examines it.
fn pieces(
    cluster: &Cluster,
    check: &CheckOptions,
    client: &Client,
) -> Result<Vec<(ClusterHost, CheckShare)>> {
    if check.header > 0 {
        return Err(Asked::HeaderOnNodes.into());
    }
    if check.merge || check.io != IoChoice::Auto {
        return Err(AskedOfCluster::CheckOptions.into());
    }
    let hosts = client.hosts(&cluster.on)?;
    let share = |inputs: &[String], shared: Option<SharedFiles>| CheckShare {
        inputs: inputs.to_vec(),
        shared,
        layout: check.layout.form(),
        keys: check.keys.clone(),
    };
    let (mut words, mut tables) = (Vec::new(), Vec::new());
    for input in &check.inputs {
        match input {
            Endpoint::Table(_) => tables.push(input.to_string()),
            Endpoint::Nodes(_) | Endpoint::Volume(_) | Endpoint::Path(_) => words.push(word_of_end(input)?),
            other => return Err(AskedOfCluster::CheckedFile(other.clone()).into()),
        }
    }
    if tables.is_empty() {
        let shared = volumes::of_check(check, &client.file().name, hosts.len())?;
        let are_own = |input: &Endpoint| matches!(input, Endpoint::Nodes(_));
        if check.inputs.iter().any(are_own) && !check.inputs.iter().all(are_own) {
            return Err(AskedOfCluster::SomeInputs("nodes:").into());
        }
        let of_host = |(index, host)| {
            let shared = shared.clone().map(|share| SharedFiles { index, ..share });
            (host, share(&words, shared))
        };
        return Ok(hosts.into_iter().enumerate().map(of_host).collect());
    }
    if !words.is_empty() {
        return Err(AskedOfCluster::SomeInputs("table:").into());
    }
    let files = TableFiles::new(Tables::load(&cluster.identity, cluster.name.as_deref())?);
    let mut pieces = Vec::new();
    for table in tables {
        let parts = files.divided(Path::new(&table), hosts.len())?;
        let piece =
            |(host, part): (&ClusterHost, String)| (host.clone(), share(&[word_of(Path::new(&part))], None));
        pieces.extend(hosts.iter().zip(parts).map(piece));
    }
    Ok(pieces)
}

/// One of the checks that a node does at once.
struct Place<'n>(&'n AtomicUsize);

impl Place<'_> {
    fn take(checks: &AtomicUsize) -> Result<Place<'_>> {
        let had = checks.fetch_add(1, Ordering::Relaxed);
        let place = Place(checks);
        if had < CHECKS_MAX {
            return Ok(place);
        }
        Err(JobFault::ChecksMax(CHECKS_MAX).into())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a stream on which a check was requested, to its end.
pub(crate) fn serve(local: &Local, link: &Link, request: &CheckShare, (mut out, inc): Streams) {
    // To want no more before the end would abort the stream.
    let mut hearing = match message::Reader::new(inc, link.peer(), FRAME_BYTES) {
        Ok(hearing) => hearing,
        Err(why) => return drop(out.abort(&why.to_string())),
    };
    match take_part(local, request, &mut out) {
        Ok(()) => {
            let _ = out.end(&[]);
            while let Ok(Some(_)) = hearing.next() {}
        }
        Err(why) => drop(out.abort(&why.to_string())),
    }
}

fn take_part(local: &Local, request: &CheckShare, out: &mut Outgoing) -> Result<()> {
    let _place = Place::take(&local.checks)?;
    let (options, files) = options_of(&*local.node, request)?;
    let shared = match &request.shared {
        Some(share) => {
            let volume = share.volume.as_ref().map(|volume| local.node.volume(volume)).transpose()?;
            Some((volume, share))
        }
        None => None,
    };
    let progress = Progress::default();
    let (stretch, lengths) = std::thread::scope(|scope| {
        let (end, ended) = channel();
        let (options, progress) = (&options, &progress);
        let examine = move || {
            drop(end.send(match shared {
                Some((volume, share)) => examine_share(options, volume, share, progress),
                None => examine(options, files, progress).map(|stretch| (stretch, Vec::new())),
            }))
        };
        let thread = std::thread::Builder::new().name("examine".into()).spawn_scoped(scope, examine);
        thread.map_err(|e| JobFault::Thread("examine files", e))?;
        let mut heard = true;
        loop {
            match ended.recv_timeout(PROGRESS) {
                Ok(examined) => return examined,
                Err(RecvTimeoutError::Disconnected) => return Err(JobFault::Silence.into()),
                Err(RecvTimeoutError::Timeout) if heard => {
                    let view = progress.view();
                    heard = tell(out, &CheckSaid::Progress(view.done_bytes, view.total_bytes)).is_ok();
                }
                // Stops at its next look.
                Err(RecvTimeoutError::Timeout) => progress.cancel(SIGTERM),
            }
        }
    })?;
    let examined = Examined { lengths, ..stretch.examined() };
    let lengths = examined.ends.iter().map(|end| end.record.len());
    let longest = lengths.chain([examined.head.len(), examined.open.len()]).max().unwrap_or(0);
    if longest > END_BYTES_MAX {
        return Err(JobFault::LongEnd { bytes: longest as u64, max: END_BYTES_MAX as u64 }.into());
    }
    tell(out, &CheckSaid::Done(Box::new(examined)))
}

fn tell(out: &mut Outgoing, said: &CheckSaid) -> Result<()> {
    Ok(message::send(out, &to_json(said), &[])?)
}

/// The options of the check, resolved on this host, and the file system of tables.
fn options_of(node: &dyn Node, request: &CheckShare) -> Result<(CheckOptions, Option<Arc<dyn ReadFiles>>)> {
    let named = request.inputs.iter().map(|word| path_of(word)).collect::<Result<Vec<_>>>()?;
    let are_tables = request.shared.is_none() && named.iter().any(|path| is_table(path));
    let files = are_tables.then(|| node.tables().map(TableFiles::new)).transpose()?;
    let own = |paths: Vec<PathBuf>| paths.into_iter().map(Endpoint::Path).collect();
    let inputs = match request.shared {
        Some(_) => request.inputs.iter().map(|word| endpoint_of(word)).collect::<Result<_>>()?,
        None if are_tables => own(named),
        None => own(matching(node, &request.inputs)?),
    };
    let options = CheckOptions {
        inputs,
        layout: Layout::of(&request.layout),
        keys: request.keys.clone(),
        header: 0,
        summary: None,
        merge: false,
        io: IoChoice::Auto,
    };
    Ok((options, files.map(|files| Arc::new(files) as _)))
}

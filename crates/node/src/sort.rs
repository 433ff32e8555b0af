//! A sort on the nodes of a cluster, as whoever asks for it sees it.
//!
//! Model: one stream to every node, in the steps that `thalweg_api`'s `share` shows; a thread hears each of them, and
//! what they say goes through one queue.
//! Law: nothing gets its name before every node has written all of its range, and the proofs of all shares, joined in
//! the order of their ranges, hold. If a node fails or goes, or this process does, all give up and leave nothing.
//! Non-goals: going on without a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use thalweg::share::{cuts, deal, origin, receipt};
use thalweg::{Endpoint, Error, Layout, Progress, Receipt, Result, Size, SortOptions};
use thalweg_api::{
    ClusterHost, ClusterPlan, Edge, NodeRequest, ShareEnd, ShareSaid, ShareTold, SortShare, from_json,
    to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process;
use thalweg_record::{Cut, pack_cuts, unpack_cuts};
use thalweg_wire::{Link, LinkError, Outgoing, What, new_id};

use crate::exec::Client;
use crate::plan::{self, Found, FoundOf, shares};
use crate::pump::could_not;
use crate::share::{FOLLOWS, word_of};
use crate::talk::{Hearing, say};

/// Bytes of a frame to and from a node.
const BLOCK_BYTES: usize = 256 << 10;
/// How often somebody looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long to hear on when one has failed, for another may know better why.
const CAUSE: Duration = Duration::from_millis(700);
/// Bytes of the keys of one node's sample.
const SAMPLE_BYTES: usize = 256 << 20;
const STACK_BYTES: usize = 256 << 10;

/// What to sort, and where.
#[derive(Debug, Clone)]
pub struct ClusterSort {
    /// The directory of the client's identity.
    pub identity: PathBuf,
    /// The name that its cluster is to have, if one was said.
    pub name: Option<String>,
    /// The hosts; none means all.
    pub on: Vec<String>,
    /// What is sorted and how. Memory and scratch are of each node.
    pub sort: SortOptions,
    /// Whether each node has inputs of its own, by patterns; else all have the same files.
    pub own_inputs: bool,
    /// Whether each node writes its range to a file of its own; else all write to the same.
    pub own_output: bool,
    /// Whether all nodes have equal shares, however fast they are.
    pub equal: bool,
}

/// Sorts files on the nodes of a cluster. The receipt's law: out + dropped = in, and out is in order from each node's
/// range to the next's.
pub fn sort(asked: &ClusterSort, progress: &Progress) -> Result<Receipt> {
    let watch = Stopwatch::start();
    let client = client_of(asked)?;
    let hosts = client.hosts(&asked.on).map_err(could_not)?;
    let mut nodes = Nodes::ask(&client, &hosts, asked, progress)?;
    let planned = |found: &Found| plan::kept(asked, &client.file, &hosts, found);
    let outcome = nodes.sort(asked, &watch, &planned);
    if outcome.is_err() {
        nodes.links.iter().for_each(|link| link.close());
    }
    outcome
}

/// The client of the cluster that is meant.
pub(crate) fn client_of(asked: &ClusterSort) -> Result<Client> {
    let client = Client::load(&asked.identity).map_err(could_not)?;
    if let Some(name) = asked.name.as_ref().filter(|name| **name != client.file.name) {
        let (of, directory) = (&client.file.name, asked.identity.display());
        return Err(could_not(format!(
            "the identity in {directory} is of cluster {of}, not of {name}; give the directory of the other with --cluster"
        )));
    }
    Ok(client)
}

/// What the nodes would have to sort, and nothing comes of it.
pub(crate) fn found(client: &Client, hosts: &[ClusterHost], asked: &ClusterSort) -> Result<Found> {
    let nobody = Progress::default();
    let mut nodes = Nodes::ask(client, hosts, asked, &nobody)?;
    let found = nodes.found(asked);
    nodes.links.iter().for_each(|link| link.close());
    found
}

/// What one node said, or why it says nothing more.
type Said = (usize, std::result::Result<(ShareSaid, Vec<u8>), LinkError>);

/// All nodes that take part.
struct Nodes<'a> {
    names: Vec<String>,
    links: Vec<Arc<Link>>,
    outs: Vec<Outgoing>,
    said: Receiver<Said>,
    progress: &'a Progress,
    /// What each has read and written, and how long its range is.
    done: Vec<(u64, u64)>,
    ranges: Vec<Option<u64>>,
    /// How many know where theirs begins.
    starts_told: usize,
    /// Bytes of all inputs, and whether they have crossed the river.
    all_bytes: u64,
    crossed: bool,
}

impl<'a> Nodes<'a> {
    /// Opens a link to each of them, all at once, and asks.
    fn ask(
        client: &Client,
        hosts: &[ClusterHost],
        asked: &ClusterSort,
        progress: &'a Progress,
    ) -> Result<Nodes<'a>> {
        let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
        let job = new_id().to_string();
        let requests = (0..hosts.len()).map(|index| request(asked, &job, &names, index));
        let requests: Vec<SortShare> = requests.collect::<Result<_>>()?;
        let opened = std::thread::scope(|scope| {
            let opening: Vec<_> = hosts
                .iter()
                .zip(&requests)
                .map(|(host, request)| scope.spawn(move || open(client, host, request)))
                .collect();
            let joined = opening.into_iter().map(|opening| opening.join().expect("nothing here panics"));
            joined.collect::<Vec<_>>()
        });
        let (tell, said) = channel();
        let (mut links, mut outs) = (Vec::with_capacity(hosts.len()), Vec::with_capacity(hosts.len()));
        for (i, opened) in opened.into_iter().enumerate() {
            let (link, out, mut hearing) = opened?;
            let tell = tell.clone();
            let hear = move || {
                loop {
                    let heard = hearing.next().and_then(|heard| parsed(heard, &hearing));
                    let last = matches!(heard, Err(_) | Ok((ShareSaid::Published, _)));
                    if tell.send((i, heard)).is_err() || last {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("share".into()).stack_size(STACK_BYTES);
            thread.spawn(hear).map_err(|e| could_not(format!("no thread to hear a node with: {e}")))?;
            links.push(link);
            outs.push(out);
        }
        Ok(Nodes {
            links,
            outs,
            said,
            progress,
            done: vec![(0, 0); names.len()],
            ranges: vec![None; names.len()],
            starts_told: 0,
            all_bytes: 0,
            crossed: false,
            names,
        })
    }

    /// What all of them find.
    fn found(&mut self, asked: &ClusterSort) -> Result<Found> {
        let nodes = self.each(|said, _| match said {
            ShareSaid::Found { input_bytes, memory_bytes, rates } => {
                Some(FoundOf { input_bytes, memory_bytes, rates })
            }
            _ => None,
        })?;
        let first_bytes = nodes[0].input_bytes;
        if let Some(other) =
            nodes.iter().position(|other| !asked.own_inputs && other.input_bytes != first_bytes)
        {
            let ([first, ..], other) = (&self.names[..], &self.names[other]) else {
                unreachable!("there are two")
            };
            return Err(could_not(format!(
                "{first} and {other} do not see the same files; give what each has as nodes:FILES"
            )));
        }
        let given = match asked.sort.memory {
            Some(Size::Bytes(bytes)) => Some(bytes),
            Some(Size::Percent(_)) => return Err(could_not("--memory of a cluster's nodes is in bytes")),
            None => None,
        };
        let least = || nodes.iter().map(|node| node.memory_bytes).min().unwrap_or(0);
        let all_bytes = match asked.own_inputs {
            true => nodes.iter().map(|node| node.input_bytes).sum(),
            false => first_bytes,
        };
        Ok(Found { all_bytes, memory_bytes: given.unwrap_or_else(least), nodes })
    }

    fn sort(
        &mut self,
        asked: &ClusterSort,
        watch: &Stopwatch,
        planned: &dyn Fn(&Found) -> Option<ClusterPlan>,
    ) -> Result<Receipt> {
        let count = self.names.len();
        let found = self.found(asked)?;
        let plan = planned(&found);
        let Found { all_bytes, memory_bytes, .. } = found;
        self.all_bytes = all_bytes;
        self.progress.begin("sample", 1, 3, 0);
        self.tell_all(&ShareTold::Sample { memory_bytes, all_bytes }, &[])?;
        let sampled = self.each(|said, sample| match said {
            ShareSaid::Sampled { pages, shared } => {
                unpack_cuts(&sample, SAMPLE_BYTES).map(|sample| (pages, shared, sample))
            }
            _ => None,
        })?;
        let mut pages: Vec<u64> = sampled.iter().map(|(pages, ..)| pages.0).collect();
        let shared = sampled[0].1.clone();
        let mut sample: Vec<Cut> = Vec::new();
        for (node, ((_, page_bytes), _, keys)) in sampled.into_iter().enumerate() {
            let moved = |cut: Cut| match asked.own_inputs {
                true => Cut { origin: origin(node, &pages, page_bytes, cut.origin), ..cut },
                false => cut,
            };
            sample.extend(keys.into_iter().map(moved));
        }
        let [reads, ranges] = shares(plan.as_ref(), count);
        if !asked.own_inputs {
            pages = deal(pages[0], &reads);
        }
        let packed = pack_cuts(&mut cuts(&asked.sort, sample, &ranges)?);
        self.progress.begin("read+river", 2, 3, all_bytes);
        for (node, range_bytes) in deal(all_bytes, &ranges).into_iter().enumerate() {
            let go = ShareTold::Go { pages: pages.clone(), range_bytes, shared: shared.clone() };
            self.tell(node, &go, &packed)?;
        }
        self.tell_starts()?;
        let ends = self.each(|said, _| match said {
            ShareSaid::Done(end) => Some(*end),
            _ => None,
        })?;
        let files = ends.iter().map(|end| end.node.input.1);
        let input_file_bytes = if asked.own_inputs { files.sum() } else { files.max().unwrap_or(0) };
        let mut receipt =
            receipt(&asked.sort, &ends, (input_file_bytes, memory_bytes), (watch.seconds(), 0.0))?;
        if let Some(plan) = &plan {
            for (stage, said) in receipt.stages.iter_mut().zip(&plan.stages) {
                stage.predicted_seconds = Some(said.seconds);
            }
        }
        if receipt.holds {
            self.publish(asked, &ends)?;
            receipt.seconds = watch.seconds();
        }
        receipt.cpu_seconds += process::usage().cpu_seconds;
        Ok(receipt)
    }

    /// Has all outputs named.
    fn publish(&mut self, asked: &ClusterSort, ends: &[ShareEnd]) -> Result<()> {
        let edges =
            |ends: &[ShareEnd]| -> Vec<Edge> { ends.iter().flat_map(|end| end.edges.clone()).collect() };
        for (i, end) in ends.iter().enumerate() {
            let told = match (asked.own_output, i) {
                (true, _) => ShareTold::Publish { bytes: end.node.output.1, edges: end.edges.clone() },
                (false, 0) => {
                    let bytes = ends.iter().map(|end| end.node.output.1).sum();
                    ShareTold::Publish { bytes, edges: edges(ends) }
                }
                (false, _) => ShareTold::Publish { bytes: 0, edges: Vec::new() },
            };
            self.tell(i, &told, &[])?;
        }
        self.each(|said, _| matches!(said, ShareSaid::Published).then_some(()))?;
        for out in &mut self.outs {
            let _ = out.end(&[]);
        }
        Ok(())
    }

    fn tell(&mut self, node: usize, told: &ShareTold, behind: &[u8]) -> Result<()> {
        say(&mut self.outs[node], &to_json(told), behind).map_err(|why| self.cause(node, why))
    }

    fn tell_all(&mut self, told: &ShareTold, behind: &[u8]) -> Result<()> {
        (0..self.names.len()).try_for_each(|node| self.tell(node, told, behind))
    }

    /// What each of them says next beside how far it is.
    fn each<T>(&mut self, mut what: impl FnMut(ShareSaid, Vec<u8>) -> Option<T>) -> Result<Vec<T>> {
        let mut all: Vec<Option<T>> = self.names.iter().map(|_| None).collect();
        while all.iter().any(Option::is_none) {
            if let Some(signal) = self.progress.cancelled() {
                return Err(Error::Interrupted(signal));
            }
            match self.said.recv_timeout(LOOK) {
                Ok((node, Ok((ShareSaid::Progress(read, written), _)))) => {
                    self.advance(node, (read, written));
                }
                Ok((node, Ok((ShareSaid::Range(bytes), _)))) => {
                    self.ranges[node] = Some(bytes);
                    self.tell_starts()?;
                }
                Ok((node, Ok((said, behind)))) => {
                    let name = &self.names[node];
                    let said = what(said, behind);
                    let said =
                        said.ok_or_else(|| could_not(format!("{name} said what has another place")))?;
                    all[node] = Some(said);
                }
                Ok((node, Err(why))) => return Err(self.cause(node, why)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(could_not("no node is heard any more")),
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Tells those where their ranges begin whose neighbours have said how long theirs are.
    fn tell_starts(&mut self) -> Result<()> {
        let mut at = 0;
        for node in 0..self.names.len() {
            let last = node.checked_sub(1).map_or(Some(0), |before| self.ranges[before]);
            let Some(before) = last else { break };
            at += before;
            if self.starts_told <= node {
                self.starts_told = node + 1;
                self.tell(node, &ShareTold::Start(at), &[])?;
            }
        }
        Ok(())
    }

    fn advance(&mut self, node: usize, done: (u64, u64)) {
        let before = std::mem::replace(&mut self.done[node], done);
        let read: u64 = self.done.iter().map(|done| done.0).sum();
        if self.crossed {
            self.progress.advance(done.1.saturating_sub(before.1));
        } else {
            self.progress.advance(done.0.saturating_sub(before.0));
            if read >= self.all_bytes {
                self.crossed = true;
                self.progress.begin("sort+write", 3, 3, self.all_bytes);
                self.progress.advance(self.done.iter().map(|done| done.1).sum());
            }
        }
    }

    /// The best reason that can be had for a sort that fails because of this: a node that cannot be heard tells more
    /// than one that gave up, and that one more than those that only miss another.
    fn cause(&self, node: usize, why: LinkError) -> Error {
        let rank = |why: &LinkError| match &why.what {
            What::Aborted(text) if text.starts_with(FOLLOWS) => 2,
            What::Aborted(_) => 1,
            _ => 0,
        };
        let mut best = (node, why);
        let late = Stopwatch::start();
        while rank(&best.1) > 0 && late.seconds() < CAUSE.as_secs_f64() {
            if let Ok((node, Err(why))) = self.said.recv_timeout(LOOK)
                && rank(&why) < rank(&best.1)
            {
                best = (node, why);
            }
        }
        let name = &self.names[best.0];
        could_not(match best.1.what {
            What::Aborted(why) => format!("{name}: {}", why.trim_start_matches(FOLLOWS)),
            _ => format!("{name}: {}; no output has its name, and all inputs are as they were", best.1),
        })
    }
}

/// What a node said, as an object; that it says no more is an error.
fn parsed(
    heard: Option<(String, Vec<u8>)>,
    hearing: &Hearing,
) -> std::result::Result<(ShareSaid, Vec<u8>), LinkError> {
    let wrong = |why: String| LinkError::new(hearing.peer(), What::Cut(why));
    let (text, behind) = heard.ok_or_else(|| LinkError::new(hearing.peer(), What::Closed))?;
    Ok((from_json(&text).map_err(wrong)?, behind))
}

fn open(client: &Client, host: &ClusterHost, request: &SortShare) -> Result<(Arc<Link>, Outgoing, Hearing)> {
    let link = Arc::new(client.link(host, BLOCK_BYTES).map_err(could_not)?);
    link.keep().map_err(|e| could_not(format!("no thread for a link is left: {e}")))?;
    let request = to_json(&NodeRequest::Sort(request.clone()));
    let (out, inc) = link.open(request.as_bytes()).map_err(could_not)?;
    let hearing = Hearing::new(inc, &host.name, BLOCK_BYTES).map_err(could_not)?;
    Ok((link, out, hearing))
}

fn request(asked: &ClusterSort, job: &str, names: &[String], index: usize) -> Result<SortShare> {
    let sort = &asked.sort;
    let path = |endpoint: &Endpoint, own: bool| match endpoint {
        Endpoint::Path(path) if own => Ok(word_of(path)),
        // What all nodes have is named from the root.
        Endpoint::Path(path) => std::path::absolute(path).map(|path| word_of(&path)).map_err(could_not),
        Endpoint::Standard => {
            Err(could_not("nodes read and write files, and '-' is a stream of this process"))
        }
    };
    let scratch_limit = match sort.scratch_limit {
        Some(Size::Percent(_)) => return Err(could_not("--scratch-limit of a cluster's nodes is in bytes")),
        Some(Size::Bytes(bytes)) => Some(bytes),
        None => None,
    };
    Ok(SortShare {
        job: job.to_string(),
        hosts: names.to_vec(),
        index,
        inputs: sort.inputs.iter().map(|input| path(input, asked.own_inputs)).collect::<Result<_>>()?,
        own_inputs: asked.own_inputs,
        output: path(&sort.output, asked.own_output)?,
        own_output: asked.own_output,
        record: match sort.layout {
            Layout::Fixed(bytes) => Some(bytes),
            Layout::Lines => None,
        },
        keys: sort.keys.iter().map(|part| (part.offset, part.length, part.descending)).collect(),
        unique: sort.unique,
        scratch: sort.scratch.iter().map(|path: &PathBuf| word_of(Path::new(path))).collect(),
        scratch_limit,
        threads: sort.threads,
    })
}

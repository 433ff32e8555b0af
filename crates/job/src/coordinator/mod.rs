//! The coordinator of a job on several nodes: a client, or one of the nodes.
//!
//! Model: it opens one stream to every participant, for the whole job, and takes them through the steps that
//! `thalweg_api::ToParticipant` lists. A thread reads each stream, and all messages go through one queue. If a node is
//! lost or has no room, and the others have the same inputs, all stop and the rest begin again: an attempt is a whole
//! sort.
//! Invariant: nothing gets its name before every node of an attempt has written all of its range, and the proofs of all
//! participants, joined in the order of their ranges, hold. No attempt begins before every live node has reported that
//! nothing of the one before is left, and the file that a lost node may still write to is removed before the next is
//! made. There are at most [`ATTEMPTS_MAX`].
//! Non-goals: keeping anything of an attempt that failed, except what [`lost_range`] says.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use thalweg_api::{
    AttemptEnd, FromParticipant, JobAttempt, JobRequest, JobSpec, JobState, ParticipantEnd, ServiceRequest,
    ToParticipant, Trouble, Work, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::participant::{ClientOutput, KeyRange, deal, origins, receipt};
use thalweg_engine::{Error, JobFault, Progress, Receipt, Result, WorkOptions};
use thalweg_io::process;
use thalweg_record::{SplitPoint, pack_sample, unpack_sample};
use thalweg_wire::{Link, Outgoing, message};

use crate::client_served::Server;
use crate::error::said_by;
use crate::inbox::stood_still;
use crate::job_options::{options_of, range_of};
use crate::local::Local;
use crate::plan::{self, Found, FoundOf};
use crate::ranges::{self, Ranges};

mod failure;
mod lost_range;
pub(crate) mod outputs;
mod streams;
mod votes;

use failure::{Failure, Reason, reason_of};
use lost_range::Kept;
pub(crate) use streams::Reach;
use streams::{Said, hear, open};

/// The most attempts of one job.
pub(crate) const ATTEMPTS_MAX: usize = 5;
/// How often to check whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long nodes may take to acknowledge the end.
const END_SECONDS: f64 = 1.0;
/// Bytes of the keys of one node's sample.
const SAMPLE_BYTES: usize = 256 << 20;

type Attempted<T> = std::result::Result<T, Failure>;
/// What each node answered, and which node was lost, if any, and why.
type AllBut<T> = (Vec<Option<T>>, Option<(usize, Reason, String)>);

/// A participant, as the coordinator sees it.
struct Peer {
    id: usize,
    name: String,
    link: Arc<Link>,
    out: Outgoing,
    /// What it has read and written, and how long its range is.
    done: (u64, u64),
    range: Option<u64>,
}

/// Whose messages a wait is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Those of all participants.
    All,
    /// Those of all participants, of which one may be lost.
    AllButLost,
    /// Those of the participant at this place; failures of others are ignored.
    Only(usize),
}

impl Whose {
    fn includes(self, place: usize) -> bool {
        !matches!(self, Whose::Only(only) if only != place)
    }
}

/// The coordinator of a job.
pub(crate) struct Coordinator<'a> {
    job: JobSpec,
    sort: WorkOptions,
    reach: Reach<'a>,
    progress: &'a Progress,
    watch: Stopwatch,
    tell: Sender<Said>,
    said: Receiver<Said>,
    peers: Vec<Peer>,
    /// How many participants were sent the beginning of their range.
    starts_told: usize,
    /// The place in this attempt of a node that is lost, while the others still write their ranges.
    spared: Option<usize>,
    /// What was kept of the attempt before.
    kept: Option<Kept>,
    /// Bytes of all inputs, and whether all of them have crossed the river.
    all_bytes: u64,
    crossed: bool,
    /// Whether some node may have given its own output its final name.
    names: bool,
    /// The node that coordinates, if the client does not: then the job's hosts vote on each attempt.
    node: Option<Arc<Local>>,
    /// Whether the job was cancelled at a node.
    cancelled: bool,
    /// Whether a node ran out of room.
    full: bool,
    /// The output that this client serves, and its server.
    lent: Option<(Arc<Server>, ClientOutput)>,
}

impl<'a> Coordinator<'a> {
    /// The coordinator of this job, on hosts that `reach` connects to.
    pub(crate) fn new(job: JobSpec, reach: Reach<'a>, progress: &'a Progress) -> Result<Coordinator<'a>> {
        let (tell, said) = channel();
        Ok(Coordinator {
            sort: options_of(&job.ask)?,
            job,
            reach,
            progress,
            watch: Stopwatch::start(),
            tell,
            said,
            peers: Vec::new(),
            starts_told: 0,
            spared: None,
            kept: None,
            all_bytes: 0,
            crossed: false,
            names: false,
            node: None,
            cancelled: false,
            full: false,
            lent: None,
        })
    }

    /// Adds an output that this client serves.
    pub(crate) fn lending(self, lent: Option<(Arc<Server>, ClientOutput)>) -> Coordinator<'a> {
        Coordinator { lent, ..self }
    }

    /// Makes this node coordinate, without its client.
    pub(crate) fn of_node(self, node: &Arc<Local>) -> Coordinator<'a> {
        Coordinator { node: Some(Arc::clone(node)), ..self }
    }

    /// Runs the job to its end, and tells all nodes how it ended. The receipt's invariant: out + dropped = in, and the
    /// output is in order from each node's range to the next.
    pub(crate) fn run(mut self) -> (Result<Receipt>, AttemptEnd) {
        let outcome = self.attempts();
        let mut end = self.end_of(&outcome);
        // A coordinator that was suspended or cut off, or is shutting down, leaves the decision to the other nodes.
        if outcome.as_ref().is_err_and(|why| !matches!(why, Error::Gone(..))) {
            self.have_ended(&mut end);
        }
        // A coordinator that was suspended or cut off no longer speaks for the job, so it sends nothing.
        if !matches!(outcome, Err(Error::Gone(..))) {
            self.tell_end(&end);
        }
        if self.reach.own {
            self.peers.iter().for_each(|peer| peer.link.close());
        }
        (outcome, end)
    }

    /// How the job ended, for the nodes that remember it.
    fn end_of(&self, outcome: &Result<Receipt>) -> AttemptEnd {
        let (state, why) = match outcome {
            Ok(receipt) if receipt.holds => (JobState::Done, None),
            Ok(_) => (JobState::Failed, Some("what came out is not what went in".to_string())),
            Err(Error::Interrupted(_)) => (JobState::Cancelled, Some("its client was stopped".into())),
            Err(why) if self.cancelled => (JobState::Cancelled, Some(why.to_string())),
            Err(why) => (JobState::Failed, Some(why.to_string())),
        };
        AttemptEnd { state, why, receipt: outcome.as_ref().ok().cloned() }
    }

    fn attempts(&mut self) -> Result<Receipt> {
        self.ask_all()?;
        loop {
            if self.job.failed.len() >= ATTEMPTS_MAX {
                let last = self.job.failed.last().expect("there are some");
                return Err(JobFault::Attempts { last: last.clone(), max: ATTEMPTS_MAX }.into());
            }
            match self.attempt() {
                Ok(receipt) => return Ok(receipt),
                Err(failure) => self.go_on_after(failure)?,
            }
        }
    }

    /// Opens a stream to every host, all at once, and sends the request to take part.
    fn ask_all(&mut self) -> Result<()> {
        let request = JobRequest::Sort(self.job.clone()).text();
        let (hosts, reach) = (self.job.hosts.clone(), self.reach);
        let opened = std::thread::scope(|scope| {
            let opening: Vec<_> =
                hosts.iter().map(|host| scope.spawn(|| open(reach, host, &request))).collect();
            let joined = opening.into_iter().map(|opening| opening.join().expect("nothing here panics"));
            joined.collect::<Vec<_>>()
        });
        let mut missing = Vec::new();
        for (id, (opened, name)) in opened.into_iter().zip(hosts).enumerate() {
            match opened {
                Ok((link, out, hearing)) => {
                    hear(id, hearing, self.tell.clone())?;
                    self.peers.push(Peer { id, name, link, out, done: (0, 0), range: None });
                }
                Err(why) => missing.push(why.to_string()),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.job.hosts = self.names();
        if self.job.ask.own_inputs || self.peers.is_empty() {
            return Err(JobFault::Unreached(missing).into());
        }
        let why = missing.join("; ");
        self.progress.note(&format!("{why}; the sort continues without it"));
        match self.job.failed.is_empty() {
            true => Ok(()),
            false => self.again(why),
        }
    }

    fn names(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name.clone()).collect()
    }

    fn place_of(&self, id: usize) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    /// Tells all nodes how the job ended, and waits a moment for them to acknowledge it.
    fn tell_end(&mut self, end: &AttemptEnd) {
        self.tell_last(&ToParticipant::End(Box::new(end.clone())));
    }

    fn tell_last(&mut self, told: &ToParticipant) {
        let told = to_json(told);
        let mut waiting: Vec<usize> = Vec::new();
        for peer in &mut self.peers {
            if message::send(&mut peer.out, &told, &[]).and_then(|()| peer.out.end(&[])).is_ok() {
                waiting.push(peer.id);
            }
        }
        let late = Stopwatch::start();
        while !waiting.is_empty() && late.seconds() < END_SECONDS {
            if let Ok((id, Err(_))) = self.said.recv_timeout(LOOK) {
                waiting.retain(|other| *other != id);
            }
        }
    }

    /// Begins the next attempt.
    fn begin(&mut self) -> Attempted<()> {
        let hosts = self.names();
        (self.starts_told, self.spared, self.crossed, self.all_bytes) = (0, None, false, 0);
        let range = self.kept.as_ref().map(|kept| range_of(&kept.within));
        let vote = self.node.as_ref().map(|node| self.voted_for(node));
        if let (Some(node), Some(vote)) = (&self.node, &vote) {
            node.enter_vote(&self.job.job, vote)
                .map_err(|why| Failure::Job(JobFault::Vote(why.to_string()).into()))?;
        }
        for place in 0..self.peers.len() {
            (self.peers[place].done, self.peers[place].range) = ((0, 0), None);
            let (failed, lost) = (self.job.failed.clone(), self.job.lost.clone());
            let (hosts, range, vote) = (hosts.clone(), range.clone(), vote.clone());
            let attempt = JobAttempt { hosts, index: place, failed, lost, range, vote };
            self.tell(place, &ToParticipant::Attempt(attempt), &[])?;
        }
        Ok(())
    }

    fn attempt(&mut self) -> Attempted<Receipt> {
        let count = self.peers.len();
        let own_inputs = self.job.ask.own_inputs;
        self.begin()?;
        let found = self.find()?;
        let plan = plan::kept(&self.job.ask, (self.reach.all, &self.names()), &found);
        let least_bytes = found.least_bytes();
        let Found { nodes, all_bytes } = found;
        self.all_bytes = all_bytes;
        self.stage("sample", 1, 0);
        let mut before_bytes = 0;
        for (place, node) in nodes.iter().enumerate() {
            self.tell(place, &ToParticipant::Sample { least_bytes, before_bytes, all_bytes }, &[])?;
            before_bytes += if own_inputs { node.input_bytes } else { 0 };
        }
        let sampled = self.each(|said, sample| match said {
            FromParticipant::Sampled { pages, shared } => {
                unpack_sample(&sample, SAMPLE_BYTES).map(|sample| (pages, shared, sample))
            }
            _ => None,
        })?;
        let made = self.lend_output()?;
        let mut pages = pages_of(&sampled.iter().map(|(pages, ..)| &pages[..]).collect::<Vec<_>>())?;
        self.job.lost.extend(sampled[0].1.clone());
        let kept = self.kept.as_ref().and_then(|kept| kept.shared.clone());
        let shared = made.or(kept).or(sampled[0].1.clone());
        let mut sample: Vec<SplitPoint> = Vec::new();
        for (node, (its, _, keys)) in sampled.into_iter().enumerate() {
            if own_inputs && pages.iter().all(|side| side[node] == 0) && !keys.is_empty() {
                return Err(Failure::Job(JobFault::Described.into()));
            }
            if own_inputs && pages.len() == 1 {
                let mut origin = origins(node, &pages[0], its[0].1);
                sample.extend(
                    keys.into_iter()
                        .map(|split_point| SplitPoint { origin: origin(split_point.origin), ..split_point }),
                );
            } else {
                // The origins of a join's records are not used, and all nodes see the same origins in shared inputs.
                sample.extend(keys);
            }
        }
        let [reads, ranges] = plan::shares(plan.as_ref(), count);
        if !own_inputs {
            pages.iter_mut().for_each(|side| *side = deal(side[0], &reads));
        }
        let split_points = self.send_off((&pages, &shared), sample, (&ranges, &nodes))?;
        self.tell_starts()?;
        let ends = self.ends(&split_points, shared)?;
        let (ends, again) = self.with_kept(ends);
        let files = ends.iter().map(|end| end.node.input.1);
        let input_file_bytes = if own_inputs { files.sum() } else { files.max().unwrap_or(0) };
        let work = self.job.ask.spec.work;
        let mut receipt = receipt(&self.sort, (&ends, again), input_file_bytes, self.watch.seconds())?;
        // The model is only for sorts of files that the nodes have.
        let plan = plan.iter().filter(|_| work == Work::Sort && !self.job.ask.lends());
        for (stage, said) in receipt.stages.iter_mut().zip(plan.flat_map(|plan| &plan.stages)) {
            stage.predicted_seconds = Some(said.seconds);
        }
        receipt.failed.clone_from(&self.job.failed);
        receipt.asked = self.job.ask.words();
        self.finish(receipt, &ends)
    }

    /// If the receipt of a completely written attempt holds, has its outputs renamed to their final names.
    fn finish(&mut self, mut receipt: Receipt, ends: &[ParticipantEnd]) -> Attempted<Receipt> {
        if !receipt.holds {
            self.stop();
        } else {
            let kept = self.publish(ends, &receipt)?;
            receipt.seconds = self.watch.seconds();
            if !kept.is_empty() {
                return Err(Failure::Job(JobFault::Unnamed(kept).into()));
            }
        }
        if self.job.coordinator.is_none() {
            // The CPU seconds of a node that coordinates are counted on that node.
            receipt.cpu_seconds += process::usage().cpu_seconds;
        }
        Ok(receipt)
    }

    /// Tells each node to begin, with split points for ranges of these weights. Returns the split points in the form
    /// that the nodes have.
    fn send_off(
        &mut self,
        (pages, shared): (&[Vec<u64>], &Option<String>),
        sample: Vec<SplitPoint>,
        (weights, nodes): (&[u64], &[FoundOf]),
    ) -> Attempted<Vec<SplitPoint>> {
        let within = self.kept.as_ref().map_or_else(KeyRange::default, |kept| kept.within.clone());
        let memory: Vec<u64> = nodes.iter().map(|node| node.memory_bytes).collect();
        let all_bytes = self.bytes_to_write();
        let Ranges { split_points, expected } =
            ranges::ranges(&self.sort, sample, (weights, &memory), &within, all_bytes)?;
        let packed = pack_sample(&mut within.around(split_points));
        let cuts_bytes = packed.len() as u64;
        self.stage("read+river", 2, self.all_bytes);
        for (place, (range_bytes, mut keys)) in expected.into_iter().enumerate() {
            let go =
                ToParticipant::Go { pages: pages.to_vec(), range_bytes, shared: shared.clone(), cuts_bytes };
            self.tell(place, &go, &[&packed[..], &pack_sample(&mut keys)].concat())?;
        }
        Ok(unpack_sample(&packed, usize::MAX).expect("they were packed just now"))
    }

    /// What the nodes would have to sort, and their names; nothing is run.
    pub(crate) fn found(mut self) -> Result<(Found, Vec<String>)> {
        let found = self.ask_all().and_then(|()| {
            self.begin().and_then(|()| self.find()).map_err(|failure| match failure {
                Failure::Job(error) => error,
                Failure::Node(id, _, why) => {
                    let name = self.place_of(id).map(|place| self.peers[place].name.clone());
                    said_by(&name.unwrap_or_default(), why)
                }
            })
        });
        self.stop();
        self.tell_last(&ToParticipant::Forget);
        self.peers.iter().for_each(|peer| peer.link.close());
        Ok((found?, self.names()))
    }

    /// What all participants found when they opened their inputs.
    fn find(&mut self) -> Attempted<Found> {
        let nodes = self.each(|said, _| match said {
            FromParticipant::Found { input_bytes, memory_bytes, rates } => {
                Some(FoundOf { input_bytes, memory_bytes, rates })
            }
            _ => None,
        })?;
        let (own, first_bytes) = (self.job.ask.own_inputs, nodes[0].input_bytes);
        if let Some(other) = nodes.iter().position(|other| !own && other.input_bytes != first_bytes) {
            let [first, other] = [0, other].map(|place| self.peers[place].name.clone());
            return Err(Failure::Job(JobFault::DifferentInputs(first, other).into()));
        }
        let all_bytes = if own { nodes.iter().map(|node| node.input_bytes).sum() } else { first_bytes };
        Ok(Found { nodes, all_bytes })
    }

    fn stage(&self, stage: &str, index: u64, bytes: u64) {
        let again = match self.job.failed.len() {
            0 => String::new(),
            failed => format!(" (attempt {})", failed + 1),
        };
        self.progress.begin(&format!("{stage}{again}"), index, 3, bytes);
    }

    fn tell(&mut self, place: usize, told: &ToParticipant, behind: &[u8]) -> Attempted<()> {
        let peer = &mut self.peers[place];
        let id = peer.id;
        message::send(&mut peer.out, &to_json(told), behind).map_err(|why| self.cause(id, reason_of(&why)))
    }

    /// The next message of each participant that is not about progress.
    fn each<T>(&mut self, what: impl FnMut(FromParticipant, Vec<u8>) -> Option<T>) -> Attempted<Vec<T>> {
        self.each_of(Whose::All, what).map(|(all, _)| all.into_iter().flatten().collect())
    }

    /// The next such message of some participants; and which node was lost, if one may be, and why.
    fn each_of<T>(
        &mut self,
        whose: Whose,
        mut what: impl FnMut(FromParticipant, Vec<u8>) -> Option<T>,
    ) -> Attempted<AllBut<T>> {
        let mut all: Vec<Option<T>> = self.peers.iter().map(|_| None).collect();
        let mut lost = None;
        let waits = |place: usize| whose.includes(place);
        while all
            .iter()
            .enumerate()
            .any(|(place, said)| said.is_none() && waits(place) && self.spared != Some(place))
        {
            if let Some(signal) = self.progress.cancelled() {
                return Err(Failure::Job(Error::Interrupted(signal)));
            }
            let moment = Stopwatch::start();
            let said = self.said.recv_timeout(LOOK);
            if let Some(node) = &self.node
                && stood_still(&moment, node.node.dead_after())
            {
                let why =
                    format!("this node stood still for {:.0} s; others take the sort up", moment.seconds());
                return Err(Failure::Job(Error::Gone(why, None)));
            }
            let (id, said) = match said {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => unreachable!("one end is ours"),
            };
            let place =
                self.place_of(id).filter(|place| self.spared != Some(*place) && whose.includes(*place));
            let Some(place) = place else { continue };
            let (reason, why) = match said {
                Ok((FromParticipant::Failed { trouble, why, is_linked }, _)) => {
                    (Reason::said(trouble, is_linked), why)
                }
                Err(why) => reason_of(&why),
                Ok((FromParticipant::Progress(read, written), _)) => {
                    self.advance(place, (read, written));
                    continue;
                }
                Ok((FromParticipant::Range(bytes), _)) => {
                    self.peers[place].range = Some(bytes);
                    self.tell_starts()?;
                    continue;
                }
                Ok((said, behind)) => {
                    all[place] = what(said, behind);
                    if all[place].is_some() {
                        continue;
                    }
                    let why = "it sent a message that does not belong to this step".to_string();
                    return Err(Failure::Node(id, Reason::Said(Trouble::Asked), why));
                }
            };
            if whose == Whose::AllButLost && self.may_spare(place, reason) {
                lost = Some((id, reason, why));
                self.tell_starts()?;
                continue;
            }
            return Err(match (reason, lost) {
                // This node only lost contact with the lost one; the failure of that one is the cause.
                (reason, Some((id, its, why))) if reason.follows() => Failure::Node(id, its, why),
                _ => self.cause(id, (reason, why)),
            });
        }
        Ok((all, lost))
    }

    /// Tells participants where their ranges begin, as soon as all before them have reported their lengths.
    fn tell_starts(&mut self) -> Attempted<()> {
        self.measure_spared();
        let mut at = self.kept.as_ref().map_or(0, |kept| kept.at);
        for place in 0..self.peers.len() {
            let last = place.checked_sub(1).map_or(Some(0), |before| self.peers[before].range);
            let Some(before) = last else { break };
            at += before;
            if self.starts_told <= place {
                self.starts_told = place + 1;
                if self.spared != Some(place) {
                    self.tell(place, &ToParticipant::Start(at), &[])?;
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, place: usize, done: (u64, u64)) {
        let before = std::mem::replace(&mut self.peers[place].done, done);
        let read: u64 = self.peers.iter().map(|peer| peer.done.0).sum();
        if self.crossed {
            self.progress.advance(done.1.saturating_sub(before.1));
        } else {
            self.progress.advance(done.0.saturating_sub(before.0));
            if read >= self.all_bytes {
                self.crossed = true;
                self.stage(self.job.ask.spec.work.last_stage(), 3, self.bytes_to_write());
                self.progress.advance(self.peers.iter().map(|peer| peer.done.1).sum());
            }
        }
    }
}

/// Transposes page counts: from one list of sides per node to one list of nodes per side.
fn pages_of(nodes: &[&[(u64, u64)]]) -> Result<Vec<Vec<u64>>> {
    let sides = nodes[0].len();
    let is_wrong = |node: &&[(u64, u64)]| node.len() != sides || node.iter().any(|(_, bytes)| *bytes == 0);
    if sides == 0 || nodes.iter().any(is_wrong) {
        return Err(JobFault::Described.into());
    }
    Ok((0..sides).map(|side| nodes.iter().map(|node| node[side].0).collect()).collect())
}

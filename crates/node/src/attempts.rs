//! A sort on several nodes, as whoever coordinates it sees it: a client, or one of the nodes.
//!
//! Model: one stream to every node, for the whole job, in the steps that `thalweg_api`'s `share` shows; a thread hears
//! each of them, and what they say goes through one queue. If a node is lost or has no room, and the others have the
//! same inputs, all stop and the rest begin again: an attempt is a whole sort.
//! Invariant: nothing gets its name before every node of an attempt has written all of its range, and the proofs of all shares,
//! joined in the order of their ranges, hold. Nobody begins an attempt before all that live have said that nothing is
//! left of the one before, and the file that a lost node may yet write to is removed before the next is made. There are
//! at most [`ATTEMPTS_MAX`].
//! Non-goals: keeping anything of an attempt that failed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use thalweg_api::{
    JobState, NodeRequest, ShareEnd, ShareSaid, ShareTold, SortAttempt, SortEnd, SortJob, Trouble, Work,
    from_json, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::share::{LentOutput, Within, by_range, cuts, deal, origins, receipt};
use thalweg_engine::{Error, Progress, Receipt, Result, WorkOptions};
use thalweg_io::process;
use thalweg_record::{Cut, pack_cuts, thin_cuts, unpack_cuts};
use thalweg_wire::{Link, LinkError, Outgoing, What};

use crate::ask::{options_of, range_of};
use crate::daemon::Node;
use crate::inbox::stood_still;
use crate::lent::Lender;
use crate::plan::{self, Found, FoundOf};
use crate::pump::could_not;
use crate::talk::{Hearing, say};

mod kept;
mod outputs;
mod votes;

use kept::Kept;
use outputs::Whose;

/// The most attempts of one job.
pub(crate) const ATTEMPTS_MAX: usize = 5;
/// How often somebody looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long to hear on when one has failed, for another may know better why: one that only misses another hears of it up
/// to a second before us.
const CAUSE_SECONDS: f64 = 0.7;
const FOLLOWING_SECONDS: f64 = 1.3;
/// How long nodes may take to leave nothing of an attempt behind; whoever takes longer is lost. They wait for nobody
/// longer than links are patient.
const STOP_SECONDS: f64 = 12.0;
/// How long they may take to take note of the end.
const END_SECONDS: f64 = 1.0;
/// Bytes of the keys of one node's sample.
const SAMPLE_BYTES: usize = 256 << 20;
/// A node whose range takes at least one so-manieth of its memory is told what keys to expect.
const KEYS_FOR_MEMORIES: u64 = 2;
/// And so many bytes of them at most.
const KEYS_BYTES_MAX: u64 = 8 << 20;
const STACK_BYTES: usize = 256 << 10;

/// How a coordinator gets links with nodes.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    /// A link with the host of this name.
    pub(crate) to: &'a (dyn Fn(&str) -> std::result::Result<Arc<Link>, LinkError> + Sync),
    /// Whether they are for this job alone, and end with it.
    pub(crate) own: bool,
    /// All hosts of the cluster, in the order of its file.
    pub(crate) all: &'a [String],
}

/// What one node said, or why it says nothing more.
type Said = (usize, std::result::Result<(ShareSaid, Vec<u8>), LinkError>);

/// Why an attempt came to nothing.
enum Failure {
    /// Because of this node.
    Node(usize, Reason, String),
    /// Because of something that another attempt would not change.
    Job(Error),
}

/// What a node has to do with a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It is not heard any more.
    Lost,
    /// It said so itself.
    Said(Trouble),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Job(error)
    }
}

type Attempted<T> = std::result::Result<T, Failure>;
/// What each said, and who was lost, and why.
type AllBut<T> = (Vec<Option<T>>, Option<(usize, Reason, String)>);

/// A node that takes part.
struct Peer {
    id: usize,
    name: String,
    link: Arc<Link>,
    out: Outgoing,
    /// What it has read and written, and how long its range is.
    done: (u64, u64),
    range: Option<u64>,
}

/// Whoever coordinates a job.
pub(crate) struct Coordinator<'a> {
    job: SortJob,
    sort: WorkOptions,
    reach: Reach<'a>,
    progress: &'a Progress,
    watch: Stopwatch,
    tell: Sender<Said>,
    said: Receiver<Said>,
    peers: Vec<Peer>,
    /// How many know where their range begins.
    starts_told: usize,
    /// The place in this attempt of a node that is lost, while the others write their ranges.
    spared: Option<usize>,
    /// What stays of the attempt before.
    kept: Option<Kept>,
    /// Bytes of all inputs, and whether they have crossed the river.
    all_bytes: u64,
    crossed: bool,
    /// Whether some node may have given its own output its name.
    names: bool,
    /// The node that coordinates, if it is none of a client: its job's hosts decide about each attempt.
    node: Option<Arc<Node>>,
    /// Whether somebody cancelled the job at a node.
    cancelled: bool,
    /// Whether a node had no room.
    full: bool,
    /// What the nodes write to here, and who lends it to them.
    lent: Option<(Arc<Lender>, LentOutput)>,
}

impl<'a> Coordinator<'a> {
    /// Of this job, on hosts that are reached so.
    pub(crate) fn new(job: SortJob, reach: Reach<'a>, progress: &'a Progress) -> Result<Coordinator<'a>> {
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

    /// With an output that the nodes write to here.
    pub(crate) fn lending(self, lent: Option<(Arc<Lender>, LentOutput)>) -> Coordinator<'a> {
        Coordinator { lent, ..self }
    }

    /// By this node, without its client.
    pub(crate) fn of_node(self, node: &Arc<Node>) -> Coordinator<'a> {
        Coordinator { node: Some(Arc::clone(node)), ..self }
    }

    /// Runs it to its end, which all nodes are told. The receipt's invariant: out + dropped = in, and out is in order from each
    /// node's range to the next's.
    pub(crate) fn run(mut self) -> (Result<Receipt>, SortEnd) {
        let outcome = self.attempts();
        let mut end = self.end_of(&outcome);
        // Who stood still, was cut off or goes down leaves the job to the others.
        if outcome.as_ref().is_err_and(|why| !matches!(why, Error::Gone(..))) {
            self.have_ended(&mut end);
        }
        // Who stood still, or was cut off, is nobody's coordinator any more, and says nothing.
        if !matches!(outcome, Err(Error::Gone(..))) {
            self.tell_end(&end);
        }
        if self.reach.own {
            self.peers.iter().for_each(|peer| peer.link.close());
        }
        (outcome, end)
    }

    /// How the job ended, for the nodes that remember it.
    fn end_of(&self, outcome: &Result<Receipt>) -> SortEnd {
        let (state, why) = match outcome {
            Ok(receipt) if receipt.holds => (JobState::Done, None),
            Ok(_) => (JobState::Failed, Some("what came out is not what went in".to_string())),
            Err(Error::Interrupted(_)) => (JobState::Cancelled, Some("its client was stopped".into())),
            Err(why) if self.cancelled => (JobState::Cancelled, Some(why.to_string())),
            Err(why) => (JobState::Failed, Some(why.to_string())),
        };
        SortEnd { state, why, receipt: outcome.as_ref().ok().cloned() }
    }

    fn attempts(&mut self) -> Result<Receipt> {
        self.ask_all()?;
        loop {
            if self.job.failed.len() >= ATTEMPTS_MAX {
                let last = self.job.failed.last().expect("there are some");
                return Err(could_not(format!("{last}; that was attempt {ATTEMPTS_MAX}, and the last")));
            }
            match self.attempt() {
                Ok(receipt) => return Ok(receipt),
                Err(failure) => self.go_on_after(failure)?,
            }
        }
    }

    /// Opens a stream to each of them, all at once, and asks.
    fn ask_all(&mut self) -> Result<()> {
        let request = to_json(&NodeRequest::Sort(self.job.clone()));
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
        let why = missing.join("; ");
        if self.job.ask.own_inputs || self.peers.is_empty() {
            return Err(could_not(why));
        }
        self.progress.note(&format!("{why}; the sort goes on without"));
        match self.job.failed.is_empty() {
            true => Ok(()),
            false => self.again(why),
        }
    }

    fn names(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name.clone()).collect()
    }

    /// Leaves nothing of an attempt behind, and goes without whoever failed; an error if that cannot be.
    fn go_on_after(&mut self, failure: Failure) -> Result<()> {
        let (id, reason, why) = match failure {
            // Who stood still has nobody to stop any more.
            Failure::Job(error @ Error::Gone(..)) => return Err(error),
            Failure::Job(error) => {
                self.stop();
                return Err(error);
            }
            Failure::Node(id, reason, why) => (id, reason, why),
        };
        let name = self.peers[self.place_of(id).expect("it failed as one of them")].name.clone();
        let line = format!("{name}: {why}");
        if reason == Reason::Said(Trouble::Leaves) && self.job.coordinator.as_ref() == Some(&name) {
            return Err(Error::Gone(line, None));
        }
        let end = SortEnd { state: JobState::Failed, why: Some(line.clone()), receipt: None };
        if reason == Reason::Lost {
            self.part_with(id, None);
        }
        if self.spared.is_some() && self.kept.is_some() {
            // The others have written their ranges.
            self.part_with(id, Some(end));
            return self.again(line);
        }
        let lost = self.stop();
        let ended = match reason {
            Reason::Said(Trouble::Cancelled) => {
                self.cancelled = true;
                true
            }
            Reason::Said(Trouble::Asked) => true,
            // What one has no room for is its own matter, what a second has not is that of a disk that all have.
            Reason::Said(Trouble::Full) => std::mem::replace(&mut self.full, true) || self.lent.is_some(),
            Reason::Said(Trouble::Follows(_) | Trouble::Leaves) | Reason::Lost => false,
        };
        if ended || self.job.ask.own_inputs || self.names {
            return Err(could_not(self.all_told(line, reason)));
        }
        self.part_with(id, Some(end));
        let line = lost.into_iter().fold(line, |line, lost| format!("{line}; {lost}"));
        if self.peers.is_empty() {
            return Err(could_not(self.all_told(line, reason)));
        }
        self.keep_what_has_an_output();
        self.again(line)
    }

    /// Another attempt, without whoever that line is about: of a job without its client if its hosts agree on that.
    fn again(&mut self, line: String) -> Result<()> {
        self.supersede(&line)?;
        self.job.failed.push(line.clone());
        self.job.hosts = self.names();
        let (number, rest) = (self.job.failed.len() + 1, self.job.hosts.join(", "));
        if number <= ATTEMPTS_MAX {
            let what = if self.kept.is_some() { "sorts the lost range" } else { "begins" };
            let note = format!("{line}; attempt {number} of at most {ATTEMPTS_MAX} {what} on {rest}");
            self.progress.note(&note);
        }
        Ok(())
    }

    /// A line with what became of the outputs, if it does not say so.
    fn all_told(&self, line: String, reason: Reason) -> String {
        match (reason, self.names) {
            (_, true) => format!("{line}; {}", outputs::SOME_NAMED),
            (Reason::Lost | Reason::Said(Trouble::Cancelled), false) => {
                format!("{line}; no output has its name, and all inputs are as they were")
            }
            _ => line,
        }
    }

    fn place_of(&self, id: usize) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    /// Goes on without a node, which is told how the job ended for it if it can hear that.
    fn part_with(&mut self, id: usize, end: Option<SortEnd>) {
        let Some(place) = self.place_of(id) else { return };
        let mut peer = self.peers.remove(place);
        if let Some(end) = end {
            let told = say(&mut peer.out, &to_json(&ShareTold::End(Box::new(end))), &[]);
            let _ = told.and_then(|()| peer.out.end(&[]));
        } else if self.reach.own {
            peer.link.close();
        }
    }

    /// Has all nodes leave nothing of the attempt; those that are lost meanwhile, each with why.
    fn stop(&mut self) -> Vec<String> {
        let mut lost: Vec<(usize, String)> = Vec::new();
        let mut waiting: Vec<usize> = Vec::new();
        for peer in &mut self.peers {
            match say(&mut peer.out, &to_json(&ShareTold::Stop), &[]) {
                Ok(()) => waiting.push(peer.id),
                Err(why) => lost.push((peer.id, why.to_string())),
            }
        }
        let late = Stopwatch::start();
        while !waiting.is_empty() && late.seconds() < STOP_SECONDS {
            match self.said.recv_timeout(LOOK) {
                Ok((id, Ok((ShareSaid::Stopped, _)))) => waiting.retain(|other| *other != id),
                Ok((id, Err(why))) if waiting.contains(&id) => {
                    waiting.retain(|other| *other != id);
                    lost.push((id, why.to_string()));
                }
                _ => {}
            }
        }
        lost.extend(waiting.into_iter().map(|id| (id, format!("it did not stop within {STOP_SECONDS} s"))));
        let line = |(id, why): (usize, String)| {
            let name = self.place_of(id).map(|place| self.peers[place].name.clone());
            self.part_with(id, None);
            format!("{}: {why}", name.unwrap_or_default())
        };
        lost.into_iter().map(line).collect()
    }

    /// Tells all nodes how the job ended, and waits a moment until they know.
    fn tell_end(&mut self, end: &SortEnd) {
        self.tell_last(&ShareTold::End(Box::new(end.clone())));
    }

    fn tell_last(&mut self, told: &ShareTold) {
        let told = to_json(told);
        let mut waiting: Vec<usize> = Vec::new();
        for peer in &mut self.peers {
            if say(&mut peer.out, &told, &[]).and_then(|()| peer.out.end(&[])).is_ok() {
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
            node.votes.enter(node, &self.job.job, vote).map_err(could_not)?;
        }
        for place in 0..self.peers.len() {
            (self.peers[place].done, self.peers[place].range) = ((0, 0), None);
            let (failed, lost) = (self.job.failed.clone(), self.job.lost.clone());
            let (hosts, range, vote) = (hosts.clone(), range.clone(), vote.clone());
            let attempt = SortAttempt { hosts, index: place, failed, lost, range, vote };
            self.tell(place, &ShareTold::Attempt(attempt), &[])?;
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
            self.tell(place, &ShareTold::Sample { least_bytes, before_bytes, all_bytes }, &[])?;
            before_bytes += if own_inputs { node.input_bytes } else { 0 };
        }
        let sampled = self.each(|said, sample| match said {
            ShareSaid::Sampled { pages, shared } => {
                unpack_cuts(&sample, SAMPLE_BYTES).map(|sample| (pages, shared, sample))
            }
            _ => None,
        })?;
        let made = self.lend_output()?;
        let mut pages = pages_of(&sampled.iter().map(|(pages, ..)| &pages[..]).collect::<Vec<_>>())?;
        self.job.lost.extend(sampled[0].1.clone());
        let kept = self.kept.as_ref().and_then(|kept| kept.shared.clone());
        let shared = made.or(kept).or(sampled[0].1.clone());
        let mut sample: Vec<Cut> = Vec::new();
        for (node, (its, _, keys)) in sampled.into_iter().enumerate() {
            if own_inputs && pages.iter().all(|side| side[node] == 0) && !keys.is_empty() {
                return Err(could_not("a sample of no pages").into());
            }
            if own_inputs && pages.len() == 1 {
                let mut origin = origins(node, &pages[0], its[0].1);
                sample.extend(keys.into_iter().map(|cut| Cut { origin: origin(cut.origin), ..cut }));
            } else {
                // Records have no origin that counts, as those of a join, or one that all see.
                sample.extend(keys);
            }
        }
        let [reads, ranges] = plan::shares(plan.as_ref(), count);
        if !own_inputs {
            pages.iter_mut().for_each(|side| *side = deal(side[0], &reads));
        }
        let cuts = self.send_off((&pages, &shared), sample, (&ranges, &nodes))?;
        self.tell_starts()?;
        let ends = self.ends(&cuts, shared)?;
        let (ends, again) = self.with_kept(ends);
        let files = ends.iter().map(|end| end.node.input.1);
        let input_file_bytes = if own_inputs { files.sum() } else { files.max().unwrap_or(0) };
        let work = self.job.ask.work;
        let mut receipt = receipt(&self.sort, (&ends, again), input_file_bytes, self.watch.seconds())?;
        // The model is one of sorts, of what nodes have.
        let plan = plan.iter().filter(|_| work == Work::Sort && !self.job.ask.lends());
        for (stage, said) in receipt.stages.iter_mut().zip(plan.flat_map(|plan| &plan.stages)) {
            stage.predicted_seconds = Some(said.seconds);
        }
        receipt.failed.clone_from(&self.job.failed);
        self.finish(receipt, &ends)
    }

    /// Has the outputs named of an attempt that is written, if its receipt holds.
    fn finish(&mut self, mut receipt: Receipt, ends: &[ShareEnd]) -> Attempted<Receipt> {
        if !receipt.holds {
            self.stop();
        } else {
            let kept = self.publish(ends, &receipt)?;
            receipt.seconds = self.watch.seconds();
            if !kept.is_empty() {
                return Err(could_not(kept.join("; ")).into());
            }
        }
        if self.job.coordinator.is_none() {
            // Who coordinates as a node is counted there.
            receipt.cpu_seconds += process::usage().cpu_seconds;
        }
        Ok(receipt)
    }

    /// Tells each of them to go, with cuts for ranges of these weights, and with a sample of its own range if that takes much
    /// of its memory: who has more looks at what comes instead. Returns the cuts as the nodes have them.
    fn send_off(
        &mut self,
        (pages, shared): (&[Vec<u64>], &Option<String>),
        mut sample: Vec<Cut>,
        (ranges, nodes): (&[u64], &[FoundOf]),
    ) -> Attempted<Vec<Cut>> {
        let work = self.job.ask.work;
        let within = self.kept.as_ref().map_or_else(Within::default, |kept| kept.within.clone());
        let all_bytes = self.bytes_to_write();
        let cuts = cuts(&self.sort, work, &mut sample, ranges, &within)?;
        let sampled = sample.len() as u128;
        let mut keys = by_range(sample, &cuts, nodes.len());
        let packed = pack_cuts(&mut within.around(cuts));
        let cuts_bytes = packed.len() as u64;
        self.stage("read+river", 2, self.all_bytes);
        for (place, dealt_bytes) in deal(all_bytes, ranges).into_iter().enumerate() {
            // Where a hot key must not be parted, ranges are as large as they come.
            let range_bytes = match work {
                Work::Sort | Work::Merge if sampled > 0 => {
                    (u128::from(all_bytes) * keys[place].len() as u128 / sampled) as u64
                }
                _ => dealt_bytes,
            };
            let go = ShareTold::Go { pages: pages.to_vec(), range_bytes, shared: shared.clone(), cuts_bytes };
            let takes_much = range_bytes > nodes[place].memory_bytes / KEYS_FOR_MEMORIES;
            let keys = match work {
                Work::Sort | Work::Merge if takes_much => {
                    thin_cuts(&mut keys[place], KEYS_BYTES_MAX);
                    pack_cuts(&mut keys[place])
                }
                _ => Vec::new(),
            };
            self.tell(place, &go, &[&packed[..], &keys].concat())?;
        }
        Ok(unpack_cuts(&packed, usize::MAX).expect("they were packed just now"))
    }

    /// What the nodes would have to sort, and their names; nothing comes of it.
    pub(crate) fn found(mut self) -> Result<(Found, Vec<String>)> {
        let found = self.ask_all().and_then(|()| {
            self.begin().and_then(|()| self.find()).map_err(|failure| match failure {
                Failure::Job(error) => error,
                Failure::Node(id, _, why) => {
                    let name = self.place_of(id).map(|place| self.peers[place].name.clone());
                    could_not(format!("{}: {why}", name.unwrap_or_default()))
                }
            })
        });
        self.stop();
        self.tell_last(&ShareTold::Forget);
        self.peers.iter().for_each(|peer| peer.link.close());
        Ok((found?, self.names()))
    }

    /// What all of them find.
    fn find(&mut self) -> Attempted<Found> {
        let nodes = self.each(|said, _| match said {
            ShareSaid::Found { input_bytes, memory_bytes, rates } => {
                Some(FoundOf { input_bytes, memory_bytes, rates })
            }
            _ => None,
        })?;
        let (own, first_bytes) = (self.job.ask.own_inputs, nodes[0].input_bytes);
        if let Some(other) = nodes.iter().position(|other| !own && other.input_bytes != first_bytes) {
            let (first, other) = (&self.peers[0].name, &self.peers[other].name);
            return Err(Failure::Job(could_not(format!(
                "{first} and {other} do not see the same files; give what each has as nodes:FILES, what only you have as client:FILES"
            ))));
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

    fn tell(&mut self, place: usize, told: &ShareTold, behind: &[u8]) -> Attempted<()> {
        let peer = &mut self.peers[place];
        let id = peer.id;
        say(&mut peer.out, &to_json(told), behind).map_err(|why| self.cause(id, reason_of(&why)))
    }

    /// What each of them says next beside how far it is.
    fn each<T>(&mut self, what: impl FnMut(ShareSaid, Vec<u8>) -> Option<T>) -> Attempted<Vec<T>> {
        self.each_of(Whose::All, what).map(|(all, _)| all.into_iter().flatten().collect())
    }

    /// The same of some of them; and who was lost, if one may be, and why.
    fn each_of<T>(
        &mut self,
        whose: Whose,
        mut what: impl FnMut(ShareSaid, Vec<u8>) -> Option<T>,
    ) -> Attempted<AllBut<T>> {
        let mut all: Vec<Option<T>> = self.peers.iter().map(|_| None).collect();
        let mut lost = None;
        let waits = |place: usize| whose.waits_for(place);
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
            if self.job.coordinator.is_some() && stood_still(&moment) {
                let why =
                    format!("this node stood still for {:.0} s; others take the sort up", moment.seconds());
                return Err(Failure::Job(Error::Gone(why, None)));
            }
            let (id, said) = match said {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => unreachable!("one end is ours"),
            };
            let place = self.place_of(id).filter(|place| self.spared != Some(*place) && whose.minds(*place));
            let Some(place) = place else { continue };
            let (reason, why) = match said {
                Ok((ShareSaid::Failed { trouble, why }, _)) => (Reason::Said(trouble), why),
                Err(why) => reason_of(&why),
                Ok((ShareSaid::Progress(read, written), _)) => {
                    self.advance(place, (read, written));
                    continue;
                }
                Ok((ShareSaid::Range(bytes), _)) => {
                    self.peers[place].range = Some(bytes);
                    self.tell_starts()?;
                    continue;
                }
                Ok((said, behind)) => {
                    all[place] = what(said, behind);
                    if all[place].is_some() {
                        continue;
                    }
                    let why = "it said what has another place".to_string();
                    return Err(Failure::Node(id, Reason::Said(Trouble::Asked), why));
                }
            };
            if whose == Whose::AllButLost && self.may_spare(place, reason) {
                lost = Some((id, reason, why));
                self.tell_starts()?;
                continue;
            }
            return Err(match (reason, lost) {
                // Of whom it misses something we know more.
                (Reason::Said(Trouble::Follows(_)), Some((id, reason, why))) => {
                    Failure::Node(id, reason, why)
                }
                _ => self.cause(id, (reason, why)),
            });
        }
        Ok((all, lost))
    }

    /// Tells those where their ranges begin whose neighbours have said how long theirs are.
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
                    self.tell(place, &ShareTold::Start(at), &[])?;
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
                self.stage(self.job.ask.work.last_stage(), 3, self.bytes_to_write());
                self.progress.advance(self.peers.iter().map(|peer| peer.done.1).sum());
            }
        }
    }

    /// The best reason that can be had for an attempt that fails because of this: a node that cannot be heard tells more
    /// than one that failed, and that one more than those that only miss another. If all that is said is who misses
    /// whom, it is the one whom most miss.
    fn cause(&self, id: usize, reason: (Reason, String)) -> Failure {
        let rank = |reason: &Reason| match reason {
            Reason::Said(Trouble::Follows(_)) => 2,
            Reason::Said(Trouble::Full | Trouble::Asked) => 1,
            Reason::Said(Trouble::Cancelled | Trouble::Leaves) | Reason::Lost => 0,
        };
        let mut missed: Vec<Vec<String>> = vec![Vec::new(); self.peers.len()];
        let mut misses = vec![false; self.peers.len()];
        let mut best = (id, reason);
        let mut heard = |id: usize, (reason, why): &(Reason, String)| {
            let Reason::Said(Trouble::Follows(whom)) = reason else { return };
            if let Some(place) = self.place_of(id) {
                misses[place] = true;
            }
            if let Some(of_it) = whom.and_then(|place| missed.get_mut(place)) {
                of_it.push(why.clone());
            }
        };
        heard(id, &best.1);
        let late = Stopwatch::start();
        let patience = |rank| if rank > 1 { FOLLOWING_SECONDS } else { CAUSE_SECONDS };
        while rank(&best.1.0) > 0 && late.seconds() < patience(rank(&best.1.0)) {
            let (id, reason) = match self.said.recv_timeout(LOOK) {
                Ok((id, Err(why))) => (id, reason_of(&why)),
                Ok((id, Ok((ShareSaid::Failed { trouble, why }, _)))) => (id, (Reason::Said(trouble), why)),
                _ => continue,
            };
            heard(id, &reason);
            if rank(&reason.0) < rank(&best.1.0) && self.place_of(id).is_some() {
                best = (id, reason);
            }
        }
        let (id, (reason, why)) = best;
        // Who says that it misses somebody is missed for that. Of several, the last: it is the least likely to be who
        // coordinates.
        let of_all =
            missed.into_iter().zip(misses).zip(&self.peers).filter(|((of_it, _), _)| !of_it.is_empty());
        let most = of_all.max_by_key(|((of_it, misses), _)| (!misses, of_it.len()));
        match (reason, most) {
            (Reason::Said(Trouble::Follows(_)), Some(((of_it, _), missing))) => {
                // Of what is said of it, what names it.
                let why = of_it.iter().find(|why| why.contains(&missing.name)).unwrap_or(&of_it[0]);
                Failure::Node(missing.id, reason, format!("others miss it: {why}"))
            }
            _ => Failure::Node(id, reason, why),
        }
    }
}

/// For each side the pages of each node, from those of each node for each side.
fn pages_of(nodes: &[&[(u64, u64)]]) -> Result<Vec<Vec<u64>>> {
    let sides = nodes[0].len();
    let is_wrong = |node: &&[(u64, u64)]| node.len() != sides || node.iter().any(|(_, bytes)| *bytes == 0);
    if sides == 0 || nodes.iter().any(is_wrong) {
        return Err(could_not("nodes that have not the same sides, or pages of nothing"));
    }
    Ok((0..sides).map(|side| nodes.iter().map(|node| node[side].0).collect()).collect())
}

fn reason_of(why: &LinkError) -> (Reason, String) {
    match &why.what {
        // It did not get as far as an attempt.
        What::Aborted(text) => (Reason::Said(Trouble::Asked), text.clone()),
        _ => (Reason::Lost, why.to_string()),
    }
}

/// Hears what a node says on a thread of its own, to the end.
fn hear(id: usize, mut hearing: Hearing, tell: Sender<Said>) -> Result<()> {
    let hear = move || {
        loop {
            let heard = hearing.next().and_then(|heard| parsed(heard, &hearing));
            let last = heard.is_err();
            if tell.send((id, heard)).is_err() || last {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("share".into()).stack_size(STACK_BYTES);
    thread.spawn(hear).map(drop).map_err(|e| could_not(format!("no thread to hear a node with: {e}")))
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

type Opened = (Arc<Link>, Outgoing, Hearing);

fn open(reach: Reach<'_>, host: &str, request: &str) -> std::result::Result<Opened, LinkError> {
    let link = (reach.to)(host)?;
    let (out, inc) = link.open(request.as_bytes())?;
    let block_bytes = link.block_bytes();
    Ok((link, out, Hearing::new(inc, host, block_bytes)?))
}

//! A node's part in a sort on several nodes.
//!
//! Model: whoever coordinates the job talks to every node on a stream of its own, in the steps that `thalweg_api`'s
//! `share` shows. The job lasts as long as the stream, through any number of attempts. In an attempt, when all cuts are
//! known, each node opens a stream to every other on the link that is kept with it, waits for theirs, and runs.
//! Invariant: what is stopped or cancelled, or whoever asked for has gone from, or what fails, leaves nothing behind before
//! anything else is said on the stream. At most [`SORTS_MAX`] at once; one job has one coordinator at a time.
//! Non-goals: how a share is sorted; that is the facade's.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{
    Edge, JobState, NodeRequest, ReadyFile, ShareEnd, ShareSaid, ShareTold, SortAsk, SortAttempt, SortEnd,
    SortJob, Trouble, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::begin_work;
use thalweg_engine::share::{Laid, LentDisks, Share, Starts};
use thalweg_engine::{Error, Progress, Result};
use thalweg_io::{FileSystem, host};
use thalweg_record::{Cut, pack_cuts, unpack_cuts};
use thalweg_river::{Inlet, Outlet, Reach, Stopper};
use thalweg_transfer::Streams;
use thalweg_wire::{Incoming, Link, Outgoing};

use crate::ask::{inputs_of, number_of, path_of, share_of, word_of};
use crate::daemon::{BLOCK_BYTES, Node};
use crate::inbox::{Heard, Inbox, LOOK, SIGTERM};
use crate::job::{GOES_DOWN, Job};
use crate::lent::Lent;
use crate::pump::could_not;
use crate::successor;
use crate::talk::{Hearing, say};
use crate::threads::caught;
use crate::vote::{clear, name, ready_file};

/// Memory of a sort's pools, touched or not, that a node has at hand for the next one unless the kernel wants it; and the
/// memory of sorts from which on: with less, what is kept while one goes on is in the way of its promise.
const KEPT_BYTES: usize = 256 << 20;
const KEEPS_FROM_BYTES: u64 = 128 << 20;
/// The most sorts that a node takes part in at once.
const SORTS_MAX: usize = 16;
/// How long a job's new coordinator waits for what the one before left here to end.
const ENTER: Duration = Duration::from_secs(12);
/// How long the streams of the other nodes may take to come.
const STREAMS_SECONDS: f64 = 10.0;
/// How often a node says how far it is, and looks whether somebody cancelled the job there.
const PROGRESS: Duration = Duration::from_millis(100);
/// The most rivers of an attempt: those of a join's two sides.
const SIDES: usize = 2;
/// Bytes of the keys of all cuts.
const CUTS_BYTES: usize = 64 << 20;

/// A stream of another node, and its link.
type Came = (Streams, Arc<Link>);

/// The sorts that a node takes part in, each with the streams that other nodes have opened for its attempt.
#[derive(Default)]
pub(crate) struct Sorts {
    table: Mutex<HashMap<String, Attempt>>,
    changed: Condvar,
}

#[derive(Default)]
struct Attempt {
    number: u32,
    came: Vec<Option<Came>>,
}

impl Sorts {
    /// A stream of a river has come.
    pub(crate) fn river(&self, (job, attempt): (&str, u32), from: usize, streams: Streams, link: &Arc<Link>) {
        let mut table = self.table.lock().expect("no holder panics");
        let here = table.get_mut(job).filter(|here| here.number == attempt);
        let Some(here) = here.filter(|here| here.came.get(from).is_some_and(Option::is_none)) else {
            // That may have to wait until it can be sent.
            drop(table);
            return drop(streams.0.abort("a stream of a sort that is not known here"));
        };
        here.came[from] = Some((streams, Arc::clone(link)));
        // Whoever waits needs all of a side but his own.
        let nodes = here.came.len() / SIDES;
        let side = &here.came[from / nodes * nodes..][..nodes];
        if side.iter().filter(|came| came.is_none()).count() <= 1 {
            self.changed.notify_all();
        }
    }

    /// Whether somebody coordinates this job here.
    pub(crate) fn knows(&self, job: &str) -> bool {
        self.table.lock().expect("no holder panics").contains_key(job)
    }

    fn enter(&self, SortJob { job, ask, .. }: &SortJob) -> std::result::Result<Place<'_>, String> {
        let table = self.table.lock().expect("no holder panics");
        let is_here = |table: &mut HashMap<String, Attempt>| table.contains_key(job);
        let (mut table, late) =
            self.changed.wait_timeout_while(table, ENTER, is_here).expect("no holder panics");
        if late.timed_out() {
            return Err(format!("sort {job} goes on here already"));
        }
        if table.len() >= SORTS_MAX {
            return Err(format!("{SORTS_MAX} sorts go on here, as many as may; wait for one to end"));
        }
        // What others do meanwhile is told with it.
        if table.is_empty() {
            let SortAsk { work, memory_bytes, memory_percent, .. } = ask;
            let kept_bytes =
                if memory_bytes.is_some_and(|bytes| bytes < KEEPS_FROM_BYTES) { 0 } else { KEPT_BYTES };
            begin_work(&format!("{work:?} in {memory_bytes:?} {memory_percent:?}"), kept_bytes);
            host::reset_peak();
        }
        table.insert(job.to_string(), Attempt::default());
        Ok(Place { sorts: self, job: job.to_string() })
    }
}

/// A sort's place in the table, as long as its coordinator is there.
struct Place<'n> {
    sorts: &'n Sorts,
    job: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let last = self.sorts.table.lock().expect("no holder panics").remove(&self.job);
        self.sorts.changed.notify_all();
        drop(last);
    }
}

impl Place<'_> {
    /// From now on only streams of this attempt are taken; what came for another goes.
    fn begin(&self, number: u32, nodes: usize) {
        let attempt = Attempt { number, came: (0..SIDES * nodes).map(|_| None).collect() };
        let before = self.sorts.table.lock().expect("no holder panics").insert(self.job.clone(), attempt);
        // Its streams are aborted, which may have to wait until it can be sent.
        drop(before);
    }

    /// The streams of all other nodes, when they have come.
    fn streams(
        &self,
        (attempt, side): (&SortAttempt, usize),
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Option<Came>>> {
        let late = Stopwatch::start();
        let nodes = attempt.hosts.len();
        let mut table = self.sorts.table.lock().expect("no holder panics");
        loop {
            let all = &mut table.get_mut(&self.job).expect("it is there until this goes").came;
            let came = &mut all[side * nodes..(side + 1) * nodes];
            let is_missing = |i: &usize| *i != attempt.index && came[*i].is_none();
            let Some(missing) = (0..nodes).find(is_missing) else {
                return Ok(came.iter_mut().map(Option::take).collect());
            };
            if late.seconds() > STREAMS_SECONDS {
                let why = format!("no stream of {} came within {STREAMS_SECONDS} s", attempt.hosts[missing]);
                return Err(Error::Gone(why, Some(missing)));
            }
            if !go_on() {
                return Err(Error::Interrupted(SIGTERM));
            }
            table = self.sorts.changed.wait_timeout(table, LOOK).expect("no holder panics").0;
        }
    }
}

/// Serves a stream on which a job is talked about, to its end, or to that of whoever coordinates it.
pub(crate) fn serve(node: &Arc<Node>, link: &Arc<Link>, request: SortJob, (out, inc): (Outgoing, Incoming)) {
    let saying = Saying(Mutex::new(Some(out)));
    // It is let go of after the refusal, which the peer would not hear otherwise.
    let mut hearing = match Hearing::new(inc, link.peer(), BLOCK_BYTES) {
        Ok(hearing) => hearing,
        Err(why) => return saying.give_up(&why.to_string()),
    };
    let entered = node.sorts.enter(&request);
    let entered = entered.and_then(|place| Ok((place, node.jobs.begin_sort(&request, node.name())?)));
    let (place, job) = match entered {
        Ok(entered) => entered,
        Err(why) => return saying.give_up(&why),
    };
    let (inbox, kept, ready) = (&Inbox::default(), None, Vec::new());
    let mut part =
        Part { node, link, job, request, place, saying, inbox, cancel_is_known: false, kept, ready };
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| inbox.hear_all(&mut hearing));
        let ended = caught(|| part.serve()).unwrap_or_else(Err);
        part.kept = None;
        node.votes.hears(&part.request.job, false);
        // Ends the stream, and with it the thread that hears.
        match ended {
            Ok(end) => {
                part.clear();
                match end {
                    Some(end) => node.jobs.end_sort(&part.job, end),
                    None => node.jobs.forget(&part.job),
                }
                part.saying.end();
                Ok(())
            }
            Err(why) => {
                part.saying.give_up(&why);
                Err(why)
            }
        }
    });
    let Part { job, request, place, ready, .. } = part;
    drop(place);
    host::release_memory();
    match ended {
        Ok(()) => {}
        Err(why) if request.coordinator.is_some() => {
            if let Err(why) = caught(|| successor::follow(node, &job, request, &why)) {
                node.jobs.end_sort(&job, SortEnd { state: JobState::Failed, why: Some(why), receipt: None });
            }
        }
        Err(_) => {
            // The client may have had others' outputs named.
            let lie = ready
                .iter()
                .map(|file| format!("; the output for {} is whole, at {}", file.name, file.hidden));
            let why = Some(format!("its client has gone{}", lie.collect::<String>()));
            node.jobs.end_sort(&job, SortEnd { state: JobState::Cancelled, why, receipt: None });
        }
    }
}

/// Says things from several threads.
struct Saying(Mutex<Option<Outgoing>>);

impl Saying {
    /// Gives the stream up, and says why.
    fn give_up(&self, why: &str) {
        let out = self.0.lock().expect("no holder panics").take();
        let _ = out.map(|out| out.abort(why));
    }

    fn end(&self) {
        if let Some(out) = self.0.lock().expect("no holder panics").as_mut() {
            let _ = out.end(&[]);
        }
    }

    fn say(&self, said: &ShareSaid, behind: &[u8]) -> Result<()> {
        let mut out = self.0.lock().expect("no holder panics");
        let out = out.as_mut().ok_or_else(|| could_not("the stream was given up"))?;
        say(out, &to_json(said), behind).map_err(could_not)
    }
}

/// What a node has to do with a job.
struct Part<'a> {
    node: &'a Arc<Node>,
    /// The link with whoever coordinates it.
    link: &'a Arc<Link>,
    job: Arc<Job>,
    /// As it was asked, and what has changed of it since.
    request: SortJob,
    place: Place<'a>,
    saying: Saying,
    inbox: &'a Inbox,
    cancel_is_known: bool,
    /// The share that was written when another node's range was lost. Its output gets its name with that.
    kept: Option<Laid>,
    /// Outputs of a client's job that lack only their names.
    ready: Vec<ReadyFile>,
}

/// What follows when a share is written.
enum Written {
    /// The outputs are to be made ready for their names, with so many bytes and these edges.
    Ready(Box<Laid>, (u64, Vec<Edge>)),
    /// All is done without it.
    Done,
    /// The range of a lost node is to be sorted first.
    Kept(Box<Laid>, SortAttempt),
}

impl Part<'_> {
    /// Does what is told; how the job ended if it was one, or why that is not known.
    fn serve(&mut self) -> std::result::Result<Option<SortEnd>, String> {
        loop {
            let said = match self.inbox.next(&self.job, self.cancel_is_known) {
                Heard::Told(ShareTold::Attempt(attempt)) => Some(self.attempt(&attempt)),
                Heard::Told(ShareTold::Stop) => {
                    self.clear();
                    Some(ShareSaid::Stopped)
                }
                Heard::Told(ShareTold::Publish) => Some(self.publish()),
                Heard::Told(ShareTold::End(end)) => return Ok(Some(*end)),
                Heard::Told(ShareTold::Forget) => return Ok(None),
                // Said to a share that had failed by then.
                Heard::Told(_) => None,
                Heard::Cancelled(why) => Some(self.failed(&could_not(why))),
                Heard::Gone(why) => return Err(why),
            };
            if let Some(said) = said {
                self.saying.say(&said, &[]).map_err(|why| why.to_string())?;
            }
        }
    }

    /// Takes part in an attempt, and in those that follow when it is written; what there is to say of it.
    fn attempt(&mut self, attempt: &SortAttempt) -> ShareSaid {
        match self.share(attempt) {
            Ok(Written::Ready(laid, (bytes, edges))) => {
                // Of two shares the first may have made the output.
                let laid = self.kept.take().unwrap_or(*laid);
                match laid.ready(bytes, edges).and_then(|files| self.ready(attempt, &files)) {
                    Ok(shared) => ShareSaid::Ready(shared),
                    Err(why) => self.failed(&why),
                }
            }
            Ok(Written::Done) => ShareSaid::Published(Vec::new()),
            Ok(Written::Kept(mut laid, next)) => {
                laid.settle();
                self.kept.get_or_insert(*laid);
                self.attempt(&next)
            }
            Err(why) => self.failed(&why),
        }
    }

    /// These outputs lie where the first of each two paths says, and lack only their names. Returns the one that all wrote to.
    fn ready(&mut self, attempt: &SortAttempt, files: &[(PathBuf, PathBuf)]) -> Result<Option<ReadyFile>> {
        let files = files.iter().map(|(hidden, name)| ready_file(hidden, name).map_err(could_not));
        let files: Vec<ReadyFile> = files.collect::<Result<_>>()?;
        let shared = files.first().filter(|_| self.request.ask.writes_shared()).cloned();
        match &attempt.vote {
            Some(vote) => {
                let kept = self.node.votes.ready(&self.request.job, vote.number, files);
                kept.map_err(|why| Error::Gone(why, None))?;
            }
            None => self.ready = files,
        }
        Ok(shared)
    }

    /// Gives the outputs of a client's job their names.
    fn publish(&mut self) -> ShareSaid {
        ShareSaid::Published(name(&std::mem::take(&mut self.ready)))
    }

    /// Leaves nothing of outputs that get no names.
    fn clear(&mut self) {
        std::mem::take(&mut self.ready).iter().for_each(clear);
    }

    fn share(&mut self, attempt: &SortAttempt) -> Result<Written> {
        if attempt.index >= attempt.hosts.len() {
            return Err(could_not("a place that there is not"));
        }
        if let Some(vote) = &attempt.vote {
            let entered = self.node.votes.enter(self.node, &self.request.job, vote);
            entered.map_err(|why| Error::Gone(why, None))?;
        }
        self.clear();
        if attempt.range.is_none() {
            self.kept = None;
        } else if self.kept.is_none() {
            return Err(could_not("nothing of the attempt before is left"));
        }
        self.request.hosts.clone_from(&attempt.hosts);
        self.request.failed.clone_from(&attempt.failed);
        self.request.lost.clone_from(&attempt.lost);
        self.job.show(|view| {
            view.hosts.clone_from(&attempt.hosts);
            view.failed.clone_from(&attempt.failed);
            (view.read_bytes, view.written_bytes) = (0, 0);
            view.stage = "sample".into();
        });
        self.place.begin(attempt.number(), attempt.hosts.len());
        let (progress, written) = (Arc::new(Progress::default()), Progress::default());
        self.inbox.minds(Some(progress.clone()));
        let job = self.job.clone();
        let talk = Talk {
            host: self.node.name(),
            job: &job,
            saying: &self.saying,
            inbox: self.inbox,
            watch: Stopwatch::start(),
            own: self.request.ask.writes_own(),
            last_stage: self.request.ask.work.last_stage(),
            ends: AtomicBool::new(false),
            stoppers: Mutex::default(),
            crossed_seconds: Mutex::new(None),
        };
        let mut shared = None;
        let ran = std::thread::scope(|scope| {
            let minder = scope.spawn(|| talk.mind(&progress, &written));
            let ran = self.run(attempt, &talk, (&progress, &written), &mut shared);
            talk.ends.store(true, Ordering::Relaxed);
            minder.thread().unpark();
            ran
        });
        // A client removes what is its own.
        self.request.lost.extend(shared.filter(|_| !self.request.ask.lent_output));
        self.inbox.minds(None);
        self.place.begin(0, 0);
        ran
    }

    fn failed(&mut self, why: &Error) -> ShareSaid {
        if let Some(why) = self.job.cancelled() {
            self.cancel_is_known = true;
            let trouble = if why == GOES_DOWN { Trouble::Leaves } else { Trouble::Cancelled };
            return ShareSaid::Failed { trouble, why };
        }
        let trouble = match why {
            Error::Gone(_, place) => Trouble::Follows(*place),
            Error::Interrupted(_) => Trouble::Follows(None),
            Error::Full(_) => Trouble::Full,
            _ => Trouble::Asked,
        };
        ShareSaid::Failed { trouble, why: why.to_string() }
    }

    /// Runs a share to its end. Notes the file that all write to.
    fn run(
        &self,
        attempt: &SortAttempt,
        talk: &Talk<'_>,
        (progress, written): (&Progress, &Progress),
        noted: &mut Option<String>,
    ) -> Result<Written> {
        let go_on: &dyn Fn() -> bool = &|| progress.cancelled().is_none();
        let asked = self.link.bytes();
        let share = Share::open(share_of(self.node, &self.request, attempt)?, self.lent(attempt)?)?;
        let (input_bytes, memory_bytes) = share.found();
        self.saying
            .say(&ShareSaid::Found { input_bytes, memory_bytes, rates: self.node.kept_rates() }, &[])?;
        let (least_bytes, bytes) = self.told(go_on, |told, _| match told {
            ShareTold::Sample { least_bytes, before_bytes, all_bytes } => {
                Some((least_bytes, (before_bytes, all_bytes)))
            }
            _ => None,
        })?;
        self.job.show(|view| view.all_bytes = bytes.1);
        let (mut laid, mut sample) = share.sample(least_bytes, bytes)?;
        let makes = attempt.index == 0 && attempt.range.is_none() && self.request.ask.writes_shared();
        let made = if makes { Some(word_of(&laid.make_shared()?)) } else { None };
        let packed = pack_cuts(&mut sample);
        drop(sample);
        self.saying.say(&ShareSaid::Sampled { pages: laid.pages(), shared: made }, &packed)?;
        let ((pages, range_bytes), shared, (cuts_bytes, packed)) =
            self.told(go_on, |told, packed| match told {
                ShareTold::Go { pages, range_bytes, shared, cuts_bytes } => {
                    Some(((pages, range_bytes), shared, (cuts_bytes, packed)))
                }
                _ => None,
            })?;
        noted.clone_from(&shared);
        self.job.show(|view| view.stage = "read+river".into());
        let (cuts, keys) =
            unpacked(&packed, cuts_bytes as usize).ok_or_else(|| could_not("cuts that are none"))?;
        drop(packed);
        let river = number_of(&self.request.job, attempt.number());
        let mut links = None;
        let mut rivers = |laid: &Laid, side: usize| {
            let pages = pages.get(side).ok_or_else(|| could_not("no pages of a side"))?;
            let of_job = (&self.request, attempt, side);
            let (ends, its) = join(self.node, of_job, (&self.place, go_on), |to, from| {
                // Rivers that share links have names of their own.
                let river = river.wrapping_add((side as u64) << 32);
                Ok(laid.bed(side, river, cuts.clone(), pages)?.node(attempt.index, to, from)?)
            })?;
            links.get_or_insert(its);
            talk.stoppers.lock().expect("no holder panics").extend([ends.0.stopper(), ends.1.stopper()]);
            Ok(ends)
        };
        let shared = shared.as_deref().map(path_of).transpose()?;
        let ran =
            laid.run(&mut rivers, (&pages, range_bytes, keys), shared.as_deref(), talk, (progress, written));
        let end = ran.map_err(|why| match &links {
            Some(links) => links.missed(named(why, &attempt.hosts), &attempt.hosts),
            None => why,
        })?;
        let mut links = links.expect("there is a side");
        if self.request.ask.lends() {
            links.0.push((Arc::clone(self.link), asked));
        }
        talk.done(end, &links)?;
        self.follow_up(laid, go_on)
    }

    /// What is told of a share that is written.
    fn follow_up(&self, laid: Laid, go_on: &dyn Fn() -> bool) -> Result<Written> {
        let told = self.told(go_on, |told, _| match told {
            ShareTold::Ready { .. } | ShareTold::Publish => Some(told),
            ShareTold::Attempt(ref next) if next.range.is_some() => Some(told),
            _ => None,
        })?;
        Ok(match told {
            ShareTold::Ready { bytes, edges } => Written::Ready(Box::new(laid), (bytes, edges)),
            ShareTold::Attempt(next) => Written::Kept(Box::new(laid), next),
            _ => Written::Done,
        })
    }

    /// The client's disk, for what it lends.
    fn lent(&self, attempt: &SortAttempt) -> Result<LentDisks> {
        let ask = &self.request.ask;
        if !ask.lends() {
            return Ok(LentDisks::default());
        }
        let inputs = if ask.lent_inputs { inputs_of(ask)? } else { Vec::new() };
        let output = if ask.lent_output { Some((path_of(&ask.output)?, attempt.number())) } else { None };
        let lent = Lent::new(self.link, self.request.job.clone(), inputs, output);
        let lent: Arc<dyn FileSystem> = Arc::new(lent);
        let of = |is_lent: bool| is_lent.then(|| Arc::clone(&lent));
        Ok(LentDisks { inputs: of(ask.lent_inputs), output: of(ask.lent_output) })
    }

    /// What a share is told next.
    fn told<T>(
        &self,
        go_on: &dyn Fn() -> bool,
        wanted: impl FnMut(ShareTold, Vec<u8>) -> Option<T>,
    ) -> Result<T> {
        self.inbox.wait(go_on, wanted).ok_or(Error::Interrupted(SIGTERM))
    }
}

/// The cuts, and behind them keys of the range.
fn unpacked(packed: &[u8], cuts_bytes: usize) -> Option<(Vec<Cut>, Vec<Cut>)> {
    let (cuts, keys) = packed.split_at_checked(cuts_bytes)?;
    Some((unpack_cuts(cuts, CUTS_BYTES)?, unpack_cuts(keys, CUTS_BYTES)?))
}

/// A share that runs, and whoever asked for it.
struct Talk<'a> {
    host: &'a str,
    job: &'a Job,
    saying: &'a Saying,
    inbox: &'a Inbox,
    watch: Stopwatch,
    /// Whether the output is the node's own, and begins where it begins.
    own: bool,
    /// What comes behind the river.
    last_stage: &'static str,
    /// Whether nobody minds it any more.
    ends: AtomicBool,
    /// What stops its ends of rivers while they wait for a node that says nothing.
    stoppers: Mutex<Vec<Stopper>>,
    /// Seconds until the range had come.
    crossed_seconds: Mutex<Option<f64>>,
}

impl Starts for Talk<'_> {
    fn crossed(&self) {
        *self.crossed_seconds.lock().expect("no holder panics") = Some(self.watch.seconds());
    }

    fn say(&self, bytes: u64) -> Result<()> {
        self.saying.say(&ShareSaid::Range(bytes), &[])
    }

    fn wait(&self, go_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        if self.own {
            return Ok(Some(0));
        }
        Ok(self.inbox.wait(go_on, |told, _| match told {
            ShareTold::Start(at) => Some(at),
            _ => None,
        }))
    }
}

impl Talk<'_> {
    /// Says how far the share is, as long as it runs, and stops it when the job is cancelled here.
    fn mind(&self, read: &Progress, written: &Progress) {
        let mut last = (0, 0);
        while !self.ends.load(Ordering::Relaxed) {
            std::thread::park_timeout(PROGRESS);
            if self.job.cancelled().is_some() {
                read.cancel(SIGTERM);
            }
            if read.cancelled().is_some() {
                self.stoppers.lock().expect("no holder panics").drain(..).for_each(|stopper| stopper.stop());
            }
            let now = (read.view().done_bytes, written.view().done_bytes);
            let crossed = self.crossed_seconds.lock().expect("no holder panics").is_some();
            self.job.show(|view| {
                (view.read_bytes, view.written_bytes) = now;
                if view.stage == "read+river" && (crossed || now.1 > 0) {
                    view.stage = self.last_stage.into();
                }
            });
            if now != std::mem::replace(&mut last, now) {
                let _ = self.saying.say(&ShareSaid::Progress(now.0, now.1), &[]);
            }
        }
    }

    /// Says that all is written.
    fn done(&self, mut end: ShareEnd, links: &Links) -> Result<()> {
        end.node.host = self.host.to_string();
        end.node.link_bytes = links.bytes();
        end.node.seconds[1] = self.crossed_seconds.lock().expect("no holder panics").unwrap_or(0.0);
        self.job.show(|view| view.stage = "publish".into());
        self.saying.say(&ShareSaid::Done(Box::new(end)), &[])
    }
}

/// An end of the river that has gone, by the name of its host: the number of an outlet says nothing to who reads it.
fn named(why: Error, hosts: &[String]) -> Error {
    let Error::Gone(text, Some(place)) = why else { return why };
    let gone =
        ["outlet", "source"].iter().find_map(|end| text.strip_prefix(&format!("{end} {place} has gone")));
    let named = gone.zip(hosts.get(place)).map(|(rest, host)| format!("the node of {host} has gone{rest}"));
    Error::Gone(named.unwrap_or(text), Some(place))
}

/// The links with the other nodes, and what they had carried before.
struct Links(Vec<(Arc<Link>, (u64, u64))>);

impl Links {
    fn bytes(&self) -> (u64, u64) {
        let since = |(link, before): &(Arc<Link>, (u64, u64))| {
            let now = link.bytes();
            (now.0 - before.0, now.1 - before.1)
        };
        self.0.iter().map(since).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// The same failure, without the place of a node that is missed while all links with it stand: it gave its streams up,
    /// and says itself whom it misses.
    fn missed(&self, why: Error, hosts: &[String]) -> Error {
        let Error::Gone(text, Some(place)) = why else { return why };
        let with_it = |(link, _): &&(Arc<Link>, _)| hosts.get(place).is_some_and(|host| link.peer() == host);
        let stand = self.0.iter().filter(with_it).all(|(link, _)| link.is_open());
        Error::Gone(text, (!stand).then_some(place))
    }
}

/// Opens a stream to every other node and waits for theirs. `build` makes the ends of the river of them: how outlets
/// are reached, and how inlets are.
fn join(
    node: &Arc<Node>,
    (job, attempt, side): (&SortJob, &SortAttempt, usize),
    (place, go_on): (&Place<'_>, &dyn Fn() -> bool),
    build: impl FnOnce(Vec<Reach>, Vec<Reach>) -> Result<(Inlet, Outlet)>,
) -> Result<((Inlet, Outlet), Links)> {
    let mut links: Vec<Arc<Link>> = Vec::new();
    let mut to = Vec::with_capacity(attempt.hosts.len());
    let from = side * attempt.hosts.len() + attempt.index;
    let river = to_json(&NodeRequest::River { job: job.job.clone(), attempt: attempt.number(), from });
    for (i, host) in attempt.hosts.iter().enumerate() {
        if i == attempt.index {
            to.push(Reach::Here);
            continue;
        }
        let gone = |why: &dyn ToString| Error::Gone(why.to_string(), Some(i));
        let link = node.link_with(host).map_err(|why| gone(&why))?;
        let (out, inc) = link.open(river.as_bytes()).map_err(|why| gone(&why))?;
        to.push(Reach::Stream(out, inc));
        links.push(link);
    }
    let mut from = Vec::with_capacity(attempt.hosts.len());
    for came in place.streams((attempt, side), go_on)? {
        from.push(match came {
            Some(((out, inc), link)) => {
                links.push(link);
                Reach::Stream(out, inc)
            }
            None => Reach::Here,
        });
    }
    links.sort_by_key(Arc::as_ptr);
    links.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let with_bytes = |link: Arc<Link>| {
        let bytes = link.bytes();
        (link, bytes)
    };
    let links = Links(links.into_iter().map(with_bytes).collect());
    Ok((build(to, from)?, links))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missed_over_a_link_that_stands_is_not_the_cause() {
        let (near, far) = thalweg_wire::pair(thalweg_wire::Terms::default()).unwrap();
        let hosts = ["n1", near.peer()].map(String::from);
        let links = Links(vec![(Arc::new(near), (0, 0))]);
        let missed = || match links.missed(Error::Gone("it has gone".into(), Some(1)), &hosts) {
            Error::Gone(_, place) => place,
            other => panic!("{other}"),
        };
        assert_eq!(missed(), None);
        far.close();
        while links.0[0].0.is_open() {
            let _ = links.0[0].0.accept();
        }
        assert_eq!(missed(), Some(1));
    }

    #[test]
    fn what_has_gone_is_told_by_the_name_of_its_host() {
        let hosts = ["n1", "n2", "n3"].map(String::from);
        let told = |why: thalweg_river::Error| named(why.into(), &hosts).to_string();
        assert!(
            told(thalweg_river::Error::Gone(2)).starts_with("the node of n3 has gone before the river's end")
        );
        let lost = thalweg_river::Error::Fault(thalweg_river::core::Fault::Lost(1));
        assert!(told(lost).starts_with("the node of n2 has gone before its end"));
        assert!(told(thalweg_river::Error::Gone(7)).starts_with("outlet 7 "));
        assert!(told(thalweg_river::Error::Stopped).contains("stopped"));
    }
}

//! A node's part in a job on several nodes.
//!
//! Model: the coordinator has a stream to every participant, for the messages that `api/src/job.rs` lists. The job
//! lasts as long as the stream, through any number of attempts. In an attempt, when all split points are known, each
//! participant opens a stream to every other, waits for theirs, and runs.
//! Invariant: an attempt that is stopped or cancelled, fails, or loses its coordinator has removed everything that it
//! made before the next message is sent.
//! Non-goals: how a range is sorted; that is the engine's.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{
    AttemptEnd, Edge, FromParticipant, JobAttempt, JobSpec, JobState, ParticipantEnd, ReadyFile,
    ToParticipant, Trouble, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::participant::{ClientDisks, Participant, PreparedParticipant, Starts};
use thalweg_engine::{Error, JobFault, Progress, Result};
use thalweg_io::host;
use thalweg_record::{SplitPoint, pack_sample, unpack_sample};
use thalweg_river::Stopper;
use thalweg_table::cluster::{TableFiles, is_table};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::threads::caught;
use thalweg_wire::{Link, Outgoing, Streams, message};

use crate::client_served::{Client, ClientInputs, client_output};
use crate::error::{SHUTTING_DOWN, SIGTERM};
use crate::inbox::{Heard, Inbox};
use crate::job_options::{inputs_of, number_of, path_of, share_of, word_of};
use crate::jobs::Job;
use crate::local::Local;
use crate::participations::Place;
use crate::probe;
use crate::rivers::{Links, join, named};
use crate::successor;
use crate::volumes;
use crate::vote::{clear, name, ready_file};

/// How often a participant reports progress, and checks whether the job was cancelled on this node.
const PROGRESS: Duration = Duration::from_millis(100);
/// The most bytes of the split points, and of the keys sampled from a range, once they are unpacked.
const SPLIT_POINTS_BYTES_MAX: usize = 64 << 20;

/// Takes part in a job on this stream, until the job or its coordinator ends.
pub(crate) fn serve(local: &Arc<Local>, link: &Arc<Link>, request: JobSpec, (out, inc): Streams) {
    let saying = CoordinatorSender(Mutex::new(Some(out)));
    // Dropped after the refusal was sent, which the peer would not receive otherwise.
    let mut hearing = match message::Reader::new(inc, link.peer(), FRAME_BYTES) {
        Ok(hearing) => hearing,
        Err(why) => return saying.give_up(&why.to_string()),
    };
    let entered = local.participations.enter(&request);
    let entered = entered.and_then(|place| Ok((place, local.jobs.begin_sort(&request, local.name())?)));
    let (place, job) = match entered {
        Ok(entered) => entered,
        Err(why) => return saying.give_up(&why.to_string()),
    };
    let (inbox, kept, ready) = (&Inbox::new(local.node.dead_after()), None, Vec::new());
    let mut part =
        Session { local, link, job, request, place, saying, inbox, cancel_is_known: false, kept, ready };
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| inbox.hear_all(&mut hearing));
        let ended = caught(|| part.serve()).unwrap_or_else(|why| Err(Error::Gone(why, None)));
        part.kept = None;
        local.votes.hears(&part.request.job, false);
        // Ends the stream, and with it the thread that reads messages.
        match ended {
            Ok(end) => {
                part.clear();
                match end {
                    Some(end) => local.jobs.end_sort(&part.job, end),
                    None => local.jobs.forget(&part.job),
                }
                part.saying.end();
                Ok(())
            }
            Err(why) => {
                let why = why.to_string();
                part.saying.give_up(&why);
                Err(why)
            }
        }
    });
    let Session { job, request, place, ready, .. } = part;
    drop(place);
    host::release_memory();
    match ended {
        Ok(()) => {}
        Err(why) if request.coordinator.is_some() => {
            if let Err(why) = caught(|| successor::follow(local, &job, request, &why)) {
                local
                    .jobs
                    .end_sort(&job, AttemptEnd { state: JobState::Failed, why: Some(why), receipt: None });
            }
        }
        Err(_) => {
            // The client may have told other nodes to name their outputs.
            let lie = ready
                .iter()
                .map(|file| format!("; the output for {} is whole, at {}", file.name, file.hidden));
            let why = Some(format!("its client has gone{}", lie.collect::<String>()));
            local.jobs.end_sort(&job, AttemptEnd { state: JobState::Cancelled, why, receipt: None });
        }
    }
}

/// The stream to the coordinator, which several threads write to.
struct CoordinatorSender(Mutex<Option<Outgoing>>);

impl CoordinatorSender {
    /// Aborts the stream, with the reason.
    fn give_up(&self, why: &str) {
        let out = self.0.lock().expect("no holder panics").take();
        let _ = out.map(|out| out.abort(why));
    }

    fn end(&self) {
        if let Some(out) = self.0.lock().expect("no holder panics").as_mut() {
            let _ = out.end(&[]);
        }
    }

    fn say(&self, said: &FromParticipant, behind: &[u8]) -> Result<()> {
        let mut out = self.0.lock().expect("no holder panics");
        let out = out.as_mut().ok_or(JobFault::GivenUp)?;
        Ok(message::send(out, &to_json(said), behind)?)
    }
}

/// A participant in a job.
struct Session<'a> {
    local: &'a Arc<Local>,
    /// The link with the coordinator.
    link: &'a Arc<Link>,
    job: Arc<Job>,
    /// The request, with what has changed since.
    request: JobSpec,
    place: Place<'a>,
    saying: CoordinatorSender,
    inbox: &'a Inbox,
    cancel_is_known: bool,
    /// What this node wrote in an earlier attempt, kept while it sorts the range of a lost node too. Both ranges get
    /// their names together.
    kept: Option<PreparedParticipant>,
    /// Outputs that only need their final names, if the client coordinates.
    ready: Vec<ReadyFile>,
}

/// What follows after this node's range is written.
enum Written {
    /// The outputs are to be made ready for their names, with this many bytes and these edges.
    Ready(Box<PreparedParticipant>, (u64, Vec<Edge>)),
    /// Nothing remains to be done here.
    Done,
    /// The range of a lost node is to be sorted first.
    Kept(Box<PreparedParticipant>, JobAttempt),
}

impl Session<'_> {
    /// Follows the coordinator's messages. Returns how the job ended, `None` if it was only a plan, or an error if
    /// contact was lost before the end.
    fn serve(&mut self) -> Result<Option<AttemptEnd>> {
        loop {
            let said = match self.inbox.next(&self.job, self.cancel_is_known) {
                Heard::Told(ToParticipant::Attempt(attempt)) => Some(self.attempt(&attempt)),
                Heard::Told(ToParticipant::Stop) => {
                    self.clear();
                    Some(FromParticipant::Stopped)
                }
                Heard::Told(ToParticipant::Publish) => Some(self.publish()),
                Heard::Told(ToParticipant::End(end)) => return Ok(Some(*end)),
                Heard::Told(ToParticipant::Forget) => return Ok(None),
                // It was sent before the coordinator knew that this participant had failed.
                Heard::Told(_) => None,
                Heard::Cancelled(why) => Some(self.failed(&JobFault::Cancelled(why).into())),
                Heard::Gone(why) => return Err(Error::Gone(why.to_string(), None)),
            };
            if let Some(said) = said {
                self.saying.say(&said, &[])?;
            }
        }
    }

    /// Takes part in an attempt, and then in those for the ranges of lost nodes. Returns the message for the
    /// coordinator.
    fn attempt(&mut self, attempt: &JobAttempt) -> FromParticipant {
        match self.share(attempt) {
            Ok(Written::Ready(prepared, (bytes, edges))) => {
                // If there was an earlier part, it created the output.
                let prepared = self.kept.take().unwrap_or(*prepared);
                match prepared.ready(bytes, edges).and_then(|files| self.ready(attempt, &files)) {
                    Ok(shared) => FromParticipant::Ready(shared),
                    Err(why) => self.failed(&why),
                }
            }
            Ok(Written::Done) => FromParticipant::Published(Vec::new()),
            Ok(Written::Kept(mut prepared, next)) => {
                prepared.settle();
                self.kept.get_or_insert(*prepared);
                self.attempt(&next)
            }
            Err(why) => self.failed(&why),
        }
    }

    /// Records the outputs that only need their final names. Each pair is the temporary and the final path of a file.
    /// Returns the file that all nodes wrote to, if there is one.
    fn ready(&mut self, attempt: &JobAttempt, files: &[(PathBuf, PathBuf)]) -> Result<Option<ReadyFile>> {
        let files: Vec<ReadyFile> =
            files.iter().map(|(hidden, name)| ready_file(hidden, name)).collect::<Result<_>>()?;
        let shared = files.first().filter(|_| self.request.ask.writes_shared()).cloned();
        match &attempt.vote {
            Some(vote) => {
                let kept = self.local.votes.ready(&self.request.job, vote.number, files);
                kept.map_err(|why| Error::Gone(why.to_string(), None))?;
            }
            None => self.ready = files,
        }
        Ok(shared)
    }

    /// Gives the outputs of a client's job their final names.
    fn publish(&mut self) -> FromParticipant {
        FromParticipant::Published(name(&std::mem::take(&mut self.ready)))
    }

    /// Removes outputs that will not be named.
    fn clear(&mut self) {
        std::mem::take(&mut self.ready).iter().for_each(clear);
    }

    fn share(&mut self, attempt: &JobAttempt) -> Result<Written> {
        if attempt.index >= attempt.hosts.len() {
            return Err(JobFault::Place(attempt.index, attempt.hosts.len()).into());
        }
        if let Some(vote) = &attempt.vote {
            let entered = self.local.enter_vote(&self.request.job, vote);
            entered.map_err(|why| Error::Gone(why.to_string(), None))?;
        }
        self.clear();
        if attempt.range.is_none() {
            self.kept = None;
        } else if self.kept.is_none() {
            return Err(JobFault::NothingKept.into());
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
        let talk = RunningAttempt {
            host: self.local.name(),
            job: &job,
            saying: &self.saying,
            inbox: self.inbox,
            watch: Stopwatch::start(),
            own: self.request.ask.writes_own(),
            last_stage: self.request.ask.spec.work.last_stage(),
            ends: AtomicBool::new(false),
            stoppers: Mutex::default(),
            crossed_seconds: Mutex::new(None),
        };
        let mut shared = None;
        let ran = std::thread::scope(|scope| {
            let monitor = scope.spawn(|| talk.monitor(&progress, &written));
            let ran = self.run(attempt, &talk, (&progress, &written), &mut shared);
            talk.ends.store(true, Ordering::Relaxed);
            monitor.thread().unpark();
            ran
        });
        // A client removes its own files.
        self.request.lost.extend(shared.filter(|_| !self.request.ask.lent_output));
        self.inbox.minds(None);
        self.place.begin(0, 0);
        ran
    }

    fn failed(&mut self, why: &Error) -> FromParticipant {
        if let Some(why) = self.job.cancelled() {
            self.cancel_is_known = true;
            let trouble = if why == SHUTTING_DOWN { Trouble::Leaves } else { Trouble::Cancelled };
            return FromParticipant::Failed { trouble, why, is_linked: false };
        }
        let (trouble, is_linked) = match why {
            Error::Gone(_, Some(missed)) => (Trouble::Follows(Some(missed.place)), missed.is_linked),
            Error::Gone(_, None) | Error::Interrupted(_) => (Trouble::Follows(None), false),
            why if why.is_full() => (Trouble::Full, false),
            _ => (Trouble::Asked, false),
        };
        FromParticipant::Failed { trouble, why: why.to_string(), is_linked }
    }

    /// Runs an attempt to its end. Records the file that all nodes write to.
    fn run(
        &self,
        attempt: &JobAttempt,
        talk: &RunningAttempt<'_>,
        (progress, written): (&Progress, &Progress),
        noted: &mut Option<String>,
    ) -> Result<Written> {
        let should_continue: &dyn Fn() -> bool = &|| progress.cancelled().is_none();
        let asked = self.link.bytes();
        let share =
            Participant::open(share_of(&*self.local.node, &self.request, attempt)?, self.lent(attempt)?)?;
        let (input_bytes, memory_bytes) = share.found();
        let rates = probe::kept_rates(self.local);
        self.saying.say(&FromParticipant::Found { input_bytes, memory_bytes, rates }, &[])?;
        let (least_bytes, bytes) = self.told(should_continue, |told, _| match told {
            ToParticipant::Sample { least_bytes, before_bytes, all_bytes } => {
                Some((least_bytes, (before_bytes, all_bytes)))
            }
            _ => None,
        })?;
        self.job.show(|view| view.all_bytes = bytes.1);
        let (mut prepared, mut sample) = share.sample(least_bytes, bytes)?;
        let makes = attempt.index == 0 && attempt.range.is_none() && self.request.ask.writes_shared();
        let made = if makes { Some(word_of(&prepared.make_shared()?)) } else { None };
        let packed = pack_sample(&mut sample);
        drop(sample);
        self.saying.say(&FromParticipant::Sampled { pages: prepared.pages(), shared: made }, &packed)?;
        let ((pages, range_bytes), shared, (cuts_bytes, packed)) =
            self.told(should_continue, |told, packed| match told {
                ToParticipant::Go { pages, range_bytes, shared, cuts_bytes } => {
                    Some(((pages, range_bytes), shared, (cuts_bytes, packed)))
                }
                _ => None,
            })?;
        noted.clone_from(&shared);
        self.job.show(|view| view.stage = "read+river".into());
        let (split_points, keys) =
            unpacked(&packed, cuts_bytes as usize).ok_or(JobFault::Packed(packed.len()))?;
        drop(packed);
        let river = number_of(&self.request.job, attempt.number());
        let mut links = None;
        let mut rivers = |prepared: &PreparedParticipant, side: usize| {
            let came = pages.len();
            let pages = pages.get(side).ok_or(JobFault::Inputs { came, expected: side + 1 })?;
            let of_job = (&self.request, attempt, side);
            let (ends, its) = join(&*self.local.node, of_job, (&self.place, should_continue), |to, from| {
                // Rivers that share links have different names.
                let river = river.wrapping_add((side as u64) << 32);
                Ok(prepared.river(side, river, split_points.clone(), pages)?.node(attempt.index, to, from)?)
            })?;
            links.get_or_insert(its);
            talk.stoppers.lock().expect("no holder panics").extend([ends.0.stopper(), ends.1.stopper()]);
            Ok(ends)
        };
        let shared = shared.as_deref().map(path_of).transpose()?;
        let inputs = (&pages[..], range_bytes, keys);
        let ran = prepared.run(&mut rivers, inputs, shared.as_deref(), talk, (progress, written));
        let end = ran.map_err(|why| named(why, &attempt.hosts, links.as_ref()))?;
        let mut links = links.expect("there is a side");
        if self.request.ask.lends() {
            links.0.push((Arc::clone(self.link), asked));
        }
        talk.done(end, &links)?;
        self.follow_up(prepared, should_continue)
    }

    /// Waits for what the coordinator wants next from a participant that has written its range.
    fn follow_up(
        &self,
        prepared: PreparedParticipant,
        should_continue: &dyn Fn() -> bool,
    ) -> Result<Written> {
        let told = self.told(should_continue, |told, _| match told {
            ToParticipant::Ready { .. } | ToParticipant::Publish => Some(told),
            ToParticipant::Attempt(ref next) if next.range.is_some() => Some(told),
            _ => None,
        })?;
        Ok(match told {
            ToParticipant::Ready { bytes, edges } => Written::Ready(Box::new(prepared), (bytes, edges)),
            ToParticipant::Attempt(next) => Written::Kept(Box::new(prepared), next),
            _ => Written::Done,
        })
    }

    /// The file systems of what the client serves, of files in volumes, and of tables.
    fn lent(&self, attempt: &JobAttempt) -> Result<ClientDisks> {
        let ask = &self.request.ask;
        let volumes = volumes::Opened::by(&*self.local.node, ask)?;
        let mut lent = ClientDisks::default();
        if let Some(volume) = inputs_of(ask)?.first().and_then(|path| volumes.of(path)) {
            lent.inputs = Some(Arc::new(volume));
        }
        if inputs_of(ask)?.first().is_some_and(|path| is_table(path)) {
            lent.inputs = Some(Arc::new(TableFiles::new(self.local.node.tables()?)));
        }
        if let Some(volume) = volumes.of(&path_of(&ask.spec.output)?) {
            lent.files = Some(Arc::new(volume));
        }
        if !ask.lends() {
            return Ok(lent);
        }
        let client = Client::new(self.link, self.request.job.clone());
        if ask.lent_inputs {
            lent.inputs = Some(Arc::new(ClientInputs::new(&client, inputs_of(ask)?)));
        }
        if ask.lent_output && lent.files.is_none() {
            lent.output = Some(client_output(&client, &path_of(&ask.spec.output)?, attempt.number()));
        }
        Ok(lent)
    }

    /// Waits for the next message that `wanted` takes.
    fn told<T>(
        &self,
        should_continue: &dyn Fn() -> bool,
        wanted: impl FnMut(ToParticipant, Vec<u8>) -> Option<T>,
    ) -> Result<T> {
        self.inbox.wait(should_continue, wanted).ok_or(Error::Interrupted(SIGTERM))
    }
}

/// Unpacks the split points and, after them, the sampled keys of the range.
fn unpacked(packed: &[u8], cuts_bytes: usize) -> Option<(Vec<SplitPoint>, Vec<SplitPoint>)> {
    let (split_points, keys) = packed.split_at_checked(cuts_bytes)?;
    Some((unpack_sample(split_points, SPLIT_POINTS_BYTES_MAX)?, unpack_sample(keys, SPLIT_POINTS_BYTES_MAX)?))
}

/// The running attempt, as the threads of this participant see it.
struct RunningAttempt<'a> {
    host: &'a str,
    job: &'a Job,
    saying: &'a CoordinatorSender,
    inbox: &'a Inbox,
    watch: Stopwatch,
    /// Whether the output is the node's own, so that its range begins at byte 0.
    own: bool,
    /// The stage after the river.
    last_stage: &'static str,
    /// Whether the attempt has ended.
    ends: AtomicBool,
    /// Stop the inlets and outlets of the attempt when they wait for a silent node.
    stoppers: Mutex<Vec<Stopper>>,
    /// Seconds until the whole range had arrived.
    crossed_seconds: Mutex<Option<f64>>,
}

impl Starts for RunningAttempt<'_> {
    fn crossed(&self) {
        *self.crossed_seconds.lock().expect("no holder panics") = Some(self.watch.seconds());
    }

    fn say(&self, bytes: u64) -> Result<()> {
        self.saying.say(&FromParticipant::Range(bytes), &[])
    }

    fn wait(&self, should_continue: &dyn Fn() -> bool) -> Result<Option<u64>> {
        if self.own {
            return Ok(Some(0));
        }
        Ok(self.inbox.wait(should_continue, |told, _| match told {
            ToParticipant::Start(at) => Some(at),
            _ => None,
        }))
    }
}

impl RunningAttempt<'_> {
    /// Reports progress as long as the attempt runs, and stops it when the job is cancelled on this node.
    fn monitor(&self, read: &Progress, written: &Progress) {
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
                let _ = self.saying.say(&FromParticipant::Progress(now.0, now.1), &[]);
            }
        }
    }

    /// Reports that everything is written.
    fn done(&self, mut end: ParticipantEnd, links: &Links) -> Result<()> {
        end.node.host = self.host.to_string();
        end.node.link_bytes = links.bytes();
        end.node.seconds[1] = self.crossed_seconds.lock().expect("no holder panics").unwrap_or(0.0);
        self.job.show(|view| view.stage = "publish".into());
        self.saying.say(&FromParticipant::Done(Box::new(end)), &[])
    }
}

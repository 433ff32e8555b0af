//! The stored votes of a node, on a real disk.
#![allow(clippy::disallowed_methods)] // Tests look at files directly.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use thalweg_api::{
    AttemptId, Decision, ExecRequest, FileStamp, JobSpec, JobState, ReadyFile, VoteAsk, VoteRecord,
    VoteRequest, VoteSaid, from_json, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_io::small;

use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, Terms};

use crate::agreement::{decide, end_of, serve};
use crate::jobs::{Job, Jobs};
use crate::local::Local;
use crate::naming::name_all;
use crate::settle::settle_some;
use crate::vote::core::Core;
use crate::vote::{DIRECTORY, GaveUp, JOBS_MAX, Proposal, Votes, ready_file};

const JOB: &str = "00000000000000000000000000000001";

/// The directory of an identity.
struct Place(PathBuf);

impl Place {
    fn new(of: &str) -> Place {
        let place = std::env::temp_dir().join(format!("thalweg-votes-{of}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        small::make_directory(&place).unwrap();
        Place(place)
    }

    /// The file of a job's record.
    fn record(&self, job: &str) -> PathBuf {
        self.0.join(DIRECTORY).join(job)
    }

    fn votes(&self) -> Votes {
        Votes::load("n1", Some(&self.0))
    }

    /// A node that reaches no other.
    fn node(&self) -> Arc<Local> {
        let host = Arc::new(Host::embedded("n1", Terms::default()));
        let local = Local::of(&host, &Arc::new(Jobs::default()));
        Arc::new(Local { votes: self.votes(), ..local })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn attempt(number: u32, hosts: &[&str]) -> AttemptId {
    let hosts = hosts.iter().map(|host| host.to_string()).collect();
    AttemptId { number, coordinator: "n1".into(), hosts }
}

fn ready(name: &str) -> ReadyFile {
    let file = FileStamp { inode: 1, bytes: 1, modified_ns: 1 };
    ReadyFile { hidden: format!(".{name}.ready"), name: name.into(), file, before: None }
}

/// A job that runs at a node.
fn begun(node: &Local) -> Arc<Job> {
    let asked = ExecRequest {
        job: JOB.into(),
        command: Vec::new(),
        env: Vec::new(),
        stdin: false,
        detach: true,
        timeout_ms: None,
    };
    node.jobs.begin(asked, "n1", "client").unwrap()
}

/// Names a job's outputs until that waits for this host, and then cancels it. Returns the lines about the outputs.
fn named_until_cancelled(
    node: &Arc<Local>,
    hosts: &[&str],
    shared: Option<ReadyFile>,
    waits_for: &str,
) -> Vec<String> {
    let job = begun(node);
    let maker = shared.is_some().then_some("n2");
    let decision = Decision::Committed { shared, receipt: None };
    let (tell, told) = channel();
    let (naming, attempt) = (node.clone(), attempt(1, hosts));
    assert!(spawn("names", move || {
        let _ = tell.send(name_all(&naming, ((JOB, &attempt), &decision), maker));
    }));
    let waits = format!("committed, waiting for {waits_for}");
    let begun = Stopwatch::start();
    while job.report().share.is_none_or(|share| share.stage != waits) {
        assert!(told.try_recv().is_err(), "it does not wait");
        assert!(begun.seconds() < 20.0, "{:?}", job.report());
        std::thread::yield_now();
    }
    job.cancel("on purpose");
    told.recv_timeout(Duration::from_secs(20)).expect("it can be cancelled")
}

fn record(job: &str, attempt: AttemptId) -> VoteRecord {
    Core::new("n1", job, attempt).record().clone()
}

/// A node was killed while it wrote a record: the unfinished file was read as one more record of that job, and counted
/// as the last if the directory listed it last. So a vote that had been answered was forgotten.
#[test]
fn a_record_that_was_not_finished_is_no_vote() {
    let place = Place::new("unfinished");
    let hosts = ["n1", "n2"];
    let kept = record(JOB, attempt(2, &hosts));
    let old = to_json(&record(JOB, attempt(1, &hosts)));
    small::make_directory(&place.0.join(DIRECTORY)).unwrap();
    small::write(&place.record(JOB), to_json(&kept).as_bytes()).unwrap();
    // One on each side of it, whichever way a directory is read.
    for number in 0..64 {
        std::fs::write(place.record(&format!(".thalweg-partial-1-{number}")), &old).unwrap();
    }
    let other = "00000000000000000000000000000002";
    std::fs::write(place.record(other), &old).unwrap();
    let votes = place.votes();
    assert_eq!(votes.known(JOB), Some((attempt(2, &hosts), None)));
    assert_eq!(votes.known(other), None, "it speaks of another job");
    assert_eq!(std::fs::read_dir(place.0.join(DIRECTORY)).unwrap().count(), 2, "nothing unfinished is left");
}

/// Records were synced, but not their directory's name: a power failure lost all votes of a node that had just made it.
#[test]
fn the_directory_of_votes_is_there_before_the_first() {
    let place = Place::new("directory");
    drop(place.votes());
    assert!(place.0.join(DIRECTORY).is_dir());
}

/// A proposal of a host that could not store its vote asked no host and never ended: its job ran on, even if cancelled.
#[test]
fn who_cannot_keep_a_vote_proposes_nothing_and_says_why() {
    let place = Place::new("broken");
    std::fs::write(place.0.join(DIRECTORY), "no directory").unwrap();
    let node = place.node();
    let entered = node.enter_vote(JOB, &attempt(1, &["n1", "n2"])).unwrap_err().to_string();
    assert!(entered.starts_with("n1 cannot keep its vote: ") && entered.contains("/votes"), "{entered}");
    let (tell, told) = channel();
    assert!(spawn("proposes", move || {
        let _ = tell.send(decide(&node, (JOB, 1), Proposal::End(JobState::Failed, "why".into())));
    }));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Err(GaveUp::NoVote(entered)));
}

/// A host made a proposal for attempt 1 when its record was at attempt 2 already: the outputs of the first were
/// committed as those of the second, and hosts that had not moved on yet were told that they were to get their names.
#[test]
fn what_is_wanted_of_one_attempt_is_not_proposed_for_another() {
    let place = Place::new("moved-on");
    let node = place.node();
    node.enter_vote(JOB, &attempt(1, &["n1"])).unwrap();
    let second = AttemptId { coordinator: "n2".into(), ..attempt(2, &["n1", "n2"]) };
    node.enter_vote(JOB, &second).unwrap();
    let commit = Proposal::Commit(Decision::Committed { shared: None, receipt: None });
    assert_eq!(decide(&node, (JOB, 1), commit), Err(GaveUp::Other(second.clone())));
    assert_eq!(node.votes.known(JOB), Some((second, None)));
}

/// The host that made the output was lost, and the coordinator could not name it: that counted as named.
#[test]
fn an_output_that_nobody_named_is_waited_for() {
    let place = Place::new("nobody");
    let kept = named_until_cancelled(&place.node(), &["n1", "n2"], Some(ready("out")), "n2");
    assert!(kept.len() == 1 && kept[0].contains("it is whole, at .out.ready, and n2 names it"), "{kept:?}");
}

/// A host answers pings, but its disk hangs: no report said which host the job waited for, and it could not be
/// cancelled.
#[test]
fn a_host_whose_disk_hangs_does_not_keep_a_job_from_being_cancelled() {
    let place = Place::new("hangs");
    let node = place.node();
    node.enter_vote(JOB, &attempt(1, &["n1"])).unwrap();
    let seat = node.votes.seat(JOB).unwrap();
    let hangs = seat.state.lock().unwrap();
    let kept = named_until_cancelled(&node, &["n1"], None, "n1");
    drop(hangs);
    assert_eq!(kept, ["n1 has not given its output its name yet, and will when it can be reached"]);
}

/// A node that was killed with outputs ready kept them, and nothing reported where, or what they waited for.
#[test]
fn outputs_in_doubt_are_told_once_for_each_reason() {
    let place = Place::new("doubt");
    small::make_directory(&place.0.join(DIRECTORY)).unwrap();
    let kept =
        VoteRecord { ready: vec![ready("a"), ready("b")], ..record(JOB, attempt(1, &["n2", "n1", "n3"])) };
    small::write(&place.record(JOB), to_json(&kept).as_bytes()).unwrap();
    let node = place.node();
    let seat = node.votes.seat(JOB).unwrap();
    // It reaches no other node, and says so.
    settle_some(&node, 1);
    let mut state = seat.state.lock().unwrap();
    assert_eq!(state.doubt, Some(GaveUp::Few(1, 3)));
    assert_eq!(state.doubt(GaveUp::Few(1, 3)), None);
    assert_eq!(state.doubt(GaveUp::Outbid), None);
    let told = state.doubt(GaveUp::Few(0, 3)).unwrap();
    let words =
        format!("job {JOB}: a is whole, at .a.ready (and 1 more), and waits for its name: 0 of 3 hosts are");
    assert!(told.starts_with(&words), "{told}");
    assert_eq!(state.core.record().ready, kept.ready);
}

/// A host that was killed inside a job kept an undecided record for ever; with 1,024 of them, it could not join a job.
#[test]
fn a_job_that_nobody_goes_on_with_is_decided_or_makes_room_in_the_end() {
    let place = Place::new("room");
    small::make_directory(&place.0.join(DIRECTORY)).unwrap();
    let id = |number: usize| format!("{number:032x}");
    let write = |number: usize, ready: Vec<ReadyFile>, days: u64| {
        let kept = VoteRecord { ready, ..record(&id(number), attempt(1, &["n1", "n2"])) };
        std::fs::write(place.record(&id(number)), to_json(&kept)).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(days * 86_400);
        let file = std::fs::File::options().write(true).open(place.record(&id(number))).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    (0..JOBS_MAX).for_each(|number| write(number, Vec::new(), 0));
    write(3, vec![ready("a")], 9);
    let (new, later) = (attempt(1, &["n1"]), id(JOBS_MAX));
    let told = place.node().enter_vote(&later, &new).unwrap_err().to_string();
    assert!(told.contains("1024 jobs that are not decided"), "{told}");
    write(5, Vec::new(), 2);
    write(4, Vec::new(), 3);
    let node = place.node();
    node.enter_vote(&later, &new).unwrap();
    assert!(node.votes.known(&id(4)).is_none() && !place.record(&id(4)).exists(), "the oldest goes");
    assert!(node.votes.known(&id(3)).is_some() && node.votes.known(&id(5)).is_some());
    assert!(node.enter_vote(&id(4), &attempt(2, &["n1", "n2"])).is_err(), "it has no vote");
    // A job that has only this host is decided.
    (0..JOBS_MAX)
        .filter(|number| *number != 4)
        .for_each(|number| std::fs::remove_file(place.record(&id(number))).unwrap());
    let node = place.node();
    settle_some(&node, 1);
    let decided = node.votes.known(&later).unwrap().1;
    assert!(matches!(decided, Some(Decision::Ended { state: JobState::Failed, .. })), "{decided:?}");
}

/// The user takes an output's name between ready and committed: his file stays, and the job's end says where the output
/// lies.
#[test]
fn an_output_whose_name_the_user_has_taken_is_kept_and_its_place_told() {
    let place = Place::new("taken");
    let (hidden, name) = (place.0.join(".out.ready"), place.0.join("out"));
    std::fs::write(&hidden, "sorted").unwrap();
    let node = place.node();
    node.enter_vote(JOB, &attempt(1, &["n1"])).unwrap();
    node.votes.ready(JOB, 1, vec![ready_file(&hidden, &name).unwrap()]).unwrap();
    std::fs::write(&name, "of the user").unwrap();
    let commit = Proposal::Commit(Decision::Committed { shared: None, receipt: None });
    let decision = decide(&node, (JOB, 1), commit).unwrap();
    let end = end_of(decision, &node.votes.kept(JOB));
    let said = format!(
        "{} has changed since the output was ready; the output is whole, at {}",
        name.display(),
        hidden.display()
    );
    assert_eq!((end.state, end.why), (JobState::Failed, Some(said)));
    assert_eq!(std::fs::read_to_string(&name).unwrap(), "of the user");
    assert_eq!(std::fs::read_to_string(&hidden).unwrap(), "sorted");
}

/// A host learned that the job was committed before its coordinator reported that the output had kept its temporary
/// name, because the user had taken its name: the host reported that the job was done.
#[test]
fn a_committed_job_ends_as_its_coordinator_says() {
    for is_coordinated in [true, false] {
        let place = Place::new("ends");
        let node = place.node();
        node.enter_vote(JOB, &attempt(1, &["n1"])).unwrap();
        let job = begun(&node);
        let takes_part = format!(
            r#"{{"job": "{JOB}", "by": "", "hosts": [], "coordinator": null, "failed": [], "lost": [], "ask": {{"inputs": [],
            "own_inputs": false, "output": "out", "own_output": false, "record": 100, "keys": [], "unique": false,
            "memory_bytes": null, "scratch": [], "scratch_limit": null, "threads": null}}}}"#
        );
        let takes_part = from_json::<JobSpec>(&takes_part).unwrap();
        let _place = is_coordinated.then(|| node.participations.enter(&takes_part).unwrap());
        let (link, _other) = thalweg_wire::pair(Terms::default()).unwrap();
        let decision = Decision::Committed { shared: Some(ready("out")), receipt: None };
        let ask = VoteAsk::Learn { decision, names_shared: false };
        let (job_id, from) = (JOB.to_string(), link.peer().to_string());
        let told = VoteRequest { job: job_id, from, attempt: attempt(1, &["n1"]), ask };
        assert_eq!(serve(&node, &link, told), VoteSaid::Learned(Vec::new()));
        assert_eq!(job.has_ended(), !is_coordinated);
    }
}

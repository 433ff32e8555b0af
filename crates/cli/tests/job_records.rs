//! What hosts remember of a job on several nodes: a second request to begin a job that runs or has ended, a lost
//! coordinator with a request longer than a frame, and a host that returns with another certificate, or as another host
//! under its old name. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::lab::{Lab, hosts};
use support::{Outcome, Place, Running, until};
use thalweg_api::{
    ClusterFile, ExecEnd, JobList, JobReport, JobRequest, JobSpec, JobState, ServiceRequest, from_json,
};
use thalweg_wire::{Credentials, Identity, Link, Terms, read_cluster};

const HOSTS: usize = 4;
/// The longest time until a host refuses a request for which it would have to wait: 12 s.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// The longest time to leave out a host, or to find that too few are left.
const END_SECONDS_MAX: f64 = 45.0;
/// File names so long that a request for all of them is longer than a frame.
const INPUTS: usize = 844;

/// Nodes with disks so slow that a sort takes seconds, and an input that all of them see.
struct Bed {
    lab: Lab,
    place: Place,
}

impl Bed {
    fn new() -> Option<Bed> {
        let lab = Lab::up(&[&HOSTS.to_string(), "--disk", "6MB/s"])?;
        let place = Place::new();
        place.shell("$T gen 300k in --skewed -q && $T sort in -o expected --record 100 -q").is_done();
        Some(Bed { lab, place })
    }

    /// Has nodes sort these inputs without their client. Returns the job's id when records cross the river.
    fn sort(&self, inputs: &[&str]) -> String {
        let name = format!("lab-{}", self.lab.id);
        let words =
            ["-o", "out", "--record", "100", "--memory", "40MiB", "--detach", "-q", "--cluster", &name];
        let args = [&["sort"], inputs, &words].concat();
        let asked = Outcome::of(self.lab.command(&args).current_dir(&self.place.0).output().unwrap());
        let id = asked.is_done().trim().to_string();
        until("records on the river", || {
            let is_there =
                |job: &JobReport| job.share.as_ref().is_some_and(|share| share.stage == "read+river");
            self.jobs().iter().any(|job| job.id == id && is_there(job))
        });
        id
    }

    /// What the nodes that answer report about jobs.
    fn jobs(&self) -> Vec<JobReport> {
        from_json::<JobList>(&self.lab.run(&["job", "list", "--json"]).out)
            .map_or(Vec::new(), |list| list.jobs)
    }

    /// Watches a job from now to its end.
    fn watch(&self, id: &str) -> Running {
        let watch = Running::start(&mut self.lab.command(&["job", "watch", id]));
        // The watch has to know the hosts before some of them are lost.
        watch.waits();
        watch
    }

    fn cluster(&self) -> ClusterFile {
        read_cluster(&self.lab.directory("own")).unwrap().0
    }

    /// A link of the owner to a host.
    fn linked(&self, host: &str) -> Link {
        let identity = Identity::load(&self.lab.directory("own")).unwrap().0;
        let all = self.cluster().hosts;
        let at = all.into_iter().find(|other| other.name == host).unwrap().address;
        Credentials::of(identity).unwrap().connect(host, at.parse().unwrap(), Terms::default()).unwrap()
    }

    /// Checks that the output is the sorted input, and that nothing else is left.
    fn is_done(&self) {
        assert!(self.place.read("out") == self.place.read("expected"), "other bytes");
        until("an end everywhere", || self.jobs().iter().all(|job| job.state != JobState::Running));
    }
}

/// The answer of a host to a second request to begin, as a participant or as the coordinator. A participant that is
/// accepted has no end of its own, so the link is closed after a while.
fn begin(link: &Arc<Link>, request: &JobRequest) -> Result<(), String> {
    let held = link.clone();
    std::thread::spawn(move || {
        std::thread::sleep(ANSWERS_WITHIN);
        held.close();
    });
    let (_out, mut inc) = link.open(request.text().as_bytes()).map_err(|why| why.to_string())?;
    while inc.next_on().map_err(|why| why.to_string())?.is_some() {}
    let told = String::from_utf8_lossy(inc.result().unwrap_or_default()).into_owned();
    match from_json::<ExecEnd>(&told) {
        Ok(ExecEnd { state: JobState::Running, .. }) => Ok(()),
        Ok(ExecEnd { why, .. }) => Err(why.unwrap_or_default()),
        Err(_) => Ok(()),
    }
}

/// What went wrong: a second request to begin a job erased the record "done" of the first, or made a node coordinate
/// the job twice, and one coordinator ended what the other had begun. Consequence: the named output was written again,
/// over what the user had put there.
/// Principle: a job begins once, whoever sends the request.
#[test]
fn a_second_begin_of_a_job_that_runs_or_is_done_is_refused_and_changes_nothing() {
    let Some(bed) = Bed::new() else { return };
    bed.place.shell("$T gen 300k other -q").is_done();
    let id = bed.sort(&["in"]);
    let path = |name: &str| bed.place.0.join(name).display().to_string();
    let words = r#"{"job": "JOB", "by": "client", "hosts": ["n1", "n2", "n3", "n4"], "coordinator": "n1", "failed": [], "lost": [],
        "ask": {"inputs": ["IN"], "own_inputs": false, "output": "OUT", "own_output": false, "record": 100, "keys": [],
        "unique": false, "memory_bytes": 41943040, "scratch": [], "scratch_limit": null, "threads": null}}"#;
    let words = words.replace("JOB", &id).replace("IN", &path("other")).replace("OUT", &path("out"));
    let forged = from_json::<JobSpec>(&words).unwrap();
    let again = |host: &str| {
        let link = Arc::new(bed.linked(host));
        let coordinator = Some(host.to_string());
        let coordinate = JobRequest::Coordinate(JobSpec { coordinator, ..forged.clone() });
        // A second participant waits for the running one, and is refused when that has ended.
        let ends = [coordinate, JobRequest::Sort(forged.clone())].map(|request| begin(&link, &request));
        for end in ends {
            let why = end.expect_err("a job begins once");
            assert!(why.contains(&id), "{host}: {why}");
        }
    };
    let all = hosts(HOSTS);
    let at_once = || {
        std::thread::scope(|scope| all.iter().for_each(|host| drop(scope.spawn(|| again(host)))));
    };
    at_once();
    bed.is_done();
    let records = || -> Vec<JobReport> {
        let mut jobs = bed.jobs();
        jobs.retain(|job| job.id == id);
        jobs
    };
    let before = records();
    assert!(before.len() == HOSTS && before.iter().all(|job| job.state == JobState::Done), "{before:?}");
    let coordinators = |jobs: &[JobReport]| -> Vec<_> {
        jobs.iter().map(|job| job.share.as_ref().unwrap().coordinator.clone()).collect()
    };
    assert_eq!(coordinators(&before), vec![Some("n1".to_string()); HOSTS]);
    // Meanwhile the user has put something else there.
    bed.place.write("out", b"of the user");
    at_once();
    assert_eq!(records(), before);
    assert_eq!(bed.place.read("out"), b"of the user");
    assert_eq!(bed.place.names(), ["expected", "in", "other", "out"]);
}

/// What went wrong: the node that took over a job of 844 inputs asserted that its request fits into a frame, and ended;
/// so did its successors. Principle: every coordinator sends requests in pieces.
#[test]
fn a_job_of_very_many_inputs_is_taken_up_when_its_coordinator_is_lost() {
    let Some(bed) = Bed::new() else { return };
    let line = format!(
        "mkdir a-directory-with-a-longer-name && split -a 4 -d -b {} in a-directory-with-a-longer-name/input-",
        300_000 / INPUTS * 100
    );
    bed.place.shell(&line).is_done();
    let listed = bed.place.shell("echo a-directory-with-a-longer-name/*");
    let inputs: Vec<&str> = listed.is_done().split_whitespace().collect();
    assert!(inputs.len() >= INPUTS, "{}", inputs.len());
    let bytes: usize = inputs.iter().map(|input| bed.place.0.join(input).as_os_str().len()).sum();
    assert!(bytes > 64 << 10, "{bytes} bytes are no more than a frame");
    let id = bed.sort(&inputs);
    let watch = bed.watch(&id);
    bed.lab.call("kill", &["n1"]);
    let told = watch.ends_within(END_SECONDS_MAX, "the watch");
    assert_eq!(told.status, Some(0), "{told:?}");
    for text in ["attempt 2, ", "invariant out = in: holds"] {
        assert!(told.out.contains(text), "no {text}: {told:?}");
    }
    bed.is_done();
    let jobs = bed.jobs();
    let done = jobs.iter().filter(|job| job.id == id && job.state == JobState::Done);
    assert_eq!(done.count(), HOSTS - 1, "the nodes live: {jobs:?}");
}

/// Kills n1 and n2 during a sort, lets the owner change something about n2, and starts n2 again with the identity that
/// results.
fn comes_back(change: &str, keeps_votes: bool) -> Option<(Bed, Outcome)> {
    let bed = Bed::new()?;
    let id = bed.sort(&["in"]);
    let watch = bed.watch(&id);
    // Both at once: a node that outlives the first takes the sort over.
    bed.lab.call("kill", &["n1", "n2"]);
    let (own, n2) = (bed.lab.directory("own"), bed.lab.directory("n2").join("identity"));
    let votes = if keeps_votes { "cp -a $N2/votes votes && " } else { "" };
    let back = if keeps_votes { " && mv votes $N2/votes" } else { "" };
    let at = bed.cluster().hosts[1].address.clone();
    let change = change.replace("AT", &at);
    let line = format!(
        "export THALWEG_IDENTITY={} N2={}; test -d $N2/votes && {votes}cp -a $N2 $THALWEG_IDENTITY/hosts/n2 && \
         ({change}) >/dev/null 2>&1; rm -r $N2 && mv $THALWEG_IDENTITY/hosts/n2 $N2{back}",
        own.display(),
        n2.display()
    );
    bed.place.shell(&line).is_done();
    bed.lab.call("revive", &["n2"]);
    let told = watch.ends_within(END_SECONDS_MAX, "the watch");
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    Some((bed, told))
}

/// Votes belong to the host, not to its certificate: with n2's vote three of four continue.
#[test]
fn a_host_that_was_renewed_while_it_was_down_has_its_vote() {
    let Some((bed, told)) = comes_back("$T cluster renew n2", true) else { return };
    assert!(told.status == Some(0), "{told:?}");
    bed.is_done();
}

/// A new host under the name of one that had a vote does not know how that one voted: it abstains. So two of four
/// hosts, without the first, cannot know whether the others continue.
#[test]
fn a_replacement_under_an_old_name_abstains() {
    let change = "$T cluster drop n2; rm -rf $THALWEG_IDENTITY/hosts/n2; $T cluster add n2=AT";
    let Some((bed, told)) = comes_back(change, false) else { return };
    assert!(told.status == Some(2) && told.err.contains("2 of 4 hosts cannot know"), "{told:?}");
    // The others can reach it, and it knows nothing of the job.
    bed.lab.run(&["exec", "--via", "n3", "--on", "n2", "--", "true"]).is_done();
    let mut jobs = bed.jobs();
    jobs.retain(|job| job.detached);
    assert_eq!(
        jobs.iter().map(|job| (&job.host[..], job.state)).collect::<Vec<_>>(),
        [("n3", JobState::Failed), ("n4", JobState::Failed)]
    );
    assert!(!bed.place.names().contains(&"out".to_string()), "{:?}", bed.place.names());
}

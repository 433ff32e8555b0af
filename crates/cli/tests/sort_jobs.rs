//! Sorts on the nodes of a lab as jobs: listed, shown, watched and cancelled from any client; completed by the other
//! nodes, byte for byte, if a node is killed, frozen, cut off or out of space, at every stage; and taken over by
//! another node if the coordinator is lost. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::lab::Lab;
use support::{Outcome, Place, Running, skipped, until, until_within};
use thalweg_api::{JobList, JobReport, JobState, NodeReady, ParticipantView, Receipt, from_json};

const HOSTS: usize = 4;
/// The longest time to leave out a silent node (5 s, and one second for the cause) and to begin again.
const END_SECONDS_MAX: f64 = 30.0;
/// The longest time to end a cancelled job.
const CANCELLED_WITHIN: Duration = Duration::from_secs(2);

/// The longest time until a node that was frozen finds that the others continued without it (2 s, and the time to open
/// a link).
const KNOWS_WITHIN: Duration = Duration::from_secs(8);

/// Disks with which n3 has written its range before the others have.
const EARLY: [&str; 4] = ["--roles", "slow:2,fast:1,late:1", "--disk", "slow:6MB/s,fast:60MB/s,late:6MB/s"];

/// Nodes with disks so slow that each stage takes a second, and an input that all of them see.
struct Bed {
    lab: Lab,
    place: Place,
}

impl Bed {
    fn new() -> Option<Bed> {
        Bed::of(&["--disk", "6MB/s"])
    }

    fn of(disks: &[&str]) -> Option<Bed> {
        let lab = Lab::up(&[&[HOSTS.to_string().as_str()], disks].concat())?;
        let place = Place::new();
        place.shell("$T gen 300k in --skewed -q && $T sort in -o expected --record 100 -q").is_done();
        Some(Bed { lab, place })
    }

    /// Starts a sort, with more flags.
    fn sort(&self, more: &[&str]) -> Running {
        self.run("sort", more)
    }

    fn run(&self, verb: &str, more: &[&str]) -> Running {
        let args = [verb, "in", "-o", "out", "--record", "100", "--memory", "40MiB", "--json"];
        let name = format!("lab-{}", self.lab.id);
        let args = [&args[..], &["--cluster", &name], more].concat();
        Running::start(self.lab.command(&args).current_dir(&self.place.0))
    }

    /// The jobs that the nodes that answer report.
    fn jobs(&self) -> Vec<JobReport> {
        from_json::<JobList>(&self.lab.run(&["job", "list", "--json"]).out)
            .map_or(Vec::new(), |list| list.jobs)
    }

    /// Waits until some node is at this stage. Returns the job's id.
    fn at(&self, stage: &str) -> String {
        self.at_or(stage, |_| false).expect("somebody is there")
    }

    /// The same; `None` if the jobs have ended in this way before somebody was seen there.
    fn at_or(&self, stage: &str, ends: impl Fn(&[JobReport]) -> bool) -> Option<String> {
        let mut id = None;
        until(stage, || {
            let jobs = self.jobs();
            let there = jobs.iter().find(|job| job.share.as_ref().is_some_and(|share| share.stage == stage));
            id = there.map(|job| job.id.clone());
            id.is_some() || ends(&jobs)
        });
        id
    }

    /// Watches a detached job, of which the client says its id.
    fn watch(&self, client: Running, id: &str, what: &str) -> Running {
        let told = ended(client, what);
        assert!(told.is_done().contains(id), "{what}: {told:?}");
        let watch = Running::start(&mut self.lab.command(&["job", "watch", id, "--json"]));
        // It has to know the hosts before some of them are lost.
        watch.waits();
        watch
    }

    /// Asks a host's node to end.
    fn asks_to_end(&self, host: &str) {
        let ready = std::fs::read_to_string(self.lab.directory(host).join("ready")).unwrap();
        let node = from_json::<NodeReady>(ready.trim()).unwrap().pid;
        self.place.shell(&format!("kill {node}")).is_done();
    }

    /// Applies a fault to a host, or to the link between two.
    fn does(&self, fault: &str, host: &str, id: &str, sort: &Running) {
        let hosts: Vec<&str> = host.split(' ').collect();
        match fault {
            "cancel" => drop(self.lab.run(&["job", "cancel", id]).is_done()),
            "client" => sort.signal("-KILL"),
            "down" => self.asks_to_end(host),
            "one-way" => self.lab.call("cut", &[&["--one-way"], &hosts[..]].concat()),
            fault => self.lab.call(fault, &hosts),
        }
    }

    /// All files of all hosts, except those of the lab.
    fn files(&self) -> Vec<PathBuf> {
        let ours = ["identity", "pid", "ready", "err"];
        let of = |host: usize| {
            let entries = std::fs::read_dir(self.lab.directory(&format!("n{host}"))).unwrap();
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| !ours.iter().any(|own| path.ends_with(own)))
        };
        (1..=HOSTS).flat_map(of).collect()
    }

    /// Waits until the job has ended everywhere; a host that was left out finds out soon.
    fn has_ended(&self, what: &str, left_out: Option<&str>) {
        let healed = Instant::now();
        let is_told =
            |job: &JobReport| job.why.as_ref().is_some_and(|why| why.contains("the others continue"));
        until(&format!("an end everywhere after {what}"), || {
            let jobs = self.jobs();
            let found = |host: &str| jobs.iter().any(|job| job.host == host && is_told(job));
            jobs.iter().all(|job| job.state != JobState::Running) && left_out.is_none_or(found)
        });
        assert!(left_out.is_none() || healed.elapsed() < KNOWS_WITHIN, "{what}: {:?}", healed.elapsed());
    }

    /// Checks that nothing is left of a sort but its output, if it has one.
    fn is_tidy(&self, what: &str, has_output: bool) {
        let expected: &[&str] = if has_output { &["expected", "in", "out"] } else { &["expected", "in"] };
        until(&format!("tidiness after {what}"), || {
            self.place.names() == expected && self.files().is_empty()
        });
        if has_output {
            assert!(self.place.read("out") == self.place.read("expected"), "{what}: other bytes");
        }
    }
}

/// Waits for an end that may take as long as leaving out a node.
fn ended(running: Running, what: &str) -> Outcome {
    running.ends_within(END_SECONDS_MAX, what)
}

#[test]
fn a_sort_is_a_job_that_any_client_can_follow() {
    let Some(bed) = Bed::new() else { return };
    let sort = bed.sort(&[]);
    let id = bed.at("read+river");
    let watch = Running::start(&mut bed.lab.command(&["job", "watch", &id[..8]]));
    let listed = bed.lab.run(&["job", "list"]);
    assert!(listed.is_done().contains(&format!("\n{}  4 hosts  running ", &id[..8])), "{listed:?}");
    assert!(listed.out.contains("  sort /") && listed.out.contains("--record 100"), "{listed:?}");
    let shown = bed.lab.run(&["job", "show", &id]);
    assert!(shown.is_done().contains("\nn3    1        "), "{shown:?}");
    assert!(shown.out.contains("coordinated by client"), "{shown:?}");
    let receipt: Receipt = from_json(ended(sort, "the sort").is_done()).unwrap();
    assert!(receipt.holds && receipt.failed.is_empty());
    let watched = ended(watch, "the watch");
    for text in
        ["attempt 1, read+river: ", " of 30 MB read", "attempt 1, sort+write: ", "invariant out = in: holds"]
    {
        assert!(watched.is_done().contains(text), "no {text}: {watched:?}");
    }
    // Each node remembers the receipt.
    let list: JobList = from_json(bed.lab.run(&["job", "show", &id, "--json"]).is_done()).unwrap();
    let kept = |job: &JobReport| job.share.as_ref().and_then(|share| Some(share.receipt.as_ref()?.output));
    assert!(
        list.jobs.len() == HOSTS && list.jobs.iter().all(|job| kept(job) == Some(receipt.output)),
        "{list:?}"
    );
    assert!(list.jobs.iter().all(|job| job.state == JobState::Done && !job.detached));
    bed.is_tidy("a sort", true);
}

#[test]
fn whatever_happens_while_keys_are_sampled_the_others_complete_the_sort() {
    matrix("sample");
}

#[test]
fn whatever_happens_when_the_first_has_written_its_range_the_others_complete_the_sort() {
    matrix("publish");
}

#[test]
fn whatever_happens_while_records_cross_the_river_the_others_complete_the_sort() {
    matrix("read+river");
}

#[test]
fn whatever_happens_while_ranges_are_written_the_others_complete_the_sort() {
    matrix("sort+write");
}

/// Tries every fault at this stage, each in a lab of its own, a few at a time.
fn matrix(stage: &str) {
    let faults = [
        ("kill", "n3"),
        ("freeze", "n3"),
        ("cut", "n3"),
        ("down", "n3"),
        // The node that creates the file that all write to.
        ("kill", "n1"),
        ("freeze", "n1"),
        ("cancel", "any"),
        ("client", ""),
        ("kill", "coordinator"),
        ("freeze", "coordinator"),
        ("down", "coordinator"),
        ("freeze", "follower"),
        ("cut", "follower"),
        // Between two nodes, the first of which coordinates, in both directions or in one; and between two others.
        ("cut", "n1 n2"),
        ("one-way", "n1 n2"),
        ("one-way", "n2 n1"),
        ("cut", "n2 n3"),
    ];
    let mut rows = Vec::new();
    for some in faults.chunks(5) {
        let done = std::thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|(fault, whom)| scope.spawn(move || one((stage, fault, whom), 3))).collect();
            let joined = running
                .into_iter()
                .map(|case| case.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Vec<_>>()
        });
        rows.extend(done);
    }
    println!("stage       fault   whom         ended after  how");
    rows.iter().flatten().for_each(|row| println!("{row}"));
}

/// The receipt that a sort's client prints, or that a watch prints for a job that nodes coordinate.
fn receipt_of(told: &Outcome, watched: bool) -> Receipt {
    if !watched {
        return from_json(&told.out).unwrap();
    }
    let jobs = from_json::<JobList>(&told.out).unwrap().jobs;
    jobs.into_iter().find_map(|job| job.share?.receipt).expect("some node has it")
}

/// Whether there were jobs, and all are done.
fn are_done(jobs: &[JobReport]) -> bool {
    !jobs.is_empty() && jobs.iter().all(|job| job.state == JobState::Done)
}

/// One row of the matrix; `None` where there are no labs. On a busy machine the stage may pass between two looks, or the
/// fault may come when the job is done; then there are this many more tries.
fn one((stage, fault, whom): (&str, &str, &str), tries: u32) -> Option<String> {
    let bed = if stage == "publish" { Bed::of(&EARLY)? } else { Bed::new()? };
    let what = format!("{fault} {whom} at {stage}");
    // A node that has written everything, and is not missed before the others have, is not needed any more.
    let is_done =
        stage == "publish" && ["freeze", "cut"].contains(&fault) && ["n3", "follower"].contains(&whom);
    let is_pair = whom.contains(' ');
    let (detached, host) = match whom {
        "coordinator" => (true, "n1"),
        "follower" => (true, "n3"),
        // Either of the two may be left out.
        _ => (is_pair, whom),
    };
    let mut sort = bed.sort(if detached { &["--detach"] } else { &[] });
    let Some(id) = bed.at_or(stage, are_done) else {
        assert!(tries > 0, "{what}: nobody was seen there");
        drop((bed, sort));
        return one((stage, fault, whom), tries - 1);
    };
    if detached {
        sort = bed.watch(sort, &id, &what);
    }
    let since = Instant::now();
    bed.does(fault, host, &id, &sort);
    let told = ended(sort, &what);
    let took = since.elapsed();
    let line = told.err.lines().last().unwrap_or("").to_string();
    match fault {
        "client" => assert_eq!(told.status, None, "{what}: {told:?}"),
        "cancel" => {
            assert!(told.status == Some(2) && took < CANCELLED_WITHIN, "{what} after {took:?}: {told:?}");
            assert!(
                told.err.lines().count() == 1 && line.contains("it was cancelled; no output"),
                "{told:?}"
            );
        }
        _ => {
            assert_eq!(told.status, Some(0), "{what} after {took:?}: {told:?}");
            let receipt = receipt_of(&told, detached);
            // After the exchange the two may no longer notice that they cannot reach each other.
            let exchanged = ["sort+write", "publish"].contains(&stage);
            let lost = if is_pair && exchanged { receipt.failed.len() } else { usize::from(!is_done) };
            assert!(lost <= 1, "{what}: {receipt:?}");
            let is_late = stage == "publish" && lost == 1 && receipt.failed.is_empty();
            if is_late && receipt.holds && receipt.nodes.len() == HOSTS && tries > 0 {
                drop(bed);
                return one((stage, fault, whom), tries - 1);
            }
            assert!(receipt.holds && receipt.nodes.len() == HOSTS - lost, "{what}: {receipt:?}");
            let names = receipt.failed.iter().filter(|line| is_pair || line.contains(host)).count();
            assert!(receipt.failed.len() == lost && names == lost, "{what}: {receipt:?}");
        }
    }
    let completes = !["client", "cancel"].contains(&fault);
    if completes {
        assert!(bed.place.read("out") == bed.place.read("expected"), "{what}: other bytes");
    }
    // A frozen node continues, and finds that it has been left out.
    bed.lab.call("heal", &[]);
    bed.has_ended(&what, (whom == "follower" && !is_done).then_some(host));
    bed.is_tidy(&what, completes);
    let how = if is_done {
        "completed"
    } else if completes {
        "completed on the others"
    } else {
        line.trim_start_matches("thalweg: ")
    };
    Some(format!("{stage:<10}  {fault:<6}  {whom:<11}  {:>9.2} s  {how}", took.as_secs_f64()))
}

/// The coordinator is lost while parts get their names: the others name theirs, nobody writes any part again, and the
/// job waits for the lost host, which names its own when it is back.
#[test]
fn what_was_committed_gets_its_names_whoever_is_lost_meanwhile() {
    let Some(bed) = Bed::new() else { return };
    let name = format!("lab-{}", bed.lab.id);
    // So many that naming them takes a while.
    let words = ["partition", "in", "-o", "nodes:part-{}", "--parts", "400", "--record", "100", "--detach"];
    let args = [&words[..], &["--memory", "64MiB", "--cluster", &name]].concat();
    let partition = Running::start(bed.lab.command(&args).current_dir(&bed.place.0));
    bed.at("read+river");
    ended(partition, "the partition").is_done();
    let named = |host: &str| -> usize {
        let of_host = |file: &PathBuf| file.starts_with(bed.lab.directory(host));
        let has_name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("part-");
        bed.files().into_iter().filter(|file| of_host(file) && has_name(file)).count()
    };
    until("names", || named("n1") > 0);
    bed.lab.call("kill", &["n1"]);
    until("the others' names", || ["n2", "n3", "n4"].iter().all(|host| named(host) == 100));
    bed.lab.call("revive", &["n1"]);
    until("the names of the host that was lost", || named("n1") == 100);
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    assert!(bed.jobs().iter().all(|job| job.state == JobState::Done), "{:?}", bed.jobs());
    assert_eq!(bed.files().len(), 400, "nothing but the parts is left");
}

/// A host is lost when its attempt is committed and it has not named its output yet: the others name theirs, the job
/// says which host it waits for, and it is done when that host is back.
#[test]
fn a_committed_job_says_which_host_it_waits_for() {
    let Some(bed) = Bed::new() else { return };
    let name = format!("lab-{}", bed.lab.id);
    let words = ["sort", "in", "-o", "nodes:own-{}", "--record", "100", "--memory", "40MiB", "--detach"];
    let args = [&words[..], &["--cluster", &name]].concat();
    let sort = Running::start(bed.lab.command(&args).current_dir(&bed.place.0));
    let id = bed.at("sort+write");
    ended(sort, "the sort").is_done();
    let of = |host: &str| -> Vec<PathBuf> {
        bed.files().into_iter().filter(|file| file.starts_with(bed.lab.directory(host))).collect()
    };
    // To name the output, the node has to wait for this lock.
    until("n3's output", || of("n3").len() == 1);
    let locked = std::fs::File::open(&of("n3")[0]).unwrap();
    locked.lock().unwrap();
    let is_named = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("own-");
    let has_name = |host: &str| of(host).iter().any(is_named);
    until("n4's name", || has_name("n4"));
    bed.lab.call("kill", &["n3"]);
    assert_eq!(bed.at("committed, waiting for n3"), id);
    drop(locked);
    assert!(has_name("n1") && has_name("n2") && !has_name("n3"), "{:?}", bed.files());
    bed.lab.call("revive", &["n3"]);
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    assert!(bed.jobs().iter().all(|job| job.id != id || job.state == JobState::Done), "{:?}", bed.jobs());
    assert!(has_name("n3") && bed.files().len() == HOSTS, "{:?}", bed.files());
}

/// Only the link between the coordinator and its first follower is cut: exactly one of them names the output, once.
/// What the user puts in its place afterwards stays.
#[test]
fn a_link_between_two_nodes_that_is_cut_leaves_one_coordinator() {
    let Some(bed) = Bed::new() else { return };
    let sort = bed.sort(&["--detach"]);
    let id = bed.at("read+river");
    ended(sort, "asking").is_done();
    let watch = Running::start(&mut bed.lab.command(&["job", "watch", &id]));
    bed.lab.call("cut", &["n1", "n2"]);
    let output = bed.place.0.join("out");
    until_within(END_SECONDS_MAX, "an output after a cut", || output.exists());
    assert!(bed.place.read("out") == bed.place.read("expected"), "other bytes");
    std::fs::remove_file(&output).unwrap();
    std::fs::write(&output, "of the user").unwrap();
    ended(watch, "the watch").is_done();
    bed.lab.call("heal", &[]);
    bed.has_ended("a cut between n1 and n2", None);
    let is_done = |job: &&JobReport| job.id == id && job.state == JobState::Done;
    assert_eq!(bed.jobs().iter().filter(is_done).count(), HOSTS - 1, "{:?}", bed.jobs());
    assert_eq!(bed.place.read("out"), b"of the user");
}

/// A client is killed when three nodes are ready to name their outputs and the fourth has not answered: the three do
/// not know whether the fourth was told to name its output. They keep what they wrote, and say where it is.
#[test]
fn who_is_in_doubt_when_the_client_dies_keeps_what_it_wrote() {
    let Some(bed) = Bed::of(&["--roles", "slow:3,fast:1", "--disk", "slow:6MB/s,fast:60MB/s"]) else {
        return;
    };
    let args = ["sort", "in", "-o", "nodes:own-{}", "--record", "100", "--memory", "40MiB"];
    let name = format!("lab-{}", bed.lab.id);
    let sort = Running::start(
        bed.lab.command(&[&args[..], &["--cluster", &name]].concat()).current_dir(&bed.place.0),
    );
    let id = bed.at("publish");
    bed.lab.call("freeze", &["n4"]);
    let ready = || -> Vec<PathBuf> {
        let is_ready = |file: &PathBuf| file.extension().is_some_and(|end| end == "ready");
        bed.files().into_iter().filter(is_ready).collect()
    };
    until("three that are ready", || ready().len() == 3);
    sort.signal("-KILL");
    let in_doubt = || -> usize {
        let says = |job: &JobReport| job.why.as_ref().is_some_and(|why| why.contains(" is whole, at "));
        bed.jobs().iter().filter(|job| job.id == id && says(job)).count()
    };
    until("an end of the three", || in_doubt() == 3);
    assert_eq!(ready().len(), 3);
    bed.lab.call("heal", &[]);
    until("an end of the fourth", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    assert_eq!(bed.files(), ready(), "whoever was not ready has nothing left");
}

/// Two of four hosts are killed, among them the coordinator, and one of the two returns: three are alive, and complete
/// the sort.
#[test]
fn a_host_that_was_restarted_has_its_vote() {
    let Some(bed) = Bed::new() else { return };
    let sort = bed.sort(&["--detach"]);
    let id = bed.at("read+river");
    ended(sort, "the sort").is_done();
    bed.lab.call("kill", &["n1"]);
    bed.lab.call("kill", &["n2"]);
    bed.lab.call("revive", &["n2"]);
    let watch = Running::start(&mut bed.lab.command(&["job", "watch", &id]));
    ended(watch, "the watch");
    assert!(bed.place.read("out") == bed.place.read("expected"), "other bytes");
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    assert!(bed.jobs().iter().any(|job| job.id == id && job.state == JobState::Done), "{:?}", bed.jobs());
}

/// A node that is silent, and not yet missed, when all have written: inputs that outputs are to replace stay, on all
/// nodes.
#[test]
fn nobody_gives_names_before_all_have_said_that_they_are_there() {
    for (fault, detached) in [("cut", false), ("freeze", true)] {
        let Some(bed) = Bed::of(&["--roles", "slow:3,fast:1", "--disk", "slow:6MB/s,fast:60MB/s"]) else {
            return;
        };
        let name = format!("lab-{}", bed.lab.id);
        let file = |host: usize| bed.lab.directory(&format!("n{host}")).join("own");
        let made: Vec<Vec<u8>> = (1..=HOSTS)
            .map(|host| {
                let (start, path) = ((host * 75_000).to_string(), file(host).display().to_string());
                bed.place.run(&["gen", "75k", &path, "--start", &start, "-q"]).is_done();
                std::fs::read(file(host)).unwrap()
            })
            .collect();
        let words = [
            "sort",
            "nodes:own",
            "-o",
            "nodes:own",
            "--record",
            "100",
            "--memory",
            "40MiB",
            "--cluster",
            &name,
        ];
        let more: &[&str] = if detached { &["--detach"] } else { &[] };
        let mut running = Running::start(&mut bed.lab.command(&[&words[..], more].concat()));
        if detached {
            let id = bed.at("read+river");
            ended(running, "the sort").is_done();
            running = Running::start(&mut bed.lab.command(&["job", "watch", &id]));
        }
        let is_written = |job: &JobReport| {
            job.host == "n4" && job.share.as_ref().is_some_and(|share| share.stage == "publish")
        };
        until("n4's part", || bed.jobs().iter().any(is_written));
        bed.lab.call(fault, &["n4"]);
        let told = ended(running, fault);
        let line = "no output has its name, and all inputs are as they were";
        assert!(told.status == Some(2) && told.err.contains(line), "{told:?}");
        bed.lab.call("heal", &[]);
        until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
        until("tidiness", || bed.files().iter().eq(&(1..=HOSTS).map(file).collect::<Vec<_>>()));
        assert!(
            (1..=HOSTS).all(|host| std::fs::read(file(host)).unwrap() == made[host - 1]),
            "{fault}: inputs"
        );
    }
}

/// A successor continued without the inputs that only the lost coordinator had: the job was done, and a quarter of the
/// records missing.
#[test]
fn a_coordinator_that_is_lost_with_inputs_of_its_own_ends_the_job() {
    let Some(bed) = Bed::new() else { return };
    let name = format!("lab-{}", bed.lab.id);
    for host in 1..=HOSTS {
        let own = bed.lab.directory(&format!("n{host}")).join("own");
        bed.place.run(&["gen", "75k", own.to_str().unwrap(), "-q"]).is_done();
    }
    let words =
        ["sort", "nodes:own", "-o", "nodes:sorted", "--record", "100", "--memory", "40MiB", "--detach"];
    let sort = Running::start(&mut bed.lab.command(&[&words[..], &["--cluster", &name]].concat()));
    let id = bed.at("read+river");
    ended(sort, "the sort").is_done();
    bed.lab.call("kill", &["n1"]);
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    let line = "no output has its name, and all inputs are as they were";
    let jobs = bed.jobs();
    let is_told = |job: &JobReport| job.state == JobState::Failed && job.why.as_ref().unwrap().contains(line);
    assert!(jobs.iter().filter(|job| job.id == id && is_told(job)).count() == HOSTS - 1, "{jobs:?}");
    assert!(bed.files().iter().all(|file| !file.ends_with("sorted")), "{:?}", bed.files());
}

/// The coordinating node cannot store its votes: the job ends on all nodes, and all say why.
#[test]
fn a_coordinator_that_cannot_keep_its_vote_ends_the_job() {
    let Some(bed) = Bed::new() else { return };
    let votes = bed.lab.directory("n1").join("identity/votes");
    let _ = std::fs::remove_dir(&votes);
    std::fs::write(&votes, "no directory").unwrap();
    let told = ended(bed.sort(&["--detach"]), "asking");
    let id = from_json::<thalweg_api::Detached>(told.is_done()).unwrap().job;
    until("an end everywhere", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    let why = |job: &JobReport| job.why.clone().unwrap_or_default();
    let jobs = bed.jobs();
    let its: Vec<&JobReport> = jobs.iter().filter(|job| job.id == id).collect();
    assert!(its.len() == HOSTS && its.iter().all(|job| job.state == JobState::Failed), "{jobs:?}");
    assert!(its.iter().all(|job| why(job).starts_with("n1 cannot keep its vote: ")), "{jobs:?}");
    bed.is_tidy("a vote that cannot be kept", false);
}

/// Nodes that see the same directory would each write their range under the same name.
#[test]
fn one_name_in_a_directory_that_all_see_is_refused() {
    let Some(bed) = Bed::new() else { return };
    let name = format!("lab-{}", bed.lab.id);
    let output = format!("nodes:{}", bed.place.0.join("out").display());
    let words = ["sort", "in", "-o", &output, "--record", "100", "--memory", "40MiB", "--cluster", &name];
    let told = ended(Running::start(bed.lab.command(&words).current_dir(&bed.place.0)), "the sort");
    assert!(
        told.status == Some(2) && told.err.contains("in a directory that both see; put {} into the name"),
        "{told:?}"
    );
    bed.is_tidy("a refused sort", false);
}

/// Ranges that other nodes have written are kept: after a loss when all records had arrived, the remaining nodes sort
/// only the lost range. They sort everything again if the node that created the output is lost too.
#[test]
fn of_who_is_lost_when_all_has_come_only_the_range_is_sorted_again() {
    // The command, the fault when all nodes write, the node that is killed while the lost range is sorted, and whether
    // ranges are kept.
    let cases = [
        ("sort", "kill n3", "", true),
        ("sort", "down n3", "", true),
        ("sort", "kill n4", "n2", true),
        ("sort", "kill n2", "n1", false),
        ("sort", "kill n1", "", false),
        ("shuffle --seed 5", "kill n4", "", true),
    ];
    for some in cases.chunks(3) {
        std::thread::scope(|scope| {
            for (verb, fault, then, stays) in some {
                scope.spawn(move || a_range_is_lost(verb, fault, then, *stays));
            }
        });
    }
}

fn a_range_is_lost(verb: &str, fault: &str, then: &str, stays: bool) {
    let Some(bed) = Bed::new() else { return };
    let what = format!("{verb}: {fault}, then {then}");
    bed.place.shell(&format!("$T {verb} in -o expected --record 100 -q")).is_done();
    let words: Vec<&str> = verb.split(' ').collect();
    let running = bed.run(words[0], &words[1..]);
    let until_all = |count: usize, are: &dyn Fn(&ParticipantView) -> bool| {
        let there =
            || bed.jobs().iter().filter_map(|job| job.share.as_ref()).filter(|share| are(share)).count();
        until(&what, || there() >= count);
    };
    until_all(HOSTS, &|share| share.written_bytes > 0);
    match fault.split_once(' ').expect("what and whom") {
        ("down", whom) => bed.asks_to_end(whom),
        (fault, whom) => bed.lab.call(fault, &[whom]),
    }
    if !then.is_empty() {
        until_all(HOSTS - 1, &|share| share.failed.len() == 1 && share.read_bytes > 0);
        bed.lab.call("kill", &[then]);
    }
    let told = ended(running, &what);
    assert_eq!(told.status, Some(0), "{what}: {told:?}");
    let receipt: Receipt = from_json(&told.out).unwrap();
    let lost = if then.is_empty() { 1 } else { 2 };
    assert!(receipt.holds && receipt.failed.len() == lost, "{what}: {told:?}");
    let rows = HOSTS - if stays { 1 } else { lost };
    assert_eq!(receipt.nodes.len(), rows, "{what}: {receipt:?}");
    assert_eq!(receipt.nodes.iter().map(|node| node.output.1).sum::<u64>(), 30_000_000, "{what}");
    assert_eq!(told.err.contains("sorts the lost range on n"), stays || lost > 1, "{what}: {told:?}");
    assert_eq!(receipt.stages.iter().any(|stage| stage.name == "lost range"), stays, "{what}: {receipt:?}");
    bed.is_tidy(&what, true);
}

#[test]
fn no_room_on_one_node_is_that_nodes_matter() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    place.shell("$T gen 900k in -q && $T sort in -o expected --record 100 -q").is_done();
    let there = |host: &str, line: &str| {
        let ready = std::fs::read_to_string(lab.directory(host).join("ready")).unwrap();
        let (node, small) =
            (from_json::<NodeReady>(ready.trim()).unwrap().pid, lab.directory(host).join("dir"));
        place.shell(&format!("nsenter -m -t {node} {line} {}", small.display()))
    };
    for host in ["n1", "n2", "n3"] {
        std::fs::create_dir(lab.directory(host).join("dir")).unwrap();
    }
    // A mount must be made in the node's own mount namespace to be seen by it.
    if there("n2", "mount -t tmpfs -o size=1m small").status != Some(0) {
        return skipped("nothing can be mounted here");
    }
    let name = format!("lab-{}", lab.id);
    let sort = |more: &[&str]| {
        let args = ["sort", "in", "--record", "100", "--memory", "40MiB", "--json", "--cluster", &name];
        ended(
            Running::start(lab.command(&[&args, more].concat()).current_dir(&place.0)),
            "a sort without room",
        )
    };
    for (more, holds) in [
        (["-o", "nodes:dir/part-{}"].as_slice(), "n2: cannot create"),
        (&["-o", "out", "--scratch", "dir"], "n2: "),
    ] {
        let told = sort(more);
        assert_eq!(told.status, Some(0), "{told:?}");
        let receipt: Receipt = from_json(&told.out).unwrap();
        assert!(receipt.failed.len() == 1 && receipt.failed[0].starts_with(holds), "{receipt:?}");
        assert!(receipt.nodes.iter().map(|node| &node.host).eq(["n1", "n3"]), "{receipt:?}");
        assert!(told.err.contains("attempt 2 of at most 5 begins on n1, n3"), "{told:?}");
    }
    let part =
        |host: &str, i: usize| std::fs::read(lab.directory(host).join(format!("dir/part-{i}"))).unwrap();
    assert!([part("n1", 0), part("n3", 1)].concat() == place.read("expected"));
    assert!(place.read("out") == place.read("expected"));
    assert_eq!(there("n2", "ls -A").is_done(), "");
    // The coordinator continues to coordinate without being a participant.
    let told = sort(&["-o", "nodes:dir/part-{}", "--detach", "--on", "n2,n1,n3"]);
    let id = from_json::<thalweg_api::Detached>(told.is_done()).unwrap().job;
    let watched = ended(Running::start(&mut lab.command(&["job", "watch", &id, "--json"])), "the watch");
    assert_eq!(watched.status, Some(0), "{watched:?}");
    let receipt = receipt_of(&watched, true);
    assert!(receipt.nodes.iter().map(|node| &node.host).eq(["n1", "n3"]), "{receipt:?}");
    assert!([part("n1", 0), part("n3", 1)].concat() == place.read("expected"));
    // If no node has space, another attempt would not help.
    for host in ["n1", "n3"] {
        there(host, "mount -t tmpfs -o size=1m small").is_done();
    }
    let told = sort(&["-o", "nodes:dir/part-{}"]);
    assert!(told.status == Some(2) && told.err.lines().count() == 2, "{told:?}");
    assert!(told.err.lines().last().unwrap().contains("has 1 MiB left"), "{told:?}");
}

#[test]
fn a_detached_sort_goes_on_and_its_end_is_told_at_any_node() {
    let Some(bed) = Bed::new() else { return };
    let begun = Instant::now();
    let told = ended(bed.sort(&["--detach"]), "asking");
    assert!(begun.elapsed() < CANCELLED_WITHIN, "it waited {:?}", begun.elapsed());
    let id = from_json::<thalweg_api::Detached>(told.is_done()).unwrap().job;
    let watched = ended(Running::start(&mut bed.lab.command(&["job", "watch", &id])), "the watch");
    assert!(watched.is_done().contains("invariant out = in: holds"), "{watched:?}");
    bed.is_tidy("a detached sort", true);
    let shown = bed.lab.run(&["job", "show", &id]);
    assert!(shown.is_done().contains("coordinated by n1: sort /"), "{shown:?}");
    // A job that fails is reported in one line to everyone who watches it, and is not tried again.
    let args = ["sort", "in", "-o", "other", "--record", "77", "--detach", "-q", "--on", "n2,n3"];
    let name = format!("lab-{}", bed.lab.id);
    let mut ask = bed.lab.command(&[&args[..], &["--cluster", &name]].concat());
    let told = ended(Running::start(ask.current_dir(&bed.place.0)), "asking");
    let watched =
        ended(Running::start(&mut bed.lab.command(&["job", "watch", told.is_done().trim()])), "the watch");
    assert!(watched.status == Some(2) && watched.err.lines().count() == 1, "{watched:?}");
    assert!(
        watched.err.starts_with("thalweg: n2: ") || watched.err.starts_with("thalweg: n3: "),
        "{watched:?}"
    );
    // Any client can end a running job.
    let told = ended(bed.sort(&["--detach", "--on", "n4,n3"]), "asking");
    let id = from_json::<thalweg_api::Detached>(told.is_done()).unwrap().job;
    bed.at("read+river");
    bed.lab.run(&["job", "cancel", &id]).is_done();
    let since = Instant::now();
    until("its end", || bed.jobs().iter().all(|job| job.state != JobState::Running));
    assert!(since.elapsed() < CANCELLED_WITHIN);
    let last = bed.jobs().into_iter().filter(|job| job.id == id);
    assert!(last.map(|job| job.state).eq([JobState::Cancelled; 2]));
    bed.is_tidy("all that", true);
    let local = bed.place.run(&["sort", "in", "-o", "other", "--detach"]);
    local.is_refused(&["--detach is for a sort on the nodes of a cluster"]);
}

#[test]
fn what_is_gone_before_is_left_out_and_half_of_the_hosts_know_their_limits() {
    let Some(bed) = Bed::new() else { return };
    bed.lab.call("kill", &["n3"]);
    let told = ended(bed.sort(&[]), "a sort without n3");
    assert!(
        told.err.contains("cannot reach n3") && told.err.contains("; the sort continues without it"),
        "{told:?}"
    );
    let receipt: Receipt = from_json(&told.out).unwrap();
    assert!(told.status == Some(0) && receipt.nodes.iter().map(|node| &node.host).eq(["n1", "n2", "n4"]));
    bed.is_tidy("a sort without n3", true);
    std::fs::remove_file(bed.place.0.join("out")).unwrap();
    // Of two nodes, the second cannot know whether the first continues.
    ended(bed.sort(&["--detach", "--on", "n1,n2"]), "asking").is_done();
    let id = bed.at("read+river");
    let watch = Running::start(&mut bed.lab.command(&["job", "watch", &id]));
    watch.waits();
    bed.lab.call("kill", &["n1"]);
    let told = ended(watch, "the watch");
    let line = told.err.lines().last().unwrap_or("");
    assert!(told.status == Some(2) && line.contains("1 of 2 hosts cannot know"), "{told:?}");
    assert!(!bed.place.names().contains(&"out".to_string()) && bed.files().is_empty());
}

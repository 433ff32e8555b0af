//! A cluster is upgraded node by node, over ssh, while a table, a volume and jobs on it are used. The other build is that
//! of `THALWEG_PREVIOUS`, or a copy of the command with another number of its build in it. Without a server of ssh the
//! tests say that they were skipped.
#![allow(clippy::disallowed_methods)] // Tests write settings and look at directories.

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use support::sshd::Sshd;
use support::{Outcome, Place, free_ports, until};
use thalweg::table::{ClusterOptions, Table, Tables};
use thalweg::volume::{File, Registry, Volume};
use thalweg_api::{ClusterReport, HostSteps, NodeStatus, from_json};

const HOSTS: [&str; 3] = ["a1", "a2", "a3"];

/// A cluster that runs another build than this one.
struct Cluster {
    place: Place,
    sshd: Sshd,
    /// This command, and that of the other build.
    ours: String,
    other: String,
    /// The builds that nodes show: of the other command, and of this one.
    builds: [String; 2],
}

/// Ends the use of the cluster, in a test that fails as well.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a command says about its build.
fn build_of(told: &Outcome) -> String {
    let (_, build) = told.is_done().trim_end().split_once("(build ").expect("it names its build");
    build.trim_end_matches(')').to_string()
}

impl Cluster {
    fn new() -> Option<Cluster> {
        let place = Place::new();
        let sshd = Sshd::start(&place)?;
        let program = place.without_debug_information().display().to_string();
        let ours = build_of(&place.shell("$T --version"));
        let other = match std::env::var_os("THALWEG_PREVIOUS") {
            Some(previous) => previous.into_string().unwrap(),
            None => copy_of_another_build(&place, &ours),
        };
        let theirs = build_of(&place.shell(&format!("{other} --version")));
        assert_ne!(ours, theirs);
        let hosts = HOSTS.map(|host| {
            std::fs::create_dir_all(place.0.join("data").join(host)).unwrap();
            format!("{host}=127.0.0.1:{},data={}/data/{host}", free_ports(1)[0], place.0.display())
        });
        let args = ["cluster", "init", "river", &hosts[0], &hosts[1], &hosts[2], "--identity", "own"];
        place.run(&args).is_done();
        let cluster = Cluster { place, sshd, ours: program, other, builds: [theirs, ours] };
        cluster.shell("$O cluster install -q && $O cluster up -q").is_done();
        Some(cluster)
    }

    /// Runs a line of shell in which `$T` is this command and `$O` that of the other build.
    fn shell(&self, line: &str) -> Outcome {
        let mut bash = Command::new("bash");
        bash.args(["-c", line]).current_dir(&self.place.0).stdin(Stdio::null());
        bash.env("T", &self.ours).env("O", &self.other).env("THALWEG_SSH", &self.sshd.ssh);
        bash.env("THALWEG_IDENTITY", self.place.0.join("own"));
        bash.env("XDG_CONFIG_HOME", self.place.0.join("settings"));
        Outcome::of(bash.output().expect("bash starts"))
    }

    fn statuses(&self) -> Vec<NodeStatus> {
        let report: ClusterReport = from_json(&self.shell("$T cluster status --json").out).unwrap();
        report.hosts.into_iter().filter_map(|host| host.status).collect()
    }

    fn builds(&self) -> Vec<String> {
        self.statuses().into_iter().map(|status| status.build).collect()
    }

    /// The file of a host's program.
    fn program(&self, host: &str) -> PathBuf {
        let found = self.shell(&format!("ls home/.local/share/thalweg/*-{host}/thalweg"));
        self.place.0.join(found.is_done().trim_end())
    }

    fn upgrade(&self, command: &str) -> (Outcome, HostSteps) {
        let told = self.shell(&format!("{command} cluster upgrade --json --timeout 60"));
        let steps = from_json(&told.out).unwrap_or_else(|why| panic!("{why}: {told:?}"));
        (told, steps)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shell("$T cluster remove -q");
    }
}

/// A copy of this command in which the number of its build is another.
fn copy_of_another_build(place: &Place, ours: &str) -> String {
    let mut program = place.read("small/thalweg");
    let places: Vec<usize> = program
        .windows(ours.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == ours.as_bytes())
        .map(|(i, _)| i)
        .collect();
    assert!(!places.is_empty(), "the command holds the number of its build");
    for at in places {
        program[at..at + ours.len()].reverse();
    }
    place.write("other", &program);
    place.shell("chmod 755 other").is_done();
    place.0.join("other").display().to_string()
}

/// What is used during an upgrade: a table with parity and one without, a file of a volume with two copies, and jobs.
struct Used<'a> {
    cluster: &'a Cluster,
    safe: Table,
    plain: Table,
    film: File,
}

impl Used<'_> {
    fn of(cluster: &Cluster) -> Used<'_> {
        let made = "mkdir d1 d2 d3 && $T gen 20k records -q && $T table create safe --parity 1+1 && \
                    $T table create plain && \
                    $T volume create films --stores a1:$PWD/d1,a2:$PWD/d2,a3:$PWD/d3 --copies 2 -q";
        cluster.shell(made).is_done();
        let own = cluster.place.0.join("own");
        let [safe, plain] = ["safe", "plain"].map(|name| {
            Table::open_with(&Tables::load(&own, None).unwrap(), name, ClusterOptions::default()).unwrap()
        });
        let registry = Registry::at(cluster.place.0.join("settings/thalweg/volumes.json"));
        let film = Volume::open_of(&registry, "films").unwrap().create("film").unwrap();
        Used { cluster, safe, plain, film }
    }

    fn tables(&self, round: usize) {
        let key = format!("k{round}");
        self.safe.upsert(key.as_bytes(), b"v").unwrap();
        self.plain.upsert(key.as_bytes(), b"p").unwrap();
        self.has_record(round);
        self.has_record(0);
    }

    fn has_record(&self, round: usize) {
        let key = format!("k{round}");
        assert_eq!(self.safe.get(key.as_bytes()).unwrap().unwrap(), b"v", "{key}");
        assert_eq!(self.plain.get(key.as_bytes()).unwrap().unwrap(), b"p", "{key}");
    }

    fn volume(&self, round: usize) {
        self.film.write_at(4096 * round as u64, format!("{round:04096}").as_bytes()).unwrap();
        self.film.sync().unwrap();
        self.has_block(round);
    }

    fn has_block(&self, round: usize) {
        let mut read = [0; 4096];
        assert_eq!(self.film.read_at(4096 * round as u64, &mut read).unwrap(), 4096);
        assert_eq!(read, format!("{round:04096}").as_bytes());
    }

    fn jobs(&self, _: usize) {
        let sort = "$T sort $PWD/records -o $PWD/sorted --datamation --memory 64MiB --cluster river -q";
        self.cluster.shell(sort).is_done();
    }

    /// Uses all of it, again and again, during this; and looks whether all is there afterwards.
    fn during<T>(&self, what: impl FnOnce() -> T) -> T {
        let uses: [fn(&Self, usize); 3] = [Used::tables, Used::volume, Used::jobs];
        let (is_over, rounds) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 3]);
        let counts = || [0, 1, 2].map(|i| rounds[i].load(Ordering::Relaxed));
        let have_gone_on = |since: [usize; 3]| counts().iter().zip(since).all(|(now, then)| *now > then);
        let done = std::thread::scope(|scope| {
            for (use_it, rounds) in uses.into_iter().zip(&rounds) {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        use_it(self, rounds.load(Ordering::Relaxed));
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let ends = Ends(&is_over);
            until("all is used", || have_gone_on([0; 3]));
            let since = counts();
            let done = what();
            assert!(have_gone_on(since), "it was used meanwhile: {since:?}, {rounds:?}");
            drop(ends);
            done
        });
        let [tables, volume, jobs] = counts();
        println!("{tables} rounds of tables, {volume} of the volume, {jobs} of jobs");
        (0..tables).for_each(|round| self.has_record(round));
        (0..volume).for_each(|round| self.has_block(round));
        done
    }
}

#[test]
fn a_cluster_is_upgraded_node_by_node_while_it_is_used() {
    let Some(cluster) = Cluster::new() else { return };
    let [theirs, ours] = cluster.builds.each_ref().map(String::as_str);
    assert_eq!(cluster.builds(), [theirs, theirs, theirs]);
    let shown = cluster.shell("$T cluster status");
    assert!(shown.is_done().lines().nth(1).unwrap().contains("version"), "{shown:?}");
    assert_eq!(shown.out.matches(&theirs[..8]).count(), 3, "{shown:?}");
    let before = cluster.statuses();
    // Whether the new build is installed or not, `up` says what is to be done.
    assert_eq!(cluster.shell("$O cluster up").is_done().matches("runs already, as process").count(), 3);
    cluster.shell("$T cluster install --on a1 -q").is_done();
    let up = cluster.shell("$T cluster up");
    assert_eq!(up.is_done().matches("runs another build than this one, as process").count(), 3, "{up:?}");
    assert_eq!(up.out.matches("thalweg cluster upgrade restarts it").count(), 3, "{up:?}");

    let used = Used::of(&cluster);
    let (told, steps) = used.during(|| cluster.upgrade("$T"));
    assert_eq!(told.status, Some(0), "{told:?}");
    for (step, host) in steps.hosts.iter().zip(HOSTS) {
        let done = step.done.as_deref().unwrap();
        let is_right = done.starts_with("started, as process ") && done.ends_with(&ours[..8]);
        assert!(step.host == host && is_right, "{step:?}");
    }
    // Every node is a new process of the new file.
    let after = cluster.statuses();
    for ((before, after), host) in before.iter().zip(&after).zip(HOSTS) {
        assert!(before.pid != after.pid && after.build == ours, "{after:?}");
        let file = |path: PathBuf| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).unwrap();
        assert_eq!(file(format!("/proc/{}/exe", after.pid).into()), file(cluster.program(host)), "{host}");
    }
    let whole = cluster.shell("$T table get safe k0 && $T volume status films --json");
    assert!(whole.is_done().contains("\"short_files\":0"), "{whole:?}");
    let (_, again) = cluster.upgrade("$T");
    for step in again.hosts {
        assert!(step.done.as_deref().unwrap().starts_with("runs this build already"), "{step:?}");
    }
}

#[test]
fn an_upgrade_waits_for_jobs_stops_at_a_node_that_does_not_return_and_goes_on() {
    let Some(cluster) = Cluster::new() else { return };
    let [theirs, ours] = cluster.builds.each_ref().map(String::as_str);
    // A job on the first host, which takes no new ones meanwhile.
    let id = cluster.shell("$T exec --on a1 --detach -- sleep 1000").is_done().trim_end().to_string();
    let late = cluster.shell("$T cluster upgrade --timeout 1");
    let says =
        [&format!("a1: 1 job still runs there, {}", &id[..8]), "thalweg cluster upgrade goes on with a1"];
    late.is_refused(&says);
    cluster
        .shell("$T exec --on a1 -- true")
        .is_refused(&["a1: this node is about to be restarted, and takes no new jobs until then"]);
    cluster.shell("$T exec --on a2 -- true").is_done();
    // Sorts of files that all see do without it, as after its loss.
    let sorted = "$T gen 1k records -q && $T sort $PWD/records -o $PWD/sorted --datamation --cluster river --memory 64MiB -q";
    cluster.shell(sorted).is_done();
    assert_eq!(cluster.builds(), [theirs, theirs, theirs]);
    until("it takes jobs again", || cluster.shell("$T exec --on a1 -- true").status == Some(0));
    cluster.shell(&format!("$T job cancel {id}")).is_done();

    // The second does not come back: the file for its first line cannot be written.
    let ready = cluster.program("a2").with_file_name("ready");
    let set_aside = format!("mv {0} {0}.aside && mkdir {0}", ready.display());
    cluster.shell(&set_aside).is_done();
    let (told, steps) = cluster.upgrade("$T");
    assert_eq!((told.status, steps.hosts.len()), (Some(2), 2), "{told:?}");
    assert!(told.err.contains("a2: ") && told.err.contains("cannot create ready"), "{told:?}");
    assert!(
        told.err.contains("thalweg cluster upgrade goes on with a2") && told.err.lines().count() == 1,
        "{told:?}"
    );
    assert_eq!(cluster.builds(), [ours, theirs]);
    cluster.shell(&format!("rmdir {0}", ready.display())).is_done();
    let (told, steps) = cluster.upgrade("$T");
    assert_eq!(told.status, Some(0), "{told:?}");
    let done: Vec<String> = steps.hosts.into_iter().filter_map(|step| step.done).collect();
    assert!(
        done[0].starts_with("runs this build already")
            && done[1..].iter().all(|done| done.starts_with("started")),
        "{done:?}"
    );
    assert_eq!(cluster.builds(), [ours, ours, ours]);
}

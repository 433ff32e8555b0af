//! Clusters that the processes of a launcher make in a directory which they share: started one by one as a launcher
//! would, on one host and on several, by Open MPI, and by Slurm.
#![allow(clippy::disallowed_methods)] // Whoever uses the command opens files by other means than ours.

mod support;

use std::process::{Child, Command, Stdio};

use support::lab::Lab;
use support::nodes::terminate;
use support::{Outcome, Place, skipped, until, until_within};
use thalweg_api::{ClusterReport, HostReport, from_json};
use thalweg_bench::{Slurm, SlurmHost};

/// How long Slurm may take to start a step or to end it.
const SLURM_SECONDS: f64 = 60.0;

/// The processes of an allocation, which end with it.
struct Allocation {
    place: Place,
    running: Vec<Option<Child>>,
}

impl Allocation {
    /// Starts so many processes, each in a directory of its own, as a launcher with a process management interface
    /// does.
    fn start(count: usize) -> Allocation {
        let mut allocation = Allocation { place: Place::new(), running: Vec::new() };
        for rank in 0..count {
            std::fs::create_dir(allocation.place.0.join(format!("own{rank}"))).unwrap();
            let process = allocation.process(rank, count);
            allocation.running.push(Some(process));
        }
        allocation
    }

    /// Starts a process on a host of a lab; its own directory may be there already.
    fn process_on(&self, lab: &Lab, host: usize, rank: usize, count: usize) -> Child {
        let own = self.place.0.join(format!("own{rank}"));
        std::fs::create_dir_all(&own).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.space(host), env!("CARGO_BIN_EXE_thalweg"), "node", "run"]);
        command
            .args(["--join", "../shared", "--listen", &format!("{}:0", lab.address(host))])
            .current_dir(own);
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", count.to_string()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn process(&self, rank: usize, count: usize) -> Child {
        let mut command =
            self.place.command(&["node", "run", "--join", "../shared", "--listen", "127.0.0.1:0"]);
        command.current_dir(self.place.0.join(format!("own{rank}")));
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", count.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.place.command(args).env("THALWEG_IDENTITY", "shared").output().unwrap())
    }

    /// The state of the cluster when all of its hosts answer.
    fn up(&self) -> ClusterReport {
        let mut report = None;
        until("all nodes are up", || {
            report = from_json(&self.run(&["cluster", "status", "--json"]).out).ok();
            report
                .as_ref()
                .is_some_and(|report: &ClusterReport| report.hosts.iter().all(|host| host.error.is_none()))
        });
        report.unwrap()
    }

    /// The addresses of the nodes, without their ports, when all of them answer.
    fn addresses(&self) -> Vec<String> {
        let address = |host: HostReport| host.address.rsplit_once(':').unwrap().0.to_string();
        self.up().hosts.into_iter().map(address).collect()
    }

    /// Ends a process, as a launcher does; what it said.
    fn end(&mut self, rank: usize) -> String {
        let process = self.running[rank].take().expect("it runs");
        terminate(&process);
        String::from_utf8_lossy(&process.wait_with_output().unwrap().stderr).into_owned()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        for process in self.running.iter_mut().flatten() {
            terminate(process);
            process.wait().unwrap();
        }
    }
}

#[test]
fn processes_of_a_launcher_make_a_cluster_and_replace_one_that_ended() {
    let mut allocation = Allocation::start(3);
    let before = allocation.up();
    let names: Vec<&str> = before.hosts.iter().map(|host| host.host.as_str()).collect();
    assert_eq!((before.name.as_str(), &names[..]), ("shared", &["n1", "n2", "n3"][..]));
    let line = "for i in 0 1 2; do $T gen 1k own$i/records --start ${i}000 -q; done
                $T sort nodes:records -o 'nodes:sorted-{}' --datamation --memory 64MiB --cluster shared -q
                THALWEG_IDENTITY=shared $T check 'nodes:sorted-*' --datamation && ls own0 own2
                find shared -type f ! -perm 600 -o -type d ! -perm 700";
    let told = allocation.place.shell(line);
    assert!(told.is_done().contains("Records: 3000"), "{told:?}");
    assert!(told.out.ends_with("own0:\nrecords\nsorted-0\n\nown2:\nrecords\nsorted-2\n"), "{told:?}");
    // Nothing is left to say by one that ends with its allocation, and another takes its place.
    assert_eq!(allocation.end(1), "");
    allocation.running[1] = Some(allocation.process(1, 3));
    until("the new node is known to all", || {
        let now = allocation.up();
        let id = |report: &ClusterReport| {
            report.hosts.iter().find(|host| host.host == "n2")?.status.clone().map(|s| s.id)
        };
        id(&now) != id(&before)
            && now.hosts.iter().all(|host| host.status.as_ref().is_some_and(|s| s.epoch == 3))
    });
    let told = allocation.run(&["exec", "--via", "n1", "--gather", "--", "echo", "here"]);
    assert_eq!(told.is_done(), "n[1-3]: here\n");
    // All have ended: what comes next is another cluster.
    (0..3).for_each(|rank| drop(allocation.end(rank)));
    allocation.running[0] = Some(allocation.process(0, 1));
    until("there is a new cluster", || allocation.up().hosts.len() == 1);
}

#[test]
fn processes_on_several_hosts_join_and_one_moves_to_another_host() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let mut allocation = Allocation { place: Place::new(), running: Vec::new() };
    for rank in 0..2 {
        let process = allocation.process_on(&lab, rank + 1, rank, 2);
        allocation.running.push(Some(process));
    }
    assert_eq!(allocation.addresses(), [lab.address(1), lab.address(2)]);
    let line = "for i in 0 1; do $T gen 1k own$i/records --start ${i}000 -q; done
                $T sort nodes:records -o 'nodes:sorted-{}' --datamation --memory 64MiB --cluster shared -q
                THALWEG_IDENTITY=shared $T check 'nodes:sorted-*' --datamation";
    assert!(allocation.place.shell(line).is_done().contains("Records: 2000"));
    assert_eq!(allocation.end(1), "");
    allocation.running[1] = Some(allocation.process_on(&lab, 3, 1, 2));
    // It was dropped and added, so the cluster is in its third epoch.
    until("all hosts know the new address", || {
        allocation.up().hosts.iter().all(|host| host.status.as_ref().is_some_and(|status| status.epoch == 3))
    });
    assert_eq!(allocation.addresses(), [lab.address(1), lab.address(3)]);
    let told =
        allocation.run(&["exec", "--via", "n1", "--gather", "--on", "n2", "--", "ip", "-o", "-4", "addr"]);
    assert!(told.is_done().contains(&format!("inet {}/24", lab.address(3))), "{told:?}");
}

#[test]
fn a_process_of_no_launcher_is_refused() {
    let place = Place::new();
    let mut command = place.command(&["node", "run", "--join", "d"]);
    let told = Outcome::of(command.env_remove("PMI_RANK").output().unwrap());
    told.is_refused(&["--join is for processes of srun or mpirun", "PMI_RANK"]);
    let told = Outcome::of(command.env("PMI_RANK", "2").env("PMI_SIZE", "2").output().unwrap());
    told.is_refused(&["PMI_RANK is '2' and PMI_SIZE is '2'"]);
    place.run(&["node", "run", "--join", "d", "--identity", "e"]).is_refused(&["leave out --identity"]);
    let planted = "mkdir -m 755 d; PMI_RANK=0 PMI_SIZE=1 $T node run --join d";
    place.shell(planted).is_refused(&["cannot open d: ", "chmod 700"]);
}

#[test]
fn open_mpi_starts_a_cluster_and_ends_it() {
    let mpirun = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status();
    if !mpirun.is_ok_and(|status| status.success()) {
        return skipped("there is no mpirun");
    }
    let place = Place::new();
    let start =
        "mkdir own$OMPI_COMM_WORLD_RANK && cd own$OMPI_COMM_WORLD_RANK && exec $T node run --join ../shared";
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--oversubscribe", "--allow-run-as-root", "-n", "4", "sh", "-c", start]);
    mpirun.current_dir(&place.0).env("T", env!("CARGO_BIN_EXE_thalweg")).stdin(Stdio::null());
    let mpirun = mpirun.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut allocation = Allocation { place, running: vec![Some(mpirun)] };
    let report = allocation.up();
    let pids: Vec<u32> = report.hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    assert_eq!(pids.len(), 4);
    allocation.run(&["exec", "--", "true"]).is_done();
    allocation.end(0);
    until("no node is left", || !pids.iter().any(|pid| thalweg_io::process::is_alive(*pid)));
}

#[test]
fn slurm_starts_a_cluster_on_the_hosts_of_an_allocation_and_ends_it() {
    if let Some(why) = Slurm::missing() {
        return skipped(&why);
    }
    let Some(lab) = Lab::up(&["2"]) else { return };
    let host = |host| SlurmHost { space: lab.space(host), address: lab.address(host) };
    let slurm = Slurm::start(&lab.id, &[host(1), host(2)], &lab.address(254)).expect("Slurm starts");
    let place = Place::new();
    // All hosts of the lab have the name of this machine, so each says its address.
    let start =
        "mkdir own$SLURM_PROCID && cd own$SLURM_PROCID && at=$(ip -4 -o addr show eth0) && at=${at#*inet } &&
                 exec $T node run --join ../shared --listen ${at%%/*}:0";
    let mut srun = slurm.srun(2);
    srun.args(["sh", "-c", start]).current_dir(&place.0).env("T", env!("CARGO_BIN_EXE_thalweg"));
    let srun = srun.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut allocation = Allocation { place, running: vec![Some(srun)] };
    until_within(SLURM_SECONDS, "the nodes have joined", || {
        allocation.run(&["cluster", "status", "--json"]).status == Some(0)
    });
    let report = allocation.up();
    let pids: Vec<u32> = report.hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    // Slurm decides which of its processes is on which host.
    let mut addresses = allocation.addresses();
    addresses.sort();
    assert_eq!(addresses, [lab.address(1), lab.address(2)]);
    let line = "$T gen 1k own0/records -q && $T gen 1k own1/records --start 1000 -q
                $T sort nodes:records -o 'nodes:sorted-{}' --datamation --memory 64MiB --cluster shared -q
                THALWEG_IDENTITY=shared $T check 'nodes:sorted-*' --datamation && ls own0 own1";
    let told = allocation.place.shell(line);
    assert!(told.is_done().contains("Records: 2000"), "{told:?}");
    assert!(told.out.ends_with("own0:\nrecords\nsorted-0\n\nown1:\nrecords\nsorted-1\n"), "{told:?}");
    allocation.end(0);
    until_within(SLURM_SECONDS, "no node is left", || {
        !pids.iter().any(|pid| thalweg_io::process::is_alive(*pid))
    });
}

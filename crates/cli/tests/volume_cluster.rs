//! Volumes on the nodes of a cluster, seen from outside: real daemons on loopback ports.
//!
//! Invariant: with two copies the loss of a store's node costs nothing, and nothing waits for ever for the manager's.
#![allow(clippy::disallowed_methods)] // Users of the command open files in other ways.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use support::nodes::Nodes;
use support::{Outcome, skipped, until};
use thalweg_api::{Check, VolumeCheck, VolumeList, VolumeStatus, from_json};
use thalweg_io::process;

/// Longer than a request and a dial may take together, on a busy machine.
const ABOUT_TEN_SECONDS: f64 = 20.0;

/// Nodes with a directory for a store each, and a volume `films` on them.
fn with_volume(copies: &str) -> Nodes {
    let nodes = Nodes::start(3);
    for directory in ["d1", "d2", "d3", "meta"] {
        std::fs::create_dir(nodes.place.0.join(directory)).unwrap();
    }
    let create = ["volume", "create", "films", "--stores", &stores(&nodes, "123"), "--stripe", "64KiB"];
    let manager = format!("n1:{}/meta", nodes.place.0.display());
    let made = run(&nodes, &[&create[..], &["--manager", &manager, "--copies", copies]].concat());
    assert!(made.is_done().starts_with("films: 3 stores on cluster river\n"), "{}", made.out);
    nodes
}

/// The same with two copies, mounted on `films`; `None` where that cannot be, which is said.
fn with_mount() -> Option<(Nodes, Mounted)> {
    if !Path::new("/dev/fuse").exists() || !process::is_root() {
        skipped("mounting needs /dev/fuse, and here to be root");
        return None;
    }
    let nodes = with_volume("2");
    let at = nodes.place.0.join("films");
    std::fs::create_dir(&at).unwrap();
    run(&nodes, &["mount", "films", "films", "--background"]).is_done();
    Some((nodes, Mounted(at)))
}

/// Runs the command as the cluster's owner, with settings of its own.
fn run(nodes: &Nodes, args: &[&str]) -> Outcome {
    let mut command = nodes.place.command(args);
    command.env("THALWEG_IDENTITY", "own").env("XDG_CONFIG_HOME", nodes.place.0.join("settings"));
    Outcome::of(command.output().unwrap())
}

/// On node `nI` the directory `dI`, for these numbers.
fn stores(nodes: &Nodes, numbers: &str) -> String {
    let place = nodes.place.0.display();
    numbers.chars().map(|i| format!("n{i}:{place}/d{i}")).collect::<Vec<_>>().join(",")
}

/// Kills a node and its guard, and waits until both are gone.
fn kill(nodes: &mut Nodes, node: usize) {
    let (mut guard, pid) = (nodes.running.remove(node), nodes.pids.remove(node));
    guard.kill().unwrap();
    guard.wait().unwrap();
    std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    until("the node is gone", || !process::is_alive(pid));
}

#[test]
fn a_volume_on_three_nodes_is_used_like_any_other() {
    let nodes = with_volume("1");
    run(&nodes, &["gen", "50k", "records"]).is_done();
    run(&nodes, &["gen", "50k", "volume:films/in"]).is_done();
    run(&nodes, &["sort", "volume:films/in", "-o", "volume:films/out", "--datamation"]).is_done();
    run(&nodes, &["check", "volume:films/out", "--datamation"]).is_done();
    run(&nodes, &["pump", "volume:films/in", "back"]).is_done();
    nodes.place.shell("cmp records back").is_done();

    let status = run(&nodes, &["volume", "status", "films", "--json"]);
    let status: VolumeStatus = from_json(status.is_done()).unwrap();
    assert_eq!((status.files, status.bytes), (2, 10_000_000));
    assert!(status.stores.iter().all(|store| store.lost.is_none() && store.strips == 2), "{status:?}");
    assert!(run(&nodes, &["volume", "ls", "volume:films/"]).is_done().contains("out"));
    assert!(run(&nodes, &["volume", "stat", "volume:films/in"]).is_done().contains("5000000"));
    assert!(run(&nodes, &["volume", "check", "films"]).is_done().contains("everything is as it was written"));

    let list: VolumeList = from_json(run(&nodes, &["volume", "list", "--json"]).is_done()).unwrap();
    assert_eq!(list.volumes[0].cluster.as_ref().unwrap().name, "river");
    run(&nodes, &["volume", "destroy", "films"]).is_done();
    for directory in ["d1", "d2", "d3", "meta"] {
        let left = std::fs::read_dir(nodes.place.0.join(directory)).unwrap();
        assert_eq!(left.count(), 0, "something is left in {directory}");
    }
    let audit = std::fs::read_to_string(nodes.place.0.join("own/hosts/n2/audit.log")).unwrap();
    for what in ["volume create", "volume destroy"] {
        assert!(audit.contains(what), "{what} is not in {audit}");
    }
}

#[test]
fn every_verb_on_records_takes_files_of_a_volume_on_nodes() {
    let nodes = with_volume("2");
    let lines = "set -e; export THALWEG_IDENTITY=own XDG_CONFIG_HOME=$PWD/settings
        $T gen 20k in -q; $T gen 20k volume:films/in -q
        same() { \"$T\" $1 -o $2 $3 -q; \"$T\" ${1//in/volume:films/in} -o volume:films/$2 $3 -q; $T pump volume:films/$2 back-$2 -q; cmp $2 back-$2; }
        same 'sort in' sorted --datamation
        same 'shuffle in' shuffled '--record 100 --seed 7'
        cp sorted other; $T pump other volume:films/other -q
        verbs() {
            $T merge ${at}sorted ${at}other -o ${at}merged --datamation -q $1
            $T join ${at}sorted ${at}other -o ${at}joined --datamation -q $1
            $T partition ${at}in -o ${at}part-{} --parts 3 --pick hash --datamation -q $1
        }
        at= verbs; at=volume:films/ verbs
        $T check volume:films/merged --datamation -q
        for name in merged joined part-0 part-1 part-2; do $T pump volume:films/$name back-$name -q; cmp $name back-$name; done
        # Several nodes in one process read and write it too.
        $T sort volume:films/in -o volume:films/again --datamation --nodes 3 -q; $T pump volume:films/again back-again -q; cmp sorted back-again
        at=volume:films/ verbs '--nodes 2'
        rm back-*
        for name in merged joined part-0 part-1 part-2; do $T pump volume:films/$name back-$name -q; cmp $name back-$name; done";
    nodes.place.shell(lines).is_done();
}

#[test]
fn nodes_read_and_write_files_of_a_volume_in_jobs() {
    let nodes = with_volume("2");
    let lines = "set -e; export THALWEG_IDENTITY=own XDG_CONFIG_HOME=$PWD/settings
        $T gen 20k in -q; $T pump in volume:films/in -q
        verbs() {
            $T sort ${at}in -o ${at}sorted --datamation -q $1
            $T shuffle ${at}in -o ${at}shuffled --record 100 --seed 7 -q $1
            $T merge ${at}sorted ${at}sorted -o ${at}merged --datamation -q $1
            $T join ${at}sorted ${at}in -o ${at}joined --datamation -q $1
        }
        at= verbs; at=volume:films/ verbs '--cluster river'
        for name in sorted shuffled merged joined; do $T pump volume:films/$name back -q; cmp $name back; rm back; done
        # Only one end in the volume.
        $T sort volume:films/in -o $PWD/shared --datamation -q --cluster river; cmp sorted shared
        $T sort client:in -o volume:films/again --datamation -q --cluster river
        $T pump volume:films/again back -q; cmp sorted back
        $T partition volume:films/in -o \"nodes:$PWD/part-{}\" --parts 3 --pick range --datamation -q --cluster river
        cat part-* > parts; $T sort parts -o parts.sorted --datamation -q; cmp sorted parts.sorted
        $T volume check films -q";
    nodes.place.shell(lines).is_done();
    let names = run(&nodes, &["volume", "ls", "volume:films/"]);
    assert!(!names.is_done().contains(".thalweg"), "nothing hidden is left: {}", names.out);
}

/// Pages end inside records and lines here, and a node's share may have none.
#[test]
fn nodes_check_shares_of_files_in_a_volume_and_find_what_one_machine_finds() {
    let nodes = with_volume("2");
    let lines = "set -e; export THALWEG_IDENTITY=own XDG_CONFIG_HOME=$PWD/settings
        seq 100000 900000 > lines; printf last >> lines; seq 5 > few; : > empty
        (head -c 3000000 lines; echo 0; tail -c 2000000 lines) > unordered
        (printf '\\3\\0\\0\\0abc'; printf '\\2\\0\\0\\0bc') > prefixed
        $T gen 50k in -q; $T sort in -o in --record 625 -q
        for name in lines few empty unordered prefixed in; do $T pump $name volume:films/$name -q; done";
    nodes.place.shell(lines).is_done();
    let check = |words: &str| {
        let words: Vec<&str> = ["check", "--json"].into_iter().chain(words.split(' ')).collect();
        let checked = run(&nodes, &words);
        let found: Check = from_json(&checked.out).unwrap_or_else(|why| panic!("{why}: {checked:?}"));
        (checked.status, Check { seconds: 0.0, ..found })
    };
    for words in [
        "volume:films/lines",
        "volume:films/unordered volume:films/lines",
        "volume:films/in --record 625",
        "volume:films/in volume:films/in --record 625 --by 3:2",
        "volume:films/empty volume:films/few",
        "volume:films/empty",
        "volume:films/prefixed --prefixed",
    ] {
        let (one, of_nodes) = (check(words), check(&format!("{words} --cluster river")));
        assert_eq!(of_nodes.1.nodes.len(), 3, "{words}");
        let all: u64 = of_nodes.1.nodes.iter().map(|node| node.proof.records).sum();
        // A record that ends in another share than it begins in is no node's.
        assert!(all <= one.1.proof.records && all + 2 >= one.1.proof.records, "{words}: {of_nodes:?}");
        let of_nodes = (of_nodes.0, Check { nodes: Vec::new(), ..of_nodes.1 });
        assert_eq!(of_nodes, one, "{words}");
    }
    let some = check("volume:films/lines --cluster river --on n3,n1");
    assert_eq!(some.1.nodes.iter().map(|node| &node.host[..]).collect::<Vec<_>>(), ["n3", "n1"]);
    assert_eq!((some.0, some.1.proof.records), (Some(0), 800_002));
}

#[test]
fn a_job_on_files_of_a_volume_survives_the_loss_of_a_node() {
    let mut nodes = with_volume("2");
    run(&nodes, &["gen", "500k", "in"]).is_done();
    run(&nodes, &["sort", "in", "-o", "sorted", "--datamation"]).is_done();
    run(&nodes, &["pump", "in", "volume:films/in"]).is_done();
    let store = nodes.place.0.join("d3/films.thalweg-store");
    let strips = || std::fs::read_dir(&store).unwrap().count();
    let before = strips();
    let words = ["sort", "volume:films/in", "-o", "volume:films/out", "--datamation", "--cluster", "river"];
    let mut command = nodes.place.command(&words);
    command.env("THALWEG_IDENTITY", "own").env("XDG_CONFIG_HOME", nodes.place.0.join("settings"));
    let sort = support::Running::start(&mut command);
    until("a node writes the output", || strips() > before);
    kill(&mut nodes, 2);
    let told = sort.ends();
    assert!(told.status == Some(0) && told.out.contains("invariant out = in: holds"), "{told:?}");
    assert!(told.err.contains("n3 is cut") && told.err.contains("attempt 2 of at most 5"), "{told:?}");
    run(&nodes, &["pump", "volume:films/out", "back"]).is_done();
    nodes.place.shell("cmp sorted back").is_done();
    let names = run(&nodes, &["volume", "ls", "volume:films/"]);
    assert!(!names.is_done().contains(".thalweg"), "nothing hidden is left: {}", names.out);
}

#[test]
fn what_jobs_on_nodes_cannot_do_with_volumes_they_say() {
    let nodes = with_volume("1");
    std::fs::create_dir(nodes.place.0.join("here")).unwrap();
    run(&nodes, &["volume", "create", "here", "--stores", "here"]).is_done();
    run(&nodes, &["gen", "1k", "volume:films/in"]).is_done();
    run(&nodes, &["gen", "1k", "volume:here/in"]).is_done();
    let refused = |words: &str, why: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run(&nodes, &[&words[..], &["--datamation", "--cluster", "river"]].concat()).is_refused(&[why]);
    };
    refused("sort volume:here/in -o volume:films/out", "volume here is not on the nodes of cluster river");
    refused("sort volume:films/in volume:here/in -o nodes:out-{}", "either all inputs are in one volume");
    refused("sort volume:films/in nodes:in -o nodes:out-{}", "either all inputs have");
    refused("sort volume:films/in -o volume:films/out-{}", "nodes write one file together in a volume");
    refused("partition volume:films/in -o volume:films/out-{} --parts 2", "nodes write one file together");
    refused("sort volume:films/in -o volume:films/out --detach", "has to stay");
    refused("plan sort volume:films/in -o nodes:out-{}", "nobody has measured how fast");
    refused("check volume:films/in volume:here/in", "either all inputs are in one volume");
    refused("check volume:films/in nodes:in", "either all inputs are in one volume");
    refused("check client:in", "files of a volume, and tables; check 'client:in' without --cluster");
    refused("check volume:here/in", "volume here is not on the nodes of cluster river");
    refused("check volume:films/none", "volume:films/none");
    refused("sort volume:films/none -o volume:films/out", "volume:films/none");
    refused("sort volume:films/in -o volume:films/none/out", "volume:films/none");
}

#[test]
fn locks_hold_on_mounts_of_two_clients_and_outlive_the_managers_node() {
    let Some((mut nodes, mounted)) = with_mount() else { return };
    std::fs::create_dir(nodes.place.0.join("again")).unwrap();
    run(&nodes, &["mount", "films", "again", "--background"]).is_done();
    let again = Mounted(nodes.place.0.join("again"));
    let held = std::fs::File::create(mounted.0.join("f")).unwrap();
    held.try_lock().unwrap();
    let other = std::fs::File::open(again.0.join("f")).unwrap();
    let is_locked =
        |other: &std::fs::File| matches!(other.try_lock(), Err(std::fs::TryLockError::WouldBlock));
    assert!(is_locked(&other));
    kill(&mut nodes, 0);
    nodes.begin(0);
    assert!(is_locked(&other), "the lock was reclaimed");
    let waiter = std::thread::spawn(move || other.lock().map(|()| other));
    held.unlock().unwrap();
    let other = waiter.join().unwrap().unwrap();
    assert!(is_locked(&held));
    other.unlock().unwrap();
    held.try_lock().unwrap();
    drop((held, other));
    let destroyed = run(&nodes, &["volume", "destroy", "films"]);
    destroyed.is_refused(&["volume named films is mounted on ", "/films and ", "/again", "unmount it first"]);
    assert!(!destroyed.err.contains("--force"), "{destroyed:?}");
    drop((again, mounted));
}

#[test]
fn a_mount_says_when_a_store_is_lost_and_when_it_is_back() {
    if !Path::new("/dev/fuse").exists() || !process::is_root() {
        return skipped("mounting needs /dev/fuse, and here to be root");
    }
    let mut nodes = with_volume("2");
    let at = nodes.place.0.join("films");
    std::fs::create_dir(&at).unwrap();
    let mut command = nodes.place.command(&["mount", "films", "films"]);
    command.env("THALWEG_IDENTITY", "own").env("XDG_CONFIG_HOME", nodes.place.0.join("settings"));
    let mut mount = support::Running::start(&mut command);
    let mut out = BufReader::new(mount.0.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let mut told = BufReader::new(mount.0.stderr.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        line
    };
    let room = || std::process::Command::new("df").arg(&at).output().unwrap();
    room();
    kill(&mut nodes, 2);
    room();
    let lost = line();
    assert!(lost.contains("d3/films.thalweg-store is lost: "), "{lost}");
    nodes.begin(2);
    let back = std::thread::scope(|scope| {
        let back = scope.spawn(line);
        until("it is told", || {
            room();
            back.is_finished()
        });
        back.join().unwrap()
    });
    assert!(back.contains("d3/films.thalweg-store is back"), "{back}");
    drop(Mounted(at));
    mount.ends();
}

#[test]
fn a_volume_that_cannot_be_made_everywhere_is_made_nowhere() {
    let nodes = Nodes::start(2);
    std::fs::create_dir(nodes.place.0.join("d1")).unwrap();
    let create = |stores: &str, more: &[&str]| {
        run(&nodes, &[&["volume", "create", "films", "--stores", stores], more].concat())
    };
    create(&stores(&nodes, "12"), &[]).is_refused(&["n2 gave up", "d2/films.thalweg-store", "No such file"]);
    assert_eq!(std::fs::read_dir(nodes.place.0.join("d1")).unwrap().count(), 0);
    create("n1:/a,n1:/b,n2:/c", &["--copies", "2"]).is_refused(&["more than half of the stores"]);
    create("n1:/a,n9:/b", &[]).is_refused(&["'n9' is not a host of cluster river"]);
    create("n1:/a,b", &[]).is_refused(&["b is on no node"]);
    assert_eq!(run(&nodes, &["volume", "list"]).is_done(), "");
}

#[test]
fn who_may_only_look_reads_and_changes_nothing() {
    let nodes = with_volume("1");
    run(&nodes, &["gen", "1k", "volume:films/in"]).is_done();
    run(&nodes, &["cluster", "client", "eve", "--may", "status"]).is_done();
    become_client(&nodes, "eve");
    run(&nodes, &["pump", "volume:films/in", "back"]).is_done();
    assert_eq!(std::fs::metadata(nodes.place.0.join("back")).unwrap().len(), 100_000);
    run(&nodes, &["gen", "1k", "volume:films/other"]).is_refused(&["Read-only file system"]);
    run(&nodes, &["volume", "destroy", "films"]).is_refused(&["may only look"]);
    run(&nodes, &["volume", "repair", "films"]).is_refused(&["may only look"]);
}

#[test]
fn what_a_store_missed_is_counted_and_repaired_by_the_volume_itself() {
    let mut nodes = with_volume("2");
    let status = |nodes: &Nodes| -> VolumeStatus {
        from_json(run(nodes, &["volume", "status", "films", "--json"]).is_done()).unwrap()
    };
    let rate = |nodes: &Nodes, rate: &str| {
        run(nodes, &["volume", "repair", "films", "--limit", rate]).is_done();
    };
    let miss = |nodes: &mut Nodes, name: &str| {
        kill(nodes, 2);
        run(nodes, &["gen", "10k", &format!("volume:films/{name}")]).is_done();
    };
    run(&nodes, &["gen", "10k", "volume:films/first"]).is_done();
    rate(&nodes, "0");
    miss(&mut nodes, "in");
    let lost = status(&nodes);
    assert!(lost.stores[2].lost.is_some() && lost.stores[2].short_files == 2, "{lost:?}");
    assert_eq!((lost.files, lost.short_files, lost.short_bytes), (2, 2, lost.stores[2].short_bytes));
    nodes.begin(2);
    until("the store is back", || status(&nodes).stores[2].lost.is_none());
    let behind = status(&nodes);
    let store = &behind.stores[2];
    assert!(behind.short_files == 1 && store.short_files == 1 && store.short_bytes > 0, "{behind:?}");
    assert!(store.behind_since_ns.is_some_and(|since| since <= thalweg_base::clock::wall_ns()), "{behind:?}");
    assert_eq!((behind.repair_rate, behind.repair), (0, None));
    let told = run(&nodes, &["volume", "status", "films"]);
    for what in ["behind", "1 file has one copy less", "missed writes since 20", "does not repair itself"] {
        assert!(told.is_done().contains(what), "{what}: {}", told.out);
    }
    until("the node counts it", || {
        let metrics = nodes.curl("--cert own/cert.pem --key own/key.pem N1/metrics");
        metrics.out.contains("\nthalweg_volume_short_files 1\n")
    });
    // It repairs itself slowly, and a client that repairs goes first.
    rate(&nodes, "16KiB");
    until("it repairs itself", || status(&nodes).repair.is_some_and(|repair| repair.bytes > 0));
    let told = run(&nodes, &["volume", "status", "films"]);
    assert!(told.is_done().contains("the volume repairs itself: 0 of 1 file done"), "{}", told.out);
    let repaired = run(&nodes, &["volume", "repair", "films"]);
    assert!(repaired.is_done().contains("everything is as it was written"), "{}", repaired.out);
    assert_eq!((status(&nodes).short_files, status(&nodes).stores[2].behind_since_ns), (0, None));
    // At the usual rate.
    rate(&nodes, "64MiB");
    miss(&mut nodes, "more");
    nodes.begin(2);
    until("it has repaired itself", || status(&nodes).short_files == 0);
    assert!(run(&nodes, &["volume", "check", "films"]).is_done().contains("everything is as it was written"));
}

/// Has the volumes of a place belong to another client from now on.
fn become_client(nodes: &Nodes, name: &str) {
    let registry = nodes.place.0.join("settings/thalweg/volumes.json");
    let mut list: VolumeList = from_json(&std::fs::read_to_string(&registry).unwrap()).unwrap();
    let identity = nodes.place.0.join("own/clients").join(name).display().to_string();
    list.volumes[0].cluster.as_mut().unwrap().identity = identity;
    std::fs::write(&registry, thalweg_api::to_json(&list)).unwrap();
}

#[test]
fn clients_that_are_not_named_are_refused_by_manager_and_stores_alike() {
    let nodes = Nodes::start(2);
    for directory in ["d1", "d2", "meta"] {
        std::fs::create_dir(nodes.place.0.join(directory)).unwrap();
    }
    run(&nodes, &["cluster", "client", "ann"]).is_done();
    run(&nodes, &["cluster", "client", "bob"]).is_done();
    let stores = stores(&nodes, "12");
    let create = |clients: &str| {
        run(&nodes, &["volume", "create", "films", "--stores", &stores, "--clients", clients])
    };
    create("ann,nobody").is_refused(&["has no client 'nobody'"]);
    create("ann").is_done();
    let refused = ["the volume is only for ann, and this is", "Permission denied"];
    run(&nodes, &["volume", "status", "films"]).is_refused(&refused);

    become_client(&nodes, "ann");
    run(&nodes, &["gen", "1k", "volume:films/in"]).is_done();
    let status = run(&nodes, &["volume", "status", "films"]);
    assert!(status.is_done().contains("clients   ann"), "{}", status.out);

    // Nor do nodes lend theirs, to ann neither: they cannot tell for whom another node asks.
    let job = ["sort", "volume:films/in", "-o", "nodes:out-{}", "--datamation", "--cluster", "river"];
    run(&nodes, &job).is_refused(&["the volume is only for ann, and nodes would use it for anybody"]);

    // All rights in the cluster do not help, neither at the manager nor at a store that is asked directly.
    become_client(&nodes, "bob");
    run(&nodes, &["pump", "volume:films/in", "back"]).is_refused(&refused);
    run(&nodes, &["volume", "destroy", "films"]).is_refused(&refused);
    let list: VolumeList = from_json(run(&nodes, &["volume", "list", "--json"]).is_done()).unwrap();
    let volume = list.volumes[0].cluster.as_ref().unwrap().volume.clone();
    for (node, store) in ["n1", "n2"].into_iter().zip(&list.volumes[0].stores) {
        let (_, directory) = store.split_once(':').unwrap();
        let at_store = |identity: &str| ask_store(&nodes, identity, node, directory, &volume);
        let why = at_store("bob").unwrap_err();
        assert!(why.contains(refused[0]), "{why}");
        at_store("ann").unwrap();
    }
    become_client(&nodes, "ann");
    run(&nodes, &["volume", "destroy", "films"]).is_done();
}

#[test]
fn a_volume_whose_manager_has_left_the_cluster_can_be_forgotten() {
    let nodes = with_volume("1");
    let dropped = run(&nodes, &["cluster", "drop", "n1"]);
    assert_eq!(dropped.status, Some(0), "{dropped:?}");
    let advice = "thalweg volume destroy films --force";
    assert!(
        dropped.err.contains("the manager of volume films") && dropped.err.contains(advice),
        "{dropped:?}"
    );
    run(&nodes, &["volume", "destroy", "films"]).is_refused(&["n1", advice]);
    let forced = run(&nodes, &["volume", "destroy", "films", "--force"]);
    assert!(forced.status == Some(1) && forced.err.contains("the manager in n1:"), "{forced:?}");
    assert_eq!(run(&nodes, &["volume", "list"]).is_done(), "");
    assert!(!nodes.place.0.join("d2/films.thalweg-store").exists(), "what is there still is removed");
}

/// Attaches to a store of slot 0 or 1 without its manager, as an attacker would.
fn ask_store(nodes: &Nodes, client: &str, node: &str, directory: &str, volume: &str) -> Result<(), String> {
    use thalweg_api::{ServiceRequest, VolumeRequest};
    let identity = nodes.place.0.join("own/clients").join(client);
    let client = thalweg_wire::Client::load(&identity).map_err(|why| why.to_string())?;
    let host = client.hosts(&[node.to_string()]).map_err(|why| why.to_string())?.remove(0);
    let link = client.link(&host, 256 << 10).map_err(|why| why.to_string())?;
    let slot = if node == "n1" { 0 } else { 1 };
    let request =
        VolumeRequest::Store { directory: directory.into(), volume: volume.into(), slot, peers: Vec::new() };
    let (mut out, inc) = link.open(request.text().as_bytes()).map_err(|why| why.to_string())?;
    // Attach, in version 7, as caller 0 in its first connection: docs/formats/volume.md has the bytes.
    let attach = [&[5, 0, 0, 0, 0, 0, 0, 0][..], &1_u64.to_le_bytes(), &[0, 7], &[0; 3]];
    let mut attach = attach.concat();
    out.send(0, &mut attach).map_err(|why| why.to_string())?;
    let pool = thalweg_block::Pool::new(256 << 10, 2).unwrap();
    let (_, answer) = inc.takes(&pool, 1).next_on().map_err(|why| why.to_string())?.expect("it answers");
    let body = &answer[16..];
    // An enum's first byte: 0 is Attached, 3 is Failed.
    if body[0] == 0 { Ok(()) } else { Err(String::from_utf8_lossy(body).into_owned()) }
}

#[test]
fn with_two_copies_a_node_may_be_lost_but_not_that_of_the_manager() {
    let mut nodes = with_volume("2");
    run(&nodes, &["gen", "20k", "records"]).is_done();
    run(&nodes, &["gen", "20k", "volume:films/in"]).is_done();
    kill(&mut nodes, 2);
    run(&nodes, &["pump", "volume:films/in", "back"]).is_done();
    nodes.place.shell("cmp records back").is_done();
    run(&nodes, &["sort", "volume:films/in", "-o", "volume:films/out", "--datamation"]).is_done();
    run(&nodes, &["check", "volume:films/out", "--datamation"]).is_done();
    let checked = run(&nodes, &["volume", "check", "films", "--json"]);
    let found: VolumeCheck = from_json(&checked.out).unwrap();
    assert!(checked.status == Some(1) && found.lost_files == 0, "{checked:?}");
    assert!(found.problems[0].contains("n3") && found.problems[0].contains("is lost"), "{found:?}");

    kill(&mut nodes, 0);
    let began = Instant::now();
    let told = run(&nodes, &["volume", "ls", "volume:films/"]);
    told.is_refused(&["the manager of volume films", "n1"]);
    assert!(began.elapsed().as_secs_f64() < ABOUT_TEN_SECONDS, "{:?}", began.elapsed());
}

#[test]
fn stores_on_nodes_are_repaired_added_replaced_and_salvaged() {
    let mut nodes = with_volume("2");
    for directory in ["d4", "d5", "d6"] {
        std::fs::create_dir(nodes.place.0.join(directory)).unwrap();
    }
    let at = |nodes: &Nodes, node: u32, directory: u32| {
        format!("n{node}:{}/d{directory}", nodes.place.0.display())
    };
    let whole = "everything is as it was written";
    run(&nodes, &["gen", "20k", "records"]).is_done();
    run(&nodes, &["gen", "20k", "volume:films/in"]).is_done();
    // Another client's list of volumes, which does not learn of what this one does.
    let registry = nodes.place.0.join("settings/thalweg/volumes.json");
    let before = std::fs::read(&registry).unwrap();

    let strip = std::fs::read_dir(nodes.place.0.join("d2/films.thalweg-store")).unwrap();
    let strip =
        strip.map(|entry| entry.unwrap().path()).find(|path| path.extension() == Some("strip".as_ref()));
    let strip = strip.unwrap();
    let mut bytes = std::fs::read(&strip).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&strip, bytes).unwrap();
    let repaired = run(&nodes, &["volume", "repair", "films"]);
    assert!(repaired.is_done().contains("is mended") && repaired.out.contains(whole), "{repaired:?}");

    let add = |place: &str| run(&nodes, &["volume", "add-store", "films", place]);
    add(&at(&nodes, 3, 4)).is_refused(&["beside one of the same node"]);
    add("d4").is_refused(&["d4 is on no node; write NODE:/DIR"]);
    assert!(add(&at(&nodes, 2, 4)).is_done().starts_with("films: 4 stores on cluster river\n"));
    run(&nodes, &["gen", "20k", "volume:films/more"]).is_done();
    let replace = |nodes: &Nodes, old: &str, new: &str| run(nodes, &["volume", "replace", "films", old, new]);
    replace(&nodes, &at(&nodes, 2, 9), &at(&nodes, 2, 5)).is_refused(&["is no store of volume films"]);
    assert!(replace(&nodes, &at(&nodes, 2, 2), &at(&nodes, 2, 5)).is_done().contains(whole));
    assert_eq!(std::fs::read_dir(nodes.place.0.join("d2")).unwrap().count(), 0);

    // A node is gone, and with it a store, which others take over.
    kill(&mut nodes, 2);
    assert!(replace(&nodes, &at(&nodes, 3, 3), &at(&nodes, 1, 6)).is_done().contains(whole));
    std::fs::write(&registry, before).unwrap();
    for file in ["in", "more"] {
        run(&nodes, &["pump", &format!("volume:films/{file}"), "back"]).is_done();
        nodes.place.shell("cmp records back && rm back").is_done();
    }
    let audit = std::fs::read_to_string(nodes.place.0.join("own/hosts/n1/audit.log")).unwrap();
    for what in ["volume repair", "volume add-store", "volume replace"] {
        assert!(audit.contains(what), "{what} is not in {audit}");
    }
    assert!(run(&nodes, &["volume", "salvage", "films", "saved"]).is_done().contains("2 files saved"));
    nodes.place.shell("cmp records saved/in && cmp records saved/more").is_done();
    kill(&mut nodes, 0);
    let nameless = run(&nodes, &["volume", "salvage", "films", "nameless"]);
    assert!(nameless.status == Some(1) && nameless.out.contains("files are called after their numbers"));
}

#[test]
fn a_mount_goes_on_without_a_store_and_answers_without_the_manager() {
    let Some((mut nodes, mounted)) = with_mount() else { return };
    run(&nodes, &["gen", "20k", "records"]).is_done();
    nodes.place.shell("cp records films/copy && cmp records films/copy && mkdir films/more").is_done();
    kill(&mut nodes, 2);
    run(&nodes, &["pump", "volume:films/copy", "back"]).is_done();
    nodes
        .place
        .shell("cmp records back && cp records films/more/written && cmp records films/more/written")
        .is_done();

    kill(&mut nodes, 0);
    let began = Instant::now();
    let told = nodes.place.shell("cat films/copy > /dev/null");
    assert!(told.status == Some(1) && told.err.contains("Input/output error"), "{told:?}");
    assert!(began.elapsed().as_secs_f64() < ABOUT_TEN_SECONDS, "{:?}", began.elapsed());
    drop(mounted);
}

#[test]
fn files_that_are_open_stay_open_while_the_managers_node_is_restarted() {
    let Some((mut nodes, mounted)) = with_mount() else { return };
    let mut open = std::fs::File::create(mounted.0.join("open")).unwrap();
    open.write_all(&[1; 300_000]).unwrap();
    std::fs::remove_file(mounted.0.join("open")).unwrap();
    let mut kept = std::fs::File::create(mounted.0.join("kept")).unwrap();
    kept.write_all(&[2; 300_000]).unwrap();
    // A program that is started here inherits both, and waits when it closes them until what was written is sent.
    open.sync_all().unwrap();
    kept.sync_all().unwrap();
    kill(&mut nodes, 0);
    nodes.begin(0);
    kept.write_all(&[3; 300_000]).unwrap();
    kept.sync_all().unwrap();
    drop((open, kept));
    let read = std::fs::read(mounted.0.join("kept")).unwrap();
    assert!(read.len() == 600_000 && read[..300_000] == [2; 300_000] && read[300_000..] == [3; 300_000]);
    assert!(!mounted.0.join("open").exists());
}

/// The bytes of one were read as those of files of the other.
#[test]
fn of_two_copies_of_a_manager_on_nodes_the_stores_accept_one() {
    let mut nodes = with_volume("2");
    run(&nodes, &["gen", "1k", "records"]).is_done();
    run(&nodes, &["pump", "records", "volume:films/in"]).is_done();
    nodes.place.shell("cp -a meta copy && cp -a settings more && sed -i 's|n1:\\([^\"]*\\)/meta/|n2:\\1/copy/|' more/thalweg/volumes.json").is_done();
    let other = |nodes: &Nodes, args: &[&str]| {
        let mut command = nodes.place.command(args);
        command.env("THALWEG_IDENTITY", "own").env("XDG_CONFIG_HOME", nodes.place.0.join("more"));
        Outcome::of(command.output().unwrap())
    };
    let adopt = ["volume", "manager", "adopt", "films"];
    let refused = ["is a copy of that in n1:", "thalweg volume manager adopt films"];
    other(&nodes, &["volume", "ls", "volume:films/"]).is_refused(&refused);
    other(&nodes, &adopt).is_refused(&["volume films is served by its manager in n1:", "stop that first"]);
    run(&nodes, &["pump", "records", "volume:films/more"]).is_done();

    kill(&mut nodes, 0);
    let mut adopted = None;
    until("the stores notice that n1 is gone", || {
        let told = other(&nodes, &adopt);
        adopted = (told.status == Some(0)).then_some(told);
        adopted.is_some()
    });
    other(&nodes, &["pump", "records", "volume:films/new"]).is_done();
    nodes.begin(0);
    let refused = ["know a later history", "of the manager in n2:", "thalweg volume manager adopt films"];
    run(&nodes, &["volume", "ls", "volume:films/"]).is_refused(&refused);
    run(&nodes, &adopt).is_refused(&["volume films is served by its manager in n2:"]);
    other(&nodes, &["volume", "repair", "films"]).is_done();
    for name in ["in", "new"] {
        other(&nodes, &["pump", &format!("volume:films/{name}"), "back"]).is_done();
        nodes.place.shell("cmp records back && rm back").is_done();
    }
    let audit = std::fs::read_to_string(nodes.place.0.join("own/hosts/n2/audit.log")).unwrap();
    assert!(audit.contains("volume manager adopt"), "{audit}");
}

/// A mount, until the test ends.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let ended = std::process::Command::new("umount").arg(&self.0).status().unwrap();
        assert!(ended.success() || std::thread::panicking(), "it is unmounted: {ended}");
    }
}

//! Plans for sorts on the nodes of a lab: a probe measures what the lab was built with, a plan names what limits it,
//! and a sort takes as long as its plan predicted. Without root the tests that need a lab say that they were skipped.
#![allow(clippy::disallowed_methods)] // Tests look at files directly.

mod support;

use support::lab::Lab;
use support::{Place, run};
use thalweg_api::{ClusterPlan, ExchangeReport, JobList, ProbeReport, RatesFrom, Receipt, from_json};

/// Runs a plan, and a sort, with these arguments.
fn plan(lab: &Lab, args: &[&str]) -> ClusterPlan {
    from_json(lab.run(&[&["plan", "sort"], args, &["--json"]].concat()).is_done()).unwrap()
}

fn probe(lab: &Lab) -> ProbeReport {
    from_json(lab.run(&["cluster", "probe", "--json"]).is_done()).unwrap()
}

/// Gives each host this many benchmark records.
fn deal(lab: &Lab, hosts: usize, records: usize) {
    for host in 1..=hosts {
        let (file, start) = (lab.directory(&format!("n{host}")).join("in.dat"), (host * records).to_string());
        run(&["gen", "-q", &records.to_string(), file.to_str().unwrap(), "--start", &start]).is_done();
    }
}

/// The names in the hosts' directories, without the lab's own files.
fn names(lab: &Lab, hosts: usize) -> Vec<String> {
    let ours = ["identity", "pid", "ready", "err"];
    let of = |host: usize| std::fs::read_dir(lab.directory(&format!("n{host}"))).unwrap();
    let all = (1..=hosts).flat_map(of).map(|entry| entry.unwrap().file_name().into_string().unwrap());
    all.filter(|name| !ours.contains(&name.as_str())).collect()
}

const SORT: [&str; 6] = ["nodes:in.dat", "-o", "nodes:part-{}", "--datamation", "--memory", "160MiB"];

#[test]
fn a_sort_takes_what_its_plan_said_of_the_rates_that_a_probe_found() {
    let Some(lab) = Lab::up(&["4", "--rate", "100mbit", "--disk", "20MB/s"]) else { return };
    deal(&lab, 4, 300_000);
    let now = plan(&lab, &SORT);
    assert_eq!((now.rates_from, now.nodes.len(), now.input_bytes), (RatesFrom::Now, 4, 120_000_000));
    assert!(!lab.directory("n1").join("identity/rates.json").exists(), "only a probe is kept");
    let probed = probe(&lab);
    assert!(probed.hosts.len() == 4 && probed.seconds < 20.0, "{probed:?}");
    for host in &probed.hosts {
        let (rates, disk) = (&host.rates, &host.rates.hardware);
        let links = [rates.send_bytes_per_second, rates.receive_bytes_per_second];
        // Not more than the lab allows; less only if other work on this machine interferes.
        assert!(links.iter().all(|rate| (4e6..12.7e6).contains(rate)), "{host:?}");
        let disks = [disk.read_bytes_per_second, disk.write_bytes_per_second];
        assert!(disks.iter().all(|rate| (5e6..25e6).contains(rate)), "{host:?}");
        assert!(
            rates.trunk_bytes_per_second.is_none() && disk.measured_at_seconds > 1_700_000_000,
            "{host:?}"
        );
    }
    let said = plan(&lab, &SORT);
    assert_eq!((said.rates_from, said.passes), (RatesFrom::Probe, 1));
    // All of them, unless other work interfered with some of the measurements.
    assert!(said.stages[1].bottleneck.contains("link"), "{said:?}");
    assert!(said.stages[2].bottleneck.contains("disk"), "{said:?}");
    assert_eq!(names(&lab, 4), ["in.dat"; 4], "a plan runs nothing");
    let listed: JobList = from_json(lab.run(&["job", "list", "--json"]).is_done()).unwrap();
    assert!(listed.jobs.is_empty() && listed.errors.is_empty(), "a plan is no job: {listed:?}");
    let told = lab.run(&[&["sort"], &SORT[..], &["--json"]].concat());
    let done: Receipt = from_json(told.is_done()).unwrap();
    let predicted: f64 = done.stages.iter().map(|stage| stage.predicted_seconds.unwrap()).sum();
    for stage in &done.stages {
        println!(
            "{:<10}  predicted {:>5.2} s  took {:>5.2} s",
            stage.name,
            stage.predicted_seconds.unwrap(),
            stage.seconds
        );
    }
    println!("in all      predicted {predicted:>5.2} s  took {:>5.2} s", done.seconds);
    assert!(done.holds && (predicted - said.seconds).abs() < 1e-6, "{done:?}");
    // The promise is a fifth; other work on this machine may take its part.
    let ratio = done.seconds / predicted;
    assert!((0.5..4.0).contains(&ratio), "took {} s, predicted {predicted} s", done.seconds);
    let text = lab.run(&[&["plan", "sort"], &SORT[..]].concat());
    assert!(text.is_done().contains("measured by cluster probe, 20"), "{text:?}");
}

#[test]
fn a_trunk_between_the_halves_is_found_and_named() {
    let Some(lab) = Lab::up(&["4", "--rate", "100mbit", "--trunk", "2x20mbit"]) else { return };
    let probed = probe(&lab);
    let trunk = probed.hosts[0].rates.trunk_bytes_per_second.expect("it is there");
    assert!((2e6..5.5e6).contains(&trunk), "{probed:?}");
    let links = |host: &thalweg_api::ProbedHost| {
        [host.rates.send_bytes_per_second, host.rates.receive_bytes_per_second]
    };
    assert!(probed.hosts.iter().flat_map(links).all(|rate| rate > trunk), "links are faster: {probed:?}");
    deal(&lab, 4, 100_000);
    let said = plan(&lab, &SORT);
    assert_eq!(said.stages[1].bottleneck, "trunk", "{said:?}");
    let text = lab.run(&[&["plan", "sort"], &SORT[..]].concat());
    assert!(text.is_done().contains("between the halves of the hosts, each way"), "{text:?}");
}

#[test]
fn all_send_to_all_what_was_asked_in_every_order_and_the_kernel_agrees() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    for order in ["together", "same", "shifted", "paced", ""] {
        let carried = || (1..=3).map(|host| lab.carried(&format!("n{host}")).0).sum::<u64>();
        let before = carried();
        let mut args = vec!["cluster", "exchange", "1MB", "--runs", "2", "--json"];
        args.extend((!order.is_empty()).then_some(["--schedule", order]).iter().flatten());
        let told: ExchangeReport = from_json(lab.run(&args).is_done()).unwrap();
        assert_eq!((told.hosts.len(), told.bytes, told.seconds.len()), (3, 1_000_000, 2));
        let (crossed, expected) = ((carried() - before) as f64, 2.0 * 6.0 * 1e6);
        assert!((expected..1.05 * expected).contains(&crossed), "{order}: {crossed} of {expected}");
    }
    let refused = |args: &[&str], holds: &str| lab.run(args).is_refused(&[holds]);
    refused(&["cluster", "exchange"], "takes a SIZE");
    refused(&["cluster", "exchange", "0"], "1 to 1 GiB");
    refused(&["cluster", "exchange", "1MB", "--on", "n2"], "two hosts at least");
    refused(&["cluster", "status", "--runs", "2"], "flags of cluster exchange");
    lab.call("kill", &["n3"]);
    refused(&["cluster", "exchange", "1MB"], "n3");
}

/// While one host was slow, the others received nothing, and closed their links after 5 s.
#[test]
fn a_round_may_last_longer_than_a_node_is_patient() {
    let Some(lab) = Lab::up(&["2", "--rate", "8mbit"]) else { return };
    let told = lab.run(&["cluster", "exchange", "6500kB", "--runs", "1", "--json"]);
    let report: ExchangeReport = from_json(told.is_done()).unwrap();
    assert!(report.seconds[0] > 5.5, "too fast to tell: {report:?}");
}

#[test]
fn what_cannot_be_planned_or_probed_is_told_in_one_line_with_the_host() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    let refused = |args: &[&str], holds: &str| {
        lab.run(&[&["plan", "sort"], args].concat()).is_refused(&[holds]);
    };
    refused(&["nodes:none", "-o", "nodes:part-{}"], "cannot inspect");
    refused(&["nodes:in", "-o", "nodes:part", "--on", "n9"], "n9");
    refused(&["in", "-o", "out", "--cluster", "other"], "not of other");
    // Damaged rates count as missing: the plan measures.
    place.run(&["gen", "-q", "1000", "in"]).is_done();
    deal(&lab, 2, 1000);
    std::fs::write(lab.directory("n1").join("identity/rates.json"), "{\"memory_bytes\": -1}").unwrap();
    assert_eq!(plan(&lab, &SORT).rates_from, RatesFrom::Now);
    lab.call("kill", &["n2"]);
    lab.run(&["cluster", "probe"]).is_refused(&["n2"]);
    lab.run(&["cluster", "probe", "--on", "n1", "-q"]).is_done();
    assert_eq!(plan(&lab, &[&SORT[..], &["--on", "n1"]].concat()).rates_from, RatesFrom::Probe);
}

#[test]
fn clusters_that_nobody_has_are_planned_for() {
    let asked = "nodes=1000,disk=2GB/s,link=100Gbit,memory=512GiB,data=100TB,cores=256";
    let told = run(&["plan", "sort", "--datamation", "--json", "--simulate", asked]);
    let plan: ClusterPlan = from_json(told.is_done()).unwrap();
    assert_eq!((plan.nodes.len(), plan.input_bytes, plan.passes), (1000, 100_000_000_000_000, 1));
    assert!(plan.seconds > 100.0 && plan.stages[2].bottleneck == "all disks", "{:?}", plan.stages);
    let narrow =
        run(&["plan", "sort", "--datamation", "--simulate", "nodes=32,disk=2GB/s,link=100Mbit,data=1TB"]);
    let text = narrow.is_done();
    assert!(text.contains("limit     read+river, all links") && text.contains("n1 to n32"), "{text}");
    for (args, holds) in [
        (&["--simulate", "nodes=0,disk=1,link=1"][..], "not a number of nodes"),
        (&["--simulate", "disk=1GB/s,link=1Gbit"], "nodes is missing"),
        (&["--simulate", "nodes=3,disk=1GB/s,link=1Gbit,data=lots"], "not a size"),
        (&["--simulate", "nodes=3,disk=1GB/s,link=1Gbit,speed=9"], "'speed' is none of"),
        (&["--simulate", "nodes=3,disk=1GB/s,link=1Gbit,memory=1MiB"], "too small"),
        (&["--simulate", "nodes=999999,disk=1GB/s,link=1Gbit"], "1 to 100000"),
        (&["in", "-o", "out", "--simulate", "nodes=3,disk=1GB/s,link=1Gbit"], "takes no input"),
        (&["--simulate", "nodes=3,disk=1GB/s,link=1Gbit", "--memory", "10%"], "in bytes"),
    ] {
        run(&[&["plan", "sort"], args].concat()).is_refused(&[holds]);
    }
}

#[test]
fn unequal_nodes_have_unequal_shares_and_what_comes_out_is_the_same() {
    let disks = ["--disk", "io:20MB/s,sort:6200kB/s", "--roles", "io:2,sort:2"];
    let Some(lab) = Lab::up(&[&["4"][..], &disks].concat()) else { return };
    let place = Place::new();
    // Keys that occur many times, so that the order of equal ones shows.
    place
        .shell("$T gen 600k uneven -q && tr '\\200-\\377' '\\000-\\177' < uneven > in && rm uneven")
        .is_done();
    place.run(&["sort", "in", "-o", "expected", "--record", "100", "--by", "0:2", "-q"]).is_done();
    let cluster = format!("lab-{}", lab.id);
    let sort = |more: &[&str]| {
        let args = ["sort", "in", "--record", "100", "--by", "0:2", "--memory", "96MiB", "--json"];
        let args = [&args[..], &["--cluster", &cluster], more].concat();
        let told = support::Outcome::of(lab.command(&args).current_dir(&place.0).output().unwrap());
        from_json::<Receipt>(told.is_done()).unwrap()
    };
    let unplanned = sort(&["-o", "out"]);
    assert!(unplanned.stages.iter().all(|stage| stage.predicted_seconds.is_none()), "nobody has probed");
    probe(&lab);
    let [planned, equal] = [&["-o", "out"][..], &["-o", "even", "--shares", "equal"]].map(sort);
    assert!(place.read("out") == place.read("expected") && place.read("even") == place.read("expected"));
    let ratio = |receipt: &Receipt, of: fn(&thalweg_api::NodeReceipt) -> u64| {
        of(&receipt.nodes[0]) as f64 / of(&receipt.nodes[2]) as f64
    };
    for (of, what) in [(read as fn(&_) -> u64, "read"), (wrote, "wrote")] {
        println!("{what}: io to sort {:.2} planned, {:.2} equal", ratio(&planned, of), ratio(&equal, of));
        assert!(ratio(&planned, of) > 1.5 && (0.9..1.1).contains(&ratio(&equal, of)), "{planned:?}");
    }
    println!("planned {:.2} s, equal {:.2} s", planned.seconds, equal.seconds);
    assert!(planned.seconds < equal.seconds, "{} s planned, {} s equal", planned.seconds, equal.seconds);
    // Records with equal keys, of which all but one are dropped, are in one range; no node has a part too many.
    place.run(&["sort", "in", "-o", "once", "--record", "100", "--by", "0:2", "--unique", "-q"]).is_done();
    assert!(sort(&["-o", "nodes:part-{}", "--unique"]).dropped.records > 0);
    let part = |host: usize| {
        std::fs::read(lab.directory(&format!("n{host}")).join(format!("part-{}", host - 1))).unwrap()
    };
    assert!((1..=4).map(part).collect::<Vec<_>>().concat() == place.read("once"));
}

#[test]
fn each_node_has_the_memory_that_its_host_declares() {
    let memories = ["--memory", "io:48MiB,sort:160MiB", "--roles", "io:1,sort:2"];
    let Some(lab) = Lab::up(&[&["3"][..], &memories].concat()) else { return };
    let place = Place::new();
    place.shell("$T gen 1200k in -q && $T sort in -o expected --datamation -q").is_done();
    let cluster = format!("lab-{}", lab.id);
    // No memory given, a percentage, and more than n1 allows.
    for more in [&[][..], &["--memory", "50%"], &["--memory", "128MiB"]] {
        let args = ["sort", "in", "-o", "out", "--datamation", "--json", "--cluster", &cluster];
        let told = lab.command(&[&args[..], more].concat()).current_dir(&place.0).output().unwrap();
        let done: Receipt = from_json(support::Outcome::of(told).is_done()).unwrap();
        assert!(place.read("out") == place.read("expected"));
        let others = if more.last() == Some(&"128MiB") { 128 } else { 160 };
        let memory: Vec<u64> = done.nodes.iter().map(|node| node.memory_bytes >> 20).collect();
        assert_eq!(memory, [48, others, others], "{more:?}");
        assert_eq!(done.memory.limit_bytes >> 20, others);
        // Each node has 40 MB: only n1 has to spill what it cannot hold.
        let spills = done.nodes.iter().map(|node| node.scratch_peak_bytes > 0);
        assert!(spills.eq([true, false, false]), "{done:?}");
        let promised = |memory: u64| (memory / 100 * 105).max(memory + (2 << 20));
        assert!(done.nodes.iter().all(|node| node.peak_bytes <= promised(node.memory_bytes)), "{done:?}");
    }
    probe(&lab);
    let plan = lab.command(&["plan", "sort", "in", "-o", "out", "--datamation", "--cluster", &cluster]);
    let told = support::Outcome::of({ plan }.current_dir(&place.0).output().unwrap());
    assert!(told.is_done().contains("48 MiB to 160 MiB for the shares of the nodes"), "{told:?}");
}

fn read(node: &thalweg_api::NodeReceipt) -> u64 {
    node.input.0
}

fn wrote(node: &thalweg_api::NodeReceipt) -> u64 {
    node.output.1
}

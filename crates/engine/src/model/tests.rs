//! The model against arithmetic by hand, and shares against what they must be.

use thalweg_api::Hardware;

use super::*;
use crate::Layout;

const MB: f64 = 1e6;

fn rates(disk: f64, link: f64) -> NodeRates {
    NodeRates {
        hardware: Hardware {
            measured_bytes: 1,
            measured_at_seconds: 1,
            cores: 2,
            read_bytes_per_second: disk,
            write_bytes_per_second: disk,
            mixed_bytes_per_second: disk,
            sync_seconds: 0.0,
            distribute_records_per_second: 1e8,
            sort_records_per_second: 1e8,
        },
        memory_bytes: 1 << 30,
        send_bytes_per_second: link,
        receive_bytes_per_second: link,
        trunk_bytes_per_second: None,
    }
}

/// Nodes with these rates of disks and links, and `share` bytes each.
fn facts(nodes: &[(f64, f64)], share: f64) -> Facts {
    let node = |(i, &(disk, link)): (usize, &(f64, f64))| NodeFacts {
        host: format!("n{}", i + 1),
        rates: rates(disk, link),
        far: i >= nodes.len() / 2,
        read_bytes: share as u64,
        range_bytes: share as u64,
        memory_bytes: 4 << 30,
    };
    Facts {
        nodes: nodes.iter().enumerate().map(node).collect(),
        record_bytes: 100,
        trunk_bytes_per_second: None,
        rates_from: RatesFrom::Simulated,
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.05 * b
}

#[test]
fn each_stage_is_as_slow_as_its_slowest() {
    // 100 MB of each at 20 MB/s, three quarters of it over links of 12.5 MB/s, and written at 20 MB/s.
    let plan = predict(&facts(&[(20.0 * MB, 12.5 * MB); 4], 100.0 * MB));
    assert!(close(plan.stages[1].seconds, 6.0), "{plan:?}");
    assert!(close(plan.stages[2].seconds, 5.0), "{plan:?}");
    assert_eq!((plan.stages[1].bottleneck.as_str(), plan.passes), ("all links", 1));
    assert_eq!(
        (plan.stages[2].bottleneck.as_str(), plan.bottleneck.as_str()),
        ("all disks", "read+river, all links")
    );
    assert_eq!(plan.stages[1].crossing_bytes, 300_000_000);
    // One slow disk, and two.
    let mut one = facts(&[(20.0 * MB, 1e9); 4], 100.0 * MB);
    one.nodes[2].rates = rates(5.0 * MB, 1e9);
    assert_eq!(predict(&one).bottleneck, "sort+write, n3's disk");
    one.nodes[0].rates = rates(5.0 * MB, 1e9);
    assert_eq!(predict(&one).stages[1].bottleneck, "disks of n1, n3");
    // Cores so slow that nothing else matters.
    let mut slow = facts(&[(1e9, 1e9); 2], 100.0 * MB);
    slow.nodes.iter_mut().for_each(|node| node.rates.hardware.sort_records_per_second = 1e5);
    assert_eq!(predict(&slow).bottleneck, "sort+write, all cores");
    assert!(close(predict(&slow).stages[2].seconds, 5.0));
}

#[test]
fn one_node_has_no_links_and_a_trunk_is_named_where_it_limits() {
    let alone = predict(&facts(&[(20.0 * MB, 0.0)], 100.0 * MB));
    assert!(alone.stages[1].bottleneck == "n1's disk" && alone.stages[1].crossing_bytes == 0, "{alone:?}");
    let mut halves = facts(&[(1e9, 12.5 * MB); 4], 100.0 * MB);
    // Each half reads 200 MB, of which 100 cross at 5 MB/s.
    halves.trunk_bytes_per_second = Some(5.0 * MB);
    let plan = predict(&halves);
    assert!(close(plan.stages[1].seconds, 20.0) && plan.bottleneck == "read+river, trunk", "{plan:?}");
    halves.trunk_bytes_per_second = Some(500.0 * MB);
    assert_eq!(predict(&halves).bottleneck, "read+river, all links");
}

#[test]
fn a_role_says_what_a_node_does_most() {
    let mut unlike = facts(&[(20.0 * MB, 1e9); 4], 100.0 * MB);
    let shares = [(200, 3), (0, 200), (100, 100), (0, 3)];
    for (node, (read, range)) in unlike.nodes.iter_mut().zip(shares) {
        (node.read_bytes, node.range_bytes) = (read * 1_000_000, range * 1_000_000);
    }
    let roles: Vec<NodeRole> = predict(&unlike).nodes.iter().map(|node| node.role).collect();
    assert_eq!(roles, [NodeRole::Io, NodeRole::Sort, NodeRole::Both, NodeRole::Spare]);
}

#[test]
fn what_does_not_fit_is_written_and_read_once_more() {
    let mut small = facts(&[(20.0 * MB, 1e9); 2], 400.0 * MB);
    small.nodes.iter_mut().for_each(|node| node.memory_bytes = 256 << 20);
    let plan = predict(&small);
    assert_eq!(plan.passes, 2);
    let spilled = plan.nodes[0].spilled_bytes as f64;
    assert!((200.0 * MB..350.0 * MB).contains(&spilled), "{spilled}");
    assert_eq!(plan.stages[1].written_bytes, plan.stages[2].read_bytes);
    assert!(close(plan.stages[1].seconds, (400.0 * MB + spilled) / (20.0 * MB)), "{plan:?}");
    assert!(plan.seconds > 2.0 * predict(&facts(&[(20.0 * MB, 1e9); 2], 400.0 * MB)).seconds * 0.75);
}

#[test]
fn more_to_do_never_takes_less_time_and_nothing_takes_none() {
    let mut before = -1.0;
    for tenth in 0..100 {
        let mut some = facts(&[(20.0 * MB, 12.5 * MB), (6.0 * MB, 12.5 * MB)], f64::from(tenth) * 10.0 * MB);
        some.nodes.iter_mut().for_each(|node| node.memory_bytes = 256 << 20);
        let seconds = predict(&some).seconds;
        assert!(seconds.is_finite() && seconds >= before, "{tenth}: {seconds} after {before}");
        before = seconds;
    }
    assert_eq!(predict(&facts(&[(1.0, 1.0); 3], 0.0)).seconds, 0.0);
}

#[test]
fn who_has_more_memory_gets_a_larger_range() {
    let mut unlike = facts(&[(20.0 * MB, 1e9); 4], 200.0 * MB);
    unlike.nodes[2..].iter_mut().for_each(|node| node.memory_bytes = 160 << 20);
    let found = best(unlike.clone(), false);
    let (before, after) = (predict(&unlike), predict(&found));
    assert!(before.passes == 2 && before.nodes[0].spilled_bytes == 0 && before.nodes[3].spilled_bytes > 0);
    assert!(after.seconds * 1.1 <= before.seconds, "{} of {}", after.seconds, before.seconds);
    assert!(
        found.nodes[0].range_bytes > 210_000_000 && found.nodes[3].range_bytes < 190_000_000,
        "{found:?}"
    );
    // The rivers of all nodes have the memory that the node with the least can give.
    let spilled = |memory: u64| {
        let mut all = facts(&[(20.0 * MB, 1e9); 2], 400.0 * MB);
        all.nodes[0].memory_bytes = 256 << 20;
        all.nodes[1].memory_bytes = memory;
        predict(&all).nodes[1].spilled_bytes
    };
    assert_eq!(spilled(256 << 20) - spilled(356 << 20), (100 << 20) * 65 / 100);
}

/// The minute sort's disks: half of the nodes read and write 55 where the others do 17.
fn minutesort() -> Facts {
    facts(&[(20.0 * MB, 1e9), (20.0 * MB, 1e9), (6.2 * MB, 1e9), (6.2 * MB, 1e9)], 100.0 * MB)
}

#[test]
fn shares_follow_the_disks_where_disks_limit() {
    let (equal, found) = (minutesort(), best(minutesort(), false));
    let (slow, fast) = (predict(&equal).seconds, predict(&found).seconds);
    // All disks together read and write 52.4 MB/s.
    assert!(close(slow, 200.0 / 6.2) && fast < 1.06 * 800.0 / 52.4, "{slow} {fast}: {found:?}");
    for node in &found.nodes {
        let ratio = node.rates.hardware.read_bytes_per_second / (52.4 * MB) * 400.0 * MB;
        assert!((node.read_bytes as f64 / ratio - 1.0).abs() < 0.1, "{found:?}");
        assert!((node.range_bytes as f64 / ratio - 1.0).abs() < 0.1, "{found:?}");
    }
    let sum: u64 = found.nodes.iter().map(|node| node.range_bytes).sum();
    assert!(sum.abs_diff(400_000_000) < 10, "{sum}");
    // If each node has its own input, only ranges can change.
    let own = best(minutesort(), true);
    assert!(own.nodes.iter().all(|node| node.read_bytes == 100_000_000), "{own:?}");
    assert!(own.nodes[0].range_bytes > 2 * own.nodes[2].range_bytes, "{own:?}");
}

#[test]
fn nearly_equal_nodes_keep_equal_shares() {
    let mut noisy = facts(&[(20.0 * MB, 12.5 * MB); 6], 100.0 * MB);
    for (i, node) in noisy.nodes.iter_mut().enumerate() {
        node.rates.hardware.read_bytes_per_second *= 1.0 + 0.01 * i as f64;
    }
    assert_eq!(best(noisy.clone(), false), noisy);
    let alone = facts(&[(20.0 * MB, 0.0)], 100.0 * MB);
    assert_eq!(best(alone.clone(), false), alone);
    let nothing = facts(&[(20.0 * MB, 1.0), (1.0 * MB, 1.0)], 0.0);
    assert_eq!(best(nothing.clone(), false), nothing);
}

#[test]
fn spilling_is_weighed_against_slower_disks() {
    let mut little = minutesort();
    // Room for 115 MB: the fast nodes' ranges would be of 153.
    little.nodes.iter_mut().for_each(|node| node.memory_bytes = 221 << 20);
    let room = little.all().room(&little.nodes[0]);
    assert!((100.0 * MB..140.0 * MB).contains(&room), "{room}");
    let found = best(little.clone(), false);
    let at = |fast: u64, slow: u64| {
        let mut shares = found.clone();
        shares
            .nodes
            .iter_mut()
            .zip([fast, fast, slow, slow])
            .for_each(|(node, range)| node.range_bytes = range);
        predict(&shares)
    };
    let (found, fits, disks) = (predict(&found), at(120_000_000, 80_000_000), at(153_000_000, 47_000_000));
    assert!(found.seconds < predict(&little).seconds / 1.3, "{found:?}");
    assert!(found.seconds <= 1.01 * fits.seconds.min(disks.seconds), "{} {fits:?} {disks:?}", found.seconds);
    assert!(found.nodes[0].spilled_bytes < disks.nodes[0].spilled_bytes, "{found:?}");
}

#[test]
fn a_thousand_simulated_nodes_are_limited_by_their_links_or_disks() {
    let asked = Simulated {
        nodes: 1000,
        disk_bytes_per_second: 2e9,
        link_bytes_per_second: 12.5e9,
        data_bytes: Some(100_000_000_000_000),
        cores: Some(1000),
        ..Simulated::default()
    };
    let told = |asked: &Simulated| predict(&simulate(asked, Layout::Fixed(100), Some(512 << 30)).unwrap());
    let plan = told(&asked);
    assert_eq!((plan.nodes.len(), plan.passes), (1000, 1));
    // 100 GB of each node at 2 GB/s, read and written.
    assert!(plan.seconds > 100.0 && plan.stages[2].bottleneck == "all disks", "{:?}", plan.stages);
    let narrow = Simulated { link_bytes_per_second: 125e6, ..asked };
    assert_eq!(told(&narrow).stages[1].bottleneck, "all links");
    let refused = |asked| simulate(&asked, Layout::Lines, None).unwrap_err().to_string();
    assert!(refused(Simulated { nodes: 0, ..asked }).contains("0 simulated nodes"));
    assert!(refused(Simulated { memory_bytes: Some(1 << 20), ..asked }).contains("too small"));
}

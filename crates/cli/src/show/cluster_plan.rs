//! The plan of a sort on several nodes, and the result of a probe of them.

use thalweg_api::{
    ClusterPlan, ExchangeReport, NodePlan, NodeRates, NodeRole, ProbeReport, RatesFrom, Schedule,
};
use thalweg_base::clock::date;
use thalweg_base::units::{Bytes, Count};

use super::columns::{asked, columns, labelled, rate, seconds, traffic};

/// The plan: the stages with their predicted times and the reasons, the work of each node, and the rates that it uses.
pub(crate) fn cluster_plan(plan: &ClusterPlan) -> String {
    let pass = if plan.passes == 1 { "pass" } else { "passes" };
    let mut text = format!(
        "plan to sort {} bytes on {} in {}: {}\n",
        Count(plan.input_bytes),
        counted(plan.nodes.len()),
        seconds(plan.seconds),
        rate(plan.input_bytes, plan.seconds)
    );
    text += &labelled("method", &format!("each its range of the keys, {} {pass}", plan.passes));
    text += &labelled("memory", &memory(&plan.nodes));
    text += &labelled("records", &format!("of {} bytes", Count(plan.record_bytes.into())));
    let heads = ["stages", "should take", "read", "cross", "written", "limited by"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(plan.stages.iter().map(|stage| {
        let bytes = [stage.read_bytes, stage.crossing_bytes, stage.written_bytes].map(traffic);
        let [read, cross, written] = bytes;
        vec![
            format!("  {}", stage.name),
            seconds(stage.seconds),
            read,
            cross,
            written,
            stage.bottleneck.clone(),
        ]
    }));
    text += &columns(&rows);
    text += &labelled("limit", &plan.bottleneck);
    text += &nodes(&plan.nodes);
    if let Some(trunk) = plan.trunk_bytes_per_second {
        text += &labelled(
            "trunk",
            &format!("{}/s between the halves of the hosts, each way", traffic(trunk as u64)),
        );
    }
    text + &labelled("rates", &origin(plan)) + &asked(&plan.asked)
}

fn memory(nodes: &[NodePlan]) -> String {
    let all = || nodes.iter().map(|node| node.memory_bytes);
    let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    match least == most {
        true => format!("{} for the share of each node", Bytes(least)),
        false => format!("{} to {} for the shares of the nodes", Bytes(least), Bytes(most)),
    }
}

fn counted(nodes: usize) -> String {
    format!("{} {}", Count(nodes as u64), if nodes == 1 { "node" } else { "nodes" })
}

fn origin(plan: &ClusterPlan) -> String {
    let measured = plan.nodes.iter().map(|node| node.rates.hardware.measured_at_seconds).min().unwrap_or(0);
    match plan.rates_from {
        RatesFrom::Probe => format!("measured by cluster probe, {}", date(measured)),
        RatesFrom::Now => {
            "measured now, in short; thalweg cluster probe takes longer, and the nodes keep what it finds"
                .into()
        }
        RatesFrom::Simulated => "as they were typed; cores are as fast as this machine's".into(),
    }
}

const RATES: [&str; 7] = ["disk: reads", "writes", "both", "link: sends", "receives", "cores", "sort"];

/// The rates of a node: its disk, its link, and the records that all its cores distribute and sort in a second.
fn rates(rates: &NodeRates) -> [String; 7] {
    let hardware = &rates.hardware;
    let bytes = |rate: f64| if rate > 0.0 { format!("{}/s", traffic(rate as u64)) } else { "-".into() };
    let [distribute, sort] = [hardware.distribute_records_per_second, hardware.sort_records_per_second];
    // The cores distribute and sort one after the other.
    let records = f64::from(hardware.cores) / (1.0 / distribute + 1.0 / sort);
    [
        bytes(hardware.read_bytes_per_second),
        bytes(hardware.write_bytes_per_second),
        bytes(hardware.mixed_bytes_per_second),
        bytes(rates.send_bytes_per_second),
        bytes(rates.receive_bytes_per_second),
        hardware.cores.to_string(),
        format!("{}/s", Count(records as u64)),
    ]
}

/// The nodes, with equal ones in one row.
fn nodes(nodes: &[NodePlan]) -> String {
    let heads = ["nodes", "role", "read", "range", "spilled"].iter().chain(&RATES);
    let mut rows = vec![heads.map(|head| head.to_string()).collect::<Vec<String>>()];
    let alike = |a: &NodePlan, b: &NodePlan| {
        NodePlan { host: String::new(), ..a.clone() } == NodePlan { host: String::new(), ..b.clone() }
    };
    for group in nodes.chunk_by(alike) {
        let name = match group {
            [one] => format!("  {}", one.host),
            [first, .., last] => format!("  {} to {}", first.host, last.host),
            [] => continue,
        };
        let node = &group[0];
        let role = match node.role {
            NodeRole::Io => "io",
            NodeRole::Sort => "sort",
            NodeRole::Both => "both",
            NodeRole::Spare => "spare",
        };
        let mut row = vec![name, role.to_string()];
        row.extend([node.read_bytes, node.range_bytes, node.spilled_bytes].map(traffic));
        row.extend(rates(&node.rates));
        rows.push(row);
    }
    columns(&rows)
}

/// The results of a probe for each host.
pub(crate) fn probe(report: &ProbeReport) -> String {
    let heads = ["hosts", "memory"].iter().chain(&RATES);
    let mut rows = vec![heads.map(|head| head.to_string()).collect::<Vec<String>>()];
    for host in &report.hosts {
        let mut row =
            vec![format!("  {}", host.host), Bytes(host.rates.memory_bytes >> 20 << 20).to_string()];
        row.extend(rates(&host.rates));
        rows.push(row);
    }
    let trunk = report.hosts.iter().find_map(|host| host.rates.trunk_bytes_per_second);
    let trunk = trunk.map(|trunk| {
        labelled("trunk", &format!("{}/s between the halves of the hosts, each way", traffic(trunk as u64)))
    });
    let all = format!("probed {} in {}\n", counted(report.hosts.len()), seconds(report.seconds));
    all + &columns(&rows) + &trunk.unwrap_or_default()
}

/// The duration of an exchange, and the rate at which each host sent.
pub(crate) fn exchange(report: &ExchangeReport) -> String {
    let mut all = report.seconds.clone();
    all.sort_by(f64::total_cmp);
    let (median, bytes) = (all[all.len() / 2], report.bytes * (report.hosts.len() as u64 - 1));
    let order = match report.schedule {
        Schedule::Together => "to all at once",
        Schedule::Same => "everybody from the first host on",
        Schedule::Shifted => "each from the host behind its own on",
        Schedule::Paced => "each from the host behind its own on, to the next when one has everything",
    };
    format!(
        "{} exchanged {} between each two in {}\n",
        counted(report.hosts.len()),
        traffic(report.bytes),
        seconds(median)
    ) + &labelled("rate", &format!("each sends {}", rate(bytes, median)))
        + &labelled(
            "rounds",
            &format!("{}, {} to {}", all.len(), seconds(all[0]), seconds(all[all.len() - 1])),
        )
        + &labelled("order", order)
}

#[cfg(test)]
mod tests {
    use thalweg::Layout;
    use thalweg::model::{Simulated, predict, simulate};

    use super::*;

    #[test]
    fn an_exchange_is_told_by_its_median() {
        let report = ExchangeReport {
            hosts: ["n1", "n2", "n3"].map(String::from).to_vec(),
            bytes: 2_000_000,
            schedule: Schedule::Together,
            seconds: vec![0.5, 0.4, 0.9],
        };
        let told = exchange(&report);
        let lines: Vec<String> =
            told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "3 nodes exchanged 2.00 MB between each two in 0.50 s",
            "rate each sends 8.00 MB/s",
            "rounds 3, 0.40 s to 0.90 s",
            "order to all at once",
        ];
        assert_eq!(lines, expected, "{told}");
    }

    #[test]
    fn a_plan_for_a_cluster_is_told_in_tables() {
        let asked = Simulated {
            nodes: 4,
            disk_bytes_per_second: 20e6,
            link_bytes_per_second: 12.5e6,
            memory_bytes: Some(1 << 30),
            data_bytes: Some(200_000_000),
            ..Simulated::default()
        };
        let mut facts = simulate(&asked, Layout::Fixed(100), None).unwrap();
        for node in &mut facts.nodes {
            let hardware = &mut node.rates.hardware;
            (hardware.cores, hardware.distribute_records_per_second, hardware.sort_records_per_second) =
                (2, 1e7, 1e7);
        }
        facts.nodes[3].rates.memory_bytes += 1;
        let told = cluster_plan(&predict(&facts));
        let lines: Vec<String> =
            told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let node = "both 50 MB 50 MB 0 B 20 MB/s 20 MB/s 20 MB/s 12 MB/s 12 MB/s 2 10 000 000/s";
        let expected = [
            "plan to sort 200 000 000 bytes on 4 nodes in 5.63 s: 36 MB/s",
            "method each its range of the keys, 1 pass",
            "memory 1 GiB for the share of each node",
            "records of 100 bytes",
            "stages should take read cross written limited by",
            "sample 0.050 s 4.00 MB 0 B 0 B all disks",
            "read+river 3.05 s 200 MB 150 MB 0 B all links",
            "sort+write 2.53 s 0 B 0 B 200 MB all disks",
            "limit read+river, all links",
            "nodes role read range spilled disk: reads writes both link: sends receives cores sort",
            &format!("n1 to n3 {node}"),
            &format!("n4 {node}"),
            "rates as they were typed; cores are as fast as this machine's",
        ];
        assert_eq!(lines, expected, "{told}");
    }
}

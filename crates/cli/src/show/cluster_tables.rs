//! Tables on the nodes of a cluster.

use std::collections::BTreeSet;

use thalweg_api::{TableEntry, TableGroup, TableList, TableLoaded, TableMulticast, TableShare, TableStatus};
use thalweg_base::units::{Bytes, Count};

use super::columns::{columns, counted};

/// A line for each table, and for each that is being dropped.
pub(crate) fn table_list(list: &TableList) -> String {
    let dropping = |entry: &TableEntry| format!("{}: is being dropped\n", entry.name);
    table_lines(&list.tables) + &list.dropping.iter().map(dropping).collect::<String>()
}

/// A line for each table.
pub(crate) fn table_lines(tables: &[TableEntry]) -> String {
    let line = |TableEntry { name, capacity, home, parity, .. }: &TableEntry| {
        let parity = parity.as_ref().map(|parity| format!(", parity {parity}")).unwrap_or_default();
        format!("{name}: buckets of up to {} records, the first on {home}{parity}\n", Count(*capacity))
    };
    tables.iter().map(line).collect()
}

/// The result of a load.
pub(crate) fn table_loaded(loaded: &TableLoaded) -> String {
    let TableLoaded { table, records, dropped, buckets, nodes } = loaded;
    let left_out = match dropped {
        0 => String::new(),
        dropped => format!("; {} with the key of another were left out", Count(*dropped)),
    };
    format!(
        "{table}: {} records in {} on {}{left_out}\n",
        Count(*records),
        counted(*buckets as usize, "bucket", "buckets"),
        counted(*nodes as usize, "node", "nodes")
    )
}

/// The status of a table: a row for each node, and what is lost or at risk.
pub(crate) fn table_status(status: &TableStatus) -> String {
    let TableStatus { table, records, bytes, nodes, unreachable, missing, groups } = status;
    let buckets: usize = nodes.iter().map(|share| share.buckets.len()).sum();
    let mut text = format!(
        "{}: {} records, {} of keys and values, {}\n",
        table.name,
        Count(*records),
        Bytes(*bytes),
        counted(buckets, "bucket", "buckets")
    );
    let mut rows = vec![["node", "buckets", "records", "bytes", "memory", "of"].map(String::from).to_vec()];
    rows.extend(nodes.iter().map(|share| {
        let TableShare { node, buckets, memory_used_bytes, memory_bytes, .. } = share;
        vec![
            node.clone(),
            buckets.len().to_string(),
            Count(buckets.iter().map(|bucket| bucket.records).sum()).to_string(),
            Bytes(buckets.iter().map(|bucket| bucket.bytes).sum()).to_string(),
            Bytes(*memory_used_bytes).to_string(),
            Bytes(*memory_bytes).to_string(),
        ]
    }));
    text += &columns(&rows);
    if table.index {
        let levels = nodes.iter().map(|share| share.index_pages.len()).max().unwrap_or_default();
        let pages: u64 = nodes.iter().flat_map(|share| &share.index_pages).sum();
        text += &format!(
            "index: {} on {}\n",
            counted(pages as usize, "page", "pages"),
            counted(levels, "level", "levels")
        );
    }
    for share in nodes.iter().filter(|share| share.received_datagrams + share.dropped_datagrams > 0) {
        let (received, dropped) = (Count(share.received_datagrams), Count(share.dropped_datagrams));
        text += &format!("{}: {received} datagrams received, and {dropped} dropped\n", share.node);
    }
    for share in nodes {
        text += &share
            .multicast
            .as_ref()
            .map_or_else(String::new, |multicast| multicast_of(&share.node, multicast));
    }
    text.extend(unreachable.iter().map(|why| format!("NOT REACHED: {why}\n")));
    text.extend(
        missing.iter().map(|interval| format!("LOST, or on a node that was not reached: keys {interval}\n")),
    );
    text.extend(nodes.iter().flat_map(|share| &share.losses).map(|loss| format!("AT RISK: {loss}\n")));
    match &table.parity {
        None => text + "there are no copies: when a node fails, the records of its buckets are lost\n",
        // The lines above say what is lost.
        Some(_) if !missing.is_empty() => text,
        Some(parity) => text + &table_risk(parity, groups),
    }
}

/// What a node has received in the multicast group.
fn multicast_of(node: &str, TableMulticast { group, received, dropped, failed }: &TableMulticast) -> String {
    match failed {
        None => {
            let (received, dropped) = (Count(*received), Count(*dropped));
            format!("{node}: {received} multicast datagrams received in {group}, and {dropped} dropped\n")
        }
        Some(why) => {
            format!("{node}: NO MULTICAST: {why}; clients send requests for all nodes to each of them\n")
        }
    }
}

/// Which nodes may fail without loss.
fn table_risk(parity: &str, groups: &[TableGroup]) -> String {
    let nodes: BTreeSet<&str> =
        groups.iter().flat_map(|group| group.seats.iter().flatten().map(|seat| seat.node.as_str())).collect();
    let fatal: Vec<&str> = nodes
        .into_iter()
        .filter(|node| groups.iter().any(|group| spare_without(group, &[node]) < 0))
        .collect();
    let lost = groups.iter().filter(|group| spare_without(group, &[]) < 0).count();
    if lost > 0 {
        return format!(
            "AT RISK: too few buckets are left of {}; the keys that nobody serves are lost unless their nodes return\n",
            counted(lost, "group", "groups")
        );
    }
    if !fatal.is_empty() {
        return format!(
            "AT RISK, parity {parity}: keys are lost if one of these nodes fails now: {}\n",
            fatal.join(", ")
        );
    }
    match groups.iter().map(tolerates).min() {
        Some(2) => format!("parity {parity}: any two nodes may fail\n"),
        Some(1) => format!("parity {parity}: any node may fail, but only one at a time\n"),
        _ => format!("AT RISK, parity {parity}: the registrar knows no groups of this table\n"),
    }
}

/// Whether as many nodes may fail as the table's parity says, and all keys are there.
pub(crate) fn is_table_safe(status: &TableStatus) -> bool {
    let shape = status.table.parity.as_deref().and_then(|parity| parity.split_once('+'));
    let most = shape.and_then(|(_, most)| most.parse().ok()).unwrap_or(usize::MAX);
    let tolerated = status.groups.iter().map(tolerates).min().unwrap_or_default();
    status.missing.is_empty() && tolerated >= most
}

/// How many complete parity buckets a group has beyond those that its lost data buckets need, without some nodes.
fn spare_without(group: &TableGroup, without: &[&str]) -> i64 {
    let seats = group.seats.iter().flatten();
    seats.fold(0, |spare, seat| {
        let is_there = seat.is_complete && !without.contains(&seat.node.as_str());
        spare + i64::from(seat.is_parity && is_there) - i64::from(!seat.is_parity && !is_there)
    })
}

/// How many nodes may fail at once, as far as two.
fn tolerates(group: &TableGroup) -> usize {
    let nodes: Vec<&str> = group.seats.iter().flatten().map(|seat| seat.node.as_str()).collect();
    let survives = |without: &[&str]| spare_without(group, without) >= 0;
    let any_two = nodes.iter().all(|a| nodes.iter().all(|b| survives(&[*a, *b])));
    if any_two { 2 } else { usize::from(nodes.iter().all(|node| survives(&[*node]))) }
}

#[cfg(test)]
mod tests {
    use thalweg_api::{TableBucket, TableSeat};

    use super::*;

    #[test]
    fn what_is_lost_is_said() {
        let table = TableEntry {
            name: "events".into(),
            id: "1".into(),
            capacity: 50_000,
            capacity_bytes: 1,
            home: "n1".into(),
            form: None,
            index: true,
            kind: None,
            parity: None,
        };
        let bucket = TableBucket {
            from: String::new(),
            to: Some("6d".into()),
            epoch: 2,
            records: 12,
            bytes: 1200,
            is_moving: false,
        };
        let multicast =
            TableMulticast { group: "239.255.1.2:20480".into(), received: 10, dropped: 1, failed: None };
        let share = TableShare {
            node: "n1".into(),
            buckets: vec![bucket],
            memory_used_bytes: 4096,
            memory_bytes: 1 << 30,
            last_move: None,
            seats: Vec::new(),
            index_pages: vec![2, 1],
            losses: Vec::new(),
            received_datagrams: 1000,
            dropped_datagrams: 2,
            multicast: Some(multicast),
        };
        let status = TableStatus {
            table,
            records: 12,
            bytes: 1200,
            nodes: vec![share],
            unreachable: vec!["n2: connection refused".into()],
            missing: vec!["m..".into()],
            groups: Vec::new(),
        };
        assert_eq!(
            table_status(&status),
            "\
events: 12 records, 1.17 KiB of keys and values, 1 bucket
node  buckets  records     bytes  memory     of
n1          1       12  1.17 KiB   4 KiB  1 GiB
index: 3 pages on 2 levels
n1: 1 000 datagrams received, and 2 dropped
n1: 10 multicast datagrams received in 239.255.1.2:20480, and 1 dropped
NOT REACHED: n2: connection refused
LOST, or on a node that was not reached: keys m..
there are no copies: when a node fails, the records of its buckets are lost
"
        );
    }

    #[test]
    fn which_nodes_may_fail_is_said() {
        let seat = |node: &str, is_parity: bool, is_complete: bool| {
            Some(TableSeat { node: node.into(), incarnation: 1, is_parity, is_complete })
        };
        let group = |seats: &[Option<TableSeat>]| TableGroup { id: 1, seats: seats.to_vec() };
        let (a, b) = (seat("n1", false, true), seat("n2", false, true));
        let (p, q) = (seat("n3", true, true), seat("n4", true, true));
        let sound = group(&[a.clone(), b.clone(), p.clone(), q.clone()]);
        let shown = |groups: &[TableGroup]| table_risk("2+2", groups);
        assert_eq!(shown(std::slice::from_ref(&sound)), "parity 2+2: any two nodes may fail\n");
        let no_second = group(&[a.clone(), b.clone(), p.clone(), seat("n4", true, false)]);
        assert_eq!(shown(&[sound, no_second]), "parity 2+2: any node may fail, but only one at a time\n");
        let shared = group(&[a.clone(), seat("n1", false, true), p.clone(), None]);
        assert_eq!(
            shown(&[shared]),
            "AT RISK, parity 2+2: keys are lost if one of these nodes fails now: n1\n"
        );
        let lost = group(&[a, seat("n2", false, false), seat("n3", true, false), None]);
        assert!(shown(&[lost]).starts_with("AT RISK: too few buckets are left of 1 group;"));
    }
}

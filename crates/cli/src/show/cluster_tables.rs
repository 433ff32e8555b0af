//! Tables on the nodes of a cluster.

use thalweg_api::{TableEntry, TableLoaded, TableShare, TableStatus};
use thalweg_base::units::{Bytes, Count};

use super::columns::{columns, counted};

/// A line for each table.
pub(crate) fn table_list(tables: &[TableEntry]) -> String {
    let line = |TableEntry { name, capacity, home, .. }: &TableEntry| {
        format!("{name}: buckets of up to {} records, the first on {home}\n", Count(*capacity))
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
    let TableStatus { table, records, bytes, nodes, unreachable, missing } = status;
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
    for share in nodes.iter().filter(|share| share.received_datagrams + share.dropped_datagrams > 0) {
        let (received, dropped) = (Count(share.received_datagrams), Count(share.dropped_datagrams));
        text += &format!("{}: {received} datagrams received, and {dropped} dropped\n", share.node);
    }
    text.extend(unreachable.iter().map(|why| format!("NOT REACHED: {why}\n")));
    text.extend(
        missing.iter().map(|interval| format!("LOST, or on a node that was not reached: keys {interval}\n")),
    );
    text.extend(nodes.iter().flat_map(|share| &share.losses).map(|loss| format!("AT RISK: {loss}\n")));
    text + "there are no copies: when a node fails, the records of its buckets are lost\n"
}

#[cfg(test)]
mod tests {
    use thalweg_api::TableBucket;

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
            kind: None,
        };
        let bucket = TableBucket {
            from: String::new(),
            to: Some("6d".into()),
            epoch: 2,
            records: 12,
            bytes: 1200,
            is_moving: false,
        };
        let share = TableShare {
            node: "n1".into(),
            buckets: vec![bucket],
            memory_used_bytes: 4096,
            memory_bytes: 1 << 30,
            last_move: None,
            losses: Vec::new(),
            received_datagrams: 1000,
            dropped_datagrams: 2,
        };
        let status = TableStatus {
            table,
            records: 12,
            bytes: 1200,
            nodes: vec![share],
            unreachable: vec!["n2: connection refused".into()],
            missing: vec!["m..".into()],
        };
        assert_eq!(
            table_status(&status),
            "\
events: 12 records, 1.17 KiB of keys and values, 1 bucket
node  buckets  records     bytes  memory     of
n1          1       12  1.17 KiB   4 KiB  1 GiB
n1: 1 000 datagrams received, and 2 dropped
NOT REACHED: n2: connection refused
LOST, or on a node that was not reached: keys m..
there are no copies: when a node fails, the records of its buckets are lost
"
        );
    }
}

//! The part of a receipt that shows the files of a partition.

use thalweg_api::PartitionReceipt;

use super::columns::{columns, labelled, records, traffic};

/// If there are more parts, only the smallest and the largest are shown.
const PARTS_SHOWN: usize = 16;

/// The size of each part, and its share of the whole.
pub(crate) fn partition(partition: &PartitionReceipt) -> String {
    let all: u64 = partition.parts.iter().map(|part| part.file_bytes).sum();
    let spread = format!(
        "{} by {}, the largest {:.1} % above the mean{}",
        partition.parts.len(),
        partition.pick,
        partition.spread * 100.0,
        match partition.sampled_bytes {
            0 => String::new(),
            bytes => format!("; {} were sampled", traffic(bytes)),
        }
    );
    let mut parts: Vec<_> = partition.parts.iter().collect();
    if parts.len() > PARTS_SHOWN {
        parts.sort_by_key(|part| part.file_bytes);
        parts = vec![parts[0], parts[parts.len() - 1]];
    }
    let row = |part: &thalweg_api::PartReceipt| {
        let share = part.file_bytes as f64 / all.max(1) as f64 * 100.0;
        vec![
            format!("  {}", part.path),
            records(part.records),
            traffic(part.file_bytes),
            format!("{share:.1} %"),
        ]
    };
    let rows: Vec<Vec<String>> = parts.into_iter().map(row).collect();
    labelled("parts", &spread) + &columns(&rows)
}

#[cfg(test)]
mod tests {
    use thalweg_api::PartReceipt;

    use super::*;

    #[test]
    fn a_partition_tells_each_share_and_of_many_the_extremes() {
        let part = |n: u64| PartReceipt {
            path: format!("p{n}"),
            records: 10 + n,
            file_bytes: 1000 + 100 * n,
            checksum: 0,
        };
        let mut sample = PartitionReceipt {
            pick: "range".into(),
            parts: vec![part(0), part(1)],
            spread: 0.048,
            sampled_bytes: 500,
        };
        let text = partition(&sample);
        let end = "\
parts     2 by range, the largest 4.8 % above the mean; 500 B were sampled
  p0  10 records  1.00 kB  47.6 %
  p1  11 records  1.10 kB  52.4 %
";
        assert_eq!(text, end);
        sample.parts = (0..40).map(part).collect();
        let text = partition(&sample);
        assert!(text.contains("  p0 ") && text.contains("  p39 ") && !text.contains("  p7 "), "{text}");
    }
}

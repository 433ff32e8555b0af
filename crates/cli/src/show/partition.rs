//! The receipt of a partition.

use thalweg_api::PartitionReceipt;

use super::columns::{columns, labelled, records, traffic};
use super::receipt;

/// More parts than this are told by the smallest and the largest.
const PARTS_SHOWN: usize = 16;

/// The receipt of the whole, then each part's share.
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
    receipt(&partition.receipt) + &labelled("parts", &spread) + &columns(&rows)
}

#[cfg(test)]
mod tests {
    use thalweg_api::{IoReceipt, MemoryReceipt, PartReceipt, Proof, Receipt};

    use super::*;

    #[test]
    fn a_partition_tells_each_share_and_of_many_the_extremes() {
        let proof = Proof { records: 30, bytes: 3000, checksum: 7, ..Proof::default() };
        let receipt = Receipt {
            sides: None,
            verb: "partition".into(),
            input: proof,
            output: proof,
            dropped: Proof::default(),
            input_file_bytes: 3000,
            output_file_bytes: 3000,
            proved: true,
            holds: true,
            seconds: 1.0,
            cpu_seconds: 0.5,
            stages: Vec::new(),
            io: IoReceipt { backend: "uring".into(), direct_output: true, ..IoReceipt::default() },
            memory: MemoryReceipt::default(),
            scratch_peak_bytes: 0,
            resumed_bytes: 0,
            resumed_output_bytes: 0,
            plan: None,
            nodes: Vec::new(),
            failed: Vec::new(),
        };
        let part = |n: u64| PartReceipt {
            path: format!("p{n}"),
            records: 10 + n,
            file_bytes: 1000 + 100 * n,
            checksum: 0,
        };
        let mut sample = PartitionReceipt {
            receipt,
            pick: "range".into(),
            parts: vec![part(0), part(1)],
            spread: 0.048,
            sampled_bytes: 500,
        };
        let text = partition(&sample);
        assert!(text.starts_with("parted 30 records, 3 000 bytes, in 1.00 s"), "{text}");
        let end = "\
parts     2 by range, the largest 4.8 % above the mean; 500 B were sampled
  p0  10 records  1.00 kB  47.6 %
  p1  11 records  1.10 kB  52.4 %
";
        assert!(text.ends_with(end) && text.contains("law       out = in: holds\n"), "{text}");
        sample.parts = (0..40).map(part).collect();
        let text = partition(&sample);
        assert!(text.contains("  p0 ") && text.contains("  p39 ") && !text.contains("  p7 "), "{text}");
    }
}

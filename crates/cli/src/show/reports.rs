//! The results of `check` and `doctor`.

use thalweg_api::{Check, DoctorReport, NodeCheck, Verdict};

use super::columns::columns;
use super::receipt::grown;

/// The lines of the Sort Benchmark's validator, then the checksum that receipts show, unless the input is merged
/// summaries, for which it is unknown. An empty input, where that validator would fail, gets a line of its own.
pub(crate) fn check(check: &Check) -> String {
    let mut text = String::new();
    if let Some(first) = check.first_unordered {
        text += &format!("First unordered record is record {first}\n");
    }
    text += &format!("Records: {}\nChecksum: {:x}\n", check.proof.records, check.crc_sum);
    if check.ordered {
        text += &format!("Duplicate keys: {}\nSUCCESS - all records are in order\n", check.proof.duplicates);
    } else {
        text += &format!("ERROR - there are {} unordered records\n", check.proof.unordered);
    }
    if check.proof.checksum != 0 {
        text += &format!("XXH3 sum (as in a receipt): {:032x}\n", check.proof.checksum);
    }
    if check.proof.records == 0 {
        text += "The input is empty\n";
    }
    text += &check.grown.as_ref().map_or_else(String::new, grown);
    text + &nodes(&check.nodes)
}

/// A row for each node.
fn nodes(nodes: &[NodeCheck]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let heads = ["nodes", "from record", "records", "unordered", "XXH3 sum"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(nodes.iter().map(|NodeCheck { host, from, proof }| {
        let sum = format!("{:032x}", proof.checksum);
        let [from, records, unordered] = [*from, proof.records, proof.unordered].map(|n| n.to_string());
        vec![format!("  {host}"), from, records, unordered, sum]
    }));
    columns(&rows)
}

/// A line for each finding, with its remedy under it.
pub(crate) fn doctor(report: &DoctorReport) -> String {
    let width = report.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let verdict = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Weak => "weak",
            Verdict::Missing => "MISSING",
        };
        text += &format!("{verdict:<8} {:<width$}  {}\n", finding.name, finding.seen);
        if !finding.remedy.is_empty() {
            text += &format!("{:9}{:width$}  remedy: {}\n", "", "", finding.remedy);
        }
    }
    let lacking = report.findings.iter().filter(|finding| finding.verdict != Verdict::Good).count();
    text + &format!("{} things looked at, {lacking} to remedy\n", report.findings.len())
}

#[cfg(test)]
mod tests {
    use thalweg_api::{Finding, Proof};

    use super::*;

    fn sample() -> Check {
        let proof = Proof { records: 10, bytes: 1000, checksum: 1, unordered: 0, duplicates: 2 };
        let nodes = Vec::new();
        Check {
            proof,
            crc_sum: 0x55fea8a1a,
            first_unordered: None,
            ordered: true,
            grown: None,
            nodes,
            seconds: 0.1,
        }
    }

    #[test]
    fn a_check_reads_as_the_reference_prints_it() {
        let ordered = "\
Records: 10
Checksum: 55fea8a1a
Duplicate keys: 2
SUCCESS - all records are in order
";
        let sum = "XXH3 sum (as in a receipt): 00000000000000000000000000000001\n";
        assert_eq!(check(&sample()), format!("{ordered}{sum}"));
        let mut merged = sample();
        merged.proof.checksum = 0;
        assert_eq!(check(&merged), ordered);
        let mut wrong = Check { ordered: false, first_unordered: Some(2), ..sample() };
        wrong.proof.unordered = 4;
        let unordered = "\
First unordered record is record 2
Records: 10
Checksum: 55fea8a1a
ERROR - there are 4 unordered records
";
        assert_eq!(check(&wrong), format!("{unordered}{sum}"));
    }

    #[test]
    fn each_node_has_a_row_that_says_where_its_records_begin() {
        let proof = Proof { records: 5, checksum: 0xab, unordered: 1, ..Proof::default() };
        let node = |host: &str, from| NodeCheck { host: host.into(), from, proof };
        let told = Check { nodes: vec![node("n1", 0), node("n2", 5)], ..sample() };
        let expected = "\
nodes  from record  records  unordered                          XXH3 sum
  n1             0        5          1  000000000000000000000000000000ab
  n2             5        5          1  000000000000000000000000000000ab
";
        assert_eq!(check(&told), check(&sample()) + expected);
    }

    #[test]
    fn an_empty_input_is_said_to_be_one() {
        let empty = Check { proof: Proof::default(), crc_sum: 0, ..sample() };
        assert!(check(&empty).starts_with("Records: 0\nChecksum: 0\n"));
        assert!(check(&empty).ends_with("SUCCESS - all records are in order\nThe input is empty\n"));
    }

    #[test]
    fn a_finding_that_is_not_good_has_its_remedy_under_it() {
        let finding = |name: &str, verdict, remedy: &str| Finding {
            name: name.into(),
            verdict,
            seen: "what was seen".into(),
            remedy: remedy.into(),
        };
        let findings = vec![
            finding("direct I/O", Verdict::Good, ""),
            finding("io_uring", Verdict::Missing, "sysctl kernel.io_uring_disabled=0"),
        ];
        let expected = "\
good     direct I/O  what was seen
MISSING  io_uring    what was seen
                     remedy: sysctl kernel.io_uring_disabled=0
2 things looked at, 1 to remedy
";
        assert_eq!(doctor(&DoctorReport { findings }), expected);
    }
}

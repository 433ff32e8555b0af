//! The plan of a sort.

use thalweg_api::Plan;
use thalweg_base::units::{Bytes, Count};

use super::columns::{asked, columns, labelled, rate, records, seconds, traffic};

/// The plan: the stages with their predicted times, the resources, and the rates that it uses.
pub(crate) fn plan(plan: &Plan) -> String {
    let pass = if plan.passes == 1 { "pass" } else { "passes" };
    let mut text = format!(
        "plan to sort {}, {} bytes, in {}: {}\n",
        if plan.records_estimated { about(plan.records) } else { records(plan.records) },
        Count(plan.input_bytes),
        seconds(plan.seconds),
        rate(plan.input_bytes, plan.seconds)
    );
    text += &labelled("method", &format!("{}, {} {pass}", plan.method, plan.passes));
    text += &labelled("memory", &format!("{} for the whole process", Bytes(plan.memory_bytes)));
    text += &labelled("scratch", &traffic(plan.scratch_bytes));
    let shape = format!(
        "{}, {}, blocks of {}, at most {}",
        counted(plan.ranges.into(), "range"),
        counted(plan.lanes.into(), "lane"),
        Bytes(plan.block_bytes),
        counted(plan.open_files.into(), "open file")
    );
    text += &labelled("shape", &shape);
    text += &stages(plan);
    text += &labelled("limit", &plan.bottleneck);
    text + &rates(plan) + &asked(&plan.asked)
}

/// An estimate: as many digits as it is worth.
fn about(count: u64) -> String {
    let unit = 10u64.pow(count.max(1).ilog10().saturating_sub(1));
    format!("about {}", records(count.div_ceil(unit) * unit))
}

/// `1 lane`, `2 lanes`.
fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", Count(count), if count == 1 { "" } else { "s" })
}

fn stages(plan: &Plan) -> String {
    let heads = ["stages", "should take", "read", "written", "limited by"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for stage in &plan.stages {
        rows.push(vec![
            format!("  {}", stage.name),
            seconds(stage.seconds),
            traffic(stage.read_bytes),
            traffic(stage.written_bytes),
            stage.bottleneck.clone(),
        ]);
    }
    columns(&rows)
}

fn rates(plan: &Plan) -> String {
    let rates = &plan.hardware;
    let disk = |rate: f64| format!("{}/s", traffic(rate as u64));
    let core = |rate: f64| Count(rate as u64);
    let read = disk(rates.read_bytes_per_second);
    let written = disk(rates.write_bytes_per_second);
    let mixed = disk(rates.mixed_bytes_per_second);
    let distributes = core(rates.distribute_records_per_second);
    let sorts = core(rates.sort_records_per_second);
    let origin = match rates.measured_bytes {
        0 => "assumed: nothing was measured on this machine lately".to_string(),
        bytes => format!("measured on this machine, with {} of records", traffic(bytes)),
    };
    labelled("rates", &format!("disk {read} read, {written} written, {mixed} both at once"))
        + &labelled("", &format!("a core distributes {distributes} and sorts {sorts} records/s"))
        + &labelled("", &origin)
}

#[cfg(test)]
mod tests {
    use thalweg_api::{Hardware, PlanStage};

    use super::*;

    #[test]
    fn a_plan_is_told_in_a_table() {
        let stage = |name: &str, bottleneck: &str| PlanStage {
            name: name.into(),
            read_bytes: 1_000_000_000,
            written_bytes: 800_000_000,
            seconds: 0.9,
            bottleneck: bottleneck.into(),
        };
        let sample = Plan {
            asked: ["sort", "a b", "-o", "it's"].map(String::from).to_vec(),
            method: "distribute".into(),
            passes: 2,
            input_bytes: 1_000_000_000,
            records: 10_000_000,
            records_estimated: false,
            block_bytes: 1 << 20,
            ranges: 8,
            lanes: 2,
            memory_bytes: 256 << 20,
            scratch_bytes: 800_000_000,
            open_files: 12,
            hardware: Hardware {
                measured_bytes: 20_000_000,
                measured_at_seconds: 1_700_000_000,
                cores: 2,
                read_bytes_per_second: 1.5e9,
                write_bytes_per_second: 1.4e9,
                mixed_bytes_per_second: 1.6e9,
                sync_seconds: 0.01,
                distribute_records_per_second: 2e7,
                sort_records_per_second: 1e7,
            },
            stages: vec![stage("read+distribute", "disk read+write"), stage("load+sort+write", "cpu")],
            seconds: 1.8,
            bottleneck: "read+distribute, disk read+write".into(),
        };
        let expected = "\
plan to sort 10 000 000 records, 1 000 000 000 bytes, in 1.80 s: 556 MB/s
method    distribute, 2 passes
memory    256 MiB for the whole process
scratch   800 MB
shape     8 ranges, 2 lanes, blocks of 1 MiB, at most 12 open files
stages             should take     read  written       limited by
  read+distribute       0.90 s  1.00 GB   800 MB  disk read+write
  load+sort+write       0.90 s  1.00 GB   800 MB              cpu
limit     read+distribute, disk read+write
rates     disk 1.50 GB/s read, 1.40 GB/s written, 1.60 GB/s both at once
          a core distributes 20 000 000 and sorts 10 000 000 records/s
          measured on this machine, with 20 MB of records
asked     sort 'a b' -o 'it'\\''s'
";
        assert_eq!(plan(&sample), expected);
        let lines = Plan { records_estimated: true, records: 1_234_567, ..sample.clone() };
        assert!(plan(&lines).starts_with("plan to sort about 1 300 000 records, "), "{}", plan(&lines));
        let alone = Plan { ranges: 1, lanes: 1, ..sample };
        assert!(plan(&alone).contains("shape     1 range, 1 lane, blocks of"), "{}", plan(&alone));
    }
}

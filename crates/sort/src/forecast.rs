//! The forecast: how long each stage of a sort takes, given its layout and the speed of the machine.
//!
//! Model (as in the HPVM MinuteSort paper, which measures the parts and models the whole): a stage is a pipeline of
//! equal pieces between the disk and the cores. The slower of the two determines its time; only one piece of the
//! faster one does not overlap.
//!
//! ```text
//! disk   [piece][piece][piece][piece]               seconds = slower + faster / pieces
//! cores         [pie]  [pie]  [pie]  [pie]
//! ```
//!
//! While the disk reads and writes at the same time, both move at the mixed rate; the rest moves at the rate of its
//! direction. Spilling ends before reading does, and loading overlaps with writing.
//! Invariant: this is a pure function. Stages have the same names and byte counts as in the receipt.
//! Non-goals: disks of different speed, the time of sampling, changes of the page cache during the sort.

use thalweg_api::{Hardware, Plan, PlanStage};

/// The record size for which rates are given.
const RATED_RECORD_BYTES: f64 = 100.0;
/// The fraction of the cost of distributing such a record that does not depend on its size. Measured on one core: 30
/// ns for records of 16 bytes, 103 ns for 100, 1,000 ns for 1,000.
const DISTRIBUTE_RECORD_SHARE: f64 = 0.35;
/// This fraction for sorting and gathering: 104 ns for records of 16 bytes, 110 ns for 100, 300 ns for 1,000.
const SORT_RECORD_SHARE: f64 = 0.85;

/// The properties of a sort that a forecast needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Bytes of all inputs.
    pub input_bytes: u64,
    /// Bytes of the inputs that are in the page cache.
    pub cached_bytes: u64,
    /// Records, or an upper estimate.
    pub records: u64,
    /// Whether it is an estimate.
    pub records_estimated: bool,
    /// Bytes that the first pass spills.
    pub excess_bytes: u64,
    /// Bytes that are distributed again, because memory is too small for enough ranges in one pass.
    pub again_bytes: u64,
    /// Bytes of a page, the unit of scratch I/O.
    pub page_bytes: u64,
    /// Bytes of a block, the unit of input and output I/O.
    pub transfer_bytes: u64,
    /// Ranges of the first pass.
    pub ranges: u64,
    /// Lanes.
    pub lanes: u64,
    /// The memory limit of the whole process.
    pub memory_bytes: u64,
    /// The peak of scratch space.
    pub scratch_bytes: u64,
    /// The maximum number of open files.
    pub open_files: u64,
    /// Whether the output is a pipe, a terminal or a device.
    pub output_is_stream: bool,
}

/// Forecasts a sort with this layout on this hardware.
pub fn forecast(facts: &Facts, hardware: &Hardware) -> Plan {
    assert!(facts.excess_bytes <= facts.input_bytes, "more is spilled than there is");
    assert!(facts.cached_bytes <= facts.input_bytes, "more is cached than there is");
    let mut stages = vec![distribute(facts, hardware)];
    if facts.again_bytes > 0 {
        stages.push(distribute_again(facts, hardware));
    }
    stages.push(write(facts, hardware));
    stages.push(sync(facts, hardware));
    let slowest = stages.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("there are stages");
    let passes = 1 + u32::from(facts.excess_bytes > 0) + u32::from(facts.again_bytes > 0);
    Plan {
        asked: Vec::new(),
        method: if passes == 1 { "in memory" } else { "distribute" }.to_string(),
        passes,
        input_bytes: facts.input_bytes,
        records: facts.records,
        records_estimated: facts.records_estimated,
        block_bytes: facts.transfer_bytes,
        ranges: facts.ranges as u32,
        lanes: facts.lanes as u32,
        memory_bytes: facts.memory_bytes,
        scratch_bytes: facts.scratch_bytes,
        open_files: facts.open_files as u32,
        hardware: *hardware,
        seconds: stages.iter().map(|stage| stage.seconds).sum(),
        bottleneck: format!("{}, {}", slowest.name, slowest.bottleneck),
        stages,
    }
}

/// The first pass reads the input and spills what does not fit.
fn distribute(facts: &Facts, hardware: &Hardware) -> PlanStage {
    let (read, written) = (facts.input_bytes, facts.excess_bytes);
    Work {
        name: "read+distribute",
        read_bytes: read,
        written_bytes: written,
        disk_read_bytes: read - facts.cached_bytes,
        disk_written_bytes: written,
        core_seconds: distribute_seconds(facts.records, read, hardware),
        lanes: facts.lanes,
        pieces: read.div_ceil(facts.transfer_bytes.max(1)),
    }
    .stage(hardware)
}

/// An optional pass between these two, from scratch to scratch.
fn distribute_again(facts: &Facts, hardware: &Hardware) -> PlanStage {
    let bytes = facts.again_bytes;
    let share = bytes as f64 / facts.input_bytes.max(1) as f64;
    Work {
        name: "distribute again",
        read_bytes: bytes,
        written_bytes: bytes,
        disk_read_bytes: bytes,
        disk_written_bytes: bytes,
        core_seconds: distribute_seconds((facts.records as f64 * share) as u64, bytes, hardware),
        lanes: facts.lanes,
        pieces: bytes.div_ceil(facts.page_bytes.max(1)),
    }
    .stage(hardware)
}

/// The last pass loads, sorts and writes range by range.
fn write(facts: &Facts, hardware: &Hardware) -> PlanStage {
    let (read, written) = (facts.excess_bytes, facts.input_bytes);
    Work {
        name: "load+sort+write",
        read_bytes: read,
        written_bytes: written,
        disk_read_bytes: read,
        disk_written_bytes: if facts.output_is_stream { 0 } else { written },
        core_seconds: sort_seconds(facts.records, written, hardware),
        lanes: facts.lanes,
        pieces: facts.ranges,
    }
    .stage(hardware)
}

fn sync(facts: &Facts, hardware: &Hardware) -> PlanStage {
    PlanStage {
        name: "sync".to_string(),
        read_bytes: 0,
        written_bytes: 0,
        seconds: if facts.output_is_stream { 0.0 } else { hardware.sync_seconds },
        bottleneck: "disk write".to_string(),
    }
}

/// The work of one stage.
struct Work {
    name: &'static str,
    /// Counted as in the receipt.
    read_bytes: u64,
    written_bytes: u64,
    /// Without bytes from the page cache.
    disk_read_bytes: u64,
    disk_written_bytes: u64,
    core_seconds: f64,
    lanes: u64,
    pieces: u64,
}

impl Work {
    fn stage(self, hardware: &Hardware) -> PlanStage {
        let disk = disk_seconds(self.disk_read_bytes, self.disk_written_bytes, hardware);
        // More lanes than cores only wait for each other.
        let lanes = self.lanes.min(u64::from(hardware.cores)).max(1);
        let cpu = self.core_seconds / lanes as f64;
        let bottleneck = match (self.disk_read_bytes > 0, self.disk_written_bytes > 0) {
            _ if cpu > disk => "cpu",
            (true, true) => "disk read+write",
            (_, false) => "disk read",
            (false, true) => "disk write",
        };
        PlanStage {
            name: self.name.to_string(),
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            seconds: disk.max(cpu) + disk.min(cpu) / self.pieces.max(1) as f64,
            bottleneck: bottleneck.to_string(),
        }
    }
}

/// Seconds that a disk needs to read and write these bytes, with as much overlap as possible.
pub fn disk_seconds(read_bytes: u64, written_bytes: u64, hardware: &Hardware) -> f64 {
    let Hardware { read_bytes_per_second: read, write_bytes_per_second: write, .. } = *hardware;
    // Two independent disks reach twice the rate of the slower one. A higher mixed rate is measurement noise.
    let mixed = hardware.mixed_bytes_per_second.min(2.0 * read.min(write));
    let both = read_bytes.min(written_bytes);
    2.0 * both as f64 / mixed + (read_bytes - both) as f64 / read + (written_bytes - both) as f64 / write
}

/// Core seconds to distribute these records.
pub fn distribute_seconds(records: u64, bytes: u64, hardware: &Hardware) -> f64 {
    rated_records(records, bytes, DISTRIBUTE_RECORD_SHARE) / hardware.distribute_records_per_second
}

/// Core seconds to sort and gather these records.
pub fn sort_seconds(records: u64, bytes: u64, hardware: &Hardware) -> f64 {
    rated_records(records, bytes, SORT_RECORD_SHARE) / hardware.sort_records_per_second
}

/// The number of 100-byte records that cost the same.
fn rated_records(records: u64, bytes: u64, record_share: f64) -> f64 {
    records as f64 * record_share + bytes as f64 / RATED_RECORD_BYTES * (1.0 - record_share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn hardware() -> Hardware {
        Hardware {
            measured_bytes: 20_000_000,
            measured_at_seconds: 1,
            cores: 2,
            read_bytes_per_second: 2e9,
            write_bytes_per_second: 1e9,
            mixed_bytes_per_second: 1.5e9,
            sync_seconds: 0.01,
            distribute_records_per_second: 1e7,
            sort_records_per_second: 8e6,
        }
    }

    fn facts(input_bytes: u64, excess_bytes: u64) -> Facts {
        Facts {
            input_bytes,
            records: input_bytes / 100,
            excess_bytes,
            page_bytes: 1 << 20,
            transfer_bytes: 1 << 20,
            ranges: (input_bytes / 12_000_000).max(1),
            lanes: 2,
            scratch_bytes: excess_bytes,
            open_files: 12,
            ..Facts::default()
        }
    }

    fn stage<'a>(plan: &'a Plan, name: &str) -> &'a PlanStage {
        plan.stages.iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn more_bytes_never_take_less_time() {
        for mixed in [0.5e9, 1.5e9, 9e9] {
            let hardware = Hardware { mixed_bytes_per_second: mixed, ..hardware() };
            let mut before = 0.0;
            for tenths in 0..200 {
                let input = GB / 10 * tenths;
                let seconds = forecast(&facts(input, input.saturating_sub(GB)), &hardware).seconds;
                assert!(seconds >= before, "{tenths} tenths: {seconds} < {before}");
                before = seconds;
            }
            let mut before = 0.0;
            for tenths in 0..=40 {
                let seconds = forecast(&facts(4 * GB, GB / 10 * tenths), &hardware).seconds;
                assert!(seconds >= before, "excess of {tenths} tenths: {seconds} < {before}");
                before = seconds;
            }
        }
    }

    #[test]
    fn the_slower_of_disk_and_cores_is_the_bottleneck() {
        let plan = forecast(&facts(10 * GB, 9 * GB), &hardware());
        assert_eq!(stage(&plan, "read+distribute").bottleneck, "disk read+write");
        assert_eq!(plan.bottleneck, "load+sort+write, disk read+write");
        let slow_cores = Hardware { sort_records_per_second: 1e6, ..hardware() };
        let plan = forecast(&facts(10 * GB, 9 * GB), &slow_cores);
        assert_eq!(plan.bottleneck, "load+sort+write, cpu");
        let fast_disk = Hardware {
            read_bytes_per_second: 50e9,
            write_bytes_per_second: 50e9,
            mixed_bytes_per_second: 50e9,
            ..hardware()
        };
        let plan = forecast(&facts(10 * GB, 9 * GB), &fast_disk);
        assert!(plan.stages[..2].iter().all(|stage| stage.bottleneck == "cpu"), "{plan:?}");
        let fits = forecast(&facts(GB, 0), &Hardware { read_bytes_per_second: 1e8, ..hardware() });
        assert_eq!(fits.bottleneck, "read+distribute, disk read");
    }

    #[test]
    fn nothing_takes_no_longer_than_a_sync() {
        let plan = forecast(&facts(0, 0), &hardware());
        assert_eq!((plan.passes, plan.scratch_bytes), (1, 0));
        assert_eq!(plan.seconds, 0.01);
        assert_eq!(plan.bottleneck, "sync, disk write");
        let none = forecast(&Facts::default(), &hardware());
        assert!(none.seconds.is_finite());
    }

    #[test]
    fn spilled_bytes_are_written_and_read_once() {
        let plan = forecast(&facts(10 * GB, 9 * GB), &hardware());
        assert_eq!((plan.method.as_str(), plan.passes), ("distribute", 2));
        let names: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["read+distribute", "load+sort+write", "sync"]);
        let bytes = |i: usize| (plan.stages[i].read_bytes, plan.stages[i].written_bytes);
        assert_eq!(bytes(0), (10 * GB, 9 * GB));
        assert_eq!(bytes(1), (9 * GB, 10 * GB));
        // 18 GB move both ways at 1.5 GB/s, and the last GB alone at 2 or 1 GB/s. The cores need 5.6 s in the first
        // stage and 6.25 s in the second, of which one piece does not overlap.
        assert!((plan.stages[0].seconds - 12.5).abs() < 0.01, "{plan:?}");
        assert!((plan.stages[1].seconds - 13.0).abs() < 0.01, "{plan:?}");
    }

    #[test]
    fn a_third_pass_reads_and_writes_everything_again() {
        let facts = Facts { again_bytes: 10 * GB, ..facts(10 * GB, 10 * GB) };
        let plan = forecast(&facts, &hardware());
        assert_eq!(plan.passes, 3);
        let again = stage(&plan, "distribute again");
        assert_eq!((again.read_bytes, again.written_bytes), (10 * GB, 10 * GB));
        assert_eq!(plan.stages.len(), 4);
    }

    #[test]
    fn cached_input_and_a_stream_need_no_disk() {
        let cached = Facts { cached_bytes: GB, ..facts(GB, 0) };
        let plan = forecast(&cached, &hardware());
        assert_eq!(stage(&plan, "read+distribute").bottleneck, "cpu");
        assert_eq!(stage(&plan, "read+distribute").read_bytes, GB, "the receipt counts them too");
        let to_pipe = forecast(&Facts { output_is_stream: true, ..facts(GB, 0) }, &hardware());
        assert_eq!(stage(&to_pipe, "load+sort+write").bottleneck, "cpu");
        assert_eq!(stage(&to_pipe, "sync").seconds, 0.0);
    }

    #[test]
    fn more_lanes_than_cores_do_not_help() {
        let seconds = |lanes| {
            let hardware = Hardware { sort_records_per_second: 1e6, ..hardware() };
            forecast(&Facts { lanes, ..facts(GB, 0) }, &hardware).seconds
        };
        assert!(seconds(2) < 0.6 * seconds(1));
        assert_eq!(seconds(2), seconds(16));
    }

    #[test]
    fn long_records_cost_more_than_short_ones_and_the_same_bytes_less() {
        let plan = |bytes: u64, records| forecast(&Facts { records, ..facts(bytes, 0) }, &hardware()).seconds;
        assert!(plan(GB, 1_000_000) < plan(GB, 10_000_000));
        assert!(plan(10 * GB, 10_000_000) > plan(GB, 10_000_000));
    }
}

//! The plan: what a run will do and need, predicted before it starts.

use serde::{Deserialize, Serialize};

/// Rates of this machine, assumed or measured with another amount of data than the plan's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Bytes of records that the cores' rates were measured on; 0 if nothing was measured and all rates
    /// are assumed.
    pub measured_bytes: u64,
    /// When it was measured, in seconds since the Unix epoch; 0 if it was not.
    pub measured_at_seconds: u64,
    /// Cores that can work at once.
    pub cores: u32,
    /// Bytes per second of large reads from the input's disk.
    pub read_bytes_per_second: f64,
    /// Bytes per second of large writes to the scratch or output disk.
    pub write_bytes_per_second: f64,
    /// Bytes per second, read and written together, when both happen at once.
    pub mixed_bytes_per_second: f64,
    /// Seconds to make durable what was written.
    pub sync_seconds: f64,
    /// Records of 100 bytes that one core distributes per second.
    pub distribute_records_per_second: f64,
    /// Records of 100 bytes that one core sorts and gathers per second.
    pub sort_records_per_second: f64,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStage {
    /// The stage's name; the receipt uses the same.
    pub name: String,
    /// Bytes it will read.
    pub read_bytes: u64,
    /// Bytes it will write.
    pub written_bytes: u64,
    /// Seconds it should take.
    pub seconds: f64,
    /// What limits it: `disk read`, `disk write`, `disk read+write`, `cpu`.
    pub bottleneck: String,
}

/// What a sort will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How the work is done: `in memory`, `distribute`, `runs and merge`.
    pub method: String,
    /// How many times every byte that does not fit is read: 1 if all fits.
    pub passes: u32,
    /// Input bytes.
    pub input_bytes: u64,
    /// Records, exact for fixed layouts, estimated from a sample for lines.
    pub records: u64,
    /// Whether the number of records is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub records_estimated: bool,
    /// Bytes of a block, the unit of traffic with inputs and output.
    pub block_bytes: u64,
    /// The number of ranges of keys.
    pub ranges: u32,
    /// Lanes (threads) that do the work.
    pub lanes: u32,
    /// The memory limit of the whole process.
    pub memory_bytes: u64,
    /// Scratch space that will be needed.
    pub scratch_bytes: u64,
    /// Files open at once, at most.
    pub open_files: u32,
    /// The rates on which the prediction is based.
    pub hardware: Hardware,
    /// Stages in order.
    pub stages: Vec<PlanStage>,
    /// Seconds of all stages.
    pub seconds: f64,
    /// The stage and resource that take most of the time.
    pub bottleneck: String,
    /// The words of the command that asks for the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<String>,
}

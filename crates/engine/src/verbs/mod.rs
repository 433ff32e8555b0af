//! The verbs. Each only composes what other crates do.

use thalweg_api::{Receipt, Work};

use crate::{Progress, Result, WorkOptions, check_options};

mod check;
#[cfg(test)]
mod disks_test;
mod doctor;
mod generate;
mod header;
mod join;
mod merge;
#[doc(hidden)]
pub mod participant;
mod partition;
mod plan;
mod pump;
mod receipt;
mod sort;

pub use check::{check, check_joined, check_key, examine, examine_share};
pub use doctor::doctor;
pub use generate::generate;
pub(crate) use participant::sorter_bytes;
pub(crate) use partition::sampled_bytes;
pub use plan::plan;
pub use pump::{ends, pump};
pub(crate) use sort::{MEMORY_BYTES_MIN, scratch_directories, scratch_limit};

/// Sorts, shuffles, merges, joins or partitions records on this machine.
///
/// The receipt's invariant: out = in; with `unique` out + dropped = in; for a join out = the sum over keys of left x
/// right. If it does not hold, [`Error::is_wrong`](crate::Error::is_wrong) is true and no output gets its name.
pub fn run(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    check_options(options)?;
    match options.work {
        Work::Sort | Work::Shuffle(_) => sort::sort(options, progress),
        Work::Merge => merge::merge(options, progress),
        Work::Join => join::join(options, progress),
        Work::Partition { pick, parts, split_keys } => {
            partition::partition(options, (pick, parts, split_keys), progress)
        }
    }
}

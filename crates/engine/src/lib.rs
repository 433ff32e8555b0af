//! What one machine does: the verbs, and its part in a job of several machines.
//!
//! A verb takes options and returns a receipt. [`share`] is what a machine does in a sort, shuffle, merge, join or
//! partition on several; [`model`] predicts how long one takes. [`Sorter`] sorts records that a program has rather than
//! a file. Nothing here knows flags, links or nodes.

mod calibrate;
mod error;
mod lanes;
mod machine;
#[doc(hidden)]
pub mod model;
mod options;
mod partial;
mod progress;
mod sorter;
mod target;
mod verbs;

pub use calibrate::calibration_bytes;
#[doc(hidden)]
pub use calibrate::{probe_cores, probe_disk};
pub use error::{Error, Result};
pub use options::{
    CheckOptions, Endpoint, GenOptions, IoChoice, JoinOptions, MergeOptions, PartitionOptions, PumpEnd,
    PumpOptions, ShuffleOptions, SortOptions, SorterOptions, SshHost,
};
pub use progress::{Progress, ProgressView};
pub use sorter::{Sorted, Sorter};
// What options and results are made of.
pub use thalweg_api::{JoinKind, PartReceipt, PartitionPick, PartitionReceipt, PumpReceipt, Receipt};
pub use thalweg_base::units::Size;
pub use thalweg_pump::{Sink, Source};
pub use thalweg_record::{KeyPart, Layout};
pub use verbs::{check, doctor, generate, join, merge, partition, plan, pump, shuffle, sort};
#[doc(hidden)]
pub use verbs::{check_joined, check_key, ends, examine, share};

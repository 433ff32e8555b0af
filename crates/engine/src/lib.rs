//! What one machine does: the verbs, and its part in a job of several machines.
//!
//! A verb takes options and returns a receipt. [`participant`] is what a machine does in a sort, shuffle, merge, join
//! or partition on several; [`model`] predicts how long one takes. [`Sorter`] sorts records that a program has rather
//! than a file. Nothing here knows flags, links or nodes.

mod asked;
mod calibrate;
mod endpoint;
mod error;
mod job_fault;
mod lane_threads;
mod machine;
#[doc(hidden)]
pub mod model;
mod options;
mod output;
mod progress;
mod sorter;
mod temporary;
mod verbs;
mod volumes;

pub use asked::{Asked, BadPath, Needs, TooLittleMemory};
pub use calibrate::calibration_bytes;
#[doc(hidden)]
pub use calibrate::{probe_cores, probe_disk};
pub use endpoint::{BadEndpoint, Endpoint, SshHost, TablePart};
pub use error::{Error, Missed, Result};
pub use job_fault::{AskedOfCluster, JobFault};
pub use options::{
    CheckOptions, GenOptions, PumpOptions, RightSide, SorterOptions, WorkOptions, check_options,
};
pub use progress::{Progress, ProgressView};
pub use sorter::{Sorted, Sorter};
// What options and results are made of.
pub use thalweg_api::{
    IoChoice, JoinKind, PartReceipt, PartitionPick, PartitionReceipt, PumpReceipt, Receipt, Work,
};
pub use thalweg_base::units::Size;
pub use thalweg_pump::{Sink, Source};
pub use thalweg_record::{KeyPart, Layout};
pub use verbs::{check, doctor, generate, plan, pump, run};
#[doc(hidden)]
pub use verbs::{check_joined, check_key, ends, examine, examine_share, participant};

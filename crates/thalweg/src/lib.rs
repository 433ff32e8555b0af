//! Move, sort and prove record data at the speed of the hardware.
//!
//! The engine behind the `thalweg` command: options in, a receipt out; and [`Sorter`], for records that a
//! program has rather than a file. This is the only crate with a stable interface.

mod calibrate;
mod error;
mod lanes;
mod machine;
mod options;
mod partial;
mod progress;
mod sorter;
mod target;
mod verbs;

pub use calibrate::calibration_bytes;
pub use error::{Error, Result};
pub use options::{
    CheckOptions, Endpoint, GenOptions, IoChoice, PartitionOptions, PartitionPick, PumpEnd, PumpOptions,
    SortOptions, SorterOptions,
};
pub use progress::{Progress, ProgressView};
pub use sorter::{Sorted, Sorter};
pub use thalweg_api::{PartitionReceipt, PumpReceipt, Receipt};
pub use thalweg_base::units::Size;
pub use thalweg_block::Block;
pub use thalweg_pump::{Sink, Source};
pub use thalweg_record::{KeyPart, Layout};
pub use thalweg_river::{Batch, Builder as RiverBuilder, Inlet, Outlet, Pick, River};
pub use verbs::{check, doctor, generate, partition, plan, pump, sort};

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
    CheckOptions, Endpoint, GenOptions, IoChoice, JoinKind, JoinOptions, MergeOptions, PumpEnd, PumpOptions,
    ShuffleOptions, SortOptions, SorterOptions,
};
pub use progress::{Progress, ProgressView};
pub use sorter::{Sorted, Sorter};
pub use thalweg_api::{PumpReceipt, Receipt};
pub use thalweg_base::units::Size;
pub use thalweg_block::Block;
pub use thalweg_pump::{Sink, Source};
pub use thalweg_record::{KeyPart, Layout};
pub use verbs::{check, doctor, generate, join, merge, plan, pump, shuffle, sort};

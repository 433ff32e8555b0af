//! Move, sort and prove record data at the speed of the hardware.
//!
//! The engine behind the `thalweg` command: options in, a receipt out. This is the only crate with a
//! stable interface.

mod calibrate;
mod error;
mod lanes;
mod machine;
mod options;
mod partial;
mod progress;
mod target;
mod verbs;

pub use calibrate::calibration_bytes;
pub use error::{Error, Result};
pub use options::{CheckOptions, Endpoint, GenOptions, IoChoice, SortOptions};
pub use progress::{Progress, ProgressView};
pub use thalweg_record::{KeyPart, Layout};
pub use verbs::{check, doctor, generate, plan, sort};

//! Merges sorted streams into one, or joins two of them by key.
//!
//! Model: a [`Flow`] reads one stream record by record. [`merge`] merges the flows of one lane with a tournament
//! tree; [`split`] divides sorted files by key, so that several lanes can merge in parallel. [`join`] walks two flows
//! key by key. A [`Stretch`] proves the output and passes on full blocks.
//! Non-goals: sorting; threads; names of outputs.

mod error;
mod flow;
mod group;
mod join;
mod merge;
mod reads;
mod split;
mod stretch;
mod tournament;

pub use error::{Error, Result};
pub use flow::{Broken, Failed, Flow};
pub use group::Group;
pub use join::{ExpectedJoin, Join, Kind, Side, join};
pub use merge::{Merge, Merged, merge};
pub use reads::{AHEAD, Piece, Reads};
pub use split::{Limits, Share, records_until, split};
pub use stretch::{Ends, Stretch, close};

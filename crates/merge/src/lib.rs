//! Sorted streams side by side: merged into one, or joined by their keys.
//!
//! Model: a [`Flow`] shows one stream record by record. [`merge`] lets the flows of one lane play a tournament; [`split`]
//! parts sorted files by key, so that several lanes merge at once. [`join`] walks two flows key by key. A [`Stretch`] takes
//! what comes out, proves it and hands on whole blocks.
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
pub use join::{Join, Joined, Kind, Side, join};
pub use merge::{Merge, Merged, merge};
pub use reads::{AHEAD, Piece, Reads};
pub use split::{Limits, Share, records_until, split};
pub use stretch::{Ends, Stretch, close};

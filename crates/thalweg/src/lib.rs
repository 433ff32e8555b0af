//! Move, sort and prove record data at the speed of the hardware.
//!
//! A [`Task`] sorts, shuffles, merges, joins or partitions records, and a [`Transfer`] copies files: on this machine,
//! on a cluster, or over ssh, with one call that returns a receipt. A [`Sorter`] sorts records from the calling program
//! instead of from files. A [`Table`] holds ordered records in memory, and a [`Volume`] stores files on several disks.
//! Only this crate has a stable interface.
//!
//! [`River`]s carry records from several sources to several sinks. Rivers can be chained: an operator takes records
//! from an outlet, may change them, and puts them into an inlet of the next river.
//!
//! ```
//! use thalweg::{Block, Partitioner, River, Sink};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Lines from two sources meet by their hash: equal ones come out of the same outlet.
//! let words = River::builder().inlets(2).outlets(2).partitioner(Partitioner::Hash).build()?;
//! // A second river brings what each outlet counted to one place.
//! let counts = River::builder().inlets(2).outlets(1).build()?;
//! let texts = [["delta", "alpha", "delta"], ["delta", "beta", "alpha"]];
//! let counted = std::thread::scope(|scope| -> Result<Vec<String>, Box<dyn std::error::Error>> {
//!     for (mut inlet, text) in words.inlets.into_iter().zip(texts) {
//!         scope.spawn(move || {
//!             text.into_iter().try_for_each(|word| inlet.put_record(word.as_bytes()))?;
//!             Sink::<Block>::finish(&mut inlet)
//!         });
//!     }
//!     for (mut outlet, mut inlet) in words.outlets.into_iter().zip(counts.inlets) {
//!         scope.spawn(move || {
//!             let mut seen = std::collections::BTreeMap::new();
//!             while let Some(word) = outlet.get_record()? {
//!                 *seen.entry(word.to_vec()).or_insert(0) += 1;
//!             }
//!             for (word, times) in seen {
//!                 let line = format!("{} {times}", String::from_utf8_lossy(&word));
//!                 inlet.put_record(line.as_bytes())?;
//!             }
//!             Sink::<Block>::finish(&mut inlet)
//!         });
//!     }
//!     let mut counted = Vec::new();
//!     let mut outlets = counts.outlets;
//!     while let Some(line) = outlets[0].get_record()? {
//!         counted.push(String::from_utf8(line.to_vec())?);
//!     }
//!     Ok(counted)
//! });
//! let mut counted = counted?;
//! counted.sort();
//! assert_eq!(counted, ["alpha 2", "beta 1", "delta 3"]);
//! # Ok(())
//! # }
//! ```

pub mod nodes;
pub mod table;
mod table_ends;
mod task;
mod transfer;
pub mod volume;

pub use table::Table;
pub use task::{Task, TaskPlan};
pub use thalweg_api::{
    IoChoice, JoinKind, PartReceipt, PartitionPick, PartitionReceipt, PumpReceipt, Receipt, Work,
};
pub use thalweg_base::units::Size;
pub use thalweg_block::Block;
pub use thalweg_engine::{
    Asked, AskedOfCluster, BadPath, JobFault, Needs, TooLittleMemory, doctor, generate, model,
};
pub use thalweg_engine::{
    CheckOptions, Endpoint, Error, GenOptions, Progress, ProgressView, PumpOptions, Result, RightSide,
    Sorted, Sorter, SorterOptions, SshHost, TablePart, WorkOptions,
};
pub use thalweg_job::Cluster;
pub use thalweg_node::SshOptions;
pub use thalweg_pump::{Sink, Source};
pub use thalweg_record::{KeyPart, Layout};
pub use thalweg_river::{Batch, Builder as RiverBuilder, Inlet, Outlet, Partitioner, River};
pub use thalweg_transfer::{Error as TransferError, Refused as TransferRefused, SshFault};
pub use transfer::Transfer;
pub use volume::Volume;

/// Checks whether files, here or on a cluster's nodes, form one sorted sequence, and computes their proof.
///
/// # Errors
/// If the files cannot be checked. Records out of order are not an error.
pub fn check(
    options: &CheckOptions,
    cluster: Option<&Cluster>,
    progress: &Progress,
) -> Result<thalweg_api::Check> {
    match cluster {
        None => {
            let (mut options, mut tables) = (options.clone(), table_ends::Ends::default());
            options.inputs.iter_mut().try_for_each(|input| tables.source(input))?;
            tables.run(progress, || thalweg_engine::check(&options, progress)).map(|(check, _)| check)
        }
        Some(cluster) => thalweg_job::check(cluster, options, progress),
    }
}

/// Volumes mounted as file systems.
pub use thalweg_mount as mount;

// The examples of the guide run as documentation tests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct Guide;

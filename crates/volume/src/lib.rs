//! Volumes: files striped over several disks, of this machine or of the nodes of a cluster.
//!
//! ```text
//! Volume, File --names, sizes, layouts--> Manager     one: SQLite
//!      |
//!      +--------bytes, by strip----------> Store      one for each disk: plain files and their checksums
//! ```
//!
//! Model: a file is cut into stripes, which are dealt to the stores in turn ([`layout`]). A [`Manager`] has the names
//! and layouts of files; a [`Store`] keeps strips; a [`Volume`] is both together, as a client sees them. The messages
//! between client, manager and stores are plain data.
//! Invariant: missing bytes are reported as an error, and never read as zeros.
//! Non-goals: records; access control.

mod acl;
mod ahead;
mod allowed;
mod alone;
mod appending;
mod appends;
mod apply;
mod attach;
mod attributes;
mod balance;
mod behind;
mod cache;
mod cached_names;
mod callers;
mod check;
mod client;
mod cluster;
mod connected;
mod connection;
mod doomed;
mod error;
mod fence;
mod fences;
mod file;
mod forward;
mod fs;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod generations;
mod heal;
mod healer;
mod hint;
mod hold;
mod incarnation;
mod inodes;
mod keeper;
mod kept;
pub mod layout;
mod leases;
mod local;
mod location;
mod locker;
mod locks;
mod maintain;
mod manager;
mod managers;
mod memory;
mod message;
mod mirror;
mod opened;
mod path;
mod place;
mod reached;
mod recover;
mod regions;
mod registry;
mod remote;
mod repair;
mod reports;
mod request;
mod reserve;
mod rows;
mod runs;
mod salvage;
mod serve;
mod server;
mod service;
mod session;
#[cfg(test)]
mod sim_test;
mod sqlite;
mod store;
mod stores;
mod stream;
mod strip;
#[cfg(test)]
mod test_bed;
mod transfer;
mod tree;
mod volume;
mod volumes;

use thalweg_base::codec;

pub use acl::{ACCESS as ACL_ATTRIBUTE, DEFAULT as DEFAULT_ACL_ATTRIBUTE};
pub use alone::OpenVolume;
pub use attributes::{CAPABILITY as CAPABILITY_ATTRIBUTE, is_attribute_name};
pub use cache::Stamp;
pub use cached_names::Cacheable;
pub use check::{check, file, files, status};
pub use cluster::{OfCluster, create_on_nodes, open_on_node};
pub use error::{Error, Result};
pub use file::File;
pub use fs::VolumeFs;
pub use heal::{REPAIR_RATE, REPAIR_RATE_ATTRIBUTE};
pub use hint::{HINT_ATTRIBUTE, Hint};
pub use layout::{Layout, Policy};
pub use local::LocalStore;
pub use location::Location;
pub use locker::{LockNews, Locker};
pub use locks::{How, Lock, Verdict};
pub use maintain::{add_store, replace, replace_unless};
pub use manager::{
    Change, Edit, Entry, Facts, Inode, Kind, Manager, NAME_BYTES_MAX, New, Place, ROOT, Renaming, Written,
};
pub use memory::{CACHE_BYTES, CACHE_BYTES_MIN};
pub use path::VolumePath;
pub use place::create;
pub use registry::Registry;
pub use repair::repair;
pub use request::ChangeNumber;
pub use salvage::salvage;
pub use service::VolumeService;
pub use sqlite::SqliteManager;
pub use store::{Source, Store, Strip, StripFacts, Write};
pub use stores::Slot;
pub use volume::{FileNews, Volume};
pub use volumes::{adopt, destroy, open};

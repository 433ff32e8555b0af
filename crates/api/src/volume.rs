//! Volumes: where they are, how they are, and what lies in them.

use serde::{Deserialize, Serialize};

/// The volumes of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeList {
    /// Each by its name, in their order.
    pub volumes: Vec<VolumeEntry>,
}

/// Where a volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntry {
    /// What it is called.
    pub name: String,
    /// The directory of its manager.
    pub manager: String,
    /// The directories of its stores, in the order of their slots.
    pub stores: Vec<String>,
}

/// A volume that is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// What it is called.
    pub name: String,
    /// The directory.
    pub at: String,
}

/// How a file is laid out, or what a directory says of files that are made in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLayout {
    /// Bytes of a stripe.
    pub stripe_bytes: u64,
    /// Strips of a file; of a directory 0 for one on each store.
    pub width: u32,
    /// Copies of each strip.
    pub copies: u32,
    /// Bytes of a record; 0 for bytes of any kind.
    pub record_bytes: u32,
    /// Of a file, the slot of its first strip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_slot: Option<u32>,
}

/// A volume at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// What it is called.
    pub name: String,
    /// The directory of its manager.
    pub manager: String,
    /// Its stores, in the order of their slots.
    pub stores: Vec<VolumeStore>,
    /// What its root says of files that are made in it.
    pub layout: VolumeLayout,
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Bytes of all files, holes included.
    pub bytes: u64,
}

/// A store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStore {
    /// Its directory.
    pub directory: String,
    /// Why it is lost; nothing if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Strips that it has.
    pub strips: u64,
    /// Bytes that are free on its file system.
    pub available_bytes: u64,
}

/// What a name in a volume leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// The name, or the path; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// `file`, `directory` or `link`.
    pub kind: String,
    /// Bytes.
    pub bytes: u64,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Names that it has.
    pub links: u64,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its number in the volume.
    pub inode: u64,
    /// Where a link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Of a file, how it is laid out; of a directory, how what is made in it will be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<VolumeLayout>,
}

/// What a check of a volume found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCheck {
    /// What it is called.
    pub name: String,
    /// Files whose bytes were read.
    pub files: u64,
    /// Copies of strips that were read.
    pub strips: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// What is wrong, a line for each.
    pub problems: Vec<String>,
    /// Files with bytes that no copy has.
    pub lost_files: u64,
}

/// What was saved from the stores of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSalvage {
    /// What it is called.
    pub name: String,
    /// Files that are whole.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What could not be saved, a line for each.
    pub problems: Vec<String>,
}

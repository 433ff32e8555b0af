//! Reports about volumes: where they are, their state, and their files.

use serde::{Deserialize, Serialize};

/// The volumes of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeList {
    /// The volumes, sorted by name.
    pub volumes: Vec<VolumeEntry>,
}

/// The place of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntry {
    /// Its name.
    pub name: String,
    /// The cluster on whose nodes it is; none if it is on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<VolumeCluster>,
    /// The directory of its manager; on a cluster, after the name of its node and a colon.
    pub manager: String,
    /// The directories of its stores in the same form, in the order of their slots.
    pub stores: Vec<String>,
    /// The clients that may use it; all, if none are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
}

/// The cluster of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCluster {
    /// Its name.
    pub name: String,
    /// The directory of the client's identity.
    pub identity: String,
    /// The volume's id, which its stores know: 32 hexadecimal digits.
    pub volume: String,
}

/// A volume that is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The name of the volume.
    pub name: String,
    /// The directory.
    pub at: String,
}

/// The layout of a file, or the layout that a directory gives to new files in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLayout {
    /// The bytes of a stripe.
    pub stripe_bytes: u64,
    /// The number of strips of a file; in a directory, 0 for one on each store.
    pub width: u32,
    /// The number of copies of each strip.
    pub copies: u32,
    /// The bytes of a record; 0 if stripes need not hold whole records.
    pub record_bytes: u32,
    /// For a file, the slot of its first strip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_slot: Option<u32>,
}

/// The state of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// The directory of its manager.
    pub manager: String,
    /// The clients that may use it; all, if none are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
    /// Its stores, in the order of their slots.
    pub stores: Vec<VolumeStore>,
    /// The layout of new files in its root.
    pub layout: VolumeLayout,
    /// The number of regular files.
    pub files: u64,
    /// The number of directories, including the root.
    pub directories: u64,
    /// The bytes of all files, including holes.
    pub bytes: u64,
    /// The number of files of which a copy missed a write or is on a lost store, although there should be two.
    #[serde(default)]
    pub short_files: u64,
    /// The bytes of these copies, including holes.
    #[serde(default)]
    pub short_bytes: u64,
    /// The number of files of which a part has no copy that can be read: all are on lost stores, or missed a write.
    #[serde(default)]
    pub unreadable_files: u64,
    /// The repair that the volume makes by itself now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<VolumeRepair>,
    /// The most bytes that such a repair copies in a second; 0 if the volume makes none.
    #[serde(default)]
    pub repair_rate: u64,
}

/// A repair that a volume makes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRepair {
    /// The number of files that it found to repair.
    pub files: u64,
    /// How many of them it has done.
    pub files_done: u64,
    /// The bytes that it has copied.
    pub bytes: u64,
}

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStore {
    /// Its directory.
    pub directory: String,
    /// Why it is lost; none if it is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The number of its strips.
    pub strips: u64,
    /// The free bytes of its file system.
    pub available_bytes: u64,
    /// The number of files with two copies of which one here missed a write or cannot be reached.
    #[serde(default)]
    pub short_files: u64,
    /// The bytes of these copies, including holes.
    #[serde(default)]
    pub short_bytes: u64,
    /// When the first of these copies missed a write, in nanoseconds since 1970; none if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_since_ns: Option<i64>,
}

/// An entry of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// The name, or the path; invalid UTF-8 is replaced.
    pub name: String,
    /// `file`, `directory` or `link`.
    pub kind: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// The number of its names.
    pub links: u64,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its inode number in the volume.
    pub inode: u64,
    /// The target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The layout of a file; for a directory, the layout of new files in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<VolumeLayout>,
}

/// The result of checking a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCheck {
    /// Its name.
    pub name: String,
    /// The number of files that were read.
    pub files: u64,
    /// The number of copies of strips that were read.
    pub strips: u64,
    /// The bytes of these copies.
    pub bytes: u64,
    /// What is wrong, one line each.
    pub problems: Vec<String>,
    /// The number of files with bytes that no copy has.
    pub lost_files: u64,
}

/// The result of removing a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeDestroyed {
    /// Its name.
    pub name: String,
    /// The directory of its manager, if that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// The directories of its stores that were removed.
    pub stores: Vec<String>,
    /// What was not removed, one line each.
    pub left: Vec<String>,
    /// Whether it is no longer in the list of volumes. If not, it can be destroyed again.
    pub forgotten: bool,
}

/// The result of salvaging a volume's stores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSalvage {
    /// Its name.
    pub name: String,
    /// The number of complete files.
    pub files: u64,
    /// The number of files that are only partly saved.
    #[serde(default)]
    pub partial_files: u64,
    /// The bytes that were saved.
    pub bytes: u64,
    /// What could not be salvaged, one line each.
    pub problems: Vec<String>,
}

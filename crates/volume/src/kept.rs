//! The incarnation of a volume's manager that a store has accepted last, durably.
//!
//! ```text
//! STORE/incarnation   its number, its random bits, and the place of the manager; locked by the process that serves it
//! ```
//!
//! Model: a store accepts an incarnation in the place of the one that it has (compare and set), so of two managers that
//! succeed the same one, it accepts only the first.
//! Invariant: once a store has accepted an incarnation, it carries out no request of another one.
//! Non-goals: which incarnation is the right one; see hold.rs.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use thalweg_io::{Access, File, FileSystem};

use crate::incarnation::{Holder, Incarnation};
use crate::{Error, Result};

const FILE: &str = "incarnation";
/// The size of the file: a sector, which is written whole or not at all, and in place, so that a full disk has room.
const FILE_BYTES: usize = 512;

impl Holder {
    fn encode(&self) -> [u8; FILE_BYTES] {
        let Holder { incarnation: Incarnation { number, bits: [high, low] }, place } = self;
        let text = format!("incarnation {number} {high:016x}{low:016x}\n{place}\n");
        let mut bytes = [0; FILE_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8; FILE_BYTES]) -> Option<Holder> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let (first, place) = text.strip_suffix('\n')?.split_once('\n')?;
        let (number, bits) = first.strip_prefix("incarnation ")?.split_once(' ')?;
        let (high, low) = bits.split_at_checked(16)?;
        let half = |digits| u64::from_str_radix(digits, 16).ok();
        let incarnation = Incarnation { number: number.parse().ok()?, bits: [half(high)?, half(low)?] };
        Some(Holder { incarnation, place: place.into() })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The holder of a store in a directory.
pub(crate) struct Kept {
    holder: RwLock<Holder>,
    file: Mutex<Option<HolderFile>>,
}

struct HolderFile {
    file: File,
    /// This process has it locked.
    is_served: bool,
}

impl Kept {
    /// Makes the file of a new store, which has no holder yet. Durable but for its name.
    pub(crate) fn create(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<File> {
        let file = File::open(io, &dir.join(FILE), Access::Create)?;
        file.write_at(0, &Holder::default().encode())?;
        file.sync()?;
        Ok(file)
    }

    /// Reads the holder of the store in a directory.
    pub(crate) fn open(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<Kept> {
        let file = match File::open(io, &dir.join(FILE), Access::Update) {
            // A version that knew of no incarnations made it.
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        let mut holder = Holder::default();
        if let Some(file) = &file {
            let mut bytes = [0; FILE_BYTES];
            file.read_at(0, &mut bytes)?;
            holder = Holder::decode(&bytes).unwrap_or_else(Holder::unknown);
        }
        let file = file.map(|file| HolderFile { file, is_served: false });
        Ok(Kept { holder: RwLock::new(holder), file: Mutex::new(file) })
    }

    /// The holder. While this is held, it stays that.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Holder> {
        self.holder.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn holder(&self) -> Holder {
        self.read().clone()
    }

    /// Accepts the next holder in the place of `before`, durably, after all requests of that one have ended. Returns the
    /// holder from then on.
    pub(crate) fn claim(
        &self,
        (io, dir): (&Arc<dyn FileSystem>, &Path),
        before: Incarnation,
        next: &Holder,
    ) -> Result<Holder> {
        let mut file = locked(&self.file);
        let HolderFile { file, is_served } = match &mut *file {
            Some(file) => file,
            none => {
                let made = Kept::create(io, dir)?;
                io.sync_directory(dir)?;
                none.insert(HolderFile { file: made, is_served: false })
            }
        };
        *is_served = *is_served || file.mark();
        if !*is_served {
            return Err(Error::Refused(format!("another process serves {}", dir.display())));
        }
        let mut holder = self.holder.write().unwrap_or_else(PoisonError::into_inner);
        if holder.incarnation == before && *holder != *next {
            file.write_at(0, &next.encode())?;
            file.sync()?;
            holder.clone_from(next);
        }
        Ok(holder.clone())
    }

    /// Whether another process has it locked.
    pub(crate) fn is_served_elsewhere(&self) -> bool {
        locked(&self.file).as_ref().is_some_and(|kept| !kept.is_served && kept.file.is_marked_by_another())
    }
}

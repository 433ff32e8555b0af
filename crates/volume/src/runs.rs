//! Recognises a store that was restored from a backup: it has an older run than its manager has seen.
//!
//! Model: a process that serves the volume and changes files is a *run*. A store has the number of its last run in a
//! file, and the manager has it in its database. Both numbers grow before the first change of a run, and once more when
//! the run ends: first that of the store, then that of the manager, durably.
//! Invariant: the store's number is less than the manager's only if the store's files are older.
//! Non-goals: a backup that was made in the same run, if that was killed; stores on nodes; managers, see hold.rs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use thalweg_io::small;

use crate::manager::Manager;
use crate::{Error, Result};

const FILE: &str = "run";

/// The stores of a volume that this process serves.
pub(crate) struct Runs {
    /// The directories of the stores that are not lost, with their slots.
    stores: Vec<(u32, PathBuf)>,
    has_begun: Mutex<bool>,
}

impl Runs {
    pub(crate) fn new(stores: Vec<(u32, PathBuf)>) -> Runs {
        Runs { stores, has_begun: Mutex::default() }
    }

    /// Begins the run, before its first change; later calls do nothing.
    pub(crate) fn begin(&self, manager: &dyn Manager) {
        let mut has_begun = self.has_begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_begun {
            *has_begun = true;
            self.count(manager);
        }
    }

    /// Ends the run, after its last change.
    pub(crate) fn end(&self, manager: &dyn Manager) {
        if *self.has_begun.lock().unwrap_or_else(PoisonError::into_inner) {
            self.count(manager);
        }
    }

    /// Without room for the number, a store keeps the last one, and so does the manager: a backup from before this run
    /// is then not recognised.
    fn count(&self, manager: &dyn Manager) {
        for (slot, dir) in &self.stores {
            let next = of(dir).map(|run| run + 1);
            let noted = next.and_then(|run| note(dir, run).map(|()| run));
            let _ = noted.and_then(|run| manager.set_run(*slot, run));
        }
        let _ = manager.sync();
    }
}

/// Notes the last run of the store in a directory, durably.
pub(crate) fn note(dir: &Path, run: u64) -> Result<()> {
    Ok(small::write(&dir.join(FILE), format!("run {run}\n").as_bytes())?)
}

/// The last run of the store in a directory; 0 if there was none yet.
fn of(dir: &Path) -> Result<u64> {
    let text = match small::read(&dir.join(FILE)) {
        Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        text => text?,
    };
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix("run "));
    Ok(number.and_then(|number| number.trim_end().parse().ok()).unwrap_or(0))
}

/// An error if the store in a directory has an older run than the manager has seen.
pub(crate) fn check(dir: &Path, seen: u64) -> Result<()> {
    match of(dir)? {
        run if run < seen => Err(Error::Refused(format!(
            "{} is older than the volume (run {run}, the manager has seen run {seen}), as after a restore from a backup",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

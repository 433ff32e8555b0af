//! The groups of the registrar in a file.
//!
//! Model: `table-groups`, beside the identity of the node, is replaced as a whole before anything is sent.
//! Invariant: after a failure to store a change, the groups are those of the file.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use thalweg_base::codec::{Plain, decode};
use thalweg_io::small;

use super::super::error::{Error, Result};
use super::super::message::Outbox;
use super::directory::{Directory, Stored};

const FILE: &str = "table-groups";

/// The groups of all tables with parity, on the registrar.
pub(crate) struct ParityService {
    /// `None` in a process without an identity; its groups end with the process.
    file: Option<PathBuf>,
    directory: Mutex<Option<Directory>>,
    has_groups: AtomicBool,
}

impl ParityService {
    /// The groups whose file is in this directory.
    pub(crate) fn in_directory(directory: Option<&Path>) -> ParityService {
        let file = directory.map(|directory| directory.join(FILE));
        let has_groups = file.as_ref().is_some_and(|file| small::read(file).is_ok());
        ParityService { file, directory: Mutex::default(), has_groups: has_groups.into() }
    }

    /// Whether there is, or was, a table with parity.
    pub(crate) fn has_groups(&self) -> bool {
        self.has_groups.load(Ordering::Relaxed)
    }

    /// From now on there are tables with parity.
    pub(crate) fn begin(&self) {
        self.has_groups.store(true, Ordering::Relaxed);
    }

    fn read(&self) -> Result<Stored> {
        let Some(file) = &self.file else { return Ok(Stored::default()) };
        match small::read(file) {
            Ok(bytes) => decode(&bytes).ok_or_else(|| {
                Error::Refused(format!("{} is damaged, or of another version", file.display()))
            }),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(Stored::default()),
            Err(e) => Err(Error::refused(e)),
        }
    }

    /// Works on the groups, and stores them if they have changed. Returns the messages to send.
    pub(crate) fn with<T>(
        &self,
        now_ms: u64,
        me: &str,
        work: impl FnOnce(&mut Directory, &mut Outbox) -> T,
    ) -> Result<(T, Outbox)> {
        let mut known = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut directory = match known.take() {
            Some(directory) => directory,
            None => Directory::new(now_ms, me.into(), self.read()?),
        };
        let mut out = Outbox::new();
        let done = work(&mut directory, &mut out);
        if std::mem::take(&mut directory.has_changed)
            && let Some(file) = &self.file
        {
            let mut bytes = Vec::new();
            directory.stored.put(&mut bytes);
            small::write(file, &bytes).map_err(Error::refused)?;
        }
        *known = Some(directory);
        Ok((done, out))
    }
}

//! The managers that are open on a node, and how many sessions each has.
//!
//! Invariant: a directory has an entry only while its manager is open or a request for it is under way, so requests for
//! directories without managers fill no memory. An exclusive session is the manager's only one.
//! Non-goals: how a manager is opened, and the requests of sessions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::server::Server;
use crate::{Error, Result};

/// The end of the error for a manager that has sessions.
pub(crate) const IN_USE: &str = "; unmount it there, or wait for their end";
/// How long to wait for sessions that are ending.
const ENDING: Duration = Duration::from_secs(2);

/// The managers of a node, by their directories.
#[derive(Default)]
pub(crate) struct Managers(Mutex<HashMap<PathBuf, Arc<Entry>>>);

#[derive(Default)]
struct Entry {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    server: Option<Arc<Server>>,
    sessions: usize,
    /// The only session is exclusive.
    is_alone: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the volume whose manager is in this directory.
pub(crate) fn name_of(directory: &Path) -> String {
    directory.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

impl Managers {
    /// Counts a session with the manager in a directory, and opens the manager if it is not open. Waits a moment for
    /// sessions that conflict with this one.
    pub(crate) fn enter(
        self: &Arc<Managers>,
        dir: &Path,
        is_alone: bool,
        open: impl FnOnce() -> Result<Arc<Server>>,
    ) -> Result<Entered> {
        let asked = self.ask(dir);
        let mut state = asked.wait_for(|state| !state.is_alone && (!is_alone || state.sessions == 0))?;
        if state.sessions == 0 {
            // Stores have accepted another manager; if this one has been adopted or replaced since, it is opened anew.
            state.server.take_if(|server| server.stands().is_err());
        }
        let server = match &state.server {
            Some(server) => Arc::clone(server),
            None => Arc::clone(state.server.insert(open()?)),
        };
        if is_alone {
            server.healer.end();
        }
        state.sessions += 1;
        state.is_alone = is_alone;
        drop(state);
        Ok(Entered { server: Some(server), asked, is_alone })
    }

    /// Closes the manager in a directory, if no session uses it, and calls `then` before it can be opened again.
    pub(crate) fn close(self: &Arc<Managers>, dir: &Path, then: impl FnOnce() -> Result<()>) -> Result<()> {
        let asked = self.ask(dir);
        let mut state = asked.wait_for(|state| state.sessions == 0)?;
        if let Some(server) = state.server.take() {
            server.healer.end();
        }
        then()
    }

    /// The sum of what the open managers count of their own repairs; see [`crate::healer::Healer::counts`].
    pub(crate) fn healers(&self) -> [u64; 3] {
        let table = locked(&self.0);
        // One that is being opened or closed counts as closed.
        let open = table.values().filter_map(|entry| entry.state.try_lock().ok()?.server.clone());
        let counts: Vec<[u64; 3]> = open.map(|server| server.healer.counts()).collect();
        [0, 1, 2].map(|n| counts.iter().map(|counts| counts[n]).sum())
    }

    fn ask(self: &Arc<Managers>, dir: &Path) -> Asked {
        let entry = Arc::clone(locked(&self.0).entry(dir.into()).or_default());
        Asked { managers: Arc::clone(self), dir: dir.into(), entry: Some(entry) }
    }
}

/// A reference to an entry, which stays in the table while this exists.
struct Asked {
    managers: Arc<Managers>,
    dir: PathBuf,
    entry: Option<Arc<Entry>>,
}

impl Asked {
    fn entry(&self) -> &Entry {
        self.entry.as_ref().expect("it is there until this is dropped")
    }

    /// Waits until `is_ready`, and returns the state.
    fn wait_for(&self, is_ready: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>> {
        let entry = self.entry();
        let waited = entry.ended.wait_timeout_while(locked(&entry.state), ENDING, |state| !is_ready(state));
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if is_ready(&state) {
            return Ok(state);
        }
        let (name, sessions) = (name_of(&self.dir), state.sessions);
        Err(Error::Refused(match state.is_alone {
            true => format!("the stores of volume {name} are being changed; wait for the end of that"),
            false => {
                let clients = if sessions == 1 { "client has" } else { "clients have" };
                format!("{sessions} {clients} volume {name} open, perhaps mounted{IN_USE}")
            }
        }))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut table = locked(&self.managers.0);
        self.entry = None;
        // Each other user of the entry has a reference too, and all are taken and given up with the table locked.
        if table
            .get(&self.dir)
            .is_some_and(|e| Arc::strong_count(e) == 1 && locked(&e.state).server.is_none())
        {
            table.remove(&self.dir);
        }
    }
}

/// A session's use of a manager.
pub(crate) struct Entered {
    server: Option<Arc<Server>>,
    asked: Asked,
    pub(crate) is_alone: bool,
}

impl Entered {
    pub(crate) fn server(&self) -> &Arc<Server> {
        self.server.as_ref().expect("it is there until this is dropped")
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let entry = self.asked.entry();
        let mut state = locked(&entry.state);
        state.sessions -= 1;
        if std::mem::take(&mut state.is_alone) {
            // The next session finds other stores.
            (state.server, self.server) = (None, None);
        }
        drop(state);
        entry.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::Stores;
    use crate::{Policy, SqliteManager, place};

    fn open(dir: &Path) -> Result<Arc<Server>> {
        let manager = SqliteManager::open(dir)?;
        Server::start(Box::new(manager), Arc::new(Stores::new(Vec::new())), true, None)
    }

    #[test]
    fn directories_without_managers_fill_no_table() {
        let managers = Arc::new(Managers::default());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // All threads use the same entries, so that several use one at a time.
                scope.spawn(|| {
                    for n in 0..200 {
                        let dir = PathBuf::from(format!("/none/{n}"));
                        assert!(managers.enter(&dir, n % 2 == 0, || open(&dir)).is_err());
                        assert!(managers.close(&dir, || place::try_lock(&dir).map(drop)).is_err());
                    }
                });
            }
        });
        assert_eq!(locked(&managers.0).len(), 0);
    }

    #[test]
    fn a_session_is_alone_or_not_and_a_manager_that_is_open_is_found_again() {
        let dir = std::env::temp_dir().join(format!("thalweg-managers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        SqliteManager::create(&dir, 1, &["/s".into()], &Policy::default(), (0, 0)).unwrap();
        let managers = Arc::new(Managers::default());
        let enter = |is_alone| managers.enter(&dir, is_alone, || open(&dir));
        let refused = |is_alone| enter(is_alone).err().unwrap().to_string();
        let first = enter(false).unwrap();
        assert!(refused(true).contains("1 client has volume"));
        drop(enter(false).unwrap());
        drop(first);
        assert_eq!(locked(&managers.0).len(), 1, "it stays open");
        let alone = enter(true).unwrap();
        assert!(refused(false).contains("are being changed") && refused(true).contains("are being changed"));
        drop(alone);
        assert_eq!(locked(&managers.0).len(), 0, "it is opened anew");
        drop(enter(false).unwrap());
        managers.close(&dir, || Ok(())).unwrap();
        assert_eq!(locked(&managers.0).len(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

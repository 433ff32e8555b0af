//! Progress of a running verb, shared between the engine, which writes it, and the code that shows it.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use thalweg_api::Note;
use thalweg_pump::Watch;

/// A running verb's progress and its off switch. Share it in an `Arc`.
#[derive(Debug, Default)]
pub struct Progress {
    stage: Mutex<String>,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    stage_index: AtomicU64,
    stages: AtomicU64,
    behind_percent: AtomicU64,
    /// [`Progress::behind_percent`] of the next stage, and one more; 0 if it is not known.
    behind_next: AtomicU64,
    cancelled_by: AtomicI32,
    notes_to: OnceLock<Notes>,
}

/// The receiver of notes, called at once.
struct Notes(Box<dyn Fn(&Note) + Send + Sync>);

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notes")
    }
}

/// Progress at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgressView {
    /// Name of the current stage; empty before the first.
    pub stage: String,
    /// Which stage it is, from 1.
    pub stage_index: u64,
    /// How many stages there will be.
    pub stages: u64,
    /// Bytes of the stage that are done.
    pub done_bytes: u64,
    /// Bytes of the stage in all; 0 if unknown (a pipe).
    pub total_bytes: u64,
    /// How long the stages after it should take, in percent of its own time.
    pub behind_percent: u64,
}

impl Watch for Progress {
    fn begin(&self, stage: &str, index: u64, stages: u64, total_bytes: u64) {
        Progress::begin(self, stage, index, stages, total_bytes);
    }

    fn behind_next(&self, percent: u64) {
        self.behind_next.store(percent + 1, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        Progress::advance(self, bytes);
    }

    fn stopped(&self) -> bool {
        self.cancelled().is_some()
    }

    fn note(&self, note: &dyn Display) {
        Progress::note(self, &note.to_string());
    }

    fn note_resumable(&self, note: &dyn Display) {
        self.pass_on(&Note { text: note.to_string(), resumable: true });
    }
}

impl Progress {
    /// Begins a stage.
    pub fn begin(&self, stage: &str, index: u64, stages: u64, total_bytes: u64) {
        *self.stage.lock().expect("no holder panics") = stage.to_string();
        let behind = match self.behind_next.swap(0, Ordering::Relaxed) {
            0 => 100 * stages.saturating_sub(index),
            known => known - 1,
        };
        self.behind_percent.store(behind, Ordering::Relaxed);
        self.stage_index.store(index, Ordering::Relaxed);
        self.stages.store(stages, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.done_bytes.store(0, Ordering::Relaxed);
    }

    /// Adds to the bytes that are done.
    pub fn advance(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Asks the verb to stop; `signal` is the number that asked.
    pub fn cancel(&self, signal: i32) {
        self.cancelled_by.store(signal, Ordering::Relaxed);
    }

    /// The signal that asked to stop, if one did.
    pub fn cancelled(&self) -> Option<i32> {
        match self.cancelled_by.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Sets the receiver of notes. Only the first call counts.
    pub fn notes_to(&self, receive: impl Fn(&Note) + Send + Sync + 'static) {
        let _ = self.notes_to.set(Notes(Box::new(receive)));
    }

    /// Reports what the user should know at once, if there is a receiver of notes.
    pub fn note(&self, line: &str) {
        self.pass_on(&Note { text: line.to_string(), resumable: false });
    }

    /// Passes a note on, if there is a receiver of notes.
    pub fn pass_on(&self, note: &Note) {
        if let Some(Notes(receive)) = self.notes_to.get() {
            receive(note);
        }
    }

    /// What to show now.
    pub fn view(&self) -> ProgressView {
        ProgressView {
            stage: self.stage.lock().expect("no holder panics").clone(),
            stage_index: self.stage_index.load(Ordering::Relaxed),
            stages: self.stages.load(Ordering::Relaxed),
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            behind_percent: self.behind_percent.load(Ordering::Relaxed),
        }
    }
}

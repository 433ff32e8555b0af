//! News of open files: what other mounts have changed in them.
//!
//! Model: as long as files are open, a thread exchanges news with the manager every [`PERIOD`], and makes the kernel drop
//! the pages and attributes of files that others have changed. Inside a request that could deadlock. What the grant of a
//! lock has told is no news.
//! Invariant: what a program writes on one mount, others that have the file open read within a second: after
//! [`PERIOD`] at most the writer has reported it, and after as long the reader has heard of it.
//! Non-goals: files that are not open, whose attributes the kernel asks for after a second.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_volume::Volume;

use crate::kernel::Kernel;

/// How often news are exchanged.
const PERIOD: Duration = Duration::from_millis(250);

/// The thread that exchanges news.
pub(crate) struct News {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Files whose pages differ from what is stored, because a write failed.
    failed: Mutex<BTreeSet<u64>>,
}

impl Shared {
    fn failed(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    pub(crate) fn new(volume: &Arc<Volume>, kernel: &Arc<Kernel>) -> io::Result<News> {
        let shared = Arc::<Shared>::default();
        let (own, volume, kernel) = (Arc::clone(&shared), Arc::downgrade(volume), Arc::clone(kernel));
        let builder = std::thread::Builder::new().name("mount news".into());
        let thread = builder.spawn(move || run(&own, &volume, &kernel))?;
        Ok(News { shared, thread: Some(thread) })
    }

    /// A write of this file failed, whose bytes the kernel may have.
    pub(crate) fn failed(&self, inode: u64) {
        self.shared.failed().insert(inode);
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, volume: &Weak<Volume>, kernel: &Kernel) {
    // No file is open yet.
    let first = volume.upgrade().and_then(|volume| volume.news(0).ok());
    let mut since = first.map_or(0, |news| news.next);
    loop {
        std::thread::park_timeout(PERIOD);
        let Some(volume) = volume.upgrade().filter(|_| !shared.is_over.load(Ordering::Acquire)) else {
            return;
        };
        let mut changed: Vec<u64> = std::mem::take(&mut *shared.failed()).into_iter().collect();
        let mut to_report = Vec::new();
        let no_grant = kernel.no_grant();
        // If it fails, it is tried again, and reads of what others have changed fail too.
        if volume.has_open_files()
            && let Ok(news) = volume.news(since)
        {
            since = news.next;
            changed.extend(news.changed);
            to_report = news.shared;
        }
        changed.into_iter().for_each(|inode| kernel.drop_file(inode));
        drop(no_grant);
        volume.report_to_others(&to_report);
    }
}

//! Locks of programs, `flock` and `fcntl`, which the server of the volume grants.
//!
//! ```text
//! kernel --setlk--> MountLocks --Lock, ticket--> Locker --> server
//!    ^                                             |
//!    +---answer------- thread of locks <---news----+
//! ```
//!
//! Model: a waiting request occupies no thread of the mount; the thread of locks answers it when the server decides.
//! When a descriptor is closed (FLUSH), the locks of fcntl(2) end that its process has on the file. When an open file
//! has no descriptor left (RELEASE), the locks end that were taken through it and still exist: those of flock(2) and of
//! open files. The kernel does not wait for RELEASE, so a request that such a lock is in the way of waits a moment for it.
//! fuser does not report whether a lock is one of flock(2), so such a lock is one on the whole file, as over NFS: it
//! also excludes those of fcntl(2).
//! Invariant: a lock is granted only after the kernel has dropped the file's pages, unless it dropped them after the
//! last change by others already. The thread of locks does that: inside a request it can deadlock. A descriptor whose
//! locks are lost answers EIO until it is closed.
//! Non-goals: interrupts of FUSE, which fuser does not pass on: the signals of a waiting program are read from /proc.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Errno, FileHandle, ReplyEmpty, ReplyLock};
use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_volume::{ChangeNumber, Error, How, Lock, LockNews, Locker, Verdict, Volume};

use crate::callers::Signals;
use crate::handles::OpenFile;
use crate::kernel::Kernel;

/// How often programs that wait for a lock are checked for signals.
const SIGNALS: Duration = Duration::from_millis(50);
/// How long after a descriptor was closed the kernel may take to report that it was the last one of its open file. On a
/// busy machine 50 ms were too few in one of 300 rounds.
const CLOSING: Duration = Duration::from_millis(500);

type Complain = Arc<dyn Fn(&str) + Send + Sync>;

/// The open files through which an owner has locks.
type Through = Vec<Weak<OpenFile>>;

/// The lock state of an open file.
#[derive(Default)]
pub(crate) struct OfFile {
    /// It has had a lock.
    is_used: AtomicBool,
    /// One of its locks is lost.
    is_lost: AtomicBool,
    /// The owners that locked through it, and have not closed it.
    owners: Mutex<Vec<u64>>,
    /// When one of its descriptors was last closed.
    closed_ns: AtomicU64,
}

/// Where to send the result of a request.
pub(crate) enum Reply {
    Set(ReplyEmpty),
    Test(ReplyLock),
}

impl Reply {
    fn error(self, errno: Errno) {
        match self {
            Reply::Set(reply) => reply.error(errno),
            Reply::Test(reply) => reply.error(errno),
        }
    }
}

/// A request that has not been answered yet.
pub(crate) struct Asked {
    pub(crate) reply: Reply,
    pub(crate) open: Arc<OpenFile>,
    /// The kernel's handle of it.
    pub(crate) handle: FileHandle,
    pub(crate) lock: Lock,
    /// The waiting thread.
    pub(crate) task: u32,
    /// Pending signals of its process at the last check.
    pub(crate) signals: u64,
    /// When it gives up, if it does not wait for as long as the lock is taken.
    pub(crate) until_ns: Option<u64>,
}

impl Asked {
    pub(crate) fn new(reply: Reply, open: Arc<OpenFile>, handle: FileHandle, lock: Lock, task: u32) -> Asked {
        Asked { reply, open, handle, lock, task, signals: 0, until_ns: None }
    }
}

enum Job {
    News(LockNews),
    /// A request is waiting, or the mount has ended.
    Look,
}

/// The locks of a mount.
pub(crate) struct MountLocks {
    locker: Arc<Locker>,
    shared: Arc<Shared>,
    jobs: Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Written while the locks of a closed file end: the kernel may have given the number of their owner to a file that
    /// was opened since, and that is locking now.
    ending: RwLock<()>,
}

struct Shared {
    /// Unanswered requests, by ticket.
    asked: Mutex<HashMap<u64, Asked>>,
    /// For each file and owner, the open files through which the owner has locks.
    files: Mutex<HashMap<(u64, u64), Through>>,
    /// For each file, the last change by others after which its pages were dropped.
    dropped: Mutex<HashMap<u64, ChangeNumber>>,
    kernel: Arc<Kernel>,
    is_over: AtomicBool,
    complain: Complain,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MountLocks {
    pub(crate) fn new(
        volume: &Volume,
        complain: &Complain,
        kernel: &Arc<Kernel>,
    ) -> std::io::Result<MountLocks> {
        let (jobs, come) = channel();
        let shared = Arc::new(Shared {
            asked: Mutex::default(),
            files: Mutex::default(),
            dropped: Mutex::default(),
            kernel: Arc::clone(kernel),
            is_over: AtomicBool::new(false),
            complain: Arc::clone(complain),
        });
        let (news, marks) = (Mutex::new(jobs.clone()), Arc::clone(&shared));
        let locker = Locker::new(volume, move |told| {
            if let LockNews::Lost(owners) = &told {
                marks.mark_lost(owners);
            }
            // If the receiver is gone, no request needs the news.
            let _ = held(&news).send(Job::News(told));
        });
        let (of_thread, asks) = (Arc::clone(&shared), Arc::clone(&locker));
        let builder = std::thread::Builder::new().name("mount locks".into());
        let thread = builder.spawn(move || of_thread.run(&asks, &come))?;
        Ok(MountLocks { locker, shared, jobs, thread: Mutex::new(Some(thread)), ending: RwLock::default() })
    }

    /// An error if a file has lost locks, or may have.
    pub(crate) fn check(&self, open: &OpenFile) -> Result<(), Error> {
        if !open.locks.is_used.load(Ordering::Acquire) {
            return Ok(());
        }
        let inode = open.file.inode();
        let in_doubt = || held(&open.locks.owners).iter().any(|owner| self.locker.is_in_doubt(inode, *owner));
        // In this order: locks are in doubt until their descriptors are marked.
        match in_doubt() || open.locks.is_lost.load(Ordering::Acquire) {
            true => Err(Error::System(libc::EIO, lost(inode))),
            false => Ok(()),
        }
    }

    /// Requests a lock, or a test of one.
    pub(crate) fn ask(&self, asked: Asked, how: How) {
        let (ticket, lock, through) = (self.locker.ticket(), asked.lock, asked.handle.0);
        if let Err(why) = self.check(&asked.open).and_then(|()| self.prepare(&asked)) {
            return asked.reply.error(Errno::from_i32(why.errno()));
        }
        held(&self.shared.asked).insert(ticket, asked);
        let mut decided = {
            let _no_file_ends = self.ending.read().unwrap_or_else(PoisonError::into_inner);
            self.locker.ask(ticket, lock, how, through)
        };
        if let (Ok(Some((Verdict::Taken(other), _))), How::Try) = (&decided, how) {
            let owner = other.owner;
            if self.shared.may_end(ticket, lock.inode, owner) {
                decided = self.locker.ask(ticket, lock, How::Wait, through);
            } else if !self.shared.has_locked(lock.inode, owner) {
                // It is of another mount, or has ended since the server looked.
                decided = self.locker.ask(ticket, lock, How::Try, through);
            }
        }
        match decided {
            Ok(Some((verdict, change))) if self.shared.is_dropped(lock.inode, change) => {
                self.shared.answer(ticket, verdict);
            }
            Ok(Some((verdict, change))) => {
                self.send(Job::News(LockNews::Decided { ticket, verdict, change }));
            }
            Ok(None) => self.send(Job::Look),
            Err(why) => self.shared.fail(ticket, &why),
        }
    }

    /// Prepares a request. The descriptor is noted before the lock is granted, so that it is marked if the lock is lost
    /// at once. A shared lock may replace an exclusive one, so what was written under that must be at the stores.
    fn prepare(&self, asked: &Asked) -> Result<(), Error> {
        if let Reply::Test(_) = asked.reply {
            return Ok(());
        }
        self.shared.note(&asked.open, asked.lock);
        if asked.lock.exclusive { Ok(()) } else { asked.open.file.flush() }
    }

    fn send(&self, job: Job) {
        // The thread ends with the mount, when no request waits any longer.
        let _ = self.jobs.send(job);
    }

    /// Releases a range. The next owner of a lock there reads what was written before.
    pub(crate) fn unlock(&self, open: &OpenFile, range: Lock) -> Result<(), Error> {
        self.check(open)?;
        let flushed = open.file.flush();
        self.locker.unlock(range).and(flushed)
    }

    /// A process closes a descriptor: the locks that it owns on the file end, as in close(2). Those of flock(2) and of
    /// open files have other owners.
    pub(crate) fn close(&self, open: &OpenFile, owner: u64) -> Result<(), Error> {
        let inode = open.file.inode();
        if !open.locks.is_used.load(Ordering::Acquire) && !self.shared.has_locked(inode, owner) {
            return Ok(());
        }
        open.locks.closed_ns.store(now_ns(), Ordering::Release);
        held(&open.locks.owners).retain(|known| *known != owner);
        held(&self.shared.files).remove(&(inode, owner));
        self.locker.unlock_all(inode, owner)
    }

    /// The last descriptor of an open file is closed: the locks that were taken through it end.
    pub(crate) fn release(&self, open: &OpenFile, handle: FileHandle) {
        if !open.locks.is_used.load(Ordering::Acquire) {
            return;
        }
        let inode = open.file.inode();
        let _nothing_is_locked = self.ending.write().unwrap_or_else(PoisonError::into_inner);
        // If the request fails, the locks end with the lease.
        let _ = self.locker.unlock_through(inode, handle.0);
        let mut files = held(&self.shared.files);
        for owner in std::mem::take(&mut *held(&open.locks.owners)) {
            let Some(through) = files.get_mut(&(inode, owner)) else { continue };
            through.retain(|known| !std::ptr::eq(known.as_ptr(), open));
            if through.is_empty() {
                files.remove(&(inode, owner));
            }
        }
    }

    /// The kernel has forgotten a file, and its pages.
    pub(crate) fn forget(&self, inode: u64) {
        held(&self.shared.dropped).remove(&inode);
    }

    /// Releases all locks, and interrupts waiting requests.
    pub(crate) fn end(&self) {
        self.locker.leave();
        self.shared.is_over.store(true, Ordering::Release);
        self.send(Job::Look);
        if let Some(thread) = held(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for MountLocks {
    fn drop(&mut self) {
        // If mounting failed, nothing has ended the locks yet.
        self.end();
    }
}

impl Shared {
    /// Answers waiting requests until the mount ends.
    fn run(&self, locker: &Locker, come: &Receiver<Job>) {
        let mut looked = Stopwatch::start();
        while !self.is_over.load(Ordering::Acquire) {
            let is_waited = !held(&self.asked).is_empty();
            let job = match is_waited {
                true => come.recv_timeout(SIGNALS),
                false => come.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(Job::News(news)) => self.hear(news),
                Ok(Job::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if is_waited && looked.ns() >= SIGNALS.as_nanos() as u64 {
                self.interrupt(locker);
                looked = Stopwatch::start();
            }
        }
        held(&self.asked).drain().for_each(|(_, asked)| asked.reply.error(Errno::EINTR));
    }

    fn hear(&self, news: LockNews) {
        match news {
            LockNews::Decided { ticket, verdict, change } => {
                let open = held(&self.asked).get(&ticket).map(|asked| Arc::clone(&asked.open));
                if let Some(open) = open.filter(|open| !self.is_dropped(open.file.inode(), change)) {
                    let inode = open.file.inode();
                    let _no_other = self.kernel.no_grant();
                    // Updates the size. If that fails, so do reads.
                    let _ = open.file.stat();
                    // Before the kernel drops its pages, because others may change the file after that.
                    let stamp = open.file.stamp();
                    open.file.forget();
                    self.kernel.drop_file(inode);
                    held(&self.dropped).insert(inode, change);
                    self.kernel.seen().insert(inode, stamp);
                }
                self.answer(ticket, verdict);
            }
            LockNews::Failed { ticket } => {
                self.fail(
                    ticket,
                    &Error::System(libc::EIO, "the server of the volume cannot be asked".into()),
                );
            }
            LockNews::Lost(owners) => owners.into_iter().for_each(|(inode, owner)| self.lose(inode, owner)),
        }
    }

    /// The descriptors with locks of these owners answer EIO from now on. No request waits for another thread to mark
    /// them.
    fn mark_lost(&self, owners: &[(u64, u64)]) {
        let files = held(&self.files);
        let open = owners.iter().filter_map(|of| files.get(of)).flatten().filter_map(Weak::upgrade);
        open.for_each(|open| open.locks.is_lost.store(true, Ordering::Release));
    }

    /// Reports that locks of an owner are lost, whose descriptors are marked already, and drops the pages of the file.
    fn lose(&self, inode: u64, owner: u64) {
        let files = held(&self.files).remove(&(inode, owner)).unwrap_or_default();
        if files.iter().any(|open| open.strong_count() > 0) {
            (self.complain)(&lost(inode));
            // Otherwise the kernel would continue to serve its pages.
            self.kernel.drop_file(inode);
        }
    }

    /// Whether the pages of a file are not older than a change by others.
    fn is_dropped(&self, inode: u64, change: ChangeNumber) -> bool {
        change == 0 || held(&self.dropped).get(&inode) == Some(&change)
    }

    /// Whether a lock that is in the way may have ended without the kernel having reported it. If so, the request waits
    /// for that, and not for longer.
    fn may_end(&self, ticket: u64, inode: u64, owner: u64) -> bool {
        let since_ns = now_ns().saturating_sub(CLOSING.as_nanos() as u64);
        let may_end = held(&self.files).get(&(inode, owner)).is_some_and(|through| {
            let mut open = through.iter().filter_map(Weak::upgrade);
            open.any(|open| open.locks.closed_ns.load(Ordering::Acquire) > since_ns)
        });
        if let (true, Some(asked)) = (may_end, held(&self.asked).get_mut(&ticket)) {
            asked.until_ns = Some(now_ns() + CLOSING.as_nanos() as u64);
        }
        may_end
    }

    fn has_locked(&self, inode: u64, owner: u64) -> bool {
        held(&self.files).contains_key(&(inode, owner))
    }

    fn answer(&self, ticket: u64, verdict: Verdict) {
        let Some(asked) = held(&self.asked).remove(&ticket) else { return };
        match (verdict, asked.reply) {
            (Verdict::Free, Reply::Set(reply)) if asked.open.locks.is_lost.load(Ordering::Acquire) => {
                reply.error(Errno::EIO);
            }
            (Verdict::Free, Reply::Set(reply)) => reply.ok(),
            (Verdict::Free, Reply::Test(reply)) => reply.locked(0, 0, i32::from(libc::F_UNLCK as i16), 0),
            (Verdict::Taken(other), Reply::Test(reply)) => {
                let kind = if other.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.locked(other.start, other.end.min(i64::MAX as u64), kind, other.pid);
            }
            (Verdict::Taken(_), Reply::Set(reply)) => reply.error(Errno::EAGAIN),
            (Verdict::Deadlock, reply) if asked.until_ns.is_some() => reply.error(Errno::EAGAIN),
            (Verdict::Deadlock, reply) => reply.error(Errno::EDEADLK),
            (Verdict::Full, reply) => reply.error(Errno::ENOLCK),
        }
    }

    /// Notes that an owner may have a lock through an open file.
    fn note(&self, open: &Arc<OpenFile>, lock: Lock) {
        open.locks.is_used.store(true, Ordering::Release);
        let mut owners = held(&open.locks.owners);
        if !owners.contains(&lock.owner) {
            owners.push(lock.owner);
        }
        drop(owners);
        let mut files = held(&self.files);
        let through = files.entry((lock.inode, lock.owner)).or_default();
        if !through.iter().any(|known| known.as_ptr() == Arc::as_ptr(open)) {
            through.push(Arc::downgrade(open));
        }
    }

    fn fail(&self, ticket: u64, why: &Error) {
        let Some(asked) = held(&self.asked).remove(&ticket) else { return };
        if why.errno() == libc::EIO {
            (self.complain)(&why.to_string());
        }
        asked.reply.error(Errno::from_i32(why.errno()));
    }

    /// Ends the waiting requests of programs that have a signal, and those that wait no longer.
    fn interrupt(&self, locker: &Locker) {
        let mut over = Vec::new();
        for (ticket, asked) in held(&self.asked).iter_mut() {
            let now = Signals::of(asked.task);
            let before = std::mem::replace(&mut asked.signals, now.shared);
            // With several threads, a pending signal of the process may be another thread's, which takes it at once.
            if now.own != 0 || now.shared & before != 0 || (now.is_alone && now.shared != 0) {
                over.push((*ticket, Errno::EINTR));
            } else if asked.until_ns.is_some_and(|until_ns| now_ns() >= until_ns) {
                over.push((*ticket, Errno::EAGAIN));
            }
        }
        for (ticket, errno) in over {
            if let Ok(true) = locker.cancel(ticket) {
                let asked = held(&self.asked).remove(&ticket);
                asked.into_iter().for_each(|asked| asked.reply.error(errno));
            }
        }
    }
}

fn lost(inode: u64) -> String {
    format!(
        "locks of inode {inode} are lost: the server of the volume did not hear of this mount for 10 s; close the file"
    )
}

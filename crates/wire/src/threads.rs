//! Threads that serve streams. An idle thread waits a while for more work of its kind.
//!
//! Model: starting and ending a thread, mostly the first use of its stack, costs more than a small job.
//! Invariant: at most [`IDLE_MAX`] threads of a kind wait at a time, none longer than [`IDLE`]. A panic ends only the
//! work that panicked: its thread takes more work, and dropping the work's state tells the peer.
//! Non-goals: an order; a limit on busy threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{SendError, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

const STACK_BYTES: usize = 512 << 10;
/// The most idle threads of a kind.
const IDLE_MAX: usize = 4;
/// How long a thread stays idle.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// An idle thread, and the channel for its next work.
struct Idle {
    name: &'static str,
    thread: ThreadId,
    give: Sender<Work>,
}

static WAITING: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// Does the work on a thread of this name; false if the system has no thread left.
pub fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> bool {
    let mut work: Work = Box::new(work);
    if let Some(idle) = take(|idle| idle.name == name) {
        match idle.give.send(work) {
            Ok(()) => return true,
            Err(SendError(again)) => work = again,
        }
    }
    let builder = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    builder.spawn(move || stay(name, work)).is_ok()
}

/// Runs work that may panic; a panic becomes an error of one line.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Shared state is changed completely or not at all.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let line = said.lines().next().unwrap_or_default();
        format!(
            "an internal error of this node: {line}; its log says where; the node continues; please report it"
        )
    })
}

/// Works, then waits for more.
fn stay(name: &'static str, mut work: Work) {
    let thread = thread::current().id();
    loop {
        // The peer notices the dropped state, and the process's panic hook writes the log.
        let _ = caught(work);
        let (give, given) = channel();
        {
            let mut waiting = WAITING.lock().expect("no holder panics");
            if waiting.iter().filter(|idle| idle.name == name).count() >= IDLE_MAX {
                return;
            }
            waiting.push(Idle { name, thread, give });
        }
        work = match given.recv_timeout(IDLE) {
            Ok(more) => more,
            Err(_) if take(|idle| idle.thread == thread).is_some() => return,
            // Another thread has just taken it, and is about to give it work.
            Err(_) => match given.recv() {
                Ok(more) => more,
                Err(_) => return,
            },
        };
    }
}

/// The last thread that became idle, whose stack is most likely cached.
fn take(is_it: impl Fn(&Idle) -> bool) -> Option<Idle> {
    let mut waiting = WAITING.lock().expect("no holder panics");
    let at = waiting.iter().rposition(is_it)?;
    Some(waiting.remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_ends_and_its_thread_goes_on() {
        let (tell, told) = channel();
        assert!(spawn("panics", move || {
            tell.send(thread::current().id()).unwrap();
            panic!("on purpose");
        }));
        let id = told.recv().unwrap();
        while !WAITING.lock().unwrap().iter().any(|idle| idle.thread == id) {
            thread::yield_now();
        }
        assert!(caught(|| panic!("one\ntwo")).unwrap_err().contains("error of this node: one; its log"));
    }

    #[test]
    fn a_thread_works_again_for_the_same_name_only() {
        let (tell, told) = channel();
        let ran = |name| {
            let tell = tell.clone();
            assert!(spawn(name, move || tell.send(thread::current().id()).unwrap()));
            let id = told.recv().unwrap();
            let waits = || WAITING.lock().unwrap().iter().any(|idle| idle.thread == id);
            while !waits() {
                thread::yield_now();
            }
            id
        };
        let first = ran("one");
        assert_ne!(ran("other"), first);
        assert_eq!(ran("one"), first);
    }
}

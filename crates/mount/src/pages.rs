//! Answers to writes that go past the kernel's pages.
//!
//! Model: for such a write the kernel drops the pages before it sends the request. Meanwhile a reader may fill them again,
//! with the old bytes. After a synchronous write of O_DIRECT the kernel drops them once more, but not after one of
//! io_submit(2) or io_uring, nor after a write to a file that is open with FOPEN_DIRECT_IO. So the pages are dropped here
//! between the write and its answer.
//! Invariant: the kernel has no older bytes of the range when the program learns that it is written. A page may be locked
//! until the mount answers the read that fills it, so some of the mount's threads never wait for this: when the others do,
//! threads of this module take over.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{INodeNo, ReplyWrite};

use crate::kernel::Kernel;

/// The number of threads that drop pages when those of the mount must not.
const THREADS: usize = 4;
/// How many threads of the mount may drop pages at a time: it is faster than to hand the answer over.
const OF_MOUNT_MAX: usize = crate::THREADS - 2;

/// A range that was written, and where to say so.
pub(crate) struct Past {
    pub(crate) inode: INodeNo,
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) reply: ReplyWrite,
}

/// Drops pages, and then answers. Its threads end when this is dropped.
pub(crate) struct Pages {
    kernel: Arc<Kernel>,
    others: Sender<Past>,
    /// How many threads of the mount drop pages now.
    of_mount: AtomicUsize,
}

impl Pages {
    pub(crate) fn new(kernel: &Arc<Kernel>) -> std::io::Result<Pages> {
        let (others, receive) = channel();
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..THREADS {
            let (kernel, receive) = (Arc::clone(kernel), Arc::clone(&receive));
            std::thread::Builder::new().name("mount pages".into()).spawn(move || run(&kernel, &receive))?;
        }
        Ok(Pages { kernel: Arc::clone(kernel), others, of_mount: AtomicUsize::new(0) })
    }

    /// Answers a write after the kernel has dropped its pages.
    pub(crate) fn answer(&self, past: Past) {
        if self.of_mount.fetch_add(1, Ordering::AcqRel) < OF_MOUNT_MAX {
            answer(&self.kernel, past);
        } else {
            // The threads end after this.
            let _ = self.others.send(past);
        }
        self.of_mount.fetch_sub(1, Ordering::AcqRel);
    }
}

fn run(kernel: &Kernel, receive: &Mutex<Receiver<Past>>) {
    let next = || receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(past) = next() {
        answer(kernel, past);
    }
}

fn answer(kernel: &Kernel, Past { inode, at, len, reply }: Past) {
    if let Ok(at) = i64::try_from(at) {
        kernel.drop_range(inode.0, at, i64::from(len));
    }
    reply.written(len);
}

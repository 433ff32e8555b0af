//! Answers to writes that go past the kernel's pages.
//!
//! Model: for such a write the kernel drops the pages before it sends the request. Meanwhile a reader may fill them again,
//! with the old bytes. After a synchronous write of O_DIRECT the kernel drops them once more, but not after one of
//! io_submit(2) or io_uring, nor after a write to a file that is open with FOPEN_DIRECT_IO. So the pages are dropped here
//! between the write and its answer.
//! Invariant: the kernel has no older bytes of the range when the program learns that it is written. The threads of the
//! mount do not wait for this: a page may be locked until one of them answers the read that fills it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{INodeNo, ReplyWrite};

use crate::Kernel;

/// The number of threads that drop pages: one may have to wait for a read.
const THREADS: usize = 4;

/// A range that was written, and where to say so.
pub(crate) struct Past {
    pub(crate) inode: INodeNo,
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) reply: ReplyWrite,
}

/// Threads that drop pages, and then answer. They end when this is dropped.
pub(crate) struct Pages(Sender<Past>);

impl Pages {
    pub(crate) fn new(kernel: &Kernel) -> std::io::Result<Pages> {
        let (send, receive) = channel();
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..THREADS {
            let (kernel, receive) = (Arc::clone(kernel), Arc::clone(&receive));
            std::thread::Builder::new().name("mount pages".into()).spawn(move || run(&kernel, &receive))?;
        }
        Ok(Pages(send))
    }

    /// Answers a write after the kernel has dropped its pages.
    pub(crate) fn answer(&self, past: Past) {
        // The threads end after this.
        let _ = self.0.send(past);
    }
}

fn run(kernel: &Kernel, receive: &Mutex<Receiver<Past>>) {
    let next = || receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(Past { inode, at, len, reply }) = next() {
        if let (Some(kernel), Ok(at)) = (kernel.get(), i64::try_from(at)) {
            // The kernel may not know the file any longer.
            let _ = kernel.inval_inode(inode, at, i64::from(len));
        }
        reply.written(len);
    }
}
